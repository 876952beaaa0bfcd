"""The values that durable queues speak: items, leases, ends, depths, and the bounds of all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

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
    "EndedItem",
    "ItemState",
    "ItemView",
    "Lease",
    "LeaseAnswer",
    "LeasedItem",
    "NewItem",
    "QueueDepth",
    "QueueTraits",
    "Settlement",
]
