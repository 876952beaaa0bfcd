"""``holdfast explain``: show all that is known of one incident or one request."""

import json
from typing import Any, Final
from urllib.parse import quote

import click
from rich.table import Table

from holdfast.cli.admin_port import Admin, asks_admin, why, why_not
from holdfast.ui.terminal.console import duration, stdout
from holdfast.ui.terminal.incidents import show_incident

_NOTHING: Final = (
    "no incident is known; 'holdfast explain REQUEST' tells what happened to a request, by the "
    "x-request-id of its response, and 'holdfast status' why each replica is as it is"
)
_HEADING: Final = ("asked_for", "served_by", "replica", "status", "code", "reason", "attempts")


@click.command()
@click.argument("what", metavar="[INCIDENT|REQUEST]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@asks_admin
def explain(admin: Admin, what: str | None, *, as_json: bool) -> None:
    """Show an incident, or what became of a recent request.

    An INCIDENT is named by 'holdfast incidents', a REQUEST by the x-request-id of its response.
    Without either the newest incident is shown.

    \b
    Examples:
      holdfast explain
      holdfast explain inc-000007
      holdfast explain req_8f3a12c4-17
    """  # noqa: D301
    if what is None:
        what = _newest(admin)
    if what is None:
        click.echo("null" if as_json else _NOTHING)
        return
    incident = what.startswith("inc-")
    answer = admin.ask(f"/{'incidents' if incident else 'explain'}/{quote(what)}")
    if answer.status != 200:
        told = why_not(admin, answer, "incidents", what) if incident else why(answer)
        raise click.ClickException(told)
    story = json.loads(answer.body)
    if as_json:
        click.echo(json.dumps(story))
    elif incident:
        show_incident(story)
    else:
        _show(story)


def _newest(admin: Admin) -> str | None:
    """The id of the incident that was opened last, closed or not; ``None``: there is none."""
    found = admin.told("/incidents?limit=1").get("incidents") or []
    return str(found[-1]["id"]) if found else None


def _show(story: dict[str, Any]) -> None:
    console = stdout()
    told = ", ".join(f"{key} {story[key]}" for key in _HEADING if story.get(key) not in {"", None})
    console.print(f"{story.get('request_id', '')}: {told}")
    table = Table("after", "what", "detail", box=None, pad_edge=False)
    for step in story.get("story", []):
        table.add_row(duration(step["at_s"]), step["what"], step["detail"])
    console.print(table)


__all__ = ["explain"]
