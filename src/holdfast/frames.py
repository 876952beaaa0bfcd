"""What control and gateways say to each other over a stream socket, and how it is framed.

    4 bytes, big-endian: length │ msgpack array: tag, field, field, …

    control ─► gateway   Welcome ConfigFrame ViewFrame LoadFrame LeaseFrame MoveFrame DrainFrame
                         ExplainAsk MetricsAsk Bye
    gateway ─► control   Hello SeenFrame EpochFrame ExplainAnswer MetricsAnswer StatsFrame

The two may differ in version for as long as a rolling restart takes. So a tag that is not known is
skipped and counted; a new field goes to the end of its frame and has a default, and an older reader
passes over it; a meaning that changes gets a new tag; a breach of that raises ``PROTOCOL``.
Anything else that cannot be read ends the connection: after one misread length nothing is certain.

Frames hold plain fields, not the core's classes, so that renaming one there changes nothing here.
JSON was rejected (three times the size for a view, no bytes), pickle too (it runs what it reads),
and a schema compiler: one language speaks on both ends.
"""

from collections.abc import Iterable
from typing import Final, get_args

import msgspec

from holdfast.core.messages import (
    FleetView,
    LoadReported,
    ReplicaView,
    Report,
    Seen,
    Summary,
    Tally,
)
from holdfast.core.types import ConfigError, Replica, State

PROTOCOL: Final = 1
FRAME_BYTES_MAX: Final = 16 << 20  # a view of 50,000 replicas; a config of the same
HEADER_BYTES: Final = 4


class FrameError(ValueError):
    """Bytes that are no frame, or a frame that cannot be sent; the connection is to be closed."""


# --- control to gateway --------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """Control's first frame, in answer to Hello."""

    epoch: int  # of the config that control runs
    control_id: str
    protocol: int = PROTOCOL


class ConfigFrame(msgspec.Struct, frozen=True, array_like=True, tag="config"):
    """The fleet file as control read it; answered by EpochFrame."""

    epoch: int
    config: bytes  # JSON


class ReplicaRow(msgspec.Struct, frozen=True, array_like=True):
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


class ViewFrame(msgspec.Struct, frozen=True, array_like=True, tag="view"):
    """The fleet as control sees it; see ``view_to_frame``."""

    version: int
    epoch: int
    panic: list[str]
    replicas: list[ReplicaRow]


class LoadFrame(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """What engines say of their load: model, replica, tokens, waiting, KV use; None = unsaid."""

    loads: list[tuple[str, str, int | None, int | None, float | None]]


class LeaseFrame(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """This gateway's part of what all gateways share, until the next lease."""

    quota: dict[str, float]  # by tenant: the part of its quota, 0 to 1; absent = unchanged
    retry_share: float  # of the retry budget
    trial: list[tuple[str, str]]  # (model, replica) whose half-open trial this gateway may run
    gateways: int  # how many share


class MoveFrame(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """Cut what still runs on this replica and continue it elsewhere."""

    model: str
    replica_id: str


class DrainFrame(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Stop accepting, finish what runs, be gone by the deadline."""

    deadline_s: float


class ExplainAsk(msgspec.Struct, frozen=True, array_like=True, tag="explain-ask"):
    """Tell the story of a request, if it was yours."""

    request_id: int | str
    ask_id: int


class MetricsAsk(msgspec.Struct, frozen=True, array_like=True, tag="metrics-ask"):
    """Send all metrics now."""

    ask_id: int


class Bye(msgspec.Struct, frozen=True, array_like=True, tag="bye"):
    """Control closes this connection on purpose."""

    reason: str


# --- gateway to control --------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A gateway's first frame."""

    gateway_id: str
    pid: int
    protocol: int = PROTOCOL


class ReportRow(msgspec.Struct, frozen=True, array_like=True):
    """A Report of the core."""

    model: str
    replica_id: str
    what: str
    reason: str


class TallyRow(msgspec.Struct, frozen=True, array_like=True):
    """A Tally of the core."""

    model: str
    replica_id: str
    successes: int
    failures: int
    backpressure: int
    inflight: int
    tokens: int


class SeenFrame(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """Passive evidence; see ``seen_to_frame``."""

    reports: list[ReportRow]
    tallies: list[TallyRow]
    dropped: int  # reports lost since the last frame because the ring was full


class EpochFrame(msgspec.Struct, frozen=True, array_like=True, tag="epoch"):
    """Which config this gateway runs after a ConfigFrame, and why not the offered one."""

    epoch: int
    accepted: bool
    reason: str = ""


class ExplainAnswer(msgspec.Struct, frozen=True, array_like=True, tag="explain"):
    """The story of a request, or that this gateway does not know it."""

    ask_id: int
    found: bool
    story: bytes = b""  # JSON


class MetricsAnswer(msgspec.Struct, frozen=True, array_like=True, tag="metrics"):
    """All metrics of this gateway, encoded by its own registry."""

    ask_id: int
    metrics: bytes


class StatsFrame(msgspec.Struct, frozen=True, array_like=True, tag="stats"):
    """How this gateway fares, sent from time to time."""

    counters: dict[str, int | float]  # since its start
    gauges: dict[str, int | float]
    readiness: bool  # what its /readyz would answer
    reason: str = ""  # why it is not ready
    demand: dict[str, float] = {}  # by tenant: requests since the last frame, refused ones too
    wanted: list[tuple[str, str]] = []  # (model, replica) whose half-open trial is due here
    trying: list[tuple[str, str]] = []  # (model, replica) whose trial runs here now


ToGateway = (
    Welcome
    | ConfigFrame
    | ViewFrame
    | LoadFrame
    | LeaseFrame
    | MoveFrame
    | DrainFrame
    | ExplainAsk
    | MetricsAsk
    | Bye
)
ToControl = Hello | SeenFrame | EpochFrame | ExplainAnswer | MetricsAnswer | StatsFrame
Frame = ToGateway | ToControl

TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Frame))

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Frame]] = msgspec.msgpack.Decoder(Frame)
_ANYTHING: Final = msgspec.msgpack.Decoder()
# What the codec lets out besides its own errors: bad UTF-8, for one, is a plain ValueError.
_CODEC_ERRORS: Final = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
)


# --- framing -------------------------------------------------------------------------------------


def encode(frame: Frame) -> bytes:
    """The bytes of one frame, to be written as they are."""
    try:
        payload = _ENCODER.encode(frame)
    except _CODEC_ERRORS as error:
        raise FrameError(f"{type(frame).__name__} cannot be encoded: {error}") from error
    if len(payload) > FRAME_BYTES_MAX:
        raise FrameError(
            f"{type(frame).__name__} has {len(payload)} bytes, the most is {FRAME_BYTES_MAX}"
        )
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameReader:
    """Puts frames together from the pieces a socket gives; one for each connection.

    Holds at most one incomplete frame. After a FrameError it reads nothing more.
    """

    __slots__ = ("_broken", "_buffer", "skipped")

    def __init__(self) -> None:
        self.skipped = 0  # frames of a newer peer whose tag is not known here
        self._buffer = bytearray()
        self._broken: FrameError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with these bytes, in order."""
        if self._broken is not None:
            raise self._broken
        self._buffer += data
        try:
            return self._complete()
        except FrameError as error:
            self._broken = error
            self._buffer.clear()
            raise

    def _complete(self) -> list[Frame]:
        buffer = self._buffer
        frames: list[Frame] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            size = int.from_bytes(buffer[start:body], "big")
            if size > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {size} bytes comes, the most is {FRAME_BYTES_MAX}")
            if len(buffer) - body < size:
                break
            start = body + size
            frame = _decode(bytes(buffer[body:start]))
            if frame is None:
                self.skipped += 1
            else:
                frames.append(frame)
        del buffer[:start]
        return frames


def _decode(payload: bytes) -> Frame | None:
    """One frame, or None for a tag that is not known here."""
    try:
        return _DECODER.decode(payload)
    except _CODEC_ERRORS as error:
        tag = _tag_of(payload)
        if tag is not None and tag not in TAGS:
            return None
        raise FrameError(f"a frame {tag or 'without a tag'} cannot be read: {error}") from error


def _tag_of(payload: bytes) -> str | None:
    """The tag of a frame that did not decode; None where there is none. Off the usual path."""
    try:
        content = _ANYTHING.decode(payload)
    except _CODEC_ERRORS:
        return None
    if isinstance(content, list) and content and isinstance(content[0], str):
        return content[0]
    return None


# --- to and from the core ------------------------------------------------------------------------


def view_to_frame(view: FleetView) -> ViewFrame:
    """A fleet view as it travels."""
    rows = []
    for seen in view.replicas:
        replica = seen.replica
        rows.append(
            ReplicaRow(
                replica.id,
                replica.model,
                replica.revision,
                replica.zone,
                replica.region,
                replica.slots,
                replica.weight,
                seen.state.value,
                seen.share,
                seen.firm,
                seen.reason,
            )
        )
    return ViewFrame(view.version, view.epoch, list(view.panic), rows)


def frame_to_view(frame: ViewFrame) -> FleetView:
    """The view that was sent; FrameError if it holds what no replica can be."""
    try:
        replicas = tuple(_replica_view(row) for row in frame.replicas)
    except ConfigError as error:
        raise FrameError(f"view {frame.version} cannot be used: {error}") from error
    return FleetView(frame.version, replicas, tuple(frame.panic), frame.epoch)


def _replica_view(row: ReplicaRow) -> ReplicaView:
    state = _STATES.get(row.state)
    if state is None:
        raise ConfigError("replica.state", f"is {row.state!r}", "upgrade this gateway")
    replica = Replica(row.id, row.model, row.revision, row.zone, row.region, row.slots, row.weight)
    return ReplicaView(replica, state, row.share, row.firm, row.reason)


_STATES: Final = {state.value: state for state in State}


def loads_to_frame(loads: Iterable[LoadReported]) -> LoadFrame:
    """Load reports as they travel."""
    return LoadFrame(
        [(one.model, one.replica_id, one.tokens, one.waiting, one.kv_used) for one in loads]
    )


def frame_to_loads(frame: LoadFrame) -> list[LoadReported]:
    """The load reports that were sent, each an event for the flow."""
    return [LoadReported(*row) for row in frame.loads]


def seen_to_frame(actions: Iterable[Report | Summary], dropped: int = 0) -> SeenFrame:
    """A gateway's reports and summaries as they travel; several summaries become one."""
    reports: list[ReportRow] = []
    tallies: list[TallyRow] = []
    for action in actions:
        if isinstance(action, Report):
            reports.append(ReportRow(action.model, action.replica_id, action.what, action.reason))
        else:
            tallies.extend(_tally_row(tally) for tally in action.tallies)
    return SeenFrame(reports, tallies, dropped)


def _tally_row(tally: Tally) -> TallyRow:
    return TallyRow(
        tally.model,
        tally.replica_id,
        tally.successes,
        tally.failures,
        tally.backpressure,
        tally.inflight,
        tally.tokens,
    )


def frame_to_seen(frame: SeenFrame, gateway: str) -> Seen:
    """What was seen, as an event for the fleet: the reports, then one summary if there is any."""
    actions: list[Report | Summary] = [
        Report(row.model, row.replica_id, row.what, row.reason) for row in frame.reports
    ]
    if frame.tallies:
        tallies = (msgspec.structs.astuple(row) for row in frame.tallies)
        actions.append(Summary(tuple(Tally(*fields) for fields in tallies)))
    return Seen(tuple(actions), gateway)


__all__ = [
    "FRAME_BYTES_MAX",
    "PROTOCOL",
    "TAGS",
    "Bye",
    "ConfigFrame",
    "DrainFrame",
    "EpochFrame",
    "ExplainAnswer",
    "ExplainAsk",
    "Frame",
    "FrameError",
    "FrameReader",
    "Hello",
    "LeaseFrame",
    "LoadFrame",
    "MetricsAnswer",
    "MetricsAsk",
    "MoveFrame",
    "ReplicaRow",
    "ReportRow",
    "SeenFrame",
    "StatsFrame",
    "TallyRow",
    "ToControl",
    "ToGateway",
    "ViewFrame",
    "Welcome",
    "encode",
    "frame_to_loads",
    "frame_to_seen",
    "frame_to_view",
    "loads_to_frame",
    "seen_to_frame",
    "view_to_frame",
]
