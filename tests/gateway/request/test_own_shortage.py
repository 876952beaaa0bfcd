"""A gateway that cannot connect for want of something of its own blames no replica."""

import asyncio
import errno

import pytest
from openai import AsyncOpenAI, InternalServerError

from holdfast.core.request.breaker import BreakerState

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Failing:
    """An event loop whose connections to replicas fail with this error."""

    def __init__(self, loop, number):
        self._loop = loop
        self._number = number

    def __getattr__(self, name):
        return getattr(self._loop, name)

    async def create_connection(self, *_, **__):
        raise OSError(self._number, "planted")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EADDRNOTAVAIL])
def test_the_client_hears_503_and_every_replica_stays_in_service(live, number):
    async def body(gateway):
        loop = asyncio.get_running_loop()
        upstreams = [target.upstream for target in gateway.targets.values()]
        async with AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0) as client:
            for upstream in upstreams:
                upstream._loop = Failing(loop, number)
            for _ in range(8):
                with pytest.raises(InternalServerError) as caught:
                    await client.chat.completions.create(**ASK)
                assert caught.value.status_code == 503
                assert caught.value.code == "gateway_shortage"
                assert int(caught.value.response.headers["retry-after"]) >= 1
            pool = gateway.driver.flow.lanes["m"].pool
            states = {each.breaker.state for each in pool.candidates.values()}
            assert states == {BreakerState.CLOSED}
            assert sum(sum(up._shortages.counts.values()) for up in upstreams) >= 8
            for upstream in upstreams:
                upstream._loop = loop
            await client.chat.completions.create(**ASK)

    live(body)
