import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.types import ConfigError
from holdfast.planner import PLANS
from holdfast.planner.question import FieldKind, PlanField, UnderspecifiedError


def field(kind, **changed):
    return PlanField("it", kind, "What it is.", **changed)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (FieldKind.SIZE, "24GB", 24e9),
        (FieldKind.SIZE, "16 GiB", 2.0**34),
        (FieldKind.SIZE, "740mb", 740e6),
        (FieldKind.SIZE, 1e9, 1e9),
        (FieldKind.DURATION, "5m", 300.0),
        (FieldKind.DURATION, "250ms", 0.25),
        (FieldKind.DURATION, "30d", 2_592_000.0),
        (FieldKind.QUANTITY, "7B", 7e9),
        (FieldKind.QUANTITY, "880M", 880e6),
        (FieldKind.NUMBER, "-.5", -0.5),
        (FieldKind.NUMBER, "1e-3", 0.001),
        (FieldKind.NUMBER, "10,000", 10_000.0),
        (FieldKind.COUNT, "12", 12),
        (FieldKind.FLAG, "yes", True),
        (FieldKind.FLAG, "0", False),
        (FieldKind.TEXT, "word", "word"),
    ],
)
def test_values_are_read_with_their_units(kind, text, value):
    assert field(kind).read(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "fix"),
    [
        (FieldKind.SIZE, "24 stones", "such as 640MB"),
        (FieldKind.DURATION, "soon", "such as 90s"),
        (FieldKind.COUNT, "1.5", "whole number"),
        (FieldKind.NUMBER, "nan", "use a number"),
        (FieldKind.NUMBER, float("inf"), "finite"),
        (FieldKind.NUMBER, "9" * 400, "use a number"),
        (FieldKind.NUMBER, True, "use a number"),
        (FieldKind.FLAG, "perhaps", "true or false"),
        (FieldKind.TEXT, 5, "characters"),
        (FieldKind.TEXT, "x" * 1000, "characters"),
    ],
)
def test_what_is_no_value_names_the_field_and_the_fix(kind, text, fix):
    with pytest.raises(ConfigError) as refused:
        field(kind).read(text)
    assert refused.value.field == "it"
    assert fix in refused.value.fix


def test_bounds_and_choices_are_told():
    bounded = field(FieldKind.COUNT, least=1, most=8)
    with pytest.raises(ConfigError, match="use 1 to 8"):
        bounded.read("9")
    with pytest.raises(ConfigError, match="use 1 or more"):
        field(FieldKind.COUNT, least=1).read(0)
    with pytest.raises(ConfigError, match="use one of a, b"):
        field(FieldKind.CHOICE, choices=("a", "b")).read("c")


@given(st.floats(1e-3, 1e12), st.sampled_from([FieldKind.SIZE, FieldKind.DURATION]))
def test_a_number_is_its_own_value_in_base_units(value, kind):
    assert field(kind).read(repr(value)) == pytest.approx(value)


def test_what_is_missing_is_named_all_at_once():
    with pytest.raises(UnderspecifiedError) as lacking:
        PLANS["redundancy"].ask({"availability": 0.9})
    assert [one.option for one in lacking.value.fields] == ["--need", "--target"]
    with pytest.raises(UnderspecifiedError) as lacking:
        PLANS["memory"].ask({"model": "", "device": None})
    assert [one.name for one in lacking.value.fields] == ["model", "device"]


def test_a_value_that_no_plan_asks_for_is_refused():
    with pytest.raises(ConfigError, match="is no value of a memory plan"):
        PLANS["memory"].ask({"colour": "blue"})


@pytest.mark.parametrize("name", PLANS)
def test_every_field_describes_itself_once(name):
    fields = PLANS[name].fields
    assert len({one.name for one in fields}) == len(fields)
    for one in fields:
        assert one.help.endswith("."), one.name
        told = one.to_dict()
        assert told["name"] == one.name
        assert (
            one.default is None
            or one.kind is FieldKind.FLAG
            or one.read(one.default) == one.default
        )
