"""How many spare replicas reach a wished availability, and what they cost.

A fleet that needs N replicas and runs N + k meets its load while at most k are down. With
independent failures the number up is binomial. Two things break independence, and both are priced
here: a zone takes all its replicas with it, and a shared cause (a bad build, a driver, heat) makes
replicas fail together, which the beta-binomial describes with one number, the correlation of any
two of them. With both, each zone draws its own beta-binomial: the shared cause stays inside.

Probabilities of *shortfall* are summed, never subtracted from one, so that the twelfth nine is as
exact as the first. Rejected: running ``ceil(N / a)`` replicas. It carries the load on average; for
twenty replicas at a = 0.95 that is to fall short a tenth of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, fsum, inf, log10
from typing import Final

from holdfast.core.types import ConfigError, require

HOURS_PER_MONTH: Final = 730.0  # 8,760 hours in a year over twelve months
SPARES_LIMIT: Final = 1000  # past this and twice the need, the answer is not one more spare


def _share(value: float, name: str, what: str) -> None:
    good = 0.0 < value <= 1.0
    require(good, f"redundancy.{name}", f"is {value}", f"use {what}, above 0 and up to 1")


def _count(value: int, name: str, least: int) -> None:
    require(value >= least, f"redundancy.{name}", f"is {value}", f"use {least} or more")


def _duration(value: float, name: str) -> None:
    require(0.0 <= value < inf, f"redundancy.{name}", f"is {value}", "use a finite time, 0 or more")


def _below_one(value: float, name: str, why: str) -> None:
    require(0.0 <= value < 1.0, f"redundancy.{name}", f"is {value}", f"use 0 to below 1: {why}")


def _up_distribution(size: int, a: float, correlation: float) -> list[float]:
    """Probability of 0, 1, … ``size`` replicas up.

    Built outwards from the mean by the ratio of neighbours and normalised at the end: no
    factorials to overflow, and every term keeps its relative precision at thousands of replicas.
    """
    if a == 1.0:
        return [0.0] * size + [1.0]
    if correlation:
        spread_out = (1.0 - correlation) / correlation
        up, down = a * spread_out, (1.0 - a) * spread_out

        def ratio(j: int) -> float:
            return (size - j) * (up + j) / ((j + 1) * (down + size - j - 1))
    else:
        odds = a / (1.0 - a)

        def ratio(j: int) -> float:
            return (size - j) * odds / (j + 1)

    start = min(size, int((size + 1) * a))
    weights = [0.0] * (size + 1)
    weights[start] = 1.0
    for j in range(start, size):
        weights[j + 1] = weights[j] * ratio(j)
    for j in range(start, 0, -1):
        weights[j - 1] = weights[j] / ratio(j - 1)
    total = fsum(weights)
    return [weight / total for weight in weights]


def convolve(left: list[float], right: list[float]) -> list[float]:
    """Return the distribution of the sum of two independent counts: index = count."""
    out = [0.0] * (len(left) + len(right) - 1)
    for i, p in enumerate(left):
        if p:
            for j, q in enumerate(right, i):
                out[j] += p * q
    return out


def spread(replicas: int, zones: int) -> tuple[int, ...]:
    """Return the replicas of each zone when spread evenly: sizes differ by one, larger first."""
    each, more = divmod(replicas, zones)
    return (each + 1,) * more + (each,) * (zones - more)


@dataclass(slots=True, frozen=True)
class Redundancy:
    """A fleet's need and how replicas and zones fail; computes its availability with spares.

    Shares of time, 0 to 1. Raises ``ConfigError`` when built with a bad value.
    """

    need: int  # replicas that carry the peak within the latency objective
    a: float  # share of time one replica is up
    zones: int = 1  # replicas are spread evenly over these
    zone_a: float = 1.0  # share of time one zone is up; 1 = zones never fail as a whole
    correlation: float = 0.0  # between any two replicas of a zone; 0 = independent
    common: float = 0.0  # share of time that a common cause takes all replicas at once

    def __post_init__(self) -> None:
        _count(self.need, "need", 1)
        _share(self.a, "a", "the share of time one replica is up")
        _count(self.zones, "zones", 1)
        _share(self.zone_a, "zone_a", "the share of time one zone is up")
        _below_one(self.correlation, "correlation", "at 1 the replicas are one replica")
        _below_one(self.common, "common", "at 1 nothing is ever up")

    @property
    def ceiling(self) -> float:
        """The availability that no number of spares can exceed: some zone up, no common cause."""
        return (1.0 - self.common) * (1.0 - (1.0 - self.zone_a) ** self.zones)

    def availability(self, spares: int) -> float:
        """Return the share of time that at least ``need`` replicas are up with this many spares."""
        return 1.0 - self.shortfall(spares)

    def shortfall(self, spares: int) -> float:
        """Return the share of time that fewer than ``need`` are up with this many spares.

        One less the availability, precise however small.
        """
        _count(spares, "spares", 0)
        return self.shortfall_of(spread(self.need + spares, self.zones))

    def shortfall_of(self, sizes: Sequence[int]) -> float:
        """Return the share of time that fewer than ``need`` are up, for given zone sizes.

        ``sizes`` are replicas of each zone, spares included.
        """
        zone = {size: self._zone(size) for size in set(sizes)}
        halves = [[1.0], [1.0]]
        for i, size in enumerate(sizes):
            halves[i % 2] = convolve(halves[i % 2], zone[size])
        below = list(accumulate(halves[1], initial=0.0))  # below[m] = P(second half < m)
        last = len(below) - 1
        first = enumerate(halves[0][: self.need])
        short = fsum(p * below[min(last, self.need - up)] for up, p in first)
        return min(1.0, self.common + (1.0 - self.common) * short)

    def up_distribution(self, sizes: Sequence[int]) -> list[float]:
        """Return a list: the probability of 0, 1, … replicas up in zones of these sizes."""
        counts = [1.0]
        for size in sizes:
            counts = convolve(counts, self._zone(size))
        counts = [(1.0 - self.common) * p for p in counts]
        counts[0] += self.common
        return counts

    def _zone(self, size: int) -> list[float]:
        counts = [self.zone_a * p for p in _up_distribution(size, self.a, self.correlation)]
        counts[0] += 1.0 - self.zone_a
        return counts


@dataclass(slots=True, frozen=True)
class Plan:
    """Result of ``spares_for``: the fewest spares that reach a target, and their availability."""

    spares: int
    zone_sizes: tuple[int, ...]
    availability: float
    shortfall: float  # one less the availability, precise however small

    @property
    def replicas(self) -> int:
        """How many replicas to run in all, spares included."""
        return sum(self.zone_sizes)


def availability(need: int, spares: int, a: float) -> float:
    """Return the probability that ``need`` of ``need + spares`` independent replicas are up."""
    return Redundancy(need, a).availability(spares)


def zone_availability(need: int, zones: int, per_zone: int, a: float, zone_a: float) -> float:
    """Return the probability that ``need`` replicas are up in zones that also fail as a whole.

    ``per_zone`` replicas in each of ``zones``; ``zone_a`` is the share of time one zone is up.
    """
    fleet = Redundancy(need, a, zones, zone_a)
    _count(per_zone, "per_zone", 1)
    return 1.0 - fleet.shortfall_of((per_zone,) * zones)


def spares_for(
    target: float,
    need: int,
    a: float,
    *,
    zones: int = 1,
    zone_a: float = 1.0,
    correlation: float = 0.0,
    common: float = 0.0,
    limit: int | None = None,
) -> Plan:
    """Return the ``Plan`` with the smallest number of spares whose availability reaches ``target``.

    Raises ``ConfigError`` if no number does, or none up to ``limit`` (by default a thousand plus
    twice the need).
    """
    fleet = Redundancy(need, a, zones, zone_a, correlation, common)
    require(0.0 < target < 1.0, "redundancy.target", f"is {target}", "use a share such as 0.999")
    limit = SPARES_LIMIT + 2 * need if limit is None else limit
    _count(limit, "limit", 0)
    if target > fleet.ceiling:
        fix = "spread over more zones, add a region, or lower the target"
        problem = f"is {target}, but {zones} zone(s) up {zone_a} of the time allow no more than"
        if common:
            fix = "keep common causes away (staged releases, another region), or lower the target"
            problem = f"is {target}, but common causes hold {common:.3g} of the time and allow"
        raise ConfigError("redundancy.target", f"{problem} {fleet.ceiling:.12g} with any k", fix)
    high = 0
    while fleet.availability(high) < target:
        if high == limit:
            problem = f"is {target}, but {limit} spares give only {fleet.availability(limit):.12g}"
            fix = "lower the target or the correlation, add zones, or raise the limit"
            raise ConfigError("redundancy.target", problem, fix)
        high = min(limit, max(1, 2 * high))
    low = high // 2 + 1 if high else 0
    while low < high:
        middle = (low + high) // 2
        if fleet.availability(middle) < target:
            low = middle + 1
        else:
            high = middle
    shortfall = fleet.shortfall(high)
    return Plan(high, spread(need + high, zones), 1.0 - shortfall, shortfall)


def replicas_by_mean(need: int, a: float) -> int:
    """Return ``ceil(need / a)``, a rule that is enough only on average; for comparison."""
    _count(need, "need", 1)
    _share(a, "a", "the share of time one replica is up")
    return ceil(need / a)


def cost(spares: int, cost_per_hour: float, hours: float = HOURS_PER_MONTH) -> float:
    """Return what the spares cost over ``hours``, by default a month, in the price's currency."""
    _count(spares, "spares", 0)
    good = 0.0 <= cost_per_hour < inf
    require(good, "redundancy.cost_per_hour", f"is {cost_per_hour}", "use a price, 0 or more")
    _duration(hours, "hours")
    return spares * cost_per_hour * hours


def nines(shortfall: float) -> float:
    """Return a shortfall as a number of nines: 0.001 is 3.0; infinite for 0."""
    good = 0.0 <= shortfall <= 1.0
    require(good, "redundancy.shortfall", f"is {shortfall}", "use a share from 0 to 1")
    return -log10(shortfall) if shortfall else inf


__all__ = [
    "HOURS_PER_MONTH",
    "SPARES_LIMIT",
    "Plan",
    "Redundancy",
    "availability",
    "convolve",
    "cost",
    "nines",
    "replicas_by_mean",
    "spares_for",
    "spread",
    "zone_availability",
]
