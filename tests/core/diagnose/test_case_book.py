"""The books of a diagnosis: signs that fade, numbers that count on, and bounds that hold."""

import pytest

from holdfast.core.diagnose import case_book as books
from holdfast.core.diagnose.case_book import CaseBook
from holdfast.core.diagnose.causes.rule import CauseRule, Proven, proof
from holdfast.core.diagnose.evidence import About, Evidence, Incident, Remedy, Sign, Stage
from holdfast.core.diagnose.incident_case import SeenEvidence
from holdfast.core.failure import Cause, Class
from holdfast.core.types import nanos

R1 = About("r1", "m", "1")
RULES = {
    cause: CauseRule(
        Class.RUNTIME,
        (proof(Sign.EXITED, at=0.6),),
        story="s",
        look="l",
        fix="f",
        remedy=Remedy.OBSERVE,
        standing=cause is Cause.LEAK,
    )
    for cause in (Cause.CRASHED, Cause.LEAK)
}
CRASHED = Proven(Cause.CRASHED, 0.7, acts=True)


def a_docket() -> CaseBook:
    return CaseBook(RULES, window=nanos(120), again=nanos(600), first_id=7)


def seen(sign: Sign = Sign.EXITED) -> SeenEvidence:
    return SeenEvidence(Evidence(sign, R1, 0, "log", "t"))


def test_signs_hold_for_a_while_and_are_swept() -> None:
    docket = a_docket()
    docket.note(("replica", "r1"), seen(), 0)
    assert len(docket.live_at(("replica", "r1"), nanos(120))) == 1
    assert docket.live_at(("replica", "r1"), nanos(121)) == []
    docket.sweep(nanos(130))
    docket.sweep(nanos(131))  # too soon after the last one: nothing is looked at
    docket.note(("replica", "r1"), seen(), nanos(140))
    docket.forget(("replica", "r1"))
    assert docket.live_at(("replica", "r1"), nanos(140)) == []


def test_subjects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "SUBJECTS_MAX", 1)
    docket = a_docket()
    docket.note(("replica", "r1"), seen(), 0)
    docket.note(("replica", "r2"), seen(), 0)
    docket.note(("replica", "r1"), seen(Sign.REFUSES), 0)
    assert len(docket.live_at(("replica", "r1"), 0)) == 2
    assert docket.live_at(("replica", "r2"), 0) == []


def test_numbers_count_on_and_incidents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "INCIDENTS_MAX", 2)
    docket = a_docket()
    first, second = (docket.file(("replica", n), R1, CRASHED, 0) for n in ("r1", "r2"))
    assert first is not None
    assert second is not None
    assert [case.incident.id for case in docket.open()] == ["inc-000007", "inc-000008"]
    assert docket.file(("replica", "r3"), R1, CRASHED, 0) is None
    assert docket.refused == 1
    first.incident.stage, first.incident.closed_at = Stage.CLOSED, 5
    third = docket.file(("replica", "r3"), R1, CRASHED, 9)
    assert third is not None
    assert list(docket.incidents) == ["inc-000008", "inc-000009"]


def test_a_condition_that_stands_is_no_acute_failure() -> None:
    docket = a_docket()
    docket.file(("replica", "r1"), R1, Proven(Cause.LEAK, 0.7, acts=True), 0)
    assert docket.acute_at(("replica", "r1")) is None
    acute = docket.file(("replica", "r1"), R1, CRASHED, 0)
    assert docket.acute_at(("replica", "r1")) is acute


def test_closed_cases_are_kept_as_long_as_they_may_come_back() -> None:
    docket = a_docket()
    case = docket.file(("replica", "r1"), R1, CRASHED, 0)
    assert case is not None
    case.incident.stage, case.incident.closed_at = Stage.CLOSED, nanos(100)
    docket.sweep(nanos(650))
    assert docket.cases
    docket.sweep(nanos(701))
    assert not docket.cases
    assert docket.incidents


def test_incidents_of_an_earlier_life_are_taken_in() -> None:
    docket = a_docket()
    old = Incident("inc-000042", Cause.CRASHED, Class.RUNTIME, R1, 0, 0.8)
    case = docket.adopt(old, 5)
    assert case is not None
    assert case.roots == {("replica", "r1"): R1}
    new = docket.file(("replica", "r2"), R1, CRASHED, 9)
    assert new is not None
    assert new.incident.id == "inc-000043"
    wide = Incident("odd-name", Cause.CRASHED, Class.RUNTIME, About(model="m"), 0, 0.8)
    wide.evidence = [Evidence(Sign.EXITED, About(n, "m"), 0, "log", "t") for n in ("r1", "r2")]
    adopted = docket.adopt(wide, 5)
    assert adopted is not None
    assert adopted.wide
    unknown = Incident("inc-000050", Cause.HUNG, Class.RUNTIME, R1, 0, 0.8)
    assert docket.adopt(unknown, 5) is None
    assert docket.refused == 1
