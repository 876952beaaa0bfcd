"""Follows one statistic of one replica against its baseline: shifts and spreads, by CUSUM.

Four sums: up and down of normal scores, wider and narrower of distances from the middle. What moved
as a whole is far from the middle, too, so that a spread is judged only where no shift explains it.
"""

from collections.abc import Sequence
from math import log
from typing import Final

from holdfast.core.diagnose.detect.drift.baseline import BINS, Latest, Ruler
from holdfast.core.types import SECOND

HOUR: Final = 3_600 * SECOND
_RECENT: Final = 0.02  # weight of an answer in what a replica is at present: the last 50 or so
# Distances from the middle have a longer tail than scores: with as much slack, chance would tell
# five times as often.
_SPREAD_SLACK: Final = 0.1

UP: Final = "up"
DOWN: Final = "down"
WIDER: Final = "wider"  # more of it far from the middle, on either side
NARROWER: Final = "narrower"


class Side:
    """One direction of a CUSUM: its sum, and what was seen since that was last zero."""

    __slots__ = ("began", "bins", "count", "older", "scores", "sum", "total", "turn_at")

    def __init__(self) -> None:
        self.sum = 0.0
        self._clear()

    def _clear(self) -> None:
        self.bins = [0] * BINS
        self.older = [0] * BINS  # the hour before, so that PSI is of the last hour or two
        self.count = 0
        self.scores = self.total = 0.0
        self.began = self.turn_at = 0

    def add(self, step: float, ceiling: float, decile: int, value: float, now: int) -> None:
        """Add one step to the sum, kept within 0 and ``ceiling``, with its value and decile.

        At 0 all that was collected is cleared.
        """
        level = self.sum + step
        if level <= 0:
            self.sum = 0.0
            if self.count:
                self._clear()
            return
        self.sum = level if level < ceiling else ceiling  # beyond it, recovery would take for ever
        if not self.count:
            self.began, self.turn_at = now, now + HOUR
        elif now >= self.turn_at:
            self.older, self.bins = self.bins, [0] * BINS
            self.turn_at = now + HOUR
        self.count += 1
        self.scores += step
        self.total += value
        self.bins[decile] += 1

    def psi(self, expected: Sequence[float]) -> float:
        """Return the population stability index of the last hour or two against these shares."""
        count = sum(self.bins) + sum(self.older) + 0.5 * BINS
        found = 0.0
        for young, old, share in zip(self.bins, self.older, expected, strict=True):
            here = (young + old + 0.5) / count
            found += (here - share) * log(here / share)
        return found


class Track:
    """One statistic of one replica against one baseline: four CUSUMs and its latest values."""

    __slots__ = ("found", "last", "latest", "moved", "recent", "ruler", "sides")

    def __init__(self, ruler: Ruler) -> None:
        self.ruler = ruler
        self.recent = ruler.baseline.mean  # for charts; it decides nothing
        self.latest = Latest()
        self.sides = {name: Side() for name in (UP, DOWN, WIDER, NARROWER)}
        self.last = 0
        self.found = False  # one side is above its first line, or has not come back far enough
        self.moved = ""  # the side that has moved, while it holds

    def add(self, value: float, now: int) -> None:
        """Add one value of an answer to all four sums and to the latest values; judges nothing."""
        ruler, sides = self.ruler, self.sides
        score, spread, decile = ruler.place(value)
        ceiling = ruler.told_at + 10
        sides[UP].add(score - ruler.slack, ceiling, decile, value, now)
        sides[DOWN].add(-score - ruler.slack, ceiling, decile, value, now)
        slack = ruler.slack + _SPREAD_SLACK
        sides[WIDER].add(spread - slack, ceiling, decile, value, now)
        sides[NARROWER].add(-spread - slack, ceiling, decile, value, now)
        self.recent += _RECENT * (value - self.recent)
        self.latest.add(value)
        self.last = now

    @property
    def level(self) -> float:
        """The largest of the four sums, as a share of the threshold for a report (1: reached)."""
        return max(side.sum for side in self.sides.values()) / self.ruler.told_at

    def slack(self) -> float:
        """Return what was subtracted from each step of the side that moved, in sigma."""
        return self.ruler.slack + (_SPREAD_SLACK if self.moved in (WIDER, NARROWER) else 0.0)

    def suspect(self, found_at: float) -> Side | None:
        """Return the side whose sum just rose above ``found_at``, once; ``None`` otherwise.

        It can be returned again only after the largest sum fell below half of ``found_at``.
        """
        side = max(self.sides.values(), key=lambda one: one.sum)
        before = self.found
        self.found = side.sum > (0.5 * found_at if before else found_at)
        return side if self.found and not before else None

    def _shifted(self, side: Side) -> bool:
        """Whether a spread is that of a shift: what moved as a whole left the middle, too."""
        return 2 * max(self.sides[UP].sum, self.sides[DOWN].sum) > side.sum

    def judge(self, psi_min: float) -> Side | None:
        """Return the side that moved far enough to report, each time while it holds; else ``None``.

        It needs a sum above the threshold and a PSI above ``psi_min``, and holds until half of the
        sum is gone. Sets ``moved``.
        """
        for name, side in self.sides.items():
            if name in (WIDER, NARROWER) and self._shifted(side):
                continue
            limit = self.ruler.told_at * (0.5 if self.moved == name else 1.0)
            if side.sum > limit and side.psi(self.ruler.shares) > psi_min:
                self.moved = name
                return side
        self.moved = ""
        return None


__all__ = ["DOWN", "HOUR", "NARROWER", "UP", "WIDER", "Side", "Track"]
