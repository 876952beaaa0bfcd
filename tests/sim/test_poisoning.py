"""Tenants whose requests fail wherever they go: others are served as before, replicas stay."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from holdfast.core.failure import Kind
from holdfast.core.messages import Dispatch, Notice, Report
from holdfast.core.plan.faults import Fault, FaultKind, FaultSchedule
from holdfast.core.types import MILLISECOND, Replica, State, nanos, seconds
from holdfast.sim.diagnosis import DiagnosisDriver
from holdfast.sim.experiment import Experiment
from holdfast.sim.request_record import RequestRecord
from holdfast.sim.results import quantiles
from holdfast.sim.workload import Lengths, Workload, WorkloadTenant
from holdfast.sim.world import World

DURATION_S = 80.0
ONSET_S = 60.0  # of a true fault beside the attack; deadlines are learned by then
FAILS_AFTER = 30 * MILLISECOND  # what such a request takes at whichever replica
OUT = (State.QUARANTINED.value, State.DEAD.value)


@dataclass(frozen=True)
class Case:
    """Who asks: honest tenants and attackers, and how many replicas serve them."""

    honest: tuple[str, ...]
    attackers: tuple[str, ...]
    replicas: int


CASES = {
    "one of two": Case(("honest",), ("attacker",), 2),
    "one of twenty": Case(tuple(f"t{i}" for i in range(19)), ("attacker",), 4),
    "five collude": Case(
        tuple(f"t{i}" for i in range(15)), tuple(f"attacker{i}" for i in range(5)), 4
    ),
    "no tenants": Case(("default",), ("default",), 2),
}
# Attacking requests per second: 16 in 25 s, a flood, and one that takes every second attempt.
SLOW, FAST, FLOOD = 0.64, 25.0, 60.0


class PoisonedWorld(World):
    """A world in which the second workload's requests fail alike at every replica."""

    ends_as: Kind | None = None
    honest: list[RequestRecord]
    openings: list[tuple[float, str]]  # of breakers

    def _do_dispatch(self, action: Dispatch, now: int) -> None:
        super()._do_dispatch(action, now)
        record, unit = self.records[action.request.id], self.units[action.replica_id]
        run = record.runs.get(action.attempt)
        if run is not None and _attacks(record) and unit.serving and not unit.hung:
            assert self.ends_as is not None
            unit.engine.cancel(run, now)
            self._end_later(run, self.ends_as, FAILS_AFTER, now)

    def _account(self) -> None:
        self.honest += [record for record in self._done if not _attacks(record)]
        super()._account()


def _attacks(record: RequestRecord) -> bool:
    return isinstance(record.request.id, int) and record.request.id % 2 == 1


def attacked(
    case: Case, kind: Kind | None, rate: float = SLOW, fault: FaultKind | None = None, seed: int = 1
) -> tuple[PoisonedWorld, list[tuple[float, Notice]]]:
    """Run an attack; return the world and what was said of replicas, each with its second."""
    lengths = {"prompt": Lengths(300, cv=0.5), "output": Lengths(60, cv=0.5)}
    honest = Workload(
        6.0 * case.replicas, tenants=tuple(WorkloadTenant(name) for name in case.honest), **lengths
    )
    attack = Workload(
        rate, tenants=tuple(WorkloadTenant(name) for name in case.attackers), **lengths
    )
    setup = Experiment(
        tuple(Replica(f"r{i}", "m", slots=16) for i in range(case.replicas)),
        duration_s=DURATION_S,
        # Numbered in turn: the requests of the attack are odd.
        workloads=(("m", honest), ("m", replace(attack, rate=1e-6) if kind is None else attack)),
        faults=FaultSchedule([] if fault is None else [Fault(fault, "r0", nanos(ONSET_S))]),
    )
    world = PoisonedWorld(setup, seed)
    world.ends_as, world.honest, world.openings = kind, [], []
    DiagnosisDriver(world, acts=True)
    notices: list[tuple[float, Notice]] = []

    def observe(now: int, _whose: str, _event: Any, actions: Sequence[Any]) -> None:
        notices.extend((seconds(now), act) for act in actions if isinstance(act, Notice))
        opened = (act for act in actions if isinstance(act, Report) and act.what == "open")
        world.openings.extend((seconds(now), report.replica_id) for report in opened)

    world.add_observer(observe)
    world.run()
    return world, notices


def success(world: PoisonedWorld) -> float:
    """The share of the honest requests that were answered."""
    return sum(record.status == 200 for record in world.honest) / len(world.honest)


def p99(world: PoisonedWorld) -> float:
    """How long the honest requests took, all but the slowest hundredth."""
    times = [seconds(r.done_at - r.request.arrived) for r in world.honest if r.status == 200]
    slowest = quantiles(times)["p99"]
    assert slowest is not None
    return slowest


@cache
def usual_p99(name: str) -> float:
    """The same without an attack."""
    return p99(attacked(CASES[name], None)[0])


def out(notices: list[tuple[float, Notice]]) -> list[tuple[float, str]]:
    """Who was taken out, and when."""
    return [(at, notice.replica_id) for at, notice in notices if notice.what in OUT]


@pytest.mark.parametrize(
    ("kind", "rate"),
    [(Kind.SERVER_ERROR, SLOW), (Kind.SERVER_ERROR, FAST), (Kind.EMPTY, SLOW), (Kind.CUT, FAST)],
)
@pytest.mark.parametrize("name", CASES)
def test_requests_that_fail_everywhere_harm_nobody_else(name, kind, rate):
    world, notices = attacked(CASES[name], kind, rate)
    assert out(notices) == []
    assert success(world) >= 0.99
    assert p99(world) <= 2 * usual_p99(name)


@pytest.mark.parametrize(
    ("fault", "kind", "rate"),
    [
        (FaultKind.BLACK_HOLE, Kind.SERVER_ERROR, SLOW),
        (FaultKind.BLACK_HOLE, Kind.SERVER_ERROR, FAST),
        (FaultKind.EMPTY, Kind.SERVER_ERROR, FAST),
        (FaultKind.HANG, Kind.SERVER_ERROR, FAST),
        (FaultKind.HANG, Kind.FIRST_TOKEN_TIMEOUT, FLOOD),  # the attack looks like the fault
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_a_replica_that_truly_fails_beside_the_attack_is_out_within_ten_seconds(
    name, fault, kind, rate
):
    world, notices = attacked(CASES[name], kind, rate, fault)
    taken = out(notices)
    assert taken
    assert {replica for _, replica in taken} == {"r0"}
    assert ONSET_S <= taken[0][0] <= ONSET_S + 10.0
    assert success(world) >= 0.97  # the fault itself costs some
