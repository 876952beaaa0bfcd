"""Choose the replica with the least in flight for its weight, after looking at all of them.

The load compared is the one after this request: ``(in flight + 1) / weight``. Without the one, an
idle suspect at a tenth of its weight would look as good as an idle healthy replica. Ties, which are
the rule in an idle fleet, are broken at random, or the first of the list would get all the traffic.

Its price is O(n) per choice. Rejected for the default: with several gateways, each sees only its
own requests, all of them find the same replica empty after it recovers, and send it everything at
once; two random samples cannot agree like that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice
from holdfast.core.types import Request

# ruff: noqa: ARG002 - every policy has the signature of the port

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_LEAST: Final = "least in flight for its weight"
_TIED: Final = "least in flight for its weight, drawn among equals"


class LeastLoaded:
    """Chooses the replica with the fewest attempts in flight for its weight, of all."""

    __slots__ = ("_random",)
    name = "least_loaded"

    def __init__(self, rng: Random) -> None:
        self._random = rng.random

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """The candidate with the least ``(in flight + 1) / weight`` of all, drawn among equals.

        ``None`` if all are full or in ``tried``.
        """
        least = float("inf")
        tied: list[Candidate] = []
        for candidate in candidates:
            inflight = candidate.inflight
            if inflight >= candidate.limit or (tried and candidate.id in tried):
                continue
            load = (inflight + 1) / candidate.weight
            if load < least:
                least = load
                tied = [candidate]
            elif load == least:
                tied.append(candidate)
        if len(tied) > 1:
            return tied[int(self._random() * len(tied))], _TIED
        return (tied[0], _LEAST) if tied else None


__all__ = ["LeastLoaded"]
