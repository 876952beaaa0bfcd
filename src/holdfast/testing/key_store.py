"""Idempotency keys in memory, for tests that need a ``KeyStore`` without a file or a server.

One object may be shared by several gateways of one process: a lock makes each call atomic.
``down`` makes every call fail, as a server does that is not there.
"""

from collections.abc import Sequence
from threading import Lock

from holdfast.core.request.idempotency.key_policy import KeyChange, KeyRuling, due_at
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord, KeyUsage
from holdfast.ports import KeySight, KeyStoreError, WatchedKey


class MemoryKeys:
    """The ``KeyStore`` port over plain dictionaries."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._records: dict[KeyName, KeyRecord] = {}
        self._pieces: dict[KeyName, list[bytes]] = {}
        self._beats: dict[str, int] = {}
        self._purges: list[str] = []
        self.down = False

    def _check(self) -> None:
        if self.down:
            raise KeyStoreError("the store is down")

    def update(self, changes: Sequence[KeyChange]) -> list[KeyRuling]:
        """Make each change, in order."""
        self._check()
        with self._lock:
            return [self._change(change) for change in changes]

    def _change(self, change: KeyChange) -> KeyRuling:
        name = change.name
        before = self._records.get(name)
        ruling = change.decide(before, self._usage().get(name.tenant, self._others()))
        if not ruling.changed:
            return ruling
        after = ruling.record
        pieces = self._pieces.pop(name, [])
        if after is None:
            del self._records[name]
            return ruling
        if before is not None and before.execution == after.execution and after.stored:
            self._pieces[name] = pieces
        self._records[name] = after
        if ruling.pieces:
            self._pieces.setdefault(name, []).extend(ruling.pieces)
        return ruling

    def look(self, watched: Sequence[WatchedKey]) -> list[KeySight]:
        """Return the records, beats and further pieces of some keys."""
        self._check()
        with self._lock:
            return [self._sight(key) for key in watched]

    def _sight(self, key: WatchedKey) -> KeySight:
        record = self._records.get(key.name)
        if record is None:
            return KeySight(None, None, ())
        same = record.execution == key.execution
        pieces = tuple(self._pieces.get(key.name, ())[key.here :]) if same else ()
        return KeySight(record, self._beats.get(record.owner), pieces)

    def beat(self, owner: str, heard: int) -> list[tuple[int, str]]:
        """Count the beat of a gateway up; return further purges."""
        self._check()
        with self._lock:
            self._beats[owner] = self._beats.get(owner, 0) + 1
            return list(enumerate(self._purges, 1))[heard:]

    def farewell(self, owner: str) -> None:
        """Forget a gateway."""
        self._check()
        with self._lock:
            self._beats.pop(owner, None)

    def wanted(self, owner: str) -> list[tuple[KeyName, str]]:
        """Return the keys that this gateway executes and callers of other gateways wait for."""
        self._check()
        with self._lock:
            items = self._records.items()
            return [(n, r.execution) for n, r in items if r.wanted and r.owner == owner]

    def due(self, now: float, most: int) -> list[KeyName]:
        """Return some keys of which something has expired."""
        self._check()
        with self._lock:
            return [n for n, r in self._records.items() if due_at(r) <= now][:most]

    def purge(self, tenant: str) -> int:
        """Delete all keys and answers of a tenant."""
        self._check()
        with self._lock:
            gone = [name for name in self._records if name.tenant == tenant]
            for name in gone:
                del self._records[name]
                self._pieces.pop(name, None)
            self._purges.append(tenant)
            return len(gone)

    def usage(self) -> dict[str, KeyUsage]:
        """Return what is held, by tenant."""
        self._check()
        with self._lock:
            return self._usage()

    def _usage(self) -> dict[str, KeyUsage]:
        held: dict[str, list[int]] = {}
        for name, record in self._records.items():
            row = held.setdefault(name.tenant, [0, 0])
            row[0] += 1
            row[1] += record.bytes
        whole = self._others()
        return {t: KeyUsage(k, b, whole.all_keys, whole.all_bytes) for t, (k, b) in held.items()}

    def _others(self) -> KeyUsage:
        size = sum(record.bytes for record in self._records.values())
        return KeyUsage(0, 0, len(self._records), size)

    def close(self) -> None:
        """Nothing is open; what is held stays, for whoever uses the object next."""


__all__ = ["MemoryKeys"]
