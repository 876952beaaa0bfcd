from dataclasses import fields, is_dataclass
from typing import get_args

import pytest

from holdfast.core.diagnose.facts import KINDS_OF_FACT, Fact


def test_the_list_of_kinds_is_the_union() -> None:
    assert set(get_args(Fact)) == set(KINDS_OF_FACT)
    assert len(KINDS_OF_FACT) == len(set(KINDS_OF_FACT))


@pytest.mark.parametrize("kind", KINDS_OF_FACT)
def test_a_fact_is_a_frozen_value_that_holds_no_text_of_users(kind) -> None:
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    names = {field.name for field in fields(kind)}
    assert not names & {"prompt", "answer", "body", "text", "messages", "content", "key"}
