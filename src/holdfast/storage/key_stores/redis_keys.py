"""Idempotency keys in Redis or Valkey, for gateways on several hosts.

A change is decided here and made by one script that first compares the record with the one it was
decided from; where another gateway was faster, it is decided anew. A batch costs two round trips.

The server must not forget: one that evicts keys, or writes no append-only file, is refused. How
much a crash of the server itself loses is its own setting (``appendfsync``); a change waits for the
file where the server can say that it was synced (``WAITAOF``, from version 7.2 on).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import redis

from holdfast.core.request.idempotency.key_policy import KeyChange, KeyRuling, due_at
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord, KeyUsage
from holdfast.ports import KeySight, KeyStoreError, WatchedKey
from holdfast.storage.key_stores.key_codec import (
    OWNER_KEPT_S,
    PURGES_KEPT,
    UsageLedger,
    decode,
    drops_pieces,
    encode,
)

PREFIX: Final = "holdfast:keys:"
_CALL_S: Final = 5.0
_CONNECT_S: Final = 2.0  # as long as a keyed request waits
_SYNC_MS: Final = 2_000
_ROUNDS_MAX: Final = 50  # in each, somebody else was faster: they cannot be that many
_JOIN: Final = "\0"  # between tenant and digest; neither holds it

# 1: whether it was made. Keys: record, pieces, due, keys by tenant, bytes by tenant, digests of the
# tenant, wanted of the former owner, wanted of the present one.
_CHANGE: Final = """
local old = redis.call('GET', KEYS[1])
if (old or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[3], ARGV[4])
  redis.call('SREM', KEYS[6], ARGV[6])
else
  redis.call('SET', KEYS[1], ARGV[2])
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[4])
  redis.call('SADD', KEYS[6], ARGV[6])
end
if ARGV[7] ~= '0' then redis.call('HINCRBY', KEYS[4], ARGV[5], ARGV[7]) end
if ARGV[8] ~= '0' then redis.call('HINCRBY', KEYS[5], ARGV[5], ARGV[8]) end
if ARGV[9] == '1' then redis.call('DEL', KEYS[2]) end
if ARGV[10] == '1' then redis.call('SREM', KEYS[7], ARGV[4]) end
if ARGV[11] == '1' then redis.call('SADD', KEYS[8], ARGV[4]) end
for i = 12, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
return 1
"""
# How many keys. Keys: digests of the tenant, due, keys by tenant, bytes by tenant, purges, number.
_PURGE: Final = """
local digests = redis.call('SMEMBERS', KEYS[1])
for _, digest in ipairs(digests) do
  redis.call('DEL', ARGV[1] .. 'record:' .. ARGV[2] .. ':' .. digest)
  redis.call('DEL', ARGV[1] .. 'pieces:' .. ARGV[2] .. ':' .. digest)
  redis.call('ZREM', KEYS[2], ARGV[2] .. '\\0' .. digest)
end
redis.call('DEL', KEYS[1])
redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('HDEL', KEYS[4], ARGV[2])
local number = redis.call('INCR', KEYS[6])
redis.call('ZADD', KEYS[5], number, number .. '\\0' .. ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', number - ARGV[3])
return #digests
"""


class RedisKeys:
    """The ``KeyStore`` port in one Redis or Valkey server; used by one thread."""

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=_CALL_S, socket_connect_timeout=_CONNECT_S
        )
        self._change = self._client.register_script(_CHANGE)
        self._purge = self._client.register_script(_PURGE)
        self._checked = False
        self._waits = False  # the server can say when its file was synced

    def _name(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    # --- the server ------------------------------------------------------------------------------

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """The client, of a server that was found fit; errors are translated."""
        try:
            if not self._checked:
                self._check()
            yield self._client
        except redis.RedisError as error:
            self._checked = False
            raise KeyStoreError(f"Redis: {error}") from error

    def _check(self) -> None:
        """Refuse a server that would forget keys."""
        told = self._client.info()
        policy = told.get("maxmemory_policy", "")
        if policy != "noeviction":
            fix = "set maxmemory-policy noeviction: a forgotten key is executed twice"
            raise KeyStoreError(f"Redis: its maxmemory-policy is {policy or 'not told'}; {fix}")
        if not told.get("aof_enabled"):
            fix = "set appendonly yes: else a restart forgets keys"
            raise KeyStoreError(f"Redis: it writes no append-only file; {fix}")
        version = tuple(int(part) for part in str(told.get("redis_version", "0")).split(".")[:2])
        self._waits = version >= (7, 2)
        self._change.sha = self._client.script_load(_CHANGE)
        self._checked = True

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        self._client.close()

    # --- the port --------------------------------------------------------------------------------

    def update(self, changes: Sequence[KeyChange]) -> list[KeyRuling]:
        """Make each change; in the server's file on return, where it can say so."""
        rulings: list[KeyRuling | None] = [None] * len(changes)
        waiting = list(range(len(changes)))
        with self._connected() as client:
            for _ in range(_ROUNDS_MAX):
                if not waiting:
                    break
                waiting = self._round(client, changes, waiting, rulings)
            else:
                raise KeyStoreError("Redis: others changed the same keys all the while")
            if self._waits and any(ruling is not None and ruling.changed for ruling in rulings):
                client.execute_command("WAITAOF", 1, 0, _SYNC_MS)
        return [ruling for ruling in rulings if ruling is not None]

    def _round(
        self,
        client: Any,
        changes: Sequence[KeyChange],
        waiting: Sequence[int],
        rulings: list[KeyRuling | None],
    ) -> list[int]:
        """Decide and make what waits; return what has to be decided anew."""
        names = list(dict.fromkeys(changes[index].name for index in waiting))
        raw = client.mget([self._name("record", n.tenant, n.digest) for n in names])
        held: dict[KeyName, bytes] = {n: value or b"" for n, value in zip(names, raw, strict=True)}
        ledger = self._ledger(client)
        pipeline = client.pipeline(transaction=False)
        made: list[int] = []
        for index in waiting:
            change = changes[index]
            before = decode(held[change.name]) if held[change.name] else None
            ruling = change.decide(before, ledger.of(change.name.tenant))
            rulings[index] = ruling
            if ruling.changed:
                after = b"" if ruling.record is None else encode(ruling.record)
                self._queue(pipeline, change.name, (held[change.name], after), before, ruling)
                ledger.note(change.name.tenant, before, ruling.record)
                held[change.name] = after
                made.append(index)
        outcomes = dict(zip(made, pipeline.execute() if made else [], strict=True))
        late: set[KeyName] = set()
        again = []
        for index in waiting:
            name = changes[index].name
            if name in late or outcomes.get(index, 1) == 0:
                late.add(name)
                again.append(index)
        return again

    def _queue(
        self,
        pipeline: Any,
        name: KeyName,
        values: tuple[bytes, bytes],
        before: KeyRecord | None,
        ruling: KeyRuling,
    ) -> None:
        record = ruling.record
        keys = [
            self._name("record", name.tenant, name.digest),
            self._name("pieces", name.tenant, name.digest),
            self._name("due"),
            self._name("usage", "keys"),
            self._name("usage", "bytes"),
            self._name("tenant", name.tenant),
            self._name("wanted", before.owner if before else ""),
            self._name("wanted", record.owner if record else ""),
        ]
        size = (record.bytes if record else 0) - (before.bytes if before else 0)
        arguments = [
            *values,
            repr(due_at(record)) if record else "0",
            name.tenant + _JOIN + name.digest,
            name.tenant,
            name.digest,
            (record is not None) - (before is not None),
            size,
            int(drops_pieces(before, record)),
            int(before is not None and before.wanted),
            int(record is not None and record.wanted),
            *ruling.pieces,
        ]
        pipeline.evalsha(self._change.sha, len(keys), *keys, *arguments)

    def _ledger(self, client: Any) -> UsageLedger:
        pipeline = client.pipeline(transaction=False)
        pipeline.hgetall(self._name("usage", "keys"))
        pipeline.hgetall(self._name("usage", "bytes"))
        keys, sizes = pipeline.execute()
        tenants = {*keys, *sizes}
        return UsageLedger((t.decode(), int(keys.get(t, 0)), int(sizes.get(t, 0))) for t in tenants)

    def look(self, watched: Sequence[WatchedKey]) -> list[KeySight]:
        """Read the records, beats and further pieces of some keys."""
        if not watched:
            return []
        with self._connected() as client:
            pipeline = client.pipeline(transaction=True)  # a record and its pieces as of one moment
            for key in watched:
                pipeline.get(self._name("record", key.name.tenant, key.name.digest))
                pieces = self._name("pieces", key.name.tenant, key.name.digest)
                pipeline.lrange(pieces, key.here, -1)
            told = pipeline.execute()
            records = [decode(raw) if raw else None for raw in told[::2]]
            owners = [self._name("beat", r.owner if r else "") for r in records]
            beats = client.mget(owners)
        sights = []
        for key, record, pieces, beat in zip(watched, records, told[1::2], beats, strict=True):
            same = record is not None and record.execution == key.execution
            seen = int(beat) if beat is not None and record is not None else None
            sights.append(KeySight(record, seen, tuple(pieces) if same else ()))
        return sights

    def beat(self, owner: str, heard: int) -> list[tuple[int, str]]:
        """Count the beat of a gateway up; return further purges."""
        with self._connected() as client:
            pipeline = client.pipeline(transaction=False)
            pipeline.incr(self._name("beat", owner))
            pipeline.expire(self._name("beat", owner), int(OWNER_KEPT_S))
            pipeline.zrangebyscore(self._name("purges"), f"({heard}", "+inf")
            *_, purges = pipeline.execute()
        told = (entry.decode().split(_JOIN, 1) for entry in purges)
        return [(int(number), tenant) for number, tenant in told]

    def farewell(self, owner: str) -> None:
        """Forget a gateway that has left in good order."""
        with self._connected() as client:
            client.delete(self._name("beat", owner))

    def wanted(self, owner: str) -> list[tuple[KeyName, str]]:
        """Return the keys that this gateway executes and callers of other gateways wait for."""
        with self._connected() as client:
            members = client.smembers(self._name("wanted", owner))
            names = [KeyName(*member.decode().split(_JOIN, 1)) for member in members]
            if not names:
                return []
            raw = client.mget([self._name("record", n.tenant, n.digest) for n in names])
        found = [(n, decode(value)) for n, value in zip(names, raw, strict=True) if value]
        return [(n, r.execution) for n, r in found if r.wanted and r.owner == owner]

    def due(self, now: float, most: int) -> list[KeyName]:
        """Return some keys of which something has expired."""
        with self._connected() as client:
            rows = client.zrangebyscore(self._name("due"), "-inf", repr(now), start=0, num=most)
        return [KeyName(*row.decode().split(_JOIN, 1)) for row in rows]

    def purge(self, tenant: str) -> int:
        """Delete all of a tenant's keys and answers."""
        names = ("due", "usage:keys", "usage:bytes", "purges", "purge_number")
        keys = [self._name("tenant", tenant), *(self._name(name) for name in names)]
        with self._connected():
            return int(self._purge(keys=keys, args=[self._prefix, tenant, PURGES_KEPT]))

    def usage(self) -> dict[str, KeyUsage]:
        """Return what is held, by tenant."""
        with self._connected() as client:
            ledger = self._ledger(client)
        return {tenant: ledger.of(tenant) for tenant in ledger.tenants()}


__all__ = ["PREFIX", "RedisKeys"]
