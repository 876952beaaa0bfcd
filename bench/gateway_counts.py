"""What one request costs a gateway, counted instead of timed: calls and bytecodes by function.

    python bench/gateway_counts.py [--jobs 0.3,8,32,chunk] [--json FILE] [--against FILE] [--top N]

Times of two commits differ by several percent on a machine that others use, too; counts do not
differ at all. So a change that adds a little to every request is seen here: write the counts of
one commit with ``--json``, and compare another ``--against`` them.

The gateway is whole, from the bytes of a client to the bytes of a replica and back, and has been
asked for long enough that its deadlines are learned. Only sockets and the event loop are stand-ins,
so what the kernel and uvloop cost is not in it. The time is counted up at every reading. Work of C
(JSON, bytes) counts as one bytecode, however long it takes: instructions, under valgrind, say more,
and CPU time (``bench/gateway.py``) has the last word.
"""

import argparse
import asyncio
import json
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any, Final, cast

import orjson

from gateway_replica import MODEL, Questions
from gateway_report import CHUNK, SIZES
from holdfast.config.fleet_file import FleetFile
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.types import State
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.server import Server
from holdfast.gateway.request.request_driver import RequestDriver
from holdfast.gateway.request.settings import settings_of, targets_of

CLIENTS: Final = 32
CHUNKS: Final = 100
WARM_ROUNDS: Final = 80  # until the deadlines of answers are learned
ROUNDS: Final = 3
WARM_READING: Final = 200_000  # ns between two readings of the clock, so that seconds pass
READING: Final = 700  # ns, from then on
TOP: Final = 25  # functions shown

_order: Final = re.compile(rb"\[#([0-9a-f]{8})").findall
_EVENT_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"

Counts = dict[str, tuple[float, float]]  # by function: calls and bytecodes per request
Reads = list[tuple["Wire", bytes]]  # what sockets bring in one turn of the loop


# --- stand-ins ------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """The transport of one connection; keeps what was written."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.protocol = protocol
        self.sent: list[bytes] = []
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.sent += map(bytes, list_of_data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        raise ConnectionAbortedError("the gateway broke a connection off: see what it was sent")

    def take(self) -> bytes:
        """What was written since the last call."""
        data, self.sent = b"".join(self.sent), []
        return data


class Loop:
    """The event loop, as far as a gateway uses it for a request."""

    def __init__(self) -> None:
        self._soon: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self.upstream: list[Wire] = []  # the connections to replicas

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._soon.append((callback, args))

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it in the next turn; it waits for nothing."""
        self.call_soon(list, _steps(coroutine))

    async def create_connection(
        self, protocol: Callable[[], asyncio.Protocol], *_: object, **__: object
    ) -> None:
        self.upstream.append(Wire(protocol()))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]

    def run(self) -> None:
        """Turn until there is nothing more to do."""
        while self._soon:
            callback, args = self._soon.popleft()
            callback(*args)


def _steps(coroutine: Coroutine[Any, Any, None]) -> Iterator[None]:
    try:
        yield coroutine.send(None)
    except StopIteration:
        return


class Clock:
    """A time that passes whenever it is read."""

    def __init__(self) -> None:
        self.now = 10**12
        self.reading = WARM_READING

    def read(self) -> int:
        """Return the time in nanoseconds."""
        self.now += self.reading
        return self.now


# --- the gateway and its clients ------------------------------------------------------------------


class Bench:
    """A gateway with two replicas and some clients that all ask at once."""

    def __init__(self, job: str) -> None:
        self._streams = job == CHUNK
        size = SIZES["0.3" if self._streams else job]
        self._questions = Questions(size, chunks=CHUNKS if self._streams else 0)
        self._loop = Loop()
        self.clock = Clock()
        now_ns, loop = self.clock.read, cast("asyncio.AbstractEventLoop", self._loop)
        ends = [{"url": f"http://127.0.0.1:{port}", "slots": 2_048} for port in (9_001, 9_002)]
        model = {"name": MODEL, "engine": "vllm", "endpoints": ends, "routing": "prefix_affinity"}
        file = FleetFile.from_json(orjson.dumps({"models": [model]}))
        turn = LoopTurn(loop)
        driver = RequestDriver(
            settings_of(file),
            targets_of(file, {}, loop, now_ns, turn=turn),
            name="req_",
            loop=loop,
            now_ns=now_ns,
            streams=Random,
            news=lambda _: None,
        )
        server = Server(
            driver, file.gateway.http, loop=loop, turn=turn, now_ns=now_ns, budget=driver.budget
        )
        views = tuple(ReplicaView(each.replica, State.READY, 1.0) for each in file.replicas())
        driver.view(FleetView(1, views))
        self._clients = [Wire(server.protocol()) for _ in range(CLIENTS)]

    def round(self, watch: Callable[[Callable[[], None]], None]) -> None:
        """Let every client ask once; ``watch`` is called with all that the gateway does."""
        asked = [(client, self._questions.ask()[0]) for client in self._clients]
        watch(lambda: self._bring(asked))
        for reads in self._answers():
            watch(lambda reads=reads: self._bring(reads))  # type: ignore[misc]
        for client in self._clients:
            answer = client.take()
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"a request failed: {answer[:300]!r}")

    def _bring(self, reads: Reads) -> None:
        for wire, data in reads:
            wire.protocol.data_received(data)
        self._loop.run()

    def _answers(self) -> list[Reads]:
        """What the replicas say to what they were asked, turn by turn."""
        asked = [(wire, _order(wire.take())) for wire in self._loop.upstream]
        bodies = [(wire, self._questions.answer(found[-1])) for wire, found in asked if found]
        if not self._streams:
            return [[(wire, _HEAD % (len(body), body)) for wire, body in bodies]]
        events = [(wire, [*map(_framed, body.split(b"\n\n")[:-1])]) for wire, body in bodies]
        numbers = range(len(events[0][1]))
        return [
            [(wire, _EVENT_HEAD) for wire, _ in events],
            *([(wire, told[number]) for wire, told in events] for number in numbers),
            [(wire, b"0\r\n\r\n") for wire, _ in events],
        ]


def _framed(event: bytes) -> bytes:
    return b"%x\r\n%b\n\n\r\n" % (len(event) + 2, event)


# --- counting -------------------------------------------------------------------------------------


def count(job: str) -> Counts:
    """Return what each function of Holdfast does for one request."""
    bench = Bench(job)
    for _ in range(WARM_ROUNDS):
        bench.round(lambda work: work())
    bench.clock.reading = READING
    calls: Counter[CodeType] = Counter()
    bytecodes: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call":
            calls[frame.f_code] += 1
        elif event == "opcode":
            bytecodes[frame.f_code] += 1
        return trace

    def watch(work: Callable[[], None]) -> None:
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(None)

    for _ in range(ROUNDS):
        bench.round(watch)
    requests = ROUNDS * CLIENTS
    counts: Counts = {}
    for code, number in bytecodes.items():
        _, ours, path = code.co_filename.rpartition("/holdfast/")
        if ours or code.co_filename.startswith("<"):
            name = f"{path or 'made by dataclasses'}: {code.co_qualname}"
            before = counts.get(name, (0.0, 0.0))
            here = calls[code] / requests, number / requests
            counts[name] = before[0] + here[0], before[1] + here[1]
    return counts


def _sum(counts: Counts) -> tuple[float, float]:
    return sum(each[0] for each in counts.values()), sum(each[1] for each in counts.values())


def show(job: str, counts: Counts, before: Counts | None, top: int) -> None:
    """Print the sums, and the functions with the most bytecodes or the largest differences."""
    calls, bytecodes = _sum(counts)
    print(f"{job}: {calls:,.1f} calls, {bytecodes:,.0f} bytecodes per request", end="")
    if before is None:
        print()
        rows = [(number, name) for name, (_, number) in counts.items()]
    else:
        calls_before, bytecodes_before = _sum(before)
        ratio = bytecodes / bytecodes_before
        print(f"; before {calls_before:,.1f} and {bytecodes_before:,.0f}: × {ratio:.3f}")
        none = (0.0, 0.0)
        names = counts.keys() | before.keys()
        rows = [(counts.get(n, none)[1] - before.get(n, none)[1], n) for n in names]
    for number, name in sorted(rows, key=lambda row: (-abs(row[0]), row[1]))[:top]:
        if abs(number) >= 0.05:
            print(f"  {number:+9.1f}  {name}" if before is not None else f"  {number:9.1f}  {name}")


def main() -> int:
    """Count each job and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", default=",".join((*SIZES, CHUNK)), help="sizes in KB, or chunk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts here")
    parser.add_argument("--against", type=Path, metavar="FILE", help="counts to compare with")
    parser.add_argument("--top", type=int, default=TOP, help="functions to show")
    arguments = parser.parse_args()
    jobs = arguments.jobs.split(",")
    unknown = [job for job in jobs if job not in {*SIZES, CHUNK}]
    if unknown:
        print(f"no such job: {', '.join(unknown)}; there are {', '.join((*SIZES, CHUNK))}")
        return 2
    before: dict[str, Counts] = {}
    if arguments.against:
        before = json.loads(arguments.against.read_text(encoding="utf-8"))
    counted = {job: count(job) for job in jobs}
    for job, counts in counted.items():
        show(job, counts, before.get(job), arguments.top)
    if arguments.json:
        arguments.json.write_text(json.dumps(counted, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["Bench", "count", "main"]
