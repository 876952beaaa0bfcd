"""The small interfaces between control and the world it cannot be tested in.

A port is as narrow as its user allows, ships a fake, and one contract suite runs against the fake
and every adapter. Rejected: a base class with shared behaviour. What adapters share would then be
tested through each of them, and a second kind of launcher would inherit the first one's habits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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


class StoreError(Exception):
    """The store cannot be opened, or was given something that it does not keep."""


@dataclass(slots=True, frozen=True)
class StoredEvent:
    """Something that happened in the fleet, as the store keeps it."""

    at: float  # seconds since 1970
    model: str
    replica: str
    what: str
    reason: str
    kind: str | None = None  # the class of a failure


class Store(Protocol):
    """What control must know again after a restart: replicas, answers, settings, incidents.

    Values are plain data, as JSON has it. What is given is copied at once, and what is returned is
    a fresh copy. No method waits for a disk; ``StoreError`` where a value cannot be kept.
    """

    def put_replica(self, replica_id: str, data: dict[str, Any]) -> None:
        """Keep what is known of a replica that control launched, in place of what was kept."""

    def drop_replica(self, replica_id: str) -> None:
        """Forget a replica; one that is not kept is no mistake."""

    def replicas(self) -> dict[str, dict[str, Any]]:
        """All replicas by id."""
        ...

    def put_answers(self, data: dict[str, Any]) -> None:
        """Keep the known answers of canaries."""

    def answers(self) -> dict[str, Any]:
        """The known answers of canaries; empty where none were kept."""
        ...

    def put_setting(self, key: str, value: Any) -> None:
        """Keep one setting, such as a wanted number of replicas."""

    def settings(self) -> dict[str, Any]:
        """All settings by key."""
        ...

    def add_event(
        self,
        at: float,
        model: str,
        replica: str,
        what: str,
        reason: str,
        kind: str | None = None,
    ) -> bool:
        """Keep an event that happened at ``at``, in seconds since 1970; False: it was not kept."""
        ...

    def events(self, limit: int = 1_000, replica: str | None = None) -> list[StoredEvent]:
        """The newest events, the oldest of them first; of one replica where one is named."""
        ...

    def put_incident(
        self,
        incident_id: str,
        opened: float,
        stage: str,
        data: dict[str, Any],
        facts: bytes | None = None,
    ) -> None:
        """Keep an incident in place of what was kept of it.

        ``facts`` is the packed export of its facts; ``None`` leaves what was kept of them.
        """

    def incidents(self, limit: int = 100, stage: str | None = None) -> list[dict[str, Any]]:
        """The incidents that opened last, newest first; of one stage where one is named."""
        ...

    def incident(self, incident_id: str) -> tuple[dict[str, Any] | None, bytes | None]:
        """One incident and its packed facts, each ``None`` where it is not kept."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """How the store fares, as plain data for people and metrics."""
        ...


__all__ = [
    "Adopted",
    "Ended",
    "LaunchError",
    "Launcher",
    "Order",
    "Source",
    "Store",
    "StoreError",
    "StoredEvent",
    "Tailed",
    "UnreadableError",
    "Watcher",
]
