"""Calls to one deployment: bounded in time, number and load, whatever the deployment does."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.failure import Kind
from holdfast.core.request.breaker import BreakerConfig, BreakerState
from holdfast.core.request.guard.call_guard import (
    CallGuard,
    GuardConfig,
    GuardedAttempt,
    GuardedCall,
    GuardRefusal,
)
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import MILLISECOND, SECOND, ConfigError, nanos
from sampling import examples

CONFIG = GuardConfig(deadline_s=10.0, attempt_s=4.0)


def guarded(config=CONFIG, seed=3):
    return CallGuard(config, Random(seed))


def begun(guard, now, **more):
    """A call and its first attempt."""
    call = guard.open(now, **more)
    assert isinstance(call, GuardedCall)
    attempt = guard.begin(call, now)
    assert isinstance(attempt, GuardedAttempt)
    return call, attempt


def answer(guard, now, took=20 * MILLISECOND, **more):
    call, attempt = begun(guard, now, **more)
    guard.answered(call, attempt, now + took)
    guard.close(call)


def fail(guard, now, kind=Kind.SERVER_ERROR):
    call, attempt = begun(guard, now)
    step = guard.failed(call, attempt, kind, now)
    guard.close(call)
    return step


class TestAdmission:
    def test_a_call_gets_the_deadline_of_its_caller_or_of_the_config(self):
        guard = guarded()
        assert begun(guard, 0)[0].deadline == 10 * SECOND
        assert begun(guard, 0, deadline=3 * SECOND)[0].deadline == 3 * SECOND
        assert begun(guard, 0, deadline=90 * SECOND)[0].deadline == 10 * SECOND

    def test_a_call_without_time_is_not_sent(self):
        refused = guarded().open(5, deadline=5)
        assert isinstance(refused, GuardRefusal)
        assert refused.kind is Kind.DEADLINE

    def test_no_more_calls_at_once_than_permitted(self):
        guard = guarded(replace(CONFIG, inflight_max=2))
        first, attempt = begun(guard, 0)
        begun(guard, 0)
        refused = guard.open(0)
        assert isinstance(refused, GuardRefusal)
        assert refused.kind is Kind.OVERLOADED
        assert "2 calls" in refused.reason
        guard.answered(first, attempt, 1)
        guard.close(first)
        assert isinstance(guard.open(2), GuardedCall)


class TestErrors:
    def test_five_failures_in_a_row_open_the_circuit_and_one_trial_closes_it(self):
        guard = guarded()
        for number in range(5):
            fail(guard, number)
        refused = guard.open(10)
        assert isinstance(refused, GuardRefusal)
        assert refused.kind is Kind.REFUSED
        assert 0 < refused.retry_after_s <= 1.2
        later = 2 * SECOND
        call, trial = begun(guard, later)
        assert trial.trial
        assert isinstance(guard.open(later), GuardRefusal), "one trial at a time"
        guard.answered(call, trial, later + 1)
        guard.close(call)
        assert guard.breaker.state is BreakerState.CLOSED

    def test_a_failure_is_retried_and_a_bad_request_is_not(self):
        guard = guarded()
        call, attempt = begun(guard, 0)
        step = guard.failed(call, attempt, Kind.SERVER_ERROR, 1)
        assert step.again
        assert step.delay <= nanos(0.05)
        second = guard.begin(call, step.delay)
        last = guard.failed(call, second, Kind.SERVER_ERROR, 2)
        assert not last.again
        assert last.reason == "all attempts used"
        assert not fail(guard, 3, Kind.BAD_REQUEST).again

    def test_bad_requests_and_backpressure_do_not_open_the_circuit(self):
        guard = guarded()
        for number in range(50):
            fail(guard, number, Kind.BAD_REQUEST if number % 2 else Kind.OVERLOADED)
        assert guard.breaker.state is BreakerState.CLOSED

    def test_nobody_there_opens_it_at_once_and_the_retry_is_free(self):
        guard = guarded()
        call, attempt = begun(guard, 0)
        step = guard.failed(call, attempt, Kind.REFUSED, 0)
        assert step.again
        assert call.attempts_made == 0
        assert isinstance(guard.begin(call, 0), GuardRefusal)
        assert guard.breaker.state is BreakerState.OPEN

    def test_retries_are_bounded_by_the_budget(self):
        guard = guarded(replace(CONFIG, breaker=BreakerConfig(enabled=False)))
        again = sum(fail(guard, SECOND + number).again for number in range(1_000))
        assert again <= 0.2 * 1_000 + 100


class TestLateness:
    def test_a_deployment_that_hangs_from_its_first_call_opens_the_circuit(self):
        guard = guarded()
        now = 0
        for _ in range(5):
            call, attempt = begun(guard, now)
            assert attempt.due == now + 4 * SECOND, "attempt_s until learned"
            now = attempt.due
            step = guard.overdue(call, attempt, now)
            assert not step.again, "nobody was answered: a retry would only add load"
            guard.close(call)
        assert isinstance(guard.open(now), GuardRefusal)

    def test_the_patience_of_a_caller_is_not_held_against_the_deployment(self):
        guard = guarded()
        for _ in range(20):
            call, attempt = begun(guard, 0, deadline=SECOND)
            assert attempt.due == SECOND
            step = guard.overdue(call, attempt, SECOND)
            assert (step.again, step.kind) == (False, Kind.DEADLINE)
            guard.close(call)
        assert guard.breaker.state is BreakerState.CLOSED

    def test_waits_are_learned_and_one_that_hangs_among_answers_is_retried(self):
        guard = guarded()
        now = learned(guard)
        call, attempt = begun(guard, now)
        assert attempt.due - now == SECOND, "the floor, far below attempt_s"
        answer(guard, now)
        step = guard.overdue(call, attempt, attempt.due)
        assert step.again
        assert step.kind is Kind.FIRST_TOKEN_TIMEOUT
        assert guard.breaker.state is BreakerState.CLOSED

    def test_a_deployment_that_became_slow_as_a_whole_gets_more_time_and_no_retries(self):
        guard = guarded()
        now = learned(guard) + 30 * SECOND
        waits = []
        for _ in range(4):
            call, attempt = begun(guard, now)
            waits.append(attempt.due - now)
            now = attempt.due
            assert not guard.overdue(call, attempt, now).again
            guard.close(call)
        assert waits[0] == SECOND
        assert waits[-1] > waits[0]
        assert max(waits) <= 4 * SECOND, "never beyond attempt_s"

    def test_a_stream_is_bounded_between_its_items_and_never_repeated(self):
        guard = guarded()
        call, attempt = begun(guard, 0, streamed=True)
        guard.item(call, attempt, SECOND)
        assert attempt.due == 5 * SECOND
        guard.item(call, attempt, 2 * SECOND)
        step = guard.overdue(call, attempt, attempt.due)
        assert (step.again, step.kind) == (False, Kind.BETWEEN_TOKENS_TIMEOUT)


def learned(guard):
    """Let it answer until deadlines are learned; returns the time then."""
    for number in range(300):
        answer(guard, number * 50 * MILLISECOND)
    return 300 * 50 * MILLISECOND


class TestHedges:
    HEDGED = replace(CONFIG, slots=10, hedge=HedgeConfig(enabled=True))

    def test_off_unless_asked_for_and_known_to_have_room(self):
        guard = guarded()
        now = learned(guard)
        call, attempt = begun(guard, now)
        assert guard.hedge_at(call, attempt) is None
        unknown = guarded(replace(self.HEDGED, slots=0))
        now = learned(unknown)
        call, attempt = begun(unknown, now)
        assert unknown.hedge(call, now + SECOND) is None

    def test_a_late_one_gets_a_second_attempt_once_and_within_the_cap(self):
        guard = guarded(self.HEDGED)
        now = learned(guard)
        made = 0
        for _ in range(40):
            call, attempt = begun(guard, now)
            at = guard.hedge_at(call, attempt)
            assert now < at < attempt.due
            hedge = guard.hedge(call, at)
            assert guard.hedge_at(call, attempt) is None
            if hedge is not None:
                made += 1
                guard.superseded(call, hedge, at)
            guard.answered(call, attempt, at)
            guard.close(call)
        assert 1 <= made <= 2 + 0.05 * 340

    def test_a_trial_is_not_doubled(self):
        guard = guarded(self.HEDGED)
        now = learned(guard)
        for number in range(5):
            fail(guard, now + number)
        call, trial = begun(guard, now + 2 * SECOND)
        assert trial.trial
        assert guard.hedge(call, now + 3 * SECOND) is None

    def test_one_of_two_that_fails_waits_for_the_other(self):
        guard = guarded(self.HEDGED)
        now = learned(guard)
        call, first = begun(guard, now)
        second = guard.hedge(call, guard.hedge_at(call, first))
        step = guard.failed(call, first, Kind.RESET, now + SECOND)
        assert (step.again, step.reason) == (False, "another attempt is under way")
        guard.answered(call, second, now + SECOND)
        guard.close(call)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"deadline_s": 0}, "guard.deadline_s"),
        ({"attempt_s": 11.0}, "guard.attempt_s"),
        ({"floor_s": 5.0}, "guard.floor_s"),
        ({"inflight_max": 0}, "guard.inflight_max"),
        ({"slots": -1}, "guard.slots"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(bad, field):
    with pytest.raises(ConfigError, match=field):
        replace(CONFIG, **bad)


ENDS = st.sampled_from(
    ["answer", "late", "leave", Kind.SERVER_ERROR, Kind.REFUSED, Kind.OVERLOADED, Kind.BAD_REQUEST]
)


@settings(max_examples=examples(150))
@given(st.lists(st.tuples(ENDS, st.integers(0, 3_000)), max_size=80), st.integers(0, 99))
def test_any_history_keeps_its_bounds(history, seed):
    """Attempts per call, waits, calls under way and the one trial hold, whatever happens."""
    config = replace(CONFIG, retry=RetryConfig(attempts=3), inflight_max=4)
    guard, now = guarded(config, seed), 0
    for end, later_ms in history:
        now += later_ms * MILLISECOND
        call = guard.open(now)
        if isinstance(call, GuardRefusal):
            assert guard.inflight <= 4
            continue
        paid, again = 0, True
        while again:
            attempt = guard.begin(call, now)
            if isinstance(attempt, GuardRefusal):
                break
            paid += 1
            assert now < attempt.due <= min(now + 4 * SECOND, call.deadline)
            other = guard.open(now)
            if isinstance(other, GuardedCall):
                assert not attempt.trial, "nobody else passes while a trial is out"
                guard.close(other)
            again = False
            if end == "answer":
                guard.answered(call, attempt, now + 1)
            elif end == "leave":
                guard.superseded(call, attempt, now)
            else:
                late = end == "late"
                now = attempt.due if late else now
                step = (
                    guard.overdue(call, attempt, now)
                    if late
                    else guard.failed(call, attempt, end, now)
                )
                again = step.again
                now += step.delay
                assert now <= call.deadline
        assert paid <= 3 + 1, "three, and one free"
        guard.close(call)
    assert guard.inflight == 0
