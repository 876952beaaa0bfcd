"""Compares successive readings of platforms and returns what changed as facts.

    Reading, Reading, … ─► differences ─► Declared, ProcessEnded, QueueSeen … ─► detectors

A reading is a state and is repeated every few seconds; a fact is news. So this remembers which
facts it returned: an end is reported once, however long the platform lists the task; a replica is
declared when its configuration changes; measurements are reported with each reading, because
detectors count them.

What was not read just now is not reported. A part that failed keeps its rows in the view, and
yields no facts: an old value reported again would be a measurement that was never made.

Silence is judged by the phase that the log itself named. While loading every line counts. While
serving a replica is compared with its own habit: one that wrote every few seconds and stops is
silent, one that never had a habit is only idle, unless its last line was that a request came in.
How far the log itself has been read bounds it: what could not be read may well have been written.

Rejected: an end at each reading in which a task is stopped. One death would be read as ten.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from zlib import crc32

from holdfast.core.diagnose.detect.silence import COMPILE, LOADING, SERVING, STARTING, WARM_UP
from holdfast.core.diagnose.facts import (
    Declared,
    Fact,
    FellSilent,
    FilesystemSeen,
    Gone,
    GpuFault,
    GpuSeen,
    HostConditionSeen,
    HostSeen,
    MemorySeen,
    PhaseSeen,
    ProcessEnded,
    QueueSeen,
    ReplicasWanted,
    SourceFailing,
    VersionsSeen,
)
from holdfast.core.gpu import DEVICES_MAX, GpuDevice
from holdfast.core.types import HostCondition, nanos, require
from holdfast.core.view.layers import Host, Placed, Reading
from holdfast.core.view.staleness import (
    DISKS,
    HOSTS,
    LOGS,
    MEMORY,
    PLACED,
    POOLS,
    QUEUES,
    WISHES,
    Freshness,
    feeds,
)

SOURCES_MAX: Final = 1_024  # of which the last readings are kept; the one heard longest ago goes
REPLICAS_MAX: Final = 10_000  # of one source; as many as the census takes
ROWS_MAX: Final = 10_000  # hosts, queues and filesystems of one reading that are told
ENDS_MAX: Final = 20_000  # of one source that are known to have been told
KEPT_ENDS_MAX: Final = 1_000  # of them, those of one source that outlive a restart: the latest
MANY: Final = 100  # rows of a reading; fewer are told at once without a pause that counts
_GAPS: Final = 8
_NAME_CHARS: Final = 256
_REASON_CHARS: Final = 240
_SEEN: Final = frozenset({HOSTS, PLACED, POOLS, QUEUES})
_OF_HOSTS: Final = ("host", "condition")
_LIVE: Final = ("running", "pending", "stopping")
_PHASES: Final = {
    **{name: name for name in (STARTING, LOADING, COMPILE, WARM_UP, SERVING)},
    **dict.fromkeys(("loaded", "ready", "request", "heartbeat"), SERVING),
    **dict.fromkeys(("warmup", "warming"), WARM_UP),
    "compiling": COMPILE,
}
# Whoever was stopped in good order ends like this, and so does nobody who died of anything.
_ORDERLY: Final = (0, 130, 143)
_ORDERED: Final = (
    *("scaling activity", "deployment", "user initiated", "userinitiated", "serviceschedulerinit"),
    *("stopped by", "spot interruption", "spotinterruption", "host ec2", "draining", "deleted"),
)
_AGENT: Final = "agent"  # the kind of a reading that another host's agent sent
_OWN_XIDS: Final = ("local", _AGENT)  # faults of their GPUs are told one by one, as they happen
_BY_ITSELF: Final = "essential container"  # a platform's words for an end that nobody ordered
_TAKEN: Final = "evicted"  # its host ran short of something: in good order, and nobody's wish


@dataclass(slots=True, frozen=True)
class ReadingDiffConfig:
    """Settings: how long ended replicas are remembered, and how long silence is normal."""

    keep_s: float = 600.0  # an ended replica stays known: its end is evidence for so long
    past_s: float = 900.0  # at the first look: ends before this are history, not news
    again_s: float = 60.0  # what holds is told again this often, for whoever begins anew
    loading_s: float = 120.0  # silence while loading, as for replicas that are launched here
    compile_s: float = 600.0  # compilers say nothing for minutes
    request_s: float = 300.0  # after the word that a request came; long answers end before
    beats: float = 4.0  # of its own longest pause: three beats may be lost on the way
    beat_least_s: float = 60.0  # whatever its habit: logs are read in pieces
    gpu_every_s: float = 10.0  # figures of a GPU: detectors want minutes of them, not each one

    def __post_init__(self) -> None:
        for name in (
            *("keep_s", "past_s", "again_s", "loading_s", "compile_s", "request_s"),
            *("beat_least_s", "gpu_every_s"),
        ):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"reading_diff.{name}", f"is {value}", fix)
        require(self.beats >= 1, "reading_diff.beats", f"is {self.beats}", "use 1 or more")


@dataclass(slots=True)
class _Known:
    """One replica of one source."""

    declared: Declared | None = None
    ended_at: int | None = None  # core time of the end that was told; None: it lives
    life: tuple[float | None, int | None] = (None, None)  # when it started, which restart
    ready: bool | None = None  # whether its platform ever said so, in this life; None: nothing
    phase: str = ""
    spoke_at: float | None = None
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=_GAPS))


@dataclass(slots=True)
class _Book:
    """One source."""

    many: bool = False  # rows: what is told again is spread over time
    replicas: dict[str, _Known] = field(default_factory=dict)
    told: dict[tuple[str, str], tuple[Fact, int]] = field(default_factory=dict)  # kind and name
    ends: dict[tuple[str, int], bool] = field(default_factory=dict)  # whether each was news
    gpus: dict[str, tuple[int, int | None]] = field(default_factory=dict)  # told when, and its Xid


class ReadingDiff:
    """Turns each new reading of any source into facts; remembers by source what it reported."""

    def __init__(self, config: ReadingDiffConfig | None = None) -> None:
        self._config = config or ReadingDiffConfig()
        self._books: dict[str, _Book] = {}
        self.ends_told = 0  # moves whenever ``told_ends`` has more to keep
        self._routed: Mapping[str, str] = {}
        self._launched: Collection[str] = ()

    def follow(self, routed: Mapping[str, str], launched: Collection[str] = ()) -> None:
        """Set which endpoints belong to replicas of the fleet, and which replicas it launched.

        Nothing is reported of launched replicas: the launcher knows more of them, and sooner.
        """
        self._routed, self._launched = routed, launched

    def name_of(self, placed: Placed) -> str:
        """Return the replica's id in the fleet, or its platform's id where it has none."""
        return (placed.replica or self._routed.get(placed.endpoint, "") or placed.id)[:_NAME_CHARS]

    def take(self, reading: Reading, now: int, wall: float) -> list[Fact]:
        """Return the facts that are new in a reading; parts that failed yield none of their rows.

        ``now``: core time (ns), ``wall``: seconds since 1970. Measurements come with each reading,
        what holds is told again every minute, an end once.
        """
        book = self._books.pop(reading.source, None) or _Book()
        self._books[reading.source] = book
        while len(self._books) > SOURCES_MAX:
            del self._books[next(iter(self._books))]
        book.many = len(reading.placed) + len(reading.hosts) > MANY
        freshness = Freshness(reading)
        facts: list[Fact] = list(_blind_parts(reading))
        if freshness.fresh(PLACED):
            facts += self._replicas(book, reading, freshness, now, wall)
        if freshness.fresh(HOSTS):
            facts += self._hosts(book, reading, now, wall)
            if freshness.fresh(MEMORY):  # an exporter that fails keeps its rows, which are old
                facts += self._gpus(book, reading, now)
        if freshness.fresh(DISKS):
            facts += _disks(reading)
        if freshness.fresh(QUEUES):
            facts += _queues(reading)
        if freshness.fresh(WISHES):
            facts += _wishes(reading, wall)
        return facts

    def forget(self, source: str) -> list[Fact]:
        """Drop a source that is no longer read; return a ``Gone`` for each of its replicas."""
        book = self._books.pop(source, None)
        return [Gone(name) for name in book.replicas] if book is not None else []

    # --- what outlives a restart -----------------------------------------------------------------

    def told_ends(self) -> dict[str, list[list[str | int]]]:
        """Return the ends that were reported, by source, as JSON-ready data; 1,000 of each at most.

        Platforms list what ended for minutes or for good. Whoever begins anew with what this
        returns (``restore``) does not take those for news.
        """
        kept: dict[str, list[list[str | int]]] = {}
        for source, book in self._books.items():
            told: list[list[str | int]] = [[*end] for end, news in book.ends.items() if news]
            if told:
                kept[source] = told[-KEPT_ENDS_MAX:]
        return kept

    def restore(self, told: object) -> None:
        """Take over what ``told_ends`` returned before a restart; what is not of it is ignored."""
        for source, ends in told.items() if isinstance(told, dict) else ():
            if not isinstance(ends, list) or len(self._books) >= SOURCES_MAX:
                continue
            book = self._books.setdefault(str(source), _Book())
            for end in ends[-KEPT_ENDS_MAX:]:
                match end:
                    case [str(name), int(ended)]:
                        book.ends[name[:_NAME_CHARS], ended] = True

    # --- replicas --------------------------------------------------------------------------------

    def _replicas(
        self, book: _Book, reading: Reading, freshness: Freshness, now: int, wall: float
    ) -> Iterator[Fact]:
        by_name: dict[str, list[Placed]] = {}
        unmet = {wish.model for wish in reading.wishes if wish.reason}
        for placed in reading.placed:
            name = self.name_of(placed)
            if placed.model in unmet and _never_ran(placed):
                continue  # nobody ended: the wish of its model tells, with the reason
            if name and name not in self._launched:
                by_name.setdefault(name, []).append(placed)
        hosts = {host.id: host for host in reading.hosts}
        heard = freshness.read_at(LOGS)
        measured = freshness.fresh(MEMORY)
        for name, rows in by_name.items():
            yield from self._one(book, name, rows, now, wall, measured=measured)
            if measured:
                yield from _device_memory(name, _living(rows), reading)
            known, live = book.replicas.get(name), _living(rows)
            if known is None or live is None:
                continue
            yield from self._versions(book, name, live, hosts.get(live.host), now)
            yield from self._speech(known, name, live, heard)
        yield from self._sweep(book, by_name, now)

    def _one(
        self,
        book: _Book,
        name: str,
        rows: list[Placed],
        now: int,
        wall: float,
        *,
        measured: bool,
    ) -> Iterator[Fact]:
        """Its declaration, its ends, its memory; in that order, as detectors want it."""
        live = _living(rows)
        ends = [row for row in rows if self._ends_now(book, name, row, wall)]
        shown = live or (ends[-1] if ends else None)
        if shown is None:
            return
        known = book.replicas.get(name)
        if known is None:
            if len(book.replicas) >= REPLICAS_MAX:
                return
            known = book.replicas[name] = _Known()
        declared = _declared(name, shown)
        if declared != known.declared:
            known.declared = declared
            yield declared
        for row in ends:
            if measured and row.used_bytes is not None and row.state not in _LIVE:
                yield MemorySeen(name, row.used_bytes, row.limit_bytes)
            known.ended_at = now
            yield _ended(name, row, _phase_of_end(known, row))
            known.ready = None
        if live is None:
            return
        known.ended_at = None
        life = (live.started_at, live.restarts)
        if life != known.life:
            known.life, known.phase, known.spoke_at, known.ready = life, "", None, None
            known.gaps.clear()
        if live.ready is not None:
            known.ready = known.ready or live.ready
        if measured and live.used_bytes is not None:
            yield MemorySeen(name, live.used_bytes, live.limit_bytes)

    def _ends_now(self, book: _Book, name: str, row: Placed, wall: float) -> bool:
        """Whether this row tells of an end that nobody was told of, and that is not history.

        A task ends once. A container that is started again in its place ends at a time of its own;
        where that is not told, its restarts are counted.
        """
        stopped = row.state not in _LIVE
        if not stopped and not row.restarts and row.stopped_at is None:
            return False
        time_ended = row.restarts or 0 if row.stopped_at is None else round(row.stopped_at)
        # One that came later under the same name ends for itself.
        own = row.uid or row.id
        key = (own[:_NAME_CHARS], -1 if stopped else time_ended)
        if key in book.ends:
            return False
        if row.stopped_at is not None:
            news = wall - row.stopped_at < self._config.past_s
        else:
            news = name in book.replicas  # of one that is seen for the first time it may be old
        book.ends[key] = news
        self.ends_told += news
        while len(book.ends) > ENDS_MAX:
            del book.ends[next(iter(book.ends))]
        return news

    def _versions(
        self, book: _Book, name: str, live: Placed, host: Host | None, now: int
    ) -> Iterator[Fact]:
        cuda, driver = (host.cuda, host.driver) if host is not None else ("", "")
        if cuda or driver or live.image:
            fact = VersionsSeen(
                name,
                cuda=cuda,
                driver=driver,
                image=live.image,
                image_digest=live.digest,
                image_asked=live.image_asked,
            )
            if self._due(book, "versions", name, fact, now):
                yield fact

    def _speech(
        self, known: _Known, name: str, live: Placed, heard: float | None
    ) -> Iterator[Fact]:
        """What its log said last, how far it has read, and whether it has fallen silent."""
        phase = _PHASES.get(live.phase, "")
        if phase and (phase != known.phase or live.read_bytes is not None):
            known.phase = phase
            yield PhaseSeen(name, phase, live.read_bytes)
        if live.spoke_at is None or heard is None or not phase:
            return
        if known.spoke_at is not None and live.spoke_at > known.spoke_at and phase == SERVING:
            known.gaps.append(live.spoke_at - known.spoke_at)
        known.spoke_at = live.spoke_at
        patience, silent = self._patience(known, phase, live.phase), heard - live.spoke_at
        if patience is not None and silent > patience:
            yield FellSilent(name, phase, silent)

    def _patience(self, known: _Known, phase: str, said: str) -> float | None:
        """How long it may say nothing; None: nobody knows what is normal for it."""
        config = self._config
        if phase in (STARTING, LOADING):
            return config.loading_s
        if phase in (COMPILE, WARM_UP):
            return config.compile_s
        if len(known.gaps) >= 3:
            return max(config.beat_least_s, config.beats * max(known.gaps))
        return config.request_s if said == "request" else None

    def _sweep(self, book: _Book, present: Collection[str], now: int) -> Iterator[Fact]:
        """Who is gone: not listed any more, or ended long enough ago."""
        keep = nanos(self._config.keep_s)
        for name, known in list(book.replicas.items()):
            ended = known.ended_at
            if name not in present if ended is None else now - ended >= keep:
                del book.replicas[name]
                book.told.pop(("versions", name), None)
                yield Gone(name)

    # --- what is around them ---------------------------------------------------------------------

    def _hosts(self, book: _Book, reading: Reading, now: int, wall: float) -> Iterator[Fact]:
        names = {host.id for host in reading.hosts}
        for key in [key for key in book.told if key[0] in _OF_HOSTS and key[1] not in names]:
            del book.told[key]
        for host in reading.hosts[:ROWS_MAX]:
            free = None
            if host.memory_bytes is not None and host.reserved_bytes is not None:
                free = max(0, host.memory_bytes - host.reserved_bytes)
            fact = HostSeen(host.id, host.gpus, host.memory_bytes, free, host.group, host.gpus_free)
            if host.id and self._due(book, "host", host.id, fact, now):
                yield fact
            yield from self._condition(book, reading.source, host, now, wall)

    def _condition(
        self, book: _Book, source: str, host: Host, now: int, wall: float
    ) -> Iterator[Fact]:
        """That a host cannot run replicas, while that holds; and once that it can again."""
        condition, key = host.condition, ("condition", host.id)
        if condition is None or not host.id:
            return
        if condition is HostCondition.READY:
            if book.told.pop(key, None) is not None:
                yield HostConditionSeen(host.id, condition, source=source)
            return
        fact = HostConditionSeen(host.id, condition, host.condition_reason, None, source)
        if self._due(book, *key, fact, now):
            since = host.condition_since
            yield replace(fact, lasted_s=None if since is None else max(0.0, wall - since))

    def _gpus(self, book: _Book, reading: Reading, now: int) -> Iterator[Fact]:
        """Figures of each GPU, and a fault where an exporter's last Xid has changed."""
        users: dict[tuple[str, str], list[str]] = {}
        for placed in reading.placed:
            if placed.state in _LIVE:
                for device_id in placed.devices:
                    users.setdefault((placed.host, device_id), []).append(self.name_of(placed))
        reporter = _reporter(reading)
        every, known = nanos(self._config.gpu_every_s), book.gpus
        book.gpus = {}
        for host in reading.hosts[:ROWS_MAX]:
            for device in host.devices[:DEVICES_MAX]:
                key = f"{host.id}/{device.id}"
                told_at, xid = known.get(key, (now - every, device.xid))
                replicas = tuple(users.get((host.id, device.id), ()))
                if device.xid is not None and device.xid != xid and reading.kind not in _OWN_XIDS:
                    for name in replicas:
                        yield GpuFault(name, device.xid, device.xid_fatal, reporter=reporter)
                if now - told_at >= every:
                    told_at = now
                    yield gpu_seen(host.id, device, replicas, reporter)
                book.gpus[key] = (told_at, device.xid)

    def _due(self, book: _Book, kind: str, name: str, fact: Fact, now: int) -> bool:
        """Whether it is news, or was said long enough ago."""
        before = book.told.get((kind, name))
        again = nanos(self._config.again_s)
        if before is not None and before[0] == fact and now - before[1] < again:
            return False
        # All are new at the first look; a thousand told again at once would be a long pause.
        spread = before is None and book.many
        early = crc32(name.encode()) * again >> 32 if spread else 0
        book.told[kind, name] = (fact, now - early)
        return True


def gpu_seen(
    host: str, device: GpuDevice, replicas: tuple[str, ...], reporter: str = ""
) -> GpuSeen:
    """Return the fact ``GpuSeen`` with the figures of one device; reports it to nobody."""
    return GpuSeen(
        host=host,
        gpu=device.id,
        label=device.label,
        replicas=replicas,
        memory_used_bytes=device.memory_used_bytes,
        memory_total_bytes=device.memory_total_bytes,
        utilisation=device.utilisation,
        temperature_c=device.temperature_c,
        temperature_max_c=device.temperature_max_c,
        power_limit_w=device.power_limit_w,
        power_default_w=device.power_default_w,
        ecc_uncorrected=device.ecc_uncorrected,
        remap_pending=device.remap_pending,
        remap_failed=device.remap_failed,
        throttle=device.throttle,
        reporter=reporter,
    )


def _reporter(reading: Reading) -> str:
    return f"{_AGENT} of {reading.source}" if reading.kind == _AGENT else ""


def _device_memory(name: str, live: Placed | None, reading: Reading) -> Iterator[Fact]:
    """What a replica itself holds of its GPUs; nothing where only the devices' sums are known."""
    use = live.gpu if live is not None else None
    if use is not None and use.held_bytes is not None:
        reporter = _reporter(reading)
        yield MemorySeen(name, use.held_bytes, use.limit_bytes, "gpu", reporter=reporter)


def _living(rows: list[Placed]) -> Placed | None:
    """Of several under one name the one that runs, or comes; the youngest of those."""
    live = [row for row in rows if row.state in _LIVE]
    if not live:
        return None
    order = {state: -place for place, state in enumerate(_LIVE)}
    return max(live, key=lambda row: (order[row.state], row.started_at or row.created_at or 0.0))


def _declared(name: str, placed: Placed) -> Declared:
    return Declared(
        name,
        placed.model,
        placed.revision,
        placed.host,
        filesystem=placed.filesystem,
        needs_gpu=placed.needs_gpu,
        reserved_bytes=placed.reserved_bytes,
        limit_bytes=placed.limit_bytes,
    )


def _phase_of_end(known: _Known, row: Placed) -> str:
    """What it was doing when it ended: its probes, then its log; empty: neither tells.

    Whoever was never ready, by a platform that tells, had not loaded.
    """
    if known.ready or row.served or known.phase == SERVING:
        return SERVING
    said = _PHASES.get(row.phase, "") or known.phase
    never = row.served is False or known.ready is False
    return said or (LOADING if never else "")


def _never_ran(row: Placed) -> bool:
    """Whether a platform gave it up before it began: its image, its mounts, its place."""
    began = row.started_at is not None or row.ended_began_at is not None or row.restarts
    ended = row.exit_code is not None or row.oom or row.served
    return row.state not in _LIVE and not began and not ended


def _ended(name: str, row: Placed, said: str) -> ProcessEnded:
    """The fact that a container ended: its phase, and how long it ran by the platform's times."""
    over = row.state not in _LIVE  # else a container was started again in its place
    began = row.ended_began_at or (row.started_at if over else None)
    if over and began is None and not row.restarts:
        said = said or STARTING  # it never ran: its image, its mounts, its place
    uptime = None
    if began is not None and row.stopped_at is not None:
        uptime = max(0.0, row.stopped_at - began)
    return ProcessEnded(
        name,
        row.exit_code,
        oom=row.oom,
        asked=_ordered(row),
        phase=said,
        uptime_s=uptime,
        served=1 if row.phase == "request" else None,
        reason=row.reason[:_REASON_CHARS],
    )


def _ordered(row: Placed) -> bool:
    """Whether the platform or a person wanted this end."""
    why = row.reason.lower()
    if row.oom or _BY_ITSELF in why or why.startswith(_TAKEN):
        return False
    return row.exit_code in _ORDERLY or any(word in why for word in _ORDERED)


def _blind_parts(reading: Reading) -> Iterator[Fact]:
    """A fact for each part with replicas, hosts, pools or queues that cannot be read."""
    for part in reading.parts:
        if part.error and part.failing_since is not None and not _SEEN.isdisjoint(feeds(part)):
            failing_s = reading.at - part.failing_since
            if failing_s > 0:
                yield SourceFailing(reading.source, part.name, failing_s, part.error)


def _wishes(reading: Reading, wall: float) -> Iterator[Fact]:
    """A fact for each model of which a platform runs fewer replicas than it is asked for.

    Whoever fits nowhere exists as a pod in Kubernetes, and in no list of ECS: what is missing is
    then what is wanted less what runs.
    """
    for wish in reading.wishes[:ROWS_MAX]:
        missing = max(wish.pending or 0, (wish.desired or 0) - (wish.running or 0))
        if wish.reason and missing > 0 and wish.since is not None:
            yield ReplicasWanted(
                wish.model,
                wish.desired or 0,
                wish.running or 0,
                missing,
                max(0.0, wall - wish.since),
                wish.reason,
                reading.source,
                wish.gpus,
            )


def _disks(reading: Reading) -> Iterator[Fact]:
    """Throughput as the ceiling counts it, where that is known."""
    for disk in reading.disks[:ROWS_MAX]:
        metered = disk.metered_bytes_s
        read = disk.read_bytes_s if metered is None else metered
        if disk.id:
            yield FilesystemSeen(
                disk.id, read, disk.permitted_bytes_s, disk.operations_share, disk.clients
            )


def _queues(reading: Reading) -> Iterator[Fact]:
    """One fact for each model: several queues of one are one backlog."""
    told: dict[str, QueueSeen] = {}
    for queue in reading.queues[:ROWS_MAX]:
        if not queue.model or queue.visible is None or queue.deferrable:
            continue  # batch work waits by nature: no sign of a failure
        before = told.get(queue.model, QueueSeen(queue.model, 0))
        oldest = [one for one in (before.oldest_s, queue.oldest_s) if one is not None]
        told[queue.model] = QueueSeen(
            queue.model,
            before.waiting + queue.visible,
            _sum(before.in_flight, queue.in_flight),
            _sum(before.dead_letters, queue.dead_letters),
            max(oldest, default=None),
        )
    yield from told.values()


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)


__all__ = [
    "ENDS_MAX",
    "KEPT_ENDS_MAX",
    "REPLICAS_MAX",
    "SOURCES_MAX",
    "ReadingDiff",
    "ReadingDiffConfig",
    "gpu_seen",
]
