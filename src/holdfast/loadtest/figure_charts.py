"""The charts of a benchmark, as data that the planner's charts draw: axes have units."""

from collections.abc import Sequence
from typing import Final

from holdfast.loadtest.records import BenchFile
from holdfast.loadtest.statistics import Estimate
from holdfast.loadtest.summary import (
    QUANTILES,
    ServiceObjective,
    StepSummary,
    latency_series,
)
from holdfast.planner.answer import ChartKind, ChartSeries, PlanChart

_CURVE_POINTS: Final = 100  # of a distribution
_SLICES: Final = 30  # of a run over time
TITLES: Final = {"ttft": "First token", "tpot": "Time per token", "total": "Whole answer"}


def charts_of(
    file: BenchFile,
    held: Sequence[StepSummary],
    objective: ServiceObjective,
    *,
    scaled: bool,
) -> list[PlanChart]:
    """The charts that fit the steps which were held: one load, several loads, several sizes."""
    if not held:
        return []
    if scaled and len(held) > 1:
        return [_scaling(held)]
    if len(held) > 1:
        ordered = sorted(held, key=_load)
        return [
            _rates(ordered),
            _by_load(ordered, "ttft", "First token by load", objective.ttft_s),
            _by_load(ordered, "tpot", "Time per token by load", objective.tpot_s),
        ]
    records = file.of_step(file.steps.index(held[0].step))
    found = [
        distribution(
            f"{title}: distribution, {held[0].step.name}",
            [quantile_curve(title, latency_series(records, name))],
            objective.to_dict().get(name),
        )
        for name, title in TITLES.items()
    ]
    found.append(_over_time(file, held[0]))
    charts = [chart for chart in found if chart is not None]
    if len(held[0].by_replica) > 1:
        charts.append(_by_replica(held[0]))
    return charts


def _load(one: StepSummary) -> float:
    return float(one.step.users if one.step.users is not None else one.step.rate or 0.0)


def _unit(held: Sequence[StepSummary]) -> str:
    return "users" if held[0].step.users is not None else "requests/s offered"


def _series(
    name: str, held: Sequence[StepSummary], values: Sequence[Estimate], scale: float = 1.0
) -> ChartSeries | None:
    known = [
        (_load(one), value)
        for one, value in zip(held, values, strict=True)
        if value.value is not None
    ]
    if not known:
        return None
    points = tuple((x, (value.value or 0.0) * scale) for x, value in known)
    spans = tuple(
        (x, value.low * scale, value.high * scale)
        for x, value in known
        if value.low is not None and value.high is not None
    )
    return ChartSeries(name, points, spans)


def _rates(held: Sequence[StepSummary]) -> PlanChart:
    series = [
        _series("answers/s", held, [one.requests_s for one in held]),
        _series("good answers/s", held, [one.goodput_s for one in held]),
    ]
    known = tuple(one for one in series if one is not None)
    return PlanChart("Throughput and goodput by load", _unit(held), "answers per second", known)


def _by_load(
    held: Sequence[StepSummary], name: str, title: str, bound_s: float | None
) -> PlanChart:
    series = [
        _series(f"p{q * 100:g}", held, [one.latencies[name][q] for one in held], 1000.0)
        for q in QUANTILES
    ]
    known = tuple(one for one in series if one is not None)
    limit = None if bound_s is None else bound_s * 1000.0
    label = "" if limit is None else f"objective {limit:g} ms"
    return PlanChart(title, _unit(held), "milliseconds", known, limit=limit, limit_label=label)


def quantile_curve(name: str, latencies_s: Sequence[float]) -> ChartSeries | None:
    """A distribution as points (% of answers, milliseconds at most); None of fewer than two."""
    ordered = sorted(latencies_s)
    last = len(ordered) - 1
    if last < 1:
        return None
    places = sorted({round(i * last / _CURVE_POINTS) for i in range(_CURVE_POINTS + 1)})
    points = tuple((100.0 * place / last, ordered[place] * 1000.0) for place in places)
    return ChartSeries(name, points)


def distribution(
    title: str, curves: Sequence[ChartSeries | None], bound_s: float | None = None
) -> PlanChart | None:
    """A chart of quantile curves, with the objective as a line; None without any curve."""
    known = tuple(curve for curve in curves if curve is not None)
    if not known:
        return None
    limit = None if bound_s is None else bound_s * 1000.0
    label = "" if limit is None else f"objective {limit:g} ms"
    x_label = "% of answers that took at most so long"
    return PlanChart(title, x_label, "milliseconds", known, limit=limit, limit_label=label)


def _over_time(file: BenchFile, one: StepSummary) -> PlanChart | None:
    """Quantiles of the first token in slices of the run: a drift shows, and a pause."""
    step = one.step
    records = file.of_step(file.steps.index(step))
    width = (step.counted_to_s - step.counted_from_s) / _SLICES
    if width <= 0:
        return None
    slices: list[list[float]] = [[] for _ in range(_SLICES)]
    for record in records:
        if record.ttft_s is not None:
            place = int((record.arrived_s - step.counted_from_s) / width)
            slices[min(_SLICES - 1, max(0, place))].append(record.ttft_s * 1000.0)
    series = []
    for name, q in (("p50", 0.5), ("slowest", 1.0)):
        points = tuple(
            ((number + 0.5) * width, sorted(part)[min(len(part) - 1, int(q * len(part)))])
            for number, part in enumerate(slices)
            if part
        )
        if len(points) > 1:
            series.append(ChartSeries(name, points))
    if not series:
        return None
    title = f"First token over the run, {step.name}"
    return PlanChart(title, "seconds since the warm-up", "milliseconds", tuple(series))


def _by_replica(one: StepSummary) -> PlanChart:
    points = tuple((float(i), float(own.requests)) for i, own in enumerate(one.by_replica))
    return PlanChart(
        f"Requests by replica, {one.step.name}",
        "",
        "requests",
        (ChartSeries("requests", points),),
        ChartKind.BARS,
        tuple(own.replica for own in one.by_replica),
    )


def _scaling(held: Sequence[StepSummary]) -> PlanChart:
    ordered = sorted(held, key=lambda one: one.step.replicas or 0)
    base = ordered[0]
    per_replica = (base.output_tokens_s.value or 0.0) / (base.step.replicas or 1)
    measured = []
    spans = []
    for one in ordered:
        x, value = float(one.step.replicas or 0), one.output_tokens_s
        measured.append((x, value.value or 0.0))
        if value.low is not None and value.high is not None:
            spans.append((x, value.low, value.high))
    ideal = tuple((x, x * per_replica) for x, _ in measured)
    series = (
        ChartSeries("measured", tuple(measured), tuple(spans)),
        ChartSeries("in proportion", ideal),
    )
    return PlanChart("Throughput by replicas", "replicas in service", "output tokens/s", series)


__all__ = ["charts_of", "distribution", "quantile_curve"]
