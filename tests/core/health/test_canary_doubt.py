"""The one table that decides what to make of canaries that all fail."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canary import CanarySuspect, CanaryVerdict
from holdfast.core.failure import Cause
from holdfast.core.health.canary_doubt import (
    RULINGS,
    CanaryCount,
    CanaryMix,
    LatestCanary,
    UsersMeet,
    count_canaries,
    users_meet,
)
from holdfast.core.types import SECOND

PERIOD = 6 * SECOND
ERROR = "error"  # a fail with a server's status
CHECKER, SHARED = CanarySuspect.CHECKER, CanarySuspect.SHARED
REPLICAS, NOBODY = CanarySuspect.REPLICAS, CanarySuspect.NOBODY


def latest(*verdicts: str, at: int = PERIOD) -> list[LatestCanary]:
    found = []
    for number, name in enumerate(verdicts):
        verdict = CanaryVerdict.FAIL if name == ERROR else CanaryVerdict(name)
        found.append(LatestCanary(f"r{number}", at, verdict.right, verdict, name == ERROR))
    return found


def counted(*canaries: LatestCanary, now: int = PERIOD, members: int | None = None) -> CanaryCount:
    return count_canaries(canaries, now, PERIOD, members=members or len(canaries))


# --- the mix -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "mix"),
    [
        (("wrong", "pass", "fail"), CanaryMix.SOME_PASS),
        (("wrong", "slow"), CanaryMix.SOME_PASS),
        (("wrong",), CanaryMix.TOO_FEW),
        (("refused", "refused"), CanaryMix.TOO_FEW),  # nobody was asked anything
        (("refused", "refused", "fail"), CanaryMix.TOO_FEW),
        (("refused", "refused", "fail", "fail"), CanaryMix.ALL_ANSWER),
        (("timeout", "timeout"), CanaryMix.ALL_SILENT),
        (("timeout", "timeout", "wrong"), CanaryMix.ALL_SILENT),  # one voice proves nothing
        (("timeout", ERROR), CanaryMix.ALL_SILENT),
        ((ERROR, ERROR), CanaryMix.ALL_ERR),
        ((ERROR, ERROR, "timeout", "wrong"), CanaryMix.ALL_ERR),
        ((ERROR, "wrong", "fail"), CanaryMix.ALL_ANSWER),
        (("wrong", "timeout", "fail"), CanaryMix.ALL_ANSWER),
        (("wrong", "wrong"), CanaryMix.ALL_ANSWER),
    ],
)
def test_verdicts_make_one_mix(verdicts, mix):
    assert counted(*latest(*verdicts)).mix is mix


def test_those_not_asked_lately_may_still_pass():
    old = latest("wrong", at=0)
    count = counted(*old, *latest("wrong", "wrong", at=2 * PERIOD), now=2 * PERIOD)
    assert (count.mix, count.failed, count.members) == (CanaryMix.SOME_UNASKED, 2, 3)
    assert counted(*latest("wrong", "wrong"), members=3).mix is CanaryMix.SOME_UNASKED


def test_an_old_pass_is_no_witness():
    old = latest("pass", at=0)
    new = latest("wrong", "wrong", at=2 * PERIOD)
    assert counted(*old, *new, now=2 * PERIOD, members=2).mix is CanaryMix.ALL_ANSWER


# --- the table -----------------------------------------------------------------------------------


def test_the_table_is_complete():
    assert set(RULINGS) == set(product(CanaryMix, UsersMeet))


# mix: whom each thing that users meet makes suspect, in the order of UsersMeet
SUSPECTS = {
    CanaryMix.SOME_PASS: (NOBODY, NOBODY, NOBODY, NOBODY),
    CanaryMix.TOO_FEW: (NOBODY, NOBODY, NOBODY, NOBODY),
    CanaryMix.SOME_UNASKED: (NOBODY, NOBODY, NOBODY, NOBODY),
    CanaryMix.ALL_ANSWER: (CHECKER, CHECKER, REPLICAS, REPLICAS),
    CanaryMix.ALL_ERR: (REPLICAS, CHECKER, REPLICAS, CHECKER),
    CanaryMix.ALL_SILENT: (SHARED, SHARED, SHARED, SHARED),
}
CAUSES = {CHECKER: Cause.CHECKER_BROKEN, SHARED: Cause.ALL_SILENT, REPLICAS: None, NOBODY: None}


@pytest.mark.parametrize("mix", CanaryMix)
def test_whom_a_mix_makes_suspect(mix):
    rulings = [RULINGS[mix, users] for users in UsersMeet]
    assert tuple(ruling.suspect for ruling in rulings) == SUSPECTS[mix]
    for ruling in rulings:
        assert ruling.hold is (ruling.suspect is not NOBODY)
        assert ruling.cause is CAUSES[ruling.suspect]


@pytest.mark.parametrize(
    ("failing", "served", "users"),
    [
        (False, False, UsersMeet.NOTHING),
        (False, True, UsersMeet.ANSWERS),
        (True, False, UsersMeet.FAILURES),
        (True, True, UsersMeet.ANSWERS_THEN_FAILURES),
    ],
)
def test_what_users_meet_has_one_name(failing, served, users):
    assert users_meet(failing=failing, served=served) is users


@given(
    st.lists(st.sampled_from([*CanaryVerdict, ERROR]), max_size=8),
    st.integers(0, 3),
    st.sampled_from(UsersMeet),
)
def test_states_are_held_only_where_two_failed_and_nobody_passed(verdicts, unasked, users):
    members = len(verdicts) + unasked
    count = count_canaries(latest(*verdicts), PERIOD, PERIOD, members=members)
    ruling = RULINGS[count.mix, users]
    asked = [verdict for verdict in verdicts if verdict != CanaryVerdict.REFUSED]
    right = [verdict for verdict in asked if verdict in (CanaryVerdict.PASS, CanaryVerdict.SLOW)]
    assert ruling.hold is (len(asked) >= 2 and not right and not unasked)
    assert count.reason(ruling)


def test_reasons_say_how_many():
    count = counted(*latest("wrong", "wrong", "wrong"))
    assert "all 3" in count.reason(RULINGS[count.mix, UsersMeet.NOTHING])
    some = counted(*latest("wrong", "wrong"), members=5)
    assert "2 of 5" in some.reason(RULINGS[some.mix, UsersMeet.NOTHING])
