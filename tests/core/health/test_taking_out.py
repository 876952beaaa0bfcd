"""What incidents ask of a fleet: to take a replica out, to give it back, to ask canaries now."""

from random import Random

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.messages import (
    CanaryAsked,
    CanaryResult,
    Exited,
    Joined,
    Launch,
    Notice,
    RunCanary,
    TakeOutAsked,
    Tick,
)
from holdfast.core.types import MILLISECOND, SECOND, Replica, State


class Stage:
    """A fleet whose replicas pass every canary."""

    def __init__(self, *names):
        self.fleet = Fleet(FleetConfig(), Random)
        self.now = 100 * SECOND
        self.actions = []
        for name in names:
            self.tell(Joined(Replica(name, "m"), running=True))
        self.wait(40)

    def tell(self, event):
        found = self.fleet.handle(event, self.now)
        self.actions += found
        for action in found:
            if isinstance(action, RunCanary):
                passed = CanaryResult(
                    action.replica_id, CanaryVerdict.PASS, incarnation=action.incarnation
                )
                found = [*found, *self.tell(passed)]
        return found

    def wait(self, seconds):
        for _ in range(5 * seconds):
            self.now += 200 * MILLISECOND
            self.tell(Tick())

    def state(self, name):
        return self.fleet.members[name].health.state

    def notices(self, actions):
        return [(one.replica_id, one.what, one.signal) for one in actions if type(one) is Notice]


@pytest.fixture
def stage():
    return Stage("a", "b", "c", "d")


def test_no_canary_brings_one_back_that_an_incident_took_out(stage):
    told = stage.tell(TakeOutAsked("a", "inc-000001: wrong output"))
    assert stage.notices(told) == [("a", "quarantined", "taken_out")]
    assert "inc-000001" in stage.fleet.members["a"].health.reason
    stage.wait(50)
    assert stage.state("a") is State.QUARANTINED
    assert stage.fleet.members["a"].health.taken_out
    assert stage.fleet._publisher.shares.get("a", 0.0) == 0.0


def test_a_new_process_is_free_of_it(stage):
    stage.tell(TakeOutAsked("a", "x"))
    stage.wait(61)  # in quarantine for so long it is replaced
    assert [one for one in stage.actions if isinstance(one, Launch) and one.replica_id == "a"]
    assert not stage.fleet.members["a"].health.taken_out


def test_whoever_takes_it_back_lets_canaries_decide_again(stage):
    stage.tell(TakeOutAsked("a", "x"))
    stage.wait(20)
    stage.tell(TakeOutAsked("a", "closed", out=False))
    stage.wait(20)
    assert stage.state("a") is State.READY


def test_half_a_pool_at_most_is_taken_out_and_nobody_panics(stage):
    for name in ("a", "b"):
        stage.tell(TakeOutAsked(name, "x"))
    told = stage.tell(TakeOutAsked("c", "x"))
    assert [what for _, what, _ in stage.notices(told)] == ["not taken out"]
    assert stage.state("c") is State.READY
    assert not stage.fleet._publisher.panics


def test_one_that_is_in_quarantine_already_stays_there(stage):
    for name in ("a", "b"):
        stage.tell(TakeOutAsked(name, "x"))
    assert stage.notices(stage.tell(TakeOutAsked("a", "again"))) == []
    assert stage.fleet.members["a"].health.taken_out


def test_what_is_gone_or_does_not_run_is_left_alone(stage):
    assert stage.tell(TakeOutAsked("nobody", "x")) == []
    assert stage.tell(TakeOutAsked("nobody", "x", out=False)) == []
    stage.tell(Exited("a"))
    stage.tell(TakeOutAsked("a", "x"))
    assert stage.state("a") is State.STARTING
    assert not stage.fleet.members["a"].health.taken_out


def test_canaries_that_are_asked_for_come_at_once(stage):
    stage.actions.clear()
    stage.tell(CanaryAsked(("a", "c", "nobody")))
    stage.now += MILLISECOND
    stage.tell(Tick())
    asked = {one.replica_id for one in stage.actions if isinstance(one, RunCanary)}
    assert {"a", "c"} <= asked


def test_a_notice_says_what_moved_a_state(stage):
    told = stage.notices(stage.tell(Exited("a")))
    assert told == [("a", "dead", "exited"), ("a", "starting", "relaunch")]
