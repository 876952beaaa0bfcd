"""What becomes of acts: done, under way, or a person's to do; and who comes back from them."""

import pytest

from holdfast.core.diagnose.evidence import About, Incident, Remedy
from holdfast.core.diagnose.remedy_execution import UNDER_WAY, RemedyExecution
from holdfast.core.diagnose.remedy_policy import Act
from holdfast.core.failure import Cause, Class

INCIDENT = Incident("inc-1", Cause.LEAK, Class.RUNTIME, About("r1", "m"), 7, 0.9)


class Hands:
    """Does what it is told, on paper."""

    def __init__(self, *, able: bool = True) -> None:
        self.able = able
        self.asked: list[tuple[object, ...]] = []

    def _do(self, *what: object) -> tuple[bool, str]:
        self.asked.append(what)
        return self.able, "done" if self.able else "cannot be done"

    def restart(self, replica: str, reason: str, since: int) -> tuple[bool, str]:
        return self._do("restart", replica, reason, since)

    def take_out(self, replica: str, reason: str, *, until_right: bool = False) -> tuple[bool, str]:
        return self._do("take_out", replica, reason, *["until right"] * until_right)

    def stop_rollout(self, model: str, reason: str) -> tuple[bool, str]:
        return self._do("stop_rollout", model, reason)


def act(remedy: Remedy, *, dry_run: bool = False) -> Act:
    return Act("inc-1", remedy, "r1", "m", "because", dry_run)


def execution(hands: Hands) -> RemedyExecution:
    return RemedyExecution(hands, lambda act, incident: f"{act.remedy} of {incident.id}: called")


@pytest.mark.parametrize(
    ("remedy", "asked", "told"),
    [
        (Remedy.DRAIN_AND_RESTART, [("restart", "r1", "inc-1: because", 7)], UNDER_WAY),
        (Remedy.TAKE_OUT, [("take_out", "r1", "inc-1: because")], "done"),
        (Remedy.STOP_ROLLOUT, [("stop_rollout", "m", "inc-1: because")], "done"),
        (Remedy.OBSERVE, [], "watched, nothing else"),
        (Remedy.PAGE, [], "page of inc-1: called"),
        (Remedy.RELOCATE, [], "relocate of inc-1: called"),
    ],
)
def test_each_remedy_is_carried_out_by_its_hand_or_by_a_person(remedy, asked, told):
    hands = Hands()
    assert execution(hands).carry_out(act(remedy), INCIDENT) == told
    assert hands.asked == asked


def test_a_hand_is_told_who_comes_back_with_right_answers():
    hands = Hands()
    asked = Act("inc-1", Remedy.TAKE_OUT, "r1", "m", "because", dry_run=False, until_right=True)
    execution(hands).carry_out(asked, INCIDENT)
    assert hands.asked == [("take_out", "r1", "inc-1: because", "until right")]


@pytest.mark.parametrize("remedy", [Remedy.DRAIN_AND_RESTART, Remedy.TAKE_OUT, Remedy.STOP_ROLLOUT])
def test_what_cannot_be_done_is_a_persons(remedy):
    remedies = execution(Hands(able=False))
    told = remedies.carry_out(act(remedy), INCIDENT)
    assert told == f"cannot be done; {remedy} of inc-1: called"


@pytest.mark.parametrize("remedy", list(Remedy))
def test_a_dry_run_asks_nobody(remedy):
    hands = Hands()
    assert execution(hands).carry_out(act(remedy, dry_run=True), INCIDENT) == UNDER_WAY
    assert hands.asked == []


def test_a_closed_incident_names_whom_it_took_out_and_waits_for_nobody():
    remedies = execution(Hands())
    remedies.carry_out(act(Remedy.TAKE_OUT), INCIDENT)
    assert remedies.closed("inc-2") == set()
    assert remedies.closed("inc-1") == {"r1"}
    assert remedies.closed("inc-1") == set()
