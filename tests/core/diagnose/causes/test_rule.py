"""Rules as values: what they refuse, what follows from what, and advice with numbers."""

import pytest

from holdfast.core.diagnose.causes.rule import (
    CauseRule,
    Proof,
    closure,
    fill,
    names_in,
    proof,
    signs_of,
    spell_time,
)
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class
from holdfast.core.types import ConfigError


def rule(*explains: Cause, symptom: bool = False) -> CauseRule:
    return CauseRule(
        Class.RUNTIME,
        (proof(Sign.EXITED, at=0.6),),
        story="s",
        look="l",
        fix="f",
        remedy=Remedy.OBSERVE,
        explains=frozenset(explains),
        symptom=symptom,
    )


def test_a_proof_needs_a_sign_and_a_confidence() -> None:
    with pytest.raises(ConfigError, match="signs"):
        Proof(frozenset(), 0.5)
    for wrong in (0.0, 1.0, -1.0):
        with pytest.raises(ConfigError, match="confidence"):
            proof(Sign.EXITED, at=wrong)


def test_what_is_explained_is_explained_through_others() -> None:
    rules = {Cause.LEAK: rule(Cause.OUT_OF_MEMORY), Cause.OUT_OF_MEMORY: rule(Cause.CRASHED)}
    reach = closure(rules)
    assert reach[Cause.LEAK] == {Cause.OUT_OF_MEMORY, Cause.CRASHED}
    assert reach[Cause.CRASHED] == set()


def test_a_symptom_ends_the_row() -> None:
    rules = {
        Cause.CRASHED: rule(Cause.TRANSFER_FAILED),
        Cause.TRANSFER_FAILED: rule(Cause.HUNG, symptom=True),
    }
    assert closure(rules)[Cause.CRASHED] == {Cause.TRANSFER_FAILED}
    assert closure(rules)[Cause.TRANSFER_FAILED] == {Cause.HUNG}


def test_a_circle_is_refused_and_named() -> None:
    rules = {Cause.HUNG: rule(Cause.SLOW), Cause.SLOW: rule(Cause.HUNG)}
    with pytest.raises(ConfigError, match="hung > slow > hung"):
        closure(rules)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("set {suggested_bytes:GB}", "set 4.0 GB"),
        ("{rate:MBs} and {rate:MBmin}", "2.5 MB/s and 150.0 MB/min"),
        ("{share:%} of it", "12% of it"),
        ("in {wait:s}, {wait:n} each", "in 45 s, 45.0 each"),
        ("{count} times", "3 times"),
        ("known[, {missing:GB} of it][, {count} times].", "known, 3 times."),
        ("it is {missing_number:GB}", "it is missing number"),
        ("", ""),
        ("braces {} and {not a field} stay", "braces {} and {not a field} stay"),
    ],
)
def test_advice_says_what_was_measured(template: str, text: str) -> None:
    numbers = {
        "suggested_bytes": 4e9,
        "rate": 2.5e6,
        "share": 0.12,
        "wait": 45.0,
        "count": 3.0,
    }
    assert fill(template, numbers) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.42, "0.4 s"), (45.2, "45 s"), (700, "12 min"), (12_600, "3.5 h")],
)
def test_times_are_spelled_as_people_say_them(value: float, text: str) -> None:
    assert spell_time(value) == text


def test_a_template_tells_which_numbers_it_wants() -> None:
    assert names_in("{a:GB} and [{b}]") == {"a", "b"}
    assert signs_of([rule()]) == {Sign.EXITED}
