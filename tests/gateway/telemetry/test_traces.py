"""Which requests are traced, and what is told of them."""

import re
from dataclasses import replace
from types import SimpleNamespace

import orjson
import pytest
from openai import AsyncOpenAI

from holdfast.core.messages import Finish
from holdfast.gateway.telemetry import traces as tracing
from holdfast.gateway.telemetry.traces import Traces, traces_of

ASK = [{"role": "user", "content": "Who is there? A secret."}]
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def proxied(parent=b"", name=b"req_1"):
    return SimpleNamespace(
        trace=None,
        request_id=name,
        request=SimpleNamespace(arrived=1),
        exchange=SimpleNamespace(headers={b"traceparent": parent}),
        tenant=SimpleNamespace(name="a"),
        route=SimpleNamespace(api=SimpleNamespace(value="chat")),
        ask=SimpleNamespace(model="m", stream=False),
        first_at=0,
    )


def test_without_a_share_there_is_nothing_to_ask():
    assert traces_of(0.0, follow=False) is None
    assert traces_of(0.0, follow=False, before=Traces(1.0, follow=False)) is None


def test_a_new_config_keeps_what_was_noted():
    before = traces_of(1.0, follow=False)
    one = proxied()
    before.begin(one)
    before.finish(one, Finish(1, 200, "ok", ""), 5)
    after = traces_of(0.5, follow=False, before=before)
    assert len(after.take()) == 1


def test_the_share_decides_and_a_callers_mark_only_where_the_file_says_so():
    never, always = Traces(0.0, follow=False), Traces(1.0, follow=True)
    marked, unmarked, plain = proxied(PARENT), proxied(PARENT[:-1] + b"0"), proxied()
    never.begin(marked)
    assert marked.trace is None
    for one in (marked, unmarked, plain):
        always.begin(one)
    assert unmarked.trace is None
    assert marked.trace.trace_id == PARENT[3:35].decode()
    assert len(plain.trace.trace_id) == 32


@pytest.mark.parametrize(
    "parent", [b"", b"00-xyz", b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01", PARENT + b"-more"]
)
def test_a_parent_that_makes_no_sense_is_none(parent):
    traces = Traces(1.0, follow=True)
    one = proxied(parent)
    traces.begin(one)
    traces.finish(one, Finish(1, 200, "ok", ""), 5)
    assert traces.take()[0].parent == ""


def test_there_is_room_for_so_many(monkeypatch):
    monkeypatch.setattr(tracing, "TRACES_MAX", 1)
    traces = Traces(1.0, follow=False)
    for _ in range(3):
        one = proxied()
        traces.begin(one)
        traces.finish(one, Finish(1, 200, "ok", ""), 5)
    assert len(traces.take()) == 1
    assert traces.dropped == 2
    assert traces.take() == []


def test_what_goes_on_with_a_second_model_is_told_once():
    traces = Traces(1.0, follow=False)
    one = proxied()
    traces.begin(one)
    traces.finish(one, Finish(1, 200, "ok", "", model="small"), 5)
    traces.take_back(one)
    traces.begin(one)
    traces.finish(one, Finish(2, 200, "ok", "", model="big"), 9)
    assert [told.model for told in traces.take()] == ["big"]


def test_requests_of_a_live_gateway_are_told_without_their_text(live):
    async def body(gateway):
        traced = replace(gateway.driver.settings, trace_share=1.0)
        gateway.driver.reconfigure(traced, gateway.targets)
        gateway.ail(0, "black_hole")
        async with AsyncOpenAI(base_url=gateway.url, api_key="x", max_retries=0) as api:
            for _ in range(4):
                stream = await api.chat.completions.create(
                    model="m",
                    messages=ASK,
                    stream=True,
                    extra_headers={"traceparent": PARENT.decode()},
                )
                assert [chunk async for chunk in stream]
            await api.chat.completions.create(model="m", messages=ASK)
        told = gateway.driver.observer.traces.take()
        assert len(told) == 5
        retried = next(trace for trace in told if len(trace.spans) == 2)
        assert [span.kind for span in retried.spans] == ["server_error", ""]
        assert retried.parent == PARENT.decode()
        assert retried.spans[1].replica_id == "m-2"
        assert (retried.operation, retried.tenant, retried.status) == ("chat", "default", 200)
        assert retried.began <= retried.spans[0].began < retried.spans[1].began
        assert retried.spans[1].began < retried.spans[1].first <= retried.spans[1].ended
        assert retried.spans[1].ended <= retried.ended
        assert retried.spans[1].output_tokens > 0
        assert told[-1].first == 0  # in one piece
        assert "secret" not in repr(told)

    live(body, replicas=2)


SAYS = orjson.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Me."},
            }
        ],
    }
)


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_the_engine_is_told_the_span_of_its_attempt_where_a_request_is_traced(live, share):
    heads = []

    async def engine(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        length = int(re.search(rb"content-length: (\d+)", heads[-1])[1])
        await reader.readexactly(length)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(SAYS), SAYS))
        await writer.drain()
        writer.close()

    async def body(gateway):
        server = await gateway.put_behind(engine, "m", "vllm", trace_share=share)
        async with AsyncOpenAI(base_url=gateway.url, api_key="x", max_retries=0) as api:
            await api.chat.completions.create(
                model="m", messages=ASK, extra_headers={"traceparent": PARENT.decode()}
            )
        server.close()
        told = re.findall(rb"traceparent: (.*)\r\n", heads[0])
        if not share:
            assert told == []  # a caller alone has nothing traced, in engines neither
            return
        (row,) = gateway.driver.observer.traces.take()
        assert row.trace_id == PARENT[3:35].decode()
        assert told == [f"00-{row.trace_id}-{row.spans[0].span_id}-01".encode()]
        assert row.spans[0].span_id != PARENT[36:52].decode()

    live(body, replicas=1)
