"""States of items as numbers, as the stores with tables keep them, and what a token may do."""

from typing import Final

from holdfast.queue_port import ItemState, Lease, LeaseAnswer

READY, DELAYED, LEASED, DONE, FAILED, DEAD, CANCELLED = range(7)
NUMBER_OF: Final = {
    ItemState.READY: READY,
    ItemState.DELAYED: DELAYED,
    ItemState.LEASED: LEASED,
    ItemState.DONE: DONE,
    ItemState.FAILED: FAILED,
    ItemState.DEAD: DEAD,
    ItemState.CANCELLED: CANCELLED,
}
STATE_OF: Final = {number: state for state, number in NUMBER_OF.items()}


def right_of(lease: Lease, state: int, token: int) -> LeaseAnswer:
    """Whether a lease still has the right to change its item, or why not."""
    if str(token) != lease.token:
        return LeaseAnswer.FENCED
    if state in {DONE, FAILED}:
        return LeaseAnswer.REPEATED
    return LeaseAnswer.FENCED if state in {DEAD, CANCELLED} else LeaseAnswer.OK


__all__ = [
    "CANCELLED",
    "DEAD",
    "DELAYED",
    "DONE",
    "FAILED",
    "LEASED",
    "NUMBER_OF",
    "READY",
    "STATE_OF",
    "right_of",
]
