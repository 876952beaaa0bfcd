"""An exported incident comes to the same verdict, and a bad file is refused by name."""

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.diagnose.diagnosis import DiagnosisConfig
from holdfast.core.diagnose.fact_log import FactLog
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    Declared,
    Fact,
    Looked,
    ProcessEnded,
    QueueSeen,
    StateChanged,
)
from holdfast.core.diagnose.investigation import Investigation, InvestigationConfig
from holdfast.core.diagnose.replay import (
    IncidentExport,
    config_from_plain,
    config_to_plain,
    replay,
)
from holdfast.core.failure import Cause, Kind
from holdfast.core.types import State, nanos


def lived(config: InvestigationConfig | None = None) -> tuple[Investigation, FactLog]:
    """A replica of each of two models crashes."""
    investigation, log = Investigation(config), FactLog()

    def say(at: float, fact: Fact) -> None:
        log.add(fact, nanos(at))
        investigation.take(fact, nanos(at))

    for name, model in (("r1", "m"), ("r2", "m"), ("r3", "m"), ("x1", "n")):
        say(0, Declared(name, model, "1", host=f"h-{name}"))
        say(0, StateChanged(name, State.READY, "passed_enough"))
    for n in range(1, 120):
        say(n, Looked())
        if n == 30:
            say(n, ProcessEnded("r1", code=1, phase="serving", served=100))
            say(n, AttemptsSeen("r1", 1.0, failures={Kind.RESET: 4}))
        if n == 40:
            say(n, ProcessEnded("x1", code=1, phase="serving", served=100))
        if n % 5 == 0:
            say(n, QueueSeen("m", waiting=n))
    return investigation, log


def exported(investigation: Investigation, log: FactLog, name: str) -> IncidentExport:
    incident = investigation.incidents[name]
    config = config_to_plain(investigation.config)
    facts = tuple(log.of(incident))
    return IncidentExport(incident, investigation.baselines(), config, facts)


@pytest.mark.parametrize(("name", "who"), [("inc-000001", "r1"), ("inc-000002", "x1")])
def test_an_incident_that_is_run_again_is_the_same_incident(name: str, who: str) -> None:
    investigation, log = lived()
    found = replay(exported(investigation, log, name))
    assert found is not None
    assert found.cause is Cause.CRASHED
    assert found.about.replica == who


def test_the_config_of_that_time_decides() -> None:
    diagnosis = DiagnosisConfig(open_at=0.99)
    investigation, log = lived()
    export = exported(investigation, log, "inc-000001")
    config = config_to_plain(InvestigationConfig(diagnosis=diagnosis))
    assert replay(replace(export, config=config)) is None


def test_a_config_survives_the_journey() -> None:
    config = InvestigationConfig(diagnosis=DiagnosisConfig(close_s=60.0))
    plain = json.loads(json.dumps(config_to_plain(config)))
    assert config_from_plain(plain) == config
    assert config_from_plain({}) == InvestigationConfig()


@pytest.mark.parametrize(
    ("plain", "named"),
    [
        ({"nonsense": {}}, "config.nonsense"),
        ({"diagnosis": 5}, "config.diagnosis"),
        ({"diagnosis": {"open_at": 0.5, "typo": 1}}, "config.diagnosis.typo"),
    ],
)
def test_a_config_that_is_not_ours_is_refused(plain: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        config_from_plain(plain)


def test_facts_of_somebody_else_find_nothing() -> None:
    investigation, log = lived()
    other = investigation.incidents["inc-000002"]
    stranger = replace(
        other, about=replace(other.about, replica="z", model="z", host="z"), replicas=("z",)
    )
    facts = tuple(log.of(other))
    assert replay(IncidentExport(stranger, {}, {}, facts)) is None
