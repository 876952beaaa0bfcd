"""``holdfast serve`` and ``holdfast explain``; and the processes that ``serve`` starts."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from holdfast import wire
from holdfast.control.fetch import Answer, FetchError, fetch
from holdfast.ui.terminal.console import duration, stdout

_EXPLAIN_S: Final = 5.0
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
def serve(config: Path, *, takeover: bool) -> None:
    """Serve the models of a fleet file until SIGTERM or Ctrl-C.

    Requests that run are finished first; a second signal stops at once. SIGHUP, or a change of the
    file, loads it again: a file with a mistake is refused and changes nothing.

    \b
    Examples:
      holdfast serve -c fleet.yaml
      holdfast serve -c fleet.yaml --takeover
    """  # noqa: D301
    try:
        wire.serve(config, takeover=takeover, say=lambda line: click.echo(line, err=True))
    except wire.AddressTakenError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@click.argument("request_id")
@click.option(
    "--admin",
    default="http://127.0.0.1:8001",
    show_default=True,
    help="Where operators connect (admin.listen).",
)
@click.option(
    "--token-env",
    default="HOLDFAST_ADMIN_TOKEN",
    show_default=True,
    help="The environment variable that holds the admin token.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(request_id: str, admin: str, token_env: str, *, as_json: bool) -> None:
    """Tell what happened to a recent request, and why.

    REQUEST_ID is the x-request-id of its response.

    \b
    Example:
      holdfast explain req_8f3a12c4-17
    """  # noqa: D301
    answer = _asked(admin, f"/explain/{request_id}", os.environ.get(token_env))
    if answer.status != 200:
        raise click.ClickException(_why(answer))
    story = json.loads(answer.body)
    if as_json:
        click.echo(json.dumps(story))
    else:
        _show(story)


def _asked(admin: str, path: str, token: str | None) -> Answer:
    try:
        return asyncio.run(fetch(admin.rstrip("/"), path, _EXPLAIN_S, bearer=token))
    except FetchError as error:
        raise click.ClickException(f"{admin}: {error}; is 'holdfast serve' running?") from error
    except ValueError as error:
        raise click.UsageError(f"--admin {admin}: not a URL") from error


def _why(answer: Answer) -> str:
    try:
        return str(json.loads(answer.body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the admin port answered {answer.status}"


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
@click.option("--notice-fd", type=int, default=None)  # control has no successor to call
def control_process(config: Path, run_dir: Path, admin_fd: int, **_: Any) -> None:
    """The control process of a 'serve'."""
    wire.run_control(config, run_dir, admin_fd)


@click.command(hidden=True)
@click.option("--index", type=int, required=True)
@click.option("--run-dir", type=_RUN_DIR, required=True)
@click.option("--listen-fd", type=int, required=True)
@click.option("--notice-fd", type=int, default=None)
def gateway_process(index: int, run_dir: Path, listen_fd: int, notice_fd: int | None) -> None:
    """One gateway process of a 'serve'."""
    wire.run_gateway(index, run_dir, listen_fd, notice_fd)


__all__ = ["control_process", "explain", "gateway_process", "serve"]
