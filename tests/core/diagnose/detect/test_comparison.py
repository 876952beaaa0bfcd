"""Comparing peers: the liar is named, noise names nobody, and nothing acts on one disagreement."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect import comparison as module
from holdfast.core.diagnose.detect.comparison import ComparisonConfig, PeerComparison
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import Compared, Declared, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

NAMES = ("r1", "r2", "r3", "r4")


def made(names=NAMES):
    census = ReplicaRegistry()
    for name in names:
        census.take(Declared(name, "m", "1"))
    return PeerComparison(ComparisonConfig(), census)


def live(seed, *, lie=0.0, noise=0.0, per_s=2.0, until_s=150.0, warm_s=400.0, names=NAMES):
    """Random pairs of a fleet of which the first lies from ``warm_s`` on: (seconds, evidence)."""
    rng = random.Random(seed)
    detector, at = made(names), 0.0
    while True:
        at += rng.expovariate(per_s)
        if at >= warm_s + until_s:
            return
        pair = rng.sample(names, 2)
        lied = at >= warm_s and names[0] in pair and rng.random() < lie
        agreed = not lied and rng.random() >= noise
        for found in detector.take(Compared(*pair, agreed), round(at * SECOND)):
            yield at - warm_s, found


# --- must fire ------------------------------------------------------------------------------------


@pytest.mark.measured
def test_a_tenth_of_wrong_answers_on_one_of_four_is_named_within_a_minute_mostly():
    first = [next(live(seed, lie=0.1), None) for seed in range(25)]
    named = [found for found in first if found is not None]
    assert {one.about.replica for _, one in named} == {"r1"}
    assert sum(at <= 60 for at, _ in named) >= 19
    assert sum(at <= 120 for at, _ in named) >= 24


@pytest.mark.measured
def test_it_is_named_although_healthy_answers_differ_too():
    first = [next(live(seed, lie=0.2, noise=0.03, until_s=300.0), None) for seed in range(10)]
    assert [found is not None and found[1].about.replica for found in first] == ["r1"] * 10


def test_a_replica_that_is_always_wrong_is_named_at_once_even_in_a_fleet_that_just_began():
    for seed in range(5):
        at, found = next(live(seed, lie=1.0, warm_s=0.0))
        assert found.about.replica == "r1"
        assert at <= 45


def test_the_evidence_says_how_often_it_and_how_often_the_others_disagreed():
    detector = made()
    for at in range(400):
        detector.take(Compared("r2", "r3", agreed=True), at * SECOND)
    found = []
    for at in range(400, 410):
        found += detector.take(Compared("r1", NAMES[1 + at % 3], agreed=False), at * SECOND)
    [one] = found
    assert (one.sign, one.source) == (Sign.PEERS_DISAGREE, "gateway")
    assert one.about == About("r1", "m", "1")
    assert one.text == ("it disagreed with 3 peers in 3 of 3 comparisons; the others in 0 of 400")
    assert one.numbers["others_compared"] == 400


def test_while_it_goes_on_it_is_told_twice_a_minute():
    found = [at for at, _ in live(1, lie=1.0, until_s=120.0)]
    assert 3 <= len(found) <= 5


def test_one_of_three_can_be_named():
    names = ("r1", "r2", "r3")
    at, found = next(live(3, lie=1.0, names=names))
    assert found.about.replica == "r1"
    assert at < 30


def test_a_second_one_is_named_after_the_first():
    rng, detector, names = random.Random(2), made(), []
    for at in range(2_000):
        pair = rng.sample(NAMES, 2)
        lied = (at > 500 and "r1" in pair) or (at > 800 and "r2" in pair)
        names += [
            one.about.replica for one in detector.take(Compared(*pair, not lied), at * SECOND)
        ]
    assert set(names) == {"r1", "r2"}


# --- must not fire --------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.measured
def test_noise_that_all_share_names_nobody(seed, noise):
    assert list(live(seed, noise=noise, warm_s=0.0, until_s=5_000.0)) == []


def test_two_replicas_that_disagree_accuse_nobody():
    assert list(live(1, lie=1.0, names=("r1", "r2"))) == []


def test_one_pair_that_disagrees_accuses_neither():
    detector = made()
    for at in range(600):
        pair = random.Random(at).sample(NAMES, 2)
        agreed = set(pair) != {"r1", "r2"}
        assert not detector.take(Compared(*pair, agreed), at * SECOND)


def test_a_single_disagreement_with_each_of_two_peers_is_not_enough():
    detector = made()
    for at in range(300):
        detector.take(Compared("r3", "r4", agreed=True), at * SECOND)
    for at, peer in ((301, "r2"), (302, "r3")):
        assert not detector.take(Compared("r1", peer, agreed=False), at * SECOND)


def test_disagreement_that_lies_long_ago_is_forgotten():
    detector = made()
    for at in range(300):
        detector.take(Compared("r3", "r4", agreed=True), at * SECOND)
    for at in range(20):
        now = (1_000 + 700 * at) * SECOND
        assert not detector.take(Compared("r1", NAMES[1 + at % 3], agreed=False), now)


def test_other_models_and_revisions_are_not_compared():
    census = ReplicaRegistry()
    for name, model, revision in [("a", "m", "1"), ("b", "m", "2"), ("c", "n", "1")]:
        census.take(Declared(name, model, revision))
    detector = PeerComparison(ComparisonConfig(), census)
    for at in range(100):
        for pair in (("a", "b"), ("a", "c"), ("a", "a"), ("a", "stranger")):
            assert not detector.take(Compared(*pair, agreed=False), at * SECOND)
    assert not detector._pools


def test_a_new_process_has_nothing_against_it():
    detector = made()
    for at in range(300):
        detector.take(Compared("r3", "r4", agreed=True), at * SECOND)
    for at in range(300, 400):
        detector.take(ProcessEnded("r1", asked=True), at * SECOND)
        for peer in ("r2", "r3"):
            assert not detector.take(Compared("r1", peer, agreed=False), at * SECOND)


# --- any order ------------------------------------------------------------------------------------


def test_its_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_PAIRS_MAX", 5)
    monkeypatch.setattr(module, "_MODELS_MAX", 2)
    monkeypatch.setattr(module, "_MEMORY", 20)
    census = ReplicaRegistry()
    for model in "xyz":
        for number in range(9):
            census.take(Declared(f"{model}{number}", model))
    detector = PeerComparison(ComparisonConfig(), census)
    rng = random.Random(5)
    for at in range(600):
        one, other = rng.sample(range(9), 2)
        model = rng.choice("xyz")
        fact = Compared(f"{model}{one}", f"{model}{other}", rng.random() < 0.5)
        detector.take(fact, at * SECOND)
        assert len(detector._pools) <= 2
        for pool in detector._pools.values():
            assert len(pool.pairs) <= 5
            assert sum(compared for _, compared in pool.pairs.values()) <= 21


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(NAMES), st.sampled_from(NAMES), st.booleans(), st.integers(-30, 30)
        ),
        max_size=80,
    )
)
def test_any_order_of_comparisons_is_taken_and_forgotten(steps):
    detector, now = made(), 10_000
    for one, other, agreed, step in steps:
        now += step
        for found in detector.take(Compared(one, other, agreed), now * SECOND):
            assert found.about.replica in NAMES
    for name in NAMES:
        detector.forget(name)
    assert not detector._pools


@pytest.mark.parametrize(
    "values",
    [
        {"wrong_share": 0},
        {"quiet_share": 1},
        {"enough_quiet": 1},
        {"enough_noisy": 5},
        {"others_min": 0},
        {"peers_min": 1},
        {"idle_s": 0},
    ],
)
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=f"comparison.{next(iter(values))}"):
        ComparisonConfig(**values)
