"""Batch items fill what is free, and give way: each rule fires, and does not fire without cause."""

import pytest

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

    def __init__(self, slots=20, people=0, **config):
        self.policy = SpareCapacity(SpareCapacityConfig(**config))
        self.slots, self.people = slots, people
        self.items, self.now = 0, 0

    def look(self, waiting=0, p95=None, *, silent=False, ready=True):
        self.now += LOOK
        load = ModelLoad(waiting, self.items + self.people, self.slots, p95, ready)
        pace = self.policy.look(None if silent else load, self.items, self.items, self.now)
        self.items = min(self.items - pace.take_back, pace.running_max)
        self.items = max(self.items, pace.running_max)
        return pace


def test_it_fills_the_free_slots_except_a_reserve():
    model = Model(slots=20)
    for _ in range(10):
        model.look()
    assert model.items == 18  # two of twenty stay free for whoever comes


def test_it_never_takes_more_than_people_leave():
    model = Model(slots=20, people=15)
    for _ in range(10):
        model.look()
    assert model.items == 3


def test_people_who_wait_get_slots_at_once_and_nothing_is_sent_meanwhile():
    model = Model(slots=20)
    for _ in range(10):
        model.look()
    pace = model.look(waiting=4)
    assert (pace.take_back, pace.running_max) == (4, 14)
    assert pace.reason == "4 people wait"
    held = model.look()
    assert held.running_max == 14
    assert held.reason == "people waited just now"
    for _ in range(10):
        model.look()
    assert model.items == 18


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
    assert model.items == 18
    pace = model.look(p95=0.5)
    assert pace.reason == "first tokens are later than without batch"
    assert pace.running_max == 14


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
    assert model.look(silent=True).running_max == 18  # one report is late
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
    [("reserve_share", 1.5), ("unknown_max", -1), ("hold_s", 0), ("late_factor", 1.0)],
)
def test_a_pace_that_cannot_work_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"batch.pace.{field}"):
        SpareCapacityConfig(**{field: value})
