"""Joins readings of all sources with control's records and incidents into one snapshot.

    readings of platforms ─┐
    what control knows ────┼─► join ─► Snapshot: rows that need no further thought
    incidents ─────────────┘

A replica that a platform lists and that Holdfast also routes to is one row: it is known by the id
in the fleet that its platform carries, or by the endpoint that both name. A host that two sources
see is one row as well, with what each of them knows. Hosts that belong to no group form one of
their own.

Nothing here asks or remembers: the same arguments give the same picture. What it costs grows with
the number of rows and with nothing else, since it is done anew for every look.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from holdfast.core.diagnose.causes.rule import spell_time
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.view.early_warnings import early_warnings
from holdfast.core.view.fleet_records import FleetRecords, ReplicaRecord
from holdfast.core.view.host_rows import (
    MisplacedReplicas,
    RowOrigin,
    group_row,
    host_row,
    misplacements,
    never_joined,
    replica_row,
    runs,
)
from holdfast.core.view.layers import DesiredReplicas, Group, Host, Placed, Queue, Reading
from holdfast.core.view.model_rows import (
    FLEET,
    GATEWAYS,
    concerned,
    disk_row,
    exhausted_in,
    incident_row,
    marked,
    model_rows,
    queue_row,
    unmet_rows,
    with_shares,
)
from holdfast.core.view.snapshot import (
    DiskRow,
    GroupRow,
    HostRow,
    QueueRow,
    ReplicaRow,
    Snapshot,
    SourceRow,
)
from holdfast.core.view.staleness import (
    DISKS,
    GROUPS,
    HOSTS,
    LOGS,
    MEMORY,
    PLACED,
    QUEUES,
    Freshness,
)

ROWS_MAX: Final = 10_000  # of each kind; what is left out is said in a note
ENDED_S: Final = 900.0  # an ended task stays in sight for so long, or while an incident names it
_TABLES: Final = (
    *("groups", "hosts", "replicas", "models", "queues", "disks", "unmet", "incidents"),
    "warnings",
)
_UNKNOWN: Final = (None, "", ())
_STATES: Final = {"running": 3, "pending": 2, "stopping": 1}

LayerT = TypeVar("LayerT", Host, Placed)


@dataclass(slots=True)
class _Parts:
    """All layers of all sources, each thing once."""

    hosts: dict[str, tuple[Host, RowOrigin]] = field(default_factory=dict)
    groups: dict[str, tuple[Group, RowOrigin]] = field(default_factory=dict)
    placed: list[tuple[Placed, RowOrigin]] = field(default_factory=list)
    late: dict[str, str] = field(default_factory=dict)  # hosts that are not in use yet
    queues: list[tuple[Queue, RowOrigin]] = field(default_factory=list)
    disks: list[DiskRow] = field(default_factory=list)
    wishes: list[tuple[str, DesiredReplicas]] = field(default_factory=list)


def join(
    readings: Sequence[Reading],
    records: FleetRecords,
    incidents: Iterable[Incident],
    now: float,
    core_now: int,
    *,
    names: Mapping[str, str] | None = None,
    took_s: float | None = None,
) -> Snapshot:
    """Return the ``Snapshot`` of all sources' readings, control's records and the open incidents.

    ``now`` is in seconds since 1970, ``core_now`` (ns) is for incidents. ``names`` maps endpoints
    to replica ids, for replicas that ``records`` does not list now. Asks nobody and keeps nothing.
    """
    open_ones = [one for one in incidents if one.closed_at is None]
    parts = _gathered(readings, now)
    replicas, misplaced = _replicas(parts, records, open_ones, now, names or {})
    exhausted = exhausted_in(open_ones, core_now)
    if exhausted:
        replicas = [_leaking(row, exhausted) for row in replicas]
    on_host: dict[str, list[ReplicaRow]] = {}
    for row in replicas:
        if row.host and runs(row):
            on_host.setdefault(row.host, []).append(row)
    hosts = [_host(one, on_host, parts.late, now, misplaced) for one in parts.hosts.values()]
    groups = _groups(parts, hosts)
    queues = _queues(parts, records, replicas)
    wishes = {wish.model: wish for _, wish in parts.wishes}
    cuda = {row.id: parts.hosts[row.host][0].cuda for row in replicas if row.host in parts.hosts}
    of_control = {one.name: one for one in records.models}
    models = model_rows(of_control, replicas, queues, wishes, cuda, misplaced)
    snapshot = Snapshot(
        now,
        calls=sum(part.calls for one in readings for part in one.parts),
        took_s=_took(readings) if took_s is None else took_s,
        sources=tuple(_source_rows(readings, now)),
        groups=tuple(groups),
        hosts=tuple(hosts),
        replicas=tuple(replicas),
        models=tuple(models),
        queues=tuple(queues),
        disks=tuple(parts.disks),
        unmet=tuple(unmet_rows(parts.wishes, records.models, replicas, now)),
        incidents=tuple(incident_row(one, core_now) for one in open_ones),
        totals=dict(records.totals),
    )
    notes = [f"{one.source}: {note}" for one in readings for note in one.notes]
    marked_rows = _with_incidents(snapshot, open_ones)
    grows = {one.id: one.memory_grows for one in records.replicas}
    found = early_warnings(marked_rows.disks, marked_rows.replicas, grows)
    return _bounded(replace(marked_rows, warnings=tuple(found)), notes)


# --- sources --------------------------------------------------------------------------------------


def _source_rows(readings: Iterable[Reading], now: float) -> Iterable[SourceRow]:
    for one in readings:
        for part in one.parts:
            yield SourceRow(
                one.source,
                one.kind,
                part.name,
                None if part.at is None else max(0.0, now - part.at),
                part.error,
                None if part.failing_since is None else max(0.0, now - part.failing_since),
                part.calls,
                part.took_s,
            )


def _took(readings: Iterable[Reading]) -> float:
    """Sources are asked side by side; the parts of one are asked one after the other."""
    return max((sum(part.took_s for part in one.parts) for one in readings), default=0.0)


def _gathered(readings: Sequence[Reading], now: float) -> _Parts:
    parts = _Parts()
    for one in readings:
        fresh = Freshness(one)

        def where(*kinds: str, source: str = one.source, fresh: Freshness = fresh) -> RowOrigin:
            at = fresh.read_at(*kinds)
            age = None if at is None else max(0.0, now - at)
            return RowOrigin(source, age, fresh.errors(*kinds))

        of_hosts, of_placed = where(HOSTS), where(PLACED, MEMORY, LOGS)
        of_groups, of_queues, of_disks = where(GROUPS), where(QUEUES), where(DISKS)
        for host in one.hosts:
            before = parts.hosts.get(host.id)
            joined = (host, of_hosts) if before is None else (_filled(before[0], host), before[1])
            parts.hosts[host.id] = joined
        for group in one.groups:
            parts.groups.setdefault(group.name, (group, of_groups))
        parts.placed += [(placed, of_placed) for placed in one.placed]
        parts.queues += [(queue, of_queues) for queue in one.queues]
        parts.disks += [disk_row(disk, of_disks) for disk in one.disks]
        parts.wishes += [(one.source, wish) for wish in one.wishes]
        parts.late.update(never_joined(one.hosts, now))
    return parts


def _filled(first: LayerT, second: LayerT) -> LayerT:
    """What the first does not know, the second may."""
    missing: dict[str, Any] = {}
    for one in fields(first):
        if getattr(first, one.name) in _UNKNOWN:
            value = getattr(second, one.name)
            if value not in _UNKNOWN:
                missing[one.name] = value
    return replace(first, **missing) if missing else first


# --- replicas -------------------------------------------------------------------------------------


def _replicas(
    parts: _Parts,
    records: FleetRecords,
    incidents: Iterable[Incident],
    now: float,
    names: Mapping[str, str],
) -> tuple[list[ReplicaRow], MisplacedReplicas]:
    """Build all rows, and say which replicas are misplaced.

    Routed replicas come first, as the fleet lists them; then what only platforms list.
    """
    by_id = {one.id: one for one in records.replicas}
    by_endpoint = {**names, **{one.endpoint: one.id for one in records.replicas if one.endpoint}}
    mine: dict[str, list[tuple[Placed, RowOrigin]]] = {}
    others: list[tuple[Placed, RowOrigin]] = []
    for placed, where in parts.placed:
        name = placed.replica or by_endpoint.get(placed.endpoint, "")
        if name in by_id:
            mine.setdefault(name, []).append((placed, where))
        else:
            named = replace(placed, id=name) if name and placed.state in _STATES else placed
            others.append((named, where))
    rows: list[ReplicaRow] = []
    misplaced: dict[tuple[str, str], tuple[str, ...]] = {}

    def add(
        record: ReplicaRecord | None, placed: Placed | None, host_id: str, origin: RowOrigin
    ) -> None:
        host, _ = parts.hosts.get(host_id, (None, None))
        row = replica_row(record, placed, host, origin, now)
        rows.append(row)
        if reasons := misplacements(record, placed, host):
            misplaced[row.id, row.host] = reasons

    nowhere = RowOrigin(FLEET)
    for one in records.replicas:
        found = sorted(mine.get(one.id, ()), key=_liveliest)
        live, where = found[0] if found else (None, nowhere)
        if live is not None and live.state not in _STATES:
            live, where, ended = None, nowhere, found
        else:
            ended = [pair for pair in found[1:] if pair[0].state not in _STATES]
        for placed, _ in found[1:]:
            if live is not None and placed.state in _STATES:
                live = _filled(live, placed)
        others += ended
        add(one, live, live.host if live is not None and live.host else one.host, where)
    named_by = {name for incident in incidents for name in incident.replicas}
    for placed, where in others:
        if placed.state in _STATES or _in_sight(placed, named_by, now):
            add(None, placed, placed.host, where)
    return rows, misplaced


def _liveliest(pair: tuple[Placed, RowOrigin]) -> tuple[int, float]:
    placed = pair[0]
    return -_STATES.get(placed.state, 0), -(placed.started_at or placed.created_at or 0.0)


def _in_sight(placed: Placed, named_by: set[str], now: float) -> bool:
    recent = placed.stopped_at is None or now - placed.stopped_at < ENDED_S
    return recent or placed.id in named_by


def _leaking(row: ReplicaRow, exhausted: Mapping[str, float]) -> ReplicaRow:
    left = exhausted.get(row.id)
    if left is None:
        return row
    told = f"memory climbs and is full in {spell_time(left)}"
    return replace(row, exhausted_in_s=left, faults=(*row.faults, told))


# --- hosts, groups, queues ------------------------------------------------------------------------


def _host(
    pair: tuple[Host, RowOrigin],
    on_host: Mapping[str, list[ReplicaRow]],
    late: Mapping[str, str],
    now: float,
    misplaced: MisplacedReplicas,
) -> HostRow:
    host, where = pair
    row = host_row(host, on_host.get(host.id, ()), where, now, misplaced)
    told = late.get(host.id)
    return row if told is None else replace(row, faults=(*row.faults, told))


def _groups(parts: _Parts, hosts: Iterable[HostRow]) -> list[GroupRow]:
    members: dict[str, list[HostRow]] = {name: [] for name in parts.groups}
    for row in hosts:
        members.setdefault(row.group, []).append(row)
    rows = []
    for name, mine in members.items():
        group, where = parts.groups.get(name, (None, None))
        if where is None:
            first = mine[0]
            where = RowOrigin(first.source, first.age_s)
        rows.append(group_row(name, group, mine, where))
    return rows


def _queues(parts: _Parts, records: FleetRecords, replicas: Iterable[ReplicaRow]) -> list[QueueRow]:
    served = {row.model for row in replicas if runs(row)}
    queues = _worked_off(parts.queues)
    rows = [queue_row(queue, where, served=queue.model in served) for queue, where in queues]
    for model in records.models:
        if model.queued is not None:
            queue = Queue(model.name, model.name, model.queued, model.inflight)
            rows.append(queue_row(queue, RowOrigin(GATEWAYS, 0.0), served=model.name in served))
    return with_shares(rows)


def _worked_off(queues: list[tuple[Queue, RowOrigin]]) -> list[tuple[Queue, RowOrigin]]:
    """One row for a queue that its platform counts and this fleet works off: both know a part.

    Only whoever works a queue off says whether its work may wait (``deferrable``).
    """
    ours = {(one.name, one.model): one for one, _ in queues if one.deferrable is not None}
    both = {(one.name, one.model) for one, _ in queues if one.deferrable is None} & ours.keys()
    joined = []
    for queue, origin in queues:
        own = ours.get((queue.name, queue.model))
        if own is None or (queue.name, queue.model) not in both:
            joined.append((queue, origin))
        elif queue.deferrable is None:
            merged = replace(queue, drain_s=own.drain_s, deferrable=own.deferrable)
            joined.append((merged, origin))
    return joined


# --- incidents and bounds -------------------------------------------------------------------------


def _with_incidents(snapshot: Snapshot, incidents: Sequence[Incident]) -> Snapshot:
    if not incidents:
        return snapshot
    rows = snapshot.replicas
    found = concerned(
        incidents, {row.id: row.host for row in rows}, {row.id: row.model for row in rows}
    )
    of_group: dict[str, list[str]] = {}
    for host in snapshot.hosts:
        of_group.setdefault(host.group, []).extend(found.hosts.get(host.id, ()))
    return replace(
        snapshot,
        replicas=tuple(marked(row, found.replicas.get(row.id, ())) for row in rows),
        hosts=tuple(marked(row, found.hosts.get(row.id, ())) for row in snapshot.hosts),
        groups=tuple(marked(row, of_group.get(row.name, ())) for row in snapshot.groups),
        models=tuple(marked(row, found.models.get(row.name, ())) for row in snapshot.models),
        queues=tuple(marked(row, found.queues.get(row.model, ())) for row in snapshot.queues),
        disks=tuple(marked(row, found.disks.get(row.id, ())) for row in snapshot.disks),
    )


def _bounded(snapshot: Snapshot, notes: list[str]) -> Snapshot:
    cut: dict[str, Any] = {}
    for name in _TABLES:
        rows = getattr(snapshot, name)
        if len(rows) > ROWS_MAX:
            cut[name] = rows[:ROWS_MAX]
            notes.append(f"{len(rows) - ROWS_MAX} more {name} are not shown")
    return replace(snapshot, notes=tuple(notes[:100]), **cut)


__all__ = ["ENDED_S", "ROWS_MAX", "join"]
