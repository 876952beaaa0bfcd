"""Key records as bytes, and the bookkeeping that all key stores share.

A record is one JSON object. A member that this version does not know is ignored, so that gateways
of two versions can share a store while they are replaced one by one.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Final

import orjson

from holdfast.core.request.idempotency.key_record import KeyRecord, KeyState, KeyUsage
from holdfast.ports import KeyStoreError

OWNER_KEPT_S: Final = 86_400.0  # a gateway that has not beaten for a day is forgotten
PURGES_KEPT: Final = 1_000  # the last ones; gateways hear of one within a second
_MEMBERS: Final = frozenset(field.name for field in fields(KeyRecord))


def encode(record: KeyRecord) -> bytes:
    """Return a record as JSON."""
    return orjson.dumps(record)


def decode(raw: bytes) -> KeyRecord:
    """Return the record in this JSON; ``KeyStoreError`` where it is none."""
    try:
        told = orjson.loads(raw)
        known = {name: value for name, value in told.items() if name in _MEMBERS}
        known["state"] = KeyState(known["state"])
        return KeyRecord(**known)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise KeyStoreError(f"a record is not readable: {type(error).__name__}") from error


class UsageLedger:
    """What each tenant holds while one transaction runs, and what it changed."""

    def __init__(self, rows: Iterable[tuple[str, int, int]]) -> None:
        self._held = {tenant: [keys, size] for tenant, keys, size in rows}
        self.keys = sum(keys for keys, _ in self._held.values())
        self.bytes = sum(size for _, size in self._held.values())
        self.changes: dict[str, tuple[int, int]] = {}  # by tenant: keys and bytes more, or fewer

    def tenants(self) -> list[str]:
        """Return the tenants that hold anything."""
        return [tenant for tenant, held in self._held.items() if any(held)]

    def of(self, tenant: str) -> KeyUsage:
        """Return what a tenant holds now, and what all do."""
        keys, size = self._held.get(tenant, (0, 0))
        return KeyUsage(keys, size, self.keys, self.bytes)

    def note(self, tenant: str, before: KeyRecord | None, after: KeyRecord | None) -> None:
        """Count a record that took the place of another."""
        keys = (after is not None) - (before is not None)
        size = (after.bytes if after else 0) - (before.bytes if before else 0)
        if not (keys or size):
            return
        held = self._held.setdefault(tenant, [0, 0])
        held[0] += keys
        held[1] += size
        self.keys += keys
        self.bytes += size
        past = self.changes.get(tenant, (0, 0))
        self.changes[tenant] = (past[0] + keys, past[1] + size)


def drops_pieces(before: KeyRecord | None, after: KeyRecord | None) -> bool:
    """Whether the stored pieces of an answer go with this change of its record."""
    if before is None or not before.stored:
        return False
    return after is None or after.execution != before.execution or not after.stored


__all__ = ["OWNER_KEPT_S", "PURGES_KEPT", "UsageLedger", "decode", "drops_pieces", "encode"]
