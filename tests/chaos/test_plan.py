import pytest

from holdfast.chaos.proxy import Toxic
from holdfast.config.chaos import FAULT_STORIES, FAULTS, PlanFile, one_step
from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.core.plan.faults import FaultKind

BY_OTHER_MEANS = {"crash", "zone_loss", "region_loss", "stop", "load_stall", "memory", "leak"}
BY_CONTROL = {"silence", "skew", "spot_notice", "probe_blind"}


def test_every_fault_of_the_core_can_be_injected_and_every_one_has_a_story():
    assert {str(kind) for kind in FaultKind} <= set(FAULTS)
    assert list(FAULT_STORIES) == list(FAULTS)


def test_every_fault_is_somebodys():
    toxics = {str(toxic) for toxic in Toxic}
    assert toxics | BY_OTHER_MEANS | BY_CONTROL == set(FAULTS)
    assert not toxics & (BY_OTHER_MEANS | BY_CONTROL)


def test_a_plan_is_read_with_units_and_defaults(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("steps:\n  - {at: 5s, fault: hang, for: 20s}\n  - {at: 1m, fault: crash}\n")
    plan = load(path, PlanFile)
    assert [(step.fault, step.at, step.lasts) for step in plan.steps] == [
        ("hang", 5.0, 20.0),
        ("crash", 60.0, 30.0),
    ]
    assert plan.length_s == 120.0
    assert plan.traffic is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("steps: []\n", "steps"),
        ("steps:\n  - {fault: nonsense}\n", "fault"),
        ("steps:\n  - {fault: hang, for: 2h}\n", "for"),
        ("steps:\n  - {at: 21590s, fault: hang}\n", "six hours"),
        ("steps:\n  - {fault: hang, for: 0s}\n", "for"),
        ("steps:\n  - {fault: slow, factor: 1}\n", "factor"),
    ],
)
def test_a_plan_without_an_end_or_a_sense_is_refused_with_its_line(tmp_path, text, told):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(ConfigFileError, match=told) as refused:
        load(path, PlanFile)
    assert "plan.yaml:" in str(refused.value)


def test_a_single_fault_is_a_plan_without_traffic():
    plan = one_step("slow", "m-1", factor=3.0, **{"for": 5.0})
    assert (plan.traffic, plan.settle, plan.length_s) == (None, 0.0, 5.0)
    assert plan.steps[0].factor == 3.0
