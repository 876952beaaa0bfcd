"""How retries multiply a load and keep a fleet down, and what a second copy of a request buys."""

from collections.abc import Callable
from math import erf, exp, floor, log, sqrt
from statistics import NormalDist

from holdfast.core.types import require

Tail = Callable[[float], float]  # probability that a request takes longer than this


def _share(value: float, name: str) -> None:
    require(0.0 <= value <= 1.0, f"overload.{name}", f"is {value:g}", "use a share from 0 to 1")


def retry_amplification(attempts: int, failing: float) -> float:
    """Return the mean attempts per request, each failing with ``failing``, at most ``attempts``.

    ``(1 - f^R) / (1 - f)``. Assumes that attempts fail independently; in an outage they fail
    together, and the load is multiplied by ``attempts``.
    """
    require(attempts >= 1, "overload.attempts", f"is {attempts}", "use 1 or more")
    _share(failing, "failing")
    if failing == 1.0:
        return float(attempts)
    return (1.0 - failing**attempts) / (1.0 - failing)


def nested_attempts(layers: int, attempts: int) -> int:
    """Return the attempts at the bottom if each of ``layers`` tries ``attempts`` times: a power."""
    require(layers >= 1, "overload.layers", f"is {layers}", "use 1 or more")
    require(attempts >= 1, "overload.attempts", f"is {attempts}", "use 1 or more")
    return int(attempts**layers)


def budget_bound(budget: float) -> float:
    """Return the most attempts per request under a retry budget (a share of requests): 1 + it."""
    require(budget >= 0, "overload.budget", f"is {budget:g}", "use a share, 0 or more")
    return 1.0 + budget


def metastable_attempts(utilisation: float) -> int:
    """Return the fewest attempts per request that can keep a fleet down after its trouble is over.

    A fleet that is busy for ``u`` of its capacity is pushed beyond it by ``R`` attempts each once
    ``u x R > 1``. Assumes retries without a budget.
    """
    good = 0.0 < utilisation < 1.0
    fix = "use a share above 0 and below 1"
    require(good, "overload.utilisation", f"is {utilisation:g}", fix)
    return floor(1.0 / utilisation) + 1


def exponential_tail(mean: float = 1.0) -> Tail:
    """Return a function of t: the probability that an exponential time of this mean exceeds t."""
    return lambda t: exp(-t / mean) if t > 0 else 1.0


def lognormal_tail(mu: float = 0.0, sigma: float = 1.0) -> Tail:
    """Return a function of t: the probability that a lognormal time exceeds t.

    ``mu`` and ``sigma`` are the mean and deviation of its logarithm.
    """

    def tail(t: float) -> float:
        return 0.5 * (1.0 - erf((log(t) - mu) / (sigma * sqrt(2.0)))) if t > 0 else 1.0

    return tail


def lognormal_quantile(quantile: float, mu: float = 0.0, sigma: float = 1.0) -> float:
    """Return the time below which a share ``quantile`` of lognormal times lie.

    ``mu`` and ``sigma`` are the mean and deviation of the logarithm.
    """
    return exp(mu + sigma * NormalDist().inv_cdf(quantile))


def hedged_quantile(tail: Tail, delay: float, quantile: float) -> float:
    """Return a quantile of the time if a second copy is sent after ``delay`` and the first wins.

    ``P(T > t) = F(t) x F(t - delay)`` with F the ``tail`` of one copy, at ``F(delay)`` more load.
    Assumes that the copies are independent and that there is spare capacity.
    """
    require(0 < quantile < 1, "overload.quantile", f"is {quantile:g}", "use a share such as 0.999")
    require(delay >= 0, "overload.delay", f"is {delay:g}", "use 0 or more")
    wanted = 1.0 - quantile
    low, high = 0.0, max(1.0, delay)
    while tail(high) * tail(high - delay) > wanted:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if tail(middle) * tail(middle - delay) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def slow_after_hedge(slow: float) -> float:
    """Return the share of requests still slow with two copies: the square of ``slow``."""
    _share(slow, "slow")
    return slow * slow


def tail_per_call(tail: float, calls: int) -> float:
    """Return the share of slow calls allowed so that all of ``calls`` are fast but for ``tail``."""
    _share(tail, "tail")
    require(calls >= 1, "overload.calls", f"is {calls}", "use 1 or more")
    return float(1.0 - (1.0 - tail) ** (1.0 / calls))


__all__ = [
    "budget_bound",
    "exponential_tail",
    "hedged_quantile",
    "lognormal_quantile",
    "lognormal_tail",
    "metastable_attempts",
    "nested_attempts",
    "retry_amplification",
    "slow_after_hedge",
    "tail_per_call",
]
