"""``holdfast twin sweep``: many versions of a fleet, and which of them are worth having."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich import box
from rich.table import Table

from holdfast.cli.twin.questions import Question, asks_twin, values_of
from holdfast.core.types import ConfigError
from holdfast.planner.answer import PlanChart
from holdfast.planner.charts.png import png
from holdfast.planner.charts.svg import svg
from holdfast.planner.charts.sweep import SweptPoint, sweep_chart
from holdfast.twin.sweep import TRAFFIC_AXIS, Axis, SweepAnswer, SweepPoint, sweep_fleet
from holdfast.twin.what_if import Change, duration_for, rate_of
from holdfast.ui.terminal.console import duration, stdout
from holdfast.ui.terminal.simulation import progress_bar

_GOALS: Final = {
    "slo": ("slo_attainment", "answers within the SLO, %"),
    "goodput": ("goodput", "answered well, %"),
    "ttft-p99": ("first_token_p99_s", "first token, 99 %, s"),
    "ttft-p95": ("first_token_p95_s", "first token, 95 %, s"),
    "latency-p95": ("latency_p95_s", "whole answer, 95 %, s"),
}
_SHOWN: Final = 40


@click.command("sweep")
@asks_twin
@click.option(
    "--vary",
    "axes",
    multiple=True,
    required=True,
    help="NAME=VALUES: replicas=2..6, routing=power_of_two,least_loaded, hedge=true,false, "
    "deadline=10,30, traffic=1,2, or any KEY of the fleet file; may be repeated.",
)
@click.option(
    "--goal",
    type=click.Choice(list(_GOALS)),
    default="ttft-p99",
    show_default=True,
    help="What is weighed against cost.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the chart of cost and service to this file, .svg or .png.",
)
def sweep_command(*, axes: Sequence[str], goal: str, plot: Path | None, **given: Any) -> None:
    """Try every combination of settings in the simulator; find which ones nothing beats.

    All combinations see the same arrivals and faults, on all cores. Cost is that of the replicas by
    the file's prices, or their number where it has none. A '>' marks the versions that no other
    one beats in both cost and service.

    \b
    Examples:
      holdfast twin sweep --twin twin.json --vary replicas=2..6 --plot s.svg
      holdfast twin sweep --twin twin.json --vary hedge=true,false --json
    """  # noqa: D301
    if plot is not None and plot.suffix.lower() not in (".svg", ".png"):
        raise click.UsageError(f"--plot {plot} has another ending than .svg or .png")
    question = Question(given)
    varied = [_axis(question, text) for text in axes]
    rate = rate_of(question.baseline.fleet(question.text).traffic)
    most = max((v for a in varied if a.label == TRAFFIC_AXIS for v in a.values), default=1.0)
    span = question.plan.duration_s or duration_for(rate * given["traffic"] * _number(most))
    change = Change(question.settings(), given["traffic"], question.faults(span))
    figure, label = _GOALS[goal]
    with progress_bar("simulating") as progress:
        answer = sweep_fleet(
            question.baseline, varied, change, question.plan, goal=figure, progress=progress
        )
    if given["as_json"]:
        click.echo(json.dumps(answer.to_dict()))
    else:
        _show(answer, label)
    if plot is not None:
        _draw(chart_of(answer, label), plot)


def _axis(question: Question, text: str) -> Axis:
    name, values = values_of(text)
    short = {
        "routing": (question.key("routing"),),
        "deadline": (question.key("deadlines.request_s"),),
        "hedge": ("hedge.enabled",),
        TRAFFIC_AXIS: (),
    }
    if name == "replicas":
        bad = [one for one in values if not isinstance(one, int) or one < 1]
        if bad:
            raise ConfigError("--vary replicas", f"has {bad[0]!r}", "use 1 or more replicas")
        return Axis(name, (question.replicas_key(),), values)
    if name in short:
        return Axis(name, short[name], values)
    return Axis(name, (name,), values)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 1.0


def chart_of(answer: SweepAnswer, label: str) -> PlanChart:
    """The chart of a sweep's points."""
    share = not answer.goal.endswith("_s")
    points = [
        SweptPoint(
            point.cost,
            point.figures[answer.goal].mean * (100.0 if share else 1.0),
            _named(point),
            point.best,
        )
        for point in answer.points
        if answer.goal in point.figures
    ]
    title = f"{len(points)} versions of the fleet at {answer.requests_s:.3g} requests/s"
    return sweep_chart(points, title, f"cost, {answer.cost_label}", label, log_service=not share)


def _named(point: SweepPoint) -> str:
    told = {True: "true", False: "false"}
    return " ".join(
        f"{name}={told.get(value, value) if isinstance(value, bool) else value}"
        for name, value in point.values.items()
    )


def _show(answer: SweepAnswer, label: str) -> None:
    console = stdout()
    console.print(
        f"{len(answer.points)} versions, {duration(answer.duration_s)} of traffic, "
        f"{answer.seeds} seeds each"
    )
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("")
    table.add_column("version")
    for heading in (answer.cost_label, label, "±", "good %"):
        table.add_column(heading, justify="right")
    for point in answer.points[:_SHOWN]:
        figure, good = point.figures.get(answer.goal), point.figures["goodput"]
        share = 1.0 if answer.goal.endswith("_s") else 100.0
        table.add_row(
            ">" if point.best else "",
            _named(point),
            f"{point.cost:g}",
            "–" if figure is None else f"{figure.mean * share:.4g}",
            "–" if figure is None else f"{figure.half * share:.2g}",
            f"{good.mean * 100:.2f}",
            style="bold" if point.best else "",
        )
    console.print(table)
    if len(answer.points) > _SHOWN:
        console.print(f"and {len(answer.points) - _SHOWN} more; --json has all")
    for note in answer.notes:
        console.print(f"- {note}")


def _draw(chart: PlanChart, path: Path) -> None:
    try:
        if path.suffix.lower() == ".png":
            path.write_bytes(png(chart))
        else:
            path.write_text(svg(chart), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    click.echo(f"{path}: {chart.title}", err=True)


__all__ = ["chart_of", "sweep_command"]
