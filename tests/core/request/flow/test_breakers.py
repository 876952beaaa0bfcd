"""Breakers and trials, and whose fault a failure was."""

from dataclasses import replace

import pytest
from flow_stage import NO_BACKOFF, Gateway, only, view

from holdfast.core.failure import Kind
from holdfast.core.messages import Answered, Dispatch, Finish, FirstContent, Report, ReportCode
from holdfast.core.request.pool import TRIAL_REASON
from holdfast.core.request.retry import RetryConfig

# --- breakers and trials --------------------------------------------------------------------------


def refused(gateway: Gateway, request_id: str = "q0") -> None:
    """r1 refuses a connection: its breaker opens for one second."""
    assert only(gateway.arrive(request_id), Dispatch).replica_id == "r1"
    report, again = gateway.end(request_id, kind=Kind.REFUSED)
    assert (report.what, report.replica_id, report.reason) == ("open", "r1", "connection refused")
    assert again.replica_id == "r2"
    gateway.end(request_id, 1)


def test_a_replica_whose_breaker_is_open_gets_nothing_until_its_cooldown_is_over():
    gateway = Gateway("r1", "r2")
    refused(gateway)
    for n in range(1, 5):
        assert only(gateway.arrive(f"q{n}"), Dispatch).replica_id == "r2"
        gateway.end(f"q{n}")


def test_exactly_one_request_is_the_trial_and_its_first_content_closes_the_breaker():
    gateway = Gateway("r1", "r2")
    refused(gateway)
    gateway.after(1.0)
    trial = only(gateway.arrive("q1"), Dispatch)
    assert (trial.replica_id, trial.reason) == ("r1", TRIAL_REASON)
    assert {only(gateway.arrive(f"o{n}"), Dispatch).replica_id for n in range(3)} == {"r2"}
    report = only(gateway.first("q1"), Report)
    assert (report.what, report.reason) == ("closed", "trial succeeded")
    assert {only(gateway.arrive(f"p{n}"), Dispatch).replica_id for n in range(4)} == {"r1", "r2"}


def test_those_who_wait_get_the_room_of_a_replica_whose_trial_passed():
    gateway = Gateway(view("r1", slots=2), view("r2", slots=1))
    refused(gateway)
    gateway.after(1.0)
    assert only(gateway.arrive("q1"), Dispatch).replica_id == "r1"
    assert only(gateway.arrive("q2"), Dispatch).replica_id == "r2"
    assert gateway.arrive("q3") == []
    report, dispatch = gateway.first("q1")
    assert report.what == "closed"
    assert (dispatch.request.id, dispatch.replica_id) == ("q3", "r1")


def test_a_failed_trial_opens_the_breaker_for_longer():
    gateway = Gateway("r1", "r2")
    refused(gateway)
    gateway.after(1.0).arrive("q1")
    report = gateway.end("q1", kind=Kind.RESET)[0]
    assert (report.what, report.reason) == ("open", "trial failed")
    gateway.wait(1.9)
    assert only(gateway.arrive("q2"), Dispatch).replica_id == "r2"
    assert only(gateway.after(0.2).arrive("q3"), Dispatch).replica_id == "r1"


def test_a_retried_request_is_never_the_trial():
    gateway = Gateway("r1", "r2", "r3", retry=NO_BACKOFF)
    refused(gateway)
    first = only(gateway.arrive("q1"), Dispatch)
    again = only(gateway.after(1.0).end("q1", kind=Kind.RESET), Dispatch)
    assert {first.replica_id, again.replica_id} == {"r2", "r3"}
    assert again.reason != TRIAL_REASON


def test_a_trial_whose_client_left_goes_to_the_next_request():
    gateway = Gateway("r1", "r2")
    refused(gateway)
    gateway.after(1.0).arrive("q1")
    gateway.gone("q1")
    assert only(gateway.arrive("q2"), Dispatch).reason == TRIAL_REASON


# --- whose fault a failure was --------------------------------------------------------------------


def test_a_request_that_fails_everywhere_opens_no_breaker_and_is_told_as_its_own():
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    for number in range(12):
        gateway.arrive(f"q{number}")
        gateway.end(f"q{number}", 0, Kind.SERVER_ERROR)
        finish = gateway.end(f"q{number}", 1, Kind.SERVER_ERROR)
        assert [type(action) for action in finish] == [Finish]
    tallies = gateway.tallies()
    assert {name: (t.failures, t.withdrawn) for name, t in tallies.items()} == {
        "r1": (0, 12),
        "r2": (0, 12),
    }
    assert only(gateway.arrive("last"), Dispatch)
    assert {report.replica_id for report in gateway.doubts} == {"r1", "r2"}


@pytest.mark.parametrize("whole", [True, False])
def test_failures_of_a_request_that_another_replica_answers_open_the_breaker(whole):
    gateway = Gateway("r1", "r2", retry=NO_BACKOFF)
    gateway.candidate("r2").weight = 0.0  # every request begins at r1
    opened = []
    for number in range(5):
        name = f"q{number}"
        gateway.flow.lanes["m"].pool.changed(gateway.now)
        (dispatch,) = gateway.arrive(name, whole=whole, content=b"the same")
        assert dispatch.replica_id == "r1"
        gateway.candidate("r2").weight = 1.0
        gateway.flow.lanes["m"].pool.changed(gateway.now)
        opened += gateway.end(name, 0, Kind.SERVER_ERROR)
        answer = Answered(name, 1, 3) if whole else FirstContent(name, 1)
        opened += gateway.tell(answer)
        if not whole:
            gateway.end(name, 1, tokens=3)
        gateway.candidate("r2").weight = 0.0
    (report,) = [action for action in opened if isinstance(action, Report)]
    assert (report.what, report.replica_id, report.reason) == ("open", "r1", "5 failures in a row")


def test_a_pool_that_overrules_a_breaker_says_so_every_second():
    gateway = Gateway("r1", retry=RetryConfig(attempts=1))
    for number in range(5):
        gateway.arrive(f"q{number}")
        gateway.end(f"q{number}", kind=Kind.SERVER_ERROR)
    assert only(gateway.arrive("next"), Dispatch).replica_id == "r1"
    for _ in range(2):
        reports = [a for a in gateway.after(1.0).tick() if isinstance(a, Report)]
        assert [(r.what, r.replica_id) for r in reports] == [(ReportCode.OVERRULED, "r1")]


def test_those_who_wait_are_the_trial_as_soon_as_a_canary_was_answered():
    gateway = Gateway(view("r1", slots=1), view("r2", slots=1))
    refused(gateway)
    shut = replace(view("r1", slots=1), may_try=False)
    gateway.view(shut, view("r2", slots=1))
    assert only(gateway.arrive("q1"), Dispatch).replica_id == "r2"
    assert gateway.arrive("q2") == []
    assert gateway.wait(5.0) == []  # its cooldown was over after one
    dispatch = only(gateway.view(view("r1", slots=1), view("r2", slots=1)), Dispatch)
    assert (dispatch.request.id, dispatch.replica_id, dispatch.reason) == (
        *("q2", "r1"),
        TRIAL_REASON,
    )
