"""Leaks: found while there is time, and told apart from all that only looks like one."""

import math
import random
from itertools import pairwise

import pytest

from holdfast.core.diagnose.detect import leak as module
from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.leak import LeakConfig, LeakDetector, _plateau
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import Declared, MemorySeen, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError

MB, GB = 10**6, 10**9
LIMIT = 24 * GB


def detector():
    census = ReplicaRegistry()
    census.take(Declared("a", "m", "1"))
    return LeakDetector(LeakConfig(), census)


def play(made, shape, *, hours=2.0, step=30, seed=1, rate=lambda t: 5.0, begin=0, **how):
    """A life with noise, bursts and traffic that wanders; what was told of it."""
    rng = random.Random(seed)
    served, wander, told = 60, 0.0, []
    limit, requests_known = how.get("limit", LIMIT), how.get("requests", True)
    for t in range(0, int(hours * 3_600), step):
        wander = 0.95 * wander + 0.075 * rng.gauss(0, 1)
        now_rate = max(0.1, rate(t) * (1 + wander))
        served += round(now_rate * step)
        used = 12 * GB + abs(rng.gauss(0, 20 * MB)) + 80 * MB * now_rate + shape(t)
        used += rng.random() * 500 * MB if rng.random() < 0.03 else 0
        fact = MemorySeen(
            "a", int(used), limit, how.get("device", "host"), served if requests_known else None
        )
        told += made.take(fact, (begin + t) * SECOND)
    return told


def leak(per_min):
    return lambda t: per_min * t / 60


def nothing(t):
    return 0.0


def young(made, memory, *, hours, seed):
    """A process that began with the morning: more and more requests; what was told of it."""
    rng, served, told = random.Random(seed), 0.0, []
    for t in range(0, int(hours * 3_600), 10):
        served += 10 * 0.15 * (1 - math.cos(math.tau * t / 21_600))
        used = 2 * GB + memory(t, served) + rng.gauss(0, 4 * MB)
        fact = MemorySeen("a", int(used), 4 * GB, "host", int(served))
        told += made.take(fact, t * SECOND)
    return told


def caches(t, served):
    return 260 * MB * (1 - math.exp(-served / 300))


def morning(made, seed, mean):
    """Two and a half hours of a new process: few requests at first, each of some seconds.

    Caches fill, garbage is collected, the allocator keeps what its busiest moment needed, and now
    and then the host is slower for some minutes.
    """
    rng, told = random.Random(seed), []
    running = waiting = peak = served = 0
    lasts_s, until = 4.0, 0.0
    for t in range(9_000):
        if t >= until:
            slow = rng.random() < 0.15
            lasts_s = 4.0 * (rng.uniform(1.3, 2.0) if slow else 1.0)
            until = t + rng.uniform(60, 900)
        come = poisson(mean * (1 - math.cos(2 * math.pi * t / 21_600)), rng)
        served, waiting = served + come, waiting + come
        running -= sum(rng.random() < 1 / lasts_s for _ in range(running))
        begin = min(waiting, 8 - running)
        running, waiting = running + begin, waiting - begin
        peak = max(peak, running)
        if t % 10 == 0:
            used = 2.0e9 + 150e6 * (1.0 - math.exp(-served / 200.0))
            used += 60e6 * (served % 150 / 150) + 8e6 * running + 12e6 * peak
            fact = MemorySeen("a", int(used * rng.gauss(1.0, 0.002)), 4 * GB, "host", served)
            told += made.take(fact, t * SECOND)
    return told


def poisson(mean, rng):
    count, share, draw = 0, math.exp(-mean), rng.random()
    below = share
    while draw > below:
        count += 1
        share *= mean / count
        below += share
    return count


# --- must fire ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_five_megabytes_a_minute_are_found_within_two_hours(seed):
    told = play(detector(), leak(5 * MB), seed=seed)
    assert told
    first = told[0]
    assert (first.sign, first.about.replica, first.source) == (Sign.MEMORY_LEAKS, "a", "leak")
    assert first.numbers["bytes_per_s"] * 60 == pytest.approx(5 * MB, rel=0.4)
    assert first.numbers["limit_bytes"] == LIMIT
    assert first.numbers["exhausted_in_s"] > 20 * 3_600
    assert first.text.startswith("host memory of a grows by ")
    assert "GB used of 24.0 GB, full in" in first.text
    assert all(b.at - a.at >= REPEAT for a, b in pairwise(told))


def test_a_leak_is_found_without_a_limit_and_then_nothing_is_projected():
    told = play(detector(), leak(8 * MB), limit=None, device="gpu")
    assert set(told[0].numbers) == {"bytes_per_s", "used_bytes"}
    assert told[0].text.startswith("gpu memory")


@pytest.mark.parametrize("used", [0.1, 0.3])
def test_a_leak_that_kills_in_minutes_is_told_while_there_are_five_left(used):
    fast = lambda t: max(0, t - 600) * 0.001 * LIMIT + used * LIMIT - 12 * GB  # noqa: E731
    told = play(detector(), fast, step=10, hours=0.38 - used * 0.27)
    assert told[0].at >= 600 * SECOND
    assert told[0].numbers["exhausted_in_s"] >= 300
    assert "full in" in told[0].text
    assert " min" in told[0].text


def test_a_leak_of_unknown_traffic_is_told_where_memory_lasts_less_than_a_day():
    assert play(detector(), leak(30 * MB), requests=False, hours=3)
    assert not play(detector(), leak(5 * MB), requests=False, hours=3)
    assert not play(detector(), leak(30 * MB), requests=False, hours=3, limit=None)


@pytest.mark.parametrize("seed", range(4))
def test_a_leak_of_a_young_process_is_told_seven_hours_before_its_end(seed):
    told = young(detector(), lambda t, n: caches(t, n) + 2.5 * MB * t / 60, hours=4, seed=seed)
    assert told
    assert told[0].numbers["exhausted_in_s"] > 7 * 3_600
    by_request = young(detector(), lambda _, n: 0.5 * MB * n, hours=4, seed=seed)
    assert by_request  # each request adds as much as the one before


def test_it_holds_while_memory_climbs_and_is_over_when_it_stops():
    made = detector()
    stops = lambda t: min(t, 3 * 3_600) * 8 * MB / 60  # noqa: E731
    told = play(made, stops, hours=9)
    assert len(told) > 50
    assert told[-1].at < 8 * 3_600 * SECOND


# --- must not fire --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_growth_that_goes_with_traffic_is_no_leak(seed):
    assert not play(detector(), nothing, rate=lambda t: 2 + 10 * t / 7_200, seed=seed)


def test_traffic_that_is_a_line_itself_explains_all_of_a_climb():
    made, told = detector(), []
    served = 100.0
    for at in range(240):
        served += 30 * (2 + at / 20)
        used = 10 * GB + int(100 * MB * (2 + at / 20))
        told += made.take(MemorySeen("a", used, LIMIT, "host", int(served)), at * 30 * SECOND)
    assert not told


def test_memory_that_falls_as_traffic_grows_is_no_reason_to_add_any():
    assert not play(detector(), lambda t: -3 * MB * t / 60, rate=lambda t: 2 + t / 3_600)


@pytest.mark.parametrize("period", [300, 900, 2_400])
def test_a_sawtooth_is_no_leak(period):
    assert not play(detector(), lambda t: (t % period) / period * 800 * MB)


@pytest.mark.parametrize("at", [[3_600], [1_000, 5_000], [500, 2_500, 6_000]])
def test_steps_of_an_allocator_are_no_leak(at):
    assert not play(detector(), lambda t: 300 * MB * sum(one < t for one in at))


@pytest.mark.parametrize("tau", [300, 900])
def test_a_warm_up_that_ends_in_a_plateau_is_no_leak(tau):
    assert not play(detector(), lambda t: 2 * GB * (1 - math.exp(-t / tau)))


@pytest.mark.parametrize(("seed", "rate"), [(333, 0.15), (110, 0.2), (121, 0.2)])
def test_caches_that_the_first_requests_fill_under_rising_traffic_are_no_leak(
    seed, rate, monkeypatch
):
    assert not morning(detector(), seed, rate)
    monkeypatch.setattr(module, "_YOUNG", 0.0)  # looked at by time alone
    assert morning(detector(), seed, rate)


def test_what_rises_fast_towards_the_limit_and_was_as_high_before_is_no_leak():
    def shape(t):
        return 11 * GB if 300 < t < 400 else min(max(0, t - 900), 500) / 500 * 9 * GB

    assert not play(detector(), shape, step=10, hours=0.39)
    again = play(detector(), lambda t: shape(max(t, 401)), step=10, hours=0.39)
    assert again  # the same climb without that past


def test_what_came_down_by_itself_an_hour_ago_may_do_so_again():
    def shape(t):
        return 2 * GB if t < 5_800 else (t - 5_800) * 10 * MB / 60

    assert not play(detector(), shape, hours=3.5, limit=None)
    assert play(detector(), lambda t: max(0, t - 5_800) * 10 * MB / 60, hours=3.5, limit=None)


def test_a_climb_whose_last_part_is_flat_has_arrived():
    assert _plateau([0.0, 1, 2, 3, 4, 5, 6, 7, 6, 5, 6, 5], 1.0, 0.75) == 0.0
    assert _plateau([float(at) for at in range(12)], 0.0, 0.75) == math.inf


def test_loading_is_not_looked_at():
    made = detector()
    told = []
    for at in range(120):
        used = at * 150 * MB
        told += made.take(MemorySeen("a", used, LIMIT, "gpu", 0), at * 10 * SECOND)
        told += made.take(MemorySeen("a", used, LIMIT), at * SECOND)
    assert not told


def test_a_slow_day_and_a_busy_one_are_no_leak():
    day = lambda t: 5 - 4 * math.cos(math.tau * t / 86_400)  # noqa: E731
    assert not play(detector(), nothing, rate=day, hours=24, step=60)


# --- lives, gaps and bounds -----------------------------------------------------------------------


def test_a_new_process_starts_anew_whether_its_end_was_seen_or_not():
    for end in (True, False):
        made = detector()
        assert play(made, leak(20 * MB))
        if end:
            made.take(ProcessEnded("a", code=0), 7_200 * SECOND)
        assert not play(made, leak(20 * MB), hours=1, begin=7_200)
        made.forget("a")
        made.forget("a")


def test_no_line_is_drawn_through_a_gap_or_a_jump_of_the_clock():
    made = detector()
    play(made, leak(5 * MB), hours=1.4)
    assert not made.take(MemorySeen("a", 13 * GB, LIMIT, "host", 10**6), 90_000 * SECOND)
    assert not made.take(MemorySeen("a", 13 * GB, LIMIT, "host", 10**6), 1_000 * SECOND)


def test_a_look_without_a_count_of_requests_now_and_then_hides_no_leak():
    made, told = detector(), []
    for at in range(480):
        known = None if at % 50 == 7 else 100 + at * 100
        fact = MemorySeen("a", 10 * GB + at * MB, None, "host", known)
        told += made.take(fact, at * 30 * SECOND)
    assert told


def test_strangers_and_a_fifth_device_are_left_out():
    made = detector()
    assert made.take(MemorySeen("stranger", 1), 0) == ()
    for number in range(5):
        made.take(MemorySeen("a", 1, device=f"gpu{number}"), 0)
    assert made.refused == 1


def test_samples_in_a_hurry_stay_bounded():
    made = detector()
    for at in range(2_000):
        made.take(MemorySeen("a", 10 * GB, LIMIT, "host", 100 + at), at * SECOND // 4)
    block = made._memories["a"]["host"].windows[-1]._block
    assert len(block._used) <= 256


@pytest.mark.parametrize(
    ("field", "value"),
    [("bytes_per_min_min", 0), ("warm_s", -1), ("sure", 0.5), ("climb_min_bytes", -1)],
)
def test_config_that_cannot_work_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"leak.{field}"):
        LeakConfig(**{field: value})
