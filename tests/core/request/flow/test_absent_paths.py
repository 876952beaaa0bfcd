"""A path that a replica lacks, and an answer that one replica keeps: what the flow does."""

from dataclasses import replace

import pytest
from tests.core.request.flow.flow_stage import NO_BACKOFF, Gateway, lane, only, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Dispatch, Ended, Finish
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.breaker import BreakerState
from holdfast.core.request.failover import FailoverConfig
from holdfast.core.request.routing.absent_paths import ABSENT_FOR
from holdfast.core.types import State, seconds

EMBED, CHAT = "/v1/embeddings", "/v1/chat/completions"


def lacks(gateway, request_id="q1", attempt=0, status=404):
    event = Ended(request_id, attempt, Kind.NOT_SERVED)
    event.status = status
    return gateway.tell(event)


def sent_to(gateway, request_id="q1", **kwargs):
    return only(gateway.arrive(request_id, **{"path": EMBED, **kwargs}), Dispatch).replica_id


def finished(gateway, request_id, **kwargs):
    """The replica that answered a request on this path."""
    name = sent_to(gateway, request_id, **kwargs)
    gateway.first(request_id)
    only(gateway.end(request_id, tokens=1), Finish)
    return name


@pytest.mark.parametrize("status", [404, 405, 501])
def test_what_no_replica_has_goes_to_the_client_and_accuses_nobody(status):
    gateway = Gateway("r1", "r2")
    for number in range(30):
        name = sent_to(gateway, f"q{number}")
        (finish,) = lacks(gateway, f"q{number}", status=status)
        assert (finish.status, finish.code, finish.attempts) == (status, "path_not_served", 1)
        assert finish.reason == f"m is not served at this path: its engine answered {status}"
        one = gateway.candidate(name)
        assert (one.breaker.state, one.failures) == (BreakerState.CLOSED, 0)
        assert one.latency.value is None
    assert gateway.doubts == []


def test_who_lacks_a_path_is_avoided_for_it_and_for_nothing_else():
    gateway = Gateway("r1", "r2", "r3")
    lacking = sent_to(gateway)
    lacks(gateway)
    others = {finished(gateway, f"e{number}") for number in range(9)}
    assert others == {"r1", "r2", "r3"} - {lacking}
    assert lacking in {finished(gateway, f"c{number}", path=CHAT) for number in range(9)}


def test_one_that_has_the_path_is_asked_once_and_costs_no_retry():
    gateway = Gateway("r1", "r2", "r3", retry=replace(NO_BACKOFF, attempts=1))
    able = finished(gateway, "first")
    lacking = sent_to(gateway)
    assert lacking != able
    again = only(lacks(gateway), Dispatch)
    assert again.replica_id == able
    gateway.first("q1", 1)
    assert only(gateway.end("q1", 1, tokens=1), Finish).status == 200
    third = sent_to(gateway, "q2")
    assert third != lacking


def test_one_that_answers_after_all_is_avoided_no_more():
    gateway = Gateway("r1", "r2")
    for name in ("q1", "q2"):
        sent_to(gateway, name)
        lacks(gateway, name)
    able = finished(gateway, "all lack it")  # so one is asked again
    assert {finished(gateway, f"e{number}") for number in range(4)} == {able}


def test_one_that_has_the_path_and_no_room_is_waited_for():
    views = view("r1", slots=1), view("r2", slots=1)
    gateway = Gateway(*views)
    able = finished(gateway, "first")
    assert sent_to(gateway) != able
    assert sent_to(gateway, "busy", path=CHAT) == able
    assert lacks(gateway) == []
    assert gateway.wait(0.5) == []  # the other has room, and it is not that one's to answer
    gateway.first("busy")
    finish, dispatch = gateway.end("busy", tokens=1)
    assert (finish.request_id, dispatch.request.id, dispatch.replica_id) == ("busy", "q1", able)


@pytest.mark.parametrize("known", ["by its canaries", "by an answer"])
def test_a_path_that_a_replica_must_have_is_expected_of_it(known):
    gateway = Gateway("r1")
    path = CHAT if known == "by its canaries" else EMBED
    sent_to(gateway, path=path)
    assert gateway.flow.expects_path("q1", 0, CHAT) is (path == CHAT)
    gateway.first()
    gateway.end(tokens=1)
    sent_to(gateway, "q2", path=path)
    assert gateway.flow.expects_path("q2", 0, CHAT)
    assert not gateway.flow.expects_path("q2", 1, CHAT)
    assert not gateway.flow.expects_path("nobody", 0, CHAT)


@pytest.mark.parametrize("begins", [State.STARTING, State.LOADING])
def test_a_new_process_has_neither_served_nor_lacked_anything(begins):
    gateway = Gateway("r1", "r2")
    finished(gateway, "first")
    one = view("r1"), view("r2")
    gateway.view(*(replace(each, state=begins, share=0.0) for each in one))
    gateway.view(*one)
    sent_to(gateway)
    assert not gateway.flow.expects_path("q1", 0, CHAT)
    lacks(gateway)
    gateway.view(*(replace(each, state=begins, share=0.0) for each in one))
    gateway.view(*one)
    assert len(gateway.flow.lanes["m"].pool.absent.until) == 0


def test_another_revision_and_ten_minutes_are_a_new_chance():
    both = FailoverConfig(allowed_revisions=("1", "2"))
    gateway = Gateway("r1", "r2", lane=lane(failover=both))
    lacking = sent_to(gateway)
    lacks(gateway)
    other = {"r1": "r2", "r2": "r1"}[lacking]
    assert {finished(gateway, f"e{number}") for number in range(4)} == {other}
    gateway.view(view(lacking, revision="2"), other)
    assert lacking in {finished(gateway, f"f{number}") for number in range(4)}
    gateway.view(lacking, other)
    assert {finished(gateway, f"g{number}") for number in range(4)} == {other}
    gateway.after(seconds(ABSENT_FOR))
    assert lacking in {finished(gateway, f"h{number}") for number in range(4)}


# --- what one replica keeps -----------------------------------------------------------------------


def test_what_one_replica_keeps_is_asked_of_it_alone():
    gateway = Gateway("r1", "r2", "r3")
    for number in range(4):
        assert sent_to(gateway, f"q{number}", holder="r2") == "r2"
    assert gateway.arrive("waiting", path=EMBED, holder="r2") == []  # four slots, four requests
    assert gateway.wait(1.0) == []
    assert sent_to(gateway, "other") != "r2"
    gateway.first("q0")
    actions = gateway.end("q0", tokens=1)
    assert [a.replica_id for a in actions if isinstance(a, Dispatch)] == ["r2"]


def test_those_who_wait_for_one_replica_hold_nobody_up():
    gateway = Gateway(view("r1", slots=1), view("r2", slots=1))
    assert sent_to(gateway, "a", holder="r1") == "r1"
    assert sent_to(gateway, "b") == "r2"
    assert gateway.arrive("held", path=EMBED, holder="r1") == []
    assert gateway.arrive("free", path=EMBED) == []
    gateway.first("b")
    assert gateway.end("b", tokens=1)[1].request.id == "free"
    gateway.first("a")
    assert gateway.end("a", tokens=1)[1].request.id == "held"


@pytest.mark.parametrize("state", [None, State.DEAD, State.STOPPED])
def test_a_holder_that_is_gone_is_an_answer_at_once_also_for_who_waits(state):
    gateway = Gateway(view("r1", slots=1), "r2")
    assert sent_to(gateway, "a", holder="r1") == "r1"
    assert gateway.arrive("held", path=EMBED, holder="r1") == []
    gone = [] if state is None else [replace(view("r1", 0.0), state=state)]
    actions = gateway.view(*gone, "r2")
    (lost,) = [one for one in actions if isinstance(one, Finish) and one.request_id == "held"]
    assert (lost.status, lost.code, lost.attempts) == (404, "response_lost", 0)
    (lost,) = gateway.arrive("later", path=EMBED, holder="r1")
    assert (lost.status, lost.code) == (404, "response_lost")


@pytest.mark.parametrize(("status", "code"), [(404, "response_lost"), (405, "path_not_served")])
def test_what_a_holder_does_not_keep_any_more_is_not_asked_again(status, code):
    gateway = Gateway("r1", "r2")
    assert sent_to(gateway, holder="r2") == "r2"
    assert not gateway.flow.expects_path("q1", 0, CHAT)
    (finish,) = lacks(gateway, status=status)
    assert (finish.status, finish.code, finish.attempts) == (status, code, 1)
    assert len(gateway.flow.lanes["m"].pool.absent.until) == 0
    assert gateway.candidate("r2").failures == 0


def test_a_holder_that_refuses_connections_keeps_nothing_and_is_charged_for_it():
    gateway = Gateway("r1", "r2")
    sent_to(gateway, holder="r2")
    finish = gateway.end(kind=Kind.REFUSED)[-1]
    assert (finish.status, finish.code, finish.attempts) == (404, "response_lost", 1)
    assert gateway.candidate("r2").breaker.state is BreakerState.OPEN


def test_a_stale_connection_to_a_holder_is_tried_again_at_the_same_one():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    sent_to(gateway, holder="r2")
    again = only(gateway.end(kind=Kind.STALE_SOCKET), Dispatch)
    assert (again.replica_id, again.attempt) == ("r2", 1)


def test_a_holder_that_is_out_is_waited_for_and_then_named():
    gateway = Gateway("r1", "r2", lane=lane(queue=QueueConfig(wait_interactive_s=30.0)))
    gateway.view(view("r1", 0.0), "r2")
    assert gateway.arrive(path=EMBED, holder="r1") == []
    actions = []
    for _ in range(31):
        actions += gateway.view(view("r1", 0.0), "r2") + gateway.wait(1.0)
    (finish,) = actions
    assert (finish.status, finish.code) == (503, "holder_unavailable")
    assert finish.retry_after_s > 0
    gateway.arrive("q2", path=EMBED, holder="r1")
    assert only(gateway.view("r1", "r2"), Dispatch).replica_id == "r1"
