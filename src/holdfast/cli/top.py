"""``holdfast top``: the joined view, as a screen, as text, or as JSON."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Final

import click
import orjson
from rich.console import Console

from holdfast.cli.admin_port import (
    Admin,
    admin_of,
    read_fleet_file,
    way_out,
    which_admin,
    which_fleet,
    why,
)
from holdfast.control.fetch import FetchError, fetch
from holdfast.core.view.snapshot import Snapshot
from holdfast.ui.terminal.console import stdout
from holdfast.ui.terminal.top.link import Link, LinkError, decode
from holdfast.ui.terminal.untrusted_text import escape_json

DEADLINE_S: Final = 5.0
_WIDTH: Final = click.IntRange(40, 1_000)


@click.command()
@click.option("--once", is_flag=True, help="Print the overview as text and end.")
@click.option("--json", "as_json", is_flag=True, help="Print the snapshot as one JSON object.")
@click.option(
    "--width", type=_WIDTH, help="Columns of the text. Default: the terminal's, or 80 in a pipe."
)
@click.option(
    "--theme",
    type=click.Choice(["auto", "light", "dark"]),
    default="auto",
    show_default=True,
    help="Colours of the screen; auto goes by $COLORFGBG.",
)
@which_admin
@which_fleet
def top(
    url: str | None,
    token_env: str,
    ca: Path | None,
    config: Path | None,
    state_dir: Path | None,
    width: int | None,
    theme: str,
    *,
    once: bool,
    as_json: bool,
) -> None:
    """Show the whole fleet on one screen that stays up to date.

    Groups, hosts, replicas, models, queues and incidents. Press ? for the keys. With --once or
    --json it prints what it would show, and needs no control: where none runs, it reads the sources
    of the fleet file itself.

    \b
    Examples:
      holdfast top
      holdfast top --once
      holdfast top --once --width 160
      holdfast top --once --json -c fleet.yaml
    """  # noqa: D301
    admin = admin_of(url, token_env, config, state_dir, ca)
    alone = config if (once or as_json) and url is None else None
    body = _view(admin, alone, token_env)
    if as_json:
        click.echo(escape_json(json.dumps(orjson.loads(body))))
    elif once:
        _print(_decoded(body), width)
    else:
        _screen(admin, _decoded(body), theme)


def _view(admin: Admin, config: Path | None, token_env: str) -> bytes:
    """The snapshot as JSON: control's; where none runs, our own."""
    asking = fetch(admin.url.rstrip("/"), "/view", DEADLINE_S, bearer=admin.token, tls=admin.tls)
    try:
        answer = asyncio.run(asking)
    except FetchError as error:
        if config is not None and error.what == "refused":
            return orjson.dumps(_read_alone(config))
        fix = way_out(error, admin.url)
        if config is None and error.what == "refused":
            fix += " Without it, 'holdfast top --once -c FILE' reads the sources itself"
        raise click.ClickException(f"{admin.url}: {error}; {fix}") from error
    if answer.status == 401:
        given = "is wrong" if admin.token else "is not set"
        raise click.ClickException(f"{admin.url}: {why(answer)}; ${token_env} {given}")
    if answer.status == 404:
        told = f"{admin.url}: this control has no /view; it is older than this command"
        raise click.ClickException(told)
    if answer.status != 200:
        raise click.ClickException(f"{admin.url}: {why(answer)}")
    return answer.body


def _read_alone(config: Path) -> Any:
    """One reading of each source, without a control."""
    from holdfast.wire.view_sources import read_once  # noqa: PLC0415 heavy to import

    return asyncio.run(read_once(read_fleet_file(config)))


def _decoded(body: bytes) -> Snapshot:
    try:
        return decode(body)
    except LinkError as error:
        raise click.ClickException(f"{error}; are both of the same version?") from error


def _print(snapshot: Snapshot, width: int | None) -> None:
    from holdfast.ui.terminal.top.once import show_once  # noqa: PLC0415 as above

    console: Console = stdout()
    if width is not None:
        console.width = width
    show_once(snapshot, console)


def _screen(admin: Admin, first: Snapshot, theme: str) -> None:
    if not os.isatty(0) or not os.isatty(1):
        raise click.UsageError("this is no terminal; use --once or --json")
    from holdfast.ui.terminal.top.app import TopApp  # noqa: PLC0415 0.3 s that text does without
    from holdfast.ui.terminal.top.colours import is_dark  # noqa: PLC0415

    TopApp(
        Link(admin.url, admin.token, admin.tls), dark=is_dark(theme, os.environ), first=first
    ).run()


__all__ = ["top"]
