from dataclasses import replace

import pytest

from holdfast.core.types import ConfigError
from holdfast.twin.fit import FitConfig, estimates, fit_engine
from holdfast.twin.measurement import relative_errors, summary
from holdfast.twin.replay import replay
from twin_data import LAW, drawn, measured

QUICK = FitConfig(calls_max=60)
CHECKED = (("latency_s", "mean"), ("latency_s", "p95"), ("first_token_s", "p50"))


def test_a_known_law_is_found_at_one_rate_and_predicts_two_others():
    found = fit_engine(measured(LAW, 9.0, 300), batch_max=8, config=FitConfig(calls_max=120))
    for rate in (6.0, 12.0):
        asked = drawn(rate, 400, seed=2)
        real = summary(replay(asked, LAW))
        told = relative_errors(summary(replay(asked, found.law)), real)
        for metric, figure in CHECKED:
            assert told[metric][figure] == pytest.approx(0.0, abs=0.03), (rate, metric, figure)


def test_the_error_is_that_of_requests_that_the_fit_had_not_seen():
    found = fit_engine(measured(LAW, 12.0, 200), batch_max=8, config=QUICK)
    assert (found.fitted, found.predicted) == (120, 80)
    assert found.errors["latency_s"]["mean"] == pytest.approx(0.0, abs=0.05)
    # The engine gets slower in the middle: the fit must not call itself right.
    half = measured(LAW, 8.0, 200)
    slow = measured(replace(LAW, step_ms=24.0), 8.0, 200)
    turned = fit_engine(half[:100] + slow[100:], batch_max=8, config=FitConfig(0.5, 60))
    assert turned.errors["latency_s"]["mean"] < -0.2


def test_neighbours_are_found_where_they_explain_something_and_not_elsewhere():
    hosts = {f"llama-{number}": "host" for number in (1, 2, 3)}
    shared = replace(LAW, neighbour_share=0.5)
    found = estimates(measured(shared, 6.0, 300, hosts=hosts), replace(LAW), hosts)
    assert [one.host_room for one in found] == [1, 2]
    assert found[0].neighbour_share == pytest.approx(0.5, abs=0.25)
    [alone] = estimates(measured(LAW, 6.0, 300), replace(LAW), hosts)
    assert alone.neighbour_share <= 0.1


def test_how_many_a_host_carries_is_told_by_the_replay():
    hosts = {f"llama-{number}": "host" for number in (1, 2, 3)}
    law = replace(LAW, neighbour_share=0.8, host_room=2)
    found = fit_engine(measured(law, 4.0, 300, hosts=hosts), batch_max=8, hosts=hosts, config=QUICK)
    assert found.law.host_room == 2
    assert found.law.neighbour_share == pytest.approx(0.8, abs=0.4)


def test_limits_say_what_was_not_seen():
    calm = fit_engine(measured(LAW, 2.0, 60), config=QUICK)
    assert any("limit is unknown, 128 is assumed" in limit for limit in calm.limits)
    assert any("KV capacity was not reached" in limit for limit in calm.limits)
    full = fit_engine(measured(LAW, 30.0, 200), config=QUICK)
    assert full.law.batch_max == 8
    assert any("taken to be 8" in limit for limit in full.limits)


def test_too_few_requests_are_refused_and_warm_up_does_not_count():
    with pytest.raises(ConfigError, match="has 49 answered requests that count; measure 50"):
        fit_engine(measured(LAW, 5.0, 49))
    warm = [replace(one, counted=False) for one in measured(LAW, 5.0, 100)]
    with pytest.raises(ConfigError, match="has 0 answered requests"):
        fit_engine(warm)


def test_progress_is_told_up_to_its_end():
    seen = []
    fit_engine(
        measured(LAW, 5.0, 60),
        config=QUICK,
        progress=lambda done, whole: seen.append((done, whole)),
    )
    assert seen == sorted(seen)
    assert seen[-1][0] <= seen[-1][1] == 120


@pytest.mark.parametrize(
    ("field", "value"),
    [("held_out", 0.0), ("held_out", 1.0), ("calls_max", 1), ("requests_max", 9)],
)
def test_a_bad_setting_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"fit.{field}"):
        FitConfig(**{field: value})
