"""The chart of a sweep over versions of a fleet: service by cost, and the versions worth having."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.planner.answer import ChartKind, ChartSeries, PlanChart


@dataclass(slots=True, frozen=True)
class SweptPoint:
    """One version of a fleet on the chart."""

    cost: float
    service: float
    name: str
    best: bool  # no other one costs no more and serves better


def sweep_chart(
    points: Sequence[SweptPoint],
    title: str,
    cost_label: str,
    service_label: str,
    *,
    log_service: bool = False,
) -> PlanChart:
    """All versions as points, and a line through those that nothing beats."""
    best = [point for point in points if point.best]
    others = [point for point in points if not point.best]
    line = ChartSeries(
        "nothing serves better for its cost",
        tuple((point.cost, point.service) for point in best),
        point_names=tuple(point.name for point in best),
    )
    series: tuple[ChartSeries, ...] = (line,)
    if others:  # first, so that the line lies on top
        marks = tuple((point.cost, point.service) for point in others)
        series = (ChartSeries("others", marks, marks_only=True), line)
    return PlanChart(title, cost_label, service_label, series, ChartKind.LINE, log_y=log_service)


__all__ = ["SweptPoint", "sweep_chart"]
