"""The rows of the joined view that the terminal, the web page and ``--json`` show.

A display decides nothing: which incident belongs on which row, what is misplaced and what is too
small has been decided by ``snapshot_join``. Every value that can be unknown can be ``None``.
"""

from dataclasses import dataclass, field
from typing import Any

from holdfast.core.gpu import GpuDevice, GpuUse


@dataclass(slots=True, frozen=True)
class SourceRow:
    """Row of the view: one part of one source, the age of its data, its error and its cost."""

    source: str
    kind: str
    part: str
    age_s: float | None  # None: it was never read well
    error: str = ""
    failing_s: float | None = None
    calls: int = 0
    took_s: float = 0.0


@dataclass(slots=True, frozen=True)
class GroupRow:
    """Row of the view: one host group, mostly sums over its hosts. None: unknown."""

    name: str
    source: str
    kind: str = ""  # types of its hosts: "g5.4xlarge", or several joined by ", "
    market: str = ""  # "spot", "on-demand", or "2 spot + 1 on-demand"
    hosts: int = 0
    desired: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    uptime_s: float | None = None  # of its youngest host: a group that is replaced shows it
    uptime_max_s: float | None = None
    cpus: float | None = None
    cpus_free: float | None = None
    memory_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    gpus: int | None = None
    gpus_free: int | None = None
    running: int | None = None
    pending: int | None = None
    age_s: float | None = None
    faults: tuple[str, ...] = ()  # short texts for people
    incidents: tuple[str, ...] = ()  # ids


@dataclass(slots=True, frozen=True)
class HostRow:
    """Row of the view: one host now, its hardware, memory, replicas on it, faults and incidents.

    ``faults`` are texts, ``incidents`` ids; None: unknown.
    """

    id: str
    source: str
    group: str = ""
    kind: str = ""
    market: str = ""
    zone: str = ""
    state: str = ""
    uptime_s: float | None = None
    bootstrap_s: float | None = None  # from its launch until it could be used
    cpus: float | None = None
    cpus_free: float | None = None
    memory_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    gpus: int | None = None
    gpus_free: int | None = None
    running: int | None = None
    pending: int | None = None
    cuda: str = ""
    driver: str = ""
    pressure: float | None = None
    age_s: float | None = None
    faults: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()
    gpu: GpuUse | None = None  # all its GPUs together; None: it has none, or nobody reads them
    devices: tuple[GpuDevice, ...] = ()  # one by one


@dataclass(slots=True, frozen=True)
class ReplicaRow:
    """Row of the view: one replica now, routed by Holdfast or only seen on its platform.

    ``faults`` are texts, ``incidents`` ids; None: unknown.
    """

    id: str
    model: str
    state: str  # of the fleet (ready, suspect …) or of the platform (pending, running, stopped)
    source: str = "fleet"
    routed: bool = False  # Holdfast sends it requests
    revision: str = ""
    reason: str = ""
    group: str = ""
    host: str = ""
    zone: str = ""
    endpoint: str = ""
    phase: str = ""
    share: float | None = None  # of its model's requests
    inflight: int | None = None
    running: int | None = None  # in the engine
    waiting: int | None = None
    kv_used: float | None = None
    tokens_s: float | None = None
    ttft_s: float | None = None  # median of the last minute
    tpot_s: float | None = None  # the same of each further token
    canary_s: float | None = None  # latency of its last canary
    canary_verdict: str = ""  # of that: pass, slow, wrong …; empty: it has not been asked
    reserved_bytes: int | None = None
    limit_bytes: int | None = None
    used_bytes: int | None = None
    exhausted_in_s: float | None = None  # where memory climbs: until it is full
    gpus: int | None = None
    uptime_s: float | None = None
    silent_s: float | None = None
    restarts: int | None = None
    filesystem: str = ""
    log_stream: str = ""
    image: str = ""
    age_s: float | None = None
    faults: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()
    gpu: GpuUse | None = None  # of the GPUs it runs on; None: unknown, or it has none
    inferences_s: float | None = None  # of an inference server: requests that ended in it
    failed_share: float | None = None  # of those, by its own counts
    queue_s: float | None = None  # mean wait in the server's queue, in the last minute
    compute_s: float | None = None  # mean time that the server computed one batch
    batch: float | None = None  # inferences for each execution
    batch_max: int | None = None  # the largest since its start
    engine_gpu_used_bytes: int | None = None  # of its devices, by its server; with others' use
    engine_gpu_total_bytes: int | None = None
    image_asked: str = ""  # the image's name in its definition, where ``image`` has more


@dataclass(slots=True, frozen=True)
class ModelRow:
    """Row of the view: one model now, its replicas, load, latency and use of its error budget.

    ``faults`` are texts, ``incidents`` ids; None: unknown.
    """

    name: str
    ready: int = 0
    replicas: int = 0
    desired: int | None = None
    inflight: int | None = None
    waiting: int | None = None  # at gateways and in queues of the platform together
    backlog_share: float | None = None  # of all waiting work, 0 to 1
    requests_s: float | None = None
    tokens_s: float | None = None
    kv_used: float | None = None  # mean over its replicas
    prefix_hits: float | None = None  # share, 0 to 1
    ttft_s: float | None = None
    errors_share: float | None = None
    burn: float | None = None  # of its error budget, in the last hour; 1 is just sustainable
    faults: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class QueueRow:
    """Row of the view: one queue now, of the gateways or of a platform. None: unknown."""

    name: str
    model: str
    source: str
    visible: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    dead_letters: int | None = None
    oldest_s: float | None = None
    share: float | None = None  # of all visible work
    age_s: float | None = None
    faults: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()
    drain_s: float | None = None  # until it is worked off, at the present rate


@dataclass(slots=True, frozen=True)
class DiskRow:
    """Row of the view: one shared filesystem now, its bandwidth and operations against limits.

    None: unknown, or there is no limit.
    """

    id: str
    source: str
    mode: str = ""
    read_bytes_s: float | None = None
    metered_bytes_s: float | None = None
    permitted_bytes_s: float | None = None
    used_share: float | None = None  # of what is permitted; None where there is no ceiling
    operations_share: float | None = None
    burst_credit_bytes: float | None = None
    clients: int | None = None
    age_s: float | None = None
    faults: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class UnmetRow:
    """Row of the view: replicas of one model that were asked for and do not run, and why."""

    model: str
    missing: int
    reason: str
    since_s: float | None = None
    source: str = ""


@dataclass(slots=True, frozen=True)
class WarningRow:
    """Row of the view: one early warning, something fills up and is no incident yet."""

    kind: str  # filesystem or replica
    about: str  # its id
    used_share: float  # of what is permitted
    text: str


@dataclass(slots=True, frozen=True)
class IncidentRow:
    """Row of the view: one incident that is not closed, with cause, action and fix in words."""

    id: str
    title: str
    failure_class: str
    cause: str
    stage: str
    confidence: float
    about: str
    opened_s: float  # ago
    replicas: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()  # texts
    action: str = ""
    fix: str = ""


@dataclass(slots=True, frozen=True)
class Snapshot:
    """The joined view of the whole fleet at one moment: a tuple of rows for each table.

    Plain data for the admin API and its pages; it decides nothing and is never changed.
    """

    at: float  # seconds since 1970
    version: int = 0  # grows with each that differs
    calls: int = 0  # to platforms, for the latest readings together
    took_s: float = 0.0
    sources: tuple[SourceRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    hosts: tuple[HostRow, ...] = ()
    replicas: tuple[ReplicaRow, ...] = ()
    models: tuple[ModelRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()
    disks: tuple[DiskRow, ...] = ()
    unmet: tuple[UnmetRow, ...] = ()
    incidents: tuple[IncidentRow, ...] = ()
    totals: dict[str, Any] = field(default_factory=dict)  # requests_s, tokens_s, gateways …
    notes: tuple[str, ...] = ()
    warnings: tuple[WarningRow, ...] = ()


__all__ = [
    "DiskRow",
    "GroupRow",
    "HostRow",
    "IncidentRow",
    "ModelRow",
    "QueueRow",
    "ReplicaRow",
    "Snapshot",
    "SourceRow",
    "UnmetRow",
    "WarningRow",
]
