"""The command ``holdfast``.

Commands read their arguments, call one function of a layer below, and print what it returned:
people get tables, ``--json`` gives one object. What a config or an argument gets wrong goes to
stderr as sentences, with exit status 2; a traceback is a bug.

A command is imported when it is called; the help and the completion of a shell read ``COMMANDS``. A
gateway process that starts anew, with clients waiting at its socket, should not read the simulator
first, and who asks for help should not wait for all that commands can do.
"""

from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from holdfast import __version__
from holdfast.config import ConfigFileError
from holdfast.core.near_names import did_you_mean
from holdfast.core.types import ConfigError


class CommandRow(NamedTuple):
    """Where one command is, and how the help shows it; importing nothing of it."""

    place: str  # module of this package, and the command's name in it
    section: str  # of the help; "" for what only machines call, which the help leaves out
    help: str  # the first sentence of the command's own help


# In the order in which the help shows sections and their commands.
COMMANDS: Final = {
    "up": CommandRow("up:up", "Run", "Start a fleet: replicas, gateway, control; until Ctrl-C."),
    "down": CommandRow(
        "down:down", "Run", "Stop a fleet that 'holdfast up' started, and wait for its end."
    ),
    "serve": CommandRow(
        "serve:serve", "Run", "Serve the models of a fleet file until SIGTERM or Ctrl-C."
    ),
    "agent": CommandRow(
        "agent:agent", "Run", "Report this host, its replicas and logs to control."
    ),
    "stand-in": CommandRow(
        "standin:stand_in", "Run", "Pretend to be an inference engine, for tests and demos."
    ),
    "status": CommandRow(
        "fleet:status", "Look", "Show replicas, why they are as they are, and what happened."
    ),
    "top": CommandRow(
        "top:top", "Look", "Show the whole fleet on one screen that stays up to date."
    ),
    "logs": CommandRow("fleet:logs", "Look", "Print what a replica's engine wrote."),
    "incidents": CommandRow(
        "incidents:incidents", "Look", "List incidents: class, cause and replicas of each failure."
    ),
    "explain": CommandRow(
        "explain:explain",
        "Look",
        "Show an incident, or what became of a recent request.",
    ),
    "history": CommandRow(
        "history:history", "Look", "Write figures of the past as CSV, JSON lines or Parquet."
    ),
    "cost": CommandRow(
        "cost:cost", "Look", "Show what GPUs and tokens cost, useful and wasted apart."
    ),
    "versions": CommandRow(
        "diagnosis.versions:versions",
        "Look",
        "Show the versions that each replica runs on, where they differ.",
    ),
    "scale": CommandRow("fleet:scale", "Act", "Set the number of replicas of a model."),
    "drain": CommandRow(
        "fleet:drain", "Act", "Send a replica nothing new, and let it finish what it has."
    ),
    "undrain": CommandRow("fleet:undrain", "Act", "Take a drained replica back into service."),
    "restart": CommandRow("fleet:restart", "Act", "Drain a replica and start it again."),
    "chaos": CommandRow(
        "chaos:chaos", "Act", "Inject faults into a running fleet; each ends and is undone."
    ),
    "baseline": CommandRow(
        "diagnosis.baseline:baseline",
        "Act",
        "Show, accept or reset what a model's answers are compared with.",
    ),
    "batch": CommandRow(
        "batch:batch", "Work", "Send files of requests through the fleet, beside its users."
    ),
    "queue": CommandRow(
        "queues:queue", "Work", "Look into queues of durable work; resend or delete items."
    ),
    "idempotency": CommandRow(
        "idempotency:idempotency",
        "Work",
        "Show what is kept of idempotency keys, or delete a tenant's.",
    ),
    "bench": CommandRow(
        "bench:bench", "Work", "Load a gateway or an engine, and say how fast it is."
    ),
    "plan": CommandRow(
        "plan:plan", "Plan", "Plan a fleet before it is bought: replicas, spares, memory."
    ),
    "simulate": CommandRow("simulation:simulate", "Plan", "Run a simulated fleet in virtual time."),
    "twin": CommandRow(
        "twin:twin", "Plan", "Fit a model of your fleet from measurements, and try changes."
    ),
    "doctor": CommandRow(
        "doctor:doctor", "Admin", "Look for mistakes in a fleet file or a fleet that runs."
    ),
    "sign-in": CommandRow(
        "audit:sign_in", "Admin", "Print a link that signs one browser in to the dashboard."
    ),
    "keys": CommandRow(
        "keys:keys", "Admin", "Make API keys, and the hashes that a fleet file holds."
    ),
    "audit": CommandRow(
        "audit:audit", "Admin", "Show who gave which orders, when, and what became of them."
    ),
    "render": CommandRow(
        "render:render", "Admin", "Print manifests for Kubernetes, Envoy, Istio and autoscalers."
    ),
    "aws": CommandRow("aws:aws", "Admin", "Prepare an AWS account to be read."),
    "readiness": CommandRow(
        "readiness:readiness", "", "Answer a pod's readiness probe with control's verdict."
    ),
    "control-process": CommandRow("serve:control_process", "", "The control process of a 'serve'."),
    "gateway-process": CommandRow("serve:gateway_process", "", "One gateway process of a 'serve'."),
    "batch-process": CommandRow("serve:batch_process", "", "The batch process of a 'serve'."),
}


class _ConfigRefused(click.ClickException):
    """Printed as it is: each line begins with file and line, which editors can follow."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Print on stderr, or to ``file``."""
        click.echo(self.message, file=file, err=True)


class _Commands(click.Group):
    """A group that imports a command when it is called, and turns refused configs into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names, as the table has them."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - as above
        cmd_name: str,
    ) -> click.Command | None:
        """The command of that name."""
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        module, _, name = row.place.partition(":")
        command = getattr(import_module(f"holdfast.cli.{module}"), name)
        assert isinstance(command, click.Command), "the table names commands"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was named; for an unknown name, say which one is near."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            known = [one for one, row in COMMANDS.items() if row.section]
            fix = did_you_mean(name, known) or "'holdfast --help' lists them"
            ctx.fail(f"No such command {name!r}; {fix}")
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - as above
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the commands of each section, with what each is for."""
        width = max(len(name) for name, row in COMMANDS.items() if row.section)
        for section in dict.fromkeys(row.section for row in COMMANDS.values() if row.section):
            with formatter.section(section):
                formatter.write_dl(
                    [
                        (name.ljust(width), row.help)
                        for name, row in COMMANDS.items()
                        if row.section == section
                    ]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a word that has been begun may become: commands of the help, and options."""
        commands = [
            CompletionItem(name, help=row.help)
            for name, row in COMMANDS.items()
            if row.section and name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

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


__all__ = ["COMMANDS", "CommandRow", "main"]
