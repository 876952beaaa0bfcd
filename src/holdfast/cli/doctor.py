"""``holdfast doctor``: find mistakes in a fleet file or a running fleet."""

import asyncio
import json
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from holdfast.acceptor import descriptor_limit
from holdfast.cli.admin_port import admin_of, read_fleet_file, which_admin
from holdfast.config.fleet_file import FleetFile
from holdfast.config.launch import VISIBLE
from holdfast.doctor import (
    Advice,
    AdviceLevel,
    OpenedLink,
    check_file,
    check_gpus,
    check_link_secret,
    check_machine,
    check_running,
    check_secret_files,
    check_token_file,
    launches_on_gpus,
    links_of,
    secret_paths,
)
from holdfast.frames.authentication import LinkSecret
from holdfast.sources.placement_devices import read_devices
from holdfast.ui.terminal.console import stdout
from holdfast.wire.own_token import TOKEN_FILE, is_exposed
from holdfast.wire.state_dir import default_state_dir

_STYLES: Final = {
    AdviceLevel.ERROR: "bold red",
    AdviceLevel.WARNING: "yellow",
    AdviceLevel.NOTE: "cyan",
}


@click.command()
@click.option("-c", "--config", type=click.Path(path_type=Path), help="The fleet file to check.")
@click.option("--running", is_flag=True, help="Check the fleet that runs, too.")
@click.option(
    "--rights", is_flag=True, help="Fail where Kubernetes cannot be asked for the file's rights."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@which_admin
def doctor(
    config: Path | None,
    url: str | None,
    token_env: str,
    ca: Path | None,
    *,
    running: bool,
    rights: bool,
    as_json: bool,
) -> None:
    """Look for mistakes in a fleet file or a fleet that runs.

    For those that lead to silent failures.

    Exit status 1 where it finds an error, 0 otherwise; warnings and notes are printed.

    It also lists the links between the fleet's own processes, and how each is authenticated.

    Where the file uses Kubernetes, the API server is asked which rights are missing. One that
    cannot be asked is a warning, and an error with --rights.

    \b
    Examples:
      holdfast doctor -c fleet.yaml
      holdfast doctor -c fleet.yaml --rights
      holdfast doctor --running
    """  # noqa: D301
    found: list[Advice] = []
    links: list[OpenedLink] = []
    if rights and config is None:
        raise click.UsageError("--rights needs a fleet file: add -c fleet.yaml")
    if config is not None:
        file = read_fleet_file(config)
        found += check_file(file) + check_machine(file, descriptor_limit())
        if launches_on_gpus(file):
            found += check_gpus(file, read_devices(None, os.environ.get(VISIBLE)))
        found += check_secret_files(filter(_is_open_to_all, secret_paths(file)))
        found += _check_link_secret(file) + _check_rights(file, demanded=rights)
        links = links_of(file)
    if running or config is None:
        admin = admin_of(url, token_env, config, ca=ca)
        open_ones = admin.told("/incidents?limit=100&stage=open").get("incidents") or []
        found += check_running(admin.told("/status"), open_ones)
    folder = default_state_dir(config, os.environ)
    found += check_token_file(str(folder / TOKEN_FILE), exposed=is_exposed(folder))
    if as_json:
        advice, opened = [asdict(one) for one in found], [asdict(one) for one in links]
        click.echo(json.dumps({"advice": advice, "links": opened}))
    else:
        _show(found)
        _show_links(links)
    if any(one.level is AdviceLevel.ERROR for one in found):
        raise click.exceptions.Exit(1)


def _check_rights(file: FleetFile, *, demanded: bool) -> list[Advice]:
    from holdfast.wire.kubernetes.rights_check import check_rights  # noqa: PLC0415 an extra

    return asyncio.run(check_rights(file, demanded=demanded))


def _check_link_secret(file: FleetFile) -> list[Advice]:
    """Whether the secret of controls on one machine can be used, once a start has made it."""
    path = file.control.shared_secret
    if path is None or not path.exists():
        return []
    try:
        LinkSecret(path).read()
    except OSError as error:
        return check_link_secret(str(path), error.strerror or type(error).__name__)
    return []


def _is_open_to_all(path: Path) -> bool:
    """Whether users other than its owner and group can read a file; one that is missing: no."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


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


def _show_links(links: list[OpenedLink]) -> None:
    console = stdout()
    for one in links:
        text = Text("link    ", "dim").append(one.of, "bold").append(f" {one.where}")
        console.print(text)
        console.print(Text(f"        between {one.between}; authenticated by {one.authenticated}"))


__all__ = ["doctor"]
