"""The audit trail as rows of the store: appended, never changed, the oldest pruned.

Orders that were let in and orders of callers who were not are bounded apart. Otherwise whoever
knocks often enough, without any token, would push out what operators did.
"""

import sqlite3
import time
from collections import deque
from dataclasses import astuple, replace
from typing import Any, Final

from holdfast.ports import StoredOrder

ORDERS_MAX: Final = 10_000  # rows of callers who were let in: years of a fleet that people tend
NOT_LET_IN_MAX: Final = 1_000  # rows of callers who were not: enough to see who, and since when
WAITING_MAX: Final = 1_000  # for a writer whose disk is stuck

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
    address TEXT NOT NULL, status INTEGER NOT NULL, result TEXT NOT NULL,
    not_let_in INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS orders_by_kind ON orders (not_let_in, id);
"""
_ADD: Final = "INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_PRUNE: Final = (
    "DELETE FROM orders WHERE not_let_in = ? AND id <= "
    "(SELECT id FROM orders WHERE not_let_in = ? ORDER BY id DESC LIMIT 1 OFFSET ?)"
)

OrderRow = tuple[Any, ...]  # id, then the fields of a StoredOrder


class OrderRows:
    """Holds rows of the audit trail until the writer stores them. Its owner's lock guards it."""

    __slots__ = ("_last_id", "_rows", "dropped")

    def __init__(self) -> None:
        self._rows: deque[OrderRow] = deque()
        self._last_id = 0
        self.dropped = 0  # rows for which there was no room

    def add(self, order: StoredOrder) -> bool:
        """Queue one row; False: the queue is full, and the row is dropped and counted."""
        if len(self._rows) >= WAITING_MAX:
            self.dropped += 1
            return False
        # Ids are times in µs, so that they grow even when another process wrote meanwhile.
        self._last_id = max(self._last_id + 1, time.time_ns() // 1_000)
        self._rows.append((self._last_id, *astuple(order)))
        return True

    def take(self) -> tuple[OrderRow, ...]:
        """Return all rows that wait to be written, without removing them."""
        return tuple(self._rows)

    def written(self, rows: tuple[OrderRow, ...]) -> None:
        """Remove the rows that were written."""
        for _ in rows:
            self._rows.popleft()


def commit(connection: sqlite3.Connection, rows: tuple[OrderRow, ...]) -> None:
    """Write rows and prune the oldest, inside the caller's transaction."""
    if not rows:
        return
    connection.executemany(_ADD, rows)
    for kind, most in ((0, ORDERS_MAX), (1, NOT_LET_IN_MAX)):
        connection.execute(_PRUNE, (kind, kind, most))


def newest(
    reader: sqlite3.Connection | None, waiting: tuple[OrderRow, ...], limit: int
) -> list[StoredOrder]:
    """The newest rows, the oldest of them first, from the file and from those that still wait."""
    found = {row[0]: row for row in waiting}
    if reader is not None:
        query = "SELECT * FROM orders ORDER BY id DESC LIMIT ?"
        found |= {row[0]: row for row in reader.execute(query, (limit,))}
    rows = [found[key] for key in sorted(found)][-limit:] if limit > 0 else []
    return [replace(StoredOrder(*row[1:]), not_let_in=bool(row[-1])) for row in rows]


__all__ = [
    "NOT_LET_IN_MAX",
    "ORDERS_MAX",
    "SCHEMA",
    "WAITING_MAX",
    "OrderRows",
    "commit",
    "newest",
]
