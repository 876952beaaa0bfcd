"""Request bodies, valid and bent, into the reader of bodies: an ``ApiError`` or a sound request.

What is accepted is held against a reader that knows nothing of ours: what goes to the engine must
be JSON in the strictest sense, name the engine's model, and say about prompts, limits and streams
exactly what the client's own text says when it is read as Python reads it. Otherwise gateway and
engine would judge two different requests.
"""

import json
from typing import Any, Final

import orjson
from fuzz_draw import Draw

from holdfast.config.gateway import BodyConfig
from holdfast.engines.dialect import Continuation
from holdfast.gateway.api import routes
from holdfast.gateway.api.bodies import ParsedRequest, parse
from holdfast.gateway.api.chunks import StreamApi
from holdfast.gateway.api.continuation import CannotContinueError, continued_body
from holdfast.gateway.api.engine_body import upstream_body
from holdfast.gateway.api.errors import ApiError

LIMITS: Final = BodyConfig(
    json_depth_max=24, messages_max=20, n_max=4, max_tokens_max=5_000, stop_max=4, tools_max=5
)
KNOWN: Final = frozenset({400, 404, 405, 413, 415})
_PATHS: Final = (
    b"/v1/chat/completions",
    b"/v1/chat/completions",
    b"/v1/completions",
    b"/v1/embeddings",
    b"/v1/rerank",
    b"/v1/responses",
    b"/v1/audio/speech",
    b"/v1/images/generations",
    b"/v2/models/m/infer",
    b"/v1/audio/transcriptions",
)
_TYPES: Final = (
    b"application/json",
    b"application/json",
    b"application/json; charset=utf-8",
    b"application/vnd.a+json",
    b"text/plain",
    b"",
    b"multipart/form-data; boundary=xyz",
)
# Members whose value the gateway judges or an engine obeys: both must read the same.
_JUDGED: Final = (
    "messages",
    "prompt",
    "input",
    "documents",
    "stream",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "temperature",
    "tools",
)
_ODD: Final = (
    b"null",
    b"true",
    b"0",
    b"-1",
    b"1e3",
    b"1.5",
    b"1e999",
    b"-0",
    b"NaN",
    b"Infinity",
    b"9" * 30,
    b'""',
    b'"x"',
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\xff"',
    b"[]",
    b"{}",
    b'[""]',
    b"[1,2,3]",
    b"[[1],[2]]",
    b"[null]",
    b'{"type":"text"}',
    b"[" * 30 + b"]" * 30,
    b"[" * 900,
    b'{"a":' * 30 + b"1" + b"}" * 30,
    b'"' + b"x" * 6_000 + b'"',
    b"[" + b",".join([b"{}"] * 40) + b"]",
)


def _sound(draw: Draw, path: bytes) -> dict[str, Any]:
    body: dict[str, Any] = {"model": draw.pick(("m", "org/model-7b", "m:tag"))}
    if path.endswith(b"chat/completions"):
        content: Any = draw.pick(("Hi", 'ä\n"quoted" {[', "x" * 700))
        if draw.chance(4):
            content = [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {}}]
        body["messages"] = [{"role": "user", "content": content}] * (1 + draw.upto(2))
    elif path.endswith(b"/completions"):
        body["prompt"] = draw.pick(("Hi", ["a", "b"], [1, 2, 3], [[1], [2]]))
    elif path.endswith(b"rerank"):
        body |= {"query": "q", "documents": ["a", {"text": "b"}]}
    elif path.endswith(b"images/generations"):
        body["prompt"] = "a cat"
    elif path.endswith(b"infer"):
        body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
    else:
        body["input"] = draw.pick(("Hi", ["a", "b"]))
    more: tuple[dict[str, Any], ...] = (
        {"stream": True},
        {"stream_options": {"include_usage": True}},
        {"max_tokens": 50},
        {"max_completion_tokens": 60},
        {"n": 2},
        {"stop": ["a", "b"]},
        {"temperature": 0.5, "top_p": 1},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True, "top_logprobs": 2},
        {"user": "u", "prompt_cache_key": "k"},
        {"top_k": 5, "guided_regex": "a+", "unheard_of": {"a": [1, {"b": None}]}},
        {"api_key": "k", "api_base": "http://x", "priority": 1},
    )
    for members in more:
        if draw.chance(5):
            body |= members
    return body


def _written(draw: Draw, body: dict[str, Any]) -> bytes:
    """The text of a body, with members doubled, escaped, replaced or misspelled now and then."""
    manner = draw.upto(2)
    if manner == 0:
        text = orjson.dumps(body)
    else:
        text = json.dumps(body, indent=2 if manner == 2 else None, ensure_ascii=False).encode()
    for _ in range(draw.pick((0, 1, 2))):
        name = draw.pick((*body, *_JUDGED, "model", "Model", "stream_options", "logit_bias"))
        written = draw.pick((name, name, f"{name[:-1]}\\u00{ord(name[-1]):02x}")).encode()
        member = b'"%b":%b' % (written, draw.pick(_ODD))
        if draw.upto(1):
            text = text[:1] + member + b"," + text[1:]
        else:
            text = text.rstrip()[:-1] + b"," + member + b"}"
    return text


def _form(draw: Draw) -> bytes:
    parts = [
        b'content-disposition: form-data; name="model"\r\n\r\nm',
        b'content-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\x01\xff',
        b'content-disposition: form-data; name="prompt"\r\n\r\nhello',
    ]
    if draw.chance(4):
        parts.append(parts[draw.upto(2)])
    return b"".join(b"--xyz\r\n%b\r\n" % part for part in parts) + b"--xyz--\r\n"


def case(draw: Draw) -> None:
    """Write a body, bend it, read it; look at what an engine would be sent."""
    path, content_type = draw.pick(_PATHS), draw.pick(_TYPES)
    route = routes.find(b"POST", path)
    form = path.endswith(b"transcriptions")
    text = _form(draw) if form else _written(draw, _sound(draw, path))
    if form and draw.upto(2):
        content_type = _TYPES[-1]
    if draw.chance(3):
        text = draw.damage(text, 1 + draw.upto(2))
    headers: dict[bytes, bytes] = {}
    if path.endswith(b"infer") and draw.chance(3):
        length = draw.pick((b"%d" % len(text), b"5", b"x", b"-1", b"99999999999", b""))
        headers[b"inference-header-content-length"] = length
        text += b"\x00\x01"
    try:
        ask = parse(route, content_type, path, text, LIMITS, prefix_blocks=4, headers=headers)
    except ApiError as error:
        _check_refusal(error)
        return
    except Exception as error:
        error.add_note(f"{path!r} {content_type!r} {text!r}")
        raise
    try:
        _check(draw, ask, text)
    except Exception as error:
        error.add_note(f"{path!r} {text!r}")
        raise


def _check_refusal(error: ApiError) -> None:
    assert error.status in KNOWN
    assert 0 < len(error.message) < 500


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} was let through")


def _check(draw: Draw, ask: ParsedRequest, text: bytes) -> None:
    running = ask.stream and draw.upto(1) == 1
    name = draw.pick(("served", ask.model))
    body = upstream_body(ask, name, ask_usage=True, running_usage=running)
    assert b"\r" not in ask.headers.replace(b"\r\n", b"")
    if ask.fields is not None:
        part = b'--xyz\r\ncontent-disposition: form-data; name="model"\r\n\r\n'
        assert body.count(part) == 1
        assert part + name.encode() + b"\r\n" in body
        return
    if ask.api is routes.Api.INFER:
        return
    sent = json.loads(body.decode(), parse_constant=_refuse)
    told = json.loads(text.decode(), parse_constant=_refuse)
    assert sent["model"] == name
    for member in _JUDGED:
        assert sent.get(member) == told.get(member), member
    assert bool(sent.get("stream")) == ask.stream
    assert not {"api_key", "api_base", "priority"} & sent.keys()
    streams = {routes.Api.CHAT: StreamApi.CHAT, routes.Api.COMPLETIONS: StreamApi.COMPLETIONS}
    if ask.api in streams:
        if ask.api is routes.Api.CHAT:
            assert 0 < len(sent["messages"]) <= LIMITS.messages_max
        assert sent.get("n") is None or 1 <= sent["n"] <= LIMITS.n_max
        assert sent.get("max_tokens") is None or 0 <= sent["max_tokens"] <= LIMITS.max_tokens_max
    if ask.continuable:
        assert ask.api in streams
        try:
            continued = continued_body(
                body, streams[ask.api], Continuation.FINAL_MESSAGE, 'said "ä"\n', 3
            )
        except CannotContinueError:
            return
        going_on = json.loads(continued.decode(), parse_constant=_refuse)
        assert going_on["model"] == name


__all__ = ["case"]
