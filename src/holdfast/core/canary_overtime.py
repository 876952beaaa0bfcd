"""Decides how long a canary's answer that is overdue is read on, and how its pieces are read.

    overdue, and ─► pieces come steadily, or twice seconds apart ─► enough is known: it ends
                 ├► it began and stands still ─► read on: the next piece tells a drip from a stall
                 ├► it began at once, paused once ─► read on: the next piece tells a drip from that
                 └► nothing came ─► it ends; where nobody waits for the verdict, it has longer

How an answer fails shows in the times of its pieces, not in how often it is asked for. A replica
whose tokens come five seconds apart looks stalled to every canary that gives up before the second
of them, however many are sent. Nor does one pause prove a drip: a host that stood still for a
moment makes one as well. So the verdict that the answer is overdue is told when it is due, and the
same answer is read on until it tells what is wrong. An answer with two pauses of seconds drips; one
that is slow throughout and pauses once is slow.

Rejected: longer canaries for replicas in quarantine alone. The first canaries of a failure, which
see it begin, are then wasted, and its name waits for two more.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.core.types import nanos, seconds

APART_S: Final = 2.0  # between pieces of one short answer: no engine that merely is slow
_STILL_S: Final = 6.0  # without a piece, while somebody waits for the verdict: a stall, or as good


@dataclass(slots=True, frozen=True)
class BodyPieces:
    """When the pieces of one answer came so far, in seconds; all zero where none came."""

    moved_s: float = 0.0  # from the first to the last
    gap_s: float = 0.0  # the longest time between two of them
    quiet_s: float = 0.0  # since the last; since the head of the answer, where that is all
    began: bool = False  # at least one came
    headed: bool = False  # at least the head of the answer came
    next_gap_s: float = 0.0  # the second longest time between two of them

    @property
    def flow(self) -> "PieceFlow":
        """Return how the pieces came: steadily, with pauses, or no longer."""
        if not self.began:
            return PieceFlow.NONE
        if self.next_gap_s >= APART_S:
            return PieceFlow.APART
        paused = self.gap_s >= APART_S
        rest_s = self.moved_s - self.gap_s if paused else self.moved_s
        if paused and rest_s < APART_S:
            return PieceFlow.PAUSED
        if self.quiet_s >= APART_S:
            return PieceFlow.STOPPED
        return PieceFlow.STEADY if rest_s >= APART_S else PieceFlow.TOO_FEW


class PieceFlow(StrEnum):
    """How the pieces of an answer come that is not complete in time."""

    NONE = "none"  # not at all
    TOO_FEW = "too_few"  # they came just now: nothing can be said yet
    STEADY = "steady"  # one soon after the other, for a while: it is slow
    PAUSED = "paused"  # one pause of seconds explains why it is late: anybody's host may do that
    APART = "apart"  # with several pauses of seconds: tokens drip
    STOPPED = "stopped"  # they came, and no longer do


_CLEAR: Final = (PieceFlow.STEADY, PieceFlow.APART)


def overtime(pieces: BodyPieces, waited: int, longest: int, *, unhurried: bool = False) -> int:
    """Return how many ns longer to wait for a canary's overdue answer; 0: end it now.

    ``waited`` and ``longest`` (ns) count from the question. Ask again when that time is over and
    when a piece comes. ``unhurried``: nobody waits for the verdict, so that silence may last up to
    ``longest``.
    """
    first_s = seconds(waited) - pieces.moved_s - pieces.quiet_s
    if pieces.flow in _CLEAR or (pieces.flow is PieceFlow.PAUSED and first_s >= APART_S):
        return 0
    left = max(0, longest - waited)
    if unhurried:
        return left
    if not pieces.headed:
        return 0
    return min(left, max(0, nanos(_STILL_S - pieces.quiet_s)))


__all__ = ["APART_S", "BodyPieces", "PieceFlow", "overtime"]
