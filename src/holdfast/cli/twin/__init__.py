"""``holdfast twin``: fit a fleet from measurements, and try changes in the simulator."""

import click

from holdfast.cli.twin.calibrate import calibrate_command
from holdfast.cli.twin.sweep import sweep_command
from holdfast.cli.twin.what_if import what_if_command


@click.group()
def twin() -> None:
    """Fit a model of your fleet from measurements, and try changes.

    The fleet's own decisions are in it.

    \b
    Examples:
      holdfast twin calibrate bench.json -o twin.json
      holdfast twin what-if --twin twin.json --replicas 4 --traffic 2
      holdfast twin sweep --twin twin.json --vary replicas=2..6 --plot s.svg
    """  # noqa: D301


twin.add_command(calibrate_command)
twin.add_command(what_if_command)
twin.add_command(sweep_command)


__all__ = ["twin"]
