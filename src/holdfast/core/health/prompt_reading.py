"""Decides whether a long prompt explains that a replica answers nobody, canaries included.

An engine that reads a prompt of 100,000 tokens gives no token for seconds to minutes, and what came
after that prompt waits. It is busy, and looks as if it hung. Two things tell the difference:

    its page shows steps and no tokens ──► busy, for as long as the page shows it
    gateways wait for the first token of a long prompt, and
        its page shows a cache that fills ──► busy, for as long as the page shows it
        its page shows nothing of use ──► it may be busy, for a millisecond a token
        its page shows that nothing moves, for half a minute ──► it is not

Where no long prompt is waited for, nothing here delays a verdict. Rejected: more patience for
every replica that has requests. Real hangs would then be found that much later.
"""

from typing import Final

from holdfast.core.engine_work import EnginePage, EngineWork, WorkWatch
from holdfast.core.types import MILLISECOND, SECOND

_PER_TOKEN: Final = MILLISECOND  # 1,000 tokens/s: a tenth of what one current GPU reads
_LONGEST: Final = 300 * SECOND  # whatever is waited for: a replica that hangs must be found
_WORKS: Final = (EngineWork.TOKENS, EngineWork.STEPS, EngineWork.FILLING)
_STILL_LOOKS: Final = 30  # a second apart; single steps of a prompt take a few seconds at most


class PromptReading:
    """What is known of the long prompts that one replica reads: by gateways, and by its page."""

    __slots__ = ("_still", "_unread_at", "_watch", "shown_at", "works")

    def __init__(self) -> None:
        self._unread_at: dict[str, int] = {}  # tokens, as each gateway last said
        self._watch = WorkWatch()
        self._still = 0  # readings in a row of a page on which nothing moves
        self.shown_at = 0  # when its page last showed that it reads prompts
        self.works = False  # the latest reading of its page showed work of any kind

    def told(self, gateway: str, unread: int) -> None:
        """Take a gateway's word on the long prompts whose first token it waits for there."""
        if unread:
            self._unread_at[gateway] = unread
        else:
            self._unread_at.pop(gateway, None)

    def look(self, page: EnginePage, now: int) -> None:
        """Take one reading of the replica's page."""
        work = self._watch.look(page)
        self.works = work in _WORKS
        # At an engine that hangs, requests that come and go move its cache, too.
        if work is EngineWork.STEPS or (work is EngineWork.FILLING and self._unread_at):
            self.shown_at = now
        if self.works:
            self._still = 0
        elif work is EngineWork.NOTHING:
            self._still += 1

    def explains(self, still: int) -> bool:
        """Whether long prompts explain that no request there got anything for ``still`` ns."""
        unread = sum(self._unread_at.values())
        if not unread or self._still >= _STILL_LOOKS:
            return False
        return still < min(unread * _PER_TOKEN, _LONGEST)


__all__ = ["PromptReading"]
