"""Statistics of many samples in bounded space: averages, quantiles, rates and windows.

Each class answers one question: how large is it lately (``Ewma``, ``PeakEwma``), how is it spread
(``QuantileSketch``, ``RecentSketch``, ``Moments``), how often lately (``RateWindow``,
``OutcomeWindow``), how often in a row (``RowCounts``). None reads a clock: ``now`` is integer
nanoseconds, and a ``now`` that goes back is read as "no time has passed". What several gateways
counted can be merged.

Rejected: fixed histogram buckets (their error depends on guessing the range of latencies before
seeing an engine) and reservoirs of samples (they draw random numbers and lose the far tail, which
is the only part a deadline needs).
"""

from collections.abc import Mapping
from math import ceil, exp, isfinite, log, log2, sqrt
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from holdfast.core.types import nanos, require

# ruff: noqa: SLF001 - merging reads the other object's state, which is of the same class

_INFINITE: Final = float("inf")
_SMALLEST: Final = 1e-9  # up to this a sketch counts a zero: no duration or rate is that small
_ZERO_BIN: Final = -(2**62)  # so low that gamma to its power underflows to exactly 0.0


class Ewma:
    """An exponentially weighted mean, in ``value`` (``None`` before the first sample).

    Each sample weighs half as much per half-life of age. Weights count samples, not time, so that
    several samples at one instant all count.
    """

    __slots__ = ("_decay", "_last", "_weight", "value")

    def __init__(self, halflife_s: float) -> None:
        require(halflife_s > 0, "ewma.halflife_s", f"is {halflife_s}", "use a positive half-life")
        self._decay = -log(2.0) / nanos(halflife_s)
        self._last = 0
        self._weight = 0.0
        self.value: float | None = None  # None = no sample yet

    def add(self, value: float, now: int) -> None:
        """Take one sample into the mean, at time ``now`` (ns).

        ``ValueError`` if it is not finite.
        """
        _require_finite(value)
        known = self.value
        if known is None:
            self.value, self._weight, self._last = float(value), 1.0, now
            return
        if now > self._last:
            self._weight *= exp((now - self._last) * self._decay)
            self._last = now
        self._weight += 1.0
        self.value = known + (value - known) / self._weight


class PeakEwma:
    """A level, in ``value``, that rises to a larger sample at once and comes down slowly.

    ``None`` before the first sample. It falls only when a smaller sample comes, by the time passed
    since the last one.
    """

    __slots__ = ("_decay", "_last", "value")

    def __init__(self, decay_s: float = 10.0) -> None:
        require(decay_s > 0, "peak_ewma.decay_s", f"is {decay_s}", "use a positive time constant")
        self._decay = -1.0 / nanos(decay_s)
        self._last = 0
        self.value: float | None = None  # None = unknown: neither fast nor slow

    def observe(self, value: float, now: int) -> None:
        """Rise to a larger sample at once, or move towards a smaller one with the time passed."""
        known = self.value
        elapsed = now - self._last
        if elapsed > 0:
            self._last = now
            if known is not None and value < known:
                value += (known - value) * exp(elapsed * self._decay)
            self.value = value
        elif known is None or value > known:
            self.value = value

    def penalise(self, floor: float, now: int) -> None:
        """Raise the level to at least ``floor``, also where none is known yet; never lowers it."""
        known = self.value
        if known is None or floor > known:
            self.value = floor
            self._last = max(self._last, now)


class _Range:
    """The smallest and the largest sample so far; ``None`` before the first."""

    __slots__ = ("_high", "_low")
    _high: float
    _low: float

    @property
    def minimum(self) -> float | None:
        return None if self._low > self._high else self._low

    @property
    def maximum(self) -> float | None:
        return None if self._low > self._high else self._high


class QuantileSketch(_Range):
    """Quantiles within a relative error, by counting samples in bins of growing width.

    When more than ``bins_max`` bins are open the lowest eighth is folded into the next one up:
    the error of the low quantiles grows, that of the high ones, which deadlines use, does not.
    Negative samples count as zero: a duration below zero is a clock that stepped.
    """

    __slots__ = ("_bins", "_gamma", "_scale", "bins_max", "count", "relative_accuracy")

    def __init__(self, relative_accuracy: float = 0.01, bins_max: int = 2048) -> None:
        field, problem = "sketch.relative_accuracy", f"is {relative_accuracy}"
        require(0 < relative_accuracy < 1, field, problem, "use a share between 0 and 1")
        require(bins_max >= 2, "sketch.bins_max", f"is {bins_max}", "use at least 2")
        self.relative_accuracy = relative_accuracy
        self.bins_max = bins_max
        self._gamma = (1 + relative_accuracy) / (1 - relative_accuracy)
        self._scale = 1.0 / log2(self._gamma)
        self.clear()

    def clear(self) -> None:
        """Forget every sample: count 0, no minimum, maximum or quantile."""
        self._bins: dict[int, int] = {}  # bin i holds the samples in (gamma^(i-1), gamma^i]
        self.count = 0
        self._low, self._high = _INFINITE, -_INFINITE

    def add(self, value: float, count: int = 1) -> None:
        """Count ``value``, ``count`` times; ``ValueError`` if it is not finite.

        A negative value counts as zero.
        """
        if _SMALLEST < value < _INFINITE:
            index = ceil(log2(value) * self._scale)  # log2: a third of the time of log
        else:
            if not value < _INFINITE or value == -_INFINITE:
                raise ValueError(f"a sample must be a finite number, not {value}")
            value = 0.0
            index = _ZERO_BIN
        if index in self._bins:
            self._bins[index] += count
        else:
            self._open(index, count)
        self.count += count
        if value > self._high:  # noqa: PLR1730 - max() costs three times as much here
            self._high = value
        if value < self._low:  # noqa: PLR1730
            self._low = value

    def quantile(self, q: float) -> float | None:
        """The value that a share ``q`` of the samples does not exceed; ``None`` without samples.

        Raises ``ValueError`` for a ``q`` outside 0 to 1. O(bins log bins): cache it on a hot path.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
        if self.count == 0:
            return None
        rank = q * self.count
        below = self.count
        for index in sorted(self._bins, reverse=True):  # from the top: tails are asked for most
            below -= self._bins[index]
            if below < rank:
                break
        # From the bin's lower edge, which is a float whenever one of its samples was.
        middle = self._gamma ** (index - 1) * 2.0 * self._gamma / (self._gamma + 1.0)
        return min(max(middle, self._low), self._high)

    def merge(self, other: "QuantileSketch") -> None:
        """Add the samples of another sketch; ``other`` is unchanged.

        Raises ``ValueError`` if its relative accuracy differs.
        """
        if other.relative_accuracy != self.relative_accuracy:
            raise ValueError(
                f"cannot merge a sketch of accuracy {other.relative_accuracy} into one of "
                f"{self.relative_accuracy}; build both with the same accuracy"
            )
        for index, count in tuple(other._bins.items()):
            if index in self._bins:
                self._bins[index] += count
            else:
                self._open(index, count)
        self.count += other.count
        self._low = min(self._low, other._low)
        self._high = max(self._high, other._high)

    def to_dict(self) -> dict[str, object]:
        """Return the sketch as plain data for JSON: settings, count, range and bins, no samples.

        ``from_dict`` makes an equal sketch of it.
        """
        return {
            "relative_accuracy": self.relative_accuracy,
            "bins_max": self.bins_max,
            "count": self.count,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "bins": [[index, self._bins[index]] for index in sorted(self._bins)],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a sketch from the data that ``to_dict`` returned."""
        sketch = cls(data["relative_accuracy"], data["bins_max"])
        for index, count in data["bins"]:
            sketch._open(index, count)
        sketch.count = data["count"]
        if sketch.count:
            sketch._low, sketch._high = data["minimum"], data["maximum"]
        return sketch

    def _open(self, index: int, count: int) -> None:
        self._bins[index] = count
        if len(self._bins) > self.bins_max:
            # An eighth at once, so that a stream of ever new values does not sort on each one.
            lowest = sorted(self._bins)[: max(1, self.bins_max // 8) + 1]
            for folded in lowest[:-1]:
                self._bins[lowest[-1]] += self._bins.pop(folded)


class RecentSketch:
    """Quantiles of the samples of about the last ``span_s`` (half of it to all of it).

    Two sketches take turns, each for half of the span, so no sample has a time of its own.
    """

    __slots__ = ("_half", "_old", "_turn_at", "_young")

    def __init__(self, span_s: float, relative_accuracy: float = 0.05, bins_max: int = 256) -> None:
        require(span_s > 0, "recent_sketch.span_s", f"is {span_s}", "use a positive span")
        self._half = max(1, nanos(span_s) // 2)
        self._young = QuantileSketch(relative_accuracy, bins_max)
        self._old = QuantileSketch(relative_accuracy, bins_max)
        self._turn_at = 0

    def add(self, value: float, now: int) -> None:
        """Count a sample at ``now`` (ns); ``ValueError`` if it is not finite."""
        if now >= self._turn_at:
            self._turn(now)
        self._young.add(value)

    def quantile(self, q: float, now: int, samples_min: int = 1) -> float | None:
        """Return the ``q`` quantile of the recent samples; ``None`` if fewer than ``samples_min``.

        Raises ``ValueError`` for a ``q`` outside 0 to 1. Merges both sketches each time: cache it
        on a hot path.
        """
        if now >= self._turn_at:
            self._turn(now)
        if self._young.count + self._old.count < samples_min:
            return None
        both = QuantileSketch(self._young.relative_accuracy, self._young.bins_max)
        both.merge(self._young)
        both.merge(self._old)
        return both.quantile(q)

    def _turn(self, now: int) -> None:
        self._turn_at += self._half
        if now >= self._turn_at:  # nobody came for long: what is young is old, too
            self._young.clear()
            self._turn_at = now + self._half
        self._old.clear()
        self._young, self._old = self._old, self._young


class Moments(_Range):
    """Count, mean, variance and range of all samples since it was made, by Welford's method.

    No sample is kept and none is forgotten; ``mean`` is 0 before the first.
    """

    __slots__ = ("_squares", "count", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0  # sum of squared distances from the mean
        self._low, self._high = _INFINITE, -_INFINITE

    def add(self, value: float) -> None:
        """Take one sample into the figures; ``ValueError`` if it is not finite."""
        _require_finite(value)
        self.count += 1
        distance = value - self.mean
        self.mean += distance / self.count
        self._squares += distance * (value - self.mean)
        self._low = min(self._low, value)
        self._high = max(self._high, value)

    def merge(self, other: "Moments") -> None:
        """Add the samples of another, as if all had come here; ``other`` is unchanged."""
        if other.count == 0:
            return
        count = self.count + other.count
        distance = other.mean - self.mean
        self._squares += other._squares + distance * distance * self.count * other.count / count
        self.mean += distance * other.count / count
        self.count = count
        self._low = min(self._low, other._low)
        self._high = max(self._high, other._high)

    @property
    def variance(self) -> float | None:
        """Unbiased sample variance; ``None`` below two samples, where it says nothing."""
        return None if self.count < 2 else self._squares / (self.count - 1)

    @property
    def sd(self) -> float | None:
        """Standard deviation, in the unit of the samples; ``None`` below two samples."""
        variance = self.variance
        return None if variance is None else sqrt(variance)


class RateWindow:
    """The number of events in the last ``span_s``, in buckets that expire one at a time.

    The oldest bucket leaves whole, so the total covers between ``span - span/buckets`` and
    ``span``: it never counts anything older than the span.
    """

    __slots__ = ("_buckets", "_counts", "_end", "_slot", "_tick", "_total", "_width")

    def __init__(self, span_s: float, buckets: int = 10) -> None:
        require(span_s > 0, "rate_window.span_s", f"is {span_s}", "use a positive span")
        require(buckets >= 1, "rate_window.buckets", f"is {buckets}", "use at least one bucket")
        self._width = max(1, nanos(span_s) // buckets)
        self._buckets = buckets
        self._counts = [0] * buckets
        self._tick = 0  # number of the current bucket since time zero
        self._slot = 0  # its place in the ring: tick % buckets
        self._end = self._width  # when it closes
        self._total = 0

    def add(self, now: int, n: int = 1) -> None:
        """Count ``n`` events at ``now`` (ns)."""
        if now >= self._end:
            self._advance(now // self._width)
        self._counts[self._slot] += n
        self._total += n

    def total(self, now: int) -> int:
        """Return how many events were counted in the span that ends at ``now`` (no rate)."""
        if now >= self._end:
            self._advance(now // self._width)
        return self._total

    def merge(self, other: "RateWindow") -> None:
        """Add the counts of another window, each to its own time; ``other`` is unchanged.

        Raises ``ValueError`` if its span or number of buckets differs.
        """
        if (other._width, other._buckets) != (self._width, self._buckets):
            raise ValueError("cannot merge rate windows of different span or buckets")
        if other._tick > self._tick:
            self._advance(other._tick)
        for tick in range(other._tick - self._buckets + 1, other._tick + 1):
            if tick > self._tick - self._buckets:
                slot = tick % self._buckets
                self._counts[slot] += other._counts[slot]
                self._total += other._counts[slot]

    def _advance(self, tick: int) -> None:
        for expired in range(max(self._tick, tick - self._buckets) + 1, tick + 1):
            slot = expired % self._buckets
            self._total -= self._counts[slot]
            self._counts[slot] = 0
        self._tick = tick
        self._slot = tick % self._buckets
        self._end = (tick + 1) * self._width


class OutcomeWindow:
    """The last ``size`` outcomes, failed or not, whatever their age; a new one replaces the oldest.

    ``count`` and ``failures`` are of those held; ``added`` counts all since the last ``clear`` and
    so is the number of the next outcome.
    """

    __slots__ = ("_ring", "added", "count", "failures", "size")

    def __init__(self, size: int) -> None:
        require(size >= 1, "outcome_window.size", f"is {size}", "use at least one outcome")
        self.size = size
        self._ring = bytearray(size)
        self.added = self.count = self.failures = 0

    def add(self, failed: bool) -> None:
        """Remember one outcome; where ``size`` are held it replaces the oldest."""
        at = self.added % self.size
        ring = self._ring
        self.failures += failed - ring[at]  # a slot never used holds 0
        ring[at] = failed
        if self.count < self.size:
            self.count += 1
        self.added += 1

    def take_back(self, number: int) -> None:
        """Count the failure with this number as none, if it is still held.

        Its number is what ``added`` was when it came.
        """
        if 0 <= self.added - number - 1 < self.count:
            slot = number % self.size
            self.failures -= self._ring[slot]
            self._ring[slot] = 0

    def clear(self) -> None:
        """Forget all outcomes and set ``added`` to 0."""
        self._ring = bytearray(self.size)
        self.added = self.count = self.failures = 0


OutcomeT = TypeVar("OutcomeT")
RowT = TypeVar("RowT")


class RowRule(NamedTuple, Generic[RowT]):
    """What one outcome does to rows of equal outcomes: which it lengthens, and which it ends."""

    lengthens: tuple[RowT, ...] = ()
    ends: tuple[RowT, ...] = ()


class RowCounts(Generic[OutcomeT, RowT]):
    """How many equal outcomes came in a row, for several named rows; ``counts[row]`` is 0 for none.

    The table it is made with says which rows each outcome lengthens and ends; an outcome that is
    not in the table changes nothing.
    """

    __slots__ = ("_rules", "lengths")

    def __init__(self, rules: Mapping[OutcomeT, RowRule[RowT]]) -> None:
        self._rules = rules
        self.lengths: dict[RowT, int] = {}  # of rows that have begun

    def __getitem__(self, row: RowT) -> int:
        return self.lengths.get(row, 0)

    def count(self, outcome: OutcomeT) -> None:
        """Lengthen and end the rows that the table names for this outcome."""
        rule = self._rules.get(outcome)
        if rule is not None:
            self.end(*rule.ends)
            for row in rule.lengthens:
                self.lengths[row] = self[row] + 1

    def end(self, *rows: RowT) -> None:
        """Set the lengths of these rows to 0."""
        for row in rows:
            self.lengths.pop(row, None)


def _require_finite(value: float) -> None:
    if not isfinite(value):
        raise ValueError(f"a sample must be a finite number, not {value}")


__all__ = [
    "Ewma",
    "Moments",
    "OutcomeWindow",
    "PeakEwma",
    "QuantileSketch",
    "RateWindow",
    "RecentSketch",
    "RowCounts",
    "RowRule",
]
