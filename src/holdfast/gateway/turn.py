"""What is to be sent is kept until the turn of the event loop is over, and then sent together.

A turn reads from every socket that has something, and each read mostly ends in a write somewhere
else. To write at once means: parse, decide, a system call, a wake-up of whoever reads there; parse,
decide, a system call, a wake-up. Together is cheaper twice: the kernel and the interpreter no
longer throw each other out of the caches and branch tables of a core at every request, and whoever
reads is woken once for many of them. It saves a third of what a request costs
(``docs/internals/compiled.md``). What was read first in a turn waits until the others were read,
too; nobody waits for a clock, and a lone request for nobody.

    put       send it at the end of this turn, in order
    send      send now what is kept for this one: it is about to be closed, or its end written
    forget    send nothing: it is given up

It is bounded twice, in bytes and in connections: whatever a turn brings beyond is sent at once, so
that a client that does not read is noticed, and nobody waits for very many others.

Rejected: to leave it to the event loop. uvloop writes at once while nothing is waiting to be sent.
Rejected: a timer, as in Nagle's algorithm: a lone request would wait for what does not come.
"""

from asyncio import AbstractEventLoop, Transport
from typing import Final

BYTES_MAX: Final = 1 << 20  # kept in all
CONNECTIONS_MAX: Final = 64  # with something kept: the first waits for so many at most


class Turn:
    """The writes of one turn of the event loop."""

    __slots__ = ("_bytes", "_due", "_kept", "_loop")

    def __init__(self, loop: AbstractEventLoop | None) -> None:
        """Without a loop there are no turns, and all is sent at once."""
        self._loop = loop
        self._kept: dict[Transport, list[bytes]] = {}
        self._bytes = 0
        self._due = False  # the end of the turn was asked for

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
            if self._loop is None:
                self.flush()
                return
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


__all__ = ["BYTES_MAX", "CONNECTIONS_MAX", "Turn"]
