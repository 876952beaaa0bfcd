import pytest

from holdfast.core.diagnose.detect.detector import REPEAT
from holdfast.core.diagnose.detect.own_processes.serving_processes import (
    ServingProcessConfig,
    ServingProcessDetector,
)
from holdfast.core.diagnose.evidence import About, Evidence, Sign, Stage
from holdfast.core.diagnose.facts import Declared, Looked, ServingProcessFrozen
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Cause, Class
from holdfast.core.health.process_watch import Condition
from holdfast.core.types import SECOND, ConfigError

STOPPED, STUCK, LATE = Condition.STOPPED, Condition.STUCK, Condition.LATE


def seen(
    process: str, condition: Condition, lasted_s: float, *, replaced: bool
) -> ServingProcessFrozen:
    return ServingProcessFrozen(process, 77, condition, lasted_s, replaced)


def signs(*facts: ServingProcessFrozen) -> list[Evidence]:
    """What is said of facts that come one second after the other."""
    detector = ServingProcessDetector(ServingProcessConfig())
    detector.forget("m-1")
    return [one for at, fact in enumerate(facts) for one in detector.take(fact, at * SECOND)]


@pytest.mark.parametrize(
    ("process", "sign"), [("gateway-1", Sign.GATEWAY_FROZEN), ("control", Sign.CONTROL_FROZEN)]
)
@pytest.mark.parametrize(("condition", "lasted_s"), [(STOPPED, 3.1), (STUCK, 30.2)])
def test_a_process_that_was_replaced_is_a_sign_that_names_it(
    process: str, sign: Sign, condition: Condition, lasted_s: float
) -> None:
    (evidence,) = signs(seen(process, condition, lasted_s, replaced=True))
    assert (evidence.sign, evidence.about, evidence.source) == (sign, About(), process)
    assert evidence.text.startswith(f"{process} (pid 77) was {condition.value}")
    assert evidence.text.endswith(f"for {lasted_s:.1f} s; it was killed and replaced")
    assert evidence.numbers == {"lasted_s": lasted_s}


def test_each_replacement_is_told_however_soon_it_follows() -> None:
    fact = seen("gateway-1", STOPPED, 3.1, replaced=True)
    assert len(signs(fact, fact, fact)) == 3


def test_a_process_that_stays_stopped_or_late_is_told_now_and_then() -> None:
    stopped = [seen("gateway-0", STOPPED, 10.0 + s, replaced=False) for s in range(61)]
    late = [seen("gateway-0", LATE, 10.0 + s, replaced=False) for s in range(61)]
    for facts, sign in ((stopped, Sign.GATEWAY_FROZEN), (late, Sign.GATEWAY_LATE)):
        told = signs(*facts)
        assert [one.sign for one in told] == [sign] * 3
        assert told[1].at - told[0].at == REPEAT
        assert "killed" not in told[0].text


@pytest.mark.parametrize(("condition", "lasted_s"), [(STOPPED, 10.0), (STUCK, 31.0)])
def test_a_supervisor_that_stands_still_is_a_sign_of_its_own(condition, lasted_s) -> None:
    (evidence,) = signs(seen("supervisor", condition, lasted_s, replaced=False))
    assert (evidence.sign, evidence.source) == (Sign.SUPERVISOR_FROZEN, "supervisor")
    investigation = Investigation()
    investigation.take(seen("supervisor", condition, lasted_s, replaced=False), SECOND)
    (incident,) = investigation.incidents.values()
    assert (incident.cause, incident.about) == (Cause.SUPERVISOR_FROZEN, About())
    assert "kill -CONT" in incident.fix


@pytest.mark.parametrize(
    "fact",
    [
        seen("gateway-0", STOPPED, 2.9, replaced=False),  # it may go on at any moment
        seen("gateway-0", LATE, 9.0, replaced=False),  # a busy machine
        seen("gateway-0", Condition.TRACED, 600.0, replaced=False),  # somebody looks at it
        seen("gateway-0", Condition.STARTING, 60.0, replaced=False),
        seen("control", LATE, 60.0, replaced=False),  # it tells of that itself
        seen("supervisor", STOPPED, 9.0, replaced=False),
        seen("supervisor", LATE, 60.0, replaced=False),  # a busy machine, again
    ],
    ids=str,
)
def test_what_is_short_or_wanted_is_no_sign(fact: ServingProcessFrozen) -> None:
    assert signs(fact) == []


@pytest.mark.parametrize("field", ["late_s", "frozen_s"])
@pytest.mark.parametrize("value", [0.0, float("nan"), 3_601.0])
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"serving_processes.{field}"):
        ServingProcessConfig(**{field: value})


def test_it_is_an_incident_of_its_own_that_blames_no_replica_and_ends() -> None:
    investigation = Investigation()
    investigation.take(Declared("m-1", "m", "1"), 0)
    investigation.take(seen("gateway-1", STOPPED, 3.2, replaced=True), SECOND)
    investigation.take(seen("control", STOPPED, 3.1, replaced=True), 2 * SECOND)
    gateway, control = investigation.incidents.values()
    assert (gateway.cause, gateway.failure_class) == (Cause.GATEWAY_FROZEN, Class.ROUTING)
    assert control.cause is Cause.CONTROL_FROZEN
    assert (gateway.about, gateway.replicas) == (About(), ())
    assert "It stood still for 3" in gateway.fix
    for second in range(3, 200):
        investigation.take(Looked(), second * SECOND)
    assert {gateway.stage, control.stage} == {Stage.CLOSED}
