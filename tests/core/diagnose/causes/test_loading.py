"""Loading: what keeps a replica from getting ready is told apart by what it leaves behind."""

import pytest

from holdfast.core.diagnose.causes.loading import LOADING
from holdfast.core.diagnose.causes.table import CAUSES, EXPLAINS
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.incident_case import SeenEvidence, prove, unexplained
from holdfast.core.failure import Cause, Class


def root(*signs: Sign, loading: bool = True) -> Cause | None:
    pieces = [
        SeenEvidence(Evidence(sign, About("r"), 0, sign.value, ""), loading) for sign in signs
    ]
    roots = unexplained(prove(CAUSES, pieces, 0.5), EXPLAINS)
    return roots[0].cause if roots else None


def test_they_are_all_of_loading() -> None:
    assert all(rule.failure_class is Class.LOADING for rule in LOADING.values())


@pytest.mark.parametrize(
    ("signs", "cause"),
    [
        ((Sign.EXITED, Sign.EXITED_LOADING), Cause.LOAD_FAILED),
        ((Sign.LOG_MODEL_MISSING, Sign.EXITED, Sign.EXITED_LOADING), Cause.LOAD_FAILED),
        ((Sign.LOG_GPU_MEMORY, Sign.EXITED, Sign.EXITED_LOADING), Cause.LOAD_OUT_OF_MEMORY),
        ((Sign.KILLED_FOR_MEMORY, Sign.EXITED, Sign.EXITED_LOADING), Cause.LOAD_OUT_OF_MEMORY),
        ((Sign.LOAD_STUCK, Sign.SILENT_LOADING), Cause.LOAD_STALLED),
        ((Sign.LOG_DRIVER, Sign.EXITED, Sign.EXITED_LOADING), Cause.DRIVER_MISMATCH),
        ((Sign.LOG_DISK_FULL, Sign.EXITED, Sign.EXITED_LOADING), Cause.DISK_FULL),
        ((Sign.LOG_PORT_TAKEN,), Cause.LOAD_FAILED),
        ((Sign.FILESYSTEM_FULL_SPEED, Sign.LOAD_SLOW), Cause.COLD_START_CONTENTION),
    ],
)
def test_signs_lead_to_the_cause(signs: tuple[Sign, ...], cause: Cause) -> None:
    assert root(*signs) is cause


def test_full_memory_means_something_else_while_serving() -> None:
    assert root(Sign.LOG_GPU_MEMORY, loading=False) is Cause.OUT_OF_MEMORY
    assert root(Sign.LOG_GPU_MEMORY, loading=True) is Cause.LOAD_OUT_OF_MEMORY
