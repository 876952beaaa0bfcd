"""Durable queues in one SQLite file, with group commit.

    callers ─► calls that wait (bounded) ─► writer thread: BEGIN, all that wait, COMMIT ─► answers

A commit costs a sync of the disk, some 0.1 to 10 ms, whatever is in it. So the writer takes all
calls that came while it wrote the last ones and commits them together: callers wait for one sync
and share it. Reading is done by a second thread: WAL lets it look while the first one writes.

Rejected: a connection per caller (each would pay its own sync, and they would wait for the file's
one lock instead); ``synchronous = NORMAL`` (a power cut would take back what callers were told).
"""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from holdfast.queue_port import (
    EndedItem,
    ItemState,
    ItemView,
    Lease,
    LeaseAnswer,
    LeasedItem,
    NewItem,
    QueueDepth,
    QueueError,
    QueueFullError,
    QueueTraits,
    QueueUnavailableError,
    Settlement,
    check_ended,
    check_items,
    check_lease,
    check_name,
    check_seconds,
    check_settlements,
)
from holdfast.storage.queues import sqlite_changes as changes
from holdfast.storage.queues import sqlite_reads as reads
from holdfast.storage.queues import story
from holdfast.storage.queues.sqlite_changes import Moment
from holdfast.storage.queues.sqlite_file import (
    BUSY_S,
    ahead_of_monotonic,
    boot_id,
    open_file,
    room,
    translated,
)

WAITING_MAX: Final = 10_000  # calls; a disk that hangs must not fill memory
GROUP_MAX: Final = 1_000  # calls in one commit; more would make the first ones wait
RESERVE_BYTES: Final = 32 << 20  # kept free for the ends of items that were accepted before
ITEMS_MAX: Final = 10_000_000  # in one file, ended ones included: some 5 GB of 0.5 KB each
COUNTED_S: Final = 5.0  # between counts of all items: counting a million takes 20 ms

Result = TypeVar("Result")
Change = Callable[[sqlite3.Connection, Moment], Any]
_log = structlog.get_logger("holdfast.queues")


@dataclass(slots=True)
class _Call:
    """One caller's change, and where its answer goes."""

    name: str
    change: Change
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class SqliteQueue:
    """The ``DurableQueue`` port in one file that several processes of a machine may share.

    ``on_point`` is called in the writer's thread with the name of each point of a commit; tests and
    benchmarks end the process there.
    """

    def __init__(
        self,
        path: Path,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        items_max: int = ITEMS_MAX,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], str] = boot_id,
        on_point: Callable[[str], None] | None = None,
    ) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._items_max = items_max
        self._monotonic = monotonic
        self._wall = wall
        self._boot = boot
        self._on_point = on_point or (lambda _: None)
        self._changed = threading.Condition()  # guards the two below
        self._waiting: deque[_Call] = deque()
        self._closing = False
        self._connection: sqlite3.Connection | None = None  # the writer's, as all below
        self._ahead = 0.0
        self._count = 0
        self._counted_at = -COUNTED_S
        self._reader = ThreadPoolExecutor(1, "queue-reader")
        self._writer = threading.Thread(target=self._write_on, name="queue", daemon=True)
        self._writer.start()

    @property
    def traits(self) -> QueueTraits:
        """What this kind of queue can do: everything."""
        return QueueTraits(kind="sqlite")

    # --- changes ---------------------------------------------------------------------------------

    async def enqueue(self, queue: str, items: Sequence[NewItem]) -> list[bool]:
        """Add items, all or none; on disk when this returns."""
        check_name("queue", queue)
        check_items(items, self.traits.payload_bytes_max)
        kept = tuple(items)

        def change(connection: sqlite3.Connection, moment: Moment) -> list[bool]:
            self._check_room(connection, kept)
            added = changes.enqueue(connection, moment, queue, kept)
            self._count += sum(added)
            return added

        answer: list[bool] = await self._change("enqueue", change)
        return answer

    async def lease(
        self, queue: str, count: int, visibility_s: float, owner: str = ""
    ) -> list[LeasedItem]:
        """Take the most urgent items for a while."""
        check_lease(queue, count, visibility_s, self.traits)
        check_name("owner", owner, empty=True)
        fitting = min(count, self.traits.lease_items_max)
        change = partial(
            changes.lease, queue=queue, count=fitting, visibility_s=visibility_s, owner=owner
        )
        answer: list[LeasedItem] = await self._change("lease", change)
        return answer

    async def extend(self, leases: Sequence[Lease], visibility_s: float) -> list[LeaseAnswer]:
        """Prolong leases."""
        check_seconds("visibility_s", visibility_s, 1.0)
        change = partial(changes.extend, leases=tuple(leases), visibility_s=visibility_s)
        answer: list[LeaseAnswer] = await self._change("extend", change)
        return answer

    async def ack(self, settlements: Sequence[Settlement]) -> list[LeaseAnswer]:
        """Record how items ended; on disk when this returns."""
        check_settlements(settlements, self.traits.payload_bytes_max)
        change = partial(changes.ack, settlements=tuple(settlements))
        answer: list[LeaseAnswer] = await self._change("ack", change)
        return answer

    async def nack(
        self,
        leases: Sequence[Lease],
        *,
        note: Mapping[str, Any] | None = None,
        delay_s: float | None = None,
        dead: bool = False,
    ) -> list[LeaseAnswer]:
        """Give failed items back for another try, or make them dead letters."""
        check_seconds("delay_s", delay_s or 0.0, 0.0)
        text = story.note_text(note)
        change = partial(changes.nack, leases=tuple(leases), note=text, delay_s=delay_s, dead=dead)
        answer: list[LeaseAnswer] = await self._change("nack", change)
        return answer

    async def release(self, leases: Sequence[Lease]) -> list[LeaseAnswer]:
        """Give items back untried; the receive does not count."""
        change = partial(changes.release, leases=tuple(leases))
        answer: list[LeaseAnswer] = await self._change("release", change)
        return answer

    async def reclaim(self, owner: str) -> int:
        """End the leases of an owner that is known to be dead."""
        check_name("owner", owner)
        answer: int = await self._change("reclaim", partial(changes.reclaim, owner=owner))
        return answer

    async def cancel(self, queue: str, group: str) -> int:
        """End what is not leased of a group as cancelled."""
        change = partial(changes.cancel, queue=queue, group=group)
        answer: int = await self._change("cancel", change)
        return answer

    async def redrive(self, queue: str, ids: Sequence[str] | None = None) -> int:
        """Make dead letters ready again."""
        named = None if ids is None else tuple(ids)
        change = partial(changes.redrive, queue=queue, ids=named)
        answer: int = await self._change("redrive", change)
        return answer

    async def purge(
        self,
        queue: str,
        *,
        group: str | None = None,
        states: Sequence[ItemState] | None = None,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Delete items with their records."""
        change = partial(changes.purge, queue=queue, group=group, states=states, ids=ids)
        answer: int = await self._change("purge", change)
        self._counted_at = -COUNTED_S
        return answer

    async def settle(self, queue: str, ended: Sequence[EndedItem]) -> list[bool]:
        """Record how items of another queue ended; on disk when this returns."""
        check_name("queue", queue)
        check_ended(ended, self.traits.payload_bytes_max)
        change = partial(changes.settle, queue=queue, ended=tuple(ended))
        answer: list[bool] = await self._change("settle", change)
        return answer

    # --- looking ---------------------------------------------------------------------------------

    async def depths(self, queue: str | None = None, group: str | None = None) -> list[QueueDepth]:
        """Depth by state and the age of the oldest."""
        return await self._read(partial(reads.depths, queue=queue, group=group, wall=self._wall()))

    async def items(
        self,
        queue: str,
        *,
        states: Sequence[ItemState] | None = None,
        group: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[ItemView]:
        """Look at items in the order they came."""
        return await self._read(
            partial(reads.items, queue=queue, states=states, group=group, after=after, limit=limit)
        )

    async def item(self, queue: str, item_id: str) -> ItemView | None:
        """Look at one item."""
        return await self._read(partial(reads.item, queue=queue, item_id=item_id))

    async def close(self) -> None:
        """Finish what waits and close the file."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._reader.shutdown)

    # --- between the event loop and the threads --------------------------------------------------

    async def _change(self, name: str, change: Change) -> Any:
        loop = asyncio.get_running_loop()
        call = _Call(name, change, loop.create_future(), loop)
        with self._changed:
            if self._closing:
                raise QueueUnavailableError(f"{self._path}: the queue is closed")
            if len(self._waiting) >= WAITING_MAX:
                raise QueueUnavailableError(
                    f"{self._path}: {WAITING_MAX} calls wait for the disk; try again later"
                )
            self._waiting.append(call)
            self._changed.notify_all()
        return await call.answer

    async def _read(self, read: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            await self._change("sweep", changes.sweep)
        except QueueFullError as error:  # on a full disk nothing can be swept, but reads still work
            _log.warning("read without a sweep", path=str(self._path), reason=str(error))

        def run() -> Result:
            try:
                address = f"{self._path.resolve().as_uri()}?mode=ro"
                with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as connection:
                    return read(connection)
            except (sqlite3.Error, OSError) as error:
                raise translated(self._path, error) from error

        return await asyncio.get_running_loop().run_in_executor(self._reader, run)

    # --- the writer ------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                size = min(len(self._waiting), GROUP_MAX)
                calls = [self._waiting.popleft() for _ in range(size)]
            _deliver(self._write(calls))
            self._on_point("answered")
        if self._connection is not None:
            self._connection.close()

    def _write(self, calls: list[_Call]) -> list[tuple[_Call, Any]]:
        """Run calls in one commit; where that fails, each in its own, so that one spoils none."""
        try:
            return list(zip(calls, self._commit(calls), strict=True))
        except Exception as error:  # noqa: BLE001 whatever it is, a dead writer would be silent
            if len(calls) == 1:
                return [(calls[0], self._told(error))]
        answers: list[tuple[_Call, Any]] = []
        for call in calls:
            try:
                (answer,) = self._commit([call])
            except Exception as error:  # noqa: BLE001 as above
                answers.append((call, self._told(error)))
            else:
                answers.append((call, answer))
        return answers

    def _told(self, error: Exception) -> QueueError:
        told = translated(self._path, error)
        _log.error("queue not written", path=str(self._path), reason=str(told))
        return told

    def _commit(self, calls: list[_Call]) -> list[Any]:
        if self._connection is None:
            self._connection = self._open()
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._on_point("begun")
            moment = Moment(self._monotonic() + self._ahead, self._wall())
            answers = []
            for call in calls:
                answers.append(call.change(connection, moment))
                self._on_point(f"{call.name} changed")
            connection.execute("COMMIT")
            self._on_point("committed")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._counted_at = -COUNTED_S
            raise
        return answers

    def _open(self) -> sqlite3.Connection:
        connection = open_file(self._path)
        try:
            self._ahead = ahead_of_monotonic(connection, self._boot(), self._monotonic)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_room(self, connection: sqlite3.Connection, items: Sequence[NewItem]) -> None:
        """Refuse new items while the disk has little room: the ends of others need it."""
        needed = sum(len(item.payload) + 1_000 for item in items)
        free = room(self._path)
        if free < self._reserve_bytes + needed:
            raise QueueFullError(
                f"{self._path}: {free >> 20} MiB are free on its disk, and "
                f"{self._reserve_bytes >> 20} MiB of them are kept for items that were accepted "
                "before; make room, or purge queues that are no longer needed"
            )
        at = self._monotonic()
        if at - self._counted_at >= COUNTED_S:
            (self._count,) = connection.execute("SELECT count(*) FROM items").fetchone()
            self._counted_at = at
        if self._count + len(items) > self._items_max:
            raise QueueFullError(
                f"{self._path} has {self._count} items and may have {self._items_max}; "
                "purge queues or groups that are no longer needed"
            )


def _deliver(answers: list[tuple[_Call, Any]]) -> None:
    """Give answers to their callers, with one wake-up of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Call, Any]]] = {}
    for call, answer in answers:
        by_loop.setdefault(call.loop, []).append((call, answer))
    for loop, given in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, given)
        except RuntimeError as error:  # its loop was closed; what it asked for is done all the same
            _log.warning("nobody waits for the answer", calls=len(given), reason=str(error))


def _settle(given: list[tuple[_Call, Any]]) -> None:
    for call, answer in given:
        if call.answer.done():  # its caller was cancelled
            continue
        if isinstance(answer, Exception):
            call.answer.set_exception(answer)
        else:
            call.answer.set_result(answer)


__all__ = ["SqliteQueue"]
