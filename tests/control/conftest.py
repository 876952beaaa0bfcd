"""Real sockets on loopback: engines that answer what they are told, gateways that speak frames.

Canaries want real answers, so most tests ask stand-ins; ``Engine`` is for answers that no engine
gives. Launched replicas are processes on paper with a stand-in at their port.
"""

import asyncio
import contextlib
import socket
from pathlib import Path
from random import Random

import pytest

from holdfast.config.fleet_file import Deployed
from holdfast.control.fleet.canaries import Canaries
from holdfast.core.canary import CanaryConfig
from holdfast.core.health.answers.answer_book import AnswerBook
from holdfast.core.types import Replica
from holdfast.frames import FrameReader, Hello, encode
from holdfast.storage.sqlite import SqliteStore
from holdfast.testing.launcher import FakeHost, FakeLauncher
from holdfast.testing.standin import Options, StandIn, fault


async def until(condition, timeout_s=30.0):
    """Wait for something to become true; fails loudly when it does not."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 conditions of other processes have no events
            await asyncio.sleep(0.005)


ACCEPT_TURNS = 5  # of the loop, from a connection that was accepted to its handler: one to spare


class Engine:
    """A server whose answers a test decides; counts who asked."""

    def __init__(self):
        self.answers = {}
        self.default = (200, "", b"{}")
        self.asked = []
        self.heads = []
        self.silent = False
        self._server = None
        self._writers = set()
        self.url = ""

    async def start(self, port=0):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def _accept(self, reader, writer):
        self._writers.add(writer)  # before its task first runs: ``stop`` may come in between
        return self._serve(reader, writer)

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            self.asked.append(path)
            self.heads.append(head)
            if self.silent:
                await reader.read()
            else:
                answer = self.answers.get(path, self.default)
                if isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    status, headers, body = answer
                    start = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
                    writer.write(start.encode() + body)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)

    async def stop(self):
        if self._server is not None:
            self._server.close()
            for _ in range(ACCEPT_TURNS):
                await asyncio.sleep(0)
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None


class FakeGateway(asyncio.Protocol):
    """A gateway as control sees it: says Hello, keeps every frame."""

    def __init__(self, gateway_id="gateway-0", pid=1, **hello):
        self._hello = Hello(gateway_id, pid, **hello)
        self._reader = FrameReader()
        self.frames = []
        self.lost = False
        self.on_frame = None

    def connection_made(self, transport):
        self.transport = transport
        transport.write(encode(self._hello))

    def data_received(self, data):
        for frame in self._reader.feed(data):
            self.frames.append(frame)
            if self.on_frame is not None:
                self.on_frame(self, frame)

    def connection_lost(self, exc):
        self.lost = True

    def send(self, frame):
        self.transport.write(encode(frame))

    def last(self, kind):
        found = [frame for frame in self.frames if isinstance(frame, kind)]
        return found[-1] if found else None

    async def connect(self, path: Path):
        await asyncio.get_running_loop().create_unix_connection(lambda: self, str(path))
        return self

    def close(self):
        self.transport.close()


def free_port():
    """A port that nobody listens on, of those that no outgoing connection is given meanwhile."""
    while True:
        port = Random().randrange(20_000, 32_000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def deployed(url, replica_id="m-1", engine="vllm", canary=None, **more):
    canary = canary or CanaryConfig()
    return Deployed(Replica(replica_id, "m", **more), url, engine, "m", None, canary=canary)


class Resting(StandIn):
    """Closes what it has accepted only just now, too."""

    async def stop(self):
        accepting = [t for t in asyncio.all_tasks() if "accept_conn" in t.get_coro().__qualname__]
        await asyncio.gather(*accepting, return_exceptions=True)
        await super().stop()


async def standin(port=0, host="127.0.0.1", **options):
    """A healthy engine that answers at once."""
    options = Options(**{"ttft_ms": 0.0, "tpot_ms": 0.0, **options})
    return await Resting(options).start(host, port, side_port=None)


def canaries(book=None, environment=None, learned=lambda: None):
    return Canaries(environment or {}, book or AnswerBook(), learned)


class Paper(FakeLauncher):
    """Processes on paper, and, where ``serving``, a stand-in at each one's port."""

    def __init__(self, host=None, *, serving=True):
        super().__init__(host or FakeHost())
        self.serving = serving
        self.standins = {}
        self.orders = []  # everything that was ever started
        self.options = {}  # of the next stand-ins
        self.ailments = {}  # by revision: what is wrong with its stand-ins from the start
        self.doomed = set()  # revisions whose processes end as soon as they have begun
        self.graces = []
        self._fallen = []

    async def start(self, order):
        pid = await super().start(order)
        self.orders.append(order)
        if any(f"revision={revision}" in order.command for revision in self.doomed):
            asyncio.get_running_loop().call_soon(lambda: self.host.end(order.replica_id, code=1))
        elif self.serving:
            await self.serve(order.replica_id)
        return pid

    async def serve(self, replica_id):
        order = self.host.processes[replica_id].order
        found = self.standins[replica_id] = await standin(order.port, **self.options)
        for revision, ailment in self.ailments.items():
            if f"revision={revision}" in order.command:
                found.set_fault(ailment)

    async def stop(self, replica_id, grace_s):
        self.graces.append(grace_s)
        self.silence(replica_id)
        return await super().stop(replica_id, grace_s)

    def end(self, replica_id, **how):
        """The process ends, and its port with it."""
        self.silence(replica_id)
        self.host.end(replica_id, **how)

    def silence(self, replica_id):
        found = self.standins.pop(replica_id, None)
        if found is not None:
            found.set_fault(fault("crash"))
            self._fallen.append(found)

    async def rest(self):
        """Close every socket."""
        for name in list(self.standins):
            self.silence(name)
        for fallen in self._fallen:
            await fallen.stop()
        self._fallen.clear()


@pytest.fixture
def store(tmp_path):
    found = SqliteStore(tmp_path / "state.db")
    yield found
    found.close()


@pytest.fixture
def world():
    """The tools above, for modules that cannot import each other."""

    class World:
        pass

    World.until = staticmethod(until)
    World.Engine = Engine
    World.FakeGateway = FakeGateway
    World.Paper = Paper
    World.free_port = staticmethod(free_port)
    World.deployed = staticmethod(deployed)
    World.standin = staticmethod(standin)
    World.canaries = staticmethod(canaries)
    return World
