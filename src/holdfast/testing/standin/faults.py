"""The faults of a stand-in, as one value that can change while it runs.

The kinds are those of ``core.plan.faults`` that concern one replica, and a few more below. Some of
them differ only in how bytes end on a socket, which the core has no word for because its drivers
report them all as the same failure; the others are about pages that only a real engine has. One
fault at a time: a second one replaces the first.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.core.plan.faults import REPLICA_KINDS, FaultKind
from holdfast.testing.standin.ballast import BYTES_MAX


class SocketKind(StrEnum):
    """Faults that only a real socket can show."""

    STALL = "stall"  # the stream stops after ``tokens`` tokens, the connection stays open
    CLOSE = "close"  # it ends after ``tokens`` tokens in good order, with no finish and no [DONE]
    ERROR_FRAME = "error_frame"  # an error as SSE event, then [DONE]: how vLLM reports its death
    STATUS = "status"  # every request is answered with ``code``, at once or when a token was due
    KV_FULL = "kv_full"  # its metrics say that ``share`` of the KV cache is in use; it serves on
    MODEL_MISSING = "model_missing"  # the server is up and green, the model is not loaded: 404
    METRICS_GONE = "metrics_gone"  # its metrics page answers 404; it serves on


Kind = FaultKind | SocketKind

BREAKING: Final = frozenset(
    {FaultKind.CUT, SocketKind.STALL, SocketKind.CLOSE, SocketKind.ERROR_FRAME}
)  # of a stream, at a token


class FaultError(ValueError):
    """A fault that cannot be set, and why."""


class Ailment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault with its parameters; fields that its kind does not use are ignored."""

    kind: str
    factor: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 10.0  # slow
    interval_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0  # drip: one token per so long
    probability: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5  # flaky
    tokens: Annotated[int, msgspec.Meta(ge=0)] = 5  # of a broken stream that still come
    lead_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 120.0  # leak, spot_notice: to death
    # leak: real memory a second, up to ``bytes_max``; then it starves and does not die. 0: lead_s
    bytes_s: Annotated[float, msgspec.Meta(ge=0, le=BYTES_MAX)] = 0.0
    bytes_max: Annotated[int, msgspec.Meta(gt=0, le=BYTES_MAX)] = 256_000_000
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # kv_full; wrong_output: of requests
    marker: Annotated[str, msgspec.Meta(max_length=256)] = ""  # oom: at requests that hold this
    code: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500  # status
    instant: bool = False  # status: at once, not when the first token was due
    retry_after: bool = False  # status: with the header that makes it backpressure
    # garbage: "!" for ever, lines that are no JSON, or JSON that breaks off;
    # close: "end" completes the HTTP message, "fin" closes the connection in the middle of it
    form: Literal["", "bytes", "json", "end", "fin"] = ""
    under_way: bool = False  # garbage: streams that have begun well turn bad too

    @property
    def known(self) -> Kind:
        """The fault's kind as an enum member."""
        return _KINDS[self.kind]


_KINDS: Final[dict[str, Kind]] = {str(kind): kind for kind in (*REPLICA_KINDS, *SocketKind)}
_READER: Final = msgspec.json.Decoder(Ailment)


def read_fault(body: bytes) -> Ailment:
    """Parse a fault that was posted to the side port."""
    try:
        return _checked(_READER.decode(body))
    except msgspec.MsgspecError as error:
        raise FaultError(str(error)) from error


def fault(kind: Kind | str, **how: Any) -> Ailment:
    """Build a fault from code or from the command line."""
    try:
        return _checked(msgspec.convert({"kind": str(kind), **how}, Ailment))
    except msgspec.MsgspecError as error:
        raise FaultError(str(error)) from error


def _checked(ailment: Ailment) -> Ailment:
    if ailment.kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise FaultError(f"{ailment.kind!r} is nothing one replica can have; use {known}")
    return ailment


__all__ = ["BREAKING", "Ailment", "FaultError", "Kind", "SocketKind", "fault", "read_fault"]
