"""``holdfast twin what-if``: the fleet before and after a change, simulated in pairs."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.table import Table

from holdfast.cli.twin.questions import Question, asks_twin, seconds_of, words
from holdfast.core.types import ConfigError
from holdfast.sim.run import Interval
from holdfast.twin.arms import Difference
from holdfast.twin.what_if import Change, WhatIfAnswer, duration_for, incidents_of, rate_of, what_if
from holdfast.ui.terminal.console import duration, money, stdout
from holdfast.ui.terminal.simulation import progress_bar


@click.command("what-if")
@asks_twin
@click.option("--replicas", type=click.IntRange(0, 256), help="Replicas of the model.")
@click.option("--zones", help="Its zones, with commas between them.")
@click.option("--routing", help="Its routing policy.")
@click.option("--hedge/--no-hedge", default=None, help="Whether late requests are sent twice.")
@click.option("--deadline", help="How long one of its requests may take, such as 30s.")
@click.option("--ladder", help="Models, best first: under load the next one answers.")
@click.option("--give-up", help="What its ladder gives up, in order: quality,latency.")
@click.option("--autoscale", help="MIN..MAX replicas by its autoscaler, such as 2..6; or off.")
def what_if_command(**given: Any) -> None:
    """Simulate the running config with a change and without it, and tell the difference.

    Both fleets see the same arrivals, lengths and faults under each seed; the intervals are those
    of the differences, 95 %. A '*' marks a change that is no chance. At the end stands the diff of
    the fleet file that makes the change. With faults and no change, the fleet without them is
    compared.

    \b
    Examples:
      holdfast twin what-if -c fleet.yaml --twin twin.json --replicas 5
      holdfast twin what-if --twin twin.json --autoscale 2..6 --traffic 3
      holdfast twin what-if --twin twin.json --fault hang:m-1@60s+30s
      holdfast twin what-if --twin twin.json --set hedge.enabled=true --json
    """  # noqa: D301
    question = Question(given)
    edits = {**_edits(question, given), **question.settings()}
    rate = rate_of(question.baseline.fleet(question.text).traffic)
    span = question.plan.duration_s or duration_for(rate * max(1.0, given["traffic"]))
    change = Change(edits, given["traffic"], question.faults(span))
    if change.only_faults and not change.faults:
        fix = "give --replicas, --traffic, --set, --fault or another one"
        raise ConfigError("change", "is missing: nothing would differ", fix)
    with progress_bar("simulating") as progress:
        answer = what_if(question.baseline, change, question.plan, progress)
    if given["as_json"]:
        click.echo(json.dumps(answer.to_dict()))
    else:
        _show(answer)


def _edits(question: Question, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the fleet file that the short options stand for."""
    edits: dict[str, Any] = {}
    if given["replicas"] is not None:
        if given["replicas"] < 1:
            raise ConfigError("--replicas", "is 0: nobody would answer", "use 1 or more")
        edits[question.replicas_key()] = given["replicas"]
    if given["zones"] is not None:
        if question.section.launch is None:
            fix = "change its endpoints with --set"
            raise ConfigError("--zones", "is for models that the file launches", fix)
        edits[question.key("launch.zones")] = list(words(given["zones"]))
    if given["autoscale"] is not None:
        edits |= _autoscale(question, given["autoscale"])
    if given["routing"] is not None:
        edits[question.key("routing")] = given["routing"]
    if given["hedge"] is not None:
        edits["hedge.enabled"] = given["hedge"]
    if given["deadline"] is not None:
        edits[question.key("deadlines.request_s")] = seconds_of("--deadline", given["deadline"])
    if given["ladder"] is not None:
        rungs = list(words(given["ladder"]))
        held = [
            one.model_dump(mode="json", exclude_unset=True, by_alias=True)
            for one in question.file.virtual_models
        ]
        order = {"order": list(words(given["give_up"]))} if given["give_up"] is not None else {}
        ladder = {"degrade": {"ladder": rungs, **order}} if order else {"ladder": rungs}
        edits["virtual_models"] = [*held, {"name": f"{rungs[0]}-ladder", **ladder}]
    elif given["give_up"] is not None:
        raise ConfigError("--give-up", "is set without --ladder", "name the models of the ladder")
    return edits


def _autoscale(question: Question, given: str) -> dict[str, Any]:
    """The keys of an autoscaler with these bounds, or of none."""
    if question.section.launch is None:
        fix = "it is for models that the file launches"
        raise ConfigError("--autoscale", f"{question.model!r} is not launched", fix)
    if given == "off":
        return {question.key("scaling"): None}
    bounds = re.fullmatch(r"([0-9]{1,4})\.\.([0-9]{1,4})", given)
    if bounds is None:
        raise ConfigError(
            "--autoscale", f"is {given!r}"[:80], "write MIN..MAX, such as 2..6; or off"
        )
    low, high = int(bounds[1]), int(bounds[2])
    if question.section.scaling is None:
        return {question.key("scaling"): {"min": low, "max": high}}
    return {question.key("scaling.min"): low, question.key("scaling.max"): high}


def _show(answer: WhatIfAnswer) -> None:
    console = stdout()
    console.print(
        f"{duration(answer.duration_s)} of traffic, {answer.seeds} seeds; before: "
        f"{_arm(answer, 0)}; after: {_arm(answer, 1)}"
    )
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("")
    for heading in ("before", "after", "difference", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in answer.differences:
        if row.before is not None or row.after is not None:
            table.add_row(*_row(row), style="bold" if row.clear else "")
    console.print(table)
    console.print(_verdict(answer.differences))
    for name, outcome in (("before", answer.before), ("after", answer.after)):
        for one in incidents_of(outcome):
            console.print(
                f"incident {name}: {one['cause']}, {one['opened']} in {one['runs']} of "
                f"{answer.seeds} runs, {one['verdict'].replace('_', ' ')}"
            )
    if answer.diff:
        console.print("\nto apply (patch -p0, or by hand; then 'holdfast serve' reads it):")
        for line in answer.diff.splitlines():
            console.print(line, soft_wrap=True)
    for note in answer.notes:
        console.print(f"- {note}")


def _arm(answer: WhatIfAnswer, place: int) -> str:
    cost = answer.cost_per_hour[place]
    priced = "" if cost is None else f", {money(cost)} {answer.currency} an hour"
    return f"{answer.replicas[place]} replicas, {answer.rate[place]:.3g} requests/s{priced}"


def _row(row: Difference) -> list[str]:
    unit = row.figure.unit
    mark = "*" if row.clear else ""
    change = row.change
    cells = [_mean(row.before, unit), _mean(row.after, unit)]
    if change is None:
        return [row.figure.label, *cells, "–", ""]
    apart = f"{_amount(change.low, unit, signed=True)} to {_amount(change.high, unit, signed=True)}"
    interval = apart if change.count > 1 else "one seed: none"
    return [row.figure.label, *cells, f"{_amount(change.mean, unit, signed=True)}{mark}", interval]


def _mean(value: Interval | None, unit: str) -> str:
    return "–" if value is None else _amount(value.mean, unit)


def _amount(value: float, unit: str, *, signed: bool = False) -> str:
    sign = "+" if signed and value >= 0 else ("-" if value < 0 else "")
    size = abs(value)
    if unit == "share":
        points = " pt" if signed else " %"
        return f"{sign}{size * 100:.2f}{points}"
    if unit == "s":
        return f"{sign}{duration(size)}"
    if unit == "ratio":
        return f"{sign}{size:.3f}"
    return f"{sign}{size:,.1f}"


def _verdict(rows: Sequence[Difference]) -> str:
    """What is better and worse beyond chance, in one sentence."""
    better: list[str] = []
    worse: list[str] = []
    for row in rows:
        if row.clear and row.change is not None and row.figure.better:
            good = row.change.mean * row.figure.better > 0
            (better if good else worse).append(row.figure.label)
    if not better and not worse:
        return "No figure differs beyond chance; more seeds would tell smaller differences."
    parts = []
    if better:
        parts.append(f"better: {', '.join(better)}")
    if worse:
        parts.append(f"worse: {', '.join(worse)}")
    return f"Beyond chance {'; '.join(parts)}."


__all__ = ["what_if_command"]
