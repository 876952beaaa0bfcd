"""Counts a replica's wrong canary answers, and remembers that it was right again by itself.

A model whose best tokens are nearly tied answers a canary in more than one way: which one depends
on the batch it is computed in. Such a model has replicas that are wrong now and then, and right
again without a restart. That is a property of the model, so it is remembered for an hour, beyond
the end of a process; the latest answers, of which the wrong ones are told, are one process's.

Rejected: the latest answers alone. Twenty of them are less than two minutes, and a near tie falls
the other way every few minutes: each replica in turn was taken for the only one.
"""

from collections import deque
from itertools import takewhile
from typing import Final

from holdfast.core.types import SECOND

_RECENT: Final = 20  # answers of which the wrong ones are counted
_VARIED: Final = 3_600 * SECOND  # how long it counts that a replica was wrong, and right again


class AnswerSteadiness:
    """The latest right and wrong answers of one replica, and whether it varies by itself."""

    __slots__ = ("_recent", "_varied_at")

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=_RECENT)  # wrong or not, of the answers that came
        self._varied_at: int | None = None  # when a right answer followed a wrong one

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, now: int, *, wrong: bool) -> None:
        """Add an answer to a canary."""
        if self._recent and self._recent[-1] and not wrong:
            self._varied_at = now
        self._recent.append(wrong)

    def begin_process(self) -> None:
        """Drop the latest answers: those of a process that ended say nothing of the next one."""
        self._recent.clear()

    @property
    def is_known(self) -> bool:
        """Whether any answer came that still counts."""
        return bool(self._recent) or self._varied_at is not None

    @property
    def wrong(self) -> int:
        """How many of the latest answers were wrong."""
        return sum(self._recent)

    @property
    def wrong_row(self) -> int:
        """How many of the latest answers, counted back from the last one, were wrong in a row."""
        return len([*takewhile(bool, reversed(self._recent))])

    def varies(self, now: int) -> bool:
        """Whether it was wrong and right again within the last hour, and is not wrong now."""
        if self._varied_at is None or self.wrong_row:
            return False
        return now - self._varied_at <= _VARIED


__all__ = ["AnswerSteadiness"]
