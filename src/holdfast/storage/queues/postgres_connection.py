"""Connections of the PostgreSQL queue: a few of them, replaced when they break, and its errors.

Every call is one transaction on one connection. A connection that broke is not used again; the call
that met the break is told that the queue is unavailable: it may have happened, and can be repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import psycopg
import structlog
from psycopg import AsyncConnection, AsyncCursor, errors

from holdfast.queue_port import (
    QueueError,
    QueueFullError,
    QueueUnavailableError,
    QueueUnsupportedError,
)
from holdfast.storage.queues import postgres_sql as statements

CONNECTIONS_MAX: Final = 4  # a runner and its heartbeats, a reader, one to spare
CONNECT_S: Final = 5  # a server that does not answer within so long is not there
CALL_S: Final = 30.0  # no call waits longer, whatever the server is doing
REPEATS_MAX: Final = 3  # of a transaction that the server itself asks to repeat

Row = tuple[Any, ...]
Cursor = AsyncCursor[Row]
Result = TypeVar("Result")
_log = structlog.get_logger("holdfast.queues")


class PostgresConnections:
    """Runs transactions on a bounded number of connections to one database."""

    def __init__(self, url: str, password: str | None, on_point: Callable[[str], None]) -> None:
        self._url = url
        self._password = password
        self._on_point = on_point
        self._free: list[AsyncConnection[Row]] = []
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)
        self._prepared = False
        self._preparing = asyncio.Lock()
        self._closed = False

    async def call(self, name: str, change: Callable[[Cursor], Awaitable[Result]]) -> Result:
        """Run a change in one transaction and commit it."""
        if self._closed:
            raise QueueUnavailableError("the queue is closed")
        try:
            async with asyncio.timeout(CALL_S), self._turns:
                for attempt in range(REPEATS_MAX):
                    try:
                        return await self._transaction(name, change)
                    except (errors.SerializationFailure, errors.DeadlockDetected) as error:
                        if attempt == REPEATS_MAX - 1:
                            raise
                        _log.info("transaction repeated", call=name, reason=str(error))
        except (psycopg.Error, OSError) as error:  # a time out is an OSError
            raise translated(error) from error
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        """Close the connections that nobody uses; those in use end with their call."""
        self._closed = True
        while self._free:
            await self._free.pop().close()

    async def _transaction(
        self, name: str, change: Callable[[Cursor], Awaitable[Result]]
    ) -> Result:
        connection = self._free.pop() if self._free else await self._connect()
        whole = False
        try:
            async with connection.transaction(), connection.cursor() as cursor:
                self._on_point("begun")
                answer = await change(cursor)
                self._on_point(f"{name} changed")
            self._on_point("committed")
            whole = True
        except QueueError:
            whole = not connection.broken  # rolled back
            raise
        finally:
            if whole and not connection.broken and not self._closed:
                self._free.append(connection)
            else:
                await connection.close()
        return answer

    async def _connect(self) -> AsyncConnection[Row]:
        more: dict[str, Any] = {} if self._password is None else {"password": self._password}
        connection = await AsyncConnection.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            application_name="holdfast",
            keepalives_idle=10,
            **more,
        )
        try:
            await self._check(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _check(self, connection: AsyncConnection[Row]) -> None:
        """Refuse a server that would lose what it confirmed; create the tables once."""
        cursor = await connection.execute(
            "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
        )
        row = await cursor.fetchone()
        assert row is not None
        if row[0] != "on":
            raise QueueUnsupportedError(
                "this PostgreSQL has fsync = off: a crash of its machine loses confirmed items; "
                "set fsync = on"
            )
        if row[1] == "off":  # the server's own log is then written later than the answer
            await connection.execute("SET synchronous_commit = on")
        async with self._preparing:
            if self._prepared:
                return
            async with connection.transaction():
                await connection.execute(statements.SCHEMA_LOCK)
                for statement in statements.SCHEMA.split(";"):
                    await connection.execute(statement)
                cursor = await connection.execute(statements.READ_CLOCK)
                row = await cursor.fetchone()
            version = row[1] if row is not None else None
            if version != statements.VERSION:
                raise QueueUnsupportedError(
                    f"the tables' version is {version}, not {statements.VERSION}; "
                    "use the Holdfast that made them, or another database"
                )
            self._prepared = True


def translated(error: Exception) -> QueueError:
    """An error of PostgreSQL or of the network as the port tells it; no URL, it has secrets."""
    if isinstance(error, TimeoutError):
        return QueueUnavailableError(f"PostgreSQL did not answer within {CALL_S:g} s")
    told = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, errors.DiskFull | errors.OutOfMemory):
        fix = "make room on the server's disk, work goes on by itself"
        return QueueFullError(f"PostgreSQL: {told}: nothing was changed; {fix}")
    if isinstance(error, errors.InsufficientPrivilege):
        fix = "grant the user CREATE on the schema, and all on the tables holdfast_queue_*"
        return QueueUnsupportedError(f"PostgreSQL: {told}; {fix}")
    return QueueUnavailableError(f"PostgreSQL: {told}")


__all__ = ["CALL_S", "Cursor", "PostgresConnections", "Row", "translated"]
