"""Columns and tones that several tables share."""

from typing import Any, Final

from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.figure_format import span
from holdfast.ui.terminal.top.row_status import name_tone
from holdfast.ui.terminal.top.table import Column

_FULL: Final = 0.9  # of anything that should not be full
_NEARLY: Final = 0.75
_OLD_S: Final = 60.0  # four readings of the slowest source were missed


def muted(_: Any) -> Tone:
    """The tone of columns that are seldom needed."""
    return Tone.MUTED


def strong(_: Any) -> Tone:
    """The tone of a table's main figures."""
    return Tone.STRONG


def info(_: Any) -> Tone:
    """The tone of bars."""
    return Tone.INFO


def bad(_: Any) -> Tone:
    """The tone of columns that hold only faults."""
    return Tone.BAD


def fill_tone(value: float | None) -> Tone:
    """The tone of a share: a warning when nearly full, bad when full."""
    if value is None or value < _NEARLY:
        return Tone.PLAIN
    return Tone.WARN if value < _FULL else Tone.BAD


def age(row: Any) -> str:
    """The age of a row's figures, as text."""
    return span(row.age_s)


def age_tone(row: Any) -> Tone:
    """The tone of a row's age: a warning when old."""
    return Tone.WARN if row.age_s is not None and row.age_s >= _OLD_S else Tone.MUTED


def uptime(row: Any) -> str:
    """How long the row's subject has been up, as text."""
    return span(row.uptime_s)


def name_column(get: Any, least: int = 14) -> Column:
    """The column of names, the second of each table."""
    return Column("name", get, tone=name_tone, left=True, least=least)


AGE: Final = Column("age", age, rank=50, tone=age_tone, order=lambda row: row.age_s)
SOURCE: Final = Column("source", lambda row: row.source, rank=52, tone=muted, left=True)

__all__ = [
    "AGE",
    "SOURCE",
    "age",
    "age_tone",
    "bad",
    "fill_tone",
    "info",
    "muted",
    "name_column",
    "strong",
    "uptime",
]
