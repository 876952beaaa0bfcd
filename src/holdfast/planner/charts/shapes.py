"""Lays a chart out as plain shapes: lines, boxes, marks and texts on a page of fixed size.

The colours are those of Okabe and Ito, which people with any kind of colour blindness tell apart;
series differ by dashes and marks as well, so that a print without colours can be read. Writers for
SVG and PNG draw the same shapes.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

from holdfast.planner.answer import ChartKind, ChartSeries, PlanChart

WIDTH: Final = 860
HEIGHT: Final = 520
COLOURS: Final = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#000000"),
)
DASHES: Final[tuple[tuple[float, ...], ...]] = ((), (8.0, 4.0), (2.0, 4.0), (10.0, 4.0, 2.0, 4.0))
INK: Final = "#222222"
PALE: Final = "#d9d9d9"
_LEFT, _RIGHT, _BOTTOM = 84.0, 30.0, 70.0
_TEXT: Final = 14.0
_TITLE: Final = 18.0
_SMALL: Final = 12.0
_TICKS: Final = 6
_WHISKER: Final = 4.0  # half the width of the bar at the end of an interval
_BAR_SHARE: Final = 0.6  # of the room of one bar


@dataclass(slots=True, frozen=True)
class Path:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 2.0
    dashes: tuple[float, ...] = ()


@dataclass(slots=True, frozen=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(slots=True, frozen=True)
class Mark:
    """A small sign at a point: 0 circle, 1 square, 2 diamond, 3 triangle."""

    x: float
    y: float
    shape: int
    colour: str
    size: float = 4.5


@dataclass(slots=True, frozen=True)
class Label:
    """A text; ``anchor`` is start, middle or end, ``upright`` reads from bottom to top."""

    x: float
    y: float
    text: str
    size: float = _TEXT
    anchor: str = "start"
    upright: bool = False
    bold: bool = False


Shape = Path | Box | Mark | Label


def text_width(text: str, size: float) -> float:
    """Room that a text takes, nearly: charts only need to keep texts apart."""
    return len(text) * size * 0.56


def ticks(low: float, high: float, wanted: int = _TICKS) -> list[float]:
    """Round values from at or below ``low`` to at or above ``high``: steps of 1, 2 or 5."""
    span = high - low
    if span <= 1e-12 * max(abs(low), abs(high), 1e-200):  # too little for a double to divide
        return [low, low + max(1.0, abs(low))]
    raw = span / wanted
    scale = 10.0 ** floor(log10(raw))
    step = next(each * scale for each in (1.0, 2.0, 5.0, 10.0) if each * scale >= raw * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Values 1, 2 and 5 of each power of ten, from at or below ``low`` to at or above ``high``."""
    first, last = floor(log10(low)), ceil(log10(high) + 1e-9)
    steps = [each * 10.0**power for power in range(first, last + 1) for each in (1.0, 2.0, 5.0)]
    start = max(place for place, value in enumerate(steps) if value <= low * (1 + 1e-9))
    end = min(place for place, value in enumerate(steps) if value >= high * (1 - 1e-9))
    return steps[start : max(end, start + 1) + 1]


def tick_text(value: float, step: float) -> str:
    """A tick's value with as many digits as its step needs."""
    if value and (abs(value) >= 1e7 or abs(step) < 1e-4):
        return f"{value:.3g}"
    digits = max(0, -floor(log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:,.{digits}f}"


class _Frame:
    """Where values stand on the page."""

    def __init__(self, chart: PlanChart, top: float) -> None:
        self.top, self.bottom = top, HEIGHT - _BOTTOM
        self.left, self.right = _LEFT, WIDTH - _RIGHT
        xs = [x for series in chart.series for x, _ in series.points]
        highs = _stacked(chart.series) if chart.kind is ChartKind.BARS else []
        ys = highs or [y for series in chart.series for _, y in series.points]
        ys = [*ys, *(y for series in chart.series for _, *ends in series.spans for y in ends)]
        ys = [*ys, *([chart.limit] if chart.limit is not None else [])]
        low = (
            0.0
            if min(ys) >= 0 and (chart.kind is ChartKind.BARS or min(ys) < 0.6 * max(ys))
            else min(ys)
        )
        self.log_y = chart.log_y and min(ys) > 0
        self.y_ticks = log_ticks(min(ys), max(ys)) if self.log_y else ticks(low, max(ys))
        if chart.kind is ChartKind.BARS:
            self.x_low, self.x_high = -0.5, len(chart.labels) - 0.5
            self.x_ticks: list[float] = []
        else:
            whole = all(x == int(x) for x in xs) and max(xs) - min(xs) <= 12
            self.x_ticks = (
                [float(x) for x in range(int(min(xs)), int(max(xs)) + 1)]
                if whole
                else ticks(min(xs), max(xs))
            )
            if len(self.x_ticks) < 2:
                self.x_ticks = [min(xs), min(xs) + 1.0]
            self.x_low, self.x_high = self.x_ticks[0], self.x_ticks[-1]

    def x(self, value: float) -> float:
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (
            self.right - self.left
        )

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        if self.log_y:
            low, high, value = log10(low), log10(high), log10(value)
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)


def _stacked(series: Sequence[ChartSeries]) -> list[float]:
    heights: dict[float, float] = {}
    for one in series:
        for x, y in one.points:
            heights[x] = heights.get(x, 0.0) + y
    return list(heights.values())


def lay_out(chart: PlanChart) -> list[Shape]:
    """The shapes of a chart, in the order in which they are drawn."""
    legend, top = _legend(chart)
    frame = _Frame(chart, top + 14.0)
    shapes: list[Shape] = [Box(0, 0, WIDTH, HEIGHT, "#ffffff")]
    shapes.append(Label(_LEFT, 30.0, chart.title, _TITLE, bold=True))
    shapes += legend
    shapes += _axes(chart, frame)
    shapes += _bars(chart, frame) if chart.kind is ChartKind.BARS else _lines(chart, frame)
    if chart.limit is not None:
        shapes += _limit(chart, frame)
    return shapes


def _legend(chart: PlanChart) -> tuple[list[Shape], float]:
    shapes: list[Shape] = []
    x, y = _LEFT, 54.0
    if len(chart.series) < 2:
        return shapes, 40.0
    for number, series in enumerate(chart.series):
        room = 40.0 + text_width(series.name, _TEXT)
        if x + room > WIDTH - _RIGHT and x > _LEFT:
            x, y = _LEFT, y + 22.0
        colour = COLOURS[number % len(COLOURS)]
        if chart.kind is ChartKind.BARS:
            shapes.append(Box(x, y - 10.0, 22.0, 12.0, colour))
        else:
            dashes = DASHES[number % len(DASHES)]
            if not series.marks_only:
                shapes.append(Path(((x, y - 5.0), (x + 24.0, y - 5.0)), colour, 2.5, dashes))
            shapes.append(Mark(x + 12.0, y - 5.0, number % 4, colour))
        shapes.append(Label(x + 30.0, y, series.name))
        x += room + 14.0
    return shapes, y


def _axes(chart: PlanChart, frame: _Frame) -> Iterator[Shape]:
    step = frame.y_ticks[1] - frame.y_ticks[0]
    for value in frame.y_ticks:
        y = frame.y(value)
        yield Path(((frame.left, y), (frame.right, y)), PALE, 1.0)
        told = f"{value:g}" if frame.log_y else tick_text(value, step)
        yield Label(frame.left - 8.0, y + 5.0, told, anchor="end")
    if chart.kind is ChartKind.BARS:
        for place, text in enumerate(chart.labels):
            yield Label(frame.x(place), frame.bottom + 20.0, text, anchor="middle")
    else:
        step = frame.x_ticks[1] - frame.x_ticks[0]
        for value in frame.x_ticks:
            x = frame.x(value)
            yield Path(((x, frame.bottom), (x, frame.bottom + 5.0)), INK, 1.0)
            yield Label(x, frame.bottom + 20.0, tick_text(value, step), anchor="middle")
    yield Path(
        ((frame.left, frame.top), (frame.left, frame.bottom), (frame.right, frame.bottom)), INK, 1.2
    )
    yield Label((frame.left + frame.right) / 2.0, HEIGHT - 18.0, chart.x_label, anchor="middle")
    middle = (frame.top + frame.bottom) / 2.0
    yield Label(22.0, middle, chart.y_label, anchor="middle", upright=True)


def _bars(chart: PlanChart, frame: _Frame) -> Iterator[Shape]:
    room = (frame.right - frame.left) / max(1, len(chart.labels))
    width = min(90.0, room * _BAR_SHARE)
    base: dict[float, float] = {}
    for number, series in enumerate(chart.series):
        for x, value in series.points:
            low = base.get(x, 0.0)
            base[x] = low + value
            upper, lower = frame.y(base[x]), frame.y(low)
            if lower - upper < 0.05:
                continue
            left = frame.x(x) - width / 2.0
            yield Box(left, upper, width, lower - upper, COLOURS[number % len(COLOURS)])
            yield Path(((left, upper), (left + width, upper)), "#ffffff", 1.0)


def _lines(chart: PlanChart, frame: _Frame) -> Iterator[Shape]:
    for number, series in enumerate(chart.series):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        points = [(frame.x(x), frame.y(y)) for x, y in series.points]
        drawn = points
        if chart.kind is ChartKind.STEPS:
            drawn = [points[0]]
            for before, after in itertools.pairwise(points):
                drawn += [(after[0], before[1]), after]
        if not series.marks_only:
            yield Path(tuple(drawn), colour, 2.5, dashes)
        if len(points) <= 40 or series.marks_only:
            for x, y in points:
                yield Mark(x, y, number % 4, colour)
        yield from _point_names(points, series.point_names, frame)
        for value, low, high in series.spans:
            yield from _whisker(frame.x(value), frame.y(low), frame.y(high), colour)


def _point_names(
    points: Sequence[tuple[float, float]], names: Sequence[str], frame: _Frame
) -> Iterator[Shape]:
    """Names beside points, where there is room; one that would cover another is left out."""
    taken: list[tuple[float, float, float]] = []  # left, right, baseline
    for (x, y), name in zip(points, names, strict=False):
        wide = text_width(name, _SMALL)
        for side, below in ((1, -8.0), (1, 18.0), (-1, -8.0), (-1, 18.0)):
            left = x + 8.0 if side > 0 else x - 8.0 - wide
            line = y + below
            inside = left >= frame.left and left + wide <= WIDTH - 4.0
            inside = inside and frame.top <= line - _SMALL and line <= frame.bottom
            free = all(
                left + wide < start or left > end or abs(line - base) > _SMALL + 2.0
                for start, end, base in taken
            )
            if inside and free:
                taken.append((left, left + wide, line))
                anchor = "start" if side > 0 else "end"
                yield Label(x + 8.0 * side, line, name, _SMALL, anchor)
                break


def _whisker(x: float, low: float, high: float, colour: str) -> Iterator[Shape]:
    """The interval of a point: an upright line with a bar at each end."""
    yield Path(((x, low), (x, high)), colour, 1.2)
    for end in (low, high):
        yield Path(((x - _WHISKER, end), (x + _WHISKER, end)), colour, 1.2)


def _limit(chart: PlanChart, frame: _Frame) -> Iterator[Shape]:
    assert chart.limit is not None
    y = frame.y(chart.limit)
    yield Path(((frame.left, y), (frame.right, y)), INK, 1.5, (6.0, 4.0))
    yield Label(frame.right - 4.0, y - 6.0, chart.limit_label, anchor="end")


__all__ = [
    "HEIGHT",
    "WIDTH",
    "Box",
    "Label",
    "Mark",
    "Path",
    "Shape",
    "lay_out",
    "text_width",
    "ticks",
]
