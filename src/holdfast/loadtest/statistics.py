"""Estimates with their intervals: quantiles, means, shares, rates, and differences of two.

Requests of a benchmark are no independent samples: who waits in a queue waits with neighbours. An
interval that ignores this is too narrow, and calls noise a difference. So every interval here is
that of as many independent samples as the series is worth: its length divided by how far a sample
resembles those after it (the sum of its autocorrelations, cut where they vanish in noise).

    quantile     order statistics: no assumption about the law of latencies
    share, mean  Wilson's interval; a t interval
    difference   from the two single intervals (Zou and Donner), so that skewed ones stay skewed

An end of an interval that the samples cannot tell (the upper end of a p99 of 50 requests) is None.
Rejected: the bootstrap. It needs thousands of sorts and the same care about neighbours, and cannot
look beyond the largest sample either, but does not say so.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from math import comb, exp, floor, fsum, inf, isfinite, lgamma, log, pi, sqrt, tan
from operator import mul
from statistics import NormalDist
from typing import Final

CONFIDENCE: Final = 0.95
_EXACT_MAX: Final = 2_000  # samples; beyond them the normal law is within a rank of the binomial
_LAGS_MAX: Final = 400
_NOISE_Z: Final = 2.0  # an autocorrelation below this many of its own errors is noise
_SAMPLES_MIN: Final = 8  # below, neighbours cannot be told from strangers


@dataclass(slots=True, frozen=True)
class Estimate:
    """A figure with its interval; an end is None where the samples cannot tell it."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    worth: float = 0.0  # as many independent samples

    @property
    def known(self) -> bool:
        """Whether there is a value at all."""
        return self.value is not None

    def scaled(self, factor: float) -> "Estimate":
        """The same figure in another unit; ``factor`` is positive."""
        value, low, high = (
            None if x is None else x * factor for x in (self.value, self.low, self.high)
        )
        return Estimate(value, low, high, self.samples, self.worth)

    def to_dict(self) -> dict[str, float | int | None]:
        """The estimate as plain data."""
        return {"value": self.value, "low": self.low, "high": self.high, "samples": self.samples}


def resemblance(series: Sequence[float]) -> float:
    """How many samples of this series are worth one independent sample: 1 or more.

    The sum of autocorrelations in both directions, up to the first that is within its noise.
    """
    n = len(series)
    if n < _SAMPLES_MIN:
        return 1.0
    mean = fsum(series) / n
    rest = [x - mean for x in series]
    power = fsum(x * x for x in rest)
    if power <= 0:
        return 1.0
    noise = _NOISE_Z / sqrt(n)
    total = 1.0
    for lag in range(1, min(_LAGS_MAX, n // 4) + 1):
        alike = sum(map(mul, rest, islice(rest, lag, None))) / power
        if alike < noise:
            break
        total += 2.0 * alike
    return min(total, n / 2.0)


def quantile(series: Sequence[float], q: float, confidence: float = CONFIDENCE) -> Estimate:
    """A quantile of samples in order of arrival, with the interval of its order statistics."""
    n = len(series)
    if n == 0:
        return Estimate()
    ordered = sorted(series)
    value = ordered[min(n - 1, floor(q * n))]
    # What neighbours share is whether they lie above the quantile; their values do not matter.
    worth = n / resemblance([1.0 if x > value else 0.0 for x in series])
    below, above = _ranks(worth, q, confidence)
    scale = n / worth
    low = None if below is None else ordered[min(n - 1, floor(below * scale))]
    high = None if above is None else ordered[min(n - 1, floor(above * scale))]
    return Estimate(value, low, high, n, worth)


def _ranks(worth: float, q: float, confidence: float) -> tuple[float | None, float | None]:
    """Ranks, of ``worth`` samples, between which the quantile lies; None: beyond the samples."""
    n = max(1, floor(worth))
    tail = (1.0 - confidence) / 2.0
    if n > _EXACT_MAX:
        middle, spread = n * q, _z(confidence) * sqrt(n * q * (1.0 - q))
        low: float | None = middle - spread
        high: float | None = middle + spread
        return (low if low and low >= 0 else None), (high if high and high < n else None)
    cumulated = list(accumulate(_binomial(n, k, q) for k in range(n + 1)))
    # The quantile is at least sample number k+1 with the chance that more than k lie below it.
    first = bisect_left(cumulated, tail)
    last = bisect_left(cumulated, 1.0 - tail)
    below = None if first == 0 and cumulated[0] > tail else float(max(0, first - 1))
    above = None if last >= n else float(last)
    return below, above


def _binomial(n: int, k: int, q: float) -> float:
    if n <= 60:
        return comb(n, k) * q**k * (1.0 - q) ** (n - k)
    return exp(
        lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(q) + (n - k) * log(1.0 - q)
    )


def share(hits: Sequence[bool], confidence: float = CONFIDENCE) -> Estimate:
    """A share of successes in order of arrival, with Wilson's interval."""
    n = len(hits)
    if n == 0:
        return Estimate()
    value = sum(hits) / n
    worth = n / resemblance([float(hit) for hit in hits])
    z = _z(confidence)
    square = z * z / worth
    middle = (value + square / 2.0) / (1.0 + square)
    spread = z * sqrt(value * (1.0 - value) / worth + square / (4.0 * worth)) / (1.0 + square)
    low, high = max(0.0, middle - spread), min(1.0, middle + spread)
    return Estimate(value, min(low, value), max(high, value), n, worth)


def mean(series: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """A mean with its t interval; no interval below two samples' worth."""
    n = len(series)
    if n == 0:
        return Estimate()
    value = fsum(series) / n
    if n < 2:
        return Estimate(value, None, None, n, n)
    worth = n / resemblance(series)
    variance = fsum((x - value) ** 2 for x in series) / (n - 1)
    spread = _student(worth - 1.0, confidence) * sqrt(variance / worth) if worth > 1 else inf
    if not isfinite(spread):
        return Estimate(value, None, None, n, worth)
    return Estimate(value, value - spread, value + spread, n, worth)


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2.0)


def _student(freedom: float, confidence: float) -> float:
    """The two-sided quantile of the t distribution."""
    if freedom < 1:
        return inf
    tail = (1.0 - confidence) / 2.0
    if freedom < 3:  # closed forms; in between, the larger one
        one = tan(pi * (0.5 - tail))
        two = (1.0 - 2.0 * tail) * sqrt(2.0 / (4.0 * tail * (1.0 - tail)))
        return one if freedom < 2 else two
    z, n = _z(confidence), freedom  # Cornish and Fisher's expansion
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def per_second(
    events: Sequence[tuple[float, float]],
    begin: float,
    end: float,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """A rate: amounts at moments, summed per slice of a window, with the interval of the slices.

    ``events`` are (moment, amount). Slices are so many that each holds several events.
    """
    span = end - begin
    inside = sorted((at, amount) for at, amount in events if begin <= at < end)
    if span <= 0:
        return Estimate()
    value = fsum(amount for _, amount in inside) / span
    slices = max(1, min(40, len(inside) // 5))
    if slices < 4:
        return Estimate(value, None, None, len(inside), float(slices))
    moments = [at for at, _ in inside]
    sums = [0.0, *accumulate(amount for _, amount in inside)]
    width = span / slices
    edges = [bisect_left(moments, begin + number * width) for number in range(slices)]
    edges.append(bisect_right(moments, end))
    rates = [(sums[b] - sums[a]) / width for a, b in pairwise(edges)]
    of_slices = mean(rates, confidence)
    if of_slices.low is None or of_slices.high is None:
        return Estimate(value, None, None, len(inside), of_slices.worth)
    half = (of_slices.high - of_slices.low) / 2.0
    return Estimate(value, max(0.0, value - half), value + half, len(inside), of_slices.worth)


def difference(a: Estimate, b: Estimate) -> Estimate:
    """How much ``b`` is more than ``a``, with the interval that follows from both."""
    if a.value is None or b.value is None:
        return Estimate()
    value = b.value - a.value
    samples = min(a.samples, b.samples)
    low = high = None
    if b.low is not None and a.high is not None:
        low = value - sqrt((b.value - b.low) ** 2 + (a.high - a.value) ** 2)
    if b.high is not None and a.low is not None:
        high = value + sqrt((b.high - b.value) ** 2 + (a.value - a.low) ** 2)
    return Estimate(value, low, high, samples, min(a.worth, b.worth))


def ratio(a: Estimate, b: Estimate) -> Estimate:
    """``b`` divided by ``a``, both positive, with the interval that follows from both."""
    if not a.value or not b.value or a.value < 0 or b.value < 0:
        return Estimate()
    told = difference(_logarithm(a), _logarithm(b))
    low, high = (None if end is None else exp(end) for end in (told.low, told.high))
    return Estimate(b.value / a.value, low, high, told.samples, told.worth)


def _logarithm(x: Estimate) -> Estimate:
    value, low, high = (None if y is None or y <= 0 else log(y) for y in (x.value, x.low, x.high))
    return Estimate(value, low, high, x.samples, x.worth)


__all__ = [
    "CONFIDENCE",
    "Estimate",
    "difference",
    "mean",
    "per_second",
    "quantile",
    "ratio",
    "resemblance",
    "share",
]
