"""Tokens by tenant, model, route and use: alone, and of real requests at a live gateway."""

import asyncio
from time import monotonic_ns
from types import SimpleNamespace

import orjson
import pytest
from openai import APIStatusError, AsyncOpenAI

from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key
from holdfast.core.failure import Kind
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.plan.cost import Use
from holdfast.core.types import State
from holdfast.gateway.request.settings import settings_of, targets_of
from holdfast.gateway.telemetry import token_ledger as spent
from holdfast.gateway.telemetry.token_ledger import TokenLedger
from holdfast.testing.standin import Options

ASK = [{"role": "user", "content": "Who is there?"}]


def attempt(*, begun=False, continues=False, tenant="a", via="direct"):
    proxied = SimpleNamespace(tenant=SimpleNamespace(name=tenant), via=via)
    target = SimpleNamespace(model="m")
    return SimpleNamespace(proxied=proxied, target=target, begun=begun, continues=continues)


def read(spending):
    """By (tenant, model, route, use): tokens read and said."""
    told = {}
    spending.read(told)
    found = {}
    for series, count in told.items():
        labels = dict(
            part.split("=")
            for part in series[len("tokens_total{") : -1].replace('"', "").split(",")
        )
        key = (labels["tenant"], labels["model"], labels["route"], labels["use"])
        pair = found.setdefault(key, [0, 0])
        pair[labels["type"] == "output"] = count
    return {key: tuple(pair) for key, pair in found.items()}


@pytest.mark.parametrize(
    ("kind", "begun", "use"),
    [
        (Kind.RESET, False, Use.RETRY),
        (Kind.SERVER_ERROR, False, Use.RETRY),
        (Kind.FIRST_TOKEN_TIMEOUT, False, Use.RETRY),
        (Kind.SUPERSEDED, False, Use.HEDGE),
        (Kind.CLIENT_GONE, False, Use.ABANDONED),
        (Kind.CLIENT_GONE, True, Use.USEFUL),  # it was shown what there was
        (Kind.RESET, True, Use.USEFUL),
        (Kind.DEGENERATE, True, Use.RETRY),  # shown, and of no use to anybody
    ],
)
def test_an_attempt_is_booked_by_what_became_of_it(kind, begun, use):
    spending = TokenLedger()
    spending.ended(attempt(begun=begun), kind, 70, 9)
    assert read(spending) == {("a", "m", "direct", use.value): (70, 9)}


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.OVERLOADED, Kind.BAD_REQUEST])
def test_what_no_engine_took_on_costs_nothing(kind):
    spending = TokenLedger()
    spending.ended(attempt(), kind, 70, 0)
    assert read(spending) == {}


def test_going_on_elsewhere_costs_reading_again_and_what_it_says_is_of_use():
    spending = TokenLedger()
    spending.ended(attempt(begun=True, continues=True), None, 90, 9)
    assert read(spending) == {
        ("a", "m", "direct", "continuation"): (90, 0),
        ("a", "m", "direct", "useful"): (0, 9),
    }


def test_an_answer_that_was_not_good_enough_is_booked_again():
    spending = TokenLedger()
    row = spending.row("a", "small", "auto")
    row[0] += 70
    row[1] += 9
    spending.escalated("a", "small", "auto", 70, 9)
    assert read(spending) == {("a", "small", "auto", "escalation"): (70, 9)}


def test_what_holdfast_asks_itself_is_nobodys():
    spending = TokenLedger()
    spending.ours("m", Use.COMPARISON, 5, 6)
    assert read(spending) == {("-", "m", "direct", "comparison"): (5, 6)}


def test_there_are_only_so_many_rows(monkeypatch):
    monkeypatch.setattr(spent, "ROWS_MAX", 2)
    spending = TokenLedger()
    for tenant in "abcd":
        spending.row(tenant, "m", "direct")[0] += 1
    assert read(spending)["-", "-", "-", "useful"] == (2, 0)


# --- at a live gateway ----------------------------------------------------------------------------


def booked(gateway):
    return read(gateway.driver.observer.counters.ledger)


def test_whole_and_streamed_answers_are_booked_to_their_tenant(live):
    async def body(gateway):
        async with AsyncOpenAI(base_url=gateway.url, api_key="hf-ledger-key", max_retries=0) as api:
            whole = await api.chat.completions.create(model="m", messages=ASK)
            stream = await api.chat.completions.create(
                model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
            )
            usage = [chunk.usage async for chunk in stream][-1]
        used = whole.usage
        told = booked(gateway)["search", "m", "direct", "useful"]
        assert told[0] == used.prompt_tokens + usage.prompt_tokens
        assert told[1] == used.completion_tokens + usage.completion_tokens
        counters = gateway.driver.observer.counters.read()
        assert counters['gen_ai_server_time_to_first_token_seconds_count{model="m"}'] == 1
        assert counters['gen_ai_server_time_per_output_token_seconds_count{model="m"}'] == 1
        assert counters['gen_ai_client_time_per_output_chunk_seconds_count{model="m"}'] == 1
        assert (
            counters['gen_ai_client_operation_duration_seconds_count{model="m",outcome="ok"}'] == 2
        )
        assert 0 < counters['attempt_seconds_total{replica="m-1"}'] < 60

    live(body, replicas=1, tenants=[{"name": "search", "keys": [hash_key("hf-ledger-key")]}])


def test_a_failed_attempt_is_waste_and_the_second_is_not(live):
    async def body(gateway):
        gateway.ail(0, "black_hole")
        async with AsyncOpenAI(base_url=gateway.url, api_key="x", max_retries=0) as api:
            for _ in range(4):
                await api.chat.completions.create(model="m", messages=ASK)
        told = booked(gateway)
        assert told["default", "m", "direct", "useful"][1] > 0
        assert told["default", "m", "direct", "retry"][0] > 0
        assert told["default", "m", "direct", "retry"][1] == 0

    live(body, replicas=2)


def test_a_virtual_name_is_a_route_of_its_own(live):
    async def body(gateway):
        async with AsyncOpenAI(base_url=gateway.url, api_key="x", max_retries=0) as api:
            await api.chat.completions.create(model="auto", messages=ASK)
            with pytest.raises(APIStatusError):
                await api.chat.completions.create(model="nothing", messages=ASK)
        assert set(booked(gateway)) == {("default", "m", "auto", "useful")}

    virtual = [{"name": "auto", "default": "m"}]
    live(body, replicas=1, virtual_models=virtual)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_failed_a_check_is_waste_of_the_cheap_model(live, streamed):
    async def body(gateway):
        url = gateway.engines[0].url
        models = [
            {"name": name, "engine": "vllm", "endpoints": [{"url": url, "id": f"{name}-1"}]}
            for name in ("small", "big")
        ]
        rules = [{"use": "small", "check": ["length"], "escalate": "big"}]
        text = {
            "gateway": {"listen": "127.0.0.1:0"},
            "admin": {"listen": "127.0.0.1:0"},
            "models": models,
            "virtual_models": [{"name": "auto", "rules": rules}],
        }
        file = FleetFile.from_json(orjson.dumps(text))
        loop = asyncio.get_running_loop()
        gateway.targets = targets_of(file, gateway.targets, loop, monotonic_ns)
        gateway.driver.reconfigure(settings_of(file), gateway.targets)
        views = tuple(ReplicaView(d.replica, State.READY, 1.0) for d in file.replicas())
        gateway.driver.view(FleetView(2, views))
        async with AsyncOpenAI(base_url=gateway.url, api_key="x", max_retries=0) as api:
            answer = await api.chat.completions.create(
                model="auto", messages=ASK, max_tokens=5, stream=streamed
            )
            if streamed:
                assert [chunk async for chunk in answer]
        told = booked(gateway)
        assert set(told) == {
            ("default", "small", "auto", "escalation"),
            ("default", "big", "auto", "useful"),
        }
        assert told["default", "small", "auto", "escalation"][1] == 5

    live(body, replicas=1, options=Options(models=("m", "small", "big"), ttft_ms=1.0, tpot_ms=1.0))


def test_a_second_opinion_is_nobodys(live):
    async def body(gateway):
        async with AsyncOpenAI(base_url=gateway.url, api_key="x", max_retries=0) as api:
            await api.chat.completions.create(model="m", messages=ASK, temperature=0)
        await gateway.until(lambda: ("-", "m", "direct", "comparison") in booked(gateway))
        useful = booked(gateway)["default", "m", "direct", "useful"]
        assert booked(gateway)["-", "m", "direct", "comparison"] == useful

    comparison = {"comparison": {"share": 1.0, "in_flight_max": 64}}
    live(body, replicas=2, model=comparison)
