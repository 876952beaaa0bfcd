"""``holdfast up`` and ``holdfast down``."""

import os
import sys
from pathlib import Path

import click

from holdfast import wire
from holdfast.cli.asking import TOKEN_VARIABLE, which_fleet
from holdfast.ui.terminal.starting import screen
from holdfast.wire.state_dir import default_state_dir
from holdfast.wire.up import Wish
from holdfast.wire.up import down as end
from holdfast.wire.up import up as run


@click.command()
@which_fleet
def up(config: Path | None, state_dir: Path | None) -> None:
    """Start a fleet: replicas, gateway, control; until Ctrl-C.

    Without a fleet file: three replicas of SmolLM2-135M on llama.cpp, as the model 'smollm2', at
    http://127.0.0.1:8000/v1. Its weights (93 MB) are fetched once. Replicas that die are started
    again; 'holdfast status' tells what happened.

    Ctrl-C, or SIGTERM, lets requests that run finish and then ends the replicas; a second one ends
    everything at once. What the processes log goes into a file of the state directory.

    \b
    Examples:
      holdfast up
      holdfast up -c fleet.yaml
    """  # noqa: D301
    wish = Wish(config, state_dir, os.environ.get(TOKEN_VARIABLE), sys.stdout.isatty())
    try:
        run(wish, screen())
    except (wire.AddressTakenError, wire.StateDirError, wire.ProvisionError) as error:
        raise click.ClickException(str(error)) from error


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
    except wire.StateDirError as error:
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


__all__ = ["down", "up"]
