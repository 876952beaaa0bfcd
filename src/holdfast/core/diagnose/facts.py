"""The facts that detectors read: one small value for each kind of observation of a fleet.

    launcher, gateways, canaries, engines, hosts ─► facts ─► detectors ─► evidence ─► incident

A fact is what was observed, before any judgement. Detectors read nothing else, so that a live
fleet, a simulation, a written history and an exported incident are all the same to them: a sequence
of facts with times. ``None`` is unknown everywhere; it is neither zero nor full. No fact holds a
word of a prompt or of an answer.

Rejected: one snapshot of everything, taken at intervals. What happens between two snapshots is what
incidents are made of, and two sources that are late by different amounts make no common picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast.core.canary import CanarySuspect, CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.health.process_watch import Condition
from holdfast.core.types import HostCondition, State


class Mark(StrEnum):
    """What a line of an engine's or a kernel's log means, independent of the engine."""

    GPU_MEMORY_FULL = "gpu_memory_full"
    HOST_MEMORY_FULL = "host_memory_full"
    CUDA_CORRUPTED = "cuda_corrupted"  # illegal access, device-side assert: the context is lost
    GPU_DAMAGED = "gpu_damaged"  # uncorrectable ECC, fallen off the bus
    DRIVER_MISMATCH = "driver_mismatch"  # driver too old, no kernel image for this GPU
    CPU_FALLBACK = "cpu_fallback"  # it wanted a GPU and runs without
    MODEL_MISSING = "model_missing"  # no such file, bad checksum, unknown architecture
    CONFIG_REFUSED = "config_refused"  # the engine refuses its own arguments
    DISK_FULL = "disk_full"
    PORT_TAKEN = "port_taken"
    COLLECTIVE_TIMEOUT = "collective_timeout"  # NCCL and its like wait for a rank that is gone
    TRANSFER_FAILED = "transfer_failed"  # KV cache between prefill and decode
    KV_EXHAUSTED = "kv_exhausted"  # preemption, "no free blocks", refused for lack of cache
    ALLOCATION_FAILED = "allocation_failed"  # refused although memory is free in sum
    NOT_FINITE = "not_finite"  # NaN or infinite logits
    ENGINE_DEAD = "engine_dead"  # the server says its engine has died
    WATCHDOG = "watchdog"  # the engine's own timer for a stuck scheduler fired


# --- what is declared -----------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Declared:
    """Fact: a replica as it is configured; sent again whenever its configuration changes."""

    replica: str
    model: str
    revision: str = ""
    host: str = ""
    zone: str = ""
    filesystem: str = ""  # what its weights are read from
    role: str = ""  # prefill or decode, where they are apart
    needs_gpu: bool | None = None
    weights_bytes: int | None = None
    kv_bytes: int | None = None
    reserved_bytes: int | None = None  # what the scheduler set aside for it
    limit_bytes: int | None = None  # where the kernel kills it
    managed: bool = False  # Holdfast started it and can restart it


@dataclass(slots=True, frozen=True)
class Gone:
    """Fact, an event: a replica left the fleet on purpose; its records are dropped."""

    replica: str


@dataclass(slots=True, frozen=True)
class ChainDeclared:
    """Fact: a chain of the fleet file: models that serve one request in turn, first to last."""

    name: str
    models: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class RolloutSeen:
    """Fact, an event: a model's deployment to ``revision`` began, was halted or is finished."""

    model: str
    revision: str
    what: str  # began, halted or finished


# --- hosts and platforms --------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class HostSeen:
    """Fact: the size of one host and what is free there now; None: unknown."""

    host: str
    gpus: int | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None  # not reserved by anybody
    group: str = ""
    gpus_free: int | None = None  # that nobody has taken


@dataclass(slots=True, frozen=True)
class HostConditionSeen:
    """Fact: a platform says whether a host can run replicas; not sent while unknown."""

    host: str
    condition: HostCondition
    reason: str = ""  # in the platform's words
    lasted_s: float | None = None
    source: str = ""


@dataclass(slots=True, frozen=True)
class VersionsSeen:
    """Fact: the software versions of one replica, from driver to image; empty: unknown."""

    replica: str
    cuda: str = ""
    driver: str = ""
    engine: str = ""
    digest: str = ""  # of the model's weights
    image: str = ""  # of its container, with tag or digest
    nccl: str = ""
    image_digest: str = ""  # of the bytes that run, where the platform says so beside the name
    image_asked: str = ""  # the name in its definition, where ``image`` has more; empty: ``image``


@dataclass(slots=True, frozen=True)
class FilesystemSeen:
    """Fact: the present load of one shared filesystem and its limits; None: unknown or no limit."""

    filesystem: str
    read_bytes_s: float | None = None
    permitted_bytes_s: float | None = None  # None: it has no ceiling, or nobody knows it
    operations_share: float | None = None  # of the operations it permits, 0 to 1
    readers: int | None = None


@dataclass(slots=True, frozen=True)
class QueueSeen:
    """Fact: the depth of one model's queue now, at gateways or on a platform; None: unknown."""

    model: str
    waiting: int
    in_flight: int | None = None
    dead_letters: int | None = None
    oldest_s: float | None = None
    deliveries: float | None = None  # how often the same message was handed out, on average


@dataclass(slots=True, frozen=True)
class GpuFault:
    """Fact, an event: the driver reported a fault (Xid) of a GPU that this replica uses."""

    replica: str
    xid: int
    fatal: bool
    detail: str = ""
    reporter: str = ""  # who told control; empty: control saw it itself


@dataclass(slots=True, frozen=True)
class GpuSeen:
    """Fact: figures of one GPU of a host now, and the known replicas on it; None: unknown."""

    host: str
    gpu: str  # its id: the driver's UUID, or its index
    label: str = ""  # how people call it
    replicas: tuple[str, ...] = ()
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation: float | None = None  # 0 to 1
    temperature_c: float | None = None
    temperature_max_c: float | None = None  # the board's own bound
    power_limit_w: float | None = None
    power_default_w: float | None = None
    ecc_uncorrected: int | None = None  # since the driver was loaded
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    throttle: tuple[str, ...] | None = None  # of core.gpu: THERMAL, POWER_BRAKE …
    reporter: str = ""  # who told control; empty: control saw it itself


# --- processes ------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class ProcessEnded:
    """Fact, an event: a replica's process ended, asked for or not; None: unknown."""

    replica: str
    code: int | None = None
    signal: int | None = None
    oom: bool = False  # the kernel was seen to do it, or the platform says so
    asked: bool = False  # we had told it to
    phase: str = ""  # what it was doing: starting, loading, compile, warm-up, serving
    uptime_s: float | None = None
    served: int | None = None  # requests it had been given in this life
    oom_ruled_out: bool = False  # the kernel was watched, and killed nobody for memory just then
    reason: str = ""  # in the words of its platform, for people; empty: it said nothing
    host_lost: bool = False  # its platform says that its host died or was taken back


@dataclass(slots=True, frozen=True)
class ProcessFrozen:
    """Fact, an event: a replica's process was suspended by its platform, or runs again."""

    replica: str
    frozen: bool


@dataclass(slots=True, frozen=True)
class PhaseSeen:
    """Fact: the phase a starting replica is in, and bytes of weights read (None: unknown)."""

    replica: str
    phase: str
    read_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(slots=True, frozen=True)
class LineSeen:
    """Fact, an event: a replica's log has a line of known meaning; its text is not kept."""

    replica: str
    mark: Mark
    peer: str = ""  # the replica it names, where it names one
    reporter: str = ""  # who told control; empty: control saw it itself


@dataclass(slots=True, frozen=True)
class FellSilent:
    """Fact, an event: a replica gave no output for longer than its phase allows."""

    replica: str
    phase: str
    silent_s: float


@dataclass(slots=True, frozen=True)
class MemorySeen:
    """Fact: memory in use by one replica now, on its host or GPU; None: unknown.

    ``requests``, served so far, separates growth by traffic from a leak.
    """

    replica: str
    used_bytes: int
    limit_bytes: int | None = None
    device: str = "host"  # host or gpu
    requests: int | None = None  # served so far in this life
    reporter: str = ""  # who told control; empty: control saw it itself, or its platform did


# --- what it answers ------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class StateChanged:
    """Fact, an event: the fleet moved a replica to this health state, because of ``signal``."""

    replica: str
    state: State
    signal: str  # of lifecycle.Signal or Conclusion: what moved it
    detail: str = ""


@dataclass(slots=True, frozen=True)
class CanaryAnswered:
    """Fact, an event: one canary of a replica ended, or timed out and is still read (``reads_on``).

    Its verdict, its latency and what ran beside it; None: unknown.
    """

    replica: str
    verdict: CanaryVerdict
    latency_s: float | None = None
    running: int | None = None  # other requests in the engine meanwhile
    progress: bool | None = None  # whether users' tokens moved meanwhile
    page_ok: bool | None = None  # whether its own health page answered well just before
    status: int | None = None  # of the HTTP answer, where one came
    moved_s: float | None = None  # from the first piece of the answer to the last that came
    flaw: str = ""  # a kind of failure (empty, degenerate, cut, reset, connect_timeout)
    gap_s: float | None = None  # the longest time between two of these pieces
    began: bool = False  # a piece came, of one that was not complete in time
    quiet_s: float | None = None  # since the last piece of one that was not complete in time
    reads_on: bool = False  # a timeout whose answer is still read: more will be known of it
    next_gap_s: float | None = None  # the second longest time between two of its pieces


@dataclass(slots=True, frozen=True)
class AttemptsSeen:
    """Fact: users' requests on one replica in the last ``span_s``, summed over all gateways.

    Counts of ended attempts (failures by kind, aborted ones left out); ``inflight`` and ``unread``
    are the numbers now.
    """

    replica: str
    span_s: float
    successes: int = 0
    backpressure: int = 0
    inflight: int = 0
    tokens: int = 0
    failures: Mapping[Kind, int] = field(default_factory=dict)
    fast: int = 0  # of the failures, those that came faster than any real answer
    share: float | None = None  # of its model's attempts in this span
    waits: tuple[float, ...] = ()  # first tokens, as multiples of the pool's usual for their length
    unread: int = 0  # tokens of long prompts whose first token is waited for, now
    # For how long reading those prompts may keep the replica silent, by gateways that weigh each
    # tenant's prompts; None: no gateway said so.
    explained_s: float | None = None
    # Tokens of prompts whose first token is waited for, now, and of those of answers in one piece;
    # None: some gateway that has requests there did not say.
    prompts: int | None = None


@dataclass(slots=True, frozen=True)
class LoadSeen:
    """Fact: an engine's own load now and its counters since its start; None: unknown."""

    replica: str
    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None  # share of its cache, 0 to 1
    generated: int | None = None  # tokens since its start
    preemptions: int | None = None  # since its start
    prefix_asked: int | None = None  # tokens looked up in its prefix cache, since its start
    prefix_found: int | None = None  # tokens of those that were there
    prefix_hits: float | None = None  # share that was there, lately, of one that counts no tokens
    steps: int | None = None  # passes or tokens since its start, those of prompts included


@dataclass(slots=True, frozen=True)
class InferencesSeen:
    """Fact: an inference server's counts since its start, and figures now; None: unknown."""

    replica: str
    successes: int | None = None
    failures: int | None = None  # in the server; refused and cancelled requests are not in it
    inferences: int | None = None
    executions: int | None = None
    queue_s: float | None = None  # of all requests together
    compute_s: float | None = None
    pending: int | None = None  # now
    batch_max: int | None = None
    model_gpu_bytes: int | None = None
    gpu_used_bytes: int | None = None  # of its devices, with what others use there
    gpu_total_bytes: int | None = None
    gpu_busy: float | None = None


@dataclass(slots=True, frozen=True)
class OutputSeen:
    """Fact: one statistic of a replica's recent answers, a number for each; never their text."""

    replica: str
    statistic: str  # length, logprob, score or norm
    values: tuple[float, ...]


@dataclass(slots=True, frozen=True)
class FinishesSeen:
    """Fact: how many answers of one replica ended by each finish reason since the last report."""

    replica: str
    reasons: Mapping[str, int]


@dataclass(slots=True, frozen=True)
class Compared:
    """Fact, an event: two replicas answered the same live request, and agreed or not.

    It does not say which of the two is right.
    """

    replica: str
    peer: str
    agreed: bool


@dataclass(slots=True, frozen=True)
class RequestDied:
    """Fact, an event: a replica died, or lost its GPU context, while it worked on this request.

    The request is named by a keyed hash only; one request gives several such facts.
    """

    replica: str
    fingerprint: str  # a keyed hash of its body: the same request, not what it said
    ago_s: float = 0.0  # since the death: a request may have waited for another replica in vain


@dataclass(slots=True, frozen=True)
class CanariesDoubted:
    """Every canary of a model fails at once; ``suspect`` says what is likely to blame.

    The two flags are how exported incidents write the suspect down; nothing else reads them.
    """

    model: str
    detail: str = ""
    answered: bool = True  # false: SHARED
    confirmed: bool = False  # true: REPLICAS

    @classmethod
    def by(cls, suspect: CanarySuspect, model: str, detail: str = "") -> "CanariesDoubted":
        """Return the fact that all canaries of this model are doubted, with this suspect."""
        answered = suspect is not CanarySuspect.SHARED
        return cls(model, detail, answered, confirmed=suspect is CanarySuspect.REPLICAS)

    @property
    def suspect(self) -> CanarySuspect:
        """What is suspected: the replicas, something they share, or the checker."""
        if self.confirmed:
            return CanarySuspect.REPLICAS
        return CanarySuspect.CHECKER if self.answered else CanarySuspect.SHARED


@dataclass(slots=True, frozen=True)
class ControlLate:
    """Fact, an event: one tick of control's own event loop came ``late_s`` seconds late."""

    late_s: float


@dataclass(slots=True, frozen=True)
class SourceFailing:
    """Fact: a part of a source, such as a cluster's pods, is unreadable for ``failing_s`` now."""

    source: str
    part: str
    failing_s: float
    reason: str


@dataclass(slots=True, frozen=True)
class ReplicasWanted:
    """Fact: a platform is asked for replicas of a model that it does not run; counts as of now.

    Includes how long they wait and the platform's reason; for launched replicas, control's.
    """

    model: str
    desired: int
    running: int
    pending: int
    waited_s: float
    reason: str
    source: str
    gpus: int | None = None  # that each of them needs


@dataclass(slots=True, frozen=True)
class ServingProcessFrozen:
    """Fact: a gateway, control or the supervisor has stood still for ``lasted_s``.

    Seen by the supervisor (of the supervisor: by control). ``replaced``: it was killed and started
    anew.
    """

    process: str  # its place: control, gateway-0
    pid: int
    condition: Condition
    lasted_s: float
    replaced: bool


@dataclass(slots=True, frozen=True)
class OwnShortage:
    """Fact: a process of Holdfast lacked a resource ``count`` times since its last report."""

    process: str  # "control", or a gateway's name
    resource: str  # descriptors, memory or ports
    count: int
    limit: int = 0  # on open files, of the process; 0: not known


@dataclass(slots=True, frozen=True)
class Looked:
    """Fact without content: a tick, about once a second, so that detectors notice time passing."""


Fact = (
    Declared
    | Gone
    | ChainDeclared
    | RolloutSeen
    | HostSeen
    | HostConditionSeen
    | VersionsSeen
    | FilesystemSeen
    | QueueSeen
    | GpuFault
    | GpuSeen
    | ProcessEnded
    | ProcessFrozen
    | PhaseSeen
    | LineSeen
    | FellSilent
    | MemorySeen
    | StateChanged
    | CanaryAnswered
    | AttemptsSeen
    | LoadSeen
    | InferencesSeen
    | OutputSeen
    | FinishesSeen
    | Compared
    | RequestDied
    | CanariesDoubted
    | ControlLate
    | ServingProcessFrozen
    | SourceFailing
    | ReplicasWanted
    | OwnShortage
    | Looked
)

# Names of kinds in exports, in stores and in reports: a class may be renamed, its name here not.
FACT_NAMES: Final[Mapping[type, str]] = {
    Declared: "Declared",
    Gone: "Gone",
    ChainDeclared: "ChainDeclared",
    RolloutSeen: "RolloutSeen",
    HostSeen: "HostSeen",
    HostConditionSeen: "HostConditionSeen",
    VersionsSeen: "VersionsSeen",
    FilesystemSeen: "FilesystemSeen",
    QueueSeen: "QueueSeen",
    GpuFault: "GpuFault",
    GpuSeen: "GpuSeen",
    ProcessEnded: "ProcessEnded",
    ProcessFrozen: "ProcessFrozen",
    PhaseSeen: "PhaseSeen",
    LineSeen: "LineSeen",
    FellSilent: "FellSilent",
    MemorySeen: "MemorySeen",
    StateChanged: "StateChanged",
    CanaryAnswered: "CanaryAnswered",
    AttemptsSeen: "AttemptsSeen",
    LoadSeen: "LoadSeen",
    InferencesSeen: "InferencesSeen",
    OutputSeen: "OutputSeen",
    FinishesSeen: "FinishesSeen",
    Compared: "Compared",
    RequestDied: "RequestDied",
    CanariesDoubted: "CanariesDoubted",
    ControlLate: "ControlLate",
    ServingProcessFrozen: "ServingProcessFrozen",
    SourceFailing: "SourceFailing",
    ReplicasWanted: "ReplicasWanted",
    OwnShortage: "OwnShortage",
    Looked: "Looked",
}

__all__ = [
    "FACT_NAMES",
    "AttemptsSeen",
    "CanariesDoubted",
    "CanaryAnswered",
    "ChainDeclared",
    "Compared",
    "ControlLate",
    "Declared",
    "Fact",
    "FellSilent",
    "FilesystemSeen",
    "FinishesSeen",
    "Gone",
    "GpuFault",
    "GpuSeen",
    "HostConditionSeen",
    "HostSeen",
    "InferencesSeen",
    "LineSeen",
    "LoadSeen",
    "Looked",
    "Mark",
    "MemorySeen",
    "OutputSeen",
    "OwnShortage",
    "PhaseSeen",
    "ProcessEnded",
    "ProcessFrozen",
    "QueueSeen",
    "ReplicasWanted",
    "RequestDied",
    "RolloutSeen",
    "ServingProcessFrozen",
    "SourceFailing",
    "StateChanged",
    "VersionsSeen",
]
