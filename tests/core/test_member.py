from random import Random

from holdfast.core.health import HealthConfig, ReplicaHealth
from holdfast.core.member import Member
from holdfast.core.types import Replica, State


def test_a_new_member_has_nothing_against_it():
    replica = Replica("r1", "m")
    member = Member(replica, ReplicaHealth(HealthConfig(), "r1", "m", 0, Random(1)))
    assert member.replica is replica
    assert member.health.state is State.STARTING
    assert member.drain is None
    assert not member.leaving
    assert not member.canary_out
    assert (member.exits, member.inflight) == (0, 0)
