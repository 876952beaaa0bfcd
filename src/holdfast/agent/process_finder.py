"""Finds the process of each replica: by its pid, by a pid file, or by the port it listens on.

    /proc/net/tcp, tcp6 ─► the socket that listens ─► /proc/*/fd ─► who holds it, the eldest of them

Walking all descriptors of a host is expensive, so a port's process is searched for once and then
only checked to be alive; one that is not found is searched for again now and then. Descriptors of
other users' processes need root or CAP_SYS_PTRACE; where they cannot be read, the reason says so.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from holdfast.agent.settings import ReplicaRule
from holdfast.sources.pressure import text_of
from holdfast.sources.process_tracker import start_of

AGAIN_S: Final = 15.0  # between two walks over all descriptors
_LISTENS: Final = "0A"
_PID_CHARS_MAX: Final = 32


class ProcessFinder:
    """Finds the processes of the configured replicas."""

    def __init__(
        self,
        rules: Sequence[ReplicaRule],
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._proc = proc
        self._clock = clock
        self._held: dict[int, tuple[int, int]] = {}  # by port: a pid and its start
        self._walked_at: float | None = None
        self._denied = 0  # processes whose descriptors are not ours to read

    def find(self) -> dict[str, tuple[int | None, str]]:
        """The pid of each replica by its id, or None and the reason."""
        self._look_for_ports()
        return {rule.id: self._one(rule) for rule in self._rules}

    def _one(self, rule: ReplicaRule) -> tuple[int | None, str]:
        if rule.how == "pid":
            return int(rule.what), ""
        if rule.how == "pidfile":
            told = _pid_in(Path(rule.what))
            return told, "" if told else f"{rule.what} holds no process id"
        held = self._held.get(int(rule.what))
        if held is not None:
            return held[0], ""
        denied = f" among those of this user ({self._denied} are others')" if self._denied else ""
        return None, f"no process{denied} listens on port {rule.what}"

    def _look_for_ports(self) -> None:
        ports = {int(rule.what) for rule in self._rules if rule.how == "port"}
        self._held = {
            port: held
            for port, held in self._held.items()
            if start_of(held[0], self._proc) == held[1]
        }
        missing = ports - self._held.keys()
        now = self._clock()
        if not missing or (self._walked_at is not None and now - self._walked_at < AGAIN_S):
            return
        self._walked_at = now
        sockets = self._listening(missing)
        holders = self._holders(sockets) if sockets else {}
        for port, pids in holders.items():
            pid = self._eldest(pids)
            start = start_of(pid, self._proc)
            if start is not None:
                self._held[port] = (pid, start)

    def _listening(self, ports: set[int]) -> dict[str, int]:
        """Map the inode of each listening socket to its port."""
        found: dict[str, int] = {}
        for name in ("tcp", "tcp6"):
            for line in text_of(self._proc / "net" / name).splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[3] == _LISTENS:
                    port = int(words[1].rpartition(":")[2], 16)
                    if port in ports:
                        found[f"socket:[{words[9]}]"] = port
        return found

    def _holders(self, sockets: dict[str, int]) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        self._denied = 0
        for name in os.listdir(self._proc):  # noqa: PTH208 thousands of them
            if not name.isdecimal():
                continue
            folder = f"{self._proc}/{name}/fd"
            try:
                descriptors = os.listdir(folder)  # noqa: PTH208 as above
            except PermissionError:
                self._denied += 1
                continue
            except OSError:  # it ended meanwhile
                continue
            for descriptor in descriptors:
                port = sockets.get(_target(f"{folder}/{descriptor}"))
                if port is not None:
                    found.setdefault(port, set()).add(int(name))
        return found

    def _eldest(self, pids: set[int]) -> int:
        """Of processes that share a socket, the one whose parent is not among them."""
        for pid in sorted(pids):
            words = text_of(self._proc / str(pid) / "stat").rpartition(")")[2].split()
            if len(words) > 1 and words[1].isdecimal() and int(words[1]) not in pids:
                return pid
        return min(pids)


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 thousands of them
    except OSError:  # closed meanwhile
        return ""


def _pid_in(path: Path) -> int | None:
    told = text_of(path)[:_PID_CHARS_MAX].split()
    return int(told[0]) if told and told[0].isdecimal() else None


__all__ = ["AGAIN_S", "ProcessFinder"]
