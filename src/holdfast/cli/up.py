"""``holdfast up``: start a fleet and show its start."""

import os
import sys
from pathlib import Path

import click

from holdfast.cli.admin_port import TOKEN_VARIABLE, which_fleet
from holdfast.ui.terminal.startup_screen import screen
from holdfast.wire.provisions import ProvisionError
from holdfast.wire.sockets import AddressTakenError
from holdfast.wire.state_dir import StateDirError
from holdfast.wire.up import UpOptions
from holdfast.wire.up import up as run


@click.command()
@which_fleet
def up(config: Path | None, state_dir: Path | None) -> None:
    """Start a fleet: replicas, gateway, control; until Ctrl-C.

    Without a fleet file: three replicas of SmolLM2-135M on llama.cpp, as the model 'smollm2', at
    http://127.0.0.1:8000/v1. Its weights (93 MB) are fetched once. Replicas that die are started
    again; 'holdfast status' shows what happened.

    Ctrl-C, or SIGTERM, lets requests that run finish and then ends the replicas; a second one ends
    everything at once. What the processes log goes into a file of the state directory.

    \b
    Examples:
      holdfast up
      holdfast up -c fleet.yaml
    """  # noqa: D301
    wish = UpOptions(config, state_dir, os.environ.get(TOKEN_VARIABLE), sys.stdout.isatty())
    try:
        run(wish, screen())
    except (AddressTakenError, StateDirError, ProvisionError) as error:
        raise click.ClickException(str(error)) from error


__all__ = ["up"]
