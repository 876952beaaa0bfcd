"""Incidents as rows of the store: one row each, replaced at each change, the oldest pruned.

An incident grows while it is open and is then only read, so it is neither *state*, all of which is
kept in memory, nor an *event*, which never changes. Rows that wait for the writer are kept by id:
ten changes of one incident cost one write, and a burst of changes holds no more rows than there are
incidents. The packed facts of an incident are kept beside it, for fewer incidents: they are a
thousand times as large, and incidents are replayed within days, not years.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

INCIDENTS_MAX: Final = 10_000  # rows; a fleet with ten a day keeps three years
EXPORTS_MAX: Final = 200  # incidents whose facts are kept
WAITING_MAX: Final = 1_000  # of each kind, for a writer whose disk is stuck

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY, opened REAL NOT NULL, stage TEXT NOT NULL, value BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS incidents_by_time ON incidents (opened);
CREATE TABLE IF NOT EXISTS exports (
    id TEXT PRIMARY KEY, opened REAL NOT NULL, value BLOB NOT NULL
) WITHOUT ROWID;
"""
_PUT: Final = "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?)"
_PUT_EXPORT: Final = "INSERT OR REPLACE INTO exports VALUES (?, ?, ?)"
_PRUNE: Final = (
    "DELETE FROM incidents WHERE id IN "
    "(SELECT id FROM incidents ORDER BY opened DESC, id DESC LIMIT -1 OFFSET ?)"
)
_PRUNE_EXPORTS: Final = (
    "DELETE FROM exports WHERE id IN "
    "(SELECT id FROM exports ORDER BY opened DESC, id DESC LIMIT -1 OFFSET ?)"
)

_Row = tuple[str, float, str, bytes]
_Export = tuple[str, float, bytes]


@dataclass(slots=True, frozen=True)
class Taken:
    """The rows and exports that the writer took to write."""

    rows: tuple[_Row, ...] = ()
    exports: tuple[_Export, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows or self.exports)


class IncidentRows:
    """Holds incidents and exports until the writer stores them. Its owner's lock guards it."""

    __slots__ = ("_exports", "_rows", "dropped", "rows_max")

    def __init__(self, rows_max: int = INCIDENTS_MAX) -> None:
        self.rows_max = rows_max
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        self._exports: OrderedDict[str, _Export] = OrderedDict()
        self.dropped = 0  # the disk was stuck for so long that the oldest had to go

    def put(self, incident_id: str, opened: float, stage: str, data: Mapping[str, Any]) -> None:
        """Queue an incident's present data to be written."""
        self._rows.pop(incident_id, None)
        self._rows[incident_id] = (incident_id, opened, stage, orjson.dumps(data))
        if len(self._rows) > WAITING_MAX:
            self._rows.popitem(last=False)
            self.dropped += 1

    def put_export(self, incident_id: str, opened: float, packed: bytes) -> None:
        """Queue an incident's packed facts to be written."""
        self._exports.pop(incident_id, None)
        self._exports[incident_id] = (incident_id, opened, packed)
        if len(self._exports) > EXPORTS_MAX:
            self._exports.popitem(last=False)
            self.dropped += 1

    def take(self) -> Taken:
        """Return all that waits to be written, without removing it."""
        return Taken(tuple(self._rows.values()), tuple(self._exports.values()))

    def written(self, taken: Taken) -> None:
        """Remove what was written; rows that changed meanwhile stay."""
        for row in taken.rows:
            if self._rows.get(row[0]) is row:
                del self._rows[row[0]]
        for export in taken.exports:
            if self._exports.get(export[0]) is export:
                del self._exports[export[0]]

    def waiting(self) -> dict[str, _Row]:
        """The rows that are not in the file yet, by id."""
        return dict(self._rows)

    def waiting_export(self, incident_id: str) -> bytes | None:
        """The packed facts of an incident that are not in the file yet; None: none wait."""
        found = self._exports.get(incident_id)
        return found[2] if found is not None else None


def commit(connection: sqlite3.Connection, taken: Taken, rows_max: int) -> None:
    """Write rows and exports, and prune the oldest, inside the caller's transaction."""
    if taken.rows:
        connection.executemany(_PUT, taken.rows)
        connection.execute(_PRUNE, (rows_max,))
    if taken.exports:
        connection.executemany(_PUT_EXPORT, taken.exports)
        connection.execute(_PRUNE_EXPORTS, (EXPORTS_MAX,))


def newest(
    reader: sqlite3.Connection | None, waiting: Mapping[str, _Row], stage: str | None, limit: int
) -> list[dict[str, Any]]:
    """The latest incidents, newest first, from the file and from the rows that still wait."""
    where, values = ("WHERE stage = ?", [stage]) if stage is not None else ("", [])
    query = f"SELECT * FROM incidents {where} ORDER BY opened DESC, id DESC LIMIT ?"  # noqa: S608
    found: dict[str, _Row] = {}
    if reader is not None:
        rows: Iterable[_Row] = reader.execute(query, (*values, limit + len(waiting)))
        found = {row[0]: row for row in rows}
    found.update(waiting)
    fitting = [row for row in found.values() if stage is None or row[2] == stage]
    fitting.sort(key=lambda row: (row[1], row[0]), reverse=True)
    return [orjson.loads(row[3]) for row in fitting[:limit]]


__all__ = [
    "EXPORTS_MAX",
    "INCIDENTS_MAX",
    "SCHEMA",
    "WAITING_MAX",
    "IncidentRows",
    "Taken",
    "commit",
    "newest",
]
