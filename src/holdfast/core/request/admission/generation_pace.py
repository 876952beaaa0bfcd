"""How fast the answers of one model are made, to charge for one that its client did not wait for.

An answer in one piece that is left says nothing of its length: no engine reports what it had made.
What is known is for how long it was worked on, and how fast the model's answers usually are, the
time to read their prompts included.

Rejected: charging such a request as if it had been complete. Who leaves at once would pay for what
nobody made. Rejected: charging nothing. Whoever leaves shortly before the end would have it free.
"""

from typing import Final

from holdfast.core.types import SECOND

_WEIGHT: Final = 0.05  # of one answer: twenty make the pace, so that no single odd one does
_TOKENS_MIN: Final = 16  # of one choice: a shorter answer took as long as its prompt
_UNKNOWN: Final = 30.0 / SECOND  # until then: engines make 20 to 100 tokens a second for one answer


class GenerationPace:
    """The usual tokens per time of one model's answers, learned from those that were complete."""

    __slots__ = ("_pace",)

    def __init__(self) -> None:
        self._pace = 0.0  # tokens per ns of one choice; 0: not known

    def observe(self, tokens: int, choices: int, elapsed: int) -> None:
        """Learn from a complete answer of so many tokens in all its choices, ``elapsed`` in ns."""
        if tokens >= _TOKENS_MIN * choices and elapsed > 0:
            pace = tokens / choices / elapsed
            self._pace += (pace - self._pace) * (_WEIGHT if self._pace else 1.0)

    def made(self, elapsed: int, choices: int, max_tokens: int) -> int:
        """Return about how many tokens of an answer were made in ``elapsed`` (ns).

        Never more than the request allowed: ``max_tokens`` of each choice, 0 if it did not say.
        """
        tokens = int((self._pace or _UNKNOWN) * elapsed)
        return (min(tokens, max_tokens) if max_tokens else tokens) * choices


__all__ = ["GenerationPace"]
