"""Tones of text by their meaning, and the colours of each tone on dark and on light screens.

A tone never carries a meaning alone: a fault has a ``!`` or a word beside it. The colours keep a
contrast of at least 4.5 to 1 against their background, which a test checks.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from rich.style import Style


class Tone(StrEnum):
    """The meaning of a piece of text, from which its colour follows."""

    PLAIN = ""
    STRONG = "strong"
    MUTED = "muted"
    HEADING = "heading"
    GOOD = "good"
    INFO = "info"
    WARN = "warn"
    BAD = "bad"
    KEY = "key"


# Background first: of the page, of a heading, of the chosen row.
_DARK: Final = {
    "page": "#101418",
    "band": "#1d2731",
    "chosen": "#173a55",
    Tone.PLAIN: "#d7dde3",
    Tone.STRONG: "#ffffff",
    Tone.MUTED: "#9aa6b2",
    Tone.HEADING: "#9fc3e6",
    Tone.GOOD: "#74d88f",
    Tone.INFO: "#6fc5e8",
    Tone.WARN: "#f0c04c",
    Tone.BAD: "#ff8a80",
    Tone.KEY: "#ffffff",
}
_LIGHT: Final = {
    "page": "#fbfbf9",
    "band": "#e6ebf0",
    "chosen": "#cfe3f7",
    Tone.PLAIN: "#22282e",
    Tone.STRONG: "#000000",
    Tone.MUTED: "#56606a",
    Tone.HEADING: "#234f7a",
    Tone.GOOD: "#0f6429",
    Tone.INFO: "#085a7c",
    Tone.WARN: "#7a4d00",
    Tone.BAD: "#ab1411",
    Tone.KEY: "#000000",
}
_BOLD: Final = {Tone.STRONG, Tone.HEADING, Tone.BAD, Tone.KEY}


class Colours:
    """The styles of all tones in one theme."""

    def __init__(self, *, dark: bool) -> None:
        self.dark = dark
        self.values: Mapping[str, str] = _DARK if dark else _LIGHT
        self._styles = {
            (tone, ground): Style(
                color=self.values[tone], bgcolor=self.values[ground], bold=tone in _BOLD
            )
            for tone in Tone
            for ground in ("page", "band", "chosen")
        }

    def style(self, tone: Tone, ground: str = "page") -> Style:
        """The style of a tone; ``ground`` is page, band or chosen."""
        return self._styles[tone, ground]


DARK: Final = Colours(dark=True)
LIGHT: Final = Colours(dark=False)


def is_dark(theme: str, environment: Mapping[str, str]) -> bool:
    """Whether to use the dark theme: as asked, else by ``COLORFGBG`` of the terminal, else yes."""
    if theme != "auto":
        return theme == "dark"
    ground = environment.get("COLORFGBG", "").rpartition(";")[2]
    return ground not in {"7", "9", "10", "11", "12", "13", "14", "15"}


__all__ = ["DARK", "LIGHT", "Colours", "Tone", "is_dark"]
