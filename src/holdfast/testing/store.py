"""A store in memory, for tests that need a ``Store`` without a file.

It copies what it is given and what it returns, as a real one does. Its contents outlive its user:
a second control that gets the same object finds what the first one stored.
"""

import math
from typing import Any

import orjson

from holdfast.ports import StoredEvent, StoredOrder


class MemoryStore:
    """The ``Store`` port over plain dictionaries; keeps everything, for as long as it exists."""

    def __init__(self) -> None:
        self._replicas: dict[str, bytes] = {}
        self._settings: dict[str, bytes] = {}
        self._answers = b"{}"
        self._events: list[StoredEvent] = []
        self._orders: list[StoredOrder] = []
        self._incidents: dict[str, tuple[float, str, bytes]] = {}
        self._facts: dict[str, bytes] = {}

    def put_replica(self, replica_id: str, data: dict[str, Any]) -> None:
        """Keep a replica."""
        self._replicas[replica_id] = orjson.dumps(data)

    def drop_replica(self, replica_id: str) -> None:
        """Forget a replica."""
        self._replicas.pop(replica_id, None)

    def replicas(self) -> dict[str, dict[str, Any]]:
        """All replicas by id."""
        return {name: orjson.loads(value) for name, value in self._replicas.items()}

    def put_answers(self, data: dict[str, Any]) -> None:
        """Keep the known answers of canaries."""
        self._answers = orjson.dumps(data)

    def answers(self) -> dict[str, Any]:
        """The known answers of canaries."""
        found: dict[str, Any] = orjson.loads(self._answers)
        return found

    def put_setting(self, key: str, value: Any) -> None:
        """Keep one setting."""
        self._settings[key] = orjson.dumps(value)

    def settings(self) -> dict[str, Any]:
        """All settings by key."""
        return {key: orjson.loads(value) for key, value in self._settings.items()}

    def add_event(
        self,
        at: float,
        model: str,
        replica: str,
        what: str,
        reason: str,
        kind: str | None = None,
    ) -> bool:
        """Keep an event."""
        if not math.isfinite(at):
            raise ValueError("an event happens at a time")
        self._events.append(StoredEvent(at, model, replica, what, reason, kind))
        return True

    def events(self, limit: int = 1_000, replica: str | None = None) -> list[StoredEvent]:
        """The newest events, the oldest of them first."""
        fitting = [event for event in self._events if replica in (None, event.replica)]
        return fitting[-limit:] if limit > 0 else []

    def add_order(self, order: StoredOrder) -> bool:
        """Keep a row of the audit trail."""
        self._orders.append(order)
        return True

    def orders(self, limit: int = 100) -> list[StoredOrder]:
        """The newest rows of the audit trail, the oldest of them first."""
        return self._orders[-limit:] if limit > 0 else []

    def put_incident(
        self,
        incident_id: str,
        opened: float,
        stage: str,
        data: dict[str, Any],
        facts: bytes | None = None,
    ) -> None:
        """Keep an incident, and its packed facts where they are given."""
        self._incidents[incident_id] = (opened, stage, orjson.dumps(data))
        if facts is not None:
            self._facts[incident_id] = facts

    def incidents(self, limit: int = 100, stage: str | None = None) -> list[dict[str, Any]]:
        """The incidents that opened last, newest first."""
        rows = [
            (opened, incident_id, value)
            for incident_id, (opened, own, value) in self._incidents.items()
            if stage in (None, own)
        ]
        return [orjson.loads(value) for *_, value in sorted(rows, reverse=True)[:limit]]

    def incident(self, incident_id: str) -> tuple[dict[str, Any] | None, bytes | None]:
        """One incident and its packed facts."""
        row = self._incidents.get(incident_id)
        kept = orjson.loads(row[2]) if row is not None else None
        return kept, self._facts.get(incident_id)

    def snapshot(self) -> dict[str, Any]:
        """The same statistics as a store with a file; nothing ever waits or fails."""
        return {
            "path": "",
            "waiting": 0,
            "events_dropped": 0,
            "write_failures": 0,
            "problem": None,
            "set_aside": None,
        }


__all__ = ["MemoryStore"]
