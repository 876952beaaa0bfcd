"""What a made-up engine answers: one true text per case, told by replicas that may all be ill.

Every replica knows the same answer and goes on faithfully from whatever text a request ends in, as
engines at temperature 0 do. What can go wrong is done to the stream afterwards: to its events, to
its bytes, to its end. ``Script.honest`` says whether what was sent is still a beginning of the
true answer, so that the client's text can be held against it.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from fuzz_draw import Draw

from holdfast.core.failure import Kind

MS: Final = 1_000_000
EVENTS: Final = {b"content-type": b"text/event-stream; charset=utf-8"}
JSON: Final = {b"content-type": b"application/json"}
_LETTERS: Final = ("é", "→", "名", "🙂", '"', "\\", "\n", "\t", "{}", "[DONE]", "data: ", "\u2028")

Op = tuple[int, str, Any]  # after so many ns; head, data, end, fail, stall; what


@dataclass(slots=True)
class Script:
    """What a replica will do with one call."""

    ops: list[Op] = field(default_factory=list)
    honest: bool = True  # what it says is a part of the true answer, event by event
    healthy: bool = True  # nothing at all was done to it
    said: str = ""  # the faults, for whoever reads a failing case


@dataclass(slots=True)
class Truth:
    """The answer that every replica would give, and how the engine packs it."""

    tokens: list[str]
    beyond: str = ""  # tool_calls, reasoning, refusal: said after the first token
    choices: int = 1
    finish: str = "stop"
    compact: bool = True  # how the JSON is written
    spaced: bool = True  # "data: " or "data:"
    ends: bytes = b"\n\n"
    comments: bool = False
    packed: bool = False  # several tokens in an event

    @property
    def text(self) -> str:
        return "".join(self.tokens)


def draw_truth(draw: Draw) -> Truth:
    noise = draw.noise()
    count = draw.pick((6, 12, 30, 1, 0, 2))
    words = [f" w{at}-{noise.choice('abcxyz')}" for at in range(count)]
    if count and draw.chance(3):
        for _ in range(3):
            at = noise.randrange(count)
            words[at] += noise.choice(_LETTERS) + noise.choice((" ", "  \n", ""))
    return Truth(
        words,
        beyond=draw.pick(("", "", "", "", "", "tool_calls", "reasoning_content", "refusal")),
        choices=2 if draw.chance(12) else 1,
        compact=not draw.chance(4),
        spaced=not draw.chance(5),
        ends=draw.pick((b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\n\n")),
        comments=draw.chance(6),
        packed=draw.chance(6),
    )


# --- chunks ---------------------------------------------------------------------------------------


class Chunks:
    """Writes the events of one answer."""

    def __init__(self, truth: Truth, body: dict[str, Any], number: int, *, chat: bool) -> None:
        self._truth = truth
        self._chat = chat
        options = body.get("stream_options") or {}
        self.usage = options.get("include_usage") is True
        self.running = self.usage and options.get("continuous_usage_stats") is True
        self._base = {
            "id": f"chatcmpl-{number}" if chat else f"cmpl-{number}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 1_700_000_000 + number,
            "model": body.get("model", "m"),
        }
        self.said = 0

    def chunk(self, delta: dict[str, Any], finish: str | None = None, index: int = 0) -> bytes:
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": finish}
        if self._chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        event = {**self._base, "choices": [choice]}
        if self.running:
            event["usage"] = self._counts()
        return self.event(event)

    def last_usage(self) -> bytes:
        return self.event({**self._base, "choices": [], "usage": self._counts()})

    def event(self, value: Any) -> bytes:
        truth = self._truth
        if truth.compact:
            lines = [orjson.dumps(value)]
        else:
            lines = orjson.dumps(value, option=orjson.OPT_INDENT_2).split(b"\n")
            if truth.spaced:
                lines = [b" ".join(lines)]
        field_name = b"data: " if truth.spaced else b"data:"
        end = truth.ends[: len(truth.ends) // 2] if len(truth.ends) % 2 == 0 else b"\n"
        return end.join(field_name + line for line in lines) + truth.ends

    def _counts(self) -> dict[str, int]:
        said = max(1, self.said)  # an end that was chosen is a token, too: engines count it
        return {"prompt_tokens": 5, "completion_tokens": said, "total_tokens": 5 + said}


def told_before(body: dict[str, Any], prompt: str) -> str:
    """How much of the answer a request already contains: the engine goes on from there."""
    if "prompt" in body:
        return str(body["prompt"]).removeprefix(prompt)
    last = body["messages"][-1]
    return str(last.get("content", "")) if last.get("role") == "assistant" else ""


def stream_events(
    draw: Draw, truth: Truth, body: dict[str, Any], prompt: str, number: int
) -> tuple[list[bytes], bool]:
    """The whole stream as events; whether it could go on from what the request contained."""
    chat = "messages" in body
    chunks = Chunks(truth, body, number, chat=chat)
    before = told_before(body, prompt)
    honest = truth.text.startswith(before)
    left = truth.text[len(before) :] if honest else "something else entirely"
    tokens = _retokenised(left, truth.tokens)
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or 10**9
    finish = truth.finish
    if len(tokens) > limit:
        tokens, finish = tokens[:limit], "length"
    if truth.packed:
        tokens = ["".join(tokens[at : at + 3]) for at in range(0, len(tokens), 3)]
    events = [chunks.chunk({"role": "assistant", "content": ""})] if chat else []
    for index in range(truth.choices):
        for at, token in enumerate(tokens):
            chunks.said += 1
            events.append(chunks.chunk({"content": token}, index=index))
            if at == 0 and truth.beyond and chat and not before:
                events.append(chunks.chunk({truth.beyond: _beyond(truth.beyond)}, index=index))
            if truth.comments:
                events.append(b": still here\n\n")
        events.append(chunks.chunk({}, finish, index))
    if chunks.usage:
        events.append(chunks.last_usage())
    events.append(b"data: [DONE]\n\n")
    if draw.chance(6):
        events.append(b": bye\n\n")
    return events, honest


def _retokenised(left: str, tokens: list[str]) -> list[str]:
    """The rest of the answer in the tokens it was made of; the first may be a part of one."""
    parts: list[str] = []
    for token in reversed(tokens):
        if left.endswith(token):
            parts.append(token)
            left = left[: len(left) - len(token)]
        else:
            break
    return [part for part in (left, *reversed(parts)) if part]


def _beyond(kind: str) -> Any:
    if kind == "tool_calls":
        return [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]
    return "hm"


def response_events(truth: Truth) -> list[bytes]:
    """A stream of /v1/responses."""

    def event(kind: str, **more: Any) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **more}))

    events = [event("response.created", response={"id": "r", "status": "in_progress"})]
    events += [event("response.output_text.delta", delta=token) for token in truth.tokens]
    done = {"id": "r", "status": "completed", "usage": {"output_tokens": len(truth.tokens)}}
    return [*events, event("response.completed", response=done)]


# --- faults ---------------------------------------------------------------------------------------

_STATUSES: Final = (500, 503, 502, 429, 400, 404, 422, 302, 204, 201, 599)
_KINDS: Final = (
    Kind.REFUSED,
    Kind.RESET,
    Kind.STALE_SOCKET,
    Kind.CONNECT_TIMEOUT,
    Kind.MALFORMED,
    Kind.DRAINED,
)
_ERRORS: Final = (
    b'data: {"error":{"message":"secret","type":"InternalServerError","code":500}}\n\n',
    b'data: {"error":{"message":"busy","code":503}}\n\n',
    b'data: {"object":"error","message":"x","code":"400"}\n\n',
    b'data: {"error":"boom"}\n\n',
    b'data: {"error":{"code":true}}\n\n',
)
_GARBAGE: Final = (
    b"<html><body>502 Bad Gateway</body></html>",
    b"data: {\n\n",
    b"data: null\n\n",
    b"data: []\n\n",
    b"data: 7\n\n",
    b'data: {"choices":7}\n\n',
    b'data: {"choices":[{"delta":{"content":7}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"x"}}],"id":"\xff"}\n\n',
    b'data: {"choices":[{"index":-1,"delta":{"content":"x"}}]}\n\n',
    b'data: {"choices":[null]}\n\n',
    b'data: {"choices":[{"delta":{"content":"\\ud800"}}]}\n\n',
    b'data: {"choices":[{"index":5,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":null}\n\n',
    b'data: {"usage":{"prompt_tokens":1,"completion_tokens":99999999999999999999}}\n\n',
    b'data: {"choices":[{"index":0,"text":"x","delta":{"content":"x"}}]}\n\n',
    b"data: " + b"[" * 3_000 + b"\n\n",
    b'data: {"choices":[{"index":0,"delta":{"content":' + b"[" * 2_000 + b"\n\n",
    b"event: message\nid: 1\nretry: 5\n\n",
    b"data\n\n",
    b"data:\n\n",
    b"\xef\xbb\xbf",
    b"\x00\x00\x00",
    b"HTTP/1.1 200 OK\r\n\r\n",
)


def wreck_events(draw: Draw, events: list[bytes], script: Script) -> list[bytes]:
    """Do something to a stream as a list of events."""
    noise = draw.noise()
    at = noise.randrange(len(events) + 1)
    match draw.upto(10):
        case 0:  # the last word is missing; what follows it is not
            gone = noise.randrange(1, 4)
            events = events[:-gone] + (events[-1:] if noise.random() < 0.5 else [])
            script.said += " missing-end"
        case 1:
            events = [*events[:at], noise.choice(_ERRORS), *events[at:]]
            script.said += " error-frame"
        case 2:
            events = [*events[:at], noise.choice(_ERRORS), b"data: [DONE]\n\n"]
            script.said += " error-then-done"
        case 3:
            events = [*events[:at], b"data: [DONE]\n\n", *events[at:]]
            script.said += " early-done"
        case 4:
            events = [*events[:at], noise.choice(_GARBAGE), *events[at:]]
            script.honest = False
            script.said += " garbage"
        case 5 if events[at : at + 1]:
            events = [*events[: at + 1], *events[at:]]
            script.honest = False
            script.said += " repeated-event"
        case 6:
            events = events[:at] + events[at + 1 :]
            script.honest = False
            script.said += " lost-event"
        case 7:
            huge = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
            events = [*events[:at], huge % (b"h" * noise.choice((5_000, 30_000))), *events[at:]]
            script.honest = False
            script.said += " huge-event"
        case 8:
            run = b'data: {"choices":[{"index":0,"text":"!","delta":{"content":"!"}}]}\n\n'
            events = [*events[:at], *[run] * noise.choice((5, 20, 200)), *events[at:]]
            script.honest = False
            script.said += " exclamation-marks"
        case 9:
            noise.shuffle(events)
            script.honest = False
            script.said += " shuffled"
        case _:
            events = events[:1] + events[-3:]
            script.honest = False
            script.said += " hardly-anything"
    return events


def compose(
    draw: Draw, events: list[bytes], script: Script, head: dict[bytes, bytes], *, later: bool
) -> None:
    """Turn events into what arrives when, with the faults of bytes and connections.

    ``later``: others failed before it; more of those are well, or no continuation would be seen.
    """
    faults = draw.pick((0, 0, 0, 3, 1) if later else (0, 3, 3, 1, 1, 2))
    if faults == 2 or (faults == 1 and draw.upto(1)):
        script.healthy = False
        events = wreck_events(draw, events, script)
    step = draw.pick((MS, 1, 30 * MS, 400 * MS))
    if faults in {0, 3} and draw.upto(2):
        pieces = events  # as engines do: one read, one event
    else:
        wire = b"".join(events)
        if faults == 2 and draw.chance(3):
            wire, script.honest = draw.damage(wire), False
            script.said += " damaged"
        pieces = draw.cut(wire)
    script.ops = [(step, "data", piece) for piece in pieces if piece]
    script.ops.insert(0, (draw.pick((2 * MS, 0, 900 * MS)), "head", (200, head)))
    script.ops.append((step, "end", None))
    if faults == 3:  # nothing but a connection that does not last, in the middle of an answer
        script.healthy = False
        at = 1 + draw.upto(len(script.ops) - 2)
        what = draw.pick((("end", None), ("fail", Kind.RESET), ("stall", None)))
        script.ops[at:] = [(MS, *what)]
        script.said += f" {what[0]}-at-{at}"
    elif faults and draw.upto(1):
        _break_off(draw, script)


def _break_off(draw: Draw, script: Script) -> None:
    """The connection, or the replica, does not last to the end."""
    script.healthy = False
    noise = draw.noise()
    at = noise.randrange(len(script.ops))
    match draw.upto(5):
        case 0:
            script.ops[at:] = [(MS, "fail", noise.choice((Kind.RESET, Kind.MALFORMED)))]
            script.said += f" broken-at-{at}"
        case 1:
            script.ops[at:] = [(MS, "end", None)] if at else [(MS, "fail", Kind.RESET)]
            script.said += f" closed-at-{at}"
        case 2:
            script.ops[at:] = [(MS, "stall", None)]
            script.said += f" stalled-at-{at}"
        case 3:
            status = draw.pick(_STATUSES)
            words = draw.pick((b"", b'{"error":{"message":"m","code":"c"}}', b"<html>", b"\xff{"))
            more = {b"retry-after": b"1"} if draw.upto(1) else {}
            script.ops = [(MS, "head", (status, {**JSON, **more})), (MS, "data", words or b" ")]
            script.ops.append((MS, draw.pick(("end", "stall")), None))
            script.said += f" status-{status}"
        case 4:
            script.ops = [(draw.pick((0, MS, 1_100 * MS)), "fail", draw.pick(_KINDS))]
            script.said += " unreached"
        case _:
            status_and_type = (200, draw.pick((JSON, {}, {b"content-type": b"text/html"})))
            script.ops[0] = (MS, "head", status_and_type)
            script.honest = False
            script.said += " other-type"


__all__ = [
    "EVENTS",
    "JSON",
    "MS",
    "Script",
    "Truth",
    "compose",
    "draw_truth",
    "response_events",
    "stream_events",
]
