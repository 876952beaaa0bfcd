"""The search for the knee, against servers on paper whose knee is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.types import ConfigError
from holdfast.loadtest.load_sequence import KneeSearch, SweepConfig, SweepRange
from holdfast.loadtest.records import BenchStep
from holdfast.loadtest.statistics import Estimate
from holdfast.loadtest.summary import ServiceObjective, StepSummary

SLO = ServiceObjective(ttft_s=0.5)


def result(load, capacity, *, unit="rate", refused_above=None):
    """A server that answers all in time up to its capacity; beyond, the more the fewer."""
    refused = "late" if refused_above is not None and load > refused_above else ""
    step = BenchStep(
        name=str(load),
        mode="open" if unit == "rate" else "closed",
        counted_to_s=100.0,
        refused=refused,
    )
    if load <= capacity:
        good, done = 1.0, load
    else:
        good, done = 0.8 * capacity / load, capacity
    return StepSummary(
        step,
        round(load * 100),
        0,
        {},
        {},
        requests_s=Estimate(done),
        goodput_s=Estimate(load * good if unit == "rate" else done),
        good_share=Estimate(good),
    )


def searched(span, capacity, objective=SLO, **how):
    search = KneeSearch(SweepRange.parse(span), objective)
    unit = "rate" if span.startswith("rate") else "users"
    while (load := search.next_load()) is not None:
        search.saw(load, result(load, capacity, unit=unit, **how))
    return search


def test_the_knee_is_found_within_a_fifth():
    search = searched("rate=1..1000", 37.0)
    assert 37.0 / 1.2 <= search.knee.load <= 37.0
    assert search.why_ended == "past the knee"
    assert [p.load for p in search.points][:6] == [1, 2, 4, 8, 16, 32]


def test_without_an_objective_throughput_tells_it():
    for span in ("rate=1..1000", "users=1..1000"):
        search = searched(span, 37.0, ServiceObjective())
        assert 37.0 / 2.5 <= search.knee.load <= 37.0 * 1.5


def test_a_server_that_is_never_reached_has_its_knee_above():
    search = searched("rate=1..50", 1e9)
    assert search.knee.load == 50
    assert search.why_ended == "the highest load was still good"


def test_a_server_that_cannot_carry_the_least_load_has_none():
    search = searched("rate=5..50", 1.0)
    assert search.knee is None
    assert len(search.points) == 1


def test_a_client_that_is_the_bottleneck_ends_the_search():
    search = searched("rate=1..1000", 500.0, refused_above=20.0)
    assert search.knee.load == 16
    assert search.points[-1].refused
    assert search.why_ended == "the client was the bottleneck"


def test_a_list_is_held_as_it_is_until_the_knee():
    search = searched("users=1,3,9,27,81", 10.0)
    assert [p.load for p in search.points] == [1, 3, 9, 27]


@given(
    low=st.floats(0.01, 100),
    factor=st.floats(1.01, 1e4),
    capacity=st.floats(0.001, 1e7),
    refused=st.one_of(st.none(), st.floats(0.01, 1e6)),
)
def test_every_search_ends_inside_its_range_and_its_knee_was_good(low, factor, capacity, refused):
    high = min(low * factor, 999_999.0)
    search = KneeSearch(SweepRange("rate", low, high), SLO)
    while (load := search.next_load()) is not None:
        assert low * 0.99 <= load <= high * 1.01
        search.saw(load, result(load, capacity, refused_above=refused))
    assert 1 <= len(search.points) <= SweepConfig().steps_max
    loads = [p.load for p in search.points]
    assert len(set(loads)) == len(loads)
    if search.knee is not None:
        assert search.knee.load <= capacity


@pytest.mark.parametrize(
    "text", ["", "rate", "speed=1..2", "rate=2..1", "rate=0..5", "rate=a..b", "users=1.5..3",
             "users=4,2", "rate=1..2..3", "rate=-1..4"]
)  # fmt: skip
def test_a_range_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match=r"write --sweep rate=1\.\.64"):
        SweepRange.parse(text)


@pytest.mark.parametrize(
    "field", [{"good_share_min": 0}, {"growth": 1.0}, {"steps_max": 0}, {"refinements": -1}]
)
def test_settings_without_a_meaning_are_refused(field):
    with pytest.raises(ConfigError):
        SweepConfig(**field)
