"""Watches the supervisor's children: reads their kernel state and heartbeats, kills frozen ones.

    /proc/PID/stat, heartbeats ─► ProcessWatch (core) ─► SIGKILL, log, report for control

A killed child is reaped and started again like any child that died. Connections that wait at its
listening socket stay there, because the supervisor holds the socket too; those that it had
accepted are reset by the kernel, so that clients can turn elsewhere instead of waiting.
"""

import os
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from holdfast.control.gateways.kernel_state import read_stat
from holdfast.control.gateways.process_report import (
    REPLACED_MAX,
    ProcessReport,
    ProcessRow,
    Replacement,
    write_report,
)
from holdfast.control.gateways.supervisor_watch import BEAT_FILE
from holdfast.core.health.process_watch import (
    Condition,
    ProcessSample,
    ProcessVerdict,
    ProcessWatch,
    ProcessWatchConfig,
)
from holdfast.core.types import nanos

BEAT: Final = b"B"  # what a child writes to its pipe at every heartbeat
BEAT_S: Final = 0.5  # between two heartbeats: ten of them until a process is called late
_FROZEN: Final = frozenset({Condition.STOPPED, Condition.STUCK})
_QUIET: Final = frozenset({Condition.TURNING, Condition.STARTING})

_log = structlog.get_logger("holdfast.serve")


@dataclass(slots=True, frozen=True)
class WatchedProcess:
    """A running child of the supervisor, by the name of its place."""

    name: str
    process: subprocess.Popen[bytes]
    draining: bool = False


class ProcessWatcher:
    """Looks at all children when told to, and kills those that the policy condemns."""

    def __init__(
        self,
        config: ProcessWatchConfig,
        report_path: Path | None,
        say: Callable[[str], None] = lambda _: None,
        proc: Path = Path("/proc"),
    ) -> None:
        self.config = config
        self._watch = ProcessWatch(config)
        self._path = report_path  # None: nobody reads reports
        self._say = say
        self._proc = proc
        self._id = f"{os.getpid()}-{time.time_ns()}"
        self._beats: Counter[int] = Counter()
        self._rows: dict[int, tuple[str, Condition]] = {}
        self._since: dict[int, float] = {}
        self._replaced: deque[Replacement] = deque(maxlen=REPLACED_MAX)
        self._counts: Counter[str] = Counter()
        self.frozen: frozenset[int] = frozenset()  # pids that are stopped or stuck now
        self._beat_at = 0  # when control was last told that this process turns

    def beat(self, pid: int) -> None:
        """Count a heartbeat of a child."""
        self._beats[pid] += 1

    def look(self, children: Iterable[WatchedProcess]) -> None:
        """Judge all children now; kill the frozen, and report what changed."""
        self._tell_beat()
        watched = {child.process.pid: child for child in children}
        for gone in self._beats.keys() - watched.keys():
            del self._beats[gone]
        samples = [self._sample(child) for child in watched.values()]
        verdicts = self._watch.look(samples, time.monotonic_ns())
        self.frozen = frozenset(one.pid for one in verdicts if one.condition in _FROZEN)
        condemned = [verdict for verdict in verdicts if verdict.replace]
        for verdict in condemned:
            self._kill(watched[verdict.pid].process, verdict)
        rows = {verdict.pid: (verdict.name, verdict.condition) for verdict in verdicts}
        if rows != self._rows or condemned:
            self._tell(verdicts)
            self._rows = rows
            self._report()

    def _tell_beat(self) -> None:
        """Set the time of the heartbeat file, from which control sees that this process turns."""
        now = time.monotonic_ns()
        if self._path is None or now - self._beat_at < nanos(BEAT_S):
            return
        self._beat_at = now
        try:
            self._path.with_name(BEAT_FILE).touch()
        except OSError as error:
            _log.debug("heartbeat not written", reason=error.strerror or type(error).__name__)

    def _sample(self, child: WatchedProcess) -> ProcessSample:
        pid = child.process.pid
        state, cpu = read_stat(self._proc, pid)
        return ProcessSample(child.name, pid, state, cpu, self._beats[pid], draining=child.draining)

    def _kill(self, process: subprocess.Popen[bytes], verdict: ProcessVerdict) -> None:
        """End a frozen process; SIGKILL ends stopped ones too, and is not theirs to refuse."""
        name, condition = verdict.name, verdict.condition.value
        _log.error(
            "frozen: killed, and its successor starts",
            child=name,
            pid=verdict.pid,
            condition=condition,
            lasted_s=round(verdict.lasts_s, 2),
        )
        self._say(f"{name} was {condition} for {verdict.lasts_s:.0f} s: it is replaced")
        process.send_signal(signal.SIGKILL)
        kind = name.partition("-")[0]
        self._counts[f"{kind} {condition}"] += 1
        number = self._counts.total()
        self._replaced.append(
            Replacement(number, time.time(), name, verdict.pid, condition, verdict.lasts_s)
        )

    def _tell(self, verdicts: Iterable[ProcessVerdict]) -> None:
        """Log the processes whose condition changed to or from a worrying one."""
        now, since = time.time(), {}
        for verdict in verdicts:
            pid, condition = verdict.pid, verdict.condition
            before = self._rows.get(pid)
            changed = before is None or before[1] is not condition
            since[pid] = now - verdict.lasts_s if changed else self._since[pid]
            worried = condition not in _QUIET
            relieved = before is not None and before[1] not in _QUIET
            if changed and (worried or relieved):
                log = _log.warning if worried else _log.info
                log(f"is {condition.value}", child=verdict.name, pid=pid)
        self._since = since

    def _report(self) -> None:
        if self._path is None:
            return
        rows = [
            ProcessRow(name, pid, condition.value, self._since[pid])
            for pid, (name, condition) in self._rows.items()
        ]
        report = ProcessReport(self._id, rows, list(self._replaced), dict(self._counts))
        try:
            write_report(self._path, report)
        except OSError as error:  # children are watched all the same
            _log.error("report not written", reason=error.strerror or type(error).__name__)


__all__ = ["BEAT", "BEAT_S", "ProcessWatcher", "WatchedProcess"]
