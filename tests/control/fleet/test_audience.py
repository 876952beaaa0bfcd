import pytest

from holdfast.control.fleet.audience import Asked
from holdfast.control.view.history import verdict_number
from holdfast.core.canary import CanaryVerdict


@pytest.mark.parametrize("verdict", CanaryVerdict)
def test_only_a_right_answer_can_be_a_late_one(verdict):
    assert Asked(1.0, verdict, "", None, None, slow=False).told() is verdict
    late = Asked(1.0, verdict, "", None, None, slow=True).told()
    assert late is (CanaryVerdict.SLOW if verdict is CanaryVerdict.PASS else verdict)


def test_numbers_of_verdicts_stay_what_they_are():
    """They lie in histories on disk."""
    names = ["pass", "slow", "busy", "unsettled", "unknown", "wrong", "fail", "refused", "timeout"]
    assert [verdict_number(name) for name in names] == list(range(9))
    assert verdict_number("nonsense") is None
