"""Time series of the fleet on disk, from which charts show the past.

    put (any thread, never waits) ─► bounded queue ─► writer ─► file (``history_file``)
    query (a thread that may wait) ◄── blocks of the file + open points in memory (``recall``)

The past is worth less than the present: nothing here may block the loop that watches replicas. So
``put`` only appends to a queue, and what does not fit is counted and lost. The writer also opens
and checks the file; an error in it is reported once and does not stop the writer. A file that
cannot be read is kept under another name, and a new one begins.

Time is the wall clock's, because people compare charts with their logs. A clock that is set back
makes points that lie before others; they are sorted when read. A clock that leaps ahead would make
everything look expired, so nothing expires for an hour after a leap (the bound in bytes holds).

Rejected: the store's own file (its syncs and its size are for state that must not be lost); a time
series database beside control (one more thing that can be down when it is needed).
"""

import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import structlog

from holdfast.storage.history_file import (
    Batch,
    HistoryConfig,
    HistoryFile,
    Points,
    replay,
)
from holdfast.storage.recall import Question, Recalled, matching, recall
from holdfast.storage.sqlite_schema import passes

FILE_NAME: Final = "history.sqlite"
NAME_MAX: Final = 300  # characters of a series' name; longer ones are not kept
VALUE_MAX: Final = 1e38  # rows hold single precision
RETRY_S: Final = 1.0  # between attempts while the disk is full or the file locked
JUMP_S: Final = 60.0  # of the wall clock against the steady one: less is drift
HOLD_S: Final = 3_600.0  # after a leap ahead: time to set the clock right before anything expires
OPEN_S: Final = 5.0  # a question waits so long for a file that is still being checked
BATCHES_MAX: Final = 32  # in one transaction
SET_ASIDE_MAX: Final = 2  # broken files kept for people
_log = structlog.get_logger("holdfast.storage.history")


class HistoryError(Exception):
    """The history cannot be read; the text says why."""


def _tell_nobody(what: str, reason: str) -> None:
    _log.warning(what, reason=reason)


class History:
    """Writes time series to one file in a background thread, and answers queries about them."""

    def __init__(
        self,
        path: Path,
        config: HistoryConfig | None = None,
        told: Callable[[str, str], None] = _tell_nobody,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.config = config or HistoryConfig()
        self._told = told  # what happened to it, and why; called by the writer
        self._steady = steady
        self._changed = threading.Condition()  # guards all below, and the memory of the file
        self._queue: deque[tuple[Batch, float]] = deque()
        self._waiting = 0  # points in the queue
        self._asked = self._written = 0  # batches
        self._file: HistoryFile | None = None
        self._closing = False
        self._before: tuple[float, float] | None = None  # wall and steady time of the last batch
        self._hold_until = -math.inf
        self.dropped = 0  # points that found no room in the queue
        self.refused = 0  # values that are no numbers, names that are too long
        self.write_failures = 0
        self.write_s = 0.0  # CPU time of the writer so far
        self.problem: str | None = None
        self.set_aside: Path | None = None
        self._writer = threading.Thread(target=self._write_on, name="history", daemon=True)
        self._writer.start()

    # --- telling ---------------------------------------------------------------------------------

    def put(self, at: float, values: Mapping[str, float | None]) -> bool:
        """Queue one point for each series at time ``at``; a value of ``None`` makes no point.

        Returns False when the queue is full: the points are then counted as dropped, and lost.
        """
        if not (math.isfinite(at) and at >= 0):
            raise ValueError("a point has a time")
        names: list[str] = []
        numbers: list[float] = []
        refused = 0
        for name, value in values.items():
            if value is None:
                continue
            number = float(value)
            if not -VALUE_MAX < number < VALUE_MAX or not 0 < len(name) <= NAME_MAX:
                refused += 1
                continue
            names.append(name)
            numbers.append(number)
        with self._changed:
            self.refused += refused
            if not names:
                return True
            if self._waiting + len(names) > self.config.waiting_points_max or self._closing:
                self.dropped += len(names)
                return False
            self._queue.append((Batch(round(at, 3), names, numbers), self._steady()))
            self._waiting += len(names)
            self._asked += 1
            self._changed.notify_all()
            return True

    # --- asking ----------------------------------------------------------------------------------

    def names(self, wanted: str = "", match: str = "prefix") -> list[str]:
        """The names of the stored series that match, in order. May wait for the file to open."""
        return matching(self._opened_file()[1], wanted, match)

    def _opened_file(self) -> tuple[HistoryFile, dict[str, int]]:
        """The open file and its series, waiting for the check at the start (up to a second)."""
        with self._changed:
            self._changed.wait_for(lambda: self._file is not None or self._closing, OPEN_S)
            if self._file is None:
                raise HistoryError(self.problem or "the history is not open")
            return self._file, dict(self._file.ids)

    def query(self, wanted: Sequence[str], question: Question, match: str = "exact") -> Recalled:
        """Read the points of the matching series. It reads the file, so it may block."""
        file, known = self._opened_file()
        names = [name for one in wanted for name in matching(known, one, match)]
        ids = {name: known[name] for name in names}
        with self._changed:  # before the file is read: what becomes a block meanwhile is in both
            young = {
                one: (file.open[one][0][:], file.open[one][1][:])
                for one in ids.values()
                if one in file.open
            }
        try:
            with closing(_reader(self.path)) as reader:
                return recall(reader, self.config, ids, young, question)
        except sqlite3.Error as error:
            raise HistoryError(f"the history cannot be read now: {error}") from error

    def snapshot(self) -> dict[str, Any]:
        """The history's own state (path, queue, problems), for people and metrics."""
        with self._changed:
            file = self._file
            return {
                "path": str(self.path),
                "series": len(file.ids) if file is not None else 0,
                "waiting": self._waiting,  # points not on disk yet
                "dropped": self.dropped,
                "refused": self.refused + (file.refused if file is not None else 0),
                "write_failures": self.write_failures,
                "write_s": round(self.write_s, 3),
                "problem": self.problem,
                "set_aside": str(self.set_aside) if self.set_aside else None,
            }

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all points queued before are on disk; False: not within ``timeout_s``."""
        with self._changed:
            asked = self._asked
            return self._changed.wait_for(lambda: self._written >= asked, timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write the queued points and end the writer; whether all got onto disk."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout_s)
        return not self._writer.is_alive() and self._written >= self._asked

    # --- the writer ------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while True:
            file = self._opened()
            with self._changed:
                if file is not None:
                    self._changed.wait_for(lambda: self._queue or self._closing)
                if self._closing and (file is None or not self._queue):
                    break
                taken = [self._queue[place] for place in range(min(BATCHES_MAX, len(self._queue)))]
            done = file is not None and self._write(file, taken)
            self.write_s = time.thread_time()
            with self._changed:
                if done:
                    for batch, _ in taken:
                        self._queue.popleft()
                        self._waiting -= len(batch.names)
                    self._written += len(taken)
                    self._changed.notify_all()
                elif self._closing:
                    break
                else:
                    self._changed.wait_for(lambda: self._closing, RETRY_S)
        with self._changed:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> HistoryFile | None:
        """The history file, opened now if needed; None while that fails."""
        if self._file is not None:
            return self._file
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                file = HistoryFile(self.path, self.config, self._told)
            except sqlite3.Error as error:
                if passes(error):
                    raise
                self._move_aside(error)
                file = HistoryFile(self.path, self.config, self._told)
        except Exception as error:  # noqa: BLE001 whatever it is, a dead writer would be silent
            self._failed(error)
            return None
        with self._changed:
            self._file = file
            self._changed.notify_all()
        return file

    def _write(self, file: HistoryFile, taken: Sequence[tuple[Batch, float]]) -> bool:
        """Write batches to the file; whether they are on disk."""
        expire = self._judge_clock(taken)
        try:
            try:
                done = file.write([batch for batch, _ in taken], expire=expire)
            except sqlite3.Error as error:
                if passes(error):
                    raise
                self._failed(error)
                file = self._begin_anew(file, error, taken[-1][0].at)
                done = file.write([batch for batch, _ in taken], expire=expire)
        except Exception as error:  # noqa: BLE001 as above
            self._failed(error)
            return False
        with self._changed:
            done.apply()
        try:
            file.fit()
        except sqlite3.Error as error:  # it is written; the bound is looked after the next time
            self._failed(error)
            return True
        if self.problem is not None:
            _log.info("written again", path=str(self.path))
            self.problem = None
        return True

    def _begin_anew(self, broken: HistoryFile, error: sqlite3.Error, at: float) -> HistoryFile:
        """Replace a file that broke by a new one, with the points that were still in memory."""
        broken.close()
        self._move_aside(error)
        file = HistoryFile(self.path, self.config, self._told)
        saved = file.inherit(broken, at)
        with self._changed:
            saved.apply()
            self._file = file
        return file

    def _judge_clock(self, taken: Sequence[tuple[Batch, float]]) -> bool:
        """Whether old points may expire: not for a while after the wall clock leapt ahead."""
        for batch, steady in taken:
            if self._before is not None:
                leap = (batch.at - self._before[0]) - (steady - self._before[1])
                if abs(leap) > JUMP_S:
                    held = f"nothing expires for {HOLD_S / 60:.0f} minutes" if leap > 0 else "kept"
                    self._told("the clock jumped", f"by {leap:+.0f} s; {held}")
                    self._hold_until = steady + HOLD_S if leap > 0 else self._hold_until
            self._before = (batch.at, steady)
        return taken[-1][1] >= self._hold_until

    def _failed(self, error: Exception) -> None:
        self.write_failures += 1
        reason = str(error) or type(error).__name__
        if reason != self.problem:
            _log.error("not written", path=str(self.path), reason=reason)
            self.problem = reason

    def _move_aside(self, error: sqlite3.Error) -> None:
        """Rename a broken file, with SQLite's side files, so that people can examine it."""
        target = self.path.with_name(f"{self.path.name}.broken-{time.time_ns()}")
        for suffix in ("-wal", "-shm", ""):  # the file last: without it this is done again
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.rename(target.with_name(target.name + suffix))
        pattern = f"{self.path.name}.broken-*[0-9]"
        for old in sorted(self.path.parent.glob(pattern))[:-SET_ASIDE_MAX]:
            for suffix in ("-wal", "-shm", ""):
                old.with_name(old.name + suffix).unlink(missing_ok=True)
        self.set_aside = target
        self._told("the history was damaged", f"{error}; it is {target.name} now, a new one begins")


class Past:
    """Answers queries about the history of a stopped fleet, from its file alone."""

    def __init__(self, path: Path, config: HistoryConfig | None = None) -> None:
        self.config = config or HistoryConfig()
        if not path.is_file():
            raise HistoryError(f"{path}: there is no history")
        try:
            self._reader = _reader(path)
            rows = self._reader.execute("SELECT id, name, closed FROM series").fetchall()
            self._ids = {name: one for one, name, _ in rows}
            self._open: dict[int, Points] = {}
            replay(self._reader, {one: closed for one, _, closed in rows}, self._open)
        except sqlite3.Error as error:
            raise HistoryError(f"{path}: {error}") from error

    def names(self, wanted: str = "", match: str = "prefix") -> list[str]:
        """The names of the stored series that match, in order."""
        return matching(self._ids, wanted, match)

    def query(self, wanted: Sequence[str], question: Question, match: str = "exact") -> Recalled:
        """Read the points of the matching series."""
        names = [name for one in wanted for name in matching(self._ids, one, match)]
        ids = {name: self._ids[name] for name in names}
        young = {one: self._open[one] for one in ids.values() if one in self._open}
        try:
            return recall(self._reader, self.config, ids, young, question)
        except sqlite3.Error as error:
            raise HistoryError(f"the history cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def _reader(path: Path) -> sqlite3.Connection:
    """Open a read-only connection, which costs 0.2 ms; a new one each time, for any thread."""
    reader = sqlite3.connect(path, timeout=0.2, isolation_level=None)
    reader.execute("PRAGMA query_only = ON")
    return reader


__all__ = ["FILE_NAME", "History", "HistoryConfig", "HistoryError", "Past", "Question", "Recalled"]
