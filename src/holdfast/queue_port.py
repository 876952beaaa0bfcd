"""The interface (port) of durable queues, and the values that it speaks.

    enqueue ─► READY ─ lease ─► LEASED ─ ack ──────────────► DONE or FAILED   (terminal)
                ▲ ▲               │ │
                │ └─ release ─────┘ │  nack, reclaim, or the lease runs out
                └─ pause ends ── DELAYED ◄── receives < max_receives
                                    │
                                    └──────► receives ≥ max_receives ─► DEAD  (terminal)
                └─ redrive ──────────────────────────────────────────────┘

*Delivery is at least once*: an item whose holder vanished is leased again. *The terminal record is
exactly one*: every lease has a token of its own, and only the newest token of an item can record
its end. A late holder is told ``FENCED`` and must throw its result away.

Time: a lease lasts by queue time, which no clock of a machine can move (see the page on queues in
the internals). Wall-clock times (``enqueued_at``, ``ended_at``) are for people and for ages only.

Every method is a coroutine that never blocks the event loop. Of foreign errors only ``QueueError``
travels. A call that raised ``QueueUnavailableError`` may have happened: all calls can be repeated
(``enqueue`` by the item's id, ``ack`` by the lease's token), and a lease whose answer was lost runs
out by itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

PAYLOAD_BYTES_MAX: Final = 1 << 20  # of one item, and of one result; larger ones go to a file
NAME_CHARACTERS_MAX: Final = 256  # of a queue, id, group, tenant or owner
STORY_ENTRIES_MAX: Final = 8  # the first and the last seven failed receives of one item
NOTE_BYTES_MAX: Final = 1_024  # one note of a story, as JSON
MAX_RECEIVES: Final = 3  # two may be bad luck; a third replica is not put at risk for a fourth
CALL_ITEMS_MAX: Final = 10_000  # in one call; more would hold a writer, or a server, for too long
CALL_BYTES_MAX: Final = 64 << 20  # of all payloads or results in one call, for the same reason
VISIBILITY_S_MIN: Final = 1.0  # queue time is exact to a fraction of a second across processes
PAUSE_S: Final = 1.0  # before an item that failed is leased again; doubles each time
PAUSE_S_MAX: Final = 60.0  # longer waits gain nothing: three receives are soon over


# --- errors ---------------------------------------------------------------------------------------
# QueueError
#  ├─ ItemRefusedError          the caller's item or argument; it will never be accepted as it is
#  ├─ QueueFullError            no room on disk or in memory; accepted again when there is room
#  ├─ QueueUnavailableError     not reachable, locked or starting; the call may have happened
#  └─ QueueUnsupportedError     this kind of queue cannot do that, or must not be used at all


class QueueError(Exception):
    """A queue could not do what was asked; the text says why and what to do."""


class ItemRefusedError(QueueError):
    """An item or an argument is not acceptable: which field, what is wrong, what to use."""


class QueueFullError(QueueError):
    """The queue has no room for new items; nothing was added, all that was there stays."""


class QueueUnavailableError(QueueError):
    """The queue's server or file is not usable just now; the call may or may not have happened."""


class QueueUnsupportedError(QueueError):
    """This kind of queue cannot do what was asked, or this server would lose items."""


# --- values ---------------------------------------------------------------------------------------


class ItemState(StrEnum):
    """Where an item stands."""

    READY = "ready"
    DELAYED = "delayed"  # waits for its pause to end
    LEASED = "leased"  # in flight
    DONE = "done"
    FAILED = "failed"  # ended with an error that its holder recorded
    DEAD = "dead"  # a dead letter: received too often
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the item has ended: it will not be leased again unless a person redrives it."""
        return self not in _OPEN


_OPEN: Final = frozenset({ItemState.READY, ItemState.DELAYED, ItemState.LEASED})
TERMINAL: Final = tuple(state for state in ItemState if state not in _OPEN)


@dataclass(slots=True, frozen=True)
class NewItem:
    """Something to do, as it is given to a queue."""

    id: str  # unique in its queue, and what duplicates are recognised by
    payload: bytes
    group: str = ""  # the batch it belongs to
    tenant: str = ""
    priority: int = 0  # lower goes first
    deadline: float | None = None  # seconds since the epoch; earlier goes first, none goes last
    max_receives: int = MAX_RECEIVES  # of which the last one that fails makes it a dead letter
    delay_s: float = 0.0  # not leased before


@dataclass(slots=True, frozen=True)
class Lease:
    """The right to end one item, until another lease of it is given out."""

    queue: str
    id: str
    token: str  # another one for each lease of an item


@dataclass(slots=True, frozen=True)
class LeasedItem:
    """An item to work on, and the lease to end it with."""

    lease: Lease
    payload: bytes
    group: str
    tenant: str
    priority: int
    deadline: float | None
    receives: int  # this one included
    max_receives: int
    story: tuple[Mapping[str, Any], ...] = ()  # what became of earlier receives

    @property
    def id(self) -> str:
        """The id of the item."""
        return self.lease.id

    @property
    def last_receive(self) -> bool:
        """Whether the item becomes a dead letter if this receive fails too."""
        return self.receives >= self.max_receives


@dataclass(slots=True, frozen=True)
class Settlement:
    """How an item ended: what ``ack`` records."""

    lease: Lease
    state: ItemState = ItemState.DONE  # DONE or FAILED
    result: bytes = b""  # the result, or where it is


@dataclass(slots=True, frozen=True)
class EndedItem:
    """An item that ended in another store: what ``RecordStore.settle`` records."""

    id: str
    state: ItemState  # a terminal one
    result: bytes = b""
    payload: bytes = b""  # of a dead letter, so that it can be sent again
    group: str = ""
    tenant: str = ""
    receives: int = 1
    owner: str = ""  # who ended it
    story: tuple[Mapping[str, Any], ...] = ()


class LeaseAnswer(StrEnum):
    """What became of a call that named a lease."""

    OK = "ok"
    REPEATED = "repeated"  # this very lease ended the item before; nothing changed
    FENCED = "fenced"  # a newer lease has the item, or the item has ended: throw the result away
    GONE = "gone"  # no such item; it was purged


@dataclass(slots=True, frozen=True)
class ItemView:
    """An item as people and programs look at it, without taking it."""

    queue: str
    id: str
    seq: int  # order of enqueueing in its store
    state: ItemState
    group: str
    tenant: str
    priority: int
    deadline: float | None
    receives: int
    max_receives: int
    enqueued_at: float  # seconds since the epoch, as all below
    ended_at: float | None
    owner: str  # who leased it last
    payload: bytes  # empty once the item is done, failed or cancelled
    result: bytes  # of an item that ended
    story: tuple[Mapping[str, Any], ...]


@dataclass(slots=True, frozen=True)
class QueueDepth:
    """How many items of one queue are in each state, and how long the oldest has waited."""

    queue: str
    counts: Mapping[ItemState, int]  # states with items only
    oldest_age_s: float | None  # of items that have not ended; None: none there, or not known

    @property
    def waiting(self) -> int:
        """Items that nobody works on yet."""
        return self.counts.get(ItemState.READY, 0) + self.counts.get(ItemState.DELAYED, 0)

    @property
    def in_flight(self) -> int:
        """Items that are leased."""
        return self.counts.get(ItemState.LEASED, 0)

    @property
    def dead(self) -> int:
        """Dead letters."""
        return self.counts.get(ItemState.DEAD, 0)

    @property
    def open(self) -> int:
        """Items that have not ended."""
        return self.waiting + self.in_flight


@dataclass(slots=True, frozen=True)
class QueueTraits:
    """What differs between kinds of queues, so that no caller asks for a kind by name."""

    kind: str
    inspectable: bool = True  # peek, items and groups can be read without receiving
    release_keeps_receives: bool = True  # ``release`` gives the receive back
    whole_enqueue: bool = True  # all or none, and told apart by id when they are added
    ordered: bool = True  # by priority and deadline
    lease_items_max: int = CALL_ITEMS_MAX
    visibility_s_max: float = math.inf
    payload_bytes_max: int = PAYLOAD_BYTES_MAX


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


# --- rules that all adapters share ----------------------------------------------------------------


def check_name(field: str, name: str, *, empty: bool = False) -> None:
    """Refuse a name that some store could not keep."""
    if not name and not empty:
        raise ItemRefusedError(f"{field} is empty; give it a name")
    if len(name) > NAME_CHARACTERS_MAX:
        fix = f"use at most {NAME_CHARACTERS_MAX}"
        raise ItemRefusedError(f"{field} has {len(name)} characters; {fix}")
    if not name.isprintable():  # control characters, and surrogates that UTF-8 cannot hold
        raise ItemRefusedError(f"{field} has characters that cannot be printed; leave them out")


def check_items(items: Sequence[NewItem], payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Refuse items of which one cannot be kept, with its place in the list."""
    _check_call("items", len(items), sum(len(item.payload) for item in items))
    for index, item in enumerate(items):
        where = f"items[{index}]"
        check_name(f"{where}.id", item.id)
        check_name(f"{where}.group", item.group, empty=True)
        check_name(f"{where}.tenant", item.tenant, empty=True)
        check_bytes(f"{where}.payload", item.payload, payload_bytes_max)
        if not 1 <= item.max_receives <= 1_000:
            raise ItemRefusedError(f"{where}.max_receives is {item.max_receives}; use 1 to 1000")
        if not -1_000 <= item.priority <= 1_000:
            raise ItemRefusedError(f"{where}.priority is {item.priority}; use -1000 to 1000")
        if item.deadline is not None and not math.isfinite(item.deadline):
            raise ItemRefusedError(f"{where}.deadline is {item.deadline}; use a time or None")
        check_seconds(f"{where}.delay_s", item.delay_s, 0.0)


def _check_call(field: str, count: int, size: int) -> None:
    if count > CALL_ITEMS_MAX or size > CALL_BYTES_MAX:
        fix = f"use at most {CALL_ITEMS_MAX} of {CALL_BYTES_MAX} bytes together in one call"
        raise ItemRefusedError(f"{field} has {count} entries of {size} bytes; {fix}")


def check_bytes(field: str, data: bytes, bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Refuse what is too large for a queue."""
    if len(data) > bytes_max:
        fix = f"use at most {bytes_max}, and keep larger ones in a file that the payload names"
        raise ItemRefusedError(f"{field} has {len(data)} bytes; {fix}")


def check_seconds(field: str, value: float, least: float) -> None:
    """Refuse a duration that is none."""
    if not (math.isfinite(value) and value >= least):
        raise ItemRefusedError(f"{field} is {value}; use {least:g} or more seconds")


def check_lease(queue: str, count: int, visibility_s: float, traits: QueueTraits) -> None:
    """Refuse what cannot be leased."""
    check_name("queue", queue)
    if count < 1:
        raise ItemRefusedError(f"count is {count}; use 1 to {traits.lease_items_max}")
    check_seconds("visibility_s", visibility_s, VISIBILITY_S_MIN)
    if visibility_s > traits.visibility_s_max:
        fix = f"use at most {traits.visibility_s_max:g} and extend the lease"
        raise ItemRefusedError(f"visibility_s is {visibility_s}; {fix}")


def check_settlements(settlements: Sequence[Settlement], bytes_max: int) -> None:
    """Refuse settlements that are no end, or whose result is too large."""
    _check_call("settlements", len(settlements), sum(len(one.result) for one in settlements))
    for index, settlement in enumerate(settlements):
        if settlement.state not in {ItemState.DONE, ItemState.FAILED}:
            problem = f"settlements[{index}].state is {settlement.state.value}"
            raise ItemRefusedError(f"{problem}; use done or failed")
        check_bytes(f"settlements[{index}].result", settlement.result, bytes_max)


def check_ended(ended: Sequence[EndedItem], bytes_max: int) -> None:
    """Refuse records of items that have not ended, or that cannot be kept."""
    _check_call("ended", len(ended), sum(len(one.result) + len(one.payload) for one in ended))
    for index, one in enumerate(ended):
        check_name(f"ended[{index}].id", one.id)
        check_name(f"ended[{index}].group", one.group, empty=True)
        check_name(f"ended[{index}].tenant", one.tenant, empty=True)
        check_name(f"ended[{index}].owner", one.owner, empty=True)
        check_bytes(f"ended[{index}].result", one.result, bytes_max)
        check_bytes(f"ended[{index}].payload", one.payload, bytes_max)
        if not one.state.terminal:
            problem = f"ended[{index}].state is {one.state.value}"
            raise ItemRefusedError(f"{problem}; use done, failed, dead or cancelled")


def pause_s(receives: int) -> float:
    """How long an item that failed waits for its next receive."""
    return float(min(PAUSE_S * 2.0 ** min(max(receives - 1, 0), 16), PAUSE_S_MAX))


__all__ = [
    "CALL_BYTES_MAX",
    "CALL_ITEMS_MAX",
    "MAX_RECEIVES",
    "NAME_CHARACTERS_MAX",
    "NOTE_BYTES_MAX",
    "PAUSE_S",
    "PAUSE_S_MAX",
    "PAYLOAD_BYTES_MAX",
    "STORY_ENTRIES_MAX",
    "TERMINAL",
    "VISIBILITY_S_MIN",
    "DurableQueue",
    "EndedItem",
    "ItemRefusedError",
    "ItemState",
    "ItemView",
    "Lease",
    "LeaseAnswer",
    "LeasedItem",
    "NewItem",
    "QueueDepth",
    "QueueError",
    "QueueFullError",
    "QueueTraits",
    "QueueUnavailableError",
    "QueueUnsupportedError",
    "RecordStore",
    "Settlement",
    "check_bytes",
    "check_ended",
    "check_items",
    "check_lease",
    "check_name",
    "check_seconds",
    "check_settlements",
    "pause_s",
]
