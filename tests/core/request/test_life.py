from random import Random

import pytest

from holdfast.core.failure import Kind
from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.life import (
    TRANSITIONS,
    Attempt,
    IllegalStepError,
    Life,
    Phase,
    Step,
    apart,
    died,
)
from holdfast.core.stats import PeakEwma
from holdfast.core.types import MILLISECOND, SECOND, Replica, Request

WAYS = {  # a shortest way into each phase
    Phase.NEW: (),
    Phase.QUEUED: (Step.ENQUEUE,),
    Phase.RUNNING: (Step.DISPATCH,),
    Phase.BACKING_OFF: (Step.DISPATCH, Step.BACK_OFF),
    Phase.STREAMING: (Step.DISPATCH, Step.CONTENT),
    Phase.DONE: (Step.FINISH,),
}


def life(*steps: Step) -> Life:
    subject = Life(Request("q1", "m", arrived=0), "m", 600 * SECOND)
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
    subject = life(*WAYS[phase])
    assert subject.phase is phase
    subject.step(step)
    assert subject.phase is TRANSITIONS[phase, step]


@pytest.mark.parametrize(
    ("phase", "step"),
    [(phase, step) for phase in Phase for step in Step if (phase, step) not in TRANSITIONS],
)
def test_a_step_that_the_phase_does_not_know_is_refused_and_changes_nothing(phase, step):
    subject = life(*WAYS[phase])
    with pytest.raises(IllegalStepError, match=f"cannot {step} while {phase}"):
        subject.step(step)
    assert subject.phase is phase


def test_every_phase_but_done_can_finish_and_done_is_final():
    assert [p for p in Phase if (p, Step.FINISH) not in TRANSITIONS] == [Phase.DONE]
    assert not any(phase is Phase.DONE for phase, _ in TRANSITIONS)


def test_content_is_shown_only_of_a_running_attempt():
    assert [phase for phase, step in TRANSITIONS if step is Step.CONTENT] == [Phase.RUNNING]


def test_a_streaming_request_never_backs_off_because_silence_would_look_like_an_end():
    assert (Phase.STREAMING, Step.BACK_OFF) not in TRANSITIONS


def test_an_illegal_step_tells_the_story_that_led_there():
    subject = life(Step.FINISH)
    subject.story += [(7, "queued", "m"), (9, "ok", "answered")]
    told = "request 'q1' cannot dispatch while done; story: 7 queued m; 9 ok answered"
    with pytest.raises(IllegalStepError, match=told):
        subject.step(Step.DISPATCH)


# --- what a life knows ---------------------------------------------------------------------------


def test_a_new_life_has_tried_nothing_and_shown_nothing():
    subject = life()
    assert subject.tried == ()
    assert subject.revision is None
    assert (subject.attempts, subject.made, subject.continued, subject.shown_tokens) == (0, 0, 0, 0)
    assert not subject.free_used


def test_a_live_attempt_is_found_by_its_number():
    subject = life()
    subject.live = [attempt(0), attempt(1)]
    assert subject.find(1) is subject.live[1]


def test_late_news_of_an_ended_attempt_finds_none():
    subject = life()
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
