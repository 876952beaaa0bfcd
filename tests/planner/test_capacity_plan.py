import json

import pytest

from holdfast.core.types import ConfigError
from holdfast.planner import PLANS
from holdfast.planner.capacity.bench_file import speed_of_bench
from holdfast.planner.question import UnderspecifiedError
from twin_data import LAW, measured

CHAT = {"rate": 40, "prompt": 500, "output": 200, "speed": "vllm-llama-3.1-8b"}


def ask(**given):
    return PLANS["capacity"].ask(given)


def test_ten_thousand_users_at_500_in_and_200_out():
    answer = ask(
        users=10_000, prompt=500, output=200, speed="router-example", split=True,
        first_token="100ms", latency="2s", utilisation=0.7,
    )  # fmt: skip
    assert answer.figures["requests_s"] == pytest.approx(9950.249, rel=1e-6)
    assert answer.figures["token_budget_ms"] == pytest.approx(9.5477, rel=1e-5)
    split = answer.figures["split"]
    assert (split["prefill"], split["decode_by_batch"]) == (72, 156)
    assert "72 replicas for prompts" in answer.verdict


def test_the_routers_example_is_explained():
    answer = ask(rate=1, prompt=2000, output=200, speed="router-example")
    assert answer.figures["alone_ms"] == (20.0, 1000.0)
    assert "20 + 1000 = 1020 ms" in answer.steps[1].numbers


def test_four_times_the_traffic_without_a_page():
    answer = ask(**CHAT, latency="8s", surge=4, ramp="5m", start="2m")
    surge = answer.figures["surge"]
    now = answer.figures["replicas"]
    assert surge["replicas_at_peak"] >= 3 * now
    assert now < surge["warm"] < surge["replicas_at_peak"]
    at_once = ask(**CHAT, latency="8s", surge=4, ramp=0).figures["surge"]
    assert at_once["warm"] == at_once["replicas_at_peak"]


def test_what_is_given_up_under_overload_is_shown_in_the_operators_order():
    parts = "latency=30,quality=distserve-opt-13b*2,completeness=50"
    answer = ask(**CHAT, degrade=parts)
    plain, queue, smaller, capped = answer.figures["overload"]
    assert plain["requests_s"] >= 40
    assert queue["extra_requests"] == pytest.approx(30 * plain["requests_s"])
    assert smaller["requests_s"] > queue["requests_s"] == plain["requests_s"]
    assert capped["requests_s"] > 1.5 * smaller["requests_s"], "answers of a quarter of the length"
    table = answer.tables[-1]
    assert [row[0] for row in table.rows] == ["nothing", "latency", "quality", "completeness"]
    assert ask(**CHAT).figures.get("overload") is None


@pytest.mark.parametrize(
    "parts", ["price=1", "quality", "latency=30,latency=40", "latency=x", "completeness=0"]
)
def test_a_way_down_that_cannot_be_read_is_refused_with_the_fix(parts):
    with pytest.raises(ConfigError) as caught:
        ask(**CHAT, degrade=parts)
    assert caught.value.field == "degrade"
    assert "quality=ENGINE*REPLICAS" in caught.value.fix


def test_formula_and_simulation_stand_side_by_side():
    answer = ask(**(CHAT | {"rate": 10}), latency="8s", simulate=True)
    runs = answer.figures["simulated"]
    assert runs[0]["replicas"] == answer.figures["replicas"]
    assert runs[-1]["met"] >= 0.99
    assert any("Simulated" in remark for remark in answer.remarks)


def test_too_small_a_fleet_is_found_out_by_the_simulation():
    """One queue for all places is promised; bursts of prompts beyond the first token are not."""
    answer = ask(
        rate=30, prompt=4000, output=20, speed="vllm-llama-3.1-8b",
        first_token="250ms", utilisation=1.0, simulate=True,
    )  # fmt: skip
    runs = answer.figures["simulated"]
    assert len(runs) > 1
    assert runs[0]["met"] < 0.99
    assert runs[-1]["met"] > runs[0]["met"]


def test_both_pools_of_a_split_are_simulated():
    answer = ask(
        rate=200, prompt=500, output=200, speed="router-example", split=True, simulate=True
    )
    prompts, answers = answer.figures["simulated"]
    assert prompts["replicas"] == answer.figures["split"]["prefill"]
    assert answers["replicas"] == answer.figures["split"]["decode"]
    assert min(prompts["met"], answers["met"]) >= 0.99


def test_trouble_is_priced_where_it_is_asked_for():
    answer = ask(**CHAT, attempts=4, layers=3, failing=0.5, hedge_at=0.95, fan_out=100)
    figures = answer.figures
    assert figures["amplification"] == pytest.approx(1.875)
    assert figures["nested_attempts"] == 64
    assert figures["hedging"]["lognormal_p999_hedged"] == pytest.approx(9.312947, rel=1e-6)
    assert figures["tail_per_call"] == pytest.approx(1.0004953e-05, rel=1e-5)
    assert sum("keep the fleet down" in remark for remark in answer.remarks) == 1


def test_tiers_share_the_traffic():
    answer = ask(
        rate=40, prompt=500, output=200, tiers="distserve-opt-66b=0.3, distserve-opt-13b=0.7"
    )
    large, small = answer.figures["tiers"]
    assert large["replicas"] + small["replicas"] == answer.figures["replicas"]
    alone = ask(rate=12, prompt=500, output=200, speed="distserve-opt-66b")
    assert large["replicas"] == alone.figures["replicas"]


def test_a_trace_gives_rate_and_lengths(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 500 * n, "input_length": 100, "output_length": 50, "hash_ids": []}
        for n in range(240)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    answer = ask(trace=str(path), speed="vllm-llama-3.1-8b")
    assert answer.figures["requests_s"] == pytest.approx(2.0)
    assert "100 tokens in and 50 out" in answer.steps[0].numbers
    with pytest.raises(ConfigError) as refused:
        ask(trace=str(tmp_path / "none.csv"), speed="vllm-llama-3.1-8b")
    assert refused.value.field == "trace"


def test_a_benchmark_says_how_fast_an_engine_is(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"mean_tpot_ms": 20.0, "mean_ttft_ms": 90.0, "max_concurrency": 32}))
    answer = ask(rate=10, prompt=500, output=100, bench=str(path))
    assert answer.figures["need"]["batch"]["batch"] == 32
    assert answer.figures["need"]["batch"]["requests_s"] == pytest.approx(16.0)
    assert any("measured (bench.json)" in note for note in answer.notes)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="has no mean_tpot_ms"):
        ask(rate=10, prompt=500, output=100, bench=str(path))
    path.write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        ask(rate=10, prompt=500, output=100, bench=str(path))


def holdfast_bench(path, count=150, **changes):
    """A file of 'holdfast bench', of an engine whose law is known."""
    rows = [
        {
            "step": 0,
            "arrived_s": one.arrived_s,
            "first_s": one.first_s,
            "last_s": one.last_s,
            "prompt_tokens": one.prompt,
            "output_tokens": one.output,
            "replica": one.replica,
            "outcome": "success",
        }
        for one in measured(LAW, 5.0, count)
    ]
    rows.append({"step": 0, "arrived_s": 1.0, "outcome": "failure"})
    step = {"name": "5 requests/s", "mode": "open", "counted_from_s": 2.0, "refused": ""}
    told = {"format": "holdfast-bench", "version": 1, "steps": [step], "requests": rows}
    path.write_text(json.dumps(told | changes))
    return told


def test_a_file_of_holdfast_bench_says_what_a_step_takes_in_any_batch(tmp_path):
    path = tmp_path / "mine.json"
    holdfast_bench(path)
    speed = speed_of_bench(path, 16)
    assert speed.batch_max == 16
    for batch in (2, 6):
        real = LAW.step_ms + LAW.per_sequence_ms * batch + LAW.per_kv_token_ms * 200 * batch
        assert speed.step(batch, 200.0 * batch) == pytest.approx(real, rel=0.1)
    assert 1 <= speed_of_bench(path, None).batch_max <= 30  # what was seen, and no more
    answer = ask(rate=10, prompt=100, output=40, bench=str(path))
    assert answer.figures["replicas"] >= 1
    assert any("fitted to 150 answers" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"requests": []}, "has 0 answered requests; measure 50 or more"),
        ({"requests": None}, "has no steps and requests"),
        ({"requests": [{"step": 3}]}, r"requests\[0\] is damaged \(IndexError\)"),
        ({"steps": [{"refused": "the client was late"}]}, "has 0 answered requests"),
    ],
)
def test_a_bench_file_that_is_no_measurement_is_told(tmp_path, changes, said):
    path = tmp_path / "mine.json"
    holdfast_bench(path, **changes)
    with pytest.raises(ConfigError, match=said):
        speed_of_bench(path, None)
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="is no JSON object"):
        speed_of_bench(path, None)


def test_what_is_missing_is_named():
    with pytest.raises(UnderspecifiedError) as lacking:
        ask()
    assert [one.name for one in lacking.value.fields] == ["rate", "prompt", "output", "speed"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"rate": 0}, "rate"),
        ({"prompt": -500}, "prompt"),
        ({"output": 0}, "output"),
        ({"quantile": 1.2}, "quantile"),
        ({"utilisation": 0}, "utilisation"),
        ({"latency": "500ms"}, "latency"),
        ({"latency": "2s"}, "latency"),
        ({"first_token": "1ms"}, "first_token"),
        ({"speed": "abacus"}, "speed"),
        ({"tiers": "a"}, "tiers"),
        ({"tiers": "distserve-opt-13b=0.5"}, "tiers"),
        ({"hedge_at": 2}, "hedge_at"),
        ({"failing": -1, "attempts": 2}, "failing"),
        ({"kv_tokens": 5}, "kv_tokens"),
    ],
)
def test_bad_questions_name_the_field(given, field):
    with pytest.raises(ConfigError) as refused:
        ask(**(CHAT | given))
    assert refused.value.field == field
