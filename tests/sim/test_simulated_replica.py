from random import Random

import pytest

from holdfast.core.failure import Kind
from holdfast.core.plan.faults import Fault, FaultKind
from holdfast.core.types import MILLISECOND, SECOND, Replica
from holdfast.sim.clock import Clock
from holdfast.sim.engine import Engine
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.request_record import EngineRun
from holdfast.sim.simulated_replica import (
    ANSWER_AT_ONCE,
    CONNECT_TIMEOUT,
    GARBAGE_TOKENS,
    SimulatedReplica,
)

LAW = EngineParameters(
    step_ms=10.0, per_sequence_ms=0.0, per_kv_token_ms=0.0, per_prompt_token_ms=0.0
)
STEP = 10 * MILLISECOND


def fault(kind: FaultKind, **settings: float) -> Fault:
    return Fault(kind, "r", 0, **settings)


class Bench:
    """One serving unit and the times at which its runs ended."""

    def __init__(self, *, serving: bool = True) -> None:
        self.clock = Clock()
        self.done: list[int] = []
        engine = Engine(
            LAW,
            self.clock,
            lambda _run, _now: None,
            lambda _run, now: self.done.append(now),
            lambda _engine, _now: None,
        )
        self.unit = SimulatedReplica(Replica("r", "m"), engine, Random(1))
        self.unit.serving = serving

    def ail(self, *faults: Fault, at: int = 0) -> SimulatedReplica:
        self.clock.run(at)
        self.unit.faults = list(faults)
        self.unit.apply_faults(at)
        return self.unit

    def ask(self, output: int) -> EngineRun:
        run = EngineRun(None, "r0", 0, 10, output)
        self.unit.engine.submit(run, self.clock.now)
        return run


def test_a_healthy_unit_is_untouched() -> None:
    unit = Bench().ail()
    assert not unit.touched
    assert not unit.down
    assert unit.instant is unit.truncates is None
    run = EngineRun(None, "r0", 0, 10, 50)
    unit.spoil(run)
    assert (run.output, run.ends_as, run.mute) == (50, None, False)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (FaultKind.PARTITION, (Kind.CONNECT_TIMEOUT, CONNECT_TIMEOUT)),
        (FaultKind.BLACK_HOLE, (Kind.SERVER_ERROR, ANSWER_AT_ONCE)),
        (FaultKind.REFUSE_BUSY, (Kind.OVERLOADED, ANSWER_AT_ONCE)),
    ],
)
def test_some_faults_answer_without_the_engine(kind: FaultKind, answer: tuple[Kind, int]) -> None:
    assert Bench().ail(fault(kind)).instant == answer


def test_nobody_answers_through_a_partition_whatever_else_is_wrong() -> None:
    everything = [fault(FaultKind.REFUSE_BUSY), fault(FaultKind.BLACK_HOLE)]
    unit = Bench().ail(*everything, fault(FaultKind.PARTITION))
    assert unit.instant == (Kind.CONNECT_TIMEOUT, CONNECT_TIMEOUT)


@pytest.mark.parametrize("kind", [FaultKind.CRASH, FaultKind.ZONE_LOSS])
def test_a_host_that_is_gone_runs_nothing(kind: FaultKind) -> None:
    assert Bench().ail(fault(kind)).down


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [
        (FaultKind.WRONG_OUTPUT, "wrong"),
        (FaultKind.GARBAGE, "garbles"),
        (FaultKind.OOM, "dies_at_request"),
        (FaultKind.LOAD_STALL, "stalls_loading"),
        (FaultKind.HANG, "hung"),
    ],
)
def test_a_fault_holds_while_it_is_active(kind: FaultKind, attribute: str) -> None:
    bench = Bench()
    assert getattr(bench.ail(fault(kind)), attribute)
    assert bench.unit.touched
    assert not getattr(bench.ail(at=SECOND), attribute)
    assert not bench.unit.touched


# --- pace -----------------------------------------------------------------------------------------


def test_slow_faults_multiply() -> None:
    bench = Bench()
    bench.ail(fault(FaultKind.SLOW, factor=2.0), fault(FaultKind.SLOW, factor=3.0))
    bench.ask(5)
    bench.clock.run(SECOND)
    assert bench.done == [6 * 5 * STEP]


def test_a_drip_lets_the_first_token_through() -> None:
    bench = Bench()
    bench.ail(fault(FaultKind.DRIP, interval_s=2.0))
    bench.ask(3)
    bench.clock.run(10 * SECOND)
    assert bench.done == [STEP + 4 * SECOND]


def test_a_hang_stops_the_engine_and_its_end_lets_it_go_on() -> None:
    bench = Bench()
    bench.ask(5)
    bench.ail(fault(FaultKind.HANG), at=2 * STEP)
    bench.ail(fault(FaultKind.HANG), fault(FaultKind.WRONG_OUTPUT), at=SECOND // 2)  # not twice
    bench.ail(at=SECOND)
    bench.clock.run(2 * SECOND)
    assert bench.done == [SECOND + 3 * STEP]


def test_a_hang_that_began_while_nothing_ran_holds_once_it_serves() -> None:
    bench = Bench(serving=False)
    bench.ail(fault(FaultKind.HANG))
    assert not bench.unit.hung  # there is no process that could hang
    bench.unit.serving = True
    bench.ail(fault(FaultKind.HANG), at=SECOND)
    assert bench.unit.hung
    bench.ask(1)
    bench.clock.run(10 * SECOND)
    assert bench.done == []
    bench.ail(at=10 * SECOND)
    bench.clock.run(11 * SECOND)
    assert bench.done == [10 * SECOND + STEP]


# --- what becomes of a request --------------------------------------------------------------------


def spoiled(output: int, *faults: Fault) -> tuple[int, Kind | None, bool]:
    unit = Bench().ail(*faults)
    run = EngineRun(None, "r0", 0, 10, output)
    unit.spoil(run)
    return run.output, run.ends_as, run.mute


def test_a_flaky_unit_fails_after_the_work_and_shows_nothing_of_it() -> None:
    assert spoiled(50, fault(FaultKind.FLAKY)) == (1, Kind.SERVER_ERROR, True)
    assert spoiled(50, fault(FaultKind.FLAKY, tokens=30)) == (30, Kind.SERVER_ERROR, True)
    assert spoiled(20, fault(FaultKind.FLAKY, tokens=30)) == (20, Kind.SERVER_ERROR, True)


def test_flaky_faults_fail_their_share_of_the_attempts() -> None:
    unit = Bench().ail(
        fault(FaultKind.FLAKY, probability=0.5), fault(FaultKind.FLAKY, probability=0.2)
    )
    assert unit.flaky == pytest.approx(0.6)
    failed = 0
    for _ in range(4_000):
        run = EngineRun(None, "r0", 0, 10, 50)
        unit.spoil(run)
        failed += run.ends_as is Kind.SERVER_ERROR
    assert abs(failed - 2_400) < 4 * (4_000 * 0.6 * 0.4) ** 0.5


def test_a_cut_comes_after_so_many_tokens_and_spares_shorter_answers() -> None:
    assert spoiled(50, fault(FaultKind.CUT, tokens=20)) == (20, Kind.CUT, False)
    assert spoiled(19, fault(FaultKind.CUT, tokens=20)) == (19, None, False)
    assert spoiled(20, fault(FaultKind.CUT, tokens=20)) == (20, Kind.CUT, False)  # without an end
    assert spoiled(50, fault(FaultKind.CUT)) == (1, Kind.CUT, True)


def test_an_empty_answer_has_no_content_however_short_it_was_to_be() -> None:
    assert spoiled(50, fault(FaultKind.EMPTY)) == (1, Kind.EMPTY, True)
    assert spoiled(1, fault(FaultKind.EMPTY)) == (1, Kind.EMPTY, True)


def test_garbage_is_rejected_before_anybody_sees_it() -> None:
    assert spoiled(100, fault(FaultKind.GARBAGE)) == (GARBAGE_TOKENS, Kind.DEGENERATE, True)
    assert spoiled(5, fault(FaultKind.GARBAGE)) == (5, None, False)  # too short: it passes for one
    for output in (5, 100):
        run = EngineRun(None, "r0", 0, 10, output)
        Bench().ail(fault(FaultKind.GARBAGE)).spoil(run)
        assert run.wrong  # answers that began before it are right


def test_a_stream_that_stalls_at_its_last_token_has_no_end() -> None:
    for output, parks in ((50, True), (20, True), (19, False)):
        run = EngineRun(None, "r0", 0, 10, output)
        Bench().ail(fault(FaultKind.STALL, tokens=20)).spoil(run)
        assert run.parks is parks


def test_the_worst_of_several_faults_decides() -> None:
    faults = [fault(FaultKind.CUT, tokens=3), fault(FaultKind.GARBAGE), fault(FaultKind.EMPTY)]
    assert spoiled(50, *faults)[1] is Kind.EMPTY
    assert spoiled(50, *faults[:2])[1] is Kind.DEGENERATE
    assert spoiled(50, *faults, fault(FaultKind.FLAKY))[1] is Kind.SERVER_ERROR
