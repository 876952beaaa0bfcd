import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.dialect import Load
from holdfast.engines.prometheus import (
    PAGE_CHARACTERS_MAX,
    SERIES_MAX,
    label,
    labelled,
    load_reader,
    mean_share,
    nothing_told,
    samples,
    total,
)

PAGE = """# HELP x:running Requests that run. x:running 99
# TYPE x:running gauge
x:running{engine="0",model_name="m"} 3.0
x:running{engine="1",model_name="m"} 4.0
x:running_by_reason{reason="capacity"} 50.0
not_x:running 60
x:waiting 2
"""


def test_values_are_collected_over_all_label_sets() -> None:
    assert samples(PAGE, ("x:running", "x:waiting")) == {"x:running": [3, 4], "x:waiting": [2]}


def test_a_name_that_is_not_there_is_left_out_and_not_zero() -> None:
    assert samples(PAGE, ("x:absent",)) == {}
    assert samples("", ("x:running",)) == {}
    assert samples(PAGE, ()) == {}


def test_comments_and_names_that_only_begin_or_end_alike_are_passed_over() -> None:
    text = "# TYPE a gauge\n# HELP a a 1\nab 2\na:b 3\nb_a 4\n a 5\n"
    assert samples(text, ("a",)) == {}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 1", 1),
        ("a\t1.5", 1.5),
        ("a  7e2  ", 700),
        ("a 1 1700000000000", 1),
        ('a 1 # {trace_id="x"} 0.67 1700000000.1', 1),
        ("a{} 4", 4),
        ('a{b="c"}4', 4),
        ('a{b="c",} 4', 4),
        ('a{b="} 9"} 4', 4),
        ('a{b="x \\" } 9"} 4', 4),
        ('a{b="ends in a backslash \\\\"} 4', 4),
        ('a{b="line\\nbreak"} 4\r', 4),
        ('a{b="Größe 模型"} 4', 4),
        ("a -2", -2),
    ],
)
def test_every_legal_way_to_write_a_sample_is_read(line: str, value: float) -> None:
    assert samples(f"z 8\n{line}\nz 9\n", ("a",)) == {"a": [value]}


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ",
        "a NaN",
        "a +Inf",
        "a -Inf",
        "a 1e999",
        "a one",
        'a{b="c" 4',
        'a{b="c} 4',
        'a{b=c"} 4',
        "a #1",
        "a " + "1" * 65,
        'a{b="c"}',
    ],
)
def test_what_is_no_number_is_no_sample_and_the_next_line_still_is(line: str) -> None:
    assert samples(f"{line}\na 5\n", ("a",)) == {"a": [5]}


def test_a_page_beyond_the_bounds_is_unknown_as_a_whole() -> None:
    line = "a 1\n"
    assert len(samples(line * SERIES_MAX, ("a",))["a"]) == SERIES_MAX
    assert samples(line * (SERIES_MAX + 1), ("a",)) == {}
    filler = "#" * PAGE_CHARACTERS_MAX
    assert samples(line + filler, ("a",)) == {}


def test_labels_are_given_as_written_and_can_be_asked_for() -> None:
    ((name, labels, value),) = labelled('a{b="1,c=\\"9\\"", c = "2"} 3\n', ("a",))
    assert (name, value) == ("a", 3)
    assert label(labels, "b") == '1,c=\\"9\\"'
    assert label(labels, "c") == "2"
    assert not label(labels, "d")
    assert not label('x=",c=",y="z"', "c")


def test_a_reader_takes_the_newest_name_alone() -> None:
    read = load_reader(running=("new", "old"), waiting=("w",), kv_used=("kv",))
    assert read("old 1\nnew 2\nnew 3\n") == Load(running=5)
    assert read("old 1\nw 0\nkv 0\n") == Load(running=1, waiting=0, kv_used=0.0)
    assert read("<html>502 Bad Gateway</html>") == Load()


def test_counts_are_summed_and_nonsense_is_unknown() -> None:
    assert total({"a": [1.0, 2.0]}, ("a",)) == 3
    assert total({}, ("a",)) is None
    assert total({"a": [1.0, -1.0]}, ("a",)) is None
    assert total({"a": [1e300, 1e300]}, ("a",)) is None


def test_shares_are_averaged_and_other_units_are_unknown() -> None:
    assert mean_share({"a": [0.25, 0.75]}, ("a",)) == 0.5
    assert mean_share({"a": [1.01]}, ("a",)) == 1.0
    assert mean_share({}, ("a",)) is None
    assert mean_share({"a": [42.0]}, ("a",)) is None
    assert mean_share({"a": [-0.1, 0.5]}, ("a",)) is None


def test_an_engine_without_metrics_tells_nothing() -> None:
    assert nothing_told(PAGE) == Load()


FRAGMENTS = st.sampled_from(
    ["a", "b:c", "{", "}", '"', "\\", "=", ",", " ", "\n", "1", "NaN", "1e400", "#", "\t", "é"]
)


@given(st.lists(FRAGMENTS, max_size=60).map("".join))
def test_no_text_makes_it_raise(text: str) -> None:
    for values in samples(text, ("a", "b:c")).values():
        assert all(isinstance(value, float) for value in values)
    load = load_reader(running=("a",), waiting=("b:c",), kv_used=("a",))(text)
    assert load.kv_used is None or 0 <= load.kv_used <= 1


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30),
    st.floats(0, 1e6),
)
def test_any_label_value_is_read_past(value: str, number: float) -> None:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    text = f'a{{model="{escaped}",rank="3"}} {number!r}\n'
    ((_, labels, read),) = labelled(text, ("a",))
    assert read == number
    assert label(labels, "rank") == "3"
