from itertools import pairwise

import pytest

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.own_processes.control_lateness import (
    ControlLatenessConfig,
    ControlLatenessDetector,
)
from holdfast.core.diagnose.evidence import About, Evidence, Sign, Stage
from holdfast.core.diagnose.facts import ControlLate, Declared, Looked
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Cause, Class
from holdfast.core.types import SECOND, ConfigError, nanos


def late(
    late_s: float, every_s: float, for_s: float, config: ControlLatenessConfig | None = None
) -> list[Evidence]:
    """A control whose loop stands still for so long, so often, for so long in all."""
    detector = ControlLatenessDetector(config or ControlLatenessConfig())
    said: list[Evidence] = []
    at = every_s
    while at <= for_s:
        said += detector.take(ControlLate(late_s), nanos(at))
        at += every_s
    return said


@pytest.mark.parametrize(
    ("late_s", "every_s", "within_s"),
    [(1.1, 2.0, 20.0), (5.0, 15.0, 31.0), (10.0, 25.0, 51.0), (0.9, 1.0, 12.0)],
)
def test_a_loop_that_stands_still_again_and_again_is_a_sign(
    late_s: float, every_s: float, within_s: float
) -> None:
    said = late(late_s, every_s, 60.0)
    assert said[0].sign is Sign.CONTROL_LATE
    assert said[0].at <= nanos(within_s)
    assert said[0].about == About()
    assert said[0].numbers["worst_s"] == late_s
    assert "control's own loop stood still" in said[0].text


@pytest.mark.parametrize(
    ("late_s", "every_s"), [(0.05, 0.15), (0.1, 0.2), (0.3, 0.33), (0.49, 0.5), (0.6, 3.0)]
)
def test_a_machine_that_is_busy_with_its_engines_for_a_minute_is_none(
    late_s: float, every_s: float
) -> None:
    assert late(late_s, every_s, 60.0) == []


@pytest.mark.parametrize("late_s", [5.0, 29.0, 300.0])
def test_one_pause_is_over_when_it_is_told(late_s: float) -> None:
    assert late(late_s, 400.0, 1_300.0) == []


def test_while_it_holds_it_is_said_again_and_no_more_than_that() -> None:
    said = late(1.0, 2.0, 120.0)
    assert [two.at - one.at for one, two in pairwise(said)] == [REPEAT] * 3


def test_what_was_late_before_the_window_counts_no_more() -> None:
    detector = ControlLatenessDetector(ControlLatenessConfig())
    assert not detector.take(ControlLate(6.0), 0)
    assert not detector.take(ControlLate(6.0), 31 * SECOND)
    assert detector.take(ControlLate(6.0), 40 * SECOND)
    detector.forget("m-1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pause_s", 0.0),
        ("pause_s", float("nan")),
        ("window_s", 3_601.0),
        ("late_s", -1.0),
        ("late_s", 31.0),
        ("pauses_min", 0),
        ("pauses_min", 1_001),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"control_lateness.{field}"):
        ControlLatenessConfig(**{field: value})


def run(investigation: Investigation, late_s: float, every_s: float, span: range) -> None:
    """Whole seconds of this span, in which the loop stands still as often as stated."""
    for second in span:
        if every_s and second % every_s == 0:
            investigation.take(ControlLate(late_s), second * SECOND)
        investigation.take(Looked(), second * SECOND)


def test_it_is_an_incident_of_its_own_that_blames_no_replica_and_ends() -> None:
    investigation = Investigation()
    investigation.take(Declared("m-1", "m", "1"), 0)
    run(investigation, 1.2, 2, range(1, 25))
    (incident,) = investigation.incidents.values()
    assert (incident.cause, incident.failure_class) == (Cause.CONTROL_LATE, Class.ROUTING)
    assert (incident.about, incident.replicas) == (About(), ())
    assert str(incident.about) == "the fleet"
    assert "Give control a core of its own" in incident.fix
    run(investigation, 0.0, 0, range(25, 200))
    assert incident.stage is Stage.CLOSED
    assert list(investigation.incidents) == [incident.id]


def test_a_busy_minute_opens_no_incident() -> None:
    investigation = Investigation()
    run(investigation, 0.3, 1, range(1, 61))
    assert investigation.incidents == {}
