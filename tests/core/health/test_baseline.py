"""A canary's latency against its own past and its peers' present, and what canaries may cost.

Must fire: a replica that became three times as slow. Must not: load, noise, everybody slow.
"""

import json
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.canary import CanaryConfig
from holdfast.core.health.baseline import CanaryBudget, CanaryPace, LatencyBaseline
from holdfast.core.health.health import HealthConfig, ReplicaHealth, Signal
from holdfast.core.types import MILLISECOND, SECOND, State, nanos
from sampling import examples

CONFIG = CanaryConfig()
USUAL = 400 * MILLISECOND
MINUTE = 60 * SECOND
quick = settings(max_examples=examples(60))


def learned(latency=USUAL, running=0, count=10, config=CONFIG):
    baseline = LatencyBaseline(config)
    for _ in range(count):
        baseline.take(latency, running)
    return baseline


# Must fire


@pytest.mark.parametrize("running", [None, 0, 1, 6])
@pytest.mark.parametrize("peers", [None, USUAL])
def test_three_times_its_usual_on_the_same_question_is_slow(running, peers):
    found = learned(running=running).judge(3 * USUAL, running, peers)
    assert not found
    assert "1.200 s" in found.reason
    assert "0.400 s" in found.reason


def test_a_threefold_slowdown_is_found_through_noise_and_makes_it_suspect():
    rng = Random(7)
    baseline, health = learned(count=0), ready_replica()
    for at in range(60):
        slowed = 3 if at >= 50 else 1
        latency = round(USUAL * slowed * rng.lognormvariate(0, 0.08))
        found = baseline.judge(latency, 0, USUAL)
        if found:
            baseline.take(latency, 0)
        health.handle(Signal.CANARY_PASS if found else Signal.CANARY_SLOW, at * SECOND)
        if at < 50:
            assert health.state is State.READY
    assert health.state is State.SUSPECT


def test_slowness_that_lasts_never_becomes_usual():
    baseline = learned()
    for _ in range(1_000):
        found = baseline.judge(3 * USUAL, 0, USUAL)
        assert not found  # and so it is never taken


def test_a_slow_decay_is_found_too():
    baseline = learned(count=64)
    latency = USUAL
    for _ in range(2_000):
        latency = round(latency * 1.001)
        if not baseline.judge(latency, 0, USUAL):
            break
        baseline.take(latency, 0)
    assert latency == pytest.approx(2 * USUAL, rel=0.01)


def test_a_cold_beginning_does_not_excuse_slowness():
    baseline = learned(latency=5 * USUAL, count=6)
    for _ in range(20):
        baseline.take(USUAL, 0)
    assert not baseline.judge(3 * USUAL, 0, None)


# Must not fire


def ready_replica():
    health = ReplicaHealth(HealthConfig(), "r1", "m", 0, Random(1))
    for signal in (Signal.LAUNCHED, Signal.LOADED, Signal.CANARY_PASS):
        health.handle(signal, 0)
    assert health.state is State.READY
    return health


def test_a_replica_saturated_by_load_is_not_slow():
    baseline = learned(running=0, count=50)
    for _ in range(5):
        assert baseline.judge(20 * USUAL, 40, USUAL)  # nothing is known of such a load yet
        baseline.take(20 * USUAL, 40)
    assert baseline.judge(21 * USUAL, 63, USUAL)  # and now it is: 32 to 63 are alike
    assert not baseline.judge(61 * USUAL, 50, USUAL)
    assert not baseline.judge(3 * USUAL, 0, USUAL)  # what idle means has not changed


def test_one_slow_probe_makes_nobody_suspect_and_moves_nothing():
    baseline, health = learned(), ready_replica()
    assert not baseline.judge(10 * USUAL, 0, USUAL)
    assert health.handle(Signal.CANARY_SLOW, SECOND) is None
    assert health.state is State.READY
    assert baseline.judge(USUAL, 0, USUAL)
    baseline.take(10 * USUAL, 0)  # even if somebody took it
    assert not baseline.judge(3 * USUAL, 0, USUAL)


@pytest.mark.parametrize("factor", [0.1, 1.0, 1.5, 1.9])
def test_noise_is_not_slow(factor):
    assert learned().judge(round(factor * USUAL), 0, USUAL)


def test_a_factor_of_next_to_nothing_is_not_slow():
    baseline = learned(latency=20 * MILLISECOND)
    assert baseline.judge(200 * MILLISECOND, 0, 20 * MILLISECOND)  # tenfold, and nobody notices
    assert not baseline.judge(271 * MILLISECOND, 0, 20 * MILLISECOND)


def test_a_slowdown_of_everybody_is_nobodys_fault():
    fleet = [learned(count=20) for _ in range(4)]
    in_a_row = [0, 0, 0, 0]
    for at in range(12):
        latency = USUAL if at < 4 else 4 * USUAL
        for mine, baseline in enumerate(fleet):
            peers = [peer.median() for peer in fleet if peer is not baseline]
            known = [each for each in peers if each is not None]
            found = baseline.judge(latency, 0, round(median(known)) if known else None)
            in_a_row[mine] = 0 if found else in_a_row[mine] + 1
            assert in_a_row[mine] < HealthConfig().slows_to_suspect
            if found and latency > USUAL:
                assert "but peers take" in found.reason
    assert in_a_row == [0, 0, 0, 0]


def test_it_does_not_judge_before_it_has_samples_under_such_load():
    baseline = LatencyBaseline(CONFIG)
    for _ in range(CONFIG.samples_min):
        assert baseline.judge(100 * USUAL, 3, USUAL)
        baseline.take(USUAL, 3)
    assert not baseline.judge(100 * USUAL, 2, USUAL)
    assert baseline.judge(100 * USUAL, 4, USUAL)
    assert baseline.judge(100 * USUAL, 1, USUAL)


def test_unknown_load_counts_as_none_and_a_negative_one_too():
    baseline = learned(running=None)
    assert not baseline.judge(3 * USUAL, 0, None)
    assert not baseline.judge(3 * USUAL, -1, None)


# The present, for peers


def test_the_present_follows_quickly_and_ignores_one_outlier():
    baseline = LatencyBaseline(CONFIG)
    assert baseline.median() is None
    for latency in (USUAL, USUAL, 9 * USUAL):
        baseline.judge(latency, 0, None)
    assert baseline.median() == USUAL
    baseline.judge(9 * USUAL, 0, None)
    assert baseline.median() == 9 * USUAL


# Bounds and persistence


@quick
@given(st.lists(st.tuples(st.integers(0, 10**12), st.none() | st.integers(0, 10**6)), max_size=300))
def test_a_baseline_is_bounded_and_comes_back_as_it_was(canaries):
    baseline = LatencyBaseline(CONFIG)
    for latency, running in canaries:
        baseline.judge(latency, running, None)
        baseline.take(latency, running)
    plain = baseline.export()
    assert len(json.dumps(plain)) < 16 * 128 * 15 + 1_000
    again = LatencyBaseline.restore(CONFIG, json.loads(json.dumps(plain)))
    assert again.export() == plain
    assert again.median() == baseline.median()
    for latency in (10**6, 10**9, 10**12):
        for running in (None, 1, 5):
            expected = baseline.judge(latency, running, None)
            assert again.judge(latency, running, None) == expected


def test_many_samples_of_every_load_stay_bounded():
    baseline = LatencyBaseline(CONFIG)
    for running in (0, *(2**n for n in range(40))):
        for _ in range(200):
            baseline.take(USUAL, running)
    buckets = baseline.export()["buckets"]
    assert len(buckets) == 16
    assert all(len(first) == len(last) == 64 for _, first, last in buckets)


def test_another_question_begins_a_new_baseline():
    plain = learned().export()
    other = LatencyBaseline.restore(CanaryConfig(prompt="Say yes."), plain)
    assert other.judge(100 * USUAL, 0, None)


GOOD = learned().export()


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        GOOD | {"version": 2},
        GOOD | {"more": 1},
        GOOD | {"present": 3},
        GOOD | {"present": [1.5]},
        GOOD | {"present": [True]},
        GOOD | {"present": [-1]},
        GOOD | {"buckets": {}},
        GOOD | {"buckets": [3]},
        GOOD | {"buckets": [[0, [1]]]},
        GOOD | {"buckets": [[16, [1], [1]]]},
        GOOD | {"buckets": [["0", [1], [1]]]},
        GOOD | {"buckets": [[0, [], []]]},
        GOOD | {"buckets": [[0, ["1"], [1]]]},
    ],
)
def test_a_baseline_that_was_not_exported_is_refused(data):
    with pytest.raises(ValueError, match="baseline"):
        LatencyBaseline.restore(CONFIG, data)


# What canaries may cost

ADMITTED = 4  # canaries that a replica is admitted with
SAVED = 12  # that heavy use can save


def used(now=0, tokens=1):
    """A budget that has nothing left, of a replica that users got a token of just now."""
    budget = CanaryBudget(CONFIG)
    budget.served(tokens, now)
    for _ in range(ADMITTED):
        budget.spent(40, now, charged=True)
    return budget


def test_canaries_that_took_nothing_from_users_are_counted_and_not_charged():
    budget = CanaryBudget(CONFIG)
    for second in range(1_000):
        assert budget.affords(second * SECOND)
        budget.spent(1_000, second * SECOND, charged=False)
    assert budget.spent_tokens == 1_000_000


def test_a_newly_admitted_replica_is_asked_as_usual_for_a_while():
    budget = CanaryBudget(CONFIG)
    sent = 0
    for second in range(100):
        budget.served(1, second * SECOND)
        if budget.affords(second * SECOND):
            budget.spent(40, second * SECOND, charged=True)
            sent += 1
    assert sent == ADMITTED
    budget.renew()
    assert budget.affords(100 * SECOND)


def test_tokens_that_were_served_while_canaries_cost_nothing_earn_none():
    budget = used()
    budget.served(100_000, SECOND, earns=False)
    assert not budget.affords(SECOND)
    assert budget.served_tokens == 100_001


def test_users_tokens_earn_the_next_canary():
    budget = used()
    assert not budget.affords(SECOND)
    budget.served(2_000, SECOND)
    assert not budget.affords(SECOND)
    budget.served(2_800, 2 * SECOND)  # 0.85 % of all this are 40
    assert budget.affords(2 * SECOND)


def test_what_doubt_spent_is_earned_later_within_a_bound():
    budget = used()
    for second in range(100):
        budget.spent(40, second * SECOND, charged=True)
    budget.served(2 * 4_450, 100 * SECOND)
    assert not budget.affords(100 * SECOND)
    budget.served(5_300, 101 * SECOND)
    assert budget.affords(101 * SECOND)


def test_what_heavy_use_earned_is_saved_for_a_minute_of_canaries_and_no_more():
    budget = CanaryBudget(CONFIG)
    budget.served(10_000_000, 0)
    for _ in range(SAVED):
        assert budget.affords(SECOND)
        budget.spent(40, SECOND, charged=True)
    assert not budget.affords(SECOND)


def test_a_doubt_is_settled_on_credit_within_a_bound():
    budget = used()
    assert not budget.affords(SECOND)
    for _ in range(2):
        assert budget.affords(SECOND, doubted=True)
        budget.spent(40, SECOND, charged=True)
    assert not budget.affords(SECOND, doubted=True)
    assert budget.affords(SECOND + nanos(CONFIG.stretch_max_s), doubted=True)


def test_however_little_it_is_used_it_is_asked_once_in_the_longest_period():
    budget = used()
    longest = nanos(CONFIG.stretch_max_s)
    for at in range(0, longest, 30 * SECOND):
        budget.served(1, at)
        assert not budget.affords(at)
    assert budget.affords(longest)


def test_a_replica_that_was_never_asked_is_asked():
    budget = used()
    budget._charged_at = None
    assert budget.affords(0)


def test_a_clock_that_steps_back_does_no_harm():
    assert not used(now=10 * SECOND).affords(0)


def test_a_share_is_unknown_until_something_happens_and_again_when_it_is_long_past():
    budget = CanaryBudget(CONFIG)
    assert budget.share(0) is None
    budget.served(0, 0)
    assert budget.share(0) is None
    budget.spent(25, 0, charged=True)
    assert budget.share(0) == 1.0
    budget.served(75, SECOND)
    assert budget.share(SECOND) == 0.25
    assert budget.share(11 * MINUTE) is None


def test_an_engine_that_does_not_count_is_charged_what_was_asked_for():
    budget = CanaryBudget(CONFIG)
    budget.spent(0, 0, charged=True)
    budget.served(CONFIG.tokens, 0)
    assert budget.share(0) == 0.5
    budget.spent(40, 0, charged=True)
    budget.spent(0, 0, charged=True)  # as much as the last one
    budget.served(80, 0)
    assert budget.share(0) == 0.5


LOADS = st.lists(
    st.tuples(st.integers(1, 300), st.sampled_from([0, 1, 20, 200, 2_000, 20_000])),
    min_size=1,
    max_size=12,
)


@quick
@given(loads=LOADS, cost=st.integers(1, 400), share=st.sampled_from([0.01, 0.05]))
def test_however_load_comes_and_goes_canaries_keep_to_their_share_in_any_span(loads, cost, share):
    config = CanaryConfig(share_max=share)
    budget = CanaryBudget(config)
    second = due = 0
    above = worst = 0.0  # what canaries cost beyond their share, in the worst span so far
    forced = asked_at = 0
    for lasts, rate in loads:
        for _ in range(lasts):
            second += 1
            now = second * SECOND
            if rate:
                budget.served(rate, now)
                above = max(0.0, above - share * rate)
            if second < due or not budget.affords(now):
                continue
            above += cost
            forced += second - asked_at >= config.stretch_max_s
            due, asked_at = second + 5, second
            budget.spent(cost, now, charged=True)
            worst = max(worst, above)
    assert worst <= (SAVED + 1 + forced) * cost


# --- without a baseline of its own ---------------------------------------------------------------


def test_one_that_was_as_quick_as_its_peers_and_is_idle_and_late_is_slow_without_a_baseline():
    baseline = LatencyBaseline(CONFIG)
    baseline.saw(130 * MILLISECOND)  # beside others
    verdict = baseline.judge(1_300 * MILLISECOND, 0, 130 * MILLISECOND)
    assert not verdict
    assert "nothing beside it" in verdict.reason


@pytest.mark.parametrize(
    ("own_ms", "late_ms", "running", "peers_ms"),
    [
        (130, 1_300, 2, 130),  # it is busy
        (130, 1_300, 0, None),  # nobody to compare with
        (700, 2_800, 0, 130),  # it was never as quick: other hardware
        (130, 500, 0, 130),  # less than four times
        (20, 200, 0, 20),  # ten times, and nobody notices
    ],
)
def test_without_a_baseline_nothing_less_is_slow(own_ms, late_ms, running, peers_ms):
    baseline = LatencyBaseline(CONFIG)
    baseline.saw(own_ms * MILLISECOND)
    peers = None if peers_ms is None else peers_ms * MILLISECOND
    assert baseline.judge(late_ms * MILLISECOND, running, peers)


# How often


@quick
@given(
    st.lists(st.integers(1, 4_000), min_size=1, max_size=4),
    st.integers(1, 256),
    st.floats(0.001, 1.0),
    st.integers(0, 6_000),
)
def test_all_canaries_of_a_server_take_their_share_of_its_slots_at_the_most(
    took_ms, slots, share, rest_ms
):
    pace = CanaryPace(5 * SECOND)
    for model, took in enumerate(took_ms):
        pace.join("there", str(model))
        for _ in range(3):
            assert pace.between("there", slots, share, rest_ms * MILLISECOND) is None
            pace.saw(str(model), took * MILLISECOND)
    later = pace.between("there", slots, share, rest_ms * MILLISECOND)
    if later is not None:
        assert SECOND <= later <= rest_ms * MILLISECOND / 2
        assert sum(took_ms) * MILLISECOND / (slots * later) <= share * 1.001
    elif rest_ms >= 2_000:  # no two of them fit in
        assert sum(took_ms) / (slots * share) > rest_ms / 2 * 0.999


def test_what_canaries_take_is_forgotten_with_the_last_replica_of_a_model():
    pace = CanaryPace(5 * SECOND)
    pace.join("a", "m")
    pace.join("b", "m")
    for _ in range(3):
        pace.saw("m", 100 * MILLISECOND)
    pace.leave("a", "m")
    assert pace.between("b", 16, 0.02, 5 * SECOND) == SECOND
    pace.leave("b", "m")
    pace.join("b", "m")
    assert pace.between("b", 16, 0.02, 5 * SECOND) is None
