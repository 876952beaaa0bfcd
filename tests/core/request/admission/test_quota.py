import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from holdfast.core.request.admission.quota import (
    NEVER,
    Quota,
    QuotaConfig,
    Reservation,
    TokenBucket,
)
from holdfast.core.request.admission.refusals import Refusal
from holdfast.core.types import SECOND, ConfigError
from sampling import examples


def test_a_bucket_starts_full_and_fills_at_its_rate():
    bucket = TokenBucket(10.0, 100.0)
    assert bucket.take(100, now=0)
    assert not bucket.take(1, now=0)
    assert bucket.take(10, now=SECOND)
    assert not bucket.take(1, now=SECOND)


def test_a_bucket_never_holds_more_than_its_burst():
    bucket = TokenBucket(10.0, 100.0)
    assert bucket.level(1_000 * SECOND) == 100.0
    bucket.give_back(50)
    assert bucket.level(2_000 * SECOND) == 100.0


def test_a_smaller_share_fills_more_slowly_and_holds_less():
    bucket = TokenBucket(10.0, 100.0)
    bucket.lease(0.5)
    assert bucket.level(0) == 50.0
    assert bucket.take(50, now=0)
    assert bucket.level(SECOND) == 5.0


def test_a_larger_share_brings_nothing_along():
    bucket = TokenBucket(10.0, 100.0)
    bucket.lease(0.1)
    assert bucket.take(10, now=0)
    bucket.lease(0.9)
    assert bucket.level(0) == 0.0
    assert bucket.level(SECOND) == 9.0


def test_what_does_not_fit_a_share_but_the_whole_is_told_to_come_back():
    quota = Quota(QuotaConfig(tokens_per_minute=6_000))
    quota.lease(0.1)
    refusal = quota.reserve(1_000, 1_000, now=0)
    assert isinstance(refusal, Refusal)
    assert refusal.status == 429
    assert refusal.retry_after_s == 1.0
    assert "6000" in refusal.reason.replace(",", "")
    quota.lease(1.0)
    assert isinstance(quota.reserve(1_000, 1_000, now=60 * SECOND), Reservation)


def test_what_the_whole_cannot_hold_is_refused_for_good_whatever_the_share():
    quota = Quota(QuotaConfig(tokens_per_minute=600))
    quota.lease(0.1)
    asked = quota.reserve(1_000, 1_000, now=0)
    assert isinstance(asked, Refusal)
    assert asked == Quota(QuotaConfig(tokens_per_minute=600)).reserve(1_000, 1_000, now=0)


def test_a_gateway_without_demand_keeps_a_trickle():
    quota = Quota(QuotaConfig(requests_per_minute=60_000))
    quota.lease(0.0)
    assert isinstance(quota.reserve(1, 1, now=SECOND), Reservation)


def test_what_is_given_back_can_be_taken_again():
    bucket = TokenBucket(10.0, 100.0)
    assert bucket.take(80, now=0)
    bucket.give_back(60)
    assert bucket.take(80, now=0)


def test_a_debit_may_go_below_zero_and_is_paid_off_first():
    bucket = TokenBucket(10.0, 100.0)
    assert bucket.take(100, now=0)
    bucket.debit(50)
    assert bucket.level(SECOND) == -40.0
    assert bucket.until(10, SECOND) == 5 * SECOND


def test_waiting_as_long_as_told_is_enough():
    bucket = TokenBucket(7.0 / 60.0, 3.0)
    now = 5
    assert bucket.take(3, now)
    for _ in range(100):
        wait = bucket.until(1, now)
        assert not bucket.take(1, now + wait - 1_000_000)
        now += wait
        assert bucket.take(1, now)


def test_nothing_to_wait_for_is_zero_and_the_impossible_is_never():
    bucket = TokenBucket(10.0, 100.0)
    assert bucket.until(100, now=0) == 0
    assert bucket.until(100.5, now=0) == NEVER


def test_time_that_runs_backwards_fills_nothing():
    bucket = TokenBucket(10.0, 100.0)
    assert bucket.take(100, now=10 * SECOND)
    assert bucket.level(now=0) == 0.0
    assert bucket.level(now=10 * SECOND) == 0.0


@pytest.mark.parametrize(
    ("rate", "burst"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (float("nan"), 1)]
)
def test_a_bucket_that_cannot_work_is_refused(rate, burst):
    with pytest.raises(ConfigError, match="use more than 0"):
        TokenBucket(rate, burst)


def test_without_limits_nothing_is_counted():
    quota = Quota(QuotaConfig())
    first = quota.reserve(10**9, 10**9, now=0)
    assert isinstance(first, Reservation)
    assert quota.reserve(1, 1, now=0) is first
    quota.settle(first, 5)
    quota.settle(first, 5)
    quota.release(first)
    assert quota.headers(0) == {}


def test_requests_over_their_quota_wait_for_the_next_one():
    quota = Quota(QuotaConfig(requests_per_minute=60, burst_s=2.0))
    assert isinstance(quota.reserve(1, 1, now=0), Reservation)
    assert isinstance(quota.reserve(1, 1, now=0), Reservation)
    refusal = quota.reserve(1, 1, now=0)
    assert refusal == Refusal(429, "rate_limit_exceeded", 1.0, refusal.reason)
    assert "60 requests per minute" in refusal.reason
    assert isinstance(quota.reserve(1, 1, now=SECOND), Reservation)


def test_tokens_are_reserved_for_the_worst_case_and_refunded():
    quota = Quota(QuotaConfig(tokens_per_minute=6_000))
    reservation = quota.reserve(1_000, 4_000, now=0)
    assert isinstance(reservation, Reservation)
    refusal = quota.reserve(1_000, 1_000, now=0)
    assert (refusal.status, refusal.retry_after_s) == (429, 10.0)
    assert "6000 tokens per minute" in refusal.reason
    quota.settle(reservation, used_tokens=1_200)
    assert isinstance(quota.reserve(1_000, 3_800, now=0), Reservation)
    assert isinstance(quota.reserve(1, 1, now=0), Refusal)


def test_a_refusal_for_tokens_does_not_cost_a_request():
    quota = Quota(QuotaConfig(requests_per_minute=2, tokens_per_minute=100))
    assert isinstance(quota.reserve(50, 50, now=0), Reservation)
    assert isinstance(quota.reserve(50, 50, now=0), Refusal)
    assert quota.headers(0)["remaining_requests"] == 1


def test_use_beyond_the_reservation_is_debited():
    quota = Quota(QuotaConfig(tokens_per_minute=6_000, output_tokens_default=100))
    reservation = quota.reserve(1_000, 0, now=0)
    assert reservation.tokens == 1_100
    quota.settle(reservation, used_tokens=9_000)
    assert quota.headers(0)["remaining_tokens"] == 0
    refusal = quota.reserve(100, 0, now=0)
    assert refusal.retry_after_s == pytest.approx(32.0)


@pytest.mark.parametrize(("prompt", "answer"), [(5_000, 1_001), (6_001, 0), (1, 32_000)])
def test_a_request_larger_than_the_burst_is_refused_for_good(prompt, answer):
    quota = Quota(QuotaConfig(requests_per_minute=1, tokens_per_minute=6_000))
    refusal = quota.reserve(prompt, answer, now=0)
    assert (refusal.status, refusal.code) == (400, "request_exceeds_quota")
    assert refusal.retry_after_s == 0.0
    assert quota.headers(0)["remaining_requests"] == 1


def test_a_default_for_the_answer_never_makes_a_request_impossible():
    quota = Quota(QuotaConfig(tokens_per_minute=6_000, output_tokens_default=4_000))
    reservation = quota.reserve(5_000, 0, now=0)
    assert isinstance(reservation, Reservation)
    assert reservation.tokens == 6_000


def test_a_released_reservation_costs_nothing():
    quota = Quota(QuotaConfig(requests_per_minute=1, tokens_per_minute=6_000))
    quota.release(quota.reserve(1_000, 5_000, now=0))
    assert isinstance(quota.reserve(1_000, 5_000, now=0), Reservation)


@pytest.mark.parametrize(
    "config", [QuotaConfig(tokens_per_minute=60), QuotaConfig(requests_per_minute=60)]
)
def test_a_quota_of_one_kind_settles_and_releases(config):
    quota = Quota(config)
    full = quota.headers(0)
    quota.release(quota.reserve(1, 1, now=0))
    assert quota.headers(0) == full
    quota.settle(quota.reserve(1, 1, now=0), 2)
    assert quota.headers(0) != full


def test_settling_twice_is_an_error():
    quota = Quota(QuotaConfig(tokens_per_minute=6_000))
    reservation = quota.reserve(10, 10, now=0)
    quota.settle(reservation, 20)
    with pytest.raises(ValueError, match="settled twice"):
        quota.settle(reservation, 20)
    with pytest.raises(ValueError, match="settled twice"):
        quota.release(reservation)


def test_the_headers_tell_limit_remaining_and_reset():
    quota = Quota(QuotaConfig(requests_per_minute=60, tokens_per_minute=6_000))
    quota.reserve(500, 1_000, now=0)
    assert quota.headers(0) == {
        "limit_requests": 60,
        "remaining_requests": 59,
        "reset_requests_s": pytest.approx(1.0),
        "limit_tokens": 6_000,
        "remaining_tokens": 4_500,
        "reset_tokens_s": pytest.approx(15.0),
    }
    assert quota.headers(5 * SECOND)["remaining_tokens"] == 5_000


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"requests_per_minute": 0}, "quota.requests_per_minute"),
        ({"tokens_per_minute": -5}, "quota.tokens_per_minute"),
        ({"tokens_per_minute": float("inf")}, "quota.tokens_per_minute"),
        ({"burst_s": 0}, "quota.burst_s"),
        ({"output_tokens_default": -1}, "quota.output_tokens_default"),
        ({"requests_per_minute": 5, "burst_s": 1.0}, "quota.burst_s"),
        ({"requests_at_once": 0}, "quota.requests_at_once"),
        ({"requests_at_once": -3}, "quota.requests_at_once"),
    ],
)
def test_a_bad_config_names_the_field_and_the_fix(values, field):
    with pytest.raises(ConfigError) as caught:
        QuotaConfig(**values)
    assert caught.value.field == field
    assert caught.value.fix


def test_requests_at_once_are_refused_beyond_their_bound_until_one_ends():
    quota = Quota(QuotaConfig(requests_at_once=2))
    first, second = quota.reserve(10, 10, now=0), quota.reserve(10, 10, now=0)
    refused = quota.reserve(10, 10, now=0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (429, "concurrency_limit_exceeded")
    assert refused.retry_after_s >= 1.0
    assert "2 requests at once" in refused.reason
    quota.settle(first, 20)
    third = quota.reserve(10, 10, now=0)
    assert isinstance(third, Reservation)
    quota.release(second)
    quota.settle(third, 0)
    assert quota.running == 0
    assert quota.headers(0) == {}


def test_a_refusal_for_another_reason_takes_no_place():
    quota = Quota(QuotaConfig(tokens_per_minute=60, requests_at_once=1))
    assert isinstance(quota.reserve(1, 59, now=0), Reservation)
    quota = Quota(QuotaConfig(tokens_per_minute=60, requests_at_once=1))
    for _ in range(3):
        assert isinstance(quota.reserve(1_000, 1_000, now=0), Refusal)
    assert quota.running == 0
    assert isinstance(quota.reserve(1, 59, now=0), Reservation)


@pytest.mark.parametrize(("share", "allowed"), [(1.0, 8), (0.5, 4), (0.26, 2), (0.01, 1), (0.0, 1)])
def test_a_gateway_allows_its_share_at_once_and_one_at_least(share, allowed):
    quota = Quota(QuotaConfig(requests_at_once=8))
    quota.lease(share)
    got = [quota.reserve(1, 1, now=0) for _ in range(10)]
    assert sum(isinstance(one, Reservation) for one in got) == allowed
    quota.lease(1.0)
    assert isinstance(quota.reserve(1, 1, now=0), Reservation) == (allowed < 8)


class QuotaMachine(RuleBasedStateMachine):
    """Whatever is asked for and settled, the net grant stays below burst + rate x time."""

    @initialize(
        rpm=st.sampled_from([6.0, 60.0, 100.0]),
        tpm=st.sampled_from([600.0, 10_000.0]),
        burst_s=st.sampled_from([10.0, 60.0]),
        at_once=st.sampled_from([None, 1, 3]),
    )
    def build(self, rpm, tpm, burst_s, at_once):
        self.quota = Quota(QuotaConfig(rpm, tpm, burst_s=burst_s, requests_at_once=at_once))
        self.at_once = at_once or 1_000_000
        self.rpm, self.tpm, self.burst_s = rpm, tpm, burst_s
        self.now = self.began = 1_000
        self.open = []
        self.requests = 0  # granted, net of releases
        self.tokens = 0  # granted, net of refunds
        self.excess = 0  # used beyond reservations: not granted, but debited

    @rule(wait=st.integers(0, 40 * SECOND))
    def wait(self, wait):
        self.now += wait

    @rule(prompt=st.integers(1, 400), answer=st.integers(0, 400))
    def reserve(self, prompt, answer):
        got = self.quota.reserve(prompt, answer, self.now)
        if isinstance(got, Reservation):
            self.open.append(got)
            self.requests += 1
            self.tokens += got.tokens
            assert self.tokens + self.excess <= self.allowed(self.tpm)
        elif got.status == 400:
            assert prompt + answer > self.tpm / 60 * self.burst_s
        else:
            assert got.status == 429
            assert got.retry_after_s >= 1.0

    @precondition(lambda self: self.open)
    @rule(share=st.floats(0, 2), data=st.data())
    def settle(self, share, data):
        reservation = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        used = int(reservation.tokens * share)
        self.quota.settle(reservation, used)
        self.tokens -= max(reservation.tokens - used, 0)
        self.excess += max(used - reservation.tokens, 0)

    @precondition(lambda self: self.open)
    @rule()
    def release(self):
        reservation = self.open.pop()
        self.quota.release(reservation)
        self.requests -= 1
        self.tokens -= reservation.tokens

    def allowed(self, per_minute):
        elapsed = (self.now - self.began) / SECOND
        return per_minute / 60 * (self.burst_s + elapsed) + 1e-3

    @invariant()
    def no_more_is_granted_than_the_rate_allows(self):
        assert self.requests <= self.allowed(self.rpm)
        assert self.tokens <= self.allowed(self.tpm)

    @invariant()
    def no_more_run_at_once_than_allowed(self):
        assert self.quota.running == len(self.open) <= self.at_once

    @invariant()
    def the_headers_stay_within_their_limits(self):
        numbers = self.quota.headers(self.now)
        for kind in ("requests", "tokens"):
            assert 0 <= numbers[f"remaining_{kind}"] <= numbers[f"limit_{kind}"]
            assert numbers[f"reset_{kind}_s"] >= 0


TestQuotaMachine = QuotaMachine.TestCase
TestQuotaMachine.settings = settings(max_examples=examples(40), stateful_step_count=40)
