from collections import Counter
from math import sqrt
from random import Random

import pytest

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.weighted import Weighted
from holdfast.core.stats import PeakEwma
from holdfast.core.types import Replica, Request

ANY = Request(0, "model", arrived=0)


def candidate(name, weight=1.0, slots=0):
    replica = Replica(name, "model", slots=slots, weight=weight)
    return Candidate(replica, Breaker(BreakerConfig(), Random(0)), PeakEwma())


def counts_of(policy, pool, times, tried=()):
    return Counter(policy.choose(ANY, pool, tried, now=0)[0].id for _ in range(times))


def assert_shares(counts, weights):
    """Each count within five standard deviations of its binomial mean."""
    times = counts.total()
    total = sum(weights.values())
    for name, weight in weights.items():
        share = weight / total
        assert abs(counts[name] - times * share) <= 5 * sqrt(times * share * (1 - share)) + 1


@pytest.mark.parametrize(
    "weights",
    [
        {"a": 1.0, "b": 1.0, "c": 1.0},
        {"a": 5.0, "b": 1.0, "c": 0.1},
        {"a": 1000.0, "b": 1.0, "c": 1.0, "d": 998.0},  # rejection alone would seldom accept b
        {f"r{index}": 1.0 + index % 3 for index in range(64)},
    ],
)
def test_choices_are_in_proportion_to_weight(weights):
    pool = [candidate(name, weight) for name, weight in weights.items()]
    assert_shares(counts_of(Weighted(Random(3)), pool, 20_000), weights)


def test_a_scan_after_failed_draws_keeps_the_proportion():
    """One heavy candidate is full, so that nearly every draw is refused and the scan decides."""
    weights = {"b": 2.0, "c": 1.0}
    pool = [candidate("a", 1000.0, slots=1)] + [candidate(*item) for item in weights.items()]
    pool[0].inflight = 1
    policy = Weighted(Random(4))
    assert_shares(counts_of(policy, pool, 9000), weights)
    assert policy.choose(ANY, pool, (), now=0)[1] == "drawn by weight from those with room"


def test_tried_candidates_leave_the_others_in_proportion():
    weights = {"b": 3.0, "c": 1.0}
    pool = [candidate("a", 4.0)] + [candidate(*item) for item in weights.items()]
    assert_shares(counts_of(Weighted(Random(5)), pool, 9000, tried=("a",)), weights)


def test_a_weight_that_rises_in_place_is_followed():
    pool = [candidate("a"), candidate("b")]
    policy = Weighted(Random(6))
    counts_of(policy, pool, 10)
    pool[1].weight = 9.0
    assert_shares(counts_of(policy, pool, 20_000), {"a": 1.0, "b": 9.0})


def test_a_heaviest_weight_that_falls_in_place_is_noticed():
    pool = [candidate("a", 1000.0), candidate("b")]
    policy = Weighted(Random(7))
    counts_of(policy, pool, 10)
    pool[0].weight = 1.0
    counts_of(policy, pool, 256)
    assert policy._heaviest == 1.0


def test_the_last_eligible_candidate_is_found():
    pool = [candidate(f"r{index}") for index in range(64)]
    tried = [one.id for one in pool if one.id != "r40"]
    policy = Weighted(Random(8))
    assert all(policy.choose(ANY, pool, tried, now=0)[0].id == "r40" for _ in range(50))


def test_rounding_at_the_far_end_of_the_scale_still_chooses():
    class One(Random):
        def random(self):
            return 1.0 - 2**-53

    pool = [candidate("a", 1000.0, slots=1), candidate("b", 0.1), candidate("c", 0.2)]
    pool[0].inflight = 1
    assert Weighted(One()).choose(ANY, pool, (), now=0)[0].id == "c"


def test_nobody_left_is_none():
    assert Weighted(Random(1)).choose(ANY, [candidate("a")], ("a",), now=0) is None
    assert Weighted(Random(1)).choose(ANY, [], (), now=0) is None
