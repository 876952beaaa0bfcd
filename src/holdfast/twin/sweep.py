"""Tries many versions of a fleet and finds those that no other one beats in cost and in service.

Each axis is a key of the fleet file, or the traffic, with the values to try; every combination is
one arm. All arms run under the same seeds, in as many processes as there are cores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Final

from holdfast.core.types import ConfigError, require
from holdfast.sim.run import Interval, Outcome
from holdfast.twin.arms import Progress, figures_of, run_arms
from holdfast.twin.config_edit import difference, edit
from holdfast.twin.what_if import (
    Baseline,
    Change,
    RunPlan,
    arm_of,
    duration_for,
    notes_of,
    rate_of,
    replicas_of,
    scaled,
)

ARMS_MAX: Final = 2_000
TRAFFIC_AXIS: Final = "traffic"


@dataclass(slots=True, frozen=True)
class Axis:
    """One thing that is varied: its label, the keys of the fleet file that it sets, its values."""

    label: str
    keys: tuple[str, ...]  # empty: the traffic
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        require(bool(self.values), f"axis {self.label}", "has no value", "write KEY=VALUE,VALUE")


@dataclass(slots=True, frozen=True)
class SweepPoint:
    """One version of the fleet, what it costs, and how it served."""

    values: Mapping[str, Any]  # by the label of each axis
    replicas: int
    cost: float  # an hour, by the file's prices; replicas where it has none
    figures: Mapping[str, Interval]
    best: bool  # nothing costs no more and serves better

    def to_dict(self) -> dict[str, Any]:
        """This point as plain data."""
        return {
            "values": dict(self.values),
            "replicas": self.replicas,
            "cost": self.cost,
            "figures": {name: one.to_dict() for name, one in self.figures.items()},
            "best": self.best,
        }


@dataclass(slots=True, frozen=True)
class SweepAnswer:
    """All points in the order of their cost, and what was compared."""

    points: tuple[SweepPoint, ...]
    goal: str  # a figure's name
    goal_better: int
    cost_label: str
    duration_s: float
    seeds: int
    requests_s: float
    text: str  # of the fleet file
    name: str
    notes: tuple[str, ...]
    edits: tuple[Mapping[str, Any], ...]  # of each point

    def diff(self, place: int) -> str:
        """The diff of the fleet file that makes it this point."""
        return difference(self.text, edit(self.text, self.edits[place]), self.name)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            "goal": self.goal,
            "cost": self.cost_label,
            "duration_s": self.duration_s,
            "seeds": self.seeds,
            "requests_s": self.requests_s,
            "points": [
                {**point.to_dict(), "diff": self.diff(place) if point.best else None}
                for place, point in enumerate(self.points)
            ],
            "notes": list(self.notes),
        }


def sweep_fleet(
    baseline: Baseline,
    axes: Sequence[Axis],
    change: Change,
    plan: RunPlan,
    *,
    goal: str,
    progress: Progress = lambda _done, _all: None,
) -> SweepAnswer:
    """Try every combination of values on top of ``change``; ``goal`` is what service means.

    Raises ``ConfigError`` for a bad value, naming its key, before anything is simulated.
    """
    require(bool(axes), "vary", "names nothing", "write --vary replicas=2..6")
    count = prod(len(axis.values) for axis in axes)
    fix = f"use fewer values: {ARMS_MAX:,} arms at most"
    require(count <= ARMS_MAX, "vary", f"makes {count:,} combinations", fix)
    text = edit(baseline.text, change.edits)
    arms, versions = [], []
    rate = 0.0
    fleets = []
    for values in product(*(axis.values for axis in axes)):
        edits: dict[str, Any] = {}
        traffic = change.traffic
        for axis, value in zip(axes, values, strict=True):
            if axis.label == TRAFFIC_AXIS:
                traffic *= _factor(value)
            edits |= dict.fromkeys(axis.keys, value)
        fleet = baseline.fleet(edit(text, edits))
        fleet = replace(fleet, traffic=scaled(fleet.traffic, traffic))
        fleets.append(fleet)
        rate = max(rate, rate_of(fleet.traffic))
        versions.append((dict(zip((axis.label for axis in axes), values, strict=True)), edits))
    duration = plan.duration_s or duration_for(rate)
    for (values_of, _), fleet in zip(versions, fleets, strict=True):
        name = ", ".join(f"{key}={value}" for key, value in values_of.items())
        setup = fleet.experiment(duration, faults=change.faults, slo=plan.slo)
        arms.append(arm_of(name, fleet, setup))
    outcomes = run_arms(
        arms, plan.numbers, jobs=plan.jobs, diagnosis=plan.diagnosis, progress=progress
    )
    priced = all(fleet.cost_per_hour() is not None for fleet in fleets)
    rows = []
    for (values_of, edits), fleet, outcome in zip(versions, fleets, outcomes, strict=True):
        figures = _figures(outcome)
        means = replicas_of(outcome)
        cost = (fleet.cost_per_hour(means) or 0.0) if priced else sum(means.values())
        count = len(fleet.members())
        rows.append((SweepPoint(values_of, count, cost, figures, best=False), edits))
    better = -1 if goal.endswith("_s") else 1
    rows.sort(key=lambda row: (row[0].cost, -better * _value(row[0], goal, better)))
    points = tuple(
        replace(p, best=b) for (p, _), b in zip(rows, _best(rows, goal, better), strict=True)
    )
    currency = baseline.fleet(baseline.text).file.prices.currency
    return SweepAnswer(
        points=points,
        goal=goal,
        goal_better=better,
        cost_label=f"{currency} an hour" if priced else "replicas",
        duration_s=duration,
        seeds=plan.seeds,
        requests_s=rate,
        text=baseline.text,
        name=baseline.name,
        notes=tuple(notes_of(baseline, fleets[0], change)),
        edits=tuple({**change.edits, **edits} for _, edits in rows),
    )


def _figures(outcome: Outcome) -> dict[str, Interval]:
    """Each figure of an arm over its seeds, where it was measured."""
    runs = [figures_of(run) for run in outcome.runs]
    figures = {}
    for figure in runs[0]:
        known = [value for value in (run[figure] for run in runs) if value is not None]
        if known:
            figures[figure] = Interval.of(known)
    return figures


def _factor(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(TRAFFIC_AXIS, f"is {value!r}"[:80], "use numbers such as 1,1.5,2")
    return float(value)


def _value(point: SweepPoint, goal: str, better: int) -> float:
    found = point.figures.get(goal)
    return found.mean if found is not None else -better * float("inf")


def _best(
    rows: Sequence[tuple[SweepPoint, Mapping[str, Any]]], goal: str, better: int
) -> list[bool]:
    """Whether each point, in order of cost and service, beats all that cost no more."""
    marks, top = [], float("-inf")
    for point, _ in rows:
        value = better * _value(point, goal, better)
        marks.append(value > top)
        top = max(top, value)
    return marks


__all__ = ["TRAFFIC_AXIS", "Axis", "SweepAnswer", "SweepPoint", "sweep_fleet"]
