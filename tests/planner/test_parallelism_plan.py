import pytest

from holdfast.core.types import ConfigError
from holdfast.planner import PLANS
from holdfast.planner.question import UnderspecifiedError


def ask(**given):
    return PLANS["parallelism"].ask({"model": "llama-3.1-70b", "device": "h100-80gb", **given})


def test_inside_a_host_tensor_parallel_is_fastest_and_replicas_serve_most():
    answer = ask(devices=8, concurrency=64)
    layouts = {(one["tensor"], one["pipeline"]): one for one in answer.figures["layouts"]}
    assert not layouts[1, 1]["fits"]
    assert layouts[8, 1]["step"]["total_s"] < layouts[4, 1]["step"]["total_s"]
    best = layouts[answer.figures["tensor"], answer.figures["pipeline"]]
    assert best["tokens_s"] == max(one["tokens_s"] for one in layouts.values() if one["fits"])
    assert best["data"] * best["tensor"] * best["pipeline"] == 8


def test_across_hosts_the_network_is_named():
    answer = ask(devices=16, devices_per_host=8, network="25gbit")
    assert any("across hosts" in remark for remark in answer.remarks)
    assert answer.figures["tensor"] <= 8


def test_on_slow_links_a_small_model_is_copied():
    answer = ask(model="llama-3.2-3b", device="l4", devices=8, concurrency=512, context=512)
    assert answer.figures["data"] > 1
    fast = ask(model="llama-3.2-3b", devices=8, concurrency=512, context=512)
    assert fast.figures["tensor"] >= answer.figures["tensor"]


def test_32_layers_over_4_stages_are_explained():
    answer = ask(
        model="llama-2-7b", device="t4", devices=4, link="25gbit", context=512, microbatches=16
    )
    four = next(one for one in answer.figures["layouts"] if one["pipeline"] == 4)
    assert four["fits"]
    bubble = next(step for step in answer.steps if step.what == "bubble")
    assert "(P - 1) / (m + P - 1)" in bubble.formula


def test_the_published_all_reduce_is_in_the_calculation():
    answer = ask(devices=8, concurrency=64, token_budget="9.5ms")
    assert (answer.figures["tensor"], answer.figures["pipeline"]) == (8, 1)
    assert answer.figures["all_reduce_bytes"] == pytest.approx(1_835_008)
    step = next(step for step in answer.steps if step.what == "all-reduce")
    assert "x 160 = 293.6 MB" in step.numbers


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"devices": 1}, "devices"),
        ({"devices": 0}, "devices"),
        ({"token_budget": "1ms"}, "token_budget"),
        ({"context": -1}, "context"),
        ({"device": "abacus"}, "device"),
        ({"model": None, "parameters": "7B"}, "model"),
    ],
)
def test_bad_questions_name_the_field(given, field):
    with pytest.raises((ConfigError, UnderspecifiedError)) as refused:
        ask(**given)
    error = refused.value
    named = error.field if isinstance(error, ConfigError) else error.fields[0].name
    assert named == field
