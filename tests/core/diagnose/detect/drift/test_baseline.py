"""A baseline of answers, and where its ruler places a value; what a detector does is elsewhere."""

import pytest

from holdfast.core.diagnose.detect.drift.baseline import BINS, KEPT_MAX, Baseline, Learning, Ruler
from holdfast.core.types import SECOND

DAY = 86_400 * SECOND
KEY = ("m", "1", "score")


def learned(values):
    learning = Learning(0)
    learning.replicas.add("a")
    for value in values:
        learning.add(value)
    return learning.freeze(KEY, DAY)


def test_the_two_sigma_line_is_that_of_the_values():
    made = Baseline("m", "1", "score", 1, 500, 10.0, 5.0, 1.5, 7.0, (1.0, 9.0))
    assert made.two_sigma == (2.0, 8.0)


def test_a_value_is_placed_by_its_rank():
    ruler = Ruler(learned(float(n) for n in range(KEPT_MAX)), slack=0.25, told_at=25.0)
    middle, _, decile = ruler.place(KEPT_MAX / 2)
    assert middle == pytest.approx(0.0, abs=0.01)
    assert decile == BINS // 2
    low, high = ruler.place(-1e9), ruler.place(1e9)
    assert low == (pytest.approx(-high[0]), pytest.approx(high[1]), 0)
    assert ruler.place(KEPT_MAX / 2)[1] < -1 < 3 < high[1]
    assert 2.5 < ruler.place(1e9)[0] < 4  # one absurd value weighs no more
    assert sum(ruler.shares) == pytest.approx(1.0)


def test_a_small_baseline_asks_for_a_larger_shift():
    small, large = (
        Ruler(learned(float(n) for n in range(count)), slack=0.25, told_at=25.0)
        for count in (500, KEPT_MAX)
    )
    assert large.slack == 0.25
    assert 0.25 < small.slack < 0.35


def test_values_that_are_all_alike_are_not_blown_up():
    ruler = Ruler(learned([3.0] * 600), slack=0.25, told_at=25.0)
    assert ruler.place(3.0)[0] == pytest.approx(0.0, abs=0.01)
    assert ruler.place(3.1)[0] < 8
