import asyncio

import pytest

from holdfast.control.gateways.metrics import Totals, render
from holdfast.control.view import costs as costing
from holdfast.control.view.costs import Costs
from holdfast.core.plan.cost import ModelPrice, Prices

SECOND = 1_000_000_000
PRICES = Prices("EUR", 4.0, {"m": ModelPrice(2, 3600.0, 1.0, 10.0)})  # a GPU-second costs one


def row(replica="m-1", state="ready", inflight=0, model="m"):
    return {"id": replica, "model": model, "state": state, "inflight": inflight}


def tokens(tenant, use, read, said, model="m", route="direct"):
    labels = f'tenant="{tenant}",model="{model}",route="{route}",use="{use}"'
    return {
        f'tokens_total{{{labels},type="input"}}': read,
        f'tokens_total{{{labels},type="output"}}': said,
    }


def attempts(**by_replica):
    names = {name.replace("_", "-"): value for name, value in by_replica.items()}
    return {f'attempt_seconds_total{{replica="{name}"}}': s for name, s in names.items()}


def line(costs, tenant, use="useful"):
    lines = costs.report()["lines"]
    return next(one for one in lines if (one["tenant"], one["use"]) == (tenant, use))


def test_a_replica_is_busy_while_something_runs_or_as_long_as_attempts_took():
    costs = Costs(PRICES)
    costs.look([row(), row("m-2"), row("m-3")], {}, 0)
    counters = attempts(m_2=0.5) | tokens("a", "useful", 100, 0)
    costs.look([row(inflight=1), row("m-2"), row("m-3")], counters, 2 * SECOND)
    model = costs.report()["models"][0]
    assert model["gpu_seconds"] == pytest.approx(12.0)  # three replicas, two GPUs each, 2 s
    assert model["seconds_by_use"] == {"useful": 5.0, "idle": 7.0}
    assert (model["cost"], model["useful_cost"], model["idle_cost"]) == (12.0, 5.0, 7.0)


def test_tenants_pay_for_their_tokens_and_waste_is_apart():
    costs = Costs(PRICES)
    costs.look([row()], {}, 0)
    counters = tokens("a", "useful", 0, 25) | tokens("b", "useful", 100, 0, route="auto")
    counters |= tokens("a", "retry", 200, 0)
    costs.look([row(inflight=3)], counters, 10 * SECOND)
    assert line(costs, "a")["cost"] == pytest.approx(5.0)
    assert line(costs, "b")["cost"] == pytest.approx(5.0)
    assert line(costs, "b")["route"] == "auto"
    assert line(costs, "a", "retry")["cost"] == pytest.approx(10.0)
    assert line(costs, "a")["charged"] == pytest.approx(25 * 10 / 1e6)
    assert line(costs, "a", "retry")["charged"] == 0.0  # nobody is asked to pay for it
    told = costs.report()
    assert told["totals"]["wasted_cost"] == pytest.approx(10.0)
    assert told["totals"]["useful_cost"] == pytest.approx(10.0)
    assert [one["cost"] for one in told["lines"]] == [10.0, 5.0, 5.0]  # the dearest first


def test_a_replica_that_loads_is_starting_and_one_that_is_gone_costs_nothing():
    costs = Costs(PRICES)
    rows = [
        row("m-1", "loading"),
        row("m-2", "dead"),
        row("m-3", "stopped"),
        row("m-4", "draining"),
    ]
    costs.look(rows, {}, 0)
    costs.look(rows, {}, SECOND)
    assert costs.report()["models"][0]["seconds_by_use"] == {"starting": 2.0, "idle": 2.0}


def test_canaries_are_nobodys_and_are_counted_for_prometheus():
    costs = Costs(PRICES)
    costs.canary("m", 20, 8)
    costs.canary("m", 5, 8)
    costs.look([row()], {}, 0)
    assert line(costs, "-", "canary")["input_tokens"] == 12
    assert line(costs, "-", "canary")["output_tokens"] == 13
    labels = 'tenant="-",model="m",route="direct",use="canary"'
    assert costs.counters()[f'tokens_total{{{labels},type="output"}}'] == 13


def test_prometheus_gets_seconds_and_amounts_that_never_fall():
    costs = Costs(PRICES)
    costs.look([row()], {}, 0)
    costs.look([row(inflight=1)], {}, SECOND)
    text = render(costs.counters(), {})
    assert "under_way" not in text
    assert "# TYPE holdfast_gpu_seconds_total counter" in text
    costs.look([row(inflight=1)], tokens("a", "useful", 1, 1), 2 * SECOND)
    told = costs.counters()
    assert told['gpu_seconds_total{model="m",use="useful"}'] == pytest.approx(4.0)
    assert told['gpu_cost_total{model="m",use="useful",currency="EUR"}'] == pytest.approx(4.0)


def test_new_prices_hold_for_what_was_booked_before():
    costs = Costs(Prices())
    costs.look([row()], {}, 0)
    costs.look([row(inflight=1)], tokens("a", "useful", 1, 1), SECOND)
    assert costs.report()["priced"] is False
    assert line(costs, "a")["cost"] == 0.0
    costs.follow(PRICES)
    assert line(costs, "a")["cost"] == pytest.approx(1.0)  # booked as one GPU


def test_series_that_are_not_ours_are_passed_over():
    costs = Costs(PRICES)
    odd = {'tokens_total{tenant="a"}': 1.0, "tokens_total{": 1.0}
    odd |= tokens("a", "something new", 1, 1)
    costs.look([row()], odd, 0)
    assert costs.report()["lines"] == []


def test_a_report_has_an_end(monkeypatch):
    monkeypatch.setattr(costing, "LINES_MAX", 2)
    costs = Costs(PRICES)
    costs.look([row()], {k: v for n in "abc" for k, v in tokens(n, "useful", 1, 1).items()}, 0)
    told = costs.report()
    assert (len(told["lines"]), told["left_out"]) == (2, 1)


def test_it_looks_by_itself():
    async def main():
        costs = Costs(PRICES)
        seen = asyncio.Event()

        def read():
            seen.set()
            return [row()], {}

        job = asyncio.create_task(costs.run(read))
        async with asyncio.timeout(10):
            await seen.wait()
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)

    asyncio.run(main())


def test_only_some_series_of_all_gateways_are_added_up():
    totals = Totals()
    totals.keep({"tokens_total{a}": 2, "other_total": 1})
    living = [{"tokens_total{a}": 1, "tokens_total{b}": 3}, {"attempt_seconds_total{x}": 0.5}]
    assert totals.only(costing.SERIES, living) == {
        "tokens_total{a}": 3,
        "tokens_total{b}": 3,
        "attempt_seconds_total{x}": 0.5,
    }
