"""Queues at the priority of people: as many as there are slots, and none while nothing is ready."""

from holdfast.core.batch.interactive_pace import InteractivePace
from holdfast.core.batch.spare_capacity import ModelLoad, SpareCapacityConfig
from holdfast.core.types import SECOND

CONFIG = SpareCapacityConfig()


def test_it_follows_the_slots_and_stops_with_the_model():
    pace = InteractivePace(CONFIG)
    assert pace.look(ModelLoad(9, 8, 8), 3, SECOND).running_max == 8  # who waits is its equal
    assert pace.look(ModelLoad(0, 0, None), 3, SECOND).running_max == CONFIG.unknown_max
    down = pace.look(ModelLoad(0, 0, 8, ready=False), 3, SECOND)
    assert (down.running_max, down.reason) == (0, "no replica is ready")


def test_silence_is_neither_free_nor_full():
    pace = InteractivePace(CONFIG)
    assert pace.look(None, 0, SECOND).running_max == CONFIG.silent_max
    pace.look(ModelLoad(0, 0, 8), 0, SECOND)
    assert pace.look(None, 5, 2 * SECOND).running_max == 5
    assert pace.look(None, 5, 20 * SECOND).running_max == CONFIG.silent_max
