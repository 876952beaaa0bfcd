"""Places of uploads and downloads: tenants share them, and a trickle does not keep one."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from holdfast.config.tenants import hash_key
from holdfast.core.intake.upload_pace import UploadPace
from holdfast.gateway.request.batch_relay import RELAYED_MAX, RELAYED_PER_TENANT_MAX, BatchRelay

NAMES = ("red", "green", "blue", "gold", "grey")
TENANTS = [{"name": name, "keys": [hash_key(f"hf-long-key-of-{name}")]} for name in NAMES]
SLOW = UploadPace(grace_s=0.2, bytes_per_s=1e6)


class BatchProcess:
    """Reads each request to its end and answers it; it may stop reading for a while."""

    def __init__(self):
        self.reads = asyncio.Event()
        self.reads.set()
        self.received = 0

    async def __call__(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        while size:
            await self.reads.wait()
            piece = await reader.read(65_536)
            if not piece:
                break
            size -= len(piece)
            self.received += len(piece)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()


@pytest.fixture
def relayed(live, tmp_path):
    """Run a body with a gateway that relays to a batch process."""

    def run(body, pace=None):
        async def main(gateway):
            process, loop = BatchProcess(), asyncio.get_running_loop()
            path, counters = str(tmp_path / "batch.sock"), gateway.driver.observer.counters
            server = await asyncio.start_unix_server(process, path)
            more = () if pace is None else (pace,)
            gateway.driver.relay = BatchRelay(path, loop, counters, *more)
            try:
                await body(gateway, process)
            finally:
                gateway.driver.relay.close()
                server.close()

        live(main, tenants=TENANTS)

    return run


def asked(tenant, method="GET", path="/v1/batches", size=0):
    return (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer hf-long-key-of-{tenant}\r\n"
        f"connection: close\r\ncontent-length: {size}\r\n\r\n"
    ).encode()


@asynccontextmanager
async def upload(gateway, tenant, size=100_000):
    """An upload of which nothing has come yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        writer.write(asked(tenant, "POST", "/v1/files", size))
        yield reader, writer
    finally:
        writer.close()


async def lists(gateway, tenant):
    """The status of a list of batches."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(asked(tenant))
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def stand(gateway, tenant, number):
    """Begin uploads that stand still; the readers and writers of their clients."""
    running, peers = gateway.driver.relay.running, []
    for _ in range(number):
        there = len(running)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(asked(tenant, "POST", "/v1/files", 100_000))
        peers.append((reader, writer))
        await gateway.until(lambda there=there: len(running) == there + 1)
    return peers


def test_four_tenants_that_hold_every_place_keep_no_fifth_out(relayed):
    async def body(gateway, _):
        peers = []
        for tenant in NAMES[:4]:
            peers += await stand(gateway, tenant, RELAYED_PER_TENANT_MAX)
        running = gateway.driver.relay.running
        assert len(running) == RELAYED_MAX
        # The first of them moves, so that it is not the one that stands still longest.
        peers[0][1].write(b"x")
        await gateway.until(lambda: next(iter(running))._received == 1)
        assert [await lists(gateway, "grey") for _ in range(3)] == [200] * 3
        told = await peers[1][0].read()
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"batches_unavailable" in told
        assert b"retry-after: 2" in told
        assert len(running) == RELAYED_MAX - 1, "one was ended; the place went round"
        for _, writer in peers:
            writer.close()
        await gateway.until(lambda: not running)
        assert await lists(gateway, "red") == 200

    relayed(body)


def test_one_tenant_has_no_more_than_its_places(relayed):
    async def body(gateway, _):
        peers = await stand(gateway, "red", RELAYED_PER_TENANT_MAX)
        assert await lists(gateway, "red") == 503
        assert await lists(gateway, "blue") == 200
        for _, writer in peers:
            writer.close()

    relayed(body)


def test_an_upload_that_trickles_is_ended_and_told(relayed):
    async def body(gateway, process):
        async with upload(gateway, "red") as (reader, writer):
            answer = asyncio.ensure_future(reader.read())
            while not answer.done():
                writer.write(b"x")
                await asyncio.wait({answer}, timeout=0.05)
            told = answer.result()
        assert told.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_timeout"' in told
        assert not gateway.driver.relay.running
        assert await lists(gateway, "red") == 200

    relayed(body, SLOW)


def test_an_upload_is_not_blamed_for_a_batch_process_that_does_not_read(relayed):
    async def body(gateway, process):
        process.reads.clear()
        size = 8_000_000
        async with upload(gateway, "red", size) as (reader, writer):
            writer.write(b"x" * size)
            answer = asyncio.ensure_future(reader.read())
            running = gateway.driver.relay.running
            await gateway.until(lambda: any(each._paused_at for each in running))
            # It is looked at after one second and after two: late, if that time counted.
            await asyncio.wait({answer}, timeout=2.5)
            assert not answer.done()
            process.reads.set()
            assert (await answer).startswith(b"HTTP/1.1 200 ")
        assert process.received == size

    relayed(body, UploadPace(grace_s=1.0, bytes_per_s=1e9))
