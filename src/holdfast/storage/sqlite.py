"""Control's ``Store`` in one SQLite file, written by one background thread.

    put_replica, put_answers, put_setting ─► memory ─► names of what changed ─┐
    add_event ─────────────────────────────► bounded queue ───────────────────┼─► writer ─► file
    put_incident ──────────────────────────► by id (``incidents``) ───────────┤
    add_order ─────────────────────────────► bounded queue (``orders``) ──────┘

*State* (replicas, answers, settings) is small and always read whole, so memory holds all of it and
is authoritative; only the names of what changed wait for the writer. A burst cannot push a replica
out, ten changes of one replica cost one write, and a file that breaks at run time is written again
from memory. *Events* are a history: they queue, at most ``queue_max``, and what does not fit is
counted.

Rejected: writing in the event loop (a sync to a slow disk takes a second, and no replica would be
probed meanwhile); a queue of all writes (its bound would have to drop a replica); a JSON file
replaced by renaming (rewrites 100,000 events to add one).

Every commit is synced. After ``flush`` returned True, neither ``kill -9`` nor a power cut undoes
it.
"""

import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from holdfast.ports import StoredEvent, StoredOrder, StoreError
from holdfast.storage import incidents, orders
from holdfast.storage.incidents import IncidentRows, Taken
from holdfast.storage.orders import OrderRow, OrderRows
from holdfast.storage.sqlite_schema import passes, prepare

QUEUE_MAX: Final = 10_000  # events that wait; minutes of the busiest fleet while a disk is stuck
EVENTS_MAX: Final = 100_000  # kept in the file: weeks of a fleet that is mostly well, ~20 MB
RECENT_MAX: Final = 1_000  # kept in memory too, so that a reader sees what is not yet written
STATES_MAX: Final = 10_000  # replicas and settings together; a fleet file holds far fewer
VALUE_BYTES_MAX: Final = 16 << 20  # one value; answers of embedding models are the largest
TEXT_MAX: Final = 2_000  # characters of one field of an event
SET_ASIDE_MAX: Final = 3  # broken files kept for people; more of them would fill the disk
RETRY_S: Final = 1.0  # between attempts while the disk is full or the file locked
BUSY_MS: Final = 5_000  # another process may hold the file for a moment

_REPLICA: Final = "replica"
_ANSWERS: Final = "answers"
_SETTING: Final = "setting"
_PUT: Final = "INSERT OR REPLACE INTO state VALUES (?, ?, ?)"
_DROP: Final = "DELETE FROM state WHERE kind = ? AND name = ?"
_ADD: Final = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
_PRUNE: Final = (
    "DELETE FROM events WHERE id <= (SELECT id FROM events ORDER BY id DESC LIMIT 1 OFFSET ?)"
)
_Name = tuple[str, str]  # kind, name
_Values = Sequence[tuple[_Name, bytes | None]]  # None: dropped
_Row = tuple[int, float, str, str, str, str, str | None]
_log = structlog.get_logger("holdfast.storage")


class SqliteStore:
    """The ``Store`` of control in one SQLite file.

    Only the constructor, ``flush`` and ``close`` wait for the disk.
    """

    def __init__(
        self, path: Path, *, queue_max: int = QUEUE_MAX, events_max: int = EVENTS_MAX
    ) -> None:
        self._path = path
        self._queue_max = queue_max
        self._events_max = events_max
        self._changed = threading.Condition()  # guards all below
        self._state: dict[_Name, bytes] = {}
        self._dirty: set[_Name] = set()
        self._queue: deque[_Row] = deque()
        self._recent: deque[_Row] = deque(maxlen=min(RECENT_MAX, events_max))
        self._incidents = IncidentRows()
        self._orders = OrderRows()
        self._asked = 0  # changes so far,
        self._written = 0  # and how many of them are on disk
        self._closing = False
        self._unpruned = 0
        self._broken = False  # the file has to go
        self._incomplete = False  # the file lacks what memory holds
        self.problem: str | None = None  # why nothing is written just now
        self.set_aside: Path | None = None  # where a file went that could not be read
        self.events_dropped = 0  # the queue was full, or the file broke under them
        self.write_failures = 0
        self._last_id = 0
        self._connection: sqlite3.Connection | None = self._begin()
        self._writer = threading.Thread(target=self._write_on, name="store", daemon=True)
        self._writer.start()

    # --- state -----------------------------------------------------------------------------------

    def put_replica(self, replica_id: str, data: dict[str, Any]) -> None:
        """Store the data of a launched replica, replacing what was stored before."""
        self._put(_REPLICA, replica_id, data)

    def drop_replica(self, replica_id: str) -> None:
        """Delete a replica; an unknown id is not an error."""
        key = (_REPLICA, _clean(replica_id))
        with self._changed:
            if self._state.pop(key, None) is not None:
                self._note(key)

    def replicas(self) -> dict[str, dict[str, Any]]:
        """The data of all stored replicas, by id, as fresh copies."""
        return self._all(_REPLICA)

    def put_answers(self, data: dict[str, Any]) -> None:
        """Store the known answers of canaries, replacing all stored before."""
        self._put(_ANSWERS, "", data)

    def answers(self) -> dict[str, Any]:
        """The known answers of canaries; empty where none were stored."""
        found: dict[str, Any] = self._all(_ANSWERS).get("", {})
        return found

    def put_setting(self, key: str, value: Any) -> None:
        """Store one setting, such as a wanted number of replicas."""
        self._put(_SETTING, key, value)

    def settings(self) -> dict[str, Any]:
        """All settings by key."""
        return self._all(_SETTING)

    def _put(self, kind: str, name: str, data: Any) -> None:
        value = orjson.dumps(data)  # now: the caller may go on changing what it gave
        if len(value) > VALUE_BYTES_MAX:
            raise StoreError(f"a {kind} of {len(value)} bytes is too large to keep")
        key = (kind, _clean(name))
        with self._changed:
            known = self._state.get(key)
            if known == value:
                return
            if known is None and len(self._state) >= STATES_MAX:
                raise StoreError(f"more than {STATES_MAX} replicas and settings")
            self._state[key] = value
            self._note(key)

    def _note(self, key: _Name) -> None:
        self._dirty.add(key)
        self._asked += 1
        self._changed.notify_all()

    def _all(self, wanted: str) -> dict[str, Any]:
        with self._changed:
            found = [(name, value) for (kind, name), value in self._state.items() if kind == wanted]
        return {name: orjson.loads(value) for name, value in found}

    # --- events ----------------------------------------------------------------------------------

    def add_event(
        self,
        at: float,
        model: str,
        replica: str,
        what: str,
        reason: str,
        kind: str | None = None,
    ) -> bool:
        """Queue an event to be stored; False: the queue is full, and it is dropped and counted."""
        if not math.isfinite(at):
            raise ValueError("an event happens at a time")
        texts = (_clean(model), _clean(replica), _clean(what), _clean(reason))
        last = _clean(kind) if kind is not None else None
        with self._changed:
            # Ids are times in µs, so that they grow even when another process wrote meanwhile.
            self._last_id = max(self._last_id + 1, time.time_ns() // 1_000)
            row: _Row = (self._last_id, at, *texts, last)
            self._recent.append(row)
            if len(self._queue) >= self._queue_max:
                self.events_dropped += 1
                return False
            self._queue.append(row)
            self._asked += 1
            self._changed.notify_all()
            return True

    def events(self, limit: int = 1_000, replica: str | None = None) -> list[StoredEvent]:
        """The newest events, the oldest of them first; of one replica where one is named."""
        if limit <= 0:
            return []
        replica = _clean(replica) if replica is not None else None
        with self._changed:
            recent = list(self._recent)
        newest = [row for row in recent if replica is None or row[3] == replica][-limit:]
        if len(newest) < limit:
            before = recent[0][0] if recent else None
            newest = self._older(limit - len(newest), replica, before) + newest
        return [StoredEvent(*row[1:]) for row in newest]

    def _older(self, limit: int, replica: str | None, before: int | None) -> list[_Row]:
        """Rows of events from the file."""
        where = "id < ?" if replica is None else "id < ? AND replica = ?"
        values: list[Any] = [before if before is not None else (1 << 63) - 1]
        if replica is not None:
            values.append(replica)
        query = f"SELECT * FROM events WHERE {where} ORDER BY id DESC LIMIT ?"  # noqa: S608 fixed
        try:
            with closing(self._reader()) as reader:
                rows: list[_Row] = reader.execute(query, (*values, limit)).fetchall()
        except sqlite3.Error as error:  # the writer finds out by itself, and says so
            _log.warning("older events not read", reason=str(error))
            return []
        return rows[::-1]

    # --- the audit trail -------------------------------------------------------------------------

    def add_order(self, order: StoredOrder) -> bool:
        """Queue a row of the audit trail; False: the queue is full, and it is dropped."""
        if not math.isfinite(order.at):
            raise ValueError("an order is given at a time")
        kept = replace(
            order,
            who=_clean(order.who),
            what=_clean(order.what),
            address=_clean(order.address),
            result=_clean(order.result),
        )
        with self._changed:
            if not self._orders.add(kept):
                return False
            self._asked += 1
            self._changed.notify_all()
            return True

    def orders(self, limit: int = 100) -> list[StoredOrder]:
        """The newest rows of the audit trail, the oldest of them first."""
        with self._changed:
            waiting = self._orders.take()
        try:
            with closing(self._reader()) as reader:
                return orders.newest(reader, waiting, limit)
        except sqlite3.Error as error:  # the writer finds out by itself, and says so
            _log.warning("older orders not read", reason=str(error))
            return orders.newest(None, waiting, limit)

    # --- incidents -------------------------------------------------------------------------------

    def put_incident(
        self,
        incident_id: str,
        opened: float,
        stage: str,
        data: dict[str, Any],
        facts: bytes | None = None,
    ) -> None:
        """Store an incident, replacing what was stored of it, and its packed facts if given."""
        with self._changed:
            self._incidents.put(_clean(incident_id), opened, stage, data)
            if facts is not None:
                self._incidents.put_export(_clean(incident_id), opened, facts)
            self._asked += 1
            self._changed.notify_all()

    def incidents(self, limit: int = 100, stage: str | None = None) -> list[dict[str, Any]]:
        """The incidents that opened last, newest first; of one stage where one is named."""
        with self._changed:
            waiting = self._incidents.waiting()
        try:
            with closing(self._reader()) as reader:
                return incidents.newest(reader, waiting, stage, limit)
        except sqlite3.Error as error:  # the writer finds out by itself, and says so
            _log.warning("older incidents not read", reason=str(error))
            return incidents.newest(None, waiting, stage, limit)

    def incident(self, incident_id: str) -> tuple[dict[str, Any] | None, bytes | None]:
        """One incident and its packed facts, each None where it is not stored."""
        with self._changed:
            waiting = self._incidents.waiting().get(incident_id)
            facts = self._incidents.waiting_export(incident_id)
        value = waiting[3] if waiting is not None else None
        try:
            with closing(self._reader()) as reader:
                asked = (_clean(incident_id),)
                if value is None:
                    query = "SELECT value FROM incidents WHERE id = ?"
                    value = next(iter(reader.execute(query, asked)), (None,))[0]
                if facts is None:
                    query = "SELECT value FROM exports WHERE id = ?"
                    facts = next(iter(reader.execute(query, asked)), (None,))[0]
        except sqlite3.Error as error:
            _log.warning("older incidents not read", reason=str(error))
        return orjson.loads(value) if value is not None else None, facts

    def _reader(self) -> sqlite3.Connection:
        """Open a connection for reading (0.2 ms); a new one each time, for any thread."""
        address = f"{self._path.absolute().as_uri()}?mode=ro"
        return sqlite3.connect(address, uri=True, timeout=0.05)

    # --- waiting ---------------------------------------------------------------------------------

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all changes made before are on disk; False: not within ``timeout_s``."""
        with self._changed:
            asked = self._asked
            return self._changed.wait_for(lambda: self._written >= asked, timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what waits and end the writer; whether all got onto disk."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout_s)
        return not self._writer.is_alive() and self._written >= self._asked

    def snapshot(self) -> dict[str, Any]:
        """The store's own state (path, queue, problems), as plain data for people and metrics."""
        with self._changed:
            return {
                "path": str(self._path),
                "waiting": self._asked - self._written,  # changes not on disk yet
                "events_dropped": self.events_dropped,
                "write_failures": self.write_failures,
                "problem": self.problem,
                "set_aside": str(self.set_aside) if self.set_aside else None,
            }

    # --- the writer ------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waits() or self._closing)
                if not self._waits():
                    break
                asked = self._asked
                names = list(self._dirty)
                values = [(name, self._state.get(name)) for name in names]
                rows = list(self._queue)
                taken = self._incidents.take()
                given = self._orders.take()
                self._dirty.clear()
            done = self._write(values, rows, taken, given)
            with self._changed:
                if done:
                    for _ in rows:
                        self._queue.popleft()
                    self._incidents.written(taken)
                    self._orders.written(given)
                    self._written = asked
                    self._changed.notify_all()
                else:
                    self._dirty.update(names)
                    if self._closing:
                        break
                    # Not at each change: those come faster than a full disk is emptied.
                    self._changed.wait_for(lambda: self._closing, RETRY_S)
        if self._connection is not None:
            self._connection.close()

    def _waits(self) -> bool:
        return bool(self._dirty or self._queue or self._incidents.take() or self._orders.take())

    def _write(
        self, values: _Values, rows: list[_Row], taken: Taken, given: tuple[OrderRow, ...]
    ) -> bool:
        """Write all that waits in one transaction; whether it is on disk."""
        try:
            try:
                self._write_once(values, rows, taken, given)
            except sqlite3.Error as error:
                if passes(error):
                    raise
                self._failed(error)
                self._broken = self._incomplete = True
                self._write_once(values, rows, taken, given)
        except Exception as error:  # noqa: BLE001 whatever it is, a dead writer would be silent
            self._failed(error)
            return False
        if self.problem is not None:
            _log.info("written again", path=str(self._path))
            self.problem = None
        return True

    def _write_once(
        self, values: _Values, rows: list[_Row], taken: Taken, given: tuple[OrderRow, ...]
    ) -> None:
        if self._broken:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._move_aside()
            self._broken = False
        if self._connection is None:
            self._connection = self._open()
        if self._incomplete:  # until one commit brought all that memory holds into the new file
            with self._changed:
                values = list(self._state.items())
                rows = sorted({*self._recent, *rows})
        self._commit(self._connection, values, rows, taken, given)
        self._incomplete = False

    def _commit(
        self,
        connection: sqlite3.Connection,
        values: _Values,
        rows: list[_Row],
        taken: Taken,
        given: tuple[OrderRow, ...],
    ) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for name, value in values:
                if value is None:
                    connection.execute(_DROP, name)
                else:
                    connection.execute(_PUT, (*name, value))
            connection.executemany(_ADD, rows)
            incidents.commit(connection, taken, self._incidents.rows_max)
            orders.commit(connection, given)
            self._unpruned += len(rows)
            if self._unpruned > self._events_max // 100:  # each time would walk the index each time
                connection.execute(_PRUNE, (self._events_max,))
                self._unpruned = 0
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _failed(self, error: Exception) -> None:
        self.write_failures += 1
        reason = str(error)
        if reason != self.problem:
            _log.error("not written", path=str(self._path), reason=reason)
            self.problem = reason

    # --- the file --------------------------------------------------------------------------------

    def _begin(self) -> sqlite3.Connection:
        """Open the file and load it into memory; an unreadable file is replaced by an empty one."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return self._open(load=True)
            except sqlite3.Error as error:
                if passes(error):
                    raise
                _log.error("not readable", path=str(self._path), reason=str(error))
            self._state.clear()
            self._recent.clear()
            self._move_aside()
            return self._open()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self._path}: {error}") from error

    def _open(self, *, load: bool = False) -> sqlite3.Connection:
        """Open the writer's connection."""
        if not self._path.exists():
            self._path.touch(0o600)  # others of this machine need not read what replicas are told
        connection = sqlite3.connect(
            self._path, timeout=BUSY_MS / 1_000, isolation_level=None, check_same_thread=False
        )
        try:
            prepare(connection)
            connection.execute(_PRUNE, (self._events_max,))
            if load:
                self._load(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _load(self, connection: sqlite3.Connection) -> None:
        for kind, name, value in connection.execute("SELECT kind, name, value FROM state"):
            try:
                orjson.loads(value)
            except ValueError:
                _log.error("state not readable", kind=kind, name=name)
            else:
                self._state[kind, name] = value
        newest = "SELECT * FROM events ORDER BY id DESC LIMIT ?"
        rows: list[_Row] = connection.execute(newest, (self._recent.maxlen,)).fetchall()
        self._recent.extend(reversed(rows))
        self._last_id = rows[0][0] if rows else 0

    def _move_aside(self) -> None:
        """Rename a broken file, with SQLite's side files, so that people can examine it."""
        if not self._path.exists():
            return
        pattern = f"{self._path.name}.broken-*[0-9]"
        target = self._path.with_name(f"{self._path.name}.broken-{time.time_ns()}")
        for suffix in ("-wal", "-shm", ""):  # the file last: without it this is done again
            part = self._path.with_name(self._path.name + suffix)
            if part.exists():
                part.rename(target.with_name(target.name + suffix))
        for old in sorted(self._path.parent.glob(pattern))[:-SET_ASIDE_MAX]:
            for suffix in ("-wal", "-shm", ""):
                old.with_name(old.name + suffix).unlink(missing_ok=True)
        self.set_aside = target
        _log.error("set aside; a new file begins", path=str(self._path), set_aside=str(target))


def _clean(text: str) -> str:
    """Shorten a text and remove what UTF-8 cannot hold: one such text would stop all writes."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()


__all__ = ["SqliteStore"]
