"""Requests caught at a replica that will not answer are sent elsewhere."""

from dataclasses import replace

import pytest
from flow_stage import Gateway, all_of, caught, lane, only, out, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Abort, Answered, Dispatch, Finish, ReplicaHalted
from holdfast.core.request.deadlines import DeadlineConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import SECOND, Halt, State


@pytest.mark.parametrize("whole", [True, False], ids=["in one piece", "stream"])
@pytest.mark.parametrize("told", ["view", "event", "dead"])
def test_what_is_caught_at_a_replica_that_stopped_is_sent_elsewhere_at_once(whole, told):
    """On the first request that a gateway ever had."""
    gateway = Gateway("r1", "r2")
    lost, other = caught(gateway, whole=whole), "r2"
    gateway.after(0.3)
    if told == "event":
        actions = gateway.tell(ReplicaHalted("m", lost, Halt.STOPPED))
    elif told == "view":
        actions = gateway.view(out(lost, Halt.STOPPED), other)
    else:
        actions = gateway.view(replace(view(lost, 0.0), state=State.DEAD), other)
    abort, dispatch = actions
    assert (abort, dispatch.replica_id) == (Abort("q1", 0, lost, Kind.DRAINED), other)
    finish = only(gateway.after(0.1).tell(Answered("q1", 1, 8)), Finish)
    assert (finish.status, finish.attempts, finish.replica_id) == (200, 2, other)
    assert gateway.candidate(lost).inflight == 0


def test_from_a_stalled_replica_a_request_moves_once_its_prompt_explains_nothing_more():
    gateway = Gateway("r1", "r2")
    lost = caught(gateway, prompt_tokens=200)  # 5 s and 2 s
    gateway.after(3.0)
    assert gateway.view(out(lost, Halt.STALLED), "r2") == []
    assert gateway.wait(3.9) == []
    abort, dispatch = gateway.wait(0.2)
    assert (abort.kind, dispatch.replica_id) == (Kind.FIRST_TOKEN_TIMEOUT, "r2")


@pytest.mark.parametrize("whole", [True, False], ids=["in one piece", "stream"])
def test_a_very_long_prompt_stays_at_a_replica_that_looks_stalled_while_it_may_be_read(whole):
    gateway = Gateway("r1", "r2", lane=lane(deadlines=DeadlineConfig(first_token_s=600.0)))
    lost = caught(gateway, whole=whole, prompt_tokens=100_000)
    gateway.after(5.0).view(out(lost, Halt.STALLED), "r2")
    assert all_of(gateway.wait(99.0, every=SECOND), Abort | Dispatch | Finish) == []
    abort, dispatch = gateway.wait(2.0)
    assert (abort.kind, dispatch.replica_id) == (Kind.FIRST_TOKEN_TIMEOUT, "r2")


def test_an_answer_in_one_piece_has_twice_its_usual_time_at_a_stalled_replica():
    gateway = Gateway("r1", "r2")
    for number in range(40):
        gateway.arrive(f"w{number}", whole=True, max_tokens=64)
        gateway.after(8.0).tell(Answered(f"w{number}", 0, 60))
        gateway.wait(1.0, every=SECOND)
    lost = caught(gateway)
    gateway.after(10.0).view(out(lost, Halt.STALLED), "r2" if lost == "r1" else "r1")
    assert gateway.wait(5.0) == []
    assert len(gateway.wait(2.0)) == 2


def test_an_answer_in_one_piece_leaves_a_stalled_replica_once_no_such_answer_takes_as_long():
    """Where that was learned, from answers of a quarter of a second, it is no matter of 5 s."""
    gateway = Gateway("r1", "r2")
    for number in range(260):
        gateway.arrive(f"w{number}", whole=True, max_tokens=64)
        gateway.after(0.25).tell(Answered(f"w{number}", 0, 20))
        gateway.after(0.05).tick()
    gateway.wait(2.0)
    lost = caught(gateway, "early", prompt_tokens=20)
    gateway.after(0.9)
    gateway.arrive("late", whole=True, max_tokens=64, prompt_tokens=20)
    gateway.arrive("later", whole=True, max_tokens=64, prompt_tokens=20)
    actions = gateway.view(out(lost, Halt.STALLED), "r2" if lost == "r1" else "r1")
    assert [a.request_id for a in all_of(actions, Abort)] == ["early"]
    assert gateway.wait(0.7) == []
    assert len(all_of(gateway.wait(0.2), Abort)) == 1  # of the two, the one that was sent there


def test_what_stores_something_or_has_been_shown_is_not_moved():
    gateway = Gateway("r1", "r2")
    lost = caught(gateway, stores=True)
    assert gateway.tell(ReplicaHalted("m", lost, Halt.STOPPED)) == []
    gateway.tell(Answered("q1", 0, 8))
    lost = caught(gateway, "q2", whole=False)
    gateway.first("q2")
    assert gateway.tell(ReplicaHalted("m", lost, Halt.STOPPED)) == []
    assert gateway.wait(1.0) == []


def test_a_replica_that_is_well_again_keeps_what_it_has():
    gateway = Gateway("r1", "r2")
    lost = caught(gateway, prompt_tokens=200)
    gateway.after(1.0).view(out(lost, Halt.STALLED), "r2")
    gateway.after(1.0).view(lost, "r2")
    assert gateway.wait(9.0) == []
    assert only(gateway.tell(Answered("q1", 0, 8)), Finish).replica_id == lost


def test_a_herd_moves_no_faster_than_the_retry_budget_and_nobody_fails():
    """Five hundred at once would fell the next replica."""
    gateway = Gateway(view("r1", slots=500))
    for number in range(500):
        assert caught(gateway, f"q{number}") == "r1"
    gateway.after(11.0)  # what they earned is forgotten: 10/s are left
    lost = replace(out("r1", Halt.STOPPED), replica=gateway.candidate("r1").replica)
    actions = gateway.view(lost, view("r2", slots=500))
    actions += gateway.wait(0.2)
    moved = [a.request.id for a in all_of(actions, Dispatch)]
    assert moved == [f"q{number}" for number in range(100)]  # a window's floor, the oldest first
    assert all_of(actions, Finish) == []
    later = all_of(gateway.wait(30.0), Dispatch)
    assert 200 <= len(later) <= 300


def test_a_request_is_moved_twice_and_then_waits_for_its_own_deadline():
    gateway = Gateway("r1", "r2", "r3")
    where = [caught(gateway)]
    for _ in range(2):
        _, dispatch = gateway.tell(ReplicaHalted("m", where[-1], Halt.STOPPED))
        where.append(dispatch.replica_id)
    assert sorted(where) == ["r1", "r2", "r3"]
    assert gateway.tell(ReplicaHalted("m", where[-1], Halt.STOPPED)) == []
    assert gateway.flow.lives["q1"].made == 0  # its attempts are its own


def test_with_nowhere_to_go_it_stays_until_somebody_has_room():
    gateway = Gateway("r1")
    lost = caught(gateway)
    assert gateway.view(out(lost, Halt.STOPPED)) == []
    assert gateway.wait(2.0) == []
    _, dispatch = gateway.view(out(lost, Halt.STOPPED), "r2") or gateway.wait(0.1)
    assert dispatch.replica_id == "r2"


def test_moves_may_be_switched_off():
    gateway = Gateway("r1", "r2", retry=RetryConfig(moves=0))
    lost = caught(gateway)
    assert gateway.tell(ReplicaHalted("m", lost, Halt.STOPPED)) == []
