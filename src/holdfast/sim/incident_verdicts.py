"""Compares the incidents of a simulated run with the faults that were injected into it.

An incident belongs to a fault when it was opened while the fault held, or soon after, and concerns
one of the fault's replicas or the whole of their model. It is right when its cause is one that a
live fleet may rightly name for such a fault.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.core.diagnose.evidence import Incident
from holdfast.core.failure import Cause
from holdfast.core.plan.faults import Fault, FaultKind
from holdfast.core.types import Replica, nanos, seconds

GRACE_S: Final = 60.0  # an incident may come so long after its fault: it takes that long to be sure

RIGHT_CAUSES: Final[Mapping[FaultKind, frozenset[Cause]]] = {
    # One that does not come up again cannot load either, for all that can be seen.
    FaultKind.CRASH: frozenset({Cause.CRASHED, Cause.LOAD_FAILED}),
    FaultKind.HANG: frozenset({Cause.HUNG}),
    FaultKind.SLOW: frozenset({Cause.SLOW, Cause.ENVIRONMENT_CHANGED}),
    FaultKind.DRIP: frozenset({Cause.DRIPPING}),
    FaultKind.FLAKY: frozenset({Cause.SERVER_ERRORS}),
    FaultKind.BLACK_HOLE: frozenset({Cause.FAST_FAILURES}),
    # Where it is there again after a restart, the canary that admits the next process kills it.
    # Where its limit was declared, that is too low for it.
    FaultKind.OOM: frozenset({Cause.OUT_OF_MEMORY, Cause.LOAD_OUT_OF_MEMORY, Cause.UNDERSIZED}),
    FaultKind.WRONG_OUTPUT: frozenset({Cause.WRONG_OUTPUT}),
    FaultKind.GARBAGE: frozenset({Cause.DEGENERATE_OUTPUT}),
    FaultKind.EMPTY: frozenset({Cause.EMPTY_OUTPUT}),
    FaultKind.CUT: frozenset({Cause.TRUNCATED}),
    FaultKind.LOAD_STALL: frozenset({Cause.LOAD_STALLED}),
    FaultKind.LEAK: frozenset({Cause.LEAK, Cause.OUT_OF_MEMORY}),  # found before it kills, or after
    # Who turns all requests away with room to spare is full, or its memory is in pieces.
    FaultKind.REFUSE_BUSY: frozenset({Cause.OVERLOADED, Cause.FRAGMENTED}),
    FaultKind.ZONE_LOSS: frozenset({Cause.CRASHED, Cause.LOAD_FAILED}),
    FaultKind.REGION_LOSS: frozenset({Cause.CRASHED, Cause.LOAD_FAILED}),
    FaultKind.SPOT_NOTICE: frozenset({Cause.CRASHED}),
    FaultKind.PARTITION: frozenset({Cause.UNREACHABLE}),
    FaultKind.PROBE_BLIND: frozenset({Cause.CHECKER_BROKEN}),
    FaultKind.STOP: frozenset({Cause.FROZEN}),
    FaultKind.STALL: frozenset({Cause.STALLED}),
    FaultKind.RESET: frozenset({Cause.CONNECTION_LOST}),
    FaultKind.SKEW: frozenset({Cause.VERSION_SKEW}),
}


class Verdict(StrEnum):
    """Outcome of comparing an incident with the injected faults, or a fault with the incidents."""

    RIGHT = "right"
    WRONG = "wrong"  # an incident was opened, and names another cause
    MISSED = "missed"  # of a fault: no incident was opened
    FALSE_ALARM = "false_alarm"  # of an incident: no fault explains it


@dataclass(slots=True, frozen=True)
class JudgedIncident:
    """One incident, the injected fault it belongs to, and whether its cause is right."""

    incident: Incident
    fault: Fault | None
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """This comparison as plain data, times in seconds of the run."""
        incident, fault = self.incident, self.fault
        delay = None if fault is None else seconds(incident.opened_at - fault.at)
        closed = incident.closed_at
        return {
            "id": incident.id,
            "class": incident.failure_class.value,
            "cause": incident.cause.value,
            "replicas": list(incident.replicas),
            "about": str(incident.about),
            "confidence": incident.confidence,
            "opened_s": seconds(incident.opened_at),
            "closed_s": None if closed is None else seconds(closed),
            "fault": None if fault is None else fault.kind.value,
            "delay_s": delay,
            "verdict": self.verdict.value,
        }


@dataclass(slots=True, frozen=True)
class JudgedFault:
    """One injected fault and the first incident with its cause, else the first one at all."""

    fault: Fault
    verdict: Verdict
    incident: Incident | None

    def to_dict(self) -> dict[str, Any]:
        """This comparison as plain data, times in seconds of the run."""
        fault, incident = self.fault, self.incident
        return {
            "fault": fault.kind.value,
            "target": fault.target,
            "began_s": seconds(fault.at),
            "verdict": self.verdict.value,
            "incident": None if incident is None else incident.id,
            "cause": None if incident is None else incident.cause.value,
            "delay_s": None if incident is None else seconds(incident.opened_at - fault.at),
        }


def judge(
    incidents: Iterable[Incident], faults: Iterable[Fault], replicas: Iterable[Replica]
) -> tuple[list[JudgedIncident], list[JudgedFault]]:
    """Compare every incident with the injected faults, and every fault with the incidents."""
    fleet, injected = list(replicas), list(faults)
    opened = list(incidents)
    judged = [_judge(incident, injected, fleet) for incident in opened]
    rows = []
    for fault in injected:  # one incident may be of several faults that share a cause
        mine = [incident for incident in opened if _belongs(incident, fault, fleet)]
        right = [incident for incident in mine if incident.cause in RIGHT_CAUSES[fault.kind]]
        if right:
            rows.append(JudgedFault(fault, Verdict.RIGHT, right[0]))
        elif mine:
            rows.append(JudgedFault(fault, Verdict.WRONG, mine[0]))
        else:
            rows.append(JudgedFault(fault, Verdict.MISSED, None))
    return judged, rows


def _judge(incident: Incident, faults: list[Fault], fleet: list[Replica]) -> JudgedIncident:
    mine = [fault for fault in faults if _belongs(incident, fault, fleet)]
    if not mine:
        return JudgedIncident(incident, None, Verdict.FALSE_ALARM)
    right = [fault for fault in mine if incident.cause in RIGHT_CAUSES[fault.kind]]
    if right:
        return JudgedIncident(incident, right[-1], Verdict.RIGHT)
    return JudgedIncident(incident, mine[-1], Verdict.WRONG)


def _belongs(incident: Incident, fault: Fault, fleet: list[Replica]) -> bool:
    opened = incident.opened_at
    if opened < fault.at or (fault.until is not None and opened > fault.until + nanos(GRACE_S)):
        return False
    struck = [one for one in fleet if fault.touches(one.id, one.zone, one.region)]
    about = incident.about
    named = {*incident.replicas, about.replica} - {""}
    if named:
        return any(one.id in named for one in struck)
    return not about.model or any(one.model == about.model for one in struck)


__all__ = ["GRACE_S", "RIGHT_CAUSES", "JudgedFault", "JudgedIncident", "Verdict", "judge"]
