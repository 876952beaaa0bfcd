"""The server over real loopback sockets, with an app that echoes."""

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from holdfast.config.gateway import HttpConfig
from holdfast.gateway.http.server import LINGER_S, Server

WAIT_S = 5.0
SECOND = 10**9


class Told:
    """A listener that writes down what it hears."""

    def __init__(self):
        self.heard = []
        self.gone = asyncio.Event()
        self.slow = asyncio.Event()
        self.ready = asyncio.Event()

    def on_client_gone(self):
        self.heard.append("gone")
        self.gone.set()

    def on_client_slow(self):
        self.heard.append("slow")
        self.ready.clear()
        self.slow.set()

    def on_client_ready(self):
        self.heard.append("ready")
        self.ready.set()


class EchoApp:
    """Answers with what it saw; paths under /later wait for the test."""

    def __init__(self):
        self.heads = []
        self.requests = []
        self.head_hook = None
        self.arrived = asyncio.Event()

    def on_head(self, exchange):
        self.heads.append(exchange)
        if self.head_hook is not None:
            self.head_hook(exchange)

    def on_request(self, exchange):
        self.requests.append(exchange)
        if exchange.path.startswith(b"/later"):
            exchange.listener = Told()
            self.arrived.set()
        elif exchange.path == b"/crash":
            raise ValueError("a bug")
        elif exchange.path == b"/stream":
            exchange.start(200, b"content-type: text/plain\r\n")
            exchange.write(b"one")
            exchange.write(b"")
            exchange.write(b"two")
            exchange.end()
        elif exchange.path.startswith(b"/status/"):
            exchange.respond(int(exchange.path[8:]), b"", b"text")
        else:
            exchange.respond(200, b"x-path: %b\r\n" % exchange.path, exchange.body)


class Harness:
    def __init__(self, app: EchoApp, server: Server, port: int):
        self.app, self.server, self.port = app, server, port
        self.writers = []

    async def connect(self, **extra):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **extra)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, raw: bytes) -> bytes:
        """Everything the server sends until it closes."""
        reader, writer = await self.connect()
        writer.write(raw)
        return await asyncio.wait_for(reader.read(), WAIT_S)


def serve(
    test: Callable[[Harness], Awaitable[None]],
    *,
    config: HttpConfig | None = None,
    context: ssl.SSLContext | None = None,
    **options,
):
    async def main():
        loop = asyncio.get_running_loop()
        app = EchoApp()
        server = Server(app, config or HttpConfig(), loop=loop, **options)
        listening = await loop.create_server(server.protocol, "127.0.0.1", 0, ssl=context)
        harness = Harness(app, server, listening.sockets[0].getsockname()[1])
        try:
            await test(harness)
        finally:
            listening.close()
            server.close()
            for writer in harness.writers:
                writer.transport.abort()
            await until(lambda: server.open == 0)
            assert not any(
                (server.idle, server.heads, server.bodies, server.lingering, server.closing)
            )
            assert not server.slow

    uvloop.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  (the server does not tell when)
            await asyncio.sleep(0.001)


async def read_response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    async with asyncio.timeout(WAIT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length: "):
                return head, await reader.readexactly(int(line[16:]))
        if b"transfer-encoding: chunked" not in head:
            return head, b""
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        assert await reader.readexactly(2) == b"\r\n"
        return head, body


GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSING = b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def test_a_request_is_understood_and_its_answer_comes_whole():
    async def test(harness):
        raw = (
            b"POST /v1/x?a=b HTTP/1.1\r\nHost: h:1\r\nX-One:  1 \r\nX-one: 2\r\n"
            b"Content-Length: 5\r\n\r\nhello"
        )
        reader, writer = await harness.connect()
        writer.write(raw)
        head, body = await read_response(reader)
        assert head == b"HTTP/1.1 200 OK\r\nx-path: /v1/x\r\ncontent-length: 5\r\n\r\n"
        assert body == b"hello"
        exchange = harness.app.requests[0]
        assert exchange.method == b"POST"
        assert exchange.query == b"a=b"
        assert exchange.headers == {b"host": b"h:1", b"x-one": b"1, 2", b"content-length": b"5"}
        assert harness.app.heads == harness.app.requests

    serve(test)


def test_one_connection_serves_many_requests():
    async def test(harness):
        reader, writer = await harness.connect()
        for number in range(20):
            writer.write(GET % b"/%d" % number)
            head, _ = await read_response(reader)
            assert b"x-path: /%d\r\n" % number in head
            assert b"connection:" not in head
        assert harness.server.open == 1
        assert harness.server.busy == 0

    serve(test)


def test_a_request_may_come_byte_by_byte():
    async def test(harness):
        reader, writer = await harness.connect()
        raw = (
            b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
        )
        for at in range(len(raw)):
            writer.write(raw[at : at + 1])
            await asyncio.sleep(0)
        assert (await read_response(reader))[1] == b"abcde"
        writer.write(GET % b"/next")
        assert b"x-path: /next" in (await read_response(reader))[0]
        assert b"trailer" not in harness.app.requests[1].headers

    serve(test)


def test_a_large_body_comes_in_pieces_and_goes_out_whole():
    body = bytes(range(256)) * 8_000

    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        assert (await read_response(reader))[1] == body

    serve(test)


def test_an_answer_of_unknown_length_is_chunked():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(GET % b"/stream" + GET % b"/after")
        head, body = await read_response(reader)
        assert b"transfer-encoding: chunked\r\n" in head
        assert body == b"onetwo"
        assert b"x-path: /after" in (await read_response(reader))[0]

    serve(test)


def test_http_1_0_gets_an_answer_that_ends_with_the_connection():
    async def test(harness):
        answer = await harness.ask(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert b"keep-alive" not in head
        assert b"chunked" not in head
        assert body == b"onetwo"
        assert b"connection: close" in await harness.ask(b"GET /a HTTP/1.0\r\n\r\n")

    serve(test)


def test_http_1_0_may_keep_the_connection_when_it_asks():
    async def test(harness):
        reader, writer = await harness.connect()
        for _ in range(2):
            writer.write(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert b"connection: keep-alive\r\n" in (await read_response(reader))[0]

    serve(test)


def test_a_client_that_asks_to_close_is_closed():
    async def test(harness):
        answer = await harness.ask(CLOSING % b"/a")
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close\r\n" in answer

    serve(test)


def test_head_and_empty_statuses_have_no_body():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(b"HEAD /status/200 HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"content-length: 4\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"chunked" not in await reader.readuntil(b"\r\n\r\n")
        for status in (b"204", b"304"):
            writer.write(GET % (b"/status/" + status))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head == b"HTTP/1.1 %b %b\r\n\r\n" % (status, head[13:-4])
        writer.write(CLOSING % b"/last")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\nx-path: /last")

    serve(test)


def test_pipelined_requests_are_begun_one_at_a_time_and_answered_in_order():
    async def test(harness):
        app = harness.app
        reader, writer = await harness.connect()
        writer.write(GET % b"/later/1" + GET % b"/2" + GET % b"/later/3")
        await asyncio.wait_for(app.arrived.wait(), WAIT_S)
        writer.write(GET % b"/4")  # in a later read
        await until(lambda: harness.server.busy == 1)
        await asyncio.sleep(0.01)
        assert [exchange.path for exchange in app.heads] == [b"/later/1"]
        app.arrived.clear()
        app.requests[0].respond(200, b"x-path: 1\r\n", b"first")
        assert (await read_response(reader))[1] == b"first"
        assert b"x-path: /2\r\n" in (await read_response(reader))[0]
        await asyncio.wait_for(app.arrived.wait(), WAIT_S)
        assert [exchange.path for exchange in app.heads] == [b"/later/1", b"/2", b"/later/3"]
        app.requests[2].respond(200, b"", b"third")
        assert (await read_response(reader))[1] == b"third"
        assert b"x-path: /4\r\n" in (await read_response(reader))[0]

    serve(test)


def test_a_pipelined_request_may_be_cut_between_reads():
    async def test(harness):
        app = harness.app
        reader, writer = await harness.connect()
        second = b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789"
        writer.write(GET % b"/later" + second[:-7])
        await asyncio.wait_for(app.arrived.wait(), WAIT_S)
        writer.write(second[-7:] + GET % b"/c")
        app.requests[0].respond(200, b"", b"")
        await read_response(reader)
        assert (await read_response(reader))[1] == b"0123456789"
        assert b"x-path: /c" in (await read_response(reader))[0]

    serve(test)


def test_what_is_pipelined_while_an_answer_is_made_stays_bounded():
    async def test(harness):
        app = harness.app
        reader, writer = await harness.connect()
        writer.write(GET % b"/later")
        await asyncio.wait_for(app.arrived.wait(), WAIT_S)
        (connection,) = harness.server.connections
        size = 8 << 20
        writer.write(b"POST /big HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
        writer.write(b"x" * size)
        await until(lambda: len(connection._held) > 65_536)
        await asyncio.sleep(0.01)
        assert len(connection._held) < 1 << 20
        app.requests[0].respond(200, b"", b"")
        await read_response(reader)
        assert len((await read_response(reader))[1]) == size

    serve(test)


def test_bad_bytes_behind_a_request_are_answered_after_it():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(GET % b"/later" + b"BAD\x00\r\n\r\n")
        await asyncio.wait_for(harness.app.arrived.wait(), WAIT_S)
        harness.app.requests[0].respond(200, b"", b"good")
        assert (await read_response(reader))[1] == b"good"
        rest = await asyncio.wait_for(reader.read(), WAIT_S)
        assert rest.startswith(b"HTTP/1.1 400 ")
        assert rest.count(b"HTTP/1.1") == 1

    serve(test)


def test_too_many_pipelined_requests_are_refused_after_the_first_ones():
    async def test(harness):
        answer = await harness.ask(GET % b"/a" * 200)
        good = answer.count(b"HTTP/1.1 200")
        assert answer.count(b"HTTP/1.1 400") == 1
        assert 64 <= good < 200
        assert len(harness.app.requests) == good

    serve(test)


@pytest.mark.parametrize("half", [True, False])
def test_a_client_that_leaves_while_it_waits_is_reported_at_once(half):
    async def test(harness):
        _, writer = await harness.connect()
        writer.write(GET % b"/later")
        await asyncio.wait_for(harness.app.arrived.wait(), WAIT_S)
        exchange = harness.app.requests[0]
        listener = exchange.listener
        if half:
            writer.write_eof()
        else:
            writer.transport.abort()
        await asyncio.wait_for(listener.gone.wait(), WAIT_S)
        assert listener.heard == ["gone"]
        exchange.respond(200, b"", b"too late")  # harmless
        exchange.start(200, b"")
        exchange.write(b"x")
        exchange.end()
        exchange.abort()
        await until(lambda: harness.server.open == 0)

    serve(test)


def test_a_client_that_leaves_between_requests_disturbs_nobody():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(GET % b"/a")
        await read_response(reader)
        writer.close()
        await until(lambda: harness.server.open == 0)

    serve(test)


def test_an_aborted_answer_breaks_the_connection_without_telling_its_maker():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(GET % b"/later")
        await asyncio.wait_for(harness.app.arrived.wait(), WAIT_S)
        exchange = harness.app.requests[0]
        listener = exchange.listener
        exchange.start(200, b"")
        exchange.write(b"half")
        await reader.readuntil(b"half\r\n")
        exchange.abort()
        rest = b""
        try:
            rest = await asyncio.wait_for(reader.read(), WAIT_S)
        except ConnectionResetError:
            rest = b""
        assert rest == b""  # in particular no final chunk
        await until(lambda: harness.server.open == 0)
        assert listener.heard == []

    serve(test)


def test_an_expected_continue_is_sent_once_the_head_is_allowed():
    async def test(harness):
        reader, writer = await harness.connect()
        head = b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n"
        writer.write(head)
        line = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert line == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert len(harness.app.heads) == 1
        writer.write(b"abc")
        assert (await read_response(reader))[1] == b"abc"
        writer.write(head + b"def")  # it did not wait, so it need not be told
        assert (await read_response(reader))[1] == b"def"

    serve(test)


def test_an_answer_at_the_head_comes_before_the_body_and_closes():
    async def test(harness):
        harness.app.head_hook = lambda exchange: exchange.respond(401, b"", b"no")
        raw = b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        answer = await harness.ask(raw)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close\r\n" in answer
        assert b"100 Continue" not in answer
        assert harness.app.requests == []

    serve(test)


def test_an_early_answer_survives_a_client_that_keeps_sending():
    async def test(harness):
        harness.app.head_hook = lambda exchange: exchange.respond(403, b"", b"no")
        reader, writer = await harness.connect()
        size = 16 << 20
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(16):
            writer.write(b"x" * (1 << 20))
            await asyncio.wait_for(writer.drain(), WAIT_S)
        assert (await asyncio.wait_for(reader.read(), WAIT_S)).startswith(b"HTTP/1.1 403")
        assert len(harness.app.heads[0].body) < 1 << 20  # one read at most
        writer.close()
        await until(lambda: harness.server.open == 0)

    serve(test)


def test_an_answer_at_the_head_keeps_the_connection_when_the_request_is_whole():
    async def test(harness):
        harness.app.head_hook = lambda exchange: exchange.respond(429, b"", b"wait")
        reader, writer = await harness.connect()
        for _ in range(3):
            writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
            head, body = await read_response(reader)
            assert body == b"wait"
            assert b"connection" not in head

    serve(test)


def test_the_app_may_lower_the_limit_of_a_body():
    def lower(exchange):
        exchange.body_max = 4
        exchange.listener = Told()

    async def test(harness):
        harness.app.head_hook = lower
        raw = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        assert (await harness.ask(raw % 5)).startswith(b"HTTP/1.1 413")
        assert harness.app.requests == []
        assert harness.server.counters["body_too_large"] == 1

    serve(test)


def test_a_crash_of_the_app_is_reported_and_answered():
    reports = []

    async def test(harness):
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reports.append(context["exception"])
        )
        answer = await harness.ask(GET % b"/crash")
        assert answer.startswith(b"HTTP/1.1 500")
        assert b"a bug" not in answer
        assert harness.server.counters["internal_error"] == 1

    serve(test)
    assert [str(report) for report in reports] == ["a bug"]


def test_a_slow_reader_is_told_of_and_nothing_grows():
    async def test(harness):
        reader, writer = await harness.connect(limit=1024)
        writer.write(GET % b"/later")
        await asyncio.wait_for(harness.app.arrived.wait(), WAIT_S)
        exchange = harness.app.requests[0]
        told = exchange.listener
        (connection,) = harness.server.connections
        exchange.start(200, b"")
        piece = b"x" * 4_000
        sent = 0
        while not told.slow.is_set():  # writes only while there is room
            exchange.write(piece)
            sent += 1
            await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size() < 65_536 + 2 * len(piece)
        assert harness.server.slow
        async with asyncio.timeout(WAIT_S):
            await reader.readuntil(b"\r\n\r\n")
            while not told.ready.is_set():
                await reader.read(65_536)
        assert not harness.server.slow
        assert told.heard == ["slow", "ready"]
        exchange.end()
        await until(lambda: harness.server.busy == 0)

    serve(test)


def test_a_reader_that_stays_slow_is_let_go():
    async def test(harness):
        reader, writer = await harness.connect(limit=1024)
        writer.write(GET % b"/later")
        await asyncio.wait_for(harness.app.arrived.wait(), WAIT_S)
        exchange = harness.app.requests[0]
        told = exchange.listener
        exchange.start(200, b"")
        while not told.slow.is_set():
            exchange.write(b"x" * 4_000)
            await asyncio.sleep(0)
        now = harness.server.now_ns()
        harness.server.sweep(now + 59 * SECOND)
        assert told.heard == ["slow"]
        harness.server.sweep(now + 61 * SECOND)
        assert told.heard == ["slow", "gone"]
        assert harness.server.counters["slow_reader"] == 1
        await until(lambda: harness.server.open == 0)
        assert reader is not None

    serve(test)


def test_no_request_is_begun_while_answers_are_unread():
    async def test(harness):
        def answer(exchange):
            exchange.respond(200, b"", b"x" * (8 << 20))

        harness.app.head_hook = answer
        reader, writer = await harness.connect(limit=1024)
        writer.write(GET % b"/a" * 3)
        await until(lambda: bool(harness.server.slow))
        assert len(harness.app.heads) == 1
        assert harness.server.busy == 1
        for _ in range(3):
            assert len((await read_response(reader))[1]) == 8 << 20
        assert len(harness.app.heads) == 3

    serve(test)


def test_a_last_answer_that_trickles_out_is_not_cut():
    async def test(harness):
        harness.app.head_hook = lambda exchange: exchange.respond(200, b"", b"x" * (24 << 20))
        reader, writer = await harness.connect(limit=1024)
        writer.write(CLOSING % b"/a")
        await until(lambda: bool(harness.server.closing))
        (connection,) = harness.server.connections
        await asyncio.wait_for(reader.read(4_000_000), WAIT_S)
        unsent = connection._unsent
        await reader.readexactly(4_000_000)
        await until(lambda: connection.transport.get_write_buffer_size() < unsent)
        now = harness.server.now_ns()
        harness.server.sweep(now + 61 * SECOND)  # it moved
        assert harness.server.open == 1
        harness.server.sweep(now + 200 * SECOND)  # it may have moved a last time
        harness.server.sweep(now + 300 * SECOND)
        await until(lambda: harness.server.open == 0)
        assert harness.server.counters["slow_reader"] == 1

    serve(test)


def test_an_idle_connection_is_closed_after_a_while():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(GET % b"/a")
        await read_response(reader)
        now = harness.server.now_ns()
        harness.server.sweep(now + 74 * SECOND)
        assert harness.server.open == 1
        assert len(harness.server.idle) == 1
        harness.server.sweep(now + 76 * SECOND)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""

    serve(test)


def test_a_connection_serves_so_many_requests_and_no_more():
    async def test(harness):
        answer = await harness.ask(GET % b"/a" * 5)
        assert answer.count(b"HTTP/1.1 200") == 3
        assert answer.count(b"connection: close") == 1

    serve(test, config=HttpConfig(requests_per_connection_max=3))


def test_connections_beyond_the_limit_are_told_to_come_back():
    async def test(harness):
        await harness.connect()
        await until(lambda: harness.server.open == 1)
        answer = await harness.ask(GET % b"/a")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in answer
        assert harness.app.heads == []
        assert harness.server.counters["too_many_connections"] == 1

    serve(test, config=HttpConfig(connections_max=1))


def test_draining_closes_idle_connections_and_lets_the_others_finish():
    async def test(harness):
        idle_reader, idle_writer = await harness.connect()
        idle_writer.write(GET % b"/a")
        await read_response(idle_reader)
        reader, writer = await harness.connect()
        writer.write(GET % b"/later")
        await asyncio.wait_for(harness.app.arrived.wait(), WAIT_S)
        fresh_reader, fresh_writer = await harness.connect()
        await until(lambda: harness.server.open == 3)
        harness.server.drain()
        assert await asyncio.wait_for(idle_reader.read(), WAIT_S) == b""
        assert harness.server.busy == 1
        fresh_writer.write(GET % b"/first")
        assert b"connection: close\r\n" in await asyncio.wait_for(fresh_reader.read(), WAIT_S)
        harness.app.requests[1].respond(200, b"", b"done")
        assert b"connection: close\r\n" in await asyncio.wait_for(reader.read(), WAIT_S)
        await harness.connect()
        await until(lambda: harness.server.open == 1)
        harness.server.sweep(harness.server.now_ns() + 2 * SECOND)
        await until(lambda: harness.server.open == 0)

    serve(test)


def test_a_client_that_was_turned_away_and_stays_is_closed_after_a_while():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(b"BAD\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), WAIT_S)).startswith(b"HTTP/1.1 400")
        assert len(harness.server.lingering) == 1
        writer.write(b"more")
        harness.server.sweep(harness.server.now_ns() + int((LINGER_S + 1) * SECOND))
        await until(lambda: harness.server.open == 0)

    serve(test)


PREFLIGHT = (
    b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nOrigin: https://page\r\n"
    b"Access-Control-Request-Method: POST\r\n\r\n"
)


def test_without_origins_options_goes_to_the_app():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(PREFLIGHT)
        head, _ = await read_response(reader)
        assert b"access-control" not in head
        assert len(harness.app.requests) == 1

    serve(test)


def test_a_preflight_is_answered_for_a_listed_origin():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(PREFLIGHT)
        head, _ = await read_response(reader)
        assert head.startswith(b"HTTP/1.1 204 ")
        assert b"access-control-allow-origin: https://page\r\n" in head
        assert b"access-control-allow-headers: *, authorization\r\n" in head
        assert harness.app.heads == []
        writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\nOrigin: https://page\r\n\r\n")
        head, _ = await read_response(reader)
        assert b"access-control-allow-origin: https://page\r\n" in head
        assert b"access-control-expose-headers: x-request-id" in head
        writer.write(PREFLIGHT.replace(b"//page", b"//evil"))
        assert b"access-control" not in (await read_response(reader))[0]
        assert len(harness.app.requests) == 2

    serve(test, cors_origins=("https://page",))


def test_errors_too_carry_the_lines_for_browsers():
    async def test(harness):
        harness.app.head_hook = lambda exchange: setattr(exchange, "body_max", 1)
        answer = await harness.ask(
            b"POST /a HTTP/1.1\r\nHost: a\r\nOrigin: https://x\r\nContent-Length: 2\r\n\r\n"
        )
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413")
        assert b"access-control-allow-origin: *\r\n" in head
        assert json.loads(body)["error"]["code"] == "body_too_large"

    serve(test, cors_origins=("*",))


def test_an_offer_of_http_2_is_ignored_and_the_body_is_not_lost():
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"

    async def test(harness):
        reader, writer = await harness.connect()
        head = b"POST /a HTTP/1.1\r\nHost: a\r\n" + offer
        writer.write(head + b"Content-Length: 4\r\n\r\nab")
        await until(lambda: bool(harness.server.bodies))
        writer.write(b"cd")
        assert (await read_response(reader))[1] == b"abcd"
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\n")
        assert (await read_response(reader))[1] == b"xy"
        writer.write((b"GET /b HTTP/1.1\r\nHost: a\r\n" + offer + b"\r\n") * 2 + GET % b"/c")
        for path in (b"/b", b"/b", b"/c"):
            assert b"x-path: %b\r\n" % path in (await read_response(reader))[0]

    serve(test)


def test_other_forms_of_a_target_are_handled():
    async def test(harness):
        reader, writer = await harness.connect()
        writer.write(GET % b"http://elsewhere:80/a?b=c")
        assert b"x-path: /a\r\n" in (await read_response(reader))[0]
        assert harness.app.requests[0].query == b"b=c"
        writer.write(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read_response(reader))[0].startswith(b"HTTP/1.1 204")
        assert len(harness.app.heads) == 1
        writer.write(b"GET /b HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n")  # no Connection
        assert b"x-path: /b\r\n" in (await read_response(reader))[0]

    serve(test)


def test_it_works_behind_tls(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key)]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))

    async def test(harness):
        reader, writer = await harness.connect(ssl=trusting, server_hostname="localhost")
        body = b"y" * 300_000
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n" + body)
        assert (await read_response(reader))[1] == body
        writer.write(GET % b"/later")
        await asyncio.wait_for(harness.app.arrived.wait(), WAIT_S)
        told = harness.app.requests[1].listener
        writer.close()
        await asyncio.wait_for(told.gone.wait(), WAIT_S)
        reader, writer = await harness.connect(ssl=trusting, server_hostname="localhost")
        writer.write(b"BAD\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        assert answer.startswith(b"HTTP/1.1 400")
        writer.close()
        await until(lambda: harness.server.open == 0)

    serve(test, context=context)
