"""Consoles for standard output and error, and the format of amounts and durations."""

import sys
from collections.abc import Iterable
from io import TextIOWrapper
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.ui.terminal.untrusted_text import clean_lines

_PIPE_COLUMNS: Final = 80  # of output that no terminal asked for


class SafeConsole(Console):
    """A console that shows control characters as dots, whoever wrote the text.

    Colours are Rich's own and come as styles; no text needs a control character for them.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render what is to be shown, with the control characters of its texts replaced."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or (text.isascii() and text.isprintable()):
                yield segment
            else:
                yield Segment(clean_lines(text), segment.style)


def stdout() -> Console:
    """A console for standard output; plain text of a fixed width where it is piped.

    An output that lacks a letter, such as one of ASCII, gets a question mark for it.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    return SafeConsole(width=width, highlight=False, markup=False, emoji=False)


def stderr() -> Console:
    """A console for progress and remarks that must not mix with the result."""
    return SafeConsole(stderr=True, highlight=False, markup=False, emoji=False)


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


__all__ = ["SafeConsole", "duration", "money", "stderr", "stdout"]
