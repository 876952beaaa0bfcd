"""Answers redundancy questions: how a replica's availability is known, and what follows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isinf
from typing import Any, Final

from holdfast.core.plan.failure_rates import (
    ObservedAvailability,
    observed_availability,
    replica_availability,
    split_common_cause,
    spot_availability,
)
from holdfast.core.plan.redundancy import Redundancy, nines
from holdfast.core.plan.regions import Regions, compare_regions
from holdfast.planner.answer import ChartSeries, PlanAnswer, PlanChart, PlanStep, PlanTable
from holdfast.planner.question import FieldKind, PlanField, PlanKind
from holdfast.planner.redundancy_comparisons import (
    agreement,
    better_nodes,
    better_or_more,
    nines_table,
    price_of_nines,
    regions_table,
    simulated,
)
from holdfast.planner.redundancy_plan import RedundancyPlan, redundancy
from holdfast.planner.units import money, nine_digits

_NEED_MAX: Final = 10_000  # replicas; the sums take minutes beyond
_FLEET: Final = "Fleet"
_REPLICA: Final = "One replica"
_TOGETHER: Final = "What fails together"
_REGIONS: Final = "Regions"

FIELDS: Final = (
    PlanField(
        "need",
        FieldKind.COUNT,
        "Replicas that must be up to carry the load.",
        least=1,
        most=_NEED_MAX,
        group=_FLEET,
    ),
    PlanField("availability", FieldKind.NUMBER, "Share of time one replica is up.", group=_REPLICA),
    PlanField("target", FieldKind.NUMBER, "Share of time the load must be carried.", group=_FLEET),
    PlanField(
        "correlation",
        FieldKind.NUMBER,
        "How much replicas of one zone fail together: 0 not at all, near 1 all at once.",
        0.0,
        group=_TOGETHER,
    ),
    PlanField(
        "zones",
        FieldKind.COUNT,
        "Zones over which the replicas are spread evenly.",
        1,
        least=1,
        most=100,
        group=_TOGETHER,
    ),
    PlanField(
        "zone_availability",
        FieldKind.NUMBER,
        "Share of time a zone as a whole is up.",
        1.0,
        group=_TOGETHER,
    ),
    PlanField(
        "cost_per_hour", FieldKind.NUMBER, "Price of one replica, in any currency.", group=_FLEET
    ),
    PlanField(
        "mtbf",
        FieldKind.DURATION,
        "Mean time between failures of one replica, instead of its availability.",
        group=_REPLICA,
    ),
    PlanField("detect", FieldKind.DURATION, "Until a failure is noticed.", 0.0, group=_REPLICA),
    PlanField(
        "repair",
        FieldKind.DURATION,
        "Until a replica that failed serves again.",
        group=_REPLICA,
    ),
    PlanField(
        "spot_notice",
        FieldKind.DURATION,
        "Notice before a spot replica is taken; the time between failures is the time until that.",
        group=_REPLICA,
    ),
    PlanField(
        "failures",
        FieldKind.COUNT,
        "Failures that were seen, instead of a time between them.",
        least=0,
        group=_REPLICA,
    ),
    PlanField("up_time", FieldKind.DURATION, "Time that replicas were up in all.", group=_REPLICA),
    PlanField("down_time", FieldKind.DURATION, "Time that they were down.", 0.0, group=_REPLICA),
    PlanField(
        "common_cause",
        FieldKind.NUMBER,
        "Share of a replica's downtime that hits all at once: builds, configs, shared services.",
        0.0,
        group=_TOGETHER,
    ),
    PlanField(
        "region_availability",
        FieldKind.NUMBER,
        "Share of time a region is up; compares one region with several.",
        group=_REGIONS,
    ),
    PlanField(
        "regions",
        FieldKind.COUNT,
        "Regions that all serve, in the comparison.",
        2,
        least=2,
        most=20,
        group=_REGIONS,
    ),
    PlanField("region_outage", FieldKind.DURATION, "How long a region is lost.", 14_400.0),
    PlanField("failover", FieldKind.DURATION, "Until a standby region serves.", 300.0),
    PlanField("shift", FieldKind.DURATION, "Until serving regions take over.", 30.0),
    PlanField("transfer_price", FieldKind.NUMBER, "Price of a GB between regions.", 0.02),
    PlanField("weights", FieldKind.SIZE, "Weights that a release copies to a region.", 0.0),
    PlanField("releases", FieldKind.NUMBER, "Releases in a month.", 4.0),
    PlanField("rate", FieldKind.NUMBER, "Requests per second.", 0.0),
    PlanField("request_bytes", FieldKind.SIZE, "Prompt and answer as they travel.", 8000.0),
    PlanField("simulate", FieldKind.FLAG, "Simulate the plan beside the formula.", False),
)


def _missing(values: Mapping[str, Any]) -> list[str]:
    if values["availability"] is not None:
        asked = ["need", "target"]
    elif values["failures"] is not None:
        asked = ["need", "up_time", "target"]
    elif values["mtbf"] is not None:
        asked = ["need", "repair", "target"]
    else:
        asked = ["need", "availability", "target"]
    return [name for name in asked if values[name] is None]


@dataclass(slots=True, frozen=True)
class _Known:
    """One replica's availability, and how it is known."""

    availability: float
    step: PlanStep | None = None
    observed: ObservedAvailability | None = None
    down_h: float = 1.0  # of one failure, for a simulation


def redundancy_answer(values: Mapping[str, Any]) -> PlanAnswer:
    """Answer a redundancy question; ``values`` has all of ``FIELDS``."""
    known = _availability(values)
    alone, common = split_common_cause(known.availability, values["common_cause"])
    plan = redundancy(
        values["need"],
        alone,
        values["target"],
        zones=values["zones"],
        zone_availability=values["zone_availability"],
        correlation=values["correlation"],
        common=common,
        cost_per_hour=values["cost_per_hour"],
    )
    fleet = Redundancy(
        plan.need, alone, plan.zones, plan.zone_availability, plan.correlation, common
    )
    spread = " + ".join(str(size) for size in plan.zone_sizes)
    where = f", {spread} over {plan.zones} zones" if plan.zones > 1 else ""
    tables, figures, remarks = _comparisons(values, plan, fleet, known)
    return PlanAnswer(
        plan="redundancy",
        opening=f"{plan.need} replicas needed, each up {known.availability:.9g} of the time; "
        f"target {plan.target:.12g}",
        verdict=f"Run {plan.replicas}: {plan.need} and {_spares(plan.spares)}{where}.",
        tables=(_spares_table(plan), *tables),
        remarks=(*_remarks(plan), *remarks),
        notes=(*plan.notes, *_limits(values, fleet, known)),
        steps=_steps(plan, known, values, fleet),
        charts=(_nines_chart(plan),),
        figures={**plan.to_dict(), "replica_availability": known.availability, **figures},
    )


def _availability(values: Mapping[str, Any]) -> _Known:
    detect, repair = values["detect"], values["repair"]
    if values["availability"] is not None:
        down = detect + (repair or 0.0)
        return _Known(values["availability"], down_h=down / 3600.0 if down else 1.0)
    if values["failures"] is not None:
        seen = observed_availability(
            values["failures"], values["up_time"], values["down_time"], detect + (repair or 0.0)
        )
        numbers = (
            f"{seen.failures} failures in {values['up_time'] / 3600:,.1f} h up, {seen.down:,.0f} s "
            f"down each: {seen.availability:.6f}, 95 % of {seen.low:.6f} to {seen.high:.6f}"
        )
        step = PlanStep("one replica, from its history", "up / (up + failures x down)", numbers)
        return _Known(seen.availability, step, seen, max(seen.down, 1.0) / 3600.0)
    mtbf, notice = values["mtbf"], values["spot_notice"]
    if notice is not None:
        a = spot_availability(mtbf, detect + repair, notice)
        lost = max(0.0, detect + repair - notice)
        numbers = f"{mtbf:,.0f} s / ({mtbf:,.0f} + {lost:,.0f}) s = {a:.6f}"
        step = PlanStep("one spot replica", "MTBF / (MTBF + reload - notice)", numbers)
        return _Known(a, step, down_h=max(lost, 1.0) / 3600.0)
    a = replica_availability(mtbf, detect, repair)
    numbers = f"{mtbf:,.0f} / ({mtbf:,.0f} + {detect:,.0f} + {repair:,.0f}) s = {a:.6f}"
    step = PlanStep("one replica", "MTBF / (MTBF + detection + repair)", numbers)
    return _Known(a, step, down_h=max(detect + repair, 1.0) / 3600.0)


def _comparisons(
    values: Mapping[str, Any], plan: RedundancyPlan, fleet: Redundancy, known: _Known
) -> tuple[list[PlanTable], dict[str, Any], list[str]]:
    price = values["cost_per_hour"]
    each_nine = price_of_nines(fleet, price)
    nodes = better_nodes(fleet, plan.target, plan.spares)
    tables = [nines_table(each_nine)] if price is not None else []
    figures: dict[str, Any] = {
        "price_of_nines": [asdict(one) for one in each_nine],
        "better_nodes": [asdict(one) for one in nodes],
        "observed": asdict(known.observed) if known.observed is not None else None,
    }
    remarks = better_or_more(nodes) if price is not None else []
    if values["region_availability"] is not None:
        found = compare_regions(fleet, plan.spares, _regions(values), values["regions"], price)
        tables.append(regions_table(found))
        figures["regions"] = [
            asdict(one)
            | {
                "monthly_cost": one.monthly_cost,
                "failover_s": None if isinf(one.failover_s) else one.failover_s,
            }
            for one in found
        ]
    if values["simulate"]:
        past = simulated(fleet, plan.zone_sizes, plan.target, known.down_h)
        if past is None:
            remarks.append("Not simulated: correlated failures have no simple dynamics.")
        else:
            figures["simulated"] = asdict(past)
            remarks.append(agreement(past, plan.availability))
            told = f"{past.windows_met:.1%} of {past.windows:,} simulated months met the target."
            remarks.append(told)
    return tables, figures, remarks


def _regions(values: Mapping[str, Any]) -> Regions:
    return Regions(
        values["region_availability"],
        outage_h=values["region_outage"] / 3600.0,
        failover_s=values["failover"],
        shift_s=values["shift"],
        transfer_price=values["transfer_price"],
        weights_gb=values["weights"] / 1e9,
        releases=values["releases"],
        requests_s=values["rate"],
        request_bytes=values["request_bytes"],
    )


def _limits(values: Mapping[str, Any], fleet: Redundancy, known: _Known) -> tuple[str, ...]:
    """What spares do not help against."""
    notes = []
    if known.observed is not None:
        seen = known.observed
        worst = Redundancy(
            fleet.need, seen.low, fleet.zones, fleet.zone_a, fleet.correlation, fleet.common
        )
        notes.append(
            f"The availability of one replica is known from {seen.failures} failures: with 95 % "
            f"confidence it lies between {seen.low:.6f} and {seen.high:.6f}. At the lower end the "
            f"same spares give {nine_digits(worst.availability(_spares_of(values, fleet)))}."
        )
    told = "No number of spares protects against a bad build or config on all replicas, a lost "
    told += "region or control plane, or more load than was planned for."
    if fleet.common:
        told += (
            f" Common causes alone hold {fleet.common:.3g} of the time: with any k no more than "
        )
        told += f"{fleet.ceiling:.9g} is possible."
    notes.append(told)
    return tuple(notes)


def _spares_of(values: Mapping[str, Any], fleet: Redundancy) -> int:
    return redundancy(
        fleet.need,
        fleet.a,
        values["target"],
        zones=fleet.zones,
        zone_availability=fleet.zone_a,
        correlation=fleet.correlation,
        common=fleet.common,
    ).spares


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


def _steps(
    plan: RedundancyPlan, known: _Known, values: Mapping[str, Any], fleet: Redundancy
) -> tuple[PlanStep, ...]:
    sizes = ", ".join(str(size) for size in plan.zone_sizes)
    steps = [known.step] if known.step is not None else []
    if fleet.common:
        steps.append(
            PlanStep(
                "common causes",
                "share x (1 - a)",
                f"{values['common_cause']:g} x {1 - known.availability:.6f} = {fleet.common:.3g} "
                f"of the time; alone a replica is then up {fleet.a:.6f}",
            )
        )
    steps += [
        PlanStep(
            "availability",
            "A(N, k) = P(at least N of N + k are up), summed over the zones that are up",
            f"N = {plan.need}, k = {plan.spares}, a = {fleet.a:.9g}, zones of {sizes}: "
            f"{nine_digits(plan.availability)}",
        ),
        PlanStep(
            "shortfall",
            "(1 - A) x 730 h x 60",
            f"{1.0 - plan.availability:.3g} x 43,800 = {plan.shortfall_minutes:.3g} min a month",
        ),
    ]
    return tuple(steps)


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


_SPELLED: Final = {
    "redundancy.a": "availability",
    "redundancy.zone_a": "zone_availability",
    "failure_rates.availability": "availability",
    "regions.availability": "region_availability",
    "regions.outage_h": "region_outage",
    "regions.active": "regions",
}

REDUNDANCY: Final = PlanKind(
    name="redundancy",
    title="Spare replicas for an availability target",
    fields=FIELDS,
    answer=redundancy_answer,
    missing=_missing,
    spelled=lambda field: _SPELLED.get(field, field),
)

__all__ = ["REDUNDANCY", "redundancy_answer"]
