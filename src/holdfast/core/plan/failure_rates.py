"""The availability of one replica: from times between failures, from spot markets, from history.

A replica alternates between up and down; the share of time that it is up is ``MTBF / (MTBF +
down)``, whatever the laws of the two durations. What was counted in a past is one draw of many:
from few failures the true rate is hardly known, and the interval says how hardly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Final

from holdfast.core.types import require

CONFIDENCE: Final = 0.95


def _time(value: float, name: str) -> None:
    fix = "use a finite time, 0 or more"
    require(0.0 <= value < inf, f"failure_rates.{name}", f"is {value:g}", fix)


def _mtbf(value: float) -> None:
    fix = "use a finite time above 0"
    require(0.0 < value < inf, "failure_rates.mtbf", f"is {value:g}", fix)


def replica_availability(mtbf: float, detect: float, repair: float) -> float:
    """Return the share of time one replica is up: ``MTBF / (MTBF + detection + repair)``.

    All three times in the same unit. Assumes that a replica is of no use from its failure until its
    repair, and as good as new after it. Breaks where repairs wait for each other: add that wait.
    """
    _mtbf(mtbf)
    _time(detect, "detect")
    _time(repair, "repair")
    return mtbf / (mtbf + detect + repair)


def spot_availability(mtbf: float, reload: float, notice: float) -> float:
    """Return the share of time a spot replica's place is filled: reload less notice is down.

    All times in one unit. The successor is started when the notice comes. Assumes that another spot
    replica is to be had at once, and independent losses.
    """
    _mtbf(mtbf)
    _time(reload, "reload")
    _time(notice, "notice")
    return mtbf / (mtbf + max(0.0, reload - notice))


@dataclass(slots=True, frozen=True)
class ObservedAvailability:
    """Estimate of one replica's availability from its past, with a 95 % interval."""

    failures: int
    mtbf: float | None  # none without a failure
    down: float  # mean time of one failure
    availability: float
    low: float  # of the 95 % interval
    high: float


def observed_availability(
    failures: int, up: float, down: float, assumed_down: float = 0.0
) -> ObservedAvailability:
    """Return the ``ObservedAvailability`` from ``failures`` in ``up`` time running, ``down`` not.

    The rate of failures has the exact Poisson interval, also for none seen. The mean duration is
    taken as seen, or ``assumed_down`` where none was seen. Times in one unit; assumes that the
    future is like the past.
    """
    fix = "use 0 or more"
    require(failures >= 0, "failure_rates.failures", f"is {failures}", fix)
    require(0.0 < up < inf, "failure_rates.up_time", f"is {up:g}", "use a time above 0")
    _time(down, "down_time")
    _time(assumed_down, "repair")
    each = down / failures if failures and down else assumed_down
    fewest, most = poisson_interval(failures)

    def share(count: float) -> float:
        return up / (up + count * each)

    mtbf = up / failures if failures else None
    return ObservedAvailability(failures, mtbf, each, share(failures), share(most), share(fewest))


def poisson_interval(count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return (low, high) bounds of a Poisson mean of which ``count`` was drawn (Garwood, exact)."""
    tail = (1.0 - confidence) / 2.0
    high = _solve(lambda mean: _at_most(count, mean), tail, count)
    low = _solve(lambda mean: _at_most(count - 1, mean), 1.0 - tail, count) if count else 0.0
    return low, high


def _at_most(count: int, mean: float) -> float:
    """Probability that a Poisson law of this mean gives ``count`` or fewer."""
    if mean <= 0.0:
        return 1.0
    log_term = -mean
    total = exp(log_term)
    for number in range(1, count + 1):
        log_term += log(mean / number)
        total += exp(log_term)
    return min(1.0, total)


def _solve(chance: Callable[[float], float], wanted: float, count: int) -> float:
    low, high = 0.0, 10.0 + count + 10.0 * sqrt(count + 1.0)
    for _ in range(200):
        middle = (low + high) / 2.0
        if chance(middle) > wanted:  # fewer are likely: the mean may be higher
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def split_common_cause(availability: float, share: float) -> tuple[float, float]:
    """Return (availability while no common cause holds, share of time that one holds).

    ``share`` of the downtime has a common cause (the beta-factor model), which takes all replicas;
    no number of spares helps against that part.
    """
    good = 0.0 <= share <= 1.0
    require(good, "failure_rates.common_cause", f"is {share}", "use a share from 0 to 1")
    good = 0.0 < availability <= 1.0
    fix = "use the share of time one replica is up, above 0 and up to 1"
    require(good, "failure_rates.availability", f"is {availability}", fix)
    common = share * (1.0 - availability)
    return availability / (1.0 - common), common


def twice_as_reliable(availability: float, factor: float = 2.0) -> float:
    """Return the availability of a replica that fails ``factor`` times as rarely.

    Repairs take as long as before.
    """
    require(factor > 0, "failure_rates.factor", f"is {factor}", "use a factor above 0")
    return factor * availability / (factor * availability + 1.0 - availability)


__all__ = [
    "CONFIDENCE",
    "ObservedAvailability",
    "observed_availability",
    "poisson_interval",
    "replica_availability",
    "split_common_cause",
    "spot_availability",
    "twice_as_reliable",
]
