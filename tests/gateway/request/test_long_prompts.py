"""Long prompts through a live gateway: read once, and an honest error where time runs out."""

import openai
import pytest
from openai import AsyncOpenAI

from holdfast.testing.standin import Options

SHORT = [{"role": "user", "content": "Tell me about fleets that keep answering."}]
LONG = [{"role": "user", "content": "A long story of many short words. " * 500}]  # 4,000 tokens
QUICK = {"first_token_s": 0.3, "first_token_floor_s": 0.2}


async def stream(gateway, messages):
    """The text of one streamed answer, and its headers."""
    api = AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0)
    async with api:
        raw = await api.chat.completions.with_raw_response.create(
            model="m", messages=messages, stream=True
        )
        chunks = [chunk async for chunk in raw.parse()]
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), raw.headers


def test_a_long_prompt_has_the_time_to_be_read_and_is_read_once(live):
    """Both engines take a second to a first token; the gateway waits 0.3 s for short prompts."""

    async def body(gateway):
        text, headers = await stream(gateway, LONG)
        assert text
        assert headers["x-holdfast-attempts"] == "1"

    live(body, options=Options(ttft_ms=1_000.0, tpot_ms=1.0, tokens=3), model={"deadlines": QUICK})


def test_a_long_prompt_that_nobody_reads_in_time_is_an_error_that_says_so(live):
    async def body(gateway):
        gateway.ail(0, "hang")
        gateway.ail(1, "hang")
        with pytest.raises(openai.InternalServerError) as caught:
            await stream(gateway, LONG)
        error = caught.value
        assert (error.status_code, error.code) == (504, "prompt_unread")
        assert "tokens of prompt to read and was not done after 2 s" in str(error)
        assert error.response.headers["x-holdfast-attempts"] == "1"

    deadlines = QUICK | {"request_s": 2.0, "between_tokens_s": 1.0, "answer_floor_s": 1.0}
    live(body, model={"deadlines": deadlines})


def test_a_short_prompt_at_a_replica_that_hangs_is_tried_elsewhere_as_ever(live):
    async def body(gateway):
        gateway.ail(0, "hang")
        tried = [(await stream(gateway, SHORT))[1]["x-holdfast-attempts"] for _ in range(4)]
        assert "2" in tried

    live(body, model={"deadlines": QUICK})
