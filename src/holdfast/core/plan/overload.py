"""How retries multiply a load and keep a fleet down, and what a second copy of a request buys."""

from collections.abc import Callable
from math import erf, exp, floor, log, sqrt
from statistics import NormalDist

from holdfast.core.types import require

Tail = Callable[[float], float]  # probability that a request takes longer than this


def _share(value: float, name: str) -> None:
    require(0.0 <= value <= 1.0, f"overload.{name}", f"is {value:g}", "use a share from 0 to 1")


def retry_amplification(attempts: int, failing: float) -> float:
    """Attempts per request when each fails with ``failing`` and is made up to ``attempts`` times.

    ``(1 - f^R) / (1 - f)``. Assumes that attempts fail independently; in an outage they fail
    together, and the load is multiplied by ``attempts``.
    """
    require(attempts >= 1, "overload.attempts", f"is {attempts}", "use 1 or more")
    _share(failing, "failing")
    if failing == 1.0:
        return float(attempts)
    return (1.0 - failing**attempts) / (1.0 - failing)


def nested_attempts(layers: int, attempts: int) -> int:
    """Attempts at the bottom when each of ``layers`` tries ``attempts`` times."""
    require(layers >= 1, "overload.layers", f"is {layers}", "use 1 or more")
    require(attempts >= 1, "overload.attempts", f"is {attempts}", "use 1 or more")
    return int(attempts**layers)


def budget_bound(budget: float) -> float:
    """Most attempts per request under a retry budget: 1 + ``budget``, a share of the requests."""
    require(budget >= 0, "overload.budget", f"is {budget:g}", "use a share, 0 or more")
    return 1.0 + budget


def metastable_attempts(utilisation: float) -> int:
    """Fewest attempts per request that can keep a fleet down after its trouble is over.

    A fleet that is busy for ``u`` of its capacity is pushed beyond it by ``R`` attempts each once
    ``u x R > 1``; it then fails what it gets, which is tried again. Assumes retries without a
    budget.
    """
    good = 0.0 < utilisation < 1.0
    fix = "use a share above 0 and below 1"
    require(good, "overload.utilisation", f"is {utilisation:g}", fix)
    return floor(1.0 / utilisation) + 1


def exponential_tail(mean: float = 1.0) -> Tail:
    """A function of t: the probability that an exponential time with this mean exceeds t."""
    return lambda t: exp(-t / mean) if t > 0 else 1.0


def lognormal_tail(mu: float = 0.0, sigma: float = 1.0) -> Tail:
    """A function of t: the probability that a lognormal time exceeds t.

    ``mu`` and ``sigma`` are the mean and deviation of its logarithm.
    """

    def tail(t: float) -> float:
        return 0.5 * (1.0 - erf((log(t) - mu) / (sigma * sqrt(2.0)))) if t > 0 else 1.0

    return tail


def lognormal_quantile(quantile: float, mu: float = 0.0, sigma: float = 1.0) -> float:
    """Quantile of lognormal times."""
    return exp(mu + sigma * NormalDist().inv_cdf(quantile))


def hedged_quantile(tail: Tail, delay: float, quantile: float) -> float:
    """Quantile of the time where a second copy is sent after ``delay`` and the first answer counts.

    ``P(T > t) = F(t) x F(t - delay)`` with F the tail of one copy, at ``F(delay)`` more load.
    Assumes that the copies are independent and that neither waits because of the other: out of
    spare capacity.
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
    """Share of requests still slow after a second copy, where ``slow`` of single copies are."""
    _share(slow, "slow")
    return slow * slow


def tail_per_call(tail: float, calls: int) -> float:
    """Share of slow calls allowed, so that of ``calls`` at once all are fast but for ``tail``."""
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
