"""Models that wait for a place on their platform, told while it lasts."""

from types import SimpleNamespace

from holdfast.control.deploy.platform_waits import REPORT_S, PlaceLack, PlatformWaits
from holdfast.core.types import nanos

LACK = "no node for it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def unit(name, lacks=LACK, on="kubernetes", removing=False):
    return SimpleNamespace(id=name, model="m", on=on, lacks=lacks, removing=removing, devices=4)


def test_a_model_is_told_of_at_once_and_then_every_now_and_then():
    waits = PlatformWaits()
    both = [unit("m-1"), unit("m-2")]
    assert waits.due(both[:1], nanos(5)) == [PlaceLack("m", "kubernetes", 1, 0.0, LACK, 4)]
    assert waits.due(both, nanos(5 + REPORT_S / 2)) == []
    (told,) = waits.due(both, nanos(5 + REPORT_S))
    assert (told.pending, told.waited_s) == (2, REPORT_S)


def test_who_has_a_place_is_removed_or_is_of_this_host_is_not_told_of():
    waits = PlatformWaits()
    fine = [unit("m-1", lacks=""), unit("m-2", removing=True), unit("m-3", on="")]
    assert waits.due(fine, nanos(5)) == []


def test_a_wait_that_ended_begins_anew():
    waits = PlatformWaits()
    waits.due([unit("m-1")], nanos(5))
    assert waits.due([unit("m-1", lacks="")], nanos(6)) == []
    (told,) = waits.due([unit("m-1")], nanos(100))
    assert told.waited_s == 0.0
