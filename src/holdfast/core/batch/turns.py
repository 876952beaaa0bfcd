"""Whose item is next: tenants take turns by what they used, a tenant's batches go by deadline.

    1. a batch that will miss its deadline at the present rate goes first, in every second turn
    2. else the tenant that used least, by its weight
    3. of that tenant, the batch with the earliest deadline

A tenant that comes back after a pause begins level with the others: unused turns are not saved up.
Rejected: one queue in order of arrival. A tenant with 50,000 lines would keep all others waiting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class OpenBatch:
    """A batch that has items to send, with the figures that decide whose turn is next."""

    id: str
    tenant: str
    deadline: int  # nanoseconds, as ``now``
    remaining: int  # items without a terminal record
    item_ns: int | None = None  # between two finished items at the present rate; None: unknown


def is_late(batch: OpenBatch, now: int) -> bool:
    """Return whether a batch will miss its deadline at the present rate; False if unknown."""
    if batch.item_ns is None:
        return False
    return now + batch.remaining * batch.item_ns > batch.deadline


class Turns:
    """Chooses the next batch, over all tenants: the tenant that used fewest turns for its weight.

    Of that tenant the earliest deadline; batches that would be late get every second turn. Keeps
    turns used by tenants that have open batches; a tenant that comes back begins level with them.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = weights or {}
        self._used: dict[str, float] = {}
        self._level = 0.0  # what a tenant begins with: the least that an active one used
        self._odd = False

    def choose(self, batches: Sequence[OpenBatch], now: int) -> OpenBatch | None:
        """Return the batch whose item goes next, and count the turn for its tenant.

        ``batches`` are all that have items to send; None only if there are none.
        """
        if not batches:
            return None
        self._forget({batch.tenant for batch in batches})
        late = [batch for batch in batches if is_late(batch, now)]
        self._odd = not self._odd
        if late and self._odd:
            chosen = min(late, key=lambda batch: (batch.deadline, batch.id))
        else:
            tenant = min({b.tenant for b in batches}, key=lambda name: (self._used[name], name))
            own = [batch for batch in batches if batch.tenant == tenant]
            chosen = min(own, key=lambda batch: (batch.deadline, batch.id))
        self._used[chosen.tenant] += 1.0 / self._weights.get(chosen.tenant, 1.0)
        return chosen

    def _forget(self, active: set[str]) -> None:
        """Keep the counts of active tenants only; whoever comes begins at the least of theirs."""
        here = [self._used[name] for name in active if name in self._used]
        self._level = min(here, default=self._level)
        self._used = {name: self._used.get(name, self._level) for name in active}


__all__ = ["OpenBatch", "Turns", "is_late"]
