"""Turns an inference server's counts since its start into figures of the last minute.

Counters only grow, and begin anew with each process: a smaller number is a new process, and what
was counted before it is of no use. Figures need two looks; until then they are unknown.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from holdfast.core.diagnose.facts import InferencesSeen
from holdfast.core.types import SECOND, seconds

SPAN: Final = 60 * SECOND  # that figures look back
_LOOKS_MAX: Final = 32  # of one replica: one each five seconds, and some more
_GROWING: Final = ("successes", "failures", "inferences", "executions", "queue_s", "compute_s")


@dataclass(slots=True, frozen=True)
class InferenceFigures:
    """What an inference server did with one model in the last minute; a record for one replica.

    ``None``: unknown, or nothing to take a mean of.
    """

    span_s: float
    successes: int | None = None
    failures: int | None = None
    queue_s: float | None = None  # mean wait of a request before its execution
    compute_s: float | None = None  # mean time of a request in its execution
    batch: float | None = None  # inferences for each execution of the model

    @property
    def failed_share(self) -> float | None:
        """Failed requests as a share of ended ones, 0 to 1; None if none ended or it is unknown."""
        if self.successes is None or self.failures is None:
            return None
        ended = self.successes + self.failures
        return self.failures / ended if ended else None

    @property
    def ended_s(self) -> float | None:
        """Requests that ended, well or failed, per second; None if neither count is known."""
        if self.successes is None and self.failures is None:
            return None
        return ((self.successes or 0) + (self.failures or 0)) / self.span_s


class InferenceWindow:
    """Keeps the counts of one replica's server over the last minute, to compute figures from."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: deque[tuple[int, InferencesSeen]] = deque(maxlen=_LOOKS_MAX)

    @property
    def last(self) -> InferencesSeen | None:
        """The latest counts, since the server's start; None before the first."""
        return self._looks[-1][1] if self._looks else None

    @property
    def at(self) -> int | None:
        """When the latest counts were added (core time, ns); None before the first."""
        return self._looks[-1][0] if self._looks else None

    def add(self, fact: InferencesSeen, now: int) -> None:
        """Add the counts of one look; older ones leave after a minute.

        A counter that fell means a new process: all earlier looks are dropped.
        """
        # Against all of them: a look that told nothing may stand between two processes.
        if any(_began_anew(old, fact) for _, old in self._looks):
            self._looks.clear()
        self._looks.append((now, fact))
        while len(self._looks) > 2 and now - self._looks[1][0] >= SPAN:
            self._looks.popleft()

    def figures(self) -> InferenceFigures | None:
        """Return what was done between the oldest and the newest look; None before the second."""
        if len(self._looks) < 2:
            return None
        (began, old), (ended, new) = self._looks[0], self._looks[-1]
        if ended <= began:
            return None
        grown = {name: _grown(getattr(old, name), getattr(new, name)) for name in _GROWING}
        successes, executions = grown["successes"], grown["executions"]
        return InferenceFigures(
            seconds(ended - began),
            _whole(successes),
            _whole(grown["failures"]),
            _each(grown["queue_s"], successes),  # the server adds times of answered ones alone
            _each(grown["compute_s"], successes),
            _each(grown["inferences"], executions),
        )


def _began_anew(old: InferencesSeen, new: InferencesSeen) -> bool:
    return any((_grown(getattr(old, name), getattr(new, name)) or 0) < 0 for name in _GROWING)


def _grown(old: float | None, new: float | None) -> float | None:
    return None if old is None or new is None else new - old


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _each(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None


__all__ = ["SPAN", "InferenceFigures", "InferenceWindow"]
