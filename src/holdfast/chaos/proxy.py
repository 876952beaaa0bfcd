"""A TCP proxy in front of one replica that injects faults into what passes through it.

    gateway, canaries ──► FaultProxy ──► replica          one toxic at a time, or none

It works on bytes, in this process, without the kernel's help: traffic control is not available
everywhere, and needs root where it is. Without a toxic it passes everything on as it comes. A toxic
affects exchanges that begin with ``POST``: the replica's health page stays green on purpose.
Exchanges under way when a toxic is set are affected from then on.

Text is corrupted letter by letter, in place: lengths stay, so the HTTP and the JSON around it stay
valid, and only a reader of the answer can notice. Nothing that passes is kept or logged.

Rejected: a general rule language for toxics. The faults that matter are few and have names.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from holdfast.core.types import require

CONNECTIONS_MAX: Final = 4_096
PIECE_BYTES: Final = 65_536
ARRIVALS_MAX: Final = 256  # pieces of an answer that are held back; then the replica has to wait
CONNECT_S: Final = 2.0
_CONTENT: Final = re.compile(rb'("(?:content|text)"\s*:\s*")([^"\\]*)')
_OTHER: Final = bytes.maketrans(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    b"bcdefghijklmnopqrstuvwxyzaBCDEFGHIJKLMNOPQRSTUVWXYZA1234567890",
)
_LAST_CHUNK: Final = b"0\r\n\r\n"
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
_JSON: Final = b"content-type: application/json\r\n"


def _response(status: bytes, headers: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, headers, len(body), body)


_ERROR: Final = _response(b"500 Internal Server Error", _JSON, b'{"error":{"message":"failed"}}')
_BUSY: Final = _response(
    b"429 Too Many Requests", _JSON + b"retry-after: 1\r\n", b'{"error":{"message":"busy"}}'
)
_EMPTY_BODY: Final = (
    b'{"id":"x","object":"chat.completion","created":0,"model":"","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}'
)
_EMPTY: Final = _response(b"200 OK", _JSON, _EMPTY_BODY)
_EMPTY_STREAM: Final = _response(
    b"200 OK",
    b"content-type: text/event-stream\r\n",
    b'data: {"id":"x","object":"chat.completion.chunk","created":0,"model":"","choices":[{"index":'
    b'0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
)


class Toxic(StrEnum):
    """A fault that the proxy can inject; named as in ``core.plan.faults`` where that has a name."""

    LATENCY = "latency"  # every piece of an answer comes ``delay_s`` later
    SLOW = "slow"  # an answer takes ``factor`` times as long
    DRIP = "drip"  # one piece of an answer per ``delay_s``
    HANG = "hang"  # requests are taken and never answered
    RESET = "reset"  # an answer ends with a reset after ``pieces`` pieces
    CUT = "cut"  # an answer ends in good order after ``pieces`` pieces
    STALL = "stall"  # an answer stops after ``pieces`` pieces, and its connection stays open
    FLAKY = "flaky"  # a share of requests is answered by a reset
    WRONG_OUTPUT = "wrong_output"  # letters of answers are others; the protocol stays valid
    GARBAGE = "garbage"  # every letter of an answer is an exclamation mark
    CORRUPT = "corrupt"  # the JSON around the answer breaks
    EMPTY = "empty"  # 200 and not a single token
    BLACK_HOLE = "black_hole"  # 500 within a millisecond
    REFUSE_BUSY = "refuse_busy"  # 429 with Retry-After
    PARTITION = "partition"  # connections are taken, and nothing passes, not even pages
    REFUSE = "refuse"  # nobody listens
    OOM = "oom"  # the replica is killed by the next request; whoever set it does the killing


_SILENT: Final = (Toxic.HANG, Toxic.PARTITION)


@dataclass(slots=True, frozen=True)
class Dose:
    """A toxic and its strength."""

    toxic: Toxic
    delay_s: float = 0.5  # latency, drip
    factor: float = 10.0  # slow
    pieces: int = 5  # reset, cut, stall: those that still pass; the first holds the headers
    share: float = 0.5  # flaky: of the requests

    def __post_init__(self) -> None:
        require(0 < self.delay_s <= 3_600, "dose.delay_s", f"is {self.delay_s}", "use up to 3600")
        require(1 < self.factor <= 1e4, "dose.factor", f"is {self.factor}", "use 1 to 10000")
        require(0 <= self.pieces <= 10**6, "dose.pieces", f"is {self.pieces}", "use 0 or more")
        require(0 < self.share <= 1, "dose.share", f"is {self.share}", "use a share in (0, 1]")


def _nop() -> None:
    """Does nothing: the default callback."""


class FaultProxy:
    """Passes connections on to one target; ``set`` injects a fault, also into open ones."""

    def __init__(
        self, host: str, port: int, rng: Random | None = None, at_request: Callable[[], None] = _nop
    ) -> None:
        self._target = (host, port)
        self.rng = rng or Random()
        self.at_request = at_request  # called for each request while the dose is OOM
        self._server: asyncio.Server | None = None
        self._own_port = 0
        self._dose: Dose | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.passed = 0  # requests that began
        self.touched = 0  # of them, those a toxic was set for

    @property
    def url(self) -> str:
        """The URL where the proxy listens."""
        return f"http://127.0.0.1:{self._own_port}"

    async def open(self) -> None:
        """Begin to listen, on the same port as before if it was open before."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accept, "127.0.0.1", self._own_port, backlog=1_024
            )
            self._own_port = self._server.sockets[0].getsockname()[1]

    async def set(self, dose: Dose | None) -> None:
        """Inject this fault from now on; ``None`` ends it."""
        self._dose = dose
        if dose is not None and dose.toxic is Toxic.REFUSE:
            await self._stop_listening()
            for task in self._tasks:
                task.cancel()
        else:
            await self.open()

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        await self._stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        self._tasks.add(task)
        try:
            await _Passage(self, reader, writer).run()
        except (OSError, EOFError, asyncio.CancelledError):
            writer.transport.abort()  # one side has gone, or we were told to stop
            await _closed(writer)
        finally:
            self._tasks.discard(task)

    @property
    def dose(self) -> Dose | None:
        """The fault that is injected now; None if there is none."""
        return self._dose

    @property
    def target(self) -> tuple[str, int]:
        """Host and port of the replica behind the proxy."""
        return self._target


class _Passage:
    """One connection through the proxy."""

    def __init__(
        self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client_in, self._client_out = reader, writer
        self._asks = False  # the exchange under way is an inference
        self._pieces = 0  # of its answer, so far
        self._chunked = False  # that comes in chunks, which have an end of their own
        self._between = False  # the last piece of it ended with one of them
        self._arrived = 0.0  # when the last piece of it came
        self._sent = 0.0  # and when that went on

    async def run(self) -> None:
        dose = self._proxy.dose
        if dose is not None and dose.toxic is Toxic.PARTITION:
            await self._swallow()
            return
        connecting = asyncio.open_connection(*self._proxy.target)
        try:
            incoming, outgoing = await asyncio.wait_for(connecting, CONNECT_S)
        except (OSError, TimeoutError):
            self._client_out.transport.abort()
            return
        up = asyncio.create_task(self._up(outgoing))
        down = asyncio.create_task(self._down(incoming))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Closed before anything is awaited: whoever stops us may do so just here.
            for task in (up, down):
                task.cancel()
            outgoing.close()
            self._client_out.close()
            await asyncio.gather(up, down, return_exceptions=True)
            await _closed(outgoing)
            await _closed(self._client_out)

    async def _swallow(self) -> None:
        while await self._client_in.read(PIECE_BYTES):
            pass

    async def _until_the_client_leaves(self) -> None:
        """Nothing more comes; ``run`` ends this when ``_up`` sees the client go."""
        await asyncio.Event().wait()

    async def _up(self, outgoing: asyncio.StreamWriter) -> None:
        while data := await self._client_in.read(PIECE_BYTES):
            if data.startswith(b"POST "):
                self._asks, self._pieces, self._between = True, 0, False
                self._arrived = self._sent = asyncio.get_running_loop().time()
                self._proxy.passed += 1
                self._proxy.touched += self._proxy.dose is not None
            elif data.startswith(b"GET "):
                self._asks = False
            dose = self._proxy.dose
            if dose is not None and self._asks and await self._keep(data, dose):
                continue
            outgoing.write(data)
            await outgoing.drain()

    async def _keep(self, data: bytes, dose: Dose) -> bool:
        """Whether a request never reaches the replica; what it gets instead is sent."""
        toxic, begins = dose.toxic, data.startswith(b"POST ")
        if toxic is Toxic.OOM and begins:
            self._proxy.at_request()
        if toxic in _SILENT:
            return True
        instead = {Toxic.BLACK_HOLE: _ERROR, Toxic.REFUSE_BUSY: _BUSY, Toxic.EMPTY: _EMPTY}
        if toxic is Toxic.FLAKY:
            if begins and self._proxy.rng.random() < dose.share:
                self._reset()
                return True
        elif toxic in instead:
            if begins:
                streams = toxic is Toxic.EMPTY and re.search(rb'"stream"\s*:\s*true', data)
                self._client_out.write(_EMPTY_STREAM if streams else instead[toxic])
                await self._client_out.drain()
            return True
        return False

    async def _down(self, incoming: asyncio.StreamReader) -> None:
        arrivals: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(ARRIVALS_MAX)
        reading = asyncio.create_task(stamp(incoming, arrivals))
        try:
            await self._pass_on(arrivals)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _pass_on(self, arrivals: "asyncio.Queue[tuple[float, bytes]]") -> None:
        while True:
            arrived, data = await arrivals.get()
            if not data:
                break
            dose = self._proxy.dose
            if dose is not None and self._asks:
                touched = await self._touch(data, dose, arrived)
                if touched is None:
                    return
                data = touched
            self._client_out.write(data)
            await self._client_out.drain()
        dose = self._proxy.dose
        if dose is not None and self._asks and dose.toxic in _SILENT:
            # The replica closed a connection that brought it nothing: that is no answer either.
            await self._until_the_client_leaves()

    async def _touch(self, data: bytes, dose: Dose, arrived: float) -> bytes | None:
        """What becomes of one piece of an answer; ``None``: the connection ends here."""
        self._pieces += 1
        toxic = dose.toxic
        if toxic is Toxic.WRONG_OUTPUT:
            return _CONTENT.sub(_other_letters, data)
        if toxic is Toxic.GARBAGE:
            return _CONTENT.sub(_exclamation_marks, data)
        if toxic is Toxic.CORRUPT and b"{" in data and self._pieces > 1:
            return data.replace(b'":', b'";')
        if toxic in (Toxic.RESET, Toxic.CUT, Toxic.STALL):
            return await self._break_off(data, dose)
        if toxic is Toxic.LATENCY or (toxic is Toxic.DRIP and self._pieces > 1):
            await asyncio.sleep(dose.delay_s)
        elif toxic is Toxic.SLOW:
            took, self._arrived = max(0.0, arrived - self._arrived), arrived
            self._sent += dose.factor * took
            await asyncio.sleep(self._sent - asyncio.get_running_loop().time())
        elif toxic in _SILENT:
            await self._until_the_client_leaves()
        return data

    async def _break_off(self, data: bytes, dose: Dose) -> bytes | None:
        if self._pieces == 1:
            self._chunked = b"transfer-encoding: chunked" in data.lower()
        ends_in_order = dose.toxic is Toxic.CUT and self._chunked
        if self._pieces <= dose.pieces or (ends_in_order and not self._between):
            self._between = data.endswith(b"\r\n")
            return data
        if ends_in_order:
            self._client_out.write(_LAST_CHUNK)
            await self._client_out.drain()
        elif dose.toxic is Toxic.STALL:
            await self._until_the_client_leaves()
        elif dose.toxic is Toxic.RESET:
            self._reset()
        return None

    def _reset(self) -> None:
        sock = self._client_out.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the client was faster
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self._client_out.transport.abort()


async def stamp(
    incoming: asyncio.StreamReader, arrivals: "asyncio.Queue[tuple[float, bytes]]"
) -> None:
    """Record when each piece of an answer arrived, even while the one before is still held back.

    Ends with an empty piece, also when the replica broke the connection.
    """
    clock = asyncio.get_running_loop().time
    data = b"-"
    while data:
        try:
            data = await incoming.read(PIECE_BYTES)
        except OSError:  # what came before it is passed on; then the connection ends
            data = b""
        await arrivals.put((clock(), data))


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):  # the other side was not polite about it
        await writer.wait_closed()


def _other_letters(found: re.Match[bytes]) -> bytes:
    return found[1] + found[2].translate(_OTHER)


def _exclamation_marks(found: re.Match[bytes]) -> bytes:
    return found[1] + b"!" * len(found[2])


__all__ = ["Dose", "FaultProxy", "Toxic", "stamp"]
