"""Autoscaling: bounds, windows, unknown signals, zero and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.deploy.autoscale import Autoscaler, Demand, Desired, ScalingConfig
from holdfast.core.types import SECOND, ConfigError
from sampling import examples

START = 10_000 * SECOND
BUSY = {"queued": 1, "running": 4}
IDLE = {"queued": 0, "running": 0, "queued_tokens": 0}


class Run:
    """A driver that does at once what is desired."""

    def __init__(self, present=2, instant=True, **config):
        self.scaler = Autoscaler(ScalingConfig(**{"min": 1, "max": 10, **config}))
        self.present = present
        self.ready = present
        self.instant = instant
        self.now = START
        self.counts: list[tuple[int, int]] = []

    def tick(self, pause=1, **demand) -> Desired:
        told = {"ready": self.ready, "starting": self.present - self.ready, **demand}
        desired = self.scaler.decide(Demand(self.now, **told), self.present, self.now)
        self.counts.append((self.now, desired.count))
        self.present = desired.count
        if self.instant:
            self.ready = self.present
        self.now += round(pause * SECOND)
        return desired

    def ticks(self, seconds, pause=1, **demand) -> Desired:
        for _ in range(round(seconds / pause)):
            desired = self.tick(pause, **demand)
        return desired


# --- each signal ----------------------------------------------------------------------------------


def test_a_queue_in_tokens_asks_for_replicas_and_gets_them_after_the_window():
    run = Run()
    assert run.ticks(15, queued_tokens=6_000, **BUSY).count == 2
    desired = run.tick(queued_tokens=6_000, **BUSY)
    assert (desired.count, desired.signal) == (3, "queue")
    assert desired.reason == "6000 tokens wait, 2048 per replica"


def test_a_burst_shorter_than_the_window_is_what_queues_are_for():
    run = Run()
    run.ticks(20, queued_tokens=0, **BUSY)
    run.ticks(10, queued_tokens=50_000, **BUSY)
    assert run.ticks(30, queued_tokens=0, **BUSY).count == 2


def test_growth_is_bounded_per_step():
    run = Run()
    run.ticks(15, queued_tokens=10**9, **BUSY)
    assert run.tick(queued_tokens=10**9, **BUSY).count == 4
    held = run.tick(queued_tokens=10**9, **BUSY)
    assert held.count == 4
    assert "grew a moment ago" in held.reason
    run.ticks(13, queued_tokens=10**9, **BUSY)
    assert run.tick(queued_tokens=10**9, **BUSY).count == 8
    assert run.ticks(16, queued_tokens=10**9, **BUSY).count == 10


def test_one_replica_can_always_become_two():
    run = Run(present=1, step_up_max=1.1)
    assert run.ticks(16, queued_tokens=10**6, **BUSY).count == 2


def test_kv_use_asks_for_what_brings_it_to_its_target():
    run = Run()
    desired = run.ticks(16, kv_used=(0.95, 0.9), queued_tokens=0, **BUSY)
    assert (desired.count, desired.signal) == (3, "kv")
    assert desired.reason == "92% of the KV cache is in use"


def test_kv_use_is_a_measure_by_which_to_shrink():
    run = Run(present=4)
    assert run.ticks(300, kv_used=(0.2,) * 4, queued_tokens=0, **BUSY).count == 4
    desired = run.tick(kv_used=(0.2,) * 4, queued_tokens=0, **BUSY)
    assert (desired.count, desired.signal) == (1, "kv")
    assert desired.reason == "never more than 1 were needed in 300 s"


def test_a_replica_that_does_not_tell_its_use_needs_itself():
    run = Run(present=4)
    assert run.ticks(301, kv_used=(0.2, 0.2), queued_tokens=0, **BUSY).count == 3


def test_memory_over_its_line_asks_for_one_more_and_not_again():
    run = Run()
    desired = run.ticks(16, memory_used=(0.95, 0.5), **BUSY)
    assert (desired.count, desired.signal) == (3, "memory")
    assert run.ticks(100, memory_used=(0.95, 0.5), **BUSY).count == 3
    run.ticks(1, memory_used=(0.5, 0.5), **BUSY)
    assert run.ticks(16, memory_used=(0.95, 0.5), **BUSY).count == 4


def test_a_promise_that_is_not_kept_asks_for_more_and_a_near_one_for_no_less():
    run = Run(slo_first_token_s=1.0)
    desired = run.ticks(16, first_token_p95=1.4, **BUSY)
    assert (desired.count, desired.signal) == (3, "first_token")
    run = Run(present=4, slo_first_token_s=1.0)
    kept = {"kv_used": (0.1,) * 4, "first_token_p95": 0.8}
    assert run.ticks(400, **kept, **BUSY).count == 4
    kept["first_token_p95"] = 0.3
    assert run.ticks(302, **kept, **BUSY).count == 1


def test_starting_replicas_are_not_asked_for_again():
    run = Run(instant=False, slo_first_token_s=1.0)
    run.ticks(200, first_token_p95=2.0, **BUSY)
    assert run.present == 4


def test_a_token_rate_asks_by_what_one_replica_sustains():
    run = Run(tokens_per_s=100.0)
    desired = run.ticks(16, token_rate=350.0, **BUSY)
    assert (desired.count, desired.signal) == (4, "rate")
    assert run.ticks(302, token_rate=150.0, **BUSY).count == 2


def test_spare_replicas_come_on_top_of_the_need():
    run = Run(present=1, warm=2, tokens_per_s=100.0)
    run.ticks(60, token_rate=150.0, **BUSY)
    assert run.present == 4


# --- unknown is neither zero nor full -------------------------------------------------------------


def test_without_any_signal_the_count_is_held():
    run = Run(present=5)
    desired = run.ticks(1_000)
    assert (desired.count, desired.signal) == (5, "unknown")


def test_a_queue_alone_never_shrinks():
    run = Run(present=5)
    desired = run.ticks(1_000, queued_tokens=0, **BUSY)
    assert (desired.count, desired.signal) == (5, "unmeasured")


def test_old_signals_are_no_signals():
    run = Run()
    old = Demand(START, queued_tokens=10**6, queued=9, running=1, ready=2)
    for second in range(16, 60):
        desired = run.scaler.decide(old, 2, START + second * SECOND)
        assert (desired.count, desired.signal) == (2, "unknown")
        assert "old" in desired.reason


def test_broken_readings_are_unknown_ones():
    run = Run(slo_first_token_s=1.0, tokens_per_s=1.0)
    nan = float("nan")
    broken = {"kv_used": (nan, 7.0), "memory_used": (-1.0,), "first_token_p95": nan}
    desired = run.ticks(500, **broken, token_rate=float("inf"))
    assert (desired.count, desired.signal) == (2, "unknown")


def test_a_long_gap_in_the_signals_begins_the_windows_anew():
    run = Run(present=4)
    run.ticks(290, kv_used=(0.1,) * 4, **BUSY)
    run.ticks(20)
    assert run.ticks(200, kv_used=(0.1,) * 4, **BUSY).count == 4
    run = Run(present=4)
    run.ticks(290, kv_used=(0.1,) * 4, **BUSY)
    run.ticks(5)
    assert run.ticks(20, kv_used=(0.1,) * 4, **BUSY).count == 1, "a short one is bridged"


# --- bounds, zero and back ------------------------------------------------------------------------


def test_bounds_hold_at_once_whatever_is_known():
    assert Run(present=0, min=2).tick().count == 2
    desired = Run(present=12).tick()
    assert (desired.count, desired.signal) == (10, "bounds")


def test_an_idle_model_shrinks_to_one_and_then_to_zero():
    run = Run(present=3, min=0)
    assert run.ticks(300, **IDLE).count == 3
    assert run.tick(**IDLE).count == 1
    assert run.ticks(298, **IDLE).count == 1
    assert run.ticks(2, **IDLE).count == 0
    desired = run.tick(**IDLE)
    assert (desired.count, desired.signal) == (0, "idle")


def test_one_request_in_between_keeps_it_from_zero():
    run = Run(present=1, min=0)
    for _ in range(5):
        run.ticks(500, **IDLE)
        run.tick(queued=0, running=1)
    assert run.present == 1


def test_an_idleness_that_is_not_known_is_none():
    run = Run(present=1, min=0)
    run.ticks(2_000, queued=0, queued_tokens=0)
    assert run.present == 1


def test_with_a_minimum_it_never_goes_to_zero():
    run = Run(present=1)
    run.ticks(2_000, pause=5, **IDLE)
    assert run.present == 1


def test_the_first_request_that_waits_wakes_it_at_once():
    run = Run(present=0, min=0)
    assert run.tick(**IDLE).count == 0
    assert run.tick().signal == "unknown"
    desired = run.tick(queued=1, running=0, queued_tokens=20)
    assert (desired.count, desired.signal) == (1, "wake")
    assert desired.reason.startswith("woken: ")


def test_one_long_request_that_waits_for_the_start_asks_for_one_replica_only():
    run = Run(present=0, min=0, instant=False)
    long = {"queued": 1, "running": 0, "queued_tokens": 50_000}
    run.ticks(120, **long)
    assert run.present == 1
    run.ready = 1  # it is there, and so much still waits
    assert run.ticks(17, **long).count == 2


def test_spare_replicas_keep_an_idle_model_warm():
    run = Run(present=3, min=0, warm=1)
    run.ticks(2_000, pause=5, **IDLE)
    assert run.present == 1
    assert Run(present=0, min=0, warm=1).tick(**IDLE).count == 1


def test_the_snapshot_tells_what_was_desired_and_why():
    run = Run()
    assert run.scaler.snapshot()["reason"] == "not asked yet"
    run.ticks(16, queued_tokens=6_000, **BUSY)
    told = run.scaler.snapshot()
    assert (told["desired"], told["signal"], told["grew_at"]) == (3, "queue", run.now - SECOND)


# --- anything in any order ------------------------------------------------------------------------

SHARE = st.floats(0, 1) | st.just(float("nan"))
DEMANDS = st.fixed_dictionaries(
    {
        "queued_tokens": st.none() | st.integers(0, 60_000),
        "queued": st.none() | st.integers(0, 3),
        "running": st.none() | st.integers(0, 3),
        "kv_used": st.lists(SHARE, max_size=4).map(tuple),
        "memory_used": st.lists(SHARE, max_size=2).map(tuple),
        "first_token_p95": st.none() | st.floats(0, 5),
        "token_rate": st.none() | st.floats(0, 2_000),
    }
)
QUIET = st.just(IDLE)
SPELLS = st.lists(
    st.tuples(DEMANDS | QUIET, st.sampled_from([1, 5, 20, 120, 400, 700])), max_size=25
)


@settings(max_examples=examples(120))
@given(SPELLS, st.integers(0, 2), st.integers(2, 9), st.integers(0, 1), st.integers(0, 9))
def test_whatever_is_told_the_count_is_bounded_and_does_not_flap(spells, low, high, warm, present):
    config = {"slo_first_token_s": 1.0, "tokens_per_s": 100.0}
    run = Run(min(present, high), min=low, max=high, warm=warm, **config)
    grew, idle_since = None, None
    for demand, length in spells:
        pause = max(1, length // 20)
        for _ in range(0, length, pause):
            before, now = run.present, run.now
            idle = demand.get("queued") == 0 and demand.get("running") == 0
            idle_since = (now if idle_since is None else idle_since) if idle else None
            count = run.tick(pause, **demand).count
            assert low <= count <= high
            if count > before:
                grew = now
                assert count <= max(2 * before, before + 1, low)
            elif count < before:
                assert now - START >= 300 * SECOND, "down only after the whole window"
                assert grew is None or now - grew > 300 * SECOND, "no flapping"
            if count == 0 < before:
                assert low == 0
                assert idle_since is not None
                assert now - idle_since >= 600 * SECOND
            if before == 0 and (demand.get("queued") or 0) > 0:
                assert count >= 1, "woken at once"


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 40_000), max_size=400))
def test_memory_is_bounded_by_the_counts_not_by_the_time(queues):
    run = Run(max=6)
    for queued in queues:
        run.tick(pause=0.1, queued_tokens=queued, kv_used=(0.5,) * 2, **BUSY)
    assert len(run.scaler._most._row) <= 7
    assert len(run.scaler._least._row) <= 7


# --- configs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"min": -1}, "min"),
        ({"max": 0}, "max"),
        ({"max": 257}, "max"),
        ({"min": 3, "max": 2}, "max"),
        ({"warm": 2}, "warm"),
        ({"target_queue_tokens": 0}, "target_queue_tokens"),
        ({"kv_target": 0.0}, "kv_target"),
        ({"memory_target": 1.5}, "memory_target"),
        ({"slo_first_token_s": 0.0}, "slo_first_token_s"),
        ({"tokens_per_s": -1.0}, "tokens_per_s"),
        ({"up_window_s": -1.0}, "up_window_s"),
        ({"idle_to_zero_s": float("nan")}, "idle_to_zero_s"),
        ({"up_window_s": 60.0, "down_window_s": 30.0}, "down_window_s"),
        ({"step_up_max": 1.0}, "step_up_max"),
    ],
)
def test_a_config_that_cannot_work_names_its_field(values, field):
    with pytest.raises(ConfigError) as caught:
        ScalingConfig(**values)
    assert caught.value.field == f"scaling.{field}"
