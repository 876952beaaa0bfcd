"""``holdfast keys``: API keys for the tenants of a fleet file, and the admin token.

The file holds hashes. A key is shown once, by ``new``, and never taken as an argument: arguments
stay in the history of a shell, and every user can read them in the list of processes.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Final

import click
from rich.table import Table

from holdfast.cli.admin_port import Admin, asks_admin
from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import (
    KEY_LENGTH_MAX,
    KEY_LENGTH_MIN,
    KEY_LENGTH_STRONG,
    hash_key,
    new_key,
)
from holdfast.ui.terminal.console import stdout
from holdfast.ui.terminal.untrusted_text import escape

_NEWLINES: Final = 2  # of a file that was written on Windows
_TOO_LONG: Final = KEY_LENGTH_MAX + _NEWLINES + 1  # characters read at most: enough to see it


@click.group()
def keys() -> None:
    """Make API keys, and the hashes that a fleet file holds.

    \b
    Example:
      holdfast keys new
    """  # noqa: D301


@keys.command("new")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def new(*, as_json: bool) -> None:
    """Make a fresh key and print it, with its hash.

    The key is shown only this once: give it to the client that will use it. The hash goes into
    the fleet file, under 'keys' of a tenant or as 'token' of 'admin'.

    \b
    Examples:
      holdfast keys new
      holdfast keys new --json
    """  # noqa: D301
    key = new_key()
    hashed = hash_key(key)
    if as_json:
        click.echo(json.dumps({"key": key, "hash": hashed}))
    else:
        click.echo(f"key   {key}\nhash  {hashed}")


@keys.command("hash")
@click.option("--insecure", is_flag=True, help="Hash a key that is too short, too.")
def hash_of(*, insecure: bool) -> None:
    """Print the hash of a key that exists already.

    The key is read from standard input, or asked for without showing it. Gateways accept no key
    of fewer than 8 characters, unless its tenant is marked insecure.

    \b
    Example:
      holdfast keys hash
    """  # noqa: D301
    given = _given()
    try:
        hashed = hash_key(given)
    except ValueError as error:  # its text does not repeat the key
        raise click.UsageError(str(error)) from None
    if len(given) < KEY_LENGTH_STRONG and not insecure:
        said = f"the key has {len(given)} characters, and is guessed by trying"
        fix = "make one with 'holdfast keys new'"
        if len(given) < KEY_LENGTH_MIN:
            raise click.UsageError(f"{said}; {fix}, or add --insecure for a test on one machine")
        click.echo(f"warning: {said}; {fix}", err=True)
    click.echo(hashed)


@keys.command("list")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The fleet file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_of(config: Path, *, as_json: bool) -> None:
    """List the keys of a fleet file: tenant, id and end, never the key.

    Keys that ended are listed, too: gateways refuse them, and they can be removed.

    \b
    Example:
      holdfast keys list -c fleet.yaml
    """  # noqa: D301
    try:
        file = load(config, FleetFile)
    except ConfigFileError as error:
        raise click.ClickException(str(error)) from None
    now = time()
    rows = [
        {
            "tenant": tenant.name,
            "id": key.name,
            "expires": key.expires,
            "expired": bool(key.expires_at) and key.expires_at <= now,
            "file": None if key.file is None else str(key.file),
        }
        for tenant in file.tenants
        for key in tenant.keys
    ]
    if as_json:
        click.echo(json.dumps({"keys": rows}))
        return
    table = Table("tenant", "id", "expires", "from", box=None, pad_edge=False)
    for row in rows:
        ends = str(row["expires"] or "never") + (" (expired)" if row["expired"] else "")
        table.add_row(str(row["tenant"]), str(row["id"]), ends, str(row["file"] or "the file"))
    stdout().print(table if rows else "the file names no tenants: no key is asked for")


@keys.command("uses")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@asks_admin
def uses(admin: Admin, *, as_json: bool) -> None:
    """Show when each key of a running fleet was last used.

    To the second, over all gateway processes. A key without a use since records began may be one
    that nobody has any more: take it out of the fleet file.

    \b
    Example:
      holdfast keys uses
    """  # noqa: D301
    told = admin.told("/keys")
    if as_json:
        click.echo(json.dumps(told))
        return
    since = _day_and_time(told["since"])
    table = Table("tenant", "id", "last used (UTC)", "expires", box=None, pad_edge=False)
    for row in told["keys"]:
        used = row["last_used"]
        when = f"not since {since}" if used is None else _day_and_time(used)
        ends = str(row["expires"] or "never") + (" (expired)" if row["expired"] else "")
        table.add_row(*map(escape, (str(row["tenant"]), str(row["id"]), when, ends)))
    stdout().print(table if told["keys"] else "the fleet names no tenants: no key is asked for")


def _day_and_time(at: float) -> str:
    return datetime.fromtimestamp(float(at), UTC).strftime("%Y-%m-%d %H:%M:%S")


def _given() -> str:
    """The key, without the end of its line; nothing else is trimmed, or the hash would lie."""
    if _somebody_types():
        typed: str = click.prompt("key (not shown)", hide_input=True, err=True)
        return typed
    # As bytes: what is no text is refused like any other key, not with a traceback.
    raw = sys.stdin.buffer.read(_TOO_LONG)
    return raw.decode("ascii", "replace").removesuffix("\n").removesuffix("\r")


def _somebody_types() -> bool:
    return sys.stdin.isatty()


__all__ = ["keys"]
