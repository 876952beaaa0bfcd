"""Prints a simulation's results as tables: one block per phase of the faults, one row per policy.

The strips show the share of requests answered well over time, so that one sees at a glance when a
fleet went down, how far, and when it came back.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from holdfast.sim.results import PHASES
from holdfast.sim.run import Interval, Outcome
from holdfast.sim.scenario import Scenario
from holdfast.ui.terminal.console import duration, stderr, stdout

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_DETECTIONS_SHOWN: Final = 12
_TITLES: Final = {
    "before": "before the faults",
    "during": "during the faults",
    "after": "after the faults",
}
_HEADINGS: Final = ("good %", "in SLO %", "errors", "wasted", "tries", "TTFT p99", "all p99")


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr while runs are under way; none where it is not a terminal."""
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    shown = console.is_terminal
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not shown
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show_simulation(scenario: Scenario, seed: int, outcomes: Sequence[Outcome]) -> None:
    """Print the results of every variant."""
    console = stdout()
    console.print(Text(scenario.name, "bold"))
    if scenario.description:
        console.print(scenario.description)
    runs = outcomes[0].runs
    offered = runs[0]["total"]["offered"]
    seeds = f"seed {seed}" if len(runs) == 1 else f"seeds {seed} to {seed + len(runs) - 1}"
    console.print(
        f"{scenario.duration:g} s simulated, {seeds}, {offered:,} requests in the first run"
    )
    console.print(_table(outcomes))
    _show_reuse(console, outcomes)
    _show_strips(console, outcomes)
    if len(runs) == 1:
        _show_detections(console, outcomes[0])
        _show_incidents(console, outcomes[0])


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("policy", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    phases = [
        phase for phase in PHASES if any(o.figure("phases", phase, "goodput") for o in outcomes)
    ]
    for phase in phases:
        if len(phases) > 1:
            table.add_row(Text(_TITLES[phase], "italic"))
        for outcome in outcomes:
            table.add_row(*_row(outcome, phase))
        table.add_section()
    return table


def _row(outcome: Outcome, phase: str) -> list[str]:
    def figure(*path: str) -> Interval | None:
        return outcome.figure("phases", phase, *path)

    refused, failed = figure("refused"), figure("failed")
    errors = "–" if refused is None or failed is None else f"{refused.mean + failed.mean:,.0f}"
    return [
        outcome.variant,
        _percent(figure("goodput")),
        _plain(figure("slo_attainment"), ".2f", 100.0),
        errors,
        _count(figure("wasted_calls")),
        _plain(figure("amplification"), ".3f"),
        _time(figure("first_token_s", "p99")),
        _time(figure("latency_s", "p99")),
    ]


def _percent(figure: Interval | None) -> str:
    if figure is None:
        return "–"
    spread = f" ±{figure.half * 100:.2f}" if figure.half else ""
    return f"{figure.mean * 100:.2f}{spread}"


def _count(figure: Interval | None) -> str:
    if figure is None:
        return "–"
    return f"{figure.mean:,.0f}" + (f" ±{figure.half:,.0f}" if figure.half else "")


def _plain(figure: Interval | None, form: str, scale: float = 1.0) -> str:
    return "–" if figure is None else format(figure.mean * scale, form)


def _time(figure: Interval | None) -> str:
    return "–" if figure is None else duration(figure.mean)


def _show_reuse(console: Any, outcomes: Sequence[Outcome]) -> None:
    """The share of prompt blocks that prefix caches had, where engines have one."""
    found = [(outcome.variant, outcome.figure("prefix_reuse")) for outcome in outcomes]
    told = [f"{name} {_percent(figure)} %" for name, figure in found if figure is not None]
    if told:
        console.print(f"prompt blocks found in prefix caches: {', '.join(told)}")


def _show_strips(console: Any, outcomes: Sequence[Outcome]) -> None:
    """The share answered well, from the first second to the last."""
    width = max(len(outcome.variant) for outcome in outcomes)
    console.print("requests answered well, over time (full block = all of them)")
    for outcome in outcomes:
        console.print(f"  {outcome.variant:<{width}}  {strip(outcome.runs[0]['timeline'])}")


def strip(shares: Sequence[float | None]) -> str:
    """Draw shares over time, one block per slice; a dot where no request came."""
    top = len(_BLOCKS) - 1
    return "".join("·" if share is None else _BLOCKS[round(share * top)] for share in shares)


def _show_detections(console: Any, outcome: Outcome) -> None:
    detections = outcome.runs[0]["detections"]
    if not detections:
        return
    console.print(f"\nfaults, and when {outcome.variant} noticed")
    for seen in detections[:_DETECTIONS_SHOWN]:
        where = f"  {seen['began_s']:>6.1f} s {seen['fault']:<12} {seen['replica']:<8}"
        if seen["time_to_detect_s"] is None:
            console.print(f"{where} not acted on ({seen['requests_sent']} sent there)")
        else:
            lag = duration(seen["time_to_detect_s"])
            console.print(f"{where} {lag:>8}  {seen['by']} ({seen['requests_sent']} sent there)")
    left = len(detections) - _DETECTIONS_SHOWN
    if left > 0:
        console.print(f"  … and {left} more (--json has all)")


def _show_incidents(console: Any, outcome: Outcome) -> None:
    """What diagnosis would have opened, against what was injected."""
    told = outcome.runs[0].get("incidents")
    if told is None:
        return
    opened, missed = told["opened"], [one for one in told["faults"] if one["incident"] is None]
    if not opened and not missed:
        return
    console.print(f"\nincidents that {outcome.variant} would have opened")
    for one in opened[:_DETECTIONS_SHOWN]:
        cause = f"{one['class']}, {one['cause'].replace('_', ' ')}"
        truth = "no fault explains it"
        if one["fault"] is not None:
            truth = f"{one['verdict']}: {one['fault']}, after {duration(one['delay_s'])}"
        whom = ", ".join(one["replicas"]) or one["about"]
        console.print(f"  {one['opened_s']:>6.1f} s {whom:<12} {cause} ({truth})")
    left = len(opened) - _DETECTIONS_SHOWN
    if left > 0:
        console.print(f"  … and {left} more (--json has all)")
    for one in missed[:_DETECTIONS_SHOWN]:
        console.print(f"  missed: {one['fault']} of {one['target']} from {one['began_s']:.1f} s")


__all__ = ["progress_bar", "show_simulation", "strip"]
