import asyncio
import contextlib
import socket

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

from holdfast.control.view import live_view as module
from holdfast.control.view.live_view import LiveView, TooManyError, view_routes
from holdfast.core.diagnose.evidence import About, Incident
from holdfast.core.failure import Cause, Class
from holdfast.core.view.fleet_records import FleetRecords, ModelRecord, ReplicaRecord
from holdfast.core.view.layers import Host, Reading


class Inputs:
    """A fleet that a test moves."""

    def __init__(self):
        self.rows = (ReplicaRecord("m-1", "m", "ready", endpoint="http://a:1"),)
        self.told = [Reading("aws", "aws", 5.0, hosts=(Host("h"),))]
        self.incidents = []
        self.asked = 0
        self.broken = False

    def records(self):
        self.asked += 1
        if self.broken:
            raise RuntimeError("nobody is at home")
        return FleetRecords(self.rows, (ModelRecord("m", queued=2),), {"gateways": 1})

    def readings(self):
        return list(self.told)

    def unclosed(self):
        return self.incidents

    def took_s(self):
        return 0.25

    def names(self):
        return {"http://a:1": "m-1"}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def seen(inputs, **more):
    clock = Clock()
    return LiveView(inputs, clock=clock, wall=lambda: 1e9, core=lambda: 5, **more), clock


def test_a_picture_is_made_once_a_second_at_most():
    inputs = Inputs()
    view, clock = seen(inputs)
    assert view.snapshot().replicas[0].id == "m-1"
    view.snapshot()
    clock.now += 0.9
    view.body()
    assert inputs.asked == 1
    clock.now += 0.2
    view.snapshot()
    assert inputs.asked == 2
    assert view.metrics()[0]["views_joined_total"] == 2


def test_the_version_moves_with_what_went_in_and_not_with_the_clock():
    inputs = Inputs()
    view, clock = seen(inputs)
    versions = [view.snapshot().version]

    def again():
        clock.now += 1
        versions.append(view.snapshot().version)

    again()
    inputs.rows = (ReplicaRecord("m-1", "m", "suspect"),)
    again()
    inputs.told = [Reading("aws", "aws", 6.0)]
    again()
    inputs.incidents = [Incident("inc-1", Cause.HUNG, Class.RUNTIME, About("m-1", "m"), 1, 0.9)]
    again()
    inputs.incidents[0].action = "restart"
    again()
    again()
    assert versions == [1, 1, 2, 3, 4, 5, 5]


def test_the_view_is_all_rows_as_json():
    view, _ = seen(Inputs())
    app = Starlette(routes=view_routes(lambda: view))
    with TestClient(app) as client:
        answer = client.get("/view")
    assert answer.headers["cache-control"] == "no-store"
    told = answer.json()
    assert told["version"] == 1
    assert told["took_s"] == 0.25
    assert told["totals"] == {"gateways": 1}
    assert [row["name"] for row in told["groups"]] == ["h"]
    assert told["queues"][0]["visible"] == 2
    assert set(told) >= {"sources", "hosts", "models", "disks", "unmet", "incidents", "notes"}


# --- the stream -----------------------------------------------------------------------------------


def data_of(event):
    head, _, rest = event.partition(b"data: ")
    assert head.startswith(b"event: view\nid: ")
    return orjson.loads(rest)


def test_a_listener_gets_the_picture_at_once_and_then_what_changes():
    async def main():
        inputs = Inputs()
        view = LiveView(inputs, period_s=0.01)
        events = view.follow()
        async with asyncio.timeout(20):
            first = data_of(await anext(events))
            inputs.rows = (ReplicaRecord("m-1", "m", "dead"),)
            second = data_of(await anext(events))
        assert [one["replicas"][0]["state"] for one in (first, second)] == ["ready", "dead"]
        assert second["version"] == first["version"] + 1
        await events.aclose()
        assert view.listeners == 0
        await view.close()

    asyncio.run(main())


def test_whoever_asks_for_changes_gets_the_whole_first_and_where_one_was_missed(world):
    async def main():
        inputs = Inputs()
        view = LiveView(inputs, period_s=0.01)
        events = view.follow(only_changes=True)
        beside = view.follow()

        async def moved(state):
            inputs.rows = (ReplicaRecord("m-1", "m", state, endpoint="http://a:1"),)
            told = view._told.version
            await world.until(lambda: view._told.version != told)

        async with asyncio.timeout(20):
            first = data_of(await anext(events))
            await anext(beside)
            await moved("suspect")
            kind, _, rest = (await anext(events)).partition(b"\nid: ")
            told = orjson.loads(rest.partition(b"data: ")[2])
            whole = data_of(await anext(beside))
            await moved("quarantined")  # which this one does not read in time
            await moved("dead")
            last = data_of(await anext(events))
        assert first["replicas"][0]["state"] == "ready"
        assert kind == b"event: changes"
        assert told["since"] == first["version"]
        assert told["rows"]["replicas"]["0"]["state"] == "suspect"
        assert whole["replicas"][0]["state"] == "suspect"
        assert last["replicas"][0]["state"] == "dead"
        await events.aclose()
        await beside.aclose()
        await view.close()

    asyncio.run(main())


def test_a_wish_that_the_stream_does_not_know_is_refused():
    view, _ = seen(Inputs())
    app = Starlette(routes=view_routes(lambda: view))
    with TestClient(app) as client:
        answer = client.get("/view/stream?only=figures")
    assert answer.status_code == 400
    assert answer.json()["error"] == "only: is 'figures'; leave it out, or say changes"


def test_nobody_is_asked_while_nobody_listens(world):
    async def main():
        inputs = Inputs()
        view = LiveView(inputs, period_s=0.01)
        events = view.follow()
        await anext(events)
        await events.aclose()
        await world.until(view._pulse.done)
        asked = inputs.asked
        again = view.follow()
        await anext(again)
        assert inputs.asked >= asked
        await again.aclose()
        await view.close()

    asyncio.run(main())


def test_while_nothing_changes_a_comment_says_that_we_live(monkeypatch):
    monkeypatch.setattr(module, "COMMENT_S", 0.02)

    async def main():
        view = LiveView(Inputs(), period_s=0.01)
        events = view.follow()
        async with asyncio.timeout(20):
            await anext(events)
            assert (await anext(events)).startswith(b":")
        await events.aclose()
        await view.close()

    asyncio.run(main())


def test_a_picture_that_cannot_be_made_is_counted_and_the_next_is_told(world):
    async def main():
        inputs = Inputs()
        view = LiveView(inputs, period_s=0.01)
        events = view.follow()
        first = data_of(await anext(events))
        inputs.broken = True
        await world.until(lambda: view.errors > 1)
        inputs.broken = False
        inputs.rows = ()
        async with asyncio.timeout(20):
            second = data_of(await anext(events))
        assert second["version"] > first["version"]
        assert view.metrics()[0]["views_failed_total"] == view.errors
        await events.aclose()
        await view.close()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def served(view):
    """The routes on a real socket: readers that do not read exist only there."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(16)
    app = Starlette(routes=view_routes(lambda: view))
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        await view.close()
        sock.close()


async def ask(port, path="/view/stream"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    return reader, writer


def test_listeners_over_http_come_and_go_and_are_bounded(world, monkeypatch):
    monkeypatch.setattr(module, "LISTENERS_MAX", 2)

    async def main():
        view = LiveView(Inputs(), period_s=0.02)
        async with served(view) as port, asyncio.timeout(30):
            writers = []
            for _ in range(2):
                reader, writer = await ask(port)
                writers.append(writer)
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"text/event-stream" in head
                await reader.readuntil(b"event: view")
            reader, writer = await ask(port)
            assert b"503" in await reader.readline()
            writers.append(writer)
            assert view.refused == 1
            writers[0].close()
            await world.until(lambda: view.listeners == 1)
            reader, writer = await ask(port)
            writers.append(writer)
            await reader.readuntil(b"event: view")
            for writer in writers:
                writer.close()
            await world.until(lambda: view.listeners == 0)

    asyncio.run(main())


def test_a_reader_that_does_not_read_is_dropped(world, monkeypatch):
    monkeypatch.setattr(module, "SLOW_S", 0.1)

    async def main():
        inputs = Inputs()
        inputs.rows = tuple(ReplicaRecord(f"m-{n}", "m", "ready") for n in range(3_000))
        view = LiveView(inputs, period_s=0.02)

        async def moving():
            number = 0
            while True:
                number += 1
                inputs.told = [Reading("aws", "aws", float(number))]
                await asyncio.sleep(0.01)

        move = asyncio.create_task(moving())
        async with served(view) as port, asyncio.timeout(60):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_sendall(sock, b"GET /view/stream HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            await world.until(lambda: view.dropped == 1, 45)
            await world.until(lambda: view.listeners == 0)
            sock.close()
        move.cancel()
        await asyncio.gather(move, return_exceptions=True)

    asyncio.run(main())


def test_too_many_says_how_many():
    assert str(module.LISTENERS_MAX) in str(TooManyError())
