"""Makes text that engines, clients or other hosts wrote harmless in a terminal.

A terminal obeys what it is sent: control characters move its cursor, rewrite lines that were read
before, set its title, or answer with input of their own. Such text is data here, never orders.
"""

import re
from codecs import getincrementaldecoder
from typing import Final

_COLOURS: Final = re.compile("\x1b\\[[0-9;:]*m")  # engines colour their logs; harmless, and noise
_LINE_ENDS: Final = re.compile("\r\n?")  # a bare one would let a line write over itself
_HELD_MAX: Final = 65_536  # characters of a line without an end: shown as it is by then
_KEPT: Final = frozenset("\n\t")
_HIGH_CONTROLS: Final = re.compile("[\x7f-\x9f]")  # JSON allows them, and terminals obey some


def clean(text: str) -> str:
    """Replace control characters and characters without width by a dot each."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def clean_lines(text: str) -> str:
    """Replace control characters by a dot each; the ends of lines stay."""
    if text.isascii() and text.isprintable():
        return text
    return "\n".join(map(clean, text.split("\n")))


def escape(text: str) -> str:
    r"""Write control characters as ``\x1b`` and the like; colours are left out, lines stay."""
    if text.isascii() and text.isprintable():
        return text
    text = _LINE_ENDS.sub("\n", _COLOURS.sub("", text))
    return "".join(
        letter if letter.isprintable() or letter in _KEPT else _escaped(letter) for letter in text
    )


def escape_json(text: str) -> str:
    r"""Write the control characters that JSON leaves as they are as ``\u009b`` and the like.

    It means the same to every reader of JSON. Those below a space are escaped in JSON anyway.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return _HIGH_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


class LogEscaper:
    """Escapes a log that comes in pieces, which may cut letters, colours and lines in two."""

    __slots__ = ("_decode", "_held")

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("backslashreplace").decode
        self._held = ""  # the line that has no end yet

    def feed(self, piece: bytes) -> str:
        """Return what may be shown: whole lines, or a very long one without its end."""
        text = self._held + self._decode(piece)
        whole, end, self._held = text.rpartition("\n")
        if len(self._held) > _HELD_MAX:
            whole, end, self._held = text, "", ""
        return escape(whole + end)

    def close(self) -> str:
        """Return what is left at the end of the log."""
        held, self._held = self._held + self._decode(b"", final=True), ""
        return escape(held)


__all__ = ["LogEscaper", "clean", "clean_lines", "escape", "escape_json"]
