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


def fleet(hosts, per_host=2, *, known=True):
    """So many hosts, each with replicas of as many models."""
    census = ReplicaRegistry()
    for host in range(hosts):
        for number in range(per_host):
            where = f"host-{host}" if known else ""
            census.take(Declared(f"m{number}-{host}", f"m{number}", "1", where))
    made = CanaryDriftDetector(CanaryDriftConfig(), census)
    assert not live(made, 0, LEARNED)
    return made


def live(made, begin, steps, factor=lambda _: 1.0, *, seed=1):
    """Idle canaries of everybody; ``factor`` is how much slower a host is, by its number."""
    rng, told = random.Random(seed), []
    for at in range(begin, begin + steps):
        for name in made._census.replicas:
            latency = 0.336 * factor(int(name.partition("-")[2])) * rng.lognormvariate(0, 0.08)
            fact = CanaryAnswered(name, CanaryVerdict.PASS, latency, 0)
            told += made.take(fact, at * STEP)
    return told


def accused(told):
    return {one.about.replica or one.about.model for one in told}


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


@pytest.mark.parametrize("known", [True, False])
def test_one_host_is_told_as_quickly_in_a_fleet_that_is_well(known):
    made = fleet(8, known=known)
    told = live(made, LEARNED, HELD + 12, lambda host: 1.5 if host == 3 else 1.0)
    assert accused(told) == {"m0-3", "m1-3"}  # each of its replicas
    assert told[0].at < (LEARNED + HELD + 6) * STEP


def test_a_quarter_of_the_fleet_is_told_replica_by_replica():
    made = fleet(8)
    told = live(made, LEARNED, HELD + 12, lambda host: 1.5 if host < 2 else 1.0)
    assert accused(told) == {"m0-0", "m0-1", "m1-0", "m1-1"}


def test_all_replicas_of_a_fleet_that_has_one_host_are_told():
    made = fleet(1, per_host=3)
    assert accused(live(made, LEARNED, HELD + 12, lambda _: 1.5)) == {"m0-0", "m1-0", "m2-0"}


def test_a_host_that_became_slower_than_all_others_did_is_told():
    made = fleet(6)
    told = live(made, LEARNED, HELD + 12, lambda host: 2.1 if host == 5 else 1.4)
    assert {"m0-5", "m1-5"} <= accused(told)
    assert not accused(told) & {"m0-0", "m1-0"}


def test_what_slows_the_whole_fleet_for_good_is_told_of_its_models_alone():
    made = fleet(6)
    told = live(made, LEARNED, HELD + 12, lambda _: 1.5)
    assert {(one.about.replica, one.about.model, one.about.revision) for one in told} == {
        *(("", "m0", "1"), ("", "m1", "1"))
    }
    assert told[0].at >= (LEARNED + HELD) * STEP
    assert told[0].text.endswith(", and most other hosts have slowed down with it")
    for model in ("m0", "m1"):
        ours = [one.at for one in told if one.about.model == model]
        assert all(later - earlier >= REPEAT for earlier, later in pairwise(ours))
    live(made, LEARNED + HELD + 12, 8)
    assert not live(made, LEARNED + HELD + 20, HELD)  # and is over


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


def test_a_neighbour_and_then_a_slowdown_of_everybody_are_no_change_of_one_replica():
    made = fleet(8)
    assert not live(made, LEARNED, 29, lambda host: 1.6 if host == 2 else 1.0)
    # The neighbour left when everybody became slower: for host 2 nothing changed.
    assert not live(made, LEARNED + 29, 20, lambda _: 1.5)
    assert not live(made, LEARNED + 49, 30)
    neighbour = lambda host: 1.6 if host == 2 else 1.0  # noqa: E731
    assert not live(made, LEARNED + 79, 28, neighbour)
    assert accused(live(made, LEARNED + 107, 40, neighbour)) == {"m0-2", "m1-2"}  # it stayed


def test_a_slowdown_of_everybody_stops_the_clock_of_one_replica_and_does_not_reset_it():
    made = fleet(8)
    assert not live(made, LEARNED, 25, lambda host: 1.6 if host == 2 else 1.0)
    assert not live(made, LEARNED + 25, 20, lambda _: 1.5)
    told = live(made, LEARNED + 45, 25, lambda host: 1.6 if host == 2 else 1.0)
    assert accused(told) == {"m0-2", "m1-2"}


def test_what_other_hosts_were_an_hour_ago_excuses_nobody():
    made = fleet(3, per_host=1)
    live(made, LEARNED, 10, lambda _: 1.5)
    told = []
    for at in range(LEARNED + 10, LEARNED + 10 + HELD + 20):  # of the others nothing is heard
        told += made.take(CanaryAnswered("m0-0", CanaryVerdict.PASS, 0.5, 0), at * STEP)
    assert accused(told) == {"m0-0"}


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
