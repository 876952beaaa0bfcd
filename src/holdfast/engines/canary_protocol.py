r"""Builds a canary's request in an engine's own API, and reads its answer strictly.

    canary ─► ask ─► CanaryRequest: path, headers, body
    status, headers, body ─► read ─► Said: a complete answer, to be judged by its content
                                  └► Trouble: fail, busy, loading, draining, missing

Text is asked for as a stream, because that is how users ask: the path that breaks for them is the
path that is tried. A status of 200 proves nothing. An answer counts when it has a word, a finish
reason and the mark of its end; an engine that died sends an error event and then ``[DONE]``, and
one whose connection was cut sends neither. The reader is strict: a line that is no field of an
event stream means that another kind of server answers.

Rejected: asking for logits or token ids, which say more but are not on the path that users take.
Rejected: sharing the gateway's readers, which work piece by piece for the sake of clients who wait.

Nothing here repeats a body in a detail: it may hold what a user wrote.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final
from urllib.parse import quote

import orjson

from holdfast.core.canary import CanaryConfig, Said, Shape
from holdfast.core.failure import Kind
from holdfast.core.types import ConfigError, require
from holdfast.engines.dialect import Dialect

NUMBERS_MAX: Final = 1 << 20  # of one answer: a canary is short, whatever the model is for
DONE: Final = b"[DONE]"

Check = Callable[[int, bytes], bool | str]

_PATHS: Final = {
    Shape.CHAT: "/v1/chat/completions",
    Shape.COMPLETION: "/v1/completions",
    Shape.EMBEDDING: "/v1/embeddings",
}
_GIVEN_UP: Final = frozenset({"abort", "error"})  # finish reasons that are none
_FIELDS: Final = frozenset({b"event", b"id", b"retry"})
_BOM: Final = b"\xef\xbb\xbf"
_BINARY: Final = "inference-header-content-length"  # KServe: tensors follow the JSON


@dataclass(slots=True, frozen=True)
class CanaryRequest:
    """The HTTP request of one canary: a POST with its path, headers and body."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...]
    shape: Shape
    streams: bool


@dataclass(slots=True, frozen=True)
class Trouble:
    """A canary's response that is no answer to judge; ``verdict`` names the kind."""

    verdict: str  # fail, busy, loading, draining, missing
    detail: str  # for people; never holds what the engine said
    flaw: Kind | None = None  # EMPTY, where it came in good order and said nothing; or CUT


class _TroubleError(Exception):
    """How a reader gives up; never leaves this module."""

    def __init__(self, detail: str, verdict: str = "fail", flaw: Kind | None = None) -> None:
        super().__init__(detail)
        self.trouble = Trouble(verdict, detail, flaw)


# --- the question ---------------------------------------------------------------------------------


def ask(dialect: Dialect, canary: CanaryConfig, served_as: str) -> CanaryRequest:
    """Build the request that sends this canary to a replica of this engine."""
    shape = shape_of(dialect, canary)
    headers = (("content-type", "application/json"), ("accept", "application/json"))
    if shape is Shape.HTTP:
        require(bool(canary.path), "canary.path", "is missing", "give an absolute path")
        return CanaryRequest(canary.path or "", canary.body.encode(), headers, shape, streams=False)
    if shape is Shape.INFER:
        path = f"/v2/models/{quote(served_as, safe='')}/infer"
        return CanaryRequest(path, _infer_body(dialect, canary), headers, shape, streams=False)
    if shape is Shape.EMBEDDING:
        wanted = {"model": served_as, "input": canary.prompt, "encoding_format": "float"}
        return CanaryRequest(_PATHS[shape], orjson.dumps(wanted), headers, shape, streams=False)
    body: dict[str, Any] = {
        "model": served_as,
        "max_tokens": canary.tokens,
        "temperature": 0,
        "seed": 0,
        "stream": True,
    }
    if shape is Shape.CHAT:
        body["messages"] = [{"role": "user", "content": canary.prompt}]
    else:
        body["prompt"] = canary.prompt
    if dialect.final_usage:
        body["stream_options"] = {"include_usage": True}
    headers = (headers[0], ("accept", "text/event-stream"))
    return CanaryRequest(_PATHS[shape], orjson.dumps(body), headers, shape, streams=True)


def shape_of(dialect: Dialect, canary: CanaryConfig) -> Shape:
    """The kind of request of a canary: as the config says, else the engine's default."""
    return canary.shape or dialect.canary_shape


def path_of(dialect: Dialect, canary: CanaryConfig) -> str:
    """The engine's path that canaries ask, without names of models and without a query."""
    shape = shape_of(dialect, canary)
    if shape is Shape.HTTP:
        return (canary.path or "").partition("?")[0]
    return _PATHS.get(shape, "/v2/models/")


def _infer_body(dialect: Dialect, canary: CanaryConfig) -> bytes:
    fix = "set shape: infer and give the JSON of an inference request"
    missing = f"is missing, and no question fits every model of {dialect.name}"
    require(bool(canary.body), "canary.body", missing, fix)
    body = canary.body.encode()
    try:
        wanted = orjson.loads(body)
    except ValueError as error:
        raise ConfigError("canary.body", "is not JSON", fix) from error
    fits = isinstance(wanted, dict) and isinstance(wanted.get("inputs"), list)
    require(fits, "canary.body", "has no list of inputs", fix)
    return body


# --- the answer -----------------------------------------------------------------------------------


def read(
    dialect: Dialect,
    ask: CanaryRequest,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    check: Check | None = None,
) -> Said | Trouble:
    """Read a whole response to a canary; ``check`` judges the answer where the shape is http."""
    named = {name.lower(): value for name, value in headers.items()}
    trouble = _refusal(dialect, status, named, body)
    if trouble is not None:
        return trouble
    if ask.shape is Shape.HTTP and check is not None:
        return _checked(check, status, body)
    if not 200 <= status < 300:
        return _failure(dialect, ask.path, status, body)
    try:
        if ask.streams:
            return _stream(dialect, ask.shape, body)
        if ask.shape is Shape.EMBEDDING:
            return _embedding(body)
        if ask.shape is Shape.INFER:
            return _tensors(named, body)
        return _page(body)
    except _TroubleError as error:
        return error.trouble


def _refusal(
    dialect: Dialect, status: int, headers: Mapping[str, str], body: bytes
) -> Trouble | None:
    """An engine that says it cannot answer now, which is no failure."""
    if dialect.says_loading(status, body, headers):
        return Trouble("loading", "it still loads, by its own word")
    if dialect.says_draining(status, body):
        return Trouble("draining", "it takes no new work, by its own word")
    if status == 429:
        return Trouble("busy", "HTTP 429")
    if status == 503 and "retry-after" in headers:
        return Trouble("busy", "HTTP 503 with Retry-After")
    if dialect.says_busy(status, body):
        return Trouble("busy", "HTTP 503 in its words for a full queue")
    return None


def _failure(dialect: Dialect, path: str, status: int, body: bytes) -> Trouble:
    if dialect.says_missing(status, body):
        return Trouble("missing", f"HTTP {status}: it does not have the model")
    # An unknown path may be repeated in the answer, and may have "models" in it.
    told = body.replace(path.encode(), b"").lower()
    if status == 404 and b"model" in told:
        return Trouble("missing", "HTTP 404: it does not have the model")
    if status in {401, 403}:
        return Trouble("fail", f"HTTP {status}: it does not accept the key")
    return Trouble("fail", f"HTTP {status}")


def _checked(check: Check, status: int, body: bytes) -> Said | Trouble:
    try:
        found: object = check(status, body)  # whatever its annotation promises
    except Exception as error:  # noqa: BLE001 - the user's code; whatever it raises is told
        return Trouble("fail", f"the check raised {type(error).__name__}")
    if isinstance(found, str):
        return Said(check=False, note=found or "the check refused it without a reason")
    if not isinstance(found, bool):
        return Trouble("fail", f"the check returned {type(found).__name__}, not a bool or a text")
    return Said(check=found, note="" if found else "the check refused it")


def _page(body: bytes) -> Said:
    text = body.decode("utf-8", "replace")
    if not text.strip():
        raise _TroubleError("an empty answer")
    return Said(text=text)


# --- streams of text ------------------------------------------------------------------------------


class _Telling:
    """What a stream has told so far."""

    __slots__ = ("done", "finish", "pieces", "prompt_tokens", "tokens", "usage")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.finish = ""
        self.done = False
        self.usage = False
        self.prompt_tokens = 0
        self.tokens = 0


def _stream(dialect: Dialect, shape: Shape, body: bytes) -> Said:
    telling = _Telling()
    for payload in _events(body):
        if payload == DONE:
            telling.done = True
        elif telling.done:
            raise _TroubleError("it went on behind the end of its stream")
        else:
            _chunk(dialect, shape, payload, telling)
    if not telling.finish:
        why = "it ended without a finish reason" if telling.done else "the stream was cut off"
        raise _TroubleError(why, flaw=Kind.CUT)
    if telling.finish in _GIVEN_UP:
        raise _TroubleError("it gave up")
    # A chat may be broken off behind its last word; a completion has nothing more to say there.
    if shape is Shape.CHAT and not (telling.done or telling.usage):
        raise _TroubleError("the stream was cut off behind its last word", flaw=Kind.CUT)
    text = "".join(telling.pieces)
    if not text.strip():
        raise _TroubleError("it finished without a word", flaw=Kind.EMPTY)
    return Said(text=text, prompt_tokens=telling.prompt_tokens, tokens=telling.tokens)


def _events(body: bytes) -> Iterator[bytes]:
    """The payloads of a whole event stream."""
    lines = body.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    data: list[bytes] = []
    for line in lines:
        if not line:
            if data:
                yield b"\n".join(data)
                data.clear()
            continue
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field and field not in _FIELDS:
            raise _TroubleError("the answer is no event stream")
    # An event counts when a blank line ends it; only behind the very last may it be left out.
    if data == [DONE]:
        yield DONE


def _chunk(dialect: Dialect, shape: Shape, payload: bytes, telling: _Telling) -> None:
    try:
        chunk = orjson.loads(payload)
    except ValueError:
        raise _TroubleError("an event is not JSON") from None
    if not isinstance(chunk, dict):
        raise _TroubleError("an event is not a JSON object")
    if chunk.get("error") is not None or chunk.get("object") == "error":
        raise _error_event(dialect, chunk, payload, telling)
    choices = chunk.get("choices") or []
    if not isinstance(choices, list):
        raise _TroubleError("an event has no list of choices")
    for choice in choices:
        if not isinstance(choice, dict):
            raise _TroubleError("a choice is not a JSON object")
        if choice.get("index"):
            continue
        telling.pieces += _said(shape, choice)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            telling.finish = finish
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        telling.usage = True
        telling.prompt_tokens = _count(usage, "prompt_tokens")
        telling.tokens = _count(usage, "completion_tokens")


def _error_event(
    dialect: Dialect, chunk: dict[str, Any], payload: bytes, telling: _Telling
) -> _TroubleError:
    """An error inside a stream; before the first word it may be a refusal like any other."""
    error = chunk.get("error")
    code = error.get("code") if isinstance(error, dict) else chunk.get("code")
    status = int(code) if isinstance(code, int | str) and str(code).isdecimal() else 0
    if not telling.pieces:
        refusal = _refusal(dialect, status, {}, payload)
        if refusal is not None:
            return _TroubleError(f"{refusal.detail}, inside a stream", refusal.verdict)
    return _TroubleError("an error event instead of an end")


def _said(shape: Shape, choice: dict[str, Any]) -> Iterator[str]:
    """The words of one choice. What a model thinks aloud is as much its output as what it says."""
    texts: tuple[Any, ...]
    if shape is Shape.COMPLETION:
        texts = (choice.get("text"),)
    else:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        texts = (thought, delta.get("content"))
    for text in texts:
        if isinstance(text, str) and text:
            yield text


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value > 0 else 0


# --- numbers --------------------------------------------------------------------------------------


def _embedding(body: bytes) -> Said:
    answer = _object(body)
    data = answer.get("data")
    first = data[0] if isinstance(data, list) and data else None
    vector = first.get("embedding") if isinstance(first, dict) else None
    if not isinstance(vector, list) or not vector:
        raise _TroubleError("no embedding in the answer")
    numbers = _numbers(vector)
    if not any(numbers):
        raise _TroubleError("an embedding of zeros")
    usage = answer.get("usage")
    tokens = _count(usage, "prompt_tokens") if isinstance(usage, dict) else 0
    return Said(vector=numbers, prompt_tokens=tokens)


def _tensors(headers: Mapping[str, str], body: bytes) -> Said:
    if _BINARY in headers:
        raise _TroubleError("tensors came as binary data; ask for them as JSON")
    outputs = _object(body).get("outputs")
    if not isinstance(outputs, list) or not outputs:
        raise _TroubleError("no outputs in the answer")
    tensors: list[tuple[str, tuple[float, ...]]] = []
    texts: list[str] = []
    for output in outputs:
        if not isinstance(output, dict) or not isinstance(output.get("data"), list):
            raise _TroubleError("an output without data")
        values = _flat(output["data"])
        if not values:
            raise _TroubleError("an output without a value")
        if output.get("datatype") == "BYTES":
            texts += (value if isinstance(value, str) else str(value) for value in values)
        else:
            tensors.append((str(output.get("name", "")), _numbers(values)))
    text = "\n".join(texts) if texts else None
    if text is not None and not tensors and not text.strip():
        raise _TroubleError("an answer without a word", flaw=Kind.EMPTY)
    return Said(text=text, tensors=tuple(tensors))


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except ValueError:
        # Triton writes NaN and Infinity as they are, which is no JSON; they must not look like
        # a broken connection.
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise _TroubleError("the answer is not JSON") from None
    if not isinstance(answer, dict):
        raise _TroubleError("the answer is not a JSON object")
    if answer.get("error"):
        raise _TroubleError("an error under a status of success")
    return answer


def _flat(data: list[Any]) -> list[Any]:
    """The leaves of nested lists, in their order."""
    leaves: list[Any] = []
    pending = [iter(data)]
    while pending:
        for value in pending[-1]:
            if isinstance(value, list):
                pending.append(iter(value))
                break
            leaves.append(value)
        else:
            pending.pop()
        if len(leaves) > NUMBERS_MAX:
            raise _TroubleError("more numbers than a canary needs")
    return leaves


def _numbers(values: list[Any]) -> tuple[float, ...]:
    if len(values) > NUMBERS_MAX:
        raise _TroubleError("more numbers than a canary needs")
    numbers: list[float] = []
    for value in values:
        if value is None:  # how most serialisers write NaN
            raise _TroubleError("non-finite numbers")
        if not isinstance(value, int | float):
            raise _TroubleError("something among the numbers that is none")
        try:
            number = float(value)
        except OverflowError:
            raise _TroubleError("non-finite numbers") from None
        if not isfinite(number):
            raise _TroubleError("non-finite numbers")
        numbers.append(number)
    return tuple(numbers)


__all__ = [
    "DONE",
    "NUMBERS_MAX",
    "CanaryRequest",
    "Check",
    "Trouble",
    "ask",
    "path_of",
    "read",
    "shape_of",
]
