"""Answers: what is wrong with what a replica says."""

import pytest

from holdfast.core.diagnose.causes.answers import ANSWERS
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


def test_they_are_all_of_runtime() -> None:
    assert all(rule.failure_class is Class.RUNTIME for rule in ANSWERS.values())


@pytest.mark.parametrize(
    ("signs", "cause"),
    [
        ((Sign.CONNECTIONS_LOST, Sign.CANARY_ERRORS), Cause.CONNECTION_LOST),
        ((Sign.STREAMS_CUT, Sign.CANARY_WRONG), Cause.TRUNCATED),
        ((Sign.CANARY_WRONG, Sign.OUTPUT_DRIFTED), Cause.WRONG_OUTPUT),
        ((Sign.PEERS_DISAGREE,), Cause.WRONG_OUTPUT),
        ((Sign.DEGENERATE, Sign.CANARY_WRONG), Cause.DEGENERATE_OUTPUT),
        ((Sign.LOG_NOT_FINITE, Sign.CANARY_WRONG), Cause.DEGENERATE_OUTPUT),
        ((Sign.EMPTY_ANSWERS, Sign.CANARY_WRONG), Cause.EMPTY_OUTPUT),
        ((Sign.MALFORMED, Sign.CANARY_ERRORS), Cause.MALFORMED_OUTPUT),
        ((Sign.ERRORS, Sign.CANARY_ERRORS), Cause.SERVER_ERRORS),
        ((Sign.ERRORS, Sign.FAST_ERRORS), Cause.FAST_FAILURES),
        ((Sign.OUTPUT_DRIFTED,), Cause.OUTPUT_DRIFT),
        ((Sign.CANARY_DRIFTED,), Cause.ENVIRONMENT_CHANGED),
        ((Sign.VERSIONS_DIFFER, Sign.OUTPUT_DRIFTED, Sign.PEERS_DISAGREE), Cause.VERSION_SKEW),
        ((Sign.MUTABLE_IMAGE,), None),
    ],
)
def test_signs_lead_to_the_cause(signs: tuple[Sign, ...], cause: Cause | None) -> None:
    assert root(*signs) is cause


def test_answers_that_end_by_length_are_truncated() -> None:
    assert root(Sign.FINISHES_CHANGED, numbers={"length": 1.0}) is Cause.TRUNCATED
    assert root(Sign.FINISHES_CHANGED) is Cause.OUTPUT_DRIFT


def test_peers_alone_are_never_acted_on() -> None:
    piece = SeenEvidence(Evidence(Sign.PEERS_DISAGREE, About("r"), 0, "comparison", ""))
    (found,) = prove(CAUSES, [piece], 0.5)
    assert not found.acts
    canary = SeenEvidence(Evidence(Sign.CANARY_WRONG, About("r"), 0, "canary", ""))
    (found,) = prove(CAUSES, [piece, canary], 0.5)
    assert found.acts
