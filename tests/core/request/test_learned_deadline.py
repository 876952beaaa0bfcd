"""A learned deadline: wide, then following the pool, listening to no single slow replica."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.learned_deadline import (
    GROUPS,
    DeadlineRise,
    LearnedDeadline,
    SampleGroup,
)
from holdfast.core.types import SECOND, nanos
from sampling import examples

WIDE, FLOOR, LIMIT = 60.0, 1.0, 600.0


def learned_deadline(**changes):
    config = {
        "wide_s": WIDE,
        "floor_s": FLOOR,
        "limit_s": LIMIT,
        "factor": 4.0,
        "quantile": 0.999,
        "samples_min": 100,
        "forget_s": 600.0,
    }
    return LearnedDeadline(**(config | changes))


def feed(learned, group, seconds_each, count):
    for _ in range(count):
        learned.groups[group].young.add(nanos(seconds_each))
        learned.groups[group].young_total += nanos(seconds_each)
        learned.fresh += 1
        learned.largest = max(learned.largest, nanos(seconds_each))


def asked(learned, now_s, rise=1):
    learned.refresh(nanos(now_s), rise)
    return learned.deadline / SECOND


def test_it_is_wide_until_the_last_sample_that_is_needed():
    learned = learned_deadline()
    feed(learned, 0, 2.0, 99)
    assert asked(learned, 1) == WIDE
    assert not learned.is_learned()
    feed(learned, 0, 2.0, 1)
    assert asked(learned, 2) == pytest.approx(8.0, rel=0.06)
    assert learned.is_learned()


def test_it_never_goes_below_the_floor():
    learned = learned_deadline()
    feed(learned, 0, 0.01, 200)
    assert asked(learned, 1) == FLOOR
    assert learned.norm == nanos(0.25)  # what a floor of one second is four times of


def test_it_never_exceeds_the_limit():
    learned = learned_deadline()
    feed(learned, 0, 200.0, 200)
    assert asked(learned, 1) == LIMIT
    assert asked(learned_deadline(), 1, rise=64) == LIMIT


def test_a_rise_multiplies_wide_and_learned_deadlines():
    learned = learned_deadline()
    assert asked(learned, 1, rise=2) == 2 * WIDE
    feed(learned, 0, 2.0, 200)
    once = asked(learned, 2)
    assert asked(learned, 3, rise=4) == pytest.approx(4 * once)


@pytest.mark.parametrize("replicas", [2, 3, 4, 5, 8])
def test_one_slow_replica_does_not_teach_the_pool_that_slow_is_normal(replicas):
    learned = learned_deadline()
    for group in range(replicas):
        feed(learned, group, 30.0 if group == 1 else 0.5, 200)
    assert asked(learned, 1) == pytest.approx(2.0, rel=0.06)


def test_a_replica_that_only_stalls_now_and_then_is_left_out_too():
    learned = learned_deadline()
    for group in range(4):
        feed(learned, group, 0.5, 1000)
    feed(learned, 2, 30.0, 10)  # one in a hundred of its answers, one in four hundred of all
    assert asked(learned, 1) == pytest.approx(2.0, rel=0.06)


def test_two_slow_replicas_of_eight_are_left_out_and_three_are_believed():
    learned = learned_deadline()
    for group in range(GROUPS):
        feed(learned, group, 30.0 if group < 2 else 0.5, 200)
    assert asked(learned, 1) == pytest.approx(2.0, rel=0.06)
    for _ in range(2):
        feed(learned, 2, 30.0, 200)
    assert asked(learned, 20) == pytest.approx(120.0, rel=0.06)


def test_the_slowest_is_listened_to_where_the_others_have_too_few_samples():
    learned = learned_deadline()
    feed(learned, 0, 10.0, 150)
    feed(learned, 1, 0.5, 99)
    assert asked(learned, 1) == pytest.approx(40.0, rel=0.06)
    feed(learned, 1, 0.5, 1)
    assert asked(learned, 12) == pytest.approx(2.0, rel=0.06)


def test_many_samples_are_merged_soon_and_few_after_a_while():
    learned = learned_deadline()
    feed(learned, 0, 1.0, 100)
    before = asked(learned, 1)
    feed(learned, 0, 5.0, 255)
    assert asked(learned, 2) == before
    assert asked(learned, 11) == pytest.approx(20.0, rel=0.06)
    feed(learned, 0, 9.0, 256)
    assert asked(learned, 12) == pytest.approx(36.0, rel=0.06)


def test_samples_are_forgotten_after_two_rotations():
    learned = learned_deadline()
    feed(learned, 0, 10.0, 200)
    assert asked(learned, 301) == pytest.approx(40.0, rel=0.06)  # rotates for the first time
    feed(learned, 0, 1.0, 300)
    assert asked(learned, 400) == pytest.approx(40.0, rel=0.06)
    feed(learned, 0, 1.0, 300)
    assert asked(learned, 602) == pytest.approx(4.0, rel=0.06)


def test_what_was_not_seen_for_two_windows_lengthens_no_wait_but_behind_a_queue():
    learned = learned_deadline()
    feed(learned, 0, 0.5, 100)
    feed(learned, 0, 10.0, 20)
    assert asked(learned, 25) == pytest.approx(40.0, rel=0.06)
    feed(learned, 0, 0.5, 99)
    assert asked(learned, 60) == pytest.approx(40.0, rel=0.06)  # a window has enough samples
    feed(learned, 0, 0.5, 1)
    assert asked(learned, 61) == pytest.approx(4.0, rel=0.06)  # twice that of the few lately
    assert learned.scaled(1, 8.0) == pytest.approx(80.0 * SECOND, rel=0.06)
    feed(learned, 0, 10.0, 1)
    assert asked(learned, 62) == pytest.approx(40.0, rel=0.06)  # it is back


def test_a_quiet_pool_keeps_what_it_knows():
    learned = learned_deadline()
    feed(learned, 0, 2.0, 200)
    before = asked(learned, 301)
    feed(learned, 0, 2.0, 99)
    assert asked(learned, 40_000) == before
    assert learned.groups[0].count() == 299


def test_forgetting_makes_it_wide_again():
    learned = learned_deadline()
    feed(learned, 0, 2.0, 200)
    asked(learned, 1)
    assert learned.has_samples()
    learned.forget()
    assert not learned.has_samples()
    assert asked(learned, 2) == WIDE
    feed(learned, 0, 2.0, 1)
    assert learned.has_samples()


def test_a_queue_longer_than_usual_asks_for_more_time_up_to_a_bound():
    learned = learned_deadline()
    feed(learned, 0, 1.0, 200)
    learned.attempts, learned.waiting = 100, 900
    base = asked(learned, 1)
    assert learned.waiting_typical == 9.0
    assert learned.scaled(19, 8.0) / SECOND == pytest.approx(2 * base)
    assert learned.scaled(10**6, 8.0) / SECOND == pytest.approx(8 * base)
    assert learned.scaled(10**6, 1e9) == nanos(LIMIT)


def test_what_queues_were_usual_fades_with_the_samples():
    learned = learned_deadline()
    feed(learned, 0, 1.0, 200)
    learned.attempts, learned.waiting = 100, 900
    asked(learned, 301)
    assert (learned.attempts, learned.waiting) == (50, 450)


def test_a_quantile_is_unknown_below_the_samples_asked_for():
    learned = learned_deadline()
    assert learned.quantile(0.5, 0) is None
    feed(learned, 0, 1.0, 150)
    asked(learned, 1)
    assert learned.quantile(0.5, 150) == pytest.approx(SECOND, rel=0.06)
    assert learned.quantile(0.5, 151) is None


def test_quantiles_are_computed_once_per_merge_and_kept_within_a_bound():
    learned = learned_deadline()
    feed(learned, 0, 1.0, 150)
    asked(learned, 1)
    for percent in range(100):
        assert learned.quantile(percent / 100, 1) == pytest.approx(SECOND, rel=0.06)
        assert len(learned._asked_for) <= 8
    learned.heard.add(nanos(50.0), 10**6)
    assert learned.quantile(0.99, 1) == pytest.approx(SECOND, rel=0.06)
    feed(learned, 0, 3.0, 300)
    asked(learned, 2)
    assert learned.quantile(0.99, 1) == pytest.approx(3 * SECOND, rel=0.06)


def test_the_worst_of_many_finds_the_quantile_of_all():
    rng = Random(3)
    learned, every = learned_deadline(samples_min=1000), []
    for number in range(800):
        gaps = [rng.lognormvariate(17.0, 0.7) for _ in range(100)]
        every += gaps
        learned.add_worst(number % 4, int(max(gaps)), len(gaps))
    learned.refresh(SECOND, 1)
    truth = sorted(every)[int(0.999 * len(every))]
    assert learned._tail == pytest.approx(truth, rel=0.15)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(1, 10**10), st.integers(1, 20_000)), min_size=1))
def test_the_worst_of_many_counts_as_many_samples_as_there_were(streams):
    learned = learned_deadline()
    for worst, count in streams:
        learned.add_worst(0, worst, count)
    assert learned.groups[0].count() == learned.fresh == sum(count for _, count in streams)


def test_long_streams_do_not_hide_their_worst_gap():
    learned = learned_deadline(samples_min=1000)
    for _ in range(10):
        learned.add_worst(0, nanos(2.0), 50_000)
    learned.refresh(SECOND, 1)
    assert learned._tail == pytest.approx(nanos(2.0), rel=0.06)


def test_a_worst_of_one_is_that_sample():
    learned = learned_deadline(samples_min=1)
    learned.add_worst(0, nanos(2.0), 1)
    learned.refresh(SECOND, 1)
    assert (learned._tail, learned.groups[0].young.count) == (nanos(2.0), 1)


def test_a_hand_knows_its_mean_over_both_generations():
    group = SampleGroup()
    group.young.add(1.0)
    group.young_total += 1
    group.rotate()
    group.young.add(3.0)
    group.young_total += 3
    assert (group.count(), group.mean()) == (2, 2.0)
    group.rotate()
    assert (group.count(), group.mean()) == (1, 3.0)


# DeadlineRise


def test_a_rise_doubles_at_most_once_per_pause():
    rise = DeadlineRise(8, 30.0)
    assert rise.lift(0, 10, 0)
    assert rise.lift(9, 10, 0)
    assert rise.value == 2
    assert rise.lift(10, 10, 0)
    assert rise.value == 4


def test_a_rise_says_when_there_is_no_way_up():
    rise = DeadlineRise(5, 30.0)
    assert [rise.lift(now, 1, 0) for now in range(4)] == [True, True, True, False]
    assert rise.value == 5
    rise.reset()
    assert rise.value == 1


def test_a_rise_is_halved_for_each_calm_time():
    rise = DeadlineRise(8, 30.0)
    for now in range(3):
        rise.lift(now, 1, 0)
    start = 2
    assert rise.settle(start + 30 * SECOND - 1) == 8
    assert rise.settle(start + 30 * SECOND) == 4
    assert rise.settle(start + 89 * SECOND) == 2
    assert rise.settle(start + 10**6 * SECOND) == 1


def test_a_slow_fleet_starts_the_calm_time_anew():
    rise = DeadlineRise(8, 30.0)
    rise.lift(0, 100 * SECOND, 0)
    rise.lift(29 * SECOND, 100 * SECOND, 0)
    assert rise.settle(58 * SECOND) == 2
    assert rise.settle(59 * SECOND) == 1


def test_calm_begins_when_doubled_deadlines_could_have_fired():
    rise = DeadlineRise(8, 30.0)
    rise.lift(0, SECOND, 60 * SECOND)
    assert rise.settle(150 * SECOND - 1) == 2
    assert rise.settle(150 * SECOND) == 1


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60 * SECOND)), max_size=60))
def test_a_rise_stays_between_one_and_its_maximum(steps):
    rise, now = DeadlineRise(6, 30.0), 0
    for lifts, pause in steps:
        now += pause
        if lifts:
            rise.lift(now, SECOND, SECOND)
        else:
            rise.settle(now)
        assert 1 <= rise.value <= 6
