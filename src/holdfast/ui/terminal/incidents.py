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

from holdfast.core.diagnose.evidence import Sign
from holdfast.ui.terminal.console import duration, stdout

CLASS_STYLES: Final = {"loading": "yellow", "runtime": "red", "routing": "magenta"}
_STAGE_STYLES: Final = {"open": "bold red", "mending": "yellow", "closed": "green"}
_REPLICAS_SHOWN: Final = 6
_ACTS: Final = ("action", "refused")  # entries of a timeline that say what was done, or was not

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
    console.print(
        "\n'holdfast explain' tells the newest of them, 'holdfast explain ID' any", style="dim"
    )


def show_incident(one: Row) -> None:
    """Print all that is known of one incident."""
    console = stdout()
    stage = str(one.get("stage", ""))
    head = Text(f"{one.get('id', '')}  ", "bold")
    head.append(_cause(one), "bold")
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
    told: set[str] = set()  # texts that are printed: each is printed once
    _done(one, told)
    _evidence("how we know", one.get("evidence") or (), told)
    _evidence("what followed from it", one.get("consequences") or (), told)
    _timeline(one.get("timeline") or (), told)


def _paragraph(title: str, text: Any) -> None:
    if text:
        console = stdout()
        console.print(Text(f"\n{title}", "bold"))
        console.print(Padding(Text(str(text)), (0, 0, 0, 2)))


def _done(one: Row, told: set[str]) -> None:
    """What was done and when, the latest last; or what is known of it without a time."""
    timeline: Sequence[Row] = one.get("timeline") or ()
    rows = [entry for entry in timeline if entry.get("what") in _ACTS]
    if not any(entry.get("text") == one.get("action") for entry in rows):
        _paragraph("what was done", one.get("action"))
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column("when", no_wrap=True)
    table.add_column("text", overflow="fold")
    for entry in rows:
        text = str(entry.get("text", ""))
        if text not in told:
            told.add(text)
            table.add_row(_clock(entry.get("at")), text)
    console = stdout()
    console.print(Text("\nwhat was done", "bold"))
    console.print(Padding(table, (0, 0, 0, 2)))


def _evidence(title: str, pieces: Sequence[Row], told: set[str]) -> None:
    """Print pieces of evidence as a table, without those whose text was printed before."""
    pieces = [piece for piece in pieces if _text(piece) not in told]
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
        text = _text(piece)
        if text in told:
            continue
        told.add(text)
        who = str(who or about.get("model") or "")
        table.add_row(_clock(piece.get("at")), who, Text(str(piece.get("source", "")), "dim"), text)
    console.print(Padding(table, (0, 0, 0, 2)))


def _timeline(entries: Sequence[Row], told: set[str]) -> None:
    """Print what happened in its order; what is printed above in full is only named here."""
    entries = [entry for entry in entries if entry.get("what") not in _ACTS or not told]
    if not entries:
        return
    console = stdout()
    console.print(Text("\ntimeline", "bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for name in ("when", "what", "text"):
        table.add_column(name, no_wrap=name != "text", overflow="fold")
    for entry in entries:
        about, text = str(entry.get("about") or ""), str(entry.get("text") or "")
        if text in told:
            text = about
        elif about and about not in text:
            text = f"{about}: {text}"
        table.add_row(_clock(entry.get("at")), _words(entry.get("what")), text)
    console.print(Padding(table, (0, 0, 0, 2)))


def _text(piece: Row) -> str:
    return str(piece.get("text") or piece.get("sign") or "")


def _cause(one: Row) -> str:
    never = any(piece.get("sign") == Sign.NEVER_SEEN for piece in one.get("evidence") or ())
    return f"{_words(one.get('cause'))}{', never seen,' if never else ''}"


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
