"""Requests that wait: in the queue, for a model at zero, for a replica on its way."""

from random import Random

import pytest
from flow_stage import START, Gateway, all_of, events, full, lane, last, only, out, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Arrived, Dispatch, Finish, FleetView, ViewChanged
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.failover import FailoverConfig
from holdfast.core.request.flow import Flow
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.types import MILLISECOND, SECOND, Priority, Request

# --- the queue ------------------------------------------------------------------------------------


def test_a_request_waits_while_everybody_is_full_and_is_served_when_room_appears():
    gateway = full()
    assert gateway.arrive("q2") == []
    finish, dispatch = gateway.after(1.0).end("q1", tokens=5)
    assert isinstance(finish, Finish)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.request.id, dispatch.replica_id) == ("q2", "r1")
    assert "queued" in events(only(gateway.end("q2"), Finish))


def test_who_comes_later_does_not_overtake_who_waits():
    gateway = full()
    gateway.arrive("q2")
    gateway.view(view("r1", slots=1), view("r2", slots=1))  # serves q2
    gateway.arrive("q3")
    gateway.arrive("q4")
    dispatched = all_of(gateway.end("q1") + gateway.end("q2"), Dispatch)
    assert [dispatch.request.id for dispatch in dispatched] == ["q3", "q4"]


def test_a_new_replica_serves_those_who_wait():
    gateway = full()
    gateway.arrive("q2")
    dispatch = only(gateway.view(view("r1", slots=1), view("r2", slots=1)), Dispatch)
    assert (dispatch.request.id, dispatch.replica_id) == ("q2", "r2")


def test_room_that_appears_by_itself_is_found_by_the_next_tick():
    gateway = full()
    gateway.arrive("q2")
    gateway.candidate("r1").limit = 2
    assert only(gateway.wait(0.01), Dispatch).request.id == "q2"


def test_a_full_queue_sheds_with_a_time_to_come_back():
    gateway = full(lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)))
    gateway.arrive("q2")
    finish = only(gateway.arrive("q3"), Finish)
    assert (finish.request_id, finish.status, finish.code) == ("q3", 503, "queue_full")
    assert finish.retry_after_s == 5.0
    assert finish.attempts == 0


def test_an_interactive_request_takes_the_place_of_a_batch_one():
    gateway = full(lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)))
    gateway.arrive("q2", priority=Priority.BATCH)
    finish = only(gateway.arrive("q3"), Finish)
    assert (finish.request_id, finish.code) == ("q2", "displaced")
    assert last(gateway.end("q1"), Dispatch).request.id == "q3"


def test_who_has_waited_too_long_is_told_so_and_never_sent():
    gateway = full()
    gateway.arrive("q2")
    assert gateway.wait(29.9, every=100 * MILLISECOND) == []
    finish = only(gateway.wait(0.2), Finish)
    assert (finish.request_id, finish.status, finish.code) == ("q2", 503, "queue_timeout")
    assert gateway.end("q1")[1:] == []


def test_a_wait_that_is_over_ends_though_room_appeared_before_the_tick():
    gateway = full()
    gateway.arrive("q2")
    gateway.wait(29.99, every=100 * MILLISECOND)
    only(gateway.after(0.015).end("q1"), Finish)  # q2 is overdue by now and is not sent
    finish = only(gateway.wait(0.02), Finish)
    assert (finish.request_id, finish.code) == ("q2", "queue_timeout")
    assert gateway.flow.lives == {}


def test_a_deadline_that_passed_in_the_queue_is_504_and_never_sent():
    gateway = full()
    gateway.arrive("q2", deadline=gateway.now + SECOND)
    finish = only(gateway.wait(1.1), Finish)
    assert (finish.status, finish.code, finish.attempts) == (504, "deadline_exceeded", 0)
    only(gateway.end("q1"), Finish)


def test_a_request_that_comes_after_its_deadline_is_not_queued():
    gateway = full()
    finish = only(gateway.arrive("q2", deadline=gateway.now), Finish)
    assert (finish.status, finish.code) == (504, "deadline_exceeded")


def test_without_a_ready_replica_requests_are_held_for_a_while_and_then_refused():
    gateway = Gateway("r1")
    gateway.view()
    assert gateway.arrive("q1") == []
    gateway.wait(5.0, every=SECOND)
    assert only(gateway.view("r1"), Dispatch).request.id == "q1"
    gateway.view()
    gateway.arrive("q2")
    finish = only(gateway.wait(31.0, every=SECOND), Finish)
    assert (finish.request_id, finish.status, finish.code) == ("q2", 503, "no_ready_replica")


def test_a_batch_request_gives_way_in_the_queue():
    gateway = full()
    gateway.arrive("q2", priority=Priority.BATCH)
    gateway.arrive("q3")
    assert last(gateway.end("q1"), Dispatch).request.id == "q3"
    assert last(gateway.end("q3"), Dispatch).request.id == "q2"


def test_a_nearly_full_other_region_keeps_requests_waiting_and_fails_none():
    gateway = Gateway(
        view("near", slots=1, region="home"),
        view("far", slots=20, region="away"),
        lane=lane(failover=FailoverConfig(home_region="home")),
    )
    for n in range(20):
        only(gateway.arrive(f"q{n}"), Dispatch)
    assert gateway.arrive("q20") == []
    assert gateway.wait(2.0) == []
    near = next(
        r for r, active in gateway.flow.lives.items() if active.live[0].candidate.id == "near"
    )
    assert last(gateway.end(near), Dispatch).request.id == "q20"


# --- a model at zero ------------------------------------------------------------------------------


def asleep(**queue) -> Gateway:
    """A gateway of a model that has no replica."""
    own = lane(queue=QueueConfig(**queue))
    gateway = Gateway(lane=own, lanes={"m": own})
    gateway.view()
    return gateway


def test_what_is_asked_of_a_model_at_zero_waits_until_it_is_woken():
    gateway = asleep()
    assert gateway.arrive() == []
    queue = gateway.flow.lanes["m"].queue
    assert (len(queue), queue.tokens > 0) == (1, False)
    assert gateway.wait(20.0) == []
    assert only(gateway.view("r1"), Dispatch).replica_id == "r1"


def test_before_the_first_view_a_model_of_the_config_is_at_zero_too():
    flow = Flow(FlowConfig(lanes={"m": lane()}), Random)
    assert flow.handle(Arrived(Request("q1", "m", arrived=START)), START) == []
    told = flow.handle(ViewChanged(FleetView(1, (view("r1"),))), START + SECOND)
    assert only(told, Dispatch).replica_id == "r1"


def test_who_waits_in_vain_for_a_model_at_zero_is_told_when_to_come_back():
    gateway = asleep(wait_no_replica_s=3.0)
    gateway.arrive()
    finish = only(gateway.wait(3.1), Finish)
    assert (finish.status, finish.code, finish.attempts) == (503, "no_ready_replica", 0)
    assert finish.retry_after_s > 0


def test_two_waits_for_a_replica_are_not_longer_than_one():
    """Its only replica comes back for a moment, fails it, and is away again."""
    gateway = asleep(wait_no_replica_s=10.0)
    gateway.arrive()
    assert gateway.wait(8.0) == []
    [dispatch] = gateway.view("r1")
    gateway.after(5.0).view(view("r1", 0.0))  # what an attempt takes is no waiting
    assert gateway.end("q1", dispatch.attempt, Kind.RESET) == []
    assert gateway.wait(1.9) == []
    finish = only(gateway.wait(0.3), Finish)
    assert (finish.status, finish.code, finish.attempts) == (503, "no_ready_replica", 1)
    assert "10 s" in finish.reason


def test_only_so_many_wait_for_a_model_at_zero():
    gateway = asleep(depth_max=1, batch_depth_max=0)
    assert gateway.arrive("q1") == []
    finish = only(gateway.arrive("q2"), Finish)
    assert (finish.status, finish.code) == (503, "queue_full")
    assert finish.retry_after_s > 0


# --- no replica at all ----------------------------------------------------------------------------


def test_where_no_replica_can_be_ready_in_time_nobody_waits():
    away = [
        out(name, None, ready_in_s=60.0, reason="its process is stopped (pid 7)") for name in "abc"
    ]
    gateway = Gateway(*away)
    finish = only(gateway.arrive(), Finish)
    assert (finish.status, finish.code, finish.retry_after_s) == (503, "no_ready_replica", 60.0)
    assert "all 3 replicas of m are quarantined: its process is stopped; one may" in finish.reason
    assert "pid" not in finish.reason


def test_where_one_is_on_its_way_a_request_waits_and_can_say_for_how_long():
    gateway = Gateway(out("r1", None, ready_in_s=60.0), out("r2", None, ready_in_s=12.0))
    assert gateway.arrive() == []
    gateway.wait(2.0)
    assert gateway.flow.ready_in_s("q1", gateway.now) == pytest.approx(10.0)
    assert only(gateway.view("r2"), Dispatch).replica_id == "r2"
    assert gateway.flow.ready_in_s("q1", gateway.now) is None


def test_who_waits_is_refused_as_soon_as_it_is_in_vain():
    gateway = Gateway(out("r1", None))
    assert gateway.arrive() == []  # nobody knows: it waits
    assert gateway.wait(5.0) == []
    finish = only(gateway.view(out("r1", None, ready_in_s=45.0)), Finish)
    assert (finish.status, finish.retry_after_s) == (503, 45.0)
    assert "the only replica of m is quarantined" in finish.reason


def test_a_request_that_may_wait_longer_does():
    gateway = Gateway(out("r1", None, ready_in_s=60.0))
    assert gateway.arrive(priority=Priority.BATCH) == []
    assert only(gateway.arrive("q2", deadline=gateway.now + 5 * SECOND), Finish).status == 503


def test_a_replica_whose_breaker_is_open_may_be_back_at_any_time():
    gateway = Gateway("r1", out("r2", None, ready_in_s=60.0))
    for number in range(5):
        gateway.arrive(f"q{number}", deadline=gateway.now + SECOND)
        for attempt in range(3):
            gateway.end(f"q{number}", attempt, Kind.CONNECT_TIMEOUT)
    assert gateway.arrive("last") == []
