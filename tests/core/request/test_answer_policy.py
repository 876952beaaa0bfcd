"""What follows from an answer: when it is the answer, and when another replica is asked."""

import json

import pytest

from holdfast.core.failure import Kind
from holdfast.core.request.answer_policy import (
    OUR_STATUSES,
    Opening,
    end_is_believed,
    failed_check,
    judge_opening,
    kind_of_error_status,
    kind_when_stalled,
    may_escalate,
)
from holdfast.core.types import SECOND

ALL = ("length", "empty", "json")


@pytest.mark.parametrize(
    ("status", "retry_after", "says_busy", "kind"),
    [
        (302, False, False, Kind.MALFORMED),
        (304, True, True, Kind.MALFORMED),
        (400, False, False, Kind.BAD_REQUEST),
        (422, False, True, Kind.BAD_REQUEST),
        (429, False, False, Kind.OVERLOADED),
        (500, False, False, Kind.SERVER_ERROR),
        (503, False, False, Kind.SERVER_ERROR),
        (503, True, False, Kind.OVERLOADED),
        (503, False, True, Kind.OVERLOADED),
        *((status, False, False, Kind.SERVER_ERROR) for status in sorted(OUR_STATUSES)),
        *((status, False, True, Kind.SERVER_ERROR) for status in sorted(OUR_STATUSES)),
    ],
)
def test_a_status_is_the_clients_only_if_the_client_could_cause_it(
    status, retry_after, says_busy, kind
):
    assert kind_of_error_status(status, retry_after=retry_after, says_busy=says_busy) is kind


@pytest.mark.parametrize(
    ("tokens", "suspicious", "complete", "rejected_before", "opening"),
    [
        (1, False, False, False, Opening.SHOW),
        (1, True, False, False, Opening.HOLD),
        (7, True, False, False, Opening.HOLD),
        (8, True, False, False, Opening.REJECT),
        (7, True, True, False, Opening.SHOW),
        (8, True, True, False, Opening.REJECT),  # an answer in one piece is complete at once
        (7, True, False, True, Opening.HOLD),  # of two that say the same, both are heard
        (7, True, True, True, Opening.SHOW),
        (8, True, False, True, Opening.ALIKE),
        (8, True, True, True, Opening.ALIKE),
        (8, False, True, True, Opening.SHOW),
    ],
)
def test_a_suspicious_opening_is_held_then_rejected_once(
    tokens, suspicious, complete, rejected_before, opening
):
    found = judge_opening(
        tokens,
        8,
        suspicious=suspicious,
        complete=complete,
        rejected_before=rejected_before,
    )
    assert found is opening


def is_json(text):
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("checks", "reason", "text", "json_expected", "failed"),
    [
        (ALL, "stop", "fine", False, None),
        (ALL, "length", "cut sh", False, "length"),
        (ALL, "stop", "  ", False, "empty"),
        (ALL, "stop", "no JSON", True, "json"),
        (ALL, "stop", '{"a": 1}', True, None),
        (ALL, "tool_calls", "", True, None),
        ((), "length", "", True, None),
    ],
)
def test_a_check_fails_on_what_it_is_for(checks, reason, text, json_expected, failed):
    found = failed_check(
        checks, finish_reason=reason, text=text, json_expected=json_expected, is_json=is_json
    )
    assert found == failed


def test_a_request_escalates_only_while_nothing_is_shown():
    assert may_escalate("big", shown=False)
    assert not may_escalate("big", shown=True)
    assert not may_escalate(None, shown=False)


def test_only_streams_whose_client_reads_are_moved_from_a_stalled_replica():
    waited = 60 * SECOND
    moved = kind_when_stalled(waited, 1, streams=True, begun=True, paused=False)
    assert moved is Kind.BETWEEN_TOKENS_TIMEOUT
    moved = kind_when_stalled(waited, 1, streams=True, begun=False, paused=False)
    assert moved is Kind.FIRST_TOKEN_TIMEOUT
    assert kind_when_stalled(waited, 1, streams=False, begun=False, paused=False) is None
    assert kind_when_stalled(waited, 1, streams=True, begun=True, paused=True) is None
    assert kind_when_stalled(0, 1, streams=True, begun=True, paused=False) is None


@pytest.mark.parametrize(
    ("tokens", "doubted_before", "believed"),
    [
        (1, False, True),
        (0, False, False),
        (None, False, True),
        (0, True, True),
        (None, True, True),
    ],
)
def test_a_continued_answer_ends_by_a_counted_token_or_by_two_replicas(
    tokens, doubted_before, believed
):
    assert end_is_believed(tokens, doubted_before=doubted_before) is believed
