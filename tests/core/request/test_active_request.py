from random import Random

import pytest

from holdfast.core.failure import Kind
from holdfast.core.request.active_request import (
    TRANSITIONS,
    ActiveRequest,
    Attempt,
    IllegalStepError,
    RequestPhase,
    RequestStep,
    apart,
    died,
)
from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.stats import PeakEwma
from holdfast.core.types import MILLISECOND, SECOND, Replica, Request

WAYS = {  # a shortest way into each phase
    RequestPhase.NEW: (),
    RequestPhase.QUEUED: (RequestStep.ENQUEUE,),
    RequestPhase.RUNNING: (RequestStep.DISPATCH,),
    RequestPhase.BACKING_OFF: (RequestStep.DISPATCH, RequestStep.BACK_OFF),
    RequestPhase.STREAMING: (RequestStep.DISPATCH, RequestStep.CONTENT),
    RequestPhase.DONE: (RequestStep.FINISH,),
}


def active(*steps: RequestStep) -> ActiveRequest:
    subject = ActiveRequest(Request("q1", "m", arrived=0), "m", 600 * SECOND)
    for step in steps:
        subject.step(step)
    return subject


def attempt(number: int) -> Attempt:
    replica = Replica(f"r{number}", "m")
    candidate = Candidate(replica, Breaker(BreakerConfig(), Random(1)), PeakEwma())
    return Attempt(number, candidate, 5, 60 * SECOND, trial=False)


# --- the table of phases -------------------------------------------------------------------------


@pytest.mark.parametrize(("phase", "step"), TRANSITIONS)
def test_a_step_of_the_table_leads_where_the_table_says(phase, step):
    subject = active(*WAYS[phase])
    assert subject.phase is phase
    subject.step(step)
    assert subject.phase is TRANSITIONS[phase, step]


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        (phase, step)
        for phase in RequestPhase
        for step in RequestStep
        if (phase, step) not in TRANSITIONS
    ],
)
def test_a_step_that_the_phase_does_not_know_is_refused_and_changes_nothing(phase, step):
    subject = active(*WAYS[phase])
    with pytest.raises(IllegalStepError, match=f"cannot {step} while {phase}"):
        subject.step(step)
    assert subject.phase is phase


def test_every_phase_but_done_can_finish_and_done_is_final():
    assert [p for p in RequestPhase if (p, RequestStep.FINISH) not in TRANSITIONS] == [
        RequestPhase.DONE
    ]
    assert not any(phase is RequestPhase.DONE for phase, _ in TRANSITIONS)


def test_content_is_shown_only_of_a_running_attempt():
    assert [phase for phase, step in TRANSITIONS if step is RequestStep.CONTENT] == [
        RequestPhase.RUNNING
    ]


def test_a_streaming_request_never_backs_off_because_silence_would_look_like_an_end():
    assert (RequestPhase.STREAMING, RequestStep.BACK_OFF) not in TRANSITIONS


def test_an_illegal_step_tells_the_story_that_led_there():
    subject = active(RequestStep.FINISH)
    subject.story += [(7, "queued", "m"), (9, "ok", "answered")]
    told = "request 'q1' cannot dispatch while done; story: 7 queued m; 9 ok answered"
    with pytest.raises(IllegalStepError, match=told):
        subject.step(RequestStep.DISPATCH)


# --- what an active request knows ---------------------------------------------------------------


def test_a_new_life_has_tried_nothing_and_shown_nothing():
    subject = active()
    assert subject.tried == ()
    assert subject.revision is None
    assert (subject.attempts, subject.made, subject.continued, subject.shown_tokens) == (0, 0, 0, 0)
    assert not subject.free_used


def test_a_live_attempt_is_found_by_its_number():
    subject = active()
    subject.live = [attempt(0), attempt(1)]
    assert subject.find(1) is subject.live[1]


def test_late_news_of_an_ended_attempt_finds_none():
    subject = active()
    subject.live = [attempt(1)]
    assert subject.find(0) is None


def test_a_new_attempt_has_shown_no_content_yet():
    subject = attempt(3)
    assert (subject.number, subject.first_at, subject.tokens) == (3, 0, 0)
    assert subject.candidate.id == "r3"


# --- deaths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_only_a_lost_connection_is_a_death(kind):
    assert died(kind, SECOND) is (kind in {Kind.RESET, Kind.STALE_SOCKET})
    assert died(kind, MILLISECOND) is (kind is Kind.RESET)


def test_deaths_at_the_same_time_are_one():
    assert apart(0, SECOND)
    assert apart(SECOND, SECOND + 21 * MILLISECOND)
    assert not apart(SECOND, SECOND + 20 * MILLISECOND)
