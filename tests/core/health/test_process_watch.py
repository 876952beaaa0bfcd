"""Which of Holdfast's own processes are replaced: those that are frozen, and no busy one."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.health.process_watch import (
    Condition,
    KernelState,
    ProcessSample,
    ProcessVerdict,
    ProcessWatch,
    ProcessWatchConfig,
)
from holdfast.core.types import SECOND, ConfigError, nanos

LOOK = 0.25
CONFIG = ProcessWatchConfig()
SLEEPING, RUNNABLE, BLOCKED = KernelState.SLEEPING, KernelState.RUNNABLE, KernelState.BLOCKED
STOPPED, TRACED = KernelState.STOPPED, KernelState.TRACED


class Machine:
    """One process and a watch that looks at it, in virtual time."""

    def __init__(self, config: ProcessWatchConfig = CONFIG, *, beats: int = 1) -> None:
        self.watch = ProcessWatch(config)
        self.now = SECOND
        self.cpu = 0
        self.beats = beats
        self.pid = 100
        self.draining = False
        self.seen: list[ProcessVerdict] = []
        self.look(SLEEPING, after_s=0.0)

    def look(
        self, state: KernelState, *, after_s: float = LOOK, beat: bool = False, cpu_s: float = 0.0
    ) -> ProcessVerdict:
        self.now += nanos(after_s)
        self.beats += beat
        self.cpu += nanos(cpu_s)
        sample = ProcessSample(
            "gateway-0", self.pid, state, self.cpu, self.beats, draining=self.draining
        )
        (verdict,) = self.watch.look([sample], self.now)
        self.seen.append(verdict)
        return verdict

    def pass_time(
        self, state: KernelState, span_s: float, *, beat: bool = False, share: float = 0.0
    ) -> ProcessVerdict:
        """Look as often as usual; the process gets this share of a CPU."""
        for _ in range(round(span_s / LOOK)):
            self.look(state, beat=beat, cpu_s=share * LOOK)
        return self.seen[-1]

    def replaced(self) -> list[Condition]:
        return [verdict.condition for verdict in self.seen if verdict.replace]


def test_a_stopped_process_is_replaced_after_three_seconds_and_once() -> None:
    machine = Machine()
    machine.pass_time(SLEEPING, 5.0, beat=True)
    stopped_at = machine.now
    while not machine.replaced():
        machine.look(STOPPED)
    assert nanos(3.0) <= machine.now - stopped_at <= nanos(3.5)
    assert machine.seen[-1].lasts_s >= 3.0
    machine.pass_time(STOPPED, 10.0)  # it takes the kernel a while
    assert machine.replaced() == [Condition.STOPPED]


def test_a_stop_of_less_than_three_seconds_is_named_and_forgiven() -> None:
    machine = Machine()
    for _ in range(20):
        machine.pass_time(STOPPED, 2.75)
        assert machine.seen[-1].condition is Condition.STOPPED
        machine.look(SLEEPING, beat=True)
    assert machine.replaced() == []


def test_a_process_that_is_stopped_while_it_starts_or_drains_is_replaced_too() -> None:
    starting, draining = Machine(beats=0), Machine()
    draining.draining = True
    for machine in (starting, draining):
        machine.pass_time(STOPPED, 4.0)
        assert machine.replaced() == [Condition.STOPPED]


@pytest.mark.parametrize(("state", "share"), [(SLEEPING, 0.0), (RUNNABLE, 1.0)])
def test_a_loop_that_does_not_turn_for_half_a_minute_is_named_and_then_replaced(
    state: KernelState, share: float
) -> None:
    machine = Machine()
    assert machine.pass_time(state, 4.5, share=share).condition is Condition.TURNING
    verdict = machine.pass_time(state, 1.0, share=share)
    assert (verdict.condition, verdict.replace) == (Condition.LATE, False)
    assert 5.0 <= verdict.lasts_s <= 6.0
    machine.pass_time(state, 24.0, share=share)
    assert machine.replaced() == []
    machine.pass_time(state, 1.0, share=share)
    assert machine.replaced() == [Condition.STUCK]
    assert 29.9 <= next(one.lasts_s for one in machine.seen if one.replace) <= 30.5


def test_one_turn_of_the_loop_is_enough() -> None:
    machine = Machine()
    for _ in range(5):
        machine.pass_time(SLEEPING, 29.0)
        machine.look(SLEEPING, beat=True)
        assert machine.seen[-1].condition is Condition.TURNING
    assert machine.replaced() == []


# --- what must never be replaced -----------------------------------------------------------------


def test_a_process_that_waits_for_a_cpu_or_a_disk_is_late_and_only_named() -> None:
    starved, blocked = Machine(), Machine()
    starved.pass_time(RUNNABLE, 120.0, share=0.1)  # 12 s of CPU in two minutes
    blocked.pass_time(BLOCKED, 120.0)
    for machine in (starved, blocked):
        assert machine.seen[-1].condition is Condition.LATE
        assert machine.replaced() == []


def test_a_watch_that_was_late_itself_replaces_nobody() -> None:
    machine = Machine()
    for _ in range(30):
        machine.look(SLEEPING, after_s=5.0)  # as late as the others
    assert machine.replaced() == []
    assert {verdict.condition for verdict in machine.seen} == {Condition.TURNING}
    assert machine.watch.own_lateness == 30
    machine.pass_time(STOPPED, 2.5)
    machine.look(STOPPED, after_s=60.0)  # the whole machine was suspended
    machine.pass_time(STOPPED, 2.5)
    assert machine.replaced() == []
    machine.pass_time(STOPPED, 1.0)
    assert machine.replaced() == [Condition.STOPPED]


def test_a_process_under_a_debugger_is_named_and_left_alone() -> None:
    machine = Machine()
    verdict = machine.pass_time(TRACED, 600.0)
    assert (verdict.condition, verdict.lasts_s) == (Condition.TRACED, 599.75)
    machine.look(SLEEPING)  # it was let go, and has not turned yet
    machine.pass_time(SLEEPING, 3.0)
    assert machine.seen[-1].condition is Condition.TURNING
    assert machine.replaced() == []


def test_a_process_that_starts_is_not_late_however_long_it_takes() -> None:
    machine = Machine(beats=0)
    verdict = machine.pass_time(RUNNABLE, 300.0, share=1.0)
    assert (verdict.condition, verdict.lasts_s) == (Condition.STARTING, 300.0)
    assert machine.replaced() == []
    machine.look(SLEEPING, beat=True)
    assert machine.seen[-1].condition is Condition.TURNING


def test_a_process_that_drains_is_named_and_not_replaced_for_being_late() -> None:
    machine = Machine()
    machine.draining = True
    assert machine.pass_time(SLEEPING, 120.0).condition is Condition.LATE
    assert machine.replaced() == []


def test_where_nobody_is_to_be_replaced_it_is_only_named() -> None:
    machine = Machine(ProcessWatchConfig(replace=False))
    assert machine.pass_time(STOPPED, 60.0).condition is Condition.STOPPED
    assert machine.pass_time(SLEEPING, 60.0).condition is Condition.STUCK
    assert machine.replaced() == []


def test_a_successor_begins_without_the_past_of_its_predecessor() -> None:
    machine = Machine()
    machine.pass_time(STOPPED, 2.75)
    machine.pid, machine.beats = 101, 0
    verdict = machine.look(STOPPED)
    assert (verdict.pid, verdict.lasts_s, verdict.replace) == (101, 0.0, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("look_s", 0.0),
        ("stopped_s", -1.0),
        ("stopped_s", 0.25),
        ("stuck_s", 5.0),
        ("late_s", float("nan")),
        ("own_late_s", 3_601.0),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"watch\.{field}"):
        ProcessWatchConfig(**{field: value})


# --- whatever happens ----------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Step:
    """One look at one process."""

    state: KernelState
    after_s: float
    beat: bool
    share: float  # of a CPU since the last look
    draining: bool


STEPS = st.builds(
    Step,
    st.sampled_from(list(KernelState)),
    st.sampled_from([0.25, 0.25, 0.3, 0.9, 1.25, 1.3, 40.0]),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.booleans(),
)
RUNS = st.lists(st.tuples(STEPS, st.integers(1, 140)), min_size=1, max_size=12)


def in_time(step: Step) -> bool:
    return step.after_s <= CONFIG.look_s + CONFIG.own_late_s


def could_turn_s(step: Step) -> float:
    """How much of the time before this look speaks against the process."""
    if step.state is RUNNABLE:
        return step.share * step.after_s
    return step.after_s if step.state in {SLEEPING, KernelState.UNKNOWN} else 0.0


def stopped_for_s(before_s: float | None, step: Step) -> float | None:
    """Seconds since the first look of a stop that the watch saw whole; None: it is not stopped."""
    if step.state is not STOPPED:
        return None
    return before_s + step.after_s if before_s is not None and in_time(step) else 0.0


@given(RUNS, st.booleans())
def test_nobody_is_replaced_without_evidence(runs: list[tuple[Step, int]], started: bool) -> None:
    steps: list[Step] = []
    stopped_s: float | None = None
    machine = Machine(beats=int(started))
    for step, times in runs:
        for _ in range(times):
            steps.append(step)
            stopped_s = stopped_for_s(stopped_s, step)
            machine.draining = step.draining
            verdict = machine.look(
                step.state,
                after_s=step.after_s,
                beat=step.beat,
                cpu_s=step.share * step.after_s,
            )
            if not verdict.replace:
                continue
            assert in_time(step)
            if verdict.condition is Condition.STOPPED:
                assert stopped_s is not None
                assert stopped_s >= CONFIG.stopped_s - 1e-6
            else:
                assert verdict.condition is Condition.STUCK
                assert not step.draining
                assert started or any(one.beat for one in steps)
                stood_s = 0.0
                for one in reversed(steps):
                    stop = one.state in {STOPPED, TRACED}
                    if one.beat or stop or not in_time(one):
                        break
                    stood_s += could_turn_s(one)
                assert stood_s >= CONFIG.stuck_s - 1e-6
    assert len(machine.replaced()) <= 1


@given(st.lists(st.tuples(STEPS, st.integers(1, 40)), max_size=8))
def test_whatever_was_before_a_stopped_process_is_found(runs: list[tuple[Step, int]]) -> None:
    machine = Machine()
    for step, times in runs:
        for _ in range(times):
            machine.look(
                step.state, after_s=step.after_s, beat=step.beat, cpu_s=step.share * step.after_s
            )
    if machine.replaced():
        return
    machine.pass_time(STOPPED, 3.5)
    assert machine.replaced() == [Condition.STOPPED]
