import heapq
from collections import Counter
from random import Random

import pytest

from holdfast.core.request.breaker import Breaker, BreakerConfig
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.routing.power_of_two import PowerOfTwo, PowerOfTwoConfig
from holdfast.core.stats import PeakEwma
from holdfast.core.types import MILLISECOND, SECOND, ConfigError, Replica, Request

ANY = Request(0, "model", arrived=0)
STRICT = PowerOfTwoConfig(explore=0)  # without the random visits, for exact expectations


def candidate(name, latency=None, inflight=0, weight=1.0, slots=0):
    replica = Replica(name, "model", slots=slots, weight=weight)
    made = Candidate(replica, Breaker(BreakerConfig(), Random(0)), PeakEwma())
    made.latency.value = latency
    made.inflight = inflight
    return made


def counts_of(policy, pool, times, tried=()):
    return Counter(policy.choose(ANY, pool, tried, now=0)[0].id for _ in range(times))


def always(policy, pool, tried=()):
    counts = counts_of(policy, pool, 60, tried)
    assert len(counts) == 1
    return next(iter(counts))


def mean_sojourn(policy, servers, arrival_rate, jobs, seed):
    """The supermarket model: Poisson arrivals, FIFO servers of exponential unit service."""
    draw = Random(seed)
    pool = [candidate(f"s{index}") for index in range(servers)]
    number = {one.id: index for index, one in enumerate(pool)}
    free_at = [0.0] * servers
    departures: list[tuple[float, int]] = []
    warm_up = jobs // 10
    now = total = 0.0
    for job in range(jobs):
        now += draw.expovariate(servers * arrival_rate)
        while departures and departures[0][0] <= now:
            pool[heapq.heappop(departures)[1]].inflight -= 1
        chosen = policy.choose(ANY, pool, (), now=0)[0]
        index = number[chosen.id]
        chosen.inflight += 1
        done = max(now, free_at[index]) + draw.expovariate(1.0)
        free_at[index] = done
        heapq.heappush(departures, (done, index))
        if job >= warm_up:
            total += done - now
    return total / (jobs - warm_up)


@pytest.mark.measured
def test_by_inflight_agrees_with_the_fluid_limit_of_two_choices():
    """The sum of .8 ** (2 ** i - 2) is 1.947; one random choice would wait 1 / (1 - .8) = 5."""
    policy = PowerOfTwo(Random(11), PowerOfTwoConfig(by="inflight"))
    assert mean_sojourn(policy, 64, 0.8, 80_000, seed=12) == pytest.approx(1.947, rel=0.04)


@pytest.mark.measured
def test_three_samples_wait_less_than_two():
    two = PowerOfTwo(Random(11), PowerOfTwoConfig(by="inflight"))
    three = PowerOfTwo(Random(11), PowerOfTwoConfig(by="inflight", choices=3))
    assert mean_sojourn(three, 16, 0.9, 12_000, 13) < 0.9 * mean_sojourn(two, 16, 0.9, 12_000, 13)


def test_the_smaller_product_of_latency_and_load_wins():
    pool = [candidate("a", 3.0, inflight=0), candidate("b", 1.0, inflight=1)]
    policy = PowerOfTwo(Random(1), STRICT)
    assert always(policy, pool) == "b"
    pool[1].inflight = 3
    assert always(policy, pool) == "a"


def test_by_inflight_ignores_latency():
    pool = [candidate("a", 100.0, inflight=1), candidate("b", 1.0, inflight=2)]
    assert always(PowerOfTwo(Random(1), PowerOfTwoConfig(by="inflight")), pool) == "a"


READING = PowerOfTwoConfig(explore=0, prompt_tokens=512)


def test_prompts_that_wait_for_their_first_token_count_by_their_length_if_wanted():
    writes, reads = candidate("writes", 1.0, inflight=6), candidate("reads", 1.0, inflight=2)
    reads.prefill_tokens = 4_096  # eight requests more, where an answer being written is one
    assert always(PowerOfTwo(Random(1), READING), [writes, reads]) == "writes"
    reads.prefill_tokens = 512
    assert always(PowerOfTwo(Random(1), READING), [writes, reads]) == "reads"
    reads.prefill_tokens = 1 << 20
    for config in (STRICT, PowerOfTwoConfig(by="inflight", prompt_tokens=512)):
        assert always(PowerOfTwo(Random(1), config), [writes, reads]) == "reads"


def test_a_burst_of_long_prompts_is_spread_over_replicas_that_write_answers():
    pool = [candidate(f"r{index}", 1.0, inflight=index) for index in range(8)]
    policy = PowerOfTwo(Random(5), READING)
    sent = Counter()
    for _ in range(28):
        chosen, _ = policy.choose(ANY, pool, (), now=0)
        chosen.inflight += 1
        chosen.prefill_tokens += 12_000
        sent[chosen.id] += 1
    assert max(sent.values()) <= 6
    assert len(sent) == 8


def test_weight_divides_the_cost():
    pool = [candidate("a", 1.0, weight=0.1), candidate("b", 1.0, inflight=8)]
    policy = PowerOfTwo(Random(1), STRICT)
    assert always(policy, pool) == "b"
    pool[1].inflight = 11
    assert always(policy, pool) == "a"


def test_equal_candidates_share_evenly():
    pool = [candidate(f"r{index}", 1.0) for index in range(8)]
    counts = counts_of(PowerOfTwo(Random(2)), pool, 8000)
    assert all(abs(counts[one.id] - 1000) < 150 for one in pool)


def test_both_samples_are_distinct_and_every_pair_is_possible():
    class Seen(list):
        def __getitem__(self, index):
            looked_at.append(index)
            return super().__getitem__(index)

    pool = Seen(candidate(f"r{index}", 1.0) for index in range(3))
    policy = PowerOfTwo(Random(3), STRICT)
    pairs = Counter()
    for _ in range(600):
        looked_at: list[int] = []
        policy.choose(ANY, pool, (), now=0)
        pairs[tuple(looked_at)] += 1
    assert len(pairs) == 6
    assert all(first != second for first, second in pairs)
    assert all(count > 50 for count in pairs.values())


def test_an_unknown_latency_is_typical_neither_zero_nor_infinite():
    policy = PowerOfTwo(Random(4), STRICT)
    pool = [candidate(f"r{index}", 50.0) for index in range(8)]
    counts_of(policy, pool, 100)
    newcomer = candidate("new")
    pool.append(newcomer)
    counts = counts_of(policy, pool, 9000)
    assert 800 < counts["new"] < 1200  # its fair share is 1000
    newcomer.inflight = 2
    assert counts_of(policy, pool, 1000)["new"] == 0


def test_with_no_latency_known_at_all_load_decides():
    pool = [candidate("a", inflight=2), candidate("b", inflight=1)]
    assert always(PowerOfTwo(Random(4), STRICT), pool) == "b"


def test_the_first_latency_ever_seen_sets_what_is_typical():
    policy = PowerOfTwo(Random(4), STRICT)
    assert not policy._typical
    policy.choose(ANY, [candidate("a", 70.0), candidate("b")], (), now=0)
    assert policy._typical == pytest.approx(70.0, rel=0.03)


def test_what_is_typical_follows_the_median_not_the_outlier():
    pool = [candidate(f"r{index}", 10.0 + index) for index in range(9)]
    pool.append(candidate("sick", 1e9))
    policy = PowerOfTwo(Random(5), STRICT)
    counts_of(policy, pool, 3000)
    assert policy._typical == pytest.approx(14.5, rel=0.3)
    for one in pool:
        one.latency.value = 40.0
    counts_of(policy, pool, 300)
    assert policy._typical == pytest.approx(40.0, rel=0.05)


def test_latencies_of_zero_leave_the_decision_to_load():
    pool = [candidate("a", 0.0, inflight=1), candidate("b", 0.0)]
    assert always(PowerOfTwo(Random(5), STRICT), pool) == "b"


def test_nobody_looks_faster_than_the_floor():
    """A thousandth of the typical latency counts as a quarter: four in flight outweigh it."""
    pool = [candidate(f"r{index}", 100.0) for index in range(8)]
    policy = PowerOfTwo(Random(6), STRICT)
    counts_of(policy, pool, 100)
    flash = candidate("flash", 0.1, inflight=2)
    assert always(policy, [flash, pool[0]]) == "flash"
    flash.inflight = 5
    assert always(policy, [flash, pool[0]]) == "r0"


def test_differences_below_the_indifference_do_not_rank_a_fleet():
    pool = [candidate(f"r{index}", 100.0 + index / 2) for index in range(8)]
    counts = counts_of(PowerOfTwo(Random(7), STRICT), pool, 8000)
    assert all(abs(counts[one.id] - 1000) < 150 for one in pool)


def test_a_replica_once_slow_is_visited_again():
    pool = [candidate(f"r{index}", 1.0) for index in range(7)] + [candidate("slow", 1000.0)]
    policy = PowerOfTwo(Random(8))
    counts = counts_of(policy, pool, 20_000)
    assert 20 < counts["slow"] < 90  # a fiftieth of a fair 2500 is 50
    reasons = {policy.choose(ANY, pool, (), now=0)[1] for _ in range(500)}
    assert "sampled to refresh its latency" in reasons


def test_visits_to_refresh_do_not_favour_a_suspect():
    pool = [candidate(f"r{index}", 1.0) for index in range(7)] + [candidate("s", 1.0, weight=0.1)]
    assert counts_of(PowerOfTwo(Random(8)), pool, 5000)["s"] == 0


def failing_share(*, penalised):
    """Eight replicas at half load, one of which fails everything within a millisecond."""
    pool = [candidate(f"r{index}") for index in range(8)]
    bad = pool[5]
    policy = PowerOfTwo(Random(21))
    draw = Random(22)
    ends: list[tuple[int, int, Candidate, int]] = []
    now = count = 0
    for turn in range(6000):
        now += round(draw.expovariate(1.0) * 0.025 * SECOND)
        while ends and ends[0][0] <= now:
            at, _, done, took = heapq.heappop(ends)
            done.inflight -= 1
            if done is bad and penalised:
                done.latency.penalise(2.0 * SECOND, at)
            else:
                done.latency.observe(took, at)
        chosen = policy.choose(ANY, pool, (), now)[0]
        count += chosen is bad
        chosen.inflight += 1
        took = MILLISECOND if chosen is bad else round(draw.uniform(0.1, 0.3) * SECOND)
        heapq.heappush(ends, (now + took, turn, chosen, took))
    return count / 6000


def test_a_replica_failing_fast_gets_no_more_than_its_fair_share():
    assert failing_share(penalised=True) <= 1 / 8


def test_the_same_replica_unpenalised_would_be_favoured():
    """So that the test above cannot pass by accident."""
    assert failing_share(penalised=False) > 1.3 / 8


def test_one_sample_with_room_is_taken_without_a_scan():
    pool = [candidate("a", 1.0, slots=1, inflight=1), candidate("b", 1.0)]
    policy = PowerOfTwo(Random(9))
    assert {policy.choose(ANY, pool, (), now=0) for _ in range(40)} == {
        (pool[1], "the only one of two samples with room")
    }
    pool[0].inflight = 0
    assert always(policy, pool, tried=("b",)) == "a"


def test_when_no_sample_has_room_those_with_room_are_sampled():
    pool = [candidate(f"r{index}", 1.0, slots=1, inflight=1) for index in range(62)]
    pool += [candidate("dear", 9.0), candidate("cheap", 1.0)]
    policy = PowerOfTwo(Random(10), STRICT)
    choices = [policy.choose(ANY, pool, (), now=0) for _ in range(500)]
    again = {one.id for one, why in choices if why == "cheaper sample of the few with room"}
    assert again == {"cheap"}


def test_the_few_with_room_share_evenly():
    pool = [candidate(f"r{index}", 1.0, slots=1, inflight=1) for index in range(60)]
    pool += [candidate(name, 1.0) for name in "abcd"]
    counts = counts_of(PowerOfTwo(Random(10), STRICT), pool, 2000)
    assert set(counts) == set("abcd")
    assert all(abs(count - 500) < 100 for count in counts.values())  # five deviations: 97


def test_more_samples_than_candidates_looks_at_all():
    pool = [candidate("a", 2.0), candidate("b", 1.0), candidate("c", 3.0)]
    policy = PowerOfTwo(Random(1), PowerOfTwoConfig(choices=5))
    assert always(policy, pool) == "b"


def test_three_samples_none_with_room_fall_back_to_all():
    pool = [candidate(f"r{index}", 1.0, slots=1, inflight=1) for index in range(20)]
    pool.append(candidate("free", 1.0))
    policy = PowerOfTwo(Random(1), PowerOfTwoConfig(choices=3))
    assert always(policy, pool) == "free"
    assert {policy.choose(ANY, pool, (), now=0)[1] for _ in range(100)} == {
        "cheapest of the samples",
        "cheaper sample of the few with room",
    }


def test_nobody_left_is_none():
    policy = PowerOfTwo(Random(1))
    assert policy.choose(ANY, [], (), now=0) is None
    assert policy.choose(ANY, [candidate("a")], ("a",), now=0) is None
    assert policy.choose(ANY, [candidate("a"), candidate("b")], ("a", "b"), now=0) is None
    assert policy.choose(ANY, [candidate("a")], (), now=0)[0].id == "a"


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("by", "queue", '"latency" or "inflight"'),
        ("choices", 1, "at least 2"),
        ("latency_floor", 0.0, "above 0, up to 1"),
        ("latency_floor", 1.1, "above 0, up to 1"),
        ("indifference", -0.1, "from 0 to below 1"),
        ("indifference", 1.0, "from 0 to below 1"),
        ("explore", -0.1, "from 0 to 0.5"),
        ("explore", 0.6, "from 0 to 0.5"),
        ("explore", float("nan"), "from 0 to 0.5"),
        ("prompt_tokens", -1, "0 or more tokens"),
    ],
)
def test_a_bad_setting_is_refused_with_its_fix(field, value, fix):
    with pytest.raises(ConfigError) as refused:
        PowerOfTwoConfig(**{field: value})
    assert refused.value.field == f"power_of_two.{field}"
    assert fix in refused.value.fix
