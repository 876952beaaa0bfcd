"""The demo that hung, in virtual time: a slow leak, starvation, and a health page that says 200.

``make stories`` tells it with real processes and real memory, in five minutes. Here the fleet is
simulated and watched as a live one is, so that the same investigation comes to the same verdict;
and where nobody can restart the replica, starvation has to be told as the leak's consequence.
"""

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    Declared,
    LoadSeen,
    Looked,
    MemorySeen,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.investigation import Act, Investigation
from holdfast.core.failure import Cause, Class, Kind
from holdfast.core.messages import RestartAsked
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import SECOND, Replica, State, nanos, seconds
from holdfast.sim.clock import CONTROL
from holdfast.sim.diagnosis import DiagnosisDriver
from holdfast.sim.experiment import Experiment
from holdfast.sim.weight_store import LoadingConfig
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

FROM_S = 30.0
LEAD_S = 900.0  # from the first lost byte to the death of it
LONGEST_S = 30.0


class Demo:
    """Three models' worth of trouble in one: a leak, users all the while, and somebody who acts."""

    def __init__(self):
        leak = Fault(FaultKind.LEAK, "r1", nanos(FROM_S), None, lead_s=LEAD_S)
        chat = Workload(rate=12.0, prompt=Lengths(mean=200.0), output=Lengths(mean=60.0))
        setup = Experiment(
            tuple(Replica(f"r{i}", "m") for i in range(3)),
            duration_s=720.0,
            workloads=(("m", chat),),
            faults=FaultSchedule((leak,)),
            loading=LoadingConfig(start_s=1.0, size_gb=4.0, bandwidth_gb_per_s=0.5),
        )
        self.world = World(setup, 1)
        self.acts = []
        self.ends = []
        self.used = []
        self.watcher = DiagnosisDriver(
            self.world, Investigation(), seed=1, listen=self._listen, tap=self._tap
        )

    def _listen(self, finding, now):
        if isinstance(finding, Act):
            self.acts.append((now, finding))
            if finding.remedy is Remedy.DRAIN_AND_RESTART:
                asked = RestartAsked(finding.replica, finding.reason)
                self.world.clock.at(now, CONTROL, self.world._tell_fleet, asked)

    def _tap(self, fact, at):
        if isinstance(fact, ProcessEnded):
            self.ends.append((at, fact))
        elif isinstance(fact, MemorySeen) and fact.replica == "r1" and not self.ends:
            self.used.append(fact)


@pytest.fixture(scope="module")
def demo():
    made = Demo()
    made.results = made.world.run()
    return made


def test_the_incident_names_the_leak_and_its_replica_and_nothing_else(demo):
    (incident,) = demo.watcher.incidents.values()
    assert (incident.cause, incident.failure_class) == (Cause.LEAK, Class.RUNTIME)
    assert incident.about.replica == "r1"
    assert "MB/min" in incident.fix


def test_it_is_drained_and_restarted_before_memory_is_exhausted(demo):
    assert {act.replica for _, act in demo.acts} == {"r1"}
    acted_at, act = next(one for one in demo.acts if one[1].remedy is Remedy.DRAIN_AND_RESTART)
    assert not act.dry_run
    assert seconds(acted_at) < FROM_S + 0.75 * LEAD_S
    ended_at, end = demo.ends[0]
    assert (end.replica, end.asked, end.oom) == ("r1", True, False)
    assert ended_at >= acted_at
    assert all(fact.asked for _, fact in demo.ends)
    last = demo.used[-1]
    assert last.used_bytes < 0.9 * last.limit_bytes


def test_nobody_hangs_and_nobody_is_refused(demo):
    total = demo.results.total()
    assert total.offered > 5_000
    assert total.good == total.offered
    assert max(total.latency) < LONGEST_S


# --- nobody may restart it ------------------------------------------------------------------------


def starving(now_s, generated):
    """A second of three replicas, of which r1 has no memory left: all its pages are green."""
    found = []
    for name in ("r0", "r1", "r2"):
        starved = name == "r1" and now_s >= 600
        kinds = {Kind.FIRST_TOKEN_TIMEOUT: 1} if starved else {}
        tokens = 0 if starved else 240
        found.append(AttemptsSeen(name, 1.0, 0 if starved else 4, 0, 4, tokens, kinds, 0, 0.3))
        generated[name] += tokens
        running, waiting = (0, 9) if starved else (4, 0)
        found.append(LoadSeen(name, running, waiting, 0.2, generated[name], 0))
        if now_s % 10 == 0:
            lost = 2_400_000 * now_s if name == "r1" else 0
            used = min(3_950_000_000, 2_500_000_000 + lost)
            found.append(MemorySeen(name, used, 4_000_000_000, requests=now_s * 4))
        if now_s % 5 == 0:
            told = ("timeout", None, 0, False, True) if starved else ("pass", 0.2, 4, True, True)
            found.append(CanaryAnswered(name, CanaryVerdict(told[0]), *told[1:]))
    return found


def test_starvation_is_told_as_a_consequence_of_the_leak_where_nobody_may_restart_it():
    investigation = Investigation()
    for name in ("r0", "r1", "r2"):
        investigation.take(Declared(name, "m", "1", host=f"h-{name}"), 0)
        investigation.take(StateChanged(name, State.READY, "passed_enough"), 0)
    acts = []
    generated = dict.fromkeys(("r0", "r1", "r2"), 0)
    for now_s in range(1, 700):
        for fact in (*starving(now_s, generated), Looked()):
            found = investigation.take(fact, now_s * SECOND)
            acts += [one for one in found if isinstance(one, Act)]
    (incident,) = investigation.incidents.values()
    assert (incident.cause, incident.about.replica) == (Cause.LEAK, "r1")
    assert seconds(incident.opened_at) < 600  # long before anybody had to wait
    assert {one.sign for one in incident.evidence} == {Sign.MEMORY_LEAKS}
    follows = {one.sign for one in incident.consequences}
    assert {Sign.STARVED, Sign.CANARY_SILENT, Sign.NO_FIRST_TOKEN} <= follows
    assert Remedy.PAGE in {one.remedy for one in acts}
    assert Remedy.DRAIN_AND_RESTART not in {one.remedy for one in acts}  # it is not ours to restart
