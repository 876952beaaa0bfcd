"""Keyed requests whose clients leave, on a real gateway process with a small budget of bytes."""

import asyncio
import contextlib
from pathlib import Path

import pytest
import uvloop

from holdfast.config.tenants import hash_key

BODY_BYTES = 7 << 20
BODIES = 40
WORD = "w" * 99 + " "  # the engine reads 70,000 of them: eight seconds
ENGINE = ("--ttft-ms", "5", "--tpot-ms", "1", "--tokens", "6", "--prefill-us-per-token", "120")
GATEWAY = (
    ", budget: {bytes_max: 32MB, receiving_bytes_max: 16MB}"
    ", http: {body_bytes_max: 8MB}, idempotency: {enabled: true}"
).replace("MB", "000000")
TENANTS = """
tenants:
  - {name: red, insecure: true, keys: [%s]}
  - {name: blue, insecure: true, keys: [%s]}
"""


def memory(pid):
    """The resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096


@pytest.fixture
def stage(ops, tmp_path):
    stage = ops.Stage(tmp_path, workers=1, headers="authorization: Bearer hf-blue\r\n")
    stage.gateway = GATEWAY
    stage.extra = TENANTS % (hash_key("hf-red"), hash_key("hf-blue"))
    try:
        stage.open(ENGINE)
        yield stage
    finally:
        stage.close()


async def leave(port, number):
    """Send a keyed request of 7 MB and go; the status, if it was answered before."""
    content = (WORD * (BODY_BYTES // len(WORD))).encode()
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % content
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer hf-red\r\n"
        f"idempotency-key: k{number}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    try:
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            writer.write(head.encode() + body)
            await writer.drain()
        async with asyncio.timeout(0.3):
            return int((await reader.readuntil(b"\r\n")).split()[1])
    except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        return 0
    finally:
        writer.transport.abort()


def test_bodies_whose_clients_left_stay_within_the_budget_and_others_are_served(ops, stage):
    asyncio.run(ops.until(lambda: bool(stage.gateways()), "the gateway is ready"))
    (pid,) = stage.gateways()

    async def play():
        wrong = [await harm(number) for number in range(8)]
        before = memory(pid)
        statuses, highest = [], before
        for number in range(BODIES):
            statuses.append(await leave(stage.port, number))
            wrong.append(await harm(number))
            highest = max(highest, memory(pid))
        return wrong, statuses, highest - before

    async def harm(number):
        asked = ops.chat(f"request {number}", stream=False, headers=stage.headers)
        reply = await ops.ask(stage.port, asked)
        return "" if reply.complete and reply.status == 200 else f"status {reply.status}"

    wrong, statuses, grown = uvloop.run(play())
    assert not any(wrong), wrong
    assert 429 in statuses, statuses
    assert 0 in statuses, statuses
    assert grown < 110 << 20, f"{grown >> 20} MB"
