from math import exp, factorial, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.plan.failure_rates import (
    observed_availability,
    poisson_interval,
    replica_availability,
    split_common_cause,
    spot_availability,
    twice_as_reliable,
)
from holdfast.core.types import ConfigError


def test_a_spot_replica_is_down_for_what_its_notice_does_not_cover():
    assert spot_availability(240, 5, 0) == pytest.approx(0.979592, rel=1e-5)
    assert spot_availability(240, 5, 2) == pytest.approx(0.987654, rel=1e-5)
    assert spot_availability(240, 5, 60) == 1.0


def test_the_poisson_interval_has_its_tails():
    """Published values (Garwood): 0 -> 3.689, 1 -> 0.0253 to 5.572, 10 -> 4.795 to 18.39."""
    assert poisson_interval(0) == (0.0, pytest.approx(3.6889, rel=1e-4))
    assert poisson_interval(1) == (
        pytest.approx(0.02532, rel=1e-3),
        pytest.approx(5.5716, rel=1e-4),
    )
    assert poisson_interval(10) == (
        pytest.approx(4.7954, rel=1e-4),
        pytest.approx(18.390, rel=1e-4),
    )


@given(st.integers(0, 60))
def test_the_interval_holds_the_count_and_its_tail_is_a_fortieth(count):
    low, high = poisson_interval(count)
    assert low <= count <= high
    at_most = sum(exp(-high) * high**n / factorial(n) for n in range(count + 1))
    assert at_most == pytest.approx(0.025, rel=1e-6)


def test_a_history_gives_an_estimate_between_bounds():
    seen = observed_availability(3, 1000.0, 6.0)
    assert (seen.mtbf, seen.down) == (pytest.approx(1000 / 3), 2.0)
    assert seen.availability == pytest.approx(1000 / 1006)
    assert seen.low < seen.availability < seen.high < 1.0


def test_no_failure_seen_is_not_no_failure():
    seen = observed_availability(0, 1000.0, 0.0, assumed_down=1.0)
    assert seen.mtbf is None
    assert seen.availability == seen.high == 1.0
    assert seen.low == pytest.approx(1000 / 1003.6889, rel=1e-6)


def test_common_causes_are_taken_out_of_a_replicas_downtime():
    alone, common = split_common_cause(0.99, 0.1)
    assert common == pytest.approx(0.001)
    assert alone * (1 - common) == pytest.approx(0.99)
    assert split_common_cause(0.99, 0.0) == (0.99, 0.0)


def test_half_the_failures_are_half_the_downtime():
    better = twice_as_reliable(0.99)
    assert better / (1 - better) == pytest.approx(2 * 0.99 / 0.01)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: replica_availability(0, 1, 1), "mtbf"),
        (lambda: replica_availability(inf, 1, 1), "mtbf"),
        (lambda: replica_availability(1, -1, 1), "detect"),
        (lambda: replica_availability(1, 1, -1), "repair"),
        (lambda: spot_availability(1, 1, -1), "notice"),
        (lambda: observed_availability(-1, 1, 1), "failures"),
        (lambda: observed_availability(1, 0, 1), "up_time"),
        (lambda: split_common_cause(0.9, 1.5), "common_cause"),
        (lambda: split_common_cause(1.2, 0.5), "availability"),
        (lambda: twice_as_reliable(0.9, 0), "factor"),
    ],
)
def test_what_cannot_be_names_its_field(call, field):
    with pytest.raises(ConfigError) as refused:
        call()
    assert refused.value.field == f"failure_rates.{field}"
