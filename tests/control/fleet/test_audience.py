import pytest

from holdfast.control.fleet.audience import VERDICTS, Asked
from holdfast.control.view.history import verdict_number


@pytest.mark.parametrize("verdict", VERDICTS)
def test_only_a_right_answer_can_be_a_late_one(verdict):
    assert Asked(1.0, verdict, "", None, None, slow=False).told() == verdict
    late = Asked(1.0, verdict, "", None, None, slow=True).told()
    assert late == ("slow" if verdict == "pass" else verdict)
    assert late in VERDICTS


def test_numbers_of_verdicts_stay_what_they_are():
    """They lie in histories on disk."""
    assert [verdict_number(verdict) for verdict in VERDICTS] == list(range(9))
    assert VERDICTS[:2] == ("pass", "slow")
    assert VERDICTS[-1] == "timeout"
    assert verdict_number("nonsense") is None
