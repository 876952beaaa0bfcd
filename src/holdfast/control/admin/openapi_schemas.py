"""JSON schemas of the admin port's answers and bodies, derived from the types that are served.

The joined view, events and GPUs are served as dataclasses, and their own types are used. Answers
that are built as dictionaries are typed here, as ``TypedDict``, and mypy checks those that control
builds itself. The names of components are those of ``SERVED`` and ``ROWS``: to rename a class
changes no name in the description.

Measured: by hand it was 241 lines for 20 schemas, in which a row of the view was "an object"; these
are 341 lines for 37 schemas, in which every member of every row is described.
"""

from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from holdfast.control.fleet.audience import Happened
from holdfast.control.fleet.disturbances import KINDS as KINDS_MADE
from holdfast.control.fleet.disturbances import SECONDS_MAX
from holdfast.control.incidents.fact_reports import FACTS_MAX, KINDS
from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.version_bill import VersionLine
from holdfast.core.gpu import GpuDevice, GpuUse
from holdfast.core.view import snapshot as view
from holdfast.ports import StoredOrder
from holdfast.sources.nvml import Gpu, GpuReport, Xid

Time = Annotated[float, Meta(description="Seconds since 1970.")]
TimeOrNull = Annotated[float | None, Meta(description="Seconds since 1970.")]
Epoch = Annotated[int, Meta(description="The number of the config that runs.")]


class RefusalAnswer(TypedDict):
    """The JSON body of every refusal (4xx, 5xx): ``error`` says why, for people."""

    error: str


class TakenAnswer(TypedDict):
    """The JSON body of an accepted order (202): it has begun, and ``reason`` says what follows."""

    accepted: bool
    reason: str


class ReplicaReadyAnswer(TypedDict):
    """What a replica's readiness probe shall say; ``ready`` and ``why`` only if it is known."""

    replica: str
    known: bool
    ready: NotRequired[bool]
    why: NotRequired[str]


class ScaleOrder(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an order to scale a model: the wanted number of replicas, 0 to 256."""

    replicas: Annotated[int, Meta(description="How many are wanted.", ge=0, le=256)]


class BaselineOrder(msgspec.Struct):
    """The body of a request to accept or reset a model's drift baselines: why it is made."""

    why: Annotated[
        str, Meta(description="The reason, for the audit trail.", min_length=1, max_length=200)
    ]


class BaselineLine(TypedDict):
    """One answer baseline of a model (frozen or being learned), with its latest answers."""

    revision: str
    statistic: Annotated[str, Meta(description="`length`, `score`, or of a tensor `NAME.mean`.")]
    state: Annotated[str, Meta(description="`frozen` or `learning`.")]
    version: int
    samples: int
    needed: Annotated[int | None, Meta(description="Of one that is learned.")]
    mean: float | None
    sd: float | None
    p95: float | None
    latest: Annotated[int, Meta(description="How many latest answers are kept.")]
    latest_mean: float | None
    latest_p95: float | None
    level: Annotated[float | None, Meta(description="How far it moved; at 1 it is told.")]
    moved: Annotated[str, Meta(description="Where to, while it holds.")]


class BaselineAnswer(TypedDict):
    """The answer about one model's baselines: one line for each."""

    baselines: list[BaselineLine]


class VersionsAnswer(TypedDict):
    """The answer of ``/versions``: what each replica runs on, with differences and warnings."""

    versions: list[VersionLine]


class DisturbOrder(msgspec.Struct):
    """The body of an order to disturb a replica on purpose: kind, seconds, URL of a detour."""

    kind: Annotated[
        str, Meta(description="What is to go wrong.", extra_json_schema={"enum": list(KINDS_MADE)})
    ]
    seconds: Annotated[float, Meta(description="For how long.", gt=0, le=SECONDS_MAX)]
    url: Annotated[str, Meta(description="Of a detour: http://127.0.0.1:PORT.")] = ""


class ReloadAnswer(TypedDict):
    """The answer to a reload: whether the fleet file was accepted, the epoch, its problems."""

    accepted: bool
    epoch: Epoch
    problems: list[str]


class ReplicaStatus(TypedDict):
    """One replica in ``/status``: state, routing, process, load and figures; null is unknown."""

    id: str
    model: str
    revision: str
    state: Annotated[str, Meta(description="Where in its life it is.")]
    reason: Annotated[str, Meta(description="Why it is there.")]
    zone: str
    region: str
    endpoint: str
    inflight: int
    share: Annotated[float, Meta(description="Of its weight, as gateways are told.")]
    canary: Annotated[dict[str, Any] | None, Meta(description="The last one.")]
    launched: bool
    pid: Annotated[int | None, Meta(description="Where Holdfast started it.")]
    phase: str
    host: str
    kv_used: float | None
    running: int | None
    waiting: int | None
    tokens_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    canary_s: float | None
    used_bytes: int | None
    started_at: TimeOrNull
    requests_share: Annotated[float | None, Meta(description="Of its model's requests.")]
    gpu: Annotated[GpuUse | None, Meta(description="Of the GPUs it runs on, where they are known.")]
    inferences_s: Annotated[float | None, Meta(description="By an inference server's counts.")]
    failed_share: Annotated[float | None, Meta(description="Of those, in the last minute.")]
    queue_s: Annotated[float | None, Meta(description="Mean wait in the server's queue.")]
    compute_s: Annotated[float | None, Meta(description="Mean time of an execution.")]
    batch: Annotated[float | None, Meta(description="Inferences for each execution.")]
    batch_max: Annotated[int | None, Meta(description="The largest since its start.")]
    engine_gpu_used_bytes: Annotated[int | None, Meta(description="Of its devices.")]
    engine_gpu_total_bytes: int | None
    exhausted_in_s: Annotated[float | None, Meta(description="Until its memory is full.")]


class ProcessStatus(TypedDict):
    """One Holdfast process and its condition, as judged by its supervisor.

    The supervisor itself is judged by control.
    """

    name: Annotated[str, Meta(description="`supervisor`, `control` or `gateway-N`.")]
    pid: int
    condition: Annotated[
        str, Meta(description="`starting`, `turning`, `late`, `traced`, `stopped` or `stuck`.")
    ]
    for_s: Annotated[float, Meta(description="Seconds in this condition.")]


class GpuSummary(TypedDict):
    """Whether control's host has GPUs, and how many, or why none can be seen."""

    available: bool
    reason: Annotated[str, Meta(description="How many, or why none can be seen.")]


class StatusAnswer(TypedDict):
    """The answer of ``/status``: gateways, replicas, models, config problems and counts."""

    control: str
    epoch: Epoch
    config_problems: list[str]
    gateways: list[dict[str, Any]]
    processes: list[ProcessStatus]
    replicas: list[ReplicaStatus]
    gpus: GpuSummary
    models: dict[str, Any]
    panic: Annotated[list[str], Meta(description="Models whose pools fail open.")]
    breakers_overruled: Annotated[
        dict[str, list[str]],
        Meta(
            description="By model, replicas that gateways try though users' failures opened "
            "breakers: more than half of the pool."
        ),
    ]
    incidents_open: Annotated[int, Meta(description="Incidents that are not over.")]
    disturbed: Any
    store: dict[str, Any]
    history: dict[str, Any] | None


class AuditAnswer(TypedDict):
    """The answer of ``/audit``: the newest orders to the admin port, the newest last."""

    orders: list[StoredOrder]


class AboutPart(TypedDict):
    """What an incident or a piece of evidence concerns; members that do not apply are empty."""

    replica: str
    model: str
    revision: str
    host: str
    filesystem: str


class EvidencePart(TypedDict):
    """One piece of evidence: its sign, what it concerns, when, from where, text and numbers."""

    sign: str
    about: AboutPart
    at: Time
    source: str
    text: str
    numbers: NotRequired[dict[str, Any]]


class TimelinePart(TypedDict):
    """One entry of an incident's timeline: when, what happened, to what, and a sentence."""

    at: Time
    what: str
    about: str
    text: str


_Classed = TypedDict("_Classed", {"class": Literal["loading", "runtime", "routing"]})


class _IncidentHead(_Classed):
    id: str
    cause: str
    title: str
    stage: Literal["open", "mending", "closed"]
    about: AboutPart
    replicas: list[str]
    opened_at: Time
    begun_at: Annotated[
        Time, Meta(description="When it was opened, or last reopened: the same failure came back.")
    ]
    changed_at: Time
    closed_at: TimeOrNull
    confidence: Annotated[float, Meta(description="0 to 1.")]
    other_causes: list[str]
    remedy: str
    action: Annotated[str, Meta(description="What was done, or why nothing was.")]
    fix: Annotated[str, Meta(description="What people should do.")]
    other_revisions: Annotated[
        list[str],
        Meta(description="Of its model, beside the one that it is about, when it opened."),
    ]


Count = Annotated[int, Meta(description="How many the whole one has.")]


class IncidentLine(_IncidentHead):
    """An incident in a list, with counts in place of evidence, consequences and timeline."""

    evidence_count: NotRequired[Count]
    consequences_count: NotRequired[Count]
    timeline_count: NotRequired[Count]


class IncidentAnswer(_IncidentHead):
    """One incident with its evidence, consequences and timeline."""

    evidence: list[EvidencePart]
    consequences: list[EvidencePart]
    timeline: list[TimelinePart]


class IncidentsAnswer(TypedDict):
    """The answer of ``/incidents``: the latest incidents, the newest last."""

    incidents: list[IncidentLine]


class EventsAnswer(TypedDict):
    """The answer of ``/events``: the newest events, the newest last."""

    events: list[Happened]


class CanaryLine(TypedDict):
    """The result of one canary: when, verdict, why, latency; never the answer itself."""

    at: Time
    verdict: Annotated[
        str, Meta(extra_json_schema={"enum": [verdict.value for verdict in CanaryVerdict]})
    ]
    detail: Annotated[str, Meta(description="Why; never the answer itself.")]
    latency_s: Annotated[float | None, Meta(description="Null where no answer was measured.")]


class CanariesAnswer(TypedDict):
    """The results of a replica's last canaries, at most 20, the newest last."""

    canaries: list[CanaryLine]


class CostAnswer(TypedDict):
    """The answer of ``/cost``: GPU-seconds, tokens and their price since control began."""

    currency: str
    since: Time
    seconds: Annotated[float, Meta(description="How long that is ago.")]
    priced: NotRequired[bool]
    totals: Annotated[dict[str, float], Meta(description="Of all models.")]
    models: list[dict[str, Any]]
    lines: Annotated[list[dict[str, Any]], Meta(description="The dearest first.")]
    left_out: NotRequired[Annotated[int, Meta(description="Lines beyond the most that are told.")]]


class KeyLine(TypedDict):
    """One API key of a tenant: its name, expiry and last use; never the key itself."""

    tenant: str
    id: Annotated[str, Meta(description="As the fleet file says, or the start of its hash.")]
    expires: str | None
    expired: bool
    file: Annotated[str | None, Meta(description="The file that holds it, if not the fleet file.")]
    last_used: Annotated[
        float | None, Meta(description="Seconds since 1970; null: not since records began.")
    ]


class KeysAnswer(TypedDict):
    """The API keys of all tenants, and since when their uses are recorded."""

    since: Time
    keys: list[KeyLine]


class FactReport(TypedDict):
    """One reported fact: its kind, and beside it the fields of that kind."""

    kind: Annotated[
        str,
        Meta(description="And its fields beside it.", extra_json_schema={"enum": list(KINDS)}),
    ]


class FactsReport(TypedDict):
    """The body of ``POST /facts``: 1 to 1,000 facts, taken all or none."""

    facts: Annotated[list[FactReport], Meta(min_length=1, max_length=FACTS_MAX)]


class FactsTaken(TypedDict):
    """The answer to ``POST /facts``: how many facts were accepted."""

    taken: Annotated[int, Meta(description="How many facts.")]


class AgentReportTaken(TypedDict):
    """The answer to an agent's accepted report; ``taken`` is true."""

    taken: bool


class AgentsAnswer(TypedDict):
    """The answer of ``/agents``: the agents that report, each with its last report's age."""

    agents: list[dict[str, Any]]


class SeriesNamesAnswer(TypedDict):
    """One page of names of stored time series, in order; ``more``: further ones follow."""

    series: list[str]
    more: bool


class SeriesAnswer(TypedDict):
    """The answer of ``/history``: rows of time and value by series, and the step between."""

    series: Annotated[dict[str, Any], Meta(description="Rows of a time and a value, by name.")]
    since: float
    until: float
    step_s: Annotated[float, Meta(description="Between two rows.")]
    left_out: Annotated[int, Meta(description="Series that found no room in the answer.")]


SERVED: Final[dict[str, Any]] = {
    "Error": RefusalAnswer,
    "Taken": TakenAnswer,
    "ReplicaReady": ReplicaReadyAnswer,
    "Scale": ScaleOrder,
    "BaselineOrder": BaselineOrder,
    "BaselineLine": BaselineLine,
    "Versions": VersionsAnswer,
    "Baselines": BaselineAnswer,
    "Disturb": DisturbOrder,
    "Reloaded": ReloadAnswer,
    "Status": StatusAnswer,
    "ReplicaStatus": ReplicaStatus,
    "ProcessStatus": ProcessStatus,
    "GpuSummary": GpuSummary,
    "Incidents": IncidentsAnswer,
    "Incident": IncidentAnswer,
    "IncidentLine": IncidentLine,
    "About": AboutPart,
    "Evidence": EvidencePart,
    "TimelineEntry": TimelinePart,
    "Events": EventsAnswer,
    "Audit": AuditAnswer,
    "Keys": KeysAnswer,
    "KeyLine": KeyLine,
    "Canaries": CanariesAnswer,
    "Canary": CanaryLine,
    "Cost": CostAnswer,
    "Gpus": GpuReport,
    "Gpu": Gpu,
    "Xid": Xid,
    "Report": FactsReport,
    "Fact": FactReport,
    "ReportTaken": FactsTaken,
    "AgentReportTaken": AgentReportTaken,
    "Agents": AgentsAnswer,
    "SeriesNames": SeriesNamesAnswer,
    "Series": SeriesAnswer,
}
# Dataclasses that are served whole: a member with a default is in the answer all the same.
ROWS: Final[dict[str, Any]] = {
    "VersionLine": VersionLine,
    "Event": Happened,
    "Order": StoredOrder,
    "View": view.Snapshot,
    "SourceRow": view.SourceRow,
    "GroupRow": view.GroupRow,
    "HostRow": view.HostRow,
    "ReplicaRow": view.ReplicaRow,
    "ModelRow": view.ModelRow,
    "QueueRow": view.QueueRow,
    "DiskRow": view.DiskRow,
    "UnmetRow": view.UnmetRow,
    "WarningRow": view.WarningRow,
    "GpuUse": GpuUse,
    "GpuDevice": GpuDevice,
    "IncidentRow": view.IncidentRow,
}
# Units that the names of members do not say.
_UNITS: Final = {
    **dict.fromkeys((("Event", "at"), ("Order", "at"), ("View", "at")), "Seconds since 1970."),
    **dict.fromkeys((("Gpu", "memory_used"), ("Gpu", "memory_total")), "Bytes."),
    ("Gpu", "utilisation"): "0 to 1: the share of time with work.",
    ("GpuUse", "utilisation"): "0 to 1: the share of time with work.",
    ("GpuDevice", "utilisation"): "0 to 1: the share of time with work.",
    ("GpuUse", "memory_share"): "0 to 1: held of what it could have, on its fullest device.",
    ("View", "version"): "Grows with each that differs.",
}


def schemas() -> dict[str, Any]:
    """JSON schemas of all answers and bodies, by their names in ``SERVED`` and ``ROWS``."""
    kinds = SERVED | ROWS
    references, derived = msgspec.json.schema_components(kinds.values(), ref_template="{name}")
    # By what msgspec calls them; it answers in the order of what it was given.
    names = {one["$ref"]: name for one, name in zip(references, kinds, strict=True)}
    found = {names[own]: _named(schema, names) for own, schema in derived.items()}
    for name in ROWS:
        found[name]["required"] = list(found[name]["properties"])
    for (name, member), unit in _UNITS.items():
        found[name]["properties"][member]["description"] = unit
    return found


def _named(value: Any, names: dict[str, str]) -> Any:
    """Rename a schema's references to our names, and drop the classes' titles and defaults."""
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{names[inner]}" if key == "$ref" else _named(inner, names)
            for key, inner in value.items()
            if key != "default" and (key != "title" or isinstance(inner, dict))  # a member is kept
        }
    return [_named(inner, names) for inner in value] if isinstance(value, list) else value


__all__ = [
    "ROWS",
    "SERVED",
    "CanaryLine",
    "GpuSummary",
    "ProcessStatus",
    "ReloadAnswer",
    "ReplicaStatus",
    "StatusAnswer",
    "schemas",
]
