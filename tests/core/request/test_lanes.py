from random import Random

from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.lanes import Lanes
from holdfast.core.types import SECOND, Replica, State

STALE = 10 * SECOND


def lanes(**configs: LaneConfig) -> Lanes:
    return Lanes(LaneConfig(), configs, {}, STALE, Random)


def view(version: int, *replicas: ReplicaView, epoch: int = 0) -> FleetView:
    return FleetView(version, replicas, epoch=epoch)


def ready(name: str, model: str = "m") -> ReplicaView:
    return ReplicaView(Replica(name, model), State.READY, 1.0)


def test_a_view_makes_a_lane_for_each_model_with_its_own_config():
    book = lanes(b=LaneConfig(routing="round_robin"))
    assert book.apply(view(1, ready("r1", "a"), ready("r2", "b")), 0)
    assert set(book.by_model) == {"a", "b"}
    assert list(book.by_model["b"].pool.candidates) == ["r2"]


def test_every_model_of_the_config_has_a_lane_before_anybody_serves_it():
    book = lanes(b=LaneConfig(routing="round_robin"))
    lane = book.by_model["b"]
    assert (lane.pool.candidates, lane.pool.ready(0)) == ({}, False)
    book.apply(view(1, ready("r2", "b")), 0)
    assert book.by_model["b"] is lane


def test_a_late_frame_changes_nothing():
    book = lanes()
    book.apply(view(2, ready("r1")), 0)
    assert not book.apply(view(1, ready("r2")), 1)
    assert list(book.by_model["m"].pool.candidates) == ["r1"]


def test_a_control_that_took_over_is_followed_though_it_counts_from_one():
    book = lanes()
    book.apply(view(900, ready("r1")), 0)
    assert book.apply(view(1, ready("r2"), epoch=1), 1)
    assert list(book.by_model["m"].pool.candidates) == ["r2"]
    assert not book.apply(view(901, ready("r1")), 2)  # the old one, heard of late
    assert book.view == (1, 1)


def test_a_model_that_is_no_longer_named_keeps_its_lane_without_replicas():
    book = lanes()
    book.apply(view(1, ready("r1")), 0)
    book.apply(view(2), 1)
    assert book.by_model["m"].pool.candidates == {}


def test_what_was_only_suspected_is_doubted_when_control_is_silent():
    book = lanes()
    suspected = ReplicaView(Replica("r1", "m"), State.QUARANTINED, 0.0)
    known = ReplicaView(Replica("r2", "m"), State.QUARANTINED, 0.0, firm=True)
    book.apply(view(1, suspected, known), 0)
    assert book.doubt(STALE) == []
    assert [report.replica_id for report in book.doubt(STALE + 1)] == ["r1"]
    assert book.doubt(STALE + 2) == []  # said once


def test_before_any_view_there_is_nothing_to_doubt():
    assert lanes().doubt(100 * SECOND) == []


def test_tallies_of_all_lanes_come_together():
    book = lanes()
    book.apply(view(1, ready("r1", "a"), ready("r2", "b")), 0)
    book.by_model["b"].pool.candidates["r2"].successes = 3
    assert [(tally.replica_id, tally.successes) for tally in book.tallies()] == [("r2", 3)]
