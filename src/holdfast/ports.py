"""The interfaces (ports) between control and the outside: launchers, sources, the store.

A port is as narrow as its user allows, ships a fake, and one contract suite runs against the fake
and every adapter. Rejected: a base class with shared behaviour. What adapters share would then be
tested through each of them, and a second kind of launcher would inherit the first one's habits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from holdfast.core.deploy.gpu_placement import GpuInventory
from holdfast.core.health.leadership import LeaseAnswer
from holdfast.core.request.idempotency.key_policy import KeyChange, KeyRuling
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord, KeyUsage
from holdfast.core.types import HostCondition
from holdfast.core.view.layers import Reading


class LaunchError(Exception):
    """A replica could not be started; the text says why and what to do."""


class NoRoomError(LaunchError):
    """A replica has to wait: its platform has no room for it now; the text says what is missing."""


@dataclass(slots=True, frozen=True)
class Order:
    """What to start: a replica's command, environment and port, and labels kept with it."""

    replica_id: str
    command: tuple[str, ...]  # "{python}" stands for the interpreter that runs Holdfast
    environment: Mapping[str, str] = field(default_factory=dict)  # beside what engines get anyway
    port: int = 0  # where the engine will listen; the launcher only carries it
    note: Mapping[str, str] = field(default_factory=dict)  # handed back at adoption, never read
    pass_env: tuple[str, ...] = ()  # variables of control's own environment that it gets as well
    on: str = ""  # the name of the platform that runs it; empty: this host
    platform: Mapping[str, Any] = field(default_factory=dict)  # what only that platform reads


@dataclass(slots=True, frozen=True)
class PlaceRequest:
    """What a replica needs of the host that a platform chooses for it."""

    replica_id: str
    model: str
    zone: str = ""  # where it should be; empty: anywhere
    gpus: int = 0  # tensor × pipeline degree
    cpus: float = 0.0  # set aside for it
    order: Order | None = None  # for platforms that choose a place by starting what is to run there


@dataclass(slots=True, frozen=True)
class Place:
    """Where a platform will run a replica: its address, a free port, and its host's name."""

    address: str
    port: int
    host: str  # as the platform names it, in facts and incidents
    zone: str = ""  # empty: unknown
    reason: str = ""  # why this one, for people
    listen: str = ""  # what the engine binds to there; empty: the address


@dataclass(slots=True, frozen=True)
class Ended:
    """How a replica's process ended. At most one of code and signal is known."""

    code: int | None
    signal: int | None
    oom: bool  # the kernel counted an OOM kill in its cgroup just then, and it fits
    reason: str  # for people
    oom_ruled_out: bool = False  # the kernel's count was watched, and it killed nobody just then
    asked: bool = False  # it was told to end, by whomever, and did not end by itself
    host_lost: bool = False  # its host died or was taken back, and it went with it


@dataclass(slots=True, frozen=True)
class Adopted:
    """A replica that an earlier control started and that still runs."""

    order: Order
    pid: int
    started_at: float  # seconds since the epoch
    place: Place | None = None  # where it runs by now, if a platform may have moved it


class Watcher(Protocol):
    """Receives a launcher's reports about replicas. Called on the event loop; must not block."""

    def started(self, replica_id: str, pid: int) -> None:
        """A replica's process was started. Not called for adopted replicas."""

    def line(self, replica_id: str, text: str) -> None:
        """The engine wrote a line of log (shortened where it is long)."""

    def ended(self, replica_id: str, ended: Ended) -> None:
        """A replica's process and all its children ended. Called once for each start."""

    def stopped(self, replica_id: str, stopped: bool) -> None:
        """A replica's process was suspended (or is about to end), or resumed.

        A suspension comes from SIGSTOP or a debugger.
        """

    def leaving(self, replica_id: str, reason: str) -> None:
        """A replica's host is being drained or taken back: its requests should go elsewhere."""

    def host_seen(self, host: str, condition: HostCondition, reason: str) -> None:
        """The platform says whether one of its hosts can run replicas, when that changes."""


class Launcher(Protocol):
    """Starts replicas' processes, watches them and stops them."""

    async def adopt(self, watcher: Watcher) -> list[Adopted]:
        """Take over replicas that already run; must be called once, before anything else.

        Replicas that ended while no control ran are reported through the watcher, at each adoption,
        until they are forgotten or started again.
        """
        ...

    async def start(self, order: Order) -> int:
        """Start a replica and return its pid; ``LaunchError`` where that fails."""
        ...

    async def stop(self, replica_id: str, grace_s: float) -> Ended | None:
        """Stop a replica, by force after ``grace_s``; None: it does not run.

        The watcher is called with the end before this returns.
        """
        ...

    def pid(self, replica_id: str) -> int | None:
        """The pid of a replica's engine; None: it does not run."""
        ...

    def log_path(self, replica_id: str) -> Path | None:
        """The log file of a replica, also after its end, until it is forgotten."""
        ...

    def forget(self, replica_id: str) -> None:
        """Delete what is kept of a replica that ended; a running one is left alone."""
        ...

    async def close(self, *, leave_running: bool) -> None:
        """Stop watching; the replicas run on to be adopted, or are stopped first."""
        ...


@runtime_checkable
class PlacingLauncher(Protocol):
    """A launcher that chooses the host of a replica, and so its address, before the start."""

    def places(self, on: str) -> bool:
        """Whether replicas of this platform get a place from here."""
        ...

    async def place(self, on: str, request: PlaceRequest) -> Place:
        """Reserve a place for a replica until it is started, stopped or placed again.

        ``NoRoomError``: none has room now; another ``LaunchError``: the platform cannot be used.
        """
        ...


class GpuReader(Protocol):
    """Reads the GPUs of the host that launched replicas run on."""

    async def read(self) -> GpuInventory:
        """Return the devices that replicas may use now, or why there are none; never raises."""
        ...


class KeyStoreError(Exception):
    """The store of idempotency keys cannot be read or written now; nothing was changed."""


@dataclass(slots=True, frozen=True)
class WatchedKey:
    """A key that is looked at again and again: which execution, and from which piece on."""

    name: KeyName
    execution: str
    here: int  # pieces of its answer that are here already


@dataclass(slots=True, frozen=True)
class KeySight:
    """What a look at a key showed."""

    record: KeyRecord | None
    beat: int | None  # of the gateway that owns it; None: it said farewell
    pieces: tuple[bytes, ...]  # from the asked one on, in order; only of the asked execution


class KeyStore(Protocol):
    """Keeps idempotency keys for all gateways. Methods wait; they are called in one thread.

    Each raises ``KeyStoreError`` where the store does not answer; the next call tries anew.
    """

    def update(self, changes: Sequence[KeyChange]) -> list[KeyRuling]:
        """Make each change atomically, those of one key in their order; durable on return.

        A store deletes the pieces of an answer with its record, when the record goes over to
        another execution, and when it says that none are stored.
        """
        ...

    def look(self, watched: Sequence[WatchedKey]) -> list[KeySight]:
        """Return the record, the owner's beat and the further pieces of each key."""
        ...

    def beat(self, owner: str, heard: int) -> list[tuple[int, str]]:
        """Count the beat of a gateway up; return the purges with numbers above ``heard``."""
        ...

    def farewell(self, owner: str) -> None:
        """Note that a gateway has left in good order: it executes nothing any more."""
        ...

    def wanted(self, owner: str) -> list[tuple[KeyName, str]]:
        """Return the keys (and executions) of this gateway that a duplicate elsewhere waits for."""
        ...

    def due(self, now: float, most: int) -> list[KeyName]:
        """Return some keys of which a record or stored pieces have expired."""
        ...

    def purge(self, tenant: str) -> int:
        """Delete all keys and answers of a tenant; return how many keys. Gateways hear of it."""
        ...

    def usage(self) -> dict[str, KeyUsage]:
        """Return what is held, by tenant."""
        ...

    def close(self) -> None:
        """Release the connection or file."""
        ...


class UnreadableError(Exception):
    """A platform did not give what was asked of it; the text says why, for people."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status  # of the platform's answer, in HTTP's numbers; None: there was none


class Source(Protocol):
    """A platform (cloud, cluster, host) that control polls for hosts, replicas and queues.

    Each is read in a task of its own.
    """

    name: str  # in the fleet file, and on every row it feeds
    kind: str  # local, aws, kubernetes, agent
    period_s: float  # between two readings

    async def read(self) -> Reading:
        """Return all that the platform shows now.

        What a platform refuses or delays is no exception: the part that failed carries its error
        and its age, and keeps the rows it had. A source limits its own calls.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


@runtime_checkable
class Tailed(Protocol):
    """A source that also gives the logs of the replicas it lists."""

    name: str

    async def tail(self, placed_id: str, lines: int) -> list[str]:
        """The last lines of a log, in order; ``UnreadableError`` where the platform gives none."""
        ...


@runtime_checkable
class Gauged(Protocol):
    """A source that also gives figures for Prometheus."""

    def gauges(self) -> dict[str, float]:
        """Its gauges, with their labels, as they are now."""
        ...


class StoreError(Exception):
    """The store cannot be opened, or was given a value that it cannot keep."""


@dataclass(slots=True, frozen=True)
class StoredEvent:
    """An event of the fleet, as the store keeps it."""

    at: float  # seconds since 1970
    model: str
    replica: str
    what: str
    reason: str
    kind: str | None = None  # the class of a failure


@dataclass(slots=True, frozen=True)
class StoredOrder:
    """An order to the admin port, as the store keeps it for the audit trail."""

    at: float  # seconds since 1970
    who: str  # the name of the caller's token, never the token
    what: str  # method and path
    address: str  # where it came from
    status: int  # of the HTTP answer
    result: str  # in words
    not_let_in: bool = False  # the caller had no right to ask: such rows are bounded apart


class Store(Protocol):
    """Persists what control needs after a restart: replicas, answers, settings, incidents.

    Values are plain data, as JSON has it. What is given is copied at once, and what is returned is
    a fresh copy. No method waits for a disk; ``StoreError`` where a value cannot be kept.
    """

    def put_replica(self, replica_id: str, data: dict[str, Any]) -> None:
        """Store the data of a launched replica, replacing what was stored before."""

    def drop_replica(self, replica_id: str) -> None:
        """Delete a replica; an unknown id is not an error."""

    def replicas(self) -> dict[str, dict[str, Any]]:
        """The data of all stored replicas, by id."""
        ...

    def put_answers(self, data: dict[str, Any]) -> None:
        """Store the known answers of canaries, replacing all stored before."""

    def answers(self) -> dict[str, Any]:
        """The known answers of canaries; empty where none were stored."""
        ...

    def put_setting(self, key: str, value: Any) -> None:
        """Store one setting, such as a wanted number of replicas."""

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
        """Store an event of time ``at`` (seconds since 1970); False: it was dropped."""
        ...

    def events(self, limit: int = 1_000, replica: str | None = None) -> list[StoredEvent]:
        """The newest events, the oldest of them first; of one replica where one is named."""
        ...

    def add_order(self, order: StoredOrder) -> bool:
        """Store a row of the audit trail; False: it was dropped."""
        ...

    def orders(self, limit: int = 100) -> list[StoredOrder]:
        """The newest rows of the audit trail, the oldest of them first."""
        ...

    def put_incident(
        self,
        incident_id: str,
        opened: float,
        stage: str,
        data: dict[str, Any],
        facts: bytes | None = None,
    ) -> None:
        """Store an incident, replacing what was stored of it.

        ``facts`` is the packed export of its facts; ``None`` leaves what was kept of them.
        """

    def incidents(self, limit: int = 100, stage: str | None = None) -> list[dict[str, Any]]:
        """The incidents that opened last, newest first; of one stage where one is named."""
        ...

    def incident(self, incident_id: str) -> tuple[dict[str, Any] | None, bytes | None]:
        """One incident and its packed facts, each ``None`` where it is not kept."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """The store's own state (path, queue, problems), as plain data for people and metrics."""
        ...


class LeadershipStoreError(Exception):
    """The store of the leadership did not answer, so that nothing is known of the claim."""


class LeadershipStore(Protocol):
    """Grants the leadership to one control at a time, and counts terms.

    A claim is granted where nobody holds the lease, where it has run out by the store's own time,
    or where the same holder renews it. The term rises with each grant that is no renewal, and never
    falls. A holder's name is that of one process: one that was started anew is another holder.
    """

    async def claim(self, holder: str, lease_s: float) -> LeaseAnswer:
        """Take or renew the lease if nobody else holds it; returns who does, and the term."""
        ...

    async def release(self, holder: str) -> None:
        """Give the lease back, if this holder has it: the next claim is granted."""

    async def close(self) -> None:
        """Close what is open; a later claim opens it again."""


__all__ = [
    "Adopted",
    "Ended",
    "Gauged",
    "GpuReader",
    "KeySight",
    "KeyStore",
    "KeyStoreError",
    "LaunchError",
    "Launcher",
    "LeadershipStore",
    "LeadershipStoreError",
    "NoRoomError",
    "Order",
    "Place",
    "PlaceRequest",
    "PlacingLauncher",
    "Source",
    "Store",
    "StoreError",
    "StoredEvent",
    "StoredOrder",
    "Tailed",
    "UnreadableError",
    "WatchedKey",
    "Watcher",
]
