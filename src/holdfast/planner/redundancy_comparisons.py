"""What else the money of a redundancy plan could buy, and how a simulation agrees with it.

The price of each nine, a better node against more nodes, one region against several, and a
simulated past of the planned fleet beside the formula.
"""

from contextlib import suppress
from dataclasses import dataclass
from math import isinf
from random import Random
from typing import Final

from holdfast.core.plan.failure_rates import twice_as_reliable
from holdfast.core.plan.fleet_simulation import SimulatedFleet, simulate_fleet
from holdfast.core.plan.redundancy import (
    HOURS_PER_MONTH,
    Redundancy,
    cost,
    spares_for,
)
from holdfast.core.plan.regions import RegionOption
from holdfast.core.types import ConfigError
from holdfast.planner.answer import PlanTable
from holdfast.planner.units import money, nine_digits

NINES: Final = (2, 3, 4, 5, 6)
SEED: Final = 1
EVENTS: Final = 200_000
REPLICAS_MAX: Final = 2_000  # beyond, a simulation of that many events is no long time for each


@dataclass(slots=True, frozen=True)
class Nine:
    """The spares that one more nine takes; none where no number of them reaches it."""

    nines: int
    spares: int | None
    monthly_cost: float | None


def price_of_nines(fleet: Redundancy, cost_per_hour: float | None) -> list[Nine]:
    """The smallest number of spares for two to six nines, and what they cost a month."""
    found = []
    for count in NINES:
        spares = None
        with suppress(ConfigError):  # out of reach: the row says so
            spares = spares_for(
                1.0 - 10.0**-count,
                fleet.need,
                fleet.a,
                zones=fleet.zones,
                zone_a=fleet.zone_a,
                correlation=fleet.correlation,
                common=fleet.common,
            ).spares
        price = None if spares is None or cost_per_hour is None else cost(spares, cost_per_hour)
        found.append(Nine(count, spares, price))
    return found


def nines_table(found: list[Nine]) -> PlanTable:
    """What each further nine costs."""
    priced = any(one.monthly_cost is not None for one in found)
    rows = []
    before = 0.0
    for one in found:
        cells = [f"{1.0 - 10.0**-one.nines:.{one.nines}f}"]
        cells.append("out of reach" if one.spares is None else str(one.spares))
        if priced:
            known = one.monthly_cost
            cells += ["", ""] if known is None else [money(known), money(known - before)]
            before = before if known is None else known
        rows.append(tuple(cells))
    headings = ("target", "spares", *(("cost/month", "this nine") if priced else ()))
    return PlanTable("The price of a nine", headings, tuple(rows))


@dataclass(slots=True, frozen=True)
class NodeOption:
    """One way to spend: other replicas, or other numbers of them."""

    what: str
    replicas: int
    availability: float
    price_ratio: float | None  # what one replica may cost, for the same bill as the plan's


def better_nodes(fleet: Redundancy, target: float, spares: int) -> list[NodeOption]:
    """A replica that fails half as often against twice as many of the present ones.

    ``price_ratio`` is how much more the better replica may cost before the plan's is cheaper.
    """
    planned = fleet.need + spares
    found = [NodeOption("as planned", planned, fleet.availability(spares), None)]
    better = Redundancy(
        fleet.need,
        twice_as_reliable(fleet.a),
        fleet.zones,
        fleet.zone_a,
        fleet.correlation,
        fleet.common,
    )
    with suppress(ConfigError):  # better replicas do not lift the ceiling of zones
        fewer = spares_for(
            target,
            better.need,
            better.a,
            zones=better.zones,
            zone_a=better.zone_a,
            correlation=better.correlation,
            common=better.common,
        ).spares
        count = fleet.need + fewer
        reached = better.availability(fewer)
        found.append(NodeOption("that fail half as often", count, reached, planned / count))
    double = fleet.availability(fleet.need)
    found.append(
        NodeOption(
            "of this kind, twice as many", 2 * fleet.need, double, planned / (2 * fleet.need)
        )
    )
    return found


def better_or_more(found: list[NodeOption]) -> list[str]:
    """Better replicas against more of them, a line each."""
    return [
        f"Replicas {one.what}: {one.replicas} give {nine_digits(one.availability)}; at the same "
        f"bill one may cost {one.price_ratio:.2f} times as much."
        for one in found
        if one.price_ratio is not None
    ]


def regions_table(found: list[RegionOption]) -> PlanTable:
    """One region against several."""
    priced = any(one.monthly_cost is not None for one in found)
    rows = []
    for one in found:
        wait = "never" if isinf(one.failover_s) else f"{one.failover_s:g} s"
        cells = [one.mode.value, f"{one.regions}", f"{one.replicas}", nine_digits(one.availability)]
        cells.append(wait)
        if one.monthly_cost is not None:
            cells += [money(one.monthly_cost), money(one.transfer_cost)]
        rows.append(tuple(cells))
    headings = ["", "regions", "replicas", "availability", "failover"]
    headings += ["cost/month", "transfer"] if priced else []
    return PlanTable("Regions", tuple(headings), tuple(rows), text_columns=1)


def simulated(
    fleet: Redundancy, zone_sizes: tuple[int, ...], target: float, down_h: float
) -> SimulatedFleet | None:
    """A simulated past of the planned fleet; none where its failures have no simple dynamics.

    A correlation and a common cause say how often replicas are down together, not how that comes
    about; a fleet that never fails has nothing to simulate.
    """
    if fleet.correlation or fleet.common or fleet.a == 1.0 or sum(zone_sizes) > REPLICAS_MAX:
        return None
    down = max(down_h, 1e-6)
    zones = {}
    if fleet.zone_a < 1.0:
        hours = 4.0  # of a lost zone; the long-run share does not depend on it
        zones = {"zone_down": hours, "zone_up": hours * fleet.zone_a / (1.0 - fleet.zone_a)}
    return simulate_fleet(
        Random(SEED),
        need=fleet.need,
        zone_sizes=zone_sizes,
        up=down * fleet.a / (1.0 - fleet.a),
        down=down,
        window=HOURS_PER_MONTH,
        target=target,
        events=EVENTS,
        **zones,
    )


def agreement(found: SimulatedFleet, formula: float) -> str:
    """The simulation beside the formula, in one sentence."""
    error = f" ± {2 * found.error:.1g}" if found.error else ""
    return (
        f"Simulated ({found.events:,} failures and repairs): {nine_digits(found.availability)}"
        f"{error}; the formula says {nine_digits(formula)}."
    )


__all__ = [
    "Nine",
    "NodeOption",
    "agreement",
    "better_nodes",
    "better_or_more",
    "nines_table",
    "price_of_nines",
    "regions_table",
    "simulated",
]
