"""What the replicas of ``bench/gateway.py`` are asked and what they answer, and the replicas.

    python bench/gateway_replica.py PORT PORT      # until ended

A raw protocol on uvloop, because replicas and clients share one core and must not be what limits
a gateway. Both replicas are one process with two listening ports: one process less on that core.
The stand-in engine, which can fail in every way, does more than a benchmark of cost should pay for.

Every request carries a number of its own and says how it wants to be answered; the replica writes
the number into the answer, so that a gateway that mixes two answers up is found out.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any, Final, cast

import httptools
import orjson
import uvloop

HOST: Final = "127.0.0.1"
MODEL: Final = "m"
PLACE: Final = b"@@@@@@@@"  # where the number of a request goes: eight hex digits
MARK: Final = b"[#"  # begins the order a replica finds in a prompt: number, chunks, gap in ms
PATH: Final = b"/v1/chat/completions"
CONVERSATIONS: Final = 64  # different beginnings of prompts, for affinity to tell apart

SENTENCE: Final = (
    "A fleet keeps answering while some of its parts fall silent, because every answer is "
    "watched and nobody waits for a light that is always green. "
)
WORDS: Final = tuple(SENTENCE.replace(",", "").replace(".", "").lower().split())


# --- what is asked and what is answered -----------------------------------------------------------


def _conversation(number: int, size: int, order: str, *, stream: bool) -> bytes:
    """A chat request of about ``size`` bytes, in turns of about 1 KB as chats have them."""
    turns = [{"role": "system", "content": f"You are helpful. This is conversation {number}."}]
    last = {"role": "user", "content": f"Explain it in two sentences, with an example. {order}"}
    request: dict[str, Any] = {"model": MODEL, "messages": [*turns, last], "max_tokens": 4096}
    if stream:
        request["stream"] = True
    missing = size - len(orjson.dumps(request))
    rng = Random(number)
    while missing > 0:
        words = rng.choices(WORDS, k=1 + min(1_000, missing) // 8)
        text = " ".join(words)[: max(1, missing - 32)] + "\n"
        turns.append({"role": ("user", "assistant")[len(turns) % 2], "content": text})
        missing -= len(text) + 33
    return orjson.dumps({**request, "messages": [*turns, last]})


class Questions:
    """An endless row of requests, each with its own number."""

    __slots__ = ("_bodies", "_numbers", "chunks", "stream")

    def __init__(self, size: int, *, chunks: int = 0, gap_ms: int = 0) -> None:
        self.stream = chunks > 0
        self.chunks = chunks
        order = f"[#{PLACE.decode()} {chunks} {gap_ms}]"
        self._numbers = count(1)
        self._bodies = []
        for number in range(CONVERSATIONS):
            body = _conversation(number, size, order, stream=self.stream)
            head = b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n" % PATH
            whole = head + b"content-length: %d\r\n\r\n" % len(body) + body
            before, _, after = whole.partition(PLACE)
            self._bodies.append((before, after))

    def ask(self) -> tuple[bytes, bytes]:
        """The bytes of the next request, and its number."""
        drawn = next(self._numbers)
        number = b"%08x" % drawn
        before, after = self._bodies[drawn % CONVERSATIONS]
        return before + number + after, number

    def answer(self, number: bytes) -> bytes:
        """The body that must come back."""
        if self.stream:
            return _streams(self.chunks).replace(PLACE, number)
        return ANSWER.replace(PLACE, number)

    def means_the_same(self, body: bytes, number: bytes) -> bool:
        """Whether a body written anew still says what the replica said."""
        try:
            if self.stream:
                return _spoken(body) == _spoken(self.answer(number))
            said = orjson.loads(body)["choices"][0]
            meant = orjson.loads(self.answer(number))["choices"][0]
        except (ValueError, KeyError, IndexError, TypeError):
            return False  # counted by the caller as a wrong answer
        same_text = said["message"]["content"] == meant["message"]["content"]
        return bool(same_text and said["finish_reason"] == meant["finish_reason"])


def _spoken(body: bytes) -> tuple[str, str, bool]:
    """Text, finish reason and proper end of a stream."""
    text, finish, done = [], "", False
    for line in body.split(b"\n"):
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            done = True
            continue
        for choice in orjson.loads(payload)["choices"]:
            text.append(choice["delta"].get("content") or "")
            finish = choice.get("finish_reason") or finish
    return "".join(text), finish, done


def _answer() -> bytes:
    message = {"role": "assistant", "content": f"{PLACE.decode()} {SENTENCE}" + SENTENCE}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 75, "completion_tokens": 48, "total_tokens": 123}
    shell = {"id": f"chatcmpl-{PLACE.decode()}", "object": "chat.completion"}
    shell |= {"created": 1_700_000_000, "model": MODEL}  # type: ignore[dict-item]
    return orjson.dumps({**shell, "choices": [choice], "usage": usage})


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    shell = {"id": f"chatcmpl-{PLACE.decode()}", "object": "chat.completion.chunk"}
    shell |= {"created": 1_700_000_000, "model": MODEL}  # type: ignore[dict-item]
    return b"data: " + orjson.dumps({**shell, "choices": [choice]}) + b"\n\n"


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


ANSWER: Final = _answer()
ROLE: Final = _event({"role": "assistant", "content": ""})
NUMBER: Final = _event({"content": PLACE.decode()})
TOKENS: Final = tuple(_event({"content": f" {word}"}) for word in WORDS)
FINISH: Final = _event({}, "stop")
DONE: Final = b"data: [DONE]\n\n"
_STREAMS: Final[dict[int, bytes]] = {}


def _streams(chunks: int) -> bytes:
    """The body of a stream of so many content chunks, the first of which is the number."""
    if chunks not in _STREAMS:
        middle = (TOKENS[index % len(TOKENS)] for index in range(1, chunks))
        _STREAMS[chunks] = b"".join((ROLE, NUMBER, *middle, FINISH, DONE))
    return _STREAMS[chunks]


# --- the replicas ---------------------------------------------------------------------------------

_JSON_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
_ANSWER_WHOLE: Final = _JSON_HEAD % len(ANSWER) + ANSWER
_MODELS: Final = orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
_MODELS_WHOLE: Final = _JSON_HEAD % len(_MODELS) + _MODELS
_EMPTY_WHOLE: Final = _JSON_HEAD % 2 + b"{}"
_METRICS: Final = b'vllm:num_requests_running{model_name="m"} 0\n'
_METRICS_WHOLE: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_METRICS), _METRICS)
)
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_OPENING: Final = _framed(ROLE) + _framed(NUMBER)
_FRAMED: Final = tuple(_framed(event) for event in TOKENS)
_CLOSING: Final = _framed(FINISH) + _framed(DONE) + b"0\r\n\r\n"
# Who asks without an order wants to know whether the model answers. A number made of zeros alone is
# one character over and over, which no canary takes for an answer: the whole sentence is said.
_NOBODY: Final = b"00000000"
_CANARY_STREAM: Final = b"".join((_STREAM_HEAD, _framed(ROLE), *_FRAMED, _CLOSING)).replace(
    PLACE, _NOBODY
)
_CANARY_WHOLE: Final = _ANSWER_WHOLE.replace(PLACE, _NOBODY)
_WANTS_STREAM: Final = b'"stream":true'  # when blanks are left out


class _Clock:
    """Lets streams speak at their milliseconds.

    One timer for all: a timer of the loop for each of 40,000 chunks a second costs a quarter of
    what sending them does.
    """

    __slots__ = ("_due", "_loop", "_past", "_speakers", "_ticking")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: dict[int, list[_Replica]] = {}
        self._past = 0  # the last millisecond that was served
        self._speakers = 0
        self._ticking = False

    def now(self) -> int:
        """In milliseconds."""
        return int(self._loop.time() * 1000)

    def call(self, speaker: "_Replica", due: int) -> None:
        """Let it speak once, then."""
        if not self._ticking:
            self._ticking = True
            self._past = self.now()  # before it is placed: a moment that has passed never comes
            self._loop.call_later(0.001, self._tick)
        due = max(due, self._past + 1)
        if due in self._due:
            self._due[due].append(speaker)
        else:
            self._due[due] = [speaker]
        self._speakers += 1

    def _tick(self) -> None:
        now = self.now()
        try:
            for due in range(self._past + 1, now + 1):
                self._past = due
                for speaker in self._due.pop(due, ()):
                    self._speakers -= 1
                    speaker.speak()
        finally:  # one speaker that fails must not silence all others for ever
            self._ticking = self._speakers > 0
            if self._ticking:
                self._loop.call_later(0.001, self._tick)


class _Replica(asyncio.Protocol):
    """One connection to a replica. Answers at once, or streams by the clock."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._parser = httptools.HttpRequestParser(self)
        self._parts: list[bytes] = []
        self._url = b""
        self._transport: asyncio.Transport
        self._file = -1
        self._number = b""
        self._left = self._said = self._gap_ms = self._due = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is of no such class
        self._file = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # a gateway may close as it likes
        self._file = -1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.write(_BAD)
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._url != PATH:
            self._transport.write(
                {b"/v1/models": _MODELS_WHOLE, b"/metrics": _METRICS_WHOLE}.get(
                    self._url, _EMPTY_WHOLE
                )
            )
            self._parts.clear()
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        place = body.rfind(MARK)
        order = body[place + 2 : body.find(b"]", place)].split()
        if place < 0:  # not of the load
            streams = _WANTS_STREAM in body.replace(b" ", b"")
            self._transport.write(_CANARY_STREAM if streams else _CANARY_WHOLE)
        elif len(order) != 3:
            self._transport.write(_BAD)
        elif order[1] == b"0":
            self._transport.write(_ANSWER_WHOLE.replace(PLACE, order[0]))
        else:
            self._number, self._left, self._said = order[0], int(order[1]) - 1, 0
            self._gap_ms = int(order[2])
            self._transport.write(_STREAM_HEAD + _OPENING.replace(PLACE, self._number))
            # By the calendar, not from chunk to chunk: lateness must not lower the rate.
            self._due = self._clock.now() + self._gap_ms
            self._clock.call(self, self._due)

    def speak(self) -> None:
        """Send the next chunk of the stream under way."""
        if self._file < 0:
            return
        if self._left == 0:
            if self._transport.is_closing():
                return  # the gateway has gone, and nobody was told yet: a write would raise
            self._transport.write(_CLOSING.replace(PLACE, self._number))
            return
        self._left -= 1
        self._said += 1
        chunk = _FRAMED[self._said % len(_FRAMED)].replace(PLACE, self._number)
        self._send(chunk)
        self._due += self._gap_ms
        self._clock.call(self, self._due)

    def _send(self, chunk: bytes) -> None:
        """Straight to the socket, which spares a third; the transport takes what does not fit."""
        if self._transport.get_write_buffer_size():
            self._transport.write(chunk)
            return
        try:
            sent = os.write(self._file, chunk)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._transport.abort()  # the gateway has gone
            return
        if sent < len(chunk):
            self._transport.write(chunk[sent:])


async def serve(ports: Sequence[int]) -> None:
    """Be a replica on each port, for ever."""
    loop = asyncio.get_running_loop()
    clock = _Clock()
    for port in ports:
        await loop.create_server(lambda: _Replica(clock), HOST, port, backlog=4096)
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve([int(port) for port in sys.argv[1:]]))

__all__ = ["HOST", "MODEL", "PATH", "Questions", "serve"]
