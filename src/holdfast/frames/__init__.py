"""The messages between control and gateways over a stream socket, and their framing.

    4 bytes, big-endian: length │ msgpack array: tag, field, field, …

    control ─► gateway   Challenge
                         Welcome ConfigFrame ViewFrame LoadFrame LeaseFrame MoveFrame
                         DetoursFrame DrainFrame BlockFrame ExplainAsk MetricsAsk Bye
    gateway ─► control   Introduction Proof
                         Hello SeenFrame EpochFrame ExplainAnswer MetricsAnswer StatsFrame
                         TracesFrame

The first lines authenticate both ends where the connection itself does not: see ``authentication``.

The two may differ in version for as long as a rolling restart takes. So a tag that is not known is
skipped and counted; a new field goes to the end of its frame and has a default, and an older reader
ignores it; a meaning that changes gets a new tag; a breach of that raises ``PROTOCOL``.
Anything else that cannot be read ends the connection: after one misread length nothing is certain.

Frames hold plain fields, not the core's classes, so that renaming one there changes nothing here.
JSON was rejected (three times the size for a view, no bytes), pickle too (it runs what it reads),
and a schema compiler: one language speaks on both ends.
"""

from holdfast.frames.framing import FrameReader, encode
from holdfast.frames.kinds import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    TAGS,
    BlockFrame,
    Bye,
    Challenge,
    ConfigFrame,
    DetoursFrame,
    DrainFrame,
    EpochFrame,
    ExplainAnswer,
    ExplainAsk,
    Frame,
    FrameError,
    Hello,
    Introduction,
    LeaseFrame,
    LoadFrame,
    MetricsAnswer,
    MetricsAsk,
    MoveFrame,
    Proof,
    ReplicaViewRow,
    ReportRow,
    SeenFrame,
    SpanRow,
    StatsFrame,
    TallyRow,
    ToControl,
    ToGateway,
    TraceRow,
    TracesFrame,
    ViewFrame,
    Welcome,
    tag_of,
)
from holdfast.frames.translation import (
    frame_to_loads,
    frame_to_seen,
    frame_to_view,
    loads_to_frame,
    seen_to_frame,
    view_to_frame,
)

__all__ = [
    "FRAME_BYTES_MAX",
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
    "FrameReader",
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
    "encode",
    "frame_to_loads",
    "frame_to_seen",
    "frame_to_view",
    "loads_to_frame",
    "seen_to_frame",
    "tag_of",
    "view_to_frame",
]
