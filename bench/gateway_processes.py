"""Processes that ``bench/gateway.py`` starts: what they cost, read from /proc, and how they end."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

END_S: Final = 6.0  # from SIGTERM to SIGKILL; above the default grace of a drain
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class PeerError(Exception):
    """A gateway did not start; the text says what it printed."""


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                found += tree(int(child))
    except (FileNotFoundError, ProcessLookupError):
        return found  # it ended while we looked
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; none when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def cpu_seconds(pids: list[int]) -> dict[int, float]:
    """User and system time of each."""
    stats = {pid: _stat(pid) for pid in pids}
    return {
        pid: (int(fields[11]) + int(fields[12])) / TICKS for pid, fields in stats.items() if fields
    }


def core_busy_seconds(core: int) -> float:
    """How long a core was not idle since the machine started."""
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            busy = [int(field) for field in fields[:8]]
            return (sum(busy) - busy[3] - busy[4]) / TICKS  # less idle and waiting for a disk
    raise PeerError(f"/proc/stat does not know core {core}")


def memory_bytes(pids: list[int]) -> int:
    """Resident memory of all together; pages they share count once for each."""
    return sum(int(fields[21]) * PAGE for fields in map(_stat, pids) if fields)


class Running:
    """One gateway, or the replicas, until ended."""

    def __init__(self, name: str, port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.port = port
        self._process = process
        self._log = log

    def pids(self) -> list[int]:
        """Its whole tree, now."""
        return tree(self._process.pid)

    def last_words(self) -> str:
        """The end of what it printed, for an error message."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return text[-1_500:].strip() or "nothing"

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End it and everything it started, each by its pid."""
        below = self.pids()
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in below[1:]:
            with contextlib.suppress(ProcessLookupError):  # gone with its parent, as it should
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def on_core(core: int, otherwise: int) -> Iterator[None]:
    """Children started inside inherit this core, and so does every thread of theirs."""
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, {otherwise})


def hurry(pids: list[int]) -> None:
    """The highest priority, also among sessions; all that they start later inherits it.

    Where sessions share a core fairly (autogroup), a priority counts only inside one.
    """
    for pid in pids:
        os.setpriority(os.PRIO_PROCESS, pid, -20)
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists():
            group.write_text("-20", encoding="ascii")


@contextlib.contextmanager
def urgent() -> Iterator[None]:
    """Be first on the machine, and let the session be as before afterwards."""
    hurry([os.getpid()])
    try:
        yield
    finally:
        group = Path("/proc/self/autogroup")
        if group.exists():
            group.write_text("0", encoding="ascii")


__all__ = [
    "PeerError",
    "Running",
    "core_busy_seconds",
    "cpu_seconds",
    "hurry",
    "memory_bytes",
    "on_core",
    "urgent",
]
