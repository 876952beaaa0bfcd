"""Choose replicas in turn, each as often as its weight says, the same way on every run.

A pointer walks the list. At every visit a candidate earns ``weight / heaviest weight`` of a turn;
who holds a whole turn is chosen and pays it. With equal weights that is plain rotation in O(1).
First credits are spread by the golden ratio, so that light candidates do not come up in a bunch.
Credits belong to the replica, not to a place in the list: when the list changes the pointer goes to
whoever waited longest, so a flapping member neither restarts the rotation nor starves the tail.

Rejected: the usual smooth weighted round robin (add every weight, take the largest): O(n) for each
choice. A heap of next turns: O(log n), but a replica in slow start books its next turn far ahead
while light and would sit it out after it is heavy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice, may_take
from holdfast.core.types import Request

# ruff: noqa: ARG002 - every policy has the signature of the port

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_WHOLE: Final = 1.0 - 1e-9  # ten times 0.1 is a little less than 1 in floats
_GOLDEN: Final = 0.6180339887498949  # multiples of it, modulo 1, never cluster
_TURNS_MAX: Final = 4096  # replicas remembered; beyond, those not in the list are forgotten

_IN_TURN: Final = "next in turn"
_EARLY: Final = "nearest to its turn of those with room"


class _Turn:
    """The credit of one replica, and when it was last chosen."""

    __slots__ = ("credit", "served")

    def __init__(self, credit: float, served: int) -> None:
        self.credit = credit
        self.served = served


class RoundRobin:
    """Chooses the replicas in turn, each as often as its weight says; uses no randomness."""

    __slots__ = ("_at", "_heaviest", "_list", "_size", "_tick", "_turns", "_turns_by_id")
    name = "round_robin"

    def __init__(self) -> None:
        self._list: Sequence[Candidate] = ()
        self._size = 0
        self._turns: list[_Turn] = []  # parallel to the list
        self._turns_by_id: dict[str, _Turn] = {}
        self._at = 0
        self._heaviest = 1.0
        self._tick = 0

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The next candidate whose turn is due, else the nearest to its turn that has room.

        ``None`` if all are full or in ``tried``.
        """
        if candidates is not self._list or len(candidates) != self._size:
            self._adopt(candidates)
        size = self._size
        turns = self._turns
        at = self._at
        for _ in range(size):
            if at >= size:
                at = 0
                self._heaviest = max([candidate.weight for candidate in candidates])
            candidate = candidates[at]
            turn = turns[at]
            at += 1
            weight = candidate.weight
            if weight > self._heaviest:  # noqa: PLR1730 - max() is a call
                self._heaviest = weight
            credit = turn.credit + weight / self._heaviest
            if credit >= _WHOLE:
                if candidate.inflight < candidate.limit and (
                    not tried or candidate.id not in tried
                ):
                    turn.credit = credit - 1.0
                    turn.served = self._tick = self._tick + 1
                    self._at = at
                    return candidate, _IN_TURN
                credit = 1.0  # it keeps this turn, and saves up no second one
            turn.credit = credit
        self._at = at
        return self._early(candidates, tried)

    def _early(self, candidates: Sequence[Candidate], tried: Collection[str]) -> Choice | None:
        """Nobody with room has a whole turn: the heavy ones are full, or were tried."""
        chosen: Candidate | None = None
        chosen_turn = _Turn(-1.0, 0)
        for candidate, turn in zip(candidates, self._turns, strict=True):
            if turn.credit > chosen_turn.credit and may_take(candidate, tried):
                chosen, chosen_turn = candidate, turn
        if chosen is None:
            return None
        chosen_turn.credit = 0.0
        chosen_turn.served = self._tick = self._tick + 1
        return chosen, _EARLY

    def _adopt(self, candidates: Sequence[Candidate]) -> None:
        """A changed list: everyone keeps their credit, whoever waited longest is next."""
        known = self._turns_by_id
        if len(known) > _TURNS_MAX:
            known = {c.id: known[c.id] for c in candidates if c.id in known}
        turns = []
        for candidate in candidates:
            turn = known.get(candidate.id)
            if turn is None:
                turn = _Turn((len(known) + 1) * _GOLDEN % 1.0, self._tick)
                known[candidate.id] = turn
            turns.append(turn)
        self._turns_by_id = known
        self._list, self._size, self._turns = candidates, len(turns), turns
        if turns:
            self._at = min(range(len(turns)), key=lambda index: turns[index].served)
            self._heaviest = max([candidate.weight for candidate in candidates])


__all__ = ["RoundRobin"]
