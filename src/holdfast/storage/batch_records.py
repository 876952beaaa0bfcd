"""What is known of files and batches, in one SQLite file; the bytes of files lie beside it.

Few rows and few writes: a file that is uploaded, a batch that changes its state. Every commit is
synced, so that what a client was told outlives ``kill -9`` and a power cut. Items of batches are
not here: they are in a durable queue.

Methods wait for the disk: call them in a thread. One lock makes each change whole. Reading has a
connection of its own: a look at a file does not wait until another tenant's upload is synced.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

# Read out of the record, so that earlier versions can go on with the file.
_SINCE: Final = "json_extract(CAST(data AS TEXT), '$.times.' || state)"  # of the state it is in
_UNPURGED: Final = "json_extract(CAST(data AS TEXT), '$.purged') IS NOT 1"
_KEEP: Final = "ifnull(json_extract(CAST(data AS TEXT), '$.output_keep_s'), 0)"
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, seq INTEGER, tenant TEXT, purpose TEXT, name TEXT, bytes INTEGER,
    created_at INTEGER, expires_at INTEGER);
CREATE INDEX IF NOT EXISTS files_of ON files (tenant, seq);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, seq INTEGER, tenant TEXT, state TEXT, data BLOB);
CREATE INDEX IF NOT EXISTS batches_of ON batches (tenant, seq);
CREATE INDEX IF NOT EXISTS batches_in ON batches (state);
CREATE INDEX IF NOT EXISTS batches_unpurged ON batches (state) WHERE {_UNPURGED};
CREATE INDEX IF NOT EXISTS batches_since ON batches ({_SINCE});
CREATE TABLE IF NOT EXISTS creation_keys (
    tenant TEXT, name TEXT, fingerprint TEXT, made TEXT, at INTEGER, PRIMARY KEY (tenant, name));
CREATE INDEX IF NOT EXISTS creation_keys_at ON creation_keys (at);
"""


# Conditions are written below; values are bound.
_FILES_OF: Final = "SELECT id, tenant, purpose, name, bytes, created_at, expires_at FROM files"
_BATCHES_OF: Final = "SELECT data FROM batches"


class RecordsFullError(Exception):
    """The disk has no room for a record; nothing was changed."""


@dataclass(slots=True, frozen=True)
class FileRecord:
    """One file of a tenant."""

    id: str
    tenant: str
    purpose: str
    name: str
    bytes: int
    created_at: int  # seconds since 1970, as all times here
    expires_at: int | None = None


@dataclass(slots=True, frozen=True)
class BatchRecord:
    """One batch: what was asked for, its state, and when each state began."""

    id: str
    tenant: str
    state: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int  # of its window
    output_keep_s: int | None = None  # of ``output_expires_after``
    metadata: dict[str, str] | None = None
    queues: tuple[str, ...] = ()  # where its items are
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: tuple[dict[str, Any], ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    times: dict[str, int] | None = None  # by state: when it began
    purged: bool = False  # its items were deleted from the queue, after its end
    kept_bytes: int = 0  # that its lines take at least, in the queue and as errors

    def moved(self, state: str, at: int, **changes: Any) -> "BatchRecord":
        """A copy in another state since ``at``, with further changes."""
        times = {**(self.times or {}), state: at}
        return replace(self, state=state, times=times, **changes)


@dataclass(slots=True, frozen=True)
class CreationKey:
    """An idempotency key: the digest of it and of its request, and the id of what it made."""

    tenant: str
    name: str
    fingerprint: str
    made: str
    at: int


KEYS_KEPT_S: Final = 2 * 86_400  # a day longer than they count
_BATCH_FIELDS: Final = tuple(BatchRecord.__slots__)


class BatchRecords:
    """Stores files and batches of all tenants."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()  # of what is written
        self._reading = threading.Lock()
        path.touch(mode=0o600)
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)
        self._reader = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._reader.execute("PRAGMA query_only=ON")

    def close(self) -> None:
        """Close the file."""
        with self._reading:
            self._reader.close()
        with self._lock:
            self._db.close()

    # --- files ---

    def add_file(self, record: FileRecord, key: CreationKey | None = None) -> None:
        """Store a file whose bytes are on disk, together with the key that made it."""
        with self._write():
            self._add_file(record)
            self._add_key(key)

    def _add_file(self, record: FileRecord) -> None:
        self._db.execute(
            "INSERT INTO files VALUES (?, (SELECT ifnull(max(seq), 0) + 1 FROM files),"
            " ?, ?, ?, ?, ?, ?)",
            (
                *(record.id, record.tenant, record.purpose, record.name),
                *(record.bytes, record.created_at, record.expires_at),
            ),
        )

    def file(self, tenant: str, file_id: str) -> FileRecord | None:
        """A tenant's file; None where there is none of this id, or another tenant has it."""
        rows = self._files("tenant = ? AND id = ?", (tenant, file_id), 1)
        return rows[0] if rows else None

    def files(
        self,
        tenant: str,
        limit: int,
        *,
        purpose: str | None = None,
        after: str | None = None,
        newest_first: bool = True,
    ) -> list[FileRecord]:
        """A tenant's files in order; ``after``: those that follow this id."""
        where, values = "tenant = ?", [tenant]
        if purpose is not None:
            where, values = f"{where} AND purpose = ?", [*values, purpose]
        if after is not None:
            sign = "<" if newest_first else ">"
            where += f" AND seq {sign} (SELECT seq FROM files WHERE id = ?)"  # noqa: S608
            values = [*values, after]
        return self._files(where, values, limit, "DESC" if newest_first else "ASC")

    def expired_files(self, now: int, limit: int = 100) -> list[FileRecord]:
        """Files whose time is over."""
        return self._files("expires_at IS NOT NULL AND expires_at <= ?", (now,), limit)

    def known_file_ids(self) -> set[str]:
        """The ids of all files, to find bytes that belong to none."""
        return {row[0] for row in self._read("SELECT id FROM files")}

    def count_files(self, tenant: str) -> int:
        """How many files a tenant has."""
        asked = "SELECT count(*) FROM files WHERE tenant = ?"
        return int(self._read(asked, (tenant,))[0][0])

    def file_bytes(self) -> dict[str, int]:
        """The bytes of all files together, by tenant."""
        return dict(self._read("SELECT tenant, sum(bytes) FROM files GROUP BY tenant"))

    def drop_file(self, file_id: str) -> bool:
        """Delete a file's record; False where it was gone before."""
        with self._write():
            return self._db.execute("DELETE FROM files WHERE id = ?", (file_id,)).rowcount > 0

    def _files(self, where: str, values: Any, limit: int, order: str = "DESC") -> list[FileRecord]:
        query = f"{_FILES_OF} WHERE {where} ORDER BY seq {order} LIMIT {int(limit)}"
        return [FileRecord(*row) for row in self._read(query, tuple(values))]

    # --- keys ---

    def created(self, tenant: str, name: str) -> CreationKey | None:
        """What a tenant's key made; None: nothing, or long ago."""
        asked = "SELECT * FROM creation_keys WHERE tenant = ? AND name = ?"
        rows = self._read(asked, (tenant, name))
        return CreationKey(*rows[0]) if rows else None

    def _add_key(self, key: CreationKey | None) -> None:
        if key is not None:
            self._db.execute("DELETE FROM creation_keys WHERE at < ?", (key.at - KEYS_KEPT_S,))
            values = (key.tenant, key.name, key.fingerprint, key.made, key.at)
            self._db.execute("INSERT OR REPLACE INTO creation_keys VALUES (?, ?, ?, ?, ?)", values)

    # --- batches ---

    def put_batch(
        self,
        record: BatchRecord,
        files: tuple[FileRecord, ...] = (),
        key: CreationKey | None = None,
    ) -> None:
        """Store a batch as it is now, with the files that it wrote and its key: all or none."""
        data = orjson.dumps({name: getattr(record, name) for name in _BATCH_FIELDS})
        with self._write():
            self._add_key(key)
            for file in files:
                self._add_file(file)
            self._db.execute(
                "INSERT INTO batches VALUES (?, (SELECT ifnull(max(seq), 0) + 1 FROM batches),"
                " ?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state,"
                " data = excluded.data",
                (record.id, record.tenant, record.state, data),
            )

    def batch(self, tenant: str, batch_id: str) -> BatchRecord | None:
        """A tenant's batch; None where there is none of this id, or another tenant has it."""
        found = self._batches("tenant = ? AND id = ?", (tenant, batch_id), 1)
        return found[0] if found else None

    def batches(self, tenant: str, limit: int, after: str | None = None) -> list[BatchRecord]:
        """A tenant's batches, newest first; ``after``: those that follow this id."""
        if after is None:
            return self._batches("tenant = ?", (tenant,), limit)
        where = "tenant = ? AND seq < (SELECT seq FROM batches WHERE id = ?)"
        return self._batches(where, (tenant, after), limit)

    def batches_in(self, states: tuple[str, ...]) -> list[BatchRecord]:
        """The batches of all tenants in these states, oldest first."""
        marks = ", ".join("?" * len(states))
        return self._batches(f"state IN ({marks})", states, -1, "ASC")

    def unpurged(self, states: tuple[str, ...]) -> list[BatchRecord]:
        """Batches that ended and whose items may still stand in a queue; reads no others."""
        marks = ", ".join("?" * len(states))
        return self._batches(f"{_UNPURGED} AND state IN ({marks})", states, -1, "ASC")

    def over(
        self, states: tuple[str, ...], now: int, keep_s: int, limit: int = 100
    ) -> list[BatchRecord]:
        """Batches that ended ``keep_s`` ago or earlier, and whose outputs are not kept longer."""
        marks = ", ".join("?" * len(states))
        where = f"{_SINCE} <= ? AND {_SINCE} <= ? - {_KEEP} AND +state IN ({marks})"
        return self._batches(where, (now - keep_s, now, *states), limit, "ASC")

    def beyond(
        self, tenant: str, states: tuple[str, ...], most: int, limit: int = 100
    ) -> list[BatchRecord]:
        """A tenant's batches in these states that are older than its newest ``most``."""
        marks = ", ".join("?" * len(states))
        newest = "SELECT seq FROM batches WHERE tenant = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
        where = f"tenant = ? AND seq <= ({newest}) AND state IN ({marks})"
        return self._batches(where, (tenant, tenant, most, *states), limit, "ASC")

    def drop_batch(self, batch_id: str) -> None:
        """Delete a batch's record."""
        with self._write():
            self._db.execute("DELETE FROM batches WHERE id = ?", (batch_id,))

    def _batches(
        self, where: str, values: tuple[Any, ...], limit: int, order: str = "DESC"
    ) -> list[BatchRecord]:
        query = f"{_BATCHES_OF} WHERE {where} ORDER BY seq {order} LIMIT {int(limit)}"
        return [_batch(row[0]) for row in self._read(query, values)]

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()

    @contextmanager
    def _write(self) -> Iterator[None]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except sqlite3.OperationalError as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if "full" in str(error) or "I/O" in str(error):
                    raise RecordsFullError(str(error)) from error
                raise
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def _batch(data: bytes) -> BatchRecord:
    said = orjson.loads(data)
    known = {name: value for name, value in said.items() if name in _BATCH_FIELDS}
    known["queues"] = tuple(known.get("queues") or ())
    known["errors"] = tuple(known.get("errors") or ())
    return BatchRecord(**known)


__all__ = ["BatchRecord", "BatchRecords", "CreationKey", "FileRecord", "RecordsFullError"]
