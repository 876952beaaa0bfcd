"""Requests that are answered, in a stream or in one piece, or whose client leaves."""

import pytest
from flow_stage import HEDGING, PATIENT, QUICK, Gateway, full, hedging, lane, last, only, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Answered, Dispatch, Finish
from holdfast.core.request.deadlines import DeadlineConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import SECOND, nanos

# --- the plain case -------------------------------------------------------------------------------


def test_a_request_is_sent_shown_and_answered():
    gateway = Gateway("r1")
    dispatch = only(gateway.arrive(prompt_tokens=10), Dispatch)
    assert (dispatch.replica_id, dispatch.model, dispatch.attempt) == ("r1", "m", 0)
    assert (dispatch.request.id, dispatch.resume_tokens) == ("q1", 0)
    assert dispatch.reason == "next in turn"
    assert dispatch.silence_max == 30 * SECOND
    assert gateway.after(0.1).first() == []
    finish = only(gateway.after(1.0).end(tokens=20), Finish)
    assert (finish.status, finish.code, finish.replica_id) == (200, "ok", "r1")
    assert (finish.attempts, finish.continued, finish.shown) == (1, 0, True)
    assert finish.model == "m"
    assert gateway.flow.lives == {}


def test_an_answer_that_came_in_one_piece_needs_no_first_content():
    gateway = Gateway("r1")
    gateway.arrive()
    assert only(gateway.end(tokens=3), Finish).status == 200


def test_requests_are_spread_over_the_replicas():
    gateway = Gateway("r1", "r2", "r3")
    used = [only(gateway.arrive(f"q{n}"), Dispatch).replica_id for n in range(3)]
    assert sorted(used) == ["r1", "r2", "r3"]


def test_a_model_that_nobody_ever_served_is_not_found():
    finish = only(Gateway("r1").arrive(model="nobody"), Finish)
    assert (finish.status, finish.code, finish.attempts) == (404, "model_not_found", 0)


def test_an_id_that_is_under_way_is_refused_loudly():
    gateway = Gateway("r1")
    gateway.arrive()
    with pytest.raises(ValueError, match="'q1' is already under way"):
        gateway.arrive()


def test_models_have_lanes_of_their_own():
    config = {"lanes": {"other": lane(deadlines=QUICK)}}
    gateway = Gateway("r1", view("o1", model="other"), **config)
    assert only(gateway.arrive("q1"), Dispatch).silence_max == 30 * SECOND
    dispatch = only(gateway.arrive("q2", model="other"), Dispatch)
    assert (dispatch.replica_id, dispatch.silence_max) == ("o1", 2 * SECOND)


def test_the_same_events_cause_the_same_actions():
    def run() -> str:
        gateway = Gateway("r1", "r2", "r3", lane=LaneConfig(deadlines=QUICK), hedge=HEDGING)
        said = []
        for n in range(30):
            said += gateway.arrive(f"q{n}", prompt_tokens=n)
            said += gateway.after(0.05).first(f"q{n}") if n % 3 else []
            said += gateway.end(f"q{n}", 0, Kind.RESET if n % 4 == 0 else None, n)
            said += gateway.wait(0.3)
        return repr(said)

    assert run() == run()


# --- late and doubled news ------------------------------------------------------------------------


def test_news_of_requests_and_attempts_that_are_no_more_is_ignored():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    assert gateway.first("q1", 7) == []
    assert gateway.end("q1", 7) == []
    assert gateway.silent("q1", 7) == []
    gateway.end(tokens=1)
    for late in (gateway.first, gateway.end, gateway.silent, gateway.gone):
        assert late("q1") == []
        assert late("never") == []


def test_a_second_first_content_says_nothing_new():
    gateway = Gateway("r1")
    gateway.arrive()
    gateway.after(0.1).first()
    assert gateway.after(5.0).first() == []
    assert only(gateway.end(), Finish).status == 200


# --- answers in one piece -------------------------------------------------------------------------


def test_an_answer_in_one_piece_does_not_teach_how_long_a_first_token_takes():
    gateway = Gateway(lane=lane(deadlines=DeadlineConfig(answer_samples_min=100)))
    for number in range(300):
        gateway.serve(f"w{number}", took_s=0.2, whole=True, max_tokens=100)
    deadlines = gateway.flow.lanes["m"].deadlines
    assert deadlines.first_token_typical(0) is None
    assert deadlines.between_tokens(gateway.now) == nanos(PATIENT.between_tokens_s)


def test_a_whole_answer_may_take_as_long_as_the_request_until_their_time_is_learned():
    gateway = Gateway()
    only(gateway.arrive(whole=True, max_tokens=4_000), Dispatch)
    assert gateway.wait(300.0, every=SECOND) == []


def test_a_learned_wait_for_whole_answers_follows_how_long_they_may_grow():
    gateway = Gateway(lane=lane(deadlines=DeadlineConfig(answer_samples_min=100)))
    for number in range(300):
        gateway.serve(f"s{number}", took_s=0.1, whole=True, max_tokens=10)
        gateway.serve(f"l{number}", took_s=20.0, whole=True, max_tokens=4_000)
    answers = gateway.flow.lanes["m"].answers
    assert answers.first_token(10, None, gateway.now) == nanos(PATIENT.answer_floor_s)
    assert answers.first_token(4_000, None, gateway.now) > nanos(100.0)


def test_an_answer_in_one_piece_is_content_and_end_at_once():
    gateway = Gateway()
    only(gateway.arrive(whole=True), Dispatch)
    finish = only(gateway.after(0.2).tell(Answered("q1", 0, 7)), Finish)
    assert (finish.status, finish.replica_id) == (200, "r1")
    assert gateway.flow.lanes["m"].pool.inflight == 0
    assert gateway.candidate("r1").successes == 1
    assert gateway.candidate("r1").tokens == 7
    assert gateway.tell(Answered("q1", 0, 7)) == []
    assert gateway.flow.lives == {}


def test_a_whole_answer_of_a_hedge_calls_the_first_attempt_back():
    gateway = Gateway(hedge=HEDGING)
    for number in range(30):
        only(gateway.arrive(f"w{number}", whole=True), Dispatch)
        gateway.after(0.1).tell(Answered(f"w{number}", 0, 1))
    only(gateway.arrive("late", whole=True), Dispatch)
    hedged = [a for a in gateway.wait(12.0) if isinstance(a, Dispatch)]
    assert len(hedged) == 1
    abort, finish = gateway.tell(Answered("late", 1, 1))
    assert (abort.attempt, abort.kind) == (0, Kind.SUPERSEDED)
    assert finish.status == 200


# --- clients that leave ---------------------------------------------------------------------------


def test_a_client_that_leaves_takes_its_attempts_along():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    aborts, finish = (actions := gateway.gone())[:-1], actions[-1]
    assert {abort.attempt for abort in aborts} == {0, 1}
    assert {abort.kind for abort in aborts} == {Kind.CLIENT_GONE}
    assert (finish.status, finish.code) == (499, "client_gone")
    assert gateway.flow.lanes["m"].pool.inflight == 0
    assert all(tally.failures == 0 for tally in gateway.tallies().values())


def test_a_client_that_leaves_the_queue_is_never_sent():
    gateway = full()
    gateway.arrive("q2")
    assert only(gateway.gone("q2"), Finish).status == 499
    only(gateway.end("q1"), Finish)


def test_a_client_that_leaves_makes_room_for_those_who_wait():
    gateway = full()
    gateway.arrive("q2")
    abort, finish, dispatch = gateway.gone("q1")
    assert (abort.request_id, finish.request_id, dispatch.request.id) == ("q1", "q1", "q2")


def test_a_client_that_leaves_during_a_backoff_is_not_tried_again():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    gateway.end(kind=Kind.RESET)
    assert only(gateway.gone(), Finish).attempts == 1
    assert gateway.wait(1.0) == []


def test_a_failure_that_is_not_settled_yet_does_not_hold_the_body_of_its_request():
    gateway = Gateway("r1", retry=RetryConfig(attempts=1))
    only(gateway.arrive(content=b"a body"), Dispatch)
    last(gateway.after(0.1).end(kind=Kind.SERVER_ERROR), Finish)
    (charge,) = gateway.flow.lanes["m"]._ledger._charges
    assert charge.active.request.content == b""
    assert charge.failure.body is not None
