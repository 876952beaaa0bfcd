"""The table of causes: complete, without circles, and written for somebody who is called."""

import re

import pytest

from holdfast.core.diagnose.causes.rule import Scope, fill, names_in, signs_of
from holdfast.core.diagnose.causes.table import CAUSES, EXPLAINS
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class

# Numbers that detectors put into evidence, by which advice may be filled.
NUMBERS = {
    *("reserved_bytes", "limit_bytes", "footprint_bytes", "suggested_bytes"),
    *("measured", "of_peers", "declared", "at_least"),  # how a footprint is known
    *("bytes_per_s", "exhausted_in_s", "used_bytes", "before_s", "now_s", "eta_s", "bytes_s"),
    *("readers", "silent_s", "code", "signal", "ends", "xid", "replicas", "odd", "waiting"),
    *("needed_bytes", "room_bytes", "kv_used", "pace", "peers", "late_s", "window_s"),
    *("lasted_s", "pending", "running", "failing_s", "descriptors"),
    *("errors", "temperature_c", "limit_w", "default_w", "idle_s", "times", "requests", "seen"),
    *("needed", "free", "hosts", "largest"),
}


def test_every_cause_has_a_rule_and_causes_go_in_no_circle() -> None:
    assert list(CAUSES) == list(Cause)
    assert all(cause not in reached for cause, reached in EXPLAINS.items())


@pytest.mark.parametrize("cause", Cause)
def test_a_rule_can_be_proven_and_read(cause: Cause) -> None:
    rule = CAUSES[cause]
    assert rule.proofs
    assert max(one.confidence for one in rule.proofs) >= 0.5
    assert len(re.findall(r"[.?!](?:\s|$)", rule.story)) >= 2
    for text in (rule.story, rule.look, rule.fix):
        assert len(text) > 40
        assert text.strip() == text
    assert "{" not in rule.story + rule.look
    assert names_in(rule.fix) <= NUMBERS
    assert "[" not in fill(rule.fix, {})
    assert "  " not in fill(rule.fix, dict.fromkeys(NUMBERS, 1e9))


def test_every_sign_belongs_to_some_cause() -> None:
    known = signs_of(CAUSES.values())
    for rule in CAUSES.values():
        known |= rule.consequences
    assert set(Sign) - known == set()


def test_classes_are_those_of_the_taxonomy() -> None:
    by_class = {kind: [] for kind in Class}
    for cause, rule in CAUSES.items():
        by_class[rule.failure_class].append(cause)
    assert len(by_class[Class.LOADING]) == 6
    assert by_class[Class.ROUTING][0] is Cause.MISPLACED
    assert {Cause.UNDERSIZED, Cause.LEAK, Cause.WRONG_OUTPUT} <= set(by_class[Class.RUNTIME])


def test_waiting_work_is_explained_by_every_failure_that_stops_a_replica() -> None:
    for cause in (Cause.CRASHED, Cause.UNDERSIZED, Cause.HUNG, Cause.LOAD_FAILED, Cause.LEAK):
        assert Cause.QUEUE_STALLED in EXPLAINS[cause]
    assert EXPLAINS[Cause.QUEUE_STALLED] == set()


def test_what_a_restart_cannot_mend_is_not_restarted() -> None:
    for cause in (Cause.UNDERSIZED, Cause.LOAD_OUT_OF_MEMORY, Cause.COLD_START_CONTENTION):
        assert CAUSES[cause].remedy in (Remedy.PAGE, Remedy.OBSERVE)
    assert CAUSES[Cause.COLD_START_CONTENTION].scope is Scope.FILESYSTEM


def test_a_low_reservation_is_advised_with_its_numbers() -> None:
    numbers = {"reserved_bytes": 1e9, "footprint_bytes": 3.5e9, "suggested_bytes": 4e9}
    assert "measured" not in fill(CAUSES[Cause.UNDERSIZED].fix, numbers)
    advice = fill(CAUSES[Cause.UNDERSIZED].fix, {**numbers, "measured": 1.0})
    assert advice.startswith("Memory reservation 1.0 GB, footprint 3.5 GB measured: set 4.0 GB.")
