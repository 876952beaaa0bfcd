"""Consoles for standard output and error, and the format of amounts and durations."""

import sys
from typing import Final

from rich.console import Console

_PIPE_COLUMNS: Final = 80  # of output that no terminal asked for


def stdout() -> Console:
    """A console for standard output; plain text of a fixed width where it is piped."""
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return Console(width=width, highlight=False, markup=False, emoji=False)


def stderr() -> Console:
    """A console for progress and remarks that must not mix with the result."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def money(value: float) -> str:
    """Format an amount of money, with cents where they matter."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Format a duration for people: three digits and a fitting unit."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min"


__all__ = ["duration", "money", "stderr", "stdout"]
