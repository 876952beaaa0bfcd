"""All frames between control and gateways, one class each."""

from typing import Final, get_args

import msgspec

PROTOCOL: Final = 1
FRAME_BYTES_MAX: Final = 16 << 20  # a view of 50,000 replicas; a config of the same
HEADER_BYTES: Final = 4


class FrameError(ValueError):
    """Bytes are no valid frame, or a frame cannot be sent; the connection must be closed."""


# --- before a link is used, where a shared secret authenticates both ends ------------------------


class Introduction(msgspec.Struct, frozen=True, array_like=True, tag="introduction"):
    """A gateway's or standby's first frame: who it is, whom it wants to speak to."""

    gateway_id: str
    observes: bool  # as in the Hello that follows
    control: str  # the member's name
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag="challenge"):
    """Control's answer to an introduction: it proves that it knows the secret, and asks back."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    """The caller's answer to a challenge; its Hello follows."""

    proof: bytes


# --- control to gateway --------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """Control's first frame, in answer to Hello."""

    epoch: int  # of the config that control runs
    control_id: str
    protocol: int = PROTOCOL
    secret: bytes = b""  # the key of requests' fingerprints; without one there are none
    term: int = 0  # in which this control leads; 0: it is the only one


class ConfigFrame(msgspec.Struct, frozen=True, array_like=True, tag="config"):
    """The fleet file as control read it; answered by EpochFrame."""

    epoch: int
    config: bytes  # JSON


class ReplicaViewRow(msgspec.Struct, frozen=True, array_like=True):
    """One (replica, model) of a view: the fields of ReplicaView and of the Replica in it."""

    id: str
    model: str
    revision: str
    zone: str
    region: str
    slots: int
    weight: float
    state: str
    share: float
    firm: bool
    reason: str
    halt: str = ""
    canary_s: float | None = None
    ready_in_s: float | None = None
    host: str = ""
    may_try: bool = True


class ViewFrame(msgspec.Struct, frozen=True, array_like=True, tag="view"):
    """The fleet as control sees it; see ``view_to_frame``."""

    version: int
    epoch: int
    panic: list[str]
    replicas: list[ReplicaViewRow]


class LoadFrame(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Loads that engines report: model, replica, tokens, waiting, KV use; None = unknown."""

    loads: list[tuple[str, str, int | None, int | None, float | None]]
    reading: list[tuple[str, str]] = []  # (model, replica) whose page shows that it reads a prompt


class LeaseFrame(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """One gateway's share of the limits that all gateways share, until the next lease."""

    quota: dict[str, float]  # by tenant: the part of its quota, 0 to 1; absent = unchanged
    retry_share: float  # of the retry budget
    trial: list[tuple[str, str]]  # (model, replica) whose half-open trial this gateway may run
    gateways: int  # how many share


class MoveFrame(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """Tells a gateway to end requests on a replica and continue them on others."""

    model: str
    replica_id: str
    stalled: bool = False  # only what is stuck there


class DetoursFrame(msgspec.Struct, frozen=True, array_like=True, tag="detours"):
    """All replicas that are reached through a detour now; the others are not."""

    detours: dict[str, str]  # replica to URL


class DrainFrame(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Tells a gateway to stop accepting, finish its requests, and end by the deadline."""

    deadline_s: float


class BlockFrame(msgspec.Struct, frozen=True, array_like=True, tag="block"):
    """The complete list of requests to refuse, by fingerprint, and for how many seconds."""

    fingerprints: list[tuple[str, float]]


class ExplainAsk(msgspec.Struct, frozen=True, array_like=True, tag="explain-ask"):
    """Asks a gateway what happened to a request."""

    request_id: int | str
    ask_id: int


class MetricsAsk(msgspec.Struct, frozen=True, array_like=True, tag="metrics-ask"):
    """Asks a gateway for all its metrics."""

    ask_id: int


class Bye(msgspec.Struct, frozen=True, array_like=True, tag="bye"):
    """Control's last frame before it closes the connection on purpose."""

    reason: str


# --- gateway to control --------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A gateway's first frame: its id, process and protocol version."""

    gateway_id: str
    pid: int
    protocol: int = PROTOCOL
    observes: bool = False  # a standby control: it hears all, and serves nobody


class ReportRow(msgspec.Struct, frozen=True, array_like=True):
    """A ``Report`` of the core as plain fields."""

    model: str
    replica_id: str
    what: str
    reason: str


class TallyRow(msgspec.Struct, frozen=True, array_like=True):
    """A ``Tally`` of the core as plain fields."""

    model: str
    replica_id: str
    successes: int
    failures: int
    backpressure: int
    inflight: int
    tokens: int
    kinds: dict[str, int] = {}
    fast: int = 0
    finishes: dict[str, int] = {}
    lengths: list[int] = []
    logprobs: list[float] = []
    norms: list[float] = []
    moved: bool = False
    waits: list[float] = []
    firsts: list[float] = []
    paces: list[float] = []
    withdrawn: int = 0
    scores: dict[str, list[float]] = {}
    unread: int = 0
    explained_s: float | None = None
    prompts: int | None = None


class SeenFrame(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """What a gateway saw of replicas in its requests; see ``seen_to_frame``."""

    reports: list[ReportRow]
    tallies: list[TallyRow]
    dropped: int  # reports lost since the last frame because the ring was full
    died: list[tuple[str, str]] = []  # (replica, fingerprint): its connection died with this on it
    compared: list[tuple[str, str, bool]] = []  # (replica, peer, whether their answers agreed)
    died_ago_s: list[float] = []  # how long ago each of ``died`` was; empty: just now


class EpochFrame(msgspec.Struct, frozen=True, array_like=True, tag="epoch"):
    """Which config a gateway runs after a ConfigFrame, and why it refused the offered one."""

    epoch: int
    accepted: bool
    reason: str = ""


class ExplainAnswer(msgspec.Struct, frozen=True, array_like=True, tag="explain"):
    """What happened to a request, or that this gateway does not know it."""

    ask_id: int
    found: bool
    story: bytes = b""  # JSON


class MetricsAnswer(msgspec.Struct, frozen=True, array_like=True, tag="metrics"):
    """All metrics of this gateway, encoded by its own registry."""

    ask_id: int
    metrics: bytes


class SpanRow(msgspec.Struct, frozen=True, array_like=True):
    """One attempt of a traced request; times in nanoseconds since 1970, 0 = never."""

    replica_id: str
    model: str
    number: int
    began: int
    first: int
    ended: int
    kind: str  # of failure; empty for a complete answer
    input_tokens: int
    output_tokens: int
    host: str
    port: int
    continues: bool
    engine: str = ""
    span_id: str = ""  # as its engine was told; 16 hexadecimal digits


class TraceRow(msgspec.Struct, frozen=True, array_like=True):
    """One traced request, without any text of it or of its answer."""

    request_id: str
    parent: str  # as the caller sent it, checked; empty: it sent none
    tenant: str
    operation: str
    asked: str  # the model that the client named
    model: str  # the one that served
    stream: bool
    status: int
    code: str
    continued: int
    began: int
    first: int
    ended: int
    spans: list[SpanRow]
    trace_id: str = ""  # as engines were told; 32 hexadecimal digits


class TracesFrame(msgspec.Struct, frozen=True, array_like=True, tag="traces"):
    """Traced requests that ended, for the exporter of traces."""

    traces: list[TraceRow]


class StatsFrame(msgspec.Struct, frozen=True, array_like=True, tag="stats"):
    """Counters and state of a gateway, sent periodically."""

    counters: dict[str, int | float]  # since its start
    gauges: dict[str, int | float]
    readiness: bool  # what its /readyz would answer
    reason: str = ""  # why it is not ready
    demand: dict[str, float] = {}  # by tenant: requests since the last frame, refused ones too
    wanted: list[tuple[str, str]] = []  # (model, replica) whose half-open trial is due here
    trying: list[tuple[str, str]] = []  # (model, replica) whose trial runs here now
    shortages: dict[str, int] = {}  # what it lacked itself since the last frame, and how often
    descriptors: int = 0  # its limit on open files; 0: not known
    running: dict[str, int] = {}  # by tenant with a bound on them: requests under way
    keys: list[tuple[str, str, int]] = []  # (tenant, key's name, seconds since 1970) of last uses


ToGateway = (
    Challenge
    | Welcome
    | ConfigFrame
    | ViewFrame
    | LoadFrame
    | LeaseFrame
    | MoveFrame
    | DetoursFrame
    | DrainFrame
    | BlockFrame
    | ExplainAsk
    | MetricsAsk
    | Bye
)
ToControl = (
    Introduction
    | Proof
    | Hello
    | SeenFrame
    | EpochFrame
    | ExplainAnswer
    | MetricsAnswer
    | StatsFrame
    | TracesFrame
)
Frame = ToGateway | ToControl

TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Frame))


def tag_of(frame: Frame) -> str:
    """The tag under which a frame's class is sent."""
    return str(frame.__struct_config__.tag)


__all__ = [
    "FRAME_BYTES_MAX",
    "HEADER_BYTES",
    "PROTOCOL",
    "TAGS",
    "BlockFrame",
    "Bye",
    "Challenge",
    "ConfigFrame",
    "DetoursFrame",
    "DrainFrame",
    "EpochFrame",
    "ExplainAnswer",
    "ExplainAsk",
    "Frame",
    "FrameError",
    "Hello",
    "Introduction",
    "LeaseFrame",
    "LoadFrame",
    "MetricsAnswer",
    "MetricsAsk",
    "MoveFrame",
    "Proof",
    "ReplicaViewRow",
    "ReportRow",
    "SeenFrame",
    "SpanRow",
    "StatsFrame",
    "TallyRow",
    "ToControl",
    "ToGateway",
    "TraceRow",
    "TracesFrame",
    "ViewFrame",
    "Welcome",
    "tag_of",
]
