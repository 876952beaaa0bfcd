"""The chart of a sweep over versions of a fleet: service by cost, and the versions worth having."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.planner.answer import ChartKind, ChartSeries, PlanChart

_NAMED_MAX = 12  # of the best points; more names would cover each other


@dataclass(slots=True, frozen=True)
class SweptPoint:
    """One version of a fleet on the chart."""

    cost: float
    service: float
    name: str
    best: bool  # no other one costs no more and serves better


def sweep_chart(
    points: Sequence[SweptPoint], title: str, cost_label: str, service_label: str
) -> PlanChart:
    """All versions as points, and a line through those that nothing beats."""
    best = [point for point in points if point.best]
    others = [point for point in points if not point.best]
    series = [
        ChartSeries(
            "nothing serves better for its cost",
            tuple((point.cost, point.service) for point in best),
            point_names=tuple(point.name for point in best) if len(best) <= _NAMED_MAX else (),
        )
    ]
    if others:
        series.append(
            ChartSeries(
                "others",
                tuple((point.cost, point.service) for point in others),
                marks_only=True,
            )
        )
    return PlanChart(title, cost_label, service_label, tuple(series), ChartKind.LINE)


__all__ = ["SweptPoint", "sweep_chart"]
