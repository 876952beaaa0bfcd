"""What was measured of a fleet's requests, as a client or a gateway sees them.

Only what anybody outside of an engine can know: when a request arrived, how many tokens it and its
answer had, when the first and the last token came, and which replica sent them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.core.types import SECOND, require
from holdfast.sim.results import quantiles

_WAIT_STEPS = 3.0  # longer than the steps in which a request is admitted and read anyway
_WAITED_MIN = 3  # requests; one may have waited for something else
METRICS = ("first_token_s", "per_token_s", "latency_s")


@dataclass(slots=True, frozen=True)
class MeasuredRequest:
    """One answered request; times are seconds of one clock."""

    arrived_s: float
    prompt: int  # tokens
    output: int  # tokens
    first_s: float
    last_s: float
    replica: str
    counted: bool = True  # False: it only loads the replica, such as a request of a warm-up

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            value = getattr(self, name)
            require(value >= 1, f"request.{name}", f"is {value} tokens", "use 1 or more")
        ordered = self.arrived_s <= self.first_s <= self.last_s
        problem = f"arrived {self.arrived_s:g}, first {self.first_s:g}, last {self.last_s:g} s"
        require(ordered, "request", f"has times out of order ({problem})", "leave it out")

    @property
    def times(self) -> "Times":
        """First token, time per token and whole answer, in seconds."""
        return times_of(self.arrived_s, self.first_s, self.last_s, self.output)


@dataclass(slots=True, frozen=True)
class Times:
    """How long one request took: to its first token, for each further one, and in all."""

    first_token_s: float
    per_token_s: float | None  # None for an answer of one token
    latency_s: float


def times_of(arrived_s: float, first_s: float, last_s: float, output: int) -> Times:
    """The times of a request from its arrival, its first and its last token."""
    per_token = (last_s - first_s) / (output - 1) if output > 1 else None
    return Times(first_s - arrived_s, per_token, last_s - arrived_s)


def summary(times: Sequence[Times]) -> dict[str, dict[str, float | None]]:
    """Mean and quantiles of each time."""
    rows = {}
    for name in METRICS:
        values = [getattr(one, name) for one in times]
        rows[name] = quantiles([value for value in values if value is not None])
    return rows


def relative_errors(
    predicted: dict[str, dict[str, float | None]], real: dict[str, dict[str, float | None]]
) -> dict[str, dict[str, float | None]]:
    """Predicted over real, less one, of every figure; None where one of them is unknown."""
    rows: dict[str, dict[str, float | None]] = {}
    for name, figures in real.items():
        rows[name] = {}
        for figure, value in figures.items():
            other = predicted[name][figure]
            known = value is not None and other is not None and value > 0
            rows[name][figure] = other / value - 1.0 if known and value and other else None
    return rows


@dataclass(slots=True, frozen=True)
class LoadSeen:
    """How full replicas were during a measurement: what a fit of it can know."""

    batch_most: int  # answers under way at once, on one replica
    waited_at_most: bool  # somebody waited while a replica had that many
    tokens_most: int  # of prompts and answers, held at once by one replica


def load_seen(requests: Sequence[MeasuredRequest]) -> LoadSeen:
    """The most that one replica had under way, and whether requests waited for it then."""
    most, tokens_most, waited = 0, 0, False
    for replica in dict.fromkeys(one.replica for one in requests):
        mine = [one for one in requests if one.replica == replica]
        edges = sorted(
            [(one.first_s, 1, one) for one in mine] + [(one.last_s, 0, one) for one in mine],
            key=lambda edge: (edge[0], edge[1]),
        )
        running = held = 0
        peaks: list[tuple[float, float, int]] = []
        for (time, kind, one), (after, _, _) in pairwise([*edges, (edges[-1][0], 0, edges[-1][2])]):
            running += 1 if kind else -1
            held += (one.prompt + one.output) * (1 if kind else -1)
            tokens_most = max(tokens_most, held)
            peaks.append((time, after, running))
        highest = max(peak[2] for peak in peaks)
        if highest < most:
            continue
        waited = waited and highest == most
        most = highest
        paces = sorted(one.times.per_token_s or 0.0 for one in mine)
        long = _WAIT_STEPS * paces[len(paces) // 2]
        full = [
            (start, end)
            for start, end, running in peaks
            if running == highest and end - start > long
        ]
        # Whoever came before the replica was full for some steps, and had no token after them.
        queued = [
            one
            for one in mine
            if any(one.arrived_s < start and end < one.first_s for start, end in full)
        ]
        waited = waited or len(queued) >= _WAITED_MIN
    return LoadSeen(most, waited, tokens_most)


def spans(requests: Sequence[MeasuredRequest]) -> float:
    """Seconds from the first arrival to the last."""
    arrivals = [one.arrived_s for one in requests]
    return max(arrivals) - min(arrivals)


def as_nanos(second: float) -> int:
    """Whole nanoseconds of a time in seconds."""
    return round(second * SECOND)


__all__ = [
    "METRICS",
    "LoadSeen",
    "MeasuredRequest",
    "Times",
    "as_nanos",
    "load_seen",
    "relative_errors",
    "spans",
    "summary",
    "times_of",
]
