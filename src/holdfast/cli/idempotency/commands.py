"""``holdfast idempotency ls|purge``: what is kept of idempotency keys, and how to delete it.

The store is opened directly, so these work while no fleet runs, and beside one that does: gateways
hear of a purge within a second, and forget the answers that they hold in memory.
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from holdfast.cli.admin_port import which_fleet
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.config.gateway import IdempotencySection
from holdfast.ports import KeyStore, KeyStoreError
from holdfast.ui.terminal.console import stdout
from holdfast.ui.terminal.untrusted_text import escape
from holdfast.wire.key_stores import KEYS_FILE, open_key_store
from holdfast.wire.state_dir import default_state_dir


def _asks_store(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: adds the options that name a fleet, and passes its store of keys."""

    @which_fleet
    @functools.wraps(command)
    def asked(*, config: Path | None, state_dir: Path | None, **options: Any) -> None:
        section = (
            IdempotencySection() if config is None else load(config, FleetFile).gateway.idempotency
        )
        folder = state_dir or default_state_dir(config, os.environ)
        path = section.store.path or folder / KEYS_FILE
        if section.store.kind == "sqlite" and not path.exists():
            told = f"{path} is not there: no key was kept yet, or -c names another fleet"
            raise click.ClickException(told)
        store = open_key_store(folder, section.store)
        try:
            command(store=store, **options)
        except KeyStoreError as error:
            raise click.ClickException(escape(str(error))) from error
        finally:
            store.close()

    return asked


@click.group()
def idempotency() -> None:
    """Show what is kept of idempotency keys, or delete a tenant's.

    \b
    Examples:
      holdfast idempotency ls -c fleet.yaml
      holdfast idempotency purge acme -c fleet.yaml
    """  # noqa: D301


@idempotency.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_asks_store
def list_usage(store: KeyStore, *, as_json: bool) -> None:
    """List how many keys each tenant holds, and how many bytes of answers are stored for them.

    Answers that gateways hold in memory are not counted here.

    \b
    Examples:
      holdfast idempotency ls -c fleet.yaml
      holdfast idempotency ls -c fleet.yaml --json
    """  # noqa: D301
    held = sorted(store.usage().items())
    if as_json:
        rows = [{"tenant": name, "keys": use.keys, "bytes": use.bytes} for name, use in held]
        click.echo(json.dumps({"tenants": rows}))
        return
    if not held:
        stdout().print("no key is kept")
        return
    table = Table("tenant", box=None, pad_edge=False, header_style="bold")
    for name in ("keys", "bytes stored"):
        table.add_column(name, justify="right", no_wrap=True)
    for tenant, use in held:
        table.add_row(escape(tenant), f"{use.keys:,}", f"{use.bytes:,}")
    stdout().print(table)


@idempotency.command()
@click.argument("tenant")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; does not ask.")
@_asks_store
def purge(store: KeyStore, tenant: str, *, yes: bool, as_json: bool) -> None:
    """Delete all keys and stored answers of a tenant.

    A request that is sent again with one of these keys is then executed again.

    \b
    Example:
      holdfast idempotency purge acme -c fleet.yaml --yes
    """  # noqa: D301
    if not (yes or as_json):
        asked = f"delete all idempotency keys of {escape(tenant)}? their retries execute again"
        click.confirm(asked, abort=True)
    gone = store.purge(tenant)
    if as_json:
        click.echo(json.dumps({"tenant": tenant, "keys": gone}))
    else:
        stdout().print(f"{gone:,} keys deleted")


__all__ = ["idempotency"]
