"""What a gateway counts, in plain dictionaries: an addition costs a tenth of a microsecond.

Labels come from the config or from fixed sets, never from a request, so there are at most a few
hundred series; the bound is there all the same. Control adds up those of all gateways and renders
them, so that no scrape ever stops a request.
"""

from bisect import bisect_left
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish
from holdfast.core.types import MILLISECOND, SECOND

SERIES_MAX: Final = 4_096  # distinct names with labels; further ones are counted as overflow
_BOUNDS_MS: Final = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 600_000)
_BOUNDS: Final = tuple(bound * MILLISECOND for bound in _BOUNDS_MS)


class Counters:
    """Counts since the start, by Prometheus name with labels."""

    __slots__ = ("_attempts", "_finished", "values")

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._attempts: dict[tuple[str, Kind | None], int] = {}
        # By model and status: how many in each bucket of duration, and the time of all.
        self._finished: dict[tuple[str, int], list[int]] = {}

    def attempt(self, replica_id: str, kind: Kind | None) -> None:
        """An attempt ended."""
        key = (replica_id, kind)
        self._attempts[key] = self._attempts.get(key, 0) + 1

    def finished(self, finish: Finish, took: int) -> None:
        """A request ended."""
        key = (finish.model, finish.status)
        buckets = self._finished.get(key)
        if buckets is None:
            buckets = self._finished[key] = [0] * (len(_BOUNDS) + 2)
        buckets[bisect_left(_BOUNDS, took)] += 1
        buckets[-1] += took
        if finish.attempts != 1:
            self._count_attempts(finish)

    def _count_attempts(self, finish: Finish) -> None:
        if finish.continued:
            self.add(f'continuations_total{{model="{finish.model}"}}', finish.continued)
        extra = finish.attempts - 1 - finish.continued
        if extra > 0:
            self.add(f'extra_attempts_total{{model="{finish.model}"}}', extra)

    def refused(self, status: int, code: str) -> None:
        """A request was refused before the flow saw it."""
        self.add(f'refused_total{{status="{status}",code="{code}"}}')

    def escalated(self, model: str, check: str) -> None:
        """A cheap answer failed a check and the strong model was asked."""
        self.add(f'escalations_total{{model="{model}",check="{check}"}}')

    def compared(self, model: str, result: str) -> None:
        """A second replica was asked: agreed, disagreed, or unanswered."""
        self.add(f'comparisons_total{{model="{model}",result="{result}"}}')

    def add(self, name: str, amount: float = 1) -> None:
        """Count anything else; labels must come from a small set."""
        if name not in self.values and len(self.values) >= SERIES_MAX:
            name = "series_overflow_total"
        self.values[name] = self.values.get(name, 0) + amount

    def read(self) -> dict[str, int | float]:
        """All of it, for control."""
        told: dict[str, int | float] = dict(self.values)
        for (replica_id, kind), count in self._attempts.items():
            outcome = "ok" if kind is None else kind.value
            told[f'attempts_total{{replica="{replica_id}",kind="{outcome}"}}'] = count
        durations: dict[str, list[int]] = {}
        for (model, status), buckets in self._finished.items():
            told[f'requests_total{{model="{model}",status="{status}"}}'] = sum(buckets[:-1])
            before = durations.get(model, [0] * len(buckets))
            durations[model] = [a + b for a, b in zip(before, buckets, strict=True)]
        for model, buckets in durations.items():
            total = 0
            ends = [str(bound / SECOND) for bound in _BOUNDS]
            for end, count in zip([*ends, "+Inf"], buckets, strict=False):
                total += count
                told[f'request_seconds_bucket{{model="{model}",le="{end}"}}'] = total
            told[f'request_seconds_count{{model="{model}"}}'] = total
            told[f'request_seconds_sum{{model="{model}"}}'] = buckets[-1] / SECOND
        return told


__all__ = ["SERIES_MAX", "Counters"]
