"""How long the engines of one pool take to read a long prompt, learned per token.

    learned (100 first tokens of long prompts) ─► 4 × p99.9 of the time per token, 1 ms at least
    not learned ────────────────────────────────► 10 ms a token up to a minute, or 1 ms a token

The time to a first token is divided by the tokens of its prompt. Waiting in the engine's queue is
in it, which errs to the patient side; so do prompts of which the engine has most in its cache, to
the other side, and therefore no prompt is expected to be read in less than a millisecond a token.

Rejected: one more class of prompt lengths. The longest class has no end, and a hundred prompts of
20,000 tokens say how long 200,000 take only by their pace. Rejected: a straight line through short
prompts and long ones. What short ones take is scheduling, and its noise would be the slope.
"""

from typing import Final

from holdfast.core.request.learned_deadline import LearnedDeadline
from holdfast.core.types import MILLISECOND, SECOND

PACED_TOKENS: Final = 2_048  # of a prompt: from here on its length says how long it takes
_SAMPLES_MIN: Final = 100  # as of a class of prompt lengths: fewer say nothing of a tail
_FACTOR: Final = 4.0  # on p99.9, as for first tokens
_FLOOR_S: Final = 0.001  # per token, 1,000 tokens/s: a tenth of what one current GPU reads
_LIMIT_S: Final = 1.0  # per token: beyond it nothing is served
# Until learned: 100 tokens/s is an engine without a GPU. It would read 100,000 tokens for longer
# than anybody waits, so that from a minute on the prompt counts as read at 1,000 tokens/s.
SLOW_PER_TOKEN: Final = SECOND // 100
_SLOW_MAX: Final = 60 * SECOND
_USUAL: Final = MILLISECOND


class ReadingPace:
    """The learned time (ns) in which engines of one pool read a token of a long prompt."""

    __slots__ = ("_learned",)

    def __init__(self, quantile: float, forget_s: float) -> None:
        self._learned = LearnedDeadline(
            wide_s=_FLOOR_S,
            floor_s=_FLOOR_S,
            limit_s=_LIMIT_S,
            factor=_FACTOR,
            quantile=quantile,
            samples_min=_SAMPLES_MIN,
            forget_s=forget_s,
        )

    def observe(self, group: int, tokens: int, elapsed: int) -> None:
        """Learn that a prompt of so many tokens had its first token after ``elapsed`` ns.

        ``group`` is the replica's group of samples, as for deadlines.
        """
        per_token = elapsed // tokens
        samples = self._learned.groups[group]
        samples.young.add(per_token * 1.0)
        samples.young_total += per_token
        self._learned.fresh += 1

    def forget(self) -> None:
        """Drop all samples: what was learned is no longer true."""
        self._learned.forget()

    def allowance(self, tokens: int, now: int) -> int:
        """How long (ns) a healthy engine may take to read a prompt, with room to spare."""
        learned = self._refreshed(now)
        if learned.settled:
            return learned.deadline * tokens
        return unhurried(tokens)

    def explanation(self, tokens: int, now: int) -> int:
        """For how long (ns) a prompt that is read explains that its engine answers nobody.

        Twice the p99.9 once learned, else a millisecond a token: less than ``allowance``, as the
        prompt is one tenant's, and the replica is everybody's.
        """
        learned = self._refreshed(now)
        return (2 * learned.norm if learned.settled else _USUAL) * tokens

    def expected(self, tokens: int, now: int) -> int | None:
        """How long (ns) a prompt usually takes to be read here; ``None`` below 20 samples."""
        median = self._refreshed(now).median
        return None if median is None else median * tokens

    def _refreshed(self, now: int) -> LearnedDeadline:
        learned = self._learned
        if now >= learned.refresh_at:
            learned.refresh(now, 1)
        return learned


def unhurried(tokens: int) -> int:
    """How long (ns) a prompt may take to be read where nothing is known of its engine's pace.

    10 ms per token up to a minute, or 1 ms per token where that is more.
    """
    return max(min(tokens * SLOW_PER_TOKEN, _SLOW_MAX), tokens * _USUAL)


__all__ = ["PACED_TOKENS", "SLOW_PER_TOKEN", "ReadingPace", "unhurried"]
