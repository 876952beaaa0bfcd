"""Idempotency keys in an SQLite file that all gateway processes of a host share.

Every batch of changes is one transaction that begins as a writer, so that what was read cannot have
changed when it is written. Committed means synced to the disk: keys survive ``kill -9`` and a power
cut. The file can be read by its owner only, and SQLite overwrites what it deletes: an answer that
was handed over is not left in free pages.

A broken file is not replaced by an empty one: an empty one has forgotten every key, and retries
would execute twice without anybody's notice. Keyed requests are refused until somebody removes it.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.core.request.idempotency.key_policy import KeyChange, KeyRuling, due_at
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord, KeyUsage
from holdfast.ports import KeySight, KeyStoreError, WatchedKey
from holdfast.storage.key_stores.key_codec import (
    OWNER_KEPT_S,
    PURGES_KEPT,
    UsageLedger,
    decode,
    drops_pieces,
    encode,
)

_BUSY_S: Final = 1.0  # the batches of other gateways take milliseconds
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS keys (
    tenant TEXT NOT NULL, digest TEXT NOT NULL, owner TEXT NOT NULL, wanted INTEGER NOT NULL,
    execution TEXT NOT NULL, due_at REAL NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (tenant, digest)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS keys_due ON keys (due_at);
CREATE INDEX IF NOT EXISTS keys_wanted ON keys (owner) WHERE wanted = 1;
CREATE TABLE IF NOT EXISTS pieces (
    tenant TEXT NOT NULL, digest TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (tenant, digest, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
    tenant TEXT PRIMARY KEY, keys INTEGER NOT NULL, bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners (
    owner TEXT PRIMARY KEY, beat INTEGER NOT NULL, at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS purges (number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL);
"""
_PUT: Final = "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?, ?)"
_DROP: Final = "DELETE FROM keys WHERE tenant = ? AND digest = ?"
_DROP_PIECES: Final = "DELETE FROM pieces WHERE tenant = ? AND digest = ?"
_ADD_PIECE: Final = "INSERT INTO pieces VALUES (?, ?, ?, ?)"
_USE: Final = """
INSERT INTO usage VALUES (?, ?, ?)
ON CONFLICT (tenant) DO UPDATE SET keys = keys + excluded.keys, bytes = bytes + excluded.bytes
"""
_BEAT: Final = """
INSERT INTO owners VALUES (?, 1, ?)
ON CONFLICT (owner) DO UPDATE SET beat = beat + 1, at = excluded.at
"""
_OLD_PURGES: Final = "DELETE FROM purges WHERE number <= (SELECT max(number) FROM purges) - ?"


class SqliteKeys:
    """The ``KeyStore`` port over one SQLite file; used by one thread."""

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall = wall
        self._connection: sqlite3.Connection | None = None

    # --- the file --------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._path.exists():
            self._path.touch(0o600)
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _connected(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection, within a transaction where something is written; errors are translated."""
        try:
            if self._connection is None:
                self._connection = self._open()
            connection = self._connection
            if not writes:
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as error:
            self.close()  # the file may be another one by now
            raise KeyStoreError(f"{self._path}: {error}") from error

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- the port --------------------------------------------------------------------------------

    def update(self, changes: Sequence[KeyChange]) -> list[KeyRuling]:
        """Make all changes in one transaction, synced to the disk on return."""
        with self._connected(writes=True) as connection:
            ledger = UsageLedger(connection.execute("SELECT tenant, keys, bytes FROM usage"))
            rulings = []
            for change in changes:
                name = change.name
                before = _read(connection, name)
                ruling = change.decide(before, ledger.of(name.tenant))
                if ruling.changed:
                    _write(connection, name, before, ruling)
                    ledger.note(name.tenant, before, ruling.record)
                rulings.append(ruling)
            use = [(tenant, *more) for tenant, more in ledger.changes.items()]
            connection.executemany(_USE, use)
            return rulings

    def look(self, watched: Sequence[WatchedKey]) -> list[KeySight]:
        """Read the records, beats and further pieces of some keys."""
        sights = []
        with self._connected() as connection:
            for key in watched:
                record, beat = _read(connection, key.name), None
                pieces: tuple[bytes, ...] = ()
                if record is not None:
                    query = "SELECT beat FROM owners WHERE owner = ?"
                    beat = next(iter(connection.execute(query, (record.owner,))), (None,))[0]
                    if record.execution == key.execution and record.stored > key.here:
                        pieces = _pieces(connection, key)
                sights.append(KeySight(record, beat, pieces))
        return sights

    def beat(self, owner: str, heard: int) -> list[tuple[int, str]]:
        """Count the beat of a gateway up; forget gateways that are long gone."""
        with self._connected(writes=True) as connection:
            now = self._wall()
            connection.execute(_BEAT, (owner, now))
            connection.execute("DELETE FROM owners WHERE at < ?", (now - OWNER_KEPT_S,))
            query = "SELECT number, tenant FROM purges WHERE number > ? ORDER BY number"
            return list(connection.execute(query, (heard,)))

    def farewell(self, owner: str) -> None:
        """Forget a gateway that has left in good order."""
        with self._connected(writes=True) as connection:
            connection.execute("DELETE FROM owners WHERE owner = ?", (owner,))

    def wanted(self, owner: str) -> list[tuple[KeyName, str]]:
        """Return the keys that this gateway executes and callers of other gateways wait for."""
        query = "SELECT tenant, digest, execution FROM keys WHERE owner = ? AND wanted = 1"
        with self._connected() as connection:
            rows = connection.execute(query, (owner,)).fetchall()
        return [(KeyName(tenant, digest), execution) for tenant, digest, execution in rows]

    def due(self, now: float, most: int) -> list[KeyName]:
        """Return some keys of which something has expired."""
        query = "SELECT tenant, digest FROM keys WHERE due_at <= ? ORDER BY due_at LIMIT ?"
        with self._connected() as connection:
            return [KeyName(*row) for row in connection.execute(query, (now, most))]

    def purge(self, tenant: str) -> int:
        """Delete all of a tenant's keys and answers, and empty the journal of them."""
        with self._connected(writes=True) as connection:
            connection.execute("DELETE FROM pieces WHERE tenant = ?", (tenant,))
            gone = connection.execute("DELETE FROM keys WHERE tenant = ?", (tenant,)).rowcount
            connection.execute("DELETE FROM usage WHERE tenant = ?", (tenant,))
            connection.execute("INSERT INTO purges (tenant) VALUES (?)", (tenant,))
            connection.execute(_OLD_PURGES, (PURGES_KEPT,))
        with self._connected() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return gone

    def usage(self) -> dict[str, KeyUsage]:
        """Return what is held, by tenant."""
        with self._connected() as connection:
            rows = connection.execute("SELECT tenant, keys, bytes FROM usage").fetchall()
        ledger = UsageLedger(rows)
        return {tenant: ledger.of(tenant) for tenant in ledger.tenants()}


def _prepare(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in {0, _VERSION}:
        raise sqlite3.DatabaseError(f"it is of version {version}, not {_VERSION}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA journal_size_limit = {8 << 20}")
    if version != _VERSION:
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_VERSION}")


def _read(connection: sqlite3.Connection, name: KeyName) -> KeyRecord | None:
    query = "SELECT record FROM keys WHERE tenant = ? AND digest = ?"
    row = connection.execute(query, (name.tenant, name.digest)).fetchone()
    return None if row is None else decode(row[0])


def _pieces(connection: sqlite3.Connection, key: WatchedKey) -> tuple[bytes, ...]:
    query = (
        "SELECT data FROM pieces WHERE tenant = ? AND digest = ? AND number >= ? ORDER BY number"
    )
    asked = (key.name.tenant, key.name.digest, key.here)
    return tuple(row[0] for row in connection.execute(query, asked))


def _write(
    connection: sqlite3.Connection, name: KeyName, before: KeyRecord | None, ruling: KeyRuling
) -> None:
    record, place = ruling.record, (name.tenant, name.digest)
    if drops_pieces(before, record):
        connection.execute(_DROP_PIECES, place)
    if record is None:
        connection.execute(_DROP, place)
        return
    marks = (record.owner, int(record.wanted), record.execution, due_at(record))
    connection.execute(_PUT, (*place, *marks, encode(record)))
    first = record.stored - len(ruling.pieces)
    rows = ((*place, first + i, piece) for i, piece in enumerate(ruling.pieces))
    connection.executemany(_ADD_PIECE, rows)


__all__ = ["SqliteKeys"]
