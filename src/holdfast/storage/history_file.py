"""The history's SQLite file: its layout, its writes, and how its size is bounded.

    a batch ─► log (one row: all series at one time) ─► memory (open points of each series)
                                                            │ every 15 minutes, by turns
                                                            ▼
                          blocks: points as they were, rows of a minute, rows of a quarter hour

A batch is one row, so writing all series costs one page or two. Each series has its turn once in
``turns`` rounds: its open points become a block, and the rows of coarser tiers that they add to are
rewritten. So the work is spread evenly, nothing is summed up only in memory, and after a kill the
log holds exactly what no block holds yet.

Rejected: downsampling by a query over old points (reads everything again, all at once); a file for
each day (its bound in bytes would be in days).
"""

import math
import sqlite3
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from holdfast.core.types import require
from holdfast.storage.points import (
    PackedError,
    Row,
    coarser,
    joined,
    pack,
    pack_batch,
    pack_rows,
    rows_of,
    runs,
    unpack_batch,
    unpack_rows,
)

_VERSION: Final = 1
_PAGES_MOVED: Final = 512  # by one look at the free pages: 2 MB, some milliseconds
_DROPPED: Final = 500  # blocks deleted at a time
_ROW_BYTES: Final = 80  # of a block beside its data, indexes included
_BUSY_S: Final = 5.0
_FREE_SHARE: Final = 0.1  # of all pages: fewer free ones are filled again soon

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, seen REAL NOT NULL, closed INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS log (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, data BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS blocks (
    id INTEGER PRIMARY KEY, tier INTEGER NOT NULL, series INTEGER NOT NULL,
    first REAL NOT NULL, last REAL NOT NULL, count INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS blocks_of_series ON blocks (tier, series, first);
CREATE INDEX IF NOT EXISTS blocks_by_age ON blocks (tier, last);
"""
_ADD: Final = "INSERT INTO blocks (tier, series, first, last, count, data) VALUES (?,?,?,?,?,?)"
_LATEST: Final = (
    "SELECT id, last, count, data FROM blocks WHERE tier = ? AND series = ?"
    " ORDER BY first DESC LIMIT 1"
)
_GROW: Final = "UPDATE blocks SET last = ?, count = ?, data = ? WHERE id = ?"
_EXPIRE: Final = (
    "DELETE FROM blocks WHERE id IN"
    " (SELECT id FROM blocks WHERE tier = ? AND last < ? ORDER BY last LIMIT ?)"
)
_FORGET: Final = "DELETE FROM blocks WHERE tier = ? AND series = ?"
_COUNT: Final = "SELECT count(*) FROM blocks WHERE tier = ?"
_MEAN: Final = (
    "SELECT avg(length(data)) FROM (SELECT data FROM blocks WHERE tier = ? ORDER BY last LIMIT 200)"
)
_UNSEEN: Final = "SELECT id, name FROM series WHERE seen < ? ORDER BY seen LIMIT ?"
_log = structlog.get_logger("holdfast.storage.history")


@dataclass(slots=True, frozen=True)
class HistoryConfig:
    """How long and how finely the history is kept, and its limits."""

    step_s: float = 10.0  # between samples: charts of minutes are smooth, 5,000 series stay cheap
    fine_keep_s: float = 7_200.0  # all samples: an incident of the last two hours, as it was
    minute_keep_s: float = 172_800.0  # rows of a minute: yesterday at this hour, to compare with
    quarter_keep_s: float = 7_776_000.0  # rows of 15 minutes: a quarter of a year, for growth
    max_bytes: int = 256 << 20  # file and journal: all of 20 replicas, two weeks or more of 500
    fine_share: float = 0.25  # of that is left to samples when it is full: two hours of 10,000
    minute_share: float = 0.35  # and to rows of a minute; or growth would leave no recent past
    series_max: int = 20_000  # names; 500 replicas and 20 models have 5,000
    waiting_points_max: int = 200_000  # while a disk is stuck: 6 minutes of 5,000 series, 10 MB
    turns: int = 90  # rounds of samples until a series is written as a block: 15 minutes
    rows_per_block: int = 96  # of a coarse tier: a day of quarter hours in one read

    def __post_init__(self) -> None:
        for name in ("step_s", "fine_keep_s", "minute_keep_s", "quarter_keep_s"):
            value = getattr(self, name)
            require(1 <= value < 1e9, f"history.{name}", f"is {value}", "use 1 second or more")
        ordered = self.step_s <= 60 and all(a <= b for a, b in pairwise(self.keeps))
        fix = "keep coarser figures for longer, and sample every minute at least"
        require(ordered, "history", "keeps fine figures for longer than coarse ones", fix)
        small = f"is {self.max_bytes}"
        require(self.max_bytes >= 1 << 20, "history.max_bytes", small, "use 1 MiB or more")
        for name in ("series_max", "waiting_points_max", "turns"):
            value = getattr(self, name)
            require(value >= 1, f"history.{name}", f"is {value}", "use 1 or more")
        shares = (self.fine_share, self.minute_share)
        fits = min(shares) > 0 and sum(shares) < 1
        require(fits, "history.fine_share", f"and minute_share are {shares}", "use less than 1")
        rows = self.rows_per_block
        require(rows >= 2, "history.rows_per_block", f"is {rows}", "use 2 or more")

    @property
    def keeps(self) -> tuple[float, float, float]:
        """How long each tier (fine, minute, quarter hour) is kept, in seconds."""
        return self.fine_keep_s, self.minute_keep_s, self.quarter_keep_s

    @property
    def steps(self) -> tuple[float, float, float]:
        """The distance between two points of each tier, in seconds."""
        return self.step_s, 60.0, 900.0

    @property
    def journal_bytes(self) -> int:
        """The part of ``max_bytes`` reserved for SQLite's journal."""
        return min(16 << 20, self.max_bytes // 4)

    @property
    def file_bytes(self) -> int:
        """The part of ``max_bytes`` that the file itself may take."""
        return self.max_bytes - self.journal_bytes


class Batch(NamedTuple):
    """The values of some series at one time."""

    at: float
    names: Sequence[str]
    values: Sequence[float]


Points = tuple["array[float]", "array[float]"]  # times, values


class HistoryFile:
    """Writes the history's file, and holds the points that are not in a block yet.

    It is used by one thread; the caller's lock guards its memory.

    Used by one thread; the caller's lock guards its memory.
    """

    def __init__(self, path: Path, config: HistoryConfig, told: Callable[[str, str], None]) -> None:
        self._config = config
        self._told = told
        self.ids: dict[str, int] = {}
        self.open: dict[int, Points] = {}
        self.refused = 0  # points of series beyond the bound
        self.unreadable = 0  # blocks that were damaged
        self._rounds = 0
        self._round: float | None = None
        self._marks: deque[int] = deque(maxlen=config.turns + 1)
        self._logged = 0
        self._full = False
        self._connection = connect(path)
        try:
            _prepare(self._connection, config.journal_bytes)
            self._load()
        except BaseException:
            self._connection.close()
            raise

    def _load(self) -> None:
        connection = self._connection
        closed: dict[int, int] = {}
        for one, name, done in connection.execute("SELECT id, name, closed FROM series"):
            self.ids[name] = one
            closed[one] = done
        replay(connection, closed, self.open)
        (last,) = connection.execute("SELECT max(id) FROM log").fetchone()
        self._logged = max(last or 0, *closed.values(), 0)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # --- writing ---------------------------------------------------------------------------------

    def write(self, batches: Sequence[Batch], *, expire: bool) -> "Written":
        """Write batches in one transaction; call ``apply`` on the result to update memory."""
        written = Written(self, frozenset(name for batch in batches for name in batch.names))
        before = (self._rounds, self._round, list(self._marks))
        try:
            with self._transaction():
                for batch in batches:
                    self._log_batch(batch, written)
                    number = batch.at // self._config.step_s
                    if number != self._round:
                        self._round = number
                        self._turn(batch.at, written, expire=expire)
        except BaseException:  # whose turn it was has its turn again
            self._rounds, self._round, marks = before
            self._marks = deque(marks, self._marks.maxlen)
            raise
        return written

    def inherit(self, other: "HistoryFile", at: float) -> "Written":
        """Write another file's points that are in no block yet as blocks of this new file."""
        self.ids, self.open = dict(other.ids), dict(other.open)
        written = Written(self, frozenset())
        with self._transaction():
            for name, one in self.ids.items():
                put = "INSERT OR REPLACE INTO series VALUES (?, ?, ?, 0)"
                self._connection.execute(put, (one, name, at))
            for one in self.open:
                self._close_series(one, at, written)
        return written

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _log_batch(self, batch: Batch, written: "Written") -> None:
        known, fresh = self.ids, written.fresh
        ids: list[int] = []
        values: list[float] = []
        for name, value in zip(batch.names, batch.values, strict=True):
            one = known.get(name) or fresh.get(name)
            if one is None:
                one = self._intern(name, batch.at, written)
                if one is None:
                    written.refused += 1
                    continue
            ids.append(one)
            values.append(value)
        if ids:
            add = "INSERT INTO log (at, data) VALUES (?, ?)"
            done = self._connection.execute(add, (batch.at, pack_batch(ids, values)))
            assert done.lastrowid is not None
            written.logged = done.lastrowid
            written.points.append((batch.at, ids, values))

    def _intern(self, name: str, at: float, written: "Written") -> int | None:
        """The id of a new series; if there are too many, the one unseen for longest is dropped."""
        count = len(self.ids) + len(written.fresh) - len(written.forgotten)
        if count >= self._config.series_max and not self._make_room(at, written):
            return None
        add = "INSERT INTO series (name, seen, closed) VALUES (?, ?, ?)"
        done = self._connection.execute(add, (name, at, max(self._logged, written.logged)))
        assert done.lastrowid is not None
        written.fresh[name] = done.lastrowid
        return done.lastrowid

    def _make_room(self, at: float, written: "Written") -> bool:
        """Drop series that have not been seen since their last turn; whether there were any."""
        if written.full:
            return False
        before = at - 2 * self._config.turns * self._config.step_s
        self._forget_before(before, max(1, self._config.series_max // 100), written)
        written.full = not written.forgotten
        return not written.full

    def _forget_before(self, before: float, most: int, written: "Written") -> None:
        for one, name in self._connection.execute(_UNSEEN, (before, most)).fetchall():
            if one not in self.open and name not in written.names:
                for tier in range(3):
                    self._connection.execute(_FORGET, (tier, one))
                self._connection.execute("DELETE FROM series WHERE id = ?", (one,))
                written.forgotten.append(name)

    # --- turns -----------------------------------------------------------------------------------

    def _turn(self, at: float, written: "Written", *, expire: bool) -> None:
        turns = self._config.turns
        self._rounds += 1
        top = max(self.ids.values(), default=0)
        for one in range(self._rounds % turns, top + 1, turns):
            if one in self.open:
                self._close_series(one, at, written)
        self._marks.append(self._logged)
        if len(self._marks) > turns:  # everybody had a turn since then
            self._connection.execute("DELETE FROM log WHERE id <= ?", (self._marks[0],))
        if expire:
            for tier, keep_s in enumerate(self._config.keeps):
                self._connection.execute(_EXPIRE, (tier, at - keep_s, _DROPPED))
            if self._rounds % turns == 0:
                self._forget_before(at - self._config.quarter_keep_s, _DROPPED, written)

    def _close_series(self, one: int, at: float, written: "Written") -> None:
        if one in written.closed:  # its points stay in memory until the transaction is done
            return
        times, values = self.open[one]
        for run in runs(times):
            stretch, told = times[run], values[run]
            packed = pack(stretch, told)
            places = (0, one, min(stretch), max(stretch), len(stretch), packed)
            self._connection.execute(_ADD, places)
        rows = rows_of(zip(times, values, strict=True), 60.0)
        self._add_rows(1, one, rows)
        self._add_rows(2, one, coarser(rows, 900.0))
        keep = "UPDATE series SET closed = ?, seen = max(seen, ?) WHERE id = ?"
        self._connection.execute(keep, (self._logged, min(max(times), at), one))
        written.closed.add(one)

    def _add_rows(self, tier: int, one: int, rows: list[Row]) -> None:
        """Append rows to the newest block of a series while it has room, else to a new one."""
        found = self._connection.execute(_LATEST, (tier, one)).fetchone()
        if found is not None:
            block, last, count, data = found
            if count < self._config.rows_per_block and rows[0].start >= last:
                try:
                    whole = joined(unpack_rows(data), rows)
                except PackedError as error:
                    self.unreadable += 1
                    _log.error("block not readable", series=one, tier=tier, reason=str(error))
                else:
                    grown = (whole[-1].start, len(whole), pack_rows(whole), block)
                    self._connection.execute(_GROW, grown)
                    return
        starts = [row.start for row in rows]
        new = (tier, one, min(starts), max(starts), len(rows), pack_rows(rows))
        self._connection.execute(_ADD, new)

    # --- size ------------------------------------------------------------------------------------

    def fit(self) -> int:
        """Delete the oldest blocks until the file is within its bound; returns how many."""
        gone = 0
        page, pages, free = self._sizes()
        while (pages - free) * page > self._config.file_bytes:
            dropped = self._drop_oldest()
            if not dropped:
                break
            gone += dropped
            page, pages, free = self._sizes()
        over = pages * page > self._config.file_bytes
        if over or free > _FREE_SHARE * pages + _PAGES_MOVED:
            self._connection.execute(
                f"PRAGMA incremental_vacuum({free if over else _PAGES_MOVED})"
            ).fetchall()
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if gone and not self._full:
            told = f"it may take {self._config.max_bytes >> 20} MiB; the oldest figures go"
            self._told("the history is full", told)
        self._full = self._full or gone > 0
        return gone

    def _sizes(self) -> tuple[int, int, int]:
        names = ("page_size", "page_count", "freelist_count")
        size, count, free = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names
        )
        return size, count, free

    def _drop_oldest(self) -> int:
        """Delete the oldest blocks of the finest tier that exceeds its share."""
        gone = self._connection.execute(_EXPIRE, (self._fullest(), math.inf, _DROPPED)).rowcount
        if not gone:
            # Only the log is left, whose points memory has: they would just not survive a kill.
            drop = "DELETE FROM log WHERE id IN (SELECT id FROM log ORDER BY id LIMIT 8)"
            gone = self._connection.execute(drop).rowcount
        return int(gone)

    def _fullest(self) -> int:
        sizes = [self._size_of(tier) for tier in range(3)]
        shares = (self._config.fine_share, self._config.minute_share)
        for tier, share in enumerate(shares):
            if sizes[tier] > share * self._config.file_bytes:
                return tier
        return max(range(3), key=sizes.__getitem__)

    def _size_of(self, tier: int) -> float:
        """Estimate a tier's bytes: adding up all blocks would read the whole file."""
        (count,) = self._connection.execute(_COUNT, (tier,)).fetchone()
        (mean,) = self._connection.execute(_MEAN, (tier,)).fetchone()
        return float(count) * float((mean or 0.0) + _ROW_BYTES)


class Written:
    """The effects of a committed transaction that memory must still follow."""

    __slots__ = (
        *("_file", "closed", "forgotten", "fresh", "full", "logged", "names", "points", "refused"),
    )

    def __init__(self, file: HistoryFile, names: frozenset[str]) -> None:
        self._file = file
        self.names = names  # of its batches
        self.fresh: dict[str, int] = {}
        self.forgotten: list[str] = []
        self.closed: set[int] = set()
        self.points: list[tuple[float, list[int], list[float]]] = []
        self.logged = 0
        self.refused = 0
        self.full = False  # nobody could make room in this transaction

    def apply(self) -> None:
        """Update the file object's memory. Call it with the lock held."""
        file = self._file
        for one in self.closed:
            del file.open[one]
        for name in self.forgotten:
            del file.ids[name]
        file.ids.update(self.fresh)
        for at, ids, values in self.points:
            keep_open(file.open, at, ids, values)
        file._logged = max(file._logged, self.logged)  # noqa: SLF001 one class in two parts
        file.refused += self.refused


def keep_open(
    points: dict[int, Points], at: float, ids: Sequence[int], values: Sequence[float]
) -> None:
    """Append one value to each of these series in memory."""
    for one, value in zip(ids, values, strict=True):
        pair = points.get(one)
        if pair is None:
            points[one] = (array("d", (at,)), array("d", (value,)))
        else:
            pair[0].append(at)
            pair[1].append(value)


def replay(
    connection: sqlite3.Connection, closed: dict[int, int], points: dict[int, Points]
) -> None:
    """Fill ``points`` from the file's log with the points that are in no block yet."""
    for number, at, data in connection.execute("SELECT id, at, data FROM log ORDER BY id"):
        try:
            ids, values = unpack_batch(data)
        except PackedError as error:
            _log.error("batch not readable", at=at, reason=str(error))
            continue
        wanted = [
            (one, value)
            for one, value in zip(ids, values, strict=True)
            if closed.get(one, number) < number
        ]
        keep_open(points, at, [one for one, _ in wanted], [value for _, value in wanted])


def connect(path: Path) -> sqlite3.Connection:
    """Open the history file for writing, and create it readable by its owner only."""
    if not path.exists():
        path.touch(0o600)
    return sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection, journal_bytes: int) -> None:
    """Set up the file, or raise if it is damaged or of another version."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in {0, _VERSION}:
        raise sqlite3.DatabaseError(f"its version is {version}, not {_VERSION}")
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost seconds, no more
    connection.execute(f"PRAGMA journal_size_limit = {journal_bytes // 2}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {journal_bytes // 4 // 4096}")
    (whole,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if whole != "ok":
        raise sqlite3.DatabaseError(str(whole))
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


__all__ = ["Batch", "HistoryConfig", "HistoryFile", "Points", "Written", "connect", "replay"]
