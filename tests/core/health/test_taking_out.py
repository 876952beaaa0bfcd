"""What incidents ask of a fleet: to take a replica out, to give it back, to ask canaries now."""

from random import Random

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.causes.table import CAUSES
from holdfast.core.diagnose.dependency_graph import DependencyGraph
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.facts import Declared
from holdfast.core.diagnose.incident_case import IncidentCase
from holdfast.core.diagnose.remedy_execution import RemedyExecution
from holdfast.core.diagnose.remedy_policy import RemedyConfig, RemedyPolicy
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause
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
    """A fleet whose replicas pass every canary, unless told otherwise."""

    def __init__(self, *names):
        self.fleet = Fleet(FleetConfig(), Random)
        self.now = 100 * SECOND
        self.actions = []
        self.verdicts = {}  # of others than PASS, by replica
        self.silent = set()  # their canaries time out
        for name in names:
            self.tell(Joined(Replica(name, "m"), running=True))
        self.wait(40)

    def tell(self, event):
        found = self.fleet.handle(event, self.now)
        self.actions += found
        for action in found:
            if isinstance(action, RunCanary):
                verdict = self.verdicts.get(action.replica_id, CanaryVerdict.PASS)
                if action.replica_id in self.silent:
                    verdict = CanaryVerdict.TIMEOUT
                result = CanaryResult(action.replica_id, verdict, incarnation=action.incarnation)
                found = [*found, *self.tell(result)]
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


def test_one_that_was_said_to_answer_nothing_is_back_with_its_right_answers(stage):
    told = stage.tell(TakeOutAsked("a", "inc-000001: hung", until_right=True))
    assert stage.notices(told) == [("a", "quarantined", "taken_out")]
    assert "inc-000001" in stage.fleet.members["a"].health.reason
    began = stage.now
    while stage.state("a") is State.QUARANTINED:
        stage.wait(1)
    assert 2 * SECOND < stage.now - began <= 10 * SECOND
    assert stage.state("a") is State.READY
    assert not [one for one in stage.actions if isinstance(one, Launch)]


class Hands:
    """Asks a fleet for what incidents want of it."""

    def __init__(self, stage):
        self.stage = stage

    def take_out(self, replica, reason, **how):
        self.stage.tell(TakeOutAsked(replica, reason, **how))
        return True, "done"


@pytest.mark.parametrize("managed", [True, False])
def test_one_that_hung_is_back_ten_seconds_after_its_thaw_whoever_may_restart_it(stage, managed):
    census = ReplicaRegistry()
    for name in ("a", "b", "c", "d"):
        census.take(Declared(name, "m", "1", managed=managed))
    rule, about = CAUSES[Cause.HUNG], census.about("a")
    incident = Incident("inc-000001", Cause.HUNG, rule.failure_class, about, stage.now, 0.8)
    case = IncidentCase(incident, roots={("replica", "a"): about}, acts=True)
    case.write(CAUSES, stage.now)
    policy = RemedyPolicy(RemedyConfig(), census, DependencyGraph(CAUSES, census))
    (act,) = policy.decide(case, stage.now)
    stage.silent.add("a")
    RemedyExecution(Hands(stage), lambda *_: "called").carry_out(act, incident)
    stage.wait(5)
    stage.silent.clear()  # thawed
    stage.wait(10)
    assert stage.state("a") is State.READY
    assert not [one for one in stage.actions if isinstance(one, Launch)]


def test_one_that_answers_nothing_stays_out_until_it_does(stage):
    stage.silent.add("a")
    stage.tell(TakeOutAsked("a", "inc-000001: hung", until_right=True))
    stage.wait(40)
    assert stage.state("a") is State.QUARANTINED
    stage.silent.clear()  # thawed
    stage.wait(10)
    assert stage.state("a") is State.READY


def test_right_answers_refute_no_other_incident_and_no_wrong_answers(stage):
    stage.tell(TakeOutAsked("a", "inc-000001: server errors"))
    stage.tell(TakeOutAsked("a", "inc-000002: hung", until_right=True))
    stage.wait(20)
    assert stage.state("a") is State.QUARANTINED
    stage.verdicts["b"] = CanaryVerdict.WRONG
    stage.wait(15)
    assert stage.fleet.members["b"].health.wrong
    stage.tell(TakeOutAsked("b", "inc-000003: hung", until_right=True))
    stage.verdicts.clear()
    stage.wait(12)
    assert stage.state("b") is State.QUARANTINED  # three right ones are not enough
    stage.wait(15)
    assert stage.state("b") is State.READY


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
