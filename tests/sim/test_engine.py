"""The leaping engine against a model that makes every step, and against its own promises."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.types import MILLISECOND, SECOND, nanos
from holdfast.sim.clock import CONTROL, WORLD, Clock
from holdfast.sim.engine import Engine
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.request_record import EngineRun

FOREVER = 10**18

# Coefficients that are whole nanoseconds: then every time is exact, whatever the order of sums.
WHOLE = EngineParameters(
    step_ms=10.0, per_sequence_ms=0.5, per_kv_token_ms=0.001, per_prompt_token_ms=0.25
)
PLAIN = EngineParameters(
    step_ms=10.0, per_sequence_ms=0.0, per_kv_token_ms=0.0, per_prompt_token_ms=0.0
)
STEP = 10 * MILLISECOND  # of PLAIN


@dataclass
class Op:
    """Something a driver does at a time."""

    at: int
    kind: str  # submit, cancel, pace
    name: int = 0
    prompt: int = 0
    output: int = 0
    factor: float = 1.0
    drip: int = 0


class Seen:
    """What came out: names and times."""

    def __init__(self) -> None:
        self.first: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}


def make(law: EngineParameters, seen: Seen, clock: Clock) -> Engine:

    def first(run: EngineRun, now: int) -> None:
        assert run.owner not in seen.first
        seen.first[run.owner] = now

    def done(run: EngineRun, now: int) -> None:
        assert run.owner not in seen.done
        seen.done[run.owner] = now

    return Engine(law, clock, first, done, lambda _engine, _now: None)


def leap(law: EngineParameters, ops: list[Op], looks: list[int] = ()) -> tuple[Seen, list]:
    """Drive the engine under test; ``looks`` are times at which it is asked for its progress."""
    clock, seen = Clock(), Seen()
    engine = make(law, seen, clock)
    runs = {op.name: EngineRun(op.name, "r0", 0, op.prompt, op.output) for op in ops if op.prompt}
    answers = []

    def do(op: Op, now: int) -> None:
        if op.kind == "submit":
            engine.submit(runs[op.name], now)
        elif op.kind == "cancel":
            engine.cancel(runs[op.name], now)
        else:
            engine.pace(op.factor, op.drip, now)

    def look(_: object, now: int) -> None:
        inside = {name: engine.produced(run, now) for name, run in runs.items() if held(run)}
        answers.append((now, inside, engine.last_token_at(now)))

    def held(run: EngineRun) -> bool:
        return engine.holds(run)

    for op in ops:
        clock.at(op.at, WORLD, do, op)
    for time in looks:
        clock.at(time, CONTROL, look)
    clock.run(FOREVER)
    assert engine.running == engine.waiting == engine.tokens == 0
    assert engine.kv_used == 0.0
    return seen, answers


class Stepper:
    """The same engine, one step at a time, written from the law alone."""

    def __init__(self, law: EngineParameters) -> None:
        self.engine = law
        self.waiting: list[list[int]] = []  # [name, prompt, output, made]
        self.active: list[list[int]] = []
        self.cancelled: set[int] = set()
        self.factor, self.drip = 1.0, 0
        self.seen = Seen()

    def apply(self, op: Op) -> None:
        if op.kind == "submit":
            self.waiting.append([op.name, op.prompt, op.output, 0])
        elif op.kind == "pace":
            self.factor, self.drip = op.factor, op.drip
        else:
            self.waiting = [run for run in self.waiting if run[0] != op.name]
            self.cancelled.add(op.name)

    def admit(self) -> list[list[int]]:
        fresh: list[list[int]] = []
        law = self.engine
        while self.waiting and len(self.active) < law.batch_max:
            run = self.waiting[0]
            held = sum(other[1] + other[2] for other in self.active)
            if held + run[1] + run[2] > law.kv_tokens_max:
                break
            prefill = sum(other[1] for other in fresh)
            if fresh and prefill + run[1] > law.prefill_tokens_max:
                break
            self.waiting.pop(0)
            self.active.append(run)
            fresh.append(run)
        return fresh

    def duration(self, fresh: list[list[int]]) -> float:
        law = self.engine
        a, b = law.step_ms * 1e6, law.per_kv_token_ms * 1e6  # whole numbers first, then sums
        c, p = law.per_sequence_ms * 1e6, law.per_prompt_token_ms * 1e6
        if self.drip and not fresh:
            return self.drip
        kv = sum(run[1] + run[3] for run in self.active)
        prefill = sum(run[1] for run in fresh)
        return self.factor * (a + c * len(self.active) + b * kv) + self.factor * p * prefill

    def run(self, ops: list[Op]) -> Seen:
        time = 0.0
        todo = sorted(ops, key=lambda op: op.at)
        while todo or self.waiting or self.active:
            if not self.waiting and not self.active:
                time = max(time, todo[0].at)
            while todo and todo[0].at <= time:
                self.apply(todo.pop(0))
            self.active = [run for run in self.active if run[0] not in self.cancelled]
            fresh = self.admit()
            if not self.active:
                continue
            time += self.duration(fresh)
            while todo and todo[0].at <= time:
                self.apply(todo.pop(0))
            self.emit(fresh, time)
        return self.seen

    def emit(self, fresh: list[list[int]], time: float) -> None:
        for run in self.active:
            run[3] += 1
            if run[0] in self.cancelled:
                continue
            self.seen.tokens.setdefault(run[0], []).append(time)
            if run in fresh:
                self.seen.first[run[0]] = time
            if run[3] == run[2]:
                self.seen.done[run[0]] = time
        self.active = [run for run in self.active if run[3] < run[2]]


def traffic(rng: Random, count: int, gap_ms: float, longest: int) -> list[Op]:
    ops, now = [], 0
    for name in range(count):
        now += round(rng.expovariate(1.0) * gap_ms * MILLISECOND)
        ops.append(Op(now, "submit", name, rng.randint(1, 300), rng.randint(1, longest)))
    return ops


LAWS = {
    "roomy": WHOLE,
    "one at a time": replace(WHOLE, batch_max=1),
    "batch full": replace(WHOLE, batch_max=4),
    "memory full": replace(WHOLE, kv_tokens_max=800),
    "small prefill budget": replace(WHOLE, prefill_tokens_max=200),
    "all of it": replace(WHOLE, batch_max=6, kv_tokens_max=1500, prefill_tokens_max=350),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("gap_ms", [2.0, 60.0, 600.0])
def test_leaping_gives_the_very_times_of_stepping(law: EngineParameters, gap_ms: float) -> None:
    ops = traffic(Random(7), 150, gap_ms, 60)
    seen, _ = leap(law, ops)
    expected = Stepper(law).run(ops)
    assert seen.first == expected.first
    assert seen.done == expected.done
    assert len(seen.done) == 150


def test_coefficients_that_are_not_whole_differ_by_a_rounding_per_edge() -> None:
    law = EngineParameters(batch_max=8, kv_tokens_max=3_000)
    ops = traffic(Random(3), 200, 40.0, 60)
    seen, _ = leap(law, ops)
    expected = Stepper(law).run(ops)
    edges = 3 * len(ops)  # one rounding each, at most half a nanosecond
    for name, time in expected.done.items():
        assert abs(seen.done[name] - time) <= edges
        assert abs(seen.first[name] - expected.first[name]) <= edges


def interfered(seed: int) -> list[Op]:
    """Traffic in which requests are cancelled and the pace changes, at any moment of a step."""
    rng = Random(seed)
    ops = traffic(rng, 25, rng.choice((5.0, 40.0)), 30)
    last = ops[-1].at
    for name in rng.sample(range(25), 12):
        ops.append(Op(ops[name].at + rng.randrange(SECOND), "cancel", name))
    for _ in range(3):
        drip = rng.choice((0, 0, 700 * MILLISECOND))
        ops.append(Op(rng.randrange(last), "pace", factor=rng.choice((1.0, 2.0, 8.0)), drip=drip))
    return sorted(ops, key=lambda op: op.at)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("seed", range(12))
def test_leaping_equals_stepping_when_requests_are_cancelled_and_the_pace_changes(
    law: EngineParameters, seed: int
) -> None:
    ops = interfered(seed)
    seen, _ = leap(law, ops)
    expected = Stepper(law).run(ops)
    assert seen.first == expected.first
    assert seen.done == expected.done


@pytest.mark.parametrize("seed", range(8))
def test_progress_between_edges_is_that_of_stepping(seed: int) -> None:
    law = LAWS["all of it"]
    ops = interfered(seed)
    rng = Random(seed)
    looks = [rng.randrange(ops[-1].at + SECOND) for _ in range(60)]
    _, answers = leap(law, ops, looks)
    expected = Stepper(law).run(ops)
    everything = [time for times in expected.tokens.values() for time in times]
    assert sum(len(inside) for _, inside, _ in answers) > 60
    for now, inside, last in answers:
        for name, produced in inside.items():
            times = expected.tokens.get(name, [])
            assert produced == sum(time <= now for time in times), (name, now)
        if inside and any(inside.values()):
            assert last == max(time for time in everything if time <= now)


def test_a_cancelled_head_of_the_queue_lets_the_next_in_at_the_next_boundary() -> None:
    law = replace(PLAIN, kv_tokens_max=1_000)
    ops = [
        Op(0, "submit", 1, 100, 500),
        Op(1, "submit", 2, 100, 800),  # does not fit beside the first
        Op(2, "submit", 3, 100, 10),  # would, and waits behind the second
        Op(STEP * 5 + 1, "cancel", 2),
    ]
    seen, _ = leap(law, ops)
    assert seen.first[3] == 7 * STEP
    assert seen.done == Stepper(law).run(ops).done


def test_a_request_that_can_never_fit_is_not_taken_and_blocks_nobody() -> None:
    bench = Bench(replace(PLAIN, kv_tokens_max=100))
    giant, small = EngineRun(1, "r0", 0, 90, 20), EngineRun(2, "r0", 0, 10, 1)
    assert not bench.engine.submit(giant, 0)
    assert not bench.engine.holds(giant)
    assert bench.engine.produced(giant, 0) == 0
    assert bench.engine.submit(small, 0)
    assert bench.engine.submit(EngineRun(3, "r0", 0, 90, 10), 0)  # alone it fits exactly
    bench.until(FOREVER)
    assert bench.seen.done == {2: STEP, 3: 11 * STEP}


# --- one thing at a time --------------------------------------------------------------------------


class Bench:
    """An engine of ten milliseconds a step, with its clock and what came out of it."""

    def __init__(self, law: EngineParameters = PLAIN) -> None:
        self.clock, self.seen = Clock(), Seen()
        self.slow_steps: list[int] = []
        self.engine = make(law, self.seen, self.clock)
        self.engine._on_slow_step = lambda _engine, now: self.slow_steps.append(now)
        self.runs: list[EngineRun] = []

    def submit(self, *sizes: tuple[int, int], at: int = 0) -> list[EngineRun]:
        self.clock.run(at)
        runs = []
        for prompt, output in sizes:
            run = EngineRun(len(self.runs) + 1, "r0", 0, prompt, output)
            self.runs.append(run)
            runs.append(run)
            self.engine.submit(run, at)
        return runs

    def until(self, time: int) -> Engine:
        self.clock.run(time)
        return self.engine


def test_an_engine_reports_what_it_holds() -> None:
    bench = Bench(replace(PLAIN, batch_max=1, kv_tokens_max=200))
    first, second = bench.submit((40, 10), (20, 5))
    engine = bench.engine
    assert (engine.running, engine.waiting) == (1, 1)
    assert engine.kv_used == 50 / 200
    assert engine.tokens == 75
    assert engine.everyone() == [first, second]
    assert engine.streaming() == []
    bench.until(STEP)
    assert engine.streaming() == [first]
    assert engine.holds(second)
    assert engine.last_token_at(3 * STEP) == 3 * STEP
    assert engine.last_token_at(4 * STEP - 1) == 3 * STEP
    bench.until(FOREVER)
    assert bench.seen.done == {1: 10 * STEP, 2: 15 * STEP}
    assert not engine.holds(first)
    assert engine.everyone() == []


def test_a_waiting_request_is_cancelled_at_once() -> None:
    bench = Bench(replace(PLAIN, batch_max=1))
    _, second = bench.submit((10, 10), (10, 10))
    bench.engine.cancel(second, 0)
    assert bench.engine.waiting == 0
    bench.until(FOREVER)
    assert bench.seen.done == {1: 10 * STEP}


def test_a_request_cancelled_in_the_middle_of_a_step_leaves_at_the_end_of_it() -> None:
    bench = Bench(replace(PLAIN, batch_max=1))
    first, _ = bench.submit((10, 10), (10, 2))
    bench.until(3 * STEP + 1)
    bench.engine.cancel(first, 3 * STEP + 1)
    assert not bench.engine.holds(first)
    bench.until(FOREVER)
    assert bench.seen.first == {1: STEP, 2: 5 * STEP}
    assert bench.seen.done == {2: 6 * STEP}


def test_a_request_cancelled_in_its_last_step_never_ends() -> None:
    bench = Bench()
    first, _ = bench.submit((10, 3), (10, 3))
    bench.until(2 * STEP + 1)
    engine = bench.engine
    engine.cancel(first, 2 * STEP + 1)
    assert engine.running == 2  # the step that runs is as long as both make it
    assert not engine.holds(first)
    bench.until(FOREVER)
    assert bench.seen.done == {2: 3 * STEP}


def test_a_request_cancelled_in_its_first_step_never_speaks() -> None:
    bench = Bench()
    (first,) = bench.submit((10, 3))
    bench.engine.cancel(first, 1)
    bench.until(FOREVER)
    assert (bench.seen.first, bench.seen.done) == ({}, {})
    assert bench.engine.running == 0


def test_cancelling_twice_or_after_the_end_changes_nothing() -> None:
    bench = Bench()
    first, _ = bench.submit((10, 3), (10, 5))
    bench.until(STEP + 1)
    bench.engine.cancel(first, STEP + 1)
    bench.engine.cancel(first, STEP + 2)
    bench.until(FOREVER)
    bench.engine.cancel(first, FOREVER)
    bench.engine.cancel(EngineRun(9, "r0", 0, 1, 1), FOREVER)  # never handed over
    assert bench.seen.done == {2: 5 * STEP}
    assert bench.engine.kv_used == 0.0


def test_a_crash_returns_every_request_with_the_tokens_it_had() -> None:
    bench = Bench(replace(PLAIN, batch_max=2))
    first, second, third = bench.submit((10, 9), (10, 4), (10, 9))
    bench.until(4 * STEP + 5)  # the second is done, the third began
    lost = bench.engine.crash(6 * STEP + 1)
    assert lost == [(first, 6), (third, 2)]
    assert bench.engine.running == bench.engine.waiting == bench.engine.tokens == 0
    bench.until(FOREVER)
    assert bench.seen.done == {2: 4 * STEP}
    assert not bench.engine.holds(second)


def test_a_crash_in_a_step_that_will_end_for_a_newcomer_does_not_count_that_step() -> None:
    bench = Bench()
    (first,) = bench.submit((10, 9))
    (second,) = bench.submit((10, 9), at=2 * STEP + 1)  # moves the books on to the third boundary
    assert bench.engine.produced(first, 2 * STEP + 2) == 2
    assert bench.engine.last_token_at(2 * STEP + 2) == 2 * STEP
    assert bench.engine.crash(2 * STEP + 2) == [(first, 2), (second, 0)]


def test_requests_that_wait_are_lost_in_a_crash_without_a_token() -> None:
    bench = Bench(replace(PLAIN, batch_max=1))
    first, second = bench.submit((10, 9), (10, 9))
    bench.until(STEP)
    assert bench.engine.crash(STEP) == [(first, 1), (second, 0)]


def test_an_engine_works_again_after_a_crash() -> None:
    bench = Bench()
    bench.submit((10, 9), (10, 9))
    bench.until(STEP + 1)
    bench.engine.hang(STEP + 1)
    bench.engine.crash(STEP + 2)
    bench.submit((10, 2), at=SECOND)
    bench.until(FOREVER)
    assert bench.seen.done == {3: SECOND + 2 * STEP}


def test_a_cancelled_request_is_not_lost_again_in_a_crash() -> None:
    bench = Bench()
    first, second = bench.submit((10, 3), (10, 3))
    bench.until(2 * STEP)
    bench.engine.cancel(first, 2 * STEP + 1)  # in its last step: it leaves at the end of it
    assert bench.engine.crash(2 * STEP + 2) == [(second, 2)]


def test_a_hung_engine_emits_nothing_until_it_resumes_and_then_goes_on() -> None:
    bench = Bench()
    (first,) = bench.submit((10, 5))
    bench.until(2 * STEP + 1)
    engine = bench.engine
    engine.hang(2 * STEP + 1)
    bench.submit((10, 1), at=SECOND // 2)
    bench.until(SECOND)
    assert engine.produced(first, SECOND) == 2
    assert engine.last_token_at(SECOND) == 2 * STEP
    assert bench.seen.done == {}
    engine.resume(SECOND)
    assert engine.last_token_at(SECOND + STEP - 1) == 2 * STEP  # to go on is not to emit
    assert engine.last_token_at(SECOND + STEP) == SECOND + STEP
    bench.until(FOREVER)
    assert bench.seen.done == {1: SECOND + 3 * STEP, 2: SECOND + STEP}


def test_an_idle_engine_that_hangs_starts_with_what_came_meanwhile() -> None:
    bench = Bench()
    bench.engine.hang(0)
    (first,) = bench.submit((10, 2), at=5)
    assert bench.engine.waiting == 1
    assert bench.engine.produced(first, SECOND) == 0
    bench.engine.resume(SECOND)
    bench.until(FOREVER)
    assert bench.seen.done == {1: SECOND + 2 * STEP}


def test_a_request_may_leave_a_hung_engine() -> None:
    bench = Bench()
    first, _, third = bench.submit((10, 5), (10, 5), (10, 5))
    bench.until(2 * STEP)
    bench.engine.hang(2 * STEP + 1)
    bench.engine.cancel(first, SECOND)
    assert bench.engine.running == 2
    bench.engine.resume(2 * SECOND)
    bench.until(2 * SECOND + STEP + 1)
    bench.engine.cancel(third, 2 * SECOND + STEP + 1)
    bench.until(FOREVER)
    assert bench.seen.done == {2: 2 * SECOND + 3 * STEP}
    assert bench.engine.kv_used == 0.0


def test_a_request_that_was_leaving_when_the_engine_hung_is_gone_when_it_resumes() -> None:
    bench = Bench()
    first, _ = bench.submit((10, 3), (10, 4))
    bench.until(2 * STEP + 1)
    bench.engine.cancel(first, 2 * STEP + 1)
    bench.engine.hang(2 * STEP + 2)
    bench.engine.resume(SECOND)
    assert bench.engine.running == 1
    bench.until(FOREVER)
    assert bench.seen.done == {2: SECOND + 2 * STEP}


def test_hanging_in_a_step_that_ends_for_a_newcomer_keeps_the_books_straight() -> None:
    bench = Bench()
    (first,) = bench.submit((10, 5))
    bench.submit((10, 5), at=2 * STEP + 1)
    engine = bench.engine
    engine.hang(2 * STEP + 2)
    assert engine.produced(first, 2 * STEP + 2) == 2
    engine.resume(SECOND)
    bench.until(FOREVER)
    assert set(bench.seen.done) == {1, 2}
    assert bench.seen.done[2] == SECOND + 5 * STEP
    assert engine.kv_used == 0.0


def test_a_slow_engine_takes_so_many_times_as_long_from_the_next_step_on() -> None:
    bench = Bench()
    bench.submit((10, 10))
    bench.until(2 * STEP + 1)
    bench.engine.pace(3.0, 0.0, 2 * STEP + 1)
    bench.until(6 * STEP + 1)  # two steps of the old pace, one of the new, and a bit
    bench.engine.pace(1.0, 0.0, 6 * STEP + 1)
    bench.until(FOREVER)
    assert bench.seen.done == {1: (3 + 3 + 3 + 5) * STEP}


def test_prefill_is_slowed_too() -> None:
    bench = Bench(replace(PLAIN, per_prompt_token_ms=1.0))
    bench.engine.pace(2.0, 0.0, 0)
    bench.submit((5, 2))
    bench.until(FOREVER)
    assert bench.seen.first == {1: 2 * (STEP + 5 * MILLISECOND)}
    assert bench.seen.done == {1: 2 * (STEP + 5 * MILLISECOND) + 2 * STEP}


def test_a_dripping_engine_gives_its_first_token_in_time_and_the_others_one_by_one() -> None:
    bench = Bench()
    bench.engine.pace(1.0, nanos(5.0), 0)
    bench.submit((10, 3))
    bench.until(FOREVER)
    assert bench.seen.first == {1: STEP}
    assert bench.seen.done == {1: STEP + 2 * nanos(5.0)}
    assert bench.slow_steps == [STEP]  # one leap of two steps, told once


def test_a_step_long_enough_to_look_like_silence_is_told() -> None:
    bench = Bench()
    bench.submit((10, 3))
    assert bench.slow_steps == []
    assert not bench.engine.slow()
    bench.engine.pace(101.0, 0.0, 0)
    assert bench.slow_steps == [0]
    assert bench.engine.slow()
    bench.until(FOREVER)
    assert not bench.engine.slow()


def read_streams(
    pace: tuple[float, int], traffic: list[Op], ask: Callable[[Engine, EngineRun], object]
) -> list[tuple[object, list[int]]]:
    """What the engine told of each stream at its end, and the times between its tokens."""
    law = LAWS["batch full"]
    expected = Stepper(law).run([Op(0, "pace", factor=pace[0], drip=pace[1]), *traffic])
    clock, told = Clock(), {}
    engine = Engine(
        law,
        clock,
        lambda _run, _now: None,
        lambda run, _now: told.update({run.owner: ask(engine, run)}),
        lambda _engine, _now: None,
    )
    engine.pace(*pace, 0)
    for op in traffic:
        run = EngineRun(op.name, "r0", 0, op.prompt, op.output)
        clock.at(op.at, WORLD, engine.submit, run)
    clock.run(FOREVER)
    streams = {name: times for name, times in expected.tokens.items() if len(times) > 1}
    return [
        (told[name], [later - earlier for earlier, later in pairwise(times)])
        for name, times in streams.items()
    ]


PACES = pytest.mark.parametrize("pace", [(1.0, 0), (150.0, 0), (1.0, 2 * SECOND)])


@PACES
def test_the_longest_silence_of_a_stream_is_what_its_reader_saw(pace: tuple[float, int]) -> None:
    streams = read_streams(
        pace,
        traffic(Random(5), 40, 70.0, 40),
        lambda engine, run: engine.worst_gap_since(run.first_at),
    )
    assert len(streams) > 30
    for worst, gaps in streams:
        assert worst == max(gaps)


@PACES
def test_two_pauses_of_a_stream_are_what_its_reader_saw(pace: tuple[float, int]) -> None:
    streams = read_streams(
        pace,
        traffic(Random(6), 20, 70.0, 12),
        lambda engine, run: sorted(engine.pauses_since(run.first_at), reverse=True)[:2],
    )
    assert len(streams) > 15
    for pauses, gaps in streams:
        longest = [gap for gap in sorted(gaps, reverse=True) if gap > SECOND][:2]
        assert pauses == pytest.approx(longest, rel=0.01)


def test_a_hang_is_part_of_the_longest_silence() -> None:
    bench = Bench()
    (first,) = bench.submit((10, 5))
    bench.until(2 * STEP + 1)
    bench.engine.hang(2 * STEP + 1)
    bench.engine.resume(2 * STEP + SECOND)
    bench.until(2 * STEP + SECOND + STEP)
    assert bench.engine.worst_gap_since(first.first_at) == SECOND + STEP
    assert bench.engine.pauses_since(first.first_at) == []  # of a second: it does not look silent
    bench.engine.hang(3 * STEP + SECOND + 1)
    bench.engine.resume(4 * SECOND)
    bench.until(4 * SECOND + STEP)
    [pause] = bench.engine.pauses_since(first.first_at)
    assert pause == pytest.approx(3 * SECOND, rel=0.05)


def test_a_hang_and_the_slow_step_after_it_are_one_pause() -> None:
    bench = Bench()
    bench.engine.pace(150.0, 0.0, 0)  # a step takes 1.5 s
    (first,) = bench.submit((10, 2))
    bench.until(2 * SECOND)
    bench.engine.hang(2 * SECOND)
    bench.engine.resume(4 * SECOND)
    bench.until(FOREVER)
    assert bench.seen.done == {1: 5 * SECOND + SECOND // 2}
    assert bench.engine.pauses_since(first.first_at) == [4 * SECOND]


def test_a_slow_spell_that_ends_between_edges_is_part_of_the_longest_silence() -> None:
    bench = Bench()
    (first,) = bench.submit((10, 100))
    bench.until(2 * STEP)
    bench.engine.pace(200.0, 0.0, 2 * STEP)
    bench.until(5 * SECOND)
    bench.engine.pace(1.0, 0.0, 5 * SECOND)
    bench.until(FOREVER)
    assert bench.engine.worst_gap_since(first.first_at) == 200 * STEP


def test_before_any_step_has_ended_the_step_under_way_is_the_longest() -> None:
    bench = Bench()
    bench.submit((10, 5))
    assert bench.engine.worst_gap_since(0) == STEP


def test_only_the_longest_of_the_recent_steps_are_kept() -> None:
    bench = Bench(replace(PLAIN, per_kv_token_ms=0.01))
    for index in range(200):  # each alone and shorter than the one before
        bench.submit((400 - index, 1), at=index * SECOND)
    bench.until(FOREVER)
    assert len(bench.engine._gaps) == 64


# --- any sequence of operations -------------------------------------------------------------------

TIGHT = replace(WHOLE, batch_max=3, kv_tokens_max=120, prefill_tokens_max=40)

steps = st.tuples(
    st.sampled_from(["submit"] * 4 + ["cancel"] * 2 + ["crash", "hang", "resume", "pace"]),
    st.integers(0, 120),  # milliseconds until then
    st.integers(1, 60),
    st.integers(1, 30),
)


class Books:
    """Who is inside, by the test's own account."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.engine = Engine(TIGHT, self.clock, self.on_first, self.on_done, self.on_slow)
        self.inside: dict[int, EngineRun] = {}
        self.spoken: set[int] = set()
        self.ended: list[int] = []
        self.hung = False
        self.clock.after_event = self.check

    def on_first(self, run: EngineRun, now: int) -> None:
        assert run.owner in self.inside
        assert run.owner not in self.spoken
        assert run.first_at == now
        self.spoken.add(run.owner)

    def on_done(self, run: EngineRun, now: int) -> None:
        assert not self.hung
        assert run.owner in self.spoken
        del self.inside[run.owner]
        self.ended.append(run.owner)

    def on_slow(self, engine: Engine, now: int) -> None:
        assert engine.slow()

    def check(self, now: int) -> None:
        engine = self.engine
        assert 0 <= engine.running <= TIGHT.batch_max
        assert 0 <= engine.kv_used <= 1.0
        assert 0 <= engine._kv <= engine._reserved
        held = engine.everyone()
        assert sorted(run.owner for run in held) == sorted(self.inside)
        for run in held:
            assert engine.holds(run)
            assert 0 <= engine.produced(run, now) <= run.output
        assert {run.owner for run in engine.streaming()} == self.spoken & set(self.inside)

    def do(self, kind: str, size: tuple[int, int], name: int) -> None:
        now, engine = self.clock.now, self.engine
        if kind == "submit":
            self.inside[name] = EngineRun(name, "r0", 0, *size)
            engine.submit(self.inside[name], now)
        elif kind == "cancel" and self.inside:
            victim = sorted(self.inside)[size[0] % len(self.inside)]
            engine.cancel(self.inside.pop(victim), now)
            self.ended.append(victim)
        elif kind == "crash":
            lost = engine.crash(now)
            assert sorted(run.owner for run, _ in lost) == sorted(self.inside)
            for run, tokens in lost:
                assert 0 <= tokens <= run.output
                assert tokens or run.owner not in self.spoken
            self.ended.extend(self.inside)
            self.inside.clear()
            self.hung = False
        elif kind == "hang" and not self.hung:
            engine.hang(now)
            self.hung = True
        elif kind == "resume" and self.hung:
            self.hung = False
            engine.resume(now)
        elif kind == "pace":
            engine.pace(1.0 + size[1] % 3, SECOND * (size[0] % 2), now)
        self.check(now)


@settings(max_examples=200)
@given(st.lists(steps, min_size=1, max_size=40))
def test_whatever_is_done_to_it_an_engine_keeps_its_limits_and_ends_each_run_once(
    sequence: list[tuple[str, int, int, int]],
) -> None:
    books = Books()
    for name, (kind, wait_ms, prompt, output) in enumerate(sequence):
        books.clock.run(books.clock.now + wait_ms * MILLISECOND)
        books.do(kind, (prompt, output), name)
    if books.hung:
        books.do("resume", (1, 1), -1)
    books.clock.run(FOREVER)
    submitted = [name for name, step in enumerate(sequence) if step[0] == "submit"]
    assert sorted(books.ended) == submitted
    engine = books.engine
    assert engine.running == engine.waiting == engine.tokens == engine._kv == engine._prefill == 0
