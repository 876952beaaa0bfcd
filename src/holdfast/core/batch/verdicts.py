"""What an answer of the gateway means for a batch item: done, failed for good, or tried again.

    status              verdict
    200                 done
    400 … 422, 501      failed: the request itself is wrong; asked again it is as wrong
    429, 503, 504, 500  again: the fleet or the tenant's quota had no room just then
    502 replica_lost    suspect: so were all others on that replica; again, with no other beside it
                        the second time poison: it was on its own then
    502 replicas_lost   poison: two replicas were lost with it; no third is tried
    502 else            again: no replica gave a whole answer
    none                wait: the gateway went away in the middle

An item is *received* each time it is sent and its own fault cannot be ruled out. While a model is
down nothing is received: the runner stops feeding it, and what it had under way is given back
uncounted. After ``receives_max`` an item that still has no answer goes to the dead letters, with
the reason of each time. A lost replica is not counted so: whose fault it was is found out by
``suspect_turns``, and at the second one the item is a dead letter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.core.types import require


class ItemVerdict(StrEnum):
    """What becomes of a batch item after an answer: done, failed, again, wait, or poison."""

    DONE = "done"
    FAILED = "failed"  # for good: its line in the error file says why
    AGAIN = "again"  # counted: its own fault cannot be ruled out
    WAIT = "wait"  # not counted: the fleet or a quota had no room
    SUSPECT = "suspect"  # its replica was lost: again, with no other item beside it
    POISON = "poison"  # to the dead letters at once


@dataclass(slots=True, frozen=True)
class ItemPolicyConfig:
    """Settings: how often a batch item is tried, and the pause in seconds between tries."""

    receives_max: int = 3  # then it goes to the dead letters: a third crash is no accident
    pause_s: float = 1.0  # before the second try, doubling; the fleet mends in seconds
    pause_max_s: float = 60.0  # a rollout or a restart is over by then

    def __post_init__(self) -> None:
        fix = "use 1 to 100"
        given = self.receives_max
        require(1 <= given <= 100, "batch.items.receives_max", f"is {given}", fix)
        pause, most = self.pause_s, self.pause_max_s
        require(pause > 0, "batch.items.pause_s", f"is {pause}", "use more than 0 seconds")
        fix = f"use batch.items.pause_s ({pause}) or more"
        require(most >= pause, "batch.items.pause_max_s", f"is {most}", fix)


_NO_ROOM: Final = frozenset({401, 429, 503, 507})  # 401: the gateway of a successor, for a moment
LOST: Final = "replica_lost"  # the gateway's code: the connection broke, no other was tried
_TWO_LOST: Final = "replicas_lost"
_NOT_SERVED: Final = 501  # the engines cannot do this at all
_POISON_CODES: Final = frozenset({_TWO_LOST, "request_blocked"})


def judge_answer(status: int, code: str = "", losses: int = 0) -> ItemVerdict:
    """The verdict on a batch item's answer; ``status`` 0: the connection broke before one came.

    2xx is done, no room waits uncounted, 408, 5xx and broken connections are tried again, other 4xx
    and 501 fail for good. ``losses``: replicas lost with the item before; with one it ran on its
    own now.
    """
    if code == LOST:
        return ItemVerdict.POISON if losses else ItemVerdict.SUSPECT
    if code in _POISON_CODES:
        return ItemVerdict.POISON
    if 200 <= status < 300:
        return ItemVerdict.DONE
    if status in _NO_ROOM:
        return ItemVerdict.WAIT
    if status == 408 or (status >= 500 and status != _NOT_SERVED):
        return ItemVerdict.AGAIN
    return ItemVerdict.AGAIN if status < 400 else ItemVerdict.FAILED


def tells_loss(code: str) -> bool:
    """Whether an answer with this error code says that a replica was lost with its request."""
    return code in {LOST, _TWO_LOST}


def failures_of(story: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """How often an item failed, and how many replicas were lost with it, by its story.

    Entries without a note are not the item's own: its holder was killed, or a lease ran out.
    """
    codes = [entry["note"].get("code") for entry in story if "note" in entry]
    losses = codes.count(LOST)
    return len(codes) - losses, losses


def pause_before(tries: int, config: ItemPolicyConfig) -> float:
    """Return seconds to wait after ``tries`` tries: ``pause_s``, doubling up to ``pause_max_s``."""
    return min(config.pause_max_s, config.pause_s * 2.0 ** min(max(tries - 1, 0), 16))


__all__ = [
    "LOST",
    "ItemPolicyConfig",
    "ItemVerdict",
    "failures_of",
    "judge_answer",
    "pause_before",
    "tells_loss",
]
