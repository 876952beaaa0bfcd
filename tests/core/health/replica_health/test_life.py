"""A replica's life from its start to its end: admission, stops, drains, death."""

import pytest
from health_stage import FAIL, PASS, SLOW, WRONG, feed, liar, make, ready

from holdfast.core.health.health import TRANSITIONS, ImpossibleSignalError, Signal
from holdfast.core.health.lifecycle import ROUTABLE
from holdfast.core.types import SECOND, State

# --- admission ------------------------------------------------------------------------------------


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


# --- stopped processes ----------------------------------------------------------------------------


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


# --- drain, stop, spot ----------------------------------------------------------------------------


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


# --- refusal and death ----------------------------------------------------------------------------


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
