"""``holdfast down``: stop a fleet that ``holdfast up`` started."""

import os
import sys
from pathlib import Path

import click

from holdfast.cli.admin_port import which_fleet
from holdfast.wire.down import down as end
from holdfast.wire.state_dir import StateDirError, default_state_dir


@click.command()
@which_fleet
@click.option("--now", "at_once", is_flag=True, help="Do not wait for requests that run.")
def down(config: Path | None, state_dir: Path | None, *, at_once: bool) -> None:
    """Stop a fleet that 'holdfast up' started, and wait for its end.

    Requests that run are finished first. Ctrl-C ends the waiting only.

    \b
    Examples:
      holdfast down
      holdfast down -c fleet.yaml --now
    """  # noqa: D301
    place = state_dir or default_state_dir(config, os.environ)
    try:
        pid = end(place, _waiting, at_once=at_once)
    except StateDirError as error:
        raise click.ClickException(str(error)) from error
    if sys.stderr.isatty():
        click.echo(err=True)  # below the count
    click.echo(f"stopped (pid {pid})")


def _waiting(pid: int, waited_s: float) -> None:
    """On a terminal a count; elsewhere a line now and then."""
    told = f"stopping (pid {pid}): requests are finished, then replicas ended"
    if sys.stderr.isatty():
        click.echo(f"\r{told}, {waited_s:.0f} s", nl=False, err=True)
    elif waited_s % 10 == 0:
        click.echo(f"{told}, {waited_s:.0f} s", err=True)


__all__ = ["down"]
