"""A tenant's quota over four gateway processes: never more than the whole, and nearly all of it."""

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
LATE_S = 0.5  # how late a gateway may hear a frame on a busy machine: it overspends so much


@pytest.fixture(scope="module")
def stage(ops, tmp_path_factory):
    made = ops.Stage(tmp_path_factory.mktemp("quota"), workers=4, headers=AUTH)
    hashed = sha256(KEY.encode()).hexdigest()
    quota = f"{{requests_per_minute: {PER_S * 60:g}, burst_s: {BURST_S:g}}}"
    made.extra = f"tenants: [{{name: team, keys: ['sha256:{hashed}'], quota: {quota}}}]\n"
    try:
        made.open(("--ttft-ms", "0", "--tpot-ms", "0", "--tokens", "1"))
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
    """Connections of which each ended up at another gateway process; their ids begin alike."""
    found = {}
    request = f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n{AUTH}\r\n".encode()
    while len(found) < number:
        client = await stack.enter_async_context(kept(stage.port))
        name = (await client.send(request)).headers["x-request-id"]
        found.setdefault(name[: len("req_01234567")], client)
    return list(found.values())


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
