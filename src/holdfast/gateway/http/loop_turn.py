"""Groups the work of one turn of the event loop: read everything, handle it, send everything.

A turn of the event loop reads from every socket that has data, and most reads lead to a write on
another socket. Handled one by one, each costs a system call, parsing, a decision, another system
call and a wake-up of the receiver. Grouping each kind of work is cheaper twice: the kernel and the
interpreter no longer evict each other from the caches and branch tables of a core at every request,
and a receiver is woken once for many of them. It saves a third of what a request costs
(``docs/internals/compiled.md``). A read waits until the other reads of its turn are done; nothing
waits for a timer, and a single request waits for nothing.

    received  handle these data after all reads of this turn, in order
    catch_up  handle now what was read: before a decision that the data may change, such as the end
              of a connection or a deadline
    put       send these bytes at the end of this turn, in order
    send      send now what is kept for one connection: it is about to be closed
    forget    drop what is kept for one connection: it is given up

Reads and writes are bounded in bytes and in number: beyond the bound they are handled and sent at
once, so that a client that does not read is noticed and no connection waits for very many others. A
long read is handled at once, too: more may follow, and its connection must be able to pause.

Rejected: to leave it to the event loop. uvloop writes at once while nothing is waiting to be sent.
Rejected: a timer, as in Nagle's algorithm: a single request would wait for data that do not come.
"""

from asyncio import AbstractEventLoop, Transport
from collections import deque
from typing import Final, Protocol

BYTES_MAX: Final = 1 << 20  # kept in all, of what was read and of what is to be sent
READ_BYTES_MAX: Final = 65_536  # in one read that is kept
READS_MAX: Final = 64  # kept; the first waits for so many at most
CONNECTIONS_MAX: Final = 64  # with something to be sent to them; likewise


class Reader(Protocol):
    """A connection whose received bytes go through ``LoopTurn``."""

    def take(self, data: bytes) -> None:
        """Handle bytes that were read from this connection, in the order of the reads."""

    def break_off(self) -> None:
        """Abort the connection, because ``take`` raised.

        The exception has been reported already.
        """


class LoopTurn:
    """Collects the reads and writes of one turn of the event loop and handles them in groups.

    First all reads are handled, then all writes are sent; both bounded in bytes and number. One
    object serves all connections of a process.
    """

    __slots__ = ("_bytes", "_due", "_kept", "_loop", "_unread", "_unread_bytes")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._unread: deque[tuple[Reader, bytes]] = deque()
        self._unread_bytes = 0
        self._kept: dict[Transport, list[bytes]] = {}
        self._bytes = 0
        self._due = False  # the end of the turn was asked for

    def received(self, reader: Reader, data: bytes) -> None:
        """Keep bytes that a connection read, for ``reader.take`` after all reads of this turn.

        A long read, or too many kept ones, are handled at once.
        """
        unread, size = self._unread, len(data)
        unread.append((reader, data))
        self._unread_bytes += size
        if not self._due:
            self._due = True
            self._loop.call_soon(self._end_turn)
        if size > READ_BYTES_MAX or self._unread_bytes > BYTES_MAX or len(unread) >= READS_MAX:
            self.catch_up()

    def catch_up(self) -> None:
        """Handle all kept reads now, in order, before a decision that they may change.

        An exception of a reader is reported to the event loop and breaks off that connection alone.
        May be called from within ``Reader.take``.
        """
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
        """Send ``data``, then ``more``, at the end of this turn, in the order of the calls.

        Sent sooner if too much is kept. The two are not copied together.
        """
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
        """Whether bytes for this transport are kept and not sent yet."""
        return transport in self._kept

    def send(self, transport: Transport) -> None:
        """Send now what is kept for this transport, because it is about to be closed."""
        parts = self._kept.pop(transport, None)
        if parts is not None:
            send_parts(transport, parts)

    def forget(self, transport: Transport) -> None:
        """Drop, unsent, what is kept for this transport."""
        self._kept.pop(transport, None)

    def flush(self) -> None:
        """Send now what is kept for all transports; kept reads are not handled."""
        kept, self._kept = self._kept, {}  # what follows from sending may put more
        self._bytes = 0
        for transport, parts in kept.items():
            send_parts(transport, parts)

    def _end_turn(self) -> None:
        self.catch_up()
        self._due = False
        self.flush()


def send_parts(transport: Transport, parts: list[bytes]) -> None:
    """Write these bytes to a transport; nothing if it is closing. Never raises ``RuntimeError``."""
    if transport.is_closing():
        return  # its owner hears of that
    try:
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
    except RuntimeError:  # the event loop took the socket away before it said so
        transport.abort()


__all__ = [
    "BYTES_MAX",
    "CONNECTIONS_MAX",
    "READS_MAX",
    "READ_BYTES_MAX",
    "LoopTurn",
    "Reader",
    "send_parts",
]
