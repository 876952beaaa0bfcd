"""Compares one region with a standby and with several that all serve: availability and cost.

No number of spares helps where a whole region is lost. A standby region holds the load alone
after a failover, which takes time; regions that all serve lose one share of their capacity and
shift it at once. Both cost replicas that are idle on a good day, and bytes between regions.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf

from holdfast.core.plan.redundancy import HOURS_PER_MONTH, Redundancy, convolve, spread
from holdfast.core.types import require


class RegionMode(StrEnum):
    """How regions share the load: one alone, one with a standby, or several that all serve."""

    SINGLE = "single"
    STANDBY = "standby"  # active-standby
    ACTIVE = "active"  # active-active


@dataclass(slots=True, frozen=True)
class Regions:
    """Inputs: how regions fail, how fast traffic moves, and prices between them.

    The fleet inside each is given as ``Redundancy``. Raises ``ConfigError`` on a bad value.
    """

    availability: float  # share of time one region is up as a whole
    outage_h: float = 4.0  # how long one loss of a region lasts, on average
    failover_s: float = 300.0  # until a standby has taken over
    shift_s: float = 30.0  # until regions that all serve have taken over a lost one's share
    transfer_price: float = 0.0  # per GB between regions
    weights_gb: float = 0.0  # copied to every other region with each release
    releases: float = 4.0  # in a month
    requests_s: float = 0.0
    request_bytes: float = 8_000.0  # prompt and answer as they travel

    def __post_init__(self) -> None:
        good = 0.0 < self.availability <= 1.0
        fix = "use the share of time one region is up, above 0 and up to 1"
        require(good, "regions.availability", f"is {self.availability}", fix)
        require(self.outage_h > 0, "regions.outage_h", f"is {self.outage_h}", "use hours above 0")
        for name in (
            *("failover_s", "shift_s", "transfer_price", "weights_gb", "releases"),
            *("requests_s", "request_bytes"),
        ):
            value = getattr(self, name)
            good = 0.0 <= value < inf
            require(good, f"regions.{name}", f"is {value}", "use 0 or more")

    @property
    def losses_per_month(self) -> float:
        """How often one region is lost in a month of 730 hours: downtime over mean duration."""
        return (1.0 - self.availability) * HOURS_PER_MONTH / self.outage_h

    def lag(self, seconds: float, regions_that_matter: int, share: float) -> float:
        """Return the share of a month's requests that fail while traffic leaves a lost region.

        ``seconds``: how long moving takes; ``regions_that_matter``: how many may be lost so;
        ``share``: of the traffic that the lost region had.
        """
        month_s = HOURS_PER_MONTH * 3600.0
        return min(1.0, self.losses_per_month * regions_that_matter * seconds / month_s * share)

    def transfer_gb(self, mode: RegionMode, regions: int) -> float:
        """Return the gigabytes a month between regions: weights of releases, requests moved away.

        0 for one region. Assumes that clients reach the nearest region by themselves, so that
        requests travel only while one is lost.
        """
        if mode is RegionMode.SINGLE:
            return 0.0
        copies = self.weights_gb * self.releases * (regions - 1)
        away_s = (1.0 - self.availability) * HOURS_PER_MONTH * 3600.0
        return copies + away_s * self.requests_s * self.request_bytes / 1e9


@dataclass(slots=True, frozen=True)
class RegionOption:
    """Result: one way to use regions, with its replicas, availability and monthly costs.

    ``replicas_cost`` None: no price was given.
    """

    mode: RegionMode
    regions: int
    replicas: int
    availability: float
    failover_s: (
        float  # until a lost region's requests are served elsewhere; infinite for one region
    )
    replicas_cost: float | None
    transfer_cost: float

    @property
    def monthly_cost(self) -> float | None:
        """Replicas and transfer of a month together; ``None`` where no price was given."""
        return None if self.replicas_cost is None else self.replicas_cost + self.transfer_cost


def compare_regions(
    fleet: Redundancy, spares: int, regions: Regions, active: int, price: float | None
) -> list[RegionOption]:
    """Return three ``RegionOption``: one region, one with a standby, ``active`` that all serve.

    A region that must carry everything alone has ``need + spares`` replicas; of several that all
    serve, each has ``need / (active - 1)`` and its part of the spares. ``price`` is per replica and
    hour, or None. Assumes that regions fail independently and failover works. Breaks for what
    reaches every region at once: a release, a config.
    """
    require(active >= 2, "regions.active", f"is {active}", "use 2 or more")
    whole = fleet.need + spares
    within = fleet.up_distribution(spread(whole, fleet.zones))
    well = sum(within[fleet.need :])
    one = regions.availability * well
    standby = 1.0 - (1.0 - one) ** 2 - regions.lag(regions.failover_s, 1, 1.0)
    each = ceil(fleet.need / (active - 1)) + ceil(spares / (active - 1))
    shared = [regions.availability * p for p in fleet.up_distribution(spread(each, fleet.zones))]
    shared[0] += 1.0 - regions.availability
    total = [1.0]
    for _ in range(active):
        total = convolve(total, shared)
    together = sum(total[fleet.need :]) - regions.lag(regions.shift_s, active, 1.0 / active)
    return [
        _option(regions, RegionMode.SINGLE, 1, whole, one, inf, price),
        _option(regions, RegionMode.STANDBY, 2, 2 * whole, standby, regions.failover_s, price),
        _option(
            regions, RegionMode.ACTIVE, active, active * each, together, regions.shift_s, price
        ),
    ]


def _option(
    regions: Regions,
    mode: RegionMode,
    count: int,
    replicas: int,
    availability: float,
    failover_s: float,
    price: float | None,
) -> RegionOption:
    cost = None if price is None else replicas * price * HOURS_PER_MONTH
    transfer = regions.transfer_gb(mode, count) * regions.transfer_price
    share = min(1.0, max(0.0, availability))
    return RegionOption(mode, count, replicas, share, failover_s, cost, transfer)


__all__ = ["RegionMode", "RegionOption", "Regions", "compare_regions"]
