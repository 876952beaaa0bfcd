"""Idempotency keys over two real gateway processes, of which one is killed in the middle."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import uvloop

CALLERS = 50
SETTINGS = "lease_s: 2.0, beat_s: 0.25, poll_s: 0.02, abandoned_s: 60.0"


@pytest.fixture(scope="module")
def stage(ops, tmp_path_factory):
    made = ops.Stage(tmp_path_factory.mktemp("keys"))
    path = made.config.with_name("keys.db")
    made.gateway = (
        f", idempotency: {{enabled: true, store: {{path: {path}}}, policy: {{{SETTINGS}}}}}"
    )
    try:
        made.open(("--ttft-ms", "800", "--tpot-ms", "100", "--tokens", "30"))
        yield made
    finally:
        made.close()


def asked(ops, key, *, stream):
    return ops.chat(f"for {key}", stream=stream, headers=f"idempotency-key: {key}\r\n")


def gateway_of(stage, client):
    """The process at the other end of a connection, by the kernel's table of sockets."""
    port = client.writer.get_extra_info("sockname")[1]
    ends = (f":{stage.port:04X}", f":{port:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
            socket = f"socket:[{fields[9]}]"
            for pid in stage.serve.processes("gateway-process"):
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if str(descriptor.readlink()) == socket:
                            return pid
    raise AssertionError("the connection is not in the table")


async def at_both_gateways(stage, stack, kept, number):
    """So many connections to each of the two processes; by process."""
    await stage.whole()
    found = {pid: [] for pid in stage.serve.processes("gateway-process")}
    while min(map(len, found.values())) < number:
        client = await stack.enter_async_context(kept(stage.port))
        await client.get("/v1/models")
        mine = found[gateway_of(stage, client)]
        if len(mine) < number:
            mine.append(client)
        else:
            client.writer.close()
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_fifty_callers_of_two_processes_get_the_answer_of_one_execution(ops, stage, kept, stream):
    key = f"fifty-{stream}"

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            found = await at_both_gateways(stage, stack, kept, CALLERS // 2)
            clients = [client for mine in found.values() for client in mine]
            request = asked(ops, key, stream=stream)
            replies = await asyncio.gather(*(client.send(request) for client in clients))
            return replies, await ops.ask(stage.port, request)

    replies, later = uvloop.run(main())
    assert {reply.status for reply in replies} == {200}
    assert len({reply.body for reply in replies}) == 1
    assert replies[0].text()
    replayed = Counter(reply.headers.get("idempotent-replayed") for reply in replies)
    assert replayed == {None: 1, "true": CALLERS - 1}
    assert (later.body, later.headers["idempotent-replayed"]) == (replies[0].body, "true")


class Torn:
    """What a client has of an answer, if its connection may break."""

    def __init__(self, ops, client, request):
        self.reply = ops.Reply()
        self._client = client
        client.writer.write(request.replace(b"connection: close\r\n", b""))

    async def until(self, enough):
        while not enough(self.reply):
            data = await self._client.reader.read(65_536)
            if not data:
                return False
            self.reply.parser.feed_data(data)
        return True

    async def to_the_end(self):
        with contextlib.suppress(ConnectionError):
            return await self.until(lambda reply: reply.complete)
        return False


@pytest.mark.parametrize("stream", [False, True])
def test_the_winners_process_is_killed_in_the_middle(ops, stage, kept, stream):
    key = f"killed-{stream}"
    request = asked(ops, key, stream=stream)

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            found = await at_both_gateways(stage, stack, kept, 8)
            winner, other = found
            first = Torn(ops, found[winner][0], request)
            await ops.until(lambda: stage_runs(ops, stage), "the first caller is executed")
            rest = [Torn(ops, c, request) for c in (*found[winner][1:], *found[other])]
            if stream:
                began = [torn.until(lambda reply: reply.body.count(b"\n\n") >= 2) for torn in rest]
                assert all(await asyncio.gather(*began))
            else:
                await asyncio.sleep(0)
            os.kill(winner, signal.SIGKILL)
            every = [first, *rest]
            async with asyncio.timeout(ops.PATIENCE_S):
                whole = await asyncio.gather(*(torn.to_the_end() for torn in every))
            await stage.whole(without=winner)
            retries = await asyncio.gather(*(ops.ask(stage.port, request) for _ in range(16)))
            mine = len(found[winner])
            return every, whole, mine, retries

    every, whole, mine, retries = uvloop.run(main())
    assert not any(whole[:mine])  # their process is gone: they see a broken connection
    assert all(whole[mine:])
    survivors = [torn.reply for torn in every[mine:]]
    assert {reply.status for reply in retries} == {200}
    assert len({reply.body for reply in retries}) == 1  # the one terminal answer
    assert retries[0].text()
    for reply in survivors:
        assert reply.status == 200
        if b"idempotency_stream_interrupted" in reply.body:
            assert stream
            assert b"[DONE]" not in reply.body
        else:
            assert reply.body == retries[0].body
    interrupted = sum(b"idempotency_stream_interrupted" in reply.body for reply in survivors)
    assert interrupted == (len(survivors) if stream else 0)


def stage_runs(ops, stage):
    """Whether an engine is at work on something that takes long: a canary asks for few tokens."""
    return any(int(ops.call(f"{r.side}/stats")["running"]) for r in stage.replicas)
