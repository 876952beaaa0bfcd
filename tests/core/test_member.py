from random import Random

import pytest

from holdfast.core.canary import CanaryConfig
from holdfast.core.health import HealthConfig, ReplicaHealth
from holdfast.core.member import Member
from holdfast.core.types import SECOND, Replica, State


@pytest.fixture
def member() -> Member:
    health = ReplicaHealth(HealthConfig(), "r1", "m", 0, Random(1))
    return Member(Replica("r1", "m"), health, CanaryConfig())


def test_a_new_member_has_nothing_against_it(member):
    assert member.replica == Replica("r1", "m")
    assert member.health.state is State.STARTING
    assert member.drain is None
    assert not member.leaving
    assert not member.canary_out
    assert not member.slow
    assert (member.exits, member.inflight, member.full_readings) == (0, 0, 0)
    assert member.baseline.median() is None


def test_requests_in_flight_are_those_of_all_gateways(member):
    member.inflight_at = {"g1": 2, "g2": 3}
    assert member.inflight == 5


def test_a_new_process_has_no_past_but_what_its_replica_cost_and_how_often_it_ended(member):
    member.exits = 3
    member.inflight_at = {"g1": 2}
    member.slow = True
    member.full_readings = 2
    member.served_at = member.excused_at = member.canary_at = SECOND
    member.hear(SECOND)
    member.baseline.judge(SECOND, 0, None)
    member.budget.spent(25, SECOND)
    member.begin_life()
    assert (member.inflight, member.full_readings, member.slow) == (0, 0, False)
    times = (member.served_at, member.excused_at, member.canary_at, member.heard_by(SECOND))
    assert times == (0, 0, 0, 0)
    assert member.baseline.median() is None
    assert member.exits == 3
    assert member.budget.share(SECOND) == 1.0


def test_it_is_remembered_when_a_replica_was_heard_of_a_second_apart_and_not_for_ever(member):
    assert member.heard_by(SECOND) == 0
    for tenth in range(300):
        member.hear(tenth * SECOND // 10)
    assert member.heard_by(30 * SECOND) == 29 * SECOND
    assert member.heard_by(27 * SECOND) == 27 * SECOND
    assert member.heard_by(28 * SECOND - 1) == 27 * SECOND
    assert member.heard_by(SECOND) == 0
    assert len(member.heard) <= 8
