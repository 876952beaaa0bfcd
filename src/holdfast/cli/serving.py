"""``holdfast serve`` and ``holdfast explain``; and the processes that ``serve`` starts."""

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
from rich.table import Table

from holdfast import wire
from holdfast.cli.asking import Admin, asks_admin
from holdfast.ui.terminal.console import duration, stderr, stdout
from holdfast.ui.terminal.incidents import show_incident

_HEADING: Final = ("asked_for", "served_by", "replica", "status", "code", "reason", "attempts")


@click.command()
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), required=True, help="The fleet file."
)
@click.option(
    "--takeover",
    is_flag=True,
    help="Start beside another 'serve' on the same ports; when this one says that it is ready, "
    "stop the other with SIGTERM.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to keep the state of launched replicas, if not at the usual place.",
)
def serve(config: Path, state_dir: Path | None, *, takeover: bool) -> None:
    """Serve the models of a fleet file until SIGTERM or Ctrl-C.

    Requests that run are finished first; a second signal stops at once. SIGHUP, or a change of the
    file, loads it again: a file with a mistake is refused and changes nothing. Replicas that the
    file launches are ended with it.

    \b
    Examples:
      holdfast serve -c fleet.yaml
      holdfast serve -c fleet.yaml --takeover
    """  # noqa: D301
    from holdfast.ui.terminal.starting import PlainScreen  # noqa: PLC0415 gateways do without

    fetching = PlainScreen(stderr()).fetching
    host = wire.Host(state_dir=state_dir, fetching=fetching)
    try:
        wire.serve(config, takeover=takeover, say=_say, host=host)
    except (wire.AddressTakenError, wire.StateDirError, wire.ProvisionError) as error:
        raise click.ClickException(str(error)) from error


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.command()
@click.argument("what", metavar="INCIDENT|REQUEST")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@asks_admin
def explain(admin: Admin, what: str, *, as_json: bool) -> None:
    """Tell an incident, or what happened to a recent request, and why.

    An INCIDENT is named by 'holdfast incidents', a REQUEST by the x-request-id of its response.

    \b
    Examples:
      holdfast explain inc-000007
      holdfast explain req_8f3a12c4-17
    """  # noqa: D301
    incident = what.startswith("inc-")
    story = admin.told(f"/{'incidents' if incident else 'explain'}/{quote(what)}")
    if as_json:
        click.echo(json.dumps(story))
    elif incident:
        show_incident(story)
    else:
        _show(story)


def _show(story: dict[str, Any]) -> None:
    console = stdout()
    told = ", ".join(f"{key} {story[key]}" for key in _HEADING if story.get(key) not in {"", None})
    console.print(f"{story.get('request_id', '')}: {told}")
    table = Table("after", "what", "detail", box=None, pad_edge=False)
    for step in story.get("story", []):
        table.add_row(duration(step["at_s"]), step["what"], step["detail"])
    console.print(table)


# --- started by serve ----------------------------------------------------------------------------

_RUN_DIR: Final = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command(hidden=True)
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--run-dir", type=_RUN_DIR, required=True)
@click.option("--admin-fd", type=int, required=True)
@click.option("--state-dir", type=_RUN_DIR, default=None)
@click.option("--notice-fd", type=int, default=None)  # control has no successor to call
def control_process(
    config: Path, run_dir: Path, admin_fd: int, state_dir: Path | None, **_: Any
) -> None:
    """The control process of a 'serve'."""
    wire.run_control(config, run_dir, admin_fd, state_dir)


@click.command(hidden=True)
@click.option("--index", type=int, required=True)
@click.option("--run-dir", type=_RUN_DIR, required=True)
@click.option("--listen-fd", type=int, required=True)
@click.option("--notice-fd", type=int, default=None)
def gateway_process(index: int, run_dir: Path, listen_fd: int, notice_fd: int | None) -> None:
    """One gateway process of a 'serve'."""
    wire.run_gateway(index, run_dir, listen_fd, notice_fd)


__all__ = ["control_process", "explain", "gateway_process", "serve"]
