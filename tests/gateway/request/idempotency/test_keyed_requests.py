"""Idempotency keys on two live gateways that share a store, as the processes of a host do."""

import asyncio

import pytest

from holdfast.config.tenants import hash_key
from holdfast.core.request.idempotency.key_policy import IdempotencyConfig
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys
from holdfast.testing.standin import Options
from keyed_stage import (
    SLOW,
    Reply,
    ask,
    connected,
    count,
    executions,
    request,
    runner,
    send,
)


@pytest.fixture
def keyed(live, tmp_path):
    return runner(live, tmp_path / "keys.db", SqliteKeys)


# --- one execution --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_fifty_callers_of_two_gateways_get_the_answer_of_one_execution(keyed, stream):
    async def body(one, two):
        sent = [ask((one, two)[i % 2], "k-1", stream=stream) for i in range(50)]
        replies = await asyncio.gather(*sent)
        assert {reply.status for reply in replies} == {200}
        assert len({reply.body for reply in replies}) == 1
        assert replies[0].body.endswith(b"data: [DONE]\n\n") == stream
        assert executions(one) == 1
        assert sum(reply.replayed for reply in replies) == 49
        later = await asyncio.gather(ask(one, "k-1", stream=stream), ask(two, "k-1", stream=stream))
        assert {reply.body for reply in later} == {replies[0].body}
        assert all(reply.replayed for reply in later)
        assert executions(one) == 1
        assert count(one, "executed") + count(two, "executed") == 1

    keyed(body, options=SLOW)


def test_a_stream_is_replayed_as_it_comes(keyed):
    async def body(one, two):
        first = asyncio.ensure_future(ask(one, "k", stream=True))
        await one.until(lambda: executions(one) == 1)

        async def duplicate(gateway):
            async with connected(gateway) as (reader, writer):
                writer.write(request("k", stream=True))
                seen = b""
                while seen.count(b"data: ") < 3:
                    seen += await reader.read(65_536)
                assert not first.done()
                return Reply(seen + await reader.read())

        replies = await asyncio.gather(duplicate(one), duplicate(two), first)
        assert len({reply.body for reply in replies}) == 1
        assert executions(one) == 1

    keyed(body, options=Options(ttft_ms=20.0, tpot_ms=100.0, tokens=30))


def test_without_a_key_every_request_is_executed(keyed):
    async def body(one, two):
        replies = [await ask(one, None) for _ in range(3)]
        assert [reply.replayed for reply in replies] == [False] * 3
        assert executions(one) == 3
        assert not one.driver.keyed.busy

    keyed(body)


def test_where_it_is_off_the_header_means_nothing(live):
    async def body(gateway):
        replies = [await ask(gateway, "k") for _ in range(2)]
        assert [reply.replayed for reply in replies] == [False] * 2
        assert executions(gateway) == 2

    live(body)


# --- refusals -------------------------------------------------------------------------------------


def test_another_request_under_the_same_key_is_refused(keyed):
    async def body(one, two):
        assert (await ask(one, "k")).status == 200
        for gateway in (one, two):
            for changed in ({"content": "Another"}, {"stream": True}, {"max_tokens": 3}):
                reply = await ask(gateway, "k", **changed)
                assert (reply.status, reply.code) == (422, "idempotency_key_reused")
                assert reply.headers["x-should-retry"] == "false"
        assert executions(one) == 1

    keyed(body)


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "k\r\nidempotency-key: l", "\xe9", "a\tb"])
def test_a_bad_key_is_refused_with_the_header_and_the_fix(keyed, key):
    async def body(one, _):
        reply = await send(one, request(key).replace("\xe9".encode(), b"\xe9"))
        assert (reply.status, reply.code) == (400, "invalid_idempotency_key")
        assert b"Idempotency-Key must be sent once, with 1 to 255 visible" in reply.body
        assert executions(one) == 0

    keyed(body)


def test_a_request_that_is_wrong_takes_no_key(keyed):
    async def body(one, _):
        assert (await ask(one, "k", n=0)).status == 400
        assert (await ask(one, "k")).status == 200
        assert (await ask(one, "k")).replayed

    keyed(body)


def test_two_tenants_may_use_the_same_key(keyed):
    async def body(one, _):
        def of(tenant):
            head = f"HTTP/1.1\r\nauthorization: Bearer hf-key-of-{tenant}\r\n".encode()
            return request("k", content=f"I am {tenant}").replace(b"HTTP/1.1\r\n", head)

        replies = [await send(one, of(tenant)) for tenant in ("a", "b", "a", "b")]
        assert [reply.replayed for reply in replies] == [False, False, True, True]
        assert replies[0].body == replies[2].body
        assert replies[1].body == replies[3].body
        assert executions(one) == 2

    keyed(body, tenants=[{"name": n, "keys": [hash_key(f"hf-key-of-{n}")]} for n in "ab"])


def test_a_tenant_with_too_many_keys_is_refused_and_none_is_forgotten(keyed):
    async def body(one, two):
        assert [(await ask(one, f"k{i}")).status for i in range(3)] == [200, 200, 429]
        reply = await ask(two, "k9")
        assert reply.code == "idempotency_keys_exhausted"
        assert int(reply.headers["retry-after"]) >= 1
        assert (await ask(two, "k0")).replayed

    keyed(body, IdempotencyConfig(keys_max=2, tenant_keys_max=2, poll_s=0.01))
