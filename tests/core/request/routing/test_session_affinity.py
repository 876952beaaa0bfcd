from collections import Counter
from random import Random

import pytest

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.least_loaded import LeastLoaded
from holdfast.core.request.routing.session_affinity import SessionAffinity, SessionAffinityConfig
from holdfast.core.stats import PeakEwma
from holdfast.core.types import ConfigError, Replica, Request


def crowd(size):
    return [
        Candidate(
            Replica(f"replica-{index}", "model"), Breaker(BreakerConfig(), Random(0)), PeakEwma()
        )
        for index in range(size)
    ]


def policy_of(**config):
    return SessionAffinity(LeastLoaded(Random(1)), SessionAffinityConfig(**config))


def chosen(policy, pool, session, tried=()):
    request = Request(0, "model", arrived=0, session=session)
    return policy.choose(request, pool, tried, now=0)[0].id


def test_a_session_stays_on_its_replica():
    policy, pool = policy_of(), crowd(8)
    for number in range(50):
        assert len({chosen(policy, pool, f"user {number}") for _ in range(5)}) == 1


def test_gateways_agree_without_talking():
    left, right = policy_of(), policy_of()
    pool, mirror = crowd(8), list(reversed(crowd(8)))
    for number in range(200):
        name = f"sitzung-ü {number}"
        assert chosen(left, pool, name) == chosen(right, mirror, name)


def test_homes_are_the_same_in_every_process_and_version():
    """A change here moves every session of every fleet at the next upgrade."""
    policy, pool = policy_of(), crowd(8)
    numbers = [chosen(policy, pool, f"user {number}")[-1] for number in range(12)]
    assert "".join(numbers) == "124665306552"


def test_sessions_are_spread_over_the_pool():
    policy, pool = policy_of(), crowd(8)
    counts = Counter(chosen(policy, pool, f"user {number}") for number in range(1600))
    assert all(130 < counts[one.id] < 270 for one in pool)


def test_a_request_without_a_session_goes_by_the_inner_policy():
    policy, pool = policy_of(), crowd(4)
    for one in pool[1:]:
        one.inflight = 2
    assert chosen(policy, pool, "") == "replica-0"
    assert policy._unplaced == 1


def test_a_session_moves_when_its_home_is_overloaded_and_stays_where_it_went():
    policy, pool = policy_of(), crowd(8)
    first = chosen(policy, pool, "user")
    home = next(one for one in pool if one.id == first)
    for one in pool:
        one.inflight = 9
    home.inflight = 17  # a load of 18 against a mean of 11: not yet twice
    assert chosen(policy, pool, "user") == first
    home.inflight = 40
    second = chosen(policy, pool, "user")
    assert second != first
    home.inflight = 0
    assert chosen(policy, pool, "user") == second


def test_when_the_ranking_has_nobody_the_inner_policy_decides():
    policy, pool = policy_of(slack=0), crowd(2)
    pool[0].inflight = 30
    assert chosen(policy, pool, "user", tried=("replica-1",)) == "replica-0"
    assert policy.choose(Request(0, "m", arrived=0, session="user"), [], (), now=0) is None


@pytest.mark.parametrize(
    ("config", "field"), [({"load_factor": 0.5}, "load_factor"), ({"slack": -1}, "slack")]
)
def test_a_bad_setting_is_refused(config, field):
    with pytest.raises(ConfigError) as refused:
        SessionAffinityConfig(**config)
    assert refused.value.field == f"session_affinity.{field}"
