import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from holdfast.config.exporters import ExportersSection, TracesSection
from holdfast.config.fleet_file import Deployed
from holdfast.config.models import ModelSection
from holdfast.config.prices import PricesSection
from holdfast.control.gateways.metrics import Totals
from holdfast.control.view import costs_and_exports as keeping
from holdfast.control.view.costs_and_exports import CostsAndExports
from holdfast.core.canary import CanaryVerdict
from holdfast.core.messages import CanaryResult
from holdfast.core.types import Replica

MODEL = ModelSection.model_validate({"name": "m", "engine": "vllm", "endpoints": ["http://h:1"]})
TOKENS = 'tokens_total{tenant="a",model="m",route="direct",use="useful",type="output"}'
ROW = {"id": "m-1", "model": "m", "state": "ready", "inflight": 1}


def file(exporters=None, **prices):
    said = PricesSection.model_validate(prices)
    exporters = exporters or ExportersSection()
    return SimpleNamespace(models=[MODEL], prices=said, exporters=exporters)


@pytest.fixture
def fleet():
    deployed = {"m-1": Deployed(Replica("m-1", "m"), "http://h:1", "vllm", "m", None)}
    return SimpleNamespace(deployed=deployed, replicas=lambda: [ROW])


@pytest.fixture
def books(fleet):
    counters = {TOKENS: 9.0, "other_total": 1.0}
    hub = SimpleNamespace(
        gateways={"g": SimpleNamespace(counters=counters)}, take_traces=list, traces_dropped=3
    )
    gauges = {'replica_kv_used{model="m",replica="m-1"}': 0.5}
    return CostsAndExports(file(), hub, Totals(), lambda: fleet, lambda: gauges, lambda: 2, {})


def test_a_look_books_what_gateways_counted(books):
    async def main():
        job = asyncio.create_task(books.run())
        async with asyncio.timeout(10):
            while not books.cost()["lines"]:  # noqa: ASYNC110 - no event tells of a look
                await asyncio.sleep(0)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    asyncio.run(main())
    (line,) = books.cost()["lines"]
    assert (line["tenant"], line["output_tokens"]) == ("a", 9)
    assert not any("other_total" in name for name in books.metrics()[0])


def test_canaries_of_known_replicas_are_booked(books):
    for replica, tokens in (("m-1", 20), ("m-1", 0), ("gone", 20)):
        books.answered(CanaryResult(replica, CanaryVerdict.PASS, tokens=tokens))
    told, _ = books.metrics()
    labels = 'tenant="-",model="m",route="direct",use="canary"'
    assert told[f'tokens_total{{{labels},type="input"}}'] == 12
    assert told[f'tokens_total{{{labels},type="output"}}'] == 8


def test_a_new_file_brings_new_prices(books):
    assert books.cost()["currency"] == "USD"
    books.follow(file(currency="EUR", gpu_hour=2.0))
    assert books.cost()["currency"] == "EUR"
    assert books.cost()["priced"] is True


def test_what_exporters_see_is_what_metrics_show(books):
    assert books.metrics()[1] == {'model_memory_used_ratio{model="m"}': 0.5}
    sight = books._sight()
    assert (sight.incidents, list(sight.replicas)) == (2, [ROW])
    assert sight.counters == {}


def test_traces_that_found_no_room_are_not_lost_in_silence(books):
    traces = TracesSection(endpoint="http://127.0.0.1:1")
    books.follow(file(ExportersSection(traces=traces)))
    assert books.metrics()[0]['exports_total{exporter="traces",outcome="dropped"}'] == 3
    books.follow(file())


def test_a_mistake_in_the_books_is_counted_and_does_not_end_the_fleet(fleet, monkeypatch):
    monkeypatch.setattr(keeping, "PAUSE_S", 0.0)
    hub = SimpleNamespace(gateways={}, take_traces=list, traces_dropped=0)

    def broken():
        raise ValueError("no replicas today")

    lost = SimpleNamespace(deployed={}, replicas=broken)
    told = [lost, lost, fleet]
    books = CostsAndExports(
        file(), hub, Totals(), lambda: told.pop(0) if told else fleet, dict, int, {}
    )

    async def main():
        job = asyncio.create_task(books.run())
        async with asyncio.timeout(10):
            while not books.cost()["models"]:  # noqa: ASYNC110 - no event tells of a look
                await asyncio.sleep(0)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    with capture_logs() as logs:
        asyncio.run(main())
    assert [log["part"] for log in logs] == ["costs", "costs"]
    assert books.metrics()[0]["books_errors_total"] == 2
