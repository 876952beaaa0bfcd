"""Conversations that engines keep, each in its own process, over two gateway processes."""

import asyncio
from random import Random

import openai
import pytest
import uvloop
from openai import AsyncOpenAI

from holdfast.testing.standin import Options, StandIn, expected_text

QUICK = Options(ttft_ms=5.0, tpot_ms=1.0, tokens=12, lacks=("/v1/embeddings",))
ENGINES, WORKERS = 4, 2
AT_ONCE, CONVERSATIONS, TURNS = 8, 20, 4


class Fleet:
    """Four engines in front of which ``holdfast serve`` runs with two gateways."""

    def __init__(self, ops, folder):
        self._ops = ops
        self.port, self.admin_port = ops.free_ports(2, Random())
        self._config = folder / "fleet.yaml"

    async def __aenter__(self):
        self.engines = [await StandIn(QUICK).start() for _ in range(ENGINES)]
        urls = ", ".join(engine.url for engine in self.engines)
        self._config.write_text(
            f"gateway: {{listen: 127.0.0.1:{self.port}, workers: {WORKERS}}}\n"
            f"admin: {{listen: 127.0.0.1:{self.admin_port}}}\n"
            f"models:\n  - {{name: m, engine: vllm, endpoints: [{urls}]}}\n"
        )
        self.serve = self._ops.Serve(self._config)
        await self._ops.until(lambda: self.states() == ["ready"] * ENGINES, "all are ready")
        return self

    async def __aexit__(self, *_):
        await asyncio.to_thread(self.serve.end)
        for engine in self.engines:
            await engine.stop()

    def client(self):
        """A client whose requests come over connections of their own, to either gateway."""
        url = f"http://127.0.0.1:{self.port}/v1"
        headers = {"connection": "close"}
        return AsyncOpenAI(base_url=url, api_key="x", max_retries=2, default_headers=headers)

    def status(self):
        try:
            return self._ops.call(f"http://127.0.0.1:{self.admin_port}/status", timeout_s=2.0)
        except OSError:
            return {}

    def states(self):
        return [one["state"] for one in self.status().get("replicas", [])]


async def converse(api, number, gateways):
    """One conversation; how many of its turns were answered with all that was said before."""
    before, said = None, []
    for turn in range(TURNS):
        question = f"conversation {number}, turn {turn}"
        told = await api.responses.with_raw_response.create(
            model="m", input=question, previous_response_id=before
        )
        answer = told.parse()
        gateways.add(told.headers["x-request-id"][:12])  # the process is named in it
        said.append({"role": "user", "content": question})
        assert answer.output_text == expected_text("m", said, QUICK.tokens)
        said.append({"role": "assistant", "content": answer.output_text})
        before = answer.id
    assert (await api.responses.retrieve(before)).output_text == answer.output_text


@pytest.fixture
def fleet(ops, tmp_path):
    def run(body):
        async def main():
            async with asyncio.timeout(120), Fleet(ops, tmp_path) as made:
                await body(made)

        uvloop.run(main())

    return run


def test_every_turn_of_every_conversation_is_answered_and_no_replica_is_blamed(fleet):
    async def body(made):
        gateways = set()
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(number):
            async with limit, made.client() as api:
                await converse(api, number, gateways)

        await asyncio.gather(*(one(number) for number in range(CONVERSATIONS)))
        assert len(gateways) == WORKERS
        kept = [engine.stats()["kept"] for engine in made.engines]
        assert sum(kept) == CONVERSATIONS * TURNS
        assert min(kept) > 0
        async with made.client() as api:
            for _ in range(40):
                with pytest.raises(openai.NotFoundError) as caught:
                    await api.embeddings.create(model="m", input="a text")
                assert caught.value.code == "path_not_served"
        refused = sum(engine.stats()["refused"] for engine in made.engines)
        assert refused == 40  # neither the gateway nor the SDK asked twice
        for _ in range(10):  # control hears of what the gateways saw within a second
            status = await asyncio.to_thread(made.status)
            assert [one["state"] for one in status["replicas"]] == ["ready"] * ENGINES
            assert status["incidents_open"] == 0
            await asyncio.sleep(0.2)

    fleet(body)


def test_a_response_that_waits_for_nobody_is_refused(fleet):
    async def body(made):
        async with made.client() as api:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.responses.create(model="m", input="hello", background=True)
            assert caught.value.param == "background"
            assert "Leave it out" in caught.value.body["message"]
        assert not sum(engine.stats()["kept"] for engine in made.engines)

    fleet(body)
