"""One connection to a replica: sends a request, parses the response, carries one call at a time.

llhttp judges what is malformed. Its callbacks only collect (a body's pieces go straight into a
list, without a step through Python); the caller is called when the parser has returned. So the
caller may cancel at any time, and the chunks of one read reach it as one piece.

Most of the work is streams of events, where one read is one whole chunk. Between two chunks llhttp
keeps no state. So a read that begins there and is exactly one plain chunk is cut here, without
llhttp: 1 µs less, of 7. Anything else goes to llhttp.

    where llhttp stands   known without asking it, from a read that ends in LF LF CR LF, if the
                          last piece of body it found there ends in LF LF: were the chunk not
                          complete, its piece would end as the read does; had the next chunk's
                          first line begun, the CR LF would follow a digit, not an LF

A response whose head came before, from any connection to this replica, does not need llhttp either
(``head_cache``), if one read is all of it. When a call begins, llhttp stands at the beginning of a
response: the last one was complete, and any byte between two calls ends the connection.

Rejected, by measurement: llhttp's callbacks for the begin and end of chunks, to know the same;
they cost 1 µs for each chunk of a read that holds several. Rejected: cutting several chunks here;
llhttp is faster at that. Rejected: one parser per response; llhttp goes on after a complete one.
Rejected: asking llhttp how it takes the end of the stream; httptools does not pass that on, so a
body that ends with the connection is recognised by its head.
"""

import asyncio
import errno
from typing import Final, Protocol, cast

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpResponseParser,
)

from holdfast.core.failure import Kind
from holdfast.gateway.http.head_cache import LENGTH_SPARE, HeadCache, end_of_head
from holdfast.gateway.http.interfaces import Caller
from holdfast.gateway.http.loop_turn import LoopTurn

Head = tuple[int, dict[bytes, bytes]]  # status and headers

_READ_MAX: Final = 4_096  # longer reads go through llhttp: there the copying is what costs


def _first_lines() -> list[tuple[int, tuple[bytes, ...]]]:
    """By the length of a read: how its first line must be if the read is one plain chunk.

    The length settles the size of the chunk, and so its first line, in either case of letters.
    Comparing is stricter than reading a number: no sign, space, 0x, underscore, leading zero or
    extension can slip in.
    """
    lines: list[tuple[int, tuple[bytes, ...]]] = [(0, ())] * (_READ_MAX + 1)
    for size in range(1, _READ_MAX):
        line = b"%x\r\n" % size
        length = len(line) + size + 2
        if length <= _READ_MAX:
            lines[length] = (len(line), (line, line.upper()))
    return lines


_FIRST_LINES: Final = _first_lines()


class Owner(Protocol):
    """The pool of a connection: is told when it opens, ends a call, or breaks while idle."""

    heads: HeadCache[Head]  # of the replica's answers

    def opened(self, connection: "UpstreamConnection") -> None:
        """Note that a connection is established, so that its time to connect is over."""

    def finished(self, connection: "UpstreamConnection", *, keep: bool) -> None:
        """Take back a connection whose call is over; ``keep``: it can carry another call.

        Otherwise it is closed already.
        """

    def lost(self, connection: "UpstreamConnection") -> None:
        """Remove an idle connection that broke; it carried no call."""


class _StopError(Exception):
    """Ends parsing from within a callback: what follows is of no use, for the reason given."""


class Running:
    """Handle of one call, which implements ``Call``; does nothing once the call is over."""

    __slots__ = ("connection",)

    def __init__(self, connection: "UpstreamConnection") -> None:
        self.connection: UpstreamConnection | None = connection

    def cancel(self) -> None:
        """End the call and its connection without a callback; harmless when the call is over."""
        if self.connection is not None:
            self.connection.drop()

    def pause(self) -> None:
        """Stop reading the response until ``resume``."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read the response again after ``pause``."""
        if self.connection is not None:
            self.connection.resume()


class UpstreamConnection(asyncio.Protocol):
    """One socket to a replica, its response parser, and the call that it carries, if any."""

    __slots__ = (
        "_at_boundary",
        "_bodyless",
        "_caller",
        "_chunked",
        "_complete",
        "_head",
        "_head_bytes_max",
        "_headers",
        "_keep",
        "_owner",
        "_parser",
        "_paused",
        "_pieces",
        "_quiet_bytes",
        "_request",
        "_reused",
        "_running",
        "_transport",
        "_turn",
        "_until_close",
        "on_body",
        "opening",
        "since",
        "untaken",
    )

    def __init__(self, owner: Owner, head_bytes_max: int, turn: LoopTurn) -> None:
        self._owner = owner
        self._turn = turn
        self._head_bytes_max = head_bytes_max
        self._transport: asyncio.Transport | None = None
        self._at_boundary = False
        self._pieces: list[bytes] = []  # of a body, from the read under way
        self.on_body = self._pieces.append
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._caller: Caller | None = None
        self._running: Running | None = None
        self._request: tuple[bytes, bytes] | None = None  # waits for the connection
        self._reused = False
        self._paused = False
        self.untaken = 0  # reads that wait for their turn
        self.opening: asyncio.Task[None] | None = None
        self.since = 0  # ns: when it became idle

    # --- the call ---------------------------------------------------------------------------------

    def begin(self, caller: Caller, head: bytes, body: bytes, *, bodyless: bool) -> Running:
        """Send a request, now or once connected; return the handle to cancel, pause or resume it.

        ``caller`` gets the response. The connection must carry no other call (not checked).
        ``bodyless``: the response ends with its head, as for HEAD.
        """
        self._caller = caller
        self._bodyless = bodyless
        self._headers: dict[bytes, bytes] | None = {}  # None: the head is over, trailers follow
        self._head: Head | None = None  # parsed, not yet delivered
        self._chunked = False
        self._at_boundary = False  # between two chunks: llhttp keeps nothing
        self._complete = False
        self._keep = False
        self._until_close = False
        self._quiet_bytes = 0  # received since the last piece of a body
        self._running = running = Running(self)
        transport = self._transport
        if transport is None:
            self._request = (head, body)
        else:
            self._reused = True
            self._turn.put(transport, head, body)
        return running

    def fail(self, kind: Kind, detail: str) -> None:
        """Close the connection and report this failure to the caller under way, if any."""
        caller = self._caller
        self.drop()
        if caller is not None:
            caller.on_failure(kind, detail)

    def drop(self) -> None:
        """Abort the connection, discard unsent bytes, and tell the pool but not the caller."""
        if self.opening is not None:
            self.opening.cancel()
            self.opening = None
        if self._transport is not None:
            self._turn.forget(self._transport)
            self._transport.abort()
        self._let_go(keep=False)

    def shut(self) -> None:
        """Close an idle connection in order, which with TLS includes the closing message."""
        if self._transport is not None:
            self._transport.close()

    def pause(self) -> None:
        """Stop reading from the socket; bytes that were read already are still delivered."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read from the socket again, after ``pause``."""
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def _pause_still(self) -> None:
        if self._paused:
            self.pause()

    def _let_go(self, *, keep: bool) -> None:
        self._at_boundary = False
        self._request = None
        self._pieces.clear()
        running = self._running
        if running is not None:
            running.connection = None
            self._running = self._caller = None
            self._owner.finished(self, keep=keep)

    def _finish(self, *, keep: bool) -> None:
        caller = self._caller
        transport = self._transport
        assert caller is not None
        assert transport is not None, "a complete response came over something"
        # A request that is still being sent would be followed by the next one in its middle, and
        # one that was answered before it was sent, by the answer to the next one's. And what came
        # behind the response would be taken for the next one's.
        keep = keep and not transport.is_closing() and not transport.get_write_buffer_size()
        keep = keep and not self._turn.holds(transport) and not self.untaken
        if not keep:
            transport.abort()
        elif self._paused:
            self.resume()  # or its end would not be noticed while it is idle
        self._let_go(keep=keep)
        caller.on_end()

    # --- the socket -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request that waits for this connection; abort it if the call was cancelled."""
        self.opening = None
        self._owner.opened(self)
        self._transport = opened = cast("asyncio.Transport", transport)
        if self._request is None:  # cancelled meanwhile
            opened.abort()
            return
        if self._paused:  # uvloop begins to read when this method has returned
            asyncio.get_running_loop().call_soon(self._pause_still)
        head, body = self._request
        self._request = None
        self._turn.put(opened, head, body)

    def data_received(self, data: bytes) -> None:
        """Hand received bytes to ``LoopTurn``, which calls ``take`` after all reads of a turn."""
        self.untaken += 1
        self._turn.received(self, data)

    def take(self, data: bytes) -> None:
        """Parse received bytes and pass head, body and end on to the caller.

        Plain chunks and known heads skip the parser. Bytes that no call asked for close the
        connection.
        """
        self.untaken -= 1
        caller = self._caller
        if caller is None:
            self._broken(None)  # nothing was asked: whatever this is, it answers no request
            return
        if self._at_boundary:
            if len(data) <= _READ_MAX:
                begin, lines = _FIRST_LINES[len(data)]
                if data[:begin] in lines and data[-1] == 10 and data[-2] == 13:
                    caller.on_data(data[begin:-2])
                    return
            self._at_boundary = False
        elif self._headers is not None and not self._quiet_bytes:  # nothing came yet
            heads = self._owner.heads
            begin = heads.recall(data)
            if begin and len(data) - begin == heads.stated and not self._bodyless:
                self._deliver_known(caller, data[begin:])
            else:
                self._parse(caller, data, first=True)
            return
        self._parse(caller, data)

    def break_off(self) -> None:
        """Abort the connection after ``take`` raised; ``connection_lost`` then fails its call."""
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> None:
        """Complete a response whose body ends with the connection; else fail the call, if any."""
        self._turn.catch_up()
        if self._caller is not None and self._until_close:
            self._finish(keep=False)
        else:
            self._broken(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the call under way, or leave the pool if idle; release the parser.

        The kind is ``STALE_SOCKET`` if a reused connection ended before any answer, else ``RESET``.
        """
        self._turn.catch_up()
        self._broken(exc)
        self._transport = None
        self._parser = None  # it holds our methods: a ring

    def _broken(self, exc: Exception | None) -> None:
        if self._caller is None:
            if self._transport is not None:
                self._transport.abort()
            self._owner.lost(self)
            return
        code = getattr(exc, "errno", None)
        how = "closed" if exc is None else f"broken ({errno.errorcode.get(code or 0, 'error')})"
        if self._headers is None:
            self.fail(Kind.RESET, f"{how} within the body")
        elif self._quiet_bytes:
            self.fail(Kind.RESET, f"{how} within the head")
        else:
            kind = Kind.STALE_SOCKET if self._reused else Kind.RESET
            self.fail(kind, f"{how} before an answer")

    # --- the parser -------------------------------------------------------------------------------

    def _deliver_known(self, caller: Caller, body: bytes) -> None:
        """A whole response, whose head was judged before. The caller may cancel at any step."""
        known = self._owner.heads
        assert known.said is not None
        status, headers = known.said
        self._headers = None
        caller.on_head(status, {**headers, b"content-length": known.length})
        if body and self._caller is not None:
            caller.on_data(body)
        if self._caller is not None:
            self._finish(keep=True)

    def _parse(self, caller: Caller, data: bytes, *, first: bool = False) -> None:
        """``first``: nothing of the response came before these data."""
        parser = self._parser
        assert parser is not None, "no data comes after connection_lost"
        trouble = ""
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            trouble = _reason(error)
        head = self._head
        if head is not None:
            trouble = self._deliver_head(caller, head, len(data)) or trouble
            whole = self._complete and self._keep and not trouble
            if first and whole and data.startswith(b"HTTP/1.1 "):
                # An interim head, if that is what begins here, states no length: not learned.
                end = end_of_head(data)
                if end + LENGTH_SPARE <= self._head_bytes_max:
                    self._owner.heads.learn(data[:end], head)
        if self._pieces:
            self._deliver_body(caller, data)
        else:
            self._quiet_bytes += len(data)
            if self._quiet_bytes > self._head_bytes_max and not self._complete:
                trouble = trouble or f"more than {self._head_bytes_max} bytes without content"
        if (self._complete or trouble) and self._caller is not None:
            if self._complete:
                self._finish(keep=self._keep and not trouble)
            else:
                self.fail(Kind.MALFORMED, trouble)

    def _deliver_head(self, caller: Caller, head: Head, read_bytes: int) -> str:
        """Tell the caller of it, or say why not."""
        self._head = None
        status, headers = head
        if self._quiet_bytes + read_bytes > self._head_bytes_max:
            # Perhaps a short head and a long body, or many interim heads that were forgotten.
            length = sum(len(name) + len(value) + 4 for name, value in headers.items())
            if length > self._head_bytes_max:
                self._complete = False
                self._pieces.clear()
                return f"the head exceeds {self._head_bytes_max} bytes"
        self._quiet_bytes = -read_bytes  # what comes with a head is not counted
        caller.on_head(status, headers)
        return ""

    def _deliver_body(self, caller: Caller, data: bytes) -> None:
        pieces = self._pieces
        last = pieces[-1]
        # Set before the caller hears of it: it may cancel, which takes it back.
        self._at_boundary = self._chunked and data[-4:] == b"\n\n\r\n" and last[-2:] == b"\n\n"
        self._quiet_bytes = 0
        payload = last if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        caller.on_data(payload)

    def on_message_begin(self) -> None:
        """Stop the parser at a second response to one request. Called by the parser."""
        if self._complete:
            raise _StopError("a response that was not asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a response header, repeated ones joined by a comma; trailers are dropped.

        Called by the parser.
        """
        headers = self._headers
        if headers is None:
            return
        name = name.lower()
        if name in headers:
            headers[name] += b", " + value
        else:
            headers[name] = value

    def on_headers_complete(self) -> None:
        """Check status and framing of a response head, and keep it for the caller.

        Called by the parser. Stops the parser, so that the call fails, at upgrades, unasked interim
        responses and transfer encodings other than chunked.
        """
        headers = self._headers
        parser = self._parser
        assert headers is not None, "one head for each response"
        assert parser is not None
        status = parser.get_status_code()
        encoding = headers.get(b"transfer-encoding")
        framed = encoding is not None or b"content-length" in headers
        if status < 200:
            if status < 100 or status == 101 or framed:
                raise _StopError("an interim response that was not asked for")
            return
        if encoding is not None and encoding.lower() != b"chunked":
            raise _StopError("a transfer encoding that was not asked for")
        self._head = (status, headers)
        self._headers = None
        empty = status in {204, 304}
        if self._bodyless or (empty and framed):
            # The parser would wait for the body that the head speaks of.
            self._complete = True
            raise _StopError("no body comes")
        self._chunked = encoding is not None
        self._until_close = not framed and not empty

    def on_message_complete(self) -> None:
        """Mark the response as complete; after an interim (1xx) one, await the next head.

        Called by the parser; the caller is told after the read.
        """
        if self._headers is not None:
            self._headers = {}
        elif self._parser is not None:
            self._complete = True  # and the call is over after this read
            self._keep = self._parser.should_keep_alive()


def _reason(error: Exception) -> str:
    """Why parsing stopped, without a byte of what was parsed: llhttp's reasons are constants."""
    if isinstance(error, HttpParserCallbackError):
        cause = error.__context__
        if not isinstance(cause, _StopError):
            raise error
        return str(cause)
    if isinstance(error, HttpParserUpgrade):
        return "a change of protocol that was not asked for"
    return f"not HTTP: {error}"


__all__ = ["Head", "Owner", "Running", "UpstreamConnection"]
