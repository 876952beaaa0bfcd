"""Compares two benchmarks: by how much each figure differs, or that it is the same within noise.

Steps are paired by their load. A difference counts if its 99.5 % interval excludes zero: some
dozen figures are compared at once, and of 95 % intervals every second comparison of equal servers
would show one that does not hold. What one run's samples cannot tell is how much two runs of the
same server differ: that takes several runs, taken in turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.core.types import ConfigError
from holdfast.loadtest.client_check import TICK_S
from holdfast.loadtest.figure_charts import distribution, quantile_curve
from holdfast.loadtest.findings import TITLES, figure, plain
from holdfast.loadtest.records import BenchFile
from holdfast.loadtest.statistics import Estimate, difference
from holdfast.loadtest.summary import (
    QUANTILES,
    ServiceObjective,
    StepSummary,
    latency_series,
    summarise,
)
from holdfast.planner.answer import PlanAnswer, PlanChart, PlanTable

CONFIDENCE: Final = 0.995
_NOTE: Final = (
    f"Intervals are {CONFIDENCE:.1%}, since {{}} figures are compared at once. Two runs of one "
    "server may differ by more than the noise within a run: to be sure, repeat both, in turns. "
    "Latencies that differ by less than the client can tell count as the same."
)
_CHARTED_MAX: Final = 4  # loads


class Change(StrEnum):
    """What a comparison of one figure says."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"  # within noise, or within what the client can tell apart
    UNKNOWN = "unclear"  # too few requests to tell


@dataclass(slots=True, frozen=True)
class ComparedFigure:
    """One figure of both benchmarks, and how it differs."""

    step: str
    name: str
    a: Estimate
    b: Estimate
    difference: Estimate
    change: Change

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data."""
        return {
            "step": self.step,
            "figure": self.name,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "difference": self.difference.to_dict(),
            "change": str(self.change),
        }


@dataclass(slots=True, frozen=True)
class Comparison:
    """All figures of two benchmarks side by side."""

    figures: tuple[ComparedFigure, ...]
    answer: PlanAnswer


def compare(
    a: BenchFile,
    b: BenchFile,
    names: tuple[str, str] = ("A", "B"),
    objective: ServiceObjective | None = None,
) -> Comparison:
    """Compare two benchmarks; raises ``ConfigError`` where they have no load in common."""
    objective = objective or ServiceObjective.of_file(a.slo)
    figures: list[ComparedFigure] = []
    pairs = _pairs(a, b, names)
    for place_a, place_b in pairs:
        one = summarise(a, place_a, objective, CONFIDENCE)
        other = summarise(b, place_b, objective, CONFIDENCE)
        figures += _compared(one, other)
    answer = PlanAnswer(
        "bench compare",
        f"A is {_called(a, names[0])}, B is {_called(b, names[1])}; good answers: {objective}",
        _verdict(figures),
        tuple(_tables(figures)),
        tuple(_remarks(a, b)),
        (_NOTE.format(len(figures)),),
        charts=tuple(_charts(a, b, pairs, objective)),
        figures={
            "a": names[0],
            "b": names[1],
            "slo": objective.to_dict(),
            "figures": [one.to_dict() for one in figures],
            "remarks": _remarks(a, b),
        },
    )
    return Comparison(tuple(figures), answer)


def _called(file: BenchFile, name: str) -> str:
    told = f"{name} ({file.model} at {file.target})"
    return f"{told}, {file.label}" if file.label else told


def _pairs(a: BenchFile, b: BenchFile, names: tuple[str, str]) -> list[tuple[int, int]]:
    """Places of steps with the same load; those of two single loads whatever they are called."""
    held = []
    for file, name in ((a, names[0]), (b, names[1])):
        places = [place for place, step in enumerate(file.steps) if not step.refused]
        if not places:
            why = file.steps[0].refused if file.steps else "it holds no step"
            fix = "measure it again: a refused benchmark compares with nothing"
            raise ConfigError(name, f"reports nothing: {why}", fix)
        held.append(places)
    if len(held[0]) == len(held[1]) == 1:
        return [(held[0][0], held[1][0])]
    by_name = {b.steps[place].name: place for place in held[1]}
    pairs = [
        (place, by_name[a.steps[place].name]) for place in held[0] if a.steps[place].name in by_name
    ]
    if not pairs:
        loads = ", ".join(a.steps[place].name for place in held[0][:8])
        raise ConfigError(names[1], "has no load in common with the other", f"use one of {loads}")
    return pairs


def _compared(one: StepSummary, other: StepSummary) -> list[ComparedFigure]:
    name = one.step.name
    if name != other.step.name:
        name = f"{name} and {other.step.name}"
    resolution_ms = 1000.0 * max(TICK_S, one.step.client.late_p99_s, other.step.client.late_p99_s)
    found = []
    for kind in TITLES:
        # A time per token is the mean of as many gaps as an answer has tokens.
        finer = _tokens_of_an_answer(one) if kind == "tpot" else 1.0
        for q in QUANTILES:
            a, b = one.latencies[kind][q].scaled(1000.0), other.latencies[kind][q].scaled(1000.0)
            title = TITLES[kind].replace(", ms", f" p{q * 100:g}, ms")
            found.append(_one(name, title, a, b, less=True, resolution=resolution_ms / finer))
    good = one.good_share.scaled(100.0), other.good_share.scaled(100.0)
    return [
        *found,
        _one(name, "answers/s", one.requests_s, other.requests_s),
        _one(name, "output tokens/s", one.output_tokens_s, other.output_tokens_s),
        _one(name, "good answers/s", one.goodput_s, other.goodput_s),
        _one(name, "good answers, %", *good),
    ]


def _tokens_of_an_answer(one: StepSummary) -> float:
    answers, tokens = one.requests_s.value, one.output_tokens_s.value
    return max(1.0, tokens / answers) if answers and tokens else 1.0


def _one(
    step: str, name: str, a: Estimate, b: Estimate, *, less: bool = False, resolution: float = 0.0
) -> ComparedFigure:
    """``less``: smaller is better. A difference below ``resolution`` cannot be seen."""
    differs = difference(a, b)
    if differs.value is not None and abs(differs.value) < resolution:
        change = Change.SAME
    elif differs.low is not None and differs.low > 0:
        change = Change.WORSE if less else Change.BETTER
    elif differs.high is not None and differs.high < 0:
        change = Change.BETTER if less else Change.WORSE
    elif differs.low is None or differs.high is None:
        change = Change.UNKNOWN
    else:
        change = Change.SAME
    return ComparedFigure(step, name, a, b, differs, change)


def _verdict(figures: Sequence[ComparedFigure]) -> str:
    changed = [one for one in figures if one.change in {Change.BETTER, Change.WORSE}]
    if not changed:
        if all(one.change is Change.UNKNOWN for one in figures):
            return "Too few requests to tell A from B."
        unclear = sum(one.change is Change.UNKNOWN for one in figures)
        more = (
            f" ({unclear} of {len(figures)} figures need more requests to tell)" if unclear else ""
        )
        return f"Same within noise{more}."
    told = []
    for change in (Change.BETTER, Change.WORSE):
        own = [one for one in changed if one.change is change]
        if own:
            names = ", ".join(f"{one.name}{_relative(one)}" for one in own[:5])
            more = f" and {len(own) - 5} more" if len(own) > 5 else ""
            told.append(f"B is {change} in {names}{more}")
    return f"{'; '.join(told)}."


def _relative(one: ComparedFigure) -> str:
    if not one.a.value or one.difference.value is None:
        return ""
    return f" ({one.difference.value / one.a.value:+.0%})"


def _remarks(a: BenchFile, b: BenchFile) -> list[str]:
    told = []
    if a.model != b.model:
        told.append(f"The models differ: {a.model} and {b.model}.")
    if a.workload != b.workload:
        names = sorted({*a.workload, *b.workload})
        unlike = [name for name in names if a.workload.get(name) != b.workload.get(name)]
        told.append(f"The workloads differ in {', '.join(unlike)}: so may all figures.")
    for name, file in (("A", a), ("B", b)):
        refused = [step.name for step in file.steps if step.refused]
        if refused:
            told.append(f"Refused steps of {name} are left out: {', '.join(refused)}.")
    return told


def _tables(figures: Sequence[ComparedFigure]) -> list[PlanTable]:
    tables = []
    for step in dict.fromkeys(one.step for one in figures):
        rows = tuple(
            (one.name, plain(one.a), plain(one.b), figure(one.difference), str(one.change))
            for one in figures
            if one.step == step
        )
        headings = ("figure", "A", "B", "B − A", "B is")
        tables.append(PlanTable(step, headings, rows, text_columns=1))
    return tables


def _charts(
    a: BenchFile, b: BenchFile, pairs: Sequence[tuple[int, int]], objective: ServiceObjective
) -> list[PlanChart]:
    """The distributions of both, for the first few loads."""
    charts = []
    for place_a, place_b in pairs[:_CHARTED_MAX]:
        step = a.steps[place_a].name
        for kind, title in (("ttft", "First token"), ("tpot", "Time per token")):
            curves = [
                quantile_curve(name, latency_series(file.of_step(place), kind))
                for name, file, place in (("A", a, place_a), ("B", b, place_b))
            ]
            chart = distribution(f"{title}, {step}", curves, objective.to_dict().get(kind))
            if chart is not None:
                charts.append(chart)
    return charts


__all__ = ["CONFIDENCE", "Change", "ComparedFigure", "Comparison", "compare"]
