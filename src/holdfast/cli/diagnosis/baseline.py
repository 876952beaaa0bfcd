"""``holdfast baseline``: how a model's healthy answers are distributed, and orders about it."""

import json
from typing import Any, Final
from urllib.parse import quote

import click
from rich.text import Text

from holdfast.cli.admin_port import Admin, asks_admin, why_not
from holdfast.ui.terminal.console import stdout
from holdfast.ui.terminal.untrusted_text import escape

_TITLES: Final = (
    *("revision", "statistic", "version", "samples", "mean", "sd", "p95"),
    *("mean now", "p95 now", "drift"),
)


@click.group()
def baseline() -> None:
    """Show, accept or reset what a model's answers are compared with.

    Lengths, log probabilities, norms of embeddings, scores of rankings, tensors and classes are
    held against a frozen baseline of healthy answers; what moved away from it is an incident.

    \b
    Examples:
      holdfast baseline show classifier
      holdfast baseline accept classifier --why "new customers, other texts"
    """  # noqa: D301


@baseline.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@asks_admin
def show(admin: Admin, model: str, *, as_json: bool) -> None:
    """Show a model's baselines beside its latest answers.

    Drift is how far the answers have moved, as a share of what opens an incident.

    \b
    Example:
      holdfast baseline show classifier
    """  # noqa: D301
    answer = admin.ask(f"/models/{quote(model)}/baseline")
    if answer.status != 200:
        raise click.ClickException(why_not(admin, answer, "models", model))
    found = json.loads(answer.body)
    if as_json:
        click.echo(json.dumps(found))
        return
    rows = found.get("baselines") or []
    console = stdout()
    if not rows:
        console.print(f"{escape(model)}: no answer was measured yet")
        return
    shown = [_TITLES, *map(_cells, rows)]
    widths = [max(len(row[place]) for row in shown) for place in range(len(_TITLES))]
    for number, row in enumerate(shown):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.print(Text("  ".join(cells).rstrip(), "dim" if number == 0 else ""), soft_wrap=True)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    learned = row["state"] == "frozen"
    samples = str(row["samples"]) if learned else f"{row['samples']} of {row['needed']}"
    drift = _drift(row) if learned else "learning"
    figures = ("mean", "sd", "p95", "latest_mean", "latest_p95")
    told = (escape(str(row["revision"])), escape(str(row["statistic"])), str(row["version"]))
    return (*told, samples, *(_number(row[name]) for name in figures), drift)


def _drift(row: dict[str, Any]) -> str:
    level = f"{min(9.99, row['level'] or 0.0):.0%}"
    return f"{level}, moved {escape(row['moved'])}" if row["moved"] else level


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


_because = click.option(
    "--why", "reason", required=True, metavar="TEXT", help="The reason, for the audit trail."
)


@baseline.command()
@click.argument("model")
@_because
@asks_admin
def accept(admin: Admin, model: str, reason: str) -> None:
    """Take a model's latest answers for its new baseline.

    For a change that is meant: other users, another prompt, a better model under the same
    revision. Each baseline needs 100 answers since it was frozen; others stay as they are.

    \b
    Example:
      holdfast baseline accept classifier --why "new customers, other texts"
    """  # noqa: D301
    _order(admin, model, "accept", reason)


@baseline.command()
@click.argument("model")
@_because
@asks_admin
def reset(admin: Admin, model: str, reason: str) -> None:
    """Drop a model's baselines and learn them anew.

    For a baseline that was learned from ill answers. Until the new one is frozen, a day by
    default, no drift of the model is told.

    \b
    Example:
      holdfast baseline reset classifier --why "learned during the outage"
    """  # noqa: D301
    _order(admin, model, "reset", reason)


def _order(admin: Admin, model: str, what: str, reason: str) -> None:
    body = json.dumps({"why": reason}).encode()
    answer = admin.ask(f"/models/{quote(model)}/baseline/{what}", body=body)
    if answer.status != 202:
        raise click.ClickException(why_not(admin, answer, "models", model))
    click.echo(escape(json.loads(answer.body)["reason"]))


__all__ = ["baseline"]
