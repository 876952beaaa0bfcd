"""Builds the body for an engine: the client's, with the engine's own name of the model.

Streams are asked to report their usage, where the engine can, whether the client wanted it or not:
without it the cost of an answer is unknown, and so is how much was said when a replica died.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from holdfast.gateway.api import multipart
from holdfast.gateway.api import request_schema as known
from holdfast.gateway.api.bodies import ParsedRequest
from holdfast.gateway.api.jsontext import with_members
from holdfast.gateway.api.multipart import Field
from holdfast.gateway.api.routes import Api

_USAGE: Final = b',"stream_options":{"include_usage":true}}'
_RUNNING_USAGE: Final = b',"stream_options":{"include_usage":true,"continuous_usage_stats":true}}'
_INFER: Final = Api.INFER
_COUNTED_STREAMS: Final = frozenset({Api.CHAT, Api.COMPLETIONS})  # those with stream_options

_encode: Final = msgspec.json.Encoder().encode


def upstream_body(ask: ParsedRequest, model: str, *, ask_usage: bool, running_usage: bool) -> bytes:
    """Return the body to send to an engine that knows the model under the name ``model``.

    The client's own bytes where nothing must change. ``ask_usage``: have a chat or completions
    stream end with its usage, even if the client did not ask for it; ``running_usage``: with every
    chunk, too.
    """
    if ask.fields is not None:
        return _renamed_form(ask, ask.fields, model)
    if ask.api is _INFER:
        return ask.body  # the model is in the path
    wanted = ask.wants_running_usage if running_usage else ask.wants_usage
    counted = ask_usage and ask.stream and not wanted and ask.api in _COUNTED_STREAMS
    if model == ask.model:
        if not counted:
            return ask.body
        if not ask.has_stream_options:
            return ask.body[:-1] + (_RUNNING_USAGE if running_usage else _USAGE)
    changes: dict[str, Any] = {"model": model}
    if counted:
        changes["stream_options"] = _counting(ask, running_usage=running_usage)
    if ask.members is None:
        return with_members(ask.body, changes)
    return _encode(msgspec.structs.replace(ask.members, **changes))


def _counting(ask: ParsedRequest, *, running_usage: bool) -> Raw:
    """The client's stream options, and usage."""
    sent: dict[str, Raw] = {}
    if ask.has_stream_options:
        raw = ask.members.stream_options if ask.members is not None else None
        if raw is None:
            raw = (known.decode_object(ask.body) or {})["stream_options"]
        sent = known.decode_object(raw) or {}
    sent["include_usage"] = Raw(b"true")
    if running_usage:
        sent["continuous_usage_stats"] = Raw(b"true")
    return Raw(_encode(sent))


def _renamed_form(ask: ParsedRequest, fields: list[Field], model: str) -> bytes:
    name = model.encode()
    renamed = [Field("model", name) if field.name == "model" else field for field in fields]
    return multipart.encode(renamed, ask.boundary)


__all__ = ["upstream_body"]
