"""Stories of GPUs in a simulated fleet: what was silent there is an incident here.

The world has no GPUs; a script tells their figures as a driver would have. Time is virtual: days
take seconds.
"""

from dataclasses import replace
from math import pi, sin
from random import Random
from typing import Any

import pytest

from holdfast.core.deploy.autoscale import Autoscaler, Demand, ScalingConfig
from holdfast.core.diagnose.evidence import Incident, Sign
from holdfast.core.diagnose.facts import Declared, GpuSeen, Looked, MemorySeen
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Cause
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import Replica, nanos, seconds
from holdfast.sim.clock import WORLD
from holdfast.sim.diagnosis import DiagnosisDriver, ObservationModel
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.memory.memory_model import MemoryModel
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

GB = 10**9
CHAT = Workload(rate=8.0, prompt=Lengths(mean=200.0), output=Lengths(mean=60.0, maximum=400))
DAY_S = 86_400.0


def opened(investigation: Investigation) -> list[Incident]:
    return [one for one in investigation.incidents.values() if one.closed_at is None]


# --- a leak over days -----------------------------------------------------------------------------


class DaysOfMemory:
    """Device memory of four replicas, two to a GPU of 80 GB, with a day's traffic."""

    def __init__(self, leaks: dict[str, float], seed: int = 1) -> None:
        self.leaks = leaks  # bytes a second, by replica
        self.rng = Random(seed)
        self.investigation = Investigation()
        self.requests = dict.fromkeys(("r0", "r1", "r2", "r3"), 0)
        for name in self.requests:
            self.investigation.take(Declared(name, "m", host="n1"), 0)

    def held(self, name: str, at_s: float) -> int:
        """Weights, a cache that fills in the first hour, activations of the traffic, the leak."""
        busy = 1 + sin(2 * pi * at_s / DAY_S)
        cache = min(1.0, at_s / 3_600) * 4 * GB
        noise = self.rng.gauss(0, 30e6)
        return round(10 * GB + cache + busy * GB + noise + self.leaks.get(name, 0.0) * at_s)

    def run(self, days: float, step_s: float = 60.0) -> None:
        at_s = 0.0
        while at_s < days * DAY_S:
            at_s += step_s
            now = nanos(at_s)
            held = {name: self.held(name, at_s) for name in self.requests}
            for one, other in (("r0", "r1"), ("r2", "r3")):
                free = 80 * GB - held[one] - held[other]
                for name in (one, other):
                    self.requests[name] += round(step_s * (1 + sin(2 * pi * at_s / DAY_S)))
                    fact = MemorySeen(
                        name, held[name], held[name] + free, "gpu", self.requests[name]
                    )
                    self.investigation.take(fact, now)
            self.investigation.take(Looked(), now)


def test_a_leak_over_days_is_named_with_its_end_and_its_neighbour_is_not():
    """60 MB a minute on one of two replicas that share a GPU: full in half a day."""
    story = DaysOfMemory({"r2": 1e6})
    story.run(days=0.35)
    (incident,) = opened(story.investigation)
    assert (incident.cause, incident.about.replica) == (Cause.LEAK, "r2")
    told = incident.evidence[-1]
    assert told.text.startswith("gpu memory of r2 grows by")
    held = {name: story.held(name, 0.35 * DAY_S) for name in ("r2", "r3")}
    left_s = (80 * GB - sum(held.values())) / 1e6
    since = 0.35 * DAY_S - seconds(told.at)
    assert told.numbers["exhausted_in_s"] - since == pytest.approx(left_s, rel=0.25)


def test_days_of_healthy_traffic_are_no_leak():
    story = DaysOfMemory({})
    story.run(days=1.5)
    assert opened(story.investigation) == []


# --- memory exhausted silently --------------------------------------------------------------------


class Fleet:
    """One run of a simulated fleet, with GPUs as a script tells them."""

    def __init__(self, *faults: Fault, **changes: Any) -> None:
        base = Experiment(
            tuple(Replica(f"r{i}", "m") for i in range(4)),
            duration_s=240.0,
            workloads=(("m", CHAT),),
            faults=FaultSchedule(faults),
            loading=LoadingConfig(start_s=1.0, size_gb=4.0, bandwidth_gb_per_s=0.5),
        )
        self.world = World(replace(base, **changes), 1)
        self.investigation = Investigation()
        roomy = ObservationModel(memory=MemoryModel(limit_bytes=1e12))  # of the host, not the GPU
        self.driver = DiagnosisDriver(self.world, self.investigation, roomy, seed=1)
        self.sick = ""
        self.sick_from = 0
        for second in range(10, round(base.duration_s), 10):
            self.world.clock.at(nanos(second), WORLD, self.tell, None)

    def tell(self, _: None, now: int) -> None:
        for name in self.world.units:
            ill = name == self.sick and now >= self.sick_from
            self.driver.say(
                GpuSeen(
                    f"host-of-{name}",
                    f"GPU-{name}",
                    "GPU 0",
                    (name,),
                    memory_used_bytes=79 * GB if ill else 60 * GB,
                    memory_total_bytes=80 * GB,
                    utilisation=0.0 if ill else 0.6,
                    temperature_c=40.0 if ill else 65.0,
                ),
                now,
            )
            self.driver.say(MemorySeen(name, (79 if ill else 60) * GB, 80 * GB, "gpu"), now)


def test_gpu_memory_that_is_exhausted_silently_is_one_incident_and_the_idle_gpu_its_consequence():
    """No error, no crash, a green page: requests wait for an allocation that never comes."""
    fleet = Fleet(Fault(FaultKind.HANG, "r1", nanos(30.0)))
    fleet.sick, fleet.sick_from = "r1", nanos(30.0)
    fleet.world.run()
    found = [one for one in fleet.driver.incidents.values() if one.cause is not Cause.LEAK]
    assert [one.about.replica for one in found] == ["r1"]
    (incident,) = found
    assert incident.cause in {Cause.HUNG, Cause.STALLED, Cause.STARVED}
    signs = {one.sign for one in (*incident.evidence, *incident.consequences)}
    assert Sign.CANARY_SILENT in signs
    assert Cause.GPU_IDLE not in {one.cause for one in fleet.driver.incidents.values()}


def test_a_healthy_fleet_with_gpus_has_no_incident():
    fleet = Fleet()
    fleet.world.run()
    assert fleet.driver.incidents == {}


# --- an autoscaler that is blind ------------------------------------------------------------------


def test_an_autoscaler_on_device_memory_is_blind_and_the_backlog_is_an_incident():
    """Engines hold their GPUs' memory from the start. Twice as many come as two can serve."""
    crowd = replace(CHAT, rate=12.0)
    fleet = Fleet(
        replicas=(Replica("r0", "m"), Replica("r1", "m")),
        workloads=(("m", crowd),),
        engine=EngineParameters(step_ms=60.0, batch_max=8, kv_tokens_max=6_000),
    )
    fleet.world.run()
    causes = {one.cause for one in fleet.driver.incidents.values()}
    assert causes == {Cause.OVERLOADED}


@pytest.mark.parametrize(
    ("memory", "queued_tokens", "expected"),
    [
        ((), 0, 2),  # taken at the start: it is not told, and nothing grows
        ((), 8_000, 4),  # the queue grows it, whatever the device says
        ((0.95, 0.6), 0, 3),  # memory that goes with the work asks for one more, once
    ],
)
def test_memory_scales_where_it_goes_with_the_work(memory, queued_tokens, expected):
    scaler = Autoscaler(ScalingConfig(min=1, max=8))
    count = 2
    for second in range(120):
        demand = Demand(
            at=nanos(second),
            queued_tokens=queued_tokens,
            queued=1 if queued_tokens else 0,
            running=2,
            kv_used=(0.3, 0.3),
            memory_used=memory,
            ready=2,
        )
        count = max(count, scaler.decide(demand, count, nanos(second)).count)
    assert count == expected
