"""Maps each symptom of a replica to a response: restart, remove from rotation, drain or wait.

Liveness asks whether the process should be killed and started anew, readiness whether it may be
sent work now. The test is one question: would waiting cure it? What heals by itself is taken out
of rotation and kept, with all it has in memory; what cannot heal is restarted, since nothing else
ever brings it back. The table below is the whole decision.

    would waiting cure it? ── no ──► restart (liveness)
                           ── yes ─► remove from rotation (readiness), keep it running
    nothing is wrong with it, and it has to go ──► drain

Every restart is preceded by removal: readiness fails at once, and the restart comes when nothing
got better for a while. What should heal by itself, and has not with nothing left to finish there,
is not what it seemed, and is restarted too. Rejected: one probe for both. It either kills busy
replicas, whose load then kills the next, or keeps broken ones out of rotation for ever.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.core.health.lifecycle import Conclusion, Signal


class Symptom(StrEnum):
    """The ways in which a replica can be unwell."""

    PROCESS_EXITED = "process_exited"
    PROCESS_STOPPED = "process_stopped"  # frozen by a signal
    PORT_REFUSES = "port_refuses"
    EVERY_PASS_ERRORS = "every_pass_errors"  # noqa: S105 such as a corrupted CUDA context
    GPU_FAULT = "gpu_fault"  # the driver reported one that ends a context
    LOAD_FAILED = "load_failed"  # the server is up and has no model
    LOAD_SILENT = "load_silent"
    STALLED = "stalled"  # requests run and nothing comes out
    WRONG_ANSWERS = "wrong_answers"
    WRONG_AGAIN = "wrong_again"  # after it had proven itself honest
    VERSION_MISMATCH = "version_mismatch"
    KV_FULL = "kv_full"
    BACKPRESSURE_ONLY = "backpressure_only"
    FAILING = "failing"  # some requests, not all
    SLOW = "slow"
    COMPILING = "compiling"
    METRICS_MISSING = "metrics_missing"
    ROLLOUT = "rollout"  # asked to leave
    SPOT_NOTICE = "spot_notice"


class Response(StrEnum):
    """What to do about a symptom: restart, take out of rotation, drain, or only observe."""

    RESTART = "restart"  # fail liveness
    REMOVE = "remove"  # fail readiness
    DRAIN = "drain"
    OBSERVE = "observe"


@dataclass(slots=True, frozen=True)
class SymptomResponse:
    """The response to one symptom, why, and what would go wrong with the other one (``swapped``).

    A constant of the table ``RESPONSES``.
    """

    response: Response
    why: str
    swapped: str


_RESTART: Final = Response.RESTART
_REMOVE: Final = Response.REMOVE
_DRAIN: Final = Response.DRAIN
_OBSERVE: Final = Response.OBSERVE

RESPONSES: Final[dict[Symptom, SymptomResponse]] = {
    Symptom.PROCESS_EXITED: SymptomResponse(
        _RESTART,
        "there is no process left that could recover",
        "a place in rotation waits for ever for a process that is not there",
    ),
    Symptom.PROCESS_STOPPED: SymptomResponse(
        _RESTART,
        "a frozen process answers nothing, holds its memory and cannot thaw itself",
        "it stays frozen, and its hardware with it, until somebody happens to look",
    ),
    Symptom.PORT_REFUSES: SymptomResponse(
        _RESTART,
        "a server that gave up its port does not open it again",
        "it is out of rotation for ever and nobody is told to start another",
    ),
    Symptom.EVERY_PASS_ERRORS: SymptomResponse(
        _RESTART,
        "a corrupted context never recovers inside its process; only a new process gets a new one",
        "it is out of rotation, keeps its GPU and errs for ever: capacity is lost without an end",
    ),
    Symptom.GPU_FAULT: SymptomResponse(
        _RESTART,
        "the driver ended the context of this process",
        "it is out of rotation, keeps its GPU and errs for ever",
    ),
    Symptom.LOAD_FAILED: SymptomResponse(
        _RESTART,
        "engines load once, at their start: what is running will never have a model",
        "an empty server counts as a replica that is merely not ready yet, for ever",
    ),
    Symptom.LOAD_SILENT: SymptomResponse(
        _RESTART,
        "a load that said nothing for longer than loads are silent hangs on something that is gone",
        "it loads for ever; the count looks right and the capacity is missing",
    ),
    Symptom.STALLED: SymptomResponse(
        _RESTART,
        "a scheduler that stands still with requests in it does not start again by itself",
        "its requests are moved away, and it stands still for ever",
    ),
    Symptom.WRONG_ANSWERS: SymptomResponse(
        _REMOVE,
        "right answers can still prove it honest, and the process is the evidence of the cause",
        "the evidence is gone, and the same weights on the same hardware answer wrong again",
    ),
    Symptom.WRONG_AGAIN: SymptomResponse(
        _RESTART,
        "it lied after it was believed again: no answer of this process proves anything any more",
        "a replica that nothing can readmit holds its hardware for ever",
    ),
    Symptom.VERSION_MISMATCH: SymptomResponse(
        _RESTART,
        "a running process does not change its revision; one started as declared has the right one",
        "it never becomes what was declared, and the revision it should be lacks a replica",
    ),
    Symptom.KV_FULL: SymptomResponse(
        _REMOVE,
        "memory comes back as its generations finish: it only must not be sent more",
        "the generations it was finishing are lost with minutes of work, and while it loads again "
        "their load fills the next replica, which is killed in turn",
    ),
    Symptom.BACKPRESSURE_ONLY: SymptomResponse(
        _REMOVE,
        "it says itself that it is busy and not ill",
        "what it is busy with is lost, and its load makes the next one just as busy",
    ),
    Symptom.FAILING: SymptomResponse(
        _REMOVE,
        "what still succeeds there would be lost; canaries tell when it is well again",
        "a passing fault of the network becomes minutes of loading",
    ),
    Symptom.SLOW: SymptomResponse(
        _OBSERVE,
        "a slow answer is an answer: a tenth of its share is cure enough",
        "its load makes the others slow too, until nobody is left in time",
    ),
    Symptom.COMPILING: SymptomResponse(
        _OBSERVE,
        "it is on its way, and silent for reasons",
        "it compiles from the beginning, again and again",
    ),
    Symptom.METRICS_MISSING: SymptomResponse(
        _OBSERVE,
        "what cannot be seen is unknown, neither empty nor full, and its answers still tell",
        "a fleet that serves well is put out by a page that nobody needs",
    ),
    Symptom.ROLLOUT: SymptomResponse(
        _DRAIN,
        "nothing is wrong with it: what it began it may finish, and it gets nothing new",
        "killed, its streams are cut; merely not ready, it never leaves and the rollout hangs",
    ),
    Symptom.SPOT_NOTICE: SymptomResponse(
        _DRAIN,
        "it is well and will be taken: the notice is the time to finish or to move its work",
        "restarted, it loads on hardware that is about to go, and the time of the notice is lost",
    ),
}

# What put a replica into quarantine, as the symptom it is.
CAUSES: Final[dict[Signal | Conclusion, Symptom]] = {
    Signal.FROZEN: Symptom.PROCESS_STOPPED,
    Signal.STALLED: Symptom.STALLED,
    Signal.NO_SUCCESS: Symptom.BACKPRESSURE_ONLY,
    Signal.NO_HEADROOM: Symptom.KV_FULL,
    Signal.DRAINS_ITSELF: Symptom.BACKPRESSURE_ONLY,
    Signal.WRONG_REVISION: Symptom.VERSION_MISMATCH,
    Conclusion.FAILED_REPEATEDLY: Symptom.EVERY_PASS_ERRORS,
    Conclusion.WRONG_REPEATEDLY: Symptom.WRONG_ANSWERS,
}


def symptom_of(cause: Signal | Conclusion, *, right_since: bool, barred: bool) -> Symptom:
    """Return the ``Symptom`` of a quarantined replica, from what led there and its answers since.

    ``right_since``: it answered right since then; ``barred``: only a relaunch can readmit it.
    FAILING for a cause that has no symptom of its own.
    """
    symptom = CAUSES.get(cause, Symptom.FAILING)
    if symptom is Symptom.EVERY_PASS_ERRORS and right_since:
        return Symptom.FAILING
    return Symptom.WRONG_AGAIN if symptom is Symptom.WRONG_ANSWERS and barred else symptom


def spares_work(symptom: Symptom) -> bool:
    """Whether the response to this symptom is no restart, so that what runs there may end."""
    return RESPONSES[symptom].response is not Response.RESTART


__all__ = [
    "CAUSES",
    "RESPONSES",
    "Response",
    "Symptom",
    "SymptomResponse",
    "spares_work",
    "symptom_of",
]
