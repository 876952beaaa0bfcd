import asyncio
from random import Random

from holdfast.control.fleet.loads import Loads
from holdfast.core.diagnose.facts import LoadSeen
from holdfast.core.messages import LoadReported

PAGE = b"vllm:num_requests_running 3\nvllm:generation_tokens_total 500\n"
CACHE = b"vllm:prefix_cache_queries_total 90\nvllm:prefix_cache_hits_total 30\n"


def test_gateways_get_what_they_need_and_whoever_looks_for_failures_gets_all(world):
    told, seen = [], []

    async def main():
        engine = await world.Engine().start()
        engine.default = (200, "", PAGE)
        silent = await world.Engine().start()
        silent.default = (404, "", b"")
        replicas = {
            "m-1": world.deployed(engine.url),
            "m-2": world.deployed(silent.url, "m-2"),
        }
        loads = Loads(lambda: replicas, told.append, {}, Random(1), seen.append)
        await loads.once()
        engine.default = (200, "", PAGE + CACHE + b"vllm:num_requests_waiting 2\n")
        await loads.once()
        await engine.stop()
        await silent.stop()

    asyncio.run(main())
    assert seen == [
        LoadSeen("m-1", 3, None, None, 500),
        LoadSeen("m-1", 3, 2, None, 500, prefix_asked=90, prefix_found=30),
    ]
    assert told == [[LoadReported("m", "m-1", None, 2, None, running=3, generated=500)]]
