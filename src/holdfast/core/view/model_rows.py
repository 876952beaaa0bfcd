"""Builds rows of models, queues, filesystems and unmet demands; assigns incidents to rows.

An incident goes on every row that it affects: on the replicas it concerns, on their hosts and
groups, on their model, on the queue only where the queue is part of it, on a filesystem only where
that is. A queue beside one ill replica of twenty is not part of that incident.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from holdfast.core.diagnose.causes.rule import spell_time
from holdfast.core.diagnose.detect.skew import is_pinned
from holdfast.core.diagnose.evidence import Evidence, Incident, Sign
from holdfast.core.failure import Cause
from holdfast.core.types import seconds
from holdfast.core.view.fleet_records import ModelRecord
from holdfast.core.view.host_rows import (
    MisplacedReplicas,
    RowOrigin,
    exceeds_reservation,
    ready,
    runs,
    size,
    skewed,
    total,
    whole,
)
from holdfast.core.view.layers import DesiredReplicas, Disk, Queue
from holdfast.core.view.snapshot import (
    DiskRow,
    GroupRow,
    HostRow,
    IncidentRow,
    ModelRow,
    QueueRow,
    ReplicaRow,
    UnmetRow,
)

GATEWAYS: Final = "gateways"
FLEET: Final = "fleet"
OLD_S: Final = 600.0  # the oldest of a queue waits so long: worth a word
DISK_FULL: Final = 0.9  # of what is permitted, as the detector of contention has it
_TEXTS_MAX: Final = 8
_IMAGE_CHARS: Final = 80
_OF_QUEUES: Final = (
    *(Sign.QUEUE_GROWS, Sign.DEAD_LETTERS, Sign.CHAIN_WAITS, Sign.NO_REPLICA_READY),
)
_OF_DISKS: Final = (Sign.FILESYSTEM_FULL_SPEED, Sign.FILESYSTEM_OPERATIONS)
_AWAY: Final = ("dead", "stopped", "draining")
_NO_WORD: Final = "the platform runs fewer than it was asked for, and says nothing"

RowT = TypeVar("RowT", GroupRow, HostRow, ReplicaRow, ModelRow, QueueRow, DiskRow)


# --- queues and disks -----------------------------------------------------------------------------


def queue_row(queue: Queue, origin: RowOrigin, *, served: bool) -> QueueRow:
    """Return the ``QueueRow`` of one queue with its fault texts; its share is added later.

    ``served``: some replica of its model runs.
    """
    faults = [*origin.errors]
    if queue.dead_letters:
        faults.append(_letters(queue.dead_letters))
    if queue.visible and not served:
        faults.append(f"no replica of {queue.model or 'its model'} takes from it")
    old = queue.oldest_s is not None and queue.oldest_s > OLD_S
    if queue.oldest_s is not None and old and not queue.deferrable:
        faults.append(f"the oldest waits {spell_time(queue.oldest_s)}")
    return QueueRow(
        queue.name,
        queue.model,
        origin.source,
        queue.visible,
        queue.in_flight,
        queue.delayed,
        queue.dead_letters,
        queue.oldest_s,
        age_s=origin.age_s,
        faults=tuple(faults),
        drain_s=queue.drain_s,
    )


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count} dead letters"


def with_shares(rows: Sequence[QueueRow]) -> list[QueueRow]:
    """Return new rows with each queue's share of all waiting work; unchanged if nothing waits."""
    waiting = sum(row.visible or 0 for row in rows)
    if not waiting:
        return list(rows)
    return [
        row if row.visible is None else replace(row, share=row.visible / waiting) for row in rows
    ]


def disk_row(disk: Disk, origin: RowOrigin) -> DiskRow:
    """Return the ``DiskRow`` of one filesystem with its fault texts.

    ``used_share`` is None where no limit is known.
    """
    metered = disk.metered_bytes_s
    counted = disk.read_bytes_s if metered is None else metered
    share = None
    if counted is not None and disk.permitted_bytes_s:
        share = counted / disk.permitted_bytes_s
    faults = [*origin.errors]
    if share is not None and share >= DISK_FULL:
        faults.append(f"bandwidth {share:.0%} of what is permitted")
    if disk.operations_share is not None and disk.operations_share >= DISK_FULL:
        faults.append(f"operations {disk.operations_share:.0%} of what is permitted")
    return DiskRow(
        disk.id,
        origin.source,
        disk.mode,
        disk.read_bytes_s,
        disk.metered_bytes_s,
        disk.permitted_bytes_s,
        share,
        disk.operations_share,
        disk.burst_credit_bytes,
        disk.clients,
        origin.age_s,
        tuple(faults),
    )


# --- models ---------------------------------------------------------------------------------------


def model_rows(
    records: Mapping[str, ModelRecord],
    replicas: Sequence[ReplicaRow],
    queues: Sequence[QueueRow],
    wishes: Mapping[str, DesiredReplicas],
    cuda: Mapping[str, str],
    misplaced: MisplacedReplicas,
) -> list[ModelRow]:
    """Return a ``ModelRow`` for every model in control's records, replicas, queues or demands.

    ``cuda`` is the CUDA version of each replica's host, by row id; ``misplaced`` says which
    replicas their hosts cannot carry. Incidents are added later.
    """
    of: dict[str, list[ReplicaRow]] = {name: [] for name in records}
    backlog: dict[str, list[QueueRow]] = {}
    for member in replicas:
        of.setdefault(member.model, []).append(member)
    for queue in queues:
        of.setdefault(queue.model, [])
        backlog.setdefault(queue.model, []).append(queue)
    for name in wishes:
        of.setdefault(name, [])
    waiting = {name: whole(queue.visible for queue in found) for name, found in backlog.items()}
    all_waiting = sum(count or 0 for count in waiting.values())
    rows = []
    for name, members in of.items():
        if name:
            row = _model_row(name, records.get(name), members, wishes.get(name), cuda, misplaced)
            mine = waiting.get(name)
            share = mine / all_waiting if mine is not None and all_waiting else None
            dead = whole(queue.dead_letters for queue in backlog.get(name, ()))
            faults = (*row.faults, *((_letters(dead),) if dead else ()))
            rows.append(replace(row, waiting=mine, backlog_share=share, faults=faults))
    return rows


def _model_row(
    name: str,
    record: ModelRecord | None,
    members: Sequence[ReplicaRow],
    wish: DesiredReplicas | None,
    cuda: Mapping[str, str],
    misplaced: MisplacedReplicas,
) -> ModelRow:
    living = [row for row in members if runs(row)]
    up = sum(ready(row) for row in living)
    faults: list[str] = []
    if living and not up:
        faults.append("no replica is ready")
    small = [row for row in living if exceeds_reservation(row.reserved_bytes, row.used_bytes)]
    if small:
        first = small[0]
        told = f"reserve {size(first.reserved_bytes or 0)}, use {size(first.used_bytes or 0)}"
        faults.append(f"{len(small)} of {len(living)} {told}")
    lost = sum((row.id, row.host) in misplaced for row in living)
    if lost:
        faults.append(f"{lost} misplaced")
    faults += skewed("CUDA", {row.id: cuda.get(row.id, "") for row in living})
    faults += _tags(living)
    kv = [row.kv_used for row in living if row.kv_used is not None]
    desired = record.desired if record is not None else None
    if desired is None and wish is not None:
        desired = wish.desired
    said = record or ModelRecord(name)
    inflight = said.inflight
    if inflight is None:
        inflight = whole(row.inflight for row in living)
    tokens = said.tokens_s
    if tokens is None:
        tokens = total(row.tokens_s for row in living)
    return ModelRow(
        name,
        up,
        len(living),
        desired,
        inflight,
        requests_s=said.requests_s,
        tokens_s=tokens,
        kv_used=sum(kv) / len(kv) if kv else None,
        prefix_hits=said.prefix_hits,
        ttft_s=said.ttft_s,
        errors_share=said.errors_share,
        burn=said.burn,
        faults=tuple(faults),
    )


def _tags(living: Sequence[ReplicaRow]) -> Iterable[str]:
    """A warning where only a tag holds the image of some replicas in place."""
    asked = [row.image_asked or row.image for row in living]
    loose = [image for image in asked if image and not is_pinned(image)]
    if loose:
        yield f"image {loose[0][:_IMAGE_CHARS]} is named by a tag on {len(loose)} of {len(living)}"


# --- demands that cannot be met -------------------------------------------------------------------


def unmet_rows(
    wishes: Iterable[tuple[str, DesiredReplicas]],
    records: Iterable[ModelRecord],
    replicas: Sequence[ReplicaRow],
    now: float,
) -> list[UnmetRow]:
    """Return an ``UnmetRow`` for each demand that is not met: unplaced, pending, missing replicas.

    ``wishes`` are of platforms, with their source; ``records`` are the fleet's own. Empty: all are
    met.
    """
    told: list[UnmetRow] = []
    asked: set[tuple[str, str]] = set()
    reasons: dict[tuple[str, str], list[str]] = {}
    listed: dict[tuple[str, str], list[ReplicaRow]] = {}
    for row in replicas:
        listed.setdefault((row.source, row.model), []).append(row)
        if row.state == "pending" and row.reason:
            reasons.setdefault((row.source, row.model), []).append(row.reason)
    for source, wish in wishes:
        asked.add((source, wish.model))
        said = reasons.get((source, wish.model), [])
        why = wish.reason or (said[0] if said else "")
        running, pending = _there(wish, listed.get((source, wish.model), ()))
        unplaced = (wish.desired or 0) - running - pending
        missing = max(0, unplaced) + (pending if why else 0)
        if missing:
            since = None if wish.since is None else max(0.0, now - wish.since)
            told.append(UnmetRow(wish.model, missing, why or _NO_WORD, since, source))
    for (source, model), said in reasons.items():
        if (source, model) not in asked:
            told.append(UnmetRow(model, len(said), said[0], source=source))
    there = Counter(row.model for row in replicas if row.routed and row.state not in _AWAY)
    for one in records:
        missing = max(0, (one.desired or 0) - there[one.name]) + one.unplaced
        if missing > 0:
            why = one.reason or "its replicas are down or not started"
            told.append(UnmetRow(one.name, missing, why, source=FLEET))
    return told


def _there(wish: DesiredReplicas, listed: Sequence[ReplicaRow]) -> tuple[int, int]:
    """How many run and how many come. Those that are listed count: a platform's sums lag behind."""
    living = [row for row in listed if runs(row)]
    if not listed:
        return wish.running or 0, wish.pending or 0
    pending = sum(row.state == "pending" for row in living)
    return len(living) - pending, pending


# --- incidents ------------------------------------------------------------------------------------


def incident_row(incident: Incident, now: int) -> IncidentRow:
    """Return the ``IncidentRow`` of an open incident; ``now`` (core time, ns) gives its age."""
    return IncidentRow(
        incident.id,
        incident.title,
        incident.failure_class.value,
        incident.cause.value,
        incident.stage.value,
        incident.confidence,
        str(incident.about),
        max(0.0, seconds(now - incident.opened_at)),
        incident.replicas,
        tuple(dict.fromkeys(one.text for one in incident.consequences))[:_TEXTS_MAX],
        incident.action,
        incident.fix,
    )


def exhausted_in(incidents: Iterable[Incident], now: int) -> dict[str, float]:
    """Return seconds until memory is full, by replica id, from incidents whose cause is a leak.

    Other replicas are not in it.
    """
    found: dict[str, float] = {}
    for incident in incidents:
        if incident.cause is not Cause.LEAK:
            continue
        for one in incident.evidence:
            left = one.numbers.get("exhausted_in_s")
            if left is not None and one.about.replica:
                found[one.about.replica] = max(0.0, left - seconds(max(0, now - one.at)))
    return found


@dataclass(slots=True)
class IncidentPlaces:
    """Ids of the incidents that belong on each row: a table by name for each kind of row."""

    replicas: dict[str, list[str]] = field(default_factory=dict)
    hosts: dict[str, list[str]] = field(default_factory=dict)
    models: dict[str, list[str]] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=dict)  # by model
    disks: dict[str, list[str]] = field(default_factory=dict)


def concerned(
    incidents: Iterable[Incident], host_of: Mapping[str, str], model_of: Mapping[str, str]
) -> IncidentPlaces:
    """Return the ``IncidentPlaces``: which rows each incident belongs on.

    ``host_of`` and ``model_of`` are by replica id. Changes no row: see ``marked``.
    """
    found = IncidentPlaces()
    for incident in incidents:
        about, name = incident.about, incident.id
        replicas = dict.fromkeys((*incident.replicas, *((about.replica,) if about.replica else ())))
        hosts = {host_of.get(one, ""): None for one in replicas}
        models = {model_of.get(one, ""): None for one in replicas}
        hosts[about.host] = models[about.model] = None
        pieces: list[Evidence] = [*incident.evidence, *incident.consequences]
        queues = {one.about.model: None for one in pieces if one.sign in _OF_QUEUES}
        if about.model and not about.replica:
            queues[about.model] = None
        disks = {one.about.filesystem: None for one in pieces if one.sign in _OF_DISKS}
        if about.filesystem and not about.replica:
            disks[about.filesystem] = None
        for book, names in (
            (found.replicas, replicas),
            (found.hosts, hosts),
            (found.models, models),
            (found.queues, queues),
            (found.disks, disks),
        ):
            for one in names:
                if one:
                    book.setdefault(one, []).append(name)
    return found


def marked(row: RowT, incidents: Iterable[str]) -> RowT:
    """Return a copy of the row with these incident ids; the same row if there are none."""
    names = tuple(dict.fromkeys(incidents))
    return replace(row, incidents=names) if names else row


__all__ = [
    "FLEET",
    "GATEWAYS",
    "IncidentPlaces",
    "concerned",
    "disk_row",
    "exhausted_in",
    "incident_row",
    "marked",
    "model_rows",
    "queue_row",
    "unmet_rows",
    "with_shares",
]
