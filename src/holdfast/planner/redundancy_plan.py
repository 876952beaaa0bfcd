"""Plans redundancy: how many spare replicas, what availability they give, what they cost.

The mathematics is ``core.plan.redundancy``; here it becomes an answer that a person can check: the
smallest k beside its neighbours, what simpler formulas would have claimed, and what an average
cannot promise. Rendering is left to the caller.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isinf
from typing import Any, Final

from holdfast.core.plan.redundancy import (
    HOURS_PER_MONTH,
    Redundancy,
    cost,
    nines,
    replicas_by_mean,
    spares_for,
)
from holdfast.core.types import ConfigError
from holdfast.planner.answer import ChartSeries, PlanAnswer, PlanChart, PlanStep, PlanTable
from holdfast.planner.question import FieldKind, PlanField, PlanKind, needs
from holdfast.planner.units import money, nine_digits

_NEED_MAX: Final = 10_000  # replicas; the sums take minutes beyond
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
    cost_per_hour: float | None = None,
    limit: int | None = None,
) -> RedundancyPlan:
    """Plan spares for a fleet that needs ``need`` replicas, each up ``availability`` of the time.

    Replicas are spread evenly over ``zones``, each up ``zone_availability`` of the time as a
    whole; ``correlation`` is that of any two replicas of a zone. ``cost_per_hour`` is one replica's
    price.
    """
    fleet = Redundancy(need, availability, zones, zone_availability, correlation)
    plan = spares_for(
        target,
        need,
        availability,
        zones=zones,
        zone_a=zone_availability,
        correlation=correlation,
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
    if fleet.zone_a == 1.0 and fleet.correlation == 0.0:
        return None
    return Redundancy(fleet.need, fleet.a * fleet.zone_a)


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
    up = fleet.a * fleet.zone_a
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


# --- as an answer ---------------------------------------------------------------------------------

FIELDS: Final = (
    PlanField(
        "need",
        FieldKind.COUNT,
        "Replicas that must be up to carry the load.",
        least=1,
        most=_NEED_MAX,
        group="Fleet",
    ),
    PlanField("availability", FieldKind.NUMBER, "Share of time one replica is up.", group="Fleet"),
    PlanField("target", FieldKind.NUMBER, "Share of time the load must be carried.", group="Fleet"),
    PlanField(
        "correlation",
        FieldKind.NUMBER,
        "How much replicas of one zone fail together: 0 not at all, near 1 all at once.",
        0.0,
        group="What fails together",
    ),
    PlanField(
        "zones",
        FieldKind.COUNT,
        "Zones over which the replicas are spread evenly.",
        1,
        least=1,
        most=100,
        group="What fails together",
    ),
    PlanField(
        "zone_availability",
        FieldKind.NUMBER,
        "Share of time a zone as a whole is up.",
        1.0,
        group="What fails together",
    ),
    PlanField("cost_per_hour", FieldKind.NUMBER, "Price of one replica, in any currency."),
)


def redundancy_answer(values: Mapping[str, Any]) -> PlanAnswer:
    """Answer a redundancy question; ``values`` has all of ``FIELDS``."""
    plan = redundancy(
        values["need"],
        values["availability"],
        values["target"],
        zones=values["zones"],
        zone_availability=values["zone_availability"],
        correlation=values["correlation"],
        cost_per_hour=values["cost_per_hour"],
    )
    spread = " + ".join(str(size) for size in plan.zone_sizes)
    where = f", {spread} over {plan.zones} zones" if plan.zones > 1 else ""
    return PlanAnswer(
        plan="redundancy",
        opening=f"{plan.need} replicas needed, each up {plan.replica_availability:.9g} of the "
        f"time; target {plan.target:.12g}",
        verdict=f"Run {plan.replicas}: {plan.need} and {_spares(plan.spares)}{where}.",
        tables=(_spares_table(plan),),
        remarks=_remarks(plan),
        notes=plan.notes,
        steps=_steps(plan),
        charts=(_nines_chart(plan),),
        figures=plan.to_dict(),
    )


def _remarks(plan: RedundancyPlan) -> tuple[str, ...]:
    lines = []
    if plan.monthly_cost is not None:
        lines.append(f"The spares cost {money(plan.monthly_cost)} a month.")
    for rule in plan.alternatives:
        verdict = "reaches" if rule.availability >= plan.target else "misses"
        claim = "" if rule.claimed is None else f", claims {nine_digits(rule.claimed)}"
        lines.append(
            f"By {rule.rule}: {_spares(rule.spares)}{claim}, gives "
            f"{nine_digits(rule.availability)}, {verdict} the target."
        )
    return tuple(lines)


def _spares_table(plan: RedundancyPlan) -> PlanTable:
    priced = plan.monthly_cost is not None
    dependent = any(row.independent is not None for row in plan.rows)
    headings = ["spares", "replicas", "availability", "nines"]
    headings += ["cost/month"] if priced else []
    headings += ["if independent"] if dependent else []
    rows = []
    for row in plan.rows:
        cells = [str(row.spares), str(row.replicas), nine_digits(row.availability)]
        cells += ["" if row.nines is None else f"{row.nines:.2f}"]
        cells += [money(row.monthly_cost)] if row.monthly_cost is not None else []
        cells += [nine_digits(row.independent)] if row.independent is not None else []
        rows.append(tuple(cells))
    marked = [row.spares for row in plan.rows].index(plan.spares)
    return PlanTable("Spares", tuple(headings), tuple(rows), marked)


def _steps(plan: RedundancyPlan) -> tuple[PlanStep, ...]:
    m, n = plan.replicas, plan.need
    sizes = ", ".join(str(size) for size in plan.zone_sizes)
    return (
        PlanStep(
            "availability",
            "A(N, k) = P(at least N of N + k are up), summed over the zones that are up",
            f"N = {n}, k = {plan.spares}, a = {plan.replica_availability:.9g}, {m} replicas in "
            f"zones of {sizes}: {nine_digits(plan.availability)}",
        ),
        PlanStep(
            "shortfall",
            "(1 - A) x 730 h x 60",
            f"{1.0 - plan.availability:.3g} x 43,800 = {plan.shortfall_minutes:.3g} min a month",
        ),
    )


def _nines_chart(plan: RedundancyPlan) -> PlanChart:
    points = tuple((float(row.spares), row.nines) for row in plan.rows if row.nines is not None)
    series = [ChartSeries("as planned", points or ((0.0, 0.0),))]
    naive = tuple(
        (float(row.spares), nines(max(1e-16, 1.0 - row.independent)))
        for row in plan.rows
        if row.independent is not None
    )
    series += [ChartSeries("if all failed independently", naive)] if naive else []
    return PlanChart(
        "Availability by number of spares",
        "spare replicas",
        "availability, number of nines",
        tuple(series),
        limit=nines(1.0 - plan.target),
        limit_label=f"target {plan.target:g}",
    )


def _spares(count: int) -> str:
    return f"{count} spare" if count == 1 else f"{count} spares"


_SPELLED: Final = {"redundancy.a": "availability", "redundancy.zone_a": "zone_availability"}

REDUNDANCY: Final = PlanKind(
    name="redundancy",
    title="Spare replicas for an availability target",
    fields=FIELDS,
    answer=redundancy_answer,
    missing=needs("need", "availability", "target"),
    spelled=lambda field: _SPELLED.get(field, field),
)

__all__ = [
    "REDUNDANCY",
    "Alternative",
    "RedundancyPlan",
    "SpareOption",
    "redundancy",
    "redundancy_answer",
]
