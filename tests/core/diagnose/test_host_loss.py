"""A host is lost under load: one incident names it, whatever is seen first and told late."""

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.evidence import Stage
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    Declared,
    HostConditionSeen,
    Looked,
    ProcessEnded,
    RequestDied,
    StateChanged,
)
from holdfast.core.diagnose.investigation import Investigation, InvestigationConfig
from holdfast.core.failure import Cause, Class, Kind
from holdfast.core.types import HostCondition, State, nanos

HOSTS = {"r1": "n1", "r2": "n1", "r3": "n2", "r4": "n2"}


class Fleet:
    """Two replicas on each of two hosts, all well for a minute."""

    def __init__(self) -> None:
        self.investigation = Investigation(InvestigationConfig())
        self.now = 0.0
        for name, host in HOSTS.items():
            self.say(Declared(name, "m", "1", host=host, managed=True))
            self.say(StateChanged(name, State.READY, "passed_enough"))
        for _ in range(60):
            self.second(*HOSTS)

    def say(self, fact) -> None:
        self.investigation.take(fact, nanos(self.now))

    def second(self, *well: str) -> None:
        """One more second, in which these serve."""
        self.now += 1
        for name in well:
            self.say(AttemptsSeen(name, 1.0, successes=10, inflight=5, tokens=250, share=0.25))
            if self.now % 5 == 0:
                passed = CanaryVerdict.PASS
                self.say(CanaryAnswered(name, passed, latency_s=0.2, running=0, page_ok=True))
        self.say(Looked())

    def break_off(self, *names: str) -> None:
        """The connections to these broke, with alike requests on them that nobody answered."""
        for name in names:
            self.say(AttemptsSeen(name, 1.0, inflight=0, failures={Kind.RESET: 8}, share=0.25))
            self.say(StateChanged(name, State.SUSPECT, "passive_failing"))
            self.say(RequestDied(name, "alike", 0.3))

    def lose(self, host: str) -> None:
        """The platform says that a host is gone."""
        self.say(HostConditionSeen(host, HostCondition.UNREACHABLE, "nothing listens"))
        for name, where in HOSTS.items():
            if where == host:
                self.say(ProcessEnded(name, phase="serving", served=600, host_lost=True))
                self.say(StateChanged(name, State.DEAD, "exited"))

    def open(self) -> list[tuple[Cause, str, str]]:
        found = self.investigation.incidents.values()
        return sorted(
            (one.cause, one.about.host, one.about.model)
            for one in found
            if one.stage is not Stage.CLOSED
        )


@pytest.mark.parametrize("later_s", [0, 1, 5, 30])
def test_one_incident_names_the_host_also_where_it_is_known_later(later_s):
    fleet = Fleet()
    fleet.break_off("r1", "r2")
    for _ in range(later_s):
        fleet.second("r3", "r4")
    fleet.lose("n1")
    for _ in range(10):
        fleet.second("r3", "r4")
    assert fleet.open() == [(Cause.HOST_UNAVAILABLE, "n1", "")]
    [incident] = [
        one for one in fleet.investigation.incidents.values() if one.stage is not Stage.CLOSED
    ]
    assert incident.failure_class is Class.ROUTING
    assert set(incident.replicas) <= {"r1", "r2"}


def test_requests_that_are_told_after_half_a_minute_open_nothing_more():
    fleet = Fleet()
    fleet.lose("n1")
    for _ in range(30):
        fleet.second("r3", "r4")
    for name in ("r1", "r2"):
        fleet.say(RequestDied(name, "alike", 30.5))
    fleet.second("r3", "r4")
    assert fleet.open() == [(Cause.HOST_UNAVAILABLE, "n1", "")]


def test_what_replicas_of_other_hosts_have_too_is_not_the_host_s():
    fleet = Fleet()
    fleet.break_off("r1", "r2", "r3")
    fleet.second("r4")
    fleet.lose("n1")
    for _ in range(5):
        fleet.second("r4")
    assert Cause.HOST_UNAVAILABLE in [cause for cause, *_ in fleet.open()]
    assert len(fleet.open()) > 1, "r3 lost its connections on a host that lives"


def test_one_request_that_kills_on_two_hosts_is_named_as_such():
    fleet = Fleet()
    fleet.say(RequestDied("r1", "deadly", 0.2))
    fleet.second("r2", "r3", "r4")
    fleet.say(RequestDied("r3", "deadly", 0.4))
    assert [cause for cause, *_ in fleet.open()] == [Cause.QUERY_OF_DEATH]
    assert "deadly" in fleet.investigation.blocked
