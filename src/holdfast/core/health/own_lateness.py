"""Measures how late this process is itself, and what that excuses a replica for.

A probe measures two machines at once. When this process was late, a missing answer may be ours: it
is excused once, and the replica is asked again at once.

    no answer in time, we were late ─► the first of a row: excused, ask again
                                    └► the next: it counts, unless most of the wait was ours

Whatever came, came: an answer, an error, a refusal and a reset count however late we were. Excusing
every missing answer was rejected: on two busy cores the loop is late a little all the time, and a
replica that hangs would never be found.
"""

from collections import deque
from typing import Final

from holdfast.core.types import MILLISECOND

LATE: Final = 50 * MILLISECOND  # of this loop: as long as a whole answer on a LAN
LATE_KEPT: Final = 1_024  # late ticks: a canary's longest wait has room for fewer
EXCUSES_MAX: Final = 6  # in a row, of one replica: half a minute in which most of the wait was ours


class LoopWatch:
    """Measures how late this process's own event loop runs; ``beat`` must be called at each tick.

    It keeps the last 1,024 ticks that were late by more than 50 ms.
    """

    __slots__ = ("_due", "_late", "_pace")

    def __init__(self, pace: int, now: int) -> None:
        self._pace = pace
        self._due = now + pace
        self._late: deque[tuple[int, int]] = deque(maxlen=LATE_KEPT)  # when ticks were due and came

    def beat(self, now: int) -> int:
        """Record a tick; return by how many ns it came late, 0 for up to 50 ms."""
        late = now - self._due
        if late > LATE:
            self._late.append((self._due, now))
        self._due = now + self._pace
        return late if late > LATE else 0

    def late_within(self, since: int, now: int) -> int:
        """Return how many ns between ``since`` and ``now`` this process was late by over 50 ms."""
        late = now - max(self._due, since) if now - self._due > LATE else 0
        for due, came in reversed(self._late):
            if came <= since:
                break
            late += min(came, now) - max(due, since)
        return max(0, late)


class LatenessExcuses:
    """Decides, by replica, whether this process's own lateness excuses a missing answer.

    It keeps how many were excused in a row; from the second on most of the wait must have been
    ours, and six are the most.
    """

    __slots__ = ("_given",)

    def __init__(self) -> None:
        self._given: dict[str, int] = {}  # excuses in a row, since anything came

    def excuses(self, replica_id: str, late: int, waited: int) -> bool:
        """Whether an answer that did not come in ``waited`` is excused; notes that it was.

        ``late`` is the part of the wait in which this process was late itself.
        """
        given = self._given.get(replica_id, 0)
        mostly_ours = 2 * late > waited and given < EXCUSES_MAX
        if not late or (given and not mostly_ours):
            return False
        self._given[replica_id] = given + 1
        return True

    def end_row(self, replica_id: str) -> None:
        """Let the next missing answer be excused again: something came, or the replica left."""
        self._given.pop(replica_id, None)


def own_time_taken_off(latency: int, late: int) -> int:
    """An answer's time (ns) less the part in which this process was late; 0 = not known.

    Not known where more than a quarter of it was our own lateness.
    """
    if not late:
        return latency
    return latency - late if 4 * late <= latency else 0


__all__ = [
    "EXCUSES_MAX",
    "LATE",
    "LATE_KEPT",
    "LatenessExcuses",
    "LoopWatch",
    "own_time_taken_off",
]
