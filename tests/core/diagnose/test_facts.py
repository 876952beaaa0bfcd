from dataclasses import fields, is_dataclass
from typing import get_args

import pytest

from holdfast.core.canary import CanarySuspect
from holdfast.core.diagnose.factlog import from_plain, to_plain
from holdfast.core.diagnose.facts import KINDS_OF_FACT, CanariesDoubted, Fact


def test_the_list_of_kinds_is_the_union() -> None:
    assert set(get_args(Fact)) == set(KINDS_OF_FACT)
    assert len(KINDS_OF_FACT) == len(set(KINDS_OF_FACT))


@pytest.mark.parametrize("kind", KINDS_OF_FACT)
def test_a_fact_is_a_frozen_value_that_holds_no_text_of_users(kind) -> None:
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    names = {field.name for field in fields(kind)}
    assert not names & {"prompt", "answer", "body", "text", "messages", "content", "key"}


@pytest.mark.parametrize(
    ("written", "suspect"),
    [
        ({}, CanarySuspect.CHECKER),
        ({"answered": True, "confirmed": False}, CanarySuspect.CHECKER),
        ({"answered": False}, CanarySuspect.SHARED),
        ({"confirmed": True}, CanarySuspect.REPLICAS),
        ({"answered": False, "confirmed": True}, CanarySuspect.REPLICAS),
    ],
)
def test_a_doubt_in_an_old_export_names_its_suspect(written, suspect) -> None:
    fact = from_plain({"kind": "CanariesDoubted", "model": "m", "detail": "why", **written})
    assert fact.suspect is suspect


@pytest.mark.parametrize(
    ("suspect", "written"),
    [
        (CanarySuspect.CHECKER, {}),
        (CanarySuspect.SHARED, {"answered": False}),
        (CanarySuspect.REPLICAS, {"confirmed": True}),
    ],
)
def test_a_doubt_is_written_as_it_always_was(suspect, written) -> None:
    fact = CanariesDoubted.by(suspect, "m", "why")
    assert to_plain(fact) == {"kind": "CanariesDoubted", "model": "m", "detail": "why", **written}
    assert fact.suspect is suspect
