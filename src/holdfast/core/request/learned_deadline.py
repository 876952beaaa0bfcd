"""One deadline learned from what a pool delivers, which no single slow replica can spoil.

Until there are enough samples the deadline is wide. Then it is a factor on a far quantile of the
samples of the last minutes. That quantile is the work of very few samples, so one slow replica
alone could teach the pool that slow is normal. Therefore replicas are divided into groups, and the
slowest quarter of the groups is not listened to: a slow replica taints its own group only.

Rejected: the median over the replicas' own p99.9 (each has too few samples for a p99.9, and the
result is far too tight), bounding each replica's share of the samples (one in a thousand is enough
to be the p99.9), and keeping samples for a minute only (too few for a quiet pool, or a hedge).
"""

from math import inf
from typing import Final

from holdfast.core.stats import QuantileSketch
from holdfast.core.types import SECOND, nanos

GROUPS: Final = 8  # replicas share groups when there are more; two of eight are left out
_ACCURACY: Final = 0.05  # far below any factor put on top, and few bins are quick to merge
_REFRESH: Final = SECOND  # how old a cached deadline may be
_MERGE_SAMPLES: Final = 256  # merging costs tens of µs: spread over this many samples …
_MERGE_AFTER: Final = 10 * SECOND  # … or over this time
# What was not seen for two windows of a pool with enough samples is over, such as an overload. The
# tail of few samples is uncertain, so that their largest counts twice.
_WINDOW: Final = 25 * SECOND
_LATELY: Final = 2
_MEDIAN_SAMPLES_MIN: Final = 20  # below that nothing is typical
_ASKED_FOR_MAX: Final = 8  # quantiles kept between merges; when full, all are computed again


class SampleGroup:
    """Samples (ns) of one group of replicas, in an old and a young generation of sketches."""

    __slots__ = ("old", "old_below", "old_total", "young", "young_below", "young_total")

    def __init__(self) -> None:
        self.young = QuantileSketch(_ACCURACY)
        self.young_total = 0  # sum of the samples, for the mean
        self.young_below = 0  # further samples, known only to lie below one that was counted
        self.rotate()

    def rotate(self) -> None:
        """Drop the old generation of samples and make the young one the old."""
        self.old, self.old_total = self.young, self.young_total
        self.young, self.young_total = QuantileSketch(_ACCURACY), 0
        self.old_below, self.young_below = self.young_below, 0

    def count(self) -> int:
        """The number of samples in both generations."""
        return self.young.count + self.young_below + self.old.count + self.old_below

    def mean(self) -> float:
        """The mean of the samples of both generations; there must be one."""
        return (self.young_total + self.old_total) / self.count()


class LearnedDeadline:
    """A deadline (ns) that is wide at first, then a factor times a high quantile of the samples.

    ``deadline`` and ``norm`` are cached: owners compare ``now`` with ``refresh_at`` and call
    ``refresh`` when it has passed. Samples go straight into ``groups[i]`` and are counted in
    ``fresh``.
    """

    __slots__ = (
        "_asked_for",
        "_factor",
        "_floor",
        "_largest_before",
        "_limit",
        "_merged_at",
        "_quantile",
        "_queued",
        "_rotate_after",
        "_rotated_at",
        "_samples_min",
        "_tail",
        "_wide",
        "_window_at",
        "_window_from",
        "attempts",
        "deadline",
        "fresh",
        "groups",
        "heard",
        "largest",
        "median",
        "norm",
        "refresh_at",
        "settled",
        "waiting",
        "waiting_typical",
    )

    def __init__(
        self,
        *,
        wide_s: float,
        floor_s: float,
        limit_s: float,
        factor: float,
        quantile: float,
        samples_min: int,
        forget_s: float,
    ) -> None:
        self._wide = nanos(wide_s)
        self._floor = nanos(floor_s)
        self._limit = nanos(limit_s)
        self._factor = factor
        self._quantile = quantile
        self._samples_min = samples_min
        self._rotate_after = nanos(forget_s) // 2
        self.deadline = 0  # 0 = never asked for
        self._queued = 0  # the same where requests wait in the engine: it forgets slowly
        self.forget()

    def forget(self) -> None:
        """Drop all samples: what was learned is no longer true."""
        self.groups = [SampleGroup() for _ in range(GROUPS)]
        self.heard = QuantileSketch(_ACCURACY)  # the groups that are listened to, merged
        self.fresh = 0  # samples since the last merge
        self.attempts = self.waiting = 0  # how many, and the sum of the queues they met
        self.waiting_typical = inf  # until learned the deadline is wide enough for any queue
        self.norm = self._limit  # what takes no longer is normal
        self.refresh_at = 0
        self._merged_at = self._rotated_at = 0
        self._tail = 0.0
        self.largest = 0  # the largest sample of this window: the first lasts until it is learned
        self._largest_before = 0  # and of the window before; 0: there was none
        self._window_at = self._window_from = 0  # when this one began, and at how many samples
        self.median: int | None = None  # the typical sample, as of the last merge
        self.settled = False  # whether the deadline was learned, as of the last merge
        self._asked_for: dict[float, int | None] = {}  # quantiles since the last merge

    def is_learned(self) -> bool:
        """Whether the last merge had enough samples to use the learned deadline."""
        return self.heard.count >= self._samples_min

    def count(self) -> int:
        """The number of samples in all groups, also those not merged yet."""
        return sum(group.count() for group in self.groups)

    def has_samples(self) -> bool:
        """Whether there is any sample since the start or the last ``forget``."""
        return self.fresh > 0 or self.heard.count > 0

    def refresh(self, now: int, rise: int) -> None:
        """Compute ``deadline`` and ``norm`` anew, times ``rise``, and expire old samples.

        Samples are merged only when many are new, 10 s have passed or they suffice for the first
        time.
        """
        self.refresh_at = now + _REFRESH
        young = 0
        for group in self.groups:
            young += group.young.count + group.young_below
        enough = young >= self._samples_min
        if enough and now - self._rotated_at >= self._rotate_after:
            # Only when the young can stand in: a quiet pool keeps what it knows.
            self._rotated_at = now
            self._window_from = young = 0
            self.attempts, self.waiting = self.attempts // 2, self.waiting // 2
            for group in self.groups:
                group.rotate()
        due = self.fresh >= _MERGE_SAMPLES or now - self._merged_at >= _MERGE_AFTER
        if self.fresh and (due or (enough and not self.is_learned())):
            self._merge(now)
        if young - self._window_from >= self._samples_min and now - self._window_at >= _WINDOW:
            self._largest_before, self.largest = self.largest, 0
            self._window_at, self._window_from = now, young
        base = longest = self._wide
        if self.is_learned():
            base = longest = max(self._floor, int(self._factor * self._tail))
            if self._largest_before:
                lately = max(self.largest, self._largest_before)
                base = max(self._floor, min(base, int(_LATELY * self._factor * lately)))
            self.norm = int(base / self._factor)
            self.waiting_typical = self.waiting / max(1, self.attempts)
        self.deadline = min(base * rise, self._limit)
        self._queued = min(longest * rise, self._limit)

    def scaled(self, waiting: int, scale_max: float) -> int:
        """Return the deadline (ns) for an engine with ``waiting`` requests in its own queue.

        It grows with that over the usual queue, at most ``scale_max`` times, never above the limit.
        """
        scale = (1 + waiting) / (1 + self.waiting_typical)
        return min(int(self._queued * min(scale, scale_max)), self._limit)

    def add_worst(self, group: int, worst: int, count: int) -> None:
        """Add ``count`` samples of which only the largest is known.

        It stands for a little more than its share of the tail, and the others count as zero: they
        lie below it, and only the tail is asked for. For independent samples in lots well below a
        thousand this finds the true p99.9; for longer ones it errs to the patient side.
        """
        tail = int(count * (1.0 - self._quantile)) + 1
        samples = self.groups[group]
        samples.young.add(worst * 1.0, tail)
        if count > tail:
            samples.young_below += count - tail
        samples.young_total += worst * tail
        self.fresh += count

    def quantile(self, q: float, samples_min: int) -> int | None:
        """A quantile of the samples as of the last merge; ``None`` below ``samples_min``."""
        if self.heard.count < samples_min:
            return None
        if q not in self._asked_for:
            if len(self._asked_for) >= _ASKED_FOR_MAX:
                self._asked_for.clear()
            value = self.heard.quantile(q)
            self._asked_for[q] = None if value is None else int(value)
        return self._asked_for[q]

    def _merge(self, now: int) -> None:
        self._merged_at, self.fresh = now, 0
        self._asked_for.clear()
        filled = sorted((group for group in self.groups if group.count()), key=SampleGroup.mean)
        chosen = filled[: -max(1, len(filled) // 4)]
        samples = 0
        for group in chosen:
            samples += group.count()
        self.heard.clear()
        # Too few samples without the slowest groups: better to know from all than not to know.
        for group in chosen if samples >= self._samples_min else filled:
            self.heard.merge(group.young)
            self.heard.merge(group.old)
            below = group.young_below + group.old_below
            if below:
                self.heard.add(0.0, below)
        self._tail = self.heard.quantile(self._quantile) or 0.0
        self.median = self.quantile(0.5, _MEDIAN_SAMPLES_MIN)
        self.settled = self.is_learned()


class DeadlineRise:
    """The factor (``value``) by which all deadlines of one pool are raised while the pool is slow.

    1 while it is not.
    """

    __slots__ = ("_calm", "_calm_since", "_maximum", "_next", "value")

    def __init__(self, maximum: int, calm_s: float) -> None:
        self._maximum = maximum
        self._calm = nanos(calm_s)
        self._calm_since = 0
        self._next = 0
        self.value = 1

    def settle(self, now: int) -> int:
        """Halve the factor once for each calm period since the pool was slow; return it."""
        while self.value > 1 and now - self._calm_since >= self._calm:
            self.value = (self.value + 1) // 2
            self._calm_since += self._calm
        return self.value

    def lift(self, now: int, pause: int, longest: int) -> bool:
        """Double the factor, at most once per ``pause`` (ns).

        ``False`` only if it is at its maximum and a further doubling was due. ``longest`` is the
        longest deadline: calm is counted only after twice that.
        """
        self.settle(now)
        self._calm_since = now + 2 * longest
        if now < self._next:
            return True
        self._next = now + pause
        if self.value >= self._maximum:
            return False
        self.value = min(2 * self.value, self._maximum)
        return True

    def reset(self) -> None:
        """Set the factor back to 1."""
        self.value = 1


__all__ = ["GROUPS", "DeadlineRise", "LearnedDeadline", "SampleGroup"]
