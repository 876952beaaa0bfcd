"""Answers held against a second replica's, in the background of a live gateway."""

import asyncio

import orjson
import pytest
from openai import AsyncOpenAI

from holdfast.config.fleet_file import FleetFile
from holdfast.core.messages import Summary
from holdfast.gateway.request.comparisons import RESULTS_MAX
from holdfast.gateway.request.settings import settings_of, targets_of
from holdfast.testing.standin import Like, Options, expected_text

ASK = [{"role": "user", "content": "Who is there?"}]
GREEDY = {"model": "m", "messages": ASK, "temperature": 0}
ALL = {"comparison": {"share": 1.0, "in_flight_max": 64}}


def client(gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0)


async def read(stream) -> str:
    return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])


def counted(gateway, result: str) -> int:
    name = f'comparisons_total{{model="m",result="{result}"}}'
    return gateway.driver.observer.counters.read().get(name, 0)


async def settled(gateway, count: int) -> list[tuple[str, str, bool]]:
    """Wait until so many were asked and answered, then take what came out."""
    results = ("agreed", "disagreed", "unanswered")
    await gateway.until(lambda: sum(counted(gateway, one) for one in results) >= count)
    return gateway.driver.comparisons.take()


def test_sound_replicas_agree_and_clients_notice_nothing(live):
    async def body(gateway):
        async with client(gateway) as api:
            for _ in range(3):
                whole = await api.chat.completions.create(**GREEDY)
                assert whole.choices[0].message.content == expected_text("m", ASK, 12)
                assert await read(await api.chat.completions.create(**GREEDY, stream=True))
            done = await api.completions.create(model="m", prompt="Once", temperature=0.0)
            assert done.choices[0].text
        results = await settled(gateway, 7)
        assert len(results) == 7
        assert all(agreed and replica != peer for replica, peer, agreed in results)
        assert gateway.driver.comparisons.take() == []
        asked = sum(engine.stats()["requests"] for engine in gateway.engines)
        assert asked == 14

    live(body, replicas=3, model=ALL)


def test_a_replica_that_is_wrong_now_and_then_disagrees_now_and_then(live):
    async def body(gateway):
        gateway.ail(0, "wrong_output", share=0.5)
        async with client(gateway) as api:
            for _ in range(40):
                await api.chat.completions.create(**GREEDY)
        results = await settled(gateway, 40)
        apart = [(replica, peer) for replica, peer, agreed in results if not agreed]
        assert apart
        assert all("m-1" in pair for pair in apart)
        of_the_sick = [agreed for replica, peer, agreed in results if "m-1" in (replica, peer)]
        assert any(of_the_sick)  # half of what it says is right

    live(body, replicas=3, model=ALL)


@pytest.mark.parametrize(
    "extra",
    [
        {"temperature": 0.7},
        {"temperature": None},
        {"n": 2},
        {"logprobs": True},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"store": True},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
    ids=str,
)
def test_only_plain_greedy_requests_are_asked_again(live, extra):
    async def body(gateway):
        async with client(gateway) as api:
            await api.chat.completions.create(**{**GREEDY, **extra})
            await read(await api.chat.completions.create(**{**GREEDY, **extra}, stream=True))
            await api.embeddings.create(model="m", input="hi")
            await api.chat.completions.create(**GREEDY)  # this one is
        assert len(await settled(gateway, 1)) == 1
        assert sum(engine.stats()["requests"] for engine in gateway.engines) == 5

    live(body, model=ALL)


def test_without_the_section_nothing_is_asked_again(live):
    async def body(gateway):
        async with client(gateway) as api:
            for _ in range(4):
                await api.chat.completions.create(**GREEDY)
        assert sum(engine.stats()["requests"] for engine in gateway.engines) == 4

    live(body)


def test_streams_of_engines_that_cannot_continue_are_kept_as_well(live):
    async def body(gateway):
        async with client(gateway) as api:
            assert await read(await api.chat.completions.create(**GREEDY, stream=True))
        assert [agreed for _, _, agreed in await settled(gateway, 1)] == [True]

    options = Options(ttft_ms=2.0, tpot_ms=1.0, tokens=12, like=Like.LLAMACPP)
    live(body, options=options, model={**ALL, "engine": "openai"})


def test_an_answer_longer_than_the_bound_is_not_compared(live):
    async def body(gateway):
        async with client(gateway) as api:
            await api.chat.completions.create(**GREEDY)
        await gateway.until(lambda: gateway.driver.comparisons.models["m"].in_flight == 0)
        assert gateway.driver.comparisons.take() == []
        assert sum(engine.stats()["requests"] for engine in gateway.engines) == 1

    long = Options(ttft_ms=2.0, tpot_ms=0.1, tokens=60)
    live(body, options=long, model={"comparison": {"share": 1.0, "text_max": 64}})


@pytest.mark.parametrize(
    ("kind", "how"),
    [("black_hole", {}), ("empty", {}), ("status", {"code": 500}), ("crash", {})],
)
def test_a_second_replica_that_does_not_answer_says_nothing(live, kind, how):
    async def body(gateway):
        async with client(gateway) as api:
            first = await api.chat.completions.with_raw_response.create(**GREEDY)
            await settled(gateway, 1)
            own = first.headers["x-holdfast-replica"]
            sick = 1 if own == "m-1" else 0
            gateway.ail(sick, kind, **how)
            for _ in range(4):
                await api.chat.completions.create(**GREEDY)
            await gateway.until(lambda: counted(gateway, "unanswered") >= 1)
        assert all(agreed for _, _, agreed in gateway.driver.comparisons.take())
        assert counted(gateway, "disagreed") == 0

    live(body, model=ALL)


def test_an_answer_of_one_token_for_ever_is_no_agreement(live):
    async def body(gateway):
        gateway.ail(0, "garbage")
        async with client(gateway) as api:
            for _ in range(12):
                await api.chat.completions.create(**GREEDY, max_tokens=12)
        results = await settled(gateway, 1)
        await gateway.until(lambda: gateway.driver.comparisons.models["m"].in_flight == 0)
        results += gateway.driver.comparisons.take()
        assert any(not agreed for _, _, agreed in results)

    live(body, replicas=2, model=ALL)


def test_one_that_takes_too_long_is_called_back(live):
    async def body(gateway):
        async with client(gateway) as api:
            for index in (0, 1):
                gateway.ail(index, "hang")
            asking = asyncio.ensure_future(api.chat.completions.create(**GREEDY))
            await gateway.until(lambda: gateway.driver.busy == 1)
            (own,) = [t.replica_id for t in gateway.targets.values() if t.upstream.busy]
            gateway.engine_of(own).engine.clear_fault()
            await asking
            comparing = gateway.driver.comparisons.models["m"]
            await gateway.until(lambda: comparing.in_flight == 1)
            gateway.driver.comparisons.sweep(gateway.driver.now_ns() + 600 * 10**9)
            assert comparing.in_flight == 0
            assert counted(gateway, "unanswered") == 1

    live(body, model=ALL)


def test_a_replica_alone_has_nobody_to_be_compared_with(live):
    async def body(gateway):
        async with client(gateway) as api:
            await api.chat.completions.create(**GREEDY)
        assert gateway.driver.comparisons.models["m"].in_flight == 0
        assert gateway.engines[0].stats()["requests"] == 1

    live(body, replicas=1, model=ALL)


def test_a_tenant_does_not_pay_for_it(live):
    async def body(gateway):
        async with client(gateway) as api:
            await api.chat.completions.create(**GREEDY)
        await settled(gateway, 1)
        gateway.driver.tick()
        tallies = [t for a in gateway.news if isinstance(a, Summary) for t in a.tallies]
        assert sum(tally.successes for tally in tallies) <= 1

    live(body, model=ALL)


def test_results_that_nobody_takes_are_bounded(live):
    async def body(gateway):
        async with client(gateway) as api:
            for _ in range(RESULTS_MAX + 6):
                await api.chat.completions.create(**GREEDY, max_tokens=2)
        assert len(await settled(gateway, RESULTS_MAX + 6)) == RESULTS_MAX

    live(body, model=ALL)


def test_a_new_config_turns_it_off_and_on(live):
    async def body(gateway):
        def follow(section: dict) -> None:
            urls = [engine.url for engine in gateway.engines]
            model = {"name": "m", "engine": "vllm", "endpoints": urls, **section}
            file = FleetFile.from_json(orjson.dumps({"models": [model]}))
            loop = asyncio.get_running_loop()
            known, now_ns = gateway.targets, gateway.driver.now_ns
            gateway.targets = targets_of(file, known, loop, now_ns)
            gateway.driver.reconfigure(settings_of(file), gateway.targets)

        before = gateway.driver.comparisons.models["m"]
        follow(ALL)
        assert gateway.driver.comparisons.models["m"] is before
        follow({"comparison": {"share": 0.5}})
        assert gateway.driver.comparisons.models["m"] is not before
        follow({})
        assert not gateway.driver.comparisons.models

    live(body, model=ALL)
