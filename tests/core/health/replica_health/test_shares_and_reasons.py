"""What a replica's health says: its share, when it is asked, and why it is as it is."""

from itertools import pairwise

import pytest
from health_stage import FAIL, PASS, feed, make, ready

from holdfast.core.health.health import Conclusion, HealthConfig, Signal
from holdfast.core.health.lifecycle import REASONS
from holdfast.core.types import SECOND, ConfigError, State

# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "field", "fix"),
    [
        ({"canary_s": 0.0}, "health.canary_s", "seconds above 0"),
        ({"canary_suspect_s": -1.0}, "health.canary_suspect_s", "seconds above 0"),
        ({"load_timeout_s": float("inf")}, "health.load_timeout_s", "finite"),
        ({"forgive_s": float("nan")}, "health.forgive_s", "finite"),
        ({"canary_jitter": 1.0}, "health.canary_jitter", "[0, 1)"),
        ({"suspect_share": 0.0}, "health.suspect_share", "(0, 1]"),
        ({"slow_start_floor": 1.1}, "health.slow_start_floor", "(0, 1]"),
        ({"passes_to_admit": 0}, "health.passes_to_admit", "1 or more"),
        ({"failures_to_quarantine": 0}, "health.failures_to_quarantine", "1 or more"),
        ({"refusals_to_dead": -1}, "health.refusals_to_dead", "1 or more"),
        ({"history_max": 0}, "health.history_max", "1 or more"),
        ({"canary_suspect_s": 9.0}, "health.canary_suspect_s", "at least as often"),
        ({"passes_to_readmit_wrong": 2}, "health.passes_to_readmit_wrong", "as much proof"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_field_and_fix(values, field, fix):
    with pytest.raises(ConfigError) as caught:
        HealthConfig(**values)
    assert caught.value.field == field
    assert fix in caught.value.fix


def test_the_defaults_are_those_of_the_table():
    config = HealthConfig()
    assert (config.canary_s, config.canary_suspect_s) == (5.0, 1.0)
    assert (config.suspect_share, config.slow_start_s) == (0.1, 30.0)


# --- shares and canaries --------------------------------------------------------------------------


def test_a_readmitted_replica_starts_slowly_and_linearly():
    health = ready(now=100 * SECOND)
    shares = [health.share((100 + s) * SECOND) for s in (0, 10, 20, 29, 30, 300)]
    assert shares == pytest.approx([0.1, 0.4, 0.7, 0.97, 1.0, 1.0])
    assert health.share(0) == 0.1  # a clock of the past never yields a negative share


def test_canaries_are_asked_only_where_they_are_judged():
    health = make()
    assert not health.canary_due(10**15)
    feed(health, Signal.LOADED)
    assert health.canary_due(0)
    health.canary_started(0)
    assert not health.canary_due(0)


@pytest.mark.parametrize(
    ("signals", "period_s"),
    [
        ([Signal.LOADED], 1.0),
        ([Signal.LOADED, PASS], 5.0),
        ([Signal.LOADED, PASS, FAIL], 1.0),
        ([Signal.LOADED, PASS, Signal.STALLED], 2.0),
    ],
)
def test_the_period_depends_on_the_state_and_is_jittered_within_a_fifth(signals, period_s):
    health = make()
    feed(health, *signals)
    waits = []
    for _ in range(200):
        health.canary_started(0)
        waits.append(health.next_canary_at / SECOND)
    assert min(waits) >= 0.8 * period_s
    assert max(waits) <= 1.2 * period_s
    assert max(waits) - min(waits) > 0.3 * period_s


def test_a_canary_can_be_called_early_but_not_delayed():
    health = ready()
    health.canary_started(0)
    planned = health.next_canary_at
    health.call_canary(planned + SECOND)
    assert health.next_canary_at == planned
    health.call_canary(SECOND)
    assert health.canary_due(SECOND)


def test_a_call_is_remembered_until_a_canary_is_sent():
    health = ready()
    assert not health.called
    health.call_canary(SECOND)
    assert health.called
    health.canary_started(SECOND)
    assert not health.called


def test_the_history_is_bounded():
    health = ready(history_max=3)
    for _ in range(10):
        feed(health, Signal.NO_SUCCESS, PASS)
    assert len(health.history) == 3
    assert feed(health, Signal.DRAIN) is State.DRAINING


# --- reasons --------------------------------------------------------------------------------------


def test_a_reason_counts_the_right_answers_of_a_probation_and_ends_with_it():
    health = ready()
    feed(health, FAIL, FAIL, FAIL)
    assert health.state is State.QUARANTINED
    before = health.reason
    feed(health, PASS)
    assert health.reason == f"{before}; 1 of 3 right answers since"
    feed(health, PASS, PASS)
    assert health.state is State.READY
    assert health.reason == REASONS[Conclusion.PASSED_ENOUGH]


def test_a_reason_promises_nothing_to_whom_right_answers_cannot_help():
    health = ready()
    feed(health, Signal.TAKEN_OUT, PASS)
    assert health.reason == REASONS[Signal.TAKEN_OUT]
    health.let_back()  # the incident was closed by an operator
    assert health.reason.endswith("that is over; 1 of 3 right answers since")


def test_a_ready_replica_gives_the_reason_of_its_latest_canary():
    health = make()
    health.handle(Signal.LOADED, 0)
    health.handle(PASS, 0, "no peer has confirmed it yet")
    assert health.reason.endswith("(no peer has confirmed it yet)")
    assert health.handle(PASS, 1, "confirmed: r1 and r2 agree") is None
    assert health.reason.endswith("(confirmed: r1 and r2 agree)")
    health.handle(PASS, 2)
    assert health.reason.endswith("(confirmed: r1 and r2 agree)")


def test_a_reason_tells_a_start_that_is_awaited_from_one_that_was_made():
    health = make()
    assert "first start" in health.reason
    health.handle(Signal.LAUNCHED, 0)
    assert health.reason == REASONS[Signal.LAUNCHED]
    feed(health, Signal.LOADED, PASS, Signal.STALLED)
    health.handle(Signal.RELAUNCH, 1, health.reason)
    assert health.reason == f"{REASONS[Signal.RELAUNCH]}: {REASONS[Signal.STALLED]}"
    health.handle(Signal.LAUNCHED, 2)
    assert health.reason == REASONS[Signal.LAUNCHED]


@pytest.mark.parametrize("verdict", REASONS)
def test_a_reason_has_no_word_twice(verdict):
    words = REASONS[verdict].replace(";", "").replace(":", "").split()
    assert all(a != b for a, b in pairwise(words))
