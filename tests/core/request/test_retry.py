from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.failure import MEANINGS, Kind
from holdfast.core.request.retry import Retry, RetryBudget, RetryConfig, RetryDecision
from holdfast.core.types import MILLISECOND, SECOND, ConfigError, nanos
from sampling import examples

FAR = 600 * SECOND
FREE_KINDS = [kind for kind, meaning in MEANINGS.items() if meaning.free]
PAID_KINDS = [kind for kind, meaning in MEANINGS.items() if meaning.retryable and not meaning.free]
FINAL_KINDS = [kind for kind, meaning in MEANINGS.items() if not meaning.retryable]


def retry(config: RetryConfig | None = None, seed: int = 7) -> Retry:
    config = config or RetryConfig()
    return Retry(config, RetryBudget(config), Random(seed))


def decide(
    subject: Retry,
    kind: Kind = Kind.RESET,
    *,
    attempts_made: int = 1,
    free_used: bool = False,
    deadline: int = FAR,
    now: int = 0,
) -> RetryDecision:
    return subject.decide(
        kind, attempts_made=attempts_made, free_used=free_used, deadline=deadline, now=now
    )


def spent(subject: Retry) -> object:
    return subject.budget._retries.total(0)


class TestOneRequest:
    @pytest.mark.parametrize("kind", PAID_KINDS)
    def test_what_another_replica_may_do_better_is_tried_again(self, kind):
        subject = retry()
        decision = decide(subject, kind)
        assert decision
        assert not decision.free
        assert decision.reason == "within the retry budget"
        assert spent(subject) == 1

    @pytest.mark.parametrize("kind", FINAL_KINDS)
    def test_what_would_fail_anywhere_is_not_tried_again(self, kind):
        subject = retry()
        decision = decide(subject, kind)
        assert not decision
        assert decision.reason == "another replica would do no better"
        assert spent(subject) == 0

    def test_the_attempts_of_a_request_are_bounded(self):
        subject = retry(RetryConfig(attempts=3))
        assert decide(subject, attempts_made=2)
        refusal = decide(subject, attempts_made=3)
        assert not refusal
        assert refusal.reason == "all attempts used"
        assert spent(subject) == 1

    def test_one_attempt_in_all_means_no_retry(self):
        assert not decide(retry(RetryConfig(attempts=1)))


class TestFreeRetry:
    @pytest.mark.parametrize("kind", FREE_KINDS)
    def test_goes_at_once_and_costs_nothing(self, kind):
        subject = retry()
        decision = decide(subject, kind)
        assert decision == RetryDecision(True, 0, True, "no byte was answered: free, once")
        assert spent(subject) == 0

    def test_needs_no_attempt_left(self):
        assert decide(retry(RetryConfig(attempts=1)), Kind.REFUSED).free

    def test_needs_no_budget_left(self):
        subject = retry(RetryConfig(budget_ratio=0.0, budget_floor_per_s=0.0))
        assert decide(subject, Kind.REFUSED).free

    def test_is_given_once(self):
        subject = retry()
        decision = decide(subject, Kind.REFUSED, free_used=True)
        assert decision
        assert not decision.free
        assert spent(subject) == 1

    def test_takes_nothing_from_the_attempts_that_follow(self):
        subject = retry()  # two attempts in all
        assert decide(subject, attempts_made=1, free_used=True)
        assert not decide(subject, attempts_made=2, free_used=True)

    def test_is_not_given_past_the_deadline(self):
        decision = decide(retry(), Kind.STALE_SOCKET, deadline=5, now=5)
        assert not decision
        assert decision.reason == "no time left before the deadline"


class TestDeadline:
    def test_a_wait_that_would_reach_it_is_refused_and_spends_nothing(self):
        subject = retry()
        delay = decide(retry(), now=SECOND).delay  # the same seed draws the same wait
        assert delay > 0
        refusal = decide(subject, now=SECOND, deadline=SECOND + delay)
        assert not refusal
        assert refusal.reason == "no time left before the deadline"
        assert spent(subject) == 0

    def test_a_wait_that_ends_just_before_it_is_allowed(self):
        delay = decide(retry(), now=SECOND).delay
        assert decide(retry(), now=SECOND, deadline=SECOND + delay + 1)

    @given(
        now=st.integers(0, FAR),
        left=st.integers(-SECOND, 3 * SECOND),
        attempts_made=st.integers(1, 9),
        seed=st.integers(0, 2**32),
    )
    @settings(max_examples=examples(120))
    def test_nothing_granted_ever_starts_past_it(self, now, left, attempts_made, seed):
        subject = retry(RetryConfig(attempts=10), seed)
        for kind in Kind:
            decision = decide(
                subject, kind, attempts_made=attempts_made, now=now, deadline=now + left
            )
            if decision:
                assert now + decision.delay < now + left
            assert decision.delay >= 0


class TestBackoff:
    def test_is_drawn_from_the_whole_range(self):
        subject = retry(RetryConfig(budget=False))
        delays = [decide(subject).delay for _ in range(500)]
        assert min(delays) < 1 * MILLISECOND
        assert 49 * MILLISECOND < max(delays) <= 50 * MILLISECOND

    def test_its_bound_doubles_up_to_the_maximum(self):
        subject = retry(RetryConfig(attempts=100, budget=False))
        bounds = []
        for made in range(1, 9):
            delays = [decide(subject, attempts_made=made).delay for _ in range(300)]
            bounds.append(max(delays) / MILLISECOND)
        expected = [50, 100, 200, 400, 800, 1000, 1000, 1000]
        assert all(0.95 * top < seen <= top for seen, top in zip(bounds, expected, strict=True))

    def test_a_free_attempt_does_not_lengthen_it(self):
        assert decide(retry()).delay == decide(retry(), free_used=True).delay

    def test_none_waits_for_nothing(self):
        subject = retry(RetryConfig(backoff="none"))
        assert decide(subject).delay == 0

    def test_is_reproducible_from_the_seed(self):
        first, second = retry(seed=3), retry(seed=3)
        assert [decide(first) for _ in range(20)] == [decide(second) for _ in range(20)]


class TestContinuation:
    def test_goes_at_once_and_costs_budget(self):
        subject = retry()
        decision = subject.decide_continuation(continuations_made=0, deadline=FAR, now=0)
        assert decision
        assert decision.delay == 0
        assert not decision.free
        assert spent(subject) == 1

    def test_is_bounded_per_stream(self):
        subject = retry()
        assert subject.decide_continuation(continuations_made=1, deadline=FAR, now=0)
        refusal = subject.decide_continuation(continuations_made=2, deadline=FAR, now=0)
        assert refusal.reason == "all continuations used"
        assert spent(subject) == 1

    def test_is_not_given_at_the_deadline(self):
        subject = retry()
        refusal = subject.decide_continuation(continuations_made=0, deadline=9, now=9)
        assert refusal.reason == "no time left before the deadline"
        assert spent(subject) == 0

    def test_is_refused_when_the_budget_is_spent(self):
        subject = retry(RetryConfig(budget_ratio=0.0, budget_floor_per_s=0.1))
        assert subject.decide_continuation(continuations_made=0, deadline=FAR, now=0)
        refusal = subject.decide_continuation(continuations_made=0, deadline=FAR, now=0)
        assert refusal.reason == "retry budget spent"


class TestBudget:
    def test_a_quiet_fleet_has_the_floor(self):
        budget = RetryBudget(RetryConfig())
        assert [budget.take(0).allowed for _ in range(101)] == [True] * 100 + [False]

    def test_requests_earn_their_share(self):
        budget = RetryBudget(RetryConfig(budget_floor_per_s=0.0))
        for _ in range(50):
            budget.on_request(0)
        granted = [budget.take(0) for _ in range(11)]
        assert [decision.allowed for decision in granted] == [True] * 10 + [False]
        assert granted[-1].reason == "retry budget spent"

    def test_asking_takes_nothing(self):
        budget = RetryBudget(RetryConfig(budget_ratio=0.0, budget_floor_per_s=0.1))
        assert all(budget.would_allow(0) for _ in range(10))
        assert budget.take(0)
        assert not budget.would_allow(0)
        assert not budget.take(0)

    def test_is_whole_again_a_window_and_a_bucket_later(self):
        budget = RetryBudget(RetryConfig())
        while budget.take(0):
            pass
        assert not budget.would_allow(10 * SECOND)
        assert budget.would_allow(nanos(10.5))

    def test_requests_older_than_the_window_earn_nothing(self):
        budget = RetryBudget(RetryConfig(budget_floor_per_s=0.0))
        for _ in range(50):
            budget.on_request(0)
        assert budget.would_allow(9 * SECOND)
        assert not budget.would_allow(10 * SECOND)

    def test_a_refusal_of_the_budget_refuses_the_retry(self):
        subject = retry(RetryConfig(budget_ratio=0.0, budget_floor_per_s=0.0))
        refusal = decide(subject)
        assert not refusal
        assert refusal.reason == "retry budget spent"

    def test_switched_off_it_refuses_nothing(self):
        budget = RetryBudget(RetryConfig(budget=False, budget_ratio=0.0, budget_floor_per_s=0.0))
        assert all(budget.take(0) for _ in range(1000))

    @given(
        window_s=st.floats(0.1, 30.0),
        ratio=st.floats(0.0, 1.0),
        floor_per_s=st.floats(0.0, 5.0),
        events=st.lists(
            st.tuples(st.integers(0, 3 * SECOND), st.sampled_from("rrrtt"), st.integers(1, 20)),
            max_size=80,
        ),
    )
    @settings(max_examples=examples(150))
    def test_no_window_ever_holds_more_than_the_bound(self, window_s, ratio, floor_per_s, events):
        config = RetryConfig(
            budget_ratio=ratio, budget_window_s=window_s, budget_floor_per_s=floor_per_s
        )
        budget = RetryBudget(config)
        window = nanos(window_s)
        now = 0
        requests: list[int] = []
        grants: list[int] = []
        for step, what, times in events:
            now += step
            for _ in range(times):
                if what == "r":
                    budget.on_request(now)
                    requests.append(now)
                elif budget.take(now):
                    grants.append(now)
                    held = [at for at in grants if at > now - window]
                    earned = [at for at in requests if at > now - window]
                    assert len(held) <= ratio * len(earned) + floor_per_s * window_s + 1e-9
        # Windows that end at a grant tile the run from its end, so the whole run is bounded too.
        bound = ratio * len(requests) + floor_per_s * (now / SECOND + window_s)
        assert len(grants) <= bound + 1e-9

    @pytest.mark.parametrize("rate_per_s", [2, 50, 400])
    def test_when_everything_fails_the_load_grows_by_the_ratio_and_the_floor_only(self, rate_per_s):
        config = RetryConfig(attempts=10)
        subject = retry(config)
        run_s = 40
        attempts = 0
        for number in range(rate_per_s * run_s):
            now = number * SECOND // rate_per_s
            subject.budget.on_request(now)
            made = 1
            while decide(subject, attempts_made=made, now=now, deadline=now + FAR):
                made += 1
            attempts += made
        requests = rate_per_s * run_s
        amplification = attempts / requests
        floor = config.budget_floor_per_s * (run_s + config.budget_window_s) / requests
        assert amplification <= 1 + config.budget_ratio + floor
        assert amplification >= 1 + 0.85 * config.budget_ratio

    def test_without_it_the_same_load_is_multiplied(self):
        subject = retry(RetryConfig(attempts=4, budget=False, backoff="none"))
        made = 1
        while decide(subject, attempts_made=made):
            made += 1
        assert made == 4


class TestConfig:
    @pytest.mark.parametrize(
        ("field", "value", "fix"),
        [
            ("attempts", 0, "use 1 (no retry)"),
            ("attempts", 101, "to 100"),
            ("continuations", -1, "use 0 (none)"),
            ("continuations", 101, "to 100"),
            ("moves", -1, "use 0"),
            ("moves", 101, "to 100"),
            ("budget_ratio", -0.1, "from 0 to 1"),
            ("budget_ratio", 1.1, "from 0 to 1"),
            ("budget_ratio", float("nan"), "from 0 to 1"),
            ("budget_window_s", 0.0, "use 0.1 s"),
            ("budget_window_s", 3601.0, "3600 s"),
            ("budget_floor_per_s", -1.0, "use 0 to"),
            ("budget_floor_per_s", float("inf"), "1000000"),
            ("backoff_base_s", -0.01, "use 0 s"),
            ("backoff_base_s", 3601.0, "3600 s"),
            ("backoff_max_s", 0.01, "use retry.backoff_base_s, 0.05"),
            ("backoff_max_s", float("inf"), "to 3600 s"),
        ],
    )
    def test_a_bad_value_is_refused_with_its_field_and_fix(self, field, value, fix):
        with pytest.raises(ConfigError) as caught:
            RetryConfig(**{field: value})
        assert caught.value.field == f"retry.{field}"
        assert caught.value.problem == f"is {value}"
        assert fix in caught.value.fix

    def test_an_unknown_backoff_is_refused(self):
        with pytest.raises(ConfigError, match=r"retry\.backoff: is 'linear'; use 'full jitter'"):
            RetryConfig(backoff="linear")

    def test_the_edges_are_accepted(self):
        RetryConfig(attempts=100, continuations=0, budget_ratio=0.0, budget_floor_per_s=0.0)
        RetryConfig(budget_ratio=1.0, budget_window_s=3600, backoff_base_s=0, backoff_max_s=0)


def test_a_lease_scales_the_floor_and_leaves_the_ratio():
    config = RetryConfig(budget_ratio=0.0, budget_floor_per_s=10.0, budget_window_s=1.0)
    budget = RetryBudget(config)
    budget.lease(0.0)
    assert not budget.would_allow(SECOND)
    budget.lease(0.5)
    assert budget.would_allow(SECOND)
