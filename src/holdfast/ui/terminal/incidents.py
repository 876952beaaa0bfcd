"""Prints incidents for people: a list, and all that is known of one.

One incident is printed in the order in which an engineer on call asks: what is it, since when, who
is concerned, how do we know, what followed from it, what was done, what should I do. Members that
the admin port does not send are left out.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.ui.terminal.console import duration, stdout

CLASS_STYLES: Final = {"loading": "yellow", "runtime": "red", "routing": "magenta"}
_STAGE_STYLES: Final = {"open": "bold red", "mending": "yellow", "closed": "green"}
_REPLICAS_SHOWN: Final = 6

Row = Mapping[str, Any]  # an incident, as /incidents has it


def show_incidents(incidents: Sequence[Row]) -> None:
    """Print one line for each incident, open ones first."""
    console = stdout()
    if not incidents:
        console.print("no incidents")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "stage", "class", "cause", "who", "since", "sure"):
        table.add_column(name, no_wrap=name != "who", overflow="fold")
    for one in sorted(incidents, key=lambda row: row.get("stage") == "closed"):
        table.add_row(
            str(one.get("id", "")),
            Text(str(one.get("stage", "")), _STAGE_STYLES.get(str(one.get("stage")), "")),
            Text(str(one.get("class", "")), CLASS_STYLES.get(str(one.get("class")), "")),
            _words(one.get("cause")),
            _who(one),
            _ago(one.get("opened_at")),
            _sure(one),
        )
    console.print(table)
    console.print("\n'holdfast explain ID' tells one of them", style="dim")


def show_incident(one: Row) -> None:
    """Print all that is known of one incident."""
    console = stdout()
    stage = str(one.get("stage", ""))
    head = Text(f"{one.get('id', '')}  ", "bold")
    head.append(_words(one.get("cause")), "bold")
    head.append(f" of {_who(one)}", "bold")
    console.print(head, soft_wrap=True)
    line = Text()
    line.append(str(one.get("class", "")), CLASS_STYLES.get(str(one.get("class")), ""))
    line.append(" failure, ")
    line.append(stage, _STAGE_STYLES.get(stage, ""))
    line.append(f", since {_clock(one.get('opened_at'))} ({_ago(one.get('opened_at'))} ago)")
    if one.get("closed_at"):
        line.append(f", over at {_clock(one.get('closed_at'))}")
    line.append(f", {_sure(one)} sure")
    others = ", ".join(_words(cause) for cause in one.get("other_causes") or ())
    if others:
        line.append(f" (else: {others})", "dim")
    console.print(line, soft_wrap=True)
    _paragraph("what to do", one.get("fix"))
    _paragraph("what was done", one.get("action"))
    _evidence("how we know", one.get("evidence") or ())
    _evidence("what followed from it", one.get("consequences") or ())
    _timeline(one.get("timeline") or ())


def _paragraph(title: str, text: Any) -> None:
    if text:
        console = stdout()
        console.print(Text(f"\n{title}", "bold"))
        console.print(Padding(Text(str(text)), (0, 0, 0, 2)))


def _evidence(title: str, pieces: Sequence[Row]) -> None:
    if not pieces:
        return
    console = stdout()
    console.print(Text(f"\n{title}", "bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for name in ("when", "who", "source", "text"):
        table.add_column(name, no_wrap=name != "text", overflow="fold")
    for piece in pieces:
        about: Any = piece.get("about") or {}
        who = about.get("replica") or about.get("filesystem") or about.get("host")
        told = str(piece.get("text") or piece.get("sign") or "")
        who = str(who or about.get("model") or "")
        table.add_row(_clock(piece.get("at")), who, Text(str(piece.get("source", "")), "dim"), told)
    console.print(Padding(table, (0, 0, 0, 2)))


def _timeline(entries: Sequence[Row]) -> None:
    if not entries:
        return
    console = stdout()
    console.print(Text("\ntimeline", "bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for name in ("when", "what", "text"):
        table.add_column(name, no_wrap=name != "text", overflow="fold")
    for entry in entries:
        who = f"{entry['about']}: " if entry.get("about") else ""
        table.add_row(
            _clock(entry.get("at")), _words(entry.get("what")), f"{who}{entry.get('text', '')}"
        )
    console.print(Padding(table, (0, 0, 0, 2)))


def _who(one: Row) -> str:
    replicas = [str(name) for name in one.get("replicas") or ()]
    about: Any = one.get("about") or {}
    if len(replicas) == 1 or not replicas:
        named = about.get("replica") or about.get("filesystem") or about.get("host")
        return str(named or about.get("model") or ", ".join(replicas) or "the fleet")
    shown = ", ".join(replicas[:_REPLICAS_SHOWN])
    more = f" and {len(replicas) - _REPLICAS_SHOWN} more" if len(replicas) > _REPLICAS_SHOWN else ""
    return f"{about.get('filesystem') or about.get('model') or ''} ({shown}{more})".strip()


def _words(name: Any) -> str:
    return str(name or "").replace("_", " ")


def _sure(one: Row) -> str:
    sure = one.get("confidence")
    return f"{sure:.0%}" if isinstance(sure, int | float) else "?"


def _ago(at: Any) -> str:
    if not isinstance(at, int | float):
        return "?"
    return duration(max(0.0, time.time() - at))


def _clock(at: Any) -> str:
    if not isinstance(at, int | float):
        return ""
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


__all__ = ["CLASS_STYLES", "show_incident", "show_incidents"]
