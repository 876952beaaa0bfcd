"""Runs a stand-in: its data port, and a side port for tests that no gateway uses.

In a process of its own (``serve``) a fault may end the process for good. Inside a test
(``StandIn``) a crash means what a client sees of it: every connection is reset and the port
refuses.

A partition needs a port that does not answer at all. The listening socket outlives the server on
it: we stop accepting, shorten the kernel's queue to one, and fill that one place ourselves; from
then on the kernel drops every SYN, and connects time out as behind a broken switch.
"""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec
import orjson

from holdfast.core.plan.faults import FaultKind
from holdfast.testing.standin.connection import StandInConnection, StandInRequest
from holdfast.testing.standin.engine import StandInEngine
from holdfast.testing.standin.faults import Ailment, FaultError, read_fault
from holdfast.testing.standin.jobs import error_body
from holdfast.testing.standin.options import Options

_BACKLOG: Final = 4_096  # connects at once; a benchmark opens thousands
_FILLERS: Final = 2  # connections that fill a backlog of 0, and one to be sure
_LOSING_ROUNDS: Final = 8
_REPLY_S: Final = 0.01  # the answer of the side port is out before the process dies of the fault


class Side:
    """Answers the requests of the side port."""

    __slots__ = ("_engine", "connections", "reading")

    def __init__(self, engine: StandInEngine) -> None:
        self._engine = engine
        self.connections: set[StandInConnection] = set()
        self.reading = True

    def on_request(self, conn: StandInConnection, asked: StandInRequest) -> None:
        """Set or clear faults, and return statistics."""
        engine = self._engine
        route = (asked.method, asked.path)
        if route == (b"GET", b"/stats"):
            conn.respond(200, orjson.dumps(engine.stats()))
        elif route == (b"GET", b"/fault"):
            conn.respond(200, msgspec.json.encode(engine.fault))
        elif route == (b"DELETE", b"/fault"):
            engine.clear_fault()
            conn.respond(200, b'{"fault":null}')
        elif route == (b"POST", b"/fault"):
            self._strike(conn, asked.body)
        else:
            conn.respond(404, error_body(404, "there is no such path", "NotFoundError"))

    def _strike(self, conn: StandInConnection, body: bytes) -> None:
        try:
            ailment = read_fault(body)
        except FaultError as refused:
            problem = {"message": str(refused), "type": "BadRequestError", "code": 400}
            conn.respond(400, orjson.dumps({"error": problem}))
            return
        if ailment.known is FaultKind.CRASH:
            asyncio.get_running_loop().call_later(_REPLY_S, self._engine.set_fault, ailment)
        else:
            self._engine.set_fault(ailment)
        conn.respond(200, msgspec.json.encode({"fault": ailment}))


class StandIn:
    """One stand-in inside this process."""

    def __init__(
        self, options: Options | None = None, die: Callable[[int], object] | None = None
    ) -> None:
        self.options = options or Options()
        self.port = 0
        self.side_port = 0
        self.exit_status: int | None = None  # it has died, with this status
        self._die = die or self._fall
        self._engine: StandInEngine | None = None
        self._side: Side | None = None
        self._listening: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._side_server: asyncio.AbstractServer | None = None
        self._fillers: list[socket.socket] = []
        self._reopening: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the data port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> StandInEngine:
        """The stand-in's engine."""
        assert self._engine is not None, "the stand-in was not started"
        return self._engine

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, side_port: int | None = 0
    ) -> "StandIn":
        """Begin to listen; ``side_port=None`` leaves the side port out."""
        self._engine = StandInEngine(self.options, self._die, self._unreachable)
        self._listening = socket.create_server((host, port), backlog=_BACKLOG)
        self.port = self._listening.getsockname()[1]
        await self._open()
        if side_port is not None:
            side = self._side = Side(self._engine)
            loop = asyncio.get_running_loop()
            # The side port is on loopback, whatever the data port is on: it can end the process.
            self._side_server = await loop.create_server(
                lambda: StandInConnection(side), "127.0.0.1", side_port
            )
            self.side_port = self._side_server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Close all ports and break off requests under way."""
        if self._engine is None:
            return
        if self._reopening is not None:
            await self._reopening
        self._engine.stop()
        self._shut()
        if self._side_server is not None:
            self._side_server.close()
        left = [*self._engine.connections, *(self._side.connections if self._side else ())]
        for conn in left:
            conn.reset()
        for _ in range(_LOSING_ROUNDS):  # the loop reports each as lost in its next rounds
            await asyncio.sleep(0)

    def set_fault(self, ailment: Ailment) -> None:
        """Activate a fault, in place of the one before."""
        self.engine.set_fault(ailment)

    def clear_fault(self) -> None:
        """End the active fault."""
        self.engine.clear_fault()

    def stats(self) -> dict[str, Any]:
        """The statistics that the side port serves."""
        return self.engine.stats()

    async def _open(self) -> None:
        assert self._listening is not None, "the stand-in was not started"
        engine = self.engine
        self._server = await asyncio.get_running_loop().create_server(
            lambda: StandInConnection(engine), sock=self._listening.dup(), backlog=_BACKLOG
        )

    def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()

    def _fall(self, status: int) -> None:
        """Die as a process does, as far as a client can tell."""
        self.exit_status = status
        self.engine.stop()
        self._shut()
        for conn in list(self.engine.connections):
            conn.reset()

    def _unreachable(self, cut_off: bool) -> None:
        if self._listening is None or self._server is None:
            return
        if cut_off:
            self._server.close()
            self._listening.listen(0)
            for _ in range(_FILLERS):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(self._listening.getsockname())
                self._fillers.append(filler)
            return
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()
        self._listening.listen(_BACKLOG)
        self._reopening = asyncio.get_running_loop().create_task(self._open())


async def serve(
    options: Options,
    *,
    host: str,
    port: int,
    side_port: int | None,
    ailment: Ailment | None = None,
    ready: Callable[[StandIn], None],
) -> None:
    """Run one stand-in until a signal ends it, or a fault ends the process."""
    standin = StandIn(options, die=os._exit)
    await standin.start(host, port, side_port)
    if ailment is not None:
        standin.set_fault(ailment)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    gc.collect()
    gc.freeze()  # what was built so far is never garbage: collections look at requests only
    gc.set_threshold(50_000, 50, 100)
    ready(standin)
    await stopping.wait()
    await standin.stop()


__all__ = ["Side", "StandIn", "serve"]
