"""Formats figures for tables: short, of even width, with no more digits than are useful.

Memory is counted in GiB, as platforms count it, and written with a bare G: the figure must agree
with what an engineer sees in the cloud's own pages. Unknown is a dash; zero is a zero.
"""

from datetime import datetime
from typing import Final

from rich.cells import cell_len, set_cell_size

UNKNOWN: Final = "–"
_UNITS: Final = ("B", "K", "M", "G", "T", "P")
_BAR: Final = " ▏▎▍▌▋▊▉█"


def size(amount: float | None) -> str:
    """Format bytes: ``48G``, ``3.5G``, ``512M``."""
    if amount is None:
        return UNKNOWN
    value, unit = float(amount), 0
    while value >= 1_023.5 and unit < len(_UNITS) - 1:
        value /= 1_024
        unit += 1
    if value == 0:
        return "0"
    return f"{_short(value)}{_UNITS[unit]}"


def of_total(part: float | None, total: float | None) -> str:
    """Format an amount of its total: ``48G/186G``, each in a fitting unit."""
    if part is None and total is None:
        return UNKNOWN
    return f"{size(part)}/{size(total)}"


def count(value: float | None) -> str:
    """Format a whole number: ``422``, ``12k``, ``3.4M``."""
    return UNKNOWN if value is None else _scaled(round(value), 10_000)


def rate(value: float | None) -> str:
    """Format a rate per second: ``0.8``, ``43``, ``2.4k``; one that rounds to none is ``<0.1``."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.05:
        return "<0.1"
    return _scaled(value, 1_000)


def amount(value: float | None) -> str:
    """Format a number of CPUs, which may be a fraction: ``8``, ``0.5``."""
    return UNKNOWN if value is None else _short(value)


def left_of(left: float | None, total: float | None) -> str:
    """Format how much of a resource is free, and its total: 8 of 16 CPUs free is ``8/16``."""
    if left is None and total is None:
        return UNKNOWN
    return f"{amount(left)}/{amount(total)}"


def share(value: float | None) -> str:
    """Format a share: ``96%``; a share above zero that rounds to none is ``<1%``."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.005:
        return "<1%"
    return f"{value:.0%}"


def span(seconds: float | None) -> str:
    """Format a duration in three or four letters: ``44s``, ``73m``, ``5h``, ``9d``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 99.5:
        return f"{max(0.0, seconds):.0f}s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f}m"
    if seconds < 48 * 3_600:
        return f"{seconds / 3_600:.0f}h"
    return f"{seconds / 86_400:.0f}d"


def words_span(seconds: float | None) -> str:
    """Format a duration for a sentence: ``44 s``, ``73 min``, ``5.7 h``, ``9 days``."""
    if seconds is None:
        return "an unknown time"
    if seconds < 99.5:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3_600:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.0f} days"


def latency(seconds: float | None) -> str:
    """Format a latency: ``41ms``, ``4.2s``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 99.95 else f"{seconds:.0f}s"


def clock(at: object) -> str:
    """Format the local time of day."""
    if not isinstance(at, int | float):
        return ""
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")


def bar(value: float | None, width: int) -> str:
    """Draw a share as a bar, in eighths of a character."""
    if value is None:
        return ""
    eighths = round(min(1.0, max(0.0, value)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BAR[rest] if rest else "")


def cut(text: str, width: int) -> str:
    """Cut text to at most so many columns, with a sign where something was left out."""
    if len(text) <= width and text.isascii():
        return text
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, width - 1)}…" if width > 0 else ""


def wide(text: str) -> int:
    """Number of terminal columns that a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _scaled(value: float, limit: float) -> str:
    if abs(value) < limit:
        return _short(value)
    if abs(value) < 999_500:
        return f"{_short(value / 1e3)}k"
    return f"{_short(value / 1e6)}M"


def _short(value: float) -> str:
    """One decimal below ten, where it is not a zero."""
    return f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.1f}".removesuffix(".0")


__all__ = [
    "UNKNOWN",
    "amount",
    "bar",
    "clock",
    "count",
    "cut",
    "latency",
    "left_of",
    "of_total",
    "rate",
    "share",
    "size",
    "span",
    "wide",
    "words_span",
]
