"""``holdfast cost``: what a running fleet has cost, by model, tenant and route."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.table import Table

from holdfast.cli.admin_port import Admin, asks_admin
from holdfast.ui.terminal.console import duration, money, stdout

_SHARE_MIN: Final = 0.0005  # of the whole; below it a share is not worth a digit


@click.command()
@click.option("--lines", "shown", type=click.IntRange(0, 1_000), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@asks_admin
def cost(admin: Admin, shown: int, *, as_json: bool) -> None:
    """Show what GPUs and tokens cost, useful and wasted apart.

    By model, tenant and route, since the fleet's control began. Prices come from the fleet file;
    without them there are GPU-seconds and tokens.

    \b
    Examples:
      holdfast cost
      holdfast cost --json
    """  # noqa: D301
    told = admin.told("/cost")
    if as_json:
        click.echo(json.dumps(told))
        return
    console = stdout()
    currency = str(told.get("currency", ""))
    console.print(f"the last {duration(float(told.get('seconds', 0)))}, amounts in {currency}")
    if not told.get("priced"):
        console.print("the fleet file has no 'prices': amounts are zero", style="dim")
    _show_models(told.get("models") or ())
    if shown:
        _show_lines((told.get("lines") or ())[:shown])


def _show_models(models: Sequence[Mapping[str, Any]]) -> None:
    console = stdout()
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("model")
    for name in ("GPU", "cost", "useful", "wasted", "idle", "sold for"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in models:
        whole = float(one["gpu_seconds"])
        spent = one["seconds_by_use"]
        # What starts is idle as well, for whoever looks at a bill; --json tells them apart.
        idle = float(spent.get("idle", 0.0)) + float(spent.get("starting", 0.0))
        useful = float(spent.get("useful", 0.0))
        under_way = float(spent.get("under_way", 0.0))
        wasted = whole - idle - useful - under_way
        table.add_row(
            str(one["model"]),
            duration(whole),
            money(float(one["cost"])),
            _share(useful, whole),
            _share(wasted, whole),
            _share(idle, whole),
            money(float(one["charged"])),
        )
    console.print(table if models else "no replica has run yet")


def _show_lines(lines: Sequence[Mapping[str, Any]]) -> None:
    if not lines:
        return
    console = stdout()
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("tenant", "model", "route", "use"):
        table.add_column(name, overflow="fold")
    for name in ("read", "said", "GPU", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in lines:
        table.add_row(
            str(one["tenant"]),
            str(one["model"]),
            str(one["route"]),
            str(one["use"]),
            f"{int(one['input_tokens']):,}",
            f"{int(one['output_tokens']):,}",
            duration(float(one["gpu_seconds"])),
            money(float(one["cost"])),
        )
    console.print(table)


def _share(part: float, whole: float) -> str:
    share = part / whole if whole > 0 else 0.0
    return f"{share:.1%}" if share >= _SHARE_MIN else "–"


__all__ = ["cost"]
