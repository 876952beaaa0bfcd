"""Reads what the Linux kernel says of a process: its state and the CPU time it has had."""

import os
from pathlib import Path
from typing import Final

from holdfast.core.health.process_watch import KernelState

_STATES: Final = {
    "R": KernelState.RUNNABLE,
    "S": KernelState.SLEEPING,
    "I": KernelState.SLEEPING,
    "D": KernelState.BLOCKED,
    "T": KernelState.STOPPED,
    "t": KernelState.TRACED,
}
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def read_stat(proc: Path, pid: int) -> tuple[KernelState, int]:
    """Read a process's kernel state and CPU time (ns) from ``proc``; never raises.

    UNKNOWN and 0 where it cannot be read.
    """
    try:
        words = (proc / str(pid) / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return _STATES.get(words[0], KernelState.UNKNOWN), _ticks(words) * _TICK_NS
    except (OSError, IndexError, ValueError):
        return KernelState.UNKNOWN, 0


def _ticks(words: list[str]) -> int:
    """User and system time, fields 14 and 15 of the line, counted behind the name."""
    return int(words[11]) + int(words[12])


__all__ = ["read_stat"]
