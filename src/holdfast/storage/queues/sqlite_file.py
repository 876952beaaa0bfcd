"""The file of the SQLite queue: its tables, its queue time, and what its errors mean.

Payloads and results stand in tables of their own. A lease changes a few numbers of an item; in one
row with a payload of 2 KB, each such change would write the whole payload's page again.

Queue time is the machine's monotonic clock plus an offset that is kept in the file. Every process
of a machine reads the same monotonic clock, and setting the wall clock does not move it. It begins
anew at each boot; the file knows by the kernel's boot id that its offset is of an earlier one, and
takes another one that lies behind every lease: their holders went down with the machine.
"""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.queue_port import (
    QueueError,
    QueueFullError,
    QueueUnavailableError,
    QueueUnsupportedError,
)

VERSION: Final = 1
BUSY_S: Final = 5.0  # another process may hold the file for a moment
CHECKED_BYTES_MAX: Final = 256 << 20  # a larger file is not read whole at start: it takes seconds

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS items (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL, id TEXT NOT NULL,
    state INTEGER NOT NULL,
    batch TEXT NOT NULL, tenant TEXT NOT NULL,
    priority INTEGER NOT NULL, deadline REAL NOT NULL,
    max_receives INTEGER NOT NULL, receives INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    until REAL NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT '',
    enqueued_at REAL NOT NULL, ended_at REAL,
    story TEXT NOT NULL DEFAULT '[]'
);
CREATE UNIQUE INDEX IF NOT EXISTS items_by_id ON items (queue, id);
CREATE INDEX IF NOT EXISTS items_ready ON items (queue, priority, deadline, seq) WHERE state = 0;
CREATE INDEX IF NOT EXISTS items_timed ON items (until) WHERE state IN (1, 2);
CREATE INDEX IF NOT EXISTS items_open ON items (queue, enqueued_at) WHERE state < 3;
CREATE INDEX IF NOT EXISTS items_counted ON items (queue, batch, state);
CREATE TABLE IF NOT EXISTS payloads (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS results (seq INTEGER PRIMARY KEY, result BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS clock (only INTEGER PRIMARY KEY, boot TEXT NOT NULL, ahead REAL NOT NULL)
"""


def boot_id() -> str:
    """What tells this boot of the machine from every other one."""
    if sys.platform == "darwin":  # no /proc there
        asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        told = subprocess.run(asked, capture_output=True, check=True)  # noqa: S603 fixed
        return told.stdout.decode().strip()
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError as error:
        raise QueueUnsupportedError(
            f"the kernel does not tell its boot id ({error}), and leases could not be told from "
            "those before a reboot; mount /proc, or keep the queue in PostgreSQL or Redis"
        ) from error


def open_file(path: Path) -> sqlite3.Connection:
    """Open the file for writing and bring it into shape; an error of SQLite where that fails.

    A damaged file is not replaced by an empty one: that would lose accepted work in silence.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(0o600)  # payloads are people's prompts
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        version = _version(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        # Each commit is on the disk before a caller hears of it, also across a power cut.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        if path.stat().st_size <= CHECKED_BYTES_MAX:
            _check(connection)
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA};PRAGMA user_version=1;COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in {0, VERSION}:
        raise QueueUnsupportedError(
            f"{path}: its version is {version}, not {VERSION}; "
            "use the Holdfast that wrote it, or another file"
        )
    return version


def _check(connection: sqlite3.Connection) -> None:
    (whole,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if whole != "ok":
        raise sqlite3.DatabaseError(str(whole))


def ahead_of_monotonic(
    connection: sqlite3.Connection, boot: str, monotonic: Callable[[], float]
) -> float:
    """How far queue time is ahead of the monotonic clock in this boot of the machine."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        kept = connection.execute("SELECT boot, ahead FROM clock").fetchone()
        if kept is not None and kept[0] == boot:
            ahead: float = kept[1]
        else:
            (latest,) = connection.execute(
                "SELECT max(until) FROM items WHERE state IN (1, 2)"
            ).fetchone()
            ahead = (latest or 0.0) - monotonic()
            connection.execute("INSERT OR REPLACE INTO clock VALUES (0, ?, ?)", (boot, ahead))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return ahead


def room(path: Path) -> int:
    """Bytes that are free where the file is."""
    found = os.statvfs(path.parent)
    return found.f_bavail * found.f_frsize


_FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


def translated(path: Path, error: Exception) -> QueueError:
    """An error of SQLite or of the disk as the port tells it."""
    if isinstance(error, QueueError):
        return error
    code = getattr(error, "sqlite_errorcode", 0)
    told = " ".join(str(error).split())  # what a check found has several lines
    if code & 0xFF in _FULL:
        # A disk that refuses to write looks the same whether it is full, over a quota or broken.
        return QueueFullError(
            f"{path}: {told}: nothing was changed; make room on the disk (or mend it), "
            "work goes on by itself"
        )
    if code & 0xFF in _PASSING or isinstance(error, OSError):
        return QueueUnavailableError(f"{path}: {told}")
    return QueueUnavailableError(
        f"{path}: {told}: the file is damaged; stop Holdfast, keep a copy, and restore it with "
        f"'sqlite3 {path.name} .recover' or from a backup"
    )


__all__ = ["BUSY_S", "ahead_of_monotonic", "boot_id", "open_file", "room", "translated"]
