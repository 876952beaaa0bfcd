"""Requests that must not pass: one refusal, a closed connection, and an app that saw nothing."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.config.gateway import HttpConfig
from holdfast.gateway.http import syntax
from holdfast.gateway.http.server import Server
from turns import AtOnce

WAIT_S = 5.0
SECOND = 10**9
SMALL = HttpConfig(header_bytes_max=2_000, headers_max=20, body_bytes_max=1_000)


class CountingApp:
    def __init__(self):
        self.heads = []
        self.bodies = []

    def on_head(self, exchange):
        self.heads.append(exchange)

    def on_request(self, exchange):
        self.bodies.append(exchange.body)
        exchange.respond(200, b"", b"ok")


def serve(test: Callable[[Server, int], Awaitable[None]], config: HttpConfig = SMALL):
    async def main():
        loop = asyncio.get_running_loop()
        server = Server(CountingApp(), config, loop=loop)
        listening = await loop.create_server(server.protocol, "127.0.0.1", 0)
        try:
            await test(server, listening.sockets[0].getsockname()[1])
        finally:
            listening.close()
            server.close()
            await until(lambda: server.open == 0)

    uvloop.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  (the server does not tell when)
            await asyncio.sleep(0.001)


async def ask(port: int, *pieces: bytes) -> bytes:
    """Everything the server sends until it closes; the client keeps its side open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.002)
        return await asyncio.wait_for(reader.read(), WAIT_S)
    finally:
        writer.transport.abort()


def refused(answer: bytes, status: int) -> dict:
    """The error of an answer that must be the only one."""
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:60]
    assert answer.count(b"HTTP/1.1 ") == 1
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"content-length: %d" % len(body) in head
    return json.loads(body)["error"]


POST = b"POST /a HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    # Host
    "no host": (400, b"GET /a HTTP/1.1\r\n\r\n"),
    "empty host": (400, b"GET /a HTTP/1.1\r\nHost:\r\n\r\n"),
    "two hosts": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    "the same host twice": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nhOST: a\r\n\r\n"),
    "two hosts from http/1.0": (400, b"GET /a HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"),
    "host with a path": (400, b"GET /a HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    "host with a user": (400, b"GET /a HTTP/1.1\r\nHost: a@b\r\n\r\n"),
    "host list": (400, b"GET /a HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    "host beyond ascii": (400, b"GET /a HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n"),
    # Length and coding
    "length and coding": (400, POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "coding and length": (400, POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n"),
    "two lengths": (400, POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc"),
    "one length twice": (400, POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab"),
    "list of lengths": (400, POST + b"Content-Length: 2, 2\r\n\r\nab"),
    "signed length": (400, POST + b"Content-Length: +2\r\n\r\nab"),
    "negative length": (400, POST + b"Content-Length: -2\r\n\r\nab"),
    "hexadecimal length": (400, POST + b"Content-Length: 0x2\r\n\r\nab"),
    "empty length": (400, POST + b"Content-Length: \r\n\r\nab"),
    "endless length": (400, POST + b"Content-Length: 99999999999999999999999\r\n\r\n"),
    "length above the limit": (413, POST + b"Content-Length: 1001\r\n\r\n"),
    "unknown coding": (501, POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "identity": (501, POST + b"Transfer-Encoding: identity\r\n\r\nabc"),
    "coding before chunked": (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "empty item before chunked": (501, POST + b"Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n"),
    "coding after chunked": (400, POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "chunked twice": (
        400,
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "tab behind chunked": (400, POST + b"Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n"),
    "empty coding": (400, POST + b"Transfer-Encoding: \r\n\r\n0\r\n\r\n"),
    "coding from http/1.0": (
        400,
        b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    # Syntax of headers
    "bare line feeds": (400, b"GET /a HTTP/1.1\nHost: a\n\n"),
    "one bare line feed": (400, b"GET /a HTTP/1.1\r\nHost: a\n\r\n"),
    "bare carriage return": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA: b\rC: d\r\n\r\n"),
    "space before the colon": (400, b"GET /a HTTP/1.1\r\nHost : a\r\n\r\n"),
    "space before a length's colon": (400, POST + b"Content-Length : 2\r\n\r\nab"),
    "space before the first header": (400, b"GET /a HTTP/1.1\r\n Host: a\r\n\r\n"),
    "folded line": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n"),
    "folded with a tab": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA: b\r\n\tc\r\n\r\n"),
    "nul in a value": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA: b\x00c\r\n\r\n"),
    "control in a value": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA: b\x01c\r\n\r\n"),
    "delete in a value": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA: b\x7fc\r\n\r\n"),
    "bracket in a name": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA(b: c\r\n\r\n"),
    "nul in a name": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA\x00b: c\r\n\r\n"),
    "name beyond ascii": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nA\xe9: c\r\n\r\n"),
    "no name": (400, b"GET /a HTTP/1.1\r\nHost: a\r\n: c\r\n\r\n"),
    "no colon": (400, b"GET /a HTTP/1.1\r\nHost: a\r\nAb\r\n\r\n"),
    # The first line
    "http/0.9": (505, b"GET /a\r\n\r\n"),
    "http/0.9 by name": (505, b"GET /a HTTP/0.9\r\n\r\n"),
    "http/2 by name": (505, b"GET /a HTTP/2.0\r\nHost: a\r\n\r\n"),
    "http/2 by name, kept alive": (
        505,
        b"GET /a HTTP/2.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
    ),
    "http/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "http/1.2": (400, b"GET /a HTTP/1.2\r\nHost: a\r\n\r\n"),
    "http/1.10": (400, b"GET /a HTTP/1.10\r\nHost: a\r\n\r\n"),
    "lower case version": (400, b"GET /a http/1.1\r\nHost: a\r\n\r\n"),
    "another protocol": (505, b"GET /a RTSP/1.0\r\nHost: a\r\n\r\n"),
    "another protocol, newer": (505, b"GET /a RTSP/1.1\r\nHost: a\r\n\r\n"),
    "unknown method": (400, b"FROB /a HTTP/1.1\r\nHost: a\r\n\r\n"),
    "lower case method": (400, b"get /a HTTP/1.1\r\nHost: a\r\n\r\n"),
    "tls to a plain port": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "space in the path": (400, b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "control in the path": (400, b"GET /a\x01 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "tab in the query": (400, b"GET /a?\tb HTTP/1.1\r\nHost: a\r\n\r\n"),
    "path beyond ascii": (400, b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "fragment": (400, b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "relative target": (400, b"GET a HTTP/1.1\r\nHost: a\r\n\r\n"),
    "asterisk": (400, b"GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
    "foreign scheme": (400, b"GET ftp://a/b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "user in the target": (400, b"GET http://u:p@a/b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "tunnel": (501, b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "tunnel to a path": (501, b"CONNECT /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\n\r\n"),
    "web socket": (
        501,
        b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ),
    "unknown expectation": (417, POST + b"Expect: a-pony\r\nContent-Length: 1\r\n\r\n"),
    # Size
    "long target": (431, b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 2_000)),
    "long header": (431, b"GET /a HTTP/1.1\r\nHost: a\r\nA: %b\r\n\r\n" % (b"a" * 2_000)),
    "long header that does not end": (431, b"GET /a HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 2_000),
    "long target that does not end": (431, b"GET /" + b"a" * 2_000),
    "long name that does not end": (431, b"GET /a HTTP/1.1\r\nHost: a\r\n" + b"a" * 2_000),
    "many headers": (
        431,
        b"GET /a HTTP/1.1\r\nHost: a\r\n%b\r\n" % b"".join(b"a%d: b\r\n" % n for n in range(20)),
    ),
    "one header many times": (431, b"GET /a HTTP/1.1\r\nHost: a\r\n%b\r\n" % (b"a: b\r\n" * 20)),
    "one header very many times": (431, b"GET /a HTTP/1.1\r\n" + b"a: b\r\n" * 30_000),
}


@pytest.mark.parametrize(("status", "raw"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_once_and_the_app_sees_nothing(status, raw):
    behind = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

    async def test(server, port):
        ends = raw.endswith(b"\r\n\r\n")
        for pieces in ((raw,), (raw[: len(raw) // 2], raw[len(raw) // 2 :])):
            error = refused(await ask(port, *pieces), status)
            assert set(error) == {"message", "type", "param", "code"}
        if ends:
            refused(await ask(port, raw + behind), status)
        assert server.app.heads == []
        assert sum(server.counters.values()) == 2 + ends

    if b"RTSP" in raw:
        # Found only where the whole line is in one read: see check_version.
        async def whole(server, port):
            refused(await ask(port, raw), status)
            assert server.app.heads == []

        serve(whole)
        return
    serve(test)


REFUSED_IN_THE_BODY = {
    "chunked above the limit": (413, CHUNKED + b"3e9\r\n" + b"a" * 1_001),
    "many chunks above the limit": (413, CHUNKED + b"64\r\n%b\r\n" % (b"a" * 100) * 11),
    "bare line feeds": (400, CHUNKED + b"2\nab\n0\n\n"),
    "space behind the size": (400, CHUNKED + b"2 \r\nab\r\n0\r\n\r\n"),
    "size that lies": (400, CHUNKED + b"2\r\nabc\r\n0\r\n\r\n"),
    "size beyond all numbers": (400, CHUNKED + b"fffffffffffffffff\r\nab"),
    "size that is none": (400, CHUNKED + b"xy\r\nab"),
    "negative size": (400, CHUNKED + b"-1\r\nab"),
    "length in the trailers": (400, CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n"),
    "control in the trailers": (400, CHUNKED + b"0\r\nA: \x00\r\n\r\n"),
}


@pytest.mark.parametrize(
    ("status", "raw"), REFUSED_IN_THE_BODY.values(), ids=REFUSED_IN_THE_BODY.keys()
)
def test_a_bad_body_is_refused_once_and_never_handed_on(status, raw):
    async def test(server, port):
        head, body = raw[: len(CHUNKED)], raw[len(CHUNKED) :]
        for pieces in ((raw,), (head, body), (head, body[:1], body[1:])):
            refused(await ask(port, *pieces), status)
        assert server.app.bodies == []
        assert all(exchange.connection is None for exchange in server.app.heads)

    serve(test)


@pytest.mark.parametrize("start", [b"2;", b"0\r\nA: ", b"0\r\nA"])
def test_extensions_and_trailers_are_bounded(start):
    async def test(server, port):
        flood = [b"x" * 500] * 6
        refused(await ask(port, CHUNKED + start, *flood), 400)
        assert server.counters["chunk_overhead"] == 1
        assert server.app.bodies == []

    serve(test)


def test_what_is_within_the_limits_passes():
    headers = b"".join(b"a%d: %b\r\n" % (n, b"b" * 80) for n in range(18))
    raw = b"POST /a HTTP/1.1\r\nHost: a\r\n%bContent-Length: 1000\r\n" % headers

    async def test(server, port):
        body = b"x" * 1_000
        answer = await ask(port, raw + b"Connection: close\r\n\r\n" + body)
        assert answer.startswith(b"HTTP/1.1 200")
        assert server.app.bodies == [body]

    serve(test, HttpConfig(header_bytes_max=2_000, headers_max=21, body_bytes_max=1_000))


def test_a_large_body_does_not_count_against_the_head():
    raw = POST + b"Content-Length: 900\r\n\r\n" + b"x" * 900

    async def test(server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # Heads that begin behind a body, in the same read, and end in another.
        writer.write(raw * 3 + raw[:20])
        await until(lambda: len(server.app.bodies) == 3)
        writer.write(raw[20:] + raw.replace(b"/a HTTP/1.1", b"/b HTTP/1.1\r\nConnection: close"))
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        assert answer.count(b"HTTP/1.1 200") == 5
        writer.close()

    serve(test, HttpConfig(header_bytes_max=200, body_bytes_max=1_000))


def test_headers_that_do_not_come_to_an_end_in_time_are_refused():
    async def test(server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /a HTTP/1.1\r\n")
        await until(lambda: bool(server.heads))
        began = server.now_ns()
        server.sweep(began + 9 * SECOND)
        writer.write(b"Host: a\r\n")  # a byte now and then buys no time
        await asyncio.sleep(0.01)
        assert len(server.heads) == 1
        server.sweep(began + 11 * SECOND)
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        assert refused(answer, 408)["code"] == "header_timeout"
        assert server.app.heads == []
        writer.close()

    serve(test)


def test_the_clock_of_a_second_head_starts_with_it():
    now = 0

    async def main():
        nonlocal now
        loop = asyncio.get_running_loop()
        server = Server(CountingApp(), SMALL, loop=loop, now_ns=lambda: now)
        listening = await loop.create_server(server.protocol, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /a HTTP/1.1\r\n")
        await until(lambda: bool(server.heads))
        now = 8 * SECOND
        writer.write(b"Host: a\r\n\r\nGET /b HTTP/1.1\r\n")
        await asyncio.wait_for(reader.readuntil(b"ok"), WAIT_S)
        server.sweep(12 * SECOND)
        assert list(server.heads.values()) == [8 * SECOND]
        server.sweep(18 * SECOND)
        refused(await asyncio.wait_for(reader.read(), WAIT_S), 408)
        listening.close()
        writer.close()
        await until(lambda: server.open == 0)

    uvloop.run(main())


@pytest.mark.parametrize(("stall_s", "late_s"), [(100.0, 60), (10.0, 10)])
def test_a_body_that_does_not_come_in_time_is_refused(stall_s, late_s):
    async def test(server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"Content-Length: 10\r\n\r\nabc")
        await until(lambda: bool(server.bodies))
        began = server.now_ns()
        server.sweep(began + (late_s - 1) * SECOND)
        writer.write(b"d")
        await asyncio.sleep(0.01)
        assert len(server.bodies) == 1
        server.sweep(began + (late_s + 1) * SECOND)
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        assert refused(answer, 408)["code"] == "body_timeout"
        assert server.app.bodies == []
        assert server.busy == 1  # it may still be sending
        writer.close()

    serve(test, replace(SMALL, body_stall_s=stall_s))


def test_refusals_never_repeat_what_was_sent():
    async def test(server, port):
        for raw in (
            b"GET /planted HTTP/1.1\r\nHost: pl@nted\r\nplanted: planted\r\n\r\n",
            b"PLANTED /planted HTTP/1.1\r\n\r\n",
            b"GET /planted HTTP/1.1\r\nHost: a\r\nplanted : planted\r\n\r\n",
        ):
            assert b"planted" not in (await ask(port, raw)).lower()

    serve(test)


def test_memory_of_a_body_in_tiny_chunks_is_that_of_the_body():
    async def test(server, port):
        chunks = b"2\r\nab\r\n" * 50_000 + b"0\r\n\r\n"
        raw = CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        answer = await ask(port, raw + chunks)
        assert answer.startswith(b"HTTP/1.1 200")
        assert server.app.bodies == [b"ab" * 50_000]

    serve(test, HttpConfig())


PIECES = st.sampled_from(
    [
        b"GET /a HTTP/1.1\r\n",
        b"POST /a HTTP/1.1\r\n",
        b"Host: a\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"\x00",
        b" ",
        b"\n",
    ]
)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self):
        self.sent = b""
        self.over = False

    def get_extra_info(self, name):
        """Nothing is known of the peer."""

    def write(self, data):
        assert not self.over, "written after the end"
        self.sent += data

    def close(self):
        self.over = True

    abort = write_eof = close

    def is_closing(self):
        return False  # so that what is written after the end shows

    def can_write_eof(self):
        return True

    def get_write_buffer_size(self):
        return 0

    def set_write_buffer_limits(self, high):
        assert high > 0

    def pause_reading(self):
        assert not self.over

    def resume_reading(self):
        assert not self.over


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(PIECES, st.binary(max_size=8)), max_size=24), st.integers(1, 40))
def test_no_bytes_in_any_cut_make_it_fail(pieces, step):
    app = CountingApp()
    server = Server(app, SMALL, loop=AtOnce())
    connection = server.protocol()
    wire = Wire()
    connection.connection_made(wire)
    raw = b"".join(pieces)
    for at in range(0, len(raw), step):
        connection.data_received(raw[at : at + step])
    answers = wire.sent.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").count(b"HTTP/1.1 ")
    failed = sum(server.counters.values())
    assert failed <= 1
    assert answers == len(app.bodies) + failed
    assert server.counters["internal_error"] == 0
    connection.connection_lost(None)
    assert server.open == 0
    assert server.busy == 0


@settings(max_examples=150)
@given(st.lists(PIECES, max_size=16), st.integers(1, 40))
def test_how_bytes_are_cut_does_not_change_what_is_understood(pieces, step):
    raw = b"".join(pieces)

    def understood(size: int) -> tuple[list[bytes], list[tuple[bytes, bytes]], list[int]]:
        app = CountingApp()
        server = Server(app, SMALL, loop=AtOnce())
        connection = server.protocol()
        connection.connection_made(Wire())
        for at in range(0, len(raw), size):
            connection.data_received(raw[at : at + size])
        connection.connection_lost(None)
        # Of two faults in a row the parser may see the second before it tells of the first.
        kinds = [one.status for one in syntax.REFUSALS if server.counters[one.code]]
        return app.bodies, [(seen.method, seen.path) for seen in app.heads if seen.complete], kinds

    assert understood(step) == understood(len(raw) or 1)
