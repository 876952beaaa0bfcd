from dataclasses import replace

import pytest

from holdfast.core.types import ConfigError
from holdfast.twin.calibration import calibrate, traffic_of
from holdfast.twin.fit import FitConfig
from holdfast.twin.measurement import MeasuredRequest, load_seen, relative_errors, summary
from holdfast.twin.twin_file import TwinSource
from twin_data import LAW, measured


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"prompt": -3}, "request.prompt: is -3 tokens"),
        ({"output": 0}, "request.output: is 0 tokens"),
        ({"first_s": 0.5}, "times out of order"),
        ({"last_s": 1.1}, "times out of order"),
    ],
)
def test_a_request_that_cannot_be_is_refused(bad, told):
    good = {"arrived_s": 1.0, "prompt": 5, "output": 5, "first_s": 1.2, "last_s": 2.0}
    with pytest.raises(ConfigError, match=told):
        MeasuredRequest(**{**good, **bad}, replica="a")


def test_who_waits_for_a_full_batch_is_seen_and_who_only_waits_for_a_step_is_not():
    full = load_seen(measured(LAW, 30.0, 200))
    assert (full.batch_most, full.waited_at_most) == (8, True)
    calm = load_seen(measured(LAW, 5.0, 200))
    assert calm.batch_most < 8
    assert not calm.waited_at_most


def test_errors_of_unknown_figures_are_unknown():
    one = summary([])
    assert relative_errors(one, one)["latency_s"]["p95"] is None


def test_traffic_is_that_of_the_measurement_without_the_pauses_between_files():
    first = measured(LAW, 5.0, 200)
    later = [
        replace(
            one, arrived_s=one.arrived_s + 9e3, first_s=one.first_s + 9e3, last_s=one.last_s + 9e3
        )
        for one in first
    ]
    traffic = traffic_of(first + later)
    assert traffic.rate == pytest.approx(5.0, rel=0.15)
    assert traffic.prompt.mean == pytest.approx(210, rel=0.1)
    assert traffic.output.maximum <= 80


def test_a_calibration_tells_what_it_was_made_of_and_what_it_left_out():
    source = TwinSource(file="bench.json", left_out=30)
    model = calibrate(measured(LAW, 5.0, 80), source, config=FitConfig(calls_max=40))
    assert (model.source.requests, model.source.replicas, model.per_host) == (80, 3, 1)
    assert any("30 of 110 requests failed" in limit for limit in model.limits)
    assert any("cold starts were not measured" in limit for limit in model.limits)
    with pytest.raises(ConfigError, match=r"bench.json: has no answered request \(30 failed"):
        calibrate([], source)
