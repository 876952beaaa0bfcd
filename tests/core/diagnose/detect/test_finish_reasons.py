"""Finish reasons: a sudden change of one replica is told, a change of the users is not."""

from itertools import pairwise

import pytest

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.finish_reasons import FinishReasonConfig, FinishReasonDetector
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import Declared, FinishesSeen
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError

HEALTHY = {"stop": 8, "length": 2}
BROKEN = {"stop": 1, "length": 9}
STEP = 10 * SECOND
LEARNED = 400  # steps: more than an hour


def fleet(*names):
    census = ReplicaRegistry()
    for name in names:
        census.take(Declared(name, "m", "1"))
    return FinishReasonDetector(FinishReasonConfig(), census)


def play(detector, begin, steps, **reasons):
    told = []
    for at in range(begin, begin + steps):
        for name, counts in reasons.items():
            told += detector.take(FinishesSeen(name, counts), at * STEP)
    return told


def test_one_replica_whose_answers_all_run_into_their_length_is_told():
    detector = fleet("a", "b", "c")
    assert not play(detector, 0, LEARNED, a=HEALTHY, b=HEALTHY, c=HEALTHY)
    told = play(detector, LEARNED, 40, a=HEALTHY, b=BROKEN, c=HEALTHY)
    assert told
    assert {(one.sign, one.about.replica, one.source) for one in told} == {
        (Sign.FINISHES_CHANGED, "b", "finishes")
    }
    assert all(b.at - a.at >= REPEAT for a, b in pairwise(told))
    last = told[-1]
    assert last.numbers["before"] == pytest.approx(0.2)
    assert last.numbers["now"] == pytest.approx(0.9)
    assert last.numbers["peers"] == pytest.approx(0.2)
    assert "90% of the last" in last.text
    assert "ended by length, 20% before, 20% on its peers now" in last.text


def test_reasons_nobody_has_a_name_for_count_as_one():
    detector = fleet("a")
    play(detector, 0, LEARNED, a=HEALTHY)
    told = play(detector, LEARNED, 40, a={f"odd{number}": 1 for number in range(10)})
    assert {"stop" in told[0].text, "other" in told[0].text} == {True, False}


def test_a_replica_alone_must_differ_twice_as_much():
    detector = fleet("a")
    play(detector, 0, LEARNED, a=HEALTHY)
    assert not play(detector, LEARNED, 60, a={"stop": 5, "length": 5})
    told = play(detector, LEARNED + 60, 60, a=BROKEN)
    assert told
    assert "peers" not in told[0].numbers


def test_users_who_change_are_no_failure_of_a_replica():
    detector = fleet("a", "b", "c")
    play(detector, 0, LEARNED, a=HEALTHY, b=HEALTHY, c=HEALTHY)
    assert not play(detector, LEARNED, 100, c=BROKEN, a=BROKEN, b=BROKEN)[1:]


def test_few_answers_and_small_differences_say_nothing():
    detector = fleet("a", "b")
    play(detector, 0, LEARNED, a=HEALTHY, b=HEALTHY)
    assert not detector.take(FinishesSeen("a", {"length": 30}), (LEARNED + 100) * STEP)
    later = LEARNED + 300
    assert not play(detector, later, 60, a={"stop": 7, "length": 3}, b=HEALTHY)


def test_it_is_over_when_the_shares_are_back():
    detector = fleet("a", "b")
    play(detector, 0, LEARNED, a=HEALTHY, b=HEALTHY)
    assert play(detector, LEARNED, 40, a=BROKEN, b=HEALTHY)
    play(detector, LEARNED + 40, 60, a=HEALTHY, b=HEALTHY)
    assert not play(detector, LEARNED + 100, 60, a=HEALTHY, b=HEALTHY)


def test_nothing_is_concluded_while_it_learns_of_strangers_or_of_nothing():
    detector = fleet("a")
    assert not play(detector, 0, 100, a=BROKEN)
    assert detector.take(FinishesSeen("stranger", HEALTHY), 0) == ()
    assert detector.take(FinishesSeen("a", {}), 0) == ()
    assert detector.take(FinishesSeen("a", {"stop": 0}), 0) == ()


def test_what_is_forgotten_is_learned_anew():
    detector = fleet("a")
    play(detector, 0, LEARNED, a=HEALTHY)
    detector.forget("a")
    detector.forget("a")
    assert not play(detector, LEARNED, 100, a=BROKEN)


@pytest.mark.parametrize(
    ("field", "value"),
    [("window_s", 0), ("bound", -1), ("samples_min", 5), ("recent_min", 1), ("difference", 0.6)],
)
def test_config_that_cannot_work_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"finishes.{field}"):
        FinishReasonConfig(**{field: value})


def test_before_its_baseline_is_complete_peers_and_its_own_past_decide_together():
    detector = fleet("a", "b", "c")
    assert not play(detector, 0, 60, a=HEALTHY, b=HEALTHY, c=HEALTHY)
    told = play(detector, 60, 40, a=HEALTHY, b=BROKEN, c=HEALTHY)
    assert {one.about.replica for one in told} == {"b"}
    assert told[0].numbers["length"] == 1.0


def test_before_its_baseline_is_complete_a_lone_replica_is_not_judged():
    detector = fleet("a")
    play(detector, 0, 60, a=HEALTHY)
    assert not play(detector, 60, 40, a=BROKEN)


def test_a_change_of_all_while_they_learn_is_nobodys():
    detector = fleet("a", "b", "c")
    play(detector, 0, 60, a=HEALTHY, b=HEALTHY, c=HEALTHY)
    assert not play(detector, 60, 40, a=BROKEN, b=BROKEN, c=BROKEN)
