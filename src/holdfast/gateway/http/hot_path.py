"""Chooses the classes that handle every read, head and chunk: the fast ones, or the plain ones.

Four classes of this package have shortcuts, written by hand, past the obvious way of doing their
work. Each has a plain subclass here that takes the obvious way and nothing else:

    fast                  plain             instead of its shortcuts
    LoopTurn              DirectTurn        handles each read and sends each write at once
    RequestParser         PlainParser       llhttp reads every byte of every request
    UpstreamConnection    PlainConnection   llhttp reads every byte of every response
    EventSplitter         LineSplitter      reads every event line by line

The plain classes are the reference: ``tests/fuzz/fuzz_plain.py`` gives both the same bytes, and
requests, events, bytes to the client and errors must be the same. In operation, the environment
variable ``HOLDFAST_PLAIN=1`` selects them all, to rule a shortcut out as the cause of a fault.

The choice is made when objects are built, so no read, head or chunk asks for it. Rejected: a flag
that the shortcuts look at; every chunk would pay for it, and the plain way would stay entangled
with the shortcut that it is compared with.
"""

from asyncio import Transport
from dataclasses import dataclass
from typing import Final

from holdfast.gateway.http.loop_turn import LoopTurn, Reader, send_parts
from holdfast.gateway.http.request_parser import RequestParser
from holdfast.gateway.http.sse import EventSplitter
from holdfast.gateway.http.upstream_connection import UpstreamConnection


class DirectTurn(LoopTurn):
    """A ``LoopTurn`` without grouping: handles each read and sends each write at once."""

    __slots__ = ()

    def received(self, reader: Reader, data: bytes) -> None:
        """Have the reader handle these bytes now."""
        self._unread.append((reader, data))
        self.catch_up()

    def put(self, transport: Transport, data: bytes, more: bytes = b"") -> None:
        """Write ``data``, then ``more``, to the transport now."""
        send_parts(transport, [data, more] if more else [data])


class PlainParser(RequestParser):
    """A ``RequestParser`` without shortcuts: llhttp parses every byte of every request."""

    __slots__ = ()

    def feed(self, data: bytes) -> None:
        """Parse bytes: add requests to ``arrived``, extend the body under way, or set ``failure``.

        Must not be called again after a failure.
        """
        self._at_start = False  # so that no head is learned, and no line compared
        self._parse(data)


class PlainConnection(UpstreamConnection):
    """An ``UpstreamConnection`` without shortcuts: llhttp parses every byte of every response."""

    __slots__ = ()

    def take(self, data: bytes) -> None:
        """Parse received bytes and pass head, body and end on to the caller.

        Bytes that no call asked for close the connection.
        """
        self.untaken -= 1
        caller = self._caller
        if caller is None:
            self._broken(None)
        else:
            self._parse(caller, data)


class LineSplitter(EventSplitter):
    """An ``EventSplitter`` without shortcuts: reads every event line by line."""

    __slots__ = ()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the payloads of the events that are complete now; names are dropped.

        Never sets ``verbatim``.
        """
        return [payload for _, payload in self._read(data)]


@dataclass(frozen=True, slots=True)
class HotPath:
    """The four classes that handle every read, head and chunk of a gateway: ``FAST`` or ``PLAIN``.

    Both behave alike; the plain ones have no shortcuts and serve as the reference.
    """

    loop_turn: type[LoopTurn]
    request_parser: type[RequestParser]
    upstream_connection: type[UpstreamConnection]
    event_splitter: type[EventSplitter]


FAST: Final = HotPath(LoopTurn, RequestParser, UpstreamConnection, EventSplitter)
PLAIN: Final = HotPath(DirectTurn, PlainParser, PlainConnection, LineSplitter)


__all__ = [
    "FAST",
    "PLAIN",
    "DirectTurn",
    "HotPath",
    "LineSplitter",
    "PlainConnection",
    "PlainParser",
]
