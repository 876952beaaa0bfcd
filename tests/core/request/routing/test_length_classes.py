from random import Random

import pytest

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.length_classes import LengthClasses, LengthClassesConfig
from holdfast.core.request.routing.round_robin import RoundRobin
from holdfast.core.stats import PeakEwma
from holdfast.core.types import ConfigError, Replica, Request

SHORT = Request(0, "model", arrived=0, prompt_tokens=8192)
LONG = Request(0, "model", arrived=0, prompt_tokens=8193)


def crowd(names):
    return [
        Candidate(Replica(name, "model"), Breaker(BreakerConfig(), Random(0)), PeakEwma())
        for name in names
    ]


def policy_of(**config):
    return LengthClasses(RoundRobin(), RoundRobin(), LengthClassesConfig(**config))


def ids(policy, request, pool, times, tried=()):
    return [policy.choose(request, pool, tried, now=0)[0].id for _ in range(times)]


def test_long_and_short_prompts_are_kept_apart():
    policy, pool = policy_of(), crowd("abcdefgh")
    assert ids(policy, LONG, pool, 4) == list("abab")
    assert ids(policy, SHORT, pool, 6) == list("cdefgh")


def test_the_two_sides_do_not_disturb_each_others_rotation():
    policy, pool = policy_of(), crowd("abcdefgh")
    mixed = [ids(policy, which, pool, 1)[0] for _ in range(6) for which in (LONG, SHORT)]
    assert mixed[::2] == list("ababab")
    assert mixed[1::2] == list("cdefgh")


def test_the_split_goes_by_id_not_by_the_order_of_the_list():
    policy = policy_of()
    pool = crowd("hgfedcba")
    assert set(ids(policy, LONG, pool, 4)) == {"a", "b"}


def test_a_new_list_is_split_anew():
    policy = policy_of()
    ids(policy, LONG, crowd("abcdefgh"), 1)
    assert set(ids(policy, LONG, crowd("bcdefghi"), 4)) == {"b", "c"}


@pytest.mark.parametrize(
    ("size", "share", "kept"), [(2, 0.01, 1), (2, 0.99, 1), (8, 0.25, 2), (8, 0.9, 7), (3, 0.5, 2)]
)
def test_both_sides_have_somebody_while_there_are_two(size, share, kept):
    policy, pool = policy_of(long_share=share), crowd("abcdefgh"[:size])
    ids(policy, LONG, pool, 1)
    assert (len(policy._long.members), len(policy._short.members)) == (kept, size - kept)


def test_a_single_replica_serves_both():
    policy, pool = policy_of(), crowd("a")
    assert ids(policy, LONG, pool, 1) == ids(policy, SHORT, pool, 1) == ["a"]


def test_either_side_spills_when_its_own_has_no_room():
    policy, pool = policy_of(), crowd("abcd")
    assert policy.choose(LONG, pool, ("a",), now=0) == (
        pool[1],
        "other length class, its own has no room",
    )
    for one in pool[1:]:
        one.limit = 0
    assert ids(policy, SHORT, pool, 2) == ["a", "a"]
    assert policy._spilled == 3


def test_the_reason_names_the_class():
    policy, pool = policy_of(), crowd("abcd")
    assert policy.choose(LONG, pool, (), now=0)[1] == "kept for long prompts"
    assert policy.choose(SHORT, pool, (), now=0)[1] == "kept for short prompts"


def test_nobody_left_is_none():
    policy, pool = policy_of(), crowd("ab")
    assert policy.choose(LONG, pool, ("a", "b"), now=0) is None
    assert policy.choose(SHORT, [], (), now=0) is None


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"long_tokens": 0}, "long_tokens"),
        ({"long_share": 0}, "long_share"),
        ({"long_share": 1}, "long_share"),
    ],
)
def test_a_bad_setting_is_refused(config, field):
    with pytest.raises(ConfigError) as refused:
        LengthClassesConfig(**config)
    assert refused.value.field == f"length_classes.{field}"
