"""Slow and silent connections of the admin port, over real sockets with a clock that is moved."""

import asyncio

import uvicorn
import uvloop

from holdfast.acceptor import Acceptor
from holdfast.config.addresses import Address
from holdfast.config.admin import AdminConnectionConfig
from holdfast.control.admin.connections import AdminConnection, AdminConnections
from holdfast.core.intake.descriptors import descriptors_needed
from holdfast.core.types import SECOND
from holdfast.wire.sockets import open_listeners

WAIT_S = 20.0
HALF = b"GET /livez HTTP/1.1\r\nHost: a\r\nX-Half: "
GET = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /livez HTTP/1.1\r\nHost: a\r\n"
LARGE = 16 << 20


async def app(scope, receive, send):
    """Answers when the request is complete; /large with more than kernels hold."""
    while (await receive()).get("more_body"):
        pass
    body = b"x" * LARGE if scope["path"] == "/large" else b"alive"
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class Stage:
    """The admin port with a clock of its own."""

    def __init__(self, bounds, port):
        self.bounds, self.port = bounds, port
        self.writers = []

    async def come(self, sends=b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(sends)
        return reader, writer

    async def alive(self):
        """Whether a normal client is served."""
        async with asyncio.timeout(WAIT_S):
            reader, _ = await self.come(GET.replace(b"Host: a", b"Host: a\r\nConnection: close"))
            return (await reader.read()).endswith(b"alive")

    async def until(self, true):
        async with asyncio.timeout(WAIT_S):
            while not true():  # noqa: ASYNC110 - conditions of the port's
                await asyncio.sleep(0.002)

    def wait(self, seconds):
        self.bounds.now_ns.now += int(seconds * SECOND)


class Clock:
    """A clock that stands until it is moved."""

    now = 1_000 * SECOND

    def __call__(self):
        return self.now


def play(test, config=AdminConnectionConfig(), descriptors=0):  # noqa: B008 - frozen
    async def main():
        loop = asyncio.get_running_loop()
        served = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        served.load()
        state = uvicorn.Server(served).server_state
        bounds = AdminConnections(config, descriptors=descriptors, now_ns=Clock())
        (listener,) = open_listeners(Address("127.0.0.1", 0), 1, takeover=False)
        port = listener.getsockname()[1]

        def connection():
            return AdminConnection(
                bounds, config=served, server_state=state, app_state={}, _loop=loop
            )

        acceptor = Acceptor(
            listener, connection, loop, spare=bounds.has_place, relieve=bounds.make_place
        )
        stage = Stage(bounds, port)
        try:
            await test(stage)
        finally:
            acceptor.close()
            for writer in stage.writers:
                writer.transport.abort()
            await stage.until(lambda: not bounds.connections)
            await acceptor.wait_closed()
            tables = (bounds.silent, bounds.heads, bounds.bodies, bounds.slow)
            assert not any(tables), "nobody is remembered"
            assert len(bounds.newcomers) == 0

    uvloop.run(main())


async def said(reader):
    """What came until the end, or nothing where the connection was reset."""
    async with asyncio.timeout(WAIT_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


def test_half_sent_heads_go_for_a_normal_client_the_oldest_first():
    async def test(stage):
        halves = [await stage.come(HALF) for _ in range(4)]
        await stage.until(lambda: len(stage.bounds.heads) == 4)
        stage.wait(1)
        assert await stage.alive()
        assert (await said(halves[0][0])).startswith(b"HTTP/1.1 408")
        assert stage.bounds.closed["evicted"] == 1
        assert len(stage.bounds.heads) == 3

    play(test, AdminConnectionConfig(connections_max=4))


def test_newcomers_have_a_bound_apart_from_those_that_work():
    async def test(stage):
        kept, writer = await stage.come(GET)
        async with asyncio.timeout(WAIT_S):
            await kept.readuntil(b"alive")
        for number in range(6):
            await stage.come(HALF)
            await stage.until(lambda n=number: len(stage.bounds.heads) >= min(n + 1, 3))
            stage.wait(1)
        await stage.until(lambda: stage.bounds.closed["evicted"] == 3)
        writer.write(GET)
        async with asyncio.timeout(WAIT_S):
            await kept.readuntil(b"alive")

    play(test, AdminConnectionConfig(newcomers_max=3))


def test_a_client_waits_where_nobody_has_stood_still_for_long():
    async def test(stage):
        await stage.come(HALF)
        await stage.until(lambda: stage.bounds.heads)
        asked = asyncio.create_task(stage.alive())
        await asyncio.sleep(0.1)
        assert not asked.done()
        stage.wait(1)
        assert await asked

    play(test, AdminConnectionConfig(connections_max=1))


def test_silent_clients_and_half_sent_heads_have_a_time_limit():
    async def test(stage):
        silent, _ = await stage.come()
        half, _ = await stage.come(HALF)
        again, _ = await stage.come(GET + HALF)
        await stage.until(lambda: len(stage.bounds.heads) == 2 and len(stage.bounds.silent) == 1)
        stage.wait(9)
        stage.bounds.sweep()
        assert len(stage.bounds.connections) == 3
        stage.wait(2)
        stage.bounds.sweep()
        assert (await said(silent)).startswith(b"HTTP/1.1 408")
        assert (await said(half)).startswith(b"HTTP/1.1 408")
        assert (await said(again)).count(b"HTTP/1.1 ") == 2
        assert stage.bounds.closed["head"] == 3
        assert stage.bounds.counters()['admin_connections_closed_total{reason="head"}'] == 3

    play(test)


def test_a_body_that_stands_still_has_a_time_limit_and_one_that_moves_has_none():
    async def test(stage):
        reader, writer = await stage.come(POST + b"Content-Length: 9\r\n\r\nhalf")
        await stage.until(lambda: stage.bounds.bodies)
        since = stage.bounds.bodies.copy()
        stage.wait(9)
        writer.write(b"x")
        await stage.until(lambda: stage.bounds.bodies != since)
        stage.wait(9)
        stage.bounds.sweep()
        assert stage.bounds.bodies
        stage.wait(2)
        stage.bounds.sweep()
        await said(reader)
        assert stage.bounds.closed["body"] == 1

    play(test)


def test_a_client_that_does_not_read_is_let_go_unless_it_reads_on():
    async def test(stage):
        reader, _ = await stage.come(GET.replace(b"livez", b"large"))
        await stage.until(lambda: stage.bounds.slow)
        async with asyncio.timeout(WAIT_S):
            await reader.readexactly(4 << 20)
        stage.wait(61)
        stage.bounds.sweep()
        assert stage.bounds.closed["slow_reader"] == 0, "it reads, though slowly"
        stage.wait(61)
        await asyncio.sleep(0.05)
        stage.bounds.sweep()
        stage.wait(61)
        stage.bounds.sweep()
        assert stage.bounds.closed["slow_reader"] == 1

    play(test)


def test_a_head_without_end_is_refused():
    async def test(stage):
        reader, writer = await stage.come(HALF)
        writer.write(b"x" * 100_000)
        assert (await said(reader))[:12] in {b"HTTP/1.1 431", b""}
        assert stage.bounds.closed["head_size"] == 1

    play(test)


def test_few_descriptors_are_the_bound():
    bounds = AdminConnections(AdminConnectionConfig(), descriptors=descriptors_needed(40))
    assert bounds._most == 20
    bounds = AdminConnections(AdminConnectionConfig(), descriptors=30)
    assert bounds._most == 8
