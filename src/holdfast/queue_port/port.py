"""The interface of durable queues, and of stores that keep the records of others."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from holdfast.queue_port.values import (
    EndedItem,
    ItemState,
    ItemView,
    Lease,
    LeaseAnswer,
    LeasedItem,
    NewItem,
    QueueDepth,
    QueueTraits,
    Settlement,
)


class DurableQueue(Protocol):
    """Many named queues in one store. Names are free; a queue exists while it has items."""

    @property
    def traits(self) -> QueueTraits:
        """What this kind of queue can do."""
        ...

    async def enqueue(self, queue: str, items: Sequence[NewItem]) -> list[bool]:
        """Add items, all or none; each True, or False where its id was there already.

        When this returns, ``kill -9`` and a restart of the store lose none of them. An id counts as
        there until its item is purged, whatever became of it.
        """
        ...

    async def lease(
        self, queue: str, count: int, visibility_s: float, owner: str = ""
    ) -> list[LeasedItem]:
        """Take up to ``count`` items for ``visibility_s``, the most urgent first; may be none.

        Each counts as one receive. Items whose lease ran out are taken again, or become dead
        letters after ``max_receives``.
        """
        ...

    async def extend(self, leases: Sequence[Lease], visibility_s: float) -> list[LeaseAnswer]:
        """Heartbeat: leases last ``visibility_s`` from now. One that nobody took over revives."""
        ...

    async def ack(self, settlements: Sequence[Settlement]) -> list[LeaseAnswer]:
        """Record how items ended: the one terminal record. OK or REPEATED: it stands."""
        ...

    async def nack(
        self,
        leases: Sequence[Lease],
        *,
        note: Mapping[str, Any] | None = None,
        delay_s: float | None = None,
        dead: bool = False,
    ) -> list[LeaseAnswer]:
        """Give failed items back for another try after a pause, with a note for their story.

        Without ``delay_s`` the pause doubles with each receive. An item that was received
        ``max_receives`` times, or any with ``dead=True``, becomes a dead letter: its terminal
        record, with its story as the result's reason.
        """
        ...

    async def release(self, leases: Sequence[Lease]) -> list[LeaseAnswer]:
        """Give items back untried, at once: the receive does not count, their story stays."""
        ...

    async def reclaim(self, owner: str) -> int:
        """End the leases of an owner that is known to be dead; how many. The receives count."""
        ...

    async def cancel(self, queue: str, group: str) -> int:
        """End all items of a group that are not leased as cancelled; how many."""
        ...

    async def redrive(self, queue: str, ids: Sequence[str] | None = None) -> int:
        """Make dead letters ready again, with no receives counted; all, or those named."""
        ...

    async def purge(
        self,
        queue: str,
        *,
        group: str | None = None,
        states: Sequence[ItemState] | None = None,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Delete items with their records; how many. Leases of deleted items are told GONE."""
        ...

    async def depths(self, queue: str | None = None, group: str | None = None) -> list[QueueDepth]:
        """Depth of all queues that have items, by name; of one queue or group where named."""
        ...

    async def items(
        self,
        queue: str,
        *,
        states: Sequence[ItemState] | None = None,
        group: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[ItemView]:
        """Look at items (peek) in the order they came, those with ``seq`` above ``after``.

        With ``states=TERMINAL`` these are the terminal records.
        """
        ...

    async def item(self, queue: str, item_id: str) -> ItemView | None:
        """Look at one item; None: no such item."""
        ...

    async def close(self) -> None:
        """Finish what was begun and let go of the store; leases stay."""
        ...


@runtime_checkable
class RecordStore(DurableQueue, Protocol):
    """A store that also keeps terminal records of items that another queue delivers.

    A queue such as SQS forgets an item once it is deleted, and may deliver it again; which of two
    ends counts is then decided here.
    """

    async def settle(self, queue: str, ended: Sequence[EndedItem]) -> list[bool]:
        """Record how items ended; each True, or False where its id has a record already."""
        ...


__all__ = [
    "DurableQueue",
    "RecordStore",
]
