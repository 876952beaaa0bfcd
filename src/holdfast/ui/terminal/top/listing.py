"""The listing widget of ``top``: shows the lines of a page, with a cursor and scrolling.

Only lines that differ from those on the screen are painted again. The heading of the table that one
has scrolled into stays at the top.

Rejected: Textual's ``DataTable``. A snapshot comes every second, and with all figures changed one
refresh took it 207 to 212 ms of CPU for 40 rows and 370 ms for 1,000, against 12 to 27 and 35 ms
here (Textual 8.2.8, ``python bench/top_table.py``, on a busy host; DataTable with fixed column
widths, its cheapest way; with widths that follow the figures 451 ms for 40 rows). It is also one
table, while a page holds tables of several kinds between which the cursor moves freely.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from holdfast.ui.terminal.top.colours import DARK, Colours, Tone
from holdfast.ui.terminal.top.figure_format import wide
from holdfast.ui.terminal.top.table import PageLine

_NOTHING: Final = PageLine()
_LEAP: Final = 3  # lines between two rows; a heading and a free line are not worth a stop


class Listing(Widget, can_focus=True):
    """A widget that shows the lines of a page, scrolls them, and has a cursor on one row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+u", "page(-1)", show=False),
        Binding("pagedown,ctrl+d,space", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """Message: a row was chosen to be opened."""

        def __init__(self, line: PageLine) -> None:
            super().__init__()
            self.line = line

    class Moved(Message):
        """Message: the cursor or the scroll position changed."""

    def __init__(self) -> None:
        super().__init__()
        self.colours: Colours = DARK
        self.lines: Sequence[PageLine] = ()
        self.top = 0
        self.follow = False  # stay at the end while lines are added
        self._cursor = -1  # a line; -1: no line can be chosen
        self._key = ""
        self._moved = False  # somebody went somewhere since this page was opened
        self._painted: list[tuple[PageLine, bool]] = []

    # --- what it holds ---------------------------------------------------------------------------

    def show(
        self, lines: Sequence[PageLine], *, key: str | None = None, top: int | None = None
    ) -> None:
        """Replace the lines; the cursor stays on its row, or goes to that of ``key``.

        The view follows a row that the user moved to. Before the user moved, the cursor stays on
        the first row and the view at its beginning.
        """
        at_end = self.follow and self.top >= self._top_max
        seen = self._moved and self._is_seen(self._cursor)
        self.lines = lines
        if key is not None:
            self._moved = bool(key)
        wanted = (key or self._key) if self._moved else ""
        if not self._moved:
            self._cursor = -1
        places = {line.key: place for place, line in enumerate(lines) if line.key}
        if wanted in places:
            self._cursor = places[wanted]
        else:
            self._cursor = _nearest(lines, max(0, self._cursor))
        self._key = lines[self._cursor].key if self._cursor >= 0 else ""
        if top is not None:
            self.top = top
        elif at_end:
            self.top = self._top_max
        self._into_view(move=top is None and seen)
        self._repaint()

    @property
    def line(self) -> PageLine:
        """The line under the cursor; an empty line if it is out of view."""
        return self.lines[self._cursor] if self._is_seen(self._cursor) else _NOTHING

    @property
    def key(self) -> str:
        """The key of the row under the cursor."""
        return self._key

    @property
    def position(self) -> str:
        """The visible lines as "1–19 of 40"; empty if all lines are visible."""
        if len(self.lines) <= self.size.height:
            return ""
        last = min(len(self.lines), self.top + self.size.height)
        return f"{self.top + 1}–{last} of {len(self.lines)}"

    @property
    def _top_max(self) -> int:
        return max(0, len(self.lines) - self.size.height)

    # --- moving ----------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor to the next row; longer text on the way is scrolled through."""
        place = self._cursor + by
        while 0 <= place < len(self.lines) and not self.lines[place].key:
            place += by
        there = self._cursor >= 0 and 0 <= place < len(self.lines)
        beyond = max(place - (self.top + self.size.height - 1), self.top + 1 - place)
        if there and self._is_seen(self._cursor) and beyond <= _LEAP:
            self._go(place)
        else:
            self._scroll(by)

    def action_page(self, by: int) -> None:
        """Scroll by a screenful and move the cursor with it."""
        far = by * max(1, self.size.height - 2)
        self._scroll(far)
        if self._cursor >= 0:
            self._go(_nearest(self.lines, min(max(0, self._cursor + far), len(self.lines) - 1)))

    def action_edge(self, end: int) -> None:
        """Move to the first or the last row."""
        self.top = self._top_max if end else 0
        if self._cursor >= 0:
            self._go(_nearest(self.lines, len(self.lines) - 1 if end else 0))
        self._changed()

    def action_choose(self) -> None:
        """Open the row under the cursor."""
        if self.line.key:
            self.post_message(self.Chosen(self.line))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down and leave the cursor on its row."""
        event.stop()
        self._scroll(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up and leave the cursor on its row."""
        event.stop()
        self._scroll(-3)

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row; open it at a second click."""
        place = self.top + event.y
        if place < len(self.lines) and self.lines[place].key:
            again = place == self._cursor
            self._go(place)
            if again or event.chain > 1:
                self.action_choose()

    def on_resize(self) -> None:
        """Adapt the scroll position to another height."""
        self._into_view(move=not self.follow and self.top > 0)
        self._painted = []

    def _go(self, place: int) -> None:
        if place < 0:
            return
        self._moved = True
        self._cursor = place
        self._key = self.lines[place].key
        if _nearest(self.lines, 0) == place:
            self.top = 0  # with its heading
        self._into_view(move=True)
        self._changed()

    def _scroll(self, by: int) -> None:
        """The view moves; a cursor that is left behind goes to the nearest row that is seen."""
        self.top = min(max(0, self.top + by), self._top_max)
        self._moved = True
        if self._cursor >= 0 and not self._is_seen(self._cursor):
            rows = [place for place in self._view() if self.lines[place].key]
            if rows:
                self._cursor = rows[0] if self._cursor < self.top + 1 else rows[-1]
                self._key = self.lines[self._cursor].key
        self._changed()

    def _view(self) -> range:
        """The lines that are seen; the first gives way to a heading."""
        hidden = self.top < len(self.lines) and self._heading_above(self.top) is not None
        last = min(len(self.lines), self.top + max(1, self.size.height))
        return range(self.top + hidden, last)

    def _is_seen(self, place: int) -> bool:
        return place >= 0 and place in self._view()

    def _into_view(self, *, move: bool) -> None:
        height = max(1, self.size.height)
        if move and self._cursor >= 0:
            # The first line of the screen belongs to a heading.
            first, last = self._cursor - height + 1, max(0, self._cursor - 1)
            self.top = min(max(self.top, first), last)
        self.top = min(max(0, self.top), self._top_max)

    def _changed(self) -> None:
        self._repaint()
        self.post_message(self.Moved())

    # --- painting --------------------------------------------------------------------------------

    def repaint_all(self) -> None:
        """Repaint every line, for another theme."""
        self._painted = []
        self.refresh()

    def _repaint(self) -> None:
        height, width = self.size.height, self.size.width
        visible = [self._at(y) for y in range(height)]
        if len(self._painted) != height:
            self.refresh()
        else:
            changed = [y for y in range(height) if _differ(visible[y], self._painted[y])]
            if changed:
                self.refresh(*(Region(0, y, width, 1) for y in changed))
        self._painted = visible

    def _at(self, y: int) -> tuple[PageLine, bool]:
        """What stands on a line of the screen, and whether it is chosen."""
        place = self.top + y
        if place >= len(self.lines):
            return _NOTHING, False
        if y == 0 and not self.lines[place].heading:
            kept = self._heading_above(place)
            if kept is not None:
                return kept, False
        return self.lines[place], place == self._cursor

    def _heading_above(self, place: int) -> PageLine | None:
        """The heading of the table that this row is in, where rows of it follow."""
        following = self.lines[place + 1 : place + 2]
        if not self.lines[place].key or not following or not following[0].key:
            return None
        for line in reversed(self.lines[:place]):
            if line.heading:
                return line if line.table is not None else None
        return None

    def render_line(self, y: int) -> Strip:
        """Render one line of the screen."""
        line, chosen = self._at(y)
        ground = "chosen" if chosen else "band" if line.heading else "page"
        colours, width = self.colours, self.size.width
        segments = [Segment(text, colours.style(tone, ground)) for text, tone in line.spans]
        rest = width - sum(wide(text) for text, _ in line.spans)
        if rest > 0:
            segments.append(Segment(" " * rest, colours.style(Tone.PLAIN, ground)))
        return Strip(segments).crop(0, width)


def _differ(one: tuple[PageLine, bool], other: tuple[PageLine, bool]) -> bool:
    return one[1] != other[1] or not one[0].looks_like(other[0])


def _nearest(lines: Sequence[PageLine], place: int) -> int:
    """The row at this line, else the next below, else the last above; -1: there is none."""
    below = (at for at in range(place, len(lines)) if lines[at].key)
    above = (at for at in range(min(place, len(lines)) - 1, -1, -1) if lines[at].key)
    return next(below, next(above, -1))


__all__ = ["Listing"]
