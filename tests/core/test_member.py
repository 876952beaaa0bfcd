from random import Random

import pytest

from holdfast.core.canary import CanaryConfig
from holdfast.core.health import HealthConfig, ReplicaHealth, Signal
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
    member.users("g1", inflight=2, tokens=3, now=SECOND, moved=False)
    member.slow = True
    member.full_readings = 2
    member.excused_at = member.canary_at = SECOND
    member.hear(SECOND)
    member.baseline.judge(SECOND, 0, None)
    member.budget.spent(25, SECOND)
    member.begin_life()
    assert (member.inflight, member.full_readings, member.slow) == (0, 0, False)
    times = (member.moved_at, member.excused_at, member.canary_at, member.heard_by(SECOND))
    assert times == (0, 0, 0, 0)
    assert member.baseline.median() is None
    assert member.told_at == {}
    assert member.exits == 3
    assert member.budget.share(SECOND) == 25 / 28


def test_it_is_remembered_when_a_replica_was_heard_of_a_second_apart_and_not_for_ever(member):
    assert member.heard_by(SECOND) == 0
    for tenth in range(300):
        member.hear(tenth * SECOND // 10)
    assert member.heard_by(30 * SECOND) == 29 * SECOND
    assert member.heard_by(27 * SECOND) == 27 * SECOND
    assert member.heard_by(28 * SECOND - 1) == 27 * SECOND
    assert member.heard_by(SECOND) == 0
    assert len(member.heard) <= 8


PATIENCE = 5 * SECOND


def test_requests_stand_when_none_of_them_got_a_token_for_long(member):
    assert not member.stands(100 * SECOND, PATIENCE)
    member.users(
        "g1", inflight=1, tokens=0, now=100 * SECOND, moved=False
    )  # it begins to wait here
    member.users("g1", inflight=1, tokens=0, now=104 * SECOND, moved=False)
    assert not member.stands(104 * SECOND, PATIENCE)
    assert member.stands(105 * SECOND, PATIENCE)
    member.users("g2", inflight=1, tokens=1, now=106 * SECOND, moved=False)  # somebody got one
    assert not member.stands(110 * SECOND, PATIENCE)
    assert member.stands(111 * SECOND, PATIENCE)
    assert member.told_at == {"g1": 104 * SECOND, "g2": 106 * SECOND}
    # A long answer is counted at its end; that it moves is told before.
    member.users("g1", inflight=1, tokens=0, now=111 * SECOND, moved=True)
    assert not member.stands(115 * SECOND, PATIENCE)
    for gateway in ("g1", "g2"):
        member.users(gateway, inflight=0, tokens=0, now=112 * SECOND, moved=False)
    assert not member.stands(200 * SECOND, PATIENCE)


def test_whatever_is_in_doubt_is_owed_a_canary(member):
    assert member.owes(0, PATIENCE)  # it is not even ready
    for signal in (Signal.LOADED, Signal.CANARY_PASS):
        member.health.handle(signal, 0)
    assert not member.owes(0, PATIENCE)
    member.slow = True
    assert member.owes(0, PATIENCE)
    member.slow, member.canary_passed = False, False
    assert member.owes(0, PATIENCE)
    member.canary_passed = True
    member.health.call_canary(0)
    assert member.owes(0, PATIENCE)
    member.health.canary_started(0)
    assert not member.owes(0, PATIENCE)
    member.users("g1", inflight=1, tokens=0, now=SECOND, moved=False)
    assert member.owes(6 * SECOND, PATIENCE)
