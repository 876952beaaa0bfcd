"""Measures how fast the tokens of a canary's answer came, once the first was there.

    first piece ... last piece, without the longest pause between two of them ─► steady time
        ├─► 6 times what is usual for this replica, with nothing beside
        └─► and 2.5 times what its peers took last ─► slow all along

The first token waits for whoever's prompt is read before it. The tokens after it come at the speed
of the engine, and no single pause makes all of them late. Of three replicas of llama.cpp on a busy
machine, in good health and beside up to two users, the whole answer took 0.3 to 2.6 s, and its
steady time 0.2 to 0.9 s; at a tenth of the speed 3.1 to 5.6 s and 2.2 to 3.6 s.

Rejected: the whole answer, without its longest pause. What is usual is learned from few canaries
after a start, some of which waited for their first token, and a replica at a tenth of its speed
then looked as if it had lost three quarters of it.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

from holdfast.core.diagnose.facts import CanaryAnswered
from holdfast.core.health.baseline import UsualLatency
from holdfast.core.types import nanos, seconds

_USUAL_MIN: Final = 8  # answers of its own before the pool's are left out: fewer vary by half
_USUAL_FACTOR: Final = 6.0  # a few users beside it and a neighbour make four of it
_PEERS_FACTOR: Final = 2.5  # of what peers took last, with users beside them or without
_FLOOR_S: Final = 0.25  # beyond the usual: below it nobody notices


def steady_time(fact: CanaryAnswered) -> float | None:
    """Return how long (s) the tokens after the first took, without their longest pause.

    Of an answer in one piece it is the whole time; ``None``: no answer, or nobody measured.
    """
    if fact.moved_s is not None and fact.gap_s is not None:
        return fact.moved_s - fact.gap_s
    return fact.latency_s if fact.verdict.right else None


class AnswerPace:
    """The steady times of one replica's canaries: what is usual, and the latest."""

    __slots__ = ("_latest_at", "_latest_s", "_usual")

    def __init__(self) -> None:
        self._usual = UsualLatency()  # of those in good time, with nothing beside them
        self._latest_s: float | None = None
        self._latest_at = 0

    def add(self, fact: CanaryAnswered, now: int, *, usual: bool) -> None:
        """Add a right answer; ``usual``: it was in good time, and nothing ran beside it."""
        took_s = steady_time(fact)
        if took_s is None:
            return
        self._latest_s, self._latest_at = took_s, now
        if usual:
            self._usual.add(nanos(took_s))

    def latest(self, now: int, fresh: int) -> float | None:
        """Return the steady time (s) of its last right answer; ``None``: none for ``fresh`` ns."""
        return self._latest_s if 0 <= now - self._latest_at <= fresh else None

    @property
    def usual_s(self) -> float | None:
        """The median of its usual steady times (s); ``None``: there is none yet."""
        return seconds(self._usual.median()) if self._usual else None

    def is_slow(
        self,
        fact: CanaryAnswered,
        peers: Sequence["AnswerPace"],
        now: int,
        *,
        fresh: int,
        explained: float = 1.0,
    ) -> bool:
        """Return whether this answer was slow all along: by its own past and by its peers' latest.

        Until it has a past, that of all of them counts. ``fresh`` (ns) is how long a peer's answer
        is its latest, and ``explained`` how many times as long as usual it may take for reasons
        that are known. False where there is nothing to compare with, and for an answer in one
        piece, of which nobody knows when its tokens came.
        """
        if fact.moved_s is None or fact.gap_s is None:
            return False
        known = [self] if len(self._usual) >= _USUAL_MIN else [self, *peers]
        usual = [one.usual_s for one in known if one.usual_s is not None]
        lately = [one_s for peer in peers if (one_s := peer.latest(now, fresh)) is not None]
        if not usual:
            return False
        usual_s = explained * median(usual)
        least_s = _PEERS_FACTOR * median(lately) if lately else 0.0
        took_s = fact.moved_s - fact.gap_s
        return took_s >= max(_USUAL_FACTOR * usual_s, usual_s + _FLOOR_S, least_s)


__all__ = ["AnswerPace", "steady_time"]
