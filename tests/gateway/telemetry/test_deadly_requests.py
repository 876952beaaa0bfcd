"""Requests that end their replicas: fingerprinted, told to control, refused when it says so."""

from random import Random
from string import ascii_lowercase

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from holdfast.core.types import SECOND
from holdfast.gateway.api.bodies import ParsedRequest
from holdfast.gateway.api.routes import ROUTES, Api
from holdfast.gateway.telemetry.deadly_requests import (
    ANSWERED_MAX,
    BLOCKED_MAX,
    DIED_MAX,
    DeadlyRequests,
)
from holdfast.gateway.telemetry.request_sketch import MARKS, PREFIX, marks_of
from holdfast.testing.standin import Options, expected_text

CHAT = ROUTES[b"/v1/chat/completions"]
ASK = [{"role": "user", "content": "Who is there?"}]
DEADLY = [{"role": "user", "content": "Divide by the cucumber."}]
SLOW = Options(ttft_ms=40.0, tpot_ms=1.0, tokens=12)


def ask(body: bytes = b"{}", api: Api = Api.CHAT, model: str = "m") -> ParsedRequest:
    return ParsedRequest(CHAT, api, model, body, b"application/json")


def fingerprint(subject: DeadlyRequests, asked: ParsedRequest) -> str:
    subject.saw("r", asked, 0)
    return subject.take()[-1][1]


def keyed(secret: bytes = b"secret") -> DeadlyRequests:
    subject = DeadlyRequests()
    subject.use(secret)
    return subject


# --- fingerprints --------------------------------------------------------------------------------


def test_without_a_key_there_are_no_fingerprints():
    subject = DeadlyRequests()
    subject.saw("r1", ask(), 0)
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
    subject.saw("r1", ask(), 0)
    assert subject.take() == [("r1", first, 0)]


def test_what_died_is_told_once_and_bounded():
    subject = keyed()
    for number in range(DIED_MAX + 10):
        subject.saw(f"r{number}", ask(), number)
    told = subject.take()
    assert [replica for replica, *_ in told] == [f"r{n}" for n in range(10, DIED_MAX + 10)]
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


def test_one_that_ended_two_replicas_here_is_refused_until_control_has_spoken():
    subject = keyed()
    subject.hold(ask(), 0)
    assert subject.refuses(ask(), SECOND)
    subject.block([], 2 * SECOND)  # of another matter: control does not know of it yet
    assert subject.refuses(ask(), 3 * SECOND)
    subject.block([], 11 * SECOND)
    assert not subject.refuses(ask(), 11 * SECOND)
    keyless = DeadlyRequests()
    keyless.hold(ask(), 0)
    assert not keyless.blocked


def test_another_key_forgets_what_the_last_one_meant():
    subject = keyed()
    subject.block([(fingerprint(subject, ask()), 60.0)], 0)
    subject.saw("r1", ask(), 0)
    subject.use(b"another")
    assert not subject.blocked
    assert subject.take() == []


# --- requests that differ in a nonce -------------------------------------------------------------

STORY = (
    "Please write a story about a lighthouse keeper who counts ships through the winter and sends "
    "a letter to the harbour master about every one of them that did not answer his lamp"
)


def chat(text: str, **members: object) -> ParsedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **members}
    return ask(orjson.dumps(body))


NONCES = [
    chat(f"{STORY} 8f3a91"),
    chat(f"[request 17] {STORY}"),
    chat(STORY.replace("winter", "winter 2041-03-07T11:12:13")),
    chat(STORY, user="u-7714", seed=42, metadata={"trace": "00-4bf92f35"}),
    chat(STORY, temperature=0.7000001, max_tokens=64, stream=True),
]


@pytest.mark.parametrize("asked", NONCES)
def test_a_nonce_does_not_hide_a_blocked_request(asked):
    subject = keyed()
    subject.saw("r1", chat(STORY), 0)
    subject.block([(name, 60.0) for _, name, _ in subject.take()], 0)
    assert subject.refuses(asked, 1)


@pytest.mark.parametrize("text", [STORY, "Divide by the cucumber."])
def test_random_words_seldom_hide_it(text):
    random, refused = Random(5), 0
    for number in range(200):
        subject = keyed(b"%d" % number)
        subject.saw("r1", chat(text), 0)
        subject.block([(name, 60.0) for _, name, _ in subject.take()], 0)
        nonce = "".join(random.choices(ascii_lowercase, k=12))
        refused += subject.refuses(chat(f"{text} {nonce}"), 1)
    assert refused >= 160


OTHERS = [
    chat("Please write a poem about the sea."),
    chat("Who is there?"),
    chat(" ".join(reversed(STORY.split()))),
    ask(chat(STORY).body, model="n"),
    ask(chat(STORY).body, api=Api.COMPLETIONS),
    ask(b'{"input":[[1,2,3]]}'),
]


@pytest.mark.parametrize("asked", OTHERS)
def test_another_request_is_not_taken_for_a_blocked_one(asked):
    subject = keyed()
    subject.saw("r1", chat(STORY), 0)
    subject.block([(name, 60.0) for _, name, _ in subject.take()], 0)
    assert not subject.refuses(asked, 1)


def test_what_answered_requests_have_in_common_with_a_deadly_one_is_not_held_against_them():
    subject = keyed()
    for number in range(50):  # one program, with a line of its user's at the end
        subject.answered(chat(f"{STORY} of ship {number}"), number * SECOND)
    deadly = chat(f"{STORY} of ship cucumber")
    subject.saw("r1", deadly, 0)
    subject.block([(name, 3600.0) for _, name, _ in subject.take()], 60 * SECOND)
    assert subject.refuses(deadly, 61 * SECOND)  # itself, by its fingerprint
    assert not subject.refuses(chat(f"{STORY} of ship 51"), 61 * SECOND)


def test_few_answered_requests_are_remembered_and_a_bound_holds():
    subject = keyed()
    for number in range(1_000):
        subject.answered(chat(f"word{'x' * (number % 700)}"), number)  # all within a moment
    assert len(subject._answered) == 1
    for number in range(1, 2_000):
        subject.answered(chat("abcdefgh"[number % 8] * (number % 90 + 1)), number * SECOND)
    assert len(subject._answered) == ANSWERED_MAX
    assert sum(subject._harmless.values()) == MARKS * ANSWERED_MAX


def test_marks_of_bodies_without_words_and_of_long_ones():
    assert marks_of(b'{"input":[1,2,3]}', "embeddings m", b"k") == []
    assert marks_of(b"", "chat m", b"k") == []
    long = chat("word " * 2_000_000).body
    assert len(set(marks_of(long, "chat m", b"k"))) == MARKS
    middle = long.replace(b"word " * 1_000_000, b"word " * 999_999 + b"nonce ", 1)
    assert marks_of(middle, "chat m", b"k") == marks_of(long, "chat m", b"k")  # not read


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
            told = gateway.driver.observer.deadly.take()
            assert len({replica for replica, *_ in told}) == 1  # one after the other, as they died
            told += gateway.driver.observer.deadly.take()
            died = [(replica, name) for replica, name, _ in told if not name.startswith(PREFIX)]
            assert len(died) == 2
            assert len({replica for replica, _ in died}) == 2
            (name,) = {name for _, name in died}
            story = gateway.driver.observer.records.explain(error.response.headers["x-request-id"])
            assert story["story"][-1]["what"] == "replicas_lost"

            gateway.driver.observer.deadly.block([(name, 3600.0)], gateway.driver.now_ns())
            with pytest.raises(openai.UnprocessableEntityError) as caught:
                await api.chat.completions.create(model="m", messages=DEADLY)
            assert caught.value.code == "request_blocked"

            names = {name for _, name, _ in told}
            gateway.driver.observer.deadly.block(
                [(n, 60.0) for n in names], gateway.driver.now_ns()
            )
            nonce = [{"role": "user", "content": "[7713] Divide by the cucumber."}]
            with pytest.raises(openai.UnprocessableEntityError) as caught:
                await api.chat.completions.create(model="m", messages=nonce)
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
        died = gateway.driver.observer.deadly.take() + gateway.driver.observer.deadly.take()
        assert {replica for replica, *_ in died} == {"m-1", "m-2"}
        assert len({name for _, name, _ in died if not name.startswith(PREFIX)}) == 1

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
