"""One HTTP/1.1 connection to a stand-in, with answers in the order of the requests.

As thin as it can be, because the stand-in must never be the bottleneck of a measurement: a
parser in C, whole frames handed to the transport, no task and no timer per connection.
"""

import asyncio
import socket
import struct
from collections import deque
from http import HTTPStatus
from typing import Any, Final, Protocol

import httptools

BODY_BYTES_MAX: Final = 64 << 20  # beyond every body a gateway lets through
PIPELINED_MAX: Final = 16  # requests sent ahead on one connection; more is an attack
WRITE_BYTES_MAX: Final = 65_536  # unsent bytes beyond which a stream waits for its reader

JSON: Final = b"application/json"
SSE: Final = b"text/event-stream; charset=utf-8"
TEXT: Final = b"text/plain; charset=utf-8"

_SIZES: Final = tuple(b"%x\r\n" % size for size in range(8_192))
_RESET: Final = struct.pack("ii", 1, 0)  # linger for 0 s: closing sends RST
LAST_CHUNK: Final = b"0\r\n\r\n"


def framed(frame: bytes) -> bytes:
    """Encode one piece of a chunked body."""
    size = len(frame)
    line = _SIZES[size] if size < 8_192 else b"%x\r\n" % size
    return b"%b%b\r\n" % (line, frame)


def head(status: int, content_type: bytes, extra: bytes = b"") -> bytes:
    """Build status line and headers, without the length and without the empty line."""
    return b"HTTP/1.1 %d %b\r\nserver: stand-in\r\ncontent-type: %b\r\n%b" % (
        status,
        HTTPStatus(status).phrase.encode(),
        content_type,
        extra,
    )


_OK_JSON: Final = head(200, JSON)


class StandInRequest:
    """One complete HTTP request."""

    __slots__ = ("body", "content_type", "keep_alive", "method", "path")

    def __init__(
        self, method: bytes, path: bytes, content_type: bytes, body: bytes, keep_alive: bool
    ) -> None:
        self.method = method
        self.path = path
        self.content_type = content_type
        self.body = body
        self.keep_alive = keep_alive


class PendingWork(Protocol):
    """Work under way on a connection; gets callbacks about its client."""

    def on_gone(self) -> None:
        """Called when the client has disconnected."""

    def on_room(self) -> None:
        """Called when the client has read what was sent."""


class StandInApp(Protocol):
    """The application that answers the requests of a connection."""

    connections: set["StandInConnection"]
    reading: bool  # False: what comes in is left in the socket

    def on_request(self, conn: "StandInConnection", asked: StandInRequest) -> None:
        """Answer a request now, or set ``conn.work`` and answer later."""


class StandInConnection(asyncio.Protocol):
    """The asyncio protocol of one accepted connection."""

    __slots__ = (
        "_ahead",
        "_app",
        "_asked",
        "_body",
        "_content_type",
        "_expects",
        "_parser",
        "_path",
        "_size",
        "_transport",
        "full",
        "work",
    )

    def __init__(self, app: StandInApp) -> None:
        self._app = app
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._ahead: deque[StandInRequest] = deque()
        self._asked: StandInRequest | None = None  # being answered
        self.work: PendingWork | None = None
        self.full = False  # the client does not read as fast as we write
        self._fresh()

    def _fresh(self) -> None:
        self._path = b""
        self._content_type = b""
        self._expects = False
        self._body: list[bytes] = []
        self._size = 0

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note a new connection."""
        self._transport = transport
        self._transport.set_write_buffer_limits(WRITE_BYTES_MAX)
        self._app.connections.add(self)
        if not self._app.reading:
            self.listen(reading=False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Tell the pending work that the client is gone."""
        self._app.connections.discard(self)
        self._transport = None
        work = self.work
        if work is not None:
            self.work = None
            work.on_gone()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(400)
        except httptools.HttpParserError:
            self.refuse(400)

    def pause_writing(self) -> None:
        """Note that too much output is unsent."""
        self.full = True

    def resume_writing(self) -> None:
        """Tell the pending work that output was sent."""
        self.full = False
        if self.work is not None:
            self.work.on_room()

    # --- what the parser calls

    def on_url(self, url: bytes) -> None:
        """Parser callback: path and query, or a part of them."""
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser callback: one header."""
        if len(name) == 12 and name.lower() == b"content-type":
            self._content_type = value
        elif len(name) == 6 and name.lower() == b"expect":
            self._expects = True

    def on_headers_complete(self) -> None:
        """Parser callback: the headers are complete."""
        if self._expects and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Parser callback: a piece of the body."""
        self._size += len(body)
        if self._size > BODY_BYTES_MAX:
            self.refuse(413)
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Parser callback: answer the request, or queue it behind others."""
        if self._transport is None or self._transport.is_closing():
            return
        pieces = self._body
        asked = StandInRequest(
            self._parser.get_method(),
            self._path.partition(b"?")[0],
            self._content_type,
            pieces[0] if len(pieces) == 1 else b"".join(pieces),
            self._parser.should_keep_alive(),
        )
        self._fresh()
        if self._asked is None:
            self._asked = asked
            self._app.on_request(self, asked)
        elif len(self._ahead) < PIPELINED_MAX:
            self._ahead.append(asked)
        else:
            self.reset()

    # --- what the engine calls

    @property
    def lone(self) -> bool:
        """Whether the connection closes after the current request."""
        return self._asked is not None and not self._asked.keep_alive

    def respond(
        self, status: int, body: bytes, content_type: bytes = JSON, extra: bytes = b""
    ) -> None:
        """Send a complete answer."""
        plain = status == 200 and content_type is JSON and not extra
        lines = _OK_JSON if plain else head(status, content_type, extra)
        self.write(b"%bcontent-length: %d\r\n\r\n%b" % (lines, len(body), body))
        self.done()

    def write(self, frames: bytes) -> None:
        """Send bytes as they are."""
        if self._transport is not None:
            self._transport.write(frames)

    def done(self) -> None:
        """Finish the current answer, and begin the next queued request."""
        asked, self._asked, self.work = self._asked, None, None
        if self._transport is None:
            return
        if asked is not None and not asked.keep_alive:
            self._transport.close()
        elif self._ahead:
            self._asked = self._ahead.popleft()
            self._app.on_request(self, self._asked)

    def refuse(self, status: int) -> None:
        """Answer an invalid request with an error, and close."""
        if self._transport is not None and not self._transport.is_closing():
            self.write(head(status, TEXT) + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self._transport.close()

    def close(self) -> None:
        """Close the connection in good order, even in the middle of an answer."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Break the connection: the client sees a reset."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()

    def listen(self, *, reading: bool) -> None:
        """Pause or resume reading from the socket."""
        if self._transport is None:
            return
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


__all__ = [
    "JSON",
    "LAST_CHUNK",
    "SSE",
    "TEXT",
    "StandInApp",
    "StandInConnection",
    "StandInRequest",
    "framed",
    "head",
]
