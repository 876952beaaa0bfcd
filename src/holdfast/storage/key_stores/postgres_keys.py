"""Idempotency keys in PostgreSQL, for gateways on several hosts.

A batch of changes is one transaction. It first takes an advisory lock for each of its keys, in the
order of their numbers, so that no two batches decide from the same state and none waits for another
in a circle; a row that does not exist yet could not be locked itself. What tenants hold is added
up at the end, in the order of their names. Reading it is not locked: gateways that fill a tenant's
last place at the same moment may exceed its bound by what is in their batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

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

_CONNECT_S: Final = 2  # as long as a keyed request waits
_CALL_MS: Final = 5_000  # a statement that takes longer is given up
_SETUP: Final = 0x686F6C64  # the advisory lock of whoever makes the tables
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS holdfast_keys (
    tenant text NOT NULL, digest text NOT NULL, owner text NOT NULL, wanted boolean NOT NULL,
    execution text NOT NULL, due_at double precision NOT NULL, record bytea NOT NULL,
    PRIMARY KEY (tenant, digest)
);
CREATE INDEX IF NOT EXISTS holdfast_keys_due ON holdfast_keys (due_at);
CREATE INDEX IF NOT EXISTS holdfast_keys_wanted ON holdfast_keys (owner) WHERE wanted;
CREATE TABLE IF NOT EXISTS holdfast_key_pieces (
    tenant text NOT NULL, digest text NOT NULL, number integer NOT NULL, data bytea NOT NULL,
    PRIMARY KEY (tenant, digest, number)
);
CREATE TABLE IF NOT EXISTS holdfast_key_usage (
    tenant text PRIMARY KEY, keys bigint NOT NULL, bytes bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS holdfast_key_owners (
    owner text PRIMARY KEY, beat bigint NOT NULL, at timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS holdfast_key_purges (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text NOT NULL
);
"""
_LOCK: Final = "SELECT pg_advisory_xact_lock(k) FROM unnest(%s::bigint[]) AS k"
_READ: Final = """
SELECT tenant, digest, record FROM holdfast_keys
WHERE (tenant, digest) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""
_PUT: Final = """
INSERT INTO holdfast_keys VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant, digest) DO UPDATE SET owner = excluded.owner, wanted = excluded.wanted,
    execution = excluded.execution, due_at = excluded.due_at, record = excluded.record
"""
_DROP: Final = "DELETE FROM holdfast_keys WHERE tenant = %s AND digest = %s"
_DROP_PIECES: Final = "DELETE FROM holdfast_key_pieces WHERE tenant = %s AND digest = %s"
_ADD_PIECE: Final = "INSERT INTO holdfast_key_pieces VALUES (%s, %s, %s, %s)"
_PIECES: Final = """
SELECT data FROM holdfast_key_pieces
WHERE tenant = %s AND digest = %s AND number >= %s ORDER BY number
"""
_USE: Final = """
INSERT INTO holdfast_key_usage AS held VALUES (%s, %s, %s) ON CONFLICT (tenant) DO UPDATE
SET keys = held.keys + excluded.keys, bytes = held.bytes + excluded.bytes
"""
_BEAT: Final = """
INSERT INTO holdfast_key_owners VALUES (%s, 1, now())
ON CONFLICT (owner) DO UPDATE SET beat = holdfast_key_owners.beat + 1, at = now()
"""
_FORGET: Final = "DELETE FROM holdfast_key_owners WHERE at < now() - make_interval(secs => %s)"
_BEATS: Final = "SELECT owner, beat FROM holdfast_key_owners WHERE owner = ANY(%s)"
_WANTED: Final = """
SELECT tenant, digest, execution FROM holdfast_keys WHERE wanted AND owner = %s
"""
_DUE: Final = "SELECT tenant, digest FROM holdfast_keys WHERE due_at <= %s ORDER BY due_at LIMIT %s"
_USAGE: Final = "SELECT tenant, keys, bytes FROM holdfast_key_usage"
_PURGES: Final = "SELECT number, tenant FROM holdfast_key_purges WHERE number > %s ORDER BY number"
_OLD_PURGES: Final = """
DELETE FROM holdfast_key_purges WHERE number <= (SELECT max(number) FROM holdfast_key_purges) - %s
"""


class PostgresKeys:
    """The ``KeyStore`` port over one connection to PostgreSQL; used by one thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    # --- the connection --------------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = psycopg.connect(
            self._url,
            connect_timeout=_CONNECT_S,
            row_factory=tuple_row,
            options=f"-c statement_timeout={_CALL_MS} -c synchronous_commit=on",
            application_name="holdfast",
        )
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP,))
            connection.execute(_SCHEMA)
        connection.autocommit = True
        return connection

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection, within one transaction; a new one after a failure of the old."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._connect()
            with self._connection.transaction():
                yield self._connection
        except psycopg.Error as error:
            self.close()
            # The text of a failed connect names host and user, never the password.
            raise KeyStoreError(f"PostgreSQL: {_first_line(error)}") from error

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- the port --------------------------------------------------------------------------------

    def update(self, changes: Sequence[KeyChange]) -> list[KeyRuling]:
        """Make all changes in one transaction, in the server's log on return."""
        if not changes:
            return []
        names = {change.name for change in changes}
        with self._connected() as connection:
            connection.execute(_LOCK, (sorted(map(_lock_of, names)),))
            records = _records(connection, names)
            ledger = UsageLedger(connection.execute(_USAGE).fetchall())
            rulings, writes = [], []
            for change in changes:
                before = records.get(change.name)
                ruling = change.decide(before, ledger.of(change.name.tenant))
                if ruling.changed:
                    writes.append((change.name, before, ruling))
                    records[change.name] = ruling.record
                    ledger.note(change.name.tenant, before, ruling.record)
                rulings.append(ruling)
            with connection.pipeline():
                for name, before, ruling in writes:
                    _write(connection, name, before, ruling)
                for tenant, more in sorted(ledger.changes.items()):
                    connection.execute(_USE, (tenant, *more))
        return rulings

    def look(self, watched: Sequence[WatchedKey]) -> list[KeySight]:
        """Read the records, beats and further pieces of some keys."""
        if not watched:
            return []
        with self._connected() as connection:
            records = _records(connection, {key.name for key in watched})
            owners = [record.owner for record in records.values() if record is not None]
            beats = dict(connection.execute(_BEATS, (owners,)).fetchall())
            sights = []
            for key in watched:
                record = records.get(key.name)
                pieces: tuple[bytes, ...] = ()
                same = record is not None and record.execution == key.execution
                if record is not None and same and record.stored > key.here:
                    asked = (key.name.tenant, key.name.digest, key.here)
                    rows = connection.execute(_PIECES, asked).fetchall()
                    pieces = tuple(bytes(row[0]) for row in rows)
                beat = None if record is None else beats.get(record.owner)
                sights.append(KeySight(record, beat, pieces))
            return sights

    def beat(self, owner: str, heard: int) -> list[tuple[int, str]]:
        """Count the beat of a gateway up; forget gateways that are long gone."""
        with self._connected() as connection:
            connection.execute(_BEAT, (owner,))
            connection.execute(_FORGET, (OWNER_KEPT_S,))
            return [(n, tenant) for n, tenant in connection.execute(_PURGES, (heard,)).fetchall()]

    def farewell(self, owner: str) -> None:
        """Forget a gateway that has left in good order."""
        with self._connected() as connection:
            connection.execute("DELETE FROM holdfast_key_owners WHERE owner = %s", (owner,))

    def wanted(self, owner: str) -> list[tuple[KeyName, str]]:
        """Return the keys that this gateway executes and callers of other gateways wait for."""
        with self._connected() as connection:
            rows = connection.execute(_WANTED, (owner,)).fetchall()
        return [(KeyName(tenant, digest), execution) for tenant, digest, execution in rows]

    def due(self, now: float, most: int) -> list[KeyName]:
        """Return some keys of which something has expired."""
        with self._connected() as connection:
            return [KeyName(*row) for row in connection.execute(_DUE, (now, most)).fetchall()]

    def purge(self, tenant: str) -> int:
        """Delete all of a tenant's keys and answers."""
        with self._connected() as connection:
            connection.execute("DELETE FROM holdfast_key_pieces WHERE tenant = %s", (tenant,))
            connection.execute("DELETE FROM holdfast_key_usage WHERE tenant = %s", (tenant,))
            gone = connection.execute("DELETE FROM holdfast_keys WHERE tenant = %s", (tenant,))
            put = "INSERT INTO holdfast_key_purges (tenant) VALUES (%s)"
            connection.execute(put, (tenant,))
            connection.execute(_OLD_PURGES, (PURGES_KEPT,))
            return gone.rowcount

    def usage(self) -> dict[str, KeyUsage]:
        """Return what is held, by tenant."""
        with self._connected() as connection:
            rows = connection.execute(_USAGE).fetchall()
        ledger = UsageLedger((tenant, keys, size) for tenant, keys, size in rows)
        return {tenant: ledger.of(tenant) for tenant in ledger.tenants()}


def _lock_of(name: KeyName) -> int:
    """The number of a key's lock; digests are spread evenly, and two keys may share one."""
    number = int.from_bytes(name.digest.encode()[:16].ljust(16, b"0")[:8], "big", signed=True)
    return number ^ _SETUP


def _records(
    connection: psycopg.Connection[tuple[Any, ...]], names: set[KeyName]
) -> dict[KeyName, KeyRecord | None]:
    asked = ([name.tenant for name in names], [name.digest for name in names])
    rows = connection.execute(_READ, asked).fetchall()
    return {KeyName(tenant, digest): decode(bytes(record)) for tenant, digest, record in rows}


def _write(
    connection: psycopg.Connection[tuple[Any, ...]],
    name: KeyName,
    before: KeyRecord | None,
    ruling: KeyRuling,
) -> None:
    record, place = ruling.record, (name.tenant, name.digest)
    if drops_pieces(before, record):
        connection.execute(_DROP_PIECES, place)
    if record is None:
        connection.execute(_DROP, place)
        return
    marks = (record.owner, record.wanted, record.execution, due_at(record))
    connection.execute(_PUT, (*place, *marks, encode(record)))
    first = record.stored - len(ruling.pieces)
    for number, piece in enumerate(ruling.pieces, first):
        connection.execute(_ADD_PIECE, (*place, number, piece))


def _first_line(error: psycopg.Error) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


__all__ = ["PostgresKeys"]
