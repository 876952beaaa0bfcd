"""What a tenant is charged in the end: the engine's own count, however the request ends."""

import asyncio

import orjson
import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key

KEY = "hf-settled-key-0123456789"
BURST = 86_400  # tokens; one comes back in a second
LONG = "y" * 200_000


class CountingEngine:
    """An engine that reports the usage it is told to, of prompts whose size it does not look at."""

    def __init__(self, prompt: int, completion: int) -> None:
        self.usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        self.hangs = False  # a stream stops after some words, without an end
        self.cuts = 0  # streams that break off amid the answer
        self.takes_s = 0.0  # for a whole answer

    async def __call__(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                asked = orjson.loads(await reader.readexactly(size))
                await (self._stream(reader, writer) if asked.get("stream") else self._whole(writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _whole(self, writer):
        choice = {"index": 0, "message": {"content": "Hello."}, "finish_reason": "stop"}
        body = orjson.dumps({"choices": [choice], "usage": self.usage})
        await asyncio.sleep(self.takes_s)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await writer.drain()

    async def _stream(self, reader, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        )
        for number in range(50):
            writer.write(self._event({"content": f"word{number} "}))
        await writer.drain()
        if self.hangs:
            await reader.read()  # until the gateway leaves
            raise ConnectionError
        if self.cuts:
            self.cuts -= 1
            writer.transport.abort()
            raise ConnectionError
        writer.write(self._event({}, "stop"))
        writer.write(b"data: %b\n\n" % orjson.dumps({"choices": [], "usage": self.usage}))
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        raise ConnectionError

    def _event(self, delta, finish=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %b\n\n" % orjson.dumps({"id": "x", "choices": [choice]})


async def put_in_front(gateway, engine):
    """Two replicas of one model behind a tenant's quota; both are this engine."""
    servers = [await asyncio.start_server(engine, "127.0.0.1", 0) for _ in range(2)]
    urls = [f"http://127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in servers]
    quota = {"tokens_per_minute": 60, "burst_s": 86_400}
    file = {
        "models": [{"name": "m", "engine": "vllm", "endpoints": urls}],
        "tenants": [{"name": "a", "keys": [hash_key(KEY)], "quota": quota}],
    }
    gateway.reload(FleetFile.from_json(orjson.dumps(file)), 2)
    return servers


async def post(gateway, until: bytes = b"", **more) -> bytes:
    """Send one chat; the whole answer, or what came until these bytes did."""
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **more})
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"authorization: Bearer %b\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)
    )
    try:
        return await (reader.readuntil(until) if until else reader.read())
    finally:
        writer.close()


def charged(gateway) -> float:
    """What the tenant has used of its burst, but for the few tokens that came back since."""
    quota = gateway.driver.port.flow.quota("a")
    return BURST - quota.headers(gateway.driver.now_ns())["remaining_tokens"]


def check(live, engine: CountingEngine, act, expected: int, within: int = 20) -> None:
    async def body(gateway):
        servers = await put_in_front(gateway, engine)
        try:
            await act(gateway)
            await gateway.until(lambda: expected - within <= charged(gateway) <= expected + 1)
        finally:
            for server in servers:
                server.close()

    live(body, replicas=1)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "refusal", "refusal": LONG}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": LONG}]},
    ],
    ids=["refusal", "tool_calls"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_hides_is_charged_what_the_engine_read(live, message, stream):
    async def act(gateway):
        answer = await post(gateway, messages=[message], stream=stream)
        assert answer.startswith(b"HTTP/1.1 200 ")

    check(live, CountingEngine(40_000, 3), act, 40_003)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "completion"), [(5, 2), (3_000, 700)])
def test_more_or_fewer_tokens_than_estimated_are_settled(live, stream, prompt, completion):
    async def act(gateway):
        await post(gateway, stream=stream, max_tokens=600)

    check(live, CountingEngine(prompt, completion), act, prompt + completion)


def test_every_choice_is_reserved_before_it_is_made(live):
    async def act(gateway):
        answer = await post(gateway, n=4, max_tokens=BURST // 3)
        assert b"request_exceeds_quota" in answer
        assert (await post(gateway, n=2, max_tokens=BURST // 3)).startswith(b"HTTP/1.1 200 ")

    check(live, CountingEngine(10, 2_000), act, 2_010)


def test_a_continued_stream_is_charged_once_for_its_prompt_and_for_every_word(live):
    engine = CountingEngine(3_050, 70)
    engine.cuts = 1

    async def act(gateway):
        answer = await post(gateway, stream=True)
        assert b"[DONE]" in answer

    # Fifty words before the cut: the engine that went on counted them as prompt.
    check(live, engine, act, 3_050 + 70)


def test_who_leaves_amid_a_stream_is_charged_for_what_came(live):
    engine = CountingEngine(1, 1)
    engine.hangs = True

    async def act(gateway):
        await post(gateway, until=b"word49", stream=True)
        await gateway.until(lambda: not gateway.driver.port.requests)

    # Nobody counted them: fifty words are one or two tokens each.
    check(live, engine, act, 112, within=50)


def test_who_leaves_a_whole_answer_is_charged_for_the_time_in_which_it_was_made(live):
    engine = CountingEngine(1_000, 200)
    engine.takes_s = 0.4

    async def act(gateway):
        await post(gateway)
        engine.takes_s = 4.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(gateway, until=b"HTTP"), 0.4)
        await gateway.until(lambda: not gateway.driver.port.requests)

    # 200 tokens in 0.4 s before, and so many again; its prompt is an estimate of some ten tokens.
    check(live, engine, act, 1_200 + 215, within=60)


@pytest.mark.parametrize(("allowed", "most"), [(50, 60), (0, 500)])
def test_who_leaves_a_whole_answer_pays_for_no_more_than_it_asked_for(live, allowed, most):
    engine = CountingEngine(1_000, 2_000)
    engine.takes_s = 0.4

    async def act(gateway):
        await post(gateway)
        engine.takes_s = 4.0
        more = {"max_tokens": allowed} if allowed else {}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(gateway, until=b"HTTP", **more), 0.08)
        await gateway.until(lambda: not gateway.driver.port.requests)

    check(live, engine, act, 3_000 + most, within=most - 30)
