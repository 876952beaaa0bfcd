"""The sections of each view, and of one row with everything related to it.

A page is a list of sections and knows nothing of screens. Details follow the join: a group
shows its hosts, a host its replicas, a replica its model's queue and its filesystem. On every
page the incidents that concern it come first.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from holdfast.core.view.snapshot import (
    DiskRow,
    GroupRow,
    HostRow,
    IncidentRow,
    ModelRow,
    QueueRow,
    ReplicaRow,
    Snapshot,
    SourceRow,
    UnmetRow,
)
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.figure_format import (
    UNKNOWN,
    amount,
    count,
    latency,
    of_total,
    rate,
    share,
    size,
    words_span,
)
from holdfast.ui.terminal.top.fleet_tables import (
    INCIDENTS,
    MODELS,
    QUEUES,
    REPLICAS,
    UNMET,
    WARNINGS,
)
from holdfast.ui.terminal.top.gpu_columns import NO_GPU, gpu_facts
from holdfast.ui.terminal.top.row_status import faulty, state_tone
from holdfast.ui.terminal.top.table import FieldsSection, Section, TableSection, TextSection
from holdfast.ui.terminal.top.tables import DISKS, GROUPS, HOSTS, SOURCES

VIEWS: Final = ("overview", "hosts", "replicas", "models", "queues", "incidents", "sources")
MORE_VIEWS: Final = ("groups", "disks")  # by name only
_UNWELL_SHOWN: Final = 12  # replicas on the overview; the replicas' own view has all


def overview(snapshot: Snapshot) -> list[Section]:
    """The sections of the overview: incidents, groups, unmet demand, queues, faults, models."""
    unwell = [row for row in snapshot.replicas if faulty(row)]
    title = "NOT WELL"
    if len(unwell) > _UNWELL_SHOWN:
        title = f"{_UNWELL_SHOWN} OF {len(unwell)} NOT WELL"
    return [
        TableSection(INCIDENTS, snapshot.incidents),
        TableSection(GROUPS, snapshot.groups, empty="no source tells of groups; see ':sources'"),
        TableSection(UNMET, snapshot.unmet),
        TableSection(WARNINGS, snapshot.warnings),
        TableSection(QUEUES, snapshot.queues, empty="no queue is known"),
        TableSection(REPLICAS, unwell[:_UNWELL_SHOWN], title=title),
        TableSection(MODELS, snapshot.models),
    ]


def view(name: str, snapshot: Snapshot) -> list[Section]:
    """The sections of a view by its name."""
    if name == "overview":
        return overview(snapshot)
    if name == "sources":
        notes = [(f"   {note}", Tone.WARN) for note in snapshot.notes]
        rows = TableSection(SOURCES, snapshot.sources, empty="no source is configured")
        return [rows, TextSection("NOTES", notes)] if notes else [rows]
    table, rows_of, empty = _LISTS[name]
    return [TableSection(table, rows_of(snapshot), empty=empty)]


_LISTS: Final[dict[str, tuple[Any, Callable[[Snapshot], Sequence[Any]], str]]] = {
    "groups": (GROUPS, lambda all_of: all_of.groups, "no source tells of groups"),
    "hosts": (HOSTS, lambda all_of: all_of.hosts, "no source tells of hosts"),
    "replicas": (REPLICAS, lambda all_of: all_of.replicas, "no replica yet"),
    "models": (MODELS, lambda all_of: all_of.models, "no model is configured"),
    "queues": (QUEUES, lambda all_of: all_of.queues, "no queue is known"),
    "disks": (DISKS, lambda all_of: all_of.disks, "no shared filesystem is known"),
    "incidents": (INCIDENTS, lambda all_of: all_of.incidents, "nothing is wrong"),
}


# --- one thing ------------------------------------------------------------------------------------


def find(snapshot: Snapshot, table: str, key: str) -> Any:
    """The row with that key in a snapshot; None if it is gone."""
    if table == "unmet":
        return next((row for row in snapshot.unmet if UNMET.key(row) == key), None)
    if table == "sources":
        return next((row for row in snapshot.sources if SOURCES.key(row) == key), None)
    kind, rows_of, _ = _LISTS[table]
    return next((row for row in rows_of(snapshot) if kind.key(row) == key), None)


def name_of(row: Any) -> str:
    """The name of a row for the breadcrumbs."""
    if isinstance(row, UnmetRow):
        return row.model
    if isinstance(row, SourceRow):
        return row.source
    return str(getattr(row, "id", "") or row.name)


def details(snapshot: Snapshot, row: Any) -> list[Section]:
    """All that is known of one row, and the rows related to it."""
    about = [one for one in snapshot.incidents if one.id in getattr(row, "incidents", ())]
    head: list[Section] = [TableSection(INCIDENTS, about)]
    faults = list(getattr(row, "faults", ()))
    if isinstance(row, ReplicaRow) and row.reason and faulty(row):
        faults.insert(0, row.reason)
    if faults:
        wrong = [(f"!  {fault}", Tone.BAD) for fault in faults]
        head.append(TextSection("WHAT IS WRONG", wrong, indent=3))
    for kind, build in _BUILDERS.items():
        if isinstance(row, kind):
            return head + build(snapshot, row)
    return head


def _group(snapshot: Snapshot, row: GroupRow) -> list[Section]:
    bounds = f"{row.hosts} of {_known(row.desired)} wanted"
    if row.maximum is not None:
        bounds += f", {_known(row.minimum)} to {row.maximum} allowed"
    return [
        FieldsSection(
            (
                ("type", row.kind, Tone.PLAIN),
                ("market", row.market, Tone.PLAIN),
                ("hosts", bounds, Tone.PLAIN),
                ("youngest up", _time(row.uptime_s), Tone.PLAIN),
                ("oldest up", _time(row.uptime_max_s), Tone.PLAIN),
                *_resources(row),
                ("source", row.source, Tone.PLAIN),
                ("read", _ago(row.age_s), Tone.PLAIN),
            ),
            f"GROUP {row.name}",
        ),
        TableSection(HOSTS, [host for host in snapshot.hosts if host.group == row.name]),
        TableSection(REPLICAS, [one for one in snapshot.replicas if one.group == row.name]),
    ]


def _host(snapshot: Snapshot, row: HostRow) -> list[Section]:
    return [
        FieldsSection(
            (
                ("group", row.group, Tone.PLAIN),
                ("type", row.kind, Tone.PLAIN),
                ("market", row.market, Tone.PLAIN),
                ("zone", row.zone, Tone.PLAIN),
                ("state", row.state, Tone.PLAIN),
                ("up", _time(row.uptime_s), Tone.PLAIN),
                ("usable after", _time(row.bootstrap_s), Tone.PLAIN),
                *_resources(row),
                ("memory stall", share(row.pressure), Tone.PLAIN),
                *(gpu_facts(row.gpu, row.gpus) if row.gpu is not None else ()),
                ("cuda", row.cuda, Tone.PLAIN),
                ("driver", row.driver, Tone.PLAIN),
                ("source", row.source, Tone.PLAIN),
                ("read", _ago(row.age_s), Tone.PLAIN),
            ),
            f"HOST {row.id}",
        ),
        TableSection(REPLICAS, [one for one in snapshot.replicas if one.host == row.id]),
    ]


def _inferences(row: ReplicaRow) -> Iterable[tuple[str, str, Tone]]:
    """What an inference server counts; nothing for other engines."""
    if row.inferences_s is None:
        return
    failing = Tone.BAD if row.failed_share else Tone.PLAIN
    yield "inferences/s", rate(row.inferences_s), Tone.PLAIN
    yield "failed", share(row.failed_share), failing
    yield "in its queue", latency(row.queue_s), Tone.PLAIN
    yield "computing", latency(row.compute_s), Tone.PLAIN
    yield "batch", "" if row.batch is None else f"{row.batch:.1f}", Tone.PLAIN
    if row.engine_gpu_total_bytes:
        of = f"{size(row.engine_gpu_used_bytes)} of {size(row.engine_gpu_total_bytes)}"
        yield "gpu memory", of, Tone.PLAIN


def _replica(snapshot: Snapshot, row: ReplicaRow) -> list[Section]:
    full = _time(row.exhausted_in_s) if row.exhausted_in_s is not None else ""
    routed = "by Holdfast" if row.routed else "not by Holdfast"
    return [
        FieldsSection(
            (
                ("state", row.state, state_tone(row.state)),
                ("why", "" if faulty(row) else row.reason, Tone.PLAIN),
                ("model", row.model, Tone.PLAIN),
                ("revision", row.revision, Tone.PLAIN),
                ("routed", routed, Tone.PLAIN),
                ("share", share(row.share), Tone.PLAIN),
                ("requests", count(row.inflight), Tone.PLAIN),
                ("in the engine", _engine(row), Tone.PLAIN),
                ("kv cache", share(row.kv_used), Tone.PLAIN),
                *_inferences(row),
                ("tokens/s", rate(row.tokens_s), Tone.PLAIN),
                ("first token", latency(row.ttft_s), Tone.PLAIN),
                ("canary", latency(row.canary_s), Tone.PLAIN),
                ("memory used", size(row.used_bytes), Tone.STRONG),
                ("reserved", size(row.reserved_bytes), Tone.PLAIN),
                ("limit", size(row.limit_bytes), Tone.PLAIN),
                ("full in", full, Tone.BAD),
                *gpu_facts(row.gpu, row.gpus),
                ("up", _time(row.uptime_s), Tone.PLAIN),
                ("restarts", _known(row.restarts), Tone.PLAIN),
                ("last output", _ago(row.silent_s), Tone.PLAIN),
                ("phase", row.phase, Tone.PLAIN),
                ("host", row.host, Tone.PLAIN),
                ("group", row.group, Tone.PLAIN),
                ("zone", row.zone, Tone.PLAIN),
                ("filesystem", row.filesystem, Tone.PLAIN),
                ("source", f"{row.source}, {_ago(row.age_s)}", Tone.PLAIN),
                ("image", row.image, Tone.PLAIN),
                ("endpoint", row.endpoint, Tone.PLAIN),
                ("log stream", row.log_stream, Tone.PLAIN),
            ),
            f"REPLICA {row.id}",
        ),
        TableSection(
            HOSTS, [one for one in snapshot.hosts if one.id == row.host], title="ITS HOST"
        ),
        TableSection(
            MODELS, [one for one in snapshot.models if one.name == row.model], title="ITS MODEL"
        ),
        TableSection(
            QUEUES,
            [one for one in snapshot.queues if one.model == row.model],
            title="ITS MODEL'S BACKLOG",
        ),
        TableSection(
            DISKS,
            [one for one in snapshot.disks if one.id == row.filesystem],
            title="ITS FILESYSTEM",
        ),
    ]


def _model(snapshot: Snapshot, row: ModelRow) -> list[Section]:
    wanted = row.replicas if row.desired is None else row.desired
    return [
        FieldsSection(
            (
                ("ready", f"{row.ready} of {wanted} wanted", Tone.PLAIN),
                ("replicas", count(row.replicas), Tone.PLAIN),
                ("requests", count(row.inflight), Tone.PLAIN),
                ("waiting", count(row.waiting), Tone.PLAIN),
                ("of all waiting", share(row.backlog_share), Tone.PLAIN),
                ("requests/s", rate(row.requests_s), Tone.PLAIN),
                ("tokens/s", rate(row.tokens_s), Tone.PLAIN),
                ("first token", latency(row.ttft_s), Tone.PLAIN),
                ("kv cache", share(row.kv_used), Tone.PLAIN),
                ("prefix hits", share(row.prefix_hits), Tone.PLAIN),
                ("errors", share(row.errors_share), Tone.PLAIN),
                ("budget burn", rate(row.burn), Tone.PLAIN),
            ),
            f"MODEL {row.name}",
        ),
        TableSection(UNMET, [one for one in snapshot.unmet if one.model == row.name]),
        TableSection(REPLICAS, [one for one in snapshot.replicas if one.model == row.name]),
        TableSection(QUEUES, [one for one in snapshot.queues if one.model == row.name]),
    ]


def _by_model(snapshot: Snapshot, row: QueueRow | UnmetRow) -> list[Section]:
    """A queue is explained by the model that should empty it."""
    found = [one for one in snapshot.models if one.name == row.model]
    first: list[Section] = []
    if isinstance(row, QueueRow):
        first = [TableSection(QUEUES, [row], title="QUEUE")]
    if not found:
        return first
    return first + _model(snapshot, found[0])


def _disk(snapshot: Snapshot, row: DiskRow) -> list[Section]:
    ceiling = of_total(row.metered_bytes_s, row.permitted_bytes_s)
    return [
        FieldsSection(
            (
                ("mode", row.mode, Tone.PLAIN),
                ("reads", f"{size(row.read_bytes_s)}/s", Tone.PLAIN),
                ("metered/permitted", f"{ceiling} a second", Tone.PLAIN),
                ("of permitted", share(row.used_share), Tone.STRONG),
                ("operations", share(row.operations_share), Tone.PLAIN),
                ("burst credit", size(row.burst_credit_bytes), Tone.PLAIN),
                ("clients", count(row.clients), Tone.PLAIN),
                ("source", row.source, Tone.PLAIN),
                ("read", _ago(row.age_s), Tone.PLAIN),
            ),
            f"FILESYSTEM {row.id}",
        ),
        TableSection(REPLICAS, [one for one in snapshot.replicas if one.filesystem == row.id]),
    ]


def _source(snapshot: Snapshot, row: SourceRow) -> list[Section]:
    return [
        TableSection(SOURCES, [one for one in snapshot.sources if one.source == row.source]),
        TableSection(GROUPS, [one for one in snapshot.groups if one.source == row.source]),
        TableSection(HOSTS, [one for one in snapshot.hosts if one.source == row.source]),
    ]


_BUILDERS: Final[dict[type, Callable[[Snapshot, Any], list[Section]]]] = {
    GroupRow: _group,
    HostRow: _host,
    ReplicaRow: _replica,
    ModelRow: _model,
    QueueRow: _by_model,
    UnmetRow: _by_model,
    DiskRow: _disk,
    SourceRow: _source,
}


def concerned(snapshot: Snapshot, incident: str) -> list[Section]:
    """The rows of all layers that an incident concerns."""

    def marked(rows: Iterable[Any]) -> list[Any]:
        return [row for row in rows if incident in row.incidents]

    return [
        TableSection(REPLICAS, marked(snapshot.replicas)),
        TableSection(QUEUES, marked(snapshot.queues)),
        TableSection(MODELS, marked(snapshot.models)),
        TableSection(HOSTS, marked(snapshot.hosts)),
        TableSection(GROUPS, marked(snapshot.groups)),
        TableSection(DISKS, marked(snapshot.disks)),
    ]


def incident_row(snapshot: Snapshot, name: str) -> IncidentRow | None:
    """An incident of the snapshot, by its id or its number; None if it is closed."""
    for row in snapshot.incidents:
        if row.id == name or (name.isdecimal() and row.id.endswith(f"-{int(name):06d}")):
            return row
    return None


def _resources(row: GroupRow | HostRow) -> tuple[tuple[str, str, Tone], ...]:
    tasks = f"{_known(row.running)} running, {_known(row.pending)} pending"
    return (
        ("cpu left", f"{amount(row.cpus_free)} of {amount(row.cpus)}", Tone.PLAIN),
        ("memory reserved", of_total(row.reserved_bytes, row.memory_bytes), Tone.PLAIN),
        ("memory in use", size(row.used_bytes), Tone.PLAIN),
        ("gpus free", _gpus_free(row), Tone.PLAIN),
        ("tasks", tasks, Tone.PLAIN),
    )


def _gpus_free(row: GroupRow | HostRow) -> str:
    return NO_GPU if row.gpus == 0 else f"{_known(row.gpus_free)} of {_known(row.gpus)}"


def _engine(row: ReplicaRow) -> str:
    return f"{_known(row.running)} run, {_known(row.waiting)} wait"


def _known(value: float | None) -> str:
    return UNKNOWN if value is None else str(value)


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else words_span(seconds)


def _ago(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{words_span(seconds)} ago"


__all__ = [
    "MORE_VIEWS",
    "VIEWS",
    "concerned",
    "details",
    "find",
    "incident_row",
    "name_of",
    "overview",
    "view",
]
