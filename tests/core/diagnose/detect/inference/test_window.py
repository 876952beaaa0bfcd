from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.inference.window import SPAN, InferenceFigures, InferenceWindow
from holdfast.core.diagnose.facts import InferencesSeen
from holdfast.core.types import SECOND
from sampling import examples

FIRST = InferencesSeen("m-1", 100, 10, 120, 60, 2.0, 5.0)


def test_figures_are_what_happened_between_two_looks() -> None:
    window = InferenceWindow()
    window.add(FIRST, SECOND)
    assert window.figures() is None
    window.add(InferencesSeen("m-1", 140, 20, 280, 100, 2.4, 9.0), 11 * SECOND)
    figures = window.figures()
    assert figures is not None
    assert figures.queue_s == pytest.approx(0.01)
    assert figures == InferenceFigures(10.0, 40, 10, figures.queue_s, 0.1, 4.0)
    assert figures.failed_share == 0.2
    assert figures.ended_s == 5.0


def test_what_is_older_than_a_minute_is_not_in_it() -> None:
    window = InferenceWindow()
    for step in range(40):
        window.add(replace(FIRST, successes=100 * step), step * 5 * SECOND)
    figures = window.figures()
    assert figures is not None
    assert figures.span_s == SPAN / SECOND
    assert figures.successes == 1_200


def test_a_new_process_begins_anew() -> None:
    window = InferenceWindow()
    window.add(FIRST, SECOND)
    window.add(replace(FIRST, successes=3, failures=0), 6 * SECOND)
    assert window.figures() is None


def test_what_is_not_told_is_unknown_and_what_did_not_happen_has_no_mean() -> None:
    window = InferenceWindow()
    window.add(FIRST, SECOND)
    window.add(replace(FIRST, failures=None), 6 * SECOND)
    figures = window.figures()
    assert figures == InferenceFigures(5.0, 0, None, None, None, None)
    assert figures is not None
    assert figures.failed_share is None
    assert figures.ended_s == 0.0


COUNT = st.none() | st.integers(0, 10**12)
LOOKS = st.lists(st.tuples(st.integers(0, 90 * SECOND), COUNT, COUNT, COUNT), max_size=60)


@given(LOOKS)
@settings(max_examples=examples(200))
def test_no_counts_make_a_figure_that_is_negative(looks) -> None:  # type: ignore[no-untyped-def]
    window, now = InferenceWindow(), 0
    for wait, successes, failures, executions in looks:
        now += wait
        window.add(InferencesSeen("m-1", successes, failures, successes, executions), now)
        figures = window.figures()
        if figures is not None:
            told = (figures.successes, figures.failures, figures.batch, figures.ended_s)
            assert all(value is None or value >= 0 for value in told)
            assert figures.failed_share is None or 0 <= figures.failed_share <= 1
