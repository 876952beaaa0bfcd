"""Tenants, quotas, virtual models, probes and reloads on a live gateway."""

import asyncio
import json
import time
from email.utils import parsedate_to_datetime

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.types import SECOND, State
from holdfast.testing.standin import Options, expected_text

ASK = [{"role": "user", "content": "Who is there?"}]
KEY, OTHER = "hf-first-key", "hf-second-key"
MODELS = Options(models=("m", "big", "small"), ttft_ms=2.0, tpot_ms=1.0, tokens=12)


def client(gateway, key: str = "unused") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key=key, max_retries=0)


def tenant(name: str, key: str, **more) -> dict:
    return {"name": name, "keys": [hash_key(key)], **more}


async def raw(gateway, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def get(gateway, path: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    return await raw(gateway, head.encode())


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coding", "status"),
    [(b"gzip", b"415"), (b"deflate, gzip", b"415"), (b"", b"415"), (b"Identity", b"200")],
)
def test_a_compressed_body_is_refused_before_it_is_read(live, coding, status):
    whole = orjson.dumps({"model": "m", "messages": ASK})

    async def body(gateway):
        sent = whole if status == b"200" else whole[:1]  # the rest never comes
        answer = await raw(
            gateway,
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n"
            b"\r\n%b" % (coding, len(whole), sent),
        )
        assert answer.split()[1] == status
        assert (b"without content-encoding" in answer) == (status == b"415")

    live(body)


# --- tenants -------------------------------------------------------------------------------------


def test_without_a_valid_key_nobody_gets_in(live):
    async def body(gateway):
        for key in ("wrong", "hf-", KEY + "x", KEY.upper()):
            async with client(gateway, key) as api:
                with pytest.raises(openai.AuthenticationError) as caught:
                    await api.chat.completions.create(model="m", messages=ASK)
                assert caught.value.code == "invalid_api_key"
                with pytest.raises(openai.AuthenticationError):
                    await api.models.list()
        async with client(gateway, KEY) as api:
            assert (await api.chat.completions.create(model="m", messages=ASK)).choices

    live(body, tenants=[tenant("a", KEY)])


def test_a_model_that_a_tenant_may_not_use_does_not_exist_for_it(live):
    async def body(gateway):
        async with client(gateway, KEY) as api:
            with pytest.raises(openai.NotFoundError):
                await api.chat.completions.create(model="m", messages=ASK)
            assert [model.id for model in (await api.models.list()).data] == ["v"]
        async with client(gateway, OTHER) as api:
            assert (await api.chat.completions.create(model="m", messages=ASK)).choices

    live(
        body,
        tenants=[tenant("a", KEY, models=["v"]), tenant("b", OTHER)],
        virtual_models=[{"name": "v", "default": "m"}],
    )


def test_a_quota_is_told_in_headers_and_kept(live):
    async def body(gateway):
        async with client(gateway, KEY) as api:
            call = api.chat.completions.with_raw_response.create
            first = await call(model="m", messages=ASK)
            assert first.headers["x-ratelimit-limit-requests"] == "2"
            assert first.headers["x-ratelimit-remaining-requests"] == "1"
            await call(model="m", messages=ASK)
            with pytest.raises(openai.RateLimitError) as caught:
                await call(model="m", messages=ASK)
            headers = caught.value.response.headers
            assert 1 <= int(headers["retry-after"]) <= 30
            assert headers["x-should-retry"] == "true"
        async with client(gateway, OTHER) as api:
            other = await api.chat.completions.with_raw_response.create(model="m", messages=ASK)
            assert "x-ratelimit-limit-requests" not in other.headers
        assert gateway.driver.port.take_demand() == {"a": 3.0, "b": 1.0}

    quota = {"requests_per_minute": 2}
    live(body, tenants=[tenant("a", KEY, quota=quota), tenant("b", OTHER)])


def test_a_flood_beyond_the_requests_at_once_is_refused_and_leaves_others_alone(live):
    async def body(gateway):
        async with client(gateway, KEY) as api, client(gateway, OTHER) as other:
            call = api.chat.completions.create
            slow = [asyncio.ensure_future(call(model="m", messages=ASK)) for _ in range(3)]
            await gateway.until(lambda: gateway.driver.flow.running() == {"a": 3})
            for _ in range(20):
                with pytest.raises(openai.RateLimitError) as caught:
                    await call(model="m", messages=ASK, max_tokens=1)
                assert caught.value.code == "concurrency_limit_exceeded"
                assert caught.value.type == "rate_limit_error"
                assert "3 requests at once" in str(caught.value)
                headers = caught.value.response.headers
                assert int(headers["retry-after"]) >= 1
                assert headers["x-should-retry"] == "true"
            quick = other.chat.completions.create(model="m", messages=ASK, max_tokens=1)
            assert (await quick).choices
            for one in slow:
                one.cancel()
            await gateway.until(lambda: gateway.driver.flow.running() == {})
            assert (await call(model="m", messages=ASK, max_tokens=1)).choices
        counted = gateway.driver.observer.counters.read()
        name = 'quota_refusals_total{tenant="a",code="concurrency_limit_exceeded"}'
        assert counted[name] == 20

    quota = {"requests_at_once": 3}
    slow = Options(ttft_ms=1.0, tpot_ms=1_000.0, tokens=200)
    live(body, options=slow, tenants=[tenant("a", KEY, quota=quota), tenant("b", OTHER)])


def test_a_client_that_leaves_gives_its_place_back(live):
    async def body(gateway):
        async with client(gateway, KEY) as api:
            call = api.chat.completions.create
            for _ in range(3):
                asked = asyncio.ensure_future(call(model="m", messages=ASK))
                await gateway.until(lambda: gateway.driver.flow.running() == {"a": 1})
                asked.cancel()
                await gateway.until(lambda: gateway.driver.flow.running() == {})

    quota = {"requests_at_once": 1}
    slow = Options(ttft_ms=20_000.0, tpot_ms=1.0, tokens=12)
    live(body, options=slow, tenants=[tenant("a", KEY, quota=quota)])


def test_tokens_are_settled_by_what_was_used(live):
    async def body(gateway):
        async with client(gateway, KEY) as api:
            call = api.chat.completions.with_raw_response.create
            asked = await call(model="m", messages=ASK, max_tokens=5_000)
            left = int(asked.headers["x-ratelimit-remaining-tokens"])
            assert left > 5_900
            with pytest.raises(openai.BadRequestError) as caught:
                await call(model="m", messages=ASK, max_tokens=50_000)
            assert caught.value.code == "request_exceeds_quota"

    live(body, tenants=[tenant("a", KEY, quota={"tokens_per_minute": 6_000})])


def test_a_tenant_is_served_in_its_regions_only(live):
    async def body(gateway):
        async with client(gateway, KEY) as api:
            for _ in range(6):
                answer = await api.chat.completions.with_raw_response.create(
                    model="m", messages=ASK
                )
                assert answer.headers["x-holdfast-replica"] == "eu-1"

    async def with_regions(gateway):
        urls = [engine.url for engine in gateway.engines]
        endpoints = [
            {"url": urls[0], "id": "us-1", "region": "us"},
            {"url": urls[1], "id": "eu-1", "region": "eu"},
        ]
        file = FleetFile.from_json(
            orjson.dumps(
                {
                    "models": [{"name": "m", "engine": "vllm", "endpoints": endpoints}],
                    "tenants": [tenant("a", KEY, regions=["eu"])],
                }
            )
        )
        gateway.reload(file, 2)
        await body(gateway)

    live(with_regions)


# --- virtual models ------------------------------------------------------------------------------


def fleet(gateway, **extra) -> FleetFile:
    urls = [engine.url for engine in gateway.engines]
    models = [{"name": n, "engine": "vllm", "endpoints": urls} for n in ("big", "small")]
    return FleetFile.from_json(orjson.dumps({"models": models, **extra}))


def test_rules_choose_the_path_and_the_answer_says_which(live):
    async def body(gateway):
        rules = [
            {"when": {"tools": True}, "use": "big"},
            {"when": {"header": {"x-tier": "gold"}}, "use": "big"},
        ]
        auto = {"name": "auto", "rules": rules, "default": "small"}
        gateway.reload(fleet(gateway, virtual_models=[auto]), 2)
        async with client(gateway) as api:
            call = api.chat.completions.with_raw_response.create
            plain = await call(model="auto", messages=ASK)
            assert plain.headers["x-holdfast-model"] == "small"
            assert plain.parse().choices[0].message.content == expected_text("small", ASK, 12)
            gold = await call(model="auto", messages=ASK, extra_headers={"x-tier": "gold"})
            assert gold.headers["x-holdfast-model"] == "big"
            named = {"type": "function", "function": {"name": "f", "parameters": {}}}
            tools = await call(model="auto", messages=ASK, tools=[named])
            assert tools.headers["x-holdfast-model"] == "big"

    live(body, options=MODELS)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_cheap_answer_that_fails_a_check_is_asked_of_the_strong_model(live, streamed):
    async def body(gateway):
        rules = [{"use": "small", "check": ["length"], "escalate": "big"}]
        virtual = [{"name": "auto", "rules": rules}]
        gateway.reload(fleet(gateway, virtual_models=virtual), 2)
        async with client(gateway) as api:
            for limit, model in ((5, "big"), (50, "small")):
                text = expected_text(model, ASK, min(limit, 12))
                if streamed:
                    chunks = await api.chat.completions.create(
                        model="auto", messages=ASK, max_tokens=limit, stream=True
                    )
                    said = [c.choices[0].delta.content or "" async for c in chunks]
                    assert "".join(said).split() == text.split()
                else:
                    raw = await api.chat.completions.with_raw_response.create(
                        model="auto", messages=ASK, max_tokens=limit
                    )
                    assert raw.headers["x-holdfast-model"] == model
                    said = raw.parse().choices[0].message.content
                    assert said.split() == text.split()
                    story = gateway.driver.observer.records.explain(raw.headers["x-request-id"])
                    assert story["served_by"] == model
        counted = gateway.driver.observer.counters.read()
        assert counted['escalations_total{model="auto",check="length"}'] == 1

    live(body, options=MODELS)


def test_a_ladder_degrades_only_those_who_asked_for_it(live):
    async def body(gateway):
        ladder = {"ladder": ["big", "small"], "step_s": 0.1, "share_step": 1.0}
        virtual = [{"name": "best", "degrade": ladder}]
        file = fleet(gateway, virtual_models=virtual)
        models = [m.model_dump(mode="json") for m in file.models]
        for endpoint in models[0]["endpoints"]:
            endpoint["slots"] = 1
        document = {"models": models, "virtual_models": virtual}
        gateway.reload(FleetFile.from_json(orjson.dumps(document)), 2)
        async with client(gateway) as api:
            call = api.chat.completions.with_raw_response.create
            running = [asyncio.ensure_future(call(model="best", messages=ASK)) for _ in range(60)]
            moved = lambda: any(getattr(n, "what", "") == "ladder moved" for n in gateway.news)  # noqa: E731
            await gateway.until(moved)
            served = [await call(model="best", messages=ASK) for _ in range(4)]
            assert {a.headers.get("x-holdfast-degraded") for a in served} == {"small"}
            named = await call(model="big", messages=ASK)
            assert "x-holdfast-degraded" not in named.headers
            await asyncio.gather(*running)

    slow = Options(models=("big", "small"), ttft_ms=100.0, tpot_ms=5.0, tokens=12)
    live(body, options=slow)


# --- standing ------------------------------------------------------------------------------------


def test_probes_tell_alive_ready_and_which_model(live):
    async def body(gateway):
        assert b" 200 " in (await get(gateway, "/livez"))[:20]
        assert b" 200 " in (await get(gateway, "/readyz"))[:20]
        assert b" 200 " in (await get(gateway, "/readyz/m"))[:20]
        assert b" 503 " in (await get(gateway, "/readyz/other"))[:20]
        gone = tuple(ReplicaView(v.replica, State.DEAD, 0.0) for v in gateway.views)
        gateway.driver.view(FleetView(2, gone))
        assert b" 200 " in (await get(gateway, "/readyz"))[:20]
        assert b" 503 " in (await get(gateway, "/readyz/m"))[:20]
        gateway.driver.readiness.draining = True
        assert b" 200 " in (await get(gateway, "/livez"))[:20]
        assert b"draining" in await get(gateway, "/readyz")

    live(body)


def test_a_new_config_lets_what_runs_go_on_under_the_old_one(live):
    async def body(gateway):
        async with client(gateway) as api:
            running = asyncio.ensure_future(api.chat.completions.create(model="m", messages=ASK))
            await gateway.until(lambda: gateway.driver.busy == 1)
            urls = [engine.url for engine in gateway.engines]
            models = [{"name": "m", "engine": "vllm", "endpoints": urls}]
            changed = {"models": models, "retry": {"attempts": 1}}
            before = gateway.driver.flow
            gateway.reload(FleetFile.from_json(orjson.dumps(changed)), 2)
            assert gateway.driver.flow is not before
            assert (await running).choices[0].finish_reason == "stop"
            assert (await api.chat.completions.create(model="m", messages=ASK)).choices

    live(body, options=Options(ttft_ms=200.0, tpot_ms=1.0, tokens=4))


def test_what_runs_on_a_leaving_replica_moves_to_another(live):
    async def body(gateway):
        async with client(gateway) as api:
            stream = await api.chat.completions.create(model="m", messages=ASK, stream=True)
            said, moved = "", False
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
                if said and not moved:
                    moved = True
                    attempt = next(iter(gateway.driver.port.streaming))
                    gateway.driver.move("m", attempt.target.replica_id)
            assert said == expected_text("m", ASK, 12)
            assert moved

    live(body, options=Options(ttft_ms=2.0, tpot_ms=10.0, tokens=12))


@pytest.mark.parametrize(
    ("stream", "waited_s", "attempts"),
    [(True, 6, "2"), (True, 4, "1"), (False, 6, "2"), (False, 4, "1")],
    ids=["stuck", "not yet", "in one piece", "in one piece, not yet"],
)
def test_from_a_stalled_replica_only_what_is_stuck_is_moved(live, stream, waited_s, attempts):
    async def body(gateway):
        async with client(gateway) as api:
            asked = api.chat.completions.with_raw_response.create(
                model="m", messages=ASK, stream=stream
            )
            asking = asyncio.create_task(asked)
            requests = gateway.driver.port.requests
            await gateway.until(lambda: any(one.attempts for one in requests.values()))
            (proxied,) = requests.values()
            (attempt,) = gateway.driver.port.flow.lives[proxied.serial].live
            attempt.started -= waited_s * SECOND
            gateway.driver.move("m", attempt.candidate.id, stalled=True)
            assert (await asking).headers["x-holdfast-attempts"] == attempts

    live(body, options=Options(ttft_ms=300.0, tpot_ms=1.0, tokens=4))


def test_at_the_end_of_a_drain_what_still_runs_gets_an_error_event(live):
    async def body(gateway):
        async with client(gateway) as api:
            stream = await api.chat.completions.create(model="m", messages=ASK, stream=True)
            await anext(aiter(stream))
            gateway.driver.cut_all()
            with pytest.raises(openai.APIError):
                [chunk async for chunk in stream]
        assert gateway.driver.busy == 0

    live(body, options=Options(ttft_ms=2.0, tpot_ms=20.0, tokens=100))


# --- privacy -------------------------------------------------------------------------------------


def test_prompts_answers_and_keys_are_kept_nowhere(live, caplog):
    planted = "PLANTED-7f3c"

    async def body(gateway):
        asked = [{"role": "user", "content": f"{planted}-prompt"}]
        for kind in ("", "cut", "black_hole", "garbage"):
            if kind:
                gateway.ail(0, kind, tokens=3)
            async with client(gateway, f"{planted}-key") as api:
                await api.chat.completions.create(model="m", messages=asked, user=f"{planted}-user")
                chunks = await api.chat.completions.create(model="m", messages=asked, stream=True)
                [chunk async for chunk in chunks]
                with pytest.raises(openai.NotFoundError) as caught:
                    await api.chat.completions.create(model=f"{planted}-model", messages=asked)
                assert planted not in str(caught.value)
        stories = [
            gateway.driver.observer.records.explain(name.decode())
            for name in (
                *gateway.driver.observer.records._plain,
                *gateway.driver.observer.records._unusual,
            )
        ]
        said = expected_text("m", asked, 12).split()[0]
        kept = json.dumps([stories, gateway.driver.observer.counters.read(), str(gateway.news)])
        assert stories
        assert planted not in kept
        assert said not in kept
        assert planted not in caplog.text

    live(body, tenants=[tenant("a", f"{planted}-key")])


# --- tensors as bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("stated", [True, False])
def test_tensors_behind_the_json_of_an_infer_request_and_answer_pass_through(live, stated):
    head = b'{"model_name":"t","outputs":[{"name":"y","datatype":"FP32","shape":[1]}]}'
    asked = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}'
    seen = []

    async def engine(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        seen.append(await reader.readexactly(len(asked) + 4))
        size = b"inference-header-content-length: %d\r\n" % len(head) if stated else b""
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n%b"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (size, len(head) + 4, head)
        )
        writer.write(b"\x00\x00\x80\x3f")
        await writer.drain()
        writer.close()

    async def body(gateway):
        server = await gateway.put_behind(engine, "t", "triton")
        answer = await raw(
            gateway,
            b"POST /v2/models/t/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
            b"content-length: %d\r\n\r\n%b\x00\x00\x00\x40" % (len(asked), len(asked) + 4, asked),
        )
        server.close()
        assert b"inference-header-content-length: %d\r\n" % len(asked) in seen[0].lower()
        assert seen[1] == asked + b"\x00\x00\x00\x40"
        if stated:
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"inference-header-content-length: %d\r\n" % len(head) in answer
            assert answer.endswith(head + b"\x00\x00\x80\x3f")
        else:
            assert answer.startswith(b"HTTP/1.1 502 ")  # bytes behind JSON that nobody announced

    live(body, replicas=1)


# --- what every HTTP server does -----------------------------------------------------------------


def test_answers_and_refusals_have_a_date(live):
    async def body(gateway):
        await gateway.until(lambda: gateway.server.date != b"")
        for answer in (await get(gateway, "/v1/models"), await raw(gateway, b"no http\r\n\r\n")):
            head = answer.partition(b"\r\n\r\n")[0].lower()
            (line,) = [line for line in head.split(b"\r\n") if line.startswith(b"date: ")]
            told = parsedate_to_datetime(line[6:].decode())
            assert abs(told.timestamp() - time.time()) < 60

    live(body, replicas=1)


@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/models/m"])
def test_the_models_can_be_asked_for_without_their_list(live, path):
    async def body(gateway):
        whole = await get(gateway, path.decode())
        head = await raw(
            gateway, b"HEAD %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path
        )
        size = len(whole.partition(b"\r\n\r\n")[2])
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"content-length: %d\r\n" % size in head
        assert head.endswith(b"\r\n\r\n")
        refused = await raw(
            gateway,
            b"HEAD /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        )
        assert refused.startswith(b"HTTP/1.1 405 ")

    live(body, replicas=1)
