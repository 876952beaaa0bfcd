"""One request of a client and the methods that write its response to the client's connection.

An exchange loses its ``connection`` when the response is complete or the client is gone; later
calls then do nothing. For this reason the exchange is not the connection itself: that would save
an object per request, but a late call could write into the response to the next request.
"""

import asyncio
from typing import Final, Protocol

from holdfast.core.intake.byte_budget import ByteAccount, HeldBody
from holdfast.gateway.http import syntax
from holdfast.gateway.http.interfaces import BodySink, Listener
from holdfast.gateway.http.loop_turn import LoopTurn

JOINED_BYTES_MAX: Final = 65_536  # above, copying a body costs more than a second piece

NEW: Final = 0  # the app has not seen it
ANNOUNCED: Final = 1  # it saw the head
ASKED: Final = 2  # it saw the whole request

_CHUNKED: Final = 0  # how the pieces of an answer are framed
_PLAIN: Final = 1  # for HTTP/1.0: the end of the connection is the end of the answer
_NO_CONTENT: Final = 2  # HEAD, 204, 304: pieces are dropped


class Draining(Protocol):
    """What an exchange reads of its server: whether it drains, and the present Date header line."""

    draining: bool
    date: bytes  # the header line that every answer has


class ExchangeConnection(Protocol):
    """What an exchange uses of its client connection: transport, writes, finish and drop."""

    transport: asyncio.Transport
    turn: LoopTurn

    @property
    def server(self) -> Draining:
        """The server that this connection belongs to."""

    def finish(self, exchange: "ClientExchange") -> None:
        """Note that an exchange's response is complete; begin the next request, or close."""

    def drop(self) -> None:
        """Close the connection at once, without completing a response or telling the listener."""


class ClientExchange:
    """One request on a client connection and its response; implements ``Exchange``.

    When the response is complete or the client gone it loses its ``connection``, and all calls do
    nothing. Members after ``started`` are for the server and its parser only.
    """

    __slots__ = (
        "account",
        "body",
        "body_max",
        "closes",
        "complete",
        "connection",
        "direct",
        "expects",
        "framing",
        "headers",
        "holder",
        "lines",
        "listener",
        "method",
        "old",
        "path",
        "query",
        "sink",
        "size",
        "stage",
        "started",
        "stated",
    )

    def __init__(
        self,
        connection: ExchangeConnection,
        method: bytes,
        path: bytes,
        headers: dict[bytes, bytes],
        body_max: int,
    ) -> None:
        self.method = method
        self.path = path
        self.query = b""
        self.headers = headers
        self.body = b""
        self.body_max = body_max
        self.listener: Listener | None = None
        self.account: ByteAccount | None = None  # that of its tenant
        self.started = False
        self.sink: BodySink | None = None
        self.connection: ExchangeConnection | None = connection
        self.stage = NEW
        self.holder: ByteAccount | None = None  # the account that counts it while it is under way
        self.complete = False  # the whole request is here
        self.size = 0  # of the body so far
        self.stated = 0  # its length, if the head says it
        self.closes = False  # the connection ends with the answer
        self.old = False  # HTTP/1.0
        self.expects = False  # 100-continue
        self.framing = _CHUNKED
        self.lines = b""  # further header lines of the answer: CORS, keep-alive
        self.direct: bytes | None = None  # answered 204 with these lines, without the app

    def pause_body(self) -> None:
        """Stop reading the rest of the request's body; nothing if it is complete."""
        if self.connection is not None and not self.complete:
            self.connection.transport.pause_reading()

    def resume_body(self) -> None:
        """Read the rest of the request's body again; nothing if it is complete."""
        if self.connection is not None and not self.complete:
            self.connection.transport.resume_reading()

    def pass_body_on(self) -> HeldBody:
        """Return what counts this request and its body; the exchange counts them no more."""
        holder, self.holder = self.holder, None
        return HeldBody(holder, self.size)

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a whole response: status, header lines and body; the exchange is then over.

        Adds date and content-length, and closes the connection if the request is incomplete, asked
        for it or the server drains. The body is left out for HEAD, 204 and 304.
        """
        connection = self.connection
        if connection is None:
            return
        assert not self.started, "one exchange has one response"
        self.started = True
        lines = self.lines
        if self.closes or not self.complete or connection.server.draining:
            lines = self._last()
        line = syntax.STATUS_LINES.get(status) or syntax.status_line(status)
        put, transport = connection.turn.put, connection.transport
        date = connection.server.date
        if status in {204, 304}:
            put(transport, b"%b%b%b%b\r\n" % (line, date, headers, lines))
        elif self.method == b"HEAD" or len(body) > JOINED_BYTES_MAX:
            parts = (line, date, headers, lines, len(body))
            head = b"%b%b%b%bcontent-length: %d\r\n\r\n" % parts
            put(transport, head, b"" if self.method == b"HEAD" else body)
        else:
            whole = (line, date, headers, lines, len(body), body)
            put(transport, b"%b%b%b%bcontent-length: %d\r\n\r\n%b" % whole)
        connection.finish(self)

    def start(self, status: int, headers: bytes) -> None:
        """Send the head of a response of unknown length; ``write`` and ``end`` must follow.

        Chunked; for HTTP/1.0 the end of the connection ends the body. Nothing if the client is
        gone.
        """
        connection = self.connection
        if connection is None:
            return
        assert not self.started, "one exchange has one response"
        self.started = True
        if self.old:
            self.framing = _PLAIN
            self.closes = True
        if status in {204, 304} or self.method == b"HEAD":
            self.framing = _NO_CONTENT
        lines = self.lines
        if self.closes or not self.complete or connection.server.draining:
            lines = self._last()
        framing = b"transfer-encoding: chunked\r\n" if self.framing == _CHUNKED else b""
        line = syntax.STATUS_LINES.get(status) or syntax.status_line(status)
        date = connection.server.date
        head = b"%b%b%b%b%b\r\n" % (line, date, headers, lines, framing)
        connection.turn.put(connection.transport, head)

    def write(self, payload: bytes) -> None:
        """Send one piece of the response body; an empty one is ignored, as it would end the body.

        Must follow ``start``. Dropped for HEAD, 204 and 304.
        """
        connection = self.connection
        if connection is None or not payload:
            return
        assert self.started, "nothing was begun"
        if self.framing == _CHUNKED:
            chunk = b"%x\r\n%b\r\n" % (len(payload), payload)
            connection.turn.put(connection.transport, chunk)
        elif self.framing == _PLAIN:
            connection.turn.put(connection.transport, payload)

    def end(self) -> None:
        """Complete a response that was begun with ``start``; the exchange is then over."""
        connection = self.connection
        if connection is None:
            return
        assert self.started, "nothing was begun"
        if self.framing == _CHUNKED:
            connection.turn.put(connection.transport, b"0\r\n\r\n")
        connection.finish(self)

    def fail(self, payload: bytes) -> None:
        """Write a last piece, which tells of a failure, and complete the response."""
        self.write(payload)
        self.end()

    def abort(self) -> None:
        """Close the connection at once, which breaks the response off; the listener is not told."""
        if self.connection is not None:
            self.connection.drop()

    def _last(self) -> bytes:
        """The further lines of an answer after which the connection ends."""
        self.closes = True
        return self.lines.replace(syntax.KEEP_ALIVE, b"") + syntax.CLOSE


__all__ = ["ANNOUNCED", "ASKED", "NEW", "ClientExchange"]
