"""The leadership in PostgreSQL, by the database's own clock.

One row and one statement: the row is locked while it is judged, so two claims never both see an
expired lease. A database that fails over to a replica must replicate synchronously, or a granted
term may be forgotten and granted again.
"""

import asyncio
from typing import Any, Final

from holdfast.core.health.leadership import LeaseAnswer
from holdfast.core.types import ConfigError
from holdfast.ports import LeadershipStoreError

_CONNECT_S: Final = 3
_SCHEMA: Final = """\
CREATE TABLE IF NOT EXISTS holdfast_leadership (
    name text PRIMARY KEY,
    holder text NOT NULL,
    term bigint NOT NULL,
    until timestamptz NOT NULL
)"""
_CLAIM: Final = """\
INSERT INTO holdfast_leadership AS now_held (name, holder, term, until)
VALUES (%(name)s, %(holder)s, 1, clock_timestamp() + make_interval(secs => %(lease_s)s))
ON CONFLICT (name) DO UPDATE SET
    term = now_held.term + CASE
        WHEN now_held.holder = excluded.holder AND now_held.until > clock_timestamp() THEN 0
        ELSE 1 END,
    holder = excluded.holder,
    until = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE now_held.holder = excluded.holder OR now_held.until <= clock_timestamp()
RETURNING holder, term"""
_HELD: Final = "SELECT holder, term FROM holdfast_leadership WHERE name = %(name)s"
_RELEASE: Final = """\
UPDATE holdfast_leadership SET until = clock_timestamp()
WHERE name = %(name)s AND holder = %(holder)s"""


class PostgresLeadership:
    """The lease in a row of a PostgreSQL database; opens its connection with the first claim."""

    def __init__(self, url: str, name: str) -> None:
        try:
            import psycopg  # noqa: PLC0415 an extra: only who has such a database needs it
        except ImportError as error:
            fix = "pip install 'holdfast[postgres]'"
            raise ConfigError("control.lease", "in PostgreSQL needs psycopg", fix) from error
        self._psycopg = psycopg
        self._url = url
        self._name = name
        self._connection: Any = None
        self._asking = asyncio.Lock()

    async def claim(self, holder: str, lease_s: float) -> LeaseAnswer:
        """Take or renew the lease if nobody else holds it; returns who does."""
        values = {"name": self._name, "holder": holder, "lease_s": lease_s}
        async with self._asking:
            try:
                async with asyncio.timeout(lease_s):
                    row = await self._row(_CLAIM, values) or await self._row(_HELD, values)
            except (self._psycopg.Error, OSError, TimeoutError) as error:
                await self._drop()
                told = type(error).__name__  # its text may repeat the address with a password
                raise LeadershipStoreError(f"the database did not answer: {told}") from error
        if row is None:
            raise LeadershipStoreError("the database lost the lease between two questions")
        return LeaseAnswer(row[0], row[1], held=row[0] == holder)

    async def release(self, holder: str) -> None:
        """Give the lease back, if this holder has it: the next claim is granted."""
        async with self._asking:
            try:
                connection = await self._connected()
                await connection.execute(_RELEASE, {"name": self._name, "holder": holder})
            except (self._psycopg.Error, OSError) as error:
                await self._drop()
                raise LeadershipStoreError(type(error).__name__) from error

    async def close(self) -> None:
        """Close the connection."""
        await self._drop()

    async def _row(self, statement: str, values: dict[str, object]) -> tuple[str, int] | None:
        connection = await self._connected()
        answer = await connection.execute(statement, values)
        row: tuple[str, int] | None = await answer.fetchone()
        return row

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            connect = self._psycopg.AsyncConnection.connect
            self._connection = await connect(self._url, autocommit=True, connect_timeout=_CONNECT_S)
            await self._connection.execute(_SCHEMA)
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


__all__ = ["PostgresLeadership"]
