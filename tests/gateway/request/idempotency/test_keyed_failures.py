"""Idempotency keys where something goes wrong: engines, clients, stores and gateways."""

import asyncio
from functools import partial

import pytest

from holdfast.config.tenants import hash_key
from holdfast.core.request.idempotency.key_policy import IdempotencyConfig
from holdfast.ports import KeyStoreError
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys
from holdfast.testing.key_store import MemoryKeys
from holdfast.testing.standin import Options
from keyed_stage import (
    QUICK,
    SLOW,
    Reply,
    ask,
    connected,
    count,
    executions,
    request,
    runner,
    send,
    use_keys,
)

STREAM = Options(ttft_ms=10.0, tpot_ms=60.0, tokens=30)
AT_REST = IdempotencyConfig(answers="store", lease_s=1.0, beat_s=0.2, poll_s=0.01)


@pytest.fixture
def keyed(live, tmp_path):
    return runner(live, tmp_path / "keys.db", SqliteKeys)


class Silent:
    """A store that cannot be reached."""

    def __getattr__(self, name):
        raise KeyStoreError(name)

    def close(self):
        """Nothing is open."""


def die(gateway):
    """What kill -9 does, as far as the store and other gateways can tell: silence."""
    thread = gateway.driver.keyed.thread
    store, thread._store = thread._store, Silent()
    return store


# --- engines --------------------------------------------------------------------------------------


def test_an_engines_failure_is_not_final_and_all_who_wait_get_it(keyed):
    async def body(one, two):
        for index in range(2):
            one.ail(index, "status", code=500)
        replies = await asyncio.gather(*(ask((one, two)[i % 2], "k") for i in range(6)))
        assert {reply.status for reply in replies} <= {502}
        for engine in one.engines:
            engine.engine.clear_fault()
        reply = await ask(two, "k")
        assert (reply.status, reply.replayed) == (200, False)
        assert (await ask(one, "k")).body == reply.body

    keyed(body)


def test_an_engines_refusal_of_the_request_is_final(keyed):
    async def body(one, two):
        for index in range(2):
            one.ail(index, "status", code=422)
        first = await ask(one, "k")
        assert first.status == 422
        for engine in one.engines:
            engine.engine.clear_fault()
        again = await ask(two, "k")
        assert (again.status, again.body, again.replayed) == (422, first.body, True)

    keyed(body)


def test_a_stream_that_fails_in_its_middle_may_be_sent_again(keyed):
    async def body(one, two):
        one.ail(0, "stall", tokens=5)
        engine = one.engines[0].engine
        async with connected(one) as (reader, writer):
            writer.write(request("k", stream=True, n=2))
            begun = await reader.readuntil(b"data: ")
            waiting = asyncio.ensure_future(ask(two, "k", stream=True, n=2))
            await one.until(lambda: count(two, "joined") == 1)
            for connection in tuple(engine.connections):
                connection.reset()
            first, second = Reply(begun + await reader.read()), await waiting
        assert first.status == 200
        assert b'"error"' in first.body
        assert b"[DONE]" not in first.body
        assert second.body == first.body
        engine.clear_fault()
        assert (await ask(two, "k", stream=True, n=2)).body.endswith(b"data: [DONE]\n\n")

    keyed(body, replicas=1)


def test_a_limit_that_was_reached_is_not_final(keyed):
    auth = b"HTTP/1.1\r\nauthorization: Bearer hf-test-key\r\n"

    async def body(one, _):
        def of(key):
            return request(key).replace(b"HTTP/1.1\r\n", auth)

        assert (await send(one, of("k1"))).status == 200
        assert (await send(one, of("k2"))).status == 429
        again = await send(one, of("k2"))
        assert (again.status, again.replayed) == (429, False)
        first = await send(one, of("k1"))  # costs no quota
        assert first.replayed
        assert "x-ratelimit-remaining-requests" not in first.headers

    quota = {"requests_per_minute": 1}
    keyed(body, tenants=[{"name": "a", "keys": [hash_key("hf-test-key")], "quota": quota}])


# --- clients --------------------------------------------------------------------------------------


def test_a_client_that_leaves_does_not_end_it_for_others(keyed):
    async def body(one, two):
        async with connected(one) as (reader, writer):
            writer.write(request("k", stream=True))
            await reader.readuntil(b"data: ")
            waiting = [asyncio.ensure_future(ask(g, "k", stream=True)) for g in (one, two)]
            await one.until(lambda: count(one, "joined") + count(two, "joined") == 2)
        replies = await asyncio.gather(*waiting)
        assert {reply.body[-14:] for reply in replies} == {b"data: [DONE]\n\n"}
        assert executions(one) == 1

    keyed(body, options=STREAM)


def test_a_client_that_lost_its_connection_gets_the_answer_by_asking_again(keyed):
    async def body(one, two):
        async with connected(one) as (_, writer):
            writer.write(request("k"))
            await one.until(lambda: executions(one) == 1)
        await one.until(lambda: not one.driver.keyed.callers)
        for gateway in (one, two):
            reply = await ask(gateway, "k")
            assert (reply.status, reply.replayed) == (200, True)
        assert executions(one) == 1

    keyed(body, options=SLOW)


def test_what_nobody_waits_for_is_broken_off_and_its_key_is_free(keyed):
    async def body(one, two):
        async with connected(one) as (_, writer):
            writer.write(request("k"))
            await one.until(lambda: executions(one) == 1)
        await one.until(lambda: count(one, "abandoned") == 1)
        await one.until(lambda: one.driver.busy == 0)

        async def another():
            while (await ask(two, "k", content="Another, since it is free")).status == 422:
                assert executions(one) == 1  # it is being given back

        later = asyncio.ensure_future(another())
        await one.until(lambda: executions(one) == 2)
        later.cancel()

    config = IdempotencyConfig(abandoned_s=0.1, poll_s=0.01)
    keyed(body, config, options=Options(ttft_ms=20_000.0, tpot_ms=1.0, tokens=2))


# --- answers that are not kept --------------------------------------------------------------------


def test_an_answer_too_large_to_be_kept_reaches_who_waits_and_is_not_executed_again(keyed):
    async def body(one, two):
        first, second = await asyncio.gather(ask(one, "k", stream=True), ask(one, "k", stream=True))
        assert first.body == second.body
        assert first.body.endswith(b"data: [DONE]\n\n")
        for gateway in (one, two):
            reply = await ask(gateway, "k", stream=True)
            assert (reply.status, reply.code) == (409, "idempotency_answer_gone")
        assert executions(one) == 1

    keyed(body, IdempotencyConfig(answer_bytes_max=600, poll_s=0.01), options=SLOW)


@pytest.mark.parametrize("config", [QUICK, AT_REST], ids=["memory", "store"])
def test_after_a_restart_the_key_is_known_and_the_answer_where_it_was_stored(
    keyed, tmp_path, config
):
    async def body(one, two):
        first = await ask(one, "k")
        one.driver.close_keys()
        use_keys(one, SqliteKeys(tmp_path / "keys.db"), config)
        for gateway in (one, two):
            reply = await ask(gateway, "k")
            if config is AT_REST:
                assert (reply.body, reply.replayed) == (first.body, True)
            else:
                assert (reply.status, reply.code) == (409, "idempotency_answer_gone")
        assert executions(one) == 1

    keyed(body, config)


def test_answers_are_not_written_where_nobody_elsewhere_waits(keyed, tmp_path):
    async def body(one, _):
        answer = (await ask(one, "k", content="Say something long to me")).body
        assert (await ask(one, "k", content="Say something long to me")).replayed
        written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"d" in written
        for word in (b"Say something long", answer[:20], b'"k"'):
            assert word not in written

    keyed(body)


def test_a_purge_forgets_the_answers_in_memory_too(keyed, tmp_path):
    async def body(one, two):
        assert (await ask(one, "k")).status == 200
        assert one.driver.keyed.answers.size > 0
        other = SqliteKeys(tmp_path / "keys.db")
        assert other.purge("default") == 1
        other.close()
        await one.until(lambda: one.driver.keyed.answers.size == 0)
        reply = await ask(two, "k")
        assert (reply.status, reply.replayed) == (200, False)
        assert executions(one) == 2

    keyed(body)


# --- the store ------------------------------------------------------------------------------------


def test_while_the_store_is_down_keyed_requests_get_503_and_others_are_served(keyed):
    store = MemoryKeys()

    async def body(one, two):
        assert (await ask(one, "k0")).status == 200
        store.down = True
        reply = await ask(one, "k1")
        assert (reply.status, reply.code) == (503, "idempotency_unavailable")
        assert int(reply.headers["retry-after"]) >= 1
        assert (await ask(one, None)).status == 200
        assert executions(one) == 2
        store.down = False
        await one.until(lambda: one.driver.keyed.thread.problem is None)
        assert (await ask(one, "k1")).status == 200
        assert (await ask(two, "k0")).replayed

    keyed(body, store=lambda: store)


def test_a_store_that_does_not_answer_costs_a_keyed_request_its_patience_and_no_more(keyed):
    store = MemoryKeys()

    async def body(one, _):
        assert (await ask(one, "k0")).status == 200
        with store._lock:  # a call of the thread waits here
            reply = await ask(one, "k1")
            assert (reply.status, reply.code) == (503, "idempotency_unavailable")
            assert (await ask(one, None)).status == 200
        while (reply := await ask(one, "k1")).status != 200:
            assert reply.status == 503  # the claim that was made late, for nobody, is given back
        assert executions(one) == 3

    keyed(body, IdempotencyConfig(store_s=0.2, poll_s=0.01), store=lambda: store)


def test_an_answer_whose_end_cannot_be_stored_is_shown_after_a_while_and_stored_later(keyed):
    store = MemoryKeys()

    async def body(one, two):
        first = asyncio.ensure_future(ask(one, "k"))
        await one.until(lambda: executions(one) == 1)
        store.down = True
        reply = await first
        assert reply.status == 200
        assert count(one, "shown_unstored") == 1
        store.down = False
        await one.until(lambda: [r.state for r in store._records.values()] == ["finished"])
        assert (await ask(two, "k")).body == reply.body
        assert executions(one) == 1

    config = IdempotencyConfig(store_s=0.3, poll_s=0.01)
    keyed(body, config, store=lambda: store, options=SLOW)


# --- the gateway that executes --------------------------------------------------------------------


def test_a_dead_gateways_key_is_taken_over_by_one_who_waits(keyed):
    async def body(one, two):
        lost = asyncio.ensure_future(ask(one, "k"))
        await one.until(lambda: executions(one) == 1)
        waiting = [asyncio.ensure_future(ask(two, "k")) for _ in range(5)]
        await one.until(lambda: count(two, "joined") == 5)
        die(one)
        replies = await asyncio.gather(*waiting)
        assert {reply.status for reply in replies} == {200}
        assert len({reply.body for reply in replies}) == 1
        assert count(two, "taken_over") == 1
        assert (await ask(two, "k")).body == replies[0].body
        lost.cancel()

    keyed(body, options=Options(ttft_ms=600.0, tpot_ms=1.0, tokens=4))


def test_who_read_half_of_a_lost_stream_is_told_and_the_others_get_a_whole_one(keyed):
    async def body(one, two):
        lost = asyncio.ensure_future(ask(one, "k", stream=True))
        await one.until(lambda: executions(one) == 1)
        async with connected(two) as (reader, writer):
            writer.write(request("k", stream=True))
            await reader.readuntil(b"data: ")
            die(one)
            rest = await reader.read()
            assert b"idempotency_stream_interrupted" in rest
            assert b"[DONE]" not in rest
        whole = await ask(two, "k", stream=True)
        assert whole.status == 200
        assert whole.body.endswith(b"data: [DONE]\n\n")
        assert (await ask(two, "k", stream=True)).body == whole.body
        lost.cancel()

    keyed(body, options=Options(ttft_ms=10.0, tpot_ms=60.0, tokens=30))


def test_what_engines_keep_is_not_executed_twice(keyed):
    async def body(one, two):
        asked = partial(ask, path="/v1/responses")
        lost = asyncio.ensure_future(asked(one, "k"))
        await one.until(lambda: executions(one) == 1)
        waiting = asyncio.ensure_future(asked(two, "k"))
        await one.until(lambda: count(two, "joined") == 1)
        die(one)
        for reply in (await waiting, await asked(two, "k")):
            assert (reply.status, reply.code) == (409, "idempotency_outcome_unknown")
            assert reply.headers["x-should-retry"] == "false"
        assert executions(one) == 1
        lost.cancel()

    keyed(body, options=Options(ttft_ms=5_000.0, tpot_ms=1.0, tokens=4))


def test_a_gateway_that_was_thought_dead_cannot_answer_a_second_time(keyed):
    """It was frozen; its clients get the answer of the gateway that took over."""

    async def body(one, two):
        first = asyncio.ensure_future(ask(one, "k"))
        await one.until(lambda: executions(one) == 1)
        waiting = asyncio.ensure_future(ask(two, "k"))
        await one.until(lambda: count(two, "joined") == 1)
        store = die(one)
        reply = await waiting
        one.driver.keyed.thread._store = store
        assert reply.status == 200
        assert (await first).body == reply.body
        assert count(one, "fenced") == 1

    config = IdempotencyConfig(lease_s=1.0, beat_s=0.2, poll_s=0.01, store_s=60.0)
    keyed(body, config, options=Options(ttft_ms=700.0, tpot_ms=1.0, tokens=4))
