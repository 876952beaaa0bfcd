"""Canaries beside a measurement: drawn where requests ran, and not taken for a slower engine."""

from dataclasses import replace
from math import inf
from statistics import fmean

import pytest

from holdfast.core.types import ConfigError
from holdfast.twin.canary_load import CanaryLoad
from holdfast.twin.fit import FitConfig, fit_engine
from holdfast.twin.measurement import MeasuredRequest
from holdfast.twin.replay import replay
from twin_data import LAW, drawn

LOAD = CanaryLoad(5.0, 16, 8)


def request(at, replica="a"):
    return MeasuredRequest(at, 10, 10, at, at + 1.0, replica)


def test_each_replica_is_asked_at_its_pace_while_requests_came():
    seen = [request(float(at), "ab"[at % 2]) for at in range(101)]
    beside = LOAD.beside(seen)
    assert {one.replica for one in beside} == {"a", "b"}
    assert len(beside) == pytest.approx(40, abs=6)
    assert all(0.0 <= one.arrived_s <= 100.0 and not one.counted for one in beside)
    assert {(one.prompt, one.output) for one in beside} == {(16, 8)}
    assert LOAD.beside(seen) == beside  # the same for every replay of a search


def test_a_long_pause_has_none():
    seen = [request(at) for at in (0.0, 50.0, 1_000.0, 1_050.0)]
    assert all(at <= 50.0 or at >= 1_000.0 for at in (one.arrived_s for one in LOAD.beside(seen)))
    assert LOAD.beside([]) == []


def test_canaries_that_are_known_are_counted_once():
    load = CanaryLoad(1.0, 400, 40)
    asked = drawn(6.0, 400)
    whole = sorted([*asked, *load.beside(asked)], key=lambda one: one.arrived_s)

    def seen_by_clients(law):
        pairs = zip(whole, replay(whole, law), strict=True)
        return [(one, told) for one, told in pairs if one.counted and told is not None]

    def mean_s(law):
        return fmean(told.latency_s for _, told in seen_by_clients(law))

    measured = [
        replace(
            one, first_s=one.arrived_s + told.first_token_s, last_s=one.arrived_s + told.latency_s
        )
        for one, told in seen_by_clients(LAW)
    ]
    quick = FitConfig(calls_max=120)
    knowing = fit_engine(measured, batch_max=8, canaries=load, config=quick)
    assert knowing.fitted == 240  # canaries are not counted
    assert mean_s(knowing.law) == pytest.approx(mean_s(LAW), rel=0.05)
    blind = fit_engine(measured, batch_max=8, config=quick)
    assert mean_s(blind.law) > 1.1 * mean_s(LAW)  # their load, and an engine that is slow by it


@pytest.mark.parametrize("every", [0.0, -1.0])
def test_a_pace_that_is_none_is_refused(every):
    with pytest.raises(ConfigError, match=r"canaries\.every_s"):
        CanaryLoad(every, 16, 8)
    assert CanaryLoad(inf, 16, 8).beside([request(0.0)]) == []
