import pytest

from holdfast.control import figures as module
from holdfast.control.figures import Figures, ModelFigures
from holdfast.core.facts import (
    AttemptsSeen,
    Gone,
    LoadSeen,
    Looked,
    MemorySeen,
    ProcessEnded,
)
from holdfast.core.failure import Kind
from holdfast.core.types import SECOND

T = 1_000 * SECOND


def test_the_last_words_of_an_engine_are_kept_while_they_are_fresh():
    figures = Figures()
    figures.take(LoadSeen("r", 2, 3, 0.5), T)
    figures.take(MemorySeen("r", 77), T)
    figures.take(MemorySeen("r", 99, device="gpu"), T)
    figures.take(Looked(), T)
    assert figures.of("r", T) == {
        "running": 2,
        "waiting": 3,
        "kv_used": 0.5,
        "tokens_s": 0.0,
        "used_bytes": 77,
    }
    assert figures.of("r", T + 60 * SECOND)["running"] is None
    assert figures.of("r", T + 60 * SECOND)["used_bytes"] == 77
    figures.take(ProcessEnded("r"), T)
    assert figures.of("r", T)["used_bytes"] is None
    assert set(figures.of("nobody", T).values()) == {None}


def test_rates_fade_and_an_engine_that_counts_is_believed():
    figures = Figures()
    for second in range(60):
        figures.take(AttemptsSeen("r", 1.0, successes=2, tokens=50), T + second * SECOND)
    now = T + 59 * SECOND
    assert figures.of("r", now)["tokens_s"] == pytest.approx(50, rel=0.1)
    assert figures.attempts("r", now) == pytest.approx(20, rel=0.1)
    assert figures.of("r", now + 60 * SECOND)["tokens_s"] < 1
    for second in range(60):
        load = LoadSeen("r", generated=1_000 + 80 * second)
        figures.take(load, T + second * SECOND)
    assert figures.of("r", now)["tokens_s"] == pytest.approx(80, rel=0.1)
    figures.take(LoadSeen("r", generated=5), now)  # it began anew
    assert figures.of("r", now)["tokens_s"] > 0
    assert figures.attempts("nobody", now) == 0


def test_failures_are_attempts_too():
    figures = Figures()
    figures.take(AttemptsSeen("r", 1.0, failures={Kind.RESET: 2}, backpressure=1), T)
    assert figures.attempts("r", T) == 3


def test_replicas_that_are_gone_are_forgotten_and_the_rest_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "REPLICAS_MAX", 2)
    figures = Figures()
    for name in "abc":
        figures.take(MemorySeen(name, 1), T)
    assert len(figures._replicas) == 2
    figures.take(Gone("a"), T)
    assert len(figures._replicas) == 1


def counters(ok, bad, fast, slow):
    first = "gen_ai_server_time_to_first_token_seconds_bucket"
    return {
        'requests_total{model="m",status="200"}': ok,
        'requests_total{model="m",status="503"}': bad,
        f'{first}{{model="m",le="0.1"}}': fast,
        f'{first}{{model="m",le="0.5"}}': fast + slow,
        f'{first}{{model="m",le="+Inf"}}': fast + slow,
        'requests_total{odd="m"}': 9,
        "config_epoch": 1,
    }


def test_models_have_rates_of_a_minute_and_a_budget_of_an_hour():
    figures = Figures()
    assert figures.model("m", T) == ModelFigures()
    figures.sample(counters(100, 0, 10, 0), T)
    assert figures.model("m", T) == ModelFigures()
    for step in range(1, 13):
        now = T + 10 * step * SECOND
        figures.sample(counters(100 + 9 * step, step, 10, 10 * step), now)
    found = figures.model("m", now)
    assert found.requests_s == 1.0
    assert found.errors_share == pytest.approx(0.1)
    assert found.burn == pytest.approx(100)
    assert found.ttft_s == pytest.approx(0.3)
    assert figures.model("other", now).requests_s == 0


def test_a_median_beyond_all_bounds_is_at_least_the_last_bound():
    figures = Figures()
    first = "gen_ai_server_time_to_first_token_seconds_bucket"
    figures.sample({}, T)
    rows = {f'{first}{{model="m",le="0.1"}}': 1, f'{first}{{model="m",le="+Inf"}}': 9}
    figures.sample(rows, T + 10 * SECOND)
    assert figures.model("m", T + 10 * SECOND).ttft_s == 0.1


def test_models_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MODELS_MAX", 1)
    figures = Figures()
    figures.sample({f'requests_total{{model="m{n}",status="200"}}': 1 for n in range(3)}, T)
    assert len(figures._samples[-1][1]) == 1
