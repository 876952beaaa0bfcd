"""Responses of replicas, valid and bent, into the connection that reads them.

The caller must hear of exactly one end, of nothing behind it, and of no body before a head. How
the network cut the bytes must not change what is heard, except where a bound was in the way. Nor
must it change anything that the replica's answers began with this head before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fuzz_draw import Draw

from holdfast.core.failure import Kind
from holdfast.gateway.http.head_cache import HeadCache
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.upstream_connection import Head, UpstreamConnection

HEAD_BYTES: Final = 4_096
EVENT: Final = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
LEARNED: Final = b"HTTP/1.1 200 OK\r\nServer: a\r\ncontent-length: 2\r\nDate: now\r\n\r\n{}"
_LENGTHS: Final = (b"2", b"49", b"96", b"002", b"+2", b" 2", b"2 ", b"2_0", b"0x2", b"", b"9" * 13)
_FAILURES: Final = frozenset({Kind.MALFORMED, Kind.RESET, Kind.STALE_SOCKET})


class AtOnce:
    """A loop whose turns end as they begin."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()


class Owner:
    def __init__(self, heads: HeadCache[Head] | None = None) -> None:
        self.kept: list[bool] = []
        self.lost_ones = 0
        self.heads = heads or HeadCache()

    def opened(self, connection: Any) -> None:
        pass

    def finished(self, connection: Any, *, keep: bool) -> None:
        self.kept.append(keep)

    def lost(self, connection: Any) -> None:
        self.lost_ones += 1


class Transport:
    def __init__(self) -> None:
        self.closed = False
        self.unsent = 0
        self.sent = bytearray()

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def abort(self) -> None:
        self.closed = True

    close = abort

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


@dataclass(slots=True)
class Heard:
    """A caller that holds the connection to its promises."""

    cancels_at: str = ""
    running: Any = field(default=None, compare=False)
    heads: list[Any] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    ends: list[Any] = field(default_factory=list)
    cancelled: bool = False

    def _in_order(self) -> None:
        assert not self.ends, "something follows the end"
        assert not self.cancelled, "something follows a cancellation"

    def on_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._in_order()
        assert not self.heads, "two heads"
        assert 200 <= status <= 999
        for name, value in headers.items():
            assert name == name.lower()
            assert not any(sign in name + value for sign in (b"\r", b"\n", b"\x00"))
        self.heads.append((status, headers))
        self._maybe_cancel("head")

    def on_data(self, data: bytes) -> None:
        self._in_order()
        assert self.heads, "a body before its head"
        assert data
        self.data += data
        self._maybe_cancel("data")

    def on_end(self) -> None:
        self._in_order()
        self.ends.append("end")

    def on_failure(self, kind: Kind, detail: str) -> None:
        self._in_order()
        assert kind in _FAILURES
        assert "secret" not in detail
        self.ends.append(kind)

    def _maybe_cancel(self, where: str) -> None:
        if self.cancels_at == where:
            self.cancelled = True
            self.running.cancel()


# --- responses ------------------------------------------------------------------------------------

_HEADERS: Final = (
    b"Content-Type: text/event-stream",
    b"Connection: close",
    b"Connection: keep-alive",
    b"X-Secret: secret",
    b"Retry-After: 5",
    b"X-Empty:",
    b"Set-Cookie: a\r\nSet-Cookie: b",
    b"X-Long: " + b"l" * 3_000,
)
_ODD: Final = (
    b"Content-Length: 5",
    b"Content-Length: 5\r\nContent-Length: 6",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Upgrade: h2c\r\nConnection: upgrade",
    b"A: secret\r\n folded",
    b"A: secret\nB: c",
    b"A : secret",
    b"\x00: secret",
    b"X: " + b"secret" * HEAD_BYTES,
    b"secret",
)
_STARTS: Final = (
    b"HTTP/1.1 204 None",
    b"HTTP/1.1 304 Same",
    b"HTTP/1.1 101 Switching",
    b"HTTP/1.1 100 Continue",
    b"HTTP/1.0 200 OK",
    b"HTTP/2.0 200 OK",
    b"HTTP/1.1 000 Odd",
    b"HTTP/1.1 99 Odd",
    b"HTTP/1.1 1000 Odd",
    b"HTTP/1.1 secret",
    b"ICY 200 OK",
    b"SSH-2.0-secret",
)


def _chunked(draw: Draw) -> tuple[bytes, bytes]:
    noise = draw.noise()
    looks = (EVENT, b"x", b"\n\n", b"5\r\n", b"0\r\n\r\n", b"y" * 5_000)
    payloads = [noise.choice(looks) for _ in range(draw.pick((3, 1, 0, 8)))]
    wire = b""
    for payload in payloads:
        form = noise.choice((b"%x", b"%x", b"%X", b"00%x"))
        extension = noise.choice((b"", b"", b"", b"", b";a=b"))
        wire += form % len(payload) + extension + b"\r\n" + payload + b"\r\n"
    trailers = draw.pick((b"", b"", b"X-Took: 5\r\n"))
    return b"".join(payloads), wire + b"0\r\n" + trailers + b"\r\n"


def draw_response(draw: Draw) -> tuple[bytes, bytes, bool]:
    """Bytes on the wire, the body, and whether it ends with the connection."""
    status = draw.pick((200, 200, 503, 404))
    start = b"HTTP/1.1 %d Some Words\r\n" % status
    lines = [line for line in _HEADERS if draw.chance(6)]
    until_close = False
    match draw.pick(("chunked", "chunked", "length", "close")):
        case "chunked":
            body, wire = _chunked(draw)
            lines.append(b"Transfer-Encoding: chunked")
        case "length":
            body = wire = EVENT * draw.upto(4)
            lines.append(b"content-length: %d" % len(body))
        case _:
            body = wire = EVENT * draw.upto(4)
            until_close = True
    draw.noise().shuffle(lines)
    interim = b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" if draw.chance(10) else b""
    head = interim + start + b"".join(b"%b\r\n" % line for line in lines) + b"\r\n"
    return head + wire, body, until_close


def bend(draw: Draw, wire: bytes) -> bytes:
    """The response with something wrong in it."""
    match draw.upto(4):
        case 0:
            return draw.damage(wire, 1 + draw.upto(2))
        case 1:
            begin, end, rest = wire.partition(b"\r\n")
            return begin + end + draw.pick(_ODD) + b"\r\n" + rest
        case 2:
            return draw.pick(_STARTS) + wire[wire.find(b"\r\n") :]
        case 3:
            return wire + draw.pick((b"secret", wire, b"0\r\n\r\n", b"\r\n"))
        case _:
            return draw.noise().randbytes(1 + draw.upto(300))


# --- a case ---------------------------------------------------------------------------------------


def hear(
    pieces: list[bytes],
    end: str,
    cancels_at: str = "",
    *,
    bodyless: bool = False,
    heads: HeadCache[Head] | None = None,
) -> Heard:
    """One call from its request to the loss of the connection."""
    owner, heard, transport = Owner(heads), Heard(cancels_at), Transport()
    connection = UpstreamConnection(owner, HEAD_BYTES, LoopTurn(AtOnce()))  # type: ignore[arg-type]
    heard.running = connection.begin(heard, b"x", b"", bodyless=bodyless)
    connection.connection_made(transport)  # type: ignore[arg-type]
    for piece in pieces:
        if not transport.closed:
            connection.data_received(piece)
    if end == "eof" and not transport.closed:
        connection.eof_received()
    connection.connection_lost(ConnectionResetError(104, "reset") if end == "reset" else None)
    assert len(owner.kept) == 1, "a call that is neither over nor under way"
    assert heard.cancelled or len(heard.ends) == 1, "exactly one end"
    assert not connection._pieces
    return heard


def case(draw: Draw) -> None:
    """Write a response, perhaps bend it, hear it in two different cuts."""
    wire, body, until_close = draw_response(draw)
    bent = draw.upto(2) > 0
    if bent:
        wire = bend(draw, wire)
    end = draw.pick(("eof", "lost", "reset"))
    cancels_at = draw.pick(("", "", "", "", "", "head", "data"))
    bodyless = draw.chance(12)
    pieces = draw.cut(wire)
    heads: HeadCache[Head] = HeadCache()
    if draw.chance(3):  # an answer that came before, and a head that is this one or nearly so
        hear([LEARNED], "lost", heads=heads)
        pieces = [LEARNED.replace(b"2\r", draw.pick(_LENGTHS) + b"\r") + EVENT * draw.upto(2)]
        bent = True
    try:
        heard = hear(pieces, end, cancels_at, bodyless=bodyless)
        again = hear(pieces, end, cancels_at, bodyless=bodyless, heads=heads)
        assert again == heard, "a head that was known again was read otherwise"
        if cancels_at or bodyless:
            return
        whole = hear([wire] if (wire := b"".join(pieces)) else [], end)
        if not bent:
            assert bytes(heard.data) == body
            expected = Kind.RESET if until_close and end != "eof" else "end"
            assert heard.ends == [expected]
        elif len(wire) <= HEAD_BYTES:
            assert heard.heads == whole.heads, "the cut changed the head"
            assert heard.data == whole.data, "the cut changed the body"
            assert heard.ends == whole.ends, "the cut changed the end"
    except Exception as error:
        error.add_note(f"{pieces!r} then {end}")
        raise


__all__ = ["Owner", "Transport", "bend", "case", "draw_response"]
