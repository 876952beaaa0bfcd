"""Parses the bytes of a client connection into checked requests, or into one refusal.

The parser (llhttp) calls back while it is fed, and it parses all it is fed, pipelined requests too.
So its callbacks only collect: a request stands in ``arrived`` as soon as its head is complete, and
the connection looks there after feeding. A refusal stops the parser for good; requests before it
stay valid.

What is bounded, and by what:

* a head: by the bytes fed while it is incomplete, since the parser reports whole lines only;
* a body: by its stated length before a byte is kept, a chunked one as it grows;
* chunk extensions and trailers: by the bytes that arrive without bringing any body;
* pipelined requests: by their number.

A head that came before on the connection does not go through the parser (``head_cache``), and its
body does not either: it is counted here. The parser stays where it stood, between two requests.

    where the parser stands   at the beginning of a request, if the previous read was used up to its
                              last byte by a complete request: its head, its body, nothing else

``Upgrade: h2c`` is ignored, as RFC 9110 allows, because Java's standard client sends it with its
first requests. The parser skips the body of such a request; a new parser, which is given the same
framing without the upgrade, continues in its place.
"""

from collections import deque
from typing import Final

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from holdfast.config.gateway import HttpConfig
from holdfast.gateway.http import syntax
from holdfast.gateway.http.exchange import ClientExchange, ExchangeConnection
from holdfast.gateway.http.head_cache import LENGTH_SPARE, HeadCache, end_of_head
from holdfast.gateway.http.syntax import Cors, Refusal

PIPELINED_MAX: Final = 64  # requests that wait; clients that pipeline at all send fewer

UPLOAD_PATH: Final = b"/v1/files"  # whose bodies may be larger: they are passed on as they come

_UNSEEN: Final = -1

Known = tuple[bytes, bytes, bytes, dict[bytes, bytes], bytes]
"""What a head said: method, path, query, headers, and further lines of the answer."""

# As numbers: looking for a byte in bytes is ten times faster than looking for bytes.
_SLASH: Final = ord("/")
_QUERY: Final = ord("?")
_FRAGMENT: Final = ord("#")


class _RefusedError(Exception):
    """Leaves a callback to stop the parser; the reason stands in ``failure``."""


class RequestParser:
    """Parses the bytes of one client connection into checked ``ClientExchange`` objects.

    They stand in ``arrived`` from their complete head on; the first error stands in ``failure`` and
    ends the parsing. Calls no app and sends nothing.
    """

    __slots__ = (
        "_at_start",
        "_body",
        "_clean",
        "_config",
        "_connection",
        "_cors",
        "_data",
        "_due",
        "_first",
        "_first_end",
        "_headers",
        "_host",
        "_known",
        "_parser",
        "_repeats",
        "_replay",
        "_url",
        "_without_body",
        "arrived",
        "failure",
        "head_bytes",
        "incoming",
    )

    def __init__(self, connection: ExchangeConnection, config: HttpConfig, cors: Cors) -> None:
        self._connection = connection
        self._config = config
        self._cors = cors or None
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self.arrived: deque[ClientExchange] = deque()  # only the last may be incomplete
        self.failure: Refusal | None = None  # of what comes after them, or of the incomplete one
        self.incoming: ClientExchange | None = None  # whose body is being received
        self.head_bytes = 0  # of an incomplete head
        self._replay: ClientExchange | None = None  # whose upgrade is being ignored
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeats = 0
        self._without_body = 0  # bytes since the last that belonged to a body
        self._body: bytearray | None = None  # from the second piece on
        self._data = b""  # what is being parsed
        self._clean = False  # the last read completed a request
        self._host = b"\n"  # the last one found valid; no value can be this
        self._at_start = True  # the parser stands where a request begins
        self._first: ClientExchange | None = None  # whose head begins what is being parsed
        self._first_end = 0  # where that head ends
        self._known = HeadCache[Known]()
        self._due = 0  # bytes to come of the body behind a known head

    def feed(self, data: bytes) -> None:
        """Parse bytes: add requests to ``arrived``, extend the body under way, or set ``failure``.

        Must not be called again after a failure.
        """
        if self._due:
            self._take_body(data)
            return
        if self._at_start:
            begin = self._known.recall(data)
            if begin:
                self._take_known(data[begin:])
                return
        self._parse(data)

    def _take_known(self, rest: bytes) -> None:
        """A head that was judged before, and what came behind it."""
        config, known = self._config, self._known
        assert known.said is not None
        method, path, query, headers, lines = known.said
        stated = known.stated
        if stated > config.body_bytes_max or len(self.arrived) > PIPELINED_MAX:
            large = stated > config.body_bytes_max
            self.failure = syntax.BODY_TOO_LARGE if large else syntax.PIPELINED
            return
        headers = {**headers, b"content-length": known.length}
        exchange = ClientExchange(self._connection, method, path, headers, config.body_bytes_max)
        exchange.query = query
        exchange.lines = lines
        exchange.stated = stated
        self.arrived.append(exchange)
        if len(rest) == stated:
            exchange.body = rest
            exchange.size = stated
            exchange.complete = True
            return
        self.incoming = exchange
        self._due = stated
        self._at_start = False
        if rest:
            self._take_body(rest)

    def _take_body(self, data: bytes) -> None:
        """The body behind a known head; the parser has not seen that it began."""
        due = self._due
        piece = data if len(data) <= due else data[:due]
        self._due = due - len(piece)
        self.on_body(piece)  # as long as stated: it cannot be refused
        if not self._due:
            self.on_message_complete()
            self._at_start = True
            if len(data) > due:
                self._parse(data[due:])

    def _parse(self, data: bytes) -> None:
        incoming, parser = self.incoming, self._parser
        assert parser is not None
        size = incoming.size if incoming is not None else -1
        self._first = None
        self._first_end = _UNSEEN if self._at_start else 0
        self._at_start = self._clean = False
        self._data = data
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except HttpParserError as error:
            if self.failure is None:
                if isinstance(error, HttpParserCallbackError):
                    raise  # a fault of ours
                self.failure = syntax.MALFORMED
        self._data = b""
        if not self._clean or self.incoming is not None or self._url:
            self._account(len(data), incoming, size)
        else:
            self._at_start = self._took_all(len(data), incoming, size)

    def close(self) -> None:
        """Release the parser and its requests, to break a reference cycle; not to be fed again."""
        self._parser = None
        self.incoming = self._replay = self._first = self._body = None
        self.arrived.clear()

    # --- what the parser calls ------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """Collect a piece of the request target. Called by the parser."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect one header or trailer line, repeated names joined by a comma.

        Called by the parser. A second Host, or too many repeated names, are refused.
        """
        headers = self._headers
        name = name.lower()
        if name not in headers:
            headers[name] = value.rstrip()
            return
        self._repeats += 1
        if name == b"host":
            self._refuse(syntax.BAD_HOST)
        if self._repeats > self._config.headers_max:  # joining is quadratic: stop here, not later
            self._refuse(syntax.HEADERS_TOO_LARGE)
        headers[name] += b", " + value.rstrip()

    def on_headers_complete(self) -> None:
        """Check a complete request head and add its exchange to ``arrived``, or refuse it.

        Called by the parser. Checks sizes, version, host, target, body length, coding, expectation
        and upgrade, and adds the CORS lines.
        """
        url = self._url
        headers = self._headers
        parser = self._parser
        config = self._config
        assert parser is not None
        self._url = b""
        self._headers = {}
        if self._replay is not None:
            self.incoming, self._replay = self._replay, None
            return
        if len(headers) + self._repeats > config.headers_max or (
            self.head_bytes + len(self._data) > config.header_bytes_max
            and syntax.size_of(url, headers) > config.header_bytes_max
        ):
            self._refuse(syntax.HEADERS_TOO_LARGE)
        self.head_bytes = self._repeats = self._without_body = 0
        method = parser.get_method()
        exchange = ClientExchange(self._connection, method, url, headers, config.body_bytes_max)
        if not parser.should_keep_alive():
            exchange.closes = True
        # The parser formats a string to tell the version; looking at the line is much faster. But
        # only of the first head: behind it, the same place in the data is of another request.
        version_at = len(method) + len(url) + 1
        if (
            self._first_end != _UNSEEN
            or self._data[version_at : version_at + 11] != b" HTTP/1.1\r\n"
        ):
            self._read_version(exchange, parser.get_http_version())
        host = headers.get(b"host")
        if host != self._host:
            self._read_host(host, old=exchange.old)
        if url[0] != _SLASH or _QUERY in url or _FRAGMENT in url:
            self._read_target(exchange)
        stated = headers.get(b"content-length")
        if stated is not None:
            exchange.stated = int(stated)
            if exchange.stated > config.body_bytes_max:
                self._allow_upload(exchange, exchange.stated)
        if b"transfer-encoding" in headers:
            self._refuse(syntax.check_coding(headers[b"transfer-encoding"], old=exchange.old))
        if b"expect" in headers and not exchange.old:
            self._refuse(syntax.check_expectation(headers[b"expect"]))
            exchange.expects = True
        if self._cors is not None:
            self._refuse(self._cors.refusal(method, headers))
            exchange.lines += self._cors.lines(headers.get(b"origin"))
            if exchange.direct is None:
                exchange.direct = self._cors.preflight(method, headers) or None
        if len(self.arrived) > PIPELINED_MAX:
            self._refuse(syntax.PIPELINED)
        if parser.should_upgrade():
            self._refuse(syntax.check_upgrade(method, headers.get(b"upgrade")))
            self._replay = exchange
        else:
            self.incoming = exchange
        self.arrived.append(exchange)
        if self._first_end == _UNSEEN:
            self._first_end = self._note(exchange, url)

    def on_body(self, data: bytes) -> None:
        """Append a piece to the body of the current request; refuse it beyond the body limit.

        Called by the parser. File uploads have a higher limit.
        """
        exchange = self.incoming
        assert exchange is not None
        exchange.size = size = exchange.size + len(data)
        if size > exchange.body_max:
            self._allow_upload(exchange, size)
        if size == len(data):
            exchange.body = data
        elif self._body is None:  # one buffer: a list of tiny pieces would take twenty times more
            self._body = bytearray(exchange.body)
            self._body += data
            exchange.body = b""  # not twice, for as long as the rest takes
        else:
            self._body += data

    def on_message_complete(self) -> None:
        """Mark the current request as complete, with its whole body, and drop its trailers.

        Called by the parser.
        """
        exchange = self.incoming
        if exchange is None:  # the parser skips the body of an upgrade
            return
        if self._body is not None:
            exchange.body = bytes(self._body)
            self._body = None
        if self._headers:  # trailers: nobody needs them
            self._headers = {}
            self._repeats = 0
        exchange.complete = self._clean = True
        self.incoming = None

    # --- what the callbacks share ---------------------------------------------------------------

    def _refuse(self, refusal: Refusal | None) -> None:
        """Stop the parser, if there is a reason."""
        if refusal is not None:
            self.failure = refusal
            raise _RefusedError

    def _allow_upload(self, exchange: ClientExchange, size: int) -> None:
        """Raise the limit of a body that is an upload; refuse it where it is none or too large."""
        upload = exchange.path == UPLOAD_PATH and exchange.method == b"POST"
        if not upload or size > self._config.upload_bytes_max:
            self._refuse(syntax.BODY_TOO_LARGE)
        exchange.body_max = self._config.upload_bytes_max

    def take_body(self) -> bytes:
        """Return and drop what came of the incomplete body so far; empty if no body is under way.

        The bytes still count towards the body limit. Used for bodies that go to a sink.
        """
        exchange = self.incoming
        if exchange is None:
            return b""
        piece = exchange.body if self._body is None else bytes(self._body)
        exchange.body = b""
        self._body = None
        return piece

    def _note(self, exchange: ClientExchange, url: bytes) -> int:
        """Where the first head ends in what is being parsed; it may be known again."""
        data, headers = self._data, exchange.headers
        if not data.startswith(b"%b %b HTTP/1.1\r\n" % (exchange.method, url)):
            return 0  # such as empty lines before it
        self._first = exchange
        end = end_of_head(data)
        plain = not (exchange.closes or exchange.expects or b"transfer-encoding" in headers)
        plain = plain and exchange.direct is None and self._replay is None
        plain = plain and exchange.path != UPLOAD_PATH  # its body may be larger than any other
        if plain and end + LENGTH_SPARE <= self._config.header_bytes_max:
            said = (exchange.method, exchange.path, exchange.query, headers, exchange.lines)
            self._known.learn(data[:end], said)
        return end

    def _took_all(self, read: int, before: ClientExchange | None, size: int) -> bool:
        """Whether one request took the whole read, or what was missing of its body."""
        only = before if self._first is None else self._first
        self._first = None
        if only is None or only.closes:
            return False
        return read == self._first_end + only.size - max(size, 0)

    def _read_version(self, exchange: ClientExchange, version: str) -> None:
        line = b"%b %b" % (exchange.method, exchange.path)
        self._refuse(syntax.check_version(version, line, self._data))
        if version == "1.0":
            exchange.old = True
            exchange.lines = b"" if exchange.closes else syntax.KEEP_ALIVE

    def _read_host(self, host: bytes | None, *, old: bool) -> None:
        if host is None:
            self._refuse(None if old else syntax.BAD_HOST)
            return
        self._refuse(None if syntax.host_is_valid(host) else syntax.BAD_HOST)
        self._host = host

    def _read_target(self, exchange: ClientExchange) -> None:
        if exchange.method == b"CONNECT":
            self._refuse(syntax.NO_TUNNELS)
        if exchange.path == b"*" and exchange.method == b"OPTIONS":
            exchange.direct = b""  # asks whether there is a server: there is
            return
        split = syntax.split_target(exchange.path)
        if split is None:
            self._refuse(syntax.BAD_TARGET)
        else:
            exchange.path, exchange.query = split

    def _account(self, read: int, before: ClientExchange | None, size: int) -> None:
        """Bound what a request has cost that is not complete after this read."""
        incoming = self.incoming
        limit = self._config.header_bytes_max
        if incoming is None:
            # A read that completed nothing was all head; else only what was parsed of it counts.
            here = syntax.size_of(self._url, self._headers) + 1 if self._clean else read
            self.head_bytes += here
            lines = len(self._headers) + self._repeats
            if self.head_bytes > limit or lines > self._config.headers_max:
                self.failure = self.failure or syntax.HEADERS_TOO_LARGE
        elif incoming is before and incoming.size == size:
            self._without_body += read
            if self._without_body > limit:
                self.failure = self.failure or syntax.CHUNK_OVERHEAD
        else:
            self._without_body = 0

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on behind a head that asked for HTTP/2."""
        exchange = self._replay
        assert exchange is not None
        framing = b"content-length: %d" % exchange.stated
        if b"transfer-encoding" in exchange.headers:
            framing = b"transfer-encoding: chunked"
        self._parser = HttpRequestParser(self)
        self.feed(b"POST / HTTP/1.1\r\n%b\r\n\r\n%b" % (framing, rest))


__all__ = ["PIPELINED_MAX", "UPLOAD_PATH", "RequestParser"]
