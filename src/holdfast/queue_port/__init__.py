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

from holdfast.queue_port.checks import (
    check_bytes,
    check_ended,
    check_items,
    check_lease,
    check_name,
    check_seconds,
    check_settlements,
    pause_s,
)
from holdfast.queue_port.errors import (
    ItemRefusedError,
    QueueError,
    QueueFullError,
    QueueUnavailableError,
    QueueUnsupportedError,
)
from holdfast.queue_port.port import DurableQueue, RecordStore
from holdfast.queue_port.values import (
    CALL_BYTES_MAX,
    CALL_ITEMS_MAX,
    MAX_RECEIVES,
    NAME_CHARACTERS_MAX,
    NOTE_BYTES_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    PAYLOAD_BYTES_MAX,
    STORY_ENTRIES_MAX,
    TERMINAL,
    VISIBILITY_S_MIN,
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
