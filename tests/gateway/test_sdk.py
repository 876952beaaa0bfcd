"""The official OpenAI SDK, synchronous and not, against a live gateway and real sockets."""

import asyncio
import json

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from holdfast.testing.standin import expected_text

ASK = [{"role": "user", "content": "Why does a live replica not count as a healthy one?"}]
TEXT = expected_text("m", ASK, 12)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def client(gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=0)


def test_a_chat_answer_comes_back_whole(live):
    async def body(gateway):
        async with client(gateway) as api:
            answer = await api.chat.completions.create(model="m", messages=ASK)
        assert answer.choices[0].message.content == TEXT
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == 12

    live(body)


def test_the_synchronous_client_works_too(live):
    def call(url: str) -> tuple[str, list[str]]:
        with OpenAI(base_url=url, api_key="unused", max_retries=0) as api:
            whole = api.chat.completions.create(model="m", messages=ASK)
            stream = api.chat.completions.create(model="m", messages=ASK, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            return whole.choices[0].message.content, pieces

    async def body(gateway):
        whole, pieces = await asyncio.to_thread(call, gateway.url)
        assert whole == "".join(pieces) == TEXT

    live(body)


def test_a_stream_comes_piece_by_piece_and_without_usage_that_nobody_asked_for(live):
    async def body(gateway):
        async with client(gateway) as api:
            stream = await api.chat.completions.create(
                model="m", messages=ASK, stream=True, max_tokens=50
            )
            chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == TEXT
        assert [c.choices[0].finish_reason for c in chunks][-1] == "stop"
        assert all(chunk.usage is None for chunk in chunks)
        assert sum(c.choices[0].delta.role == "assistant" for c in chunks) == 1
        assert len({chunk.id for chunk in chunks}) == 1
        assert len(chunks) >= 12

    live(body)


def test_a_stream_with_usage_ends_with_it(live):
    async def body(gateway):
        async with client(gateway) as api:
            stream = await api.chat.completions.create(
                model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 12

    live(body)


def test_max_tokens_cuts_by_length(live):
    async def body(gateway):
        async with client(gateway) as api:
            answer = await api.chat.completions.create(model="m", messages=ASK, max_tokens=5)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 5

    live(body)


def test_completions_whole_and_streamed(live):
    async def body(gateway):
        async with client(gateway) as api:
            whole = await api.completions.create(model="m", prompt="Once")
            stream = await api.completions.create(model="m", prompt="Once", stream=True)
            pieces = [chunk.choices[0].text async for chunk in stream]
        assert whole.choices[0].text == "".join(pieces) == expected_text("m", "Once", 12)

    live(body)


def test_embeddings_have_a_vector_for_each_input(live):
    async def body(gateway):
        async with client(gateway) as api:
            plain = await api.embeddings.create(
                model="m", input=["a", "b"], encoding_format="float"
            )
            packed = await api.embeddings.create(model="m", input=["a", "b"])
        assert len(plain.data) == 2
        assert plain.data[0].embedding != plain.data[1].embedding
        assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)

    live(body)


def test_models_are_listed_and_found(live):
    async def body(gateway):
        async with client(gateway) as api:
            listed = await api.models.list()
            found = await api.models.retrieve("m")
            with pytest.raises(openai.NotFoundError):
                await api.models.retrieve("nothing")
        assert [model.id for model in listed.data] == ["m"]
        assert found.id == "m"

    live(body)


def test_a_forced_tool_is_called_whole_and_streamed(live):
    async def body(gateway):
        asked = {
            "model": "m",
            "messages": ASK,
            "tools": [WEATHER],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        }
        async with client(gateway) as api:
            whole = await api.chat.completions.create(**asked)
            stream = await api.chat.completions.create(**asked, stream=True)
            arguments, names = "", []
            async for chunk in stream:
                for call in chunk.choices[0].delta.tool_calls or ():
                    arguments += call.function.arguments or ""
                    names += [call.function.name] if call.function.name else []
        call = whole.choices[0].message.tool_calls[0]
        assert call.function.name == "weather"
        assert names == ["weather"]
        assert json.loads(arguments) == json.loads(call.function.arguments)

    live(body)


def test_responses_whole_and_streamed(live):
    async def body(gateway):
        async with client(gateway) as api:
            whole = await api.responses.create(model="m", input="Hello there")
            stream = await api.responses.create(model="m", input="Hello there", stream=True)
            pieces, kinds = [], []
            async for event in stream:
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
        assert whole.output_text == "".join(pieces)
        assert kinds[-1] == "response.completed"

    live(body)


def test_speech_images_and_transcriptions_pass_through(live):
    async def body(gateway):
        async with client(gateway) as api:
            speech = await api.audio.speech.create(model="m", voice="alloy", input="Hello")
            image = await api.images.generate(model="m", prompt="a pixel")
            heard = await api.audio.transcriptions.create(
                model="m", file=("a.wav", b"RIFF" + bytes(2_000), "audio/wav")
            )
        assert len(speech.content) > 0
        assert image.data[0].b64_json
        assert heard.text

    live(body)


def test_an_unknown_model_is_a_not_found_error(live):
    async def body(gateway):
        async with client(gateway) as api:
            with pytest.raises(openai.NotFoundError) as caught:
                await api.chat.completions.create(model="nothing", messages=ASK)
        assert caught.value.code == "model_not_found"
        assert caught.value.request_id.startswith("req_")

    live(body)


def test_what_is_wrong_with_a_request_is_told_by_field(live):
    async def body(gateway):
        async with client(gateway) as api:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.chat.completions.create(model="m", messages=ASK, n=10**9)
        assert caught.value.param == "n"
        assert "16" in caught.value.message

    live(body)


def test_the_answer_says_who_gave_it(live):
    async def body(gateway):
        async with client(gateway) as api:
            raw = await api.chat.completions.with_raw_response.create(model="m", messages=ASK)
        assert raw.headers["x-holdfast-replica"] in {"m-1", "m-2"}
        assert raw.headers["x-holdfast-attempts"] == "1"
        story = gateway.driver.observer.records.explain(raw.headers["x-request-id"])
        assert story["status"] == 200
        assert story["replica"] == raw.headers["x-holdfast-replica"]

    live(body)
