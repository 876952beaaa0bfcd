"""Counts the failures of replicas in the history of a running fleet.

The history has each change of a replica's state as a number. A replica
failed when it went from serving to quarantined or dead; it is down until it serves again. A
replica that was drained or stopped on purpose is neither up nor down, and a gap in the history is
neither, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.types import State

_NUMBERS: Final = {float(number): state for number, state in enumerate(State)}
_SERVING: Final = frozenset((State.READY, State.SUSPECT))
_FAILED: Final = frozenset((State.QUARANTINED, State.DEAD))
_ON_PURPOSE: Final = frozenset((State.DRAINING, State.STOPPED))

Points = Sequence[tuple[float, float | None]]


@dataclass(slots=True, frozen=True)
class ObservedFailures:
    """How often replicas failed in a past, and for how long they were up and down."""

    replicas: int
    failures: int
    up_s: float
    down_s: float


def observed_failures(series: Mapping[str, Points], until: float) -> ObservedFailures:
    """Count failures in series of states, by the name of the replica; times in seconds.

    A state holds until the next point or ``until``; a point without a value begins a gap.
    """
    failures, up_s, down_s = 0, 0.0, 0.0
    for points in series.values():
        failed = False
        served = False
        for (at, state), end in _spans(points, until):
            span = end - at
            if state in _SERVING:
                failed, served = False, True
                up_s += span
            elif state in _FAILED:
                failures += 1 if served and not failed else 0
                failed = failed or served
                down_s += span if failed else 0.0
            elif state in _ON_PURPOSE:
                failed = served = False
            elif failed:
                down_s += span
    return ObservedFailures(len(series), failures, up_s, down_s)


def _spans(points: Points, until: float) -> Iterable[tuple[tuple[float, State], float]]:
    ordered = sorted(points, key=lambda point: point[0])
    for index, (at, value) in enumerate(ordered):
        end = ordered[index + 1][0] if index + 1 < len(ordered) else until
        if value in _NUMBERS and end > at:
            yield (at, _NUMBERS[value]), end


__all__ = ["ObservedFailures", "observed_failures"]
