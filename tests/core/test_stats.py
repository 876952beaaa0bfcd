"""Statistics: exactness against naive models, bounds, determinism, merging."""

import json
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.stats import (
    Ewma,
    Moments,
    OutcomeWindow,
    PeakEwma,
    QuantileSketch,
    RateWindow,
    RecentSketch,
    RowCounts,
    RowRule,
)
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

START = 100 * SECOND
NOT_FINITE = [math.nan, math.inf, -math.inf]
samples = st.lists(st.floats(0.001, 1e12), min_size=1, max_size=200)
quick = settings(max_examples=examples(60))


# Ewma


def test_an_ewma_knows_nothing_before_its_first_sample():
    mean = Ewma(10.0)
    assert mean.value is None
    mean.add(5, 0)
    assert mean.value == 5.0


def test_an_ewma_halves_the_weight_of_a_sample_per_halflife():
    mean = Ewma(10.0)
    mean.add(0.0, 0)
    mean.add(3.0, 10 * SECOND)
    assert mean.value == pytest.approx(2.0)  # weights 1/2 and 1


def test_an_ewma_counts_every_sample_of_one_instant():
    mean = Ewma(10.0)
    for value in (1.0, 2.0, 6.0):
        mean.add(value, 7)
    assert mean.value == pytest.approx(3.0)


def test_an_ewma_forgets_what_is_long_past():
    mean = Ewma(1.0)
    mean.add(1e9, 0)
    mean.add(1.0, 3600 * SECOND)
    assert mean.value == pytest.approx(1.0)


def test_an_ewma_takes_a_clock_that_steps_back_for_no_time_passed():
    mean = Ewma(1.0)
    mean.add(1.0, 100 * SECOND)
    mean.add(3.0, 0)
    assert mean.value == pytest.approx(2.0)


@quick
@given(samples)
def test_an_ewma_stays_within_its_samples(values):
    mean = Ewma(5.0)
    for second, value in enumerate(values):
        mean.add(value, second * SECOND)
    assert mean.value is not None
    assert min(values) * 0.999999 <= mean.value <= max(values) * 1.000001


@pytest.mark.parametrize("value", NOT_FINITE)
def test_an_ewma_refuses_what_is_not_a_number(value):
    with pytest.raises(ValueError, match="finite"):
        Ewma(1.0).add(value, 0)


@pytest.mark.parametrize("halflife_s", [0.0, -1.0, math.nan])
def test_an_ewma_needs_a_positive_halflife(halflife_s):
    with pytest.raises(ConfigError, match=r"ewma.halflife_s.*positive"):
        Ewma(halflife_s)


# PeakEwma


def test_a_peak_ewma_rises_at_once():
    level = PeakEwma()
    assert level.value is None
    level.observe(1.0, 0)
    level.observe(50.0, 1)
    assert level.value == 50.0


def test_a_peak_ewma_comes_down_with_time():
    level = PeakEwma(10.0)
    level.observe(100.0, 0)
    level.observe(0.0, 10 * SECOND)
    assert level.value == pytest.approx(100.0 / math.e)
    level.observe(0.0, 1000 * SECOND)
    assert level.value == pytest.approx(0.0, abs=1e-9)


def test_a_peak_ewma_ignores_smaller_samples_when_no_time_has_passed():
    level = PeakEwma()
    level.observe(10.0, 5 * SECOND)
    level.observe(1.0, 5 * SECOND)
    level.observe(1.0, 0)
    assert level.value == 10.0
    level.observe(11.0, 0)
    assert level.value == 11.0


def test_a_peak_ewma_takes_its_first_sample_at_time_zero():
    level = PeakEwma()
    level.observe(3.0, 0)
    assert level.value == 3.0


def test_a_penalty_raises_a_level_and_never_lowers_it():
    level = PeakEwma(10.0)
    level.penalise(5.0, 0)
    assert level.value == 5.0
    level.penalise(3.0, SECOND)
    assert level.value == 5.0
    level.penalise(8.0, 2 * SECOND)
    assert level.value == 8.0


def test_a_penalty_fades_from_the_moment_it_was_given():
    level = PeakEwma(10.0)
    level.observe(1.0, 0)
    level.penalise(100.0, 50 * SECOND)
    level.observe(0.0, 60 * SECOND)
    assert level.value == pytest.approx(100.0 / math.e)


@quick
@given(st.lists(st.tuples(st.floats(0, 1e12), st.integers(0, 10**10)), min_size=1, max_size=50))
def test_a_peak_ewma_is_never_below_its_last_sample_nor_above_its_largest(steps):
    level = PeakEwma()
    now = 0
    for value, pause in steps:
        now += pause
        level.observe(value, now)
        assert level.value is not None
        assert level.value >= value
    assert level.value <= max(value for value, _ in steps) * 1.000001


def test_a_peak_ewma_needs_a_positive_decay():
    with pytest.raises(ConfigError, match=r"peak_ewma.decay_s.*positive"):
        PeakEwma(0.0)


# QuantileSketch


def sketch_of(values, **config):
    sketch = QuantileSketch(**config)
    for value in values:
        sketch.add(value)
    return sketch


def true_quantile(values, q):
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


@quick
@given(samples, st.sampled_from([0.0, 0.25, 0.5, 0.875, 1.0]))
def test_a_quantile_is_within_the_relative_accuracy(values, q):
    estimate = sketch_of(values).quantile(q)
    assert estimate == pytest.approx(true_quantile(values, q), rel=0.0101)


def test_the_far_tail_of_many_samples_is_accurate():
    rng = Random(4)
    values = [rng.lognormvariate(19.0, 1.0) for _ in range(20_000)]
    sketch = sketch_of(values)
    for q in (0.01, 0.5, 0.95, 0.99, 0.999):
        assert sketch.quantile(q) == pytest.approx(true_quantile(values, q), rel=0.011)


def test_an_empty_sketch_has_no_quantile_and_no_range():
    sketch = QuantileSketch()
    assert sketch.quantile(0.5) is None
    assert (sketch.count, sketch.minimum, sketch.maximum) == (0, None, None)


def test_a_single_sample_is_returned_exactly():
    sketch = sketch_of([123.456])
    assert [sketch.quantile(q) for q in (0.0, 0.5, 1.0)] == [123.456] * 3


@pytest.mark.parametrize("value", [5e-324, 1e-9, 1.0, 1.7976931348623157e308])
def test_extreme_samples_have_a_quantile_in_range(value):
    sketch = sketch_of([value, value])
    assert sketch.quantile(0.5) == pytest.approx(value, rel=0.01, abs=1e-9)


def test_zero_and_negative_samples_count_as_zero():
    sketch = sketch_of([0.0, -5.0, 1e-12, 7.0])
    assert sketch.count == 4
    assert (sketch.minimum, sketch.maximum) == (0.0, 7.0)
    assert sketch.quantile(0.75) == 0.0
    assert sketch.quantile(1.0) == pytest.approx(7.0, rel=0.01)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_sketch_refuses_what_is_not_a_number_and_stays_as_it_was(value):
    sketch = QuantileSketch()
    with pytest.raises(ValueError, match="finite"):
        sketch.add(value)
    assert sketch.count == 0


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_quantile_lies_between_zero_and_one(q):
    with pytest.raises(ValueError, match="between 0 and 1"):
        sketch_of([1.0]).quantile(q)


def test_a_count_stands_for_that_many_samples():
    one, many = QuantileSketch(), QuantileSketch()
    one.add(5.0, 3)
    one.add(9.0)
    for value in (5.0, 5.0, 9.0, 5.0):
        many.add(value)
    assert one.to_dict() == many.to_dict()


@quick
@given(samples, samples)
def test_merged_sketches_equal_one_that_saw_everything(left, right):
    merged, other = sketch_of(left), sketch_of(right)
    before = other.to_dict()
    merged.merge(other)
    assert merged.to_dict() == sketch_of(left + right).to_dict()
    assert other.to_dict() == before


def test_merging_an_empty_sketch_changes_nothing():
    sketch = sketch_of([1.0, 2.0])
    before = sketch.to_dict()
    sketch.merge(QuantileSketch())
    assert sketch.to_dict() == before


def test_a_sketch_may_be_merged_with_itself():
    sketch = sketch_of([1.0, 50.0])
    sketch.merge(sketch)
    assert sketch.to_dict() == sketch_of([1.0, 1.0, 50.0, 50.0]).to_dict()


def test_sketches_of_different_accuracy_do_not_merge():
    with pytest.raises(ValueError, match=r"accuracy 0.02 into one of 0.01"):
        QuantileSketch(0.01).merge(QuantileSketch(0.02))


@quick
@given(st.lists(st.floats(0.001, 1e12), min_size=50, max_size=300), st.integers(2, 24))
def test_a_full_sketch_keeps_its_bound_its_count_and_its_highest_quantile(values, bins_max):
    sketch = sketch_of(values, bins_max=bins_max)
    assert len(sketch._bins) <= bins_max
    assert sketch.count == len(values) == sum(sketch._bins.values())
    assert sketch.quantile(1.0) == pytest.approx(max(values), rel=0.0101)


def test_folding_sacrifices_the_low_quantiles_only():
    values = [1.1**power for power in range(400)]
    whole, folded = sketch_of(values), sketch_of(values, bins_max=160)
    assert folded.quantile(0.9) == whole.quantile(0.9)
    assert folded.quantile(0.01) > whole.quantile(0.01)


def test_merging_into_a_full_sketch_keeps_the_bound():
    sketch = sketch_of([1.5**power for power in range(10)], bins_max=8)
    sketch.merge(sketch_of([1.4**power for power in range(10)]))
    assert len(sketch._bins) <= 8
    assert sketch.count == 20


@quick
@given(samples)
def test_a_sketch_survives_json_and_ignores_the_order_of_samples(values):
    sketch = sketch_of(values)
    text = json.dumps(sketch.to_dict())
    copy = QuantileSketch.from_dict(json.loads(text))
    assert json.dumps(copy.to_dict()) == text
    assert json.dumps(sketch_of(reversed(values)).to_dict()) == text
    copy.add(1.0)
    assert copy.count == len(values) + 1


def test_an_empty_sketch_survives_json():
    copy = QuantileSketch.from_dict(json.loads(json.dumps(QuantileSketch(0.05, 7).to_dict())))
    assert (copy.count, copy.minimum, copy.relative_accuracy, copy.bins_max) == (0, None, 0.05, 7)


def test_a_cleared_sketch_is_new():
    sketch = sketch_of([1.0, 2.0])
    sketch.clear()
    assert sketch.to_dict() == QuantileSketch().to_dict()


@pytest.mark.parametrize("accuracy", [0.0, 1.0, -0.1, math.nan])
def test_a_sketch_needs_an_accuracy_between_zero_and_one(accuracy):
    with pytest.raises(ConfigError, match=r"sketch.relative_accuracy.*between 0 and 1"):
        QuantileSketch(accuracy)


def test_a_sketch_needs_two_bins():
    with pytest.raises(ConfigError, match=r"sketch.bins_max: is 1; use at least 2"):
        QuantileSketch(bins_max=1)


# Moments


@quick
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=100))
def test_moments_agree_with_the_two_pass_formulas(values):
    moments = Moments()
    for value in values:
        moments.add(value)
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    assert moments.mean == pytest.approx(mean, abs=1e-6)
    assert moments.variance == pytest.approx(variance, rel=1e-6, abs=1e-6)
    assert moments.sd == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-3)
    assert (moments.minimum, moments.maximum) == (min(values), max(values))


@quick
@given(st.lists(st.floats(-1e6, 1e6), max_size=50), st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_merged_moments_equal_those_of_all_samples(left, right):
    merged, other, whole = Moments(), Moments(), Moments()
    for value in left:
        merged.add(value)
        whole.add(value)
    for value in right:
        other.add(value)
        whole.add(value)
    merged.merge(other)
    assert merged.count == whole.count
    assert merged.mean == pytest.approx(whole.mean, abs=1e-6)
    assert (merged.minimum, merged.maximum) == (whole.minimum, whole.maximum)
    if whole.variance is None:
        assert merged.variance is None
    else:
        assert merged.variance == pytest.approx(whole.variance, rel=1e-6, abs=1e-6)


def test_the_variance_of_large_numbers_does_not_cancel():
    moments = Moments()
    for value in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        moments.add(value)
    assert moments.variance == pytest.approx(30.0)


def test_moments_of_less_than_two_samples_have_no_spread():
    moments = Moments()
    assert (moments.variance, moments.sd, moments.minimum) == (None, None, None)
    moments.add(3.0)
    assert (moments.variance, moments.sd, moments.maximum) == (None, None, 3.0)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_moments_refuse_what_is_not_a_number(value):
    moments = Moments()
    with pytest.raises(ValueError, match="finite"):
        moments.add(value)
    assert moments.count == 0


# RateWindow


@quick
@given(
    st.lists(st.tuples(st.integers(0, 3 * 10**9), st.integers(1, 5)), max_size=60),
    st.integers(1, 12),
)
def test_a_rate_window_agrees_with_counting_by_bucket(steps, buckets):
    window, log, now = RateWindow(10.0, buckets), [], 0
    width = 10 * SECOND // buckets
    for pause, n in steps:
        now += pause
        window.add(now, n)
        log.append((now, n))
        current = now // width
        recent = sum(n for at, n in log if current - at // width < buckets)
        assert window.total(now) == recent


@quick
@given(st.lists(st.integers(0, 2 * 10**9), max_size=80))
def test_a_rate_window_never_counts_what_is_older_than_its_span(pauses):
    window, times, now = RateWindow(10.0), [], 0
    for pause in pauses:
        now += pause
        window.add(now)
        times.append(now)
        total = window.total(now)
        assert total <= sum(now - at < 10 * SECOND for at in times)
        assert total >= sum(now - at < 9 * SECOND for at in times)


def test_a_rate_window_empties_after_a_long_pause():
    window = RateWindow(10.0)
    window.add(0, 7)
    assert window.total(9 * SECOND) == 7
    assert window.total(10 * SECOND) == 0
    window.add(10**6 * SECOND)
    assert window.total(10**6 * SECOND) == 1


def test_a_rate_window_counts_a_clock_that_steps_back_as_now():
    window = RateWindow(10.0)
    window.add(100 * SECOND)
    window.add(5 * SECOND)
    assert window.total(100 * SECOND) == 2
    assert window.total(0) == 2


@quick
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=40))
def test_merged_rate_windows_equal_one_that_counted_everything(events):
    left, right, whole = RateWindow(10.0), RateWindow(10.0), RateWindow(10.0)
    for is_left, second in sorted(events, key=lambda event: event[1]):
        (left if is_left else right).add(second * SECOND)
        whole.add(second * SECOND)
    before = right._total
    left.merge(right)
    assert left.total(30 * SECOND) == whole.total(30 * SECOND)
    assert right._total == before


def test_rate_windows_of_different_shape_do_not_merge():
    with pytest.raises(ValueError, match="different span or buckets"):
        RateWindow(10.0).merge(RateWindow(5.0))
    with pytest.raises(ValueError, match="different span or buckets"):
        RateWindow(10.0, 5).merge(RateWindow(10.0, 10))


def test_a_rate_window_needs_a_span_and_a_bucket():
    with pytest.raises(ConfigError, match=r"rate_window.span_s: is 0; use a positive span"):
        RateWindow(0)
    with pytest.raises(ConfigError, match=r"rate_window.buckets: is 0; use at least one"):
        RateWindow(1.0, 0)


# OutcomeWindow


@quick
@given(st.lists(st.booleans(), max_size=100), st.integers(1, 30))
def test_an_outcome_window_counts_the_failures_among_the_last(outcomes, size):
    window = OutcomeWindow(size)
    for number, failed in enumerate(outcomes, 1):
        window.add(failed)
        last = outcomes[max(0, number - size) : number]
        assert (window.failures, window.count) == (sum(last), len(last))


def test_a_cleared_outcome_window_starts_over():
    window = OutcomeWindow(3)
    for _ in range(4):
        window.add(True)
    window.clear()
    assert (window.failures, window.count) == (0, 0)
    window.add(False)
    assert (window.failures, window.count) == (0, 1)


def test_an_outcome_window_needs_a_size():
    with pytest.raises(ConfigError, match=r"outcome_window.size: is 0; use at least one"):
        OutcomeWindow(0)


def test_a_failure_can_be_taken_back_while_it_is_held():
    window = OutcomeWindow(3)
    for failed in (True, False, True):
        window.add(failed)
    window.take_back(0)
    assert (window.count, window.failures) == (3, 1)
    window.take_back(0)  # once is enough
    window.take_back(1)  # no failure
    window.take_back(7)  # of none
    assert window.failures == 1
    window.add(True)
    assert window.failures == 2
    window.take_back(0)  # it has left the window
    assert window.failures == 2
    window.clear()
    window.take_back(2)
    assert (window.count, window.failures, window.added) == (0, 0, 0)


# RecentSketch


def test_a_recent_sketch_knows_the_last_half_to_whole_span():
    sketch = RecentSketch(60.0)
    sketch.add(1_000.0, START)
    for second in range(1, 30):
        sketch.add(10.0, START + second * SECOND)
    assert sketch.quantile(1.0, START + 59 * SECOND) == pytest.approx(1_000.0, rel=0.05)
    sketch.add(10.0, START + 59 * SECOND)
    assert sketch.quantile(1.0, START + 60 * SECOND) == pytest.approx(10.0, rel=0.05)
    assert sketch.quantile(0.5, START + 200 * SECOND) is None


def test_a_recent_sketch_forgets_what_was_young_when_nobody_came_for_long():
    sketch = RecentSketch(60.0)
    sketch.add(1_000.0, START)
    sketch.add(10.0, START + 100 * SECOND)
    assert sketch.quantile(1.0, START + 100 * SECOND) == pytest.approx(10.0, rel=0.05)


def test_a_recent_sketch_says_nothing_of_too_few():
    sketch = RecentSketch(60.0)
    assert sketch.quantile(0.95, START) is None
    for _ in range(19):
        sketch.add(10.0, START)
    assert sketch.quantile(0.95, START, 20) is None
    sketch.add(500.0, START)
    assert sketch.quantile(0.95, START, 20) == pytest.approx(10.0, rel=0.05)  # not the one slowest


def test_a_recent_sketch_needs_a_span():
    with pytest.raises(ConfigError, match=r"recent_sketch.span_s: is 0; use a positive span"):
        RecentSketch(0)


# RowCounts


def test_rows_grow_and_end_as_their_table_says():
    rows = RowCounts({"good": RowRule(("goods",), ("bads", "worse")), "bad": RowRule(("bads",))})
    for outcome in ("good", "bad", "unheard of", "bad"):
        rows.count(outcome)
    assert (rows["goods"], rows["bads"], rows["worse"]) == (1, 2, 0)
    rows.count("good")
    assert rows.lengths == {"goods": 2}
    rows.end("goods", "bads")
    assert rows.lengths == {}
