"""A durable queue in memory, for tests that need a ``DurableQueue`` without a file or server.

It keeps the port's promises in the plainest way, so it is also the model that other adapters are
compared with. Time is given: ``now`` is queue time, and a test moves it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.queue_port import (
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
    check_ended,
    check_items,
    check_lease,
    check_name,
    check_seconds,
    check_settlements,
    pause_s,
)
from holdfast.storage.queues import story

_DROPS_PAYLOAD = {ItemState.DONE, ItemState.FAILED, ItemState.CANCELLED}


@dataclass(slots=True)
class _Kept:
    """One item as the fake keeps it."""

    queue: str
    item: NewItem
    seq: int
    enqueued_at: float
    state: ItemState = ItemState.READY
    receives: int = 0
    token: int = 0
    until: float = 0.0
    owner: str = ""
    ended_at: float | None = None
    result: bytes = b""
    story: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def urgency(self) -> tuple[int, float, int]:
        """What items are leased in the order of."""
        deadline = self.item.deadline
        return (self.item.priority, float("inf") if deadline is None else deadline, self.seq)


class MemoryQueue:
    """The ``DurableQueue`` port over a dictionary; lives as long as the object."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._wall = wall
        self._items: dict[tuple[str, str], _Kept] = {}
        self._seq = 0

    @property
    def traits(self) -> QueueTraits:
        """What this kind of queue can do: everything."""
        return QueueTraits(kind="memory")

    async def enqueue(self, queue: str, items: Sequence[NewItem]) -> list[bool]:
        """Add items whose ids are not there yet."""
        check_name("queue", queue)
        check_items(items)
        added = []
        for item in items:
            new = (queue, item.id) not in self._items
            if new:
                self._seq += 1
                kept = _Kept(queue, item, self._seq, self._wall())
                if item.delay_s > 0:
                    kept.state, kept.until = ItemState.DELAYED, self._now() + item.delay_s
                self._items[queue, item.id] = kept
            added.append(new)
        return added

    async def lease(
        self, queue: str, count: int, visibility_s: float, owner: str = ""
    ) -> list[LeasedItem]:
        """Take the most urgent items."""
        check_lease(queue, count, visibility_s, self.traits)
        check_name("owner", owner, empty=True)
        self._sweep()
        ready = [
            kept
            for kept in self._items.values()
            if kept.queue == queue and kept.state is ItemState.READY
        ]
        taken = sorted(ready, key=lambda kept: kept.urgency)[:count]
        for kept in taken:
            kept.state, kept.owner = ItemState.LEASED, owner
            kept.receives += 1
            kept.token += 1
            kept.until = self._now() + visibility_s
        return [_leased(kept) for kept in taken]

    async def extend(self, leases: Sequence[Lease], visibility_s: float) -> list[LeaseAnswer]:
        """Prolong leases."""
        check_seconds("visibility_s", visibility_s, 1.0)
        answers = []
        for lease in leases:
            kept, answer = self._find(lease)
            if kept is not None:
                kept.state, kept.until = ItemState.LEASED, self._now() + visibility_s
            answers.append(answer)
        return answers

    async def ack(self, settlements: Sequence[Settlement]) -> list[LeaseAnswer]:
        """Record how items ended."""
        check_settlements(settlements, self.traits.payload_bytes_max)
        answers = []
        for settlement in settlements:
            kept, answer = self._find(settlement.lease)
            if kept is not None:
                self._end(kept, settlement.state, settlement.result)
            answers.append(answer)
        return answers

    async def nack(
        self,
        leases: Sequence[Lease],
        *,
        note: Mapping[str, Any] | None = None,
        delay_s: float | None = None,
        dead: bool = False,
    ) -> list[LeaseAnswer]:
        """Give failed items back."""
        check_seconds("delay_s", delay_s or 0.0, 0.0)
        answers = []
        for lease in leases:
            kept, answer = self._find(lease)
            if kept is not None:
                pause = pause_s(kept.receives) if delay_s is None else delay_s
                self._failed(kept, story.NACKED, story.note_text(note), pause, dead=dead)
            answers.append(answer)
        return answers

    async def release(self, leases: Sequence[Lease]) -> list[LeaseAnswer]:
        """Give items back untried."""
        answers = []
        for lease in leases:
            kept, answer = self._find(lease)
            if kept is not None:
                kept.state = ItemState.READY
                kept.receives = max(kept.receives - 1, 0)
                kept.token += 1
            answers.append(answer)
        return answers

    async def reclaim(self, owner: str) -> int:
        """End the leases of a dead owner."""
        check_name("owner", owner)
        held = [
            kept
            for kept in self._items.values()
            if kept.owner == owner and kept.state is ItemState.LEASED
        ]
        for kept in held:
            self._failed(kept, story.RECLAIMED, "{}", 0.0)
        return len(held)

    async def cancel(self, queue: str, group: str) -> int:
        """Cancel what is not leased."""
        self._sweep()
        waiting = [
            kept
            for kept in self._items.values()
            if kept.queue == queue
            and kept.item.group == group
            and kept.state in {ItemState.READY, ItemState.DELAYED}
        ]
        for kept in waiting:
            kept.token += 1
            self._end(kept, ItemState.CANCELLED, b"")
        return len(waiting)

    async def redrive(self, queue: str, ids: Sequence[str] | None = None) -> int:
        """Make dead letters ready again."""
        dead = [
            kept
            for kept in self._items.values()
            if kept.queue == queue
            and kept.state is ItemState.DEAD
            and (ids is None or kept.item.id in ids)
        ]
        for kept in dead:
            kept.state, kept.receives, kept.ended_at = ItemState.READY, 0, None
            kept.token += 1
        return len(dead)

    async def purge(
        self,
        queue: str,
        *,
        group: str | None = None,
        states: Sequence[ItemState] | None = None,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Delete items."""
        gone = [
            key
            for key, kept in self._items.items()
            if kept.queue == queue
            and group in {None, kept.item.group}
            and (states is None or kept.state in states)
            and (ids is None or kept.item.id in ids)
        ]
        for key in gone:
            del self._items[key]
        return len(gone)

    async def depths(self, queue: str | None = None, group: str | None = None) -> list[QueueDepth]:
        """Count items by state."""
        self._sweep()
        found: dict[str, dict[ItemState, int]] = {}
        oldest: dict[str, float] = {}
        for kept in self._items.values():
            if queue in {None, kept.queue} and group in {None, kept.item.group}:
                counts = found.setdefault(kept.queue, {})
                counts[kept.state] = counts.get(kept.state, 0) + 1
                if not kept.state.terminal:
                    earlier = oldest.get(kept.queue, kept.enqueued_at)
                    oldest[kept.queue] = min(earlier, kept.enqueued_at)
        wall = self._wall()
        return [
            QueueDepth(name, counts, max(wall - oldest[name], 0.0) if name in oldest else None)
            for name, counts in sorted(found.items())
        ]

    async def items(
        self,
        queue: str,
        *,
        states: Sequence[ItemState] | None = None,
        group: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[ItemView]:
        """Look at items in the order they came."""
        self._sweep()
        fitting = [
            _view(kept)
            for kept in self._items.values()
            if kept.queue == queue
            and group in {None, kept.item.group}
            and (states is None or kept.state in states)
            and kept.seq > after
        ]
        return sorted(fitting, key=lambda view: view.seq)[: max(limit, 0)]

    async def item(self, queue: str, item_id: str) -> ItemView | None:
        """Look at one item."""
        self._sweep()
        kept = self._items.get((queue, item_id))
        return _view(kept) if kept is not None else None

    async def settle(self, queue: str, ended: Sequence[EndedItem]) -> list[bool]:
        """Record how items of another queue ended."""
        check_ended(ended, self.traits.payload_bytes_max)
        added = []
        for one in ended:
            new = (queue, one.id) not in self._items
            if new:
                self._seq += 1
                item = NewItem(one.id, one.payload, group=one.group, tenant=one.tenant)
                kept = _Kept(queue, item, self._seq, self._wall(), one.state, one.receives)
                kept.ended_at, kept.result, kept.owner = self._wall(), one.result, one.owner
                kept.story = list(one.story)
                self._items[queue, one.id] = kept
            added.append(new)
        return added

    async def close(self) -> None:
        """Nothing to let go of; the items stay."""

    # --- the rules -------------------------------------------------------------------------------

    def _find(self, lease: Lease) -> tuple[_Kept | None, LeaseAnswer]:
        """The item that a lease still has the right to, and the answer."""
        kept = self._items.get((lease.queue, lease.id))
        if kept is None:
            return None, LeaseAnswer.GONE
        if str(kept.token) != lease.token:
            return None, LeaseAnswer.FENCED
        if kept.state.terminal:
            repeated = kept.state in {ItemState.DONE, ItemState.FAILED}
            return None, LeaseAnswer.REPEATED if repeated else LeaseAnswer.FENCED
        return kept, LeaseAnswer.OK

    def _sweep(self) -> None:
        now = self._now()
        for kept in self._items.values():
            if kept.until <= now:
                if kept.state is ItemState.LEASED:
                    self._failed(kept, story.RAN_OUT, "{}", 0.0, fence=False)
                elif kept.state is ItemState.DELAYED:
                    kept.state = ItemState.READY

    def _failed(
        self,
        kept: _Kept,
        what: str,
        note: str,
        pause: float,
        *,
        dead: bool = False,
        fence: bool = True,
    ) -> None:
        told = story.entry(what, kept.receives, kept.owner, self._wall(), note)
        kept.story = list(story.read(story.continued(story.dumped(tuple(kept.story)), told)))
        if fence:
            kept.token += 1
        if dead or kept.receives >= kept.item.max_receives:
            self._end(kept, ItemState.DEAD, b"")
        elif pause > 0:
            kept.state, kept.until = ItemState.DELAYED, self._now() + pause
        else:
            kept.state = ItemState.READY

    def _end(self, kept: _Kept, state: ItemState, result: bytes) -> None:
        kept.state, kept.result, kept.ended_at = state, result, self._wall()
        if state in _DROPS_PAYLOAD:
            kept.item = replace(kept.item, payload=b"")


def _leased(kept: _Kept) -> LeasedItem:
    item = kept.item
    return LeasedItem(
        lease=Lease(kept.queue, item.id, str(kept.token)),
        payload=item.payload,
        group=item.group,
        tenant=item.tenant,
        priority=item.priority,
        deadline=item.deadline,
        receives=kept.receives,
        max_receives=item.max_receives,
        story=tuple(kept.story),
    )


def _view(kept: _Kept) -> ItemView:
    item = kept.item
    return ItemView(
        queue=kept.queue,
        id=item.id,
        seq=kept.seq,
        state=kept.state,
        group=item.group,
        tenant=item.tenant,
        priority=item.priority,
        deadline=item.deadline,
        receives=kept.receives,
        max_receives=item.max_receives,
        enqueued_at=kept.enqueued_at,
        ended_at=kept.ended_at,
        owner=kept.owner,
        payload=item.payload,
        result=kept.result,
        story=tuple(kept.story),
    )


__all__ = ["MemoryQueue"]
