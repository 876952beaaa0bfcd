from random import Random

import pytest

from holdfast.core.failure import Kind, Outcome
from holdfast.core.messages import ReplicaView, ReportCode
from holdfast.core.request.active_request import ActiveRequest, IllegalStepError, RequestStep
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.admission.refusals import Refusal, queue_full
from holdfast.core.request.admission_desk import ERROR_DEFAULT, ERRORS, AdmissionDesk
from holdfast.core.request.degrade import DegradeConfig
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.lane import Lane, LaneConfig
from holdfast.core.request.timer_wheel import TimerWheel
from holdfast.core.types import MILLISECOND, SECOND, Priority, Replica, Request, State

WHOLE = 600 * SECOND
LADDER = DegradeConfig(ladder=("big", "small"), step_s=1.0, hold_s=2.0, share_step=1.0)


def desk(quotas: dict[str, QuotaConfig] | None = None, *ladders: DegradeConfig) -> AdmissionDesk:
    return AdmissionDesk(FlowConfig(quotas=quotas or {}, degrade=ladders), Random, TimerWheel())


def request(request_id: str = "q1", model: str = "m", **kwargs: object) -> Request:
    return Request(request_id, model, **{"arrived": 0, **kwargs})


def lane(model: str, *replicas: str, slots: int = 2, **config: object) -> Lane:
    subject = Lane(model, LaneConfig(routing="round_robin", **config), {}, Random)
    views = [ReplicaView(Replica(name, model, slots=slots), State.READY, 1.0) for name in replicas]
    subject.pool.apply(views, 0)
    return subject


def occupy(subject: Lane, attempts: int, now: int = 0) -> list[tuple[ActiveRequest, object]]:
    opened = []
    for number in range(attempts):
        active = ActiveRequest(
            request(f"{subject.model}{number}", subject.model, arrived=now), "m", WHOLE
        )
        choice = subject.pool.choose(active.request, (), now)
        assert choice is not None
        opened.append((active, subject.open(active, choice[0], now)))
    return opened


# --- opening -------------------------------------------------------------------------------------


def test_a_request_without_a_deadline_gets_that_of_the_whole_request():
    active = desk().open(request(), 5)
    assert active.deadline == 5 + WHOLE


def test_a_batch_request_has_its_hour_in_the_queue_on_top():
    active = desk().open(request(priority=Priority.BATCH), 5)
    assert active.deadline == 5 + WHOLE + 3600 * SECOND


def test_a_requests_own_deadline_holds():
    assert desk().open(request(deadline=7 * SECOND), 5).deadline == 7 * SECOND


def test_an_open_request_is_found_by_its_id():
    subject = desk()
    active = subject.open(request(), 0)
    assert subject.requests == {"q1": active}


def test_an_id_that_is_under_way_is_refused_by_name():
    subject = desk()
    subject.open(request(), 0)
    with pytest.raises(ValueError, match="request id 'q1' is already under way"):
        subject.open(request(), 1)


def test_an_id_may_come_again_once_its_first_life_is_over():
    subject = desk()
    subject.finish(subject.open(request(), 0), 200, "ok", "answered", 1)
    assert subject.open(request(), 2).phase == "new"


# --- the one answer ------------------------------------------------------------------------------


def test_the_answer_carries_everything_a_driver_has_to_tell():
    subject = desk()
    active = subject.open(request(), 0)
    active.step(RequestStep.DISPATCH)
    active.attempts, active.continued, active.revision = 3, 1, "2"
    active.story.append((1, "next in turn", "r1"))
    finish = subject.finish(active, 200, "ok", "answered", 9, "r1")
    assert (finish.request_id, finish.status, finish.code) == ("q1", 200, "ok")
    assert (finish.attempts, finish.continued, finish.replica_id) == (3, 1, "r1")
    assert (finish.model, finish.shown, finish.retry_after_s) == ("m", True, 0.0)
    assert finish.story == [(1, "next in turn", "r1"), (9, "ok", "answered")]
    assert subject.requests == {}


def test_an_answer_of_which_nothing_was_shown_says_so():
    subject = desk()
    assert not subject.finish(subject.open(request(), 0), 404, "model_not_found", "", 0).shown


def test_a_request_cannot_be_answered_twice():
    subject = desk()
    active = subject.open(request(), 0)
    subject.finish(active, 200, "ok", "answered", 1)
    with pytest.raises(IllegalStepError, match="cannot finish while done"):
        subject.finish(active, 200, "ok", "answered", 2)


def test_a_finished_request_has_no_timer_left():
    wheel: TimerWheel[ActiveRequest] = TimerWheel()
    subject = AdmissionDesk(FlowConfig(), Random, wheel)
    active = subject.open(request(), 0)
    active.due = 5 * SECOND
    wheel.file(active)
    subject.finish(active, 200, "ok", "answered", 1)
    assert len(wheel) == 0


@pytest.mark.parametrize("kind", Kind)
def test_every_failure_has_an_honest_status_and_names_its_kind(kind):
    subject = desk()
    finish = subject.fail(subject.open(request(), 0), kind, "nothing helped", 1)
    assert (finish.status, finish.code) == ERRORS.get(kind, ERROR_DEFAULT)
    assert finish.reason == f"{kind.value}: nothing helped"
    assert finish.status >= 400


def test_only_a_clients_own_mistake_is_blamed_on_the_client():
    blamed = [kind for kind, (status, _) in ERRORS.items() if 400 <= status < 499]
    assert blamed == [Kind.BAD_REQUEST]


def test_an_overload_of_ours_is_503_and_a_wait_in_vain_504():
    assert ERRORS[Kind.OVERLOADED][0] == 503
    for kind in (Kind.FIRST_TOKEN_TIMEOUT, Kind.BETWEEN_TOKENS_TIMEOUT, Kind.DEADLINE):
        assert ERRORS[kind][0] == 504


def test_a_refusal_says_when_to_come_back():
    subject = desk()
    active = subject.open(request(), 0)
    finish = subject.shed(active, queue_full("depth", 30, 10.0), 1)
    assert (finish.status, finish.code, finish.retry_after_s) == (503, "queue_full", 3.0)
    assert finish.reason == "the queue is full: depth"
    assert finish.attempts == 0


# --- quota ---------------------------------------------------------------------------------------

QUOTA = {"t": QuotaConfig(tokens_per_minute=600.0, requests_per_minute=3.0)}


def reserved(
    subject: AdmissionDesk, request_id: str, now: int = 0, **kwargs: object
) -> ActiveRequest | Refusal:
    active = subject.open(request(request_id, tenant="t", **kwargs), now)
    return subject.reserve(active, now) or active


def test_a_tenant_without_a_quota_is_not_limited():
    subject = desk()
    assert subject.reserve(subject.open(request(prompt_tokens=10**9), 0), 0) is None
    other = desk(QUOTA)
    assert other.reserve(other.open(request(prompt_tokens=10**9), 0), 0) is None


def test_a_tenant_over_its_tokens_is_told_when_they_will_be_there():
    subject = desk(QUOTA)
    reserved(subject, "q1", prompt_tokens=300, max_tokens=300)
    refusal = reserved(subject, "q2", prompt_tokens=50, max_tokens=50)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (
        429,
        "rate_limit_exceeded",
        10.0,
    )


def test_what_was_reserved_and_not_used_goes_back():
    subject = desk(QUOTA)
    active = reserved(subject, "q1", prompt_tokens=100, max_tokens=500)
    active.attempts, active.shown_tokens = 1, 50
    subject.finish(active, 200, "ok", "answered", 0)
    assert isinstance(reserved(subject, "q2", prompt_tokens=150, max_tokens=300), ActiveRequest)
    assert isinstance(reserved(subject, "q3", prompt_tokens=1, max_tokens=1), Refusal)


def test_a_request_that_was_never_sent_costs_its_tenant_nothing():
    subject = desk({"t": QuotaConfig(tokens_per_minute=600.0, requests_per_minute=1.0)})
    for name in ("q1", "q2", "q3"):
        active = reserved(subject, name, prompt_tokens=300, max_tokens=300)
        assert isinstance(active, ActiveRequest)
        subject.shed(active, queue_full("depth", 1, None), 0)


def test_a_request_that_was_sent_and_failed_costs_its_prompt():
    subject = desk(QUOTA)
    active = reserved(subject, "q1", prompt_tokens=400, max_tokens=200)
    active.attempts = 1
    subject.fail(active, Kind.RESET, "all attempts used", 0)
    assert isinstance(reserved(subject, "q2", prompt_tokens=201, max_tokens=0), Refusal)
    assert isinstance(reserved(subject, "q3", prompt_tokens=100, max_tokens=100), ActiveRequest)


def test_the_engines_count_of_the_prompt_replaces_the_estimate():
    subject = desk(QUOTA)
    active = reserved(subject, "q1", prompt_tokens=10, max_tokens=10)
    active.attempts, active.read_tokens, active.shown_tokens = 1, 590, 10
    subject.finish(active, 200, "ok", "answered", 0)
    assert isinstance(reserved(subject, "q2", prompt_tokens=1, max_tokens=1), Refusal)


def test_every_choice_is_reserved():
    subject = desk(QUOTA)
    refusal = reserved(subject, "q1", prompt_tokens=10, max_tokens=200, choices=3)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "request_exceeds_quota"
    assert isinstance(
        reserved(subject, "q2", prompt_tokens=10, max_tokens=195, choices=3), ActiveRequest
    )
    assert isinstance(reserved(subject, "q3", prompt_tokens=10, max_tokens=10), Refusal)


def test_what_is_found_after_the_end_is_charged_or_given_back():
    subject = desk(QUOTA)
    reserved(subject, "q0", prompt_tokens=1, max_tokens=1)
    subject.correct("t", 698)
    assert isinstance(reserved(subject, "q1", prompt_tokens=1, max_tokens=1), Refusal)
    subject.correct("t", -150)
    assert isinstance(reserved(subject, "q2", prompt_tokens=25, max_tokens=25), ActiveRequest)
    subject.correct("nobody", 10**9)  # who has no quota owes nothing


# --- the ladder of models ------------------------------------------------------------------------


def degraded(now: int = 2 * SECOND) -> AdmissionDesk:
    """A desk whose ladder has moved everybody to the small model."""
    subject = desk(None, LADDER)
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    occupy(lanes["big"], 2)
    for at in (0, now):
        subject.watch_ladders(lanes, at)
    return subject


def test_a_saturated_model_sends_its_requests_down_the_ladder_and_reports_it():
    subject = desk(None, LADDER)
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    occupy(lanes["big"], 2)
    assert subject.watch_ladders(lanes, 0) == []
    (report,) = subject.watch_ladders(lanes, SECOND)
    assert (report.model, report.replica_id, report.what) == ("big", "", ReportCode.LADDER_MOVED)
    assert report.reason == "saturated at 100%: 100% of the traffic on small"


def test_a_degraded_request_is_served_by_the_smaller_model_and_its_story_says_so():
    active = degraded().open(request(model="big"), 2 * SECOND)
    assert active.model == "small"
    assert active.story == [(2 * SECOND, "degraded", "degraded to small")]


def test_a_batch_request_waits_for_the_model_it_asked_for():
    active = degraded().open(request(model="big", priority=Priority.BATCH), 2 * SECOND)
    assert (active.model, active.story) == ("big", [])


def test_a_model_without_a_ladder_is_served_as_asked():
    assert degraded().open(request(model="other"), 2 * SECOND).model == "other"


def test_nothing_moves_down_to_a_rung_without_room():
    subject = desk(None, LADDER)
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    occupy(lanes["big"], 2)
    occupy(lanes["small"], 2)
    for at in range(10):
        assert subject.watch_ladders(lanes, at * SECOND) == []


@pytest.mark.parametrize("smaller", [{}, {"small": lane("small")}])
def test_nothing_moves_down_to_a_rung_without_a_replica(smaller):
    subject = desk(None, LADDER)
    lanes = {"big": lane("big", "b1"), **smaller}
    occupy(lanes["big"], 2)
    for at in range(10):
        assert subject.watch_ladders(lanes, at * SECOND) == []


def test_a_rung_whose_capacity_is_unknown_is_not_taken_for_full():
    subject = desk(None, LADDER)
    unlimited = lane("small", "s1", slots=0)
    unlimited.pool.candidates["s1"].limit = 10**9
    unlimited.pool.changed(0)
    lanes = {"big": lane("big", "b1"), "small": unlimited}
    occupy(lanes["big"], 2)
    subject.watch_ladders(lanes, 0)
    assert len(subject.watch_ladders(lanes, SECOND)) == 1


def test_a_ladder_whose_model_was_never_seen_moves_nowhere():
    assert desk(None, LADDER).watch_ladders({"small": lane("small", "s1")}, 0) == []


def test_the_way_back_up_is_taken_once_the_larger_model_has_room_again():
    subject = desk(None, LADDER)
    lanes = {"big": lane("big", "b1"), "small": lane("small", "s1")}
    held = occupy(lanes["big"], 2)
    subject.watch_ladders(lanes, 0)
    assert subject.watch_ladders(lanes, SECOND)
    for active, attempt in held:
        lanes["big"].close(active, attempt, Outcome.SUCCESS, None, SECOND)
    moves = [subject.watch_ladders(lanes, at * SECOND // 2) for at in range(4, 40)]
    (report,) = [report for reports in moves for report in reports]
    assert report.reason == "well for long enough"
    assert subject.open(request(model="big"), 20 * SECOND).model == "big"


def test_a_broken_objective_moves_the_ladder_though_there_is_capacity():
    subject = desk(None, LADDER)
    lanes = {
        "big": lane("big", "b1", slots=64, slo_first_token_s=0.1),
        "small": lane("small", "s1"),
    }
    moved = []
    for at in (0, SECOND, 2 * SECOND):
        for active, attempt in occupy(lanes["big"], 3, at):
            lanes["big"].first_content(active, attempt, at + 500 * MILLISECOND)
            lanes["big"].close(active, attempt, Outcome.SUCCESS, None, at + 500 * MILLISECOND)
        moved += subject.watch_ladders(lanes, at + 600 * MILLISECOND)
    assert moved[0].reason.startswith("only 0.0% within the objective")


def test_failures_of_the_larger_model_move_the_ladder():
    subject = desk(None, LADDER)
    lanes = {"big": lane("big", "b1", slots=64), "small": lane("small", "s1")}
    moved = []
    for at in (0, SECOND):
        for active, attempt in occupy(lanes["big"], 2, at):
            lanes["big"].close(active, attempt, Outcome.FAILURE, Kind.SERVER_ERROR, at)
        moved += subject.watch_ladders(lanes, at)
    assert moved[0].reason.startswith("100% of attempts fail")
