from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.least_loaded import LeastLoaded
from holdfast.core.request.routing.power_of_two import PowerOfTwo
from holdfast.core.request.routing.prefix_affinity import PrefixAffinity, PrefixAffinityConfig
from holdfast.core.request.routing.rendezvous import mix
from holdfast.core.stats import PeakEwma
from holdfast.core.types import ConfigError, Replica, Request


def crowd(size):
    return [
        Candidate(
            Replica(f"replica-{index}", "model"), Breaker(BreakerConfig(), Random(0)), PeakEwma()
        )
        for index in range(size)
    ]


def request(*blocks):
    return Request(0, "model", arrived=0, prefix=blocks)


def policy_of(seed=1, **config):
    return PrefixAffinity(PowerOfTwo(Random(seed)), PrefixAffinityConfig(**config))


def chosen(policy, pool, *blocks, tried=()):
    return policy.choose(request(*blocks), pool, tried, now=0)[0].id


def conversation(number, turns, system=()):
    """Each turn's prompt begins with the whole of the turn before."""
    blocks = [mix(number * 1000 + depth) for depth in range(turns + 1)]
    return [(*system, *blocks[: turn + 2]) for turn in range(turns)]


def teach(policy, pool, system, prompts=600):
    """Let it see many conversations that open alike."""
    for number in range(prompts):
        chosen(policy, pool, *system, mix(10**6 + number), mix(2 * 10**6 + number))


def test_later_turns_come_back_to_the_replica_of_the_first():
    policy, pool = policy_of(), crowd(8)
    for number in range(50):
        assert len({chosen(policy, pool, *turn) for turn in conversation(number, 9)}) == 1


def test_conversations_are_spread_over_the_pool():
    policy, pool = policy_of(), crowd(8)
    counts = Counter(chosen(policy, pool, *conversation(number, 1)[0]) for number in range(1600))
    assert all(140 < counts[one.id] < 260 for one in pool)


@pytest.mark.parametrize("depth", [1, 5])
def test_a_system_prompt_shared_by_all_does_not_send_the_world_to_one_replica(depth):
    system = tuple(range(depth))
    policy, pool = policy_of(), crowd(8)
    teach(policy, pool, system)
    counts = Counter()
    for number in range(400):
        homes = {chosen(policy, pool, *turn) for turn in conversation(number, 4, system)}
        assert len(homes) == 1  # and yet every conversation keeps together
        counts[homes.pop()] += 1
    assert all(25 < counts[one.id] < 75 for one in pool)
    assert len(policy._common) == depth


def test_two_gateways_that_saw_the_same_mix_agree_without_talking():
    system = (1, 2)
    left, right = policy_of(seed=1), policy_of(seed=2)
    pool, mirror = crowd(8), list(reversed(crowd(8)))
    teach(left, pool, system, prompts=600)
    teach(right, mirror, system, prompts=900)
    for number in range(200):
        first, second = conversation(number, 2, system)
        assert chosen(left, pool, *first) == chosen(right, mirror, *second)


def test_a_popular_application_is_split_and_a_small_one_stays_together():
    policy, pool = policy_of(), crowd(8)
    draw = Random(3)
    homes: dict[int, Counter[str]] = {100: Counter(), 200: Counter()}
    for number in range(4000):
        application = 100 if draw.random() < 0.3 else 200 if draw.random() < 0.03 else None
        opening = (application,) if application else ()
        home = chosen(policy, pool, *opening, mix(number), mix(number + 10**7))
        if application and number > 500:
            homes[application][home] += 1
    assert len(homes[100]) == 8
    assert len(homes[200]) == 1


def test_a_prefix_that_falls_out_of_use_is_no_longer_common():
    policy, pool = policy_of(window=256), crowd(8)
    teach(policy, pool, (1,), prompts=300)
    assert len(policy._common) == 1
    teach(policy, pool, (), prompts=2000)
    assert len(policy._common) == 0


def test_a_common_block_does_not_flap_at_its_threshold():
    """A share that wavers around one sixteenth, where splitting starts for eight replicas."""
    policy, pool = policy_of(window=512), crowd(8)
    draw = Random(4)
    states = []
    for number in range(6000):
        opening = (1,) if draw.random() < 1 / 16 else ()
        chosen(policy, pool, *opening, mix(number))
        if number > 2000:
            states.append(len(policy._common))
    flips = sum(before != after for before, after in pairwise(states))
    assert flips <= 2


def test_what_it_counts_is_bounded():
    policy, pool = policy_of(window=128), crowd(4)
    for number in range(3000):
        chosen(policy, pool, 1, mix(number), mix(number + 1))
        assert len(policy._counts) <= 2 * 128 + 2


def test_a_prompt_without_prefix_goes_by_the_inner_policy():
    pool = crowd(4)
    for one in pool[1:]:
        one.inflight = 3
    policy = PrefixAffinity(LeastLoaded(Random(1)))
    assert policy.choose(request(), pool, (), now=0) == (pool[0], "least in flight for its weight")
    assert policy._unplaced == 1


def test_a_prompt_with_nothing_of_its_own_goes_by_the_inner_policy():
    pool = crowd(4)
    policy = PrefixAffinity(LeastLoaded(Random(1)))
    teach(policy, pool, (1, 2))
    for one in pool:
        one.inflight = 0 if one.id == "replica-2" else 1
    assert chosen(policy, pool, 1, 2) == "replica-2"
    assert chosen(policy, pool, 1) == "replica-2"


def test_blocks_beyond_the_greatest_depth_are_not_looked_at():
    pool = crowd(4)
    policy = PrefixAffinity(LeastLoaded(Random(1)), PrefixAffinityConfig(depth_max=2))
    teach(policy, pool, (1, 2))
    for one in pool:
        one.inflight = 0 if one.id == "replica-3" else 1
    assert {chosen(policy, pool, 1, 2, mix(number)) for number in range(20)} == {"replica-3"}


def test_an_overloaded_home_passes_a_new_prompt_on_and_keeps_a_returning_one():
    pool = crowd(8)
    policy = policy_of()
    first = chosen(policy, pool, 42)
    for one in pool:
        one.inflight = 14 if one.id == first else 9
    assert chosen(policy, pool, 42) == first
    assert chosen(policy_of(), pool, 42) != first


# --- what home saves, and what waits there --------------------------------------------------------


def ask(policy, pool, tokens, *blocks):
    wanted = Request(0, "model", arrived=0, prompt_tokens=tokens, prefix=blocks)
    candidate, reason = policy.choose(wanted, pool, (), now=0)
    return candidate.id, reason


def waits_at(pool, replica_id, tokens):
    for one in pool:
        one.prefill_tokens = tokens if one.id == replica_id else 0


def test_a_prompt_never_seen_goes_where_no_other_prompt_waits():
    pool = crowd(8)
    home, _ = ask(policy_of(), pool, 1_000, 42)
    waits_at(pool, home, 300)
    elsewhere, reason = ask(policy_of(), pool, 1_000, 42)
    assert elsewhere != home
    assert reason == "less prompt work waits there than its home would save"


def test_two_gateways_send_what_leaves_home_to_the_same_replica():
    pool, mirror = crowd(8), list(reversed(crowd(8)))
    home, _ = ask(policy_of(), pool, 1_000, 42)
    waits_at(pool, home, 300)
    waits_at(mirror, home, 300)
    assert ask(policy_of(seed=1), pool, 1_000, 42) == ask(policy_of(seed=2), mirror, 1_000, 42)


def test_a_prompt_that_comes_back_waits_at_home_for_less_than_it_saves_there():
    policy, pool = policy_of(), crowd(8)
    home, _ = ask(policy, pool, 1_000, 42, 43)
    waits_at(pool, home, 499)  # of 1,000 tokens in four blocks, two are cached there
    assert ask(policy, pool, 1_000, 42, 43, 44, 45)[0] == home
    waits_at(pool, home, 1_000)  # now all four are
    assert ask(policy, pool, 1_000, 42, 43, 44, 45)[0] == home


def test_a_prompt_that_comes_back_leaves_for_good_where_the_wait_is_longer():
    policy, pool = policy_of(), crowd(8)
    home, _ = ask(policy, pool, 1_000, 42, 43)
    waits_at(pool, home, 501)
    second, _ = ask(policy, pool, 1_000, 42, 43, 44, 45)
    assert second != home
    waits_at(pool, home, 0)
    assert ask(policy, pool, 1_000, 42, 43, 44, 45) == (second, "where it was moved to before")


def test_where_as_much_waits_everywhere_home_is_as_good_as_any():
    policy, pool = policy_of(), crowd(8)
    home, _ = ask(policy, pool, 1_000, 42)
    for one in pool:
        one.prefill_tokens = 50_000
    assert ask(policy_of(), pool, 1_000, 42)[0] == home


def test_a_replica_of_twice_the_weight_reads_twice_as_much_meanwhile():
    pool = crowd(2)
    home, _ = ask(policy_of(), pool, 1_000, 42)
    for one in pool:
        one.weight = 2.0 if one.id == home else 1.0
        one.prefill_tokens = 1_500 if one.id == home else 800
    assert ask(policy_of(), pool, 1_000, 42)[0] == home


def test_nobody_full_or_overloaded_is_chosen_for_having_read_its_prompts():
    pool = crowd(3)
    home, _ = ask(policy_of(), pool, 1_000, 42)
    waits_at(pool, home, 10_000)
    for one in pool:
        one.inflight = 10 if one.id == home else 40
    assert ask(policy_of(), pool, 1_000, 42)[0] == home


def test_the_lengths_it_remembers_are_bounded():
    policy, pool = policy_of(window=128), crowd(4)
    for number in range(3000):
        chosen(policy, pool, mix(number), mix(number + 1))
        assert len(policy._lengths) <= 2 * 128 + 2


# --- tried, full, unfit ---------------------------------------------------------------------------


def test_a_tried_home_is_left_for_the_next_in_order():
    pool = crowd(4)
    policy = policy_of()
    first = chosen(policy, pool, 42)
    second = chosen(policy, pool, 42, tried=(first,))
    assert second != first
    assert chosen(policy, pool, 42) == second  # its cache is warm there now


def test_when_everyone_is_over_the_bound_the_inner_policy_decides():
    pool = crowd(2)
    policy = policy_of(slack=0)
    pool[0].inflight = 30
    tried = ("replica-1",)
    assert chosen(policy, pool, 42, tried=tried) == "replica-0"
    assert policy._unplaced == 1


def test_an_empty_pool_has_no_answer():
    policy = policy_of(window=32)
    for number in range(70):
        assert policy.choose(request(1, number), [], (), now=0) is None


@pytest.mark.parametrize(
    ("config", "field", "fix"),
    [
        ({"load_factor": 0.5}, "load_factor", "at least 1"),
        ({"return_factor": 1.0}, "return_factor", "use load_factor, 1.25, or more"),
        ({"slack": -1}, "slack", "0 or more"),
        ({"split_share": 0}, "split_share", "positive share"),
        ({"depth_max": 0}, "depth_max", "at least 1 block"),
        ({"window": 31}, "window", "at least 32 prompts"),
    ],
)
def test_a_bad_setting_is_refused_with_its_fix(config, field, fix):
    with pytest.raises(ConfigError) as refused:
        PrefixAffinityConfig(**config)
    assert refused.value.field == f"prefix_affinity.{field}"
    assert fix in refused.value.fix
