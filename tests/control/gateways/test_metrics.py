from math import inf, nan

from holdfast.control.gateways import metrics
from holdfast.control.gateways.metrics import Totals, fleet_gauges, render


def test_samples_of_one_name_stand_under_its_type():
    text = render(
        {
            'requests_total{status="200"}': 2,
            'seconds_bucket{le="+Inf"}': 1,
            'requests_total{status="500"}': 1,
            "seconds_sum": 0.25,
        },
        {"open": 3},
    )
    assert text.splitlines() == [
        "# TYPE holdfast_requests_total counter",
        'holdfast_requests_total{status="200"} 2',
        'holdfast_requests_total{status="500"} 1',
        "# TYPE holdfast_seconds histogram",
        'holdfast_seconds_bucket{le="+Inf"} 1',
        "holdfast_seconds_sum 0.25",
        "# TYPE holdfast_open gauge",
        "holdfast_open 3",
    ]


def test_what_a_scraper_could_not_read_is_left_out():
    bad = {"bad name": 1, 'x{y="a\nb"}': 1, "": 1, "inf_total": inf, "nan_total": nan}
    assert render(bad, {}) == "\n"


def test_counters_of_all_gateways_are_added_also_of_those_that_are_gone():
    totals = Totals()
    totals.keep({"a_total": 2})
    totals.keep({"a_total": 1, "b_total": 1})
    assert totals.with_those_of([{"a_total": 5}, {"c_total": 1}]) == {
        "a_total": 8,
        "b_total": 1,
        "c_total": 1,
    }


def test_there_are_only_so_many_series(monkeypatch):
    monkeypatch.setattr(metrics, "SERIES_MAX", 3)
    totals = Totals()
    totals.keep({f"a{n}_total": 1 for n in range(5)})
    assert len(totals.with_those_of([{"z_total": 1, "a0_total": 1}])) == 3
    assert totals.left_out == 1
    assert totals.with_those_of([{"a0_total": 1}])["a0_total"] == 2


def test_replicas_are_counted_by_state():
    rows = [
        {"id": f"m-{n}", "model": "m", "state": state, "share": 0.5, "inflight": 2}
        for n, state in enumerate(["ready", "ready", "dead"])
    ]
    gauges = fleet_gauges(rows)
    assert gauges['replicas{model="m",state="ready"}'] == 2
    assert gauges['replica_share{model="m",replica="m-2"}'] == 0.5
