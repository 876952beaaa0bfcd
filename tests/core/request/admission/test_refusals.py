import pytest

from holdfast.core.request.admission import refusals


@pytest.mark.parametrize(
    ("ahead", "service_rate", "expected"),
    [
        (100, 10.0, 10.0),
        (1, 10.0, refusals.RETRY_AFTER_MIN_S),
        (0, 10.0, refusals.RETRY_AFTER_MIN_S),
        (10_000, 10.0, refusals.RETRY_AFTER_MAX_S),
        (100, None, refusals.RETRY_AFTER_UNKNOWN_S),
        (100, 0.0, refusals.RETRY_AFTER_UNKNOWN_S),
        (100, -1.0, refusals.RETRY_AFTER_UNKNOWN_S),
    ],
)
def test_retry_after_follows_the_drain_rate_within_bounds(ahead, service_rate, expected):
    assert refusals.retry_after_s(ahead, service_rate) == expected


def test_the_tenants_own_quota_is_a_429_with_the_exact_wait():
    refusal = refusals.over_quota("tokens", 6_000.0, 12.5)
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    assert refusal.retry_after_s == 12.5
    assert refusal.reason == "over the quota of 6000 tokens per minute"


def test_a_wait_below_a_second_is_not_told_as_zero():
    assert refusals.over_quota("requests", 60.0, 0.01).retry_after_s == 1.0


def test_a_request_that_can_never_fit_is_not_invited_back():
    refusal = refusals.beyond_quota(9_000, 6_000.0)
    assert refusal.status == 400
    assert refusal.retry_after_s == 0.0
    assert "9000" in refusal.reason
    assert "6000" in refusal.reason
    assert "lower max_tokens" in refusal.reason


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (refusals.queue_full("1000 requests wait", 1_000, 50.0), "queue_full"),
        (refusals.displaced(1_000, 50.0), "displaced"),
        (refusals.wait_expired(30.0, 1_000, 50.0), "queue_timeout"),
        (refusals.no_ready_replica(30.0), "no_ready_replica"),
    ],
)
def test_our_own_overload_is_a_503_with_retry_after(refusal, code):
    assert (refusal.status, refusal.code) == (503, code)
    assert refusal.retry_after_s > 0.0
    assert refusal.reason


def test_a_passed_deadline_is_a_504_without_retry_after():
    refusal = refusals.deadline_passed()
    assert (refusal.status, refusal.code) == (504, "deadline_exceeded")
    assert refusal.retry_after_s == 0.0
