"""Tracks processes that are not our children: their start, their end, and whether OOM killed them.

    pid and start time ─► the same process or the next ─► at its end: whose OOM count grew?

A pid alone is not enough: the kernel uses it again. With its start time it names one process. Its
exit status is not available, so an end is *observed*: the process is gone at the next look. The
kernel was the killer when the OOM count of its cgroup grew meanwhile; where that cgroup went with
it (containers), when the host's count grew by at least as many as ended so.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.sources.cgroups import Cgroup, kills_since, read_cgroup
from holdfast.sources.pressure import text_of

WORDS_MAX: Final = 64  # of a command line
RECENT_S: Final = 10.0  # an engine outlives a process of its own that was killed by some seconds
_START: Final = 19  # the field of /proc/PID/stat, counted behind the name
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class ProcessLife:
    """One process of a replica, from its start to its end."""

    pid: int
    start: int  # ticks after the host's own start
    words: tuple[str, ...] = ()  # of its command line: never shown, searched for paths
    cgroup: Cgroup | None = None
    used_bytes: int | None = None  # at the last look: what it had when it ended
    limit_bytes: int | None = None
    phase: str = ""
    killed_at: float | None = None  # when the OOM killer was last seen in its cgroup
    ended_at: float | None = None
    oom: bool = False
    reason: str = ""

    @property
    def start_s(self) -> float:
        """When the process began, in seconds after the host's own start."""
        return self.start / _TICKS

    @property
    def mark(self) -> str:
        """An id of this process that is unique on this host, made of pid and start time."""
        return f"{self.pid}.{self.start}"


def start_of(pid: int, proc: Path) -> int | None:
    """Start time of a process in ticks; None if it does not exist or is a zombie."""
    words = text_of(proc / str(pid) / "stat").rpartition(")")[2].split()
    if len(words) <= _START or words[0] in {"Z", "X"} or not words[_START].isdecimal():
        return None
    return int(words[_START])


class ProcessTracker:
    """Tracks the current and the last ended process of each replica."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._living: dict[str, ProcessLife] = {}
        self._ended: dict[str, ProcessLife] = {}  # the last one of each
        self._host_kills: int | None = None

    def look(self, pids: dict[str, int | None], host_kills: int | None, now: float) -> None:
        """Update all replicas from their pids; notes ends and judges their cause.

        ``host_kills``: OOM kills on this host so far; ``now``: of the wall clock.
        """
        gone: list[ProcessLife] = []
        for name, pid in pids.items():
            start = None if pid is None else start_of(pid, self._proc)
            known = self._living.get(name)
            if known is not None and (known.pid, known.start) != (pid, start):
                known.ended_at = now
                gone.append(known)
                self._ended[name] = self._living.pop(name)
            if pid is not None and start is not None:
                if name not in self._living:
                    self._living[name] = self._begin(pid, start)
                self._follow(self._living[name], now)
        self._judge(gone, host_kills, now)
        for book in (self._living, self._ended):
            for name in [name for name in book if name not in pids]:
                del book[name]

    def living(self, name: str) -> ProcessLife | None:
        """The current process of a replica; None if it has none."""
        return self._living.get(name)

    def ended(self, name: str) -> ProcessLife | None:
        """The last process of a replica that was seen to end; None if there is none."""
        return self._ended.get(name)

    def _begin(self, pid: int, start: int) -> ProcessLife:
        raw = text_of(self._proc / str(pid) / "cmdline").split("\0")
        return ProcessLife(pid, start, tuple(raw[:WORDS_MAX]))

    def _follow(self, life: ProcessLife, now: float) -> None:
        cgroup = read_cgroup(life.pid, self._proc, self._cgroups)
        if cgroup is None:
            return
        if life.cgroup is not None and (kills_since(life.cgroup) or 0) > 0:
            life.killed_at = now  # somebody in its cgroup, perhaps a part of it: an end may follow
        life.cgroup = cgroup

    def _judge(self, gone: list[ProcessLife], host_kills: int | None, now: float) -> None:
        before, self._host_kills = self._host_kills, host_kills
        grown = 0 if before is None or host_kills is None else host_kills - before
        without: list[ProcessLife] = []
        for life in gone:
            kills = None if life.cgroup is None else kills_since(life.cgroup)
            recent = life.killed_at is not None and now - life.killed_at <= RECENT_S
            if recent or (kills or 0) > 0:
                life.oom = True
                life.reason = "the kernel's OOM killer was at work in its cgroup"
            elif kills is None:
                without.append(life)
        if without and grown >= len(without):
            for life in without:
                life.oom = True
                life.reason = "an OOM kill on this host just then, and its cgroup cannot be asked"
        elif grown > 0:
            for life in without:
                life.reason = "somebody was OOM-killed on this host just then, perhaps this process"
        for life in gone:
            life.reason = life.reason or "its process is gone"


__all__ = ["ProcessLife", "ProcessTracker", "start_of"]
