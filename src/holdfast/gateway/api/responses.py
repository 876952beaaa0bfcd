"""Reads one event of a /v1/responses stream: content, end, failure and token count."""

from typing import Any, Final, NamedTuple

import msgspec

from holdfast.gateway.api.answer_schema import KeptAnswer
from holdfast.gateway.http.sse import MalformedStreamError

_ENDS: Final = frozenset({"response.completed", "response.incomplete"})
_FAILS: Final = frozenset({"response.failed", "error"})


class ResponseEvent(NamedTuple):
    """What the gateway reads of one event of a ``/v1/responses`` stream.

    ``finished`` and ``failed`` are by the event's type; ``content`` is true for a delta that is not
    empty.
    """

    content: bool  # something a client would show or act on
    finished: bool
    failed: bool
    output_tokens: int
    input_tokens: int = 0  # 0: the engine did not say
    response_ids: tuple[str, ...] = ()  # the engine's own, of answers that it may keep


class _Usage(msgspec.Struct, gc=False):
    output_tokens: int | None = None
    input_tokens: int | None = None


class _Response(KeptAnswer, gc=False):
    usage: _Usage | None = None


class _Event(msgspec.Struct, gc=False):
    type: str
    delta: Any = None
    response: _Response | None = None


_decode: Final = msgspec.json.Decoder(_Event).decode


def read_response_event(payload: bytes) -> ResponseEvent:
    """Read the payload of one event of a ``/v1/responses`` stream.

    Token counts are 0 unless the event has a usage. Raises only ``MalformedStreamError``, for what
    is not such an event.
    """
    try:
        event = _decode(payload)
        if not payload.isascii():
            payload.decode()  # members that were skipped reach the client too
    except (ValueError, RecursionError):
        raise MalformedStreamError("a payload is not an event of a response") from None
    finished = event.type in _ENDS
    tokens = read = 0
    ids: tuple[str, ...] = ()
    if event.response is not None:
        ids = event.response.ids()
        if event.response.usage is not None:
            tokens = event.response.usage.output_tokens or 0
            read = event.response.usage.input_tokens or 0
    content = event.type.endswith(".delta") and bool(event.delta)
    return ResponseEvent(content, finished, event.type in _FAILS, tokens, read, ids)


__all__ = ["ResponseEvent", "read_response_event"]
