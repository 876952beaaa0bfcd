"""``bench/readiness.py`` in small: it says what it should, and finds nothing to complain of."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.setattr(sys, "argv", ["readiness.py"])
    return importlib.import_module("readiness")


@pytest.fixture
def tiny(bench, monkeypatch):
    """The whole of it, in seconds."""
    scale = bench.Scale(seeds=1, periods_s=(1.0,), loads=(0.0,), cost_s=800.0, pools=1, hours=2.0)
    monkeypatch.setattr(bench, "QUICK", scale)
    monkeypatch.setattr(bench.faults, "POOLS", 4)
    monkeypatch.setattr(bench.faults, "COST_LOADS", (0.0, 0.9))
    return ["--quick", "--jobs", "1"]


def test_every_fault_is_found_and_nobody_who_is_well(bench, tiny, capsys):
    assert bench.main([*tiny, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["problems"] == []
    by_fault = {row["fault"]: row for row in told["detect"]}
    assert set(by_fault) == set(bench.faults.FAULTS)
    for row in by_fault.values():
        assert row["noticed"]["count"] == row["replicas"] > 0
        assert 0 < row["noticed"]["p50_s"] <= row["noticed"]["max_s"] < 15
    never_out = [fault for fault, row in by_fault.items() if not row["out"]["count"]]
    assert never_out == ["latency ×3"]  # a slow answer is an answer
    assert all(row["noticed"]["count"] == row["replicas"] > 0 for row in told["lies"])
    alarms = told["alarms"]
    assert alarms["replica_hours"] == 10
    assert alarms["canaries"] > 3_000
    assert alarms["quarantined"] == alarms["dead"] == alarms["relaunched"] == 0


def test_tables_are_printed_for_people(bench, tiny, capsys):
    assert bench.main([*tiny, "--only", "cost,alarms", "--markdown"]) == 0
    told = capsys.readouterr().out
    assert "| GPU, 128 slots | 90% |" in told
    assert "| relaunched | 0 |" in told
    assert bench.main([*tiny, "--only", "alarms"]) == 0
    assert "│ relaunched" in capsys.readouterr().out


@pytest.mark.parametrize("load", [0.9, 1.2])
def test_on_the_smallest_engine_too_canaries_cost_saturated_replicas_a_hundredth(bench, load):
    row = bench.faults.cost_row(bench.faults.CPU, load, 1, 1_200.0)
    assert row["saturated"] > 0.5
    assert row["share_saturated"] <= bench.SHARE_MAX


def test_a_replica_with_a_free_slot_is_asked_as_often_as_an_idle_one(bench):
    row = bench.faults.cost_row(bench.faults.GPU, 0.5, 1, 300.0)
    assert 4.5 <= row["period_s"] <= 5.5


def test_what_should_not_be_is_a_failure(bench, tiny, capsys):
    told = {
        "cost": [
            {
                "engine": bench.faults.CPU.name,
                "load": 0.5,
                "share_saturated": 0.02,
                "saturated": 1.0,
            },
            {
                "engine": bench.faults.GPU.name,
                "load": 0.5,
                "share_saturated": 0.01,
                "saturated": 1.0,
            },
        ],
        "alarms": {"quarantined": 1, "dead": 0, "relaunched": 2},
    }
    assert len(bench.problems(told)) == 3
    with pytest.raises(SystemExit):
        bench.main([*tiny, "--only", "measles"])
    assert "measles" in capsys.readouterr().err


def test_a_replica_that_is_ill_would_have_shown(bench):
    """The healthy model is no lullaby: with one replica that stands still it does raise alarms."""
    healthy = bench.healthy
    weather = healthy.Weather(compiles_per_day=96.0, compile_s=(60.0, 90.0))
    pool = healthy.Pool(1, weather, healthy.CONFIG)
    pool.run(4)
    assert pool.counts["quarantined"] > 0
