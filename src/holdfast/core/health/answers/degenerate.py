"""Detects output that has stopped being an answer: one token or one short cycle repeated.

Broken weights, a NaN in the cache or a wrong kernel show up as "!!!!!!!!" at full speed, with
status 200 and every light green. The detector looks at the text of one answer as it passes and
fires when a short cycle has filled it for longer than people or their tables ever need:

    text ─► windows of 64 characters, each overlapping the last by half
              └─► one cycle of at most 32 characters fills it? ─► for how long by now? ─► verdict

It looks at characters, not at the pieces in which they came: engines pack tokens into events as
they please, and the verdict must not depend on that. Most pieces cost one concatenation and one
comparison; every 32 characters a window is searched for its own end, which takes a microsecond.

How long is too long depends on what repeats. Rules, tables and indentation repeat honestly, and so
does a word that a user asked for a hundred times; a "!" does not. Rejected: compression ratio and
entropy, which find dull text, not broken text; and one bound for all characters, which is either
deaf to "!!!!" or cuts people's tables.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.core.types import require

_WINDOW: Final = 64  # two of the longest cycles: less cannot tell a cycle from a coincidence
_STRIDE: Final = 32
_CYCLE_MAX: Final = 32  # about four long tokens

# What people draw rules, tables, leaders, frames and zigzags with, and what they indent with.
_RULING: Final = frozenset(" \t\r\n-=_*#~.+|:/\\`<>^─━═│┃║·•…—–")
_BROKEN: Final = frozenset("\x00\ufffd")  # no tokenizer that works emits a run of these


@dataclass(slots=True, frozen=True)
class DegenerateConfig:
    """How many characters a repetition may last before the answer counts as degenerate.

    Checked when built: raises ``ConfigError``.
    """

    broken_chars: int = 64  # of NUL and U+FFFD; a torn emoji gives up to four
    symbol_chars: int = 128  # of "!" and its like; shouting people stop at 20
    cycle_chars: int = 1_024  # of all else: a wide table's rule has 250, "yes" 200 times has 800
    cycle_repeats: int = 64  # and so many times at least: verses, rows and list items repeat less

    def __post_init__(self) -> None:
        for name in ("broken_chars", "symbol_chars", "cycle_chars"):
            value = getattr(self, name)
            fix = f"use {_WINDOW} or more: a shorter look cannot tell a cycle from a coincidence"
            require(value >= _WINDOW, f"degenerate.{name}", f"is {value}", fix)
        few = f"is {self.cycle_repeats}"
        require(self.cycle_repeats >= 4, "degenerate.cycle_repeats", few, "use 4 or more")


@dataclass(slots=True, frozen=True)
class Degeneration:
    """Why one answer counts as degenerate, and how long its cycle is; no character of it."""

    reason: str
    period: int  # characters in the cycle
    chars: int  # how long it had lasted, at least


class DegenerateDetector:
    """Detects endless repetition in one answer; feed it the text in order.

    Once it has fired, each further call returns the same result.
    """

    __slots__ = ("_config", "_limit", "_period", "_run", "_seen", "_verdict")

    def __init__(self, config: DegenerateConfig) -> None:
        self._config = config
        self._seen = ""  # less than a window: what was not looked at, and half a window before it
        self._period = 0  # of the cycle that fills the last window; 0: none does
        self._run = 0  # how long it has by now, in characters
        self._limit = 0  # how long it may get
        self._verdict: Degeneration | None = None

    def feed(self, text: str) -> Degeneration | None:
        """Take the next piece of the answer; return the ``Degeneration``, or ``None`` so far."""
        seen = self._seen + text
        if len(seen) < _WINDOW:
            self._seen = seen
            return self._verdict
        return self._look(seen)

    def _look(self, seen: str) -> Degeneration | None:
        start, last = 0, len(seen) - _WINDOW
        while start <= last and self._verdict is None:
            window = seen[start : start + _WINDOW]
            start += _STRIDE
            # A cycle repeats the end of the window one period earlier, and nearest is shortest.
            found = window.rfind(window[_STRIDE:], 0, -1)
            period = _STRIDE - found
            if found < 0 or window[period:] != window[:-period]:
                self._period = 0
            elif period == self._period:  # the half they share holds it whole: it is the same one
                self._run += _STRIDE
                self._judge()
            else:
                self._period, self._run = period, _WINDOW
                self._limit = self._limit_of(window[:period])
                self._judge()
        self._seen = seen[start:] if self._verdict is None else ""
        return self._verdict

    def _limit_of(self, cycle: str) -> int:
        letters = set(cycle)
        if letters <= _BROKEN:
            return self._config.broken_chars
        wordless = not any(letter.isalnum() for letter in letters)
        if wordless and len(cycle) <= 4 and not letters <= _RULING:
            return self._config.symbol_chars
        return max(self._config.cycle_chars, self._config.cycle_repeats * len(cycle))

    def _judge(self) -> None:
        if self._run < self._limit:
            return
        period = self._period
        what = "one character" if period == 1 else f"a cycle of {period} characters"
        reason = f"{what} repeated over {self._run} characters"
        self._verdict = Degeneration(reason, period, self._run)


_OPENING_CHARS_MAX: Final = 256  # a relay holds a few tokens; beyond it the detector has its say
_OPENERS: Final = frozenset(" \t\r\n-=_*#~.+|:/\\`<>^\"'([{«„“‘¿¡「『【•…—–")  # of ordinary answers
_OPENER_RUN_MAX: Final = 6  # "######" opens the deepest heading; "```", "---", "\n\n" are shorter
_WORD_REPEATS: Final = 4  # "www", "ha ha ha" and "no no no" are openings that people know


def suspicious_opening(text: str) -> bool:
    """Whether a relay should hold this beginning of an answer until more of it is seen.

    True for one character other than letters and digits, however often ("!", "!!!!"), unless it is
    one that ordinary answers open with, up to the length in which they do; and for one short token
    four times or more. The next token that differs ends the suspicion.
    """
    if not text or len(text) > _OPENING_CHARS_MAX:
        return False
    first = text[0]
    if not first.isalnum() and text == first * len(text):
        return first not in _OPENERS or len(text) > _OPENER_RUN_MAX
    if first * _WORD_REPEATS == text[:_WORD_REPEATS]:
        return text == first * len(text)
    longest = (len(text) + 1) // _WORD_REPEATS  # the blank behind the last word may yet come
    period = text.find(text[: len(text) // 2], 1)  # half of it holds the token at least twice
    return 1 < period <= min(_CYCLE_MAX, longest) and text[period:] == text[:-period]


__all__ = ["DegenerateConfig", "DegenerateDetector", "Degeneration", "suspicious_opening"]
