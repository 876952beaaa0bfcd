"""Chats at a fixed rate, streamed or answered in one piece, each checked word by word.

The load is open: requests come at Poisson times drawn beforehand from a seed, whatever became of
the earlier ones, and a request's clock starts when it was due, not when a connection was free. So a
gateway that stalls cannot hide behind a client that waits for it.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, cycle, islice
from random import Random
from typing import Any, Final

import httptools
import orjson

from holdfast.testing.standin import expected_text
from holdfast.testing.standin.text import WORDS

LATE_S: Final = 1.5  # a request that takes longer was harmed; a healthy one takes a quarter
IN_FLIGHT_MAX: Final = 20_000
WORDS_MAX: Final = 32_000
_REFUSAL_MAX: Final = 300  # characters of an error that are kept
_FOREIGN: Final = [f"{word[::-1]} " for word in WORDS]  # no answer contains them
_FILLER: Final = "".join(islice(cycle(_FOREIGN), WORDS_MAX))
_ENDS: Final = [0, *accumulate(map(len, islice(cycle(_FOREIGN), WORDS_MAX)))]


class Shot:
    """One request and all that came of it."""

    __slots__ = (
        "attempts",
        "body",
        "continued",
        "done",
        "due",
        "ended",
        "error",
        "expected",
        "finish",
        "first",
        "ids",
        "refusal",
        "replica",
        "roles",
        "status",
        "stream",
        "text",
    )

    def __init__(
        self, due: float, model: str, prompt: str, tokens: int, *, stream: bool = True
    ) -> None:
        messages = [{"role": "user", "content": prompt}]
        self.due = due  # time of the loop
        self.stream = stream
        asked = {"model": model, "messages": messages, "stream": stream, "temperature": 0}
        self.body = orjson.dumps(asked)
        self.expected = expected_text(model, messages, tokens)
        self.first = 0.0
        self.ended = 0.0
        self.status = 0
        self.text = ""
        self.finish = ""
        self.done = False  # [DONE] was seen, or the whole answer was read
        self.roles = 0
        self.ids: set[str] = set()
        self.error = ""
        self.attempts = 1
        self.continued = False
        self.replica = ""  # that the gateway named
        self.refusal = ""  # the error in the gateway's words

    def read(self, event: bytes, now: float) -> None:
        """One SSE event."""
        for line in event.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self.done = True
                continue
            try:
                self._take(orjson.loads(data), now)
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
                self.error = self.error or "malformed"

    def read_whole(self, body: bytes, now: float) -> None:
        """Read an answer in one piece."""
        try:
            told = orjson.loads(body)
            if "error" in told:
                self.error = self.error or "error event"
                return
            self.ids.add(told["id"])
            (choice,) = told["choices"]
            self.roles += "role" in choice["message"]
            self.text = choice["message"].get("content") or ""
            self.finish = choice.get("finish_reason") or ""
            self.first, self.done = now, True
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            self.error = self.error or "malformed"

    def _take(self, told: dict[str, Any], now: float) -> None:
        if "error" in told:
            self.error = self.error or "error event"
            self.refusal = orjson.dumps(told["error"]).decode()[:_REFUSAL_MAX]
            return
        self.ids.add(told["id"])
        self.continued = self.continued or bool(told.get("holdfast", {}).get("continued"))
        for choice in told["choices"]:
            delta = choice["delta"]
            self.roles += "role" in delta
            content = delta.get("content")
            if content:
                self.first = self.first or now
                self.text += content
            self.finish = choice.get("finish_reason") or self.finish

    def harm(self, late_s: float = LATE_S) -> str:
        """What its client suffered; nothing, for most."""
        if self.error:
            return self.error
        if self.status != 200:
            return f"status {self.status}"
        if self.text != self.expected:
            if self.expected.startswith(self.text):
                return "missing text"
            return "repeated text" if self.repeated() else "wrong text"
        if not self.finish or not self.done:
            return "no finish"
        if len(self.ids) != 1 or self.roles != 1:
            return "two answers in one"
        return "late" if self.ended - self.due > late_s else ""

    def silently_short(self) -> bool:
        """Whether text is missing and nothing told the client so.

        The response came to its end in good order with status 200, with no error in it. Whether it
        has a finish reason does not matter: most clients take the end of a response for the end of
        the answer.
        """
        whole = self.status == 200 and not self.error
        return whole and self.text != self.expected and self.expected.startswith(self.text)

    def repeated(self) -> bool:
        """Whether words of the answer came twice."""
        words, expected = self.text.split(), self.expected.split()
        return len(words) > len(expected) and set(words) <= set(expected)


class _Client(asyncio.Protocol):
    """One connection to the gateway; one request at a time."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._parser: Any = None
        self._transport: Any = None
        self._shot: Shot | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, shot: Shot) -> None:
        self._shot = shot
        self._buffer = b""
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self._load.head % len(shot.body) + shot.body)

    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._over("bad http")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._over("reset" if exc is not None else "closed")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._shot is None:
            return
        if name.lower() == b"x-holdfast-attempts":
            self._shot.attempts = int(value)
        elif name.lower() == b"x-holdfast-replica":
            self._shot.replica = value.decode("ascii", "replace")

    def on_headers_complete(self) -> None:
        if self._shot is not None:
            self._shot.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        shot = self._shot
        if shot is None:
            return
        if shot.status != 200:
            shot.refusal = (shot.refusal + body.decode("utf-8", "replace"))[:_REFUSAL_MAX]
            return
        if not shot.stream:
            self._buffer += body
            return
        now = asyncio.get_running_loop().time()
        *events, self._buffer = (self._buffer + body).split(b"\n\n")
        for event in events:
            shot.read(event, now)

    def on_message_complete(self) -> None:
        shot = self._shot
        if shot is not None and not shot.stream and shot.status == 200:
            shot.read_whole(self._buffer, asyncio.get_running_loop().time())
        again = self._load.keep_alive and self._parser.should_keep_alive()
        self._over("")
        if again:
            self._load.idle.append(self)
        else:
            self.close()

    def _over(self, error: str) -> None:
        shot, self._shot = self._shot, None
        if shot is not None:
            shot.error = shot.error or error
            self._load.over(shot)


class Load:
    """Sends what is due, and keeps the record."""

    def __init__(self, host: str, port: int, *, keep_alive: bool) -> None:
        self._address = (host, port)
        self.keep_alive = keep_alive
        connection = "keep-alive" if keep_alive else "close"
        self.head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\n"
            f"connection: {connection}\r\ncontent-type: application/json\r\n"
            "content-length: %d\r\n\r\n"
        ).encode()
        self.idle: list[_Client] = []
        self.shots: list[Shot] = []
        self._flying: set[Shot] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, shots: Iterator[Shot]) -> None:
        """Send each when it is due."""
        loop = asyncio.get_running_loop()
        for shot in shots:
            wait = shot.due - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            self.shots.append(shot)
            if len(self._flying) >= IN_FLIGHT_MAX:
                shot.error, shot.ended = "not sent", loop.time()
                continue
            self._flying.add(shot)
            task = loop.create_task(self._send(shot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, shot: Shot) -> None:
        while self.idle:
            client = self.idle.pop()
            if client.usable():
                client.send(shot)
                return
        try:
            loop = asyncio.get_running_loop()
            _, client = await loop.create_connection(lambda: _Client(self), *self._address)
        except OSError:
            shot.error = "refused"
            self.over(shot)
        else:
            client.send(shot)

    def over(self, shot: Shot) -> None:
        """A request has ended, well or not."""
        shot.ended = asyncio.get_running_loop().time()
        self._flying.discard(shot)

    async def settle(self, patience_s: float) -> None:
        """Wait for those under way; what is not over then has failed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience_s
        while self._flying and loop.time() < end:  # noqa: ASYNC110  # they end one by one
            await asyncio.sleep(0.02)
        for shot in list(self._flying):
            shot.error = shot.error or "no end"
            self.over(shot)
        for client in self.idle:
            client.close()
        self.idle.clear()
        await asyncio.sleep(0)


Lengths = Callable[[Random], int]  # words of a prompt


def short_prompts(rng: Random) -> int:
    """As in a chat: 5 to 60 words."""
    return rng.randint(5, 60)


def mixed_prompts(rng: Random) -> int:
    """100 to 32,000 words, each order of magnitude as likely as the next."""
    return round(100.0 * math.pow(320.0, rng.random()))


def poisson(
    seed: int,
    rate: float,
    begin: float,
    seconds: float,
    *,
    lengths: Lengths,
    tokens: int,
    stream: bool = True,
) -> Iterator[Shot]:
    """Requests for so long from ``begin`` on; every prompt is different from its first word on."""
    rng = Random(seed)
    due = begin
    number = 0
    while (due := due + rng.expovariate(rate)) < begin + seconds:
        words = lengths(rng)
        number += 1
        name = f"{seed}-{number}-{rng.getrandbits(32):x} "
        yield Shot(due, "m", name + filler(words), tokens, stream=stream)


def filler(words: int) -> str:
    """So many words that mean nothing."""
    return _FILLER[: _ENDS[words]]


def quantile(values: list[float], share: float) -> float:
    """The smallest value that this share does not exceed; 0 where there is none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(shots: list[Shot], late_s: float = LATE_S) -> dict[str, Any]:
    """The figures of a table row."""
    harms = [harm for shot in shots if (harm := shot.harm(late_s))]
    firsts = [1_000 * (shot.first - shot.due) for shot in shots if shot.first]
    return {
        "requests": len(shots),
        "harmed": len(harms),
        "share": len(harms) / len(shots) if shots else 0.0,
        "kinds": dict(Counter(harms).most_common()),
        "repeated": sum(shot.repeated() for shot in shots),
        "silently_short": sum(shot.silently_short() for shot in shots),
        "first_ms_p50": round(quantile(firsts, 0.5), 1),
        "first_ms_p99": round(quantile(firsts, 0.99), 1),
        "slowest_s": round(max((shot.ended - shot.due for shot in shots), default=0.0), 3),
        "retried": sum(shot.attempts > 1 for shot in shots),
        "continued": sum(shot.continued for shot in shots),
    }


__all__ = [
    "LATE_S",
    "Lengths",
    "Load",
    "Shot",
    "mixed_prompts",
    "poisson",
    "quantile",
    "short_prompts",
    "summary",
]
