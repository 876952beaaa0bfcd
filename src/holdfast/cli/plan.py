"""``holdfast plan``: how many spare replicas a fleet needs."""

import json
from typing import Any, Final

import click
from rich import box
from rich.table import Table
from rich.text import Text

from holdfast.core.types import ConfigError
from holdfast.planner import RedundancyPlan, redundancy
from holdfast.ui.terminal.console import money, stdout

_NEED_MAX: Final = 10_000  # replicas; the sums take minutes beyond

# Core fields whose option has another name; the others are spelled alike.
_OPTIONS: Final = {"capacity.a": "--availability", "capacity.zone_a": "--zone-availability"}


@click.group()
def plan() -> None:
    """Plan capacity: how many spare replicas are enough.

    \b
    Example:
      holdfast plan redundancy --need 8 --availability 0.99 --target 0.999
    """  # noqa: D301


@plan.command("redundancy")
@click.option(
    "--need",
    type=click.IntRange(1, _NEED_MAX),
    required=True,
    help="Replicas that must be up to carry the load.",
)
@click.option("--availability", type=float, required=True, help="Share of time one replica is up.")
@click.option("--target", type=float, required=True, help="Share of time the load must be carried.")
@click.option(
    "--correlation",
    type=float,
    default=0.0,
    show_default=True,
    help="How much replicas of one zone fail together: 0 not at all, near 1 all at once.",
)
@click.option(
    "--zones",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Zones over which the replicas are spread evenly.",
)
@click.option(
    "--zone-availability",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of time a zone as a whole is up.",
)
@click.option("--cost-per-hour", type=float, help="Price of one replica, in any currency.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def plan_redundancy(ctx: click.Context, /, *, as_json: bool, **fleet: Any) -> None:
    """Find the smallest number of spares that reaches an availability target.

    The answer stands beside its neighbours and beside what simpler formulas would have bought.
    In the JSON object: spares, availability, monthly_cost (of the spares), rows, notes and more.

    \b
    Examples:
      holdfast plan redundancy --need 20 --availability 0.995 --target 0.999
      holdfast plan redundancy --need 8 --availability 0.99 --target 0.9999 \\
        --zones 3 --zone-availability 0.999 --cost-per-hour 2
      holdfast plan redundancy --need 20 --availability 0.995 --target 0.999 \\
        --correlation 0.05 --json
    """  # noqa: D301
    try:
        found = redundancy(**fleet)
    except ConfigError as error:
        raise click.UsageError(
            f"{_option(ctx, error.field)} {error.problem}; {error.fix}"
        ) from error
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _show_redundancy(found)


def _option(ctx: click.Context, field: str) -> str:
    """How the user spells a field of the core."""
    spelled = _OPTIONS.get(field, "--" + field.rpartition(".")[2].replace("_", "-"))
    known = {name for parameter in ctx.command.params for name in parameter.opts}
    return spelled if spelled in known else field


def _show_redundancy(found: RedundancyPlan) -> None:
    """Print the plan beside its neighbours and beside what simpler rules would have bought."""
    console = stdout()
    console.print(
        f"{found.need} replicas needed, each up {found.replica_availability:.9g} of the time; "
        f"target {found.target:.12g}"
    )
    console.print(_redundancy_table(found))
    spread = " + ".join(str(size) for size in found.zone_sizes)
    where = f", {spread} over {found.zones} zones" if found.zones > 1 else ""
    console.print(
        Text(f"Run {found.replicas}: {found.need} and {_spares(found.spares)}{where}.", "bold")
    )
    if found.monthly_cost is not None:
        console.print(f"The spares cost {money(found.monthly_cost)} a month.")
    for rule in found.alternatives:
        verdict = "reaches" if rule.availability >= found.target else "misses"
        claim = "" if rule.claimed is None else f", claims {_share(rule.claimed)}"
        console.print(
            f"By {rule.rule}: {_spares(rule.spares)}{claim}, gives {_share(rule.availability)}, "
            f"{verdict} the target."
        )
    for note in found.notes:
        console.print()
        console.print(note)


def _redundancy_table(found: RedundancyPlan) -> Table:
    priced = found.monthly_cost is not None
    dependent = any(row.independent is not None for row in found.rows)
    headings = ["spares", "replicas", "availability", "nines"]
    headings += ["cost/month"] if priced else []
    headings += ["if independent"] if dependent else []
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ["", *headings]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        chosen = row.spares == found.spares
        cells = [">" if chosen else "", str(row.spares), str(row.replicas)]
        cells += [_share(row.availability), "" if row.nines is None else f"{row.nines:.2f}"]
        cells += [money(row.monthly_cost)] if row.monthly_cost is not None else []
        cells += [_share(row.independent)] if row.independent is not None else []
        table.add_row(*cells, style="bold" if chosen else "")
    return table


def _share(value: float) -> str:
    """Nine digits, cut and not rounded: 0.9999999999 must not look like always."""
    return f"{value:.12f}"[:-3]


def _spares(count: int) -> str:
    return f"{count} spare" if count == 1 else f"{count} spares"


__all__ = ["plan"]
