"""Requests as the grammar of HTTP allows them, bent, cut and piled up, against a server.

There is no socket: the server's own connection is fed by hand, its transport keeps what it writes,
and time is a number. What must hold is in ``_check``: every answer can be read by somebody who
knows nothing of the server, none is a 500, there are never more than there were requests, and
after a refusal nothing is parsed any more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz_draw import Draw

from holdfast.config.gateway import HttpConfig
from holdfast.gateway.http.hot_path import FAST, HotPath
from holdfast.gateway.http.request_parser import PIPELINED_MAX
from holdfast.gateway.http.server import HELD_BYTES_MAX, Server

SECOND: Final = 1_000_000_000
KNOWN: Final = frozenset({200, 204, 400, 401, 408, 413, 417, 431, 501, 503, 505})
REFUSING: Final = KNOWN - {200, 204, 401}
HEADER_BYTES: Final = 2_048
HEADERS: Final = 20
BODY_BYTES: Final = 2_000
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
MANNERS: Final = ("at once", "pieces", "later", "at the head", "narrow", "abort")
ORIGINS: Final[tuple[tuple[str, ...], ...]] = ((), ("https://a.example",), ("*",))
LATER: Final = b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n"


# --- requests -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Drawn:
    """One request and what is known about it."""

    wire: bytes
    valid: bool = True  # as the grammar has it, within the limits
    body: bytes = b""
    closes: bool = False


def _framed(draw: Draw, body: bytes) -> tuple[list[bytes], bytes]:
    """Header lines and bytes of a body."""
    if not body and draw.upto(1) == 0:
        return [], b""
    if draw.upto(1) == 0:
        return [b"Content-Length: %d" % len(body)], body
    wire, noise = b"", draw.noise()
    while body:
        piece, body = body[: (size := noise.randint(1, len(body)))], body[size:]
        form = noise.choice((b"%x", b"%X", b"000%x"))
        extension = noise.choice((b"", b"", b"", b";a=b", b";a", b';a="b c"'))
        wire += form % len(piece) + extension + b"\r\n" + piece + b"\r\n"
    trailers = draw.pick((b"", b"X-Took: 5\r\n", b"A: b\r\nC: d\r\n"))
    coding = draw.pick((b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked"))
    return [coding], wire + b"0\r\n" + trailers + b"\r\n"


def _valid(draw: Draw) -> Drawn:
    noise = draw.noise()
    body = b""
    method = draw.pick((b"GET", b"POST", b"POST", b"HEAD", b"DELETE", b"OPTIONS", b"PUT"))
    if method in {b"POST", b"PUT"}:
        body = noise.randbytes(noise.choice((0, 1, 3, 17, 300, BODY_BYTES)))
    target = draw.pick((b"/a", b"/a?b=c", b"http://a.example/a", b"/" + b"a" * 900, b"/a/../b"))
    lines = [draw.pick((b"Host: a", b"host:a:80", b"HOST: [::1]:8000  "))]
    framing, wire = _framed(draw, body)
    lines += framing
    extras = (
        b"Accept: */*",
        b"X-Empty:",
        b"X-Long: " + b"v" * 700,
        b"Cookie: a=b\r\nCookie: c=d",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
        b"Expect: 100-continue",
        b"Origin: https://a.example",
        b"X-Bytes: \xe9\xff",
    )
    lines += [extra for extra in extras if draw.chance(8)]
    closes = draw.chance(8)
    if closes:
        lines.append(b"Connection: close")
    noise.shuffle(lines)
    head = method + b" " + target + b" HTTP/1.1\r\n" + b"".join(b"%b\r\n" % line for line in lines)
    # Two Connection lines may end the connection or upgrade it: no answer is promised for those.
    plain = sum(line.startswith(b"Connection") for line in lines) < 2
    return Drawn(head + b"\r\n" + wire, plain, body, closes)


# Lines that are put into a head, most of them wrong, all of them to be survived.
_LINES: Final = (
    b"Content-Length: 3",
    b"Content-Length: 0",
    b"Content-Length: +3",
    b"Content-Length: 3, 3",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 0x3",
    b"Content-Length:",
    b"Content-Length : 3",
    b"Content-Length: 3\r\nContent-Length: 4",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer_Encoding: chunked",
    b"Host: b",
    b"Host: a b",
    b"Host: a,b",
    b"Host:",
    b"A: b\r\n folded",
    b"A: b\nC: d",
    b"A: b\rC: d",
    b"A: \x00",
    b"A\x7f: b",
    b": b",
    b"nothing",
    b" leading: space",
    b"Expect: a-pony",
    b"Upgrade: websocket\r\nConnection: upgrade",
    b"Connection: close, keep-alive",
    b"Content-Encoding: gzip",
    b"X: " + b"x" * (HEADER_BYTES - 60),
    b"X: " + b"x" * (HEADER_BYTES - 20),
    b"X: " + b"x" * (HEADER_BYTES + 5),
    b"x" * (HEADER_BYTES - 60),
    b"".join(b"N%d: v\r\n" % n for n in range(HEADERS - 3)) + b"Last: v",
    b"".join(b"N%d: v\r\n" % n for n in range(HEADERS + 1)) + b"Last: v",
    b"\r\n".join([b"Same: v"] * (HEADERS + 1)),
)
_BEGINNINGS: Final = (
    b"POST /a HTTP/1.0",
    b"POST /a HTTP/1.1 ",
    b"POST  /a HTTP/1.1",
    b"POST /a HTTP/1.2",
    b"POST /a HTTP/2.0",
    b"POST /a",
    b"post /a HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"CONNECT a:80 HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"POST a HTTP/1.1",
    b"POST /a#b HTTP/1.1",
    b"POST ftp://a/b HTTP/1.1",
    b"POST http://u:p@a/ HTTP/1.1",
    b"POST //a HTTP/1.1",
    b"POST /\xc3\xa4 HTTP/1.1",
    b"POST /a\tb HTTP/1.1",
    b"POST /" + b"a" * HEADER_BYTES + b" HTTP/1.1",
    b"GET /a RTSP/1.0",
    b"SOURCE /a ICE/1.0",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)
_SIZES: Final = (b"-1", b"g", b" 3", b"3 ", b"0x3", b"f" * 17, b"3;" + b"e" * HEADER_BYTES, b"")


def _bent(draw: Draw, request: Drawn) -> Drawn:
    """The request with something wrong, or merely unusual, in it."""
    wire = request.wire
    match draw.upto(5):
        case 0:
            wire = draw.damage(wire, 1 + draw.upto(2))
        case 1 | 2:
            begin, end, rest = wire.partition(b"\r\n")
            wire = begin + end + draw.pick(_LINES) + b"\r\n" + rest
        case 3:
            wire = draw.pick(_BEGINNINGS) + wire[wire.find(b"\r\n") :]
        case 4:
            line, extra = b"Transfer-Encoding: chunked\r\n\r\n", draw.pick(_SIZES)
            wire = b"POST /a HTTP/1.1\r\nHost: a\r\n" + line + extra + b"\r\nabc\r\n0\r\n\r\n"
        case _:
            wire = draw.noise().randbytes(1 + draw.upto(200))
    return Drawn(wire, valid=False)


def _again(draw: Draw, request: Drawn) -> Drawn:
    """The same head, with another body and its length, where it states one."""
    before, name, rest = request.wire.partition(b"Content-Length: ")
    if not name:
        return request
    lines, end, _ = rest.partition(b"\r\n\r\n")
    _, line_end, after = lines.partition(b"\r\n")
    noise = draw.noise()
    body = noise.randbytes(noise.choice((0, 1, 9, 10, 300, BODY_BYTES)))
    head = before + name + b"%d" % len(body) + line_end + after + end
    return Drawn(head + body, request.valid, body, request.closes)


# Lengths that are nearly the one that a known head may state.
_LENGTHS: Final = (b"+%d", b" %d", b"%d ", b"0%d", b"%d_0", b"0x%d", b"%d,%d", b"-%d", b"", b"\t%d")


def _kept_alive(draw: Draw) -> list[Drawn]:
    """One head over and over, and at times one that is nearly the same."""
    lines = [b"Host: a", b"Content-Length: 2", *draw.pick(((), (b"Accept: */*", b"X-Empty:")))]
    draw.noise().shuffle(lines)
    head = b"POST /a HTTP/1.1\r\n%b\r\n\r\n" % b"\r\n".join(lines)
    drawn = [Drawn(head + b"ab", body=b"ab")]
    for _ in range(1 + draw.upto(4)):
        drawn.append(_again(draw, drawn[0]))
    if draw.upto(2) == 0:
        at = draw.upto(len(drawn) - 1)
        stated = b"%d" % len(drawn[at].body)
        wrong = draw.pick(_LENGTHS).replace(b"%d", stated)
        wire = drawn[at].wire.replace(b"Length: " + stated, b"Length: " + wrong, 1)
        drawn[at] = Drawn(wire, valid=False)
    return drawn


def draw_requests(draw: Draw) -> list[Drawn]:
    """The requests of one connection, in order."""
    if draw.chance(60):
        return [Drawn(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n") for _ in range(PIPELINED_MAX + 9)]
    if draw.chance(4):
        return _kept_alive(draw)
    drawn = [_valid(draw) for _ in range(1 + draw.upto(3))]
    if draw.upto(3):  # one in four stays as the grammar has it
        at = draw.upto(len(drawn) - 1)
        drawn[at] = _bent(draw, drawn[at])
    return drawn


# --- the server's surroundings --------------------------------------------------------------------


class Wire:
    """A transport that keeps what is written and remembers how it was closed."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.over = self.aborted = False
        self.reading = True
        self.unsent = 0

    def get_extra_info(self, name: str) -> None:
        """Nothing is known of the peer."""

    def write(self, data: bytes) -> None:
        assert not self.over, "written after the end"
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.over = True

    write_eof = close

    def abort(self) -> None:
        self.over = self.aborted = True

    def is_closing(self) -> bool:
        return False  # so that what is written after the end shows

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Loop:
    """Where a server reports what it could not handle; its turns end when the case wants."""

    def __init__(self) -> None:
        self.troubles: list[dict[str, Any]] = []
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def end_turn(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.troubles.append(context)


class Listening:
    """Who answers later hears how its client fares, and never after the end."""

    def __init__(self) -> None:
        self.gone = False
        self.answered = False

    def on_client_gone(self) -> None:
        assert not self.gone, "told twice"
        assert not self.answered, "told after the answer"
        self.gone = True

    def on_client_slow(self) -> None:
        assert not self.gone

    def on_client_ready(self) -> None:
        assert not self.gone


@dataclass(slots=True)
class App:
    """Echoes: at once, in pieces, at the head, or when it is told to."""

    manner: str
    heads: list[Any] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    pending: Any = None
    answers: int = 0
    aborts: int = 0

    def on_head(self, exchange: Any) -> None:
        assert exchange.path[:1] == b"/", "the contract of paths"
        assert all(0x20 < byte < 0x7F for byte in exchange.path + exchange.query)
        for name, value in exchange.headers.items():
            assert name == name.lower()
            assert not any(sign in name + value for sign in (b"\r", b"\n", b"\x00"))
        self.heads.append(exchange)
        if self.manner == "at the head" and len(self.heads) > 1:
            self.answers += 1
            exchange.respond(401, b"x-method: %b\r\n" % exchange.method, b"no")
        elif self.manner == "narrow":
            exchange.body_max = 10

    def on_request(self, exchange: Any) -> None:
        assert exchange.complete
        assert len(exchange.body) <= exchange.body_max
        assert self.pending is None, "two requests of one connection at once"
        self.requests.append(exchange)
        if self.manner == "later":
            self.pending = exchange
            exchange.listener = Listening()
        elif self.manner == "pieces":
            exchange.start(200, b"x-method: %b\r\n" % exchange.method)
            for at in range(0, len(exchange.body), 700):
                exchange.write(exchange.body[at : at + 700])
            self.answers += 1
            exchange.end()
        elif self.manner == "abort" and len(self.requests) > 1:
            self.aborts += 1
            exchange.abort()
        else:
            self.answers += 1
            exchange.respond(200, b"x-method: %b\r\n" % exchange.method, exchange.body)

    def answer(self) -> None:
        """Give the answer that was put off."""
        exchange, self.pending = self.pending, None
        if exchange is None:
            return
        listener = exchange.listener
        if exchange.connection is not None:
            self.answers += 1
            listener.answered = True
        exchange.respond(200, b"x-method: %b\r\n" % exchange.method, exchange.body)


# --- reading answers ------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """One response, read from the bytes alone."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    whole: bool


def read_answers(wire: bytes, *, ended: bool) -> Iterator[Answer]:
    """Take the bytes of a connection apart, strictly. The app says which answer is to a HEAD."""
    while wire:
        head, end, rest = wire.partition(b"\r\n\r\n")
        assert end, "a response without the end of its head"
        first, *lines = head.split(b"\r\n")
        version, status, _ = first.split(b" ", 2)
        assert version == b"HTTP/1.1"
        assert len(status) == 3
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b": ")
            assert colon, "a header line without a value"
            assert name == name.lower()
            headers[name] = value
        length = headers.get(b"content-length")
        assert (length is None) or b"transfer-encoding" not in headers, "two framings"
        if int(status) in {204, 304} or headers.get(b"x-method") == b"HEAD":
            body, wire, whole = b"", rest, True
        elif length is not None:
            body, wire = rest[: int(length)], rest[int(length) :]
            whole = len(body) == int(length)
        else:
            assert headers.get(b"transfer-encoding") == b"chunked" or ended, "no framing"
            if b"transfer-encoding" in headers:
                body, wire, whole = _unchunked(rest)
            else:
                body, wire, whole = rest, b"", ended
        yield Answer(int(status), headers, body, whole)


def _unchunked(wire: bytes) -> tuple[bytes, bytes, bool]:
    body = b""
    while True:
        size, end, wire = wire.partition(b"\r\n")
        if not end:
            return body, b"", False
        count = int(size, 16)
        if not count:
            assert wire.startswith(b"\r\n")
            return body, wire[2:], True
        body += wire[:count]
        assert wire[count : count + 2] in {b"\r\n", b""}
        wire = wire[count + 2 :]


# --- a case ---------------------------------------------------------------------------------------


class Case:
    """One connection from its beginning to its end."""

    def __init__(
        self,
        manner: str,
        requests_max: int,
        origins: tuple[str, ...],
        hot_path: HotPath = FAST,
    ) -> None:
        self.now = SECOND
        config = HttpConfig(
            header_bytes_max=HEADER_BYTES,
            headers_max=HEADERS,
            body_bytes_max=BODY_BYTES,
            requests_per_connection_max=requests_max,
        )
        self.app, self.wire, self.loop = App(manner), Wire(), Loop()
        self.server = Server(
            self.app,
            config,
            loop=self.loop,  # type: ignore[arg-type]
            cors_origins=origins,
            hot_path=hot_path,
            now_ns=lambda: self.now,
        )
        self.connection = self.server.protocol()
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.paused = False
        self.largest = 0

    def feed(self, data: bytes) -> None:
        """One read; none once the transport is closed, as with a real one."""
        # What was held while an answer was made is parsed as one read later.
        self.largest = max(self.largest, len(self.connection._held) + len(data))
        if not self.wire.aborted and self.wire.reading:
            self.connection.data_received(data)
        self.bounded()

    def bounded(self) -> None:
        """What is buffered stays within the limits and one read."""
        connection, read = self.connection, self.largest
        intake = connection._intake
        assert len(connection._held) <= HELD_BYTES_MAX + read
        assert len(intake.arrived) <= PIPELINED_MAX + 1
        assert len(intake._body or b"") <= BODY_BYTES + read
        assert intake.head_bytes <= HEADER_BYTES + read
        assert intake._without_body <= HEADER_BYTES + read
        assert sum(map(len, intake._headers.values())) <= HEADER_BYTES + read

    def disturb(self, draw: Draw) -> None:
        """Something else that happens to a connection."""
        match draw.upto(4):
            case 0:
                self.app.answer()
            case 1:
                self.now += draw.pick((SECOND // 10, 4 * SECOND, 11 * SECOND, 61 * SECOND))
                self.server.sweep(self.now)
            case 2:
                if self.paused:
                    self.connection.resume_writing()
                elif not self.wire.over:
                    self.wire.unsent = 70_000
                    self.connection.pause_writing()
                self.paused = not self.paused
            case 3:
                self.server.drain()
            case _:
                self.wire.unsent //= 2

    def settle(self) -> None:
        """Let the client read everything and the app answer everything."""
        for _ in range(PIPELINED_MAX + 10):
            if self.paused:
                self.paused, self.wire.unsent = False, 0
                self.connection.resume_writing()
            self.loop.end_turn()
            if self.app.pending is None:
                return
            self.app.answer()

    def close(self, draw: Draw) -> None:
        """The end of the connection, however it comes about."""
        if not self.wire.over and draw.upto(1):
            self.connection.eof_received()
        self.connection.connection_lost(None)
        pending = self.app.pending
        assert pending is None or pending.listener is None
        self.app.answer()  # late: it must go nowhere
        self.loop.end_turn()
        server = self.server
        assert not server.connections
        tables = (server.idle, server.heads, server.bodies, server.lingering, server.closing)
        assert not any(tables)
        assert not server.slow


def cut_requests(draw: Draw, drawn: list[Drawn]) -> list[bytes]:
    """As a network cuts them, or as clients send them: one by one, or head and body apart."""
    match draw.upto(3):
        case 0 | 1:
            return draw.cut(b"".join(request.wire for request in drawn))
        case 2:
            return [request.wire for request in drawn]
        case _:
            heads = [request.wire.partition(b"\r\n\r\n") for request in drawn]
            return [part for head, end, body in heads for part in (head + end, body) if part]


def case(draw: Draw) -> None:
    """Draw requests, feed them in pieces, look at what came back."""
    manner = draw.pick(MANNERS)
    drawn = draw_requests(draw)
    one = Case(manner, draw.pick((1_000_000, 2)), draw.pick(ORIGINS))
    disturbed = draw.chance(3)
    for piece in cut_requests(draw, drawn):
        one.feed(piece)
        if draw.chance(2):
            one.loop.end_turn()
        if disturbed and draw.chance(3):
            one.disturb(draw)
    one.settle()
    _check(one, drawn)
    if not disturbed and manner in {"at once", "pieces", "later"}:
        _check_echoes(one, drawn)
    _check_deaf(one)
    one.close(draw)


def _check(one: Case, drawn: list[Drawn]) -> None:
    app, server = one.app, one.server
    assert not one.loop.troubles, "an exception escaped"
    assert not server.counters["internal_error"]
    refusals = sum(server.counters.values()) - server.counters["slow_reader"]
    assert refusals <= 1
    plain = bytes(one.wire.sent).replace(CONTINUE, b"")
    answers = list(read_answers(plain, ended=one.wire.over))
    assert all(answer.status in KNOWN for answer in answers)
    sent = len(drawn) + sum(request.wire.count(b"/smuggled") for request in drawn)
    assert len(app.heads) <= sent, "a request that nobody sent"
    assert len(answers) <= sent + 1
    refused = [at for at, answer in enumerate(answers) if answer.status in REFUSING]
    assert refused in ([], [len(answers) - 1]), "something follows a refusal"
    assert len(refused) <= refusals
    if not one.wire.aborted:
        assert all(answer.whole for answer in answers)
        direct = sum(answer.status == 204 for answer in answers)
        assert len(answers) == app.answers + direct + refusals
    if refused:
        assert answers[-1].headers[b"connection"] == b"close"
        assert one.wire.over


def _check_echoes(one: Case, drawn: list[Drawn]) -> None:
    """What was valid, up to the first that was not, is answered with its own body, in order."""
    for request, seen in zip(drawn, one.app.requests, strict=False):
        if not request.valid:
            return
        assert seen.body == request.body
        if request.closes:
            return


def _check_deaf(one: Case) -> None:
    """Nothing is parsed after the end that the server chose."""
    if not one.wire.over:
        return
    before = (len(one.app.heads), len(one.wire.sent), dict(one.server.counters))
    one.feed(LATER)
    one.feed(b"\x00" * 10)
    assert before == (len(one.app.heads), len(one.wire.sent), one.server.counters)


__all__ = ["Case", "Drawn", "case", "cut_requests", "draw_requests", "read_answers"]
