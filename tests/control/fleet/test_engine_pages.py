import asyncio
from dataclasses import replace
from random import Random

import pytest

from holdfast.control.fleet.engine_pages import EngineReport, metrics_page, read_engine
from holdfast.control.fleet.figures import Figures
from holdfast.control.fleet.loads import COUNTS_EVERY, Loads
from holdfast.core.diagnose.facts import InferencesSeen, LoadSeen
from holdfast.core.messages import LoadReported
from holdfast.core.types import SECOND
from holdfast.engines import Load, dialect
from holdfast.engines.dialect import InferenceCounts

METRICS = b"""\
nv_inference_request_success{model="m",version="1"} 5
nv_inference_request_failure{model="m",reason="BACKEND",version="1"} 2
nv_inference_pending_request_count{model="m",version="1"} 3
nv_inference_pending_request_count{model="other",version="1"} 90
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 100
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 30
"""
SPANS = ",".join(
    f'"{name}":{{"count":1,"ns":1000000}}'
    for name in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
)
STATISTICS = (
    f'{{"model_stats":[{{"name":"m","inference_count":8,"execution_count":2,"inference_stats":'
    f'{{{SPANS}}},"batch_stats":[{{"batch_size":4}}]}}]}}'
).encode()
STATS_PATH = "/v2/models/m/stats"


def triton(world, url, **more):
    return replace(world.deployed(url, engine="triton"), **more)


@pytest.mark.parametrize(
    ("engine", "url", "more", "page"),
    [
        ("triton", "http://h:8000", {}, "http://h:8002/metrics"),
        ("triton", "http://[::1]:8000", {}, "http://[::1]:8002/metrics"),
        ("triton", "http://h:9000", {}, None),  # who knows what listens two ports beside it
        ("triton", "https://h:8000", {}, None),
        ("triton", "http://h:9000", {"by_recipe": True}, "http://h:19000/metrics"),
        ("triton", "http://h:60000", {"by_recipe": True}, "http://h:50000/metrics"),
        ("triton", "http://h:8000", {"metrics_url": "http://m:1/x"}, "http://m:1/x"),
        (
            "triton",
            "http://h:9000/a",
            {"metrics_url": "http://{host}:{second_side_port}/metrics"},
            "http://h:29000/metrics",
        ),
        ("vllm", "http://h:8000/a", {}, "http://h:8000/a/metrics"),
        ("vllm", "http://h:8000", {"by_recipe": True}, "http://h:8000/metrics"),
        ("openai", "http://h:8000", {}, None),
    ],
)
def test_a_metrics_page_is_where_the_file_or_the_engine_has_it(world, engine, url, more, page):
    deployed = replace(world.deployed(url, engine=engine), **more)
    assert metrics_page(deployed, dialect(engine)) == page


def test_both_pages_are_read_and_the_token_goes_to_the_engine_alone(world):
    async def main():
        metrics, engine = await world.Engine().start(), await world.Engine().start()
        metrics.default = (200, "", METRICS)
        engine.answers[STATS_PATH] = (200, "", STATISTICS)
        deployed = triton(
            world, engine.url, metrics_url=f"{metrics.url}/metrics", api_key_env="KEY"
        )
        short = await read_engine(deployed, 5, {"KEY": "secret"})
        whole = await read_engine(deployed, 5, {"KEY": "secret"}, statistics=True)
        await metrics.stop()
        await engine.stop()
        return short, whole, metrics, engine

    short, whole, metrics, engine = asyncio.run(main())
    counts = InferenceCounts(5, 2, pending=3, gpu_used_bytes=30, gpu_total_bytes=100)
    assert short == EngineReport(Load(waiting=3), counts)
    assert whole.counts == replace(
        counts, inferences=8, executions=2, queue_s=0.001, compute_s=0.003, batch_max=4
    )
    assert metrics.asked == ["/metrics", "/metrics"]
    assert not any(b"secret" in head for head in metrics.heads)
    assert engine.asked == [STATS_PATH]
    assert b"triton-access-token: secret" in engine.heads[0]


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_closed_page_of_statistics_takes_nothing_from_the_metrics(world, status):
    async def main():
        engine = await world.Engine().start()
        engine.answers["/metrics"] = (200, "", METRICS)
        engine.answers[STATS_PATH] = (status, "", STATISTICS)
        deployed = triton(world, engine.url, metrics_url=f"{engine.url}/metrics")
        told = await read_engine(deployed, 5, {}, statistics=True)
        await engine.stop()
        return told

    told = asyncio.run(main())
    assert told.load == Load(waiting=3)
    assert told.counts is not None
    assert told.counts.successes == 5
    assert told.counts.batch_max is None


def test_without_metrics_the_statistics_are_enough(world):
    async def main():
        engine = await world.Engine().start()
        engine.answers[STATS_PATH] = (200, "", STATISTICS)
        told = await read_engine(triton(world, engine.url), 5, {}, statistics=True)
        await engine.stop()
        return told

    told = asyncio.run(main())
    assert told.load == Load()
    assert told.counts == InferenceCounts(1, 1, 8, 2, 0.001, 0.003, batch_max=4)


def test_an_engine_that_is_gone_tells_nothing(world):
    port = world.free_port()
    deployed = triton(world, f"http://127.0.0.1:{port}", metrics_url=f"http://127.0.0.1:{port}/m")
    told = asyncio.run(read_engine(deployed, 5, {}, statistics=True))
    assert told == EngineReport(Load(), InferenceCounts())


def test_counts_reach_whoever_looks_for_failures_every_few_rounds(world):
    told, seen = [], []

    async def main():
        engine = await world.Engine().start()
        engine.answers["/metrics"] = (200, "", METRICS)
        deployed = triton(world, engine.url, metrics_url=f"{engine.url}/metrics")
        loads = Loads(lambda: {"m-1": deployed}, told.append, {}, Random(1), seen.append)
        for _ in range(COUNTS_EVERY + 1):
            await loads.once()
        await engine.stop()

    asyncio.run(main())
    counts = [fact for fact in seen if isinstance(fact, InferencesSeen)]
    assert counts == 2 * [
        InferencesSeen("m-1", 5, 2, pending=3, gpu_used_bytes=30, gpu_total_bytes=100)
    ]
    assert len([fact for fact in seen if isinstance(fact, LoadSeen)]) == COUNTS_EVERY + 1
    assert told[0] == [LoadReported("m", "m-1", None, 3, None)]


def test_figures_of_servers_are_shown_and_scraped_and_forgotten_when_they_are_old():
    figures = Figures()
    figures.take(InferencesSeen("m-1", 5, 2, 5, 7, 0.1, 0.5, 3, 4, None, 30, 100, 0.5), SECOND)
    assert figures.inference("m-1", SECOND)["inferences_s"] is None
    figures.take(InferencesSeen("m-1", 15, 12, 45, 17, 0.2, 1.5, 0, 4, 9, 40, 100, 0.5), 6 * SECOND)
    row = figures.inference("m-1", 6 * SECOND)
    assert row["inferences_s"] == 4.0
    assert row["failed_share"] == 0.5
    assert row["queue_s"] == 0.01
    assert row["compute_s"] == 0.1
    assert row["batch"] == 4.0
    assert row["batch_max"] == 4
    assert row["engine_gpu_used_bytes"] == 40
    counters, gauges = figures.inference_series([("m", "m-1"), ("m", "m-2")], 6 * SECOND)
    mine = 'model="m",replica="m-1"'
    assert counters == {
        f'engine_inferences_total{{{mine},outcome="success"}}': 15,
        f'engine_inferences_total{{{mine},outcome="failure"}}': 12,
    }
    assert gauges[f"engine_gpu_memory_used_bytes{{{mine}}}"] == 40
    assert gauges[f"engine_failed_ratio{{{mine}}}"] == 0.5
    assert gauges[f"engine_pending_requests{{{mine}}}"] == 0
    assert figures.inference_series([("m", "m-1")], 60 * SECOND) == ({}, {})
    assert figures.inference("m-1", 60 * SECOND)["batch_max"] is None
