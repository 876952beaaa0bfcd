"""Tells from successive readings of an engine's metrics page what the engine worked at.

    tokens came out since the last reading ─────────────────────────► TOKENS
    none did, and it took steps ────────────────────────────────────► STEPS
    none did, and its cache fills, with as many requests running ───► FILLING, from the third rise
    it counts tokens or steps, and nothing moved ───────────────────► NOTHING
    it counts neither ──────────────────────────────────────────────► UNKNOWN

An engine that reads a long prompt answers nobody for as long as that takes, canaries included, and
is well. That its page answers proves nothing: the page of an engine that hangs is served by another
thread and shows the same figures for ever. Figures that move are proof.

Rejected: the counter of prompt tokens. vLLM, SGLang and llama.cpp count a prompt when it has been
read to its end, which is when its first token comes and the question is settled anyway.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_RISES_MIN: Final = 3  # fewer may be requests that come as others leave an engine that hangs


class EngineWork(StrEnum):
    """What an engine was seen to work at between two readings of its page."""

    TOKENS = "tokens"
    STEPS = "steps"  # and no token came out: it reads a prompt
    FILLING = "filling"  # its cache, and no token came out: it reads a prompt, most likely
    NOTHING = "nothing"
    UNKNOWN = "unknown"


@dataclass(slots=True, frozen=True)
class EnginePage:
    """The figures of one reading that tell of work; ``None``: the engine does not tell."""

    running: int | None = None
    kv_used: float | None = None  # share of its cache
    generated: int | None = None  # tokens that came out since its start
    steps: int | None = None  # passes or tokens since its start, those of prompts included


class WorkWatch:
    """Compares each reading of one engine's page with the one before; keeps nothing older."""

    __slots__ = ("_last", "_rises")

    def __init__(self) -> None:
        self._last: EnginePage | None = None
        self._rises = 0  # of its cache, beside the same requests and without a token

    def look(self, page: EnginePage) -> EngineWork:
        """Take one reading; return what the engine worked at since the last one.

        A reading that tells nothing is left out: the next one is compared with the last that did.
        """
        if page.running is None or page == EnginePage(page.running):
            return EngineWork.UNKNOWN
        before, self._last = self._last, page
        if before is None:
            return EngineWork.UNKNOWN
        if _moved(before.generated, page.generated):
            self._rises = 0
            return EngineWork.TOKENS
        rose = self._rose(before, page)
        if page.running and _moved(before.steps, page.steps):
            return EngineWork.STEPS
        if rose and self._rises >= _RISES_MIN:
            return EngineWork.FILLING
        counts = page.generated is not None or page.steps is not None
        return EngineWork.NOTHING if counts and not rose else EngineWork.UNKNOWN

    def _rose(self, before: EnginePage, page: EnginePage) -> bool:
        """Whether the cache holds more, for as many requests as before; counts the rises."""
        same = page.running and page.running == before.running
        if not same or before.kv_used is None or page.kv_used is None:
            self._rises = 0
            return False
        if page.kv_used < before.kv_used:
            self._rises = 0
        rose = page.kv_used > before.kv_used
        self._rises += rose
        return rose


def _moved(before: int | None, after: int | None) -> bool:
    """Whether a counter moved; one that fell began anew, which takes work, too."""
    return before is not None and after is not None and before != after


__all__ = ["EnginePage", "EngineWork", "WorkWatch"]
