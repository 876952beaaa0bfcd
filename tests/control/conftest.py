"""Real sockets on loopback: engines that answer what they are told, gateways that speak frames."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from holdfast.config.fleet_file import Deployed
from holdfast.core.types import Replica
from holdfast.frames import FrameReader, Hello, encode


async def until(condition, timeout_s=10.0):
    """Wait for something to become true; fails loudly when it does not."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 conditions of other processes have no events
            await asyncio.sleep(0.005)


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
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _serve(self, reader, writer):
        self._writers.add(writer)
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
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def deployed(url, replica_id="m-1", engine="vllm", **more):
    return Deployed(Replica(replica_id, "m", **more), url, engine, "m", None)


@pytest.fixture
def world():
    """The tools above, for modules that cannot import each other."""

    class World:
        pass

    World.until = staticmethod(until)
    World.Engine = Engine
    World.FakeGateway = FakeGateway
    World.free_port = staticmethod(free_port)
    World.deployed = staticmethod(deployed)
    return World
