"""Reports which models wait for a place on their platform, for how long, and why.

A replica without a place is asked for again and again; that is quiet. Whether it has lasted so long
that somebody should hear of it is for the investigation to judge, which is told while it lasts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.control.deploy.launched_replica import LaunchedReplica
from holdfast.core.types import nanos, seconds

REPORT_S: Final = 10.0  # between two reports on one model


@dataclass(slots=True, frozen=True)
class PlaceLack:
    """How many replicas of a model wait for a place on a platform, and since when and why.

    Duration and reason are of the one that waits longest.
    """

    model: str
    platform: str
    pending: int
    waited_s: float  # the one that waits longest
    reason: str
    gpus: int  # that each of them needs


class PlatformWaits:
    """Remembers since when replicas wait for a place on their platforms (not this host)."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}  # by replica, when it began to wait, in ns
        self._reported: dict[str, int] = {}  # by model, when its wait was last reported, in ns

    def due(self, units: Iterable[LaunchedReplica], now: int) -> list[PlaceLack]:
        """One report for each model whose replicas wait now, at most one per model in 10 s.

        Pass all launched replicas; empty where none waits or no report is due.
        """
        waiting = [unit for unit in units if unit.on and unit.lacks and not unit.removing]
        self._since = {unit.id: self._since.get(unit.id, now) for unit in waiting}
        by_model: dict[str, list[LaunchedReplica]] = {}
        for unit in waiting:
            by_model.setdefault(unit.model, []).append(unit)
        self._reported = {name: at for name, at in self._reported.items() if name in by_model}
        found = []
        for name, mine in by_model.items():
            last = self._reported.get(name)
            if last is not None and now - last < nanos(REPORT_S):
                continue
            self._reported[name] = now
            first = min(mine, key=lambda unit: self._since[unit.id])
            waited_s = seconds(now - self._since[first.id])
            found.append(PlaceLack(name, first.on, len(mine), waited_s, first.lacks, first.devices))
        return found


__all__ = ["PlaceLack", "PlatformWaits"]
