from itertools import pairwise
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.health.health import (
    TRANSITIONS,
    Conclusion,
    HealthConfig,
    ImpossibleSignalError,
    ReplicaHealth,
    Signal,
)
from holdfast.core.health.lifecycle import JUDGED, REASONS, ROUTABLE
from holdfast.core.types import SECOND, ConfigError, State
from sampling import examples

PASS, FAIL, WRONG, SLOW = (
    Signal.CANARY_PASS,
    Signal.CANARY_FAIL,
    Signal.CANARY_WRONG,
    Signal.CANARY_SLOW,
)


def make(now: int = 0, **config: object) -> ReplicaHealth:
    return ReplicaHealth(HealthConfig(**config), "r1", "m", now, Random(1))


def feed(health: ReplicaHealth, *signals: Signal, now: int = 0) -> State:
    for signal in signals:
        health.handle(signal, now)
    return health.state


def ready(now: int = 0, **config: object) -> ReplicaHealth:
    health = make(now, **config)
    assert feed(health, Signal.LOADED, PASS, now=now) is State.READY
    return health


def liar() -> ReplicaHealth:
    health = ready()
    assert feed(health, WRONG, WRONG) is State.QUARANTINED
    return health


# --- configuration -------------------------------------------------------------------------------


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


# --- admission -----------------------------------------------------------------------------------


def test_a_replica_lives_from_start_over_loading_and_warming_to_ready():
    health = make()
    steps = (Signal.LAUNCHED, Signal.LOAD_BEGAN, Signal.LOADED, PASS)
    assert health.state is State.STARTING
    assert [feed(health, signal) for signal in steps] == [
        State.STARTING,
        State.LOADING,
        State.WARMING,
        State.READY,
    ]


def test_loaded_is_not_ready():
    health = make()
    feed(health, Signal.LOADED, Signal.PASSIVE_OK, Signal.BUSY, Signal.UNKNOWN, Signal.LOADED)
    assert health.state is State.WARMING
    assert health.share(10**12) == 0.0


def test_a_canary_answered_before_the_model_is_loaded_admits_nobody():
    assert feed(make(), PASS, PASS, Signal.LOAD_BEGAN, PASS) is State.LOADING


def test_admission_can_ask_for_several_right_answers_in_a_row():
    health = make(passes_to_admit=2)
    assert feed(health, Signal.LOADED, PASS, FAIL, PASS) is State.WARMING
    assert feed(health, PASS) is State.READY


def test_a_right_but_slow_newcomer_gets_a_tenth():
    health = make()
    assert feed(health, Signal.LOADED, SLOW) is State.SUSPECT
    assert health.share(0) == 0.1


def test_a_newcomer_that_dies_at_its_canary_never_had_a_share():
    health = make()
    assert feed(health, Signal.LOADED, Signal.EXITED) is State.DEAD
    assert all(change.after not in ROUTABLE for change in health.history)


def test_a_start_that_takes_too_long_is_dead():
    health = make(now=100, load_timeout_s=60.0)
    assert health.load_deadline == 100 + 60 * SECOND
    assert feed(health, Signal.LOAD_BEGAN, Signal.LOAD_TIMEOUT) is State.DEAD
    assert health.load_deadline is None


def test_waiting_for_hardware_does_not_count_as_loading():
    health = make(load_timeout_s=60.0)
    health.handle(Signal.LAUNCHED, 50 * SECOND)
    assert health.load_deadline == 110 * SECOND
    health.handle(Signal.LOAD_BEGAN, 60 * SECOND)
    health.handle(Signal.LAUNCHED, 70 * SECOND)
    assert health.load_deadline == 110 * SECOND


def test_one_that_is_queued_for_hardware_waits_as_long_as_it_takes_and_says_for_what():
    health = make(load_timeout_s=60.0)
    for second in (50, 100, 150):
        assert health.handle(Signal.QUEUED, second * SECOND, "2 GPUs wanted") is None
        assert health.load_deadline == (second + 60) * SECOND
    assert health.state is State.STARTING
    assert health.reason == "waits for hardware (2 GPUs wanted)"
    health.handle(Signal.LAUNCHED, 155 * SECOND)
    assert health.reason == "its process was started"
    health.handle(Signal.LOAD_BEGAN, 160 * SECOND)
    health.handle(Signal.QUEUED, 165 * SECOND, "late news")  # of before it was started
    assert (health.load_deadline, health.reason) == (215 * SECOND, "loads the model")


def test_warming_keeps_the_deadline_and_ready_has_none():
    health = make(load_timeout_s=60.0)
    health.handle(Signal.LOADED, 5 * SECOND)
    assert health.load_deadline == 60 * SECOND
    health.handle(PASS, 6 * SECOND)
    assert health.load_deadline is None


# --- suspicion and quarantine --------------------------------------------------------------------


@pytest.mark.parametrize(
    "signal", [FAIL, WRONG, Signal.PASSIVE_FAILING, Signal.REFUSED], ids=lambda s: s.value
)
def test_the_first_doubt_makes_a_suspect_at_a_tenth(signal):
    health = ready()
    change = health.handle(signal, 60 * SECOND, "seen by gateway 1")
    assert change is not None
    assert (change.before, change.after, change.signal) == (State.READY, State.SUSPECT, signal)
    assert change.reason.endswith("(seen by gateway 1)")
    assert health.share(60 * SECOND) == 0.1


def test_two_further_failures_quarantine():
    health = ready()
    assert feed(health, FAIL, FAIL) is State.SUSPECT
    assert feed(health, Signal.PASSIVE_FAILING) is State.QUARANTINED
    assert health.on_suspicion
    assert not health.never_readmit_by_panic
    assert health.share(0) == 0.0
    assert health.share(0, panic=True) == 0.1


def test_failures_must_come_in_a_row():
    health = ready()
    assert feed(health, FAIL, FAIL, PASS, FAIL) is State.SUSPECT


def test_two_right_answers_in_a_row_clear_a_suspect():
    health = ready()
    assert feed(health, FAIL, PASS, FAIL, PASS) is State.SUSPECT
    assert feed(health, PASS) is State.READY


@pytest.mark.parametrize("signal", [Signal.BUSY, Signal.UNKNOWN, Signal.PASSIVE_OK])
def test_neutral_news_neither_accuse_nor_clear(signal):
    health = ready()
    assert feed(health, *[signal] * 50) is State.READY
    assert feed(health, FAIL, *[signal] * 50) is State.SUSPECT
    assert feed(health, FAIL, FAIL, *[signal] * 50) is State.QUARANTINED


def test_a_stall_quarantines_at_once():
    health = ready()
    assert feed(health, Signal.STALLED) is State.QUARANTINED
    assert health.on_suspicion
    assert feed(ready(), FAIL, Signal.STALLED) is State.QUARANTINED


def test_nothing_but_backpressure_is_not_ready_and_one_pass_ends_it():
    health = ready()
    assert feed(health, Signal.NO_SUCCESS, Signal.BUSY) is State.QUARANTINED
    assert health.on_suspicion
    assert feed(health, PASS) is State.READY


def test_slowness_suspects_after_three_in_a_row_and_never_ejects():
    health = ready()
    assert feed(health, SLOW, SLOW, PASS, SLOW, SLOW) is State.READY
    assert feed(health, SLOW) is State.SUSPECT
    assert feed(health, *[SLOW] * 100) is State.SUSPECT
    assert feed(health, PASS, SLOW, PASS) is State.SUSPECT
    assert feed(health, PASS) is State.READY


def test_quarantine_ends_after_three_right_answers_in_a_row():
    health = ready()
    feed(health, Signal.STALLED)
    assert feed(health, PASS, PASS, FAIL, PASS, PASS) is State.QUARANTINED
    assert feed(health, PASS) is State.READY


def test_each_relapse_asks_for_twice_the_proof_up_to_a_bound():
    health = ready()
    needed = []
    for _ in range(6):
        feed(health, Signal.STALLED)
        count = 0
        while health.state is State.QUARANTINED:
            feed(health, PASS)
            count += 1
        needed.append(count)
    assert needed == [3, 6, 12, 24, 24, 24]


def test_relapses_are_forgotten_after_a_long_good_life():
    health = ready()
    feed(health, FAIL, PASS, PASS)
    feed(health, FAIL, now=299 * SECOND)
    assert feed(health, PASS, PASS, now=299 * SECOND) is State.SUSPECT
    assert feed(health, PASS, PASS, now=299 * SECOND) is State.READY
    feed(health, FAIL, now=600 * SECOND)
    assert feed(health, PASS, PASS, now=600 * SECOND) is State.READY


def test_honest_backpressure_is_no_relapse():
    health = ready()
    feed(health, Signal.NO_SUCCESS, PASS, Signal.NO_SUCCESS, PASS, Signal.STALLED)
    assert feed(health, PASS, PASS, PASS) is State.READY


# --- no room -------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [FAIL]], ids=["ready", "suspect"])
def test_without_room_it_is_out_on_suspicion_until_it_has_some_and_one_right_answer(before):
    health = ready()
    feed(health, *before)
    assert not health.would_be_firm(Signal.NO_HEADROOM)
    assert feed(health, Signal.NO_HEADROOM) is State.QUARANTINED
    assert health.full
    assert health.on_suspicion
    assert feed(health, *[PASS] * 20) is State.QUARANTINED
    change = health.handle(Signal.HEADROOM_BACK, 1)
    assert change is not None
    assert (change.after, health.full) == (State.QUARANTINED, False)
    assert feed(health, PASS) is State.READY


def test_lack_of_room_is_no_relapse():
    health = ready()
    for _ in range(5):
        feed(health, Signal.NO_HEADROOM, Signal.HEADROOM_BACK, PASS)
    feed(health, Signal.STALLED)
    assert feed(health, PASS, PASS, PASS) is State.READY


def test_one_quarantined_for_another_reason_owes_its_proof_and_room():
    health = ready()
    feed(health, Signal.STALLED)
    assert health.handle(Signal.NO_HEADROOM, 1) is not None
    assert health.handle(Signal.NO_HEADROOM, 2) is None  # told once
    feed(health, Signal.HEADROOM_BACK)
    assert feed(health, PASS, PASS) is State.QUARANTINED
    assert feed(health, PASS) is State.READY


def test_a_newcomer_without_room_is_not_admitted_not_even_for_a_tenth():
    health = make()
    feed(health, Signal.LOADED)
    assert health.handle(Signal.NO_HEADROOM, 1) is None
    assert feed(health, PASS, SLOW, PASS) is State.WARMING
    assert feed(health, Signal.HEADROOM_BACK, SLOW) is State.SUSPECT


def test_a_drain_does_not_make_room():
    health = ready()
    feed(health, Signal.NO_HEADROOM, Signal.DRAIN, Signal.HEADROOM_BACK)
    assert feed(health, Signal.UNDRAIN, *[PASS] * 9) is State.QUARANTINED
    assert feed(health, Signal.HEADROOM_BACK, PASS) is State.READY


# --- stopped processes ---------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [FAIL], [Signal.STALLED]], ids=str)
def test_a_stopped_process_is_out_on_a_fact(before):
    health = ready()
    feed(health, *before)
    assert health.would_be_firm(Signal.FROZEN)
    assert health.handle(Signal.FROZEN, 1) is not None
    assert health.state is State.QUARANTINED
    assert health.never_readmit_by_panic
    assert not health.on_suspicion
    assert health.share(0, panic=True) == 0.0
    assert health.handle(Signal.FROZEN, 2) is None


def test_a_stopped_process_is_not_asked_and_not_admitted():
    health = ready()
    feed(health, Signal.FROZEN)
    assert not health.canary_due(10**15)
    assert feed(health, *[PASS] * 20) is State.QUARANTINED


def test_a_process_that_runs_again_begins_its_proof_anew():
    health = ready()
    feed(health, Signal.FROZEN, PASS, PASS)
    change = health.handle(Signal.THAWED, 1)
    assert change is not None
    assert "runs again" in change.reason
    assert health.on_suspicion
    assert not health.never_readmit_by_panic
    assert feed(health, PASS, PASS) is State.QUARANTINED
    assert feed(health, PASS) is State.READY


@pytest.mark.parametrize(
    "before", [[], [Signal.LOAD_BEGAN], [Signal.LOADED], [Signal.LOADED, Signal.DRAIN]], ids=str
)
def test_a_process_stopped_where_it_serves_nobody_stays_in_its_state(before):
    health = make()
    state = feed(health, *before)
    deadline = health.load_deadline
    assert health.handle(Signal.FROZEN, 1) is not None
    assert feed(health, PASS, SLOW) is state
    assert health.handle(Signal.THAWED, 2) is not None
    assert (health.state, health.load_deadline) == (state, deadline)
    assert health.handle(Signal.THAWED, 3) is None


@pytest.mark.parametrize("end", [Signal.EXITED, Signal.STOP])
def test_marks_of_a_process_end_with_it(end):
    health = ready()
    feed(health, Signal.NO_HEADROOM, Signal.FROZEN, end)
    assert (health.full, health.frozen) == (False, False)
    feed(health, Signal.FROZEN, Signal.NO_HEADROOM)
    assert not health.frozen
    assert not health.full


def test_a_new_process_is_neither_full_nor_stopped():
    health = ready()
    feed(health, Signal.NO_HEADROOM, Signal.FROZEN, Signal.RELAUNCH)
    assert not health.full
    assert not health.frozen
    assert feed(health, Signal.LOADED, PASS) is State.READY


# --- refusal and death ---------------------------------------------------------------------------


def test_refused_twice_with_nobody_served_between_is_dead():
    assert feed(ready(), Signal.REFUSED, Signal.REFUSED) is State.DEAD
    assert feed(ready(), Signal.REFUSED, Signal.PASSIVE_OK, Signal.REFUSED) is State.SUSPECT


def test_a_closed_port_is_normal_while_starting_loading_and_draining():
    refusals = [Signal.REFUSED] * 5
    assert feed(make(), *refusals) is State.STARTING
    assert feed(make(), Signal.LOAD_BEGAN, *refusals) is State.LOADING
    assert feed(ready(), Signal.DRAIN, *refusals) is State.DRAINING


@pytest.mark.parametrize("signal", [s for s in Signal if s is not Signal.RELAUNCH])
def test_nothing_but_a_relaunch_moves_the_dead(signal):
    health = ready()
    feed(health, Signal.EXITED)
    if (State.DEAD, signal) in TRANSITIONS:
        assert health.handle(signal, 1) is None
        assert health.never_readmit_by_panic
    else:
        with pytest.raises(ImpossibleSignalError):
            health.handle(signal, 1)
    assert health.state is State.DEAD


def test_a_relaunch_begins_a_new_life_with_nothing_remembered():
    health = liar()
    feed(health, Signal.EXITED)
    change = health.handle(Signal.RELAUNCH, 7 * SECOND, "other zone")
    assert change is not None
    assert health.state is State.STARTING
    assert (health.incarnation, health.since) == (1, 7 * SECOND)
    assert not health.wrong
    assert feed(health, Signal.LOADED, WRONG) is State.WARMING
    assert feed(health, PASS) is State.READY


def test_a_relaunch_of_a_starting_replica_is_told_and_restarts_its_clock():
    health = make(load_timeout_s=60.0)
    change = health.handle(Signal.RELAUNCH, 30 * SECOND)
    assert change is not None
    assert (change.before, change.after) == (State.STARTING, State.STARTING)
    assert health.load_deadline == 90 * SECOND


# --- lies ----------------------------------------------------------------------------------------


def test_one_wrong_answer_suspects_and_the_second_in_a_row_is_firm():
    health = ready()
    assert not health.would_be_firm(WRONG)
    feed(health, WRONG)
    assert health.would_be_firm(WRONG)
    feed(health, FAIL)
    assert feed(health, WRONG) is State.QUARANTINED
    assert health.wrong
    assert health.never_readmit_by_panic
    assert not health.on_suspicion
    assert health.share(0, panic=True) == 0.0


def test_a_right_answer_between_two_wrong_ones_breaks_the_row():
    assert feed(ready(), WRONG, PASS, WRONG) is State.SUSPECT


def test_a_newcomer_that_lies_twice_is_never_admitted_on_a_single_pass():
    health = make()
    assert feed(health, Signal.LOADED, WRONG, WRONG) is State.QUARANTINED
    assert feed(health, PASS) is State.QUARANTINED


def test_a_liar_needs_ten_right_answers_in_a_row():
    health = liar()
    feed(health, *[PASS] * 9, WRONG)
    assert feed(health, *[PASS] * 9) is State.QUARANTINED
    assert health.wrong
    assert feed(health, PASS) is State.READY
    assert not health.wrong


def test_a_second_spell_of_lies_bars_until_a_relaunch():
    health = liar()
    feed(health, *[PASS] * 10)
    assert feed(health, WRONG, WRONG) is State.QUARANTINED
    assert health.barred
    assert feed(health, *[PASS] * 1000) is State.QUARANTINED
    assert feed(health, Signal.RELAUNCH, Signal.LOADED, PASS) is State.READY
    assert not health.barred


def test_lying_in_a_quarantine_on_suspicion_makes_it_graver_and_is_told_once():
    health = ready()
    feed(health, Signal.STALLED, WRONG)
    change = health.handle(WRONG, 5)
    assert change is not None
    assert (change.before, change.after) == (State.QUARANTINED, State.QUARANTINED)
    assert "wrong" in change.reason
    assert health.never_readmit_by_panic
    assert health.handle(WRONG, 6) is None
    assert feed(health, PASS, PASS, PASS) is State.QUARANTINED


@pytest.mark.parametrize(
    "before", [[], [Signal.LOAD_BEGAN], [Signal.LOADED], [Signal.LOADED, PASS]]
)
def test_another_revision_is_barred_wherever_it_shows(before):
    health = make()
    feed(health, *before)
    assert health.would_be_firm(Signal.WRONG_REVISION)
    assert feed(health, Signal.WRONG_REVISION) is State.QUARANTINED
    assert health.barred
    assert health.never_readmit_by_panic
    assert feed(health, *[PASS] * 100) is State.QUARANTINED
    assert health.handle(Signal.WRONG_REVISION, 1) is None


def test_another_revision_found_during_a_drain_is_remembered():
    health = ready()
    feed(health, Signal.DRAIN)
    assert health.handle(Signal.WRONG_REVISION, 1) is not None
    assert feed(health, Signal.UNDRAIN) is State.QUARANTINED


def test_late_news_about_the_revision_of_a_stopped_replica_changes_nothing():
    health = ready()
    feed(health, Signal.STOP)
    assert health.handle(Signal.WRONG_REVISION, 1) is None
    assert not health.wrong_revision


# --- drain, stop, spot ---------------------------------------------------------------------------


def test_a_drain_ends_stopped_and_an_exit_after_that_is_expected():
    health = ready()
    assert feed(health, Signal.DRAIN) is State.DRAINING
    assert health.share(0) == 0.0
    assert feed(health, Signal.DRAINED) is State.STOPPED
    assert feed(health, Signal.EXITED, Signal.DRAINED) is State.STOPPED


def test_an_exit_during_a_drain_is_a_death():
    assert feed(ready(), Signal.DRAIN, Signal.EXITED) is State.DEAD


def test_an_undrained_replica_needs_one_canary_and_has_a_deadline_for_it():
    health = ready(load_timeout_s=60.0)
    feed(health, Signal.DRAIN)
    assert feed(health, Signal.UNDRAIN, now=5 * SECOND) is State.WARMING
    assert health.load_deadline == 65 * SECOND
    assert health.canary_due(5 * SECOND)
    assert feed(health, PASS) is State.READY


def test_a_drain_does_not_wash_off_a_quarantine():
    health = ready()
    feed(health, Signal.STALLED, Signal.DRAIN)
    assert feed(health, Signal.UNDRAIN) is State.QUARANTINED
    assert health.on_suspicion
    lying = liar()
    feed(lying, Signal.DRAIN)
    assert feed(lying, Signal.UNDRAIN) is State.QUARANTINED
    assert feed(lying, *[PASS] * 9) is State.QUARANTINED


def test_a_spot_notice_drains_and_cannot_be_undrained():
    health = ready()
    assert feed(health, Signal.SPOT_NOTICE) is State.DRAINING
    assert health.handle(Signal.UNDRAIN, 1) is None
    assert health.state is State.DRAINING


def test_undrain_of_somebody_who_does_not_drain_is_ignored():
    assert feed(ready(), Signal.UNDRAIN) is State.READY


def test_our_own_signals_out_of_place_are_loud_and_tell_the_history():
    health = ready()
    for signal in (Signal.DRAINED, Signal.LOAD_TIMEOUT):
        with pytest.raises(ImpossibleSignalError, match=r"r1/m is ready and got .*warming>ready"):
            health.handle(signal, 1)
        with pytest.raises(ImpossibleSignalError):
            health.would_become(signal)


# --- the bound of the pool -----------------------------------------------------------------------


def test_asking_changes_nothing():
    health = ready()
    before = (health.state, health.since, health.reason, *health.history)
    for _ in range(5):
        assert health.would_become(Signal.STALLED) is State.QUARANTINED
        assert health.would_become(FAIL) is State.SUSPECT
        assert not health.would_be_firm(Signal.STALLED)
    assert (health.state, health.since, health.reason, *health.history) == before


def test_a_held_ejection_leaves_a_suspect_whose_next_failure_asks_again():
    health = ready()
    assert feed(health, Signal.BOUND_HELD) is State.SUSPECT
    assert health.held
    assert health.would_become(FAIL) is State.QUARANTINED
    assert health.handle(Signal.BOUND_HELD, 1) is None
    assert health.would_become(FAIL) is State.QUARANTINED
    assert feed(health, PASS, PASS) is State.READY
    assert not health.held


def test_holding_a_suspect_is_told_once_and_wipes_its_passes():
    health = ready()
    feed(health, FAIL, PASS)
    change = health.handle(Signal.BOUND_HELD, 1, "4 of 8 out")
    assert change is not None
    assert change.after is State.SUSPECT
    assert "4 of 8 out" in health.reason
    assert feed(health, PASS) is State.SUSPECT


def test_a_hold_ends_with_the_ejection():
    health = ready()
    feed(health, Signal.BOUND_HELD, FAIL)
    assert health.state is State.QUARANTINED
    assert not health.held


# --- shares and canaries -------------------------------------------------------------------------


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


# --- any sequence of signals ---------------------------------------------------------------------


NEUTRAL = (
    *(Signal.BUSY, Signal.UNKNOWN, Signal.PASSIVE_OK, Signal.LAUNCHED, Signal.LOADED),
    Signal.HEADROOM_BACK,
)
ENDED = (State.STOPPED, State.DEAD)


class Lives(RuleBasedStateMachine):
    """Any legal sequence of signals, checked against what must hold of every life."""

    @initialize(seed=st.integers(0, 1000), wrongs=st.integers(1, 3), passes=st.integers(1, 3))
    def begin(self, seed, wrongs, passes):
        config = HealthConfig(
            wrongs_to_quarantine=wrongs, passes_to_admit=passes, history_max=5, slow_start_s=3.0
        )
        self.now = 0
        self.health = ReplicaHealth(config, "r1", "m", 0, Random(seed))
        self.passed = self.right = False  # since the last launch
        self.passes_in_row = 0
        self.full = self.frozen = False  # as we were told, of the process that runs now

    @rule(
        signal=st.sampled_from(list(Signal))
        | st.sampled_from([PASS, PASS, PASS, WRONG, FAIL, Signal.LOADED])
        | st.sampled_from([Signal.FROZEN, Signal.THAWED, Signal.NO_HEADROOM, Signal.HEADROOM_BACK]),
        step=st.integers(0, 5 * SECOND),
    )
    def any_signal(self, signal, step):
        self.take(signal, step)

    def take(self, signal, step):
        self.now += step
        health = self.health
        before, lied, barred = health.state, health.wrong, health.barred
        if (before, signal) not in TRANSITIONS:
            with pytest.raises(ImpossibleSignalError):
                health.handle(signal, self.now)
            assert health.state is before
            return
        expected, firm = health.would_become(signal), health.would_be_firm(signal)
        change = health.handle(signal, self.now)
        if signal in (Signal.FROZEN, Signal.THAWED) and before not in ENDED:
            self.frozen = signal is Signal.FROZEN
        if signal in (Signal.NO_HEADROOM, Signal.HEADROOM_BACK) and before in JUDGED:
            self.full = signal is Signal.NO_HEADROOM
        if health.state in ENDED or signal is Signal.RELAUNCH:
            self.full = self.frozen = False
        if signal is PASS:
            self.passes_in_row += 1
        elif signal not in NEUTRAL:
            self.passes_in_row = 0
        if signal is Signal.RELAUNCH:
            self.passed = self.right = False
            self.passes_in_row = 0
        elif before in JUDGED:
            self.passed |= signal is PASS
            self.right |= signal in (PASS, SLOW)
        assert health.state is expected
        assert (change is not None) or health.state is before
        if change is not None:
            assert health.history[-1] is change
            assert (change.before, change.after, change.at) == (before, health.state, self.now)
        if before is State.DEAD and health.state is not State.DEAD:
            assert signal is Signal.RELAUNCH
        if health.state is State.READY and before is not State.READY:
            assert signal is PASS
            assert not barred
        if lied and not health.wrong and signal is not Signal.RELAUNCH:
            assert self.passes_in_row >= health.config.passes_to_readmit_wrong
        if firm and before is not State.DEAD and before is not State.STOPPED:
            said = signal is Signal.DRAINS_ITSELF
            assert said or health.wrong or health.wrong_revision or health.frozen

    @rule(count=st.integers(2, 14))
    def right_answers(self, count):
        for _ in range(count):
            self.take(PASS, SECOND)

    @precondition(lambda self: self.health.canary_due(self.now))
    @rule()
    def canary(self):
        self.health.canary_started(self.now)
        periods = (1.0, 5.0, 1.0, 2.0)
        assert self.now < self.health.next_canary_at <= self.now + 1.2 * max(periods) * SECOND

    @rule(step=st.integers(0, 10**14))
    def time_passes(self, step):
        lied, state = self.health.wrong, self.health.state
        self.now += step
        self.health.share(self.now)
        self.health.canary_due(self.now)
        assert (self.health.wrong, self.health.state) == (lied, state)

    @invariant()
    def holds(self):
        health = self.health
        share, panicked = health.share(self.now), health.share(self.now, panic=True)
        assert 0.0 <= share <= panicked <= 1.0
        assert (share > 0) == (health.state in ROUTABLE)
        if health.never_readmit_by_panic:
            assert panicked == 0.0
        if health.state is State.READY:
            assert self.passed
        if health.state in ROUTABLE:
            assert self.right
            assert not health.wrong
            assert not health.wrong_revision
            assert (self.full, self.frozen) == (False, False)
        assert (health.full, health.frozen) == (self.full, self.frozen)
        if self.frozen:
            assert panicked == 0.0
            assert not health.on_suspicion
            assert not health.canary_due(self.now)
        if health.held:
            assert health.state is State.SUSPECT
        assert len(health.history) <= 5
        loading = health.state in (State.STARTING, State.LOADING, State.WARMING)
        assert (health.load_deadline is not None) == loading


Lives.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)
TestLives = Lives.TestCase


def test_verdicts_are_concluded_and_never_reported():
    assert not set(Conclusion) & set(Signal)


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
    health.taken_out = False  # the incident was closed by an operator
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
