"""A message as a request to the gateway, and an answer as a reply.

    a body alone    {"messages": [{"role": "user", "content": "…"}]}
    an envelope     {"id": "order-17", "url": "/v1/embeddings", "body": {…}, "custom_id": "…"}

    a reply         {"id": "order-17", "custom_id": null, "response": {"status_code": 200,
                     "request_id": "…", "body": {…}}, "error": null}

The model is that of the queue: a body that names none gets it, and one that names another is
refused. A refusal is a reply, too; it names the member, and repeats nothing of the message.
"""

import base64
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import orjson

from holdfast.batch.gateway_client import GatewayAnswer
from holdfast.queue_port import NAME_CHARACTERS_MAX

CUSTOM_ID_MAX: Final = 512


class _Envelope(msgspec.Struct):
    body: msgspec.Raw
    id: str | None = None
    url: str | None = None
    custom_id: str | None = None
    method: str = "POST"


class _Asked(msgspec.Struct):
    model: str = ""
    stream: bool = False


_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_asked: Final = msgspec.json.Decoder(_Asked).decode


@dataclass(slots=True, frozen=True)
class QueuedRequest:
    """A request that a message asks for: where it goes, its body, and what replies name it by."""

    path: str
    body: bytes
    id: str = ""  # that the message gives itself; empty: none
    custom_id: str | None = None


class MessageRefusedError(ValueError):
    """A message that is no request: a code, the member, and what to write instead."""

    def __init__(self, code: str, message: str, known: QueuedRequest | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.known = known or QueuedRequest("", b"")  # what could be read of it


def read_request(payload: bytes, model: str, path: str, paths: tuple[str, ...]) -> QueuedRequest:
    """The request of a message for this queue; raises ``MessageRefusedError``."""
    try:
        members = _decode_members(payload)
        bare = "body" not in members
        told = _Envelope(msgspec.Raw(payload)) if bare else _decode_envelope(payload)
        asked = _decode_asked(told.body)
        body: dict[str, msgspec.Raw] = _decode_members(told.body)
    except msgspec.ValidationError as error:  # names types and members, never values
        raise MessageRefusedError(
            "invalid_request", f"The message is no request: {error}"
        ) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise MessageRefusedError("invalid_json", "The message is not valid JSON.") from None
    known = QueuedRequest("", b"", _fitting(told.id), _cut(told.custom_id))
    url = told.url or path
    if told.id and known.id != told.id:
        fix = f"Use 1 to {NAME_CHARACTERS_MAX} printable characters."
        raise MessageRefusedError("invalid_id", f"id: {fix}", known)
    if told.method != "POST":
        raise MessageRefusedError("invalid_method", "method: use POST, or leave it out.", known)
    if url not in paths:
        raise MessageRefusedError("invalid_url", f"url: use one of {', '.join(paths)}.", known)
    if asked.stream:
        message = "body.stream: a queue has no streams; leave it out."
        raise MessageRefusedError("invalid_value", message, known)
    if asked.model and asked.model != model:
        message = f"body.model: this queue is for {model}; leave it out, or use another queue."
        raise MessageRefusedError("wrong_model", message, known)
    sent = bytes(told.body) if asked.model else msgspec.json.encode({**body, "model": model})
    return QueuedRequest(url, sent, known.id, known.custom_id)


def _fitting(own: str | None) -> str:
    return own if own and len(own) <= NAME_CHARACTERS_MAX and own.isprintable() else ""


def _cut(custom_id: str | None) -> str | None:
    return None if custom_id is None else custom_id[:CUSTOM_ID_MAX]


def answer_reply(item_id: str, custom_id: str | None, answer: GatewayAnswer) -> bytes:
    """The reply with an answer of the gateway; a body that is no JSON comes as base64."""
    response: dict[str, Any] = {"status_code": answer.status, "request_id": answer.request_id}
    try:
        orjson.loads(answer.body)
        response["body"] = orjson.Fragment(answer.body)
    except orjson.JSONDecodeError:
        response["body"] = None
        response["content_type"] = answer.content_type
        response["body_base64"] = base64.b64encode(answer.body).decode()
    return _reply(item_id, custom_id, response, None)


def error_reply(item_id: str, custom_id: str | None, code: str, message: str) -> bytes:
    """The reply to a message that got no answer."""
    return _reply(item_id, custom_id, None, {"code": code, "message": message})


def _reply(item_id: str, custom_id: str | None, response: Any, error: Any) -> bytes:
    told = {"id": item_id, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(told)


__all__ = [
    "MessageRefusedError",
    "QueuedRequest",
    "answer_reply",
    "error_reply",
    "read_request",
]
