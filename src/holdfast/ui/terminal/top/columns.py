"""Columns, and tones of figures, that tables of several kinds share."""

from typing import Any, Final

from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.figure_format import span
from holdfast.ui.terminal.top.row_status import name_tone
from holdfast.ui.terminal.top.table import Column

_FULL: Final = 0.9  # of anything that should not be full
_NEARLY: Final = 0.75
_OLD_S: Final = 60.0  # four readings of the slowest source were missed


def muted(_: Any) -> Tone:
    """Of what is seldom asked for."""
    return Tone.MUTED


def strong(_: Any) -> Tone:
    """Of what a row is there for."""
    return Tone.STRONG


def info(_: Any) -> Tone:
    """Of pictures."""
    return Tone.INFO


def bad(_: Any) -> Tone:
    """Of what is wrong by being there."""
    return Tone.BAD


def fill_tone(value: float | None) -> Tone:
    """Of a share that should not come near one."""
    if value is None or value < _NEARLY:
        return Tone.PLAIN
    return Tone.WARN if value < _FULL else Tone.BAD


def age(row: Any) -> str:
    """How old the figures of a row are."""
    return span(row.age_s)


def age_tone(row: Any) -> Tone:
    """Of that age."""
    return Tone.WARN if row.age_s is not None and row.age_s >= _OLD_S else Tone.MUTED


def uptime(row: Any) -> str:
    """How long it has been there."""
    return span(row.uptime_s)


def name_column(get: Any, least: int = 14) -> Column:
    """The second column of each table."""
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
