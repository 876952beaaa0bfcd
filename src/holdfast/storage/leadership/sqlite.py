"""The leadership in a SQLite file, for controls on one machine.

The time is that since the machine started, sleep included: all processes share it, and nobody can
set it. After a restart of the machine it begins at zero; a lease that would then last longer than
any can is over.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from holdfast.core.health.leadership import LeaseAnswer
from holdfast.ports import LeadershipStoreError

_BUSY_S: Final = 2.0  # to wait for the other one's transaction; it takes a millisecond
_SCHEMA: Final = """\
CREATE TABLE IF NOT EXISTS leadership (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    holder TEXT NOT NULL,
    term INTEGER NOT NULL,
    until REAL NOT NULL,
    lasts REAL NOT NULL
)"""


def _machine_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SqliteLeadership:
    """The lease in a file that all controls of one machine can write."""

    def __init__(self, path: Path, clock: Callable[[], float] = _machine_time) -> None:
        self._path = path
        self._clock = clock

    async def claim(self, holder: str, lease_s: float) -> LeaseAnswer:
        """Take or renew the lease if nobody else holds it; returns who does."""
        return await asyncio.to_thread(self._claim, holder, lease_s)

    async def release(self, holder: str) -> None:
        """Give the lease back, if this holder has it: the next claim is granted."""
        await asyncio.to_thread(self._release, holder)

    async def close(self) -> None:
        """Nothing is open between two claims."""

    def _claim(self, holder: str, lease_s: float) -> LeaseAnswer:
        try:
            with closing(self._open()) as database, database:
                database.execute("BEGIN IMMEDIATE")
                now = self._clock()
                row = database.execute("SELECT holder, term, until, lasts FROM leadership")
                known = row.fetchone()
                was, term, until, lasts = known or ("", 0, 0.0, 0.0)
                held = was != "" and now < until <= now + lasts
                if held and was != holder:
                    return LeaseAnswer(was, term, held=False)
                if was != holder or not held:
                    term += 1
                database.execute(
                    "INSERT OR REPLACE INTO leadership VALUES (1, ?, ?, ?, ?)",
                    (holder, term, now + lease_s, lease_s),
                )
                return LeaseAnswer(holder, term, held=True)
        except (sqlite3.Error, OSError) as error:
            raise LeadershipStoreError(f"{self._path}: {error}") from error

    def _release(self, holder: str) -> None:
        try:
            with closing(self._open()) as database, database:
                database.execute("UPDATE leadership SET until = 0 WHERE holder = ?", (holder,))
        except (sqlite3.Error, OSError) as error:
            raise LeadershipStoreError(f"{self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        fresh = not self._path.exists()
        database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        if fresh:
            self._path.chmod(0o600)
        database.execute("PRAGMA synchronous = FULL")  # a term that was told is never told again
        database.execute(_SCHEMA)
        return database


__all__ = ["SqliteLeadership"]
