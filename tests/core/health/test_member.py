from random import Random

import pytest

from holdfast.core.canary import CanaryConfig
from holdfast.core.health.health import HealthConfig, ReplicaHealth, Signal
from holdfast.core.health.member import Member
from holdfast.core.messages import Tally
from holdfast.core.types import SECOND, Replica, State


@pytest.fixture
def member() -> Member:
    health = ReplicaHealth(HealthConfig(), "r1", "m", 0, Random(1))
    return Member(Replica("r1", "m"), health, CanaryConfig())


def told(inflight: int, tokens: int, *, moved: bool = False, failures: int = 0) -> Tally:
    return Tally("m", "r1", 0, failures, 0, inflight, tokens, moved=moved)


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
    member.users("g1", told(2, 3, moved=False), SECOND)
    member.slow = True
    member.full_readings = 2
    member.excused_at = member.canary_at = SECOND
    member.hear(SECOND)
    member.baseline.judge(SECOND, 0, None)
    member.budget.spent(25, SECOND, charged=True)
    member.begin_life()
    assert (member.inflight, member.full_readings, member.slow) == (0, 0, False)
    times = (member.moved_at, member.excused_at, member.canary_at, member.heard_by(SECOND))
    assert times == (0, 0, 0, 0)
    assert member.baseline.median() is None
    assert member.told_at == {}
    assert member.exits == 3
    assert member.budget.share(SECOND) == 25 / 28


def test_it_is_remembered_when_a_replica_was_heard_of_lately_and_not_for_ever(member):
    assert member.heard_by(SECOND) == 0
    for tenth in range(300):
        member.hear(tenth * SECOND // 10)
    assert member.heard_by(30 * SECOND) == 297 * SECOND // 10
    assert member.heard_by(27 * SECOND) == 27 * SECOND
    assert member.heard_by(28 * SECOND) == 279 * SECOND // 10
    assert member.heard_by(20 * SECOND) == 0
    assert len(member.heard) <= 32


PATIENCE = 5 * SECOND


def test_requests_stand_when_none_of_them_got_a_token_for_long(member):
    assert not member.stands(100 * SECOND, PATIENCE)
    member.users("g1", told(1, 0, moved=False), 100 * SECOND)  # it begins to wait here
    member.users("g1", told(1, 0, moved=False), 104 * SECOND)
    assert not member.stands(104 * SECOND, PATIENCE)
    assert member.stands(105 * SECOND, PATIENCE)
    member.users("g2", told(1, 1, moved=False), 106 * SECOND)  # somebody got one
    assert not member.stands(110 * SECOND, PATIENCE)
    assert member.stands(111 * SECOND, PATIENCE)
    assert member.told_at == {"g1": 104 * SECOND, "g2": 106 * SECOND}
    # A long answer is counted at its end; that it moves is told before.
    member.users("g1", told(1, 0, moved=True), 111 * SECOND)
    assert not member.stands(115 * SECOND, PATIENCE)
    for gateway in ("g1", "g2"):
        member.users(gateway, told(0, 0, moved=False), 112 * SECOND)
    assert not member.stands(200 * SECOND, PATIENCE)


def test_a_users_failure_calls_a_canary_at_most_once_a_second(member):
    for signal in (Signal.LOADED, Signal.CANARY_PASS):
        member.health.handle(signal, 0)
    member.health.next_canary_at = 500 * SECOND
    member.users("g1", told(1, 5), 100 * SECOND)
    assert not member.health.called
    member.users("g1", told(1, 5, failures=1), 101 * SECOND)
    assert member.health.called
    assert (member.health.next_canary_at, member.wake_at) == (101 * SECOND, 101 * SECOND)
    member.health.canary_started(101 * SECOND)
    member.users("g1", told(1, 5, failures=1), 101 * SECOND + 1)
    assert member.health.next_canary_at == 102 * SECOND


def test_what_speaks_against_a_replica_is_a_doubt(member):
    assert member.doubted(0, PATIENCE)  # it is not even ready
    for signal in (Signal.LOADED, Signal.CANARY_PASS):
        member.health.handle(signal, 0)
    assert not member.doubted(0, PATIENCE)
    member.slow = True
    assert member.doubted(0, PATIENCE)
    member.slow, member.canary_passed = False, False
    assert member.doubted(0, PATIENCE)
    member.canary_passed = True
    member.health.call_canary(0)
    assert member.doubted(0, PATIENCE)
    member.health.canary_started(0)
    assert not member.doubted(0, PATIENCE)
    member.users("g1", told(1, 0, moved=False), SECOND)
    assert member.doubted(6 * SECOND, PATIENCE)


def test_requests_that_fail_everywhere_are_users_failures_and_no_doubt_about_the_replica(member):
    called = member.health.called
    member.users("g1", Tally("m", "r1", 0, 0, 0, 0, 0, withdrawn=2), 9 * SECOND)
    assert member.failed_at == 9 * SECOND
    assert member.health.called is called
