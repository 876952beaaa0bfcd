"""Wrong answers of one replica: how many, how many in a row, and whether it varies by itself."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.canary.steadiness import AnswerSteadiness
from holdfast.core.types import SECOND

HOUR = 3_600 * SECOND


def answered(*wrong):
    answers = AnswerSteadiness()
    for at, one in enumerate(wrong):
        answers.add(at * SECOND, wrong=one)
    return answers


def test_who_was_wrong_and_is_right_again_varies_for_an_hour():
    answers = answered(False, True, False)
    assert answers.varies(2 * SECOND)
    assert answers.varies(2 * SECOND + HOUR)
    assert not answers.varies(3 * SECOND + HOUR)


def test_who_is_wrong_now_or_never_was_does_not_vary():
    assert not answered(False, False).varies(SECOND)
    assert not answered(False, True, True).varies(2 * SECOND)
    assert not answered(False, True, False, True).varies(3 * SECOND)
    assert not AnswerSteadiness().varies(0)


def test_the_next_process_begins_with_no_answers_and_the_same_model():
    answers = answered(True, False, True)
    answers.begin_process()
    assert (len(answers), answers.wrong, answers.wrong_row) == (0, 0, 0)
    assert answers.is_known
    assert answers.varies(3 * SECOND)
    answers.add(4 * SECOND, wrong=False)  # of another process: no proof that it got well again
    assert answers.varies(HOUR + SECOND)
    assert not answers.varies(HOUR + 2 * SECOND)
    assert not AnswerSteadiness().is_known


@given(st.lists(st.booleans(), max_size=60))
def test_counts_are_those_of_the_latest_twenty(wrong):
    answers, latest = answered(*wrong), wrong[-20:]
    assert len(answers) == len(latest)
    assert answers.wrong == sum(latest)
    row = next((at for at, one in enumerate(reversed(latest)) if not one), len(latest))
    assert answers.wrong_row == row
