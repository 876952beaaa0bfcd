"""The pages of ``top``: a view, one row, an incident, a request, a log, the help.

A page gives its sections and, where the snapshot does not hold them, asks control for more while
the page is open. The screen keeps a stack of pages; their names are the breadcrumbs.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from holdfast.core.view.snapshot import Snapshot
from holdfast.ui.terminal.top import report_sections
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.link import Link, LinkError
from holdfast.ui.terminal.top.table import Section, TextSection
from holdfast.ui.terminal.top.views import (
    concerned,
    details,
    find,
    incident_row,
    name_of,
    view,
)

AGAIN_S: Final = 5.0  # between two looks at one incident, and before a log is asked for again
LINES_MAX: Final = 2_000  # of a log
_LINE_MAX: Final = 4_000  # letters; longer lines are cut: nobody reads them on a screen
_TAIL: Final = 500


class Page(ABC):
    """One page: gives its sections, and asks control for data that no snapshot has."""

    crumb = ""
    follows = False  # stays at its end while lines are added

    @abstractmethod
    def sections(self, snapshot: Snapshot) -> list[Section]:
        """The sections of the page for this snapshot."""

    async def ask(  # noqa: B027 most places have nothing to ask
        self, link: Link, changed: Callable[[], None]
    ) -> None:
        """Ask control for data that the snapshot does not hold, until cancelled or complete."""


class ViewPage(Page):
    """The page of one view, such as the overview."""

    def __init__(self, name: str) -> None:
        self.name = self.crumb = name

    def sections(self, snapshot: Snapshot) -> list[Section]:
        """The sections of the view."""
        return view(self.name, snapshot)


class DetailPage(Page):
    """The page of one row, with the rows related to it."""

    def __init__(self, table: str, key: str, row: Any) -> None:
        self.table, self.key = table, key
        self.crumb = name_of(row)
        self.row = row
        self.gone = False

    def sections(self, snapshot: Snapshot) -> list[Section]:
        """The details of the row as it is now; of a row that is gone, as it was last."""
        now = find(snapshot, self.table, self.key)
        self.gone = now is None
        if now is not None:
            self.row = now
        told = "it is in no source any more; this is how it was seen last"
        gone: list[Section] = (
            [TextSection("GONE", [(f"!  {told}", Tone.WARN)])] if self.gone else []
        )
        return gone + details(snapshot, self.row)


class IncidentPage(Page):
    """The page of one incident, with all that control knows of it."""

    def __init__(self, name: str) -> None:
        self.name = self.crumb = name
        self._told: dict[str, Any] | None = None
        self._problem = ""

    def sections(self, snapshot: Snapshot) -> list[Section]:
        """The incident's report, and the rows it concerns."""
        found = incident_row(snapshot, self.name)
        told = self._told or (report_sections.told_by_row(found, snapshot.at) if found else None)
        parts: list[Section] = []
        if self._problem:
            parts.append(TextSection("", [(f"!  {self._problem}", Tone.WARN)], indent=3))
        if told is None:
            return parts or [TextSection("", [(f"   asking for {self.name} …", Tone.MUTED)])]
        return [
            *parts,
            *report_sections.incident(told, snapshot.at),
            *concerned(snapshot, self.name),
        ]

    async def ask(self, link: Link, changed: Callable[[], None]) -> None:
        """Ask control for the incident repeatedly, because it changes."""
        while True:
            try:
                answer = await link.ask(f"/incidents/{quote(self.name)}")
                self._told, self._problem = json.loads(answer.body), ""
            except (LinkError, ValueError) as error:
                self._problem = f"{self.name}: {error}"
            changed()
            await asyncio.sleep(AGAIN_S)


class StoryPage(Page):
    """The page of one request: what happened to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.crumb = f"story {name}"
        self._told: dict[str, Any] | None = None
        self._problem = ""

    def sections(self, snapshot: Snapshot) -> list[Section]:  # noqa: ARG002 a story is past
        """The steps of the request."""
        if self._told is not None:
            return report_sections.request(self._told)
        if self._problem:
            return [TextSection("", [(f"!  {self._problem}", Tone.BAD)], indent=3)]
        return [TextSection("", [(f"   asking for {self.name} …", Tone.MUTED)])]

    async def ask(self, link: Link, changed: Callable[[], None]) -> None:
        """Ask control for the request once: it does not change any more."""
        try:
            self._told = json.loads((await link.ask(f"/explain/{quote(self.name)}")).body)
        except (LinkError, ValueError) as error:
            hint = "the id is the x-request-id of its response"
            self._problem = f"{self.name}: {error}; {hint}"
        changed()


class LogPage(Page):
    """The page of one replica's log, with new lines as they come."""

    follows = True

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.crumb = f"log {replica}"
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._open = ""  # a line that has no end yet
        self._state = "asking …"
        self._known: tuple[str, ...] = ()

    def sections(self, snapshot: Snapshot) -> list[Section]:
        """The lines of the log, and errors of reading it."""
        self._known = tuple(row.id for row in snapshot.replicas)
        lines = [(line, Tone.PLAIN) for line in self._lines]
        if self._open:
            lines.append((self._open, Tone.PLAIN))
        ending = [(f"── {self._state}", Tone.MUTED)] if self._state else []
        return [TextSection("", [*lines, *ending], indent=2)]

    async def ask(self, link: Link, changed: Callable[[], None]) -> None:
        """Read the log until cancelled."""
        path = f"/replicas/{quote(self.replica)}/logs?follow=1&lines={_TAIL}"
        while True:
            self._lines.clear()
            self._open = ""
            refused = False
            pieces = link.pieces(path)
            try:
                async for piece in pieces:
                    self._state = "waiting for more"
                    self._add(piece.decode("utf-8", "replace"))
                    changed()
                self._state = f"the log ended; trying again in {AGAIN_S:.0f} s"
            except LinkError as error:
                refused = error.status in {401, 404}
                again = "" if refused else f"; trying again in {AGAIN_S:.0f} s"
                self._state = f"{self.replica}: {error}{self._others(error.status)}{again}"
            finally:
                await pieces.aclose()
            changed()
            if refused:
                return
            await asyncio.sleep(AGAIN_S)

    def _others(self, status: int) -> str:
        if status != 404 or self.replica in self._known or not self._known:
            return ""
        return f"; there are {', '.join(self._known[:8])}{' …' if len(self._known) > 8 else ''}"

    def _add(self, text: str) -> None:
        *lines, self._open = (self._open + text).split("\n")
        self._lines += [line.rstrip("\r")[:_LINE_MAX] for line in lines]
        self._open = self._open[:_LINE_MAX]


class HelpPage(Page):
    """The page of keys, commands and signs."""

    crumb = "help"

    def sections(self, snapshot: Snapshot) -> list[Section]:  # noqa: ARG002 always the same
        """The whole help as sections."""
        return report_sections.help_text()


__all__ = [
    "AGAIN_S",
    "LINES_MAX",
    "DetailPage",
    "HelpPage",
    "IncidentPage",
    "LogPage",
    "Page",
    "StoryPage",
    "ViewPage",
]
