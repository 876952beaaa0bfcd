"""Deadlines: learned per class, blaming nobody for a slow fleet, adapting to a new normal."""

import heapq
import math
from bisect import bisect_left
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.failure import Kind
from holdfast.core.request.deadlines import DeadlineConfig, Deadlines, TimeoutVerdict, stuck
from holdfast.core.types import SECOND, ConfigError, Request, nanos
from sampling import examples

WARM_UNTIL = 20 * SECOND


def taught(replicas=4, first_token_s=0.5, samples=400):
    """A pool that has learned: every replica took the same time for prompts of 100 tokens."""
    deadlines = Deadlines(DeadlineConfig())
    for number in range(samples):
        now = WARM_UNTIL - (samples - number) * (SECOND // 100)
        deadlines.first_token(100, None, now)
        deadlines.observe_first_token(f"r{number % replicas}", 100, nanos(first_token_s), now)
    deadlines.first_token(100, None, WARM_UNTIL)
    return deadlines


def deliver(deadlines, replicas, elapsed_s, now):
    for replica in replicas:
        deadlines.observe_first_token(replica, 100, nanos(elapsed_s), now)


# How long to wait


def test_deadlines_are_wide_before_anything_is_learned():
    deadlines = Deadlines(DeadlineConfig())
    assert deadlines.first_token(100, None, 0) == 60 * SECOND
    assert deadlines.first_token(100, 1000, 0) == 60 * SECOND
    assert deadlines.between_tokens(0) == 30 * SECOND
    assert deadlines.request == 600 * SECOND


def test_the_first_token_follows_four_times_the_tail():
    assert taught().first_token(100, None, WARM_UNTIL) == pytest.approx(2 * SECOND, rel=0.06)


def test_when_the_whole_pool_is_three_times_slower_everybody_gets_three_times_as_long():
    deadlines = taught()
    usual = deadlines.first_token(100, None, WARM_UNTIL)
    for _ in range(25):
        deliver(deadlines, ("r0", "r1", "r2", "r3"), 1.5, WARM_UNTIL)
    slow = deadlines.first_token(100, None, WARM_UNTIL)
    assert slow == pytest.approx(3 * usual, rel=0.05)
    for _ in range(25):
        deliver(deadlines, ("r0", "r1", "r2", "r3"), 0.5, WARM_UNTIL)
    assert deadlines.first_token(100, None, WARM_UNTIL) == usual  # and back, when it is over


def test_one_replica_that_is_ten_times_slower_than_its_three_peers_does_not_excuse_itself():
    deadlines = taught()
    usual = deadlines.first_token(100, None, WARM_UNTIL)
    for _ in range(25):
        deliver(deadlines, ("r0",), 5.0, WARM_UNTIL)
        deliver(deadlines, ("r1", "r2", "r3"), 0.5, WARM_UNTIL)
    assert deadlines.first_token(100, None, WARM_UNTIL) == usual


def test_a_class_of_prompt_lengths_learns_apart_from_the_others():
    deadlines = taught()
    learned = deadlines.first_token(100, None, WARM_UNTIL)
    assert deadlines.first_token(0, None, WARM_UNTIL) == learned
    assert deadlines.first_token(256, None, WARM_UNTIL) == learned
    for prompt_tokens in (257, 1025, 4097, 16385, 10**9):
        assert deadlines.first_token(prompt_tokens, None, WARM_UNTIL) == 60 * SECOND


def test_a_pool_without_bounds_has_one_class():
    deadlines = Deadlines(DeadlineConfig(prompt_bounds=()))
    assert deadlines.first_token(10**9, None, 0) == 60 * SECOND


def test_a_long_engine_queue_buys_time_and_a_usual_one_does_not():
    deadlines = taught()
    base = deadlines.first_token(100, None, WARM_UNTIL)
    assert deadlines.first_token(100, 0, WARM_UNTIL) == base
    assert deadlines.first_token(100, 3, WARM_UNTIL) == pytest.approx(4 * base)
    assert deadlines.first_token(100, 10**6, WARM_UNTIL) == pytest.approx(8 * base)


def test_a_queue_that_was_there_while_learning_is_already_paid_for():
    deadlines, now = Deadlines(DeadlineConfig()), 0
    for _ in range(400):
        now += SECOND // 100
        deadlines.first_token(100, 9, now)
        deadlines.observe_first_token("r0", 100, nanos(0.5), now)
    now += SECOND
    base = deadlines.first_token(100, None, now)
    assert deadlines.first_token(100, 9, now) == base
    assert deadlines.first_token(100, 19, now) == pytest.approx(2 * base, rel=0.01)


def test_the_gap_between_tokens_follows_ten_times_its_tail():
    deadlines = Deadlines(DeadlineConfig())
    for stream in range(9):
        deadlines.observe_gaps(nanos(0.2), 100)
        assert deadlines.between_tokens(stream * SECOND) == 30 * SECOND
    deadlines.observe_gaps(nanos(0.2), 100, "r9")
    assert deadlines.between_tokens(10 * SECOND) == pytest.approx(2 * SECOND, rel=0.06)


def test_a_stream_without_gaps_teaches_nothing():
    deadlines = Deadlines(DeadlineConfig())
    deadlines.observe_gaps(nanos(9.0), 0)
    assert not deadlines._gaps.has_samples()


def test_one_replica_with_long_gaps_does_not_teach_the_pool():
    deadlines = taught(replicas=4)
    for replica in ("r0", "r1", "r2", "r3"):
        for _ in range(50):
            deadlines.observe_gaps(nanos(9.0 if replica == "r2" else 0.2), 100, replica)
    assert deadlines.between_tokens(WARM_UNTIL) == pytest.approx(2 * SECOND, rel=0.06)


def test_a_quantile_for_hedging_is_known_once_learned():
    assert Deadlines(DeadlineConfig()).first_token_quantile(100, 0.95, 100) is None
    deadlines = taught()
    assert deadlines.first_token_quantile(100, 0.95, 100) == pytest.approx(nanos(0.5), rel=0.06)
    assert deadlines.first_token_quantile(5000, 0.95, 100) is None


# Who is to blame


@pytest.mark.parametrize("size", [2, 3, 4, 5, 20])
def test_one_hung_replica_is_blamed_however_small_the_pool(size):
    deadlines = taught(size)
    now = WARM_UNTIL
    for _ in range(30):
        now += SECOND // 2
        deliver(deadlines, [f"r{number}" for number in range(1, size)], 0.5, now)
        verdict = deadlines.fired("r0", size - 1, now)
        assert verdict.counts
        assert verdict.retry
        assert f"{size - 1} deliver normally" in verdict.reason
        assert not deadlines.fleet_slow(now)
    assert deadlines.first_token(100, None, now) == pytest.approx(2 * SECOND, rel=0.06)


def test_one_hung_replica_is_blamed_while_its_peers_are_idle():
    deadlines = taught(2)
    verdict = deadlines.fired("r0", 1, WARM_UNTIL + 100 * SECOND)
    assert verdict.counts
    assert verdict.retry


def test_a_replica_never_heard_of_may_fire():
    assert taught().fired("new", 4, WARM_UNTIL).counts


def test_nobody_is_blamed_while_the_peers_are_slow_too():
    deadlines = taught(8)
    deliver(deadlines, [f"r{number}" for number in range(1, 8)], 1.5, WARM_UNTIL)
    verdict = deadlines.fired("r0", 7, WARM_UNTIL)
    assert not verdict.counts
    assert verdict.retry  # one of eight is not the fleet
    assert "7 slow" in verdict.reason


def test_an_old_delivery_is_no_evidence():
    deadlines = taught(8)
    deliver(deadlines, [f"r{number}" for number in range(1, 8)], 1.5, WARM_UNTIL)
    assert deadlines.fired("r0", 7, WARM_UNTIL + SECOND).counts


def test_firing_on_more_than_a_quarter_of_the_pool_blames_the_fleet():
    deadlines, now = taught(8), WARM_UNTIL + 5 * SECOND
    first, second, third = (deadlines.fired(f"r{number}", 7, now) for number in range(3))
    assert (first.counts, first.retry) == (True, True)
    assert (second.counts, second.retry) == (False, True)
    assert third == TimeoutVerdict(False, False, third.reason)
    assert "3 of 8 replicas fire: the fleet is slow, deadlines x 2" in third.reason
    assert deadlines.fleet_slow(now)
    assert deadlines.fleet_slow(now + 10 * SECOND - 1)
    assert not deadlines.fleet_slow(now + 10 * SECOND)


@pytest.mark.parametrize(("size", "needed"), [(2, 2), (3, 2), (4, 2), (7, 2), (8, 3), (16, 5)])
def test_the_fleet_is_more_than_a_quarter_and_never_one_replica(size, needed):
    deadlines, now = taught(size), WARM_UNTIL + 5 * SECOND
    verdicts = [deadlines.fired(f"r{number}", size - 1, now) for number in range(needed)]
    assert [verdict.retry for verdict in verdicts] == [True] * (needed - 1) + [False]


def test_firings_far_apart_are_not_the_fleet():
    deadlines = taught(2)
    assert deadlines.fired("r0", 1, WARM_UNTIL + 20 * SECOND).retry
    assert deadlines.fired("r1", 1, WARM_UNTIL + 30 * SECOND).retry


def test_a_normal_first_token_ends_the_suspicion_of_a_replica():
    deadlines, now = taught(2), WARM_UNTIL + 5 * SECOND
    deadlines.fired("r1", 1, now)
    deliver(deadlines, ["r1"], 0.3, now + 1)
    verdict = deadlines.fired("r0", 1, now + 2)
    assert verdict.counts
    assert verdict.retry


def test_a_slow_first_token_does_not_end_the_suspicion_of_a_replica_soon():
    deadlines, now = taught(2), WARM_UNTIL + 5 * SECOND
    deadlines.fired("r1", 1, now)
    deliver(deadlines, ["r1"], 1.5, now + SECOND)
    assert not deadlines.fired("r0", 1, now + 2 * SECOND).retry
    deliver(deadlines, ["r1"], 1.5, now + 12 * SECOND)
    assert deadlines._replicas["r1"].last == "slow"


def test_the_fleet_is_no_longer_slow_once_a_replica_fires_alone():
    deadlines, now = taught(2), WARM_UNTIL + 5 * SECOND
    deadlines.fired("r0", 1, now)
    deadlines.fired("r1", 1, now)
    assert deadlines.fleet_slow(now + 2 * SECOND)
    deliver(deadlines, ["r1"], 0.3, now + 2 * SECOND)
    assert deadlines.fired("r0", 1, now + 2 * SECOND).retry
    assert not deadlines.fleet_slow(now + 2 * SECOND)


def test_half_a_pool_that_hangs_is_blamed_while_the_other_half_delivers():
    deadlines, now = taught(4), WARM_UNTIL + 5 * SECOND
    deliver(deadlines, ["r2", "r3"], 0.3, now)
    deadlines.fired("r0", 3, now)
    verdict = deadlines.fired("r1", 3, now)
    assert (verdict.counts, verdict.retry) == (True, False)
    assert "its peers deliver normally" in verdict.reason


def test_the_only_replica_of_a_pool_is_doubted_last():
    deadlines, now = taught(1), WARM_UNTIL
    waits, counted = [], []
    for _ in range(10):
        wait = deadlines.first_token(100, None, now)
        now += wait
        verdict = deadlines.fired("r0", 0, now)
        assert not verdict.retry
        waits.append(round(wait / SECOND))
        counted.append(verdict.counts)
    assert waits == [2, 4, 8, 16, 60, 120, 240, 480, 480, 480]
    assert counted == [False] * 4 + [True] * 6
    assert "even at the widest deadline" in verdict.reason
    deliver(deadlines, ["r0"], 30.0, now)
    assert not deadlines.fired("r0", 0, now).counts


# When everything stands still


def silenced(replicas=8):
    """A pool that has learned and was last heard of five seconds ago."""
    return taught(replicas), WARM_UNTIL + 5 * SECOND


def test_the_first_to_fire_in_a_silent_pool_is_waited_for():
    deadlines, now = silenced()
    for number in range(8):  # and so are those that fire with it, and all others
        for attempt in range(3):
            verdict = deadlines.fired(f"r{number}", 7, now + number, busy=7)
            assert (verdict.counts, verdict.retry) == (False, False), (number, attempt)
    assert deadlines.fleet_slow(now)


def test_idle_peers_are_no_witnesses_but_a_place_to_try_again():
    deadlines, now = silenced()
    assert deadlines.fired("r0", 7, now, busy=3).retry
    assert not deadlines.fired("r1", 7, now, busy=4).retry


def test_a_replica_that_fires_alone_among_silent_peers_is_blamed_when_nobody_joins_it():
    deadlines, now = silenced()
    longest = deadlines.first_token(100, None, now)
    assert not deadlines.fired("r0", 7, now, busy=7).retry
    assert not deadlines.fired("r0", 7, now + longest - 1, busy=7).retry
    verdict = deadlines.fired("r0", 7, now + longest, busy=7)
    assert (verdict.counts, verdict.retry) == (True, True)


def test_a_peer_that_delivers_ends_the_patience():
    deadlines, now = silenced()
    assert not deadlines.fired("r0", 7, now, busy=7).retry
    deliver(deadlines, ["r3"], 0.5, now + 1)
    verdict = deadlines.fired("r0", 7, now + nanos(1.5), busy=7)  # longer ago than a second
    assert (verdict.counts, verdict.retry) == (True, True)


def test_a_replica_that_delivered_meanwhile_is_waited_for_anew():
    deadlines, now = silenced()
    deadlines.fired("r0", 7, now, busy=7)
    deliver(deadlines, ["r0"], 0.5, now + SECOND)
    assert not deadlines.fired("r0", 7, now + 20 * SECOND, busy=7).retry


def test_a_silence_of_two_is_not_borne_for_ever():
    deadlines, now = silenced(16)
    ends = now + nanos(DeadlineConfig().first_token_s)
    while now < ends:
        pair = [deadlines.fired(name, 15, now, busy=15) for name in ("r0", "r1")]
        assert not any(verdict.retry for verdict in pair)
        now += 2 * SECOND
    assert deadlines.fired("r0", 15, now, busy=15).retry


def test_who_waited_through_a_silence_waits_anew_when_the_pool_is_back():
    deadlines, now = silenced()
    for number in range(3):
        deadlines.fired(f"r{number}", 7, now, busy=7)
    back = now + 20 * SECOND
    deliver(deadlines, [f"r{number}" for number in range(1, 8)], 0.5, back)
    before, later = now + 10 * SECOND, back + 1
    assert not deadlines.fired("r0", 7, back + SECOND // 2, busy=7, started=before).retry
    verdict = deadlines.fired("r0", 7, back + SECOND // 2, busy=7, started=later)
    assert (verdict.counts, verdict.retry) == (True, True)
    deliver(deadlines, ["r1"], 0.5, back + 60 * SECOND)
    assert deadlines.fired("r0", 7, back + 60 * SECOND, busy=7, started=before).retry


def test_one_that_fires_alone_does_not_make_the_pool_come_back():
    deadlines, now = silenced()
    deadlines.fired("r0", 7, now, busy=7)
    deliver(deadlines, ["r1"], 0.5, now + 1)
    assert deadlines.fired("r0", 7, now + 2, busy=7, started=now - SECOND).counts


def test_a_window_too_short_for_a_second_firing_bears_no_silence():
    deadlines = Deadlines(DeadlineConfig(firing_window_s=1e-6, firing_share=0.999))
    assert deadlines.fired("r0", 7, WARM_UNTIL, busy=7).retry


# Learning that must not be poisoned, and must not freeze


class Log(list):
    """(time, replica, verdict or None) of every attempt, and the patience of the last one."""

    patience = 0


def drive(deadlines, latency_of, *, seed, start, span_s, rate, replicas):
    """A closed model of a pool, attempt by attempt."""
    rng, ends, log = Random(seed), [], Log()
    for number in range(int(span_s * rate)):
        now = start + number * SECOND // rate
        replica = f"r{number % replicas}"
        while ends and ends[0][0] <= now:
            log.append(end_attempt(deadlines, *heapq.heappop(ends), replicas))
        log.patience = patience = deadlines.first_token(100, None, now)
        latency = nanos(latency_of(replica, now, rng))
        heapq.heappush(ends, (now + min(patience, latency), number, replica, latency, patience))
    while ends:
        log.append(end_attempt(deadlines, *heapq.heappop(ends), replicas))
    return log


def end_attempt(deadlines, now, _number, replica, latency, patience, replicas):
    if latency <= patience:
        deadlines.observe_first_token(replica, 100, latency, now)
        return now, replica, None
    return now, replica, deadlines.fired(replica, replicas - 1, now)


def healthy(replica, now, rng):
    return rng.lognormvariate(-1.2, 0.4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_healthy_pool_practically_never_fires(seed):
    deadlines = Deadlines(DeadlineConfig())
    log = drive(deadlines, healthy, seed=seed, start=0, span_s=60, rate=100, replicas=6)
    assert sum(verdict is not None for *_, verdict in log) <= 1
    learned = deadlines.first_token(100, None, log[-1][0])
    assert SECOND <= learned <= 8 * SECOND


@pytest.mark.parametrize("replicas", [2, 3, 6, 12])
def test_a_slow_replica_does_not_drag_the_deadline_and_is_blamed_alone(replicas):
    def latency_of(replica, now, rng):
        sick = replica == "r1" and now > 30 * SECOND
        return healthy(replica, now, rng) * (rng.uniform(5.0, 60.0) if sick else 1.0)

    deadlines = Deadlines(DeadlineConfig())
    log = drive(deadlines, latency_of, seed=7, start=0, span_s=180, rate=40, replicas=replicas)
    assert log.patience <= 8 * SECOND
    fired = [(replica, verdict) for _, replica, verdict in log if verdict]
    assert len(fired) > 100
    blamed = {replica for replica, verdict in fired if verdict.counts}
    assert "r1" in blamed
    counts = [verdict.counts and verdict.retry for replica, verdict in fired if replica == "r1"]
    assert sum(counts) > 0.9 * len(counts)
    assert sum(replica != "r1" for replica, _ in fired) <= 2


@pytest.mark.parametrize("factor", [10, 100])
@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_deadlines_adapt_to_a_fleet_that_became_slower_for_good(replicas, factor):
    change = 60 * SECOND

    def latency_of(replica, now, rng):
        return rng.uniform(0.4, 0.5) * (factor if now >= change else 1)

    deadlines = Deadlines(DeadlineConfig())
    log = drive(deadlines, latency_of, seed=5, start=0, span_s=400, rate=20, replicas=replicas)
    fired = [(now, verdict) for now, _, verdict in log if verdict]
    assert fired, "the change must be noticed"
    settled_s = 15 if factor == 10 else 100
    assert fired[-1][0] < change + settled_s * SECOND
    assert len(fired) <= 20 * settled_s
    assert deadlines.first_token(100, None, log[-1][0]) == pytest.approx(
        min(4 * 0.5 * factor, 600) * SECOND, rel=0.15
    )
    if replicas > 1:
        assert sum(verdict.counts for _, verdict in fired) <= 5


def test_a_fleet_slow_from_its_first_request_still_learns():
    deadlines = Deadlines(DeadlineConfig())
    log = drive(deadlines, lambda *_: 100.0, seed=1, start=0, span_s=600, rate=2, replicas=4)
    delivered = [now for now, _, verdict in log if verdict is None]
    assert delivered[0] < 300 * SECOND
    assert deadlines.first_token(100, None, log[-1][0]) >= 400 * SECOND


def test_the_rise_goes_back_after_calm():
    deadlines, now = taught(2), WARM_UNTIL + 5 * SECOND
    base = deadlines.first_token(100, None, now)
    deadlines.fired("r0", 1, now)
    deadlines.fired("r1", 1, now)
    assert deadlines.first_token(100, None, now) == 2 * base
    calm = now + 2 * base + 10 * SECOND
    assert deadlines.first_token(100, None, calm - SECOND) == 2 * base
    assert deadlines.first_token(100, None, calm + SECOND) == base


def test_a_burst_of_firings_under_one_deadline_raises_it_once():
    deadlines, now = taught(4), WARM_UNTIL + 5 * SECOND
    base = deadlines.first_token(100, None, now)
    for number in range(100):
        deadlines.fired(f"r{number % 4}", 3, now + number)
    assert deadlines.first_token(100, None, now + 100) == 2 * base


def test_the_same_history_gives_the_same_decisions():
    runs = []
    for _ in range(2):
        deadlines = Deadlines(DeadlineConfig())
        log = drive(deadlines, healthy, seed=9, start=0, span_s=20, rate=50, replicas=5)
        runs.append((log, [one.deadline for one in (*deadlines._classes, deadlines._gaps)]))
    assert runs[0] == runs[1]


# Bounds, telling, config


def test_replicas_are_remembered_within_a_bound(monkeypatch):
    monkeypatch.setattr("holdfast.core.request.deadlines._REPLICAS_MAX", 3)
    deadlines = Deadlines(DeadlineConfig())
    deliver(deadlines, [f"r{number}" for number in range(5)], 0.5, 0)
    assert list(deadlines._replicas) == ["r2", "r3", "r4"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, -1) for name in DeadlineConfig.__slots__ if name != "prompt_bounds"),
        ("request_s", math.inf),
        ("calm_s", math.nan),
        ("first_token_s", 601.0),
        ("between_tokens_s", 601.0),
        ("first_token_floor_s", 60.5),
        ("between_tokens_floor_s", 30.5),
        ("first_token_factor", 0.9),
        ("early_factor", 0.5),
        ("canary_factor", 0.5),
        ("early_floor_s", 0),
        ("early_samples_min", 0),
        ("doubt_s", -1),
        ("between_tokens_factor", 0.9),
        ("waiting_scale_max", 0.9),
        ("quantile", 0.4),
        ("quantile", 1.0),
        ("firing_share", 1.0),
    ],
)
def test_a_bad_config_names_field_and_fix(field, value):
    with pytest.raises(ConfigError, match=rf"deadlines\.{field}: is {value}; use "):
        DeadlineConfig(**{field: value})


@pytest.mark.parametrize("bounds", [(0,), (-5, 10), (10, 10), (20, 10), tuple(range(1, 18))])
def test_prompt_bounds_must_ascend_and_be_few(bounds):
    with pytest.raises(ConfigError, match=r"deadlines\.prompt_bounds.*at most 16 ascending"):
        DeadlineConfig(prompt_bounds=bounds)


@pytest.mark.parametrize(
    ("waited_s", "prompt_tokens", "begun", "kind"),
    [
        (5.2, 10, False, Kind.FIRST_TOKEN_TIMEOUT),
        (4.9, 10, False, None),
        (64, 50_000, False, None),  # and is not waited for longer than a minute
        (65, 50_000, False, Kind.FIRST_TOKEN_TIMEOUT),
        (104, 100_000, False, None),  # but by a prompt that a GPU reads for longer
        (105, 100_000, False, Kind.FIRST_TOKEN_TIMEOUT),
        (44, 4_000, False, None),  # an engine without a GPU needs that
        (45, 4_000, False, Kind.FIRST_TOKEN_TIMEOUT),
        (5, 4_000, True, Kind.BETWEEN_TOKENS_TIMEOUT),
        (4.9, 4_000, True, None),
    ],
)
def test_a_stream_at_a_stalled_replica_is_stuck_by_its_prompt(waited_s, prompt_tokens, begun, kind):
    assert stuck(nanos(waited_s), prompt_tokens, begun=begun) is kind


def test_an_answer_in_one_piece_is_stuck_after_twice_its_usual_time_at_the_earliest():
    assert stuck(nanos(15), 10, begun=False, usual=nanos(8)) is None
    assert stuck(nanos(16), 10, begun=False, usual=nanos(8)) is Kind.FIRST_TOKEN_TIMEOUT


# Before enough samples


def asked(prompt=100, tokens=0, *, whole=False):
    return Request("q", "m", arrived=0, prompt_tokens=prompt, max_tokens=tokens, whole=whole)


def fresh(canary_s=None, *, whole=False, samples=(), **config):
    """The deadlines of a gateway that has just started."""
    config = DeadlineConfig(**config)
    deadlines = Deadlines(config.for_answers() if whole else config, answers=whole)
    deadlines.expect_canary(canary_s)
    for number, took_s in enumerate(samples):
        deadlines.observe_first_token(f"r{number % 4}", 100, nanos(took_s), 0)
    return deadlines


@pytest.mark.parametrize(
    ("canary_s", "samples", "prompt", "ahead", "wait_s"),
    [
        (None, (), 100, 0, 60),  # nothing is known
        (None, [0.1] * 7, 100, 0, 60),
        (None, [0.1] * 8, 100, 0, 16),  # the floor and a second for the prompt
        (None, [*[0.1] * 7, 3.0], 100, 0, 25),  # eight times the longest
        (0.2, (), 100, 0, 16),
        (1.0, (), 100, 0, 21),  # twenty canaries
        (1.6, (), 500, 0, 37),  # llama.cpp on a busy CPU
        (0.2, (), 100, 1, 32),  # another of ours is ahead of it there
        (0.2, (), 100, 9, 60),
        (0.2, (), 2_047, 9, 60),
        (0.2, (), 2_048, 9, 80.48),  # a long prompt: beyond the wide one by what reading it takes
        (0.2, (), 5_000, 0, 65),
        (3.0, (), 5_000, 0, 110),  # the same on a starved CPU
        (None, (), 5_000, 0, 110),
        (0.2, (), 100_000, 0, 160),  # a minute at 100 tokens/s, more at 1,000
        (None, (), 1_000_000, 0, 600),  # never beyond the request
        (10.0, (), 100, 0, 60),  # never beyond the wide one
    ],
)
def test_before_enough_samples_a_first_token_has_a_multiple_of_what_is_known(
    canary_s, samples, prompt, ahead, wait_s
):
    deadlines = fresh(canary_s, samples=samples)
    assert deadlines.wait(asked(prompt), None, ahead, 0) == nanos(wait_s)
    assert deadlines.wait(asked(prompt), 0, ahead, 0) == nanos(wait_s)


def test_an_engine_with_a_queue_of_its_own_has_the_wide_deadline():
    assert fresh(0.2).wait(asked(), 1, 0, 0) == 60 * SECOND


@pytest.mark.parametrize(
    ("canary_s", "tokens", "wait_s"),
    [
        (None, 100, 600),  # nothing is known
        (0.1, 0, 600),  # how long it may become is not known
        (0.1, 100, 16),  # 12 s are below the floor
        (0.1, 1000, 103),
        (0.1, 16_000, 600),
        (1.6, 100, 193),  # llama.cpp at 5 tokens a second needs 20 s and more
    ],
)
def test_before_enough_samples_a_whole_answer_has_a_canarys_time_for_each_token(
    canary_s, tokens, wait_s
):
    deadlines = fresh(canary_s, whole=True)
    assert deadlines.wait(asked(100, tokens, whole=True), None, 0, 0) == nanos(wait_s)


def test_a_pool_that_proved_slow_has_wide_deadlines_until_it_is_learned_anew():
    """Nothing early is tried again on a pool that just made everything learned untrue."""
    deadlines = taught()
    deadlines.expect_canary(0.1)
    now = WARM_UNTIL
    while deadlines.first_token(100, None, now) < 60 * SECOND:
        for name in ("r0", "r1", "r2", "r3"):
            deadlines.fired(name, 3, now)
        now += 11 * SECOND
        assert now < 600 * SECOND
    assert deadlines.wait(asked(), None, 0, now) == 60 * SECOND
    assert deadlines.wait(asked(), None, 0, now + 700 * SECOND) < 60 * SECOND


def test_what_is_learned_replaces_what_was_guessed():
    deadlines = taught()
    deadlines.expect_canary(3.0)
    learned = deadlines.first_token(100, None, WARM_UNTIL)
    assert deadlines.wait(asked(), None, 5, WARM_UNTIL) == learned


@pytest.mark.parametrize(
    ("deadlines", "prompt", "after_s"),
    [(fresh(), 100, 2.1), (fresh(whole=True), 100, 3.1), (fresh(), 100_000, 102.0)],
)
def test_doubt_comes_early_and_later_for_long_prompts(deadlines, prompt, after_s):
    assert deadlines.doubt_after(asked(prompt)) == nanos(after_s)


def test_learned_doubt_is_the_norm_and_no_less_than_a_second():
    assert taught(first_token_s=0.05).doubt_after(asked()) == SECOND
    assert taught(first_token_s=3.0).doubt_after(asked()) == pytest.approx(3 * SECOND, rel=0.1)


# Any history


class AnyPool(RuleBasedStateMachine):
    """Whatever happens, waits stay in bounds and one replica alone is never the fleet."""

    def __init__(self):
        super().__init__()
        self.deadlines = Deadlines(DeadlineConfig(first_token_samples_min=5))
        self.now = 0
        self.fired_at = {}  # replica -> when it last fired without a first token since

    @rule(pause=st.integers(0, 40 * SECOND))
    def time_passes(self, pause):
        self.now += pause

    @rule(
        replica=st.sampled_from("abcd"),
        elapsed=st.integers(0, 100 * SECOND),
        prompt_tokens=st.sampled_from([10, 500, 10**6]),
        times=st.integers(1, 30),
    )
    def first_tokens_come(self, replica, elapsed, prompt_tokens, times):
        for _ in range(times):
            self.deadlines.observe_first_token(replica, prompt_tokens, elapsed, self.now)

    @rule(worst=st.integers(0, 20 * SECOND), count=st.integers(0, 5000))
    def a_stream_ends(self, worst, count):
        self.deadlines.observe_gaps(worst, count, "a")

    @rule(replica=st.sampled_from("abcd"))
    def a_deadline_fires(self, replica):
        others = [
            at for name, at in self.fired_at.items() if name != replica and self.now - at < WINDOW
        ]
        verdict = self.deadlines.fired(replica, 3, self.now)
        self.fired_at[replica] = self.now
        assert verdict.reason
        if not others:
            assert verdict.retry
        assert self.deadlines.fleet_slow(self.now) == (not verdict.retry)

    @rule()
    def all_fire(self):
        for replica in "abcd":
            verdict = self.deadlines.fired(replica, 3, self.now)
            self.fired_at[replica] = self.now
        assert not verdict.retry
        assert self.deadlines.fleet_slow(self.now)

    @precondition(lambda self: self.deadlines.fleet_slow(self.now))
    @rule()
    def a_slow_fleet_ends(self):
        self.now += WINDOW
        assert not self.deadlines.fleet_slow(self.now)

    @invariant()
    def waits_stay_in_bounds(self):
        for prompt_tokens in (10, 500, 10**6):
            base = self.deadlines.first_token(prompt_tokens, None, self.now)
            assert SECOND <= base <= 600 * SECOND
            learned = self.deadlines._classes[bisect_left((256, 1024, 4096, 16384), prompt_tokens)]
            longest = learned._queued * self.deadlines.scale  # what was seen in ten minutes
            for waiting in (0, 7, 10**6):
                scaled = self.deadlines.first_token(prompt_tokens, waiting, self.now)
                assert base <= scaled <= min(8 * longest + 1, 600 * SECOND)
        assert SECOND <= self.deadlines.between_tokens(self.now) <= 600 * SECOND


WINDOW = 10 * SECOND
TestAnyPool = AnyPool.TestCase
TestAnyPool.settings = settings(max_examples=examples(25), stateful_step_count=25)


def test_an_answer_in_one_piece_is_in_doubt_from_what_such_answers_take_on():
    waits = Deadlines(DeadlineConfig().for_answers(), answers=True)
    request = Request("q", "m", 0, whole=True, prompt_tokens=100, max_tokens=64)
    assert waits.doubt_after(request) == nanos(3.1)
    for _ in range(300):
        waits.observe_first_token("r1", request.size, SECOND // 4, SECOND)
    waits.wait(request, None, 0, 2 * SECOND)
    assert waits.doubt_after(request) == nanos(5.0 / 8)  # of the floor of such deadlines
