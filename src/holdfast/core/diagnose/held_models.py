"""Names the models whose queues are not worked off, because an incident says that they are down.

A replica that dies of its first request is ready in between, again and again. A queue that feeds it
loses a receive of each message to it, until all of them are dead letters; then the queue looks like
the cause, and is the consequence. So nothing is received while every replica of a model is part of
an incident of such a kind. The incident's end lets the queue flow again.

Rejected: any incident. A slow replica, or a leak that has hours to go, still answers.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from holdfast.core.diagnose.evidence import Incident, Sign, Stage
from holdfast.core.failure import Cause

# Whatever is asked, the answer is wrong or does not come.
_NO_ANSWER: Final = frozenset(
    {
        Cause.HUNG,
        Cause.STARVED,
        Cause.ALL_SILENT,
        Cause.WRONG_OUTPUT,
        Cause.DEGENERATE_OUTPUT,
        Cause.EMPTY_OUTPUT,
        Cause.MALFORMED_OUTPUT,
        Cause.SERVER_ERRORS,
        Cause.FAST_FAILURES,
        Cause.CUDA_CORRUPTED,
        Cause.WRONG_REVISION,
    }
)
# A single end is mended by a start; one that comes again with each request is not.
_ENDS: Final = frozenset(
    {
        Cause.CRASHED,
        Cause.OUT_OF_MEMORY,
        Cause.UNDERSIZED,
        Cause.LOAD_FAILED,
        Cause.LOAD_OUT_OF_MEMORY,
        Cause.DRIVER_MISMATCH,
        Cause.GPU_FAULT,
        Cause.COLLECTIVE_TIMEOUT,
        Cause.MISPLACED,
    }
)
_AGAIN: Final = frozenset({Sign.EXITS_AGAIN, Sign.EXITED_ON_REQUEST})


def held_models(
    incidents: Iterable[Incident], replicas: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Return the models whose queues should not be worked off, each with the title of an incident.

    A model is held if each of its replicas (``replicas``: ids by model) is in an open incident with
    no usable answers or with repeated ends. Slow ones and leaks hold nothing. Only tells; stops no
    queue.
    """
    concerned: dict[str, set[str]] = {}
    titles: dict[str, str] = {}
    for incident in incidents:
        if incident.stage is Stage.CLOSED or not _holds(incident):
            continue
        for model, ids in replicas.items():
            whole = incident.about.model == model and not incident.about.replica
            own = set(ids) if whole and not incident.replicas else set(ids) & set(incident.replicas)
            if incident.about.replica in ids:
                own.add(incident.about.replica)
            if own:
                concerned.setdefault(model, set()).update(own)
                titles.setdefault(model, incident.title)
    return {model: titles[model] for model, own in concerned.items() if own >= set(replicas[model])}


def _holds(incident: Incident) -> bool:
    if incident.cause in _NO_ANSWER:
        return True
    seen = {piece.sign for piece in (*incident.evidence, *incident.consequences)}
    return incident.cause in _ENDS and bool(seen & _AGAIN)


__all__ = ["held_models"]
