"""The clients of ``bench/gateway.py``: they load a gateway and verify every byte that comes back.

Raw protocols on uvloop, which drive about 40,000 requests a second together with the replicas on
one core. wrk was rejected: its C is cheaper, but it shows a body only to a Lua callback, and a
gateway that mixes two answers up would have looked as good as one that does not. Here an answer
counts only when its status is 2xx and all its bytes are those the replica sent for this very
request. A gateway that parses answers and writes them anew (LiteLLM) is held to the same text
instead, and the table says so.
"""

import asyncio
import gc
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from time import perf_counter
from typing import Final, Self, cast

import httptools
import uvloop

from gateway_replica import HOST, Questions

FAILURE_PAUSE_S: Final = 0.01  # after a failed request, so that a refusing gateway is not hammered
SETTLE_S: Final = 0.005  # how often it is asked whether all is over
DRAIN_S: Final = 20.0  # for what is under way when a measurement ends


@dataclass(slots=True)
class Tally:
    """What came back."""

    verified: int = 0  # 2xx, and every byte as sent or (rewritten) the same text
    rewritten: int = 0  # of these: not byte for byte
    failed: int = 0
    problem: str = ""  # the first one
    reads: int = 0  # of sockets, for streams: fewer than chunks means that chunks were joined
    seconds: float = 0.0
    latencies_s: "array[float]" = field(default_factory=lambda: array("d"))

    def fail(self, problem: str) -> None:
        """Count one request that brought no verified answer."""
        self.failed += 1
        self.problem = self.problem or problem


class Client(asyncio.Protocol):
    """One keep-alive connection, with one request on it at a time."""

    def __init__(self, crowd: "Crowd", port: int) -> None:
        self._crowd = crowd
        self._port = port
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._number = b""
        self._expected = b""  # stays empty for streams, which never come in one read
        self._fresh = True  # nothing of the present answer has been parsed
        self._transport: asyncio.Transport | None = None
        self.busy = False
        self.began = 0.0

    async def connect(self) -> None:
        """Open the connection."""
        await self._crowd.loop.create_connection(lambda: self, HOST, self._port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is of no such class
        self._parser = httptools.HttpResponseParser(self)
        self._fresh = True

    @property
    def connected(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, began: float) -> None:
        """Ask the next question; its latency counts from ``began``."""
        if self._transport is None or self._transport.is_closing():
            self._crowd.reconnect(self, began)
            return
        request, self._number = self._crowd.questions.ask()
        if not self._crowd.questions.stream:
            self._expected = self._crowd.questions.answer(self._number)
        self.began = began
        self.busy = True
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._crowd.tally.reads += 1
        if self._fresh and self._expected and self._is_whole(data):
            self._finish("", rewritten=False)
            return
        self._fresh = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.give_up(f"malformed answer: {error}")

    def _is_whole(self, data: bytes) -> bool:
        """The usual case: one read holds a 200 and exactly the bytes expected."""
        expected = self._expected
        return (
            data.startswith(b"HTTP/1.1 200")
            and data.endswith(expected)
            and data.find(b"\r\n\r\n") == len(data) - len(expected) - 4
        )

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        status = self._parser.get_status_code()
        if status == 100:
            return
        self._body.clear()
        self._fresh = True
        if not 200 <= status < 300:
            self._finish(f"status {status}: {body[:200].decode(errors='replace')}")
            return
        questions = self._crowd.questions
        exact = body == questions.answer(self._number)
        if exact or questions.means_the_same(body, self._number):
            self._finish("", rewritten=not exact)
        else:
            self._finish(f"wrong answer of {len(body)} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.busy:
            self._body.clear()
            self._finish(f"connection lost: {exc or 'closed by the gateway'}")

    def give_up(self, problem: str) -> None:
        """Break off what is under way."""
        if self._transport is not None:
            self._transport.abort()
        if self.busy:
            self._finish(problem)

    def close(self) -> None:
        """Leave."""
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, problem: str, *, rewritten: bool = False) -> None:
        self.busy = False
        tally = self._crowd.tally
        if problem:
            tally.fail(problem)
        else:
            tally.verified += 1
            tally.rewritten += rewritten
            tally.latencies_s.append(perf_counter() - self.began)
        self._crowd.next(self, failed=bool(problem))


class Crowd:
    """So many clients of one gateway (or, over several ports, of the replicas themselves)."""

    def __init__(self, ports: Sequence[int], questions: Questions, connections: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.questions = questions
        self.tally = Tally()
        self.clients = [Client(self, ports[i % len(ports)]) for i in range(connections)]
        self._reconnecting: set[asyncio.Task[None]] = set()
        self._stop_at = 0.0
        self._idle: list[Client] = []
        self._waiting: deque[float] = deque()  # bounded by rate × seconds
        self._paced = False

    async def __aenter__(self) -> Self:
        for client in self.clients:
            await client.connect()
        return self

    async def __aexit__(self, *args: object) -> None:
        for client in self.clients:
            client.close()
        for task in self._reconnecting:
            task.cancel()
        await asyncio.sleep(0)  # lets the transports go

    def reconnect(self, client: Client, began: float) -> None:
        """Open the connection again, then ask what was to be asked."""

        async def again() -> None:
            try:
                await client.connect()
            except OSError as error:
                self.tally.fail(f"connect: {error}")
            if client.connected:
                client.send(began)
            elif perf_counter() < self._stop_at:
                self.loop.call_later(FAILURE_PAUSE_S, client.send, began)
            else:
                client.busy = False

        client.busy = True
        task = self.loop.create_task(again())
        self._reconnecting.add(task)
        task.add_done_callback(self._reconnecting.discard)

    def next(self, client: Client, *, failed: bool) -> None:
        """A client is free: give it what comes next."""
        client.busy = False
        if self._paced:
            if self._waiting:
                client.send(self._waiting.popleft())
            else:
                self._idle.append(client)
            return
        now = perf_counter()  # the loop's own clock counts whole milliseconds
        if now >= self._stop_at:
            return
        if failed:
            self.loop.call_later(FAILURE_PAUSE_S, client.send, now)
            client.busy = True
        else:
            client.send(now)

    async def closed(self, seconds: float) -> Tally:
        """Every client asks as soon as it has its answer; ends when all have their last."""
        self.tally = Tally()
        began = perf_counter()
        self._stop_at = began + seconds
        for client in self.clients:
            client.send(began)
        await asyncio.sleep(seconds)
        await self._settle()
        self.tally.seconds = perf_counter() - began
        return self.tally

    async def paced(self, rate: float, seconds: float) -> Tally:
        """Ask ``rate`` times a second at random moments, whether or not answers come.

        Latency counts from the moment of writing; where no connection is free, from the moment
        the request was due, so that a gateway that falls behind cannot hide it.
        """
        self.tally, self._paced = Tally(), True
        self._idle = list(self.clients)
        began = perf_counter()
        self._stop_at = began + seconds
        for number, due in enumerate(self._dues(began, rate, seconds)):
            now = perf_counter()
            if due > now or number % 16 == 0:  # answers must be read even when we are late
                await asyncio.sleep(max(0.0, due - now))
            if self._idle:
                self._idle.pop().send(perf_counter())
            else:
                self._waiting.append(due)
        await self._settle()
        self.tally.seconds = perf_counter() - began
        self._paced = False
        return self.tally

    @staticmethod
    def _dues(began: float, rate: float, seconds: float) -> Iterator[float]:
        rng = Random(1)
        due = began
        while True:
            due += rng.expovariate(rate)
            if due >= began + seconds:
                return
            yield due

    async def _settle(self) -> None:
        """Wait for what is under way; what takes too long has failed."""
        for _ in range(int(DRAIN_S / SETTLE_S)):
            if not any(client.busy for client in self.clients):
                break
            await asyncio.sleep(SETTLE_S)
        self._stop_at = 0.0
        for _ in range(len(self._waiting)):
            self.tally.fail("no connection became free")
        self._waiting.clear()
        for client in self.clients:
            if client.busy:
                client.give_up(f"no answer within {DRAIN_S:g} s")


@dataclass(slots=True, frozen=True)
class Load:
    """What one measurement sends."""

    ports: tuple[int, ...]
    size: int
    connections: int
    seconds: float
    chunks: int = 0
    gap_ms: int = 0
    warm_s: float = 0.3

    def streaming(self, chunks: int, gap_ms: int) -> "Load":
        """The same, asking for streams."""
        return replace(self, chunks=chunks, gap_ms=gap_ms)

    def closed(self, mark: Callable[[], None]) -> Tally:
        """Run at full speed; ``mark`` is called when the counted part begins and when it is over.

        Both moments find nothing under way, so that CPU time and answers belong to each other.
        """
        return self._run(mark, None)

    def paced(self, rate: float) -> Tally:
        """Run at a rate of its own."""
        return self._run(lambda: None, rate)

    def _run(self, mark: Callable[[], None], rate: float | None) -> Tally:
        async def main() -> Tally:
            questions = Questions(self.size, chunks=self.chunks, gap_ms=self.gap_ms)
            async with Crowd(self.ports, questions, self.connections) as crowd:
                warm = await crowd.closed(self.warm_s)
                mark()
                if rate is None:
                    tally = await crowd.closed(self.seconds)
                else:
                    tally = await crowd.paced(rate, self.seconds)
                mark()
                if not tally.problem:
                    tally.problem = warm.problem
                return tally

        gc.collect()
        gc.disable()
        try:
            return uvloop.run(main())
        finally:
            gc.enable()


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of all lie; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


__all__ = ["Crowd", "Load", "Tally", "percentile"]
