"""``holdfast keys``: API keys for the tenants of a fleet file, and the admin token.

The file holds hashes. A key is shown once, by ``new``, and never taken as an argument: arguments
stay in the history of a shell, and every user can read them in the list of processes.
"""

import json
import sys
from typing import Final

import click

from holdfast.config.tenants import KEY_LENGTH_MAX, hash_key, new_key

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
def hash_of() -> None:
    """Print the hash of a key that exists already.

    The key is read from standard input, or asked for without showing it.

    \b
    Example:
      holdfast keys hash
    """  # noqa: D301
    try:
        hashed = hash_key(_given())
    except ValueError as error:  # its text does not repeat the key
        raise click.UsageError(str(error)) from None
    click.echo(hashed)


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
