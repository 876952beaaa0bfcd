from collections import Counter
from random import Random

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.least_loaded import LeastLoaded
from holdfast.core.stats import PeakEwma
from holdfast.core.types import Replica, Request

ANY = Request(0, "model", arrived=0)


def candidate(name, weight=1.0, inflight=0, slots=0):
    replica = Replica(name, "model", slots=slots, weight=weight)
    made = Candidate(replica, Breaker(BreakerConfig(), Random(0)), PeakEwma())
    made.inflight = inflight
    return made


def test_the_fewest_in_flight_wins():
    pool = [candidate("a", inflight=3), candidate("b", inflight=1), candidate("c", inflight=2)]
    assert LeastLoaded(Random(1)).choose(ANY, pool, (), now=0) == (
        pool[1],
        "least in flight for its weight",
    )


def test_in_flight_counts_per_weight():
    pool = [candidate("a", weight=1, inflight=2), candidate("b", weight=4, inflight=7)]
    assert LeastLoaded(Random(1)).choose(ANY, pool, (), now=0)[0].id == "b"


def test_an_idle_suspect_is_not_as_good_as_an_idle_replica():
    pool = [candidate("a", weight=0.1), candidate("b", inflight=8)]
    policy = LeastLoaded(Random(1))
    assert policy.choose(ANY, pool, (), now=0)[0].id == "b"
    pool[1].inflight = 10
    assert policy.choose(ANY, pool, (), now=0)[0].id == "a"


def test_ties_are_broken_evenly():
    pool = [candidate(f"r{index}", inflight=index % 2) for index in range(10)]
    policy = LeastLoaded(Random(2))
    choices = [policy.choose(ANY, pool, (), now=0) for _ in range(5000)]
    counts = Counter(chosen.id for chosen, _ in choices)
    assert set(counts) == {f"r{index}" for index in range(0, 10, 2)}
    assert all(abs(count - 1000) < 150 for count in counts.values())  # five deviations: 141
    assert choices[0][1] == "least in flight for its weight, drawn among equals"


def test_full_and_tried_candidates_are_left_out():
    pool = [candidate("a", slots=1, inflight=1), candidate("b"), candidate("c", inflight=5)]
    policy = LeastLoaded(Random(1))
    assert policy.choose(ANY, pool, ("b",), now=0)[0].id == "c"
    assert policy.choose(ANY, pool, ("b", "c"), now=0) is None
    assert policy.choose(ANY, [], (), now=0) is None


def test_filling_a_pool_leaves_load_in_proportion_to_weight():
    pool = [candidate("a", weight=3), candidate("b", weight=2), candidate("c", weight=1)]
    policy = LeastLoaded(Random(3))
    for _ in range(60):
        policy.choose(ANY, pool, (), now=0)[0].inflight += 1
    assert [one.inflight for one in pool] == [30, 20, 10]
