"""How long the rest of some work takes, from what was done so far.

Rejected: the mean since the beginning. The first items of a run are slow (models wake, the pace
grows), and their mean stays too low for the whole first tenth. So the rate is that of the recent
past, over at least a minute or a tenth of the work where that took longer. Nor does the time until
the first items are done count, once there are a few more to go by: a file is uploaded and checked.
"""

from collections import deque
from typing import Final

from holdfast.core.types import SECOND

_MARKS_MAX: Final = 512  # points kept; each second one is dropped beyond
_SPAN_MIN: Final = 60 * SECOND
_MARKS_KNOWN: Final = 5  # points after which the beginning, before anything was done, is dropped


def drain_estimate(remaining: int, done: int, span: int) -> float | None:
    """Return seconds until nothing remains, at the rate of ``done`` in ``span`` ns.

    0 if nothing remains, None if nothing was done in the span.
    """
    if remaining <= 0:
        return 0.0
    if done <= 0 or span <= 0:
        return None
    return round(remaining * span / done / SECOND, 1)


class ProgressEstimate:
    """Estimates when one piece of work of known size is done, from the rate of the recent past.

    Keeps up to 512 points of progress; what an earlier run had done does not count for the rate.
    """

    def __init__(self, total: int, done: int, now: int) -> None:
        self.total = total
        self._begun_at = now
        self._begun_with = done  # by an earlier run: says nothing about the rate of this one
        self._marks: deque[tuple[int, int]] = deque([(now, done)])

    def saw(self, done: int, now: int) -> None:
        """Note how much is done in all at ``now`` (ns); no progress is not recorded."""
        last = self._marks[-1]
        if done > last[1] and now > last[0]:
            self._marks.append((now, done))
            if len(self._marks) == _MARKS_KNOWN and self._marks[0][0] == self._begun_at:
                self._marks.popleft()
            if len(self._marks) > _MARKS_MAX:
                kept = [mark for index, mark in enumerate(self._marks) if index % 2 == 0]
                self._marks = deque([*kept, self._marks[-1]])

    def left_s(self, now: int) -> float | None:
        """Return seconds until all is done, by the recent rate.

        0 when done, None before any progress.
        """
        done = self._marks[-1][1]
        if done >= self.total:
            return 0.0
        span = max(_SPAN_MIN, (now - self._begun_at) // 4)
        first = next((mark for mark in self._marks if now - mark[0] <= span), self._marks[-1])
        before = [mark for mark in self._marks if mark[0] < first[0]]
        first = before[-1] if before else first
        latest = self._marks[-1]
        if latest[1] <= first[1]:
            first = self._marks[0]
        return drain_estimate(self.total - done, latest[1] - first[1], latest[0] - first[0])


__all__ = ["ProgressEstimate", "drain_estimate"]
