"""Intervals cover the truth as often as they say, for neighbours that resemble each other too."""

from math import sqrt
from random import Random
from statistics import NormalDist

import pytest

from holdfast.loadtest.statistics import (
    Estimate,
    difference,
    mean,
    per_second,
    quantile,
    ratio,
    resemblance,
    share,
)

RUNS = 120


def series(rng: Random, n: int, memory: float) -> list[float]:
    """Samples of a normal law in which neighbours resemble each other."""
    fresh = sqrt(1.0 - memory * memory)
    x, found = rng.gauss(0, 1), []
    for _ in range(n):
        x = memory * x + fresh * rng.gauss(0, 1)
        found.append(x)
    return found


@pytest.mark.parametrize("q", [0.5, 0.95])
@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_the_interval_of_a_quantile_covers_it_as_often_as_it_says(q, memory):
    rng = Random(7)
    truth = NormalDist().inv_cdf(q)
    covered = 0
    for _ in range(RUNS):
        found = quantile(series(rng, 1200, memory), q)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert covered >= 0.88 * RUNS


def test_an_interval_that_ignores_neighbours_would_not():
    """The same samples shuffled have the same quantile and a narrower interval."""
    rng = Random(1)
    samples = series(rng, 600, 0.9)
    kept = quantile(samples, 0.5)
    rng.shuffle(samples)
    shuffled = quantile(samples, 0.5)
    assert kept.value == shuffled.value
    assert kept.high - kept.low > 2 * (shuffled.high - shuffled.low)
    assert resemblance(samples) == pytest.approx(1.0, abs=0.3)


def test_the_interval_of_a_mean_covers_it():
    rng = Random(3)
    covered = 0
    for _ in range(RUNS):
        found = mean(series(rng, 400, 0.7))
        covered += found.low <= 0.0 <= found.high
    assert covered >= 0.86 * RUNS


def test_an_end_beyond_the_samples_is_unknown():
    found = quantile([float(x) for x in range(50)], 0.99)
    assert found.value == 49.0
    assert found.low is not None
    assert found.high is None
    few = quantile([1.0, 2.0], 0.5)
    assert (few.value, few.low, few.high) == (2.0, None, None)
    assert quantile([], 0.5) == Estimate()


def test_order_statistics_of_known_ranks():
    """Of 100 independent samples the median lies between the 40th and the 61st: a known table."""
    samples = [float(x) for x in range(1, 101)]
    Random(2).shuffle(samples)
    found = quantile(samples, 0.5)
    assert 39 <= found.low <= 42
    assert 59 <= found.high <= 62


def test_a_share_of_all_or_none_still_has_an_interval():
    whole = share([True] * 100)
    assert whole.value == 1.0
    assert whole.low == pytest.approx(0.963, abs=0.002)
    assert share([False] * 100).high == pytest.approx(0.037, abs=0.002)
    assert share([]) == Estimate()


def test_a_mean_of_one_sample_has_no_interval():
    assert mean([3.0]) == Estimate(3.0, None, None, 1, 1)
    assert mean([]) == Estimate()


def test_a_rate_counts_its_window_only():
    events = [(0.1 * i, 2.0) for i in range(1000)]
    found = per_second(events, 10.0, 60.0)
    assert found.value == pytest.approx(20.0)
    assert found.low <= 20.0 <= found.high
    assert found.high - found.low < 1.5
    assert per_second(events[:3], 0.0, 50.0).low is None
    assert per_second(events, 5.0, 5.0) == Estimate()


def test_a_difference_takes_both_intervals_and_keeps_their_skew():
    a = Estimate(10.0, 9.0, 14.0, 100, 100)
    b = Estimate(12.0, 11.0, 15.0, 80, 80)
    found = difference(a, b)
    assert found.value == 2.0
    assert found.low == pytest.approx(2.0 - sqrt(1 + 16))
    assert found.high == pytest.approx(2.0 + sqrt(9 + 1))
    assert difference(a, Estimate()) == Estimate()
    assert difference(a, Estimate(12.0, None, None)).low is None


def test_a_ratio_takes_both_intervals():
    found = ratio(Estimate(10.0, 9.0, 11.0, 9, 9), Estimate(40.0, 36.0, 44.0, 9, 9))
    assert found.value == pytest.approx(4.0)
    assert 3.3 < found.low < 3.6
    assert 4.4 < found.high < 4.8
    assert ratio(Estimate(0.0), Estimate(1.0)) == Estimate()


@pytest.mark.parametrize(
    ("samples", "t"), [(2, 12.706), (3, 4.303), (4, 3.182), (6, 2.571), (31, 2.042)]
)
def test_few_samples_get_the_wide_interval_of_the_t_law(samples, t):
    series = [1.0, 3.0] if samples == 2 else [float(x % 3) for x in range(samples)]
    found = mean(series)
    middle = sum(series) / samples
    error = sqrt(sum((x - middle) ** 2 for x in series) / (samples - 1) / samples)
    if samples < 8:  # neighbours are not compared below that
        assert (found.high - middle) / error == pytest.approx(t, rel=0.01)
    assert mean(series, 0.99).high > found.high
