"""Tells from successive readings of an engine's metrics page what the engine worked at.

    tokens came out since the last reading ─────────────────────────► TOKENS
    none did, and it took steps ────────────────────────────────────► STEPS
    none did, and its cache fills, with as many requests running ───► FILLING, from the third rise
    it counts tokens or steps, and nothing moved ───────────────────► NOTHING
    it counts neither ──────────────────────────────────────────────► UNKNOWN

An engine that reads a long prompt answers nobody for as long as that takes, canaries included, and
is well. That its page answers proves nothing: the page of an engine that hangs is served by another
thread and shows the same figures for ever. Figures that move are proof.

Two things tell an engine that reads a prompt from one that hangs:

    its page shows steps and no tokens ──► busy, for as long as the page shows it
    gateways wait for the first token of a long prompt, and
        its page shows a cache that fills ──► busy, for as long as the page shows it
        its page shows nothing of use ──► it may be busy, for as long as they explain
        its page shows that nothing moves, for half a minute ──► it is not

Where no long prompt is waited for, only steps delay a verdict. What long prompts explain is said by
gateways, which know how fast prompts are read and whose they are; without their word it is a
millisecond a token. A prompt that came after the silence had begun explains none of it: whoever
sends one after the other to an engine that hangs gets it no more time.

Rejected: the counter of prompt tokens. vLLM, SGLang and llama.cpp count a prompt when it has been
read to its end, which is when its first token comes and the question is settled anyway. Rejected:
more patience for every replica that has requests. Real hangs would then be found that much later.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.core.types import MILLISECOND, SECOND

_RISES_MIN: Final = 3  # fewer may be requests that come as others leave an engine that hangs
_PER_TOKEN: Final = MILLISECOND  # 1,000 tokens/s: a tenth of what one current GPU reads
_LONGEST: Final = 300 * SECOND  # whatever is waited for: a replica that hangs must be found
_LATE: Final = 3 * SECOND  # gateways tell once a second, and of several one may be late
_STILL_LOOKS: Final = 30  # a second apart; single steps of a prompt take a few seconds at most


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


_WORKS: Final = (EngineWork.TOKENS, EngineWork.STEPS, EngineWork.FILLING)


class PromptReading:
    """What is known of the long prompts that one replica reads: by gateways, and by its page."""

    __slots__ = ("_explained_at", "_still", "_unread_at", "_watch", "reads", "shown_at", "works")

    def __init__(self) -> None:
        self._unread_at: dict[str, int] = {}  # tokens, as each gateway last said
        self._explained_at: dict[str, int] = {}  # for how long (ns), as each gateway last said
        self._watch = WorkWatch()
        self._still = 0  # readings in a row of a page on which nothing moves
        self.shown_at = 0  # when its page last showed that it reads prompts
        self.reads = False  # the latest reading of its page showed that it reads a prompt
        self.works = False  # the latest reading of its page showed work of any kind

    def told(
        self, gateway: str, unread: int, explained: int | None = None, silent: int = 0
    ) -> None:
        """Take a gateway's word on the long prompts whose first token it waits for there.

        ``unread`` is their tokens, ``explained`` for how long (ns) they explain that nothing comes
        (``None``: a millisecond a token), ``silent`` for how long nothing has come.
        """
        if not unread:
            self._unread_at.pop(gateway, None)
            self._explained_at.pop(gateway, None)
            return
        self._unread_at[gateway] = unread
        explained = unread * _PER_TOKEN if explained is None else explained
        if silent > _LATE:  # what has come since the silence began is no reason for it
            explained = min(explained, self._explained_at.get(gateway, 0))
        self._explained_at[gateway] = explained

    @property
    def awaited(self) -> bool:
        """Whether some gateway waits for the first token of a long prompt there."""
        return bool(self._unread_at)

    def look(self, page: EnginePage, now: int) -> None:
        """Take one reading of the replica's page."""
        work = self._watch.look(page)
        self.works = work in _WORKS
        # At an engine that hangs, requests that come and go move its cache, too.
        filling = work is EngineWork.FILLING and bool(self._unread_at)
        self.reads = work is EngineWork.STEPS or filling
        if self.reads:
            self.shown_at = now
        if self.works or page.running == 0:  # an idle engine has nothing to show
            self._still = 0
        elif work is EngineWork.NOTHING:
            self._still += 1

    def explains(self, still: int) -> bool:
        """Whether long prompts explain that no request there got anything for ``still`` ns."""
        # Not their sum: a tenant may send its prompts through every gateway.
        explained = max(self._explained_at.values(), default=0)
        if not explained or self._still >= _STILL_LOOKS:
            return False
        return still < min(explained, _LONGEST)


def _moved(before: int | None, after: int | None) -> bool:
    """Whether a counter moved; one that fell began anew, which takes work, too."""
    return before is not None and after is not None and before != after


__all__ = ["EnginePage", "EngineWork", "PromptReading", "WorkWatch"]
