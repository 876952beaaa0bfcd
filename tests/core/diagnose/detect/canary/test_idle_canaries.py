"""Canaries on idle engines: what is usual for a replica, and whether its host is slow."""

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.canary.idle import NEIGHBOUR, IdleCanaries
from holdfast.core.diagnose.facts import CanaryAnswered, Declared
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND

FRESH = 60 * SECOND


def made(**hosts):
    census = ReplicaRegistry()
    for name, host in hosts.items():
        census.take(Declared(name, f"model-of-{name}", "1", host))
    return IdleCanaries(census, FRESH)


def canary(replica, latency_s, running=0):
    return CanaryAnswered(replica, CanaryVerdict.PASS, latency_s=latency_s, running=running)


def add(idle, replica, *latencies_s, usual, running=0, now=0):
    for latency_s in latencies_s:
        idle.add(canary(replica, latency_s, running), now, usual=usual)


def test_what_is_usual_is_learned_from_answers_in_good_time_with_nothing_beside():
    idle = made(a="host")
    assert idle.usual_s("a") is None
    add(idle, "a", 0.4, 0.5, usual=True)
    add(idle, "a", 4.0, usual=False)
    add(idle, "a", 4.0, usual=True, running=1)
    assert idle.usual_s("a") is None  # two are too few to compare with
    assert idle.usual_s("a", 1) in (0.4, 0.45, 0.5)
    add(idle, "a", 0.5, usual=True)
    assert idle.usual_s("a") == 0.5


@pytest.mark.parametrize(
    ("times", "slowness"), [(1.0, 1.0), (1.15, 1.0), (1.5, 1.5), (9.0, 2**NEIGHBOUR)]
)
def test_a_host_is_as_slow_as_the_others_there_up_to_a_neighbours_part(times, slowness):
    idle = made(a="host", b="host", far="other", unknown="")
    add(idle, "b", *[0.4] * 20, usual=True)
    add(idle, "b", *[0.4 * times] * 5, usual=False, now=SECOND)
    assert idle.host_slowness("a", SECOND) == pytest.approx(slowness)
    assert idle.host_slowness("b", SECOND) == 1.0  # nobody else is known there
    assert idle.host_slowness("far", SECOND) == 1.0
    assert idle.host_slowness("unknown", SECOND) == 1.0


def test_a_host_is_as_usual_where_the_others_were_slow_long_ago_or_are_forgotten():
    idle = made(a="host", b="host")
    add(idle, "b", *[0.4] * 20, usual=True)
    add(idle, "b", *[0.8] * 5, usual=False, now=SECOND)
    assert idle.host_slowness("a", SECOND) == pytest.approx(2.0)
    assert idle.host_slowness("a", FRESH + 2 * SECOND) == 1.0
    idle.forget("b")
    assert idle.host_slowness("a", SECOND) == 1.0
    assert idle.usual_s("b", 1) is None
