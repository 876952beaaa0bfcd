"""Real processes for a few tests: what ``bench/operations.py`` measures, in small.

The stage (stand-ins, ``holdfast serve``, clients) is the benchmark's own, so that what is proven
here and what is measured there are the same thing.
"""

import argparse
import asyncio
import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="session")
def ops():
    """The benchmark as a module, with shorter pauses for the sake of the clock."""
    if str(BENCH) not in sys.path:
        sys.path.append(str(BENCH))
    module = importlib.import_module("operations")
    module.BEFORE_S = 0.3
    return module


@pytest.fixture(scope="session")
def small():
    """How much of everything."""
    return argparse.Namespace(rate=50.0, clients=8, rounds=1, freeze_s=3.0)


@pytest.fixture(scope="session")
def kept(ops):
    """Opens connections that stay open, as those of an SDK do."""

    class Kept:
        """One such connection to a gateway."""

        def __init__(self, port):
            self._port = port

        async def __aenter__(self):
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
            return self

        async def __aexit__(self, *_):
            self.writer.close()
            await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

        async def get(self, path):
            return await self.send(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())

        async def send(self, request):
            self.writer.write(request.replace(b"connection: close\r\n", b""))
            return await self.reply()

        async def reply(self):
            reply = ops.Reply()
            async with asyncio.timeout(ops.PATIENCE_S):
                while not reply.complete:
                    data = await self.reader.read(65_536)
                    if not data:
                        raise ConnectionResetError("closed before the answer was complete")
                    reply.parser.feed_data(data)
            return reply

    return Kept
