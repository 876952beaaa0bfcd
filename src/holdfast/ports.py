"""The small interfaces between control and the world it cannot be tested in.

A port is as narrow as its user allows, ships a fake, and one contract suite runs against the fake
and every adapter. Rejected: a base class with shared behaviour. What adapters share would then be
tested through each of them, and a second kind of launcher would inherit the first one's habits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from holdfast.core.view.layers import Reading


class LaunchError(Exception):
    """A replica could not be started; the text says why and what to do about it."""


@dataclass(slots=True, frozen=True)
class Order:
    """What to start, and what control wants to be told about it after its own restart."""

    replica_id: str
    command: tuple[str, ...]  # "{python}" stands for the interpreter that runs Holdfast
    environment: Mapping[str, str] = field(default_factory=dict)  # beside what engines get anyway
    port: int = 0  # where the engine will listen; the launcher only carries it
    note: Mapping[str, str] = field(default_factory=dict)  # handed back at adoption, never read
    pass_env: tuple[str, ...] = ()  # variables of control's own environment that it gets as well


@dataclass(slots=True, frozen=True)
class Ended:
    """How a replica's process ended. Exactly one of code and signal is known, or neither."""

    code: int | None
    signal: int | None
    oom: bool  # the kernel counted an OOM kill in its cgroup just then, and it fits
    reason: str  # for people
    oom_ruled_out: bool = False  # the kernel's count was watched, and it killed nobody just then
    asked: bool = False  # it was told to end, by whomever, and did not end by itself


@dataclass(slots=True, frozen=True)
class Adopted:
    """A replica that an earlier control started and that still runs."""

    order: Order
    pid: int
    started_at: float  # seconds since the epoch


class Watcher(Protocol):
    """Who wants to hear about replicas. Called on the event loop; must return quickly."""

    def started(self, replica_id: str, pid: int) -> None:
        """It runs, as far as the operating system knows. Not said of adopted ones."""

    def line(self, replica_id: str, text: str) -> None:
        """The engine wrote a line (shortened where it is long)."""

    def ended(self, replica_id: str, ended: Ended) -> None:
        """It is gone, with everything it had started. Said once for each start."""

    def stopped(self, replica_id: str, stopped: bool) -> None:
        """Its process is suspended (SIGSTOP, a debugger) or about to end, or goes on."""


class Launcher(Protocol):
    """Starts replicas, watches them, ends them."""

    async def adopt(self, watcher: Watcher) -> list[Adopted]:
        """Take over what runs already; must be called once, before anything else.

        Reports through the watcher those that ended while nobody watched; they are reported at
        each adoption until they are forgotten or started again.
        """
        ...

    async def start(self, order: Order) -> int:
        """Start it and return its pid; LaunchError where that cannot be."""
        ...

    async def stop(self, replica_id: str, grace_s: float) -> Ended | None:
        """End it, kindly for so long and then by force. None: it does not run.

        The watcher hears of the end before this returns.
        """
        ...

    def pid(self, replica_id: str) -> int | None:
        """The engine's process, while it runs."""
        ...

    def log_path(self, replica_id: str) -> Path | None:
        """Where its output is kept, also after its end, until it is forgotten."""
        ...

    def forget(self, replica_id: str) -> None:
        """Remove what is kept of one that ended. One that runs is left alone."""
        ...

    async def close(self, *, leave_running: bool) -> None:
        """Stop watching; the replicas run on to be adopted, or are stopped first."""
        ...


class UnreadableError(Exception):
    """A platform was asked for something and did not give it; the text says why, for people."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status  # of the platform's answer, in HTTP's numbers; None: there was none


class Source(Protocol):
    """One platform that is looked at. Each runs in a task of its own and waits for nobody."""

    name: str  # in the fleet file, and on every row it feeds
    kind: str  # local, aws, kubernetes, agent
    period_s: float  # between two readings

    async def read(self) -> Reading:
        """All that it knows now.

        What a platform refuses or delays is no exception: the part that failed carries its error
        and its age, and keeps the rows it had. It limits its own calls.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...


@runtime_checkable
class Tailed(Protocol):
    """A source that also has the logs of what it lists."""

    name: str

    async def tail(self, placed_id: str, lines: int) -> list[str]:
        """The last lines, in their order; ``UnreadableError`` where it cannot have them."""
        ...


__all__ = [
    "Adopted",
    "Ended",
    "LaunchError",
    "Launcher",
    "Order",
    "Source",
    "Tailed",
    "UnreadableError",
    "Watcher",
]
