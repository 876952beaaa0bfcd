"""Stores, shows and exports incidents, and converts their times between clocks.

Core time starts from zero with each boot, so an incident is kept with the difference between both
clocks at that moment: ``{"clock": ns, "incident": {…}}``. People see seconds since 1970, another
control gets its own core time, and an export keeps core time, because a replay must not depend on
dates.

The facts behind an incident are read from the log while they are still there: when the incident
opens, when its cause changes and when it closes. Each time new facts are appended to those stored
before: a long incident outlives the ring buffer that its first facts were in.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
import structlog

from holdfast.control.detached_call import detached
from holdfast.control.incidents.incident_json import (
    fact_line,
    incident_to_plain,
    pack_lines,
    unpack_lines,
)
from holdfast.core.diagnose.evidence import Incident, Stage
from holdfast.core.diagnose.fact_log import FactLog
from holdfast.core.diagnose.facts import (
    ChainDeclared,
    Declared,
    Fact,
    HostSeen,
    RolloutSeen,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.types import SECOND
from holdfast.ports import Store

LINES_MAX: Final = 30_000  # of one export; a pool of a hundred makes as many in a minute

_ONCE: Final = (Declared, ChainDeclared, VersionsSeen, HostSeen, StateChanged, RolloutSeen)

_log = structlog.get_logger("holdfast.control.incidents.incident_records")


def clock() -> int:
    """The time of day minus core time, in ns: add it to core time to get the time of day."""
    return time.time_ns() - time.monotonic_ns()


def for_people(plain: Mapping[str, Any], difference: int) -> dict[str, Any]:
    """A copy of a plain incident with its core times (ns) as seconds since 1970.

    ``difference`` is ``clock()`` when the incident was written. ``begun_at`` is added: when it was
    opened, or last reopened because the same failure came back.
    """
    told = _timed(plain, lambda at: round((at + difference) / SECOND, 3))
    again = [entry["at"] for entry in told["timeline"] if entry["what"] == "reopened"]
    return told | {"begun_at": max(again, default=told["opened_at"])}


def moved(plain: Mapping[str, Any], by: int) -> dict[str, Any]:
    """A copy of a plain incident with all its core times shifted by ``by`` ns.

    Used to adopt an incident of an earlier control, whose core time began elsewhere.
    """
    return _timed(plain, lambda at: at + by)


def _timed(plain: Mapping[str, Any], change: Callable[[int], Any]) -> dict[str, Any]:
    told = dict(plain)
    for name in ("opened_at", "changed_at", "closed_at"):
        told[name] = change(plain[name]) if plain[name] is not None else None
    for name in ("evidence", "consequences", "timeline"):
        told[name] = [{**one, "at": change(one["at"])} for one in plain[name]]
    return told


def opened(kept: Mapping[str, Any]) -> float:
    """When a stored incident was opened, in seconds since 1970."""
    return float((kept["incident"]["opened_at"] + kept["clock"]) / SECOND)


def number(name: str) -> int:
    """The number after the last ``-`` of an incident's id; 0 where there is none."""
    text = name.rpartition("-")[2]
    return int(text) if text.isdecimal() else 0


def put(store: Store, incident: Incident, facts: bytes | None = None) -> None:
    """Store an incident as it is now, replacing the stored one, with its packed facts if given."""
    kept = {"clock": clock(), "incident": incident_to_plain(incident)}
    stage = Stage.CLOSED if incident.stage is Stage.CLOSED else Stage.OPEN
    store.put_incident(incident.id, opened(kept), stage, kept, facts)


def lines_of(
    log: FactLog, incident: Incident, first: Mapping[str, Any], earlier: list[bytes]
) -> list[bytes]:
    """Build the lines of an export: ``first``, the facts stored earlier, newer facts of the log.

    At most 30,000 facts; baselines and config stay those of the first export. ``earlier`` has the
    lines of the stored export, or none. Stores nothing.
    """
    before = earlier[1:]
    since = orjson.loads(before[-1])["at"] if before else None
    facts = [(at, fact) for at, fact in log.of(incident) if since is None or at > since]
    newer = [fact_line(at, fact) for at, fact in _fitting(facts, incident, LINES_MAX - len(before))]
    # Baselines are those of its beginning: what it was judged by, not what came of it.
    if earlier:
        begun = orjson.loads(earlier[0])
        first = {**first, "baselines": begun["baselines"], "config": begun["config"]}
    return [orjson.dumps(first), *before, *newer]


def _fitting(
    facts: list[tuple[int, Fact]], incident: Incident, most: int
) -> list[tuple[int, Fact]]:
    """Choose at most ``most`` facts: the incident's own and one-time ones, then peers' newest."""
    if len(facts) <= most:
        return facts
    own = set(incident.replicas)
    needed = [isinstance(fact, _ONCE) or getattr(fact, "replica", "") in own for _, fact in facts]
    left = most - sum(needed)
    chosen = []
    for index in range(len(facts) - 1, -1, -1):
        if needed[index] or left > 0:
            left -= not needed[index]
            chosen.append(facts[index])
    return chosen[: max(most, 0)][::-1]


class Packer:
    """Stores the facts behind incidents in the background, packed, one incident at a time."""

    def __init__(self, store: Store, log: FactLog) -> None:
        self._store = store
        self._facts = log
        self._waiting: dict[str, tuple[Incident, dict[str, Any]]] = {}
        self._task: asyncio.Task[None] | None = None

    def want(self, incident: Incident, first: dict[str, Any]) -> None:
        """Queue an incident's facts to be stored; ``first`` is the head of its export.

        An incident that already waits is replaced in the queue.
        """
        self._waiting.pop(incident.id, None)
        self._waiting[incident.id] = (incident, first)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            name = next(iter(self._waiting))
            incident, first = self._waiting.pop(name)
            try:
                packed = await detached(self._pack, incident, first)
            except Exception:  # noqa: BLE001 without its facts it is still an incident
                _log.exception("facts not kept", incident=name)
            else:
                if packed is not None:
                    put(self._store, incident, packed)

    def _pack(self, incident: Incident, first: Mapping[str, Any]) -> bytes | None:
        return pack_lines(self.lines(incident, first))

    def lines(self, incident: Incident, first: Mapping[str, Any]) -> list[bytes]:
        """Build an incident's export as of now: stored facts and newer ones; stores nothing.

        It may take seconds: call it in a thread.
        """
        _, kept = self._store.incident(incident.id)
        return lines_of(
            self._facts, incident, first, unpack_lines(kept) if kept is not None else []
        )

    async def close(self) -> None:
        """Wait up to 5 s for queued facts to be stored, then cancel."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=5.0)
            self._task.cancel()


__all__ = [
    "LINES_MAX",
    "Packer",
    "clock",
    "for_people",
    "lines_of",
    "moved",
    "number",
    "opened",
    "put",
]
