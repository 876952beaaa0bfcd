"""A real Ray Serve: the guard in front of deployments that fail, and applications as pools."""

import asyncio
import time

import pytest
import ray
from ray import serve

from holdfast.core.failure import Kind
from holdfast.core.request.guard.call_guard import GuardConfig
from holdfast.ray.guard import (
    CallFailedError,
    CircuitOpenError,
    DeadlineExceededError,
    guard,
)
from holdfast.sources.ray.config import RayConfig
from holdfast.sources.ray.source import RaySource

START_S = 120.0  # for Serve on a busy machine


@serve.deployment(ray_actor_options={"num_cpus": 0.1})
class Model:
    """Does as it is told, so that one deployment can be hung, broken and slow in turn."""

    async def __call__(self, request):
        return "unused"

    async def infer(self, text, how="well", seconds=0.0):
        if how == "hung":
            await asyncio.sleep(3_600)
        if how == "broken":
            raise RuntimeError(text)
        if how == "bad":
            raise ValueError(text)
        await asyncio.sleep(seconds)
        return text.upper()

    async def stream(self, count, gap_s=0.01, stuck=False):
        for number in range(count):
            yield number
            await asyncio.sleep(gap_s)
        if stuck:
            await asyncio.sleep(3_600)


@pytest.fixture(scope="module")
def handle(nodes):
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": 0}, proxy_location="HeadOnly")
        serve.run(Model.bind(), name="chat", route_prefix="/chat")
        yield serve.get_app_handle("chat")
    finally:
        serve.shutdown()
        ray.shutdown()


CONFIG = GuardConfig(deadline_s=20.0, attempt_s=1.5, floor_s=1.0)


def play(handle, scene, config=CONFIG, **more):
    async def main():
        guarded = guard(handle, config, **more)
        async with asyncio.timeout(START_S):
            # The first call of a handle finds its replicas: that is not what is measured here.
            assert await handle.infer.remote("first") == "FIRST"
            await scene(guarded)

    asyncio.run(main())


def test_a_call_and_a_stream_go_through(handle):
    async def scene(guarded):
        assert await guarded.infer.remote("hello") == "HELLO"
        items = guarded.stream.options(stream=True).remote(5)
        assert [item async for item in items] == [0, 1, 2, 3, 4]

    play(handle, scene)


def test_a_hung_deployment_is_bounded_and_then_not_called(handle):
    async def scene(guarded):
        waits = []
        for _ in range(5):
            began = time.monotonic()
            with pytest.raises(DeadlineExceededError):
                await guarded.infer.remote("x", "hung")
            waits.append(time.monotonic() - began)
        assert min(waits) >= 1.5
        began = time.monotonic()
        with pytest.raises(CircuitOpenError) as raised:
            await guarded.infer.remote("x", "hung")
        assert time.monotonic() - began < min(waits), "refused without waiting for anybody"
        assert raised.value.retry_after_s is not None
        await asyncio.sleep(raised.value.retry_after_s + 0.1)
        assert await guarded.infer.remote("again") == "AGAIN", "the trial closes it"
        assert guarded.snapshot()["breaker"] == "closed"

    play(handle, scene)


def test_an_erroring_deployment_is_called_five_times_and_its_error_is_the_cause(handle):
    async def scene(guarded):
        with pytest.raises(CallFailedError) as raised:
            await guarded.infer.remote("secret text", "broken")
        assert raised.value.kind is Kind.SERVER_ERROR
        assert isinstance(raised.value.__cause__, RuntimeError), "Ray's error is of that class, too"
        assert "secret text" not in str(raised.value)
        for _ in range(2):
            with pytest.raises((CallFailedError, CircuitOpenError)):
                await guarded.infer.remote("x", "broken")
        with pytest.raises(CircuitOpenError):
            await guarded.infer.remote("x", "broken")

    play(handle, scene)


def test_a_slow_deployment_is_bounded_by_the_callers_deadline_and_not_blamed(handle):
    async def scene(guarded):
        for _ in range(6):
            with pytest.raises(DeadlineExceededError) as raised:
                await guarded.options(deadline_s=0.3).infer.remote("x", "slow", 1.0)
            assert raised.value.kind is Kind.DEADLINE
        assert guarded.snapshot()["breaker"] == "closed"
        assert await guarded.infer.remote("x", "slow", 0.2) == "X"

    play(handle, scene)


def test_bad_requests_are_the_callers(handle):
    async def scene(guarded):
        for _ in range(8):
            with pytest.raises(CallFailedError) as raised:
                await guarded.infer.remote("x", "bad")
            assert raised.value.kind is Kind.BAD_REQUEST
        assert guarded.snapshot()["breaker"] == "closed"

    play(handle, scene, bad_request=(ValueError,))


def test_a_stream_that_stops_is_ended(handle):
    async def scene(guarded):
        seen = []
        stream = guarded.stream.options(stream=True).remote(2, 0.01, stuck=True)
        with pytest.raises(DeadlineExceededError) as raised:
            seen.extend([item async for item in stream])
        assert raised.value.kind is Kind.BETWEEN_TOKENS_TIMEOUT

    play(handle, scene)


def test_an_application_is_found_as_a_pool_of_its_proxies(handle, nodes):
    config = RayConfig(dashboard_url=f"http://{nodes.dashboard}", call_s=30.0)

    async def main():
        source = RaySource("ray", config)
        try:
            async with asyncio.timeout(START_S):
                while not source.glance().placed:
                    await source.look()
            reading = await source.read()
        finally:
            await source.close()
        return reading

    reading = asyncio.run(main())
    assert {host.zone for host in reading.hosts} >= {"zone-a", "zone-b"}  # others were lost
    routable = [row for row in reading.placed if row.address]
    assert {(row.model, row.state, row.path) for row in routable} == {("chat", "running", "/chat")}
    assert {row.host for row in routable} <= {host.id for host in reading.hosts}
    replicas = [row for row in reading.placed if not row.address]
    assert [(row.state, row.ready) for row in replicas] == [("running", True)]
