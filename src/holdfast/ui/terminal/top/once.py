"""Prints the overview once as text, for a pipe, a ticket or a terminal that is too small.

There are no keys to see more, so filesystems are included. The error of a source is printed once,
beside its part: the same text on each row that depends on it would bury all others.
"""

from rich.console import Console
from rich.text import Text

from holdfast.core.view.snapshot import Snapshot
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.headline import Contact, fleet_line, source_line
from holdfast.ui.terminal.top.row_status import about_source, faulty
from holdfast.ui.terminal.top.table import (
    PageLine,
    RowSelection,
    Section,
    TableSection,
    TextSection,
    lines_of,
)
from holdfast.ui.terminal.top.tables import DISKS
from holdfast.ui.terminal.top.views import overview

_ANSI = {
    Tone.PLAIN: "",
    Tone.STRONG: "bold",
    Tone.MUTED: "dim",
    Tone.HEADING: "bold blue",
    Tone.GOOD: "green",
    Tone.INFO: "cyan",
    Tone.WARN: "yellow",
    Tone.BAD: "bold red",
    Tone.KEY: "bold",
}  # the terminal's own: its owner chose them to be readable on its background


def once_lines(snapshot: Snapshot, width: int) -> list[PageLine]:
    """The overview as lines with their tones."""
    head = [
        PageLine(tuple(fleet_line(snapshot, Contact(live=False), width))),
        PageLine(tuple(source_line(snapshot, 0.0, width))),
        PageLine(),
    ]
    failing = [
        (f"!  {row.source} {row.part}: {about_source(row)}", Tone.BAD)
        for row in snapshot.sources
        if faulty(row)
    ]
    said = {f"{row.part}: {row.error}" for row in snapshot.sources if row.error}
    faults = [
        (f"!  {row_name}: {fault}", Tone.BAD)
        for row_name, found in _faults(snapshot)
        for fault in found
        if fault not in said
    ]
    fixes = [(f"!  {row.id} {row.title}: {row.fix}", Tone.PLAIN) for row in snapshot.incidents]
    notes = [(f"   {note}", Tone.WARN) for note in snapshot.notes]
    below: list[Section] = [
        TextSection(title, lines, indent=3)
        for title, lines in (
            ("WHAT IS WRONG", [*failing, *faults]),
            ("WHAT TO DO", fixes),
            ("NOTES", notes),
        )
        if lines
    ]
    above = [*overview(snapshot), TableSection(DISKS, snapshot.disks)]
    lines = lines_of([*above, *below], width, RowSelection(), airy=True)
    told = f"{snapshot.calls} calls to platforms, {snapshot.took_s:.2f} s"
    return [*head, *lines, PageLine(), PageLine(((told, Tone.MUTED),))]


def _faults(snapshot: Snapshot) -> list[tuple[str, tuple[str, ...]]]:
    return [
        *((row.name, row.faults) for row in snapshot.groups),
        *((row.id, row.faults) for row in snapshot.hosts),
        *((row.id, row.faults) for row in snapshot.replicas),
        *((row.name, row.faults) for row in snapshot.models),
        *((row.name, row.faults) for row in snapshot.queues),
        *((row.id, row.faults) for row in snapshot.disks),
    ]


def show_once(snapshot: Snapshot, console: Console) -> None:
    """Print the overview; plain text where the console is no terminal."""
    for line in once_lines(snapshot, console.width):
        text = Text()
        for piece, tone in line.spans:
            text.append(piece, _ANSI[tone])
        text.rstrip()
        console.print(text, soft_wrap=True)


__all__ = ["once_lines", "show_once"]
