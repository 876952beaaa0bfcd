from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.admission.limit import GradientLimit, LimitConfig
from holdfast.core.types import MILLISECOND, SECOND, ConfigError
from sampling import examples

BASE = 200 * MILLISECOND


def drive(limit, samples, latency, inflight=None, expected=None):
    """Feed ``samples`` first tokens from a replica that is always given what the limit allows."""
    seen = []
    for number in range(samples):
        used = limit.limit if inflight is None else inflight
        limit.observe(int(latency(used)), used, number * MILLISECOND, expected)
        seen.append(limit.limit)
    return seen


def queueing(capacity, slowdown=1.0):
    return lambda used: BASE * slowdown * max(1.0, used / capacity)


def sharp(capacity):
    """As a real engine: past its slots each request waits for a whole answer to end."""
    return lambda used: BASE + max(0, used - capacity) * 10 * SECOND / capacity


@pytest.mark.parametrize("ceiling", [0, 8, 64])
def test_constant_latency_never_takes_away_what_is_in_use(ceiling):
    limit = GradientLimit(LimitConfig(initial=32), ceiling)
    seen = drive(limit, 20_000, lambda used: BASE)
    assert seen == sorted(seen)
    assert limit.limit == (ceiling or 1_000)


def test_traffic_that_does_not_use_the_limit_does_not_inflate_it():
    limit = GradientLimit(LimitConfig(initial=32))
    drive(limit, 5_000, lambda used: BASE, inflight=10)
    assert limit.limit == 32


def test_a_limit_that_is_not_in_use_is_not_lowered_either():
    limit = GradientLimit(LimitConfig(initial=32))
    drive(limit, 100, lambda used: BASE, inflight=10)
    drive(limit, 5_000, lambda used: 10 * BASE, inflight=10)
    assert limit.limit == 32


@pytest.mark.measured
@pytest.mark.parametrize("capacity", [4, 8, 20, 100, 400])
@pytest.mark.parametrize("model", [queueing, sharp])
def test_latency_that_grows_with_the_load_settles_the_limit_near_capacity(capacity, model):
    limit = GradientLimit(LimitConfig(initial=32))
    seen = drive(limit, 40_000, model(capacity))[-20_000:]
    assert capacity / 2 <= sorted(seen)[len(seen) // 2] <= capacity * 2
    assert min(seen) >= capacity / 4
    assert max(seen) <= capacity * 2.5


@pytest.mark.measured
@pytest.mark.parametrize("capacity", [8, 20, 100])
def test_a_baseline_learned_in_a_queue_is_found_out(capacity):
    limit = GradientLimit(LimitConfig(initial=capacity * 4))
    seen = drive(limit, 40_000, queueing(capacity))
    assert seen[0] == capacity * 4
    assert capacity / 2 <= sorted(seen[-10_000:])[5_000] <= capacity * 2


def test_a_wrong_baseline_is_followed_down_in_one_go():
    limit = GradientLimit(LimitConfig(initial=128))
    seen = drive(limit, 4_000, queueing(8))
    assert min(seen) <= 16


@pytest.mark.measured
@pytest.mark.parametrize("capacity", [20, 100, 400])
def test_the_experiments_cost_little_throughput(capacity):
    limit = GradientLimit(LimitConfig(initial=32))
    seen = drive(limit, 60_000, sharp(capacity))[-30_000:]
    assert sum(min(one, capacity) for one in seen) / len(seen) >= 0.93 * capacity


def test_the_baseline_does_not_follow_a_latency_that_the_load_may_have_caused():
    limit = GradientLimit(LimitConfig(initial=32), ceiling=40)
    drive(limit, 40, lambda used: BASE)
    drive(limit, 40, lambda used: 1.4 * BASE)
    assert limit._baseline == BASE
    drive(limit, 40, lambda used: 1.4 * BASE, inflight=10)
    assert limit._baseline == pytest.approx(1.004 * BASE)


@pytest.mark.measured
def test_in_steady_overload_the_limit_does_not_creep_up():
    limit = GradientLimit(LimitConfig(initial=32))
    drive(limit, 20_000, queueing(50))
    seen = drive(limit, 80_000, queueing(50))
    assert max(seen[-40_000:]) <= 100


@pytest.mark.parametrize("ceiling", [0, 64])
def test_a_slowdown_of_the_whole_fleet_does_not_collapse_the_limit(ceiling):
    limit = GradientLimit(LimitConfig(initial=32, maximum=200), ceiling)
    before = drive(limit, 10_000, lambda used: BASE)[-1]
    seen = drive(limit, 10_000, lambda used: 3 * BASE)
    assert min(seen) >= before // 2
    assert seen[-1] == before
    assert sum(one < before for one in seen) <= 4 * before
    drive(limit, 3_000, lambda used: BASE)
    assert limit.limit == before


def test_a_slowdown_met_at_the_minimum_does_not_hold_the_limit_there():
    limit = GradientLimit(LimitConfig(initial=2, maximum=100))
    drive(limit, 20, lambda used: BASE, inflight=1)
    drive(limit, 200, lambda used: 3 * BASE)
    assert limit.limit == 2
    drive(limit, 20_000, lambda used: 3 * BASE)
    assert limit.limit == 100


def test_capacity_that_is_lost_takes_the_limit_with_it():
    limit = GradientLimit(LimitConfig(initial=32))
    drive(limit, 20_000, queueing(100))
    assert limit.limit >= 100
    seen = drive(limit, 20_000, queueing(10))[-10_000:]
    assert 5 <= sorted(seen)[5_000] <= 20


def test_a_slow_queue_shrinks_to_where_halving_no_longer_pays():
    limit = GradientLimit(LimitConfig(initial=32))
    drive(limit, 20_000, queueing(40))
    seen = drive(limit, 40_000, queueing(40, slowdown=3.0))[-20_000:]
    assert 20 <= sorted(seen)[10_000] <= 80


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ceiling", [8, 64])
@pytest.mark.measured
def test_noise_alone_hardly_moves_the_limit(seed, ceiling):
    random = Random(seed)
    limit = GradientLimit(LimitConfig(initial=32), ceiling)
    seen = drive(limit, 30_000, lambda used: BASE * random.lognormvariate(0, 0.4))
    assert sum(seen) / len(seen) >= 0.99 * ceiling


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.measured
def test_prompts_of_all_lengths_do_not_shrink_it_to_nothing(seed):
    random = Random(seed)
    limit = GradientLimit(LimitConfig(initial=32), ceiling=64)
    seen = drive(limit, 40_000, lambda used: BASE * random.lognormvariate(0, 1.2))
    assert sum(seen) / len(seen) >= 0.85 * 64


def test_with_an_expectation_only_the_ratio_counts():
    random = Random(7)
    limit = GradientLimit(LimitConfig(initial=32), ceiling=64)
    for number in range(20_000):
        expected = BASE * random.choice([1, 10, 100])
        limit.observe(int(expected), limit.limit, number, expected)
        assert limit.limit == 64
    assert limit._relative
    assert limit._baseline == pytest.approx(1.0)


def test_once_ratios_are_known_bare_times_are_ignored():
    limit = GradientLimit(LimitConfig(initial=32))
    drive(limit, 15, lambda used: BASE)
    drive(limit, 15, lambda used: BASE, expected=float(BASE))
    assert limit.limit == 32
    drive(limit, 1_000, lambda used: 50 * BASE)
    assert limit.limit == 32
    drive(limit, 17, lambda used: BASE, expected=float(BASE))
    assert limit.limit == 48


def test_the_first_tokens_of_the_old_limit_are_not_held_against_the_new():
    limit = GradientLimit(LimitConfig(initial=32), ceiling=40)
    drive(limit, 40, lambda used: BASE)
    drive(limit, 40, lambda used: 2 * BASE)
    assert limit.limit == 30
    drive(limit, 40 + 29, lambda used: 2 * BASE, inflight=30)
    assert limit.limit == 30
    drive(limit, 1, lambda used: 2 * BASE, inflight=30)
    assert limit.limit < 30


def test_backpressure_cuts_below_what_was_in_use_once_per_interval():
    limit = GradientLimit(LimitConfig(initial=100))
    drive(limit, 10, lambda used: BASE, inflight=50)
    limit.on_backpressure(0)
    assert limit.limit == 40
    assert limit.reason == "backpressure"
    limit.on_backpressure(SECOND - 1)
    assert limit.limit == 40
    limit.on_backpressure(SECOND)
    assert limit.limit == 32


def test_backpressure_before_any_sample_cuts_the_limit_itself():
    limit = GradientLimit(LimitConfig(initial=100))
    limit.on_backpressure(0)
    assert limit.limit == 80


def test_backpressure_never_goes_below_the_minimum_and_recovers():
    limit = GradientLimit(LimitConfig(minimum=3))
    for second in range(60):
        limit.on_backpressure(second * SECOND)
    assert limit.limit == 3
    drive(limit, 10_000, lambda used: BASE)
    assert limit.limit > 100


def test_a_limit_between_two_whole_numbers_is_in_use_at_the_lower_one():
    limit = GradientLimit(LimitConfig(initial=7))
    for second in range(4):
        limit.on_backpressure(second * SECOND)
    assert limit.limit == 2
    drive(limit, 25, lambda used: BASE)
    assert limit.limit == 4


def test_a_declared_ceiling_is_where_it_starts_and_what_it_never_exceeds():
    assert GradientLimit(LimitConfig(initial=32), ceiling=256).limit == 256
    assert GradientLimit(LimitConfig(initial=32), ceiling=5_000).limit == 1_000
    single = GradientLimit(LimitConfig(initial=32), ceiling=1)
    single.on_backpressure(0)
    assert single.limit == 1


def test_disabled_it_stays_where_it_is():
    limit = GradientLimit(LimitConfig(enabled=False), ceiling=10)
    drive(limit, 5_000, queueing(2))
    limit.on_backpressure(0)
    assert limit.limit == 10
    assert limit.reason == "disabled"
    assert GradientLimit(LimitConfig(enabled=False)).limit == 1_000


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.tuples(st.integers(0, 100 * SECOND), st.integers(0, 2_000), st.integers(1, 60)),
        max_size=60,
    ),
    st.sampled_from([0, 1, 7, 500]),
    st.randoms(use_true_random=False),
)
def test_whatever_is_observed_the_limit_stays_within_its_bounds(bursts, ceiling, random):
    limit = GradientLimit(LimitConfig(initial=20, minimum=4, maximum=300), ceiling)
    now = 0
    for latency, inflight, repeat in bursts:
        for _ in range(repeat):
            now += MILLISECOND
            limit.observe(latency, inflight, now, random.choice([None, 0.0, 1e8]))
        if random.random() < 0.2:
            limit.on_backpressure(now)
        assert min(4, ceiling or 4) <= limit.limit <= min(300, ceiling or 300)
        assert len(limit._samples) <= 200


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"minimum": 0}, "limit.minimum"),
        ({"maximum": 1}, "limit.maximum"),
        ({"initial": 1}, "limit.initial"),
        ({"initial": 2_000}, "limit.initial"),
        ({"tolerance": 1.0}, "limit.tolerance"),
        ({"long_window": 1}, "limit.long_window"),
        ({"round_samples_min": 1}, "limit.round_samples_min"),
        ({"backpressure_factor": 1.0}, "limit.backpressure_factor"),
        ({"backpressure_interval_s": -1.0}, "limit.backpressure_interval_s"),
    ],
)
def test_a_bad_config_names_the_field_and_the_fix(values, field):
    with pytest.raises(ConfigError) as caught:
        LimitConfig(**values)
    assert caught.value.field == field
    assert caught.value.fix.startswith("use")


def test_a_negative_ceiling_is_refused():
    with pytest.raises(ConfigError, match=r"replica\.slots: is -1; use 0 for undeclared"):
        GradientLimit(LimitConfig(initial=32), ceiling=-1)
