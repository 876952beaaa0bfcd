"""What is around a replica: GPUs, peers, places, requests and queues."""

import pytest

from holdfast.core.diagnose.causes.surroundings import ROUTING, SURROUNDINGS
from holdfast.core.diagnose.causes.table import CAUSES, EXPLAINS
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.incident_case import SeenEvidence, prove, unexplained
from holdfast.core.failure import Cause, Class


def root(*signs: Sign, numbers: dict[str, float] | None = None) -> Cause | None:
    pieces = [
        SeenEvidence(Evidence(sign, About("r"), 0, sign.value, "", numbers or {})) for sign in signs
    ]
    roots = unexplained(prove(CAUSES, pieces, 0.5), EXPLAINS)
    return roots[0].cause if roots else None


def test_they_are_of_runtime_and_of_routing() -> None:
    assert all(rule.failure_class is Class.RUNTIME for rule in SURROUNDINGS.values())
    assert all(rule.failure_class is Class.ROUTING for rule in ROUTING.values())


@pytest.mark.parametrize(
    ("signs", "cause"),
    [
        ((Sign.GPU_FAULT, Sign.LOG_CUDA_CORRUPTED, Sign.EXITED), Cause.GPU_FAULT),
        ((Sign.LOG_CUDA_CORRUPTED, Sign.ERRORS, Sign.EXITED), Cause.CUDA_CORRUPTED),
        ((Sign.KV_FULL,), None),
        ((Sign.KV_FULL, Sign.BACKPRESSURE), Cause.KV_EXHAUSTED),
        ((Sign.LOG_KV_EXHAUSTED, Sign.ERRORS), Cause.KV_EXHAUSTED),
        ((Sign.LOG_COLLECTIVE, Sign.CANARY_SILENT, Sign.EXITED), Cause.COLLECTIVE_TIMEOUT),
        ((Sign.SAME_REQUEST_KILLS, Sign.EXITED), Cause.QUERY_OF_DEATH),
        ((Sign.ON_CPU, Sign.CANARY_SLOW, Sign.LOG_CPU_FALLBACK), Cause.MISPLACED),
        ((Sign.NO_ROOM, Sign.KILLED_FOR_MEMORY, Sign.EXITED), Cause.MISPLACED),
        ((Sign.UNREACHABLE, Sign.NOTHING_ANSWERS), Cause.UNREACHABLE),
        ((Sign.BACKPRESSURE,), Cause.OVERLOADED),
        ((Sign.CHAIN_WAITS, Sign.QUEUE_GROWS), Cause.CHAIN_BACKED_UP),
        ((Sign.QUEUE_GROWS, Sign.DEAD_LETTERS), Cause.QUEUE_STALLED),
        ((Sign.LOG_TRANSFER, Sign.NO_FIRST_TOKEN), Cause.TRANSFER_FAILED),
        ((Sign.WRONG_REVISION, Sign.CANARY_WRONG), Cause.WRONG_REVISION),
        ((Sign.CANARIES_DOUBTED, Sign.CANARY_WRONG), Cause.CHECKER_BROKEN),
        ((Sign.CANARIES_UNANSWERED, Sign.CANARY_SILENT), Cause.ALL_SILENT),
        ((Sign.CONTROL_LATE,), Cause.CONTROL_LATE),
        ((Sign.CONTROL_FROZEN,), Cause.CONTROL_FROZEN),
        ((Sign.NOT_PLACED,), Cause.NOT_PLACED),
        ((Sign.NOT_PLACED, Sign.NO_REPLICA_READY), Cause.NOT_PLACED),
        ((Sign.SOURCE_BLIND,), Cause.SOURCE_BLIND),
        ((Sign.GATEWAY_FROZEN,), Cause.GATEWAY_FROZEN),
        ((Sign.GATEWAY_LATE,), Cause.GATEWAY_LATE),
        ((Sign.SUPERVISOR_FROZEN,), Cause.SUPERVISOR_FROZEN),
        ((Sign.OWN_SHORTAGE,), Cause.OWN_SHORTAGE),
    ],
)
def test_signs_lead_to_the_cause(signs: tuple[Sign, ...], cause: Cause | None) -> None:
    assert root(*signs) is cause


def test_a_queue_that_is_worked_off_too_slowly_is_too_much_work() -> None:
    assert root(Sign.QUEUE_GROWS, numbers={"finished_s": 6.0}) is Cause.OVERLOADED
    assert root(Sign.QUEUE_GROWS, numbers={"finished_s": 0.0}) is Cause.QUEUE_STALLED
