import heapq
from collections import Counter
from random import Random

import pytest

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.power_of_two import PowerOfTwo
from holdfast.core.request.routing.round_robin import RoundRobin
from holdfast.core.request.routing.zone_preference import ZonePreference, ZonePreferenceConfig
from holdfast.core.stats import PeakEwma
from holdfast.core.types import ConfigError, Replica, Request

ANY = Request(0, "model", arrived=0)


def candidate(name, zone, slots=0):
    replica = Replica(name, "model", zone=zone, slots=slots)
    return Candidate(replica, Breaker(BreakerConfig(), Random(0)), PeakEwma())


def fleet(own=2, others=4):
    return [candidate(f"own-{index}", "zone-a") for index in range(own)] + [
        candidate(f"far-{index}", "zone-b") for index in range(others)
    ]


def policy_of(inner=None, **config):
    return ZonePreference(inner or RoundRobin(), ZonePreferenceConfig("zone-a", **config))


def ids(policy, pool, times, tried=()):
    return [policy.choose(ANY, pool, tried, now=0)[0].id for _ in range(times)]


def test_a_quiet_zone_keeps_its_traffic():
    policy, pool = policy_of(), fleet()
    assert ids(policy, pool, 4) == ["own-0", "own-1", "own-0", "own-1"]
    assert policy.choose(ANY, pool, (), now=0)[1] == "own zone"


@pytest.mark.parametrize(("own", "others"), [(0, 3), (3, 0)])
def test_with_one_kind_of_zone_only_the_inner_policy_sees_all(own, others):
    policy, pool = policy_of(), fleet(own, others)
    assert ids(policy, pool, 3) == [one.id for one in pool]
    assert policy.choose(ANY, pool, (), now=0)[1] == "next in turn"


def test_a_zone_without_room_sends_across():
    policy, pool = policy_of(), fleet()
    pool[0].limit = 0
    assert policy.choose(ANY, pool, ("own-1",), now=0) == (
        pool[2],
        "other zone, own zone has no room",
    )


def test_an_overloaded_zone_spills_to_all_and_stops_when_it_has_recovered():
    policy, pool = policy_of(), fleet()
    for one in pool[:2]:
        one.inflight = 9
    assert set(ids(policy, pool, 6)) == {one.id for one in pool}
    assert policy.choose(ANY, pool, (), now=0)[1] == "any zone, own zone is overloaded"
    assert policy._spilling
    for one in pool[:2]:
        one.inflight = 2
    assert set(ids(policy, pool, 6)) == {"own-0", "own-1"}


def test_a_zone_no_busier_than_the_others_does_not_spill():
    policy, pool = policy_of(), fleet()
    for one in pool:
        one.inflight = 9
    assert set(ids(policy, pool, 6)) == {"own-0", "own-1"}


def test_below_the_slack_nothing_leaves_however_idle_the_others_are():
    policy, pool = policy_of(slack=10), fleet()
    for one in pool[:2]:
        one.inflight = 9
    assert set(ids(policy, pool, 6)) == {"own-0", "own-1"}


def test_a_zone_full_of_suspects_spills():
    policy, pool = policy_of(), fleet()
    for one in pool[:2]:
        one.weight = 0.1
    assert policy.choose(ANY, pool, (), now=0)[1] == "any zone, own zone is overloaded"


def test_a_new_list_is_split_anew_even_of_the_same_length():
    policy, pool = policy_of(), fleet(1, 1)
    assert ids(policy, pool, 2) == ["own-0", "own-0"]
    assert ids(policy, [candidate("far-9", "zone-b"), candidate("own-9", "zone-a")], 1) == ["own-9"]


def test_a_list_that_grew_in_place_is_split_anew():
    policy, pool = policy_of(), fleet(1, 1)
    ids(policy, pool, 1)
    pool.append(candidate("own-9", "zone-a"))
    assert set(ids(policy, pool, 4)) == {"own-0", "own-9"}


def test_the_inner_policy_is_handed_the_same_list_object_each_time():
    class Spy(RoundRobin):
        def choose(self, request, candidates, tried, now):
            seen.append(candidates)
            return super().choose(request, candidates, tried, now)

    seen: list[object] = []
    policy, pool = policy_of(Spy()), fleet()
    ids(policy, pool, 20)
    assert all(handed is seen[0] for handed in seen)


def test_spilling_settles_with_the_own_zone_loaded_but_not_swinging():
    """Own zone a quarter of the fleet, traffic twice what it could keep at the others' load."""
    policy, pool = policy_of(PowerOfTwo(Random(2))), fleet(4, 12)
    draw = Random(3)
    leaving: list[tuple[float, int, Candidate]] = []
    counts = Counter()
    for turn in range(8000):
        now = turn / 10  # ten arrivals per unit of time, each stays for sixteen
        while leaving and leaving[0][0] <= now:
            heapq.heappop(leaving)[2].inflight -= 1
        chosen = policy.choose(ANY, pool, (), now=0)[0]
        chosen.inflight += 1
        heapq.heappush(leaving, (now + draw.expovariate(1 / 16), turn, chosen))
        if turn > 2000:
            counts[chosen.zone] += 1
    # At one and a half times the load of the others, four of sixteen carry a third.
    assert counts["zone-a"] / counts.total() == pytest.approx(1 / 3, abs=0.05)


def test_nobody_left_is_none():
    policy, pool = policy_of(), fleet()
    everyone = [one.id for one in pool]
    assert policy.choose(ANY, pool, everyone, now=0) is None
    assert policy.choose(ANY, [], (), now=0) is None
    for one in pool[:2]:
        one.inflight = 90
    policy._look_in = 0
    assert policy.choose(ANY, pool, everyone, now=0) is None


@pytest.mark.parametrize(
    ("config", "field", "fix"),
    [
        ({"zone": ""}, "zone", "name the zone"),
        ({"zone": "a", "spill_factor": 0.9}, "spill_factor", "at least 1"),
        ({"zone": "a", "slack": -1}, "slack", "0 or more"),
    ],
)
def test_a_bad_setting_is_refused_with_its_fix(config, field, fix):
    with pytest.raises(ConfigError) as refused:
        ZonePreferenceConfig(**config)
    assert refused.value.field == f"zone_preference.{field}"
    assert fix in refused.value.fix
