"""The commands of ``holdfast plan``, made of the fields of each plan.

The options of each plan are the fields of ``holdfast.planner.PLANS``; what is missing is asked
for in a terminal, and named with exit status 2 elsewhere.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich import box
from rich.table import Table
from rich.text import Text

from holdfast.cli.plan.fleet import OPTIONS as FLEET_OPTIONS
from holdfast.cli.plan.fleet import figures_of_fleet
from holdfast.cli.plan.history import OPTIONS as HISTORY_OPTIONS
from holdfast.cli.plan.history import figures_of_history
from holdfast.core.types import ConfigError
from holdfast.planner import PLANS
from holdfast.planner.answer import PlanAnswer, PlanTable
from holdfast.planner.charts.png import png
from holdfast.planner.charts.svg import svg
from holdfast.planner.question import FieldKind, PlanField, PlanKind, UnderspecifiedError
from holdfast.ui.terminal.console import stdout

_EXTRA: Final[Mapping[str, tuple[click.Option, ...]]] = {
    "redundancy": HISTORY_OPTIONS,
    "capacity": FLEET_OPTIONS,
}  # of plans that may ask a running fleet
_PLOTS: Final = (".svg", ".png")


@click.group()
def plan() -> None:
    """Plan a fleet before it is bought: replicas, spares, memory.

    Every plan prints a table and a verdict; --explain adds the calculation with its numbers.

    \b
    Examples:
      holdfast plan redundancy --need 8 --availability 0.99 --target 0.999
      holdfast plan memory --model llama-3.1-70b --device h100-80gb --explain
    """  # noqa: D301


_HELP: Final[Mapping[str, str]] = {
    "redundancy": """Find the smallest number of spares that reaches an availability target.

    The answer stands beside its neighbours and beside what simpler formulas would have bought.
    One replica's availability is given, or follows from --mtbf with --detect and --repair, from
    --spot-notice, or from the history of the fleet that runs. With a price it tells what each
    nine costs; with --region-availability one region is compared with several.
    In the JSON object: spares, availability, monthly_cost (of the spares), rows, notes and more.

    \b
    Examples:
      holdfast plan redundancy --need 20 --availability 0.995 --target 0.999
      holdfast plan redundancy --need 8 --mtbf 4h --repair 5m --spot-notice 2m \\
        --target 0.999 --simulate
      holdfast plan redundancy --need 20 --availability 0.995 --target 0.9999 \\
        --region-availability 0.9995 --regions 3 --cost-per-hour 2
      holdfast plan redundancy --need 8 --availability 0.99 --target 0.9999 \\
        --zones 3 --zone-availability 0.999 --cost-per-hour 2
      holdfast plan redundancy --need 20 --availability 0.995 --target 0.999 \\
        --correlation 0.05 --json
    """,
    "capacity": """Find how many replicas carry a traffic within its latency objectives.

    By formula first (Little, Erlang C); --simulate runs the gateway's own policies to confirm.
    The engine's speed comes from a table, a benchmark's file, or the milliseconds given.

    \b
    Examples:
      holdfast plan capacity --rate 40 --prompt 500 --output 200 \\
        --speed vllm-llama-3.1-8b --first-token 1s --latency 8s --simulate
      holdfast plan capacity --users 10000 --prompt 500 --output 200 \\
        --speed router-example --split --first-token 100ms --latency 2s
    """,
    "coldstart": """Find when replicas have loaded: all at once, in turn, or on fewer hosts.

    Bandwidth and credits of the filesystem, what one loader can read, and the page cache of hosts.
    The answer's fleet-file keys set how many replicas of a host load at a time.

    \b
    Examples:
      holdfast plan coldstart --replicas 40 --size 10GB --bandwidth 100MB
      holdfast plan coldstart --replicas 40 --size 10GB --bandwidth 100MB \\
        --models 10 --hosts 20 --packed-hosts 2 --explain
    """,
    "parallelism": """Compare tensor, pipeline and data parallel over the same devices.

    Bytes of all-reduces, links inside and between hosts, the pipeline's bubble, and what fits.

    \b
    Examples:
      holdfast plan parallelism --model llama-3.1-70b --device h100-80gb
      holdfast plan parallelism --model llama-3.1-70b --device h100-80gb \\
        --devices 16 --token-budget 20ms --explain
    """,
    "memory": """Find what a model holds in memory, and the smallest layout that fits.

    Weights at their quantisation, KV cache, activations and overheads; what to reserve in ECS, in
    Kubernetes and in a fleet file. The JSON object has tensor, pipeline, kv_tokens, snippets.

    \b
    Examples:
      holdfast plan memory --model llama-3.1-70b --device h100-80gb
      holdfast plan memory --model llama-2-7b --device l4 --explain
      holdfast plan memory --parameters 880M --quantisation fp16 --device cpu \\
        --buffers 740MB --overhead 1GB --host-memory 31GB --reservation 1GB
    """,
}


class _FieldType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value of a plan's field, with its unit."""

    def __init__(self, field: PlanField) -> None:
        self.field = field
        self.name = "path" if field.kind is FieldKind.FILE else field.kind.value

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value in base units."""
        try:
            return self.field.read(value)
        except ConfigError as error:
            self.fail(f"{error.problem}; {error.fix}", param, ctx)


def _options(kind: PlanKind) -> list[click.Parameter]:
    options: list[click.Parameter] = []
    for field in kind.fields:
        told = field.help
        if field.choices:
            told = f"{told.rstrip('.')}: {', '.join(field.choices)}."
        if field.default not in (None, False):
            told += f"  [default: {field.default}]"
        if field.kind is FieldKind.FLAG:
            options.append(click.Option([field.option], is_flag=True, default=None, help=told))
        else:
            options.append(click.Option([field.option], type=_FieldType(field), help=told))
    options += _EXTRA.get(kind.name, ())
    options.append(click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."))
    options.append(
        click.Option(["--explain"], is_flag=True, help="Show each formula with its numbers.")
    )
    options.append(
        click.Option(
            ["--plot"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write the plan's chart to this file, .svg or .png.",
        )
    )
    return options


def _command(kind: PlanKind) -> click.Command:
    extra = _EXTRA.get(kind.name, ())

    def run(*, as_json: bool, explain: bool, plot: Path | None, **given: Any) -> None:
        if plot is not None and plot.suffix.lower() not in _PLOTS:
            raise click.UsageError(f"--plot {plot} has another ending than {' or '.join(_PLOTS)}")
        more = {option.name: given.pop(option.name) for option in extra if option.name in given}
        if more.get("from_history"):
            given |= figures_of_history(more)
        if more.get("from_fleet"):
            given |= figures_of_fleet(more, given)
        answer = ask(kind, given)
        if as_json:
            click.echo(json.dumps(answer.to_dict(), indent=2))
        else:
            show(answer, explain=explain)
        if plot is not None:
            draw(answer, plot)

    return click.Command(kind.name, callback=run, params=_options(kind), help=_HELP[kind.name])


def ask(kind: PlanKind, given: Mapping[str, Any]) -> PlanAnswer:
    """Answer a question; what is missing is asked for where somebody sits at a terminal."""
    known = dict(given)
    while True:
        try:
            return kind.ask(known)
        except UnderspecifiedError as error:
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                told = ", ".join(f"{one.option} ({_lower(one.help)})" for one in error.fields)
                raise click.UsageError(f"missing: {told}") from error
            for field in error.fields:
                known[field.name] = click.prompt(field.help.rstrip("."), type=_FieldType(field))
        except ConfigError as error:
            fields = {one.name: one.option for one in kind.fields}
            name = fields.get(error.field, error.field)
            raise click.UsageError(f"{name} {error.problem}; {error.fix}") from error


def _lower(text: str) -> str:
    """The beginning of a help text, without what it lists."""
    return text[:1].lower() + text[1:].partition(":")[0].rstrip(".")


def show(answer: PlanAnswer, *, explain: bool) -> None:
    """Print an answer: tables, verdict, remarks and notes; with ``explain`` the calculation too."""
    console = stdout()
    console.print(answer.opening)
    for table in answer.tables:
        console.print(_table(table))
    console.print(Text(answer.verdict, "bold"))
    for remark in answer.remarks:
        console.print(remark)
    if explain:
        _show_steps(answer)
    for snippet in answer.snippets:
        console.print()
        console.print(f"{snippet.title}:")
        for line in snippet.text.splitlines():
            console.print(f"    {line}", soft_wrap=True)
    for note in answer.notes:
        console.print()
        console.print(note)


def _show_steps(answer: PlanAnswer) -> None:
    console = stdout()
    for step in answer.steps:
        console.print()
        console.print(Text(step.what, "bold"))
        console.print(f"    {step.formula}")
        console.print(f"    {step.numbers}")


def _table(held: PlanTable) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    marks = held.marked is not None
    for place, heading in enumerate([*([""] if marks else []), *held.headings]):
        words = place - marks < held.text_columns
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for number, row in enumerate(held.rows):
        chosen = number == held.marked
        mark = [">" if chosen else ""] if marks else []
        table.add_row(*mark, *row, style="bold" if chosen else "")
    return table


def draw(answer: PlanAnswer, path: Path) -> None:
    """Write the first chart of an answer to a file."""
    try:
        if path.suffix.lower() == ".png":
            path.write_bytes(png(answer.charts[0]))
        else:
            path.write_text(svg(answer.charts[0]), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    click.echo(f"{path}: {answer.charts[0].title}", err=True)


for _kind in PLANS.values():
    plan.add_command(_command(_kind))


__all__ = ["plan"]
