"""Streams that break after content was shown, and where they go on."""

from flow_stage import NO_BACKOFF, Gateway, lane, last, only, shown, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Dispatch, Finish
from holdfast.core.request.failover import FailoverConfig
from holdfast.core.request.retry import RetryConfig


def test_a_broken_stream_is_continued_elsewhere_from_where_the_client_is():
    gateway = Gateway("r1", "r2")
    shown(gateway)
    again = only(gateway.end(kind=Kind.CUT, tokens=7), Dispatch)
    assert (again.replica_id, again.attempt, again.resume_tokens) == ("r2", 1, 7)
    gateway.after(0.1).first(attempt=1)
    finish = only(gateway.end(attempt=1, tokens=5), Finish)
    assert (finish.status, finish.continued, finish.attempts) == (200, 1, 2)
    assert finish.shown


def test_tokens_of_several_continuations_add_up():
    gateway = Gateway("r1", "r2", "r3")
    shown(gateway)
    gateway.end(kind=Kind.CUT, tokens=7)
    gateway.first(attempt=1)
    again = only(gateway.end(attempt=1, kind=Kind.RESET, tokens=4), Dispatch)
    assert (again.resume_tokens, again.replica_id) == (11, "r3")


def test_a_stream_of_which_no_count_is_known_is_still_continued_and_never_started_again():
    gateway = Gateway("r1", "r2", "r3")
    shown(gateway)
    again = only(gateway.end(kind=Kind.CUT, tokens=0), Dispatch)
    assert again.resume_tokens > 0
    again = last(gateway.end(attempt=1, kind=Kind.REFUSED), Dispatch)
    assert again.resume_tokens > 0
    assert only(gateway.end(attempt=2), Finish).continued == 2


def test_a_continuation_that_fails_before_its_content_costs_a_continuation_too():
    gateway = Gateway("r1", "r2", "r3", "r4")
    shown(gateway)
    gateway.end(kind=Kind.CUT, tokens=7)
    again = last(gateway.end(attempt=1, kind=Kind.REFUSED), Dispatch)
    assert again.resume_tokens == 7
    finish = last(gateway.end(attempt=2, kind=Kind.REFUSED), Finish)
    assert (finish.continued, finish.shown) == (2, True)
    assert finish.reason == "refused: all continuations used"


def test_a_continuation_costs_retry_budget():
    gateway = Gateway("r1", "r2", retry=RetryConfig(budget_ratio=0.0, budget_floor_per_s=0.0))
    shown(gateway)
    finish = only(gateway.end(kind=Kind.CUT, tokens=7), Finish)
    assert (finish.status, finish.reason) == (502, "cut: retry budget spent")


def test_a_stream_that_cannot_be_continued_ends_with_an_honest_error():
    gateway = Gateway("r1", "r2")
    shown(gateway, continuable=False)
    finish = only(gateway.end(kind=Kind.CUT, tokens=7), Finish)
    assert (finish.status, finish.shown, finish.continued) == (502, True, 0)
    assert finish.reason == "cut: this answer cannot be continued"


def test_a_stream_that_cannot_be_continued_is_retried_while_nothing_was_shown():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.arrive(continuable=False)
    assert only(gateway.end(kind=Kind.RESET), Dispatch).resume_tokens == 0


def test_an_error_that_no_replica_can_mend_ends_a_stream_too():
    gateway = Gateway("r1", "r2", "r3")
    shown(gateway)
    gateway.end(kind=Kind.CUT, tokens=7)
    finish = only(gateway.end(attempt=1, kind=Kind.BAD_REQUEST), Finish)
    assert (finish.status, finish.code, finish.shown) == (400, "bad_request", True)


def test_a_continuation_never_crosses_a_revision():
    both = lane(failover=FailoverConfig(allowed_revisions=("1", "2")))
    gateway = Gateway(view("r1"), view("r2", revision="2"), lane=both)
    assert shown(gateway).replica_id == "r1"
    gateway.view(view("r2", revision="2"))  # r1 left
    finish = only(gateway.end(kind=Kind.RESET, tokens=3), Finish)
    assert (finish.status, finish.code, finish.shown) == (502, "upstream_failed", True)
    assert finish.reason == "cut: no replica of revision 1 is left to continue it"


def test_a_retry_without_content_is_bound_to_no_revision():
    both = lane(failover=FailoverConfig(allowed_revisions=("1", "2")))
    gateway = Gateway(view("r1"), view("r2", revision="2"), lane=both, retry=NO_BACKOFF)
    gateway.arrive()
    assert only(gateway.end(kind=Kind.RESET), Dispatch).replica_id == "r2"


def test_a_continuation_waits_for_a_replica_of_its_revision_that_is_full():
    gateway = Gateway(view("r1", slots=1), view("r2", slots=1))
    assert shown(gateway).replica_id == "r1"
    gateway.arrive("q2")
    gateway.view(view("r2", slots=1))
    assert gateway.end("q1", kind=Kind.RESET, tokens=3) == []
    finish, again = gateway.end("q2")
    assert (finish.request_id, again.request.id) == ("q2", "q1")
    assert (again.replica_id, again.resume_tokens) == ("r2", 3)


def test_a_waiting_continuation_whose_revision_has_no_room_is_told_so():
    both = lane(failover=FailoverConfig(allowed_revisions=("1", "2")))
    views = view("r1", slots=1), view("r2", slots=1, revision="2"), view("r3", slots=1)
    gateway = Gateway(*views, lane=both)
    for name in ("q1", "q2", "q3"):
        gateway.arrive(name)
    gateway.first("q1")
    gateway.view(*views[1:])
    assert gateway.end("q1", kind=Kind.RESET, tokens=3) == []  # r3 has its revision and is full
    done, finish = gateway.end("q2")
    assert done.request_id == "q2"
    assert (finish.request_id, finish.status, finish.shown) == ("q1", 503, True)
    assert finish.reason == "overloaded: no replica that may serve it has room"


def test_an_attempt_taken_off_a_draining_replica_goes_on_elsewhere():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    shown(gateway)
    gateway.arrive("q2")
    moved = only(gateway.end("q1", kind=Kind.DRAINED, tokens=9), Dispatch)
    assert (moved.replica_id, moved.resume_tokens) == ("r2", 9)
    again = only(gateway.end("q2", kind=Kind.DRAINED), Dispatch)
    assert again.resume_tokens == 0
    assert all(tally.failures == 0 for tally in gateway.tallies().values())
