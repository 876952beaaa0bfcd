"""Long prompts that wait for their first token: what they excuse, and why they stay where they are.

An engine that reads a long prompt answers nobody meanwhile, and looks as if it hung. So control is
told for how long the prompts at a replica explain that nothing comes from it. That is the word of
whoever sent them, and is weighed by tenants as failures are:

- of one tenant's prompts at a replica only the largest counts: engines read one after the other,
  and each that is read shows a token;
- a tenant whose prompts waited at a replica that was found to hang explains nothing for ten
  minutes: whoever makes engines hang by what they send would else have an excuse each time.

A prompt that has been read for a minute is not begun anew elsewhere where that cannot help
(``reason_to_stay``): the next replica would need as long again.

Rejected: ending the excuse as soon as short requests of other tenants wait there too. They do so
behind every prompt that is truly read.
"""

from typing import Final

from holdfast.core.request.active_request import ActiveRequest, Attempt
from holdfast.core.request.breaker import BreakerState
from holdfast.core.request.candidate import Candidate
from holdfast.core.request.prompts.reading_pace import PACED_TOKENS, ReadingPace
from holdfast.core.types import SECOND, Request

LONG_TOKENS: Final = 8_192  # of a prompt: about a second on one current GPU; less is no excuse
LOOK_AGAIN: Final = 5 * SECOND  # after a prompt was left where it is: a verdict may come meanwhile

_DOUBTED_FOR: Final = 600 * SECOND  # outlives the restart of what hung and the next prompts there
_DOUBTED_MAX: Final = 1_024  # tenants; the one doubted longest goes first
# A batch of a prompt takes an engine without a GPU this long on a busy machine; the page of one
# that hangs is taken for still after as long.
_SHOWN_FOR: Final = 30 * SECOND
_CLOSED: Final = BreakerState.CLOSED

_READS: Final = "its replica shows that it reads prompts"
_LAST: Final = "its prompt is long and no further attempt is left"
_LATE: Final = "its prompt is long, and less time is left than its attempt has had"


class LongPrompts:
    """The prompts of 8,192 tokens or more of one model that wait for their first token here."""

    __slots__ = ("_doubted", "_pace", "_waiting")

    def __init__(self, pace: ReadingPace) -> None:
        self._pace = pace
        self._waiting: dict[str, dict[Attempt, Request]] = {}  # by replica
        self._doubted: dict[str, int] = {}  # until when each tenant's word counts for nothing

    def begin(self, attempt: Attempt, request: Request) -> None:
        """Note that an attempt with a long prompt was sent to its replica."""
        candidate = attempt.candidate
        candidate.unread += request.prompt_tokens
        self._waiting.setdefault(candidate.id, {})[attempt] = request

    def end(self, attempt: Attempt) -> None:
        """Note that the prompt's first token came, or that its attempt is over; twice is once."""
        candidate = attempt.candidate
        waiting = self._waiting.get(candidate.id)
        request = waiting.pop(attempt, None) if waiting is not None else None
        if request is not None:
            candidate.unread -= request.prompt_tokens
            if not waiting:
                del self._waiting[candidate.id]

    def refute(self, replica_id: str, now: int) -> None:
        """Note that a replica was found to hang: who has long prompts there is not believed."""
        for request in self._waiting.get(replica_id, {}).values():
            self._doubted.pop(request.tenant, None)
            self._doubted[request.tenant] = now + _DOUBTED_FOR
            if len(self._doubted) > _DOUBTED_MAX:
                del self._doubted[next(iter(self._doubted))]

    def weigh(self, candidates: dict[str, Candidate], now: int) -> None:
        """Set on each replica with long prompts for how long (s) they explain its silence."""
        for replica_id, waiting in self._waiting.items():
            candidate = candidates.get(replica_id)
            if candidate is not None:
                candidate.explained_s = self._explained(waiting, now) / SECOND

    def _explained(self, waiting: dict[Attempt, Request], now: int) -> int:
        largest: dict[str, int] = {}
        for request in waiting.values():
            if now >= self._doubted.get(request.tenant, 0):
                tokens = request.prompt_tokens
                largest[request.tenant] = max(tokens, largest.get(request.tenant, 0))
        return sum(self._pace.explanation(tokens, now) for tokens in largest.values())


def reason_to_stay(
    active: ActiveRequest, attempt: Attempt, now: int, *, may_retry: bool
) -> str | None:
    """Why an attempt whose first token is late is still waited for; ``None``: it is given up.

    Only long prompts stay: at a replica whose page shows that it reads, or where a new attempt is
    not to be had or would have less time than this one has had. Never at a replica that control
    found to hang, nor, without its page, at one that fails others.
    """
    candidate = attempt.candidate
    if active.request.prompt_tokens < PACED_TOKENS or attempt.halt or candidate.halt:
        return None
    if candidate.reads_at and now - candidate.reads_at <= _SHOWN_FOR:
        return _READS
    if candidate.breaker.state is not _CLOSED:
        return None
    if not may_retry:
        return _LAST
    return _LATE if now - attempt.started >= active.deadline - now else None


def why_unread(active: ActiveRequest, pace: ReadingPace, now: int) -> str | None:
    """Return the error text for a long prompt that had no first token when its deadline passed.

    ``None``: the prompt is short, or the client has been sent a part of the answer.
    """
    tokens, waiting = active.request.prompt_tokens, active.live
    shown = active.shown_tokens or any(attempt.first_at for attempt in waiting)
    if tokens < PACED_TOKENS or not waiting or shown:
        return None
    waited = (now - min(attempt.started for attempt in waiting)) // SECOND
    told = f"The model had about {tokens} tokens of prompt to read and was not done after {waited}"
    expected = pace.expected(tokens, now)
    usual = "" if expected is None else f", which takes about {max(1, expected // SECOND)} s here"
    return f"{told} s{usual}. Allow more time, or send a shorter prompt."


__all__ = ["LONG_TOKENS", "LOOK_AGAIN", "LongPrompts", "reason_to_stay", "why_unread"]
