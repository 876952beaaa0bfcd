"""``bench/false_alarms.py`` in small: an ugly life is no illness, and an illness would show."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SHORT = ["--hours", "0.25", "--models", "5"]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return importlib.import_module("false_alarms")


@pytest.fixture
def life(bench):
    return importlib.import_module("ugly_life")


@pytest.fixture
def busy_day(life):
    """All of a day's weather within minutes."""
    weather = life.Weather()
    often = ("neighbours", "compiles", "gaps", "gaps_of_all", "pauses_of_control", "jumps")
    rare = ("rollouts", "scalings", "restarts", "slowdowns", "pauses")
    more = {name: 20 * getattr(weather, name) for name in often}
    more |= {name: 40 * getattr(weather, name) for name in rare}
    return replace(weather, **more, failed=1e-3, scaling_s=(60.0, 300.0))


def test_an_ugly_life_is_no_illness(bench, busy_day):
    found = bench.run(2, 0.5, models=4, weather=busy_day)
    happened = set(found["happened"])
    assert {"neighbour", "compile", "gap", "late", "jump", "rollout", "scaling"} <= happened
    assert {"restart", "slowdown", "pause"} <= happened
    assert found["requests"] > 500
    assert found["wrong_quarantines"] == []
    assert found["restarts"] == []
    assert found["incidents"] == []
    assert bench.bounds_held(found)


def test_the_same_seed_gives_the_same_day(bench):
    first, again = (bench.run(2, 0.1, models=3) for _ in range(2))
    assert first | {"cpu_s": 0} == again | {"cpu_s": 0}


def test_an_illness_would_have_shown(bench, life):
    """One that stands still for a minute and more is ill, whatever its reason."""
    weather = life.Weather(compiles=96.0, compile_s=(60.0, 90.0))
    found = bench.run(1, 0.5, models=4, weather=weather)
    assert found["wrong_quarantines"]
    assert found["incidents"]
    assert not bench.bounds_held(found)
    told = found["incidents"][0]
    assert told["signs"]
    assert any("compile" in what for what in told["around"])


def test_figures_are_printed_with_their_seeds(bench, capsys):
    assert bench.main([*SHORT, "--seeds", "1,401", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["seed"], one["kind"]) for one in told["runs"]] == [(1, "tuning"), (401, "test")]
    assert not set(told["tuning_seeds"]) & set(told["test_seeds"])
    assert told["held"]


def test_a_table_is_printed_and_a_missed_bound_is_a_failure(bench, monkeypatch, capsys):
    incident = {"id": "inc-000001", "at_s": 5.0, "cause": "hung", "about": "m0-1"}
    incident |= {"confidence": 0.7, "signs": ["canary_silent"], "text": "[silent]", "around": []}
    real = bench.run

    def alarmed(*given):
        return real(*given) | {"incidents": [incident] * 2, "wrong_quarantines": ["5 s m0-1: why"]}

    monkeypatch.setattr(bench, "run", alarmed)
    assert bench.main([*SHORT, "--seeds", "7"]) == 1
    told = capsys.readouterr().out
    assert "neither" in told
    assert "wrong quarantine: 5 s m0-1: why" in told
    assert "hung of m0-1 (0.7), ['canary_silent']: [silent]" in told
    assert "test seeds (401, 402)" in told


def test_seeds_have_names(bench):
    assert bench.seeds_of("tuning") == bench.TUNING_SEEDS
    assert bench.seeds_of("test") == bench.TEST_SEEDS
    assert bench.seeds_of("4,5") == (4, 5)


def test_noise_is_that_of_the_recorded_engine(life):
    recorded = life.Recorded()
    assert len(recorded.idle) > 50
    assert len(recorded.lengths) > 50
    assert recorded.paces(0, beside=True) is recorded.idle
    levels = [recorded.paces(running, beside=False) for running in (1, 3, 8)]
    assert all(len(level) > 10 for level in levels)
    assert 0 < recorded.cut_share < 1
    assert recorded.memory.noise > 0
