import asyncio
import struct
from base64 import b64decode
from math import isclose, sqrt

import openai
import orjson
import pytest

from holdfast.testing.standin import Like, expected_text, unit_vector
from holdfast.testing.standin.responses import Respond

USER = {"role": "user", "content": "Tell me all about it"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


def with_sdk(kit, use, **options):
    async def main():
        async with kit.live(**options) as standin:
            client = openai.AsyncOpenAI(base_url=f"{standin.url}/v1", api_key="k", max_retries=0)
            async with client:
                return await use(client, standin)

    return asyncio.run(main())


@pytest.mark.parametrize("like", Like)
def test_the_sdk_gets_a_chat_answer(kit, like):
    async def use(client, _):
        return await client.chat.completions.create(model="m", messages=[USER])

    answer = with_sdk(kit, use, like=like)
    assert answer.choices[0].message.content == expected_text("m", [USER])
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 20)


@pytest.mark.parametrize("like", Like)
@pytest.mark.parametrize("per_chunk", [1, 3])
def test_the_sdk_reads_a_stream_with_usage(kit, like, per_chunk):
    async def use(client, _):
        stream = await client.chat.completions.create(
            model="m", messages=[USER], stream=True, stream_options={"include_usage": True}
        )
        return [chunk async for chunk in stream]

    chunks = with_sdk(kit, use, like=like, tokens_per_chunk=per_chunk)
    spoken = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert spoken[0].delta.role == "assistant"
    assert "".join(c.delta.content or "" for c in spoken) == expected_text("m", [USER])
    assert [c.finish_reason for c in spoken if c.finish_reason] == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage.completion_tokens == 20
    assert len(spoken) == -(-20 // per_chunk) + 2


def test_usage_in_every_chunk_when_vllm_is_asked_for_it(kit):
    async def use(client, _):
        stream = await client.chat.completions.create(
            model="m",
            messages=[USER],
            stream=True,
            max_tokens=4,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
        return [chunk async for chunk in stream]

    chunks = with_sdk(kit, use)
    assert [chunk.usage.completion_tokens for chunk in chunks] == [0, 1, 2, 3, 4, 4]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons == [None, None, None, None, "length"]


def test_the_sdk_reads_several_choices_from_one_stream(kit):
    async def use(client, _):
        stream = await client.chat.completions.create(
            model="m", messages=[USER], stream=True, n=3, max_tokens=6
        )
        texts = ["", "", ""]
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        return texts

    texts = with_sdk(kit, use)
    assert texts == [expected_text("m", [USER], 6, choice=number) for number in range(3)]


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_gets_a_completion(kit, stream):
    async def use(client, _):
        made = await client.completions.create(model="m", prompt="Once", stream=stream)
        if not stream:
            return made.choices[0].text
        return "".join([chunk.choices[0].text async for chunk in made])

    assert with_sdk(kit, use) == expected_text("m", "Once")


def test_the_sdk_gets_a_tool_call_whole_and_in_pieces(kit):
    async def use(client, _):
        how = {"model": "m", "messages": [USER], "tools": TOOLS, "tool_choice": "required"}
        whole = await client.chat.completions.create(**how)
        call = whole.choices[0].message.tool_calls[0]
        stream = await client.chat.completions.create(**how, stream=True)
        name, pieces, finish = "", [], None
        async for chunk in stream:
            choice = chunk.choices[0]
            for part in choice.delta.tool_calls or ():
                name += part.function.name or ""
                pieces.append(part.function.arguments)
            finish = choice.finish_reason or finish
        return call.function, name, pieces, finish

    function, name, pieces, finish = with_sdk(kit, use)
    assert function.name == name == "weather"
    assert function.arguments == "".join(pieces)
    assert list(orjson.loads(function.arguments)) == ["city"]
    assert len(pieces) > 2
    assert finish == "tool_calls"


@pytest.mark.parametrize("how", ["float", "base64"])
def test_the_sdk_gets_unit_vectors(kit, how):
    async def use(client, _):
        return await client.embeddings.create(
            model="m", input=["one", "two"], encoding_format=how, dimensions=40
        )

    made = with_sdk(kit, use).data
    vectors = [one.embedding for one in made]
    if isinstance(vectors[0], str):
        vectors = [struct.unpack("<40f", b64decode(vector)) for vector in vectors]
    assert all(isclose(sqrt(sum(x * x for x in v)), 1.0, abs_tol=1e-6) for v in vectors)
    assert vectors[0] == pytest.approx(unit_vector("m", "one", 40), abs=1e-6)
    assert vectors[0] != pytest.approx(vectors[1])


def test_the_sdk_lists_models_and_finds_one(kit):
    async def use(client, _):
        listed = [model.id async for model in client.models.list()]
        return listed, (await client.models.retrieve("n")).id

    assert with_sdk(kit, use, models=("m", "n")) == (["m", "n"], "n")


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_gets_a_response(kit, stream):
    async def use(client, _):
        made = await client.responses.create(model="m", input=[USER], stream=stream)
        if not stream:
            return made.output_text, made.usage.output_tokens
        text, last = "", None
        async for event in made:
            if event.type == "response.output_text.delta":
                text += event.delta
            last = event
        assert last.type == "response.completed"
        return text, last.response.usage.output_tokens

    assert with_sdk(kit, use) == (expected_text("m", [USER]), 20)


def test_a_response_is_kept_where_it_was_made_and_nowhere_else(kit):
    async def use(client, standin):
        first = await client.responses.create(model="m", input="Hello")
        more = {"model": "m", "input": "And?"}
        second = await client.responses.create(**more, previous_response_id=first.id)
        unkept = await client.responses.create(**more, store=False)
        again = await client.responses.retrieve(second.id)
        told = [(again.id, again.output_text) == (second.id, second.output_text)]
        for asked in (
            lambda: client.responses.create(**more, previous_response_id="resp_1"),
            lambda: client.responses.retrieve(unkept.id),
            lambda: client.responses.cancel("resp_1"),
            lambda: client.responses.cancel(first.id),
            lambda: client.responses.delete(first.id),
        ):
            with pytest.raises(openai.APIStatusError) as caught:
                await asked()
            told.append(caught.value.status_code)
        return first.output_text, second.output_text, told, standin.stats()["kept"]

    first, second, told, kept = with_sdk(kit, use)
    said = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": first}]
    assert second == expected_text("m", [*said, {"role": "user", "content": "And?"}])
    assert told == [True, 404, 404, 404, 400, 405]
    assert kept == 2


@pytest.mark.parametrize("status", [404, 501])
def test_a_path_may_be_lacking(kit, status):
    async def use(client, _):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.embeddings.create(model="m", input="x")
        made = await client.chat.completions.create(model="m", messages=[USER])
        return caught.value.status_code, bool(made.choices)

    more = {"lacks": ("/v1/embeddings",), "lacks_status": status}
    assert with_sdk(kit, use, **more) == (status, True)


def test_a_response_cut_by_its_limit_is_incomplete(kit):
    async def use(client, _):
        return await client.responses.create(
            model="m", input="Why?", instructions="Be brief.", max_output_tokens=2
        )

    made = with_sdk(kit, use)
    assert made.status == "incomplete"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert made.output_text == expected_text("m", messages, 2)
    assert Respond().input is None


def test_the_sdk_gets_sounds_words_for_sounds_and_pictures(kit):
    async def use(client, _):
        spoken = await client.audio.speech.create(model="m", voice="alloy", input="Hello")
        sound = await spoken.aread()
        heard = await client.audio.transcriptions.create(model="m", file=("a.wav", sound))
        again = await client.audio.transcriptions.create(model="m", file=("b.wav", sound))
        drawn = await client.images.generate(model="m", prompt="A cat", n=2)
        return sound, heard.text, again.text, [b64decode(one.b64_json) for one in drawn.data]

    sound, heard, again, drawn = with_sdk(kit, use)
    assert len(sound) == 4096
    assert len(heard.split()) == 8
    assert heard == again
    assert [picture[:4] for picture in drawn] == [b"\x89PNG"] * 2


@pytest.mark.parametrize("path", ["chat", "embeddings", "responses"])
def test_an_unknown_model_is_not_found(kit, path):
    async def use(client, _):
        asking = {
            "chat": lambda: client.chat.completions.create(model="other", messages=[USER]),
            "embeddings": lambda: client.embeddings.create(model="other", input="x"),
            "responses": lambda: client.responses.create(model="other", input="x"),
        }[path]
        with pytest.raises(openai.NotFoundError) as error:
            await asking()
        return error.value.body

    assert with_sdk(kit, use)["param"] == "model"


def test_documents_that_share_words_with_the_query_rank_first(kit):
    async def main():
        async with kit.live() as standin:
            body = {
                "model": "m",
                "query": "red apples",
                "documents": ["blue sky", {"text": "two red apples"}, "green apples"],
                "top_n": 2,
            }
            return (await kit.ask(standin, "/v1/rerank", body)).json["results"]

    assert [result["index"] for result in asyncio.run(main())] == [1, 2]


def test_tensors_get_one_added(kit):
    async def main():
        async with kit.live() as standin:
            tensors = [
                {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [[1.5, 2], [3, 4]]},
                {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["x"]},
            ]
            ready = await kit.ask(standin, "/v2/models/m/ready", method="GET")
            body = {"id": "7", "inputs": tensors}
            return ready.status, (await kit.ask(standin, "/v2/models/m/infer", body)).json

    status, answer = asyncio.run(main())
    assert status == 200
    assert answer["id"] == "7"
    assert [output["data"] for output in answer["outputs"]] == [[[2.5, 3], [4, 5]], ["x"]]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/completions", {"model": "m"}, 400),
        ("/v1/embeddings", {"model": "m", "input": []}, 400),
        ("/v1/embeddings", {"model": "m", "input": "x", "dimensions": 0}, 400),
        ("/v1/rerank", {"model": "m", "query": "x", "documents": []}, 400),
        ("/v1/rerank", {"model": "m", "query": "x", "documents": [3]}, 400),
        ("/v1/responses", {"model": "m"}, 400),
        ("/v1/responses", {"model": "m", "input": [3]}, 400),
        ("/v1/responses", b"no", 400),
        ("/v1/audio/transcriptions", b"no form", 400),
        ("/v1/images/generations", {"model": "m", "prompt": "x", "n": 99}, 400),
        ("/v2/models/m/infer", {"inputs": [{"datatype": "FP32"}]}, 400),
        ("/v2/models/n/infer", {"inputs": []}, 404),
        ("/v1/nothing", {}, 404),
    ],
)
def test_bad_input_is_refused_in_the_usual_shape(kit, path, body, status):
    async def main():
        async with kit.live() as standin:
            answer = await kit.ask(standin, path, body)
            return answer, standin.stats()["refused"]

    answer, refused = asyncio.run(main())
    assert answer.status == status
    assert answer.json["error"]["code"] == status
    assert refused == 1


def test_health_version_and_unknown_paths(kit):
    async def main():
        async with kit.live() as vllm, kit.live(like=Like.LLAMACPP) as llamacpp:
            found = {}
            for standin in (vllm, llamacpp):
                for path in ("/health", "/version", "/v2/health/ready", "/nothing"):
                    answer = await kit.ask(standin, path, method="GET")
                    found[standin.options.like, path] = answer.status
            put = await kit.ask(vllm, "/health", method="PUT")
            return found, put.status

    found, put = asyncio.run(main())
    assert put == 405
    assert [found[Like.VLLM, path] for path in ("/health", "/version")] == [200, 200]
    assert [found[Like.LLAMACPP, path] for path in ("/health", "/version")] == [200, 404]
    assert found[Like.VLLM, "/nothing"] == 404


@pytest.mark.parametrize(
    ("like", "running", "waiting"),
    [
        (Like.VLLM, "vllm:num_requests_running", "vllm:num_requests_waiting"),
        (Like.LLAMACPP, "llamacpp:requests_processing", "llamacpp:requests_deferred"),
    ],
)
def test_requests_beyond_the_slots_wait_and_are_seen_to(kit, like, running, waiting):
    def gauge(text, name):
        line = next(line for line in text.splitlines() if line.startswith(name))
        return float(line.split()[-1])

    async def main():
        async with kit.live(slots=2, ttft_ms=300, tokens=2, like=like, kv_tokens=100) as standin:
            body = {"model": "m", "messages": [USER]}
            asking = [
                asyncio.create_task(kit.ask(standin, "/v1/chat/completions", body))
                for _ in range(5)
            ]
            await kit.until(lambda: standin.stats()["requests"] == 5)
            told = (await kit.ask(standin, "/metrics", method="GET")).body.decode()
            assert (gauge(told, running), gauge(told, waiting)) == (2, 3)
            if like is Like.VLLM:
                assert gauge(told, "vllm:kv_cache_usage_perc") == pytest.approx(0.1)
            answers = await asyncio.gather(*asking)
            told = (await kit.ask(standin, "/metrics", method="GET")).body.decode()
            assert (gauge(told, running), gauge(told, waiting)) == (0, 0)
            return answers, standin.stats()

    answers, stats = asyncio.run(main())
    texts = {answer.json["choices"][0]["message"]["content"] for answer in answers}
    assert texts == {expected_text("m", [USER], 2)}
    assert (stats["finished"], stats["generated_tokens"], stats["prompt_tokens"]) == (5, 10, 25)


def test_a_longer_prompt_takes_longer_to_its_first_token(kit):
    async def main():
        async with kit.live(prefill_us_per_token=1_000, tokens=1) as standin:
            loop = asyncio.get_running_loop()
            began = loop.time()
            prompt = "word " * 100
            await kit.ask(standin, "/v1/completions", {"model": "m", "prompt": prompt})
            return loop.time() - began

    assert asyncio.run(main()) >= 0.1


def test_a_client_that_leaves_ends_its_stream_and_frees_the_slot(kit):
    async def main():
        async with kit.live(slots=1, tpot_ms=5, tokens=100_000) as standin:
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            body = {"model": "m", "messages": [USER], "stream": True}
            writer.write(kit.request_bytes("/v1/chat/completions", body))
            await reader.readuntil(b"content")
            assert standin.stats()["running"] == 1
            writer.transport.abort()
            await kit.until(lambda: standin.stats()["running"] == 0)
            return standin.stats()

    stats = asyncio.run(main())
    assert (stats["cancelled"], stats["lone"], stats["lone_cancelled"]) == (1, 0, 0)
    assert stats["generated_tokens"] < 100_000


def test_requests_on_a_connection_of_their_own_are_told_apart(kit):
    async def main():
        async with kit.live(slots=1, tpot_ms=5, tokens=100_000) as standin:
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            body = {"model": "m", "messages": [USER], "stream": True}
            wire = kit.request_bytes("/v1/chat/completions", body)
            writer.write(wire.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
            await reader.readuntil(b"content")
            writer.transport.abort()
            await kit.until(lambda: standin.stats()["running"] == 0)
            return standin.stats()

    stats = asyncio.run(main())
    assert (stats["requests"], stats["lone"]) == (1, 1)
    assert (stats["cancelled"], stats["lone_cancelled"]) == (1, 1)


def test_a_client_that_leaves_the_queue_is_forgotten(kit):
    async def main():
        async with kit.live(slots=1, ttft_ms=60_000) as standin:
            body = kit.request_bytes("/v1/chat/completions", {"model": "m", "messages": [USER]})
            writers = []
            for _ in range(2):
                _, writer = await asyncio.open_connection("127.0.0.1", standin.port)
                writer.write(body)
                writers.append(writer)
            await kit.until(lambda: standin.stats()["waiting"] == 1)
            writers[1].transport.abort()
            await kit.until(lambda: standin.stats()["waiting"] == 0)
            assert standin.stats()["running"] == 1
            writers[0].transport.abort()
            await kit.until(lambda: standin.stats()["running"] == 0)

    asyncio.run(main())


def test_a_slow_reader_holds_its_stream_back(kit):
    async def main():
        async with kit.live(tokens=1_000_000) as standin:
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port, limit=1_024)
            body = {"model": "m", "messages": [USER], "stream": True, "max_tokens": 200_000}
            writer.write(kit.request_bytes("/v1/chat/completions", body))
            await reader.readuntil(b"content")
            job = next(iter(standin.engine._running))
            await kit.until(lambda: job.held)
            held_at = job.said
            assert held_at < 200_000
            while job.said == held_at:
                await asyncio.wait_for(reader.read(65_536), 20)
            writer.transport.abort()

    asyncio.run(main())


def test_requests_sent_ahead_are_answered_in_order_up_to_a_bound(kit):
    async def main():
        async with kit.live(ttft_ms=2, tokens=1) as standin:
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            prompts = [str(number) for number in range(5)]
            for prompt in prompts:
                body = {"model": "m", "prompt": prompt}
                writer.write(kit.request_bytes("/v1/completions", body))
            texts = [(await kit.read_answer(reader)).json["choices"][0]["text"] for _ in prompts]
            many = kit.request_bytes("/v1/completions", {"model": "m", "prompt": "x"}) * 50
            writer.write(many)
            broken = ""
            while not broken:
                broken = (await asyncio.wait_for(kit.read_answer(reader), 20)).broken
            writer.transport.abort()
            return texts, [expected_text("m", prompt, 1) for prompt in prompts]

    texts, expected = asyncio.run(main())
    assert texts == expected


def test_http_manners(kit):
    async def main():
        async with kit.live() as standin:
            body = {"model": "m", "prompt": "x"}
            closing = await kit.ask(
                standin, "/v1/completions", body, headers="connection: close\r\n"
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", standin.port)
            raw = orjson.dumps(body)
            head = (
                "POST /v1/completions?x=1 HTTP/1.1\r\nhost: x\r\n"
                f"expect: 100-continue\r\ncontent-length: {len(raw)}\r\n\r\n"
            )
            writer.write(head.encode())
            invited = await reader.readuntil(b"\r\n\r\n")
            writer.write(raw)
            answered = await kit.read_answer(reader)
            writer.write(b"NONSENSE\r\n\r\n")
            refused = await kit.read_answer(reader)
            writer.transport.abort()
            return closing.status, invited, answered.status, refused.status

    assert asyncio.run(main()) == (200, b"HTTP/1.1 100 Continue\r\n\r\n", 200, 400)


@pytest.mark.parametrize("shape", ["chat", "completion"])
def test_log_probabilities_are_told_of_whole_answers(kit, shape):
    async def use(client, _):
        if shape == "chat":
            answer = await client.chat.completions.create(
                model="m", messages=[USER], max_tokens=3, logprobs=True, top_logprobs=2
            )
            told = answer.choices[0].logprobs.content
            likeliest = [{each.token: each.logprob for each in one.top_logprobs} for one in told]
            tokens, own = [one.token for one in told], [one.logprob for one in told]
            return answer.choices[0].message.content, tokens, own, likeliest
        answer = await client.completions.create(model="m", prompt="x", max_tokens=3, logprobs=2)
        told = answer.choices[0].logprobs
        return answer.choices[0].text, told.tokens, told.token_logprobs, told.top_logprobs

    text, tokens, own, likeliest = with_sdk(kit, use)
    assert "".join(tokens) == text
    assert [each[token] for token, each in zip(tokens, likeliest, strict=True)] == own
    assert all(max(each.values()) - min(each.values()) > 5 for each in likeliest), "it is sure"


def test_two_first_words_can_be_tied_so_that_either_comes(kit):
    async def use(client, _):
        asked = {"model": "m", "messages": [USER], "max_tokens": 4}
        plain = [await client.chat.completions.create(**asked) for _ in range(40)]
        told = await client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
        return [one.choices[0].message.content for one in plain], told.choices[0].logprobs.content

    texts, told = with_sdk(kit, use, tied=0.5)
    assert len(set(texts)) == 2
    first = {each.token: each.logprob for each in told[0].top_logprobs}
    assert {text.split(" ")[0] for text in texts} == set(first)
    assert max(first.values()) - min(first.values()) < 0.1
    assert all(len(one.top_logprobs) == 2 for one in told)
