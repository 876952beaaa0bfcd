"""Which loads a benchmark holds, one after the other: fixed ones, or a search for the knee.

The search doubles the load until it no longer helps, then halves the distance between the last
good load and the first bad one, on a scale of ratios. A load is *good* while nine of ten answers
meet the objective. Where no objective is set, it is good while throughput still follows the load.

It decides only; ``benchmark`` holds the loads and tells what came of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Literal

from holdfast.core.types import ConfigError, require
from holdfast.loadtest.summary import ServiceObjective, StepSummary

Unit = Literal["rate", "users"]


@dataclass(slots=True, frozen=True)
class SweepConfig:
    """When a load is good, and when a sweep ends."""

    good_share_min: float = 0.9  # of answers within the objective; the usual meaning of goodput
    fallen_share: float = 0.9  # goodput below this share of the best so far has fallen
    # A load twice as high that brings less than a tenth more is past the knee: queues grow instead.
    gain_min: float = 0.1
    growth: float = 2.0  # from one load to the next
    refinements: int = 2  # halvings at the knee: within a fifth of it
    steps_max: int = 16  # an end, whatever the answers

    def __post_init__(self) -> None:
        inside = 0 < self.good_share_min <= 1
        require(inside, "sweep.good_share_min", f"is {self.good_share_min}", "use 0 to 1")
        require(self.growth > 1, "sweep.growth", f"is {self.growth}", "use more than 1")
        require(self.steps_max >= 1, "sweep.steps_max", f"is {self.steps_max}", "use 1 or more")
        require(self.refinements >= 0, "sweep.refinements", "is negative", "use 0 or more")


@dataclass(slots=True, frozen=True)
class SweepRange:
    """The loads of a sweep: a range to search, or a list to hold."""

    unit: Unit
    low: float
    high: float
    listed: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "SweepRange":
        """Read ``rate=1..64`` (a search) or ``users=1,2,4,8`` (a list)."""
        fix = "write --sweep rate=1..64, or --sweep users=1,2,4,8"
        unit, equals, rest = text.partition("=")
        require(bool(equals) and unit in {"rate", "users"}, "--sweep", f"is {text!r}", fix)
        ranged = ".." in rest
        try:
            numbers = [float(part) for part in (rest.split("..") if ranged else rest.split(","))]
        except ValueError as error:
            raise ConfigError("--sweep", f"is {text!r}", fix) from error
        require(all(0 < x < 1e6 for x in numbers), "--sweep", f"is {text!r}", fix)
        rising = all(a < b for a, b in pairwise(numbers))
        require(rising, "--sweep", f"is {text!r}: loads must rise", fix)
        require(not ranged or len(numbers) == 2, "--sweep", f"is {text!r}", fix)
        whole = unit == "rate" or all(x == int(x) for x in numbers)
        require(whole, "--sweep", f"is {text!r}: users are whole", fix)
        kind: Unit = "rate" if unit == "rate" else "users"
        return cls(kind, numbers[0], numbers[-1], () if ranged else tuple(numbers))


@dataclass(slots=True, frozen=True)
class SweepPoint:
    """What came of one load of a sweep."""

    load: float
    good: bool
    goodput: float | None  # None: the step was refused
    refused: bool = False


class KneeSearch:
    """Chooses the loads of a sweep; told each result, it says the next load or that it is over."""

    def __init__(
        self, span: SweepRange, objective: ServiceObjective, config: SweepConfig | None = None
    ) -> None:
        self._span = span
        self._config = config or SweepConfig()
        self._by_objective = bool(objective.to_dict())
        self.points: list[SweepPoint] = []
        self.why_ended = ""
        self._refined = 0
        self._loads = self._next_loads()

    def next_load(self) -> float | None:
        """The load to hold now; None: the sweep is over."""
        return next(self._loads, None)

    def saw(self, load: float, summary: StepSummary) -> None:
        """Take the result of the load that ``next_load`` named."""
        if summary.step.refused:
            self.points.append(SweepPoint(load, good=False, goodput=None, refused=True))
            return
        goodput = summary.goodput_s.value or 0.0
        lower = [p.goodput for p in self.points if p.goodput is not None and p.load < load]
        good = goodput >= self._config.fallen_share * max(lower, default=0.0)
        if self._by_objective:
            good = good and (summary.good_share.value or 0.0) >= self._config.good_share_min
        else:
            good = good and self._follows(load, summary)
        self.points.append(SweepPoint(load, good=good, goodput=goodput))

    def _follows(self, load: float, summary: StepSummary) -> bool:
        """Whether throughput still follows the load: without an objective nothing else tells."""
        if self._span.unit == "rate":
            # Of the arrivals that there were: at low rates chance alone makes them fewer.
            ended = summary.requests_s.value or 0.0
            return ended >= self._config.fallen_share * summary.offered_s
        before = [p for p in self.points if p.goodput and p.load < load]
        if not before:
            return True
        last = max(before, key=lambda p: p.load)
        wanted = 1.0 + self._config.gain_min * (load / last.load - 1.0)
        return (summary.goodput_s.value or 0.0) >= wanted * (last.goodput or 0.0)

    def _next_loads(self) -> Iterator[float]:
        config, span = self._config, self._span
        load = span.low
        listed = iter(span.listed[1:])
        while len(self.points) < config.steps_max:
            yield load
            last = self.points[-1]
            if not last.good:
                self.why_ended = (
                    "the client was the bottleneck" if last.refused else "past the knee"
                )
                break
            if load >= span.high:
                self.why_ended = "the highest load was still good"
                return
            following = next(listed, None) if span.listed else min(span.high, load * config.growth)
            load = span.high if following is None else self._rounded(following)
        else:
            self.why_ended = f"{config.steps_max} steps were held"
            return
        if self.points[-1].refused or span.listed:
            return
        yield from self._refine()

    def _refine(self) -> Iterator[float]:
        for _ in range(self._config.refinements):
            good = [p.load for p in self.points if p.good]
            bad = [p.load for p in self.points if not p.good]
            if not good or not bad:
                return
            middle = self._rounded(sqrt(max(good) * min(bad)))
            known = {p.load for p in self.points}
            if middle in known or len(self.points) >= self._config.steps_max:
                return
            yield middle
            if self.points[-1].refused:
                return

    def _rounded(self, load: float) -> float:
        return float(round(load)) if self._span.unit == "users" else float(f"{load:.3g}")

    @property
    def knee(self) -> SweepPoint | None:
        """The highest load that was good, if any was."""
        good = [point for point in self.points if point.good]
        return max(good, key=lambda point: point.load) if good else None


__all__ = ["KneeSearch", "SweepConfig", "SweepPoint", "SweepRange", "Unit"]
