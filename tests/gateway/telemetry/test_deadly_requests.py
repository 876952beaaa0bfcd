"""Requests that end their replicas: fingerprinted, told to control, refused when it says so."""

import openai
import pytest
from openai import AsyncOpenAI

from holdfast.core.types import SECOND
from holdfast.gateway.api.bodies import ParsedRequest
from holdfast.gateway.api.routes import ROUTES, Api
from holdfast.gateway.telemetry.deadly_requests import BLOCKED_MAX, DIED_MAX, DeadlyRequests
from holdfast.testing.standin import Options, expected_text

CHAT = ROUTES[b"/v1/chat/completions"]
ASK = [{"role": "user", "content": "Who is there?"}]
DEADLY = [{"role": "user", "content": "Divide by the cucumber."}]
SLOW = Options(ttft_ms=40.0, tpot_ms=1.0, tokens=12)


def ask(body: bytes = b"{}", api: Api = Api.CHAT, model: str = "m") -> ParsedRequest:
    return ParsedRequest(CHAT, api, model, body, b"application/json")


def fingerprint(subject: DeadlyRequests, asked: ParsedRequest) -> str:
    subject.saw("r", asked)
    return subject.take()[-1][1]


def keyed(secret: bytes = b"secret") -> DeadlyRequests:
    subject = DeadlyRequests()
    subject.use(secret)
    return subject


# --- fingerprints --------------------------------------------------------------------------------


def test_without_a_key_there_are_no_fingerprints():
    subject = DeadlyRequests()
    subject.saw("r1", ask())
    assert subject.take() == []
    subject.block([("ab", 60.0)], 0)
    assert not subject.refuses(ask(), 0)


def test_the_same_request_has_the_same_fingerprint_everywhere_and_no_other_has_it():
    one = fingerprint(keyed(), ask(b'{"a":1}'))
    assert fingerprint(keyed(), ask(b'{"a":1}')) == one
    others = [
        fingerprint(keyed(), ask(b'{"a":2}')),
        fingerprint(keyed(), ask(b'{"a":1}', model="n")),
        fingerprint(keyed(), ask(b'{"a":1}', api=Api.COMPLETIONS)),
        fingerprint(keyed(b"another"), ask(b'{"a":1}')),
    ]
    assert len({one, *others}) == 5
    assert len(one) == 32


def test_a_key_longer_than_the_hash_takes_is_cut():
    subject = keyed(b"k" * 200)
    first = fingerprint(subject, ask())
    subject.use(b"k" * 200)  # the same again changes nothing
    subject.saw("r1", ask())
    assert subject.take() == [("r1", first)]


def test_what_died_is_told_once_and_bounded():
    subject = keyed()
    for number in range(DIED_MAX + 10):
        subject.saw(f"r{number}", ask())
    told = subject.take()
    assert [replica for replica, _ in told] == [f"r{n}" for n in range(10, DIED_MAX + 10)]
    assert subject.take() == []


# --- blocks --------------------------------------------------------------------------------------


def test_a_block_holds_for_its_time():
    subject = keyed()
    name = fingerprint(subject, ask())
    subject.block([(name, 2.0)], 10 * SECOND)
    assert subject.refuses(ask(), 11 * SECOND)
    assert not subject.refuses(ask(b"[]"), 11 * SECOND)
    assert not subject.refuses(ask(), 12 * SECOND)
    assert not subject.blocked  # and costs nothing from then on


def test_a_new_list_replaces_the_old_one():
    subject = keyed()
    name = fingerprint(subject, ask())
    subject.block([(name, 60.0), ("spent", 0.0)], 0)
    assert set(subject.blocked) == {name}
    subject.block([], 0)
    assert not subject.blocked
    subject.block([(str(number), 60.0) for number in range(BLOCKED_MAX + 5)], 0)
    assert len(subject.blocked) == BLOCKED_MAX


def test_another_key_forgets_what_the_last_one_meant():
    subject = keyed()
    subject.block([(fingerprint(subject, ask()), 60.0)], 0)
    subject.saw("r1", ask())
    subject.use(b"another")
    assert not subject.blocked
    assert subject.take() == []


# --- on a live gateway ---------------------------------------------------------------------------


def client(gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0)


def test_a_deadly_request_ends_two_replicas_and_not_the_third(live):
    async def body(gateway):
        gateway.driver.observer.deadly.use(b"secret")
        for index in range(4):
            gateway.ail(index, "oom", marker="cucumber")
        async with client(gateway) as api:
            for _ in range(8):  # connections are pooled, as in ordinary life
                await api.chat.completions.create(model="m", messages=ASK)
            with pytest.raises(openai.APIStatusError) as caught:
                await api.chat.completions.create(model="m", messages=DEADLY)
            error = caught.value
            assert (error.status_code, error.code) == (502, "replicas_lost")
            assert error.response.headers["x-should-retry"] == "false"
            assert "retry-after" not in error.response.headers
            assert sum(engine.exit_status is not None for engine in gateway.engines) == 2
            died = gateway.driver.observer.deadly.take()
            assert len(died) == 2
            assert len({replica for replica, _ in died}) == 2
            (name,) = {name for _, name in died}
            story = gateway.driver.observer.records.explain(error.response.headers["x-request-id"])
            assert story["story"][-1]["what"] == "replicas_lost"

            gateway.driver.observer.deadly.block([(name, 3600.0)], gateway.driver.now_ns())
            with pytest.raises(openai.UnprocessableEntityError) as caught:
                await api.chat.completions.create(model="m", messages=DEADLY)
            assert caught.value.code == "request_blocked"
            assert caught.value.type == "invalid_request_error"
            assert caught.value.response.headers["x-should-retry"] == "false"
            assert "retry-after" not in caught.value.response.headers
            assert "cucumber" not in str(caught.value)
            assert sum(engine.exit_status is not None for engine in gateway.engines) == 2
            answer = await api.chat.completions.create(model="m", messages=ASK)
            assert answer.choices[0].message.content == expected_text("m", ASK, 12)

    live(body, replicas=4, options=SLOW, retry={"attempts": 4})


def test_a_stream_that_another_replica_finished_is_no_killer(live):
    async def body(gateway):
        gateway.driver.observer.deadly.use(b"secret")
        gateway.ail(0, "cut", tokens=5)
        async with client(gateway) as api:
            for _ in range(4):
                stream = await api.chat.completions.create(model="m", messages=ASK, stream=True)
                assert [chunk async for chunk in stream]
        assert gateway.driver.observer.deadly.take() == []
        assert not gateway.driver.observer._died_under

    live(body)


def test_a_stream_that_nobody_could_finish_is_fingerprinted_too(live):
    async def body(gateway):
        gateway.driver.observer.deadly.use(b"secret")
        for place in range(2):
            gateway.ail(place, "cut", tokens=5)
        async with client(gateway) as api:

            async def ask():
                stream = await api.chat.completions.create(model="m", messages=ASK, stream=True)
                return [chunk async for chunk in stream]

            with pytest.raises(openai.APIError):
                await ask()
        died = gateway.driver.observer.deadly.take()
        assert {replica for replica, _ in died} == {"m-1", "m-2"}
        assert len({name for _, name in died}) == 1

    live(body, replicas=2, options=SLOW)


@pytest.mark.parametrize(
    ("kind", "how"), [("close", {"tokens": 3}), ("status", {"code": 500}), ("black_hole", {})]
)
def test_other_failures_are_nobodys_death(live, kind, how):
    async def body(gateway):
        gateway.driver.observer.deadly.use(b"secret")
        gateway.ail(0, kind, **how)
        async with client(gateway) as api:
            for _ in range(4):
                stream = await api.chat.completions.create(model="m", messages=ASK, stream=True)
                assert [chunk async for chunk in stream]
        assert gateway.driver.observer.deadly.take() == []

    live(body)
