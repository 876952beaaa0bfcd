"""Streams and lists of Redis or Valkey with requests, and streams and lists for answers.

A stream is read as a consumer group: an entry that nobody acknowledged is claimed again after the
visibility timeout, and the server counts its deliveries. A list has none of that: its entries are
moved, a few at a time, into a stream beside it, each in one step.

Every call is one script, so it happens whole or not at all. Entries that have ended are deleted,
unless another group reads the stream as well.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final

import structlog
from redis import asyncio as redis_asyncio
from redis import exceptions

from holdfast.queue_port import QueueError, QueueFullError, QueueUnavailableError
from holdfast.queue_port.messages import InboxDepth, Message

CALL_S: Final = 10.0
POLL_S: Final = 0.2  # between two looks into an empty stream
RELEASED_MS: Final = 86_400_000  # idle for a day: claimed by whoever looks first
_log = structlog.get_logger("holdfast.queues")

# KEYS: stream, list or empty. ARGV: group, consumer, count, visibility in ms, where to look next.
# An entry that was deleted while it was pending is acknowledged by XAUTOCLAIM itself.
RECEIVE: Final = """
local stream, group, consumer, count = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local claimed = redis.call('XAUTOCLAIM', stream, group, consumer, ARGV[4], ARGV[5],
                           'COUNT', count)
local found, cursor = claimed[2], claimed[1]
if #found < count and KEYS[2] ~= stream then
  for _ = 1, count - #found do
    local entry = redis.call('RPOP', KEYS[2])
    if not entry then break end
    redis.call('XADD', stream, '*', 'body', entry)
  end
end
if #found < count then
  local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count - #found,
                         'STREAMS', stream, '>')
  if new then
    for _, entry in ipairs(new[1][2]) do found[#found + 1] = entry end
  end
end
local told = {}
for _, entry in ipairs(found) do
  if entry[2] then
    local pending = redis.call('XPENDING', stream, group, entry[1], entry[1], 1)
    told[#told + 1] = {entry[1], pending[1][4], entry[2]}
  end
end
return {cursor, told}
"""
# ARGV: group, consumer, idle in ms, then id and deliveries of each; what is ours still is kept.
HOLD: Final = """
local told = {}
for i = 4, #ARGV, 2 do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
  if pending and pending[2] == ARGV[2] and tostring(pending[4]) == ARGV[i + 1] then
    local counted = tonumber(ARGV[i + 1])
    if ARGV[3] ~= '0' then counted = counted - 1 end
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3],
               'RETRYCOUNT', counted, 'JUSTID')
    told[#told + 1] = 1
  else
    told[#told + 1] = 0
  end
end
return told
"""
DELETE: Final = """
for i = 2, #ARGV do redis.call('XACK', KEYS[1], ARGV[1], ARGV[i]) end
if #redis.call('XINFO', 'GROUPS', KEYS[1]) == 1 then
  for i = 2, #ARGV do redis.call('XDEL', KEYS[1], ARGV[i]) end
end
return 1
"""


class _Server:
    """One server: its connection, and its errors as queues tell them."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis_asyncio.Redis.from_url(
            url, max_connections=8, socket_timeout=CALL_S, socket_connect_timeout=5.0
        )

    async def ask(self, *words: Any) -> Any:
        """The answer to one command."""
        try:
            return await self.client.execute_command(*words)
        except exceptions.OutOfMemoryError as error:
            raise QueueFullError(f"Redis: {error}") from error
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            raise QueueUnavailableError(f"Redis: {error}") from error

    async def run(self, script: str, keys: Sequence[str], *values: Any) -> Any:
        """The answer of one script."""
        return await self.ask("EVAL", script, len(keys), *keys, *values)

    async def close(self) -> None:
        await self.client.aclose()


class RedisInbox:
    """The ``Inbox`` port over a stream, or over a list and a stream beside it."""

    def __init__(self, url: str, *, stream: str = "", list_key: str = "", group: str) -> None:
        self._server = _Server(url)
        self._list = list_key
        self._stream = stream or _beside(list_key)
        self._group = group
        self._owner = f"holdfast-{os.getpid()}-{secrets.token_hex(4)}"
        self._cursor: Any = "0-0"
        self._prepared = False

    async def receive(self, count: int, visibility_s: float, wait_s: float) -> list[Message]:
        """Take entries: those whose holder vanished first."""
        await self._prepare()
        end = time.monotonic() + wait_s
        while True:
            keys = (self._stream, self._list or self._stream)
            visible_ms = int(visibility_s * 1_000)
            values = (self._group, self._owner, count, visible_ms, self._cursor)
            self._cursor, told = await self._server.run(RECEIVE, keys, *values)
            if told or time.monotonic() >= end:
                return [_message(*entry) for entry in told]
            await asyncio.sleep(min(POLL_S, wait_s))

    async def extend(self, receipts: Sequence[str], visibility_s: float) -> list[bool]:
        """Let the time of idleness of entries begin anew."""
        del visibility_s  # who receives says for how long an entry may be idle
        return [bool(kept) for kept in await self._hold(receipts, 0)]

    async def show(self, receipts: Sequence[str]) -> None:
        """Give entries back, with the delivery not counted."""
        await self._hold(receipts, RELEASED_MS)

    async def _hold(self, receipts: Sequence[str], idle_ms: int) -> list[int]:
        if not receipts:
            return []
        words = [word for receipt in receipts for word in receipt.split("|", 1)]
        values = (self._group, self._owner, idle_ms, *words)
        answer: list[int] = await self._server.run(HOLD, (self._stream,), *values)
        return answer

    async def delete(self, receipts: Sequence[str]) -> None:
        """Acknowledge entries, and delete them where nobody else reads the stream."""
        ids = [receipt.partition("|")[0] for receipt in receipts]
        if ids:
            await self._server.run(DELETE, (self._stream,), self._group, *ids)

    async def send(self, item_id: str, payload: bytes) -> None:
        """Add an entry with an id of ours."""
        await self._server.ask("XADD", self._stream, "*", "id", item_id, "body", payload)

    async def bury(self, message: Message, reason: str) -> None:
        """Nothing: Redis keeps no dead letters; ours are in the store of batches."""

    async def depth(self) -> InboxDepth:
        """Count the entries, and how long the oldest has waited."""
        await self._prepare()
        groups = await self._server.ask("XINFO", "GROUPS", self._stream)
        own = next((one for one in map(_pairs, groups) if one["name"] == self._group), {})
        waiting, pending = own.get("lag"), own.get("pending")
        last = own.get("last-delivered-id") or "0-0"
        oldest = await self._server.ask("XRANGE", self._stream, f"({last}", "+", "COUNT", 1)
        moment = await self._server.ask("TIME")
        age = None
        if oldest:
            begun_ms = int(oldest[0][0].decode().partition("-")[0])
            age = max(0.0, int(moment[0]) - begun_ms / 1_000)
        if self._list and waiting is not None:
            waiting += await self._server.ask("LLEN", self._list)
        return InboxDepth(waiting, pending, oldest_s=age)

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()

    async def _prepare(self) -> None:
        if self._prepared:
            return
        try:
            await self._server.ask("XGROUP", "CREATE", self._stream, self._group, "0", "MKSTREAM")
        except QueueError as error:
            if "BUSYGROUP" not in str(error):
                raise
        await self._warn_of_loss()
        self._prepared = True

    async def _warn_of_loss(self) -> None:
        try:
            kept = await self._server.ask("CONFIG", "GET", "appendonly")
        except QueueError:  # not for us to ask
            return
        # Two shapes: a list in RESP2, a mapping in RESP3.
        value = kept.get(b"appendonly") if isinstance(kept, dict) else [*kept, b"", b""][1]
        if value in {b"no", "no"}:
            _log.warning(
                "this Redis server keeps no append-only file: requests in it are lost with it",
                key=self._list or self._stream,
                fix="set appendonly yes",
            )


class RedisOutbox:
    """The ``Outbox`` port over a stream (fields ``id`` and ``body``) or a list."""

    answer_bytes_max: int | None = None

    def __init__(self, url: str, *, stream: str = "", list_key: str = "", length_max: int) -> None:
        self._server = _Server(url)
        self._stream = stream
        self._list = list_key
        self._length_max = length_max

    async def put(self, item_id: str, answer: bytes) -> None:
        """Add an answer."""
        if self._list:
            await self._server.ask("LPUSH", self._list, answer)
            return
        bound = ("MAXLEN", "~", self._length_max)
        await self._server.ask("XADD", self._stream, *bound, "*", "id", item_id, "body", answer)

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()


def _beside(list_key: str) -> str:
    """The stream beside a list; in a cluster it has to lie in the list's own slot."""
    return f"{list_key}:holdfast" if "{" in list_key else f"{{{list_key}}}:holdfast"


def _message(entry_id: bytes, deliveries: int, fields: list[bytes]) -> Message:
    """An entry as a message: its field ``body``, or the only one that it has."""
    told = dict(zip(fields[::2], fields[1::2], strict=True))
    own = told.pop(b"id", b"").decode("utf-8", "replace")
    body = told.get(b"body")
    if body is None:
        body = next(iter(told.values())) if len(told) == 1 else b""
    key = entry_id.decode()
    return Message(key, body, f"{key}|{deliveries}", int(deliveries), own)


def _pairs(told: Any) -> dict[str, Any]:
    """A mapping of Redis, which is a list of names and values in the older protocol."""
    items = told.items() if isinstance(told, dict) else zip(told[::2], told[1::2], strict=True)
    return {_text(name): _text(value) for name, value in items}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


__all__ = ["RedisInbox", "RedisOutbox"]
