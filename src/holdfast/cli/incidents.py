"""``holdfast incidents`` and ``holdfast doctor``: what is wrong, and what will be."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
from rich.text import Text

from holdfast.cli.asking import Admin, admin_of, asks_admin, which_admin, why
from holdfast.config import FleetFile, load
from holdfast.doctor import Advice, Level, check_file, check_running
from holdfast.ui.terminal.console import stdout
from holdfast.ui.terminal.incidents import show_incidents

_STYLES: Final = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "cyan"}


@click.group(invoke_without_command=True)
@click.option("--all", "every", is_flag=True, help="Show those that are over, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True)
@asks_admin
@click.pass_context
def incidents(
    context: click.Context, admin: Admin, limit: int, *, every: bool, as_json: bool
) -> None:
    """List what is wrong: the class of each failure, its cause, and who is concerned.

    \b
    Examples:
      holdfast incidents
      holdfast incidents --all --json
      holdfast explain inc-000007
      holdfast incidents export inc-000007 -o incident.jsonl
    """  # noqa: D301
    if context.invoked_subcommand is not None:
        context.obj = admin
        return
    stage = "" if every else "&stage=open"
    found = admin.told(f"/incidents?limit={limit}{stage}")
    if as_json:
        click.echo(json.dumps(found))
    else:
        show_incidents(found.get("incidents") or [])


@incidents.command()
@click.argument("incident")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A file.")
@click.pass_obj
def export(admin: Admin, incident: str, output: Path | None) -> None:
    """Write an incident with the facts it was made of, to be replayed.

    The file holds no prompt and no answer. 'holdfast simulate --replay FILE' runs it through the
    same code and says whether it comes to the same verdict.

    \b
    Example:
      holdfast incidents export inc-000007 -o incident.jsonl
    """  # noqa: D301
    answer = admin.ask(f"/incidents/{quote(incident)}/export")
    if answer.status != 200:
        raise click.ClickException(why(answer))
    if output is None:
        sys.stdout.buffer.write(answer.body)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(answer.body)
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror}") from error
    facts = answer.body.count(b"\n") - 1
    click.echo(f"{output}: {facts} facts")


@incidents.command()
@click.argument("incident")
@click.pass_obj
def close(admin: Admin, incident: str) -> None:
    """Say that an incident is over, where nothing else shows it.

    \b
    Example:
      holdfast incidents close inc-000007
    """  # noqa: D301
    answer = admin.ask(f"/incidents/{quote(incident)}/close", method="POST")
    if answer.status not in {200, 202}:
        raise click.ClickException(why(answer))
    click.echo(f"{incident} is closed")


@click.command()
@click.option("-c", "--config", type=click.Path(path_type=Path), help="The fleet file to check.")
@click.option("--running", is_flag=True, help="Check the fleet that runs, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@which_admin
def doctor(
    config: Path | None,
    url: str | None,
    token_env: str,
    ca: Path | None,
    *,
    running: bool,
    as_json: bool,
) -> None:
    """Look for the mistakes that lead to silent failures, in a file and in a fleet that runs.

    Exit status 1 where it finds an error, 0 otherwise; warnings and notes are printed.

    \b
    Examples:
      holdfast doctor -c fleet.yaml
      holdfast doctor --running
    """  # noqa: D301
    found: list[Advice] = []
    if config is not None:
        found += check_file(load(config, FleetFile))
    if running or config is None:
        admin = admin_of(url, token_env, config, ca=ca)
        open_ones = admin.told("/incidents?limit=100&stage=open").get("incidents") or []
        found += check_running(admin.told("/status"), open_ones)
    if as_json:
        click.echo(json.dumps({"advice": [asdict(one) for one in found]}))
    else:
        _show(found)
    if any(one.level is Level.ERROR for one in found):
        raise click.exceptions.Exit(1)


def _show(found: list[Advice]) -> None:
    console = stdout()
    if not found:
        console.print("nothing found")
        return
    for one in found:
        text = Text(f"{one.level.value:<8}", _STYLES[one.level])
        text.append(one.where, "bold")
        text.append(f" {one.problem}")
        console.print(text)
        console.print(Text(f"        {one.fix}"))
        causes: Any = ", ".join(cause.value.replace("_", " ") for cause in one.leads_to)
        if causes:
            console.print(Text(f"        leads to: {causes}", "dim"))


__all__ = ["doctor", "incidents"]
