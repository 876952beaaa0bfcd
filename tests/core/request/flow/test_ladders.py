"""A worse answer beats no answer: single requests whose model has no place for them."""

import pytest
from flow_stage import START, Gateway, all_of, events, lane, last, only, out, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Abort, Dispatch, Ended, Finish, ReplicaHalted, Report
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.ladders.degrade import DegradeConfig, Dimension
from holdfast.core.types import MILLISECOND, SECOND, Halt, nanos

SMALL = view("s1", model="small", slots=8)


def big(share: float = 1.0, slots: int = 1):
    return view("b1", share, firm=not share, model="big", slots=slots)


def gateway_with(*views, queue: QueueConfig | None = None, **ladder) -> Gateway:
    config = DegradeConfig(ladder=("big", "small"), **ladder)
    return Gateway(*views, lane=lane(queue=queue or QueueConfig()), degrade=(config,))


def ask(gateway: Gateway, name: str = "q1", **kwargs) -> list:
    return gateway.arrive(name, model="big", **kwargs)


# --- the asked model is lost ---------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_a_model_without_a_replica_is_answered_for_from_the_first_request_on(whole):
    gateway = gateway_with(big(0.0), SMALL)
    dispatch = only(ask(gateway, whole=whole), Dispatch)
    assert (dispatch.model, dispatch.replica_id) == ("small", "s1")
    finish = only(gateway.end("q1"), Finish)
    assert (finish.status, finish.model) == (200, "small")
    story = (START, "degraded", "to small: no replica of big may be chosen")
    assert finish.story[0] == story


def test_a_request_at_the_replica_that_dies_goes_on_at_the_smaller_model():
    gateway = gateway_with(big(), SMALL)
    only(ask(gateway), Dispatch)
    actions = gateway.end("q1", kind=Kind.REFUSED)
    dispatch = last(actions, Dispatch)
    assert (dispatch.model, dispatch.attempt) == ("small", 1)


def test_a_request_that_is_caught_at_a_stalled_replica_is_moved_to_the_smaller_model():
    gateway = gateway_with(big(), SMALL)
    only(ask(gateway, whole=True, max_tokens=64), Dispatch)
    gateway.after(20.0)
    actions = gateway.tell(ReplicaHalted("big", "b1", Halt.STOPPED))
    assert only(all_of(actions, Abort), Abort).replica_id == "b1"
    assert only(all_of(actions, Dispatch), Dispatch).model == "small"
    finish = only(gateway.end("q1", attempt=1), Finish)
    assert (finish.status, finish.model) == (200, "small")


def test_a_request_that_waits_when_its_model_goes_moves_down_within_its_patience():
    gateway = gateway_with(big(), SMALL)
    only(ask(gateway, "first"), Dispatch)
    assert ask(gateway) == []
    gateway.view(out("b1", None, replica=big().replica), SMALL)
    moved = only(all_of(gateway.wait(2.1), Dispatch), Dispatch)
    assert (moved.request.id, moved.model) == ("q1", "small")


def test_where_the_smaller_model_is_full_too_it_is_waited_for_in_its_queue():
    gateway = gateway_with(big(0.0), view("s1", model="small", slots=1))
    only(ask(gateway, "first"), Dispatch)
    assert ask(gateway) == []
    assert len(gateway.flow.lanes["small"].queue) == 1
    assert len(gateway.flow.lanes["big"].queue) == 0
    (finish, dispatch) = gateway.end("first")
    assert (finish.request_id, dispatch.request.id) == ("first", "q1")


def test_whoever_was_moved_counts_as_demand_for_the_model_it_asked_for():
    gateway = gateway_with(big(0.0), SMALL)
    ask(gateway)
    gateway.wait(3.0)  # the ladder has moved everybody by now
    ask(gateway, "q2")
    assert gateway.flow.lanes["big"].answered_elsewhere == 2


def test_without_any_model_left_the_refusal_is_that_of_the_asked_one():
    gateway = gateway_with(big(0.0), view("s1", 0.0, firm=True, model="small"))
    assert ask(gateway) == []
    finish = only(all_of(gateway.wait(31.0), Finish), Finish)
    assert (finish.status, finish.code, finish.model) == (503, "no_ready_replica", "big")


def test_a_smaller_model_that_comes_back_answers_those_that_wait():
    gateway = gateway_with(big(0.0), view("s1", 0.0, firm=True, model="small"))
    assert ask(gateway) == []
    gateway.wait(5.0)
    gateway.view(big(0.0), SMALL)
    assert only(all_of(gateway.wait(0.6), Dispatch), Dispatch).model == "small"


def test_the_larger_model_answers_for_a_smaller_one_that_is_lost():
    gateway = gateway_with(big(slots=4), SMALL)
    for number in range(4):
        ask(gateway, f"f{number}")
    gateway.wait(9.0)  # saturated: everybody is sent to the smaller one
    gateway.end("f0")
    gateway.view(big(slots=4), view("s1", 0.0, firm=True, model="small"))
    dispatch = only(ask(gateway), Dispatch)
    assert dispatch.model == "big"


# --- the asked model has no room -----------------------------------------------------------------


def test_a_full_queue_sends_on_and_refuses_nobody():
    gateway = gateway_with(big(), SMALL, queue=QueueConfig(depth_max=1, batch_depth_max=1))
    only(ask(gateway, "first"), Dispatch)
    assert ask(gateway, "second") == []
    dispatch = only(ask(gateway, "third"), Dispatch)
    assert dispatch.model == "small"
    assert ("degraded", "to small: queue_full") in [
        step[1:] for step in gateway.flow.lives["third"].story
    ]


def test_a_request_waits_no_longer_than_its_patience_where_another_model_has_room():
    gateway = gateway_with(big(), SMALL, patience_s=1.0)
    only(ask(gateway, "first"), Dispatch)
    assert ask(gateway) == []
    assert all_of(gateway.wait(0.95), Dispatch) == []
    assert only(all_of(gateway.wait(0.1), Dispatch), Dispatch).model == "small"


def test_a_request_goes_on_waiting_where_no_model_has_room_and_takes_the_first_place():
    gateway = gateway_with(big(), view("s1", model="small", slots=1))
    gateway.arrive("other", model="small")
    only(ask(gateway, "first"), Dispatch)
    assert ask(gateway) == []
    assert all_of(gateway.wait(5.0), Dispatch) == []
    (_, dispatch) = gateway.end("first")
    assert (dispatch.request.id, dispatch.model) == ("q1", "big")


def test_where_latency_comes_first_the_whole_wait_is_waited_and_nobody_is_refused():
    order = (Dimension.LATENCY, Dimension.QUALITY)
    queue = QueueConfig(wait_interactive_s=10.0, wait_no_replica_s=10.0)
    gateway = gateway_with(big(), SMALL, order=order, queue=queue)
    only(ask(gateway, "first"), Dispatch)
    assert ask(gateway) == []
    assert all_of(gateway.wait(9.9), Dispatch) == []
    actions = gateway.wait(0.2)
    assert only(all_of(actions, Dispatch), Dispatch).model == "small"
    assert all_of(actions, Finish) == []


def test_where_latency_is_not_to_be_given_up_a_request_is_refused_after_its_patience():
    gateway = gateway_with(
        big(), view("s1", model="small", slots=1), order=(Dimension.QUALITY,), patience_s=1.0
    )
    gateway.arrive("other", model="small")
    only(ask(gateway, "first"), Dispatch)
    assert ask(gateway) == []
    finish = only(all_of(gateway.wait(1.1), Finish), Finish)
    assert (finish.status, finish.code) == (503, "queue_timeout")
    assert finish.retry_after_s > 0


# --- a failure, and a refusal of the smaller model -----------------------------------------------


def test_a_request_whose_attempts_all_failed_has_one_at_the_smaller_model():
    gateway = gateway_with(big(slots=4), SMALL)
    only(ask(gateway), Dispatch)
    gateway.end("q1", kind=Kind.SERVER_ERROR)
    again = only(all_of(gateway.wait(1.5), Dispatch), Dispatch)
    assert again.model == "big", "a retry under way goes before"
    moved = last(gateway.end("q1", attempt=1, kind=Kind.SERVER_ERROR), Dispatch)
    assert moved.model == "small"
    finish = last(gateway.end("q1", attempt=2, kind=Kind.SERVER_ERROR), Finish)
    assert (finish.status, finish.attempts) == (502, 3), "and no more"


def test_what_is_wrong_with_the_request_itself_is_not_asked_of_another_model():
    gateway = gateway_with(big(slots=4), SMALL)
    only(ask(gateway), Dispatch)
    finish = last(gateway.end("q1", kind=Kind.BAD_REQUEST), Finish)
    assert (finish.status, finish.attempts) == (400, 1)


def test_a_request_that_only_the_smaller_model_refuses_goes_back_and_waits():
    gateway = gateway_with(big(), SMALL, patience_s=1.0)
    only(ask(gateway, "first"), Dispatch)
    ask(gateway)
    only(all_of(gateway.wait(1.1), Dispatch), Dispatch)
    assert gateway.end("q1", kind=Kind.BAD_REQUEST) == [], "too long for it, say"
    assert all_of(gateway.wait(5.0), Dispatch) == []
    (_, dispatch) = gateway.end("first")
    assert (dispatch.request.id, dispatch.model) == ("q1", "big")
    assert only(gateway.end("q1", attempt=1), Finish).status == 200


def test_a_path_that_only_the_smaller_model_lacks_is_asked_of_the_larger_one():
    gateway = gateway_with(big(), SMALL, patience_s=1.0)
    only(ask(gateway, "first"), Dispatch)
    ask(gateway, path="/v1/responses")
    only(all_of(gateway.wait(1.1), Dispatch), Dispatch)
    assert gateway.tell(Ended("q1", 0, Kind.NOT_SERVED, status=404)) == []
    (_, dispatch) = gateway.end("first")
    assert (dispatch.request.id, dispatch.model) == ("q1", "big")


def test_failures_of_one_model_are_not_laid_to_the_request_by_the_word_of_another():
    gateway = gateway_with(big(slots=4), SMALL)
    only(ask(gateway), Dispatch)
    gateway.end("q1", kind=Kind.SERVER_ERROR)
    gateway.wait(1.5)
    gateway.end("q1", attempt=1, kind=Kind.SERVER_ERROR)
    assert gateway.flow.lives["q1"].charges == ()


# --- who is never moved --------------------------------------------------------------------------


def test_a_request_that_was_shown_content_is_not_moved_to_another_model():
    gateway = gateway_with(big(slots=4), SMALL)
    only(ask(gateway), Dispatch)
    gateway.after(0.1).first()
    gateway.view(big(0.0, slots=4), SMALL)
    finish = last(gateway.end("q1", kind=Kind.CUT, tokens=5), Finish)
    assert (finish.model, finish.shown) == ("big", True)
    assert "degraded" not in events(finish)


def test_a_request_that_forbids_it_waits_for_its_model():
    gateway = gateway_with(big(0.0), SMALL)
    assert ask(gateway, degradable=False) == []
    assert all_of(gateway.wait(29.0), Dispatch) == []
    assert only(all_of(gateway.wait(2.0), Finish), Finish).code == "no_ready_replica"


# --- many rounds ---------------------------------------------------------------------------------


def serve_for(gateway: Gateway, seconds_: float, rate: int, names) -> tuple[list, list]:
    """Requests at a rate, each answered within 100 ms; (models that answered, other finishes)."""
    answered, refused = [], []
    for _ in range(int(seconds_ * rate)):
        actions = ask(gateway, next(names))
        actions += gateway.wait(1.0 / rate, every=100 * MILLISECOND)
        for dispatch in all_of(actions, Dispatch):
            finish = last(
                gateway.end(dispatch.request.id, attempt=dispatch.attempt, tokens=3), Finish
            )
            answered.append((gateway.now, finish.model))
        refused += all_of(actions, Finish)
    return answered, refused


def test_ten_losses_in_a_row_refuse_nobody_and_do_not_flap():
    gateway = gateway_with(big(slots=8), SMALL)
    names = iter(f"q{number}" for number in range(10**6))
    for _ in range(10):
        gateway.view(big(0.0, slots=8), SMALL)
        lost_at = gateway.now
        answered, refused = serve_for(gateway, 20.0, 5, names)
        assert refused == []
        assert {model for _, model in answered} == {"small"}, "from the first one on"
        gateway.view(big(slots=8), SMALL)
        back_at = gateway.now
        answered, refused = serve_for(gateway, 130.0, 5, names)
        assert refused == []
        first = next(at for at, model in answered if model == "big")
        assert first - back_at <= nanos(60.0)
        assert {model for at, model in answered if at > back_at + nanos(120.0)} == {"big"}
        assert lost_at < back_at


def test_a_model_that_crashes_as_soon_as_it_is_back_is_left_alone_ever_longer():
    gateway = gateway_with(big(slots=8), SMALL)
    moves = []
    for _ in range(60 * 10):  # ready for two seconds of every ten
        gateway.view(big(0.0, slots=8), SMALL)
        moves += [r for r in gateway.wait(8.0, every=SECOND // 2) if isinstance(r, Report)]
        gateway.view(big(slots=8), SMALL)
        moves += [r for r in gateway.wait(2.0, every=SECOND // 2) if isinstance(r, Report)]
    hours = 60 * 10 * 10 / 3600
    assert len(moves) <= 2 * hours * 3600 / 120 + 16, "down and up once in hold_max_s at most"
