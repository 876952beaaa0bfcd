"""The fast path against the plain path: the same bytes in the same pieces must mean the same.

    requests   what a client sends: requests seen, bytes sent back, refusals, end of the connection
    responses  what a replica sends in some calls: heads, pieces of bodies, ends and their reasons
    events     what a stream is split into: payloads, errors, whether one is unfinished
    relay      what clients get from ill replicas through a whole driver

The plain path (``gateway/http/hot_path.py``) is the reference. A case is drawn once and then played
to both, so the drawing may depend on nothing that either of them does. The fast path groups reads
and writes by turns of the event loop; the case says when a turn ends.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import fuzz_http
import fuzz_relay
import fuzz_upstream
from fuzz_draw import Draw
from fuzz_http import Drawn

from holdfast.core.failure import Kind
from holdfast.gateway.http.head_cache import HeadCache
from holdfast.gateway.http.hot_path import FAST, PLAIN, HotPath
from holdfast.gateway.http.sse import EventSplitter, MalformedStreamError, framed
from holdfast.gateway.http.upstream_connection import Head, UpstreamConnection

SEEDS: Final = 1 << 32

# --- requests -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Read:
    """One read of a client's connection, and what happens behind it."""

    data: bytes
    ends_turn: bool = False
    disturbance: int | None = None  # seed of what else happens to the connection


# Beginnings and lines of one length each: what is true of the one must not be taken for the other.
_BEGINNINGS: Final = (
    b"POST /a HTTP/1.1",
    b"POST /a HTTP/1.0",
    b"POST /b HTTP/1.1",
    b"POST /a RTSP/1.0",
)
_LINES: Final = (
    b"Host: a",
    b"Host: b",
    b"HOST: a",
    b"X: /a HTTP/1.1",
    b"X: a RTSP/1.0",
    b"Expect: x",
)
_LENGTHS: Final = (b"0%d", b"+%d", b"%d ", b"\t%d", b"%d,%d", b"")
_BODIES: Final = (
    b"",
    b"ab",
    b"x" * 40,
    b"\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
    b"of /a HTTP/1.0\r\n and /a RTSP/1.0\r\n",
)


def _stated(draw: Draw, body: bytes) -> bytes:
    """The length of a body, or something that is nearly it."""
    stated = b"%d" % len(body)
    return draw.pick(_LENGTHS).replace(b"%d", stated) if draw.chance(12) else stated


def _similar(draw: Draw) -> list[Drawn]:
    """Requests that differ in little or nothing."""
    rows: list[Drawn] = []
    for _ in range(2 + draw.upto(4)):
        beginning = draw.pick(_BEGINNINGS) if draw.chance(8) else _BEGINNINGS[0]
        lines = [draw.pick(_LINES) if draw.chance(8) else _LINES[0]]
        body = draw.pick(_BODIES)
        lines.append(b"Content-Length: " + _stated(draw, body))
        if draw.chance(8):
            lines.reverse()
        if draw.chance(8):
            lines.append(draw.pick(_LINES))
        head = beginning + b"\r\n" + b"".join(b"%b\r\n" % line for line in lines) + b"\r\n"
        rows.append(Drawn(head + body))
    return rows


def draw_reads(draw: Draw) -> list[Read]:
    """What one client sends, in pieces."""
    drawn = fuzz_http.draw_requests(draw) if draw.upto(1) else _similar(draw)
    disturbed = draw.chance(3)
    reads: list[Read] = []
    for piece in fuzz_http.cut_requests(draw, drawn):
        seed = draw.upto(SEEDS) if disturbed and draw.chance(3) else None
        reads.append(Read(piece, draw.chance(2), seed))
    return reads


def serve(
    reads: list[Read], manner: str, requests_max: int, origins: tuple[str, ...], hot_path: HotPath
) -> tuple[object, ...]:
    """What a server sees and says, given these reads."""
    case = fuzz_http.Case(manner, requests_max, origins, hot_path)
    for read in reads:
        case.feed(read.data)
        assert case.wire.reading or case.wire.over, "a case is too long to be held back"
        if read.ends_turn or read.disturbance is not None:
            case.loop.end_turn()
        if read.disturbance is not None:
            case.disturb(Draw(Random(read.disturbance)))
            case.loop.end_turn()
    case.settle()
    heads = [(seen.method, seen.path, seen.query, seen.headers) for seen in case.app.heads]
    requests = [
        (seen.body, seen.stated, seen.closes, seen.old, seen.lines) for seen in case.app.requests
    ]
    troubles = [str(trouble["exception"]) for trouble in case.loop.troubles]
    sent = bytes(case.wire.sent)
    ended = (case.wire.over, case.wire.aborted)
    return heads, requests, sent, ended, dict(case.server.counters), troubles


def _requests(draw: Draw) -> None:
    reads = draw_reads(draw)
    given = (draw.pick(fuzz_http.MANNERS), draw.pick((1_000_000, 2)), draw.pick(fuzz_http.ORIGINS))
    fast, plain = serve(reads, *given, FAST), serve(reads, *given, PLAIN)
    _same(fast, plain, f"{given} {reads}")


# --- responses ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Response:
    """What a replica sends during one call, and how the call ends if that does not end it."""

    reads: list[tuple[bytes, bool]]  # and whether the turn ends behind it
    end: str  # of the connection: eof, lost, reset, or "" where it is kept if it can be
    cancels_at: str = ""
    bodyless: bool = False


@dataclass(slots=True)
class Caller:
    """Writes down what it hears, piece by piece."""

    cancels_at: str
    running: Any = None
    heard: list[object] = field(default_factory=list)
    over: bool = False

    def _hear(self, *what: object) -> None:
        assert not self.over, "something follows the end"
        self.heard.append(what)
        if what[0] == self.cancels_at:
            self.over = True
            self.running.cancel()

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._hear("head", status, headers)

    def on_data(self, data: bytes) -> None:
        self._hear("data", data)

    def on_end(self) -> None:
        self._hear("end")
        self.over = True

    def on_failure(self, kind: Kind, detail: str) -> None:
        self._hear("failure", kind, detail)
        self.over = True


_PAYLOADS: Final = (
    fuzz_upstream.EVENT,
    b"x\n\n",
    b"\n\n",
    b"x",
    b"x\r\n",
    b"0\r\n\r\n",
    b"y" * 4_090 + b"\n\n",
    b"y" * 4_086 + b"\n\n",
    b"3\r\nabc\r\n\n\n",
)
_FIRST_LINES: Final = (
    b"%x",
    b"%x",
    b"%x",
    b"%X",
    b"0%x",
    b"%x;a",
    b"%x ",
    b"+%x",
    b"0x%x",
    b"%x_0",
)


def _chunks(draw: Draw) -> list[bytes]:
    """A stream of which most reads are one chunk, and some nearly so."""
    reads = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"]
    for _ in range(1 + draw.upto(6)):
        payload = draw.pick(_PAYLOADS) if draw.chance(3) else _PAYLOADS[0]
        line = (draw.pick(_FIRST_LINES) if draw.chance(8) else b"%x") % len(payload)
        chunk = line + b"\r\n" + payload + b"\r\n"
        if draw.chance(8):
            chunk = draw.damage(chunk)
        match draw.upto(9):
            case 9:
                reads[-1] += chunk
            case 8 | 7:
                reads += draw.cut(chunk)
            case _:
                reads.append(chunk)
    last = draw.pick((b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"00\r\n\r\n", b"0;a\r\n\r\n", b""))
    if draw.chance(2):
        reads[-1] += last
    else:
        reads.append(last)
    return [read for read in reads if read]


_HEADS: Final = (
    b"HTTP/1.1 200 OK\r\nServer: a\r\ncontent-length: %b\r\nDate: now\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: %b\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\ncontent-length: %b\r\n\r\n",
    b"HTTP/1.1 204 None\r\ncontent-length: %b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: %b\r\nconnection: close\r\n\r\n",
    b"HTTP/1.1 100 Wait\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %b\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: %b\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: %b\r\n\r\n",
)
_HEAD_BYTES: Final = (4_096, 93, 43, 42, 41)  # short limits: with some lengths, a head just fits


def _whole(draw: Draw) -> list[bytes]:
    """An answer in one piece whose head may have come before."""
    body = draw.pick((b"{}", b"", b"x" * 120, fuzz_upstream.EVENT, b"0\r\n\r\n"))
    head = draw.pick(_HEADS) if draw.chance(4) else _HEADS[0]
    wire = head % _stated(draw, body) + body
    if draw.chance(8):
        wire += draw.pick((b"x", wire, b"\r\n"))
    return draw.cut(wire) if draw.chance(4) else [wire]


def draw_responses(draw: Draw) -> list[Response]:
    """What a replica sends in some calls, one after the other."""
    responses: list[Response] = []
    for _ in range(1 + draw.upto(4)):
        match draw.upto(4):
            case 0 | 3 | 4:
                pieces = _whole(draw)
            case 1:
                pieces = _chunks(draw)
            case _:
                wire, _, _ = fuzz_upstream.draw_response(draw)
                pieces = draw.cut(fuzz_upstream.bend(draw, wire) if draw.upto(1) else wire)
        reads = [(piece, draw.chance(2)) for piece in pieces]
        end = draw.pick(("", "", "", "", "", "eof", "lost", "reset"))
        cancels_at = draw.pick(("head", "data")) if draw.chance(8) else ""
        responses.append(Response(reads, end, cancels_at, draw.chance(12)))
    return responses


def call(responses: list[Response], head_bytes_max: int, hot_path: HotPath) -> list[object]:
    """What callers hear of these responses; a connection that can be used again is."""
    loop, heads = fuzz_http.Loop(), HeadCache[Head]()
    turn = hot_path.loop_turn(loop)  # type: ignore[arg-type]
    heard: list[object] = []
    connection: UpstreamConnection | None = None
    transport = fuzz_upstream.Transport()
    for response in responses:
        caller, opened = Caller(response.cancels_at), connection is not None
        if connection is None:
            transport = fuzz_upstream.Transport()
            owner = fuzz_upstream.Owner(heads)
            connection = hot_path.upstream_connection(owner, head_bytes_max, turn)
        caller.running = connection.begin(caller, b"x", b"y", bodyless=response.bodyless)
        if not opened:
            connection.connection_made(transport)  # type: ignore[arg-type]
        loop.end_turn()  # a request is not answered before it is sent
        for data, ends_turn in response.reads:
            if not transport.closed:
                connection.data_received(data)
            if ends_turn:
                loop.end_turn()
        if response.end == "eof" and not transport.closed:
            connection.eof_received()
        loop.end_turn()
        kept = caller.over and not response.end and not transport.closed
        if not kept:
            lost = ConnectionResetError(104, "reset") if response.end == "reset" else None
            connection.connection_lost(lost)
            connection = None
        assert caller.over, "a call that nobody ended"
        heard.append((caller.heard, kept, bytes(transport.sent)))
    return heard


def _responses(draw: Draw) -> None:
    head_bytes_max = draw.pick(_HEAD_BYTES) if draw.chance(3) else _HEAD_BYTES[0]
    responses = draw_responses(draw)
    fast, plain = (call(responses, head_bytes_max, path) for path in (FAST, PLAIN))
    _same(fast, plain, f"{head_bytes_max} {responses}")


# --- events ---------------------------------------------------------------------------------------

EVENT_BYTES: Final = 60
_FRAGMENTS: Final = (
    b"data: x\n\n",
    b"data: x\n\n",
    b"data: [DONE]\n\n",
    b"data: \n\n",
    b"data:x\n\n",
    b"data\n\n",
    b": alive\n\n",
    b"event: a\ndata: b\n\n",
    b"data: a\ndata: b\n\n",
    b"data: x\r\n\r\n",
    b"data: x\r\r",
    b"data: a\rb\n\n",
    b"data: x\n\n\n",
    b"data: x\n",
    b"\n",
    b"\r",
    b"id: 1\n\n",
    b"oops\n\n",
    b"data : x\n\n",
    b"data: " + b"x" * (EVENT_BYTES - 6) + b"\n\n",
    b"data: " + b"x" * (EVENT_BYTES - 5) + b"\n\n",
    b"data: " + b"x" * (EVENT_BYTES - 6) + b"\ndata: x\n\n",
    b"\xef\xbb\xbfdata: x\n\n",
)


def split(pieces: list[bytes], splitter: EventSplitter) -> list[object]:
    """What a splitter makes of each piece."""
    made: list[object] = []
    for piece in pieces:
        try:
            payloads = splitter.feed(piece)
        except MalformedStreamError as error:
            made.append(str(error))
            continue
        if splitter.verbatim:
            assert [piece] == [framed(payload) for payload in payloads], "not what would be sent"
        made.append((payloads, splitter.pending))
    return made


def _events(draw: Draw) -> None:
    pieces: list[bytes] = []
    for _ in range(1 + draw.upto(9)):
        fragment = draw.pick(_FRAGMENTS) if draw.upto(1) else _FRAGMENTS[0]
        if pieces and draw.chance(4):
            pieces[-1] += fragment
        else:
            pieces.append(fragment)
    if draw.chance(3):
        pieces = draw.cut(b"".join(pieces))
    if draw.chance(6):
        pieces = [draw.damage(piece) for piece in pieces]
    fast, plain = (split(pieces, path.event_splitter(EVENT_BYTES)) for path in (FAST, PLAIN))
    _same(fast, plain, str(pieces))


# --- relay ----------------------------------------------------------------------------------------


def _relay(draw: Draw) -> None:
    seed = draw.upto(SEEDS)
    fast, plain = (
        fuzz_relay.replay(Draw(Random(seed)), path.event_splitter) for path in (FAST, PLAIN)
    )
    _same(fast, plain, f"seed {seed}")


# --- a case ---------------------------------------------------------------------------------------


def _same(fast: object, plain: object, given: str) -> None:
    if fast != plain:
        error = AssertionError("the fast path and the plain path differ")
        error.add_note(f"fast:  {fast}")
        error.add_note(f"plain: {plain}")
        error.add_note(f"given: {given}")
        raise error


def case(draw: Draw) -> None:
    """Compare one part of the fast path with the plain path."""
    draw.pick((_requests, _responses, _events, _relay))(draw)


__all__ = ["call", "case", "draw_reads", "draw_responses", "serve", "split"]
