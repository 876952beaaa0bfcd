"""Requests that kill: stopped after two replicas, and nobody else with them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.diagnose.detect.poison import PoisonConfig, PoisonDetector
from holdfast.core.diagnose.evidence import About, Sign
from holdfast.core.diagnose.facts import (
    Declared,
    HostConditionSeen,
    ProcessEnded,
    RequestDied,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, ConfigError, HostCondition
from sampling import examples


def made(*hosts):
    census = ReplicaRegistry()
    for number, host in enumerate(hosts, start=1):
        census.take(Declared(f"r{number}", "m", "1", host=host))
    return PoisonDetector(PoisonConfig(), census)


def told(detector, *deaths):
    """What it says of deaths: (when it is told, replica, fingerprint[, how long ago])."""
    return [
        one
        for at, replica, fingerprint, *ago in deaths
        for one in detector.take(RequestDied(replica, fingerprint, *ago), round(at * SECOND))
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


def test_one_request_that_kills_replicas_of_two_hosts_one_after_the_other_is_found():
    detector = made("h1", "h1", "h2", "h2")
    [found] = told(detector, (1.0, "r1", "f", 0.4), (2.0, "r3", "f", 0.9))
    assert found.sign is Sign.SAME_REQUEST_KILLS
    assert set(detector.blocked) == {"f"}


def test_on_one_host_it_is_found_where_the_deaths_are_apart_or_all_replicas_are_there():
    detector = made("h1", "h1", "h2")
    assert len(told(detector, (1.0, "r1", "f"), (3.5, "r2", "f"))) == 1
    alone = made("h1", "h1")
    assert len(told(alone, (1.0, "r1", "f", 0.9), (2.0, "r2", "f", 1.7))) == 1, "0.2 s apart"


def test_a_host_that_was_lost_before_excuses_no_later_death():
    detector = made("h1", "h2")
    detector.take(ProcessEnded("r1", host_lost=True), SECOND)
    detector.take(HostConditionSeen("h1", HostCondition.UNREACHABLE), SECOND)
    detector.take(HostConditionSeen("h1", HostCondition.READY), 20 * SECOND)
    assert len(told(detector, (40, "r1", "f"), (45, "r2", "f"))) == 1


def test_an_end_of_its_own_excuses_nothing():
    detector = made("h1", "h2")
    detector.take(ProcessEnded("r1", signal=11), SECOND)
    assert len(told(detector, (1.5, "r1", "f"), (2.5, "r2", "f"))) == 1


# --- must not fire --------------------------------------------------------------------------------


def test_two_replicas_of_one_host_that_die_within_moments_are_one_death():
    detector = made("h1", "h1", "h2", "h2")
    # Alike requests, told over half a minute: some waited in vain for another replica.
    deaths = [(1.0, "r1", "f", 0.9), (1.0, "r2", "f", 0.3), (2.0, "r2", "f", 1.1)]
    assert told(detector, *deaths, (31.0, "r1", "f", 30.9), (32.0, "r2", "f", 31.5)) == []
    assert detector.blocked == {}


def test_what_died_with_a_host_that_is_known_to_be_lost_is_not_held_against_requests():
    detector = made("h1", "h2", "h3")
    detector.take(ProcessEnded("r1", host_lost=True), 10 * SECOND)
    detector.take(HostConditionSeen("h2", HostCondition.UNREACHABLE), 10 * SECOND)
    assert told(detector, (11, "r1", "f", 1.5), (12, "r2", "f", 2.5), (13, "r3", "f", 0.1)) == []
    assert detector.blocked == {}, "one death is left, that of r3"


def test_a_block_is_lifted_where_its_deaths_turn_out_to_be_a_host_s():
    detector = made("h1", "h2", "h3")
    assert len(told(detector, (1, "r1", "f"), (2, "r2", "f"), (2, "r3", "g"))) == 1
    assert len(told(detector, (3, "r1", "g"))) == 1
    assert set(detector.blocked) == {"f", "g"}
    detector.take(HostConditionSeen("h2", HostCondition.UNREACHABLE), 4 * SECOND)
    assert set(detector.blocked) == {"g"}
    detector.take(HostConditionSeen("h2", HostCondition.UNREACHABLE), 90 * SECOND)
    assert told(detector, (91, "r2", "f")) != [], "said again: it was not lost again"


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
    assert told(made("h1", "h1", "h2"), (0, "r1", "f"), (0.2, "r2", "f")) == []
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


LOSSES = st.sampled_from(["host", "replica"])
STEPS = st.tuples(
    st.sampled_from(["r1", "r2", "r3", "r4"]),
    st.sampled_from("fgh") | LOSSES,
    st.integers(-900, 900),
)


@settings(max_examples=examples(60))
@given(st.lists(STEPS, max_size=40))
def test_any_order_of_deaths_blocks_only_what_was_on_two(steps):
    detector, now, on = made("h1", "h1", "h2", "h3"), 10_000, {}
    for replica, what, step in steps:
        now += step
        if what == "host":
            host = detector._census.about(replica).host
            detector.take(HostConditionSeen(host, HostCondition.UNREACHABLE), now * SECOND)
        elif what == "replica":
            detector.take(ProcessEnded(replica, host_lost=True), now * SECOND)
        else:
            told(detector, (now, replica, what))
            on.setdefault(what, set()).add(replica)
        detector.forget(replica)
    assert all(len(on[fingerprint]) >= 2 for fingerprint in detector.blocked)
    assert not detector._paces


HOST_DEATHS = st.lists(
    st.tuples(
        st.sampled_from(["r1", "r2", "r3"]),
        st.sampled_from("fg"),
        st.floats(0, 1.9),  # when it died, after its host began to go down
        st.floats(0, 40),  # how long its request waited in vain before control was told
    ),
    max_size=30,
)


@settings(max_examples=examples(60))
@given(HOST_DEATHS, st.floats(0, 60))
def test_a_lost_host_blocks_nobody_in_whatever_order_it_is_told(deaths, known_s):
    detector = made("h1", "h1", "h1", "h2")
    facts = [(100 + died + waited, name, what, waited) for name, what, died, waited in deaths]
    loss = (100 + known_s, "h1")
    for at, *fact in sorted([*facts, loss], key=lambda one: one[0]):
        if fact == ["h1"]:
            condition = HostConditionSeen("h1", HostCondition.UNREACHABLE)
            detector.take(condition, round(at * SECOND))
        else:
            assert told(detector, (at, *fact)) == []
    assert detector.blocked == {}


@pytest.mark.parametrize("values", [{"deaths": 1}, {"deaths": 9}, {"within_s": 0}, {"block_s": -1}])
def test_a_config_that_cannot_work_is_refused(values):
    with pytest.raises(ConfigError, match=f"poison.{next(iter(values))}"):
        PoisonConfig(**values)
