from holdfast.core.diagnose.evidence import About, Incident
from holdfast.core.failure import Cause, Class


def test_whom_it_concerns_is_named_by_the_nearest_thing() -> None:
    assert str(About("r1", "m", host="h")) == "r1"
    assert str(About(model="m", filesystem="efs")) == "efs"
    assert str(About(model="m", host="h")) == "h"
    assert str(About(model="m")) == "m"
    assert str(About()) == "the fleet"


def test_a_title_names_the_revision_while_there_are_several() -> None:
    about = About("r1", "m", "v2")
    incident = Incident("inc-1", Cause.CRASHED, Class.RUNTIME, about, 0, 0.9)
    assert incident.title == "crashed of r1"
    incident.other_revisions = ("v1",)
    assert incident.title == "crashed of r1 (revision v2)"
    incident.about = About(model="m", revision="v2")
    assert incident.title == "crashed of m"


def test_a_title_is_one_line_for_people() -> None:
    incident = Incident("inc-1", Cause.OUT_OF_MEMORY, Class.RUNTIME, About("r1"), 0, 0.9)
    assert incident.title == "out of memory of r1"
