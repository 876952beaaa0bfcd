"""A model is down by an incident where all its replicas are part of it, and not for less."""

from holdfast.core.diagnose.evidence import About, Evidence, Incident, Sign, Stage
from holdfast.core.diagnose.held_models import held_models
from holdfast.core.failure import Cause, Class

FLEET = {"parler": {"p1", "p2"}, "llm": {"l1"}}


def incident(cause, *replicas, signs=(), stage=Stage.OPEN, about=None):
    about = about or About(replicas[0] if replicas else "", "parler")
    made = Incident("inc-1", cause, Class.RUNTIME, about, 0, 0.9, stage, replicas=replicas)
    made.evidence.extend(Evidence(sign, about, 0, "launcher", "said") for sign in signs)
    return made


def test_replicas_that_die_of_their_first_request_hold_the_queue():
    found = held_models(
        [incident(Cause.UNDERSIZED, "p1", "p2", signs=[Sign.EXITED_ON_REQUEST])], FLEET
    )
    assert list(found) == ["parler"]
    assert found["parler"].startswith("undersized of")


def test_two_incidents_may_cover_a_model_together():
    each = [incident(Cause.HUNG, "p1"), incident(Cause.WRONG_OUTPUT, "p2")]
    assert list(held_models(each, FLEET)) == ["parler"]
    assert held_models(each[:1], FLEET) == {}  # p2 works


def test_a_single_end_a_slow_model_a_closed_incident_and_a_forecast_hold_nothing():
    crash = incident(Cause.CRASHED, "p1", "p2", signs=[Sign.EXITED])
    slow = incident(Cause.SLOW, "p1", "p2")
    over = incident(Cause.HUNG, "p1", "p2", stage=Stage.CLOSED)
    forecast = incident(Cause.UNDERSIZED, "p1", "p2", signs=[Sign.RESERVED_TOO_LITTLE])
    assert held_models([crash, slow, over, forecast], FLEET) == {}


def test_an_incident_of_a_whole_model_names_no_replica():
    silent = incident(Cause.ALL_SILENT, about=About(model="llm"))
    assert list(held_models([silent], FLEET)) == ["llm"]
