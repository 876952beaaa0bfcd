"""Batch work goes where batch work is; people's requests go as before."""

from types import SimpleNamespace

from holdfast.core.request.candidate import UNLIMITED
from holdfast.core.request.routing.batch_pack import PACKED, pack


def candidate(name, batch, people=0, limit=8, share=1.0):
    inflight = batch + people
    return SimpleNamespace(
        id=name, batch_inflight=batch, inflight=inflight, limit=limit, share=share
    )


def test_the_one_with_most_batch_work_and_room_is_chosen():
    rung = [candidate("a", 2, 5), candidate("b", 7), candidate("c", 8), candidate("d", 0)]
    assert pack(rung, ()) == (rung[1], PACKED)
    assert pack(rung, {"b"}) == (rung[0], PACKED)


def test_the_first_item_goes_where_fewest_people_are():
    rung = [candidate("a", 0, 6), candidate("b", 0, 1), candidate("c", 0, 3)]
    assert pack(rung, ()) == (rung[1], PACKED)


def test_a_suspect_and_a_replica_without_a_known_limit_are_left_to_the_policy():
    assert pack([candidate("a", 3, limit=UNLIMITED), candidate("b", 3, share=0.1)], ()) is None
    assert pack([candidate("a", 8)], ()) is None
