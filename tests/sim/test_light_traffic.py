"""One sick replica of four, with a request or two a second: most fleets are not busy."""

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.messages import Notice
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import Replica, State, nanos, seconds
from holdfast.sim.diagnosis import DiagnosisDriver
from holdfast.sim.experiment import Experiment
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

ONSET_S = 130.0  # what a newcomer is admitted with is spent by then
LATER_S = 60.0
OUT = (State.QUARANTINED.value, State.DEAD.value)


def light(kind: FaultKind | None, seed: int, rate: float = 1.5) -> World:
    lengths = {"prompt": Lengths(500, cv=0.5), "output": Lengths(150, cv=0.7)}
    setup = Experiment(
        tuple(Replica(f"r{i}", "m", slots=8) for i in range(4)),
        duration_s=ONSET_S + LATER_S,
        workloads=(("m", Workload(rate, **lengths)),) if rate else (),
        faults=FaultSchedule([] if kind is None else [Fault(kind, "r0", nanos(ONSET_S))]),
    )
    return World(setup, seed)


def out_after(world: World) -> float | None:
    """Seconds from the onset until the sick replica got no work any more."""
    found: list[float] = []

    def observe(now: int, _whose: str, _event: Any, actions: Sequence[Any]) -> None:
        told = (action for action in actions if isinstance(action, Notice))
        if any(notice.replica_id == "r0" and notice.what in OUT for notice in told):
            found.append(seconds(now) - ONSET_S)

    world.add_observer(observe)
    world.run()
    return next((at for at in found if at >= 0), None)


@pytest.mark.parametrize("seed", range(1, 9))
def test_wrong_answers_end_within_twelve_seconds(seed):
    world = light(FaultKind.WRONG_OUTPUT, seed)
    lasted = out_after(world)
    assert lasted is not None
    assert lasted <= 12.0
    assert world.results.total().wrong <= 6  # of some ninety after the onset


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("rate", [1.5, 0.0])
def test_a_replica_that_hangs_is_out_within_fifteen_seconds(rate, seed):
    lasted = out_after(light(FaultKind.HANG, seed, rate))
    assert lasted is not None
    assert lasted <= 15.0


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize(("kind", "cause"), [("drip", "dripping"), ("stall", "stalled")])
def test_answers_that_do_not_end_are_out_and_named_right(kind, cause, seed):
    world = light(FaultKind(kind), seed)
    watcher = DiagnosisDriver(world, seed=seed, acts=True)
    lasted = out_after(world)
    assert lasted is not None
    assert lasted <= 20.0
    [incident] = watcher.incidents.values()
    assert incident.cause == cause
    assert seconds(incident.opened_at) - ONSET_S <= 30.0


@pytest.mark.parametrize("seed", range(1, 5))
def test_nobody_is_out_where_nothing_is_wrong(seed):
    assert out_after(light(None, seed)) is None
