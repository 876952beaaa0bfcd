"""Plans redundancy: how many spare replicas, what availability they give, what they cost.

The mathematics is ``core.plan.redundancy``; here it becomes an answer that a person can check: the
smallest k beside its neighbours, what simpler formulas would have claimed, and what an average
cannot promise. Rendering is left to the caller.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isinf
from typing import Final

from holdfast.core.plan.redundancy import (
    HOURS_PER_MONTH,
    Redundancy,
    cost,
    nines,
    replicas_by_mean,
    spares_for,
)
from holdfast.core.types import ConfigError

_ROWS_BEFORE: Final = 8  # smaller k shown above the answer: enough to see how fast it climbs
_ROWS_AFTER: Final = 2  # and what one or two more would buy


@dataclass(slots=True, frozen=True)
class SpareOption:
    """A choice for the number of spare replicas: the availability and the cost that it leads to."""

    spares: int
    replicas: int
    availability: float
    nines: float | None  # none where the shortfall is too small for a number
    monthly_cost: float | None
    independent: float | None  # what the independent-failure formula claims for this k


@dataclass(slots=True, frozen=True)
class Alternative:
    """A simpler rule for the same fleet: the spares it chooses, and their real availability."""

    rule: str
    spares: int
    claimed: float | None  # none where the rule claims nothing
    availability: float
    monthly_cost: float | None


@dataclass(slots=True, frozen=True)
class RedundancyPlan:
    """The smallest number of spares that reaches the target, and how to judge it."""

    need: int
    replica_availability: float
    target: float
    zones: int
    zone_availability: float
    correlation: float
    common_cause: float  # share of time that all replicas are down at once
    spares: int
    zone_sizes: tuple[int, ...]
    availability: float
    nines: float | None
    shortfall_minutes: float  # per month of 730 hours, on average
    monthly_cost: float | None  # of the spares; none where no price was given
    rows: tuple[SpareOption, ...]
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...]

    @property
    def replicas(self) -> int:
        """Number of replicas to run, spares included."""
        return self.need + self.spares

    def to_dict(self) -> dict[str, object]:
        """The plan as plain data, ready for JSON."""
        return {**asdict(self), "replicas": self.replicas}


def redundancy(
    need: int,
    availability: float,
    target: float,
    *,
    zones: int = 1,
    zone_availability: float = 1.0,
    correlation: float = 0.0,
    common: float = 0.0,
    cost_per_hour: float | None = None,
    limit: int | None = None,
) -> RedundancyPlan:
    """Plan spares for a fleet that needs ``need`` replicas, each up ``availability`` of the time.

    Replicas are spread evenly over ``zones``, each up ``zone_availability`` of the time as a
    whole; ``correlation`` is that of any two replicas of a zone, and ``common`` the share of time
    that a common cause takes all of them. ``cost_per_hour`` is one replica's price.
    """
    fleet = Redundancy(need, availability, zones, zone_availability, correlation, common)
    plan = spares_for(
        target,
        need,
        availability,
        zones=zones,
        zone_a=zone_availability,
        correlation=correlation,
        common=common,
        limit=limit,
    )
    minutes = plan.shortfall * HOURS_PER_MONTH * 60.0
    return RedundancyPlan(
        need=need,
        replica_availability=availability,
        target=target,
        zones=zones,
        zone_availability=zone_availability,
        correlation=correlation,
        common_cause=common,
        spares=plan.spares,
        zone_sizes=plan.zone_sizes,
        availability=plan.availability,
        nines=_finite_nines(plan.shortfall),
        shortfall_minutes=minutes,
        monthly_cost=_monthly(plan.spares, cost_per_hour),
        rows=_rows(fleet, plan.spares, cost_per_hour),
        alternatives=_alternatives(fleet, target, cost_per_hour),
        notes=_notes(fleet, plan.spares, minutes),
    )


def _as_if_independent(fleet: Redundancy) -> Redundancy | None:
    """The same replicas as the textbook formula sees them; none where it sees them rightly."""
    if fleet.zone_a == 1.0 and fleet.correlation == 0.0 and fleet.common == 0.0:
        return None
    return Redundancy(fleet.need, fleet.a * fleet.zone_a * (1.0 - fleet.common))


def _monthly(spares: int, cost_per_hour: float | None) -> float | None:
    return None if cost_per_hour is None else cost(spares, cost_per_hour)


def _finite_nines(shortfall: float) -> float | None:
    count = nines(shortfall)
    return None if isinf(count) else count


def _rows(fleet: Redundancy, spares: int, cost_per_hour: float | None) -> tuple[SpareOption, ...]:
    naive = _as_if_independent(fleet)
    first = max(0, spares - _ROWS_BEFORE)
    shown = [*([0] if first else []), *range(first, spares + _ROWS_AFTER + 1)]
    rows = []
    for k in shown:
        shortfall = fleet.shortfall(k)
        row = SpareOption(
            spares=k,
            replicas=fleet.need + k,
            availability=1.0 - shortfall,
            nines=_finite_nines(shortfall),
            monthly_cost=_monthly(k, cost_per_hour),
            independent=None if naive is None else naive.availability(k),
        )
        rows.append(row)
    return tuple(rows)


def _alternatives(
    fleet: Redundancy, target: float, cost_per_hour: float | None
) -> tuple[Alternative, ...]:
    """What the independent formula and the mean would buy, priced by the real model."""
    up = fleet.a * fleet.zone_a * (1.0 - fleet.common)
    by_mean = replicas_by_mean(fleet.need, up) - fleet.need
    claims: list[tuple[str, int, float | None]] = [("mean capacity", by_mean, None)]
    naive = _as_if_independent(fleet)
    if naive is not None:
        with suppress(ConfigError):  # even with independence no k may be in reach
            k = spares_for(target, naive.need, naive.a).spares
            claims.append(("independent failures", k, naive.availability(k)))
    return tuple(
        Alternative(rule, k, claimed, fleet.availability(k), _monthly(k, cost_per_hour))
        for rule, k, claimed in claims
    )


def _notes(fleet: Redundancy, spares: int, minutes: float) -> tuple[str, ...]:
    notes = [
        (
            f"Availability is a long-run average: {minutes:.3g} minutes of shortfall in a month "
            "of 730 hours. It comes in episodes, so one month may see none and another many "
            "times as much; where the objective is judged per window, plan one or two spares more."
        )
    ]
    naive = _as_if_independent(fleet)
    if naive is None:
        notes.append(
            "Failures are taken as independent. A zone, a shared cause or a bad build takes many "
            "replicas at once: give zones with their availability, or a correlation."
        )
    else:
        notes.append(
            f"With independent failures {spares} spare(s) would have seemed to give "
            f"{naive.availability(spares):.9g}; what fails together gives "
            f"{fleet.availability(spares):.9g}."
        )
    if fleet.zone_a < 1.0:
        ceiling = f"{fleet.zones} zone(s) can give {fleet.ceiling:.12g} at most, with any k"
        notes.append(f"{ceiling}; a target above that needs another zone or region.")
    return tuple(notes)


__all__ = ["Alternative", "RedundancyPlan", "SpareOption", "redundancy"]
