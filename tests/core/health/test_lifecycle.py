import pytest

from holdfast.core.health.lifecycle import (
    JUDGED,
    REASONS,
    REPEATED,
    ROUTABLE,
    TRANSITIONS,
    Change,
    Conclusion,
    ImpossibleSignalError,
    Signal,
    SignalRow,
    SignalRows,
)
from holdfast.core.types import State

OUR_OWN = (Signal.LOAD_TIMEOUT, Signal.BOUND_HELD, Signal.DRAINED)


def test_news_from_outside_is_legal_in_every_state():
    missing = [
        (s, n) for s in State for n in Signal if n not in OUR_OWN and (s, n) not in TRANSITIONS
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("signal", "states"),
    [
        (Signal.LOAD_TIMEOUT, {State.STARTING, State.LOADING, State.WARMING}),
        (Signal.BOUND_HELD, {State.READY, State.SUSPECT}),
        (Signal.DRAINED, {State.DRAINING, State.STOPPED, State.DEAD}),
    ],
)
def test_our_own_signals_are_legal_only_where_we_may_send_them(signal, states):
    assert {state for state in State if (state, signal) in TRANSITIONS} == states


def test_the_dead_leave_by_relaunch_only():
    assert {
        n for (s, n), after in TRANSITIONS.items() if s is State.DEAD and after is not State.DEAD
    } == {Signal.RELAUNCH}


def test_ready_is_entered_by_passing_only():
    assert {
        n for (s, n), after in TRANSITIONS.items() if after is State.READY and s is not State.READY
    } == {Conclusion.PASSED_ENOUGH}


def test_only_a_right_answer_makes_routable():
    doors = {n for (s, n), after in TRANSITIONS.items() if after in ROUTABLE and s not in ROUTABLE}
    assert doors == {Conclusion.PASSED_ENOUGH, Signal.CANARY_SLOW}


def test_neutral_signals_move_nobody():
    back = (Signal.HEADROOM_BACK, Signal.THAWED)  # a right answer admits, and nothing less
    for signal in (Signal.BUSY, Signal.UNKNOWN, Signal.PASSIVE_OK, Signal.LAUNCHED, *back):
        assert all(TRANSITIONS[state, signal] is state for state in State)


def test_every_move_has_words_for_people():
    wordless = [
        n for (before, n), after in TRANSITIONS.items() if before is not after and n not in REASONS
    ]
    assert wordless == []
    marks = (Signal.NO_HEADROOM, Signal.HEADROOM_BACK, Signal.FROZEN, Signal.THAWED)
    assert set(marks) <= set(REASONS)  # told where only the reason changes


def rows(**lengths):
    """Rows of signals that have these lengths."""
    tally = SignalRows()
    tally.lengths.update({SignalRow(row): length for row, length in lengths.items()})
    return tally


ALL = {row.value: length for length, row in enumerate(SignalRow, 1)}


def test_every_repeated_row_leads_somewhere():
    for states, _, _, verdict in REPEATED.values():
        assert all(state in JUDGED and (state, verdict) in TRANSITIONS for state in states)


@pytest.mark.parametrize(
    ("signal", "row"),
    [
        (Signal.CANARY_PASS, "passes"),
        (Signal.CANARY_FAIL, "failures"),
        (Signal.PASSIVE_FAILING, "failures"),
        (Signal.CANARY_WRONG, "wrongs"),
        (Signal.CANARY_SLOW, "slows"),
        (Signal.REFUSED, "refusals"),
    ],
)
def test_each_sort_of_evidence_has_its_row(signal, row):
    tally = SignalRows()
    for _ in range(3):
        tally.count(signal)
    assert tally.lengths == rows(**{row: 3}).lengths


def test_a_pass_ends_every_row_of_bad_evidence():
    tally = SignalRows()
    for signal in (Signal.CANARY_FAIL, Signal.CANARY_WRONG, Signal.CANARY_SLOW, Signal.REFUSED):
        tally.count(signal)
    tally.count(Signal.CANARY_PASS)
    assert tally.lengths == rows(passes=1).lengths


@pytest.mark.parametrize(
    "signal",
    [
        Signal.CANARY_FAIL,
        Signal.CANARY_WRONG,
        Signal.CANARY_SLOW,
        Signal.REFUSED,
        Signal.STALLED,
        Signal.PASSIVE_FAILING,
        Signal.NO_SUCCESS,
        Signal.NO_HEADROOM,
        Signal.FROZEN,
        Signal.BOUND_HELD,
    ],
)
def test_bad_evidence_ends_the_row_of_passes(signal):
    tally = rows(passes=3)
    tally.count(signal)
    assert tally[SignalRow.PASSES] == 0


def test_what_was_answered_before_a_stop_proves_nothing_and_blames_nobody():
    tally = rows(**ALL)
    tally.count(Signal.THAWED)
    assert (tally[SignalRow.PASSES], len(tally.lengths)) == (0, 4)


def test_room_that_came_back_is_no_evidence():
    tally = rows(**ALL)
    tally.count(Signal.HEADROOM_BACK)
    assert tally.lengths == rows(**ALL).lengths


@pytest.mark.parametrize("signal", [Signal.NO_HEADROOM, Signal.FROZEN])
def test_only_those_that_serve_are_taken_out_for_lack_of_room_or_a_stop(signal):
    for state in State:
        after = State.QUARANTINED if state in ROUTABLE else state
        assert TRANSITIONS[state, signal] is after


@pytest.mark.parametrize("signal", [Signal.BUSY, Signal.PASSIVE_OK])
def test_somebody_who_serves_is_listening(signal):
    tally = rows(passes=1, failures=1, refusals=1)
    tally.count(signal)
    assert tally.lengths == rows(passes=1, failures=1).lengths


def test_an_unknown_probe_counts_for_nothing():
    tally = rows(**ALL)
    tally.count(Signal.UNKNOWN)
    assert tally.lengths == rows(**ALL).lengths


def test_a_failure_does_not_excuse_a_wrong_answer_before_it():
    tally = rows(wrongs=1)
    tally.count(Signal.CANARY_FAIL)
    assert tally[SignalRow.WRONGS] == 1


def test_a_slow_right_answer_ends_the_row_of_wrong_ones():
    tally = rows(wrongs=1)
    tally.count(Signal.CANARY_SLOW)
    assert (tally[SignalRow.WRONGS], tally[SignalRow.SLOWS]) == (0, 1)


def test_wrong_answers_and_refusals_count_across_states():
    tally = rows(**ALL)
    tally.begin_state()
    assert tally.lengths == rows(wrongs=3, refusals=5).lengths


def test_an_impossible_signal_tells_what_led_there():
    change = Change("r1", "m", State.WARMING, State.READY, Signal.CANARY_PASS, "answered right", 42)
    error = ImpossibleSignalError("r1/m", State.READY, Signal.DRAINED, [change])
    assert str(error) == (
        "r1/m is ready and got drained; history, oldest first: "
        "42 warming>ready on canary_pass: answered right"
    )
    assert "none" in str(ImpossibleSignalError("r1/m", State.READY, Signal.DRAINED, []))
