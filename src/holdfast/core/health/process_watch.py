"""Decides which of Holdfast's own processes are frozen and must be replaced.

    kernel state, CPU time, last heartbeat ─► condition of each process ─► replace, name, or nothing

A gateway that is stopped still owns a listening socket: its share of the clients waits for nobody.
A process is replaced for one of two reasons only. *Stopped*: the kernel says so (SIGSTOP, the
freeze of a job) at every look for some seconds; no load makes that true. *Stuck*: its event loop
has not turned for half a minute in which it could have turned.

Time in which it could not have turned does not count: a process that waits for a CPU or a disk is
late because the machine is busy, and its successor would be as late. So runnable time counts by the
CPU time that the process got, time in uninterruptible sleep counts for nothing, and a look that the
watcher itself made late discards all evidence: whoever slept knows nothing of the others' nights.
A process under a debugger, one that starts and one that drains are named and never replaced for
being late.

Rejected: one timeout on heartbeats. Short enough to find a stopped gateway in seconds, it kills
healthy ones on a busy machine, and their restart makes the machine busier.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.types import nanos, require, seconds


@dataclass(slots=True, frozen=True)
class ProcessWatchConfig:
    """Settings: when a gateway process or control counts as late, and when it is replaced."""

    look_s: float = 0.25  # between two looks; a stopped process is found one look after stopped_s
    stopped_s: float = 3.0  # in the kernel's state "stopped"; shells and profilers stop for less
    stuck_s: float = 30.0  # without a turn of its loop although it could run: no call takes so long
    late_s: float = 5.0  # without a turn: ten heartbeats missed; it is named and nothing is done
    own_late_s: float = 1.0  # a look this much too late discards what was known of all processes
    replace: bool = True  # false: frozen processes are named and left as they are

    def __post_init__(self) -> None:
        for name in ("look_s", "stopped_s", "stuck_s", "late_s", "own_late_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to an hour"
            require(0 < value <= 3_600, f"watch.{name}", f"is {value}", fix)
        fix = f"use more than watch.look_s, {self.look_s}"
        fits = self.stopped_s > self.look_s
        require(fits, "watch.stopped_s", f"is {self.stopped_s}", fix)
        fix = f"use more than watch.late_s, {self.late_s}: what is replaced was named before"
        require(self.stuck_s > self.late_s, "watch.stuck_s", f"is {self.stuck_s}", fix)


class KernelState(StrEnum):
    """What the kernel says of a process, as far as it matters here."""

    RUNNABLE = "runnable"  # runs, or waits for a CPU
    SLEEPING = "sleeping"  # waits for an event, and would run at once
    BLOCKED = "blocked"  # waits for a disk or for memory, and cannot even be killed
    STOPPED = "stopped"
    TRACED = "traced"  # stopped by a debugger
    UNKNOWN = "unknown"  # the platform does not tell


class Condition(StrEnum):
    """The verdict on one process: whether its event loop turns, and if not, why."""

    STARTING = "starting"  # its loop has not turned yet
    TURNING = "turning"
    LATE = "late"  # its loop has not turned for a while; it is only named
    TRACED = "traced"  # a debugger holds it
    STOPPED = "stopped"
    STUCK = "stuck"


@dataclass(slots=True, frozen=True)
class ProcessSample:
    """One process of Holdfast as it was found at one look: kernel state, CPU time, heartbeats."""

    name: str  # its place: control, gateway-0
    pid: int
    state: KernelState
    cpu: int  # CPU time it had so far, ns
    beats: int  # heartbeats it sent so far
    draining: bool = False  # asked to leave; its successor is there or comes


@dataclass(slots=True, frozen=True)
class ProcessVerdict:
    """What is thought of one process at one look: condition, for how long, whether to replace it.

    ``replace`` is true once for each process.
    """

    name: str
    pid: int
    condition: Condition
    lasts_s: float  # in this condition
    replace: bool = False  # kill it now; said once for each process


class _Record:
    """What is kept of one process between two looks."""

    __slots__ = ("beat_at", "beats", "condemned", "cpu", "first_at", "stood", "stopped", "traced")

    def __init__(self, now: int, cpu: int) -> None:
        self.first_at = self.beat_at = now
        self.beats = 0
        self.cpu = cpu
        self.stood = 0  # ns without a beat in which it could have run
        self.stopped: int | None = None  # since when every look found it stopped
        self.traced: int | None = None  # the same, by a debugger
        self.condemned = False

    def begin_anew(self, now: int) -> None:
        """Discard the evidence against a process: time up to now does not count."""
        self.beat_at = now
        self.stood = 0
        self.stopped = None


class ProcessWatch:
    """Judges gateway and control processes by repeated looks at them; kills none itself.

    It keeps for each process when its loop last turned and since when it is stopped.
    """

    __slots__ = ("_config", "_looked_at", "_records", "own_lateness")

    def __init__(self, config: ProcessWatchConfig) -> None:
        self._config = config
        self._records: dict[int, _Record] = {}
        self._looked_at: int | None = None
        self.own_lateness = 0  # looks that came too late to judge anybody

    def look(self, samples: Sequence[ProcessSample], now: int) -> list[ProcessVerdict]:
        """Return one verdict for each process sampled now; those that are missing are forgotten.

        If this look came too late itself, earlier evidence against all of them is dropped.
        """
        before, self._looked_at = self._looked_at, now
        passed = 0 if before is None else now - before
        late = passed > nanos(self._config.look_s + self._config.own_late_s)
        self.own_lateness += late
        known = self._records
        self._records = {one.pid: known.get(one.pid) or _Record(now, one.cpu) for one in samples}
        if late:
            for record in self._records.values():
                record.begin_anew(now)
        counted = 0 if late else passed
        return [self._judge(one, self._records[one.pid], counted, now) for one in samples]

    def _judge(
        self, sample: ProcessSample, record: _Record, passed: int, now: int
    ) -> ProcessVerdict:
        self._note(sample, record, passed, now)
        config = self._config
        condition, since, replace = Condition.TURNING, now, False
        if record.stopped is not None:
            condition, since = Condition.STOPPED, record.stopped
            replace = now - since >= nanos(config.stopped_s)
        elif record.traced is not None:
            condition, since = Condition.TRACED, record.traced
        elif not record.beats:
            condition, since = Condition.STARTING, record.first_at
        elif record.stood >= nanos(config.stuck_s) and not sample.draining:
            condition, since, replace = Condition.STUCK, record.beat_at, True
        elif now - record.beat_at >= nanos(config.late_s):
            condition, since = Condition.LATE, record.beat_at
        replace = replace and config.replace and not record.condemned
        record.condemned = record.condemned or replace
        return ProcessVerdict(sample.name, sample.pid, condition, seconds(now - since), replace)

    def _note(self, sample: ProcessSample, record: _Record, passed: int, now: int) -> None:
        """Add one sample to what is known of its process."""
        got, record.cpu = max(0, sample.cpu - record.cpu), sample.cpu
        stopped, traced = sample.state is KernelState.STOPPED, sample.state is KernelState.TRACED
        if sample.beats > record.beats:
            record.beats, record.beat_at, record.stood = sample.beats, now, 0
        elif stopped or traced:  # the time of the stop has its own clock
            record.beat_at, record.stood = now, 0
        elif record.first_at != now:
            record.stood += _countable(sample.state, got, passed)
        record.stopped = (record.stopped or now) if stopped else None
        record.traced = (record.traced or now) if traced else None


def _countable(state: KernelState, got: int, passed: int) -> int:
    """How much of the time since the last look a process could have used to turn its loop."""
    if state is KernelState.BLOCKED:
        return 0
    if state is KernelState.RUNNABLE:
        return min(got, passed)
    return passed


__all__ = [
    "Condition",
    "KernelState",
    "ProcessSample",
    "ProcessVerdict",
    "ProcessWatch",
    "ProcessWatchConfig",
]
