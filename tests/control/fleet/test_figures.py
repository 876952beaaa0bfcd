import pytest

from holdfast.control.fleet import figures as module
from holdfast.control.fleet.figures import Figures, ModelFigures
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    Gone,
    LoadSeen,
    Looked,
    MemorySeen,
    ProcessEnded,
)
from holdfast.core.failure import Kind
from holdfast.core.messages import Report, Seen, Summary, Tally
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
        "ttft_s": None,
        "tpot_s": None,
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


def timed(*tallies):
    return Seen((Report("m", "r", "open", "x"), Summary(tuple(tallies))), "gateway-0")


def told(firsts=(), paces=(), name="r"):
    return Tally("m", name, 1, 0, 0, 0, 0, firsts=firsts, paces=paces)


def times(figures, now, name="r"):
    found = figures.of(name, now)
    return found["ttft_s"], found["tpot_s"]


def test_times_are_medians_of_the_last_minute_over_all_gateways():
    figures = Figures()
    figures.seen(timed(told((0.1, 0.2, 9.0), (0.02,)), told(name="idle")), {"r", "idle"}, T)
    figures.seen(timed(told((0.2, 0.3))), {"r"}, T)
    assert times(figures, T) == (pytest.approx(0.2, rel=0.03), pytest.approx(0.02, rel=0.03))
    assert times(figures, T, "idle") == (None, None)
    figures.seen(timed(told((5.0,) * 9)), {"r"}, T + SECOND)
    assert times(figures, T + SECOND)[0] < 0.3  # worked out every few seconds
    assert times(figures, T + 6 * SECOND)[0] == pytest.approx(5.0, rel=0.03)
    assert times(figures, T + 200 * SECOND) == (None, None)  # nobody asked it anything
    figures.seen(timed(told((0.5,))), {"r"}, T + 201 * SECOND)
    assert times(figures, T + 201 * SECOND)[0] == pytest.approx(0.5, rel=0.03)


def test_times_of_an_earlier_process_of_strangers_and_of_nonsense_are_not_kept(monkeypatch):
    figures = Figures()
    figures.seen(timed(told((0.1,), (0.1,))), {"r"}, T)
    figures.take(ProcessEnded("r"), T)
    assert times(figures, T) == (None, None)
    figures.seen(timed(told((0.1,), name="gone")), {"r"}, T)
    assert "gone" not in figures._replicas
    figures.seen(timed(told((float("nan"), -1.0, float("inf"), 1e9))), {"r"}, T)
    assert times(figures, T) == (None, None)
    monkeypatch.setattr(module, "REPLICAS_MAX", 1)
    figures.seen(timed(told((0.1,), name="one more")), {"one more"}, T)
    assert times(figures, T, "one more") == (None, None)


def prefix(asked=None, found=None, share=None, name="r"):
    return LoadSeen(name, 1, prefix_asked=asked, prefix_found=found, prefix_hits=share)


def test_prefix_hits_are_those_of_lately_over_all_replicas():
    figures = Figures()
    assert figures.prefix_hits(["r", "s"], T) is None
    figures.take(prefix(10_000, 9_000), T)
    figures.take(prefix(500, 0, name="s"), T)
    assert figures.prefix_hits(["r", "s"], T) is None  # since its start is not lately
    figures.take(prefix(10_300, 9_300), T)
    figures.take(prefix(600, 0, name="s"), T)
    assert figures.prefix_hits(["r", "s"], T) == 0.75
    assert figures.prefix_hits(["r"], T) == 1.0
    assert figures.prefix_hits(["s", "nobody"], T) == 0.0
    figures.take(prefix(7, 3), T)  # it began anew
    assert figures.prefix_hits(["r"], T) == 1.0
    assert figures.prefix_hits(["r"], T + 60 * SECOND) is None  # it says nothing any more
    for second in range(1, 200):
        figures.take(prefix(7, 3), T + second * SECOND)
    assert figures.prefix_hits(["r"], T + 199 * SECOND) is None  # nobody asked it anything


def test_an_engine_that_only_tells_a_share_is_believed_and_others_stay_unknown():
    figures = Figures()
    figures.take(prefix(share=0.25), T)
    figures.take(prefix(share=0.75, name="s"), T)
    figures.take(LoadSeen("quiet", 1), T)
    assert figures.prefix_hits(["r", "s", "quiet"], T) == 0.5
    assert figures.prefix_hits(["quiet"], T) is None
    figures.take(prefix(asked=5, name="half"), T)
    figures.take(prefix(asked=9, name="half"), T)
    assert figures.prefix_hits(["half"], T) is None
    figures.take(ProcessEnded("r"), T)
    assert figures.prefix_hits(["r"], T) is None


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
