"""``holdfast queue ls|peek|redrive|purge``: looks into the store that a fleet file names.

The store is opened directly, so these work while no fleet runs, and beside one that does. Payloads
are people's prompts: they are printed only where that is asked for.
"""

import asyncio
import functools
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from holdfast.cli.admin_port import which_fleet
from holdfast.config.batch import BatchSection
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.queue_port import DurableQueue, ItemState, ItemView, QueueDepth, QueueError
from holdfast.ui.terminal.console import duration, stdout
from holdfast.ui.terminal.untrusted_text import escape
from holdfast.wire.queue_store import FILE_NAME, batch_folder, open_queue_store

PAGE: Final = 20
TEXT_MAX: Final = 60  # characters of a story's note in a table
_STATES: Final = [state.value for state in ItemState]
_SHOWN: Final = (ItemState.DONE, ItemState.FAILED, ItemState.CANCELLED)

Command = Callable[..., Awaitable[None]]


def _asks_store(command: Command) -> Callable[..., None]:
    """Decorator: adds the options that name a fleet, and passes its store."""

    @which_fleet
    @functools.wraps(command)
    def asked(*, config: Path | None, state_dir: Path | None, **options: Any) -> None:
        section = BatchSection() if config is None else load(config, FleetFile).batch
        folder = batch_folder(config, state_dir, os.environ)
        path = section.store.path or folder / FILE_NAME
        if section.store.kind == "sqlite" and not path.exists():
            told = f"{path} is not there: no item was queued yet, or -c names another fleet"
            raise click.ClickException(told)

        async def run() -> None:
            store = open_queue_store(section.store, folder)
            try:
                await command(store=store, **options)
            finally:
                await store.close()

        try:
            asyncio.run(run())
        except QueueError as error:
            raise click.ClickException(escape(str(error))) from error

    return asked


@click.group()
def queue() -> None:
    """Look into queues of durable work; resend or delete items.

    \b
    Examples:
      holdfast queue ls -c fleet.yaml
      holdfast queue peek chat/acme --state dead -c fleet.yaml
      holdfast queue redrive chat/acme -c fleet.yaml
    """  # noqa: D301


@queue.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_asks_store
async def list_queues(store: DurableQueue, *, as_json: bool) -> None:
    """List queues with their depth by state and the age of the oldest item that has not ended.

    \b
    Examples:
      holdfast queue ls -c fleet.yaml
      holdfast queue ls -c fleet.yaml --json
    """  # noqa: D301
    depths = await store.depths()
    if as_json:
        rows = [_depth_json(depth) for depth in depths]
        click.echo(json.dumps({"store": store.traits.kind, "queues": rows}))
        return
    console = stdout()
    if not depths:
        console.print("no queue has items")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("queue", overflow="fold")
    for name in ("waiting", "delayed", "in flight", "dead", *(s.value for s in _SHOWN), "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    for depth in depths:
        age = "–" if depth.oldest_age_s is None else duration(depth.oldest_age_s)
        delayed = depth.counts.get(ItemState.DELAYED, 0)
        counts = (depth.counts.get(ItemState.READY, 0), delayed, depth.in_flight, depth.dead)
        ended = (depth.counts.get(state, 0) for state in _SHOWN)
        cells = [f"{count:,}" for count in (*counts, *ended)]
        table.add_row(escape(depth.queue), *cells, age)
    console.print(table)


@queue.command()
@click.argument("name")
@click.option("--state", type=click.Choice(_STATES), multiple=True, help="Only such; repeatable.")
@click.option("--group", help="Only items of this group (batch).")
@click.option("--after", type=click.IntRange(0), default=0, help="Only numbers above this.")
@click.option("-n", "--lines", type=click.IntRange(1, 1_000), default=PAGE, show_default=True)
@click.option("--payload", "with_payload", is_flag=True, help="Print payloads and results too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per item.")
@_asks_store
async def peek(
    store: DurableQueue,
    name: str,
    state: tuple[str, ...],
    group: str | None,
    after: int,
    lines: int,
    *,
    with_payload: bool,
    as_json: bool,
) -> None:
    """Look at items of the queue NAME without taking them, the oldest first.

    Payloads and results are what users sent and got: they are left out unless asked for.

    \b
    Examples:
      holdfast queue peek chat/acme -c fleet.yaml
      holdfast queue peek chat/acme --state dead --payload --json -c fleet.yaml
    """  # noqa: D301
    states = [ItemState(one) for one in state] or None
    items = await store.items(name, states=states, group=group, after=after, limit=lines)
    if as_json:
        for item in items:
            click.echo(json.dumps(_item_json(item, with_payload=with_payload)))
        return
    console = stdout()
    if not items:
        console.print("no such items")
        return
    for item in items:
        _show(item, with_payload=with_payload)
    if len(items) == lines:
        console.print(f"more with --after {items[-1].seq}", style="dim")


@queue.command()
@click.argument("name")
@click.option("--id", "ids", multiple=True, help="Only this one; repeatable. Default: all.")
@_asks_store
async def redrive(store: DurableQueue, name: str, ids: tuple[str, ...]) -> None:
    """Make the dead letters of the queue NAME ready again, with no receives counted.

    Mend what killed them first: 'peek --state dead' tells their story.

    \b
    Examples:
      holdfast queue redrive chat/acme -c fleet.yaml
      holdfast queue redrive chat/acme --id batch_4f1c/17 -c fleet.yaml
    """  # noqa: D301
    count = await store.redrive(name, ids or None)
    click.echo(f"{count} dead letter{'' if count == 1 else 's'} made ready again")
    if ids and count < len(set(ids)):
        raise click.ClickException(f"{len(set(ids)) - count} of the ids are no dead letters of it")


@queue.command()
@click.argument("name")
@click.option("--state", type=click.Choice(_STATES), multiple=True, help="Only such; repeatable.")
@click.option("--group", help="Only items of this group (batch).")
@click.option("--id", "ids", multiple=True, help="Only this one; repeatable.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_asks_store
async def purge(
    store: DurableQueue,
    name: str,
    state: tuple[str, ...],
    group: str | None,
    ids: tuple[str, ...],
    *,
    yes: bool,
) -> None:
    """Delete items of the queue NAME for good, with their records.

    \b
    Examples:
      holdfast queue purge chat/acme --state dead -c fleet.yaml
      holdfast queue purge chat/acme --state done --yes -c fleet.yaml
    """  # noqa: D301
    states = [ItemState(one) for one in state] or None
    depths = await store.depths(name, group)
    count = sum(
        n for depth in depths for at, n in depth.counts.items() if states is None or at in states
    )
    if count and not yes:
        which = f"{len(set(ids)):,} named" if ids else f"{count:,}"
        click.confirm(f"delete {which} items of {escape(name)} for good?", abort=True)
    named = ids or None
    deleted = await store.purge(name, group=group, states=states, ids=named) if count else 0
    click.echo(f"{deleted} item{'' if deleted == 1 else 's'} deleted")


# --- what is shown --------------------------------------------------------------------------------


def _show(item: ItemView, *, with_payload: bool) -> None:
    console = stdout()
    parts = [item.state.value, f"receives {item.receives} of {item.max_receives}"]
    parts += [f"group {item.group}"] if item.group else []
    parts += [f"tenant {item.tenant}"] if item.tenant else []
    parts += [f"owner {item.owner}"] if item.owner else []
    parts.append(f"since {_when(item.enqueued_at)}")
    parts.append(f"{len(item.payload):,} bytes")
    console.print(f"{item.seq}  {escape(item.id)}", style="bold", soft_wrap=True)
    console.print("   " + escape(", ".join(parts)), soft_wrap=True)
    for told in item.story:
        note = json.dumps(told.get("note", {}))
        line = f"receive {told.get('receive')}: {told.get('what')}"
        line += f" ({told['owner']})" if told.get("owner") else ""
        line += f" {note[:TEXT_MAX]}" if told.get("note") else ""
        console.print("   " + escape(line), style="dim", soft_wrap=True)
    if with_payload:
        for data in (item.payload, item.result):
            if data:
                console.print("   " + escape(data.decode("utf-8", "replace")), soft_wrap=True)


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _depth_json(depth: QueueDepth) -> dict[str, Any]:
    counts = {state.value: depth.counts.get(state, 0) for state in ItemState}
    return {"queue": depth.queue, "counts": counts, "oldest_age_s": depth.oldest_age_s}


def _item_json(item: ItemView, *, with_payload: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "queue": item.queue,
        "id": item.id,
        "seq": item.seq,
        "state": item.state.value,
        "group": item.group,
        "tenant": item.tenant,
        "priority": item.priority,
        "deadline": item.deadline,
        "receives": item.receives,
        "max_receives": item.max_receives,
        "enqueued_at": item.enqueued_at,
        "ended_at": item.ended_at,
        "owner": item.owner,
        "payload_bytes": len(item.payload),
        "result_bytes": len(item.result),
        "story": _plain(item.story),
    }
    if with_payload:
        told["payload"] = item.payload.decode("utf-8", "replace")
        told["result"] = item.result.decode("utf-8", "replace")
    return told


def _plain(story: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(entry) for entry in story]


__all__ = ["queue"]
