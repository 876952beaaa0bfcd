"""Choose at random, each replica in proportion to its weight, without looking at load.

The baseline against which the other policies are measured, and the right one where load cannot be
seen at all. A uniform draw is accepted with probability ``weight / heaviest weight``: the digits
after the point of the same draw decide, so one random number serves both. Full and tried candidates
are refused the same way, which keeps the others in exact proportion.

Rejected: an alias table or cumulative sums. Both answer in one step but have to be rebuilt whenever
a weight moves, and slow start moves weights all the time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice, may_take
from holdfast.core.types import Request

# ruff: noqa: ARG002 - every policy has the signature of the port

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_DRAWS: Final = 6  # with weights up to six times the mean a scan is rarely needed
_CHECK_EVERY: Final = 256  # choices until a heaviest weight that has gone down is noticed

_DRAWN: Final = "drawn by weight"
_SCANNED: Final = "drawn by weight from those with room"


class Weighted:
    """Chooses a replica at random, in proportion to its weight."""

    __slots__ = ("_check_in", "_heaviest", "_list", "_random", "_size")
    name = "weighted"

    def __init__(self, rng: Random) -> None:
        self._random = rng.random
        self._list: Sequence[Candidate] = ()
        self._size = 0
        self._heaviest = 1.0
        self._check_in = 0

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """A candidate with room and not in ``tried``, drawn in proportion to weight.

        ``None`` if none.
        """
        self._check_in -= 1
        if candidates is not self._list or len(candidates) != self._size or self._check_in <= 0:
            self._adopt(candidates)
        size = self._size
        if size == 0:
            return None
        for _ in range(_DRAWS):
            place = self._random() * size
            index = int(place)
            candidate = candidates[index]
            if (
                (place - index) * self._heaviest < candidate.weight
                and candidate.inflight < candidate.limit
                and (not tried or candidate.id not in tried)
            ):
                if candidate.weight > self._heaviest:  # noqa: PLR1730 - max() is a call
                    self._heaviest = candidate.weight
                return candidate, _DRAWN
        return self._scan(candidates, tried)

    def _scan(self, candidates: Sequence[Candidate], tried: Collection[str]) -> Choice | None:
        """The exact draw, over all that could take it."""
        total = 0.0
        for candidate in candidates:
            if may_take(candidate, tried):
                total += candidate.weight
        place = self._random() * total
        chosen: Candidate | None = None
        for candidate in candidates:
            if may_take(candidate, tried):
                chosen = candidate
                place -= candidate.weight
                if place < 0:
                    break
        return None if chosen is None else (chosen, _SCANNED)

    def _adopt(self, candidates: Sequence[Candidate]) -> None:
        self._list = candidates
        self._size = len(candidates)
        self._heaviest = max([candidate.weight for candidate in candidates], default=1.0)
        self._check_in = _CHECK_EVERY


__all__ = ["Weighted"]
