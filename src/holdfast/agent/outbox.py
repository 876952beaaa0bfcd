"""A bounded queue of events that wait to be reported while control cannot be reached.

The host is always reported as it is *now*; readings of the past are useless, so none are kept.
Events (lines, phases, faults) are kept in the order of their numbers, up to a bound and up to an
age; beyond either the oldest are dropped and counted. Rejected: a file on disk. An agent that fills
the disk of a host in trouble makes the trouble worse.
"""

from collections import deque
from typing import Final

from holdfast.sources.agent_report import (
    THINGS_MAX,
    ReportedEvent,
    ReportedGpuFault,
    ReportedLine,
    ReportedPhase,
)

KEPT_MAX: Final = 1_000  # an engine in a crash loop says some ten things a minute
AGE_MAX_S: Final = 300.0  # older than this it explains nothing that still happens


class Outbox:
    """Numbered events that wait to be reported, oldest first; the oldest are dropped when full."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, ReportedEvent]] = deque()
        self._number = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._kept)

    def next_number(self) -> int:
        """Return the next event's number; each call counts one up."""
        self._number += 1
        return self._number

    def put(self, thing: ReportedEvent, now: float) -> None:
        """Add an event; ``now`` is in seconds of a monotonic clock."""
        if len(self._kept) >= KEPT_MAX:
            self._kept.popleft()
            self.dropped += 1
        self._kept.append((now, thing))

    def waiting(self, now: float) -> list[ReportedEvent]:
        """The events for the next report, with their present ages; expired ones are dropped."""
        while self._kept and now - self._kept[0][0] > AGE_MAX_S:
            self._kept.popleft()
            self.dropped += 1
        first = list(self._kept)[:THINGS_MAX]
        return [_aged(thing, max(0.0, now - since)) for since, thing in first]

    def told(self, things: list[ReportedEvent]) -> None:
        """Remove events that control has accepted."""
        numbers = {thing.number for thing in things}
        self._kept = deque(kept for kept in self._kept if kept[1].number not in numbers)

    def refused(self, things: list[ReportedEvent]) -> None:
        """Drop events that control will never accept, so that later ones can be sent."""
        self.dropped += len(things)
        self.told(things)


def _aged(thing: ReportedEvent, age_s: float) -> ReportedEvent:
    age = round(age_s, 1)
    if isinstance(thing, ReportedLine):
        return ReportedLine(thing.number, age, thing.replica, thing.mark, thing.peer)
    if isinstance(thing, ReportedPhase):
        return ReportedPhase(thing.number, age, thing.replica, thing.phase)
    return ReportedGpuFault(thing.number, age, thing.replica, thing.xid, thing.fatal, thing.detail)


__all__ = ["AGE_MAX_S", "KEPT_MAX", "Outbox"]
