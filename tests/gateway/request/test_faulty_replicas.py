"""What clients see while replicas fail under them, each in its own way."""

import asyncio

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from holdfast.core.messages import Summary
from holdfast.core.request.breaker import BreakerState
from holdfast.testing.standin import Like, Options, expected_text

ASK = [{"role": "user", "content": "Tell me about fleets that keep answering."}]
TEXT = expected_text("m", ASK, 12)
STEADY = Options(ttft_ms=2.0, tpot_ms=2.0, tokens=12)


def client(gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0)


async def stream(api: AsyncOpenAI, **extra):
    """All chunks of one streamed answer, and its headers."""
    raw = await api.chat.completions.with_raw_response.create(
        model="m", messages=ASK, stream=True, **extra
    )
    return [chunk async for chunk in raw.parse()], raw.headers


def text_of(chunks) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def reasons(chunks) -> list[str]:
    return [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]


BEFORE_CONTENT = [
    ("black_hole", {}),
    ("empty", {}),
    ("garbage", {"form": "bytes"}),
    ("garbage", {"form": "json"}),
    ("status", {"code": 500}),
    ("status", {"code": 503}),
    ("refuse_busy", {}),
    ("cut", {"tokens": 0}),
    ("close", {"tokens": 0}),
    ("error_frame", {"tokens": 0}),
]


@pytest.mark.parametrize(("kind", "how"), BEFORE_CONTENT, ids=str)
def test_a_failure_before_the_first_content_is_never_seen(live, kind, how):
    async def body(gateway):
        gateway.ail(0, kind, **how)
        async with client(gateway) as api:
            for _ in range(8):
                chunks, _ = await stream(api)
                assert text_of(chunks) == TEXT
                assert reasons(chunks) == ["stop"]
                whole = await api.chat.completions.create(model="m", messages=ASK)
                assert whole.choices[0].message.content == TEXT

    live(body, options=STEADY)


MID_STREAM = ["cut", "close", "error_frame"]


@pytest.mark.parametrize("kind", MID_STREAM)
@pytest.mark.parametrize("like", [Like.VLLM, Like.LLAMACPP])
def test_a_stream_that_breaks_off_goes_on_elsewhere_as_one_answer(live, kind, like):
    async def body(gateway):
        gateway.ail(0, kind, tokens=5)
        async with client(gateway) as api:
            continued = 0
            for _ in range(6):
                chunks, _ = await stream(api, max_tokens=20, stream_options={"include_usage": True})
                assert text_of(chunks) == TEXT
                assert reasons(chunks) == ["stop"]
                assert len({chunk.id for chunk in chunks}) == 1
                assert sum(c.choices[0].delta.role is not None for c in chunks if c.choices) == 1
                assert chunks[-1].usage.completion_tokens == 12
                extra = [c.model_extra for c in chunks if (c.model_extra or {}).get("holdfast")]
                continued += bool(extra)
            assert continued

    options = Options(ttft_ms=2.0, tpot_ms=2.0, tokens=12, like=like)
    live(body, options=options, model={"engine": str(like)})


@pytest.mark.parametrize("like", [Like.VLLM, Like.LLAMACPP])
def test_what_was_said_before_the_seam_counts_against_max_tokens(live, like):
    async def body(gateway):
        gateway.ail(0, "cut", tokens=5)
        gateway.ail(1, "cut", tokens=5)
        async with client(gateway) as api:
            for _ in range(4):
                chunks, _ = await stream(api, max_tokens=9)
                assert text_of(chunks).split() == TEXT.split()[:9]
                assert reasons(chunks) == ["length"]

    options = Options(ttft_ms=2.0, tpot_ms=2.0, tokens=12, like=like)
    live(body, options=options, model={"engine": str(like)})


@pytest.mark.parametrize(
    ("engine", "like"), [("vllm", Like.VLLM), ("llamacpp", Like.LLAMACPP), ("vllm", Like.LLAMACPP)]
)
@pytest.mark.parametrize(("broken", "whole"), [(70, 90), (70, 120), (90, 120), (1, 90)])
def test_a_continued_answer_is_as_long_as_it_may_be_and_no_longer(
    live, engine, like, broken, whole
):
    """Also where the engine counts no tokens on the way, so that those said are an estimate."""

    async def body(gateway):
        gateway.ail(0, "cut", tokens=broken)
        async with client(gateway) as api:
            continued = 0
            for number in range(6):
                ask = [{"role": "user", "content": f"Tell me about fleet {number}."}]
                raw = await api.chat.completions.create(
                    model="m", messages=ask, stream=True, max_tokens=90
                )
                chunks = [chunk async for chunk in raw]
                assert text_of(chunks) == expected_text("m", ask, 90)
                assert len(reasons(chunks)) == 1
                assert reasons(chunks) == ["length"] or whole == 90
                continued += any((chunk.model_extra or {}).get("holdfast") for chunk in chunks)
            assert continued or (broken == 90 and like is Like.VLLM), "it ends with its last word"

    options = Options(ttft_ms=2.0, tpot_ms=0.2, tokens=whole, like=like)
    live(body, options=options, model={"engine": engine})


def test_a_completion_that_breaks_off_goes_on_elsewhere(live):
    async def body(gateway):
        gateway.ail(0, "cut", tokens=5)
        async with client(gateway) as api:
            for _ in range(4):
                pieces = [
                    chunk.choices[0].text
                    async for chunk in await api.completions.create(
                        model="m", prompt="Once", stream=True
                    )
                    if chunk.choices
                ]
                assert "".join(pieces) == expected_text("m", "Once", 12)

    live(body, options=STEADY)


def test_a_continuation_that_says_nothing_does_not_end_the_answer(live):
    """One of three breaks off without an end, and one says nothing to anybody."""

    async def body(gateway):
        gateway.ail(0, "cut", tokens=4)
        gateway.ail(1, "empty")
        async with client(gateway) as api:
            for _ in range(30):
                chunks, _ = await stream(api)
                assert text_of(chunks) == TEXT
                assert reasons(chunks) == ["stop"]

    live(body, options=STEADY, replicas=3)


def test_a_stream_that_cannot_be_continued_ends_with_an_error_event(live):
    async def body(gateway):
        gateway.ail(0, "cut", tokens=5)
        gateway.ail(1, "cut", tokens=5)
        async with client(gateway) as api:
            with pytest.raises(openai.APIError) as caught:
                await stream(api, n=2)
        assert caught.value.code == "upstream_failed"

    live(body, options=STEADY)


def test_a_stall_in_the_middle_is_noticed_and_continued(live):
    async def body(gateway):
        async with client(gateway) as api:
            gateway.ail(0, "stall", tokens=5)
            chunks = [await stream(api) for _ in range(4)]
        assert {text_of(one) for one, _ in chunks} == {TEXT}

    quick = {"between_tokens_s": 0.3, "between_tokens_floor_s": 0.2}
    live(body, options=STEADY, model={"deadlines": quick})


def test_a_stall_before_the_finish_reason_alone_is_mended_too(live):
    async def body(gateway):
        async with client(gateway) as api:
            gateway.ail(0, "stall", tokens=12)
            for _ in range(4):
                chunks, _ = await stream(api)
                assert text_of(chunks) == TEXT
                assert reasons(chunks) == ["stop"]

    quick = {"between_tokens_s": 0.3, "between_tokens_floor_s": 0.2}
    live(body, options=STEADY, model={"deadlines": quick})


def test_a_replica_that_never_answers_is_given_up(live):
    async def body(gateway):
        async with client(gateway) as api:
            gateway.ail(0, "hang")
            for _ in range(4):
                chunks, _ = await stream(api)
                assert text_of(chunks) == TEXT

    quick = {"first_token_s": 0.3, "first_token_floor_s": 0.2}
    live(body, options=STEADY, model={"deadlines": quick})


def test_endless_exclamation_marks_are_never_shown(live):
    async def body(gateway):
        gateway.ail(0, "garbage")
        async with client(gateway) as api:
            for _ in range(6):
                chunks, _ = await stream(api, max_tokens=40)
                assert text_of(chunks) == expected_text("m", ASK, 30)

    live(body, options=Options(ttft_ms=2.0, tpot_ms=1.0, tokens=30))


def test_endless_exclamation_marks_are_no_answer_in_one_piece_either(live):
    """Too few for a text to be endless, and as many as a stream is held for."""

    async def body(gateway):
        gateway.ail(0, "garbage")
        async with client(gateway) as api:
            for tokens in (16, 20, 30):
                for _ in range(4):
                    raw = await api.chat.completions.with_raw_response.create(
                        model="m", messages=ASK, max_tokens=tokens
                    )
                    assert raw.parse().choices[0].message.content == expected_text("m", ASK, tokens)
                    assert raw.headers["x-holdfast-replica"] == "m-2"

    live(body, options=Options(ttft_ms=2.0, tpot_ms=1.0, tokens=30))


@pytest.mark.parametrize("streamed", [False, True], ids=["in one piece", "streamed"])
def test_one_token_over_and_over_of_two_replicas_is_the_answer_and_accuses_nobody(live, streamed):
    """As where the client asked for nothing else, by a bias or in words."""

    async def body(gateway):
        gateway.ail(0, "garbage")
        gateway.ail(1, "garbage")
        async with client(gateway) as api:
            for _ in range(12):
                if streamed:
                    chunks, headers = await stream(api, max_tokens=20)
                    text, ends = text_of(chunks), reasons(chunks)
                else:
                    raw = await api.chat.completions.with_raw_response.create(
                        model="m", messages=ASK, max_tokens=20
                    )
                    headers, (choice,) = raw.headers, raw.parse().choices
                    text, ends = choice.message.content, [choice.finish_reason]
                assert (text, ends) == ("!" * 20, ["length"])
                assert headers["x-holdfast-attempts"] == "2"
        lane = gateway.driver.port.flow.lanes["m"]
        breakers = {one.breaker.state for one in lane.pool.candidates.values()}
        assert breakers == {BreakerState.CLOSED}
        assert counted(gateway) == (12, 0)

    live(body, options=Options(ttft_ms=2.0, tpot_ms=1.0, tokens=30))


@pytest.mark.parametrize(
    ("text", "tokens", "attempts"),
    [
        ("!", 1, 1),
        ("!" * 20, 5, 1),  # four to a token
        ("-" * 15, 15, 1),
        ("\N{THUMBS UP SIGN}", 500, 1),  # behind reasoning that was counted, too
        ("ha ha ha ha ha ha ha ha ha!", 19, 1),
        ("no " * 30, 30, 2),
    ],
)
def test_a_short_answer_is_believed_where_few_tokens_of_it_are_alike(live, text, tokens, attempts):
    async def body(gateway):
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        told = {"id": "c", "object": "chat.completion", "created": 1, "model": "odd"}
        answer = orjson.dumps(told | {"choices": [choice], "usage": usage})

        async def handler(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            writer.write(b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
            await writer.drain()
            writer.close()

        server = await gateway.put_behind(handler, "odd", "vllm")
        async with server, client(gateway) as api:
            raw = await api.chat.completions.with_raw_response.create(model="odd", messages=ASK)
            assert raw.parse().choices[0].message.content == text
            assert raw.headers["x-holdfast-attempts"] == str(attempts)

    live(body)


@pytest.mark.parametrize("streamed", [False, True], ids=["in one piece", "streamed"])
def test_what_two_replicas_say_alike_is_the_answer(live, streamed):
    """And what is told of the request is what its client got."""

    async def body(gateway):
        gateway.ail(0, "empty")
        gateway.ail(1, "empty")
        async with client(gateway) as api:
            if streamed:
                chunks, headers = await stream(api)
                text, ends = text_of(chunks), reasons(chunks)
            else:
                raw = await api.chat.completions.with_raw_response.create(model="m", messages=ASK)
                headers, (choice,) = raw.headers, raw.parse().choices
                text, ends = choice.message.content or "", [choice.finish_reason]
            assert (text, ends) == ("", ["stop"])
        story = gateway.driver.observer.records.explain(headers["x-request-id"])
        assert (story["status"], story["code"], story["attempts"]) == (200, "ok", 2)
        assert story["reason"] == "two replicas answered without a word"
        assert headers["x-holdfast-replica"] == story["replica"] != ""
        assert headers["x-holdfast-attempts"] == "2"

    live(body, options=STEADY)


def test_an_empty_answer_after_something_was_shown_ends_nothing(live):
    """One breaks off, the others say nothing: two of those end what they were to go on with."""

    async def body(gateway):
        for index in range(3):
            gateway.ail(index, "empty")
        gateway.ail(0, "cut", tokens=4)
        async with client(gateway) as api:
            chunks, _ = await stream(api)
            while not text_of(chunks):
                chunks, _ = await stream(api)
        assert text_of(chunks) == expected_text("m", ASK, 4)

    live(body, options=STEADY, replicas=3)


def test_with_nobody_left_the_error_is_honest_and_says_whether_to_retry(live):
    async def body(gateway):
        gateway.ail(0, "black_hole")
        gateway.ail(1, "black_hole")
        async with client(gateway) as api:
            with pytest.raises(openai.InternalServerError) as caught:
                await api.chat.completions.create(model="m", messages=ASK)
        assert caught.value.status_code == 502
        assert caught.value.request_id

    live(body)


def test_a_busy_fleet_says_when_to_come_back(live):
    async def body(gateway):
        gateway.ail(0, "refuse_busy")
        gateway.ail(1, "refuse_busy")
        async with client(gateway) as api:
            with pytest.raises(openai.InternalServerError) as caught:
                await api.chat.completions.create(model="m", messages=ASK)
        assert caught.value.status_code == 503
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.response.headers["x-should-retry"] == "true"

    live(body)


def test_a_client_that_leaves_takes_its_attempt_along(live):
    async def body(gateway):
        async with client(gateway) as api:
            answer = await api.chat.completions.create(model="m", messages=ASK, stream=True)
            async for _ in answer:
                break
            await answer.close()
        await gateway.until(lambda: gateway.driver.busy == 0, 2.0)
        stats = [engine.engine.stats() for engine in gateway.engines]
        await gateway.until(
            lambda: sum(e.engine.stats()["cancelled"] for e in gateway.engines) == 1, 2.0
        )
        assert len(stats) == 2

    live(body, options=Options(ttft_ms=2.0, tpot_ms=50.0, tokens=200))


def test_a_long_wait_shows_signs_of_life_and_then_the_answer(live):
    async def body(gateway):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        asked = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(asked), asked)
        )
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert answer.index(b": waiting") < answer.index(b"data: ")
        assert b"data: [DONE]" in answer

    live(
        body,
        options=Options(ttft_ms=500.0, tpot_ms=1.0, tokens=4),
        gateway={"listen": "127.0.0.1:0", "stream": {"sign_of_life_s": 0.1}},
    )


def test_errors_after_a_sign_of_life_are_events(live):
    async def body(gateway):
        gateway.ail(0, "hang")
        async with client(gateway) as api:
            with pytest.raises(openai.APIError) as caught:
                await stream(api)
        assert caught.value.code in {"upstream_timeout", "deadline_exceeded"}

    live(
        body,
        replicas=1,
        gateway={"listen": "127.0.0.1:0", "stream": {"sign_of_life_s": 0.1}},
        model={
            "deadlines": {
                "request_s": 1.0,
                "first_token_s": 0.5,
                "first_token_floor_s": 0.2,
                "between_tokens_s": 0.5,
                "between_tokens_floor_s": 0.2,
                "answer_floor_s": 0.5,
            }
        },
    )


# --- empty answers that the request itself asked for ----------------------------------------------

ASKED_FOR = [
    {"stop": TEXT[0]},
    {"stop": ["never there", TEXT[:3]]},
    {"logit_bias": {"2": 100}},
    {"extra_body": {"stop_token_ids": [2]}},
    {"extra_body": {"guided_regex": ""}},
]


def counted(gateway) -> tuple[int, int]:
    """Successes and failures of users' requests, as control is told of them."""
    tallies = [t for lane in gateway.driver.port.flow.lanes.values() for t in _settled(lane)]
    tallies += [t for told in gateway.news if isinstance(told, Summary) for t in told.tallies]
    return sum(t.successes for t in tallies), sum(t.failures for t in tallies)


def _settled(lane):
    lane.settle(1 << 62)
    return lane.tallies()


@pytest.mark.parametrize("asked", ASKED_FOR, ids=str)
def test_an_empty_answer_that_was_asked_for_is_a_success(live, asked):
    async def body(gateway):
        if "stop" not in asked:  # what a stand-in does not know makes it silent here
            gateway.ail(0, "empty")
            gateway.ail(1, "empty")
        async with client(gateway) as api:
            for _ in range(3):
                raw = await api.chat.completions.with_raw_response.create(
                    model="m", messages=ASK, **asked
                )
                assert not raw.parse().choices[0].message.content
                assert raw.headers["x-holdfast-attempts"] == "1"
                chunks, headers = await stream(api, **asked)
                assert text_of(chunks) == ""
                assert reasons(chunks) == ["stop"]
                assert headers["x-holdfast-attempts"] == "1"
        assert counted(gateway) == (6, 0)

    live(body, options=STEADY)


def test_an_engine_without_a_single_token_has_met_no_stop_string(live):
    async def body(gateway):
        gateway.ail(0, "empty")
        async with client(gateway) as api:
            for _ in range(4):
                chunks, _ = await stream(api, stop="never there")
                assert text_of(chunks) == TEXT

    live(body, options=STEADY)


def test_a_body_that_fails_everywhere_is_held_against_no_replica(live):
    async def body(gateway):
        gateway.ail(0, "status", code=500)
        gateway.ail(1, "status", code=500)
        async with client(gateway) as api:
            for _ in range(12):
                with pytest.raises(openai.InternalServerError):
                    await api.chat.completions.create(model="m", messages=ASK)
            for each in gateway.engines:
                each.engine.clear_fault()
            whole = await api.chat.completions.create(model="m", messages=ASK)
            assert whole.choices[0].message.content == TEXT
        assert counted(gateway)[1] == 0

    live(body, options=STEADY)
