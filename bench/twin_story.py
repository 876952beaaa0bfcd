"""What a fleet did while it was measured: who served what, and why; for a measurement's folder.

A prediction of a whole fleet can be wrong where each engine's law is right: because traffic was not
divided as in the twin. Then these tell why: each replica's share and slowest first token, what
routing said of some of the requests, and the fleet's own events and incidents.
"""

import contextlib
import http.client
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fault_fleet import call
from holdfast.loadtest.records import BenchRecord

STORIES: Final = 40  # requests of a block whose routing is asked for, evenly spread over it
EVENTS: Final = 1_000


@dataclass(slots=True, frozen=True)
class ReplicaPart:
    """What one replica had of a block."""

    requests: int
    slowest_first_s: float | None  # None: it sent no token


def parts(records: Iterable[BenchRecord]) -> dict[str, ReplicaPart]:
    """What each replica had of these requests, by its name; those that nobody served are left out.

    A replica that served none of them is not in it.
    """
    counted: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    for record in records:
        if not record.replica:
            continue
        counted[record.replica] += 1
        if record.ttft_s is not None:
            slowest[record.replica] = max(slowest.get(record.replica, 0.0), record.ttft_s)
    return {name: ReplicaPart(counted[name], slowest.get(name)) for name in sorted(counted)}


def parts_line(found: dict[str, ReplicaPart]) -> str:
    """The same in a few words."""
    words = []
    for name, part in found.items():
        slowest = part.slowest_first_s
        first = "no first token" if slowest is None else f"first token at most {slowest:.2f} s"
        words.append(f"{name} {part.requests} ({first})")
    return ", ".join(words) or "nobody"


def largest_share(records: Iterable[BenchRecord]) -> float | None:
    """The share of the replica that served most of these requests; ``None`` if none was served."""
    found = parts(records)
    total = sum(part.requests for part in found.values())
    return max(part.requests for part in found.values()) / total if total else None


def stories(admin: str, request_ids: Sequence[str]) -> list[dict[str, Any]]:
    """What the gateway tells of some of these requests; fewer where it has forgotten them."""
    step = max(1, len(request_ids) // STORIES)
    told = []
    for request_id in request_ids[::step][:STORIES]:
        with contextlib.suppress(OSError, http.client.HTTPException):  # forgotten, or too busy
            told.append(call(f"{admin}/explain/{request_id}", timeout_s=5.0))
    return told


def keep_block(path: Path, admin: str, request_ids: Sequence[str]) -> None:
    """Write what the fleet says after a block: its replicas, and stories of its requests."""
    try:
        status = call(f"{admin}/status", timeout_s=5.0)
    except (OSError, http.client.HTTPException) as error:
        status = {"error": str(error)}
    path.write_text(json.dumps({"status": status, "stories": stories(admin, request_ids)}))


def keep_events(path: Path, admin: str) -> None:
    """Write the events and incidents of the fleet so far."""
    kept: dict[str, Any] = {}
    for name, address in (("events", f"events?limit={EVENTS}"), ("incidents", "incidents")):
        try:
            kept |= {name: call(f"{admin}/{address}", timeout_s=10.0)[name]}
        except (OSError, http.client.HTTPException) as error:
            kept |= {name: f"not read: {error}"}
    path.write_text(json.dumps(kept, indent=1))
