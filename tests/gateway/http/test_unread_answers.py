"""Answers that their clients do not read: counted as long as they are here, for their tenant."""

import asyncio
import socket

import orjson

from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key

SIZE = 10_000_000  # of one whole answer; a kernel holds less of it
TENANTS = [{"name": n, "keys": [hash_key(f"hf-long-key-of-{n}")]} for n in ("red", "blue", "grey")]
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})


async def engine(reader, writer):
    """Answers each request in one piece of that size."""
    message = {"role": "assistant", "content": " ".join(map(str, range(SIZE // 7)))}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = orjson.dumps({"choices": [choice]})
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(size)
            line = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            )
            writer.write(line % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve(live, test, budget=None):
    """Run a test with that engine behind a gateway with three tenants."""

    async def body(gateway):
        server = await asyncio.start_server(engine, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        file = {
            "gateway": {"budget": budget or {}, "http": {"body_bytes_max": 1_000_000}},
            "models": [{"name": "m", "engine": "vllm", "endpoints": [url]}],
            "tenants": TENANTS,
        }
        gateway.reload(FleetFile.from_json(orjson.dumps(file)), 2)
        peers = []
        try:
            await test(gateway, peers)
        finally:
            for peer in peers:
                peer.close()
            await gateway.until(lambda: gateway.server.open == 0)
            assert gateway.driver.budget.held == 0
            accounts = gateway.driver.budget.accounts.values()
            assert [account.bytes for account in accounts] == [0] * len(accounts)
            server.close()

    live(body, replicas=1)


async def ask(gateway, peers, tenant, connection="keep-alive"):
    """Ask on a connection with little room, and read nothing."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.setblocking(False)
    peers.append(peer)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, ("127.0.0.1", gateway.port))
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\n"
        f"authorization: Bearer hf-long-key-of-{tenant}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(BODY)}\r\n\r\n"
    )
    await loop.sock_sendall(peer, head.encode() + BODY)
    return peer


async def status(peer):
    """The status of the answer, of which nothing more is read."""
    line = await asyncio.get_running_loop().sock_recv(peer, 12)
    return int(line[9:12])


def test_an_answer_on_a_connection_that_ends_is_counted_until_it_is_read(live):
    async def test(gateway, peers):
        for connection in ("keep-alive", "close"):
            before = gateway.driver.budget.held
            peer = await ask(gateway, peers, "red", connection)
            assert await status(peer) == 200
            await gateway.until(lambda before=before: gateway.driver.budget.held > before)
            assert gateway.driver.budget.held - before > SIZE // 4
        assert gateway.driver.budget.account("red").bytes == gateway.driver.budget.held
        assert len(gateway.server.closing) == 1

    serve(live, test)


def test_what_one_tenant_does_not_read_keeps_no_other_tenant_out(live):
    async def test(gateway, peers):
        budget = gateway.driver.budget
        codes = []
        for _ in range(30):
            peer = await ask(gateway, peers, "red", "close")
            codes.append(await status(peer))
            if codes[-1] != 200:
                break
            held = budget.held
            await gateway.until(lambda held=held: budget.held >= held)
        assert codes[-1] == 429, "red has its share and no more"
        assert budget.account("red").bytes > budget.tenant_bytes_max
        assert await status(await ask(gateway, peers, "blue")) == 200
        # The answers that were left longest go first, until red has no more than its share.
        await gateway.until(lambda: budget.account("red").bytes <= budget.tenant_bytes_max)
        assert gateway.server.counters["slow_reader"] >= 1
        assert budget.account("blue").bytes > 0

    serve(live, test, {"bytes_max": 64_000_000, "receiving_bytes_max": 1_000_000})
