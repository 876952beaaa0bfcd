"""``holdfast batch``: send a file of requests through the fleet; list, show and cancel batches."""

import functools
import json
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.table import Table

from holdfast.batch.client.api_client import BatchApiClient, BatchApiError
from holdfast.batch.client.bulk_run import BulkRun, BulkRunError, RunState
from holdfast.batch.input_lines import LINES_MAX
from holdfast.cli.admin_port import which_fleet
from holdfast.core.batch.progress import ProgressEstimate
from holdfast.ui.terminal.batch_progress import ProgressLine
from holdfast.ui.terminal.console import duration, stderr, stdout
from holdfast.ui.terminal.untrusted_text import escape
from holdfast.wire.state_dir import default_state_dir, read_running

DEFAULT_URL: Final = "http://127.0.0.1:8000"
KEY_VARIABLE: Final = "HOLDFAST_API_KEY"

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def _asks_gateway(command: CommandT) -> Callable[..., None]:
    """Decorator: adds the options that name a gateway and a key, and passes a client."""
    url = click.option(
        "--url",
        help=f"The gateway. Default: where the fleet that runs has it, or {DEFAULT_URL}.",
    )
    key = click.option(
        "--key-env",
        default=KEY_VARIABLE,
        show_default=True,
        help="The environment variable that holds the API key; unset: none is sent.",
    )
    ca = click.option(
        "--ca",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Trust this PEM file, where the gateway has TLS.",
    )

    @functools.wraps(command)
    def asked(
        *,
        url: str | None,
        key_env: str,
        ca: Path | None,
        config: Path | None,
        state_dir: Path | None,
        **options: Any,
    ) -> None:
        running = read_running(state_dir or default_state_dir(config, os.environ))
        address = url or (running.data if running is not None else DEFAULT_URL)
        context = ssl.create_default_context(cafile=str(ca)) if ca is not None else None
        client = BatchApiClient(address, os.environ.get(key_env), context=context)
        try:
            command(client=client, **options)
        except (BatchApiError, BulkRunError) as error:
            raise click.ClickException(escape(str(error))) from error

    return url(key(ca(which_fleet(asked))))


@click.group()
def batch() -> None:
    """Send files of requests through the fleet, beside its users.

    \b
    Examples:
      holdfast batch run in.jsonl out.jsonl
      holdfast batch ls
      holdfast batch cancel batch_4f1c0a9be2d3
    """  # noqa: D301


@batch.command()
@click.argument("source", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--endpoint", help="Default: the url of the first line.")
@click.option(
    "--lines",
    type=click.IntRange(1, LINES_MAX),
    default=LINES_MAX,
    show_default=True,
    help="Requests in one batch.",
)
@click.option("--quiet", is_flag=True, help="Print no progress.")
@_asks_gateway
def run(
    client: BatchApiClient,
    source: Path,
    out: Path,
    endpoint: str | None,
    lines: int,
    *,
    quiet: bool,
) -> None:
    """Run all requests of SOURCE (JSONL, as OpenAI's batches have it) and write OUT.

    A file that is larger than one batch is split. Answers are in OUT, in the order of SOURCE;
    errors are in OUT.errors. Killed or stopped, the same command goes on where it was: what is
    done is not asked again. Ends with status 1 where some requests have errors.

    \b
    Examples:
      holdfast batch run in.jsonl out.jsonl
      holdfast batch run in.jsonl out.jsonl --lines 10000
    """  # noqa: D301
    if not source.is_file():
        raise click.ClickException(
            f"{source} does not exist; name a file with a request on each line"
        )
    estimate: list[ProgressEstimate] = []
    shown = None if quiet else ProgressLine(stderr())

    def progress(state: RunState) -> None:
        now = time.monotonic_ns()
        if not estimate:
            estimate.append(ProgressEstimate(state.total, state.done, now))
        estimate[0].saw(state.done, now)
        if shown is not None:
            shown.show(state.done, state.failed, state.total, estimate[0].left_s(now))

    bulk = BulkRun(client, source, out, endpoint=endpoint, lines_each=lines, on_progress=progress)
    try:
        state = bulk.run()
    except KeyboardInterrupt:
        again = "the batches run on; the same command goes on where it was"
        raise click.ClickException(f"stopped; {again}") from None
    finally:
        if shown is not None:
            shown.close()
    click.echo(f"{state.done - state.failed} answers in {out}", err=True)
    if state.failed:
        click.echo(f"{state.failed} errors in {out}.errors", err=True)
        raise SystemExit(1)


@batch.command("ls")
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_asks_gateway
def list_batches(client: BatchApiClient, limit: int, *, as_json: bool) -> None:
    """List batches, newest first.

    \b
    Example:
      holdfast batch ls
    """  # noqa: D301
    found = client.get("/v1/batches", limit=limit)
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("batch", no_wrap=True)
    for name in ("status", "done", "failed", "total", "created", "endpoint"):
        table.add_column(name, justify="right" if name in {"done", "failed", "total"} else "left")
    for one in found["data"]:
        counts = one["request_counts"]
        table.add_row(
            one["id"],
            one["status"],
            str(counts["completed"]),
            str(counts["failed"]),
            str(counts["total"]),
            f"{duration(max(0.0, time.time() - one['created_at']))} ago",
            one["endpoint"],
        )
    stdout().print(table)


@batch.command()
@click.argument("batch_id")
@_asks_gateway
def show(client: BatchApiClient, batch_id: str) -> None:
    """Print one batch as JSON.

    \b
    Example:
      holdfast batch show batch_4f1c0a9be2d3
    """  # noqa: D301
    click.echo(json.dumps(client.get(f"/v1/batches/{batch_id}"), indent=2))


@batch.command()
@click.argument("batch_id")
@_asks_gateway
def cancel(client: BatchApiClient, batch_id: str) -> None:
    """Cancel a batch; what is done by then stays in its output file.

    \b
    Example:
      holdfast batch cancel batch_4f1c0a9be2d3
    """  # noqa: D301
    told = client.post(f"/v1/batches/{batch_id}/cancel")
    click.echo(f"{told['id']} is {told['status']}")


__all__ = ["batch"]
