"""Hedging: off unless wanted, planned from what is learned, paid out of spare capacity."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.request.hedge import HedgeConfig, Hedger
from holdfast.core.types import SECOND, ConfigError, nanos
from sampling import examples

ON = HedgeConfig(enabled=True)
IDLE = {"utilisation": 0.2, "queued": 0}


def hedger_after(requests, config=ON, now=0):
    hedger = Hedger(config)
    for _ in range(requests):
        hedger.on_request(now)
    return hedger


def test_hedging_is_off_by_default():
    hedger = hedger_after(1000, HedgeConfig())
    assert hedger.delay(SECOND) is None
    decision = hedger.decide(0, **IDLE)
    assert not decision
    assert decision.reason == "hedging is off"


def test_a_hedge_waits_for_what_is_expected_and_at_least_the_floor():
    hedger = Hedger(ON)
    assert hedger.delay(SECOND) == SECOND
    assert hedger.delay(1) == nanos(0.05)


def test_no_hedge_is_planned_before_anything_is_learned():
    assert Hedger(ON).delay(None) is None


def test_spare_capacity_allows_a_hedge():
    decision = hedger_after(100).decide(0, **IDLE)
    assert decision
    assert "spare capacity" in decision.reason


@pytest.mark.parametrize(
    ("utilisation", "queued", "reason"),
    [
        (0.2, 1, "requests are queued"),
        (None, 0, "utilisation is unknown"),
        (0.7, 0, "no spare capacity"),
        (math.nan, 0, "no spare capacity"),
    ],
)
def test_a_hedge_is_refused_without_spare_capacity(utilisation, queued, reason):
    decision = hedger_after(100).decide(0, utilisation, queued)
    assert not decision
    assert reason in decision.reason


def test_just_below_the_bound_is_spare_capacity():
    assert hedger_after(100).decide(0, 0.699, 0)


def test_hedges_are_capped_to_a_share_of_the_requests_and_a_small_burst():
    hedger = hedger_after(100)
    allowed = sum(bool(hedger.decide(0, **IDLE)) for _ in range(50))
    assert allowed == 7  # 5 % of 100, and the burst of 2
    assert "cap" in hedger.decide(0, **IDLE).reason


def test_a_quiet_pool_may_still_hedge_its_burst():
    hedger = Hedger(ON)
    assert [bool(hedger.decide(0, **IDLE)) for _ in range(3)] == [True, True, False]


def test_without_a_burst_the_share_alone_decides():
    hedger = hedger_after(19, HedgeConfig(enabled=True, burst=0))
    assert not hedger.decide(0, **IDLE)
    hedger.on_request(0)
    assert hedger.decide(0, **IDLE)


def test_the_cap_comes_back_with_time():
    hedger = Hedger(ON)
    for _ in range(3):
        hedger.decide(0, **IDLE)
    assert not hedger.would_allow(9 * SECOND, **IDLE)
    assert hedger.would_allow(10 * SECOND, **IDLE)


def test_asking_takes_nothing():
    hedger = Hedger(ON)
    for _ in range(10):
        assert hedger.would_allow(0, **IDLE)
    assert hedger._hedged == 0
    assert hedger.decide(0, **IDLE)


def test_a_refusal_does_not_use_up_the_cap():
    hedger = Hedger(ON)
    for _ in range(10):
        hedger.decide(0, None, 0)
    assert hedger.decide(0, **IDLE)


@settings(max_examples=examples(80))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, SECOND)), max_size=200))
def test_hedges_never_exceed_share_and_burst_of_any_window(steps):
    hedger, now, hedges, requests = Hedger(ON), 0, [], []
    for is_request, pause in steps:
        now += pause
        if is_request:
            hedger.on_request(now)
            requests.append(now)
        elif hedger.decide(now, **IDLE):
            hedges.append(now)
            recent = sum(now - at < 9 * SECOND for at in hedges)
            assert recent <= 2 + 0.05 * sum(now - at <= 10 * SECOND for at in requests)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quantile", 0.4),
        ("quantile", 1.0),
        ("samples_min", 0),
        ("delay_floor_s", 0.0),
        ("delay_floor_s", math.nan),
        ("share_max", 0.0),
        ("share_max", 0.6),
        ("burst", -1),
        ("utilisation_max", 0.0),
        ("utilisation_max", 1.1),
    ],
)
def test_a_bad_config_names_field_and_fix(field, value):
    with pytest.raises(ConfigError, match=rf"hedge\.{field}: is {value}; use "):
        HedgeConfig(**{field: value})
