"""A whole gateway in the test's own process: real sockets, real stand-ins, no control.

``live(...)`` starts stand-in engines and a gateway in front of them and hands both to an async
function. The view is given once; whoever needs control tests the processes (tests/e2e).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from time import monotonic_ns

import orjson
import pytest
import uvloop

from holdfast.config.fleet_file import FleetFile
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.types import State
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.server import Server
from holdfast.gateway.request.request_driver import RequestDriver
from holdfast.gateway.request.settings import settings_of, targets_of
from holdfast.testing.standin import Options, StandIn, fault

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

QUICK = Options(ttft_ms=2.0, tpot_ms=1.0, tokens=12)


class Live:
    """One gateway and its engines."""

    def __init__(self, engines: list[StandIn], file: FleetFile, views: tuple[ReplicaView, ...]):
        self.engines = engines
        self.file = file
        self.views = views
        self.news: list[object] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.turn = LoopTurn(loop)
        self.targets = targets_of(self.file, {}, loop, monotonic_ns, turn=self.turn)
        self.driver = RequestDriver(
            settings_of(self.file),
            self.targets,
            name="req_t",
            loop=loop,
            now_ns=monotonic_ns,
            streams=Random,
            news=self.news.append,
        )
        self.server = Server(
            self.driver,
            self.file.gateway.http,
            loop=loop,
            turn=self.turn,
            budget=self.driver.budget,
        )
        self.driver.view(FleetView(1, self.views))
        self.listening = await loop.create_server(self.server.protocol, "127.0.0.1", 0)
        self.port = self.listening.sockets[0].getsockname()[1]
        self.ticking = loop.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.driver.tick()
            now = monotonic_ns()
            self.server.sweep(now)
            for target in self.targets.values():
                target.upstream.sweep(now)

    async def close(self) -> None:
        self.ticking.cancel()
        with suppress(asyncio.CancelledError):
            await self.ticking
        self.listening.close()
        self.server.close()
        for target in self.targets.values():
            target.upstream.abandon()
            target.upstream.close()
        for engine in self.engines:
            await engine.stop()
        await asyncio.sleep(0)

    def ail(self, index: int, kind: str, **details: object) -> None:
        """Break one engine."""
        self.engines[index].engine.set_fault(fault(kind, **details))

    def reload(self, file: FleetFile, version: int, **changed: object) -> None:
        """What a gateway process does with a new config and a new view."""
        loop = asyncio.get_running_loop()
        self.targets = targets_of(file, self.targets, loop, self.driver.now_ns, turn=self.turn)
        self.driver.reconfigure(replace(settings_of(file), **changed), self.targets)
        views = tuple(ReplicaView(d.replica, State.READY, 1.0) for d in file.replicas())
        self.driver.view(FleetView(version, views))

    async def put_behind(
        self, handler: Handler, name: str, engine: str, **changed: object
    ) -> asyncio.Server:
        """Let this answer for the only replica of a model."""
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        models = [{"name": name, "engine": engine, "endpoints": [url]}]
        self.reload(FleetFile.from_json(orjson.dumps({"models": models})), 2, **changed)
        return server

    def engine_of(self, replica_id: str) -> StandIn:
        """The engine behind a replica id such as m-2."""
        return self.engines[int(replica_id.rpartition("-")[2]) - 1]

    async def until(self, true: Callable[[], bool], within_s: float = 10.0) -> None:
        """Wait for a condition of the gateway."""
        async with asyncio.timeout(within_s):
            while not true():  # noqa: ASYNC110 - conditions of other people's objects
                await asyncio.sleep(0.005)


def document(engines: list[StandIn], extra: dict) -> FleetFile:
    base = {
        "gateway": {"listen": "127.0.0.1:0"},
        "admin": {"listen": "127.0.0.1:0"},
        "models": [
            {"name": "m", "engine": "vllm", "endpoints": [engine.url for engine in engines]}
        ],
    }
    model = extra.pop("model", {})
    base["models"][0] |= model
    return FleetFile.from_json(orjson.dumps(base | extra))


@pytest.fixture
def live():
    """Run a test's body against a live gateway."""

    def run(
        body: Callable[[Live], Awaitable[None]],
        replicas: int = 2,
        options: Options = QUICK,
        **extra: object,
    ) -> Live:
        async def main() -> Live:
            engines = [await StandIn(options).start() for _ in range(replicas)]
            file = document(engines, dict(extra))
            views = tuple(ReplicaView(d.replica, State.READY, 1.0) for d in file.replicas())
            gateway = Live(engines, file, views)
            await gateway.open()
            try:
                async with asyncio.timeout(30):
                    await body(gateway)
            finally:
                await gateway.close()
            return gateway

        return uvloop.run(main())

    return run
