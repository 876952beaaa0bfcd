"""An answer that an engine keeps is asked of the replica that keeps it, or is said to be lost."""

import asyncio

import openai
import pytest
from openai import AsyncOpenAI

from holdfast.config.tenants import hash_key
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.types import State
from holdfast.testing.standin import Options, expected_text

ASK = "Hello there"
KEY, OTHER = "hf-first-key", "hf-second-key"
ONE_AT_ONCE = Options(ttft_ms=30.0, tpot_ms=1.0, tokens=12, slots=1)


def client(gateway, key: str = "unused") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key=key, max_retries=0)


def health_of(gateway) -> list[tuple[str, int]]:
    pool = gateway.driver.flow.lanes["m"].pool
    return [(c.breaker.state.value, c.failures) for c in pool.candidates.values()]


async def raw(gateway, method: str, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def talk(api: AsyncOpenAI, turns: int, *, stream: bool, model: str = "m") -> list[str]:
    """A conversation by ``previous_response_id``; what was said, turn by turn."""
    before, said, expected = None, [], []
    for turn in range(turns):
        question = f"{ASK} {turn}"
        asked = await api.responses.create(
            model=model, input=question, previous_response_id=before, stream=stream
        )
        if stream:
            async for event in asked:
                if event.type == "response.completed":
                    asked = event.response
        said += [{"role": "user", "content": question}]
        assert asked.output_text == expected_text("m", said, 12)  # with all that was said before
        assert asked.previous_response_id == before
        said += [{"role": "assistant", "content": asked.output_text}]
        expected.append(asked.id)
        before = asked.id
    return expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_stays_where_it_is_kept(live, stream):
    async def body(gateway):
        async with client(gateway) as api:
            talks = [talk(api, 4, stream=stream) for _ in range(8)]
            ids = await asyncio.gather(*talks)
        assert len({one for told in ids for one in told}) == 32
        assert all(engine.stats()["kept"] % 4 == 0 for engine in gateway.engines)
        assert sum(engine.stats()["kept"] > 0 for engine in gateway.engines) > 1
        assert health_of(gateway) == [("closed", 0)] * 4

    live(body, replicas=4)


def test_a_kept_answer_is_read_again_and_what_its_engine_cannot_do_is_said(live):
    async def body(gateway):
        async with client(gateway) as api:
            for _ in range(4):
                first = await api.responses.create(model="m", input=ASK)
                told = await api.responses.with_raw_response.retrieve(first.id)
                again = told.parse()
                assert (again.id, again.output_text) == (first.id, first.output_text)
                assert told.headers["x-holdfast-replica"].startswith("m-")
                with pytest.raises(openai.BadRequestError, match="synchronous"):
                    await api.responses.cancel(first.id)
                with pytest.raises(openai.APIStatusError) as caught:
                    await api.responses.delete(first.id)  # vLLM has no such method
                assert caught.value.status_code == 405
                assert caught.value.code == "path_not_served"
                assert caught.value.response.headers["x-should-retry"] == "false"
        assert health_of(gateway) == [("closed", 0)] * 4
        path = f"/v1/responses/{first.id}"
        assert b'"param":"stream"' in await raw(gateway, "GET", f"{path}?stream=true")
        assert b"405 " in await raw(gateway, "PUT", path)
        assert b"unknown_url" in await raw(gateway, "GET", f"{path}/nothing")
        assert b"200 OK" in await raw(gateway, "HEAD", path)

    live(body, replicas=4)


@pytest.mark.parametrize("name", ["resp_1234", "resp_", "nonsense", "resp_" + "A" * 90, ""])
def test_an_id_that_was_never_given_out_is_not_found(live, name):
    async def body(gateway):
        async with client(gateway) as api:
            if not name:
                assert (
                    await api.responses.create(model="m", input=ASK, previous_response_id="")
                ).id
                return
            with pytest.raises(openai.NotFoundError) as caught:
                await api.responses.create(model="m", input=ASK, previous_response_id=name)
            assert caught.value.code == "response_not_found"
            assert caught.value.param == "previous_response_id"
            assert caught.value.response.headers["x-should-retry"] == "false"
            with pytest.raises(openai.NotFoundError) as caught:
                await api.responses.retrieve(name)
            assert caught.value.code == "response_not_found"
        assert not sum(engine.stats()["refused"] for engine in gateway.engines)

    live(body)


def test_nobody_reads_or_continues_what_another_tenant_was_told(live):
    async def body(gateway):
        async with client(gateway, KEY) as api, client(gateway, OTHER) as other:
            mine = await api.responses.create(model="m", input=ASK)
            assert (await api.responses.retrieve(mine.id)).output_text == mine.output_text
            with pytest.raises(openai.NotFoundError) as caught:
                await other.responses.retrieve(mine.id)
            assert caught.value.code == "response_not_found"
            with pytest.raises(openai.NotFoundError) as caught:
                await other.responses.create(model="m", input="and?", previous_response_id=mine.id)
            assert caught.value.code == "response_not_found"

    keys = [{"name": n, "keys": [hash_key(k)]} for n, k in (("a", KEY), ("b", OTHER))]
    live(body, tenants=keys)


@pytest.mark.parametrize("end", ["restarted", "killed", "removed", "dead"])
def test_a_holder_that_is_gone_is_an_honest_404_and_accuses_nobody(live, end):
    async def body(gateway):
        async with client(gateway) as api:
            told = await api.responses.with_raw_response.create(model="m", input=ASK)
            first = told.parse()
            holder = told.headers["x-holdfast-replica"]
            engine = gateway.engine_of(holder)
            if end == "restarted":
                port = engine.port
                await engine.stop()
                await engine.start(port=port)
            elif end == "killed":
                await engine.stop()
            else:
                views = tuple(
                    one if one.replica.id != holder else ReplicaView(one.replica, State.DEAD, 0.0)
                    for one in gateway.views
                    if end == "dead" or one.replica.id != holder
                )
                gateway.driver.view(FleetView(2, views))
            for _ in range(2):
                with pytest.raises(openai.NotFoundError) as caught:
                    await api.responses.create(
                        model="m", input="and?", previous_response_id=first.id
                    )
                assert caught.value.code == "response_lost"
                assert "Send the whole conversation" in caught.value.body["message"]
                assert caught.value.response.headers["x-should-retry"] == "false"
                assert int(caught.value.response.headers["x-holdfast-attempts"]) <= 1
            with pytest.raises(openai.NotFoundError) as caught:
                await api.responses.retrieve(first.id)
            assert caught.value.code == "response_lost"
            others = list(gateway.driver.flow.lanes["m"].pool.candidates.values())
            assert all(c.failures == 0 for c in others if c.id != holder or end == "restarted")
            assert (await api.responses.create(model="m", input=ASK)).output_text

    live(body, model={"routing": "round_robin"})


def test_a_busy_holder_is_waited_for_while_others_are_free(live):
    async def body(gateway):
        async with client(gateway) as api:
            first = await api.responses.create(model="m", input=ASK)
            both = [
                api.responses.create(model="m", input=f"{n}", previous_response_id=first.id)
                for n in range(6)
            ]
            answers = await asyncio.gather(*both)
            assert len({answer.id for answer in answers}) == 6
            others = [api.responses.create(model="m", input=f"{n}") for n in range(4)]
            assert len(await asyncio.gather(*others)) == 4
        assert max(engine.stats()["kept"] for engine in gateway.engines) >= 7

    async def with_slots(gateway):
        gateway.driver.view(
            FleetView(
                2,
                tuple(
                    ReplicaView(type(v.replica)(v.replica.id, "m", slots=1), State.READY, 1.0)
                    for v in gateway.views
                ),
            )
        )
        await body(gateway)

    live(with_slots, options=ONE_AT_ONCE)


def test_a_holder_that_gets_no_requests_is_waited_for_and_then_said_to_be_unavailable(live):
    async def body(gateway):
        async with client(gateway) as api:
            told = await api.responses.with_raw_response.create(model="m", input=ASK)
            holder = told.headers["x-holdfast-replica"]
            out = tuple(
                ReplicaView(v.replica, State.QUARANTINED, 0.0) if v.replica.id == holder else v
                for v in gateway.views
            )
            gateway.driver.view(FleetView(2, out))
            with pytest.raises(openai.InternalServerError) as caught:
                await api.responses.create(
                    model="m", input="and?", previous_response_id=told.parse().id
                )
            assert caught.value.status_code == 503
            assert caught.value.code == "holder_unavailable"
            assert int(caught.value.response.headers["retry-after"]) >= 1
            asked = asyncio.ensure_future(
                api.responses.create(model="m", input="and?", previous_response_id=told.parse().id)
            )
            await gateway.until(lambda: len(gateway.driver.flow.lanes["m"].queue) == 1)
            assert (await api.responses.create(model="m", input="others")).output_text
            gateway.driver.view(FleetView(3, gateway.views))
            assert (await asked).output_text

    queue = {"wait_interactive_s": 0.5, "wait_no_replica_s": 0.5}
    live(body, model={"queue": queue})


@pytest.mark.parametrize(
    ("member", "value", "fix"),
    [
        ("background", True, "wait for the answer"),
        ("conversation", "conv_1", "previous_response_id"),
        ("conversation", {"id": "conv_1"}, "previous_response_id"),
    ],
)
def test_what_nobody_keeps_is_refused_before_it_is_begun(live, member, value, fix):
    async def body(gateway):
        async with client(gateway) as api:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.responses.create(model="m", input=ASK, extra_body={member: value})
            assert caught.value.param == member
            assert fix in caught.value.body["message"]
            assert caught.value.type == "invalid_request_error"
            off = await api.responses.create(
                model="m", input=ASK, extra_body={member: False if value is True else None}
            )
            assert off.output_text
        assert sum(engine.stats()["kept"] for engine in gateway.engines) == 1

    live(body)
