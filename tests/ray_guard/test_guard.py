"""A guarded handle against a fake deployment, in virtual time: nothing here waits."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace

import pytest

from holdfast.core.failure import Kind
from holdfast.core.request.guard.call_guard import GuardConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.ray.errors import kind_of_error
from holdfast.ray.guard import (
    CallFailedError,
    CircuitOpenError,
    DeadlineExceededError,
    GuardError,
    TooManyCallsError,
    deadline,
    guard,
)

_spec = importlib.util.spec_from_file_location(
    "virtual_loop", Path(__file__).with_name("virtual_loop.py")
)
virtual = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(virtual)

CONFIG = GuardConfig(deadline_s=10.0, attempt_s=4.0)


class Response:
    """What a fake deployment answers: awaited or iterated, and it can be cancelled."""

    def __init__(self, deployment, work):
        self.deployment = deployment
        self.work = work

    def __await__(self):
        return self.work.__await__()

    def __aiter__(self):
        return self.work

    def cancel(self):
        self.deployment.cancelled += 1


class Deployment:
    """A fake handle. ``plays`` is what each call does, in order; the last one is repeated."""

    def __init__(self, *plays):
        self.plays = plays
        self.calls = []
        self.cancelled = 0
        self.method = None

    def options(self, **options):
        self.method = options.get("method_name", self.method)
        return self

    def remote(self, *args, **kwargs):
        play = self.plays[min(len(self.calls), len(self.plays) - 1)]
        self.calls.append((self.method, args, kwargs))
        return Response(self, play(*args, **kwargs))


async def well(text="hello"):
    await asyncio.sleep(0.02)
    return text.upper()


async def hung(*_):
    await asyncio.sleep(3_600)


async def broken(*_):
    raise RuntimeError("boom")


async def tokens(count=3, gap_s=0.1):
    for number in range(count):
        await asyncio.sleep(gap_s)
        yield number


async def stuck(*_):
    yield 0
    await asyncio.sleep(3_600)


async def cut(*_):
    yield 0
    raise ConnectionResetError


async def empty_handed(*_):
    raise ConnectionResetError
    yield


def guarded(*plays, config=CONFIG, **more):
    deployment = Deployment(*plays)
    return deployment, guard(deployment, config, rng=Random(1), clock=virtual.clock, **more)


async def read_on(handle):
    """All items of a stream, and the kind of failure that ended it."""
    seen = []
    try:
        async for item in handle.options(stream=True).remote():
            seen.append(item)  # noqa: PERF401 what came before the error counts
    except GuardError as error:
        return seen, error.kind
    return seen, None


def now():
    return asyncio.get_running_loop().time()


def play(main):
    virtual.run(main())


def test_a_call_goes_through_as_it_is_to_the_method_that_is_named():
    async def main():
        deployment, handle = guarded(well)
        assert await handle.infer.remote("a") == "A"
        assert await handle.options(method_name="other").remote(text="b") == "B"
        assert deployment.calls == [("infer", ("a",), {}), ("other", (), {"text": "b"})]
        assert handle.snapshot() == {
            "breaker": "closed",
            "inflight": 0,
            "counts": {"success": 2},
        }

    play(main)


def test_a_hung_deployment_is_waited_for_once_then_not_called_and_then_tried():
    async def main():
        deployment, handle = guarded(*[hung] * 6, well)
        for _ in range(5):
            began = now()
            with pytest.raises(DeadlineExceededError) as raised:
                await handle.remote()
            assert now() - began == pytest.approx(4.0)
            assert (raised.value.status, raised.value.attempts) == (504, 1)
        assert deployment.cancelled == 5, "whoever hangs is told that nobody waits"
        began = now()
        with pytest.raises(CircuitOpenError) as raised:
            await handle.remote()
        assert now() == began, "refused without waiting"
        assert raised.value.status == 503
        assert raised.value.retry_after_s > 0
        assert len(deployment.calls) == 5
        await asyncio.sleep(2.0)
        with pytest.raises(DeadlineExceededError):
            await handle.remote()  # the trial
        await asyncio.sleep(60.0)
        assert await handle.remote() == "HELLO"
        assert handle.snapshot()["breaker"] == "closed"

    play(main)


def test_an_erroring_deployment_is_retried_then_refused_and_its_error_is_the_cause():
    async def main():
        deployment, handle = guarded(broken)
        with pytest.raises(CallFailedError) as raised:
            await handle.remote()
        assert isinstance(raised.value.__cause__, RuntimeError)
        assert "RuntimeError" in str(raised.value)
        assert "boom" not in str(raised.value), "what it says may be a user's text"
        assert (raised.value.kind, raised.value.attempts) == (Kind.SERVER_ERROR, 2)
        for _ in range(20):
            with pytest.raises(GuardError):
                await handle.remote()
        assert len(deployment.calls) == 5, "five in a row, retries included, and no more"

    play(main)


def test_a_slow_deployment_is_bounded_by_the_callers_deadline():
    async def slow():
        await asyncio.sleep(3.0)
        return "late"

    async def main():
        _, handle = guarded(slow)
        assert await handle.remote() == "late"
        began = now()
        with pytest.raises(DeadlineExceededError):
            await handle.options(deadline_s=1.0).remote()
        assert now() - began == pytest.approx(1.0)
        assert handle.snapshot()["breaker"] == "closed"

    play(main)


def test_one_deadline_for_several_calls_and_the_earlier_of_two_holds():
    async def main():
        _, handle = guarded(hung)
        began = now()
        with deadline(3.0, clock=virtual.clock), deadline(9.0, clock=virtual.clock):
            with pytest.raises(DeadlineExceededError):
                await handle.remote()
            with pytest.raises(DeadlineExceededError):
                await handle.remote()
        assert now() - began == pytest.approx(3.0)

    play(main)


def test_an_error_is_followed_by_an_answer_and_nobody_sees_it():
    async def main():
        deployment, handle = guarded(broken, well)
        assert await handle.remote("x") == "X"
        assert len(deployment.calls) == 2

    play(main)


def test_bad_requests_are_neither_retried_nor_held_against_it():
    async def refuses(*_):
        raise ValueError("no such voice")

    async def main():
        deployment, handle = guarded(refuses, bad_request=(ValueError,))
        for _ in range(20):
            with pytest.raises(CallFailedError) as raised:
                await handle.remote()
            assert raised.value.kind is Kind.BAD_REQUEST
        assert len(deployment.calls) == 20
        assert handle.snapshot()["breaker"] == "closed"

    play(main)


def test_as_many_calls_at_once_as_permitted_and_no_more():
    async def main():
        _, handle = guarded(hung, config=GuardConfig(inflight_max=3))
        held = [asyncio.ensure_future(handle.remote()) for _ in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(TooManyCallsError):
            await handle.remote()
        held[0].cancel()
        await asyncio.gather(held[0], return_exceptions=True)
        assert handle.snapshot()["inflight"] == 2
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert handle.snapshot()["inflight"] == 0

    play(main)


def test_a_late_call_is_hedged_and_the_loser_is_cancelled():
    config = GuardConfig(deadline_s=10, attempt_s=4, slots=10, hedge=HedgeConfig(enabled=True))

    async def main():
        deployment, handle = guarded(*[well] * 250, hung, well, config=config)
        for _ in range(250):
            await handle.remote()
        began = now()
        assert await handle.remote("y") == "Y"
        assert now() - began < 0.2
        assert deployment.cancelled == 1
        assert handle.snapshot()["inflight"] == 0

    play(main)


def test_a_handle_that_refuses_at_once_is_a_failed_attempt():
    async def main():
        def refuses(*_):
            raise RuntimeError("not initialised")

        _, handle = guarded(refuses)
        with pytest.raises(CallFailedError):
            await handle.remote()
        assert await read_on(handle) == ([], Kind.SERVER_ERROR)
        assert handle.snapshot()["inflight"] == 0

    play(main)


def test_a_stream_is_passed_on_and_retried_only_before_its_first_item():
    async def main():
        deployment, handle = guarded(empty_handed, tokens)
        assert [item async for item in handle.options(stream=True).remote()] == [0, 1, 2]
        assert len(deployment.calls) == 2
        deployment, handle = guarded(cut)
        assert await read_on(handle) == ([0], Kind.RESET)
        assert len(deployment.calls) == 1

    play(main)


def test_a_stream_that_stops_is_ended_and_a_slow_reader_is_not_held_against_it():
    async def main():
        deployment, handle = guarded(stuck)
        began = now()
        assert await read_on(handle) == ([0], Kind.BETWEEN_TOKENS_TIMEOUT)
        assert now() - began == pytest.approx(4.0)
        assert deployment.cancelled == 1
        _, handle = guarded(tokens)
        async for _ in handle.options(stream=True).remote(3):
            await asyncio.sleep(2.5)
        assert handle.snapshot()["breaker"] == "closed"

    play(main)


def test_a_reader_that_leaves_frees_its_place():
    async def main():
        deployment, handle = guarded(tokens)
        stream = handle.options(stream=True).remote(1_000)
        assert await anext(stream) == 0
        await stream.aclose()
        assert deployment.cancelled == 1
        assert handle.snapshot()["inflight"] == 0

    play(main)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), Kind.FIRST_TOKEN_TIMEOUT),
        (ConnectionRefusedError(), Kind.REFUSED),
        (ConnectionResetError(), Kind.RESET),
        (KeyError("x"), Kind.SERVER_ERROR),
    ],
)
def test_plain_errors_have_a_kind(error, kind):
    assert kind_of_error(error, ()) is kind


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (400, {}, Kind.BAD_REQUEST),
        (429, {}, Kind.OVERLOADED),
        (503, {"Retry-After": "1"}, Kind.OVERLOADED),
        (503, None, Kind.SERVER_ERROR),
    ],
)
def test_errors_with_a_status_mean_what_the_status_means(status, headers, kind):
    error = RuntimeError()
    error.cause = Exception()
    error.cause.status_code, error.cause.headers = status, headers
    assert kind_of_error(error, ()) is kind


def test_errors_of_ray_are_known_where_ray_is_imported(monkeypatch):
    died = type("ActorDied", (Exception,), {})
    module = ModuleType("ray.exceptions")
    module.RayActorError = died
    monkeypatch.setitem(sys.modules, "ray.exceptions", module)
    assert kind_of_error(died(), ()) is Kind.EXITED
    assert kind_of_error(SimpleNamespace(), ()) is Kind.SERVER_ERROR
