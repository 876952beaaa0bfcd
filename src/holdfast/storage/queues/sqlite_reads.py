"""What is read of the SQLite queue without changing it: depths and items."""

import math
import sqlite3
from collections.abc import Sequence
from typing import Final

from holdfast.queue_port import ItemState, ItemView, QueueDepth
from holdfast.storage.queues import story
from holdfast.storage.queues.sqlite_changes import condition
from holdfast.storage.queues.states import STATE_OF

_VIEW: Final = """
SELECT queue, id, items.seq, state, batch, tenant, priority, deadline, receives, max_receives,
    enqueued_at, ended_at, owner, coalesce(payload, x''), coalesce(result, x''), story
FROM items
    LEFT JOIN payloads ON payloads.seq = items.seq
    LEFT JOIN results ON results.seq = items.seq
"""


def depths(
    connection: sqlite3.Connection, *, queue: str | None, group: str | None, wall: float
) -> list[QueueDepth]:
    """Count items by queue and state."""
    where, values = condition(queue, group, None)
    counts: dict[str, dict[ItemState, int]] = {}
    fitting = f"FROM items WHERE {where}"  # placeholders only
    counted = f"SELECT queue, state, count(*) {fitting} GROUP BY queue, state"
    for name, state, count in connection.execute(counted, values):
        counts.setdefault(name, {})[STATE_OF[state]] = count
    first = f"SELECT queue, min(enqueued_at) {fitting} AND state < 3 GROUP BY queue"
    oldest = dict(connection.execute(first, values).fetchall())
    return [
        QueueDepth(name, counts[name], max(wall - oldest[name], 0.0) if name in oldest else None)
        for name in sorted(counts)
    ]


def items(
    connection: sqlite3.Connection,
    *,
    queue: str,
    states: Sequence[ItemState] | None,
    group: str | None,
    after: int,
    limit: int,
) -> list[ItemView]:
    """Read items in the order they came."""
    where, values = condition(queue, group, states)
    rows = connection.execute(
        f"{_VIEW} WHERE {where} AND items.seq > ? ORDER BY items.seq LIMIT ?",
        (*values, after, max(limit, 0)),
    )
    return [_view(row) for row in rows]


def item(connection: sqlite3.Connection, *, queue: str, item_id: str) -> ItemView | None:
    """Read one item."""
    row = connection.execute(f"{_VIEW} WHERE queue = ? AND id = ?", (queue, item_id)).fetchone()
    return _view(row) if row is not None else None


def _view(row: tuple[object, ...]) -> ItemView:
    values = list(row)
    values[3] = STATE_OF[values[3]]  # type: ignore[index]
    values[7] = None if values[7] == math.inf else values[7]
    values[15] = story.read(values[15])  # type: ignore[arg-type]
    return ItemView(*values)  # type: ignore[arg-type]


__all__ = ["depths", "item", "items"]
