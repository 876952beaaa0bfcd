"""Durable queues in Redis or Valkey, where one is there already and keeps an append-only file.

Every call is one Lua script (``redis_scripts``), so it happens whole or not at all. A server
without an append-only file loses everything when it restarts, and one that may evict keys loses
items when it is full: both are refused. Unless the server syncs its file before each answer
(``appendfsync always``), new items and terminal records wait for the sync with ``WAITAOF``.

Queue time is carried on by the store's users (``carried_time``), not by the server's clock.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
import structlog
from redis import asyncio as redis_asyncio
from redis import exceptions

from holdfast.queue_port import (
    MAX_RECEIVES,
    PAUSE_S,
    PAUSE_S_MAX,
    STORY_ENTRIES_MAX,
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
    QueueUnsupportedError,
    Settlement,
    check_ended,
    check_items,
    check_lease,
    check_name,
    check_seconds,
    check_settlements,
)
from holdfast.storage.queues import redis_scripts as scripts
from holdfast.storage.queues import story
from holdfast.storage.queues.carried_time import INTERVAL_S, LEASE_GRACE_S, CarriedTime

PREFIX: Final = "{holdfast-queue}:"
CONNECTIONS_MAX: Final = 8
CALL_S: Final = 10.0  # no call waits longer; a script of ten thousand items takes half a second
SYNC_MS: Final = 5_000  # a sync of the append-only file: one a second by default, and slow disks
ITEMS_MAX: Final = 1_000_000  # in all queues: each takes some 1.2 KB of memory beside its payload
PURGED_MAX: Final = 5_000  # items deleted by one script; it is repeated until none is left
NO_DEADLINE: Final = 1e10  # the year 2286; deadlines beyond it are as good as none
RANK_STEP: Final = 2e10  # between two priorities: more than any deadline

_STATES: Final = tuple(ItemState)
_log = structlog.get_logger("holdfast.queues")


class RedisQueue:
    """The ``DurableQueue`` port in one Redis or Valkey server.

    ``on_point`` is called with the name of each point of a call; tests and benchmarks end the
    process there.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        prefix: str = PREFIX,
        items_max: int = ITEMS_MAX,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        on_point: Callable[[str], None] | None = None,
    ) -> None:
        more: dict[str, Any] = {} if password is None else {"password": password}
        self._client: Any = redis_asyncio.Redis.from_url(
            url,
            max_connections=CONNECTIONS_MAX,
            socket_timeout=CALL_S,
            socket_connect_timeout=5.0,
            **more,
        )
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)
        self._prefix = prefix
        self._items_max = items_max
        self._wall = wall
        self._on_point = on_point or (lambda _: None)
        self._time = CarriedTime(monotonic)
        self._ticker: asyncio.Task[None] | None = None
        self._checking = asyncio.Lock()
        self._checked = False
        self._waits_for_sync = False

    @property
    def traits(self) -> QueueTraits:
        """What this kind of queue can do: everything."""
        return QueueTraits(kind="redis")

    # --- changes ---------------------------------------------------------------------------------

    async def enqueue(self, queue: str, items: Sequence[NewItem]) -> list[bool]:
        """Add items, all or none; in the server's file when this returns."""
        check_name("queue", queue)
        check_items(items, self.traits.payload_bytes_max)
        if not items:
            return []
        values: list[Any] = [queue, repr(self._wall()), self._items_max]
        for item in items:
            deadline = NO_DEADLINE if item.deadline is None else item.deadline
            rank = item.priority * RANK_STEP + min(max(deadline, 0.0), NO_DEADLINE)
            values += (item.id, item.payload, item.group, item.tenant, item.priority)
            said = "" if item.deadline is None else repr(item.deadline)
            values += (said, repr(rank), item.max_receives, repr(float(item.delay_s)))
        answer = await self._call("enqueue", scripts.ENQUEUE, values, synced=True)
        if answer and answer[0] == b"full":
            raise QueueFullError(
                f"the server has {answer[1]} items and may have {self._items_max}; "
                "purge queues or groups that are no longer needed"
            )
        return [bool(added) for added in answer]

    async def lease(
        self, queue: str, count: int, visibility_s: float, owner: str = ""
    ) -> list[LeasedItem]:
        """Take the most urgent items for a while."""
        check_lease(queue, count, visibility_s, self.traits)
        check_name("owner", owner, empty=True)
        if self._ticker is None:  # leases run out while their holder is silent
            self._ticker = asyncio.create_task(self._carry_on())
        fitting = min(count, self.traits.lease_items_max)
        lasts = repr(visibility_s + LEASE_GRACE_S)
        nonce = secrets.token_hex(4)
        values = [*self._swept(), queue, fitting, lasts, owner, nonce]
        return [_leased(row) for row in await self._call("lease", scripts.LEASE, values)]

    async def extend(self, leases: Sequence[Lease], visibility_s: float) -> list[LeaseAnswer]:
        """Prolong leases."""
        check_seconds("visibility_s", visibility_s, 1.0)
        values = [repr(visibility_s + LEASE_GRACE_S), *_named(leases)]
        return _answers(await self._call("extend", scripts.EXTEND, values))

    async def ack(self, settlements: Sequence[Settlement]) -> list[LeaseAnswer]:
        """Record how items ended; in the server's file when this returns."""
        check_settlements(settlements, self.traits.payload_bytes_max)
        values: list[Any] = [repr(self._wall())]
        for one in settlements:
            values += (*_named([one.lease]), one.state.value, one.result)
        return _answers(await self._call("ack", scripts.ACK, values, synced=True))

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
        pause = "" if delay_s is None else repr(float(delay_s))
        values = [*self._swept(), story.note_text(note), pause, PAUSE_S, PAUSE_S_MAX, int(dead)]
        values += _named(leases)
        return _answers(await self._call("nack", scripts.NACK, values, synced=True))

    async def release(self, leases: Sequence[Lease]) -> list[LeaseAnswer]:
        """Give items back untried; the receive does not count."""
        return _answers(await self._call("release", scripts.RELEASE, _named(leases)))

    async def reclaim(self, owner: str) -> int:
        """End the leases of an owner that is known to be dead."""
        check_name("owner", owner)
        return int(await self._call("reclaim", scripts.RECLAIM, [*self._swept(), owner]))

    async def cancel(self, queue: str, group: str) -> int:
        """End what is not leased of a group as cancelled."""
        values = [*self._swept(), queue, group]
        return int(await self._call("cancel", scripts.CANCEL, values, synced=True))

    async def redrive(self, queue: str, ids: Sequence[str] | None = None) -> int:
        """Make dead letters ready again."""
        values = [queue, int(ids is None), *(ids or ())]
        return int(await self._call("redrive", scripts.REDRIVE, values, synced=True))

    async def purge(
        self,
        queue: str,
        *,
        group: str | None = None,
        states: Sequence[ItemState] | None = None,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Delete items with their records."""
        named = [state.value for state in (_STATES if states is None else states)]
        wanted = [int(ids is not None), *(ids or ())]
        values = [queue, group or "", int(group is not None), PURGED_MAX]
        values += [",".join(named), *wanted]
        deleted, more = 0, True
        while more:
            count, more = await self._call("purge", scripts.PURGE, values)
            deleted += count
        return deleted

    async def settle(self, queue: str, ended: Sequence[EndedItem]) -> list[bool]:
        """Record how items of another queue ended; in the server's file when this returns."""
        check_name("queue", queue)
        check_ended(ended, self.traits.payload_bytes_max)
        values: list[Any] = [queue, repr(self._wall()), MAX_RECEIVES]
        for one in ended:
            values += (one.id, one.state.value, one.result, one.payload, one.group, one.tenant)
            told = b"\n".join(orjson.dumps(entry) for entry in one.story)
            values += (one.receives, one.owner, repr(NO_DEADLINE), told)
        answer = await self._call("settle", scripts.SETTLE, values, synced=True)
        return [bool(added) for added in answer]

    # --- looking ---------------------------------------------------------------------------------

    async def depths(self, queue: str | None = None, group: str | None = None) -> list[QueueDepth]:
        """Depth by state and the age of the oldest."""
        states = ",".join(state.value for state in _STATES)
        values = [*self._swept(), group or "", int(group is not None), states]
        values += [] if queue is None else [queue]
        wall = self._wall()
        found = []
        for name, counts, since in await self._call("depths", scripts.DEPTHS, values):
            by = {state: n for state, n in zip(_STATES, counts, strict=True) if n}
            age = max(wall - float(since), 0.0) if since else None
            if by:
                found.append(QueueDepth(name.decode(), by, age))
        return sorted(found, key=lambda depth: depth.queue)

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
        if limit <= 0 or (states is not None and not states):
            return []
        named = "" if states is None else ",".join(state.value for state in states)
        values = [*self._swept(), queue, group or "", int(group is not None), after, limit, named]
        return [_view(row) for row in await self._call("items", scripts.ITEMS, values)]

    async def item(self, queue: str, item_id: str) -> ItemView | None:
        """Look at one item."""
        row = await self._call("item", scripts.ITEM, [*self._swept(), queue, item_id])
        return _view(row) if row else None

    async def close(self) -> None:
        """Close the connections; leases stay."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._client.aclose()

    # --- time and calls --------------------------------------------------------------------------

    async def tick(self) -> None:
        """Carry queue time on by what this process has seen pass."""
        proposal = f"{self._time.proposal():.6f}"
        self._time.saw(float(await self._call("tick", scripts.TICK, [proposal])))

    async def _carry_on(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.tick()
            except QueueError as error:  # every other call says so too, to somebody who can act
                _log.warning("queue time not carried on", reason=str(error))

    def _swept(self) -> list[Any]:
        """What every script that sweeps begins with."""
        return [repr(self._wall()), STORY_ENTRIES_MAX]

    async def _call(
        self, name: str, script: str, values: Sequence[Any], *, synced: bool = False
    ) -> Any:
        try:
            async with self._turns:
                if not self._checked:
                    await self._check()
                self._on_point("begun")
                answer = await self._run(script, values, synced=synced and self._waits_for_sync)
                self._on_point(f"{name} committed")
        except (exceptions.RedisError, OSError) as error:
            self._checked = False  # another server, or other settings, may answer next time
            raise translated(error) from error
        return answer

    async def _run(self, script: str, values: Sequence[Any], *, synced: bool) -> Any:
        digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._send("EVALSHA", digest, values, synced=synced)
        except exceptions.NoScriptError:  # a server that was just started; nothing was run
            return await self._send("EVAL", script, values, synced=synced)

    async def _send(self, command: str, script: str, values: Sequence[Any], *, synced: bool) -> Any:
        if not synced:
            return await self._client.execute_command(command, script, 1, self._prefix, *values)
        async with self._client.pipeline(transaction=False) as pipeline:  # on one connection
            pipeline.execute_command(command, script, 1, self._prefix, *values)
            pipeline.execute_command("WAITAOF", 1, 0, SYNC_MS)
            answer, (local, _) = await pipeline.execute()
        if local < 1:
            raise QueueUnavailableError(
                f"the server did not sync its append-only file within {SYNC_MS} ms"
            )
        return answer

    async def _check(self) -> None:
        """Refuse a server that would lose items."""
        async with self._checking:
            if self._checked:
                return
            persistence = await self._client.info("persistence")
            memory = await self._client.info("memory")
            if not persistence.get("aof_enabled"):
                raise QueueUnsupportedError(
                    "the server has no append-only file: a restart would lose every item; "
                    "set 'appendonly yes'"
                )
            policy = memory.get("maxmemory_policy")
            if policy != "noeviction":
                raise QueueUnsupportedError(
                    f"the server's maxmemory-policy is {policy}: it would drop items when it is "
                    "full; set 'maxmemory-policy noeviction'"
                )
            self._waits_for_sync = not await self._syncs_always()
            self._checked = True

    async def _syncs_always(self) -> bool:
        try:
            told = await self._client.config_get("appendfsync")
        except (
            exceptions.ResponseError
        ) as error:  # hosted servers keep their settings to themselves
            _log.info("appendfsync unknown: waiting for each sync", reason=str(error))
            return False
        return bool(told.get("appendfsync") == "always")


def translated(error: Exception) -> QueueError:
    """An error of Redis or of the network as the port tells it."""
    told = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or told.startswith("OOM"):
        fix = "raise its maxmemory, or purge queues that are no longer needed"
        return QueueFullError(f"the server's memory is full: nothing was changed; {fix}")
    if "MISCONF" in told:  # its disk is full, or its file cannot be written
        fix = "make room on its disk, work goes on by itself"
        return QueueFullError(f"the server cannot write its file: nothing was changed; {fix}")
    if "unknown command" in told.lower() and "waitaof" in told.lower():
        return QueueUnsupportedError(
            "the server has no WAITAOF and does not sync before it answers; "
            "set 'appendfsync always', or use Redis 7.2, Valkey 7.2 or newer"
        )
    return QueueUnavailableError(f"Redis: {told or type(error).__name__}")


# --- values to arguments and back -----------------------------------------------------------------


def _named(leases: Sequence[Lease]) -> list[Any]:
    return [part for lease in leases for part in (lease.queue, lease.id, lease.token)]


def _answers(told: Sequence[bytes]) -> list[LeaseAnswer]:
    return [LeaseAnswer(answer.decode()) for answer in told]


def _view(row: Sequence[Any]) -> ItemView:
    texts = [value.decode() if isinstance(value, bytes) else value for value in row[:13]]
    return ItemView(
        queue=texts[0],
        id=texts[1],
        seq=int(texts[2]),
        state=ItemState(texts[3]),
        group=texts[4],
        tenant=texts[5],
        priority=int(texts[6]),
        deadline=float(texts[7]) if texts[7] else None,
        receives=int(texts[8]),
        max_receives=int(texts[9]),
        enqueued_at=float(texts[10]),
        ended_at=float(texts[11]) if texts[11] else None,
        owner=texts[12],
        payload=row[13],
        result=row[14],
        story=tuple(orjson.loads(told) for told in row[15]),
    )


def _leased(row: Sequence[Any]) -> LeasedItem:
    view = _view(row)
    return LeasedItem(
        lease=Lease(view.queue, view.id, row[16].decode()),
        payload=view.payload,
        group=view.group,
        tenant=view.tenant,
        priority=view.priority,
        deadline=view.deadline,
        receives=view.receives,
        max_receives=view.max_receives,
        story=view.story,
    )


__all__ = ["RedisQueue"]
