"""Bounds on what clients may hold: newcomers, places, incomplete bodies, unread answers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import uvloop

from holdfast.config.gateway import HttpConfig
from holdfast.core.intake.byte_budget import ByteBudget, ByteBudgetConfig
from holdfast.core.intake.descriptors import OwnResource, descriptors_needed
from holdfast.gateway.http.hot_path import FAST, PLAIN
from holdfast.gateway.http.server import Server

WAIT_S = 20.0
SECOND = 10**9
HALF = b"POST / HTTP/1.1\r\nHost: a\r\nX-Half: "
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
WHOLE = POST + b"Content-Length: 2\r\n\r\nok"
CONFIG = HttpConfig(newcomers_max=0, newcomers_per_address_max=0)
BUDGET = ByteBudgetConfig(bytes_max=10_000, receiving_bytes_max=1_000, requests_max=10)


class HoldingApp:
    """Answers at once, or when it is told to; counts each request in its tenant's account."""

    def __init__(self, budget):
        self.budget = budget
        self.waiting = []
        self.answer = b"ok"

    def on_head(self, exchange):
        exchange.account = self.budget.account(exchange.headers.get(b"tenant", b"a").decode())

    def on_request(self, exchange):
        if exchange.path == b"/later":
            self.waiting.append(exchange)
        else:
            exchange.respond(200, b"", self.answer)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.now = 1_000 * SECOND

    def __call__(self):
        return self.now


class Client:
    """One connection of a client."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, data):
        self.writer.write(data)

    async def answer(self):
        """Status and code of all that comes until the server closes; (0, "") for nothing."""
        async with asyncio.timeout(WAIT_S):
            try:
                raw = await self.reader.read()
            except ConnectionError:
                return 0, ""
        head, _, text = raw.partition(b"\r\n\r\n")
        return (int(head[9:12]), json.loads(text)["error"]["code"]) if raw else (0, "")

    async def served(self):
        """Whether a whole request is answered, on this connection."""
        self.send(WHOLE)
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            await self.reader.readexactly(2)
        return head.startswith(b"HTTP/1.1 200")


class Stage:
    """A server with a clock of its own, and its clients."""

    def __init__(self, server, clock, port):
        self.server, self.clock, self.port = server, clock, port
        self.clients = []

    async def come(self, sends=b"", number=1):
        """So many clients that connect and send this, each heard before the next comes."""
        came = []
        for _ in range(number):
            before = self._seen()
            client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
            came.append(client)
            await self.until(
                lambda before=before: self.server.open != before or self.server.counters
            )
            client.send(sends)
        self.clients += came
        await asyncio.sleep(0.02)
        return came if number > 1 else came[0]

    def _seen(self):
        return self.server.open, sum(self.server.counters.values())

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not true():  # noqa: ASYNC110 - conditions of the server's
                await asyncio.sleep(0.002)

    def wait(self, seconds):
        self.clock.now += int(seconds * SECOND)


def play(
    test: Callable[[Stage], Awaitable[None]],
    config: HttpConfig = CONFIG,
    *,
    tenants: int = 1,
    descriptors: int = 0,
    hot_path=FAST,
) -> None:
    async def main():
        loop = asyncio.get_running_loop()
        clock, budget = Clock(), ByteBudget(BUDGET, tenants)
        server = Server(
            HoldingApp(budget),
            config,
            loop=loop,
            now_ns=clock,
            budget=budget,
            descriptors=descriptors,
            hot_path=hot_path,
        )
        listening = await loop.create_server(server.protocol, "127.0.0.1", 0)
        stage = Stage(server, clock, listening.sockets[0].getsockname()[1])
        try:
            await test(stage)
        finally:
            listening.close()
            for client in stage.clients:
                client.writer.transport.abort()
            server.close()
            await stage.until(lambda: server.open == 0)
            assert (budget.received, budget.held, budget.requests) == (0, 0, 0), "all is given back"
            assert len(server.newcomers) == len(server.stalls) == 0

    uvloop.run(main())


# --- places ---------------------------------------------------------------------------------------


def test_the_oldest_half_sent_head_goes_for_a_new_client():
    async def test(stage):
        first = await stage.come(HALF)
        stage.wait(0.6)
        await stage.come(HALF)
        stage.wait(0.6)
        assert await (await stage.come()).served()
        assert await first.answer() == (503, "evicted")
        assert stage.server.open == 2

    play(test, replace(CONFIG, connections_max=2))


def test_a_client_that_was_served_stays_where_newcomers_wait():
    async def test(stage):
        kept = await stage.come()
        assert await kept.served()
        half = await stage.come(HALF)
        stage.wait(2)
        assert await (await stage.come()).served()
        assert await half.answer() == (503, "evicted")
        assert await kept.served()

    play(test, replace(CONFIG, connections_max=2))


@pytest.mark.parametrize(
    "stands",
    [
        WHOLE + HALF,  # a second head
        POST + b"Content-Length: 9\r\n\r\nhalf",
        WHOLE,  # idle
    ],
)
def test_whoever_stands_still_goes_where_there_is_no_newcomer(stands):
    async def test(stage):
        await stage.come(stands)
        stage.wait(2)
        assert await (await stage.come()).served()
        assert stage.server.open == 1
        assert stage.server.counters["evicted"] == 1

    play(test, replace(CONFIG, connections_max=1))


def test_nobody_goes_who_is_being_served_or_came_just_now():
    async def test(stage):
        await stage.come(WHOLE.replace(b"POST /", b"POST /later"))
        await stage.until(lambda: stage.server.app.waiting)
        stage.wait(5)
        assert await (await stage.come()).answer() == (503, "too_many_connections")
        stage.server.app.waiting[0].respond(200, b"", b"ok")
        stage.wait(0.5)
        assert await (await stage.come()).answer() == (503, "too_many_connections")
        stage.wait(1)
        assert await (await stage.come()).served()

    play(test, replace(CONFIG, connections_max=1))


def test_newcomers_of_one_address_have_a_bound_of_their_own():
    async def test(stage):
        halves = await stage.come(HALF, 3)
        assert stage.server.open == 3, "all came within a moment"
        stage.wait(2)
        await stage.come(HALF)
        assert await halves[0].answer() == (503, "evicted")
        kept = await stage.come()
        assert await halves[1].answer() == (503, "evicted")
        assert await kept.served()
        assert len(stage.server.newcomers) == 2

    play(test, replace(CONFIG, newcomers_per_address_max=2))


def test_connections_of_one_address_have_a_bound_where_one_is_set():
    async def test(stage):
        later = WHOLE.replace(b"POST /", b"POST /later")
        first, second = await stage.come(later), await stage.come(later)
        refused = await stage.come()
        assert await refused.answer() == (429, "address_connections_exceeded")
        refused.writer.close()
        assert stage.server.counters["address_connections_exceeded"] == 1
        first.writer.close()
        await stage.until(lambda: stage.server.open <= 1)
        assert await (await stage.come()).served()
        second.writer.close()

    play(test, replace(CONFIG, connections_per_address_max=2))


def test_few_descriptors_are_the_bound_and_what_is_refused_for_them_is_counted():
    async def test(stage):
        assert stage.server.scarce
        assert stage.server.connections_max == 2
        for _ in range(2):
            await stage.come(WHOLE.replace(b"POST /", b"POST /later"))
        assert await (await stage.come()).answer() == (503, "too_many_connections")
        assert stage.server.shortages.take_new() == {OwnResource.DESCRIPTORS: 1}
        assert stage.server.shortages.take_new() == {}
        assert stage.server.has_place(0)
        assert not stage.server.has_place(5)

    play(test, descriptors=descriptors_needed(2))


# --- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hot_path", [FAST, PLAIN])
def test_a_body_that_has_no_room_is_refused_before_it_is_read(hot_path):
    async def test(stage):
        held = await stage.come(POST + b"Content-Length: 900\r\n\r\n" + b"x" * 600)
        await stage.until(lambda: stage.server.budget.received == 600)
        late = await stage.come(POST + b"Content-Length: 500\r\n\r\n")
        assert await late.answer() == (503, "too_many_bytes")
        small = await stage.come()
        assert await small.served(), "what fits is served"
        held.send(b"x" * 300)
        await stage.until(lambda: stage.server.budget.received == 0)

    play(test, hot_path=hot_path)


def test_a_body_that_stands_still_goes_for_one_that_comes():
    async def test(stage):
        held = await stage.come(POST + b"Content-Length: 900\r\n\r\n" + b"x" * 600)
        await stage.until(lambda: stage.server.budget.received == 600)
        stage.wait(1.5)
        await stage.come(POST + b"Content-Length: 500\r\n\r\n" + b"x" * 400)
        assert await held.answer() == (503, "too_many_bytes")
        await stage.until(lambda: stage.server.budget.received == 400)

    play(test)


@pytest.mark.parametrize("hot_path", [FAST, PLAIN])
def test_a_chunked_body_is_refused_when_it_has_grown_too_large(hot_path):
    async def test(stage):
        client = await stage.come(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(4):
            client.send(b"12c\r\n" + b"x" * 300 + b"\r\n")
            await asyncio.sleep(0.01)
        assert await client.answer() == (503, "too_many_bytes")

    play(test, hot_path=hot_path)


def test_promised_bytes_take_no_room_from_others():
    async def test(stage):
        await stage.come(POST + b"Content-Length: 1000\r\n\r\n", 5)
        assert stage.server.budget.received == 0
        assert await (await stage.come()).served()

    play(test)


def test_a_tenant_that_holds_its_share_is_told_so_and_others_are_served():
    async def test(stage):
        later = WHOLE.replace(b"POST /", b"POST /later")
        await stage.come(later, 5)
        await stage.until(lambda: len(stage.server.app.waiting) == 5)
        assert await (await stage.come(later)).answer() == (429, "tenant_share_exceeded")
        other = later.replace(b"Host: a\r\n", b"Host: a\r\ntenant: b\r\n")
        await stage.come(other)
        await stage.until(lambda: len(stage.server.app.waiting) == 6)
        stage.server.app.waiting[0].respond(200, b"", b"ok")
        await stage.come(later)
        await stage.until(lambda: len(stage.server.app.waiting) == 7)

    play(test, tenants=2)


def test_a_body_of_a_tenant_is_refused_by_its_stated_length():
    async def test(stage):
        stage.server.budget.account("a").begin(4_990)
        late = await stage.come(POST + b"Content-Length: 20\r\n\r\n")
        assert await late.answer() == (429, "tenant_share_exceeded")
        stage.server.budget.account("a").end(4_990)

    play(test, tenants=2)


def test_answers_that_nobody_reads_count_and_the_oldest_goes():
    async def test(stage):
        stage.server.app.answer = b"x" * (8 << 20)  # more than kernels hold
        slow = await stage.come(WHOLE)
        await stage.until(lambda: stage.server.slow)
        assert stage.server.budget.held > BUDGET.bytes_max, "nobody was slow for long enough to go"
        stage.wait(2)
        stage.server.sweep(stage.clock.now)
        assert stage.server.counters["slow_reader"] == 1
        assert stage.server.budget.held == 0
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await slow.reader.readexactly(8 << 20)

    play(test)
