"""Where tables go, and how numbers look in them."""

import sys
from typing import Final

from rich.console import Console

_PIPE_COLUMNS: Final = 80  # of output that no terminal asked for


def stdout() -> Console:
    """Standard output. Piped, it is plain text of a fixed width."""
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return Console(width=width, highlight=False, markup=False, emoji=False)


def stderr() -> Console:
    """For progress and remarks that must not mix with the result."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def money(value: float) -> str:
    """An amount, with cents where they matter."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """A time for people: three digits and the unit that suits it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min"


__all__ = ["duration", "money", "stderr", "stdout"]
