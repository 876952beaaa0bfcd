"""What takes a replica out and brings it back: suspicion, lies, lack of room, the pool's bound."""

import pytest
from health_stage import FAIL, PASS, SLOW, WRONG, feed, liar, make, ready

from holdfast.core.health.health import Signal
from holdfast.core.types import SECOND, State

# --- suspicion and quarantine ---------------------------------------------------------------------


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


# --- lies -----------------------------------------------------------------------------------------


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


# --- no room --------------------------------------------------------------------------------------


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


# --- the bound of the pool ------------------------------------------------------------------------


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
