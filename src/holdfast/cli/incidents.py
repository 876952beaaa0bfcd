"""``holdfast incidents``: list, export and close incidents."""

import json
import sys
from pathlib import Path
from urllib.parse import quote

import click

from holdfast.cli.admin_port import Admin, asks_admin, why_not
from holdfast.ui.terminal.incidents import show_incidents


@click.group(invoke_without_command=True)
@click.option("--all", "every", is_flag=True, help="Show those that are over, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True)
@asks_admin
@click.pass_context
def incidents(
    context: click.Context, admin: Admin, limit: int, *, every: bool, as_json: bool
) -> None:
    """List incidents: class, cause and replicas of each failure.

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
        raise click.ClickException(why_not(admin, answer, "incidents", incident))
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
    """Close an incident whose end cannot be detected.

    \b
    Example:
      holdfast incidents close inc-000007
    """  # noqa: D301
    answer = admin.ask(f"/incidents/{quote(incident)}/close", method="POST")
    if answer.status not in {200, 202}:
        raise click.ClickException(why_not(admin, answer, "incidents", incident))
    click.echo(f"{incident} is closed")


__all__ = ["incidents"]
