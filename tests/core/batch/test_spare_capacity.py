"""Batch items fill what is free, and give way: each rule fires, and does not fire without cause."""

from math import ceil, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.batch.spare_capacity import (
    LEARNT_MIN,
    ModelLoad,
    SpareCapacity,
    SpareCapacityConfig,
    is_young,
)
from holdfast.core.types import SECOND, ConfigError

LOOK = SECOND // 10


class Model:
    """A model with slots, looked at ten times a second; items finish only if told."""

    def __init__(self, slots=20, people=0, *, replicas=0, **config):
        self.policy = SpareCapacity(SpareCapacityConfig(**config))
        self.slots, self.people, self.replicas = slots, people, replicas
        self.items, self.now = 0, 0

    def look(self, waiting=0, p95=None, *, silent=False, ready=True):
        self.now += LOOK
        load = ModelLoad(waiting, self.items + self.people, self.slots, p95, ready, self.replicas)
        pace = self.policy.look(None if silent else load, self.items, self.items, self.now)
        self.items = min(self.items - pace.take_back, pace.running_max)
        self.items = max(self.items, pace.running_max)
        return pace


def test_it_fills_the_free_slots_except_a_reserve():
    model = Model(slots=20)
    for _ in range(10):
        model.look()
    assert model.items == 17  # three of twenty stay free for whoever comes


@pytest.mark.parametrize(("replicas", "items"), [(0, 6), (1, 6), (2, 4), (3, 5), (8, 6)])
def test_one_replica_of_several_stays_without_batch_work(replicas, items):
    model = Model(slots=8, replicas=replicas)
    for _ in range(10):
        model.look()
    assert model.items == items
    model.items += 1  # a replica was lost: nothing is taken back, and nothing sent
    pace = model.look()
    assert (pace.running_max, pace.take_back) == (items, 0)


def test_it_never_takes_more_than_people_leave():
    model = Model(slots=20, people=15)
    for _ in range(10):
        model.look()
    assert model.items == 3


@pytest.mark.parametrize(("people", "most"), [(400, 0.9), (1_000, 0.9), (1_640, 0.9)])
def test_a_large_fleet_uses_four_fifths_of_what_people_leave_at_any_load(people, most):
    model = Model(slots=2_048, people=people)
    for _ in range(20):
        model.look()
    assert 0.8 * (2_048 - people) <= model.items <= most * (2_048 - people)
    assert model.items <= 2_048 - people - sqrt(2_048)  # as many may come in a moment


@settings(deadline=None)  # the machine may stand still
@given(
    slots=st.integers(1, 4_096),
    looks=st.lists(
        st.tuples(
            st.integers(0, 4_096),  # people who run
            st.integers(0, 300),  # and who wait
            st.floats(0.0, 1.0),  # of the items end before the look
            st.floats(0.0, 1.0),  # of the others are young
            st.sampled_from(["reported", "silent", "not ready"]),
        ),
        max_size=40,
    ),
)
def test_whatever_comes_batch_work_stays_out_of_peoples_way(slots, looks):
    config = SpareCapacityConfig()
    policy, items, now = SpareCapacity(config), 0, 0
    for came, waiting, ends, young_share, news in looks:
        now += LOOK
        items -= int(items * ends)
        people = min(came, slots)
        young = int(items * young_share)
        load = ModelLoad(waiting, people + items, slots, None, news == "reported")
        pace = policy.look(None if news == "silent" else load, items, young, now)
        assert 0 <= pace.take_back <= young
        assert pace.running_max >= 0
        if news == "not ready":
            assert pace.running_max == 0
        elif news == "reported" and waiting:
            assert pace.running_max <= items - pace.take_back
            assert pace.take_back == min(waiting, ceil(young * config.taken_back_share))
        elif news == "reported":
            assert pace.take_back == 0  # nobody waits: no work is thrown away
            grown = pace.running_max > items
            assert not grown or people + pace.running_max <= slots - config.reserve_min
        items = max(0, min(pace.running_max, slots - people, 5_000))


@settings(deadline=None)  # the machine may stand still
@given(slots=st.integers(1, 4_096), share=st.floats(0.0, 1.0))
def test_a_steady_load_leaves_the_reserve_and_no_more(slots, share):
    people = int(slots * share)
    model = Model(slots, people)
    for _ in range(12):
        model.look()
    left = slots - people
    reserve = max(1, ceil(min(sqrt(slots), 0.1 * slots)), ceil(0.15 * left))
    assert model.items == max(0, left - reserve)


@settings(deadline=None)  # the machine may stand still
@given(slots=st.integers(1, 4_096), people=st.integers(0, 4_095))
def test_more_people_never_mean_more_batch_work(slots, people):
    now, then = Model(slots, min(people, slots)), Model(slots, min(people + 1, slots))
    for _ in range(12):
        now.look()
        then.look()
    assert then.items <= now.items


def test_people_who_wait_get_slots_at_once_and_nothing_is_sent_meanwhile():
    model = Model(slots=20)
    for _ in range(10):
        model.look()
    pace = model.look(waiting=4)
    assert (pace.take_back, pace.running_max) == (4, 13)
    assert pace.reason == "4 people wait"
    held = model.look()
    assert held.running_max == 13
    assert held.reason == "people waited just now"
    for _ in range(10):
        model.look()
    assert model.items == 17


def test_nothing_is_taken_back_while_nobody_waits():
    model = Model(slots=20, people=19)
    model.items = 10
    assert model.look().take_back == 0


def test_late_first_tokens_shrink_it_and_usual_ones_do_not():
    model = Model(slots=20)
    model.slots = 0  # nothing is free while it learns what is usual
    for _ in range(LEARNT_MIN + 1):
        model.look(p95=0.2)
        model.items = 0
    model.slots = 20
    for _ in range(10):
        model.look(p95=0.25)
    assert model.items == 17
    pace = model.look(p95=0.5)
    assert pace.reason == "first tokens are later than without batch"
    assert pace.running_max == 13


def test_unknown_is_neither_free_nor_full():
    model = Model(slots=None)
    for expected in (1, 2, 3):
        assert model.look().running_max == expected
    for _ in range(40):
        model.look()
    assert model.items == SpareCapacityConfig().unknown_max


def test_silent_gateways_leave_a_small_number_going_after_a_while():
    model = Model(slots=20)
    for _ in range(10):
        model.look()
    assert model.look(silent=True).running_max == 17  # one report is late
    for _ in range(40):
        pace = model.look(silent=True)
    assert pace.running_max == SpareCapacityConfig().silent_max
    assert Model().look(silent=True).reason == "gateways do not report"


def test_a_model_that_is_down_gets_nothing():
    model = Model(slots=20)
    assert model.look(ready=False).running_max == 0


def test_an_item_is_young_for_a_second_only():
    config = SpareCapacityConfig()
    assert is_young(0, SECOND // 2, config)
    assert not is_young(0, 2 * SECOND, config)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reserve_share", 1.5),
        ("reserve_spread", -1.0),
        ("unknown_max", -1),
        ("hold_s", 0),
        ("late_factor", 1.0),
    ],
)
def test_a_pace_that_cannot_work_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"batch.pace.{field}"):
        SpareCapacityConfig(**{field: value})
