"""How a simulated replica answers a canary, by what ails it."""

from random import Random

import pytest

from holdfast.core.canary import EXIT_NEWS, CanaryVerdict
from holdfast.core.messages import CanaryResult, RunCanary
from holdfast.core.plan.faults import Fault, FaultKind
from holdfast.core.types import MILLISECOND, SECOND, Replica
from holdfast.sim.canaries import SimulatedCanaries
from holdfast.sim.clock import Clock
from holdfast.sim.engine import Engine
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.request_record import EngineRun
from holdfast.sim.simulated_replica import REFUSED_AFTER, SimulatedReplica

LAW = EngineParameters(
    step_ms=10.0, per_sequence_ms=0.0, per_kv_token_ms=0.0, per_prompt_token_ms=0.0
)
STEP = 10 * MILLISECOND
PATIENCE = 2 * SECOND


class Bench:
    """One replica, and what was told of its canaries."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.told: list[tuple[CanaryResult, int]] = []
        self.deaths: list[int] = []
        engine = Engine(
            LAW, self.clock, lambda _run, _now: None, self.done, lambda _engine, _now: None
        )
        self.unit = SimulatedReplica(Replica("r", "m"), engine, Random(1))
        self.unit.up = self.unit.serving = True
        self.canaries = SimulatedCanaries(
            {"r": self.unit},
            self.clock,
            lambda result, now: self.told.append((result, now)),
            lambda unit, now: self.deaths.append(now),
        )

    def done(self, run: EngineRun, now: int) -> None:
        if run.owner is None:
            self.canaries.answered(run, now)

    def ail(self, kind: FaultKind, **settings: float) -> None:
        self.unit.faults.append(Fault(kind, "r", 0, **settings))
        self.unit.apply_faults(self.clock.now)

    def ask(self, incarnation: int = 7) -> list[tuple[CanaryResult, int]]:
        self.canaries.ask(RunCanary("r", "m", PATIENCE, incarnation), self.clock.now)
        self.clock.run(self.clock.now + 10 * SECOND)
        return self.told


def test_a_healthy_replica_passes_after_the_last_token() -> None:
    told = CanaryResult("r", CanaryVerdict.PASS, 4 * STEP, 0, incarnation=7, tokens=20)
    told.moved_s, told.gap_s = 0.03, 0.01
    assert Bench().ask() == [(told, 4 * STEP)]


def test_what_ran_beside_a_canary_is_told() -> None:
    bench = Bench()
    for _ in range(3):
        bench.unit.engine.submit(EngineRun("user", "r0", 0, 10, 100), 0)
    ((result, _),) = bench.ask()
    assert (result.verdict, result.running, result.latency) == ("pass", 3, 4 * STEP)


def test_a_canary_can_be_of_another_length() -> None:
    bench = Bench()
    bench.canaries.prompt, bench.canaries.output = 32, 8
    ((result, now),) = bench.ask()
    assert (result.tokens, result.latency, now) == (40, 8 * STEP, 8 * STEP)


@pytest.mark.parametrize(
    ("kind", "verdict", "after", "held"),
    [
        (FaultKind.WRONG_OUTPUT, "wrong", 4 * STEP, 0),
        (FaultKind.GARBAGE, "wrong", 4 * STEP, 0),
        (FaultKind.FLAKY, "fail", STEP, EXIT_NEWS),
        (FaultKind.EMPTY, "fail", STEP, EXIT_NEWS),
        (FaultKind.CUT, "fail", STEP, EXIT_NEWS),
        (FaultKind.PROBE_BLIND, "fail", REFUSED_AFTER, EXIT_NEWS),
        (FaultKind.BLACK_HOLE, "fail", REFUSED_AFTER, EXIT_NEWS),
        (FaultKind.PARTITION, "fail", PATIENCE, 0),  # at its deadline: nothing failed early
        (FaultKind.REFUSE_BUSY, "busy", REFUSED_AFTER, 0),
    ],
)
def test_each_fault_shows_in_the_verdict(
    kind: FaultKind, verdict: str, after: int, held: int
) -> None:
    bench = Bench()
    bench.ail(kind)
    ((result, now),) = bench.ask()
    assert (result.verdict, result.incarnation, now) == (verdict, 7, after + held)
    assert result.latency in (0, after)  # measured only where it was read to its end


def test_a_replica_that_does_not_listen_refuses() -> None:
    bench = Bench()
    bench.unit.serving = False
    refused = CanaryResult("r", CanaryVerdict.REFUSED, incarnation=7)
    assert bench.ask() == [(refused, REFUSED_AFTER + EXIT_NEWS)]


def test_without_canaries_nothing_is_known() -> None:
    bench = Bench()
    bench.canaries.enabled = False
    bench.ail(FaultKind.WRONG_OUTPUT)
    assert bench.ask() == [(CanaryResult("r", CanaryVerdict.UNKNOWN, incarnation=7), REFUSED_AFTER)]


def test_a_hung_replica_lets_the_canary_wait_without_progress() -> None:
    bench = Bench()
    user = EngineRun("user", "r0", 0, 10, 100)
    bench.unit.engine.submit(user, 0)
    bench.clock.run(5 * STEP)
    bench.ail(FaultKind.HANG)
    bench.clock.run(SECOND)
    ((result, now),) = bench.ask()
    assert now == SECOND + PATIENCE
    assert result == CanaryResult("r", CanaryVerdict.TIMEOUT, PATIENCE, 1, False, 7)
    assert bench.unit.engine.everyone() == [user]  # the canary does not stay behind


def test_a_busy_replica_lets_the_canary_wait_while_tokens_move() -> None:
    bench = Bench()
    bench.ail(FaultKind.SLOW, factor=80.0)
    bench.unit.engine.submit(EngineRun(None, "r", 1, 16, 1_000), 0)
    ((result, _),) = bench.ask()
    assert (result.verdict, result.progress, result.running) == ("timeout", True, 1)


def test_a_canary_is_not_beside_itself() -> None:
    bench = Bench()
    bench.ail(FaultKind.SLOW, factor=80.0)
    ((result, _),) = bench.ask()
    assert (result.verdict, result.progress, result.running) == ("timeout", False, 0)


def test_a_drip_is_told_when_it_is_due_and_read_on_until_its_third_piece() -> None:
    bench = Bench()
    bench.ail(FaultKind.DRIP, interval_s=5.0)
    bench.canaries.ask(RunCanary("r", "m", PATIENCE, 7, longest=12 * SECOND), 0)
    bench.clock.run(20 * SECOND)
    (first, at), (last, later) = bench.told
    assert (first.reads_on, last.reads_on) == (True, False)
    assert (first.verdict, last.verdict) == ("timeout", "timeout")
    assert at == PATIENCE
    assert 10 * SECOND < later < 11 * SECOND
    assert first.next_gap_s == 0.0
    assert last.gap_s == pytest.approx(5.0, abs=0.1)
    assert last.next_gap_s == pytest.approx(5.0, abs=0.1)


def test_one_pause_in_a_slow_answer_is_told_apart_from_several() -> None:
    bench = Bench()
    bench.ail(FaultKind.SLOW, factor=70.0)
    bench.canaries.output = 8
    bench.canaries.ask(RunCanary("r", "m", PATIENCE, 7, longest=12 * SECOND), 0)
    bench.clock.run(SECOND)
    bench.unit.engine.hang(SECOND)
    bench.clock.run(PATIENCE)
    bench.unit.engine.resume(PATIENCE)
    bench.clock.run(20 * SECOND)
    (due, _), (last, _) = bench.told
    assert due.began
    assert due.moved_s == 0.0  # nothing comes as a hang ends, but a step after that
    assert (last.verdict, last.reads_on) == ("timeout", False)
    assert last.gap_s >= 2.0
    assert 0.5 < last.next_gap_s < 1.0


def test_tokens_that_users_got_are_progress_too() -> None:
    bench = Bench()
    bench.ail(FaultKind.HANG)
    bench.canaries.ask(RunCanary("r", "m", PATIENCE, 7), 0)
    bench.unit.tokens_seen += 5
    bench.clock.run(10 * SECOND)
    ((result, _),) = bench.told
    assert result.progress is True


def test_a_canary_is_a_request_that_a_replica_may_die_of() -> None:
    bench = Bench()
    bench.ail(FaultKind.OOM)
    bench.ask()
    assert bench.deaths == [REFUSED_AFTER]


def test_a_canary_lost_with_its_process_is_told_nobody() -> None:
    bench = Bench()
    bench.canaries.ask(RunCanary("r", "m", PATIENCE, 7), 0)
    bench.unit.engine.crash(STEP)
    bench.unit.incarnation += 1
    bench.clock.run(10 * SECOND)
    assert bench.told == []
