"""Carries out the acts of incidents, and remembers who was taken out because of which.

    Act ─► hands: restart, take out, stop a rollout ─► done ─► what to record in the incident
                                                    └─ not done, or a person's to do ─► page

Live control and the simulator share it; each brings its own hands. An act that restarts a replica
is under way until that replica is ready again, which ``RemedyPolicy`` records: until then other
restarts wait for it.
"""

from collections.abc import Callable
from typing import Final, Protocol

from holdfast.core.diagnose.evidence import Incident, Remedy
from holdfast.core.diagnose.remedy_policy import Act

UNDER_WAY: Final = ""


class RemedyHands(Protocol):
    """Interface to a fleet for carrying out acts; live control and the simulator implement it.

    Each method returns (whether it was done or begun, what was done or why not).
    """

    def restart(self, replica: str, reason: str, since: int) -> tuple[bool, str]:
        """Begin to drain and restart a replica.

        If its process began after ``since`` (core time, ns), that counts as done and nothing
        happens.
        """

    def take_out(self, replica: str, reason: str, *, until_right: bool = False) -> tuple[bool, str]:
        """Send a replica no requests, whatever its canaries say, until it is let back.

        With ``until_right`` right canaries bring it back.
        """

    def stop_rollout(self, model: str, reason: str) -> tuple[bool, str]:
        """Refuse the revision that a model's rollout brings in, so that the last good one stays."""


class RemedyExecution:
    """Carries out acts by ``RemedyHands``, and calls a person where that is not possible.

    Remembers which replicas were taken out because of which incident; does not let them back
    itself.
    """

    __slots__ = ("_hands", "_out", "_page")

    def __init__(self, hands: RemedyHands, page: Callable[[Act, Incident], str]) -> None:
        self._hands = hands
        self._page = page  # calls a person; returns what to record
        self._out: dict[str, set[str]] = {}  # who was taken out, by incident

    def carry_out(self, act: Act, incident: Incident) -> str:
        """Carry out one act now; return the text to record, or ``UNDER_WAY`` (empty: nothing yet).

        A restart that began returns ``UNDER_WAY``, and so does a dry run, which does nothing. If it
        cannot be done, or is a person's to do, a person is called.
        """
        reason, remedy = f"{act.incident_id}: {act.reason}", act.remedy
        if act.dry_run:
            return UNDER_WAY
        if remedy is Remedy.DRAIN_AND_RESTART:
            done, told = self._hands.restart(act.replica, reason, incident.opened_at)
            if done:
                return UNDER_WAY
        elif remedy is Remedy.TAKE_OUT:
            done, told = self._hands.take_out(act.replica, reason, until_right=act.until_right)
            if done:
                self._out.setdefault(act.incident_id, set()).add(act.replica)
        elif remedy is Remedy.STOP_ROLLOUT:
            done, told = self._hands.stop_rollout(act.model, reason)
        elif remedy is Remedy.OBSERVE:
            return "watched, nothing else"
        else:
            return self._page(act, incident)
        return told if done else f"{told}; {self._page(act, incident)}"

    def closed(self, incident_id: str) -> frozenset[str]:
        """Forget a closed incident; return the ids of replicas that were taken out because of it.

        The caller has to let them back; empty if there are none.
        """
        return frozenset(self._out.pop(incident_id, ()))


__all__ = ["UNDER_WAY", "RemedyExecution", "RemedyHands"]
