"""Messages of queues that others fill, valid and bent: a request of the queue's model, or a reply.

Whoever may write into a queue writes anything. What is accepted is held against a reader that knows
nothing of ours: the body that goes to the gateway names the queue's model, asks for no stream, and
is no longer than what came. Whatever comes back is one reply in JSON, with the id of its message.
"""

import json
from typing import Any, Final

from fuzz_draw import Draw

from holdfast.batch.consumers.ended_messages import story_of
from holdfast.batch.consumers.request_messages import (
    CUSTOM_ID_MAX,
    MessageRefusedError,
    QueuedRequest,
    answer_reply,
    error_reply,
    read_request,
)
from holdfast.batch.creation_keys import fingerprint_of
from holdfast.batch.gateway_client import GatewayAnswer
from holdfast.config.batch.consumers import PATHS
from holdfast.queue_port import NAME_CHARACTERS_MAX

MODEL: Final = "m"
_ODD: Final[tuple[Any, ...]] = (
    *(None, "", 0, -1, 1.5, True, [], {}, "x" * 300, "\x00", "\u2028", "a/b", "~", ["m"]),
    *({"a": {"b": [1, {"c": None}]}}, 10**30, "\ud83d", "http://169.254.169.254/"),
)
_ANSWERS: Final = (
    *(b'{"choices":[]}', b"{}", b"null", b"", b"<html>", b"\xff\xfe", b'{\n  "a": 1\n}\n'),
    *(b'"a\\u0000b"', b"[" * 2_000, b'{"a":NaN}', b"x" * 70_000),
)


def case(draw: Draw) -> None:
    """Write a message, bend it, read it; look at what is sent and at what is replied."""
    payload = payload_of(draw)
    try:
        _look(draw, payload)
    except Exception as error:
        error.add_note(repr(payload))
        raise


def payload_of(draw: Draw) -> bytes:
    """One message, more or less as its producer should have written it."""
    body: Any = {"messages": [{"role": "user", "content": "Hi"}]}
    if draw.chance(2):
        body["model"] = draw.pick((MODEL, MODEL, "other", "", *_ODD))
    for name in ("stream", "messages", "n", "metadata", "body", "id"):
        if draw.chance(5):
            body[name] = draw.pick(_ODD)
    told = draw.pick(_ODD) if draw.chance(8) else body
    if draw.chance(2):
        told = {"body": told}
        for name, sound in (
            ("id", f"order-{draw.upto(20)}"),
            ("custom_id", "c"),
            ("url", draw.pick((*PATHS, "/v1/files", "//v1"))),
            ("method", "POST"),
            ("other", {}),
        ):
            if draw.chance(2):
                told[name] = draw.pick((sound, sound, *_ODD))
    text = json.dumps(told, separators=draw.pick(((",", ":"), (", ", ": ")))).encode()
    if draw.chance(10):
        text = b"[" * draw.pick((1, 1_000, 100_000)) + text
    return draw.damage(text, 1 + draw.upto(3)) if draw.chance(3) else text


def _look(draw: Draw, payload: bytes) -> None:
    path = draw.pick(PATHS)
    try:
        asked = read_request(payload, MODEL, path, PATHS)
    except MessageRefusedError as refused:
        _check_refusal(refused)
        return
    _check_sent(asked, payload, path)
    own = fingerprint_of(asked.path, asked.body)
    again = read_request(payload, MODEL, path, PATHS)
    assert fingerprint_of(again.path, again.body) == own
    assert len(json.dumps(story_of(own, []))) < 200
    answer = GatewayAnswer(draw.pick((200, 400, 500)), draw.pick(_ANSWERS), "req_1")
    reply = _is_reply(answer_reply(asked.id or "key", asked.custom_id, answer), asked.id or "key")
    assert reply["response"]["status_code"] == answer.status


def _check_refusal(refused: MessageRefusedError) -> None:
    assert 0 < len(str(refused)) < 500
    name = refused.known.id or "key"
    _is_reply(error_reply(name, refused.known.custom_id, refused.code, str(refused)), name)


def _check_sent(asked: QueuedRequest, payload: bytes, path: str) -> None:
    assert asked.path in PATHS
    assert len(asked.id) <= NAME_CHARACTERS_MAX
    assert asked.id.isprintable()
    assert len(asked.custom_id or "") <= CUSTOM_ID_MAX
    assert len(asked.body) <= len(payload) + len(MODEL) + 64
    try:
        body = json.loads(asked.body)
    except UnicodeDecodeError:
        return  # the gateway refuses it
    assert body["model"] == MODEL
    assert body.get("stream") in (None, False)
    assert asked.path == path or asked.path.encode() in payload.replace(b"\\/", b"/")


def _is_reply(reply: bytes, name: str) -> Any:
    told = json.loads(reply)
    assert set(told) == {"id", "custom_id", "response", "error"}
    assert told["id"] == name
    assert (told["response"] is None) is not (told["error"] is None)
    return told


__all__ = ["case", "payload_of"]
