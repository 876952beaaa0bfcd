from math import log

import pytest

from holdfast.core.plan.overload import (
    budget_bound,
    exponential_tail,
    hedged_quantile,
    lognormal_quantile,
    lognormal_tail,
    metastable_attempts,
    nested_attempts,
    retry_amplification,
    slow_after_hedge,
    tail_per_call,
)
from holdfast.core.types import ConfigError


def test_attempts_add_up_as_the_series_says():
    assert retry_amplification(1, 0.9) == 1.0
    assert retry_amplification(3, 0.5) == pytest.approx(1 + 0.5 + 0.25)
    assert retry_amplification(5, 1.0) == 5.0
    assert nested_attempts(3, 4) == 64
    assert budget_bound(0.2) == pytest.approx(1.2)


@pytest.mark.parametrize(("busy", "attempts"), [(0.5, 3), (0.7, 2), (0.9, 2), (0.3, 4)])
def test_retries_keep_a_fleet_down_once_they_exceed_its_capacity(busy, attempts):
    assert metastable_attempts(busy) == attempts
    assert busy * attempts > 1 >= busy * (attempts - 1)


def test_a_second_copy_cuts_the_tail_as_published():
    late = -log(0.05)
    assert hedged_quantile(exponential_tail(), late, 0.99) == pytest.approx(3.800451, rel=1e-6)
    delay = lognormal_quantile(0.95)
    assert lognormal_tail()(delay) == pytest.approx(0.05)
    assert hedged_quantile(lognormal_tail(), delay, 0.999) == pytest.approx(9.312947, rel=1e-6)


def test_a_copy_that_is_never_sent_changes_nothing():
    assert hedged_quantile(exponential_tail(), 1e9, 0.99) == pytest.approx(-log(0.01), rel=1e-6)


def test_many_calls_need_rarer_trouble_each():
    assert 1 - (1 - tail_per_call(0.001, 100)) ** 100 == pytest.approx(0.001)
    assert pytest.approx(0.633968, rel=1e-5) == 1 - 0.99**100


@pytest.mark.parametrize(
    "call",
    [
        lambda: retry_amplification(0, 0.5),
        lambda: retry_amplification(1, 1.5),
        lambda: nested_attempts(0, 1),
        lambda: budget_bound(-1),
        lambda: metastable_attempts(1.0),
        lambda: hedged_quantile(exponential_tail(), -1.0, 0.9),
        lambda: hedged_quantile(exponential_tail(), 1.0, 1.0),
        lambda: slow_after_hedge(2.0),
        lambda: tail_per_call(0.1, 0),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ConfigError, match="overload"):
        call()
