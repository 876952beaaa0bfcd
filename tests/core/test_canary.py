"""What a canary may be configured to ask: invalid questions and judges cannot be built."""

import json
from dataclasses import replace
from math import inf, nan

import pytest

from holdfast.core.canary import (
    RULES,
    AnswerKey,
    CanaryConfig,
    CanaryVerdict,
    Rule,
    Said,
    Shape,
)
from holdfast.core.types import ConfigError

HTTP = {"shape": Shape.HTTP, "path": "/v1/rerank", "body": '{"query": "x"}'}
INFER = {"shape": Shape.INFER, "body": '{"inputs": []}'}


def test_the_default_is_a_short_chat_whose_answer_is_learned():
    config = CanaryConfig()
    assert config.prompt
    assert config.tokens <= 16
    assert config.expect == ()
    assert config.rule is None
    assert config.share_max == 0.01


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", " \n"),
        ("tokens", 0),
        ("tokens", 4097),
        ("expect", ("five", " ")),
        ("similarity", 0),
        ("similarity", 1.1),
        ("similarity", nan),
        ("share_max", 0),
        ("share_max", 1.5),
        ("cosine_min", -1.1),
        ("cosine_min", nan),
        ("slots_share", -0.01),
        ("slots_share", 1.1),
        ("headroom_min", 1.0),
        ("headroom_min", -0.1),
        ("tolerance", -1e-9),
        ("tolerance", 1.0),
        ("tolerance", inf),
        ("slow_factor", 1.0),
        ("slow_factor", inf),
        ("slow_floor_s", -0.1),
        ("slow_floor_s", inf),
        ("samples_min", 1),
        ("samples_min", 65),
        ("stretch_max_s", 0.0),
        ("stretch_max_s", inf),
        ("path", "/v1/x"),
        ("body", "{}"),
        ("check", "a.b:c"),
        ("rule", Rule.CHECK),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(field, value):
    with pytest.raises(ConfigError) as refused:
        CanaryConfig(**{field: value})
    assert refused.value.field.startswith("canary.")
    assert refused.value.fix


@pytest.mark.parametrize(
    "values",
    [
        {"expect": ("four", "4"), "rule": Rule.CONTAINS},
        {"shape": Shape.COMPLETION, "rule": Rule.EXACT},
        {"shape": Shape.EMBEDDING, "rule": Rule.COSINE},
        {"rule": Rule.COSINE},
        INFER,
        INFER | {"rule": Rule.TENSOR, "tolerance": 0.0},
        HTTP | {"check": "ours.checks:ranks"},
        HTTP | {"check": "checks:ranks", "rule": Rule.CHECK},
        HTTP | {"expect": ("score",)},
        HTTP | {"expect": ("score",), "rule": Rule.CONTAINS},
    ],
)
def test_every_shape_has_a_judge(values):
    assert CanaryConfig(**values)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"shape": Shape.INFER}, "canary.body"),
        (INFER | {"body": "{inputs}"}, "canary.body"),
        (INFER | {"body": "[" * 100_000}, "canary.body"),
        (INFER | {"path": "/v2/x"}, "canary.path"),
        (HTTP | {"path": None, "check": "a:b"}, "canary.path"),
        (HTTP | {"path": "v1/x", "check": "a:b"}, "canary.path"),
        (HTTP, "canary.check"),
        (HTTP | {"check": "a:b", "expect": ("score",)}, "canary.check"),
        (HTTP | {"check": "no function"}, "canary.check"),
        (HTTP | {"check": "a..b:c"}, "canary.check"),
        (HTTP | {"check": "a.b:"}, "canary.check"),
        (HTTP | {"check": "a:b", "rule": Rule.EXACT}, "canary.rule"),
        (HTTP | {"expect": ("score",), "rule": Rule.CHECK}, "canary.rule"),
        (HTTP | {"expect": ("score",), "rule": Rule.TENSOR}, "canary.rule"),
        ({"shape": Shape.CHAT, "rule": Rule.COSINE}, "canary.rule"),
        ({"shape": Shape.EMBEDDING, "rule": Rule.EXACT}, "canary.rule"),
        ({"shape": Shape.EMBEDDING, "expect": ("x",)}, "canary.expect"),
        ({"rule": Rule.TENSOR, "expect": ("x",)}, "canary.expect"),
        ({"rule": Rule.CONTAINS}, "canary.expect"),
    ],
)
def test_a_question_without_one_fitting_judge_is_refused(values, field):
    with pytest.raises(ConfigError) as refused:
        CanaryConfig(**values)
    assert refused.value.field == field


def test_every_shape_is_in_the_table_and_every_rule_is_of_use():
    assert set(RULES) == set(Shape)
    assert {rule for rules in RULES.values() for rule in rules} == set(Rule)


@pytest.mark.parametrize(
    "changes", [{"prompt": "Say yes."}, {"tokens": 9}, {"shape": Shape.COMPLETION}, INFER]
)
def test_another_question_has_another_name(changes):
    assert replace(CanaryConfig(), **changes).question != CanaryConfig().question


def test_a_question_keeps_its_name_however_it_is_judged():
    stricter = CanaryConfig(similarity=0.9, slow_factor=4.0, expect=("yes",), rule=Rule.EXACT)
    assert stricter.question == CanaryConfig().question
    assert CanaryConfig().prompt not in stricter.question


def test_values_compare_by_what_they_hold():
    assert AnswerKey("m", "1", "vllm") == AnswerKey("m", "1", "vllm", "")
    assert AnswerKey("m", "1", "vllm", "fp8") != AnswerKey("m", "1", "vllm", "fp16")
    assert Said(text="a") != Said(text="b")
    assert json.dumps(Shape.CHAT) == '"chat"'  # as files and events spell it


# --- verdicts ------------------------------------------------------------------------------------

V = CanaryVerdict


@pytest.mark.parametrize(
    ("kind", "verdicts"),
    [
        ("right", {V.PASS, V.SLOW}),
        ("answered", {V.PASS, V.SLOW, V.WRONG}),
        ("failed", {V.FAIL, V.REFUSED, V.TIMEOUT}),
        ("conclusive", {V.PASS, V.SLOW, V.WRONG, V.FAIL, V.REFUSED, V.TIMEOUT}),
        ("silent", {V.REFUSED, V.TIMEOUT, V.UNKNOWN}),
        ("computed", set(V) - {V.REFUSED, V.UNKNOWN}),
        ("failed_early", {V.FAIL, V.REFUSED}),
    ],
)
def test_each_kind_of_verdict_holds_exactly_these(kind, verdicts):
    assert {verdict for verdict in V if getattr(verdict, kind)} == verdicts


@pytest.mark.parametrize("verdict", V)
def test_each_verdict_is_of_one_kind(verdict):
    assert verdict.answered + verdict.failed + (not verdict.conclusive) == 1


@pytest.mark.parametrize("verdict", V)
def test_only_a_right_answer_in_time_becomes_slow(verdict):
    assert verdict.with_lateness(slow=False) is verdict
    assert verdict.with_lateness(slow=True) is (V.SLOW if verdict is V.PASS else verdict)


def test_verdicts_are_written_as_they_always_were():
    names = "pass slow busy unsettled unknown wrong fail refused timeout"
    assert [verdict.value for verdict in V] == names.split()
