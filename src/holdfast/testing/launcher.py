"""A fake launcher without processes, for tests.

The host outlives its launchers as a real one outlives control: a second launcher on the same host
adopts what the first one left. A test causes every event by a method: ``say``, ``end``,
``suspend``. Nothing happens by itself.
"""

import asyncio
import signal
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from holdfast.launchers.keeper import signal_name
from holdfast.ports import Adopted, Ended, LaunchError, Order, Watcher


@dataclass(slots=True, eq=False)
class _Process:
    order: Order
    pid: int
    started_at: float
    stubborn: bool = False  # takes no SIGTERM
    ended: Ended | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class FakeHost:
    """A fake host: processes that exist only as objects, and the launcher that watches them."""

    def __init__(self) -> None:
        self.processes: dict[str, _Process] = {}
        self.watcher: Watcher | None = None
        self.refusal: str | None = None  # why the next starts fail
        self.stubborn: set[str] = set()  # replicas that take no SIGTERM
        self._pids = count(1000)

    def begin(self, order: Order) -> int:
        """Start a fake process, or raise the error that the test asked for."""
        if self.refusal is not None:
            raise LaunchError(f"cannot start {order.command[0]!r}: {self.refusal}")
        pid = next(self._pids)
        stubborn = order.replica_id in self.stubborn
        self.processes[order.replica_id] = _Process(order, pid, float(pid), stubborn)
        if self.watcher is not None:
            self.watcher.started(order.replica_id, pid)
        return pid

    def running(self, replica_id: str) -> _Process | None:
        """The process of a replica; None if it has ended."""
        process = self.processes.get(replica_id)
        return None if process is None or process.ended is not None else process

    def say(self, replica_id: str, text: str) -> None:
        """Let the replica's engine write a log line."""
        assert self.running(replica_id) is not None, f"{replica_id} does not run"
        if self.watcher is not None:
            self.watcher.line(replica_id, text)

    def end(
        self,
        replica_id: str,
        *,
        code: int | None = None,
        number: int | None = None,
        oom: bool = False,
        reason: str = "",
        asked: bool = False,
    ) -> None:
        """End a replica's process, with an exit code or by a signal."""
        process = self.running(replica_id)
        assert process is not None, f"{replica_id} does not run"
        told = f"exited with code {code}" if number is None else f"killed by {signal_name(number)}"
        process.ended = Ended(code, number, oom, reason or told, asked=asked)
        if self.watcher is not None:
            self.watcher.ended(replica_id, process.ended)
        process.gone.set()

    def suspend(self, replica_id: str, suspended: bool) -> None:
        """Suspend a replica's process as by SIGSTOP, or resume it."""
        assert self.running(replica_id) is not None, f"{replica_id} does not run"
        if self.watcher is not None:
            self.watcher.stopped(replica_id, suspended)


class FakeLauncher:
    """The ``Launcher`` port over a fake host."""

    def __init__(self, host: FakeHost | None = None) -> None:
        self.host = host or FakeHost()
        self._adopted = False

    async def adopt(self, watcher: Watcher) -> list[Adopted]:
        """Take over processes that run already."""
        assert not self._adopted, "adopt is called once"
        self._adopted = True
        self.host.watcher = watcher
        found = []
        for name, process in self.host.processes.items():
            if process.ended is None:
                found.append(Adopted(process.order, process.pid, process.started_at))
            else:
                watcher.ended(name, process.ended)
        return found

    async def start(self, order: Order) -> int:
        """Start a fake process that does nothing until the test makes it."""
        assert self._adopted, "adopt comes first"
        if self.host.running(order.replica_id) is not None:
            raise LaunchError(f"replica {order.replica_id!r} runs already; stop it first")
        if not order.command:
            raise LaunchError(f"replica {order.replica_id!r} has no command to run")
        return self.host.begin(order)

    async def stop(self, replica_id: str, grace_s: float) -> Ended | None:
        """End the process at once, also a stubborn one: its grace takes no time here."""
        process = self.host.running(replica_id)
        if process is None:
            return None
        by_force = process.stubborn or grace_s <= 0
        number = signal.SIGKILL if by_force else signal.SIGTERM
        reason = f"stopped as asked; killed by {signal_name(number)}"
        self.host.end(replica_id, number=number, reason=reason, asked=True)
        return process.ended

    def pid(self, replica_id: str) -> int | None:
        """The pid of a replica; None if it does not run."""
        process = self.host.running(replica_id)
        return None if process is None else process.pid

    def log_path(self, replica_id: str) -> Path | None:  # noqa: ARG002 there are no logs on paper
        """Always None: fake processes have no log file."""
        return None

    def forget(self, replica_id: str) -> None:
        """Remove a replica, unless it runs."""
        if self.host.running(replica_id) is None:
            self.host.processes.pop(replica_id, None)

    async def close(self, *, leave_running: bool) -> None:
        """Stop watching the host."""
        if not leave_running:
            for name in list(self.host.processes):
                await self.stop(name, 1.0)
        self.host.watcher = None


__all__ = ["FakeHost", "FakeLauncher"]
