"""Attempts that fail before any content, and what is tried again."""

import pytest
from flow_stage import NO_BACKOFF, Gateway, all_of, lane, last, only, view

from holdfast.core.failure import MEANINGS, Kind
from holdfast.core.messages import Answered, Dispatch, Finish, FirstContent
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.breaker import BreakerState
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import SECOND


def test_a_failed_attempt_is_tried_again_elsewhere_after_a_short_wait():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    assert gateway.end(kind=Kind.SERVER_ERROR) == []
    again = only(gateway.wait(0.06), Dispatch)
    assert (again.replica_id, again.attempt, again.resume_tokens) == ("r2", 1, 0)
    finish = only(gateway.end(attempt=1), Finish)
    assert (finish.status, finish.attempts, finish.replica_id) == (200, 2, "r2")


def test_the_wait_before_a_retry_is_drawn_from_the_backoff():
    gateway = Gateway("r1", "r2", retry=RetryConfig(backoff_base_s=10.0, backoff_max_s=10.0))
    waits = []
    for n in range(6):
        gateway.arrive(f"q{n}")
        gateway.end(f"q{n}", kind=Kind.SERVER_ERROR)
        began = gateway.now
        while not all_of(gateway.tick(), Dispatch):
            gateway.after(0.01)
        waits.append(gateway.now - began)
        gateway.end(f"q{n}", 1)
    assert max(waits) <= 10.1 * SECOND
    assert max(waits) - min(waits) > SECOND


@pytest.mark.parametrize("kind", [k for k in Kind if MEANINGS[k].free])
def test_an_attempt_that_did_no_work_is_repeated_at_once_for_free_and_only_once(kind):
    gateway = Gateway("r1", "r2", "r3", "r4")
    gateway.arrive()
    first = last(gateway.end(kind=kind), Dispatch)
    assert first.attempt == 1
    assert not all_of(gateway.end(attempt=1, kind=kind), Dispatch)  # this one has its wait
    assert only(gateway.wait(0.06), Dispatch).attempt == 2
    finish = last(gateway.end(attempt=2, kind=kind), Finish)
    assert (finish.status, finish.attempts) == (502, 3)
    assert finish.reason == f"{kind.value}: all attempts used"


def test_attempts_are_capped_and_the_error_is_honest():
    gateway = Gateway("r1", "r2", "r3", retry=NO_BACKOFF)
    gateway.arrive()
    only(gateway.end(kind=Kind.SERVER_ERROR), Dispatch)
    finish = only(gateway.end(attempt=1, kind=Kind.SERVER_ERROR), Finish)
    assert (finish.status, finish.code, finish.attempts) == (502, "upstream_failed", 2)
    assert finish.reason == "server_error: all attempts used"
    assert not finish.shown


def test_a_spent_budget_ends_all_retrying():
    retry = RetryConfig(budget_ratio=0.0, budget_floor_per_s=0.1, backoff="none")
    gateway = Gateway("r1", "r2", retry=retry)  # one retry in ten seconds
    gateway.arrive("q1")
    gateway.arrive("q2")
    only(gateway.end("q1", kind=Kind.RESET), Dispatch)
    finish = only(gateway.end("q2", kind=Kind.RESET), Finish)
    assert (finish.status, finish.reason) == (502, "reset: retry budget spent")


def test_a_retry_that_would_come_after_the_deadline_is_not_made():
    gateway = Gateway("r1", "r2")
    gateway.arrive(deadline=gateway.now + SECOND)
    finish = only(gateway.after(1.0).end(kind=Kind.RESET), Finish)
    assert finish.reason == "reset: no time left before the deadline"


def test_a_clients_own_mistake_is_passed_on_and_not_repeated():
    gateway = Gateway("r1", "r2")
    gateway.arrive()
    finish = only(gateway.end(kind=Kind.BAD_REQUEST), Finish)
    assert (finish.status, finish.code) == (400, "bad_request")
    assert gateway.tallies() == {}


def test_a_retry_uses_a_tried_replica_when_there_is_no_other():
    gateway = Gateway("r1", retry=NO_BACKOFF)
    gateway.arrive()
    again = only(gateway.end(kind=Kind.RESET), Dispatch)
    assert (again.replica_id, again.attempt) == ("r1", 1)


def test_a_retry_waits_in_the_queue_while_the_others_are_full():
    gateway = Gateway(view("r1", slots=1), view("r2", slots=1), retry=NO_BACKOFF)
    for name in ("q1", "q2", "q3"):
        gateway.arrive(name)
    # r1 is free again but goes to q3, who came first; q1 finds r2 when q2 is done
    assert only(gateway.end("q1", kind=Kind.RESET), Dispatch).request.id == "q3"
    finish, again = gateway.end("q2")
    assert finish.request_id == "q2"
    assert (again.request.id, again.replica_id, again.attempt) == ("q1", "r2", 1)


def test_a_retry_that_finds_the_queue_full_is_shed():
    gateway = Gateway(
        view("r1", slots=1),
        view("r2", slots=1),
        retry=NO_BACKOFF,
        lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)),
    )
    for name in ("q1", "q2", "q3"):
        gateway.arrive(name)
    finish, dispatch = gateway.end("q1", kind=Kind.RESET)
    assert (finish.request_id, finish.code) == ("q1", "queue_full")
    assert dispatch.request.id == "q3"


def test_a_retry_may_push_out_a_request_that_is_due_at_the_same_tick():
    gateway = Gateway(
        view("r1", slots=1),
        view("r2", slots=1),
        lane=lane(queue=QueueConfig(depth_max=1, batch_depth_max=1)),
    )
    for name in ("q1", "q2", "q3"):
        gateway.arrive(name)
    assert only(gateway.end("q1", kind=Kind.RESET), Dispatch).request.id == "q3"
    gateway.arrive("q4", deadline=gateway.now + SECOND // 10)
    finish = only(gateway.wait(0.2, every=SECOND), Finish)  # q1 comes back, q4 is over
    assert (finish.request_id, finish.code) == ("q4", "deadline_exceeded")
    assert last(gateway.end("q2"), Dispatch).request.id == "q1"


def test_backpressure_is_retried_elsewhere_and_held_against_nobody():
    gateway = Gateway("r1", "r2", retry=RetryConfig(backoff="none", budget=False))
    for n in range(12):
        gateway.arrive(f"q{n}")
        again = only(gateway.end(f"q{n}", kind=Kind.OVERLOADED), Dispatch)
        gateway.end(f"q{n}", again.attempt)
    assert gateway.candidate("r1").breaker.state == "closed"
    tallies = gateway.tallies().values()
    assert sum(tally.backpressure for tally in tallies) == 12
    assert sum(tally.failures for tally in tallies) == 0


def test_an_overloaded_fleet_is_503_and_does_not_blame_the_caller():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.arrive()
    gateway.end(kind=Kind.OVERLOADED)
    assert only(gateway.end(attempt=1, kind=Kind.OVERLOADED), Finish).status == 503


@pytest.mark.parametrize("kind", Kind)
def test_after_an_ending_of_any_kind_the_slots_are_free(kind):
    gateway = Gateway("r1", "r2", "r3", "r4", retry=NO_BACKOFF)
    gateway.arrive(prompt_tokens=100, max_tokens=50)
    attempt = 0
    while gateway.flow.lives:
        gateway.end(attempt=attempt, kind=kind)
        attempt += 1
    pool = gateway.flow.lanes["m"].pool
    assert pool.inflight == 0
    assert {c.inflight for c in pool.candidates.values()} == {0}
    assert {c.own_tokens for c in pool.candidates.values()} == {0}
    assert attempt <= 3


# --- what two replicas say alike ------------------------------------------------------------------


def test_two_answers_without_a_word_are_the_answer_and_name_the_replica_that_gave_it():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.arrive()
    only(gateway.end(kind=Kind.EMPTY), Dispatch)
    finish = only(gateway.end(attempt=1, kind=Kind.EMPTY), Finish)
    assert (finish.status, finish.code, finish.replica_id) == (200, "ok", "r2")
    assert finish.story[-1][1:] == ("ok", "two replicas answered without a word")
    told = gateway.tallies()
    assert [told[name].failures for name in ("r1", "r2")] == [0, 0]


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (Kind.EMPTY, Kind.SERVER_ERROR, "upstream_failed"),
        (Kind.SERVER_ERROR, Kind.EMPTY, "upstream_failed"),
        (Kind.EMPTY, Kind.DEADLINE, "deadline_exceeded"),
    ],
)
def test_one_answer_without_a_word_is_a_failure(first, second, code):
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.arrive()
    only(gateway.end(kind=first), Dispatch)
    finish = last(gateway.end(attempt=1, kind=second), Finish)
    assert (finish.code, finish.replica_id) == (code, "")
    assert finish.status >= 500


def repeated(gateway: Gateway, name: str, shape: str, *, alike: bool) -> Finish:
    """A request whose first answer was rejected as one token over and over."""
    dispatch = only(gateway.arrive(name, whole=shape == "whole", content=b"ha"), Dispatch)
    assert dispatch.attempt == 0
    only(gateway.after(0.1).end(name, kind=Kind.DEGENERATE), Dispatch)
    if shape == "whole":
        return last(gateway.after(0.1).tell(Answered(name, 1, 20, alike=alike)), Finish)
    gateway.after(0.1).tell(FirstContent(name, 1, alike))
    return last(gateway.end(name, 1, tokens=20), Finish)


@pytest.mark.parametrize("shape", ["whole", "stream"])
def test_a_repetition_that_another_replica_gives_as_well_is_the_requests_own(shape):
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    for number in range(30):
        assert repeated(gateway, f"q{number}", shape, alike=True).status == 200
    states = {gateway.candidate(name).breaker.state for name in ("r1", "r2")}
    assert states == {BreakerState.CLOSED}
    assert sum(tally.failures for tally in gateway.tallies().values()) == 0


@pytest.mark.parametrize("shape", ["whole", "stream"])
def test_a_repetition_that_another_replica_does_not_give_is_the_replicas_own(shape):
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    repeated(gateway, "q", shape, alike=False)
    told = gateway.tallies()
    assert [told[name].failures for name in ("r1", "r2")] == [1, 0]
