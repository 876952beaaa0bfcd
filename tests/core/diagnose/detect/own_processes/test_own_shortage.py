"""A process of Holdfast that lacks something of its own."""

import pytest

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.own_processes.own_shortage import (
    OwnShortageConfig,
    OwnShortageDetector,
)
from holdfast.core.diagnose.evidence import About, Sign, Stage
from holdfast.core.diagnose.facts import Declared, Looked, OwnShortage
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Cause, Class
from holdfast.core.types import SECOND, ConfigError


def missing(count: int, process: str = "gateway-0") -> OwnShortage:
    return OwnShortage(process, "descriptors", count, 64)


def test_a_shortage_that_lasts_is_a_sign_once_in_a_while() -> None:
    detector = OwnShortageDetector(OwnShortageConfig())
    said = [each for at in range(60) for each in detector.take(missing(2), at * SECOND)]
    assert [each.sign for each in said] == [Sign.OWN_SHORTAGE] * len(said)
    assert [each.at for each in said] == [SECOND, SECOND + REPEAT]
    assert said[0].text == "gateway-0 had no descriptors left (its limit is 64) 4 times in 30 s"
    assert said[0].numbers["descriptors"] == 64.0


def test_a_burst_and_different_processes_are_none() -> None:
    detector = OwnShortageDetector(OwnShortageConfig())
    assert not detector.take(missing(2), 0)
    assert not detector.take(missing(2, "gateway-1"), SECOND)
    assert not detector.take(OwnShortage("gateway-0", "ports", 2), 2 * SECOND)
    assert not detector.take(missing(2), 31 * SECOND)
    detector.forget("m-1")


@pytest.mark.parametrize(
    ("field", "value"),
    [("window_s", 0.0), ("window_s", 3_601.0), ("count_min", 0), ("count_min", 1_001)],
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"own_shortage.{field}"):
        OwnShortageConfig(**{field: value})


def test_it_is_an_incident_of_its_own_that_blames_no_replica_and_ends() -> None:
    investigation = Investigation()
    investigation.take(Declared("m-1", "m", "1"), 0)
    for second in range(1, 10):
        investigation.take(missing(5), second * SECOND)
        investigation.take(Looked(), second * SECOND)
    (incident,) = investigation.incidents.values()
    assert (incident.cause, incident.failure_class) == (Cause.OWN_SHORTAGE, Class.ROUTING)
    assert (incident.about, incident.replicas) == (About(), ())
    assert "Raise the limit on open files" in incident.fix
    assert "(it is 64)" in incident.fix
    for second in range(10, 200):
        investigation.take(Looked(), second * SECOND)
    assert incident.stage is Stage.CLOSED
    assert list(investigation.incidents) == [incident.id]
