"""Second attempts for requests whose first token is late."""

from flow_stage import (
    HEDGING,
    NO_BACKOFF,
    QUICK,
    TICK,
    Gateway,
    all_of,
    events,
    hedging,
    lane,
    last,
    only,
    shown,
    view,
)

from holdfast.core.failure import Kind
from holdfast.core.messages import Abort, Dispatch, Finish
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.types import SECOND


def test_a_late_request_gets_a_second_attempt_and_the_first_content_wins():
    gateway = hedging()
    first = only(gateway.arrive(), Dispatch)
    hedge = only(gateway.wait(0.2), Dispatch)
    assert (hedge.attempt, hedge.request.id) == (1, "q1")
    assert hedge.replica_id != first.replica_id
    abort = only(gateway.first(attempt=1), Abort)
    assert (abort.attempt, abort.replica_id) == (0, first.replica_id)
    assert abort.kind is Kind.SUPERSEDED
    finish = only(gateway.end(attempt=1), Finish)
    assert (finish.status, finish.attempts, finish.replica_id) == (200, 2, hedge.replica_id)
    assert "hedged" in events(finish)
    assert all(tally.failures == 0 for tally in gateway.tallies().values())


def test_the_first_attempt_may_still_win_and_then_its_hedge_is_called_back():
    gateway = hedging()
    gateway.arrive()
    hedge = only(gateway.wait(0.2), Dispatch)
    abort = only(gateway.first(attempt=0), Abort)
    assert (abort.attempt, abort.replica_id) == (1, hedge.replica_id)
    assert only(gateway.end(attempt=0), Finish).status == 200


def test_a_whole_answer_of_one_calls_the_other_back():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    abort, finish = gateway.end(attempt=1, tokens=5)
    assert (abort.attempt, finish.status) == (0, 200)


def test_an_attempt_that_fails_leaves_the_field_to_its_rival():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    assert gateway.end(attempt=0, kind=Kind.RESET) == []
    assert gateway.wait(1.0) == []
    gateway.first(attempt=1)
    assert only(gateway.end(attempt=1), Finish).status == 200


def test_when_both_fail_the_hedge_was_one_of_the_attempts():
    gateway = hedging()
    gateway.arrive()
    gateway.wait(0.2)
    gateway.end(attempt=0, kind=Kind.SERVER_ERROR)
    finish = only(gateway.end(attempt=1, kind=Kind.SERVER_ERROR), Finish)
    assert (finish.status, finish.attempts) == (502, 2)
    assert finish.reason == "server_error: all attempts used"


def test_a_request_answered_in_time_is_not_hedged():
    gateway = hedging()
    gateway.arrive()
    gateway.after(0.05).first()
    assert gateway.wait(5.0) == []


def test_nothing_is_hedged_before_the_usual_time_is_known():
    gateway = Gateway("r1", "r2", hedge=HEDGING)
    gateway.arrive()
    assert gateway.wait(5.0) == []


def test_what_must_not_run_twice_is_not_hedged():
    gateway = hedging()
    gateway.arrive(hedgeable=False)
    assert gateway.wait(5.0) == []


def test_hedging_is_off_unless_asked_for():
    gateway = hedging(hedge=HedgeConfig(samples_min=1))
    gateway.arrive()
    assert gateway.wait(5.0) == []


def test_nothing_is_hedged_while_others_wait():
    gateway = hedging(view("r1", slots=2), view("r2", slots=2))
    for n in range(5):
        gateway.arrive(f"q{n}")
    assert gateway.wait(1.0) == []
    gateway.first("q0")
    assert ("no hedge", "requests are queued") in [
        (what, why) for _, what, why in gateway.end("q0")[0].story
    ]


def test_nothing_is_hedged_at_high_utilisation():
    gateway = hedging(view("r1", slots=2), view("r2", slots=2))
    for n in range(3):
        gateway.arrive(f"q{n}")
    assert gateway.wait(1.0) == []
    told = only(gateway.end("q0"), Finish).story
    assert ("no hedge", "utilisation leaves no spare capacity") in [t[1:] for t in told]


def test_a_hedge_that_finds_no_other_replica_is_not_made():
    gateway = hedging("r1")
    gateway.arrive()
    assert gateway.wait(1.0) == []


def test_a_retried_request_is_not_hedged_on_top():
    gateway = hedging(retry=NO_BACKOFF)
    gateway.arrive()
    only(gateway.end(kind=Kind.RESET), Dispatch)
    assert gateway.wait(5.0) == []


def test_a_continuation_is_not_hedged():
    gateway = hedging()
    shown(gateway)
    only(gateway.end(kind=Kind.CUT, tokens=0), Dispatch)
    assert gateway.wait(5.0) == []


def test_the_room_of_a_loser_goes_to_those_who_wait():
    gateway = hedging(view("r1", slots=2), view("r2", slots=2))
    gateway.arrive("q1")
    only(gateway.wait(0.2), Dispatch)
    gateway.arrive("q2", hedgeable=False)
    gateway.arrive("q3", hedgeable=False)
    assert gateway.arrive("q4", hedgeable=False) == []
    abort, dispatch = gateway.first("q1", 1)
    assert abort.kind is Kind.SUPERSEDED
    assert (dispatch.request.id, dispatch.replica_id) == ("q4", abort.replica_id)


def test_a_rival_keeps_its_deadlines_when_the_other_attempt_times_out():
    five = [f"r{n}" for n in range(1, 6)]
    gateway = hedging(*five, lane=lane(deadlines=QUICK))
    gateway.arrive(deadline=gateway.now + 10 * SECOND)
    hedge = only(gateway.wait(0.2), Dispatch)
    abort = only(gateway.wait(1.9), Abort)
    assert (abort.attempt, abort.kind) == (0, Kind.FIRST_TOKEN_TIMEOUT)
    actions = gateway.wait(9.0)
    finish = last(actions, Finish)
    assert (finish.status, finish.attempts) == (504, 2)
    assert {a.replica_id for a in all_of(actions, Abort)} == {hedge.replica_id}


def test_rivals_that_time_out_together_end_together():
    nine = [f"r{n}" for n in range(1, 10)]
    gateway = hedging(*nine, lane=lane(deadlines=QUICK))
    gateway.arrive()
    gateway.after(1.99)
    only(gateway.tick()[:1], Dispatch)  # a tick that came late: the hedge starts now
    gateway.flow.lives["q1"].live[1].first_due = gateway.now + TICK
    actions = gateway.wait(0.1)
    assert [type(action) for action in actions] == [Abort, Abort, Finish]
