import asyncio
import importlib.util

import pytest
from structlog.testing import capture_logs

from holdfast.config.exporters import CloudWatchSection, ExportersSection, TracesSection
from holdfast.control.view.exporter_feed import (
    ExporterFeed,
    ExportFigures,
    ExportInputs,
    memory_gauges,
    memory_used,
)

NAME = "gen_ai_server_request_duration_seconds"


def row(model="m", state="ready", replica="m-1"):
    return {"id": replica, "model": model, "state": state}


def ended(status, count, seconds, model="m"):
    labels = f'model="{model}",status="{status}"'
    return {f"{NAME}_count{{{labels}}}": count, f"{NAME}_sum{{{labels}}}": seconds}


def test_rates_are_what_happened_between_two_looks():
    figures = ExportFigures()
    first = figures.of(ExportInputs(ended(200, 10, 5.0), {}, [row()]))[0]
    assert (first.requests, first.latency_s) == (None, None)  # nothing to compare with
    counters = ended(200, 30, 15.0) | ended(503, 4, 0.1) | ended(429, 6, 0.1)
    second = figures.of(ExportInputs(counters, {}, [row()]))[0]
    assert (second.requests, second.errors) == (30, 4)
    assert second.latency_s == pytest.approx(0.5)  # of those that were answered
    third = figures.of(ExportInputs(counters, {}, [row()]))[0]
    assert (third.requests, third.errors, third.latency_s) == (0, 0, None)


def test_gauges_of_all_gateways_and_engines_are_put_together():
    gauges = {
        'queued_requests{model="m"}': 3,
        'replica_waiting{model="m",replica="m-1"}': 4,
        'replica_kv_used{model="m",replica="m-1"}': 0.5,
        'replica_kv_used{model="m",replica="m-2"}': 0.9,
        'desired_replicas{model="m"}': 3,
        'tokens_per_second{model="m"}': 900.0,
        'first_token_p95_seconds{model="m"}': 0.4,
        "gateways": 2,
    }
    rows = [row(), row(replica="m-2", state="dead"), row("other", replica="o-1")]
    one, other = ExportFigures().of(ExportInputs({}, gauges, rows))
    assert (one.queued, one.ready, one.desired) == (7, 1, 3)
    assert one.kv_used == one.memory_used == pytest.approx(0.7)
    assert (one.tokens_s, one.first_token_p95_s) == (900.0, 0.4)
    assert (other.queued, other.kv_used, other.memory_used, other.ready) == (None, None, None, 1)


def test_what_inference_servers_tell_of_themselves_is_exported():
    labels = [f'{{model="m",replica="m-{number}"}}' for number in (1, 2)]
    gauges = {
        f"engine_queue_seconds{labels[0]}": 0.2,
        f"engine_queue_seconds{labels[1]}": 0.4,
        f"engine_compute_seconds{labels[0]}": 0.5,
        f"engine_batch_size{labels[0]}": 3.0,
        f"engine_failed_ratio{labels[0]}": 0.1,
        f"engine_gpu_memory_used_bytes{labels[0]}": 30,
        f"engine_gpu_memory_used_bytes{labels[1]}": 40,
        f"engine_gpu_memory_total_bytes{labels[0]}": 100,
        f"engine_gpu_memory_total_bytes{labels[1]}": 100,
    }
    rows = [{"id": f"m-{number}", "model": "m", "state": "ready"} for number in (1, 2)]
    (one,) = ExportFigures().of(ExportInputs({}, gauges, rows))
    assert one.queue_s == pytest.approx(0.3)
    assert (one.compute_s, one.batch, one.failed_share) == (0.5, 3.0, 0.1)
    assert one.memory_used == pytest.approx(0.35)


def test_memory_is_the_cache_where_engines_tell_else_their_own_gpus():
    """A device that another model fills, or an engine that took all at its start, is no load."""
    gauges = {
        'gpu_memory_used_bytes{gpu="0"}': 50,
        'gpu_memory_total_bytes{gpu="0"}': 50,
        'replica_kv_used{model="m",replica="m-1"}': 0.25,
        'replica_gpu_memory_used_ratio{model="m",replica="m-1"}': 0.9,
        'replica_gpu_memory_used_ratio{model="n",replica="n-1"}': 0.3,
        'replica_gpu_memory_used_ratio{model="n",replica="n-2"}': 0.5,
        'replica_gpu_memory_used_bytes{model="vllm",replica="v-1"}': 50,
        'replica_gpu_utilisation_ratio{model="n",replica="n-1"}': 0.5,
        'replica_gpu_temperature_celsius{model="n",replica="n-1"}': 70,
        'replica_gpu_temperature_celsius{model="n",replica="n-2"}': 81,
    }
    rows = [row(), row("n", replica="n-1"), row("vllm", replica="v-1")]
    assert memory_used(gauges, rows) == {"m": 0.25, "n": pytest.approx(0.4)}
    assert memory_gauges(gauges, rows)['model_memory_used_ratio{model="n"}'] == 0.4
    assert memory_used({}, rows) == {}
    _, second, third = ExportFigures().of(ExportInputs({}, gauges, rows))
    assert (second.gpu_busy, second.gpu_temperature_c) == (0.5, 81)
    assert (third.memory_used, third.gpu_busy, third.gpu_temperature_c) == (None, None, None)


class Sends:
    """What an exporter was offered, instead of sending it."""

    def __init__(self):
        self.offered = []

    def offer(self, items):
        self.offered.append(list(items))


def exporting(section, traces=list):
    sight = ExportInputs({}, {'queued_requests{model="m"}': 3}, [row()], incidents=2)
    return ExporterFeed(section, lambda: sight, traces, {})


def test_figures_are_due_once_in_a_period_and_traces_at_every_look():
    section = ExportersSection(
        cloudwatch=CloudWatchSection(period=60.0),
        traces=TracesSection(endpoint="http://127.0.0.1:1"),
    )
    waiting = [["a"], [], ["b"]]
    made = exporting(section, lambda: waiting.pop(0))
    figures, spans = Sends(), Sends()
    deliveries = [made._cloudwatch.delivery, made._traces.delivery]
    made._cloudwatch.delivery, made._traces.delivery = figures, spans
    for at in (0.0, 30.0, 61.0):
        made.look(at)
    assert spans.offered == [["a"], ["b"]]
    assert len(figures.offered) == 2
    told = {(point.name, point.model): point.value for point in figures.offered[0]}
    assert told["InferenceQueueDepth", "m"] == 3
    assert told["OpenIncidents", ""] == 2
    for delivery in deliveries:
        delivery.close(10)


def test_a_section_that_did_not_change_keeps_its_exporter_and_counts_are_kept():
    one = ExportersSection(traces=TracesSection(endpoint="http://127.0.0.1:1"))
    made = exporting(one)
    before = made._traces
    made.follow(ExportersSection(traces=TracesSection(endpoint="http://127.0.0.1:1")))
    assert made._traces is before
    before.delivery.dropped = 7
    made.follow(ExportersSection())
    assert made._traces is None
    assert made.counters()['exports_total{exporter="traces",outcome="dropped"}'] == 7
    made.look(0.0)  # nobody is told, and nothing fails


def test_a_missing_extra_leaves_one_exporter_out_and_the_fleet_running(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    section = ExportersSection(
        cloudwatch=CloudWatchSection(), traces=TracesSection(endpoint="http://127.0.0.1:1")
    )
    with capture_logs() as logs:
        made = exporting(section)
    assert [log["event"] for log in logs] == ["exporter left out"] * 2
    assert "holdfast[aws]" in logs[0]["reason"]
    made.look(0.0)


def test_its_end_closes_the_threads():
    async def main():
        section = ExportersSection(traces=TracesSection(endpoint="http://127.0.0.1:1"))
        made = exporting(section)
        job = asyncio.create_task(made.run())
        await asyncio.sleep(0)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        return made._traces.delivery._thread

    thread = asyncio.run(main())
    thread.join(10)
    assert not thread.is_alive()
