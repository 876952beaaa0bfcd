"""How long an overdue answer is read on, by when its pieces came."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canary_overtime import APART_S, BodyPieces, PieceFlow, overtime
from holdfast.core.types import SECOND

LONGEST = 12 * SECOND


def pieces(moved_s=0.0, gap_s=0.0, quiet_s=0.0, *, began=True, next_gap_s=0.0):
    return BodyPieces(moved_s, gap_s, quiet_s, began=began, headed=True, next_gap_s=next_gap_s)


@pytest.mark.parametrize(
    ("came", "flow"),
    [
        (BodyPieces(), PieceFlow.NONE),
        (pieces(quiet_s=4.0, began=False), PieceFlow.NONE),
        (pieces(0.5, 0.2, 0.1), PieceFlow.TOO_FEW),
        (pieces(3.0, 0.5, 0.4), PieceFlow.STEADY),
        (pieces(5.0, 5.0, 0.1), PieceFlow.PAUSED),
        (pieces(6.5, 5.0, 4.0), PieceFlow.PAUSED),
        (pieces(10.0, 5.0, 0.1, next_gap_s=5.0), PieceFlow.APART),
        (pieces(4.3, 2.2, 2.5, next_gap_s=2.1), PieceFlow.APART),
        (pieces(5.2, 2.4, 0.1, next_gap_s=0.7), PieceFlow.STEADY),
        (pieces(5.2, 2.4, 3.0, next_gap_s=0.7), PieceFlow.STOPPED),
        (pieces(3.0, 0.5, 4.0), PieceFlow.STOPPED),
        (pieces(0.0, 0.0, 4.0), PieceFlow.STOPPED),
    ],
)
def test_pieces_are_read_by_the_times_between_them(came, flow):
    assert came.flow is flow


def test_what_is_clear_is_not_read_on():
    for came in (pieces(3.0, 0.5, 0.4), pieces(10.0, 5.0, 0.1, next_gap_s=5.0)):
        assert overtime(came, 5 * SECOND, LONGEST) == 0
        assert overtime(came, 5 * SECOND, LONGEST, unhurried=True) == 0


def test_an_answer_that_stands_still_is_read_on_until_it_is_as_good_as_stalled():
    assert overtime(pieces(quiet_s=4.5), 5 * SECOND, LONGEST) == 1.5 * SECOND
    assert overtime(pieces(quiet_s=6.0), 7 * SECOND, LONGEST) == 0
    assert overtime(pieces(quiet_s=6.0), 7 * SECOND, LONGEST, unhurried=True) == 5 * SECOND
    assert overtime(pieces(quiet_s=1.0), 11 * SECOND, LONGEST) == SECOND


def test_after_one_pause_the_next_piece_tells_whether_it_drips():
    assert overtime(pieces(5.0, 5.0, 0.0), 5 * SECOND, LONGEST) == 6 * SECOND
    assert overtime(pieces(5.0, 5.0, 6.0), 11 * SECOND, LONGEST) == 0
    assert overtime(pieces(5.0, 5.0, 0.0), 10 * SECOND, LONGEST) == 0  # the first was late as well
    assert overtime(pieces(5.0, 5.0, 1.0), LONGEST, LONGEST) == 0


def test_silence_is_waited_for_only_where_nobody_waits_for_the_verdict():
    assert overtime(BodyPieces(), 5 * SECOND, LONGEST) == 0
    assert overtime(BodyPieces(), 5 * SECOND, LONGEST, unhurried=True) == 7 * SECOND
    assert overtime(pieces(quiet_s=4.5, began=False), 5 * SECOND, LONGEST) == 1.5 * SECOND


TIMES = st.floats(0, 60, allow_nan=False)


@given(
    st.lists(TIMES, max_size=4), TIMES, st.booleans(), st.booleans(), st.booleans(), TIMES, TIMES
)
def test_it_never_lasts_longer_than_it_may(gaps, quiet, began, headed, unhurried, at, most):
    gap, following, *_ = [*sorted(gaps, reverse=True), 0.0, 0.0]
    came = pieces(sum(gaps), gap, quiet, began=began, next_gap_s=following)
    came = replace(came, headed=headed or began)
    waited, longest = round(at * SECOND), round(most * SECOND)
    more = overtime(came, waited, longest, unhurried=unhurried)
    assert 0 <= more <= max(0, longest - waited)
    if came.flow is PieceFlow.APART:
        assert sum(gap >= APART_S for gap in gaps) > 1
        assert not more
    if came.flow is PieceFlow.PAUSED:
        assert sum(gap >= APART_S for gap in gaps) == 1
