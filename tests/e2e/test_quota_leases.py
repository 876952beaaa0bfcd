"""A tenant's quotas over four gateway processes: nearly all of each, and never beyond its bound."""

import asyncio
import contextlib
from hashlib import sha256

import pytest
import uvloop

KEY = "hf-quota-key"
AUTH = f"authorization: Bearer {KEY}\r\n"
PER_S, BURST_S = 20.0, 1.0
BURST = PER_S * BURST_S
LONE_S, BOTH_S = 4.0, 3.0
SETTLING_S = 1.5  # in which the shares follow the demand
AT_ONCE = 8
WORKERS = 4
AT_ONCE_MOST = AT_ONCE + WORKERS - 1  # a process with the smallest share still serves one
ANSWER_S = 3.0  # so long that none of a wave has ended when its last request is judged
PATIENCE_S = 90.0
LATE_S = 0.5  # how late a gateway may hear a frame on a busy machine: it overspends so much


@pytest.fixture(scope="module")
def stage(ops, tmp_path_factory):
    made = ops.Stage(tmp_path_factory.mktemp("quota"), workers=WORKERS, headers=AUTH)
    hashed = sha256(KEY.encode()).hexdigest()
    quota = f"{{requests_per_minute: {PER_S * 60:g}, burst_s: {BURST_S:g}}}"
    made.extra = f"tenants: [{{name: team, keys: ['sha256:{hashed}'], quota: {quota}}}]\n"
    try:
        made.open(("--ttft-ms", "0", "--tpot-ms", "0", "--tokens", "1"))
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def slow_stage(ops, tmp_path_factory):
    made = ops.Stage(tmp_path_factory.mktemp("at-once"), workers=WORKERS, headers=AUTH)
    hashed = sha256(KEY.encode()).hexdigest()
    quota = f"{{requests_at_once: {AT_ONCE}}}"
    made.extra = f"tenants: [{{name: team, keys: ['sha256:{hashed}'], quota: {quota}}}]\n"
    try:
        made.open(("--ttft-ms", "0", "--tpot-ms", f"{ANSWER_S * 100:g}", "--tokens", "10"))
        yield made
    finally:
        made.close()


class Hammer:
    """A client that asks again and again on one connection, and keeps the times of success."""

    def __init__(self, ops, client):
        self._request = ops.chat("more", stream=False, headers=AUTH)
        self._client = client
        self.admitted = []

    async def until(self, end):
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            reply = await self._client.send(self._request)
            assert reply.status in {200, 429}
            if reply.status == 200:
                self.admitted.append(loop.time())
            else:
                assert float(reply.headers["retry-after"]) > 0
            await asyncio.sleep(0.01)  # several times the rate: most requests are refused


async def at_different_gateways(stage, stack, kept, number):
    """Connections of which each ended up at another gateway process."""
    found = {}
    while len(found) < number:
        client, gateway = await connected(stage, stack, kept)
        found.setdefault(gateway, client)
    return list(found.values())


async def connected(stage, stack, kept):
    """A connection, and the gateway process that accepted it: its requests' ids begin alike."""
    request = f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n{AUTH}\r\n".encode()
    client = await stack.enter_async_context(kept(stage.port))
    return client, (await client.send(request)).headers["x-request-id"][: len("req_01234567")]


def test_one_connection_gets_nearly_the_whole_quota_and_three_get_no_more(ops, stage, kept):
    async def main():
        await stage.whole()
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            clients = await at_different_gateways(stage, stack, kept, 3)
            hammers = [Hammer(ops, client) for client in clients]
            begin = loop.time()
            await hammers[0].until(begin + LONE_S)
            alone_until = loop.time()
            await asyncio.gather(*(hammer.until(alone_until + BOTH_S) for hammer in hammers))
            return hammers, begin, alone_until, loop.time()

    hammers, begin, alone_until, end = uvloop.run(main())
    times = sorted(at for hammer in hammers for at in hammer.admitted)

    def between(start, stop):
        return sum(1 for at in times if start <= at < stop)

    def most(start, stop):
        """The bound of core.lease: burst and rate, and the rate for as long as a frame is late."""
        return BURST + PER_S * (stop - start) + PER_S * LATE_S + 1

    settled = begin + SETTLING_S
    assert between(settled, alone_until) >= 0.75 * PER_S * (alone_until - settled)
    assert between(begin, alone_until) <= most(begin, alone_until)
    assert len(times) <= most(begin, end)
    assert between(alone_until, end) >= 0.6 * PER_S * (end - alone_until)
    assert all(hammer.admitted for hammer in hammers)  # shares move to whoever asks


def test_requests_at_once_are_bounded_over_all_processes_and_follow_the_demand(
    ops, slow_stage, kept
):
    request = ops.chat("wait", stream=False, headers=AUTH)

    async def wave(clients):
        """How many of these are admitted when all ask together."""
        replies = await asyncio.gather(*(client.send(request) for client in clients))
        assert {reply.status for reply in replies} <= {200, 429}
        return sum(reply.status == 200 for reply in replies)

    async def main():
        await slow_stage.whole()
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            by_gateway = {}
            while len(by_gateway) < WORKERS or max(map(len, by_gateway.values())) < AT_ONCE:
                client, gateway = await connected(slow_stage, stack, kept)
                by_gateway.setdefault(gateway, []).append(client)
            everyone = [client for clients in by_gateway.values() for client in clients]
            spread = await wave(everyone[: WORKERS * AT_ONCE])
            lone = max(by_gateway.values(), key=len)[: AT_ONCE + 2]
            until, admitted = loop.time() + PATIENCE_S, []
            while not admitted or admitted[-1] < 0.75 * AT_ONCE:
                assert loop.time() < until, admitted
                admitted.append(await wave(lone))
            return spread, admitted, await wave(everyone[: WORKERS * AT_ONCE])

    spread, lone, again = uvloop.run(main())
    assert 0 < spread <= AT_ONCE_MOST
    assert max(lone) <= AT_ONCE  # all at one process: exact
    assert 0 < again <= AT_ONCE_MOST
