"""Canary latency: the environment changed, or somebody was just unlucky."""

import random
from itertools import pairwise

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.latency import CanaryDriftConfig, CanaryDriftDetector
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import CanaryAnswered, Declared
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError

STEP = 30 * SECOND
LEARNED = 100
HELD = 40  # steps that it must last


def detector(*names):
    census = ReplicaRegistry()
    for name in names or ("a",):
        census.take(Declared(name, "m", "1"))
    return CanaryDriftDetector(CanaryDriftConfig(), census)


def play(made, begin, steps, *, factor=1.0, seed=1, **how):
    rng = random.Random(seed)
    told = []
    for at in range(begin, begin + steps):
        latency = 0.2 * factor * rng.lognormvariate(0, 0.08)
        fact = CanaryAnswered(
            "a", **{"verdict": CanaryVerdict.PASS, "latency_s": latency, "running": 0, **how}
        )
        told += made.take(fact, at * STEP)
    return told


def test_the_same_question_that_takes_half_as_long_again_is_told():
    made = detector()
    assert not play(made, 0, LEARNED)
    told = play(made, LEARNED, HELD + 30, factor=1.5)
    assert told
    first = told[0]
    assert (first.sign, first.about.replica, first.source) == (Sign.CANARY_DRIFTED, "a", "latency")
    assert (LEARNED + HELD) * STEP <= first.at < (LEARNED + HELD + 12) * STEP
    assert all(b.at - a.at >= REPEAT for a, b in pairwise(told))
    assert told[-1].numbers["before_s"] == pytest.approx(0.2, rel=0.05)
    assert told[-1].numbers["now_s"] == pytest.approx(0.3, rel=0.1)
    assert "with nothing else running, 0." in told[-1].text


def test_answers_that_were_judged_slow_count_and_are_never_learned():
    made = detector()
    assert not play(made, 0, LEARNED, verdict=CanaryVerdict.SLOW)
    assert not play(made, LEARNED, LEARNED)
    assert play(made, 2 * LEARNED, HELD + 30, factor=4, verdict=CanaryVerdict.SLOW)


def test_it_is_over_when_it_is_fast_again():
    made = detector()
    play(made, 0, LEARNED)
    assert play(made, LEARNED, HELD + 30, factor=2)
    assert not play(made, LEARNED + HELD + 30, HELD + 60)
    assert not play(made, LEARNED + 2 * HELD + 90, HELD - 10, factor=2)  # it begins anew


def test_two_at_one_time_are_said_once():
    made = detector()
    play(made, 0, LEARNED)
    assert play(made, LEARNED, HELD + 20, factor=2)
    facts = [CanaryAnswered("a", CanaryVerdict.PASS, 0.4, 0)] * 5
    assert sum(len(made.take(fact, (LEARNED + HELD + 20) * STEP)) for fact in facts) == 1
    quick, slow = (
        CanaryAnswered("a", CanaryVerdict.PASS, 0.2, 0),
        CanaryAnswered("a", CanaryVerdict.PASS, 0.4, 0),
    )
    assert not made.take(quick, (LEARNED + HELD + 20) * STEP + SECOND)
    assert not made.take(slow, (LEARNED + HELD + 20) * STEP + 2 * SECOND)  # one quick one is chance


def test_a_neighbour_for_a_quarter_of_an_hour_is_no_change():
    made = detector()
    play(made, 0, LEARNED)
    for begin in range(LEARNED, LEARNED + 600, 60):
        assert not play(made, begin, 30, factor=2)
        assert not play(made, begin + 30, 30)


def test_what_a_neighbour_leaves_behind_is_not_told_where_it_no_longer_matters():
    made = detector()
    play(made, 0, LEARNED)
    assert not play(made, LEARNED, 30, factor=1.5)
    assert not play(made, LEARNED + 30, 3 * HELD, factor=1.17)
    assert play(made, LEARNED + 30 + 3 * HELD, HELD + 12, factor=1.5)


def test_what_was_between_two_canaries_far_apart_is_unknown():
    made = detector()
    play(made, 0, LEARNED)
    assert not play(made, LEARNED, 20, factor=2)
    later = (LEARNED + 500) * STEP
    assert not made.take(CanaryAnswered("a", CanaryVerdict.PASS, 0.4, 0), later)
    assert not made.take(CanaryAnswered("a", CanaryVerdict.PASS, 0.2, 0), later + STEP)


@pytest.mark.measured
@pytest.mark.parametrize("seed", range(5))
def test_one_canary_in_eight_that_meets_other_work_is_no_drift(seed):
    rng, made = random.Random(seed), detector()
    for at in range(20_000):
        factor = rng.choice((1.3, 1.5, 1.8, 2.0, 4.5)) if rng.random() < 0.12 else 1.0
        assert not made.take(
            CanaryAnswered("a", CanaryVerdict.PASS, 0.3 * factor, 0), at * 5 * SECOND
        )


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_noise_a_single_stall_and_a_few_percent_are_no_drift(seed):
    made = detector()
    play(made, 0, LEARNED, seed=seed)
    assert not play(made, LEARNED, 3_000, seed=seed + 100)
    assert not made.take(CanaryAnswered("a", CanaryVerdict.PASS, 30.0, 0), 4_000 * STEP)
    assert not play(made, 4_001, 500, factor=1.08, seed=seed + 200)


def test_becoming_faster_is_no_failure():
    made = detector()
    play(made, 0, LEARNED)
    assert not play(made, LEARNED, 300, factor=0.5)


@pytest.mark.parametrize(
    "how",
    [
        {"running": None},
        {"running": 3},
        {"verdict": CanaryVerdict.TIMEOUT},
        {"verdict": CanaryVerdict.BUSY},
        {"latency_s": None},
        {"latency_s": 0.0},
        {"latency_s": float("inf")},
        {"latency_s": float("nan")},
    ],
)
def test_what_says_nothing_about_an_idle_replica_is_left_out(how):
    made = detector()
    play(made, 0, LEARNED)
    assert not play(made, LEARNED, 100, factor=5, **how)


def test_strangers_and_the_forgotten_have_no_past():
    made = detector()
    assert made.take(CanaryAnswered("stranger", CanaryVerdict.PASS, 0.2, 0), 0) == ()
    play(made, 0, LEARNED)
    made.forget("a")
    made.forget("a")
    assert not play(made, LEARNED, 50, factor=3)


def test_a_long_window_keeps_a_bounded_number_of_latencies():
    census = ReplicaRegistry()
    census.take(Declared("a", "m"))
    made = CanaryDriftDetector(CanaryDriftConfig(window_s=86_400), census)
    assert not play(made, 0, 2_880)
    assert not play(made, 2_880, 10)
    assert play(made, 2_890, HELD + 30, factor=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("window_s", 0), ("slack", -1), ("samples_min", 5), ("samples_min", 9_999)),
        *(("factor_min", 1), ("hold_s", 0)),
    ],
)
def test_config_that_cannot_work_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"canary_drift.{field}"):
        CanaryDriftConfig(**{field: value})
