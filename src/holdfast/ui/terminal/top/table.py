"""Lays tables out as lines of text: which columns fit, how wide each is, what is left out first.

    sections ─► lines_of(width, RowSelection) ─► lines ─┬─► the listing on a screen
                                                        └─► ``--once``

A narrow terminal gets fewer columns and never a line that is cut at its edge or scrolls sideways:
each column has a rank, and the highest goes first. Columns that are empty in all rows are left out
before that. Widths are computed here and not by a widget, so that a screen and a pipe show the
same table, and a table of 500 rows costs its figures once and no layout.
"""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.figure_format import UNKNOWN, cut, wide
from holdfast.ui.terminal.untrusted_text import clean

NARROW: Final = 100  # columns of a terminal; below, one space between columns must do
NICE: Final = 10  # columns from this rank on are not worth cutting another
_WORDS_LEAST: Final = 12
_SLIMMEST: Final = 2  # columns of a terminal that any column takes
_EMPTY: Final = frozenset({"", UNKNOWN})

Span = tuple[str, Tone]


class PageLine:
    """One line of a page. The text of a row is made when first needed: few rows are visible."""

    __slots__ = ("_make", "_spans", "heading", "key", "row", "table")

    def __init__(
        self,
        spans: tuple[Span, ...] = (),
        *,
        key: str = "",
        row: Any = None,
        table: "Table | None" = None,
        heading: bool = False,
        make: Callable[[], tuple[Span, ...]] | None = None,
    ) -> None:
        self._spans = spans
        self._make = make
        self.key = key  # of the row that can be chosen here; empty: none can
        self.row = row
        self.table = table
        self.heading = heading

    @property
    def spans(self) -> tuple[Span, ...]:
        """The pieces of text of the line, with their tones."""
        if self._make is not None:
            self._spans, self._make = self._make(), None
        return self._spans

    @property
    def text(self) -> str:
        """The text of the line, without tones."""
        return "".join(text for text, _ in self.spans)

    @property
    def free(self) -> bool:
        """Whether the line is empty."""
        return self._make is None and not self._spans

    def looks_like(self, other: "PageLine") -> bool:
        """Whether two lines look the same on the screen."""
        return self is other or (self.heading == other.heading and self.spans == other.spans)


@dataclass(slots=True, frozen=True)
class Column:
    """One column of a table."""

    heading: str
    text: Callable[[Any], str]
    rank: int = 0  # 0 stays; of the others the highest goes first where there is no room
    tone: Callable[[Any], Tone] | None = None
    left: bool = False  # words stand left, figures right
    wide: int = 0  # at least, so that a table does not twitch with its figures
    least: int = 0  # may be cut to this where there is no room; 0: never cut
    order: Callable[[Any], Any] | None = None  # to sort by; None: by its text


@dataclass(slots=True, frozen=True)
class Table:
    """The columns, key and title of one kind of row."""

    name: str
    title: str
    columns: tuple[Column, ...]
    key: Callable[[Any], str]
    faulty: Callable[[Any], bool]
    about: Callable[[Any], str]  # all that is wrong with a row, in a sentence
    severity: Callable[[Any], int] | None = None  # the higher stands first; None: as they came


@dataclass(slots=True, frozen=True)
class TableSection:
    """A part of a page: rows of one table."""

    table: Table
    rows: Sequence[Any]
    title: str = ""  # instead of the table's
    empty: str = ""  # said where there is no row; empty: the part is left out


@dataclass(slots=True, frozen=True)
class TextSection:
    """A part of a page: sentences under a heading."""

    title: str
    lines: Sequence[Span]
    indent: int = 0  # of what does not fit on its first line


@dataclass(slots=True, frozen=True)
class FieldsSection:
    """A part of a page: names and values, as many beside each other as fit."""

    pairs: Sequence[tuple[str, str, Tone]]
    title: str = ""


Section = TableSection | TextSection | FieldsSection


@dataclass(slots=True)
class RowSelection:
    """Which rows are shown and in which order: filter words, faults only, sorting."""

    words: str = ""
    only_faults: bool = False
    orders: dict[str, tuple[str, bool]] = field(default_factory=dict)  # by table: heading, down


def lines_of(
    sections: Sequence[Section], width: int, looking: RowSelection, *, airy: bool = False
) -> list[PageLine]:
    """All lines of a page; ``airy`` leaves one empty line between sections."""
    lines: list[PageLine] = []
    # Marks are as wide everywhere on a page, so that names begin in one column.
    marks = max(
        (_mark_width(part) for part in sections if isinstance(part, TableSection)), default=0
    )
    for section in sections:
        if isinstance(section, TableSection):
            found = _rows(section, width, looking, marks)
        elif isinstance(section, TextSection):
            found = _words(section, width)
        else:
            found = _facts(section, width)
        if found and lines and airy:
            lines.append(PageLine())
        lines += found
    return lines


# --- rows -----------------------------------------------------------------------------------------


def _mark_width(section: TableSection) -> int:
    column = section.table.columns[0]
    return max((len(column.text(row)) for row in section.rows), default=0)


class _Grid:
    """The texts of rows, column by column, as far as somebody needs them."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Any]) -> None:
        self.columns = columns
        self.rows = rows
        self._texts: dict[int, list[str]] = {}

    def texts(self, at: int) -> list[str]:
        """Of one column."""
        found = self._texts.get(at)
        if found is None:
            text = self.columns[at].text
            found = self._texts[at] = [clean(text(row)) for row in self.rows]
        return found


def _rows(section: TableSection, width: int, looking: RowSelection, marks: int) -> list[PageLine]:
    table = section.table
    rows = [row for row in section.rows if not looking.only_faults or table.faulty(row)]
    if looking.words.strip():
        rows = _matching(table, rows, looking.words)
    title = section.title or table.title
    if not rows:
        hidden = bool(section.rows)
        told = f"none of {len(section.rows)} is shown" if hidden else section.empty
        heading = PageLine(((cut(f"   {title}", width), Tone.HEADING),), heading=True)
        return [heading, PageLine(((cut(f"   {told}", width), Tone.MUTED),))] if told else []
    grid = _Grid(table.columns, rows)
    widths = fit(grid, width, title, marks, looking.orders.get(table.name, ("", False))[0])
    heading = _heading(table, title, widths, width, looking)
    return [
        heading,
        *(_row(table, grid, at, widths, width) for at in _ordered(table, grid, looking)),
    ]


def _matching(table: Table, rows: Sequence[Any], words: str) -> list[Any]:
    """Rows that hold all the words, in a column that is shown or not."""
    wanted = words.lower().split()
    grid = _Grid(table.columns, rows)
    columns = [grid.texts(at) for at in range(len(table.columns))]
    found = []
    for place, row in enumerate(rows):
        text = " ".join((*(texts[place] for texts in columns), table.about(row))).lower()
        if all(word in text for word in wanted):
            found.append(row)
    return found


def _ordered(table: Table, grid: _Grid, looking: RowSelection) -> list[int]:
    """As told; else what is worst first, and otherwise as they came."""
    rows, places = grid.rows, list(range(len(grid.rows)))
    wanted = looking.orders.get(table.name)
    severity = table.severity
    if wanted is None:
        return places if severity is None else sorted(places, key=lambda at: -severity(rows[at]))
    heading, down = wanted
    at_column = next(n for n, column in enumerate(table.columns) if column.heading == heading)
    order = table.columns[at_column].order
    values = [order(row) for row in rows] if order is not None else grid.texts(at_column)
    known = [at for at in places if values[at] is not None]
    unknown = [at for at in places if values[at] is None]
    return sorted(known, key=lambda at: values[at], reverse=down) + unknown


def fit(
    grid: _Grid, width: int, title: str = "", marks: int = 0, ordered: str = ""
) -> dict[int, int]:
    """Choose the columns that fit into a width: their places and widths.

    Columns that matter are all there, cut where they must be. The others are taken in the order of
    their ranks while there is room: they never make one that matters be cut.
    """
    columns, gap = grid.columns, gap_of(width)
    natural: dict[int, int] = {}

    def least(at: int) -> int:
        cuttable = columns[at].least
        return min(natural[at], cuttable) if cuttable else natural[at]

    def total(measure: Callable[[int], int]) -> int:
        return sum(map(measure, natural)) + gap * (len(natural) - 1)

    def wished(at: int) -> int:
        return natural[at] if columns[at].rank < NICE else least(at)

    for at in sorted(range(len(columns)), key=lambda at: columns[at].rank):
        column = columns[at]
        if column.rank >= NICE and total(wished) + gap + _SLIMMEST > width:
            break
        texts = grid.texts(at)
        if column.rank and all(text in _EMPTY for text in texts):
            continue
        heading = title if at == 1 else column.heading
        widest = max(map(wide, texts), default=0)
        arrow = 1 if ordered and column.heading == ordered else 0
        needed = (widest, wide(heading) + arrow, column.wide, marks if at == 0 else 0)
        natural[at] = max(needed)
        if column.rank >= NICE and total(wished) > width:
            del natural[at]
    while total(least) > width:
        spare = [at for at in natural if columns[at].rank]
        if not spare:
            break
        del natural[max(spare, key=lambda at: (columns[at].rank, at))]
    missing = total(natural.__getitem__) - width
    # What is longest and least needed is cut first.
    for at in sorted(natural, key=lambda at: (-columns[at].rank, -natural[at])):
        taken = min(max(0, missing), natural[at] - least(at))
        natural[at] -= taken
        missing -= taken
    return {at: natural[at] for at in sorted(natural)}


def gap_of(width: int) -> int:
    """The number of spaces between columns."""
    return 1 if width < NARROW else 2


def _heading(
    table: Table, title: str, widths: dict[int, int], width: int, looking: RowSelection
) -> PageLine:
    wanted, down = looking.orders.get(table.name, ("", False))
    parts = []
    for at, size in widths.items():
        column = table.columns[at]
        name = title if at == 1 else column.heading
        if wanted and column.heading == wanted:
            name = cut(name, size - 1) + ("↓" if down else "↑")
        parts.append(_aligned(name, size, left=column.left))
    text = (" " * gap_of(width)).join(parts)
    return PageLine(((_aligned(text, width, left=True), Tone.HEADING),), table=table, heading=True)


def _row(table: Table, grid: _Grid, place: int, widths: dict[int, int], width: int) -> PageLine:
    row = grid.rows[place]
    gap = " " * gap_of(width)

    def make() -> tuple[Span, ...]:
        spans: list[Span] = []
        for at, size in widths.items():
            column = table.columns[at]
            text = grid.texts(at)[place]
            tone = column.tone(row) if column.tone is not None else Tone.PLAIN
            if text == UNKNOWN:
                tone = Tone.MUTED
            text = _aligned(text, size, left=column.left)
            spans.append((f"{gap}{text}" if spans else text, tone))
        return cropped(spans, width)

    return PageLine(key=f"{table.name}:{table.key(row)}", row=row, table=table, make=make)


def _aligned(text: str, width: int, *, left: bool) -> str:
    text = cut(text, width)
    space = " " * (width - wide(text))
    return text + space if left else space + text


# --- words and facts ------------------------------------------------------------------------------


def _words(section: TextSection, width: int) -> list[PageLine]:
    lines = [_title(section.title, width)] if section.title else []
    for text, tone in section.lines:
        lines += [PageLine(((piece, tone),)) for piece in wrapped(text, width, section.indent)]
    return lines


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Break a sentence into lines of a width; its indentation is kept."""
    text = clean(text)
    begin = len(text) - len(text.lstrip(" "))
    inner = " " * min(begin + indent, max(0, width - _WORDS_LEAST))
    found = textwrap.wrap(
        text, max(width, _WORDS_LEAST), subsequent_indent=inner, drop_whitespace=True
    )
    return [cut(piece, width) for piece in found] or [""]


def _facts(section: FieldsSection, width: int) -> list[PageLine]:
    lines = [_title(section.title, width)] if section.title else []
    pairs = [(name, clean(value), tone) for name, value, tone in section.pairs if value]
    if not pairs:
        return []
    label = max(wide(name) for name, _, _ in pairs) + 1
    short = [(name, value, tone) for name, value, tone in pairs if wide(value) <= 24]
    long = [(name, value, tone) for name, value, tone in pairs if wide(value) > 24]
    cell = label + max((wide(value) for _, value, _ in short), default=0) + 3
    across = max(1, width // max(1, cell))  # the last needs no space behind it
    deep = -(-len(short) // across)
    for at in range(deep):
        spans: list[Span] = [("   ", Tone.PLAIN)]
        for name, value, tone in short[at::deep]:
            spans.append((_aligned(name, label, left=True), Tone.MUTED))
            spans.append((_aligned(value, cell - label, left=True), tone))
        last, tone = spans[-1]
        spans[-1] = (last.rstrip(), tone)
        lines.append(PageLine(cropped(spans, width)))
    for name, value, tone in long:
        pieces = wrapped(value, max(_WORDS_LEAST, width - label - 3))
        for place, piece in enumerate(pieces):
            shown = name if place == 0 else ""
            spans = [(f"   {_aligned(shown, label, left=True)}", Tone.MUTED), (piece, tone)]
            lines.append(PageLine(cropped(spans, width)))
    return lines


def cropped(spans: Sequence[Span], width: int) -> tuple[Span, ...]:
    """The spans cut to the width of a line."""
    found: list[Span] = []
    for text, tone in spans:
        shown = cut(text, width)
        found.append((shown, tone))
        width -= wide(shown)
        if shown != text:
            break
    return tuple(found)


def _title(title: str, width: int) -> PageLine:
    text = _aligned(f"   {title}", width, left=True)
    return PageLine(((text, Tone.HEADING),), heading=True)


__all__ = [
    "NARROW",
    "NICE",
    "Column",
    "FieldsSection",
    "PageLine",
    "RowSelection",
    "Section",
    "Span",
    "Table",
    "TableSection",
    "TextSection",
    "cropped",
    "fit",
    "gap_of",
    "lines_of",
    "wrapped",
]
