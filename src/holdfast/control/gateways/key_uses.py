"""Knows when each API key of the tenants was last used, so that idle ones can be taken away.

    gateways' statistics, once a second ─► last use of each key ─► store, GET /keys

Keys go by their tenant and their name: the id of the fleet file, or the start of the hash. The key
itself is in no process but the gateway that reads it from a request. Only keys that are in the file
are remembered, so the file bounds what is kept; one that leaves the file is forgotten.

Rejected: a metric for each key. It would be a series for each key in every scrape, for a number
that is read twice a year.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog

from holdfast.config.fleet_file import FleetFile
from holdfast.ports import Store

_log = structlog.get_logger("holdfast.control.gateways.key_uses")

SAVE_S: Final = 60.0  # so much of the last uses is lost where control is killed
SETTING: Final = "key_uses"


class KeyUses:
    """The time of last use of each API key of the fleet file, over all gateways and restarts."""

    def __init__(
        self,
        file: Callable[[], FleetFile],
        store: Store,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._read: FleetFile | None = None  # the file that ``_known`` was made of
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._store = store
        self._wall = wall
        self._uses: dict[tuple[str, str], float] = {}
        self._since, stored = _restored(store.settings().get(SETTING), wall())
        known = self._names()
        self._uses = {name: at for name, at in stored.items() if name in known}
        self._saved_at = wall()
        self._dirty = False

    def heard(self, uses: Iterable[tuple[str, str, int]]) -> None:
        """Take a gateway's (tenant, key name, time of last use) rows; save at most once a minute.

        Keys that are not in the fleet file are ignored, and a use never moves back.
        """
        now, known = self._wall(), self._names()
        for tenant, key, at in uses:
            name = (tenant, key)
            if name in known and at > self._uses.get(name, 0.0):
                self._uses[name] = min(float(at), now)
                self._dirty = True
        if self._dirty and not 0 <= now - self._saved_at < SAVE_S:
            self.save()

    def save(self) -> None:
        """Write the last uses to the store, without the keys that left the file."""
        known = self._names()
        self._uses = {name: at for name, at in self._uses.items() if name in known}
        by_tenant: dict[str, dict[str, float]] = {}
        for (tenant, key), at in self._uses.items():
            by_tenant.setdefault(tenant, {})[key] = at
        self._store.put_setting(SETTING, {"since": self._since, "uses": by_tenant})
        self._saved_at, self._dirty = self._wall(), False

    def listing(self) -> dict[str, Any]:
        """All keys of the file with expiry and last use, and since when uses are recorded.

        ``last_used`` is None where the key was not used since then.
        """
        now = self._wall()
        rows = [
            {
                "tenant": tenant.name,
                "id": key.name,
                "expires": key.expires,
                "expired": bool(key.expires_at) and key.expires_at <= now,
                "file": None if key.file is None else str(key.file),
                "last_used": self._uses.get((tenant.name, key.name)),
            }
            for tenant in self._file().tenants
            for key in tenant.keys
        ]
        return {"since": self._since, "keys": rows}

    def _names(self) -> frozenset[tuple[str, str]]:
        file = self._file()
        if file is not self._read:
            self._read = file
            self._known = frozenset((t.name, key.name) for t in file.tenants for key in t.keys)
        return self._known


def _restored(stored: Any, now: float) -> tuple[float, dict[tuple[str, str], float]]:
    """What an earlier control stored; where it cannot be read, uses are counted from now on."""
    if stored is None:
        return now, {}
    try:
        since = float(stored["since"])
        uses = {
            (str(tenant), str(key)): min(float(at), now)
            for tenant, keys in stored["uses"].items()
            for key, at in keys.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        _log.warning("stored uses of keys cannot be read", setting=SETTING)
        return now, {}
    return min(since, now), uses


__all__ = ["SAVE_S", "SETTING", "KeyUses"]
