"""The interface of a routing policy: given a request and candidates, it returns one and why.

The candidates handed in are those that health and breaker already agreed to. A policy still has to
leave out who was tried before and who is full, because both differ from request to request. It must
not do so by filtering the list: for sixty-four replicas that costs more than the choice itself. So
policies look at few candidates and only scan all when those few cannot be used.

The pool passes a *new* list object whenever its membership changed, and the same object otherwise.
Policies that prepare something per list compare identity and length, and hold the list they
prepared for, so that its identity cannot be reused.

Rejected: returning an index or an id. The caller would have to look it up again, in a list that may
have been replaced meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.core.types import Request

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

Choice = tuple["Candidate", str]
"""Who gets the request, and a constant that says why."""


class RoutingPolicy(Protocol):
    """The interface of a routing policy: chooses a candidate, and never sends anything itself.

    The candidates passed in already have weight and a closed breaker.
    """

    name: str

    def choose(
        self, request: Request, candidates: Sequence[Candidate], tried: Collection[str], now: int
    ) -> Choice | None:
        """Choose a candidate with room whose id is not in ``tried``.

        Returns (candidate, reason), or ``None``.
        """
        ...


def may_take(candidate: Candidate, tried: Collection[str]) -> bool:
    """Whether a candidate has room and its id is not in ``tried``."""
    return candidate.inflight < candidate.limit and candidate.id not in tried


__all__ = ["Choice", "RoutingPolicy", "may_take"]
