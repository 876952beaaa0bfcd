"""Groups the work of one turn of the event loop: read everything, handle it, send everything.

A turn reads from every socket that has something, and each read mostly ends in a write somewhere
else. To do all of that at once means, over and over: a system call, parse, decide, another system
call, a wake-up of whoever reads there. Each kind together is cheaper twice: the kernel and the
interpreter no longer throw each other out of the caches and branch tables of a core at every
request, and whoever reads is woken once for many of them. It saves a third of what a request costs
(``docs/internals/compiled.md``). What was read first in a turn waits until the others were read,
too; nobody waits for a clock, and a lone request for nobody.

    received  handle it when all was read, in order
    catch_up  handle now what was read: before anything is judged that it may concern, such as the
              end of a connection or a deadline
    put       send it at the end of this turn, in order
    send      send now what is kept for this one: it is about to be closed, or its end written
    forget    send nothing: it is given up

Both are bounded twice, in bytes and in number: what a turn brings beyond is handled and sent at
once, so that a client that does not read is noticed, and nobody waits for very many others. A long
read is handled at once, too: more may follow, and whoever is full must be able to say so.

Rejected: to leave it to the event loop. uvloop writes at once while nothing is waiting to be sent.
Rejected: a timer, as in Nagle's algorithm: a lone request would wait for what does not come.
"""

from asyncio import AbstractEventLoop, Transport
from collections import deque
from typing import Final, Protocol

BYTES_MAX: Final = 1 << 20  # kept in all, of what was read and of what is to be sent
READ_BYTES_MAX: Final = 65_536  # in one read that is kept
READS_MAX: Final = 64  # kept; the first waits for so many at most
CONNECTIONS_MAX: Final = 64  # with something to be sent to them; likewise


class Reader(Protocol):
    """A connection that was read from."""

    def take(self, data: bytes) -> None:
        """Act on it."""

    def break_off(self) -> None:
        """It could not, by a fault of its own: end the connection."""


class LoopTurn:
    """The reads and writes of one turn of the event loop."""

    __slots__ = ("_bytes", "_due", "_kept", "_loop", "_unread", "_unread_bytes")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._unread: deque[tuple[Reader, bytes]] = deque()
        self._unread_bytes = 0
        self._kept: dict[Transport, list[bytes]] = {}
        self._bytes = 0
        self._due = False  # the end of the turn was asked for

    def received(self, reader: Reader, data: bytes) -> None:
        """Let it be handled when all that can be read was read."""
        unread, size = self._unread, len(data)
        unread.append((reader, data))
        self._unread_bytes += size
        if not self._due:
            self._due = True
            self._loop.call_soon(self._end_turn)
        if size > READ_BYTES_MAX or self._unread_bytes > BYTES_MAX or len(unread) >= READS_MAX:
            self.catch_up()

    def catch_up(self) -> None:
        """Handle what was read. Whoever handles may call it again: the order stays."""
        unread = self._unread
        self._unread_bytes = 0
        while unread:
            reader, data = unread.popleft()
            try:
                reader.take(data)
            except Exception as error:  # noqa: BLE001  (it concerns this connection alone)
                context = {"message": "a read failed", "exception": error, "protocol": reader}
                self._loop.call_exception_handler(context)
                reader.break_off()

    def put(self, transport: Transport, data: bytes, more: bytes = b"") -> None:
        """Send it at the end of this turn; ``more`` follows without being copied behind it."""
        kept = self._kept
        parts = kept.get(transport)
        if parts is None:
            kept[transport] = parts = [data]
        else:
            parts.append(data)
        if more:
            parts.append(more)
        self._bytes += len(data) + len(more)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._end_turn)
        if self._bytes > BYTES_MAX or len(kept) >= CONNECTIONS_MAX:
            self.flush()

    def holds(self, transport: Transport) -> bool:
        """Whether something for it was not sent yet."""
        return transport in self._kept

    def send(self, transport: Transport) -> None:
        """Send what is kept for this one."""
        parts = self._kept.pop(transport, None)
        if parts is not None:
            _send(transport, parts)

    def forget(self, transport: Transport) -> None:
        """Nobody wants what is kept for this one."""
        self._kept.pop(transport, None)

    def flush(self) -> None:
        """Send everything that is kept."""
        kept, self._kept = self._kept, {}  # what follows from sending may put more
        self._bytes = 0
        for transport, parts in kept.items():
            _send(transport, parts)

    def _end_turn(self) -> None:
        self.catch_up()
        self._due = False
        self.flush()


def _send(transport: Transport, parts: list[bytes]) -> None:
    if transport.is_closing():
        return  # its owner hears of that
    try:
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
    except RuntimeError:  # the event loop took the socket away before it said so
        transport.abort()


__all__ = ["BYTES_MAX", "CONNECTIONS_MAX", "READS_MAX", "READ_BYTES_MAX", "LoopTurn", "Reader"]
