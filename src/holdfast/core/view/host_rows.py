"""Builds rows of hosts, groups and replicas, with faults that only joined data shows.

No platform layer sees these faults alone. A scheduler knows a reservation and no footprint, a host
its GPUs and not which replica needs one, a group how many hosts it wants and not that one of them
runs another CUDA. Each fault is a short text on the row it concerns, and on the rows above it.

Thresholds here decide texts on a screen and nothing else; detectors decide what is an incident.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.diagnose.causes.rule import spell_time
from holdfast.core.diagnose.detect.memory_limits import GB
from holdfast.core.gpu import device_faults, use_of
from holdfast.core.health.lifecycle import ROUTABLE
from holdfast.core.types import State
from holdfast.core.view.fleet_records import ReplicaRecord
from holdfast.core.view.layers import Group, Host, Placed
from holdfast.core.view.snapshot import GroupRow, HostRow, ReplicaRow

TOLERANCE: Final = 1.05  # of a reservation, as the detector of sizes has it
NEAR_LIMIT: Final = 0.95  # of a limit, or of a host's memory
PRESSED: Final = 0.2  # of the time somebody waits for memory
BOOTSTRAP_S: Final = 600.0  # from launch to use; images and drivers take a few minutes
REJOINED_S: Final = 6 * 3_600.0  # after so long it did not boot slowly, it joined a second time
PENDING_S: Final = 600.0  # waiting to run; a large image is pulled by then
SILENT_S: Final = 120.0  # while loading, as the detectors have it
REQUEST_S: Final = 300.0  # after the word that a request came in
RECENT_S: Final = 3_600.0  # an end that a restart in place has mended is told for so long
RESTARTS: Final = 3  # once or twice is bad luck
_FAULTS_MAX: Final = 8  # on one row
_LOADING: Final = ("starting", "loading", "compile", "compiling", "warm-up", "warmup", "warming")
_BAD: Final = (State.SUSPECT, State.QUARANTINED, State.DEAD)
_RUNS: Final = ("running", "stopping", "pending")
_ALIVE: Final = tuple(state.value for state in ROUTABLE)

Texts = tuple[str, ...]
# by id and host of a replica's row: why that host cannot carry it; no other replica is in here.
# Beside the rows and not in them: what is served as JSON keeps its members
MisplacedReplicas = Mapping[tuple[str, str], Texts]


@dataclass(slots=True, frozen=True)
class RowOrigin:
    """Where a row's data came from: the source, its age in seconds, and the source's errors."""

    source: str
    age_s: float | None = None
    errors: Texts = ()


def size(value: float) -> str:
    """Return bytes as text in gigabytes: ``1.2 GB``."""
    return f"{value / GB:.1f} GB"


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if all are unknown."""
    known = [one for one in values if one is not None]
    return sum(known) if known else None


def whole(values: Iterable[int | None]) -> int | None:
    """Return the sum of the known counts; None if all are unknown."""
    known = [one for one in values if one is not None]
    return sum(known) if known else None


def _since(now: float, at: float | None) -> float | None:
    return None if at is None else max(0.0, now - at)


# --- replicas -------------------------------------------------------------------------------------


def runs(row: ReplicaRow) -> bool:
    """Return whether a row counts as one of its model's replicas: routed, or not stopped."""
    return row.routed or row.state in _RUNS


def ready(row: ReplicaRow) -> bool:
    """Return whether a replica can serve: READY in the fleet, or else running and not loading."""
    if row.routed:
        return row.state == State.READY
    return row.state == "running" and row.phase not in _LOADING


def replica_row(
    record: ReplicaRecord | None,
    placed: Placed | None,
    host: Host | None,
    origin: RowOrigin,
    now: float,
) -> ReplicaRow:
    """Return the ``ReplicaRow`` of one replica from control's record and its platform's.

    One of the two may be None, not both. Fault texts (ends, sizes, silence, misplacement) are
    derived here; incidents are added later.
    """
    if placed is None:
        assert record is not None, "control or a platform knows the replica"
        zone, placed = record.zone, _as_placed(record)
    else:
        zone = (record.zone if record is not None else "") or (host.zone if host else "")
    own = record if record is not None else ReplicaRecord(placed.id, placed.model, placed.state)
    silent = _since(now, placed.spoke_at)
    used = placed.used_bytes if placed.used_bytes is not None else own.used_bytes
    reserved = placed.reserved_bytes if placed.reserved_bytes is not None else own.reserved_bytes
    limit = placed.limit_bytes if placed.limit_bytes is not None else own.limit_bytes
    stopped = placed.state not in _RUNS
    gpu = None if stopped else placed.gpu or own.gpu
    faults = (
        *origin.errors,
        *_fleet_faults(record),
        *_end_faults(placed, now),
        *_misplacements(placed, host),
        *_size_faults(reserved, limit, used),
        *(() if stopped else _silence_faults(placed, silent)),
        *_restart_faults(placed.restarts),
        *(gpu.faults if gpu is not None else ()),
    )
    return ReplicaRow(
        own.id,
        own.model,
        own.state,
        origin.source,
        routed=record is not None,
        revision=own.revision or placed.revision,
        reason=own.reason or placed.reason,
        group=(host.group or host.id) if host is not None else "",
        host=placed.host,
        zone=zone,
        endpoint=own.endpoint or placed.endpoint,
        phase=own.phase or placed.phase,
        reserved_bytes=reserved,
        limit_bytes=limit,
        used_bytes=used,
        gpus=placed.gpus if placed.gpus is not None or gpu is None else gpu.count,
        uptime_s=None if stopped else _since(now, placed.started_at),
        silent_s=None if stopped else silent,
        restarts=placed.restarts,
        filesystem=placed.filesystem or own.filesystem,
        log_stream=placed.log_stream,
        image=placed.image,
        image_asked=placed.image_asked,
        age_s=origin.age_s,
        faults=tuple(dict.fromkeys(faults))[:_FAULTS_MAX],
        gpu=gpu,
        **{name: getattr(own, name) for name in _AS_RECORDED},
    )


_AS_RECORDED: Final = (  # what only control and the engine itself know
    *("share", "inflight", "running", "waiting", "kv_used", "tokens_s", "ttft_s", "tpot_s"),
    *("canary_s", "canary_verdict"),
    *("inferences_s", "failed_share", "queue_s", "compute_s", "batch", "batch_max"),
    *("engine_gpu_used_bytes", "engine_gpu_total_bytes"),
)


def _as_placed(record: ReplicaRecord) -> Placed:
    """A replica that no platform lists, as its platform would list it.

    Its sizes stay out: what it reserves by the fleet file alone does not make it misplaced.
    """
    return Placed(
        record.id,
        record.model,
        "running",
        record.host,
        needs_gpu=record.needs_gpu,
        started_at=record.started_at,
        restarts=record.restarts,
        filesystem=record.filesystem,
    )


def _fleet_faults(record: ReplicaRecord | None) -> Iterable[str]:
    if record is not None and record.state in _BAD:
        yield f"{record.state}: {record.reason}" if record.reason else record.state


def _end_faults(placed: Placed, now: float) -> Iterable[str]:
    if placed.state not in _RUNS:
        code = "" if placed.exit_code is None else f" (exit code {placed.exit_code})"
        if placed.oom:
            yield f"killed for memory{code}"
        elif placed.exit_code not in (0, 143):
            yield f"ended{code}" + (f": {placed.reason}" if placed.reason else "")
    elif placed.oom and (_since(now, placed.stopped_at) or 0.0) < RECENT_S:
        yield "was killed for memory and started again"
    if placed.state == "pending":
        waits = _since(now, placed.created_at)
        if placed.reason:
            yield f"pending: {placed.reason}"
        elif waits is not None and waits > PENDING_S:
            yield f"pending for {spell_time(waits)}"


def misplacements(record: ReplicaRecord | None, placed: Placed | None, host: Host | None) -> Texts:
    """Return why a replica's host cannot carry it, a sentence for each reason; empty if it can.

    Takes control's record and the platform's, as ``replica_row`` does, whose row has the same
    sentences among its faults. Rows of hosts and models count misplaced replicas by this value.
    """
    if placed is None:
        assert record is not None, "control or a platform knows the replica"
        placed = _as_placed(record)
    return tuple(_misplacements(placed, host))


def _misplacements(placed: Placed, host: Host | None) -> Iterable[str]:
    if host is None or placed.state not in _RUNS:
        return
    if placed.needs_gpu and host.gpus == 0:
        yield f"misplaced: needs a GPU, and {host.id} has none"
    memory = host.memory_bytes
    need = max(placed.reserved_bytes or 0, placed.used_bytes or 0)
    if memory is not None and need > memory:
        yield f"misplaced: needs {size(need)}, and {host.id} has {size(memory)}"


def exceeds_reservation(reserved: int | None, used: int | None) -> bool:
    """Return whether a replica uses over 5 % more memory than it reserves; False if unknown."""
    return reserved is not None and used is not None and used > TOLERANCE * reserved


def _size_faults(reserved: int | None, limit: int | None, used: int | None) -> Iterable[str]:
    if used is None:
        return
    if reserved is not None and exceeds_reservation(reserved, used):
        yield f"reserves {size(reserved)}, uses {size(used)}"
    elif limit and used > NEAR_LIMIT * limit:
        yield f"uses {used / limit:.0%} of its limit of {size(limit)}"


def _silence_faults(placed: Placed, silent: float | None) -> Iterable[str]:
    if silent is None:
        return
    if placed.phase in _LOADING and silent > SILENT_S:
        yield f"silent for {spell_time(silent)} while {placed.phase}"
    elif placed.phase == "request" and silent > REQUEST_S:
        yield f"silent for {spell_time(silent)} since its last request"


def _restart_faults(restarts: int | None) -> Iterable[str]:
    if restarts is not None and restarts >= RESTARTS:
        yield f"restarted {restarts} times"


# --- hosts and groups -----------------------------------------------------------------------------


def host_row(
    host: Host,
    here: Sequence[ReplicaRow],
    origin: RowOrigin,
    now: float,
    misplaced: MisplacedReplicas,
) -> HostRow:
    """Return the ``HostRow`` of one host with its fault texts; incidents are added later.

    ``here`` are the rows of replicas on it; ``misplaced`` says which of them it cannot carry, and
    the row repeats why.
    """
    bootstrap = None
    if host.launched_at is not None and host.joined_at is not None:
        bootstrap = max(0.0, host.joined_at - host.launched_at)
    running, pending = host.running, host.pending
    if running is None and here:
        running = sum(one.state == "running" or one.state in _ALIVE for one in here)
    if pending is None and here:
        pending = sum(one.state == "pending" for one in here)
    return HostRow(
        host.id,
        origin.source,
        host.group or host.id,
        host.kind,
        host.market,
        host.zone,
        host.state or host.remarks,
        _since(now, host.launched_at if host.launched_at is not None else host.joined_at),
        bootstrap,
        host.cpus,
        host.cpus_free,
        host.memory_bytes,
        host.reserved_bytes,
        host.used_bytes,
        host.gpus,
        host.gpus_free,
        running,
        pending,
        host.cuda,
        host.driver,
        host.pressure,
        origin.age_s,
        tuple([*origin.errors, *_host_faults(host, bootstrap, here, misplaced)][:_FAULTS_MAX]),
        gpu=use_of(host.devices),
        devices=host.devices,
    )


def _host_faults(
    host: Host,
    bootstrap: float | None,
    here: Sequence[ReplicaRow],
    misplaced: MisplacedReplicas,
) -> Iterable[str]:
    if host.state:
        yield host.state
    for row in here:
        for reason in misplaced.get((row.id, row.host), ()):
            yield f"{row.model} {reason}"
    memory, used, reserved = host.memory_bytes, host.used_bytes, host.reserved_bytes
    if memory and used is not None and used > NEAR_LIMIT * memory:
        yield f"memory {used / memory:.0%} in use"
    if memory and reserved is not None and reserved > memory:
        yield f"{size(reserved)} reserved of {size(memory)}"
    if host.pressure is not None and host.pressure >= PRESSED:
        yield f"memory is waited for {host.pressure:.0%} of the time"
    if bootstrap is not None and BOOTSTRAP_S < bootstrap < REJOINED_S:
        yield f"took {spell_time(bootstrap)} from its launch to its first use"
    for device in host.devices:
        yield from device_faults(device)


def never_joined(hosts: Sequence[Host], now: float) -> Mapping[str, str]:
    """Return a text by host id for hosts launched over 10 minutes ago and not in use yet.

    Empty if no host of the list is in use: then nobody tells.
    """
    if not any(host.joined_at is not None for host in hosts):
        return {}
    found = {}
    for host in hosts:
        age = _since(now, host.launched_at)
        if host.joined_at is None and age is not None and age > BOOTSTRAP_S:
            found[host.id] = f"launched {spell_time(age)} ago and not in use yet"
    return found


def counted(values: Iterable[str]) -> str:
    """Return the value if all have the same, else each with its count: ``2 spot + 1 on-demand``.

    Empty values are left out; no value gives an empty text.
    """
    counts = Counter(value for value in values if value)
    if len(counts) == 1:
        return next(iter(counts))
    return " + ".join(f"{count} {value}" for value, count in counts.most_common())


def skewed(what: str, values: Mapping[str, str]) -> Texts:
    """Return one text with how often each value occurs if they differ, else an empty tuple."""
    counts = Counter(value for value in values.values() if value)
    if len(counts) < 2:
        return ()
    told = ", ".join(f"{value} on {count}" for value, count in counts.most_common()[:4])
    return (f"{what} differs: {told}",)


def _used(hosts: Sequence[HostRow]) -> int | None:
    """A part of it beside the memory of all would look like room."""
    known = [one.used_bytes for one in hosts if one.used_bytes is not None]
    return sum(known) if known and len(known) == len(hosts) else None


def group_row(
    name: str, group: Group | None, hosts: Sequence[HostRow], origin: RowOrigin
) -> GroupRow:
    """Return the ``GroupRow`` of a host group: sums over its hosts, and their fault texts.

    ``group`` None: hosts without one. A value is None where no host tells it.
    """
    uptimes = [one.uptime_s for one in hosts if one.uptime_s is not None]
    faults = [*origin.errors]
    desired = group.desired if group is not None else None
    if desired is not None and len(hosts) < desired:
        faults.append(f"{len(hosts)} of {desired} hosts")
    faults += skewed("CUDA", {one.id: one.cuda for one in hosts})
    faults += skewed("driver", {one.id: one.driver for one in hosts})
    for one in hosts:
        faults += [f"{one.id}: {fault}" for fault in one.faults if fault not in origin.errors]
    return GroupRow(
        name,
        origin.source,
        ", ".join(dict.fromkeys(one.kind for one in hosts if one.kind)),
        counted(one.market for one in hosts),
        len(hosts),
        desired,
        group.minimum if group is not None else None,
        group.maximum if group is not None else None,
        min(uptimes, default=None),
        max(uptimes, default=None),
        total(one.cpus for one in hosts),
        total(one.cpus_free for one in hosts),
        whole(one.memory_bytes for one in hosts),
        whole(one.reserved_bytes for one in hosts),
        _used(hosts),
        whole(one.gpus for one in hosts),
        whole(one.gpus_free for one in hosts),
        whole(one.running for one in hosts),
        whole(one.pending for one in hosts),
        origin.age_s,
        tuple(dict.fromkeys(faults))[:_FAULTS_MAX],
    )


__all__ = [
    "BOOTSTRAP_S",
    "NEAR_LIMIT",
    "PENDING_S",
    "REJOINED_S",
    "TOLERANCE",
    "MisplacedReplicas",
    "RowOrigin",
    "counted",
    "exceeds_reservation",
    "group_row",
    "host_row",
    "misplacements",
    "never_joined",
    "ready",
    "replica_row",
    "runs",
    "size",
    "skewed",
    "total",
    "whole",
]
