from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.failure import Outcome
from holdfast.core.request.breaker import (
    TRANSITIONS,
    TRIAL,
    Breaker,
    BreakerChange,
    BreakerConfig,
    BreakerError,
    BreakerSignal,
    BreakerState,
    CountedFailure,
)
from holdfast.core.types import SECOND, ConfigError, nanos
from sampling import examples

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
SUCCESS, FAILURE = Outcome.SUCCESS, Outcome.FAILURE
NEUTRAL = [Outcome.BACKPRESSURE, Outcome.CLIENT_ERROR, Outcome.CANCELLED]
EXACT = BreakerConfig(jitter=0.0)  # cooldowns of exactly 1, 2, 4 … seconds


def breaker(config: BreakerConfig = EXACT) -> Breaker:
    return Breaker(config, Random(7))


def counts_of(subject: Breaker) -> tuple[object, ...]:
    """What a breaker has counted and decided so far."""
    window = subject._window
    trial = subject._trial_out
    return subject.state, subject.opens_until, trial, window.count, window.failures


def opened(config: BreakerConfig = EXACT, now: int = 0) -> Breaker:
    subject = breaker(config)
    subject.record(FAILURE, now, strong=True)
    assert subject.state is OPEN
    return subject


def on_trial(config: BreakerConfig = EXACT) -> tuple[Breaker, int]:
    """A breaker with its trial out, and the time."""
    subject = opened(config)
    now = subject.opens_until
    assert subject.allow(now) is TRIAL
    return subject, now


def fail_trials(subject: Breaker, count: int) -> list[float]:
    """Cooldowns in seconds, as the trials fail one after another."""
    cooldowns = []
    for _ in range(count):
        now = subject.opens_until
        assert subject.allow(now) is TRIAL
        subject.record(FAILURE, now, trial=True)
        cooldowns.append((subject.opens_until - now) / SECOND)
    return cooldowns


class TestClosed:
    def test_lets_everything_pass(self):
        subject = breaker()
        assert subject.would_allow(0)
        assert subject.allow(0).allowed
        assert subject.allow(0).reason == "closed"

    def test_successes_change_nothing(self):
        subject = breaker()
        assert all(subject.record(SUCCESS, now) is None for now in range(100))
        assert subject.state is CLOSED

    def test_opens_at_five_failures_in_a_row_and_not_at_four(self):
        subject = breaker()
        for now in range(4):
            assert subject.record(FAILURE, now) is None
        change = subject.record(FAILURE, 4)
        assert change == BreakerChange(CLOSED, OPEN, "5 failures in a row", 4)

    def test_a_success_interrupts_the_run(self):
        subject = breaker(BreakerConfig(minimum=25))
        for outcome in [FAILURE] * 4 + [SUCCESS] + [FAILURE] * 4:
            assert subject.record(outcome, 0) is None
        assert subject.record(FAILURE, 0) is not None

    @pytest.mark.parametrize("neutral", NEUTRAL)
    def test_a_neutral_outcome_neither_counts_nor_interrupts_the_run(self, neutral):
        subject = breaker()
        for _ in range(4):
            subject.record(FAILURE, 0)
            assert subject.record(neutral, 0) is None
        assert subject.record(FAILURE, 0) is not None

    @pytest.mark.parametrize("neutral", NEUTRAL)
    def test_a_flood_of_neutral_outcomes_never_opens_it(self, neutral):
        subject = breaker()
        assert all(subject.record(neutral, 0, strong=True) is None for _ in range(100))
        assert subject._window.count == 0

    def test_opens_at_the_share_and_not_below_it(self):
        subject = breaker(BreakerConfig(consecutive=100))
        for outcome in [SUCCESS] * 16 + [FAILURE] * 9:
            assert subject.record(outcome, 0) is None  # 9 of 25 is 36 %
        change = subject.record(FAILURE, 0)  # 10 of 25, one success having left
        assert change is not None
        assert change.reason == "10 of the last 25 failed"

    def test_the_share_means_nothing_before_the_minimum(self):
        subject = breaker(BreakerConfig(consecutive=100, failure_ratio=0.1))
        for _ in range(9):
            assert subject.record(FAILURE, 0) is None
        assert subject.record(FAILURE, 0) is not None

    def test_a_share_that_floats_cannot_hold_is_still_met_exactly(self):
        config = BreakerConfig(window=100, minimum=100, failure_ratio=0.07, consecutive=100)
        subject = breaker(config)
        for _ in range(93):
            subject.record(SUCCESS, 0)
        changes = [subject.record(FAILURE, 0) for _ in range(7)]
        assert [change is not None for change in changes] == [False] * 6 + [True]

    def test_one_refused_connection_opens_it_at_once(self):
        change = breaker().record(FAILURE, 3, strong=True)
        assert change == BreakerChange(CLOSED, OPEN, "connection refused", 3)


class TestOpen:
    def test_lets_nothing_pass_before_the_cooldown_is_over(self):
        subject = opened()
        assert subject.opens_until == SECOND
        assert not subject.would_allow(SECOND - 1)
        decision = subject.allow(SECOND - 1)
        assert not decision
        assert decision.reason == "breaker cooling down"
        assert subject.state is OPEN

    def test_asking_does_not_claim_the_trial(self):
        subject = opened()
        assert all(subject.would_allow(SECOND) for _ in range(10))
        assert subject.state is OPEN
        assert subject.allow(SECOND) is TRIAL

    def test_exactly_one_trial_is_given(self):
        subject, now = on_trial()
        assert not subject.would_allow(now)
        assert subject.allow(now).reason == "trial under way"
        assert not subject.allow(now + 3600 * SECOND)

    @pytest.mark.parametrize("outcome", list(Outcome))
    @pytest.mark.parametrize("strong", [False, True])
    def test_late_results_of_older_attempts_are_neutral(self, outcome, strong):
        subject = opened()
        before = counts_of(subject)
        assert subject.record(outcome, 5, strong=strong) is None
        assert counts_of(subject) == before


class TestHalfOpen:
    def test_a_trial_that_succeeds_closes_it(self):
        subject, now = on_trial()
        change = subject.record(SUCCESS, now + 1, trial=True)
        assert change == BreakerChange(HALF_OPEN, CLOSED, "trial succeeded", now + 1)
        assert subject.allow(now + 1).reason == "closed"
        assert subject.opens_until == 0

    def test_counts_start_anew_after_it_closed(self):
        subject = breaker()
        for _ in range(5):
            subject.record(FAILURE, 0)
        now = subject.opens_until
        subject.allow(now)
        subject.record(SUCCESS, now, trial=True)
        assert subject._window.count == 0
        assert all(subject.record(FAILURE, now) is None for _ in range(4))

    def test_a_trial_that_fails_opens_it_for_twice_as_long(self):
        subject, now = on_trial()
        change = subject.record(FAILURE, now, trial=True)
        assert change == BreakerChange(HALF_OPEN, OPEN, "trial failed", now)
        assert subject.opens_until == now + 2 * SECOND

    @pytest.mark.parametrize("neutral", [Outcome.CLIENT_ERROR, Outcome.CANCELLED])
    def test_a_trial_that_says_nothing_gives_its_slot_to_the_next(self, neutral):
        subject, now = on_trial()
        assert subject.record(neutral, now, trial=True) is None
        assert subject.state is HALF_OPEN
        assert subject.would_allow(now)
        assert subject.allow(now) is TRIAL
        assert not subject.would_allow(now)

    def test_a_full_replica_is_neither_opened_nor_closed_but_asked_again_later(self):
        subject, now = on_trial()
        assert subject.record(Outcome.BACKPRESSURE, now, trial=True) is None
        assert subject.state is HALF_OPEN
        assert not subject.would_allow(now + SECOND - 1)
        assert subject.allow(now + SECOND) is TRIAL

    def test_the_rest_after_backpressure_does_not_grow(self):
        subject, now = on_trial()
        for _ in range(5):
            subject.record(Outcome.BACKPRESSURE, now, trial=True)
            assert subject.opens_until == now + SECOND
            now = subject.opens_until
            assert subject.allow(now) is TRIAL

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_late_results_of_older_attempts_do_not_decide_the_trial(self, outcome):
        subject, now = on_trial()
        assert subject.record(outcome, now, strong=True) is None
        assert subject.state is HALF_OPEN
        assert not subject.would_allow(now)


class TestCooldown:
    def test_doubles_with_each_failed_trial_up_to_the_maximum(self):
        assert fail_trials(opened(), 8) == [2, 4, 8, 16, 32, 60, 60, 60]

    def test_is_forgotten_after_staying_closed_as_long_as_the_next_would_be(self):
        subject = opened()
        fail_trials(subject, 2)  # the last cooldown was 4 s, the next would be 8 s
        now = subject.opens_until
        subject.allow(now)
        subject.record(SUCCESS, now, trial=True)
        now += 8 * SECOND
        subject.record(FAILURE, now, strong=True)
        assert subject.opens_until == now + SECOND

    def test_goes_on_doubling_when_it_relapses_sooner(self):
        subject = opened()
        fail_trials(subject, 2)
        now = subject.opens_until
        subject.allow(now)
        subject.record(SUCCESS, now, trial=True)
        now += 8 * SECOND - 1
        subject.record(FAILURE, now, strong=True)
        assert subject.opens_until == now + 8 * SECOND

    def test_jitter_spreads_it_by_a_fifth_either_way(self):
        rng = Random(1)
        spread = []
        for _ in range(400):
            subject = Breaker(BreakerConfig(), rng)
            subject.record(FAILURE, 0, strong=True)
            spread.append(subject.opens_until / SECOND)
        assert 0.8 <= min(spread) < 0.82
        assert 1.18 < max(spread) <= 1.2

    def test_is_reproducible_from_the_seed(self):
        first, second = (Breaker(BreakerConfig(), Random(3)) for _ in range(2))
        for subject in (first, second):
            subject.record(FAILURE, 0, strong=True)
        assert fail_trials(first, 4) == fail_trials(second, 4)


class TestDisabled:
    def test_always_lets_pass_and_counts_nothing(self):
        subject = breaker(BreakerConfig(enabled=False))
        for outcome in Outcome:
            assert subject.record(outcome, 0, strong=True) is None
            assert subject.record(outcome, 0, trial=True) is None
        assert subject.would_allow(0)
        assert subject.allow(0).reason == "closed"
        assert subject._window.count == 0


class TestMisuse:
    def test_a_trial_result_without_a_trial_raises(self):
        with pytest.raises(BreakerError, match=r"no trial is out; history:\n  \(it never moved\)"):
            breaker().record(SUCCESS, 0, trial=True)

    def test_a_trial_reported_twice_raises_and_tells_the_history(self):
        subject, now = on_trial()
        subject.record(SUCCESS, now, trial=True)
        with pytest.raises(BreakerError) as caught:
            subject.record(SUCCESS, now, trial=True)
        text = str(caught.value)
        assert text.startswith("trial_succeeded while closed: no trial is out; history:")
        assert "at 0: closed -> open (connection refused)" in text
        assert "open -> half_open (cooldown over)" in text
        assert "half_open -> closed (trial succeeded)" in text

    def test_a_trial_returned_twice_raises(self):
        subject, now = on_trial()
        subject.record(Outcome.CANCELLED, now, trial=True)
        with pytest.raises(BreakerError, match="trial_returned while half_open: no trial is out"):
            subject.record(Outcome.CANCELLED, now, trial=True)

    def test_a_move_the_table_does_not_know_raises(self):
        with pytest.raises(BreakerError, match="trial_failed while closed: the table has no such"):
            breaker()._move(BreakerSignal.TRIAL_FAILED, "", 0)

    def test_the_history_is_bounded(self):
        subject = opened()
        fail_trials(subject, 30)
        with pytest.raises(BreakerError) as caught:
            subject.record(SUCCESS, 0, trial=True)
        assert len(str(caught.value).splitlines()) == 1 + 8


def fail(subject: Breaker, tenant: str, body: int | None, *, crowd: bool = False, now: int = 0):
    """Count one user's failure; return it with the change."""
    failure = CountedFailure(tenant, body, proof=False)
    return failure, subject.record(FAILURE, now, failure=failure, crowd=crowd)


class TestWeight:
    def test_one_tenant_in_a_crowd_opens_nothing_whatever_it_sends(self):
        subject = breaker()
        for number in range(200):
            assert fail(subject, "attacker", number, crowd=True)[1] is None

    def test_two_tenants_in_a_crowd_are_one_too_few(self):
        subject = breaker()
        for number in range(200):
            assert fail(subject, f"t{number % 2}", number, crowd=True)[1] is None

    def test_three_tenants_in_a_crowd_are_believed(self):
        subject = breaker()
        changes = [fail(subject, f"t{n % 3}", n, crowd=True)[1] for n in range(5)]
        assert [change is not None for change in changes] == [False] * 4 + [True]
        assert not subject.proven

    def test_without_a_crowd_each_body_counts_once(self):
        subject = breaker()
        for _ in range(200):
            assert fail(subject, "t", 7)[1] is None
        changes = [fail(subject, "t", number)[1] for number in range(100, 104)]
        assert changes[-1] is not None  # the fifth body

    def test_a_body_that_another_replica_answered_counts_every_time(self):
        subject = breaker()
        failures = [fail(subject, "t", 7)[0] for _ in range(5)]
        assert subject.state is CLOSED
        changes = [subject.confirm(failure, 0) for failure in failures[:4]]
        assert [change is not None for change in changes] == [False] * 3 + [True]

    def test_a_confirmed_failure_that_was_not_counted_is_counted_then(self):
        subject = breaker()
        changes = [subject.confirm(CountedFailure("t", 7, proof=False), 0) for _ in range(5)]
        assert [change is not None for change in changes] == [False] * 4 + [True]

    def test_a_share_weighs_too(self):
        subject = breaker(BreakerConfig(consecutive=100))
        for _ in range(15):
            subject.record(SUCCESS, 0)
        for number in range(10):
            assert fail(subject, "attacker", number, crowd=True)[1] is None
        assert subject.state is CLOSED

    def test_proof_is_counted_as_it_comes(self):
        subject = breaker()
        proof = [CountedFailure("attacker", 7) for _ in range(5)]
        changes = [subject.record(FAILURE, 0, failure=each, crowd=True) for each in proof]
        assert changes[-1] is not None
        assert subject.proven

    def test_a_refused_connection_is_proof(self):
        assert opened().proven

    def test_a_disabled_breaker_neither_confirms_nor_withdraws(self):
        subject = breaker(BreakerConfig(enabled=False))
        failure, _ = fail(subject, "t", 1)
        assert subject.confirm(failure, 0) is None
        assert subject.withdraw(failure, 0) is None


class TestWithdraw:
    def test_what_is_withdrawn_counts_no_more(self):
        subject = breaker()
        for number in range(50):
            failure, change = fail(subject, "t", number)
            assert change is None
            assert subject.withdraw(failure, 0) is None
        assert subject._window.failures == 0

    def test_an_opening_is_taken_back_with_the_failure_that_caused_it(self):
        subject = breaker()
        failures = [fail(subject, "t", number, now=SECOND)[0] for number in range(5)]
        assert subject.state is OPEN
        change = subject.withdraw(failures[2], 2 * SECOND)
        assert change is not None
        assert (change.before, change.after) == (OPEN, CLOSED)
        assert subject.would_allow(2 * SECOND)
        assert fail(subject, "t", 9, now=2 * SECOND)[1] is not None  # the other four still count
        assert subject.opens_until == 3 * SECOND  # and the cooldown has not grown

    def test_what_had_been_interrupted_is_no_row_afterwards(self):
        subject = breaker(BreakerConfig(jitter=0.0, consecutive=3, minimum=8))
        early = [fail(subject, "t", number)[0] for number in range(2)]
        for _ in range(2):
            subject.record(SUCCESS, 0)
        late = [fail(subject, "t", number)[0] for number in range(10, 13)]
        assert subject.state is OPEN
        assert subject.withdraw(late[0], 0) is not None
        assert subject.withdraw(late[1], 0) is None
        assert fail(subject, "t", 20)[1] is None  # two in a row: the early ones are not of it
        assert subject.withdraw(early[0], 0) is None

    def test_a_trial_that_failed_by_its_own_request_is_repeated_at_once(self):
        subject, now = on_trial()
        failure = CountedFailure("attacker", 7, proof=False)
        assert subject.record(FAILURE, now, trial=True, failure=failure) is not None
        assert subject.opens_until == now + 2 * SECOND
        assert subject.withdraw(failure, now + 1) is None
        assert subject.state is OPEN
        assert subject.allow(now + 1) is TRIAL
        subject.record(FAILURE, now + 1, trial=True)
        assert subject.opens_until == now + 1 + 2 * SECOND  # as if that trial had not been

    def test_while_a_trial_runs_it_decides(self):
        subject = breaker()
        failures = [fail(subject, "t", number)[0] for number in range(5)]
        assert subject.allow(SECOND) is TRIAL
        assert subject.withdraw(failures[0], SECOND) is None
        assert subject.state is HALF_OPEN

    def test_one_that_it_does_not_know_changes_nothing(self):
        subject = opened()
        assert subject.withdraw(CountedFailure("t", 7, proof=False), 0) is None
        assert subject.state is OPEN


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.sampled_from(["ok", "bad", "own"])),
        max_size=80,
    )
)
def test_two_tenants_in_a_crowd_never_open_it(steps):
    subject = breaker()
    for tenant, body, what in steps:
        if what == "ok":
            subject.record(SUCCESS, 0)
            continue
        failure, change = fail(subject, tenant, body, crowd=True)
        assert change is None
        if what == "own":
            subject.withdraw(failure, 0)
    assert subject.state is CLOSED


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60), st.randoms())
def test_when_all_is_withdrawn_it_is_closed_and_empty(steps, random):
    """Whatever the order, and whether it had opened: the requests alone were at fault."""
    subject = breaker()
    failures = []
    for failed, body in steps:
        if failed:
            if subject.state is CLOSED:
                failures.append(fail(subject, "t", body)[0])
        else:
            subject.record(SUCCESS, 0)
    random.shuffle(failures)
    for failure in failures:
        subject.withdraw(failure, 0)
    assert subject.state is CLOSED
    assert subject._window.failures == 0
    assert subject._consecutive == 0


class TestConfig:
    @pytest.mark.parametrize(
        ("field", "value", "fix"),
        [
            ("window", 0, "use at least 1"),
            ("minimum", 0, "use 1 to 25"),
            ("minimum", 26, "use 1 to 25, the breaker.window"),
            ("failure_ratio", 0.0, "above 0"),
            ("failure_ratio", 1.01, "up to 1"),
            ("failure_ratio", float("nan"), "above 0"),
            ("consecutive", 0, "use at least 1"),
            ("cooldown_s", 0.0, "use 0.001 s"),
            ("cooldown_s", -1.0, "use 0.001 s"),
            ("cooldown_s", float("nan"), "use 0.001 s"),
            ("cooldown_max_s", 0.5, "use breaker.cooldown_s, 1.0"),
            ("cooldown_max_s", float("inf"), "86400 s"),
            ("jitter", -0.1, "from 0 to below 1"),
            ("jitter", 1.0, "from 0 to below 1"),
        ],
    )
    def test_a_bad_value_is_refused_with_its_field_and_fix(self, field, value, fix):
        with pytest.raises(ConfigError) as caught:
            BreakerConfig(**{field: value})
        assert caught.value.field == f"breaker.{field}"
        assert caught.value.problem == f"is {value}"
        assert fix in caught.value.fix

    def test_the_edges_are_accepted(self):
        BreakerConfig(window=1, minimum=1, failure_ratio=1.0, consecutive=1, jitter=0.0)
        BreakerConfig(cooldown_s=0.001, cooldown_max_s=0.001)
        BreakerConfig(cooldown_s=86_400, cooldown_max_s=86_400)


def test_every_state_can_be_left_and_reached():
    assert {before for before, _ in TRANSITIONS} == set(BreakerState)
    assert set(TRANSITIONS.values()) == set(BreakerState)
    assert {signal for _, signal in TRANSITIONS} == set(BreakerSignal)


class BreakerAgainstModel(RuleBasedStateMachine):
    """Drives a breaker as many callers would, beside a model that keeps plain lists.

    The model is told which attempts exist and what they answered, and derives from that alone what
    the breaker may do. Each attempt knows whether it is the trial.
    """

    CONFIG = BreakerConfig(window=6, minimum=4, failure_ratio=0.5, consecutive=3)

    def __init__(self) -> None:
        super().__init__()
        self.subject = Breaker(self.CONFIG, Random(11))
        self.now = 0
        self.old_attempts = 0  # ordinary attempts still out; their results may come at any time
        self.trials = 0  # trials still out
        self.is_open = False  # as the model sees it: not closed
        self.counted: list[bool] = []  # what closed has counted since it closed, True = failed
        self.waits_until = 0  # no trial before this
        self.longest = nanos(self.CONFIG.cooldown_max_s * (1 + self.CONFIG.jitter))
        self.shortest = nanos(self.CONFIG.cooldown_s * (1 - self.CONFIG.jitter))

    def expect_opening(self, change: BreakerChange | None) -> None:
        assert change is not None
        assert change.after is OPEN
        assert change.at == self.now
        wait = self.subject.opens_until - self.now
        assert self.shortest <= wait <= self.longest
        self.waits_until = self.subject.opens_until
        self.is_open = True
        self.counted = []

    def counts_are_too_bad(self) -> bool:
        in_a_row = 0
        for failed in reversed(self.counted):
            if not failed:
                break
            in_a_row += 1
        last = self.counted[-self.CONFIG.window :]
        share_counts = len(last) >= self.CONFIG.minimum
        return in_a_row >= self.CONFIG.consecutive or (
            share_counts and last.count(True) * 2 >= len(last)
        )

    @rule(step=st.one_of(st.integers(0, 3 * SECOND), st.integers(0, 200 * SECOND)))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule(times=st.integers(1, 5))
    def callers_ask(self, times: int) -> None:
        before = counts_of(self.subject)
        answers = {self.subject.would_allow(self.now) for _ in range(times)}
        assert len(answers) == 1
        assert counts_of(self.subject) == before

    @rule()
    def a_caller_claims(self) -> None:
        promised = self.subject.would_allow(self.now)
        decision = self.subject.allow(self.now)
        assert decision.allowed is promised
        assert decision.reason
        if not self.is_open:
            assert decision.allowed
            assert decision is not TRIAL
            self.old_attempts += 1
        elif self.trials or self.now < self.waits_until:
            assert not decision.allowed
        else:
            assert decision is TRIAL
            self.trials += 1

    @precondition(lambda self: self.old_attempts)
    @rule(outcome=st.sampled_from(Outcome), strong=st.booleans())
    def an_ordinary_attempt_ends(self, outcome: Outcome, strong: bool) -> None:
        self.old_attempts -= 1
        before = counts_of(self.subject)
        change = self.subject.record(outcome, self.now, strong=strong)
        if self.is_open or outcome in NEUTRAL:
            assert change is None
            assert counts_of(self.subject) == before
            return
        self.counted.append(outcome is FAILURE)
        if outcome is FAILURE and (strong or self.counts_are_too_bad()):
            self.expect_opening(change)
        else:
            assert change is None

    @precondition(lambda self: self.trials)
    @rule(outcome=st.sampled_from(Outcome))
    def the_trial_ends(self, outcome: Outcome) -> None:
        self.trials -= 1
        change = self.subject.record(outcome, self.now, trial=True)
        if outcome is FAILURE:
            self.expect_opening(change)
        elif outcome is SUCCESS:
            assert change is not None
            assert change.after is CLOSED
            self.is_open = False
            self.counted = []
        else:
            assert change is None
            if outcome is Outcome.BACKPRESSURE:
                self.waits_until = self.subject.opens_until
                base = nanos(self.CONFIG.cooldown_s * (1 + self.CONFIG.jitter))
                assert self.now < self.waits_until <= self.now + base

    @invariant()
    def at_most_one_trial_is_out(self) -> None:
        assert self.trials <= 1
        assert self.subject._trial_out is (self.trials == 1)

    @invariant()
    def it_is_closed_exactly_when_the_model_is(self) -> None:
        assert (self.subject.state is CLOSED) is not self.is_open
        if self.trials:
            assert self.subject.state is HALF_OPEN

    @invariant()
    def it_is_never_stuck(self) -> None:
        if not self.trials:
            assert self.subject.would_allow(self.now + self.longest)
            assert self.subject.would_allow(max(self.now, self.subject.opens_until))

    @invariant()
    def it_counts_what_the_model_counts(self) -> None:
        last = self.counted[-self.CONFIG.window :]
        assert self.subject._window.count == len(last)
        assert self.subject._window.failures == last.count(True)


BreakerAgainstModel.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40)
TestBreakerAgainstModel = BreakerAgainstModel.TestCase
