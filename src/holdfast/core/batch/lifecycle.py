"""The states of a batch and what leads from one to the next: one table.

    validating ─► in_progress ─► finalizing ─► completed
        │              ├─► cancelling ─► cancelled
        └─► failed     └─► expiring ───► expired      (results so far are kept in both)

``expiring`` is ours: OpenAI shows ``in_progress`` until the output of an expired batch is written.
An event that has no row in the table is refused with the state it met.
"""

from enum import StrEnum
from typing import Final


class BatchState(StrEnum):
    """The state of a batch, under the names of OpenAI's API; ``EXPIRING`` is Holdfast's own."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRING = "expiring"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class BatchEvent(StrEnum):
    """What happens to a batch: lines checked, all done, files written, cancelled, window over."""

    VALID = "valid"  # every line was checked and stands in the queue
    INVALID = "invalid"  # at least one line cannot be run
    ALL_DONE = "all_done"  # every line has its terminal record
    WRITTEN = "written"  # output and error file are on disk
    CANCEL = "cancel"
    EXPIRE = "expire"  # its window is over


ENDED: Final = frozenset(
    {BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED}
)
WRITES_OUTPUT: Final = frozenset(
    {BatchState.FINALIZING, BatchState.EXPIRING, BatchState.CANCELLING}
)

_V, _P, _F = BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING
_C, _E = BatchState.CANCELLING, BatchState.EXPIRING
TRANSITIONS: Final[dict[tuple[BatchState, BatchEvent], BatchState]] = {
    (_V, BatchEvent.VALID): _P,
    (_V, BatchEvent.INVALID): BatchState.FAILED,
    (_V, BatchEvent.CANCEL): _C,
    (_V, BatchEvent.EXPIRE): _E,
    (_P, BatchEvent.ALL_DONE): _F,
    (_P, BatchEvent.CANCEL): _C,
    (_P, BatchEvent.EXPIRE): _E,
    (_F, BatchEvent.WRITTEN): BatchState.COMPLETED,
    (_F, BatchEvent.EXPIRE): _F,  # all is done: the output is written, late or not
    (_C, BatchEvent.WRITTEN): BatchState.CANCELLED,
    (_C, BatchEvent.CANCEL): _C,  # asked twice: one cancellation
    (_C, BatchEvent.EXPIRE): _C,  # it ends as its owner wished
    (_E, BatchEvent.WRITTEN): BatchState.EXPIRED,
    (_E, BatchEvent.EXPIRE): _E,
}


class BatchTransitionError(ValueError):
    """Raised for an event that a batch in this state cannot take; has ``state`` and ``event``."""

    def __init__(self, state: BatchState, event: BatchEvent) -> None:
        super().__init__(f"a batch that is {state} cannot take {event}")
        self.state = state
        self.event = event


def follow(state: BatchState, event: BatchEvent) -> BatchState:
    """Return the state after an event; raises ``BatchTransitionError`` if the table has none.

    Stores nothing. Some events leave the state as it is, such as a second cancel.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise BatchTransitionError(state, event)
    return after


def may_take(state: BatchState, event: BatchEvent) -> bool:
    """Return whether a batch in this state can take an event: ``follow`` would not raise."""
    return (state, event) in TRANSITIONS


__all__ = [
    "ENDED",
    "TRANSITIONS",
    "WRITES_OUTPUT",
    "BatchEvent",
    "BatchState",
    "BatchTransitionError",
    "follow",
    "may_take",
]
