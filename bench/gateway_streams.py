"""Two thousand streams at once through one gateway: how evenly chunks come, and what one costs.

The clients here only note when chunks came and keep the bytes; they verify when all is over,
because 40,000 chunks a second leave one core, shared with the replicas, no time for both. The same
streams are first read from the replicas directly: what a gateway adds is the difference of the two
99th percentiles, so that the unevenness of the clients' own core does not count against it.
"""

import asyncio
import contextlib
import gc
import os
import resource
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, cast

import httptools
import uvloop

from gateway_load import percentile
from gateway_replica import HOST, Questions

GAP_MS: Final = 50  # 20 chunks a second
RAMP_S: Final = 3.0  # spreads the streams evenly over the period of a chunk
EVENT: Final = b"data: "
OK: Final = b"HTTP/1.1 200"
LAST: Final = b"0\r\n\r\n"
TAIL_S: Final = 20.0  # for the last chunks of the last stream


@dataclass(slots=True)
class Evenness:
    """What two thousand readers saw."""

    streams: int
    verified: int = 0
    problem: str = ""
    gaps: int = 0
    gap_p50_ms: float = 0.0
    gap_p99_ms: float = 0.0
    gap_max_ms: float = 0.0
    chunks_per_read: float = 0.0  # above 1: the reader or the gateway fell behind and joined them


class _Reader(asyncio.Protocol):
    """One stream."""

    __slots__ = ("_last", "_questions", "_room", "number", "parts", "transport", "whole")

    def __init__(self, room: "_Room", questions: Questions) -> None:
        self._room = room
        self._questions = questions
        self._last = 0.0
        self.number = b""
        self.parts: list[bytes] = []
        self.whole = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        request, self.number = self._questions.ask()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self.parts and not data.startswith(OK):
            self._refused(data)
        self.parts.append(data)
        chunks = data.count(EVENT)
        if chunks:
            now = perf_counter()
            self._room.note(now, self._last, chunks)
            self._last = now
        if data.endswith(LAST) and not self.whole:
            self.whole = True
            self._room.leave()

    def _refused(self, data: bytes) -> None:
        self.whole = True
        self._room.broke(data.partition(b"\r\n")[0].decode(errors="replace"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if not self.whole:
            self._room.broke(f"cut: {exc or 'closed'}")


class _Room:
    """What all readers share: the window in which gaps count, and how many still read."""

    def __init__(self, streams: int) -> None:
        self.left = streams
        self.over = asyncio.Event()
        self.opens = self.closes = 0.0  # of the window; not yet
        self.gaps = array("d")
        self.reads = 0
        self.problem = ""

    def note(self, now: float, last: float, chunks: int) -> None:
        """Chunks came; those that came with another one waited for nothing after it."""
        if last < self.opens or now > self.closes:
            return
        self.reads += 1
        self.gaps.append(now - last)
        for _ in range(chunks - 1):
            self.gaps.append(0.0)

    def leave(self) -> None:
        """One has read its stream."""
        self.left -= 1
        if self.left == 0:
            self.over.set()

    def broke(self, problem: str) -> None:
        """One was cut off."""
        self.problem = self.problem or problem
        self.leave()


class _Body:
    """Takes the transfer framing off."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)


def _verify(readers: Sequence[_Reader], questions: Questions, seen: Evenness) -> None:
    for reader in readers:
        body = _Body()
        parser = httptools.HttpResponseParser(body)
        try:
            parser.feed_data(b"".join(reader.parts))
        except httptools.HttpParserError as error:
            seen.problem = seen.problem or f"malformed answer: {error}"
            continue
        said = b"".join(body.parts)
        status = parser.get_status_code() if reader.parts else 0
        exact = said == questions.answer(reader.number)
        if status == 200 and (exact or questions.means_the_same(said, reader.number)):
            seen.verified += 1
        else:
            seen.problem = seen.problem or f"status {status}, {len(said)} bytes"


def allow_files(number: int) -> None:
    """Raise the number of open files, for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def unhurried(pids: Sequence[int]) -> Iterator[None]:
    """Let readers and replicas finish what they do before the other is woken on the same core.

    Otherwise every chunk costs a switch of processes, and 40,000 a second do not fit on it.
    """
    for pid in (0, *pids):
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        for pid in (0, *pids):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def read_streams(
    ports: Sequence[int], streams: int, hold_s: float, mark: Callable[[], None]
) -> Evenness:
    """Open them over some seconds, read on for ``hold_s``, let them end.

    ``mark`` is called when all are open and again when the time is over: between the two nothing
    begins or ends.
    """
    chunks = int((RAMP_S + hold_s + 1.0) * 1000 / GAP_MS)
    questions = Questions(300, chunks=chunks, gap_ms=GAP_MS)
    seen = Evenness(streams)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        room = _Room(streams)
        readers = [_Reader(room, questions) for _ in range(streams)]
        began = perf_counter()
        for index, reader in enumerate(readers):
            wait = began + RAMP_S * index / streams - perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            try:
                await loop.create_connection(
                    lambda reader=reader: reader,  # type: ignore[misc]
                    HOST,
                    ports[index % len(ports)],
                )
            except OSError as error:
                room.broke(f"connect: {error}")
        room.opens = perf_counter()
        room.closes = room.opens + hold_s
        mark()
        await asyncio.sleep(hold_s)
        mark()
        try:
            await asyncio.wait_for(room.over.wait(), TAIL_S)
        except TimeoutError:
            seen.problem = f"{room.left} streams did not end"
        seen.problem = seen.problem or room.problem
        for reader in readers:
            if reader.transport is not None:
                reader.whole = True  # what is missing shows in its bytes
                reader.transport.abort()
        _verify(readers, questions, seen)
        seen.gaps = len(room.gaps)
        seen.gap_p50_ms = percentile(room.gaps, 0.50) * 1000
        seen.gap_p99_ms = percentile(room.gaps, 0.99) * 1000
        seen.gap_max_ms = max(room.gaps, default=0.0) * 1000
        seen.chunks_per_read = seen.gaps / max(room.reads, 1)

    gc.collect()
    gc.disable()
    try:
        uvloop.run(main())
    finally:
        gc.enable()
    return seen


__all__ = ["Evenness", "allow_files", "read_streams", "unhurried"]
