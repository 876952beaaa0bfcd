"""Labelled histories: rows of facts with the verdict that a person would reach.

``development`` is what rules may be tuned on, and every one of them has to come out right. What
lies in ``held_out`` was written and committed before there was a rule; it is scored, and no test
names which of them failed, so that nobody mends a rule by looking at them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose import facts as known
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Kind
from holdfast.core.types import State, nanos
from holdfast.engines import dialect
from holdfast.engines.log_marks import mark_of

pytestmark = pytest.mark.measured

HISTORIES: Final = Path(__file__).parent / "histories"
DEVELOPMENT: Final = sorted((HISTORIES / "development").glob("*.json"))
HELD_OUT: Final = sorted((HISTORIES / "held_out").glob("*.json"))
HELD_OUT_MIN: Final = 19  # right verdicts among the twenty, when they were first scored
AFTER_S: Final = 60.0  # time that passes after the last fact


def line_of(fields: Mapping[str, Any]) -> known.LineSeen | None:
    """A raw line of a log, read as the driver reads it; None for one without a meaning."""
    found = mark_of(dialect(fields["engine"]), fields["text"])
    if found is None:
        return None
    return known.LineSeen(fields["replica"], found[0], found[1])


def fact_of(kind: str, fields: Mapping[str, Any]) -> known.Fact | None:
    if kind == "line":
        return line_of(fields)
    values = dict(fields)
    if "state" in values:
        values["state"] = State(values["state"])
    if "mark" in values:
        values["mark"] = known.Mark(values["mark"])
    if "failures" in values:
        values["failures"] = {Kind(one.lower()): n for one, n in values["failures"].items()}
    for name in ("values", "models"):
        if name in values:
            values[name] = tuple(values[name])
    if kind == "CanaryAnswered":
        values["verdict"] = CanaryVerdict(values["verdict"])
    return getattr(known, kind)(**values)


def run(history: Mapping[str, Any]) -> Investigation:
    """Every fact in its order, and a look every second between them."""
    investigation = Investigation()
    looked = 0
    last = 0.0
    for at, kind, fields in history["facts"]:
        while looked < int(at):
            looked += 1
            investigation.take(known.Looked(), nanos(looked))
        fact = fact_of(kind, fields)
        if fact is not None:
            investigation.take(fact, nanos(at))
        last = max(last, at)
    until = max(last + AFTER_S, history.get("until", 0.0))
    while looked < until:
        looked += 1
        investigation.take(known.Looked(), nanos(looked))
    return investigation


def told(incident: Incident) -> str:
    followed = sorted({one.sign.value for one in incident.consequences})
    proofs = sorted({one.sign.value for one in incident.evidence})
    return (
        f"{incident.cause.value} of {incident.about} ({incident.confidence:.2f}, {proofs}, "
        f"then {followed})"
    )


def breaches(history: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong about the verdict."""
    incidents = list(run(history).incidents.values())
    found = "; ".join(told(one) for one in incidents) or "nothing"
    wanted = history["expect"]
    expectations = wanted if isinstance(wanted, list) else [wanted]
    count = max(one.get("incidents", 1) for one in expectations)
    if len(incidents) != count:
        yield f"{len(incidents)} incidents instead of {count}: {found}"
    for expected in expectations:
        for one in incidents:
            if one.cause.value in expected.get("not", ()):
                yield f"{one.cause.value} is a cause of its own: {found}"
        if "cause" in expected:
            yield from lacking(expected, incidents, found)


def lacking(expected: Mapping[str, Any], incidents: list[Incident], found: str) -> Iterator[str]:
    """What one expected incident lacks."""
    right = [one for one in incidents if one.cause.value == expected["cause"]]
    if not right:
        yield f"not {expected['cause']}: {found}"
        return
    about = expected.get("about", {})
    fitting = [one for one in right if all(getattr(one.about, k) == v for k, v in about.items())]
    if not fitting:
        yield f"not about {about}: {[one.about for one in right]}"
        return
    if fitting[0].failure_class.value != expected["class"]:
        yield f"{fitting[0].failure_class.value} instead of {expected['class']}"
    held = (*fitting[0].evidence, *fitting[0].consequences)
    missing = set(expected.get("consequences", ())) - {one.sign.value for one in held}
    if missing:
        yield f"without {sorted(missing)}: {found}"


@pytest.mark.parametrize("path", DEVELOPMENT, ids=lambda path: path.stem)
def test_a_history_comes_to_the_verdict_of_a_person(path: Path) -> None:
    history = json.loads(path.read_text(encoding="utf-8"))
    assert list(breaches(history)) == []


def comes_out_right(path: Path) -> bool:
    """Whether a history comes out right, and not a word about which."""
    try:
        return not list(breaches(json.loads(path.read_text(encoding="utf-8"))))
    except Exception:  # noqa: BLE001 what it was would tell which one it is
        return False


def test_held_out_histories_are_scored_without_names(capsys: pytest.CaptureFixture[str]) -> None:
    right = sum(comes_out_right(path) for path in HELD_OUT)
    with capsys.disabled():
        print(f"\nheld-out: {right} of {len(HELD_OUT)}")  # noqa: T201
    assert len(HELD_OUT) >= 20
    assert right >= HELD_OUT_MIN


def test_every_history_says_what_it_is() -> None:
    names = set()
    for path in (*DEVELOPMENT, *HELD_OUT):
        history = json.loads(path.read_text(encoding="utf-8"))
        assert history["name"] == path.stem
        assert history["story"]
        assert {"expect", "facts"} <= history.keys()
        names.add(path.stem)
    assert len(names) == len(DEVELOPMENT) + len(HELD_OUT)
