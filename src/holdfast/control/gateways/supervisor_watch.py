"""Watches the supervisor from inside control: nobody else sees that it is stopped.

    /proc/PID/stat of the supervisor, its heartbeat file ─► ProcessWatch (core) ─► its condition

The supervisor replaces control and gateways where they are frozen. While it is stopped itself, all
of them go on, and nobody replaces whoever dies. Control cannot replace it: whoever started it (a
shell, systemd, a container's runtime) watches its process and would take that for its end. So it is
named, and an operator wakes it.

The supervisor writes its heartbeat by setting the time of a file, because a pipe to a control that
is frozen would fill. Where there is no such file, only what the kernel says counts.
"""

import time
from pathlib import Path
from typing import Final

from holdfast.control.gateways.kernel_state import read_stat
from holdfast.control.gateways.process_report import ProcessRow
from holdfast.core.health.process_watch import ProcessSample, ProcessWatch, ProcessWatchConfig

SUPERVISOR: Final = "supervisor"  # its name among the processes
BEAT_FILE: Final = "supervisor.beat"
LOOK_S: Final = 1.0  # between two looks


class SupervisorWatch:
    """Judges from control whether its supervisor process is frozen; it never replaces it."""

    def __init__(
        self, pid: int, beat_path: Path, config: ProcessWatchConfig, proc: Path = Path("/proc")
    ) -> None:
        self._pid = pid
        self._beat_path = beat_path
        self._proc = proc
        self._beat_ns = 0
        self._beats = 0
        self._watch = ProcessWatch(
            ProcessWatchConfig(
                look_s=LOOK_S,
                stopped_s=max(config.stopped_s, LOOK_S + config.own_late_s),
                stuck_s=config.stuck_s,
                late_s=config.late_s,
                own_late_s=config.own_late_s,
                replace=False,
            )
        )

    def look(self, now: int | None = None, wall: float | None = None) -> ProcessRow:
        """Read the supervisor's kernel state and heartbeat, and return its condition as a row.

        To be called every second.
        """
        now = time.monotonic_ns() if now is None else now
        wall = time.time() if wall is None else wall
        try:
            beat_ns = self._beat_path.stat().st_mtime_ns
        except OSError:
            beat_ns = self._beat_ns
        if beat_ns != self._beat_ns:
            self._beat_ns = beat_ns
            self._beats += 1
        state, cpu = read_stat(self._proc, self._pid)
        sample = ProcessSample(SUPERVISOR, self._pid, state, cpu, self._beats)
        (verdict,) = self._watch.look([sample], now)
        return ProcessRow(SUPERVISOR, self._pid, verdict.condition.value, wall - verdict.lasts_s)


__all__ = ["BEAT_FILE", "LOOK_S", "SUPERVISOR", "SupervisorWatch"]
