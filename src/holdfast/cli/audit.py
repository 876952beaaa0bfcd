"""``holdfast audit`` and ``holdfast sign-in``: who gave orders, and a browser that may."""

import json
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.text import Text

from holdfast.cli.admin_port import NO_TOKEN, Admin, asks_admin, why
from holdfast.ui.terminal.console import stdout

LINES_DEFAULT: Final = 30
_TITLES: Final = ("when (UTC)", "who", "from", "status", "what", "result")


@click.command()
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 1_000),
    default=LINES_DEFAULT,
    show_default=True,
    help="How many of the newest orders.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@asks_admin
def audit(admin: Admin, lines: int, *, as_json: bool) -> None:
    """Show who gave which orders, when, and what became of them.

    Every order to the admin port leaves a row, also one that was refused: drains, scales, reloads,
    faults on purpose, closed incidents, sign-ins. The newest is the last.

    \b
    Examples:
      holdfast audit
      holdfast audit -n 5 --json
    """  # noqa: D301
    found = admin.told(f"/audit?limit={lines}")
    if as_json:
        click.echo(json.dumps(found))
        return
    rows = found.get("orders") or []
    console = stdout()
    if not rows:
        console.print("no orders were given yet")
        return
    shown = [_TITLES, *map(_cells, rows)]
    widths = [max(len(row[place]) for row in shown) for place in range(len(_TITLES) - 1)]
    for number, row in enumerate(shown):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        text = Text("  ".join([*cells, row[-1]]), "dim" if number == 0 else "")
        console.print(text, soft_wrap=True)  # a row is a line: it can be searched for


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    when = datetime.fromtimestamp(float(row["at"]), UTC).strftime("%Y-%m-%d %H:%M:%S")
    told = (row["who"], row["address"], row["status"], row["what"], row["result"])
    return (when, *map(_shown, told))


def _shown(value: object) -> str:
    """A value without anything that moves a terminal's cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(value))


@click.command("sign-in")
@click.option("--token", "as_token", is_flag=True, help="Print the token instead, for scripts.")
@asks_admin
def sign_in(admin: Admin, *, as_token: bool) -> None:
    """Print a link that signs one browser in to the dashboard.

    It works once, within ten minutes, with the roles of the token that this command has. Reading
    needs no sign-in on the machine itself, unless the fleet file closes that.

    \b
    Examples:
      holdfast sign-in
      holdfast sign-in --token
    """  # noqa: D301
    if as_token:
        if admin.token is None:
            raise click.ClickException(f"{admin.url}: its token is not known here; {NO_TOKEN}")
        click.echo(admin.token)
        return
    answer = admin.ask("/ui/link", method="POST")
    if answer.status != 201:
        raise click.ClickException(why(answer))
    click.echo(f"{admin.url.rstrip('/')}{json.loads(answer.body)['path']}")


__all__ = ["audit", "sign_in"]
