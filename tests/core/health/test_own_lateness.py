"""How late this process was itself, and what that excuses."""

import pytest

from holdfast.core.health.own_lateness import (
    EXCUSES_MAX,
    LATE,
    LATE_KEPT,
    LatenessExcuses,
    LoopWatch,
    own_time_taken_off,
)
from holdfast.core.types import MILLISECOND, SECOND

PACE = 20 * MILLISECOND


def test_lateness_counts_while_it_lasts_and_after_it_was_noticed():
    watch = LoopWatch(PACE, 0)
    assert watch.beat(PACE) == 0
    assert watch.late_within(0, 2 * PACE + LATE) == 0
    assert watch.late_within(0, 2 * PACE + LATE + 1) == LATE + 1
    came = 3 * PACE + LATE
    assert watch.beat(came) == PACE + LATE
    assert watch.late_within(0, came + 1) == PACE + LATE
    assert watch.late_within(came - 10, came + 1) == 10  # only what falls into the wait
    assert watch.late_within(came + 1, came + 2) == 0


def test_lateness_adds_up_over_a_wait_and_is_bounded():
    watch, now = LoopWatch(PACE, 0), 0
    for _ in range(2 * LATE_KEPT):
        now += PACE + 2 * LATE
        watch.beat(now)
    ten = now - 10 * (PACE + 2 * LATE)
    assert watch.late_within(ten, now) == 20 * LATE
    assert watch.late_within(0, now) == 2 * LATE * LATE_KEPT


def test_the_first_missing_answer_is_excused_and_the_next_is_not():
    rule = LatenessExcuses()
    assert rule.excuses("a", late=SECOND, waited=5 * SECOND)
    assert not rule.excuses("a", late=SECOND, waited=5 * SECOND)
    assert rule.excuses("b", late=SECOND, waited=5 * SECOND)  # a row of its own
    rule.end_row("a")
    assert rule.excuses("a", late=SECOND, waited=5 * SECOND)


def test_nothing_is_excused_by_a_process_that_was_in_time():
    assert not LatenessExcuses().excuses("a", late=0, waited=5 * SECOND)


def test_a_wait_that_was_mostly_ours_is_excused_again_and_not_for_ever():
    rule = LatenessExcuses()
    told = [rule.excuses("a", late=4 * SECOND, waited=5 * SECOND) for _ in range(EXCUSES_MAX + 2)]
    assert told == [True] * EXCUSES_MAX + [False] * 2


@pytest.mark.parametrize(
    ("latency", "late", "left"),
    [(SECOND, 0, SECOND), (SECOND, SECOND // 4, 3 * SECOND // 4), (SECOND, SECOND // 2, 0)],
)
def test_our_own_time_is_taken_off_an_answer_and_much_of_it_leaves_nothing_known(
    latency, late, left
):
    assert own_time_taken_off(latency, late) == left
