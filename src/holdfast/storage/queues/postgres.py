"""Durable queues in PostgreSQL, for fleets of several machines.

A lease is ``SELECT … FOR UPDATE SKIP LOCKED``: consumers never wait for each other's rows. Every
call is one transaction on one of a few connections; the server writes it to its log before the call
returns (``synchronous_commit``), and its own group commit lets calls share a sync. The store's
queue time is carried on by its users (``carried_time``), not by the server's clock.

"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from holdfast.queue_port import (
    MAX_RECEIVES,
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
    Settlement,
    check_ended,
    check_items,
    check_lease,
    check_name,
    check_seconds,
    check_settlements,
    pause_s,
)
from holdfast.storage.queues import postgres_sql as statements
from holdfast.storage.queues import story
from holdfast.storage.queues.carried_time import INTERVAL_S, LEASE_GRACE_S, CarriedTime
from holdfast.storage.queues.postgres_connection import Cursor, PostgresConnections, Row
from holdfast.storage.queues.states import (
    DEAD,
    DELAYED,
    NUMBER_OF,
    READY,
    STATE_OF,
    right_of,
)

SWEPT_MAX: Final = 1_000  # timed items looked at by one call; the next call goes on
ITEMS_MAX: Final = 10_000_000  # in all queues, ended ones included
COUNTED_S: Final = 30.0  # between counts of all items, which read an index whole

_log = structlog.get_logger("holdfast.queues")


class PostgresQueue:
    """The ``DurableQueue`` port in one PostgreSQL database.

    ``on_point`` is called with the name of each point of a call; tests and benchmarks end the
    process there.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        items_max: int = ITEMS_MAX,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        on_point: Callable[[str], None] | None = None,
    ) -> None:
        self._connections = PostgresConnections(url, password, on_point or (lambda _: None))
        self._call = self._connections.call
        self._items_max = items_max
        self._monotonic = monotonic
        self._wall = wall
        self._time = CarriedTime(monotonic)
        self._ticker: asyncio.Task[None] | None = None
        self._count = 0
        self._counted_at = -COUNTED_S

    @property
    def traits(self) -> QueueTraits:
        """What this kind of queue can do: everything."""
        return QueueTraits(kind="postgres")

    # --- changes ---------------------------------------------------------------------------------

    async def enqueue(self, queue: str, items: Sequence[NewItem]) -> list[bool]:
        """Add items, all or none; in the server's log when this returns."""
        check_name("queue", queue)
        check_items(items, self.traits.payload_bytes_max)
        if not items:
            return []

        async def change(cursor: Cursor) -> list[bool]:
            await self._check_room(cursor, len(items))
            now = await self._now(cursor)
            values = _enqueued(queue, items, now, self._wall())
            await cursor.execute(statements.ENQUEUE, values)
            seqs: dict[str, int] = dict(await cursor.fetchall())
            added = []
            rows: list[tuple[int, bytes]] = []
            for item in items:
                seq = seqs.pop(item.id, None)  # the first of two with one id
                added.append(seq is not None)
                if seq is not None:
                    rows.append((seq, item.payload))
            arrays = ([seq for seq, _ in rows], [payload for _, payload in rows])
            await cursor.execute(statements.KEEP_PAYLOADS, arrays)
            self._count += len(rows)
            return added

        return await self._call("enqueue", change)

    async def lease(
        self, queue: str, count: int, visibility_s: float, owner: str = ""
    ) -> list[LeasedItem]:
        """Take the most urgent items for a while."""
        check_lease(queue, count, visibility_s, self.traits)
        check_name("owner", owner, empty=True)
        if self._ticker is None:  # leases run out while their holder is silent
            self._ticker = asyncio.create_task(self._carry_on())

        async def change(cursor: Cursor) -> list[LeasedItem]:
            now = await self._now(cursor)
            await self._sweep(cursor, now)
            fitting = min(count, self.traits.lease_items_max)
            until = now + visibility_s + LEASE_GRACE_S
            await cursor.execute(statements.TAKE, (queue, fitting, until, owner))
            return [_leased(queue, row) for row in await cursor.fetchall()]

        return await self._call("lease", change)

    async def extend(self, leases: Sequence[Lease], visibility_s: float) -> list[LeaseAnswer]:
        """Prolong leases."""
        check_seconds("visibility_s", visibility_s, 1.0)

        async def change(cursor: Cursor) -> list[LeaseAnswer]:
            until = await self._now(cursor) + visibility_s + LEASE_GRACE_S
            rows, answers = await _find(cursor, leases)
            await cursor.execute(statements.EXTEND, (until, [row[2] for row in rows if row]))
            return answers

        return await self._call("extend", change)

    async def ack(self, settlements: Sequence[Settlement]) -> list[LeaseAnswer]:
        """Record how items ended; in the server's log when this returns."""
        check_settlements(settlements, self.traits.payload_bytes_max)

        async def change(cursor: Cursor) -> list[LeaseAnswer]:
            rows, answers = await _find(cursor, [one.lease for one in settlements])
            ended: dict[int, Settlement] = {}
            for place, row in enumerate(rows):
                if row is None:
                    continue
                if row[2] in ended:
                    answers[place] = LeaseAnswer.REPEATED
                else:
                    ended[row[2]] = settlements[place]
            seqs = list(ended)
            numbers = [NUMBER_OF[one.state] for one in ended.values()]
            await cursor.execute(statements.END, (self._wall(), seqs, numbers))
            await cursor.execute(statements.DROP_PAYLOADS, (seqs,))
            results = {seq: one.result for seq, one in ended.items() if one.result}
            if results:
                arrays = (list(results), list(results.values()))
                await cursor.execute(statements.KEEP_RESULTS, arrays)
            return answers

        return await self._call("ack", change)

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

        async def change(cursor: Cursor) -> list[LeaseAnswer]:
            now = await self._now(cursor)
            rows, answers = await _find(cursor, leases)
            held = {row[2]: row for row in rows if row is not None}
            failed = []
            for seq, row in held.items():
                told = story.entry(story.NACKED, row[5], row[7], self._wall(), text)
                pause = pause_s(row[5]) if delay_s is None else delay_s
                ends = dead or row[5] >= row[6]
                failed.append(_failure(seq, ends, now, pause, row[8], told, self._wall()))
            await _fail(cursor, failed, fence=True)
            return answers

        return await self._call("nack", change)

    async def release(self, leases: Sequence[Lease]) -> list[LeaseAnswer]:
        """Give items back untried; the receive does not count."""

        async def change(cursor: Cursor) -> list[LeaseAnswer]:
            rows, answers = await _find(cursor, leases)
            await cursor.execute(statements.RELEASE, ([row[2] for row in rows if row],))
            return answers

        return await self._call("release", change)

    async def reclaim(self, owner: str) -> int:
        """End the leases of an owner that is known to be dead."""
        check_name("owner", owner)

        async def change(cursor: Cursor) -> int:
            now = await self._now(cursor)
            await cursor.execute(statements.OWNED, (owner,))
            failed = []
            for seq, receives, max_receives, held_by, kept in await cursor.fetchall():
                told = story.entry(story.RECLAIMED, receives, held_by, self._wall())
                ends = receives >= max_receives
                failed.append(_failure(seq, ends, now, 0.0, kept, told, self._wall()))
            await _fail(cursor, failed, fence=True)
            return len(failed)

        return await self._call("reclaim", change)

    async def cancel(self, queue: str, group: str) -> int:
        """End what is not leased of a group as cancelled."""

        async def change(cursor: Cursor) -> int:
            await self._sweep(cursor, await self._now(cursor))
            await cursor.execute(statements.CANCEL, (self._wall(), queue, group))
            seqs = [seq for (seq,) in await cursor.fetchall()]
            await cursor.execute(statements.DROP_PAYLOADS, (seqs,))
            return len(seqs)

        return await self._call("cancel", change)

    async def redrive(self, queue: str, ids: Sequence[str] | None = None) -> int:
        """Make dead letters ready again."""
        named = None if ids is None else list(ids)

        async def change(cursor: Cursor) -> int:
            await cursor.execute(statements.REDRIVE, (queue, named, named))
            return cursor.rowcount

        return await self._call("redrive", change)

    async def purge(
        self,
        queue: str,
        *,
        group: str | None = None,
        states: Sequence[ItemState] | None = None,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Delete items with their records."""

        async def change(cursor: Cursor) -> int:
            named = {"ids": None if ids is None else list(ids)}
            await cursor.execute(statements.PURGE, _fitting(queue, group, states) | named)
            row = await cursor.fetchone()
            self._counted_at = -COUNTED_S
            return int(row[0]) if row is not None else 0

        return await self._call("purge", change)

    async def settle(self, queue: str, ended: Sequence[EndedItem]) -> list[bool]:
        """Record how items of another queue ended; in the server's log when this returns."""
        check_name("queue", queue)
        check_ended(ended, self.traits.payload_bytes_max)
        if not ended:
            return []

        async def change(cursor: Cursor) -> list[bool]:
            await cursor.execute(statements.SETTLE, _ended(queue, ended, self._wall()))
            seqs: dict[str, int] = dict(await cursor.fetchall())
            places = [seqs.pop(one.id, None) for one in ended]
            new = [(seq, one) for seq, one in zip(places, ended, strict=True) if seq is not None]
            payloads = [(seq, one.payload) for seq, one in new if one.payload]
            results = [(seq, one.result) for seq, one in new if one.result]
            for keep, rows in (
                (statements.KEEP_PAYLOADS, payloads),
                (statements.KEEP_RESULTS, results),
            ):
                if rows:
                    await cursor.execute(keep, ([row[0] for row in rows], [row[1] for row in rows]))
            return [seq is not None for seq in places]

        return await self._call("settle", change)

    # --- looking ---------------------------------------------------------------------------------

    async def depths(self, queue: str | None = None, group: str | None = None) -> list[QueueDepth]:
        """Depth by state and the age of the oldest."""

        async def read(cursor: Cursor) -> list[Row]:
            await self._sweep(cursor, await self._now(cursor))
            await cursor.execute(statements.COUNTS, _fitting(queue, group, None))
            return await cursor.fetchall()

        counts: dict[str, dict[ItemState, int]] = {}
        oldest: dict[str, float] = {}
        for name, state, count, first in await self._call("depths", read):
            counts.setdefault(name, {})[STATE_OF[state]] = count
            if first is not None:
                oldest[name] = min(first, oldest.get(name, first))
        wall = self._wall()
        return [
            QueueDepth(name, by, max(wall - oldest[name], 0.0) if name in oldest else None)
            for name, by in sorted(counts.items())
        ]

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
        values = _fitting(queue, group, states) | {"after": after, "n": max(limit, 0)}

        async def read(cursor: Cursor) -> list[ItemView]:
            await self._sweep(cursor, await self._now(cursor))
            await cursor.execute(statements.ITEMS, values)
            return [_view(row) for row in await cursor.fetchall()]

        return await self._call("items", read)

    async def item(self, queue: str, item_id: str) -> ItemView | None:
        """Look at one item."""

        async def read(cursor: Cursor) -> ItemView | None:
            await self._sweep(cursor, await self._now(cursor))
            await cursor.execute(statements.ITEM, (queue, item_id))
            row = await cursor.fetchone()
            return _view(row) if row is not None else None

        return await self._call("item", read)

    async def close(self) -> None:
        """Close the connections; leases stay."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._connections.close()

    # --- time and room ---------------------------------------------------------------------------

    async def tick(self) -> None:
        """Carry queue time on by what this process has seen pass."""

        async def change(cursor: Cursor) -> None:
            await self._carry(cursor)

        await self._call("tick", change)

    async def _carry_on(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.tick()
            except QueueError as error:  # every other call says so too, to somebody who can act
                _log.warning("queue time not carried on", reason=str(error))

    async def _carry(self, cursor: Cursor) -> float:
        await cursor.execute(statements.CARRY_CLOCK, (self._time.proposal(),))
        row = await cursor.fetchone()
        assert row is not None
        self._time.saw(row[0])
        return float(row[0])

    async def _now(self, cursor: Cursor) -> float:
        """Queue time: the store's word, and never this process's own estimate."""
        await cursor.execute(statements.NOW)
        row = await cursor.fetchone()
        assert row is not None
        return float(row[0])

    async def _sweep(self, cursor: Cursor, now: float) -> None:
        """Take up what time has done: pauses that ended, leases that ran out."""
        await cursor.execute(statements.DUE, (now, SWEPT_MAX))
        pauses, failed = [], []
        for seq, state, receives, max_receives, owner, kept in await cursor.fetchall():
            if state == DELAYED:
                pauses.append(seq)
                continue
            told = story.entry(story.RAN_OUT, receives, owner, self._wall())
            ends = receives >= max_receives
            failed.append(_failure(seq, ends, now, 0.0, kept, told, self._wall()))
        if pauses:
            await cursor.execute(statements.PAUSE_ENDED, (pauses,))
        # The token stays: until somebody takes the item, its late holder may still end it.
        await _fail(cursor, failed, fence=False)

    async def _check_room(self, cursor: Cursor, adding: int) -> None:
        at = self._monotonic()
        if at - self._counted_at >= COUNTED_S:
            await cursor.execute(statements.TOTAL)
            row = await cursor.fetchone()
            assert row is not None
            self._count, self._counted_at = row[0], at
        if self._count + adding > self._items_max:
            raise QueueFullError(
                f"the database has {self._count} items and may have {self._items_max}; "
                "purge queues or groups that are no longer needed"
            )


# --- values to rows and back ----------------------------------------------------------------------


def _enqueued(queue: str, items: Sequence[NewItem], now: float, wall: float) -> dict[str, Any]:
    return {
        "queue": queue,
        "wall": wall,
        "ids": [item.id for item in items],
        "states": [DELAYED if item.delay_s > 0 else READY for item in items],
        "batches": [item.group for item in items],
        "tenants": [item.tenant for item in items],
        "priorities": [item.priority for item in items],
        "deadlines": [math.inf if item.deadline is None else item.deadline for item in items],
        "max_receives": [item.max_receives for item in items],
        "untils": [now + item.delay_s if item.delay_s > 0 else 0.0 for item in items],
    }


def _ended(queue: str, ended: Sequence[EndedItem], wall: float) -> dict[str, Any]:
    return {
        "queue": queue,
        "wall": wall,
        "max_receives": MAX_RECEIVES,
        "ids": [one.id for one in ended],
        "states": [NUMBER_OF[one.state] for one in ended],
        "batches": [one.group for one in ended],
        "tenants": [one.tenant for one in ended],
        "receives": [one.receives for one in ended],
        "owners": [one.owner for one in ended],
        "stories": [story.dumped(one.story) for one in ended],
    }


def _fitting(
    queue: str | None, group: str | None, states: Sequence[ItemState] | None
) -> dict[str, Any]:
    numbers = None if states is None else [NUMBER_OF[state] for state in states]
    return {"queue": queue, "batch": group, "states": numbers}


async def _find(
    cursor: Cursor, leases: Sequence[Lease]
) -> tuple[list[Row | None], list[LeaseAnswer]]:
    """For each lease the locked row that it still has the right to, and the answer."""
    names = ([lease.queue for lease in leases], [lease.id for lease in leases])
    await cursor.execute(statements.FIND, names)
    known = {(row[0], row[1]): row for row in await cursor.fetchall()}
    rows: list[Row | None] = []
    answers = []
    for lease in leases:
        row = known.get((lease.queue, lease.id))
        answer = LeaseAnswer.GONE if row is None else right_of(lease, row[3], row[4])
        rows.append(row if answer is LeaseAnswer.OK else None)
        answers.append(answer)
    return rows, answers


def _failure(
    seq: int,
    ends: bool,
    now: float,
    pause: float,
    kept: str,
    told: Mapping[str, Any],
    wall: float,
) -> Row:
    """What a failed receive makes of a row: state, next time, end, story."""
    state = DEAD if ends else DELAYED if pause > 0 else READY
    return (seq, state, now + pause, wall if ends else None, story.continued(kept, told))


async def _fail(cursor: Cursor, failed: Sequence[Row], *, fence: bool) -> None:
    if failed:
        arrays = [list(column) for column in zip(*failed, strict=True)]
        await cursor.execute(statements.FAILED, (1 if fence else 0, *arrays))


def _leased(queue: str, row: Row) -> LeasedItem:
    return LeasedItem(
        lease=Lease(queue, row[1], str(row[2])),
        group=row[3],
        tenant=row[4],
        priority=row[5],
        deadline=None if row[6] == math.inf else row[6],
        receives=row[7],
        max_receives=row[8],
        story=story.read(row[9]),
        payload=row[10] or b"",
    )


def _view(row: Row) -> ItemView:
    values = list(row)
    values[3] = STATE_OF[values[3]]
    values[7] = None if values[7] == math.inf else values[7]
    values[15] = story.read(values[15])
    return ItemView(*values)


__all__ = ["PostgresQueue"]
