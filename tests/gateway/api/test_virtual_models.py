"""Virtual models: the first rule that matches, hooks that may fail, checks of cheap answers."""

import sys
from types import ModuleType

import pytest

from holdfast.config.virtual import VirtualSection
from holdfast.core.request.answer_policy import failed_check
from holdfast.core.types import ConfigError
from holdfast.gateway.api.virtual_models import (
    ModelPath,
    RequestFacts,
    VirtualModels,
    is_json,
    load_hook,
)

MODELS = ("big", "small")


def section(**values) -> VirtualSection:
    return VirtualSection.model_validate({"name": "auto", **values})


def ruled(*rules: dict, default: str | None = "big") -> VirtualSection:
    return section(rules=list(rules), default=default)


def facts(**changes) -> RequestFacts:
    values = {
        "tenant": "default",
        "prompt_tokens": 100,
        "tools": False,
        "json": False,
        "stream": False,
        "headers": {},
    }
    return RequestFacts(**{**values, **changes})


def path_of(found: ModelPath | None) -> tuple[str, tuple[str, ...], str | None, str]:
    assert found is not None
    return found.model, found.checks, found.escalate, found.ladder


@pytest.fixture
def hooks(monkeypatch):
    """A module that hooks can be imported from."""
    module = ModuleType("hooks_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def hooked(hooks: ModuleType, function, **rule) -> VirtualModels:
    hooks.choose = function
    rule = {"when": {"hook": "hooks_of_a_test:choose", "hook_headers": ["x-a"]}, **rule}
    return VirtualModels([ruled(rule)], MODELS)


# --- names ----------------------------------------------------------------------------------------


def test_other_names_are_not_virtual():
    virtual = VirtualModels([section(ladder=["big", "small"])], MODELS)
    assert virtual.resolve("big", facts()) is None
    assert "big" not in virtual
    assert "auto" in virtual


def test_without_virtual_models_nothing_is_virtual():
    assert VirtualModels([]).resolve("auto", facts()) is None


@pytest.mark.parametrize(
    "values", [{"ladder": ["big", "small"]}, {"degrade": {"ladder": ("big", "small")}}]
)
def test_a_ladder_begins_at_its_first_rung_and_says_whose_it_is(values):
    path = VirtualModels([section(**values)]).resolve("auto", facts())
    assert path_of(path) == ("big", (), None, "auto")


def test_a_rule_may_lead_to_a_ladder():
    chat = VirtualSection(name="chat", ladder=["big", "small"])
    rule = {"when": {"tools": True}, "use": "chat", "check": ["empty"], "escalate": "big"}
    virtual = VirtualModels([ruled(rule, default="chat"), chat])
    assert path_of(virtual.resolve("auto", facts())) == ("big", (), None, "chat")
    found = virtual.resolve("auto", facts(tools=True))
    assert path_of(found) == ("big", ("empty",), "big", "chat")


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "fits", "fails"),
    [
        ({"tenant": ["a", "b"]}, {"tenant": "b"}, {"tenant": "c"}),
        ({"prompt_tokens_min": 10}, {"prompt_tokens": 10}, {"prompt_tokens": 9}),
        ({"prompt_tokens_max": 10}, {"prompt_tokens": 10}, {"prompt_tokens": 11}),
        ({"prompt_tokens_max": 0}, {"prompt_tokens": 0}, {"prompt_tokens": 1}),
        ({"tools": True}, {"tools": True}, {"tools": False}),
        ({"tools": False}, {"tools": False}, {"tools": True}),
        ({"json": True}, {"json": True}, {"json": False}),
        ({"stream": False}, {"stream": False}, {"stream": True}),
        (
            {"header": {"x-tier": "gold"}},
            {"headers": {b"x-tier": b"gold"}},
            {"headers": {b"x-tier": b"gold, gold"}},
        ),
        ({"header": {"x-tier": "gold"}}, {"headers": {b"x-tier": b"gold"}}, {"headers": {}}),
        (
            {"tools": True, "stream": True},
            {"tools": True, "stream": True},
            {"tools": True, "stream": False},
        ),
    ],
)
def test_a_rule_matches_when_every_test_holds(when, fits, fails):
    virtual = VirtualModels([ruled({"when": when, "use": "small"})])
    assert path_of(virtual.resolve("auto", facts(**fits)))[0] == "small"
    assert path_of(virtual.resolve("auto", facts(**fails)))[0] == "big"


def test_the_first_rule_that_matches_wins_and_says_which():
    virtual = VirtualModels(
        [
            ruled(
                {"when": {"tools": True}, "use": "one"},
                {"when": {"stream": True}, "use": "two", "check": ["json"], "escalate": "big"},
                {"use": "three"},
                default=None,
            )
        ]
    )
    both = virtual.resolve("auto", facts(tools=True, stream=True))
    assert path_of(both) == ("one", (), None, "")
    second = virtual.resolve("auto", facts(stream=True))
    assert path_of(second) == ("two", ("json",), "big", "")
    third = virtual.resolve("auto", facts())
    assert [path.reason for path in (both, second, third) if path] == ["rule 1", "rule 2", "rule 3"]


def test_whoever_no_rule_matches_gets_the_default():
    found = VirtualModels([ruled({"when": {"tools": True}, "use": "small"})]).resolve(
        "auto", facts()
    )
    assert found is not None
    assert (found.model, found.reason) == ("big", "no rule matches")


# --- hooks ----------------------------------------------------------------------------------------


def test_a_hook_sees_facts_and_the_headers_it_asked_for(hooks):
    seen = []
    virtual = hooked(hooks, lambda told: seen.append(told) is None, use="small")
    headers = {b"x-a": b"1\xff", b"authorization": b"Bearer planted", b"x-b": b"2"}
    path = virtual.resolve("auto", facts(headers=headers, tools=True))
    assert path_of(path)[0] == "small"
    assert seen == [
        {
            "model": "auto",
            "tenant": "default",
            "prompt_tokens": 100,
            "tools": True,
            "json": False,
            "stream": False,
            "headers": {"x-a": "1ÿ"},
        }
    ]


def test_a_hook_may_say_no(hooks):
    virtual = hooked(hooks, lambda told: False, use="small")
    assert path_of(virtual.resolve("auto", facts()))[0] == "big"
    assert virtual.hook_errors == {"hooks_of_a_test:choose": 0}


def test_a_hook_may_name_a_model(hooks):
    virtual = hooked(hooks, lambda told: "small", check=["length"], escalate="big")
    assert path_of(virtual.resolve("auto", facts())) == ("small", ("length",), "big", "")


def test_the_strong_model_is_not_checked_against_itself(hooks):
    virtual = hooked(hooks, lambda told: "big", check=["length"], escalate="big")
    assert path_of(virtual.resolve("auto", facts())) == ("big", (), None, "")


def test_a_hook_is_asked_only_when_the_other_tests_hold(hooks):
    calls = []
    when = {"hook": "hooks_of_a_test:choose", "tools": True}
    virtual = hooked(hooks, lambda told: calls.append(told) is None, when=when, use="small")
    assert path_of(virtual.resolve("auto", facts()))[0] == "big"
    assert calls == []


@pytest.mark.parametrize("answer", [None, 1, "unknown", [], True])
def test_an_odd_answer_of_a_hook_is_counted_and_no_match(hooks, answer):
    virtual = hooked(hooks, lambda told: answer)  # without 'use', True leads nowhere
    assert path_of(virtual.resolve("auto", facts()))[0] == "big"
    assert virtual.hook_errors == {"hooks_of_a_test:choose": 1}


def test_an_error_of_a_hook_is_counted_and_no_match(hooks):
    virtual = hooked(hooks, lambda told: 1 / 0, use="small")
    for _ in range(3):
        assert path_of(virtual.resolve("auto", facts()))[0] == "big"
    assert virtual.hook_errors == {"hooks_of_a_test:choose": 3}


async def waits(told):
    return True


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no.such.module_at_all:f", "raised ModuleNotFoundError"),
        ("hooks_of_a_test:missing", "no such function"),
        ("hooks_of_a_test:number", "no such function"),
        ("hooks_of_a_test:waits", "is a coroutine"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_at_start(hooks, name, told):
    hooks.number, hooks.waits = 5, waits
    with pytest.raises(ConfigError, match=told) as caught:
        VirtualModels([ruled({"when": {"hook": name}, "use": "small"})])
    assert caught.value.field == "virtual_models.0.rules.0.when.hook"
    assert caught.value.fix


def test_a_module_that_fails_to_load_is_refused_with_the_error(tmp_path, monkeypatch):
    (tmp_path / "broken_hooks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="raised ZeroDivisionError"):
        load_hook("broken_hooks:f", "hook")


# --- checks ---------------------------------------------------------------------------------------

ALL = ("length", "json", "empty")


@pytest.mark.parametrize(
    ("checks", "reason", "text", "json", "failed"),
    [
        (ALL, "stop", "fine", False, None),
        (ALL, "stop", '{"a": 1}', True, None),
        (ALL, "stop", b"[1]", True, None),
        (ALL, "length", '{"a"', True, "length"),
        (ALL, "length", "", True, "length"),
        (ALL, "stop", " \n", False, "empty"),
        (ALL, "stop", b"", False, "empty"),
        (ALL, None, "", False, "empty"),
        (ALL, "stop", '{"a"', True, "json"),
        (ALL, "stop", "Sure! {}", True, "json"),
        (ALL, "stop", "null", True, "json"),
        (ALL, "stop", "[NaN]", True, "json"),
        (ALL, "stop", b'"\xff"', True, "json"),
        (ALL, "stop", "[" * 100_000, True, "json"),
        (ALL, "tool_calls", "", True, None),
        (ALL, "function_call", "", False, None),
        (("json",), "length", '{"a"', True, "json"),
        (("json",), "stop", "", False, None),
        (("length",), "stop", "", True, None),
        (("empty",), "length", "x", True, None),
        ((), "length", "", True, None),
    ],
)
def test_a_check_fails_on_what_it_is_for(checks, reason, text, json, failed):
    found = failed_check(
        checks, finish_reason=reason, text=text, json_expected=json, is_json=is_json
    )
    assert found == failed
