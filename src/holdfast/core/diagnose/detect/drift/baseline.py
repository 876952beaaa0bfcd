"""Learns how a model's healthy answers are distributed, and ranks later values in that.

A baseline is learned once from a window of answers, frozen and versioned; only its quantiles stay.
A ruler places later values in it: by rank, as a normal score, by its distance from the middle, and
by decile.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, sqrt
from statistics import NormalDist
from typing import Any, Final

from holdfast.core.stats import Moments
from holdfast.core.types import SECOND, require

KEPT_MAX: Final = 16_384  # values of a baseline while it is learned: 128 KiB
BINS: Final = 10  # of PSI
FIRST_VERSION: Final = 1  # kept in stores: a baseline that is learned anew would count on
_GRID: Final = 512  # quantiles that stay of it
_PRECISE: Final = 4_096  # samples whose mean is within 0.016 sigma: no error worth a word
_DAY: Final = 86_400 * SECOND
LATEST_MAX: Final = 256  # values of one replica and statistic that are kept as they came: 2 KiB


@dataclass(slots=True, frozen=True)
class Baseline:
    """The frozen distribution of one statistic of one model and revision's healthy answers.

    A record in the unit of that statistic. Checked when built: raises ``ConfigError``.
    """

    model: str
    revision: str
    statistic: str
    version: int  # of this baseline: 1 is the first that was learned
    samples: int
    samples_per_day: float  # of one replica
    mean: float
    sd: float
    p95: float
    grid: tuple[float, ...]  # quantiles, evenly spaced

    def __post_init__(self) -> None:
        ordered = len(self.grid) >= 2 and all(a <= b for a, b in pairwise(self.grid))
        fix = "restore what baselines() gave"
        require(ordered, "baseline.grid", "is not two or more values in order", fix)
        numbers = (self.mean, self.sd, self.p95, self.samples_per_day, *self.grid)
        finite = all(isfinite(number) for number in numbers)
        require(finite, "baseline", "holds a number that is not finite", fix)
        require(self.samples > 0, "baseline.samples", f"is {self.samples}", fix)

    @property
    def two_sigma(self) -> tuple[float, float]:
        """Mean minus and plus two standard deviations, for texts and charts; decides nothing."""
        return self.mean - 2 * self.sd, self.mean + 2 * self.sd

    def plain(self) -> dict[str, Any]:
        """Return the members as a JSON-ready dict; its values rebuild the same ``Baseline``."""
        return {name: getattr(self, name) for name in self.__slots__} | {"grid": list(self.grid)}


Key = tuple[str, str, str]  # model, revision, statistic


class Learning:
    """Collects values for one new baseline: counts all, keeps up to 16,384 evenly spaced ones.

    One object for all replicas of a model and revision; never freezes by itself.
    """

    __slots__ = ("_kept", "_skip", "_stride", "began", "moments", "replicas")

    def __init__(self, now: int) -> None:
        self.began = now
        self.moments = Moments()
        self.replicas: set[str] = set()
        self._kept = array("d")
        self._stride = self._skip = 1

    def add(self, value: float) -> None:
        """Add one value of an answer; it is always counted, and kept only if its turn comes."""
        self.moments.add(value)
        self._skip -= 1
        if self._skip:
            return
        self._kept.append(value)
        if len(self._kept) > KEPT_MAX:  # every second one goes: no chance, and all hours stay
            self._kept = self._kept[::2]
            self._stride *= 2
        self._skip = self._stride

    def freeze(self, key: Key, now: int, version: int = FIRST_VERSION) -> Baseline:
        """Return a ``Baseline`` of the values so far, and leave them as they are.

        At least one value and one member of ``replicas`` are needed.
        """
        days = max(now - self.began, SECOND) / _DAY
        per_day = self.moments.count / days / len(self.replicas)
        return _frozen(key, version, per_day, self.moments, self._kept)


def accepted(key: Key, before: Baseline, values: Sequence[float]) -> Baseline:
    """Return the next version of a baseline, made of these values alone; changes nothing."""
    moments = Moments()
    for value in values:
        moments.add(value)
    return _frozen(key, before.version + 1, before.samples_per_day, moments, values)


def p95_of(values: Sequence[float]) -> float | None:
    """Return the 95th percentile of these values; None where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)] if ordered else None


def _frozen(
    key: Key, version: int, per_day: float, moments: Moments, values: Sequence[float]
) -> Baseline:
    kept = sorted(values)
    count = len(kept)
    points = min(_GRID, count)
    grid = (kept[(2 * point + 1) * count // (2 * points)] for point in range(points))
    return Baseline(
        *key,
        version=version,
        samples=moments.count,
        samples_per_day=per_day,
        mean=moments.mean,
        sd=moments.sd or 0.0,
        p95=p95_of(kept) or 0.0,
        grid=tuple(grid),
    )


class Latest:
    """The latest 256 values of one statistic of one replica, the oldest overwritten first."""

    __slots__ = ("_at", "_values")

    def __init__(self) -> None:
        self._values = array("d")
        self._at = 0

    def add(self, value: float) -> None:
        """Add one value, over the oldest one if there are 256."""
        if len(self._values) < LATEST_MAX:
            self._values.append(value)
            return
        self._values[self._at] = value
        self._at = (self._at + 1) % LATEST_MAX

    def values(self) -> Sequence[float]:
        """Return the values themselves, not a copy, in no order."""
        return self._values


class Ruler:
    """Ranks later values in one frozen baseline, and holds its CUSUM slack and threshold.

    Computed once for a baseline; keeps none of the values.
    """

    __slots__ = (
        "_deciles",
        "_grid",
        "_scores",
        "_spreads",
        "baseline",
        "shares",
        "slack",
        "told_at",
    )

    def __init__(self, baseline: Baseline, slack: float, told_at: float) -> None:
        """Half of the shift to find, and where a sum beyond it is told; both in sigma."""
        self.baseline = baseline
        self._grid = baseline.grid
        points = len(self._grid)
        # Ranks in halves: a value between two points has an odd place, one that equals some the
        # middle of them, so that ties at a bound do not pull.
        scores = [
            NormalDist().inv_cdf(min(max(half / 2, 0.25), points - 0.25) / points)
            for half in range(2 * points + 1)
        ]
        own = Moments()
        for value in self._grid:
            own.add(scores[self._rank(value)])
        sd = max(own.sd or 0.0, 0.5)  # values that hardly differ are not blown up to one sigma
        self._scores = [(score - own.mean) / sd for score in scores]
        self._spreads = self._distances()
        self._deciles = [min(BINS - 1, rank * BINS // (2 * points)) for rank in range(len(scores))]
        self.shares = [0.5] * BINS
        for value in self._grid:
            self.shares[self._deciles[self._rank(value)]] += 1
        self.shares = [share / (points + 0.5 * BINS) for share in self.shares]
        # The mean of a small baseline is off by its own error: shifts below that are no news.
        error = 1 / sqrt(min(baseline.samples, _PRECISE)) - 1 / sqrt(_PRECISE)
        self.slack = slack + 1.2 * error
        self.told_at = told_at

    def _distances(self) -> list[float]:
        """How far each rank is from the middle, as a score: zero mean and one sigma at home."""
        own = Moments()
        for value in self._grid:
            own.add(abs(self._scores[self._rank(value)]))
        sd = max(own.sd or 0.0, 0.3)  # of a normal distribution 0.6
        return [(abs(score) - own.mean) / sd for score in self._scores]

    def _rank(self, value: float) -> int:
        return bisect_left(self._grid, value) + bisect_right(self._grid, value)

    def place(self, value: float) -> tuple[float, float, int]:
        """Return (normal score, distance from the middle as a score, decile from 0) of a value."""
        rank = self._rank(value)
        return self._scores[rank], self._spreads[rank], self._deciles[rank]


__all__ = [
    "BINS",
    "FIRST_VERSION",
    "KEPT_MAX",
    "LATEST_MAX",
    "Baseline",
    "Key",
    "Latest",
    "Learning",
    "Ruler",
    "accepted",
    "p95_of",
]
