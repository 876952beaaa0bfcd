"""The command ``holdfast``.

Commands read their arguments, call one function of a layer below, and print what it returned:
people get tables, ``--json`` gives one object. What a config or an argument gets wrong goes to
stderr as sentences, with exit status 2; a traceback is a bug.

A command is imported when it is named: a gateway process that starts anew, with clients waiting at
its socket, should not read the simulator first.
"""

from importlib import import_module
from typing import Any, Final

import click

from holdfast import __version__
from holdfast.config.document import ConfigFileError
from holdfast.core.types import ConfigError

# Where each command is, in the order in which the help shows them.
COMMANDS: Final = {
    "up": "up:up",
    "down": "down:down",
    "status": "fleet:status",
    "top": "top:top",
    "logs": "fleet:logs",
    "scale": "fleet:scale",
    "drain": "fleet:drain",
    "undrain": "fleet:undrain",
    "restart": "fleet:restart",
    "sign-in": "audit:sign_in",
    "audit": "audit:audit",
    "serve": "serve:serve",
    "queue": "queues:queue",
    "batch": "batch:batch",
    "incidents": "incidents:incidents",
    "baseline": "diagnosis.baseline:baseline",
    "versions": "diagnosis.versions:versions",
    "explain": "explain:explain",
    "cost": "cost:cost",
    "doctor": "doctor:doctor",
    "chaos": "chaos:chaos",
    "history": "history:history",
    "agent": "agent:agent",
    "aws": "aws:aws",
    "render": "render:render",
    "keys": "keys:keys",
    "plan": "plan:plan",
    "simulate": "simulation:simulate",
    "stand-in": "standin:stand_in",
    "control-process": "serve:control_process",
    "gateway-process": "serve:gateway_process",
    "batch-process": "serve:batch_process",
}


class _ConfigRefused(click.ClickException):
    """Printed as it is: each line begins with file and line, which editors can follow."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Print on stderr, or to ``file``."""
        click.echo(self.message, file=file, err=True)


class _Commands(click.Group):
    """A group that imports a command when it is named, and turns refused configs into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names, as the table has them."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - as above
        cmd_name: str,
    ) -> click.Command | None:
        """The command of that name."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return self.commands.get(cmd_name)
        module, _, name = place.partition(":")
        command = getattr(import_module(f"holdfast.cli.{module}"), name)
        assert isinstance(command, click.Command), "the table names commands"
        return command

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
      holdfast up
      holdfast serve -c fleet.yaml
      holdfast simulate examples/first.yaml
      holdfast plan redundancy --need 8 --availability 0.99 --target 0.999
    """  # noqa: D301


__all__ = ["COMMANDS", "main"]
