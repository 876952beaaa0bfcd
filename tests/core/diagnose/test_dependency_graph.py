"""Who can suffer from whom, and who cannot."""

import pytest

from holdfast.core.diagnose import dependency_graph as module
from holdfast.core.diagnose.causes.rule import CauseRule, Scope, proof
from holdfast.core.diagnose.dependency_graph import BLAME_HOLDS, BLAMED_MAX, DependencyGraph
from holdfast.core.diagnose.evidence import About, Incident, Remedy, Sign
from holdfast.core.diagnose.facts import (
    ChainDeclared,
    Declared,
    Gone,
    LineSeen,
    Looked,
    Mark,
    PhaseSeen,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.incident_case import IncidentCase, subject_of
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause, Class
from holdfast.core.types import State

SCOPES = {
    Cause.CRASHED: Scope.REPLICA,
    Cause.DISK_FULL: Scope.HOST,
    Cause.COLD_START_CONTENTION: Scope.FILESYSTEM,
    Cause.QUERY_OF_DEATH: Scope.MODEL,
}
RULES = {
    cause: CauseRule(
        Class.RUNTIME,
        (proof(Sign.EXITED, at=0.6),),
        story="s",
        look="l",
        fix="f",
        remedy=Remedy.OBSERVE,
        scope=scope,
    )
    for cause, scope in SCOPES.items()
}


def a_world() -> tuple[DependencyGraph, ReplicaRegistry]:
    census = ReplicaRegistry()
    for name, model, role in (
        ("p1", "m", "prefill"),
        ("d1", "m", "decode"),
        ("x1", "n", ""),
    ):
        census.take(Declared(name, model, "1", host=f"h-{name}", filesystem="fs", role=role))
    return DependencyGraph(RULES, census), census


def a_case(cause: Cause, about: About) -> IncidentCase:
    incident = Incident("i", cause, Class.RUNTIME, about, 0, 0.8)
    return IncidentCase(incident, roots={subject_of(about): about})


def suffers(relations: DependencyGraph, about: About, case: IncidentCase, now: int = 0) -> bool:
    return relations.suffers(subject_of(about), about, case, now)


def test_replicas_suffer_from_their_places_and_not_from_each_other() -> None:
    relations, census = a_world()
    p1, d1, x1 = (census.about(name) for name in ("p1", "d1", "x1"))
    crash = a_case(Cause.CRASHED, p1)
    assert suffers(relations, p1, crash)
    assert not suffers(relations, d1, crash)
    slow_disk = a_case(Cause.COLD_START_CONTENTION, About(filesystem="fs"))
    assert suffers(relations, d1, slow_disk)
    assert suffers(relations, About(model="m"), slow_disk)
    assert not suffers(relations, About(model="other"), slow_disk)
    assert not suffers(relations, About(host="h-d1"), slow_disk)
    assert not suffers(relations, About(model="m"), a_case(Cause.CRASHED, About("stranger")))
    full = a_case(Cause.DISK_FULL, About(host="h-d1"))
    assert suffers(relations, d1, full)
    assert not suffers(relations, p1, full)
    assert not suffers(relations, d1, a_case(Cause.DISK_FULL, p1))
    deadly = a_case(Cause.QUERY_OF_DEATH, About(model="m"))
    assert suffers(relations, d1, deadly)
    assert not suffers(relations, x1, deadly)


def test_those_in_one_place_share_what_sits_there() -> None:
    relations, census = a_world()
    p1, x1 = census.about("p1"), census.about("x1")
    full = a_case(Cause.DISK_FULL, p1)
    assert relations.shares(p1, full)
    assert not relations.shares(x1, full)
    assert relations.shares(x1, a_case(Cause.COLD_START_CONTENTION, p1))
    deadly = a_case(Cause.QUERY_OF_DEATH, About(model="m", revision="2"))
    assert not relations.shares(p1, deadly)
    assert not relations.shares(p1, a_case(Cause.CRASHED, p1))


def test_a_model_suffers_from_its_replicas_and_from_later_ones_of_its_chain() -> None:
    relations, census = a_world()
    relations.take(ChainDeclared("c", ("a", "m", "n")), 0)
    crash = a_case(Cause.CRASHED, census.about("x1"))
    assert suffers(relations, About(model="n"), crash)
    assert suffers(relations, About(model="a"), crash)
    early = a_case(Cause.CRASHED, About("r", "a"))
    assert not suffers(relations, About(model="n"), early)
    chain = a_case(Cause.QUERY_OF_DEATH, About(model="a"))
    assert suffers(relations, About(model="n"), chain)
    assert relations.downstream("n") == frozenset()


@pytest.mark.parametrize(
    ("peer", "other", "blamed"),
    [
        ("p1", "p1", True),
        ("h-p1:8998", "p1", True),
        ("tcp://h-p1:8998", "p1", True),
        ("10.0.0.9:1", "p1", False),
        ("", "p1", True),
        ("", "x1", False),
        ("", "ghost", False),
        ("ghost", "ghost", True),
    ],
)
def test_a_log_blames_whom_it_names_or_can_only_mean(peer: str, other: str, blamed: bool) -> None:
    relations, _ = a_world()
    relations.take(LineSeen("d1", Mark.TRANSFER_FAILED, peer), 0)
    assert relations.blames("d1", other, 1) is blamed
    assert not relations.blames("d1", other, BLAME_HOLDS + 1)
    assert not relations.blames("p1", "d1", 1)


def test_whoever_is_blamed_makes_the_other_suffer() -> None:
    relations, census = a_world()
    case = a_case(Cause.CRASHED, census.about("p1"))
    relations.take(LineSeen("d1", Mark.GPU_MEMORY_FULL, "p1"), 0)
    assert not suffers(relations, census.about("d1"), case)
    relations.take(LineSeen("d1", Mark.COLLECTIVE_TIMEOUT, "p1"), 0)
    assert suffers(relations, census.about("d1"), case)


def test_blame_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    relations, _ = a_world()
    for n in range(BLAMED_MAX + 1):
        relations.take(LineSeen("d1", Mark.TRANSFER_FAILED, f"peer-{n}"), n)
    assert not relations.blames("d1", "peer-0", BLAMED_MAX)
    assert relations.blames("d1", f"peer-{BLAMED_MAX}", BLAMED_MAX)
    monkeypatch.setattr(module, "KNOWN_MAX", 1)
    relations.take(LineSeen("d2", Mark.TRANSFER_FAILED, "p1"), 0)
    assert not relations.blames("d2", "p1", 0)
    monkeypatch.setattr(module, "CHAINS_MAX", 0)
    relations.take(ChainDeclared("c", ("a", "b")), 0)
    assert relations.downstream("a") == frozenset()


def test_who_dies_while_it_loads_has_not_served() -> None:
    relations, _ = a_world()
    relations.take(StateChanged("p1", State.WARMING, "loaded"), 1)
    relations.take(PhaseSeen("p1", "loading"), 2)
    relations.take(StateChanged("p1", State.DEAD, "refused_repeatedly"), 3)
    assert relations.loading("p1")
    relations.take(StateChanged("p1", State.READY, "passed_enough"), 4)
    relations.take(StateChanged("p1", State.DEAD, "refused_repeatedly"), 5)
    assert not relations.loading("p1")


def test_states_and_phases_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    relations, _ = a_world()
    assert relations.over("p1")
    assert not relations.loading("p1")
    relations.take(StateChanged("p1", State.LOADING, "load_began"), 1)
    assert relations.loading("p1")
    assert not relations.over("p1")
    relations.take(PhaseSeen("p1", "serving"), 2)
    assert not relations.loading("p1")
    relations.take(ProcessEnded("p1", phase="compile"), 3)
    assert relations.loading("p1")
    relations.take(ProcessEnded("p1", phase="serving"), 3)
    assert not relations.loading("p1")
    relations.take(ProcessEnded("p1", phase="serving", asked=True), 3)
    assert relations.loading("p1")  # nobody expects it to serve
    relations.take(StateChanged("p1", State.READY, "passed_enough"), 4)
    relations.take(StateChanged("p1", State.READY, "passed_enough"), 9)
    assert relations.ready_at["p1"] == 4
    assert relations.over("p1")
    relations.take(Looked(), 10)
    monkeypatch.setattr(module, "KNOWN_MAX", 1)
    relations.take(StateChanged("d1", State.DEAD, "exited"), 11)
    relations.take(PhaseSeen("d1", "loading"), 11)
    assert relations.over("d1")
    assert not relations.loading("d1")
    relations.take(Gone("p1"), 12)
    assert relations.states == {}
