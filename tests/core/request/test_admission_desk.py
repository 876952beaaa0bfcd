import pytest

from holdfast.core.failure import Kind
from holdfast.core.request.active_request import ActiveRequest, IllegalStepError, RequestStep
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.admission.refusals import Refusal, queue_full
from holdfast.core.request.admission_desk import ERROR_DEFAULT, ERRORS, AdmissionDesk
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.timer_wheel import TimerWheel
from holdfast.core.types import SECOND, Priority, Request

WHOLE = 600 * SECOND


def desk(quotas: dict[str, QuotaConfig] | None = None) -> AdmissionDesk:
    return AdmissionDesk(FlowConfig(quotas=quotas or {}), TimerWheel())


def request(request_id: str = "q1", model: str = "m", **kwargs: object) -> Request:
    return Request(request_id, model, **{"arrived": 0, **kwargs})


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
    subject = AdmissionDesk(FlowConfig(), wheel)
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
