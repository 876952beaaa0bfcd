"""What control hears of answers and failures, from a live gateway."""

import asyncio

import orjson
import pytest
from openai import AsyncOpenAI

from holdfast.config.fleet_file import FleetFile
from holdfast.core.failure import Kind
from holdfast.core.messages import Summary, Tally
from holdfast.gateway.request.settings import settings_of, targets_of

ASK = [{"role": "user", "content": "Who is there?"}]


def client(gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0)


def tallies(gateway) -> list[Tally]:
    told = [action for action in gateway.news if isinstance(action, Summary)]
    return [tally for summary in told for tally in summary.tallies]


async def told(gateway, count: int) -> list[Tally]:
    await gateway.until(lambda: sum(t.successes for t in tallies(gateway)) >= count)
    return tallies(gateway)


def test_lengths_and_reasons_of_answers_are_told(live):
    async def body(gateway):
        async with client(gateway) as api:
            await api.chat.completions.create(model="m", messages=ASK)
            await api.chat.completions.create(model="m", messages=ASK, max_tokens=5)
            stream = await api.chat.completions.create(
                model="m", messages=ASK, max_tokens=7, stream=True
            )
            assert [chunk async for chunk in stream]
        seen = await told(gateway, 3)
        assert sorted(length for tally in seen for length in tally.lengths) == [5, 7, 12]
        reasons = [reason for tally in seen for reason in tally.finishes.items()]
        assert sum(count for reason, count in reasons if reason == "length") == 2
        assert sum(count for reason, count in reasons if reason == "stop") == 1

    live(body)


def test_times_are_told_of_streams_and_of_nothing_else(live):
    async def body(gateway):
        async with client(gateway) as api:
            await api.chat.completions.create(model="m", messages=ASK)
            assert [tally.firsts for tally in await told(gateway, 1) if tally.firsts] == []
            stream = await api.chat.completions.create(
                model="m", messages=ASK, max_tokens=7, stream=True
            )
            assert [chunk async for chunk in stream]
        seen = await told(gateway, 2)
        (first,) = [value for tally in seen for value in tally.firsts]
        (pace,) = [value for tally in seen for value in tally.paces]
        assert pace > 0
        assert 0 < first < 60

    live(body)


def measured_choice(logprob: float, **more: object) -> dict:
    token = {"token": "x", "logprob": logprob, "top_logprobs": []}
    return {"index": 0, "logprobs": {"content": [token]}, "finish_reason": "stop", **more}


async def measuring(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine that tells log probabilities; stand-ins have none."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    asked = orjson.loads(await reader.readexactly(length))
    if asked.get("stream"):
        first = measured_choice(-1.0, delta={"content": "x"}, finish_reason=None)
        chunks = [first, measured_choice(-3.0, delta={"content": "y"})]
        events = [b"data: %b\n\n" % orjson.dumps({"choices": [one]}) for one in chunks]
        kind, body = b"text/event-stream", b"".join([*events, b"data: [DONE]\n\n"])
    else:
        choice = measured_choice(-0.5, message={"role": "assistant", "content": "x"})
        kind, body = b"application/json", orjson.dumps({"choices": [choice]})
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
    writer.write(answer % (kind, len(body)) + b"connection: close\r\n\r\n" + body)
    writer.close()
    await writer.wait_closed()


def test_log_probabilities_are_told_where_the_client_asked_for_them(live):
    async def body(gateway):
        engine = await asyncio.start_server(measuring, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
        model = {"name": "m", "engine": "openai", "endpoints": [url]}
        file = FleetFile.from_json(orjson.dumps({"models": [model]}))
        loop = asyncio.get_running_loop()
        gateway.targets = targets_of(file, gateway.targets, loop, gateway.driver.now_ns)
        gateway.driver.reconfigure(settings_of(file), gateway.targets)
        async with client(gateway) as api:
            await api.chat.completions.create(model="m", messages=ASK, logprobs=True)
            stream = await api.chat.completions.create(
                model="m", messages=ASK, logprobs=True, stream=True
            )
            assert [chunk async for chunk in stream]
            await api.chat.completions.create(model="m", messages=ASK)
        seen = [value for tally in await told(gateway, 3) for value in tally.logprobs]
        assert seen == [-0.5, -2.0]
        engine.close()
        await engine.wait_closed()

    live(body, replicas=1)


def test_one_embedding_a_second_is_measured(live):
    async def body(gateway):
        async with client(gateway) as api:
            for coding in ("float", "base64", "float"):
                vector = await api.embeddings.create(model="m", input="hi", encoding_format=coding)
                assert vector.data
        seen = [value for tally in await told(gateway, 3) for value in tally.norms]
        assert 1 <= len(seen) <= 2
        assert all(value > 0 for value in seen)

    live(body, replicas=1)


def test_one_ranking_a_second_is_measured(live):
    ranking = {"model": "m", "query": "q", "documents": ["a", "bb"]}

    async def body(gateway):
        async with client(gateway) as api:
            for _ in range(3):
                answer = await api.post("/rerank", body=ranking, cast_to=object)
        best = max(one["relevance_score"] for one in answer["results"])
        seen = [tally.scores for tally in await told(gateway, 3) if tally.scores]
        values = [value for scores in seen for value in scores["score"]]
        assert 1 <= len(values) <= 2
        assert values[0] == pytest.approx(best)

    live(body, replicas=1)


def test_one_tensor_a_second_is_measured(live):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 2.0]}

    async def body(gateway):
        root = gateway.url.removesuffix("/v1")
        async with client(gateway) as api:
            for _ in range(3):
                url = f"{root}/v2/models/m/infer"
                answer = await api.post(url, body={"inputs": [tensor]}, cast_to=object)
        output = answer["outputs"][0]
        seen = [tally.scores for tally in await told(gateway, 3) if tally.scores]
        assert set(seen[0]) == {f"{output['name']}.mean", f"{output['name']}.max"}
        assert 1 <= sum(len(scores[f"{output['name']}.max"]) for scores in seen) <= 2

    live(body, replicas=1)


def test_failures_are_told_by_kind(live):
    async def body(gateway):
        gateway.ail(0, "black_hole")
        async with client(gateway) as api:
            for _ in range(6):
                await api.chat.completions.create(model="m", messages=ASK)
        seen = await told(gateway, 6)
        sick = [tally for tally in seen if tally.replica_id == "m-1"]
        failures = sum(tally.failures for tally in sick)
        assert failures
        assert sum(tally.kinds.get(Kind.SERVER_ERROR, 0) for tally in sick) == failures
        assert sum(tally.fast for tally in sick) >= 1

    live(body)
