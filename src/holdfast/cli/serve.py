"""``holdfast serve``, and the processes that it starts."""

from pathlib import Path
from typing import Final

import click

from holdfast.ui.terminal.console import stderr
from holdfast.wire.processes import run_batch, run_control, run_gateway
from holdfast.wire.provisions import ProvisionError
from holdfast.wire.serve import ServeOptions
from holdfast.wire.serve import serve as run
from holdfast.wire.sockets import AddressTakenError
from holdfast.wire.state_dir import StateDirError


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
    from holdfast.ui.terminal.startup_screen import PlainScreen  # noqa: PLC0415 gateways do without

    fetching = PlainScreen(stderr()).fetching
    host = ServeOptions(state_dir=state_dir, fetching=fetching)
    try:
        run(config, takeover=takeover, say=_say, host=host)
    except (AddressTakenError, StateDirError, ProvisionError) as error:
        raise click.ClickException(str(error)) from error


def _say(line: str) -> None:
    click.echo(line, err=True)


# --- started by serve ----------------------------------------------------------------------------

_RUN_DIR: Final = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command(hidden=True)
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--run-dir", type=_RUN_DIR, required=True)
@click.option("--admin-fd", type=int, required=True)
@click.option("--state-dir", type=_RUN_DIR, default=None)
@click.option("--notice-fd", type=int, default=None)
@click.option("--token-file", type=click.Path(path_type=Path), default=None)
def control_process(
    config: Path,
    run_dir: Path,
    admin_fd: int,
    state_dir: Path | None,
    notice_fd: int | None,
    token_file: Path | None,
) -> None:
    """The control process of a 'serve'."""
    run_control(config, run_dir, admin_fd, state_dir, notice_fd, token_file)


@click.command(hidden=True)
@click.option("--index", type=int, required=True)
@click.option("--run-dir", type=_RUN_DIR, required=True)
@click.option(
    "--state-dir", type=click.Path(path_type=Path), default=None, help="For what must be kept."
)
@click.option("--listen-fd", type=int, required=True)
@click.option("--notice-fd", type=int, default=None)
@click.option("--config", type=click.Path(path_type=Path), default=None)
def gateway_process(
    *,
    index: int,
    run_dir: Path,
    state_dir: Path | None,
    listen_fd: int,
    notice_fd: int | None,
    config: Path | None,
) -> None:
    """One gateway process of a 'serve'."""
    run_gateway(index, run_dir, state_dir or run_dir, listen_fd, notice_fd, config)


@click.command(hidden=True)
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--run-dir", type=_RUN_DIR, required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--gateway-url", required=True)
@click.option("--notice-fd", type=int, default=None)
def batch_process(
    config: Path, run_dir: Path, folder: Path, gateway_url: str, notice_fd: int | None
) -> None:
    """The batch process of a 'serve'."""
    run_batch(config, run_dir, folder, gateway_url, notice_fd)


__all__ = ["batch_process", "control_process", "gateway_process", "serve"]
