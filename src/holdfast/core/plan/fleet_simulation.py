"""Simulates replicas and zones that fail and are repaired, to confirm a formula and to see windows.

Each replica and each zone alternates between up and down with exponential times. The share of
time with enough replicas up converges to the formula's; what a formula cannot say is how it is
spread over months, and that is counted here.
"""

from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise
from math import sqrt
from random import Random
from typing import Final

from holdfast.core.types import require

EVENTS_MAX: Final = 2_000_000
_BATCHES: Final = 40  # of which the spread tells the error of the mean


@dataclass(slots=True, frozen=True)
class SimulatedFleet:
    """Result of ``simulate_fleet``: availability with its standard error, share of windows met."""

    availability: float
    error: float  # of the availability, one standard error
    windows: int
    windows_met: float  # share of windows that met the target on their own
    events: int


def simulate_fleet(
    rng: Random,
    *,
    need: int,
    zone_sizes: tuple[int, ...],
    up: float,
    down: float,
    zone_up: float = 0.0,
    zone_down: float = 0.0,
    window: float,
    target: float,
    events: int = 200_000,
) -> SimulatedFleet:
    """Return the ``SimulatedFleet`` after ``events`` failures and repairs drawn from ``rng``.

    Times in one unit; ``zone_up`` 0: zones stay up. Assumes exponential times and as many repairs
    at once as there are failures. Starts with everything up; one batch in forty is left out for
    that. Breaks where repairs queue: then more are down at once.
    """
    require(1 <= events <= EVENTS_MAX, "simulation.events", f"is {events}", "use 1 to 2000000")
    for name, value in (("up", up), ("down", down), ("window", window)):
        require(value > 0, f"simulation.{name}", f"is {value:g}", "use a time above 0")
    draw = rng.expovariate
    zones = len(zone_sizes)
    zone_is_up = [True] * zones
    well = list(zone_sizes)  # replicas that are well, whether their zone is up or not
    # Entries: when, which (replicas from 0, zones below 0), and whether it is up now.
    heap: list[tuple[float, int, bool]] = []
    place = [zone for zone, size in enumerate(zone_sizes) for _ in range(size)]
    heap += [(draw(1.0 / up), number, True) for number in range(len(place))]
    if zone_up and zone_down:
        heap += [(draw(1.0 / zone_up), -1 - zone, True) for zone in range(zones)]
    heapify(heap)
    serving = len(place)
    now, short, edges = 0.0, 0.0, 0
    shortfalls: list[float] = []
    window_end = window
    marks: list[tuple[float, float]] = []  # (time, shortfall so far), one per batch
    batch = max(1, events // (_BATCHES + 1))
    for edges in range(1, events + 1):
        at, number, was_up = heap[0]
        lacking = serving < need
        while at >= window_end:
            short += (window_end - now) if lacking else 0.0
            now = window_end
            shortfalls.append(short)
            window_end += window
        short += (at - now) if lacking else 0.0
        now = at
        if number < 0:
            zone = -1 - number
            serving += -well[zone] if was_up else well[zone]
            zone_is_up[zone] = not was_up
            wait = draw(1.0 / zone_down) if was_up else draw(1.0 / zone_up)
        else:
            zone = place[number]
            change = -1 if was_up else 1
            well[zone] += change
            serving += change if zone_is_up[zone] else 0
            wait = draw(1.0 / down) if was_up else draw(1.0 / up)
        heapreplace(heap, (at + wait, number, not was_up))
        if edges % batch == 0:
            marks.append((now, short))
    return _result(marks, shortfalls, window, target, edges)


def _result(
    marks: list[tuple[float, float]], totals: list[float], window: float, target: float, events: int
) -> SimulatedFleet:
    spans = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(marks)]
    time = sum(span for span, _ in spans) or 1.0
    mean = sum(short for _, short in spans) / time
    count = len(spans)
    # The ratio's error: batches have about the same number of events, not of hours.
    spread = sum((short - mean * span) ** 2 for span, short in spans)
    error = sqrt(count / max(1, count - 1) * spread) / time if count > 1 else 0.0
    each = [after - before for before, after in zip([0.0, *totals], totals, strict=False)]
    met = sum(1 for short in each if short <= (1.0 - target) * window * (1 + 1e-12))
    return SimulatedFleet(1.0 - mean, error, len(each), met / len(each) if each else 0.0, events)


__all__ = ["EVENTS_MAX", "SimulatedFleet", "simulate_fleet"]
