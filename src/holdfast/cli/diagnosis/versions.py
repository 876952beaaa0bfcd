"""``holdfast versions``: what each replica runs on, and where replicas of one model differ."""

import json
from typing import Any, Final

import click
from rich.text import Text

from holdfast.cli.admin_port import Admin, asks_admin
from holdfast.core.near_names import fix_of_name
from holdfast.ui.terminal.console import stdout
from holdfast.ui.terminal.untrusted_text import escape

_MEMBERS: Final = (
    *("replica", "model", "revision", "host", "driver", "cuda", "nccl", "engine", "weights"),
    "image",
)
_DIGEST_SHOWN: Final = 19  # "sha256:" and twelve digits: enough to tell two apart


@click.command()
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@asks_admin
def versions(admin: Admin, model: str | None, *, as_json: bool) -> None:
    """Show the versions that each replica runs on, where they differ.

    The bill of versions: driver, CUDA, NCCL, engine, weights and image.

    What most replicas of a model and revision do not have is marked with an asterisk. Below stands
    what differs, and images that only a tag holds in place: a tag may mean another image tomorrow.

    \b
    Examples:
      holdfast versions
      holdfast versions classifier --json
    """  # noqa: D301
    told = admin.told("/versions").get("versions") or []
    rows = [row for row in told if model is None or row["model"] == model]
    if as_json:
        click.echo(json.dumps({"versions": rows}))
        return
    console = stdout()
    if not rows:
        known = list(dict.fromkeys(str(row["model"]) for row in told))
        fix = f" of {escape(model)}; {escape(fix_of_name(model, known, 'models'))}" if model else ""
        console.print(f"there are no replicas{fix}", soft_wrap=True)
        return
    shown = [_MEMBERS, *map(_cells, rows)]
    widths = [max(len(row[place]) for row in shown) for place in range(len(_MEMBERS))]
    for number, row in enumerate(shown):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.print(Text("  ".join(cells).rstrip(), "dim" if number == 0 else ""), soft_wrap=True)
    remarks = [line for row in rows for line in _differences(row)]
    remarks += [line for row in rows for line in _warnings(row)]
    for line in dict.fromkeys(remarks):
        console.print(Text(line, "yellow"), soft_wrap=True)


_NAMED: Final = {"digest": "weights", "image digest": "image"}  # aspects that columns call so


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    odd = {_NAMED.get(name, name) for name in row["differs"]}
    image = row["image"]
    if row["image_digest"] and row["image_digest"] not in image:
        image = f"{image} ({row['image_digest'][:_DIGEST_SHOWN]})"
    values = {**row, "weights": row["weights"][:12], "image": image}
    return tuple(
        (escape(str(values[name])) or "-") + ("*" if name in odd else "") for name in _MEMBERS
    )


def _differences(row: dict[str, Any]) -> list[str]:
    told = f"{row['replica']} differs in {', '.join(row['differs'])}"
    return [escape(told)] if row["differs"] else []


def _warnings(row: dict[str, Any]) -> list[str]:
    return [escape(f"{row['model']}: {warning}") for warning in row["warnings"]]


__all__ = ["versions"]
