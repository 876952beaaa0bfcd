"""The command ``holdfast``.

Commands read their arguments, call one function of a layer below, and print what it returned:
people get tables, ``--json`` gives one object. What a config or an argument gets wrong goes to
stderr as sentences, with exit status 2; a traceback is a bug.
"""

from typing import Any

import click

from holdfast import __version__
from holdfast.cli.planning import plan
from holdfast.cli.serving import control_process, explain, gateway_process, serve
from holdfast.cli.simulation import simulate
from holdfast.cli.standin import stand_in
from holdfast.config import ConfigFileError
from holdfast.core.types import ConfigError


class _ConfigRefused(click.ClickException):
    """Printed as it is: each line begins with file and line, which editors can follow."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Print on stderr, or to ``file``."""
        click.echo(self.message, file=file, err=True)


class _Commands(click.Group):
    """A group that turns refused configs into messages."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except (ConfigError, ConfigFileError) as error:
            raise _ConfigRefused(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def main() -> None:
    """Keep a fleet of inference replicas answering while parts of it fail.

    \b
    Examples:
      holdfast simulate examples/first.yaml
      holdfast plan redundancy --need 8 --availability 0.99 --target 0.999
    """  # noqa: D301


for command in (serve, explain, plan, simulate, stand_in, control_process, gateway_process):
    main.add_command(command)

__all__ = ["main"]
