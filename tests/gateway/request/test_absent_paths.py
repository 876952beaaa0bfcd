"""An engine that does not have a path says so to the client, and is not ill for it."""

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from holdfast.config.fleet_file import FleetFile
from holdfast.core.messages import Report
from holdfast.testing.standin import Options, StandIn

ASK = [{"role": "user", "content": "Who is there?"}]
CHATS_ONLY = Options(ttft_ms=2.0, tpot_ms=1.0, tokens=12, lacks=("/v1/embeddings",))


def client(gateway) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url, api_key="unused", max_retries=2)


def arrived(gateway) -> list[int]:
    """How often each engine was asked."""
    return [engine.stats()["refused"] + engine.stats()["finished"] for engine in gateway.engines]


def health_of(gateway) -> list[tuple[str, int, int]]:
    pool = gateway.driver.flow.lanes["m"].pool
    return [(c.breaker.state.value, c.failures, c.withdrawn) for c in pool.candidates.values()]


async def refused(api: AsyncOpenAI) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        await api.embeddings.create(model="m", input="a text")
    return caught.value


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_path_that_an_engine_lacks_is_its_answer_and_nobodys_fault(live, status):
    async def body(gateway):
        async with client(gateway) as api:
            for asked in range(1, 13):
                error = await refused(api)
                assert error.status_code == status
                assert error.code == "path_not_served"
                assert error.body["message"] == (
                    f"m is not served at this path: its engine answered {status}"
                )
                assert error.response.headers["x-should-retry"] == "false"
                assert error.response.headers["x-holdfast-attempts"] == "1"
                assert sum(arrived(gateway)) == asked  # neither we nor the SDK asked again
            assert health_of(gateway) == [("closed", 0, 0)] * 2
            assert not [one for one in gateway.news if isinstance(one, Report)]
            assert (await api.chat.completions.create(model="m", messages=ASK)).choices

    lacking = Options(
        ttft_ms=2.0, tpot_ms=1.0, tokens=12, lacks=("/v1/embeddings",), lacks_status=status
    )
    live(body, options=lacking)


def test_a_replica_that_has_the_path_is_asked_and_the_other_avoided(live):
    async def body(gateway):
        engine = await StandIn(CHATS_ONLY).start(port=0)
        gateway.engines.append(engine)
        whole, lacking = gateway.engines
        gateway.reload(fleet(whole, lacking), 2)
        async with client(gateway) as api:
            answers = [await api.embeddings.with_raw_response.create(model="m", input="x")]
            answers += [
                await api.embeddings.with_raw_response.create(model="m", input=f"{n}")
                for n in range(20)
            ]
            assert {answer.status_code for answer in answers} == {200}
            assert lacking.stats()["refused"] <= 1  # then it is known
            assert max(int(a.headers["x-holdfast-attempts"]) for a in answers) <= 2
            both = [await api.chat.completions.create(model="m", messages=ASK) for _ in range(20)]
            assert len(both) == 20
            assert lacking.stats()["finished"] > 0  # for what it has it is as good as the other
        assert [state for state, _, _ in health_of(gateway)] == ["closed", "closed"]

    async def warm(gateway):
        """The first answer comes of the one that has the path: a pool of it alone."""
        async with client(gateway) as api:
            assert (await api.embeddings.create(model="m", input="x")).data
        await body(gateway)

    live(warm, replicas=1)


def fleet(*engines):
    urls = [engine.url for engine in engines]
    models = [{"name": "m", "engine": "vllm", "endpoints": urls}]
    return FleetFile.from_json(orjson.dumps({"models": models}))


@pytest.mark.parametrize("path", ["canaries", "served"])
def test_a_path_that_must_be_there_and_is_not_stays_a_failure(live, path):
    async def body(gateway):
        async with client(gateway) as api:
            lone = api.with_options(max_retries=0)
            if path == "served":
                for _ in range(2):  # one each
                    assert (await api.embeddings.create(model="m", input="x")).data
            for index in (0, 1):
                gateway.ail(index, "status", code=404, instant=True)
            if path == "served":
                asked = lone.embeddings.create(model="m", input="x")
            else:
                asked = lone.chat.completions.create(model="m", messages=ASK)
            with pytest.raises(openai.InternalServerError) as caught:
                await asked
            assert caught.value.status_code == 502
            assert caught.value.code == "upstream_failed"

    live(body, model={"routing": "round_robin"})


def test_a_model_that_is_missing_is_a_failure_on_every_path(live):
    async def body(gateway):
        for index in (0, 1):
            gateway.ail(index, "model_missing")
        async with client(gateway) as api:
            with pytest.raises(openai.InternalServerError) as caught:
                await api.with_options(max_retries=0).embeddings.create(model="m", input="x")
            assert caught.value.code == "upstream_failed"
        assert (
            sum(failures for _, failures, _ in health_of(gateway))
            + sum(withdrawn for _, _, withdrawn in health_of(gateway))
            > 0
        )

    live(body)
