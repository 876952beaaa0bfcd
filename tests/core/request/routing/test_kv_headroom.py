from random import Random

import pytest

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.kv_headroom import KvHeadroom, KvHeadroomConfig
from holdfast.core.request.routing.round_robin import RoundRobin
from holdfast.core.stats import PeakEwma
from holdfast.core.types import ConfigError, Replica, Request

REQUEST = Request(0, "model", arrived=0)


def crowd(**kv_used):
    pool = []
    for name, used in kv_used.items():
        breaker = Breaker(BreakerConfig(), Random(0))
        candidate = Candidate(Replica(name, "model"), breaker, PeakEwma())
        candidate.kv_used = used
        pool.append(candidate)
    return pool


def chosen(pool, times, tried=(), **config):
    policy = KvHeadroom(RoundRobin(), KvHeadroomConfig(**config))
    return [policy.choose(REQUEST, pool, tried, 0) for _ in range(times)]


def test_a_replica_that_is_nearly_out_of_memory_is_passed_over():
    choices = chosen(crowd(a=0.5, b=0.95, c=0.5), 6)
    assert "b" not in {candidate.id for candidate, _ in choices}
    assert any("nearly out of memory" in reason for _, reason in choices)


def test_while_there_is_memory_the_inner_policy_is_left_alone():
    choices = chosen(crowd(a=0.5, b=0.89, c=0.0), 6)
    assert [candidate.id for candidate, _ in choices] == list("abcabc")
    assert not any("memory" in reason for _, reason in choices)


def test_unknown_is_neither_full_nor_empty():
    choices = chosen(crowd(a=None, b=None), 4)
    assert [candidate.id for candidate, _ in choices] == list("abab")


def test_when_all_are_full_the_one_with_most_left_is_taken():
    ((candidate, reason),) = chosen(crowd(a=0.99, b=0.92, c=0.97), 1)
    assert candidate.id == "b"
    assert "most left" in reason


def test_it_looks_no_longer_than_allowed():
    pool = crowd(a=0.99, b=0.98, c=0.1)
    ((candidate, _),) = chosen(pool, 1, looks=2)
    assert candidate.id == "b"
    ((candidate, _),) = chosen(pool, 1, looks=1)
    assert candidate.id == "a"


def test_a_full_one_is_better_than_none():
    ((candidate, _),) = chosen(crowd(a=1.0), 1)
    assert candidate.id == "a"


def test_nobody_eligible_is_nobody():
    assert chosen(crowd(a=1.0), 1, tried=("a",)) == [None]


def test_what_was_tried_is_not_chosen_again():
    for candidate, _ in chosen(crowd(a=0.95, b=0.95, c=0.95), 6, tried=("b",)):
        assert candidate.id != "b"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"danger": 0.0}, "kv_headroom.danger: is 0.0; use a share above 0, up to 1"),
        ({"danger": 1.1}, "kv_headroom.danger: is 1.1"),
        ({"looks": 0}, "kv_headroom.looks: is 0; use 1 to 16"),
        ({"looks": 17}, "kv_headroom.looks: is 17"),
    ],
)
def test_a_bad_config_names_field_and_fix(config, said):
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        KvHeadroomConfig(**config)
