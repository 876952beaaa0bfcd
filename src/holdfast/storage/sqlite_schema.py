"""The store file's tables and settings, and which SQLite errors are only temporary.

After a temporary error (a lock, a full disk) writes are tried again. All other errors mean a broken
file, and a new one begins.
"""

import sqlite3
from typing import Final

from holdfast.storage.incidents import SCHEMA as INCIDENTS
from holdfast.storage.orders import SCHEMA as ORDERS

_VERSION: Final = 1
_SCHEMA: Final = (
    """
CREATE TABLE IF NOT EXISTS state (
    kind TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, model TEXT NOT NULL, replica TEXT NOT NULL,
    what TEXT NOT NULL, reason TEXT NOT NULL, kind TEXT
);
CREATE INDEX IF NOT EXISTS events_of_replica ON events (replica, id);
"""
    + INCIDENTS
    + ORDERS
)
# These pass, or an operator mends them; the file is not to blame. All else is a broken file.
_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)


def prepare(connection: sqlite3.Connection) -> None:
    """Set up the store's file, or raise if it is damaged or of another version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in {0, _VERSION}:
        raise sqlite3.DatabaseError(f"its version is {version}, not {_VERSION}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {8 << 20}")
    (whole,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if whole != "ok":
        raise sqlite3.DatabaseError(str(whole))
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def passes(error: sqlite3.Error) -> bool:
    """Whether an error may go away by itself (a lock, a full disk)."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING


__all__ = ["passes", "prepare"]
