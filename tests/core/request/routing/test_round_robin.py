from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing import round_robin
from holdfast.core.request.routing.round_robin import RoundRobin
from holdfast.core.stats import PeakEwma
from holdfast.core.types import Replica, Request
from sampling import examples

ANY = Request(0, "model", arrived=0)


def candidate(name, weight=1.0, slots=0):
    replica = Replica(name, "model", slots=slots, weight=weight)
    return Candidate(replica, Breaker(BreakerConfig(), Random(0)), PeakEwma())


def ids(policy, pool, times, tried=()):
    return [policy.choose(ANY, pool, tried, now=0)[0].id for _ in range(times)]


def test_equal_weights_rotate_in_list_order():
    pool = [candidate(name) for name in "abc"]
    assert ids(RoundRobin(), pool, 7) == list("abcabca")


def test_weights_decide_how_often_each_comes():
    pool = [candidate("a", 5), candidate("b", 1), candidate("c", 1)]
    assert Counter(ids(RoundRobin(), pool, 700)) == {"a": 500, "b": 100, "c": 100}


def test_light_candidates_are_spread_between_the_heavy_ones():
    pool = [candidate("a", 4), candidate("b", 1), candidate("c", 1)]
    order = "".join(ids(RoundRobin(), pool, 120))
    assert "bc" not in order
    assert "cb" not in order


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_nobody_is_ever_further_than_its_rounding_from_its_share(weights):
    pool = [candidate(f"r{index}", weight) for index, weight in enumerate(weights)]
    policy = RoundRobin()
    counts = Counter()
    turns = 300
    for name in ids(policy, pool, turns):
        counts[name] += 1
    rounds = turns / (sum(weights) / max(weights))  # one visit to everyone each
    for one in pool:
        assert abs(counts[one.id] - rounds * one.weight / max(weights)) <= 2.5


def test_a_weight_that_rises_in_place_is_followed():
    pool = [candidate("a"), candidate("b", 0.1)]
    policy = RoundRobin()
    ids(policy, pool, 110)
    pool[1].weight = 3.0
    counts = Counter(ids(policy, pool, 400))
    assert 298 <= counts["b"] <= 302


def test_when_the_heaviest_becomes_light_the_others_are_not_starved():
    pool = [candidate("a", 100), candidate("b"), candidate("c")]
    policy = RoundRobin()
    ids(policy, pool, 10)
    pool[0].weight = 1.0
    choices = [policy.choose(ANY, pool, (), now=0) for _ in range(300)]
    counts = Counter(chosen.id for chosen, _ in choices)
    assert all(95 <= counts[name] <= 105 for name in "abc")
    assert {reason for _, reason in choices[10:]} == {"next in turn"}  # without scanning for it


def test_a_member_that_leaves_does_not_restart_the_rotation():
    a, b, c, d = (candidate(name) for name in "abcd")
    policy = RoundRobin()
    assert ids(policy, [a, b, c, d], 2) == ["a", "b"]
    assert ids(policy, [a, c, d], 3) == ["c", "d", "a"]


def test_a_newcomer_waits_its_turn():
    a, b, c = (candidate(name) for name in "abc")
    policy = RoundRobin()
    assert ids(policy, [a, b], 1) == ["a"]
    assert ids(policy, [c, a, b], 3) == ["b", "c", "a"]


def test_a_list_rebuilt_before_every_choice_still_rotates():
    pool = [candidate(name) for name in "abcde"]
    policy = RoundRobin()
    assert [ids(policy, list(pool), 1)[0] for _ in range(10)] == list("abcdeabcde")


def test_two_lists_in_turns_each_rotate():
    left = [candidate(name) for name in "abc"]
    right = [candidate(name) for name in "xy"]
    policy = RoundRobin()
    order = [ids(policy, pool, 1)[0] for _ in range(6) for pool in (left, right)]
    assert order == list("axbycxaybxcy")


def test_full_and_tried_candidates_are_passed_over():
    pool = [candidate("a", slots=1), candidate("b"), candidate("c")]
    pool[0].inflight = 1
    policy = RoundRobin()
    assert ids(policy, pool, 4, tried=("b",)) == ["c", "c", "c", "c"]


def test_who_was_full_goes_once_when_it_has_room_not_many_times():
    pool = [candidate("a", 0.5, slots=1), candidate("b")]
    pool[0].inflight = 1
    policy = RoundRobin()
    ids(policy, pool, 50)
    pool[0].inflight = 0
    assert sorted(ids(policy, pool, 2)) == ["a", "b"]
    assert 9 <= Counter(ids(policy, pool, 30))["a"] <= 11


def test_with_the_heavy_one_full_the_light_ones_share_by_weight():
    pool = [candidate("a", 1.0, slots=1), candidate("b", 0.002), candidate("c", 0.001)]
    pool[0].inflight = 1
    policy = RoundRobin()
    choices = [policy.choose(ANY, pool, (), now=0) for _ in range(600)]
    counts = Counter(chosen.id for chosen, _ in choices)
    assert 380 <= counts["b"] <= 420
    assert counts["a"] == 0
    assert choices[-1][1] == "nearest to its turn of those with room"


def test_nobody_left_is_none():
    pool = [candidate("a")]
    assert RoundRobin().choose(ANY, pool, ("a",), now=0) is None
    assert RoundRobin().choose(ANY, [], (), now=0) is None


def test_what_it_remembers_of_departed_replicas_is_bounded(monkeypatch):
    monkeypatch.setattr(round_robin, "_TURNS_MAX", 8)
    policy = RoundRobin()
    for generation in range(50):
        ids(policy, [candidate(f"r{generation}"), candidate("stays")], 3)
    assert len(policy._turns_by_id) <= 10
    assert "stays" in policy._turns_by_id
