from collections import Counter
from random import Random

import pytest

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.token_work import TokenWork, TokenWorkConfig
from holdfast.core.stats import PeakEwma
from holdfast.core.types import ConfigError, Replica, Request

ANY = Request(0, "model", arrived=0, prompt_tokens=100)
ALL = TokenWorkConfig(look_at="all")
BOTH = pytest.mark.parametrize("config", [TokenWorkConfig(), ALL], ids=["two", "all"])


def candidate(name, reported=None, own=0, weight=1.0):
    made = Candidate(
        Replica(name, "model", weight=weight), Breaker(BreakerConfig(), Random(0)), PeakEwma()
    )
    made.reported_tokens = reported
    made.own_tokens = own
    return made


def always(policy, pool, request=ANY, tried=()):
    chosen = {policy.choose(request, pool, tried, now=0)[0].id for _ in range(50)}
    assert len(chosen) == 1
    return chosen.pop()


@BOTH
def test_the_least_reported_work_wins(config):
    pool = [candidate("a", 5000), candidate("b", 300)]
    assert always(TokenWork(Random(1), config), pool) == "b"


@BOTH
def test_work_is_counted_in_tokens_not_requests(config):
    pool = [candidate("books", 90_000), candidate("questions", 500)]
    pool[1].inflight = 10
    assert always(TokenWork(Random(1), config), pool) == "questions"


@BOTH
def test_own_dispatches_count_between_two_polls(config):
    pool = [candidate("a", 100), candidate("b", 300)]
    policy = TokenWork(Random(1), config)
    for _ in range(8):
        policy.choose(ANY, pool, (), now=0)[0].own_tokens += 100
    assert [one.own_tokens for one in pool] == [500, 300]  # both at 600 now


@BOTH
def test_work_counts_per_weight(config):
    pool = [candidate("a", 900, weight=4.0), candidate("b", 300)]
    policy = TokenWork(Random(1), config)
    assert always(policy, pool) == "a"
    pool[0].weight = 0.4
    assert always(policy, pool) == "b"


@BOTH
def test_the_request_itself_makes_idle_suspects_dear(config):
    pool = [candidate("suspect", 0, weight=0.1), candidate("well", 500)]
    policy = TokenWork(Random(1), config)
    assert always(policy, pool) == "well"
    assert always(policy, pool, Request(0, "m", arrived=0, prompt_tokens=10)) == "suspect"


@BOTH
def test_a_request_of_unknown_length_still_counts(config):
    pool = [candidate("suspect", weight=0.1), candidate("well")]
    assert always(TokenWork(Random(1), config), pool, Request(0, "m", arrived=0)) == "well"


@BOTH
def test_an_engine_that_reports_nothing_is_taken_for_an_average_one(config):
    known = [candidate(f"r{index}", 1000) for index in range(6)]
    silent = candidate("silent")
    policy = TokenWork(Random(2), config)
    for _ in range(20):
        policy.choose(ANY, known, (), now=0)
    assert always(policy, [silent, candidate("idle", 10)]) == "idle"
    policy = TokenWork(Random(2), config)
    for _ in range(20):
        policy.choose(ANY, known, (), now=0)
    assert always(policy, [silent, candidate("busy", 9000)]) == "silent"


@BOTH
def test_without_any_report_own_tokens_decide(config):
    pool = [candidate("a", own=500), candidate("b", own=400)]
    assert always(TokenWork(Random(1), config), pool) == "b"


@BOTH
def test_equals_share_evenly(config):
    pool = [candidate(f"r{index}", 1000) for index in range(8)]
    policy = TokenWork(Random(3), config)
    counts = Counter(policy.choose(ANY, pool, (), now=0)[0].id for _ in range(4000))
    assert all(abs(counts[one.id] - 500) < 105 for one in pool)


def test_looking_at_all_always_finds_the_least():
    pool = [candidate(f"r{index}", 1000 + index) for index in range(64)]
    assert always(TokenWork(Random(4), ALL), pool) == "r0"


def test_samples_without_room_fall_back_to_the_least_of_all():
    pool = [candidate(f"r{index}", 10) for index in range(30)]
    for one in pool:
        one.limit = 0
    pool += [candidate("more", 500), candidate("less", 400)]
    policy = TokenWork(Random(5))
    seen = [policy.choose(ANY, pool, (), now=0) for _ in range(50)]
    assert {one.id for one, why in seen if why == "least work of all with room"} == {"less"}
    assert always(policy, pool, tried=("less",)) == "more"


def test_nobody_left_is_none():
    policy = TokenWork(Random(1))
    assert policy.choose(ANY, [], (), now=0) is None
    assert policy.choose(ANY, [candidate("a"), candidate("b")], ("a", "b"), now=0) is None


def test_a_bad_setting_is_refused_with_its_fix():
    with pytest.raises(ConfigError, match=r'token_work\.look_at: is .some.; use "two" or "all"'):
        TokenWorkConfig(look_at="some")
