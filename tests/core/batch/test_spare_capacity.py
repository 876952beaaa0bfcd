"""Batch items fill what is free, and give way: each rule fires, and does not fire without cause."""

from math import ceil, sqrt

import pytest
from hypothesis import given
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


@pytest.mark.parametrize(("replicas", "items"), [(0, 6), (1, 6), (2, 3), (3, 4), (8, 6)])
def test_one_replica_of_several_stays_without_batch_work_and_the_others_keep_a_slot(
    replicas, items
):
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


@given(slots=st.integers(1, 4_096), share=st.floats(0.0, 1.0))
def test_a_steady_load_leaves_the_reserve_and_no_more(slots, share):
    people = int(slots * share)
    model = Model(slots, people)
    for _ in range(12):
        model.look()
    left = slots - people
    reserve = max(1, ceil(min(sqrt(slots), 0.1 * slots)), ceil(0.15 * left))
    assert model.items == max(0, left - reserve)


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


def taught(p95=0.2, slots=20, seconds=LEARNT_MIN + 1):
    """A model whose first tokens were seen without batch work, for so many seconds."""
    model = Model(slots=slots)
    for _ in range(seconds * 10):
        model.now += LOOK
        model.policy.learn(ModelLoad(0, 0, slots, p95), model.now)
    return model


def test_late_first_tokens_lower_a_ceiling_and_usual_ones_do_not():
    model = taught(0.2)
    for _ in range(10):
        model.look(p95=0.25)
    assert model.items == 17
    pace = model.look(p95=0.31)
    assert pace.reason == "first tokens got late beside batch work"
    assert (pace.running_max, pace.take_back) == (13, 0)


@pytest.mark.parametrize(("p95", "items"), [(0.31, 13), (0.6, 8), (1.2, 4), (9.0, 4)])
def test_the_later_they_are_the_lower_it_is(p95, items):
    model = taught(0.2)
    for _ in range(10):
        model.look(p95=0.2)
    model.look(p95=p95)
    assert model.items == items


def test_a_p95_of_the_last_minute_is_given_time_to_show_what_a_step_did():
    model = taught(0.2)
    for _ in range(10):
        model.look(p95=0.2)
    for _ in range(190):  # what people saw before the step is in it still
        model.look(p95=0.6)
    assert model.items == 8
    for _ in range(20):
        model.look(p95=0.6)
    assert model.items == 4


def test_a_ceiling_rises_step_by_step_when_first_tokens_are_usual_again():
    model = taught(0.2)
    for _ in range(10):
        model.look(p95=0.2)
    model.look(p95=0.6)
    seen = []
    for _ in range(40):
        for _ in range(200):
            model.look(p95=0.2)
        seen.append(model.items)
    assert seen[:3] == [9, 10, 11]
    assert seen[-1] == 17


def test_people_who_are_late_without_any_item_have_a_new_usual():
    model = taught(0.2)
    for _ in range(10):
        model.look(p95=0.2)
    seen = []
    for _ in range(5_000):  # longer prompts since noon: no step helps
        model.look(p95=2.0)
        seen.append(model.items)
        if not model.items:
            model.policy.learn(ModelLoad(0, 0, 20, 2.0), model.now)
    assert min(seen[:600]) == 0  # within a minute nothing is left to take away
    assert seen[-1] == 17


def test_what_was_seen_beside_batch_work_is_not_learned():
    model = Model(slots=20)
    for _ in range(300):
        model.look(p95=0.2)
    assert model.look(p95=5.0).running_max == 17  # nobody knows what is usual


def test_a_second_of_looks_teaches_once():
    model = taught(0.2, seconds=LEARNT_MIN - 1)
    for _ in range(10):
        model.look(p95=0.2)
    assert model.look(p95=5.0).running_max == 17


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
        ("late_s", 0),
        ("late_factor", 1.0),
    ],
)
def test_a_pace_that_cannot_work_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"batch.pace.{field}"):
        SpareCapacityConfig(**{field: value})
