"""Requests that kill: stopped after two replicas, and nobody else with them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.poison import PoisonConfig, PoisonDetector
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import Declared, RequestDied
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError
from sampling import examples


def made(*hosts):
    census = ReplicaRegistry()
    for number, host in enumerate(hosts, start=1):
        census.take(Declared(f"r{number}", "m", "1", host=host))
    return PoisonDetector(PoisonConfig(), census)


def told(detector, *deaths):
    return [
        one
        for at, replica, fingerprint in deaths
        for one in detector.take(RequestDied(replica, fingerprint), round(at * SECOND))
    ]


# --- must fire ------------------------------------------------------------------------------------


def test_the_second_death_with_the_same_request_names_it_and_blocks_it():
    detector = made("h1", "h2")
    [found] = told(detector, (0, "r1", "f"), (5, "r2", "f"))
    assert (found.sign, found.source) == (Sign.SAME_REQUEST_KILLS, "gateway")
    assert found.about == About("r2", "m", "1", "h2")
    assert found.numbers == {"replicas": 2.0}
    assert found.text == (
        "one request was on the deaths of 2 replicas (r1, r2) within 10 min; "
        "it is refused for 60 min"
    )
    assert detector.blocked == {"f": 3_605 * SECOND}


def test_it_fires_for_replicas_that_nobody_declared():
    assert len(told(made(), (0, "a", "f"), (599, "b", "f"))) == 1


def test_a_replica_that_was_replaced_still_counts_as_dead():
    detector = made("h1", "h2")
    told(detector, (0, "r1", "f"))
    detector.forget("r1")
    assert len(told(detector, (5, "r2", "f"))) == 1


def test_a_third_death_is_told_and_blocks_for_longer():
    detector = made("h1", "h2", "h3")
    found = told(detector, (0, "r1", "f"), (5, "r2", "f"), (9, "r3", "f"))
    assert [one.numbers["replicas"] for one in found] == [2, 3]
    assert detector.blocked == {"f": 3_609 * SECOND}


def test_several_requests_on_the_same_deaths_are_told_once_and_all_blocked():
    detector = made("h1", "h2")
    deaths = [(0, "r1", f) for f in "abc"] + [(1, "r2", f) for f in "abc"]
    assert len(told(detector, *deaths)) == 1
    assert set(detector.blocked) == set("abc")


# --- must not fire --------------------------------------------------------------------------------


def test_one_replica_that_dies_with_it_again_and_again_proves_nothing_about_the_request():
    detector = made("h1")
    assert told(detector, *[(at, "r1", "f") for at in range(9)]) == []
    assert detector.blocked == {}


def test_different_requests_on_different_deaths_are_no_killers():
    assert told(made(), (0, "r1", "f"), (1, "r2", "g"), (2, "r3", "h")) == []


def test_deaths_that_lie_far_apart_do_not_belong_together():
    assert told(made(), (0, "r1", "f"), (601, "r2", "f"), (1_300, "r3", "f")) == []


def test_a_host_that_took_both_down_is_no_request():
    assert told(made("h1", "h1"), (0, "r1", "f"), (0.04, "r2", "f")) == []
    assert len(told(made("h1", "h1"), (0, "r1", "f"), (0.2, "r2", "f"))) == 1
    assert len(told(made("h1", "h2"), (0, "r1", "f"), (0.04, "r2", "f"))) == 1


def test_a_request_without_a_fingerprint_is_never_blocked():
    detector = made()
    assert told(detector, (0, "r1", ""), (1, "r2", "")) == []
    assert detector.blocked == {}


def test_a_block_ends_after_an_hour():
    detector = made()
    told(detector, (0, "r1", "f"), (5, "r2", "f"), (3_604, "r9", "x"))
    assert "f" in detector.blocked
    told(detector, (3_605, "r9", "y"))
    assert detector.blocked == {}


# --- any order ------------------------------------------------------------------------------------


def test_its_memory_is_bounded():
    detector = made()
    for number in range(5_000):
        told(detector, (number // 100, "r1", f"f{number}"))
    assert len(detector._deaths) == 4_096
    for number in range(4_999, 4_300, -1):
        told(detector, (60, "r2", f"f{number}"))
    assert len(detector.blocked) == 512
    for number in range(50):
        told(detector, (70, f"x{number}", "f4999"))
    assert len(detector._deaths["f4999"]) == 8


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["r1", "r2", "r3"]), st.sampled_from("fgh"), st.integers(-900, 900)
        ),
        max_size=40,
    )
)
def test_any_order_of_deaths_blocks_only_what_was_on_two(steps):
    detector, now, on = made("h1", "h2", "h3"), 10_000, {}
    for replica, fingerprint, step in steps:
        now += step
        told(detector, (now, replica, fingerprint))
        on.setdefault(fingerprint, set()).add(replica)
        detector.forget(replica)
    assert all(len(on[fingerprint]) >= 2 for fingerprint in detector.blocked)
    assert not detector._paces


@pytest.mark.parametrize("values", [{"deaths": 1}, {"deaths": 9}, {"within_s": 0}, {"block_s": -1}])
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=f"poison.{next(iter(values))}"):
        PoisonConfig(**values)
