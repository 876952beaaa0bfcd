"""The answer to a planning question, as values that a terminal, a page and a program can show.

An answer has a verdict in one sentence, tables, the steps of its calculation with their numbers,
remarks, texts to paste elsewhere, and charts. Nothing here knows how any of it is drawn.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(slots=True, frozen=True)
class PlanTable:
    """A table of an answer; cells are texts, one row may be marked as the chosen one."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: int | None = None  # the chosen row
    text_columns: int = 0  # so many columns from the left are words, the others are figures


@dataclass(slots=True, frozen=True)
class PlanStep:
    """One step of a calculation: what it gives, the formula, and the formula with its numbers."""

    what: str
    formula: str
    numbers: str


@dataclass(slots=True, frozen=True)
class PlanSnippet:
    """A text to paste into another program's config."""

    title: str
    language: str  # yaml or json
    text: str


class ChartKind(StrEnum):
    """How the points of a chart are drawn."""

    LINE = "line"
    BARS = "bars"  # stacked where there are several series; x counts the labels
    STEPS = "steps"


@dataclass(slots=True, frozen=True)
class ChartSeries:
    """The points of one line or one colour of bars."""

    name: str
    points: tuple[tuple[float, float], ...]
    spans: tuple[tuple[float, float, float], ...] = ()  # (x, low, high): how sure a point is
    marks_only: bool = False  # single points, no line through them
    point_names: tuple[str, ...] = ()  # written beside each point, where there are any


@dataclass(slots=True, frozen=True)
class PlanChart:
    """A chart as data: axes with their units, series, and at most one line to compare with."""

    title: str
    x_label: str
    y_label: str
    series: tuple[ChartSeries, ...]
    kind: ChartKind = ChartKind.LINE
    labels: tuple[str, ...] = ()  # BARS: below each bar
    limit: float | None = None  # a level line
    limit_label: str = ""
    log_y: bool = False  # values above 0 over several powers of ten


@dataclass(slots=True, frozen=True)
class PlanAnswer:
    """What a plan says, and how it came to say so."""

    plan: str
    opening: str  # the question as it was understood
    verdict: str
    tables: tuple[PlanTable, ...] = ()
    remarks: tuple[str, ...] = ()  # single lines below the verdict
    notes: tuple[str, ...] = ()  # assumptions, and where they break
    steps: tuple[PlanStep, ...] = ()
    snippets: tuple[PlanSnippet, ...] = ()
    charts: tuple[PlanChart, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)  # the results as numbers

    def to_dict(self) -> dict[str, Any]:
        """The figures and all else as plain data, ready for JSON; charts are left out."""
        return {
            **self.figures,
            "plan": self.plan,
            "verdict": self.verdict,
            "notes": list(self.notes),
            "steps": [asdict(step) for step in self.steps],
            "snippets": [asdict(snippet) for snippet in self.snippets],
        }


__all__ = [
    "ChartKind",
    "ChartSeries",
    "PlanAnswer",
    "PlanChart",
    "PlanSnippet",
    "PlanStep",
    "PlanTable",
]
