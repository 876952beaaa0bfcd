"""A ladder of models on a live gateway: lost models, full queues, caps, and who forbids it."""

import asyncio
import time

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from holdfast.config.fleet_file import FleetFile
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.types import State
from holdfast.gateway.telemetry.demand import DemandGauges
from holdfast.testing.standin import Options, expected_text

ASK = [{"role": "user", "content": "Who is there?"}]
MODELS = Options(models=("big", "small"), ttft_ms=2.0, tpot_ms=1.0, tokens=12)
SLOW = Options(models=("big", "small"), ttft_ms=300.0, tpot_ms=1.0, tokens=12)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
LEFT_ALONE = {"x-holdfast-degrade": "never"}


def laddered(gateway, *, small: dict | None = None, big: dict | None = None, **ladder) -> FleetFile:
    """Two models, each with one replica of its own, and the ladder *best* over both."""
    urls = [engine.url for engine in gateway.engines]
    models = [
        {"name": "big", "engine": "vllm", "endpoints": [{"url": urls[0], "slots": 1}]},
        {"name": "small", "engine": "vllm", "endpoints": [{"url": urls[1], "slots": 32}]},
    ]
    models[0] |= big or {}
    models[1] |= small or {}
    virtual = [{"name": "best", "degrade": {"ladder": ["big", "small"], **ladder}}]
    document = {"models": models, "virtual_models": virtual}
    return FleetFile.from_json(orjson.dumps(document))


def client(gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0)


def lose(gateway, file: FleetFile, model: str = "big", state: State = State.QUARANTINED) -> None:
    views = tuple(
        ReplicaView(
            d.replica, *((state, 0.0, True) if d.replica.model == model else (State.READY, 1.0))
        )
        for d in file.replicas()
    )
    gateway.driver.view(FleetView(99, views))


async def said(api, *, stream: bool, model: str = "best", **more):
    """(model that answered, text) of one answer."""
    call = api.chat.completions.with_raw_response.create
    answer = await call(model=model, messages=ASK, stream=stream, **more)
    headers = answer.headers
    if stream:
        parts = [c.choices[0].delta.content or "" async for c in answer.parse() if c.choices]
        return headers, "".join(parts)
    return headers, answer.parse().choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("state", [State.QUARANTINED, State.DRAINING, State.DEAD])
def test_a_lost_model_is_answered_for_at_once_and_the_answer_says_so(live, stream, state):
    async def body(gateway):
        file = laddered(gateway)
        gateway.reload(file, 2)
        lose(gateway, file, state=state)
        async with client(gateway) as api:
            for _ in range(5):
                before = time.monotonic()
                headers, text = await said(api, stream=stream)
                assert headers["x-holdfast-degraded"] == "small"
                assert headers["x-holdfast-replica"] == "small-1"
                assert text.split() == expected_text("small", ASK, 12).split()
                assert time.monotonic() - before < 2.0
            story = gateway.driver.observer.records.explain(headers["x-request-id"])
            assert story["served_by"] == "small"
            with pytest.raises(openai.BadRequestError) as caught:
                await said(api, stream=stream, extra_headers={"x-holdfast-degrade": "please"})
            assert caught.value.body["param"] == "x-holdfast-degrade"

    live(body, options=MODELS)


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_whose_engine_is_killed_refuses_nobody(live, stream):
    async def body(gateway):
        gateway.reload(laddered(gateway), 2)
        async with client(gateway) as api:
            assert "x-holdfast-degraded" not in (await said(api, stream=stream))[0]
            await gateway.engines[0].stop()
            for _ in range(10):
                headers, _ = await said(api, stream=stream)
                assert headers["x-holdfast-degraded"] == "small"

    live(body, options=MODELS)


def test_a_full_queue_is_no_refusal_beside_a_smaller_model(live):
    async def body(gateway):
        queue = {"queue": {"depth_max": 2, "batch_depth_max": 1}}
        gateway.reload(laddered(gateway, big=queue, patience_s=1.0), 2)
        async with client(gateway) as api:
            answers = await asyncio.gather(*(said(api, stream=False) for _ in range(12)))
        served = [headers.get("x-holdfast-degraded", "big") for headers, _ in answers]
        assert served.count("small") >= 8

    live(body, options=SLOW)


def test_who_forbids_it_or_names_the_model_is_not_moved(live):
    async def body(gateway):
        file = laddered(
            gateway, big={"queue": {"wait_no_replica_s": 0.2, "wait_interactive_s": 0.3}}
        )
        gateway.reload(file, 2)
        lose(gateway, file)
        async with client(gateway) as api:
            for asked in ({"extra_headers": LEFT_ALONE}, {"model": "big"}):
                with pytest.raises(openai.InternalServerError) as caught:
                    await said(api, stream=False, **asked)
                assert caught.value.body["code"] == "no_ready_replica"

    live(body, options=MODELS)


def test_embeddings_are_never_those_of_another_model(live):
    async def body(gateway):
        file = laddered(
            gateway, big={"queue": {"wait_no_replica_s": 0.2, "wait_interactive_s": 0.3}}
        )
        gateway.reload(file, 2)
        async with client(gateway) as api:
            vector = await api.embeddings.create(model="best", input="x")
            assert vector.data
            lose(gateway, file)
            with pytest.raises(openai.InternalServerError):
                await api.embeddings.create(model="best", input="x")

    live(body, options=MODELS)


@pytest.mark.parametrize(
    ("lacks", "asked"),
    [
        ({"lacks": ["tools"]}, {"tools": [TOOL]}),
        ({"lacks": ["json"]}, {"response_format": {"type": "json_object"}}),
        ({"context_tokens": 64}, {"max_tokens": 100}),
    ],
)
def test_a_smaller_model_that_lacks_what_is_needed_is_left_out(live, lacks, asked):
    async def body(gateway):
        brief = {"queue": {"wait_no_replica_s": 0.2, "wait_interactive_s": 0.3}}
        file = laddered(gateway, small=lacks, big=brief)
        gateway.reload(file, 2)
        lose(gateway, file)
        async with client(gateway) as api:
            with pytest.raises(openai.InternalServerError):
                await said(api, stream=False, **asked)
            assert (await said(api, stream=False))[0]["x-holdfast-degraded"] == "small"

    live(body, options=MODELS)


def test_pictures_in_the_prompt_are_seen_and_words_about_them_are_not(live):
    async def body(gateway):
        brief = {"queue": {"wait_no_replica_s": 0.2, "wait_interactive_s": 0.3}}
        file = laddered(gateway, small={"lacks": ["images"]}, big=brief)
        gateway.reload(file, 2)
        lose(gateway, file)
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        async with client(gateway) as api:
            call = api.chat.completions.with_raw_response.create
            with pytest.raises(openai.InternalServerError):
                await call(model="best", messages=[{"role": "user", "content": [picture]}])
            talk = [{"role": "user", "content": 'what is {"image_url": 1}?'}]
            answer = await call(model="best", messages=talk)
            assert answer.headers["x-holdfast-degraded"] == "small"

    live(body, options=MODELS)


@pytest.mark.parametrize("stream", [False, True])
def test_where_completeness_is_given_up_an_answer_is_capped_and_labelled(live, stream):
    order = {"order": ["completeness", "quality", "latency"], "capped_tokens": 4}

    async def body(gateway):
        file = laddered(gateway, big={}, step_s=0.1, share_step=1.0, **order)
        gateway.reload(file, 2)
        async with client(gateway) as api:
            # One slot: a second request waits, and the ladder's first step caps answers.
            held = [asyncio.ensure_future(said(api, stream=False)) for _ in range(30)]
            moved = lambda: any(  # noqa: E731
                getattr(n, "what", "") == "ladder moved" and "capped" in n.reason
                for n in gateway.news
            )
            await gateway.until(moved)
            call = api.chat.completions.with_raw_response.create
            answer = await call(model="best", messages=ASK, stream=stream)
            assert answer.headers["x-holdfast-capped"] == "4"
            if stream:
                chunks = [c async for c in answer.parse() if c.choices]
                reason = chunks[-1].choices[0].finish_reason
                words = "".join(c.choices[0].delta.content or "" for c in chunks)
            else:
                choice = answer.parse().choices[0]
                reason, words = choice.finish_reason, choice.message.content
            assert (reason, len(words.split())) == ("length", 4)
            whole = await call(model="best", messages=ASK, tools=[TOOL])
            assert "x-holdfast-capped" not in whole.headers, "half of a tool call is none"
            asked = await call(model="best", messages=ASK, max_completion_tokens=3)
            assert "x-holdfast-capped" not in asked.headers, "it asked for fewer"
            await asyncio.gather(*held)

    live(body, options=Options(models=("big", "small"), ttft_ms=150.0, tpot_ms=1.0, tokens=12))


def test_a_request_that_moved_down_still_wakes_the_model_it_asked_for(live):
    async def body(gateway):
        file = laddered(gateway)
        gateway.reload(file, 2)
        lose(gateway, file)
        demand, flows = DemandGauges(), [gateway.driver.port.flow]
        assert not demand.begun(flows)
        async with client(gateway) as api:
            assert (await said(api, stream=False))[0]["x-holdfast-degraded"] == "small"
        assert demand.begun(flows)
        gauges = demand.read(flows, time.monotonic_ns())
        assert gauges['queued_requests{model="big"}'] == 1
        assert demand.read(flows, time.monotonic_ns())['queued_requests{model="big"}'] == 0

    live(body, options=MODELS)
