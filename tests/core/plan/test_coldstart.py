from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.plan.coldstart import (
    Filesystem,
    bytes_read,
    cold_reads,
    readers_that_fill,
    schedule_loads,
    share_bytes_per_s,
)
from holdfast.core.types import ConfigError, nanos, seconds
from holdfast.sim.clock import Clock
from holdfast.sim.weight_store import LoadingConfig, WeightStore

FORTY = [10e9] * 40
EFS = Filesystem(100e6)


@pytest.mark.parametrize(
    ("parallel", "mean"), [(40, 4000), (1, 2050), (2, 2100), (4, 2200), (8, 2400)]
)
def test_forty_times_ten_gigabytes_at_100_megabytes_a_second(parallel, mean):
    found = schedule_loads(FORTY, parallel, EFS)
    assert found.mean_s == pytest.approx(mean)
    assert found.last_s == pytest.approx(4000)


def test_each_of_forty_gets_two_and_a_half():
    assert share_bytes_per_s(EFS, 40) == pytest.approx(2.5e6)
    assert bytes_read(EFS, 1800) == pytest.approx(180e9)
    assert bytes_read(EFS, 2700) == pytest.approx(270e9)


def test_credits_are_used_up_and_then_the_baseline_holds():
    burst = Filesystem(100e6, burst_bytes_per_s=300e6, credit_bytes=20e9)
    found = schedule_loads([30e9, 30e9], 1, burst)
    # 100 s at 300 MB/s use the credits and read 30 GB; the second reads at 100 MB/s.
    assert found.ready_s == (pytest.approx(100.0), pytest.approx(400.0))


def test_one_slow_reader_does_not_fill_the_pipe():
    slow = Filesystem(1e9, reader_bytes_per_s=250e6)
    assert readers_that_fill(slow) == 4
    assert readers_that_fill(EFS) == 1
    alone = schedule_loads([10e9] * 8, 1, slow)
    four = schedule_loads([10e9] * 8, 4, slow)
    assert alone.last_s == pytest.approx(4 * four.last_s)


def test_a_host_reads_each_model_once():
    assert cold_reads(40, 40, 10) == 40
    assert cold_reads(40, 10, 4) == 40
    assert cold_reads(40, 10, 2) == 20
    assert cold_reads(40, 1, 1) == 1
    warm = schedule_loads([10e9] * 20 + [0.0] * 20, 1, EFS)
    assert warm.last_s == pytest.approx(2000)


@pytest.mark.parametrize(
    ("count", "parallel", "size_gb"), [(1, 1, 1.0), (8, 1, 2.0), (8, 3, 1.0), (6, 12, 0.5)]
)
def test_the_formula_is_what_the_simulator_does(count, parallel, size_gb):
    """The simulator's weight store shares its bandwidth in the same way."""
    clock = Clock()
    config = LoadingConfig(0.0, size_gb, 0.1, parallel_max=parallel)
    store = WeightStore(config, clock)
    done = []
    for number in range(count):
        store.load(str(number), done.append, 0)
    clock.run(nanos(1e6))
    planned = schedule_loads([size_gb * 1e9] * count, parallel, EFS)
    assert [seconds(at) for at in done] == pytest.approx(list(planned.ready_s), abs=1e-3)


@given(
    st.lists(st.floats(1e6, 1e10), min_size=1, max_size=30),
    st.integers(1, 40),
    st.sampled_from([inf, 40e6, 1e9]),
)
def test_whatever_the_order_all_bytes_pass_and_nobody_is_ready_early(sizes, parallel, reader):
    files = Filesystem(100e6, reader_bytes_per_s=reader)
    found = schedule_loads(sizes, parallel, files)
    assert len(found.ready_s) == len(sizes)
    assert list(found.ready_s) == sorted(found.ready_s)
    assert found.last_s >= sum(sizes) / 100e6 * (1 - 1e-6)
    assert found.first_s <= found.half_s <= found.last_s


@pytest.mark.parametrize(
    "call",
    [
        lambda: Filesystem(0),
        lambda: Filesystem(1e6, credit_bytes=-1),
        lambda: Filesystem(1e6, reader_bytes_per_s=0),
        lambda: schedule_loads([], 1, EFS),
        lambda: schedule_loads([-1.0], 1, EFS),
        lambda: schedule_loads([1.0], 0, EFS),
        lambda: schedule_loads([1.0], 1, EFS, -1),
        lambda: cold_reads(0, 1, 1),
        lambda: cold_reads(5, 6, 1),
        lambda: cold_reads(5, 5, 0),
        lambda: share_bytes_per_s(EFS, 0),
        lambda: bytes_read(EFS, -1),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ConfigError):
        call()
