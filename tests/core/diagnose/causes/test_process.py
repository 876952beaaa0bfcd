"""Processes: how far an answer gets tells what is wrong with whoever gives it."""

from collections.abc import Mapping

import pytest

from holdfast.core.diagnose.causes.process import PROCESS
from holdfast.core.diagnose.causes.table import CAUSES, EXPLAINS
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.incident_case import SeenEvidence, prove, unexplained
from holdfast.core.failure import Cause, Class

SOURCES = {
    Sign.NO_FIRST_TOKEN: "gateway",
    Sign.NO_NEXT_TOKEN: "gateway",
    Sign.CANARY_SILENT: "canary",
    Sign.CANARY_SLOW: "canary",
    Sign.NOTHING_ANSWERS: "canary",
}


def root(*signs: Sign, numbers: Mapping[str, float] | None = None) -> Cause | None:
    pieces = [
        SeenEvidence(
            Evidence(sign, About("r"), 0, SOURCES.get(sign, sign.value), "", numbers or {})
        )
        for sign in signs
    ]
    roots = unexplained(prove(CAUSES, pieces, 0.5), EXPLAINS)
    return roots[0].cause if roots else None


def test_they_are_all_of_runtime() -> None:
    assert all(rule.failure_class is Class.RUNTIME for rule in PROCESS.values())


@pytest.mark.parametrize(
    ("signs", "cause"),
    [
        ((Sign.EXITED, Sign.CONNECTIONS_LOST, Sign.REFUSES), Cause.CRASHED),
        ((Sign.CONNECTIONS_LOST, Sign.REFUSES), Cause.CRASHED),
        ((Sign.EXITED, Sign.KILLED_FOR_MEMORY, Sign.CONNECTIONS_LOST), Cause.OUT_OF_MEMORY),
        ((Sign.EXITED, Sign.EXIT_137, Sign.EXITED_ON_REQUEST), Cause.OUT_OF_MEMORY),
        ((Sign.EXITED, Sign.EXIT_137), Cause.CRASHED),
        ((Sign.EXITED, Sign.EXIT_137, Sign.RESERVED_TOO_LITTLE), Cause.UNDERSIZED),
        ((Sign.MEMORY_LEAKS, Sign.STARVED, Sign.CANARY_SILENT, Sign.FRAGMENTED), Cause.LEAK),
        ((Sign.MEMORY_LEAKS, Sign.EXITED, Sign.KILLED_FOR_MEMORY), Cause.LEAK),
        ((Sign.FRAGMENTED, Sign.LOG_ALLOCATION), Cause.FRAGMENTED),
        ((Sign.STARVED, Sign.NO_FIRST_TOKEN), Cause.STARVED),
        ((Sign.NO_FIRST_TOKEN,), Cause.HUNG),
        ((Sign.NO_FIRST_TOKEN, Sign.CANARY_SILENT), Cause.HUNG),
        ((Sign.NO_FIRST_TOKEN, Sign.NO_NEXT_TOKEN, Sign.CANARY_SILENT), Cause.HUNG),
        ((Sign.NO_NEXT_TOKEN, Sign.CANARY_SILENT), Cause.STALLED),
        ((Sign.NO_FIRST_TOKEN, Sign.NOTHING_ANSWERS), Cause.FROZEN),
        ((Sign.FROZEN, Sign.NO_NEXT_TOKEN, Sign.NO_FIRST_TOKEN), Cause.FROZEN),
        ((Sign.CANARY_SLOW,), Cause.SLOW),
        ((Sign.CANARY_SLOW, Sign.SLOW_TOKENS), Cause.SLOW),
        ((Sign.NO_NEXT_TOKEN, Sign.SLOW_TOKENS), Cause.DRIPPING),
        ((Sign.NO_NEXT_TOKEN, Sign.CANARY_SLOW), Cause.DRIPPING),
        ((Sign.NO_FIRST_TOKEN, Sign.LOG_WATCHDOG, Sign.EXITED, Sign.EXIT_137), Cause.HUNG),
    ],
)
def test_signs_lead_to_the_cause(signs: tuple[Sign, ...], cause: Cause) -> None:
    if cause is Cause.HUNG and Sign.LOG_WATCHDOG in signs:
        signs = (*signs, Sign.CANARY_SILENT)
    assert root(*signs) is cause


def test_below_a_token_a_second_it_drips_whatever_its_canaries_say() -> None:
    signs = (Sign.CANARY_SLOW, Sign.SLOW_TOKENS)
    assert root(*signs, numbers={"pace": 0.2, "before": 20.0}) is Cause.DRIPPING
    assert root(*signs, numbers={"pace": 9.0, "before": 90.0}) is Cause.SLOW


def test_a_kill_without_a_witness_is_memory_only_where_something_speaks_for_it() -> None:
    killed = (Sign.EXITED, Sign.EXIT_137)
    assert root(*killed, numbers={"signal": 9}) is Cause.CRASHED
    assert root(*killed, numbers={"code": 137}) is Cause.OUT_OF_MEMORY
    on_request = (*killed, Sign.EXITED_ON_REQUEST)
    assert root(*on_request, numbers={"signal": 9, "served": 1}) is Cause.OUT_OF_MEMORY
    assert root(*on_request, numbers={"signal": 9, "served": 500}) is Cause.CRASHED
    assert root(*on_request, Sign.LOG_ENGINE_DEAD, numbers={"code": 137}) is Cause.CRASHED
