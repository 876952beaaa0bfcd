"""A case: its books, what signs prove, and what several replicas have in common."""

import pytest

from holdfast.core.diagnose.causes.rule import CauseRule, During, Proof, Scope, closure, proof
from holdfast.core.diagnose.evidence import (
    EVIDENCE_MAX,
    TIMELINE_MAX,
    About,
    Evidence,
    Incident,
    Remedy,
    Sign,
    TimelineEntry,
)
from holdfast.core.diagnose.incident_case import (
    SEEN_MAX,
    IncidentCase,
    SeenEvidence,
    common,
    prove,
    subject_of,
    unexplained,
)
from holdfast.core.failure import Cause, Class

R1 = About("r1", "m", "1", "h", "fs")
R2 = About("r2", "m", "1", "h", "fs2")


def rule(*proofs: Proof, explains: tuple[Cause, ...] = (), fix: str = "f") -> CauseRule:
    words = {"story": "s", "look": "l", "fix": fix}
    return CauseRule(
        Class.RUNTIME, proofs, remedy=Remedy.OBSERVE, explains=frozenset(explains), **words
    )


def seen(
    sign: Sign, about: About = R1, source: str = "log", at: int = 1, *, loading: bool = False
) -> SeenEvidence:
    return SeenEvidence(
        Evidence(sign, about, at, source, f"{sign.value} shows", {"n": 1.0}), loading
    )


def a_case(cause: Cause = Cause.CRASHED) -> IncidentCase:
    incident = Incident("inc-000001", cause, Class.RUNTIME, R1, 1, 0.8)
    return IncidentCase(incident, roots={("replica", "r1"): R1})


@pytest.mark.parametrize(
    ("about", "subject"),
    [
        (R1, ("replica", "r1")),
        (About(model="m", host="h", filesystem="fs"), ("filesystem", "fs")),
        (About(model="m", host="h"), ("host", "h")),
        (About(model="m"), ("model", "m")),
        (About(), ("fleet", "")),
    ],
)
def test_evidence_is_about_the_most_specific_thing(about: About, subject: tuple[str, str]) -> None:
    assert subject_of(about) == subject


def test_the_same_news_again_is_no_news() -> None:
    case = a_case()
    assert case.add(seen(Sign.EXITED), 5)
    assert not case.add(seen(Sign.EXITED, at=9), 9)
    assert case.add(seen(Sign.EXITED, R2), 9)
    assert case.fresh_at == 9
    assert [entry.what for entry in case.incident.timeline] == ["exited", "exited"]
    assert len(case.seen_at(("replica", "r1"))) == 1


def test_a_flood_is_counted_and_not_kept() -> None:
    case = a_case()
    for n in range(SEEN_MAX + 10):
        case.add(seen(Sign.EXITED, About(f"x{n}")), n)
    assert len(case.seen) == SEEN_MAX
    assert case.more == 10
    other = a_case()
    other.add(seen(Sign.REFUSES), 1)
    case.take_over(other)
    assert len(case.seen) == SEEN_MAX
    assert case.more == 11
    case.write({Cause.CRASHED: rule(proof(Sign.EXITED, at=0.6))}, 1)
    assert len(case.incident.consequences) == EVIDENCE_MAX


def test_a_full_timeline_keeps_its_beginning_and_its_end() -> None:
    case = a_case()
    for n in range(TIMELINE_MAX + 50):
        case.tell(TimelineEntry(n, "x", "r1", "t"))
    line = case.incident.timeline
    assert len(line) == TIMELINE_MAX
    assert line[0].at == 0
    assert line[-1].at == TIMELINE_MAX + 49


def test_evidence_that_proves_and_evidence_that_follows_are_apart() -> None:
    rules = {Cause.CRASHED: rule(proof(Sign.EXITED, at=0.6), fix="[{n} times]")}
    case = a_case()
    case.add(seen(Sign.EXITED), 1)
    case.add(seen(Sign.EXITED, R2), 2)
    case.add(seen(Sign.QUEUE_GROWS, About(model="m")), 3)
    case.write(rules, 3)
    incident = case.incident
    assert [one.about for one in incident.evidence] == [R1]
    assert {one.sign for one in incident.consequences} == {Sign.EXITED, Sign.QUEUE_GROWS}
    assert incident.replicas == ("r1", "r2")
    assert incident.fix == "1 times"
    assert incident.changed_at == 3


def test_two_cases_become_one_with_one_timeline() -> None:
    case, other = a_case(), a_case()
    case.add(seen(Sign.EXITED, at=5), 5)
    other.add(seen(Sign.REFUSES, R2, at=2), 2)
    other.incident.opened_at = 0
    other.incident.action = "restarted"
    case.take_over(other)
    assert [entry.at for entry in case.incident.timeline] == [2, 5]
    assert case.incident.opened_at == 0
    assert case.incident.action == "restarted"
    assert set(case.subjects) == {("replica", "r1"), ("replica", "r2")}


def test_what_several_share_is_what_the_incident_is_about() -> None:
    far = About("r3", "n", "1", "h2", "fs")
    assert common([R1], wide=False, scope=Scope.REPLICA) == R1
    assert common([R1, R2], wide=True, scope=Scope.REPLICA) == About(model="m", revision="1")
    both = common([R1, R2], wide=False, scope=Scope.HOST)
    assert both == About(model="m", revision="1", host="h")
    shared = common([R1, far], wide=False, scope=Scope.FILESYSTEM)
    assert shared == About(revision="1", filesystem="fs")
    nothing = common([About(model="a"), About(model="b")], wide=False, scope=Scope.MODEL)
    assert nothing == About(model="a")


def test_proofs_of_different_sources_add_up_and_of_one_source_do_not() -> None:
    rules = {Cause.CRASHED: rule(proof(Sign.EXITED, at=0.6), proof(Sign.REFUSES, at=0.5))}
    (apart,) = prove(rules, [seen(Sign.EXITED), seen(Sign.REFUSES, source="canary")], 0.5)
    assert apart.confidence == pytest.approx(0.8)
    (same,) = prove(rules, [seen(Sign.EXITED), seen(Sign.REFUSES)], 0.5)
    assert same.confidence == pytest.approx(0.6)
    assert prove(rules, [seen(Sign.EXITED)], 0.7) == []
    assert prove(rules, [], 0.0) == []


def test_a_proof_may_need_a_phase_numbers_and_the_absence_of_a_sign() -> None:
    loading = {Cause.LOAD_FAILED: rule(proof(Sign.EXITED, at=0.6, during=During.LOADING))}
    assert prove(loading, [seen(Sign.EXITED)], 0.5) == []
    assert prove(loading, [seen(Sign.EXITED, loading=True)], 0.5)
    lonely = {Cause.CRASHED: rule(proof(Sign.EXITED, at=0.6, without=[Sign.FROZEN]))}
    assert prove(lonely, [seen(Sign.EXITED)], 0.5)
    assert prove(lonely, [seen(Sign.EXITED), seen(Sign.FROZEN)], 0.5) == []
    for fits, bounds in (
        (True, {"least": {"n": 1.0}, "most": {"n": 1.0, "unknown": 0.0}}),
        (False, {"least": {"n": 1.1}}),
        (False, {"least": {"unknown": 0.0}}),
        (False, {"most": {"n": 0.9}}),
    ):
        rules = {Cause.CRASHED: rule(proof(Sign.EXITED, at=0.6, **bounds))}
        assert bool(prove(rules, [seen(Sign.EXITED)], 0.5)) is fits


def test_the_root_is_what_nothing_else_explains() -> None:
    rules = {
        Cause.OUT_OF_MEMORY: rule(proof(Sign.EXIT_137, at=0.6), explains=(Cause.CRASHED,)),
        Cause.CRASHED: rule(proof(Sign.EXITED, at=0.9)),
    }
    proven = prove(rules, [seen(Sign.EXITED), seen(Sign.EXIT_137)], 0.5)
    assert [one.cause for one in proven] == [Cause.CRASHED, Cause.OUT_OF_MEMORY]
    roots = unexplained(proven, closure(rules))
    assert [one.cause for one in roots] == [Cause.OUT_OF_MEMORY]
