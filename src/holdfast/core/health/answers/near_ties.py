"""Finds where a known canary answer could as well have gone on otherwise, and excuses who did.

    tokens of one answer, with the likeliest in their places ─► near_ties ─► places, other texts
    known answer, its near ties, another answer ─► parts_at_tie ─► where they part, if that is one

Greedy decoding takes the likeliest token. Where two are nearly as likely, which of them that is
depends on the last bits of sums whose order changes with the batch, the kernel and the card. A
replica that takes the other one is well; another kind of card may take it every time. So the first
difference from the known answer counts only where the model had a clear preference. What follows
behind an excused difference is another answer, of which nothing is known, and is not compared.

Rejected: taking any answer that a peer gave once; replicas that rot together would agree. Rejected:
comparing up to the first near tie only. The known branch is the common one, and all of it counts.
"""

import re
from collections.abc import Sequence
from itertools import takewhile
from math import isfinite
from typing import Final

from holdfast.core.canary import NearTie, TokenChoice

# Half a nat: the likeliest is at most 1.65 times as likely as the other. Batches move a log
# probability by a tenth; with sparse attention in half precision 0.15 at the median was reported.
# A trained model that counts to five has several nats between its first and its second choice.
_NEAR: Final = 0.5
_TIES_MAX: Final = 64  # of one answer; canaries have some ten tokens
_ENDS: Final = re.compile(r"<[^<>\s]*>|\[[A-Z_/]+\]")  # how engines write the token that ends


def near_ties(answer: str, choices: Sequence[TokenChoice]) -> tuple[NearTie, ...] | None:
    """Return the near ties of an answer; ``None`` where these tokens are not those of it.

    Tokens that take another branch at a near tie tell of the known answer up to there.
    """
    answer = answer.strip()
    ties: list[NearTie] = []
    at = 0
    for choice in choices:
        rest = answer[at:]
        if not rest or len(ties) >= _TIES_MAX:
            break
        if not at and choice.text.isspace():
            continue  # blanks in front of an answer are not compared
        texts = [text if at else text.lstrip() for text in _nearly_as_likely(choice)]
        known = next((text for text in texts if _goes_on(rest, text)), None)
        if known is None:
            return tuple(ties) or None
        others = tuple(dict.fromkeys(text for text in texts if text != known))
        if others:
            ties.append(NearTie(at, others))
        if known != texts[0]:
            break
        at += len(known)
    return tuple(ties) if at or ties else None


def parts_at_tie(ties: Sequence[NearTie], answer: str, said: str) -> int | None:
    """Return after how many letters ``said`` parts from the known answer, if at a near tie of it.

    ``None``: it parts elsewhere, or goes on with a text that is not nearly as likely there.
    """
    answer, said = answer.strip(), said.strip()
    alike = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(answer, said, strict=False))
    )
    for tie in ties:
        if tie.at <= alike and any(_takes(other, tie.at, said, alike) for other in tie.others):
            return tie.at
    return None


def _takes(other: str, at: int, said: str, alike: int) -> bool:
    """Whether an answer goes on with this nearly as likely token where the tie is (``at``).

    ``alike`` is how many letters it shares with the known answer; the token must explain the first
    that differs.
    """
    if not other.strip():  # it ends the answer
        return len(said) == alike == at
    return said[at:].startswith(other) and at + len(other) > alike


def _goes_on(rest: str, text: str) -> bool:
    """Whether an answer, of which this is left, goes on with a token of this text."""
    return bool(text) and (rest.startswith(text) or rest == text.rstrip())


def _nearly_as_likely(choice: TokenChoice) -> list[str]:
    """The texts nearly as likely as the likeliest in a token's place, its own first."""
    known = {choice.text: choice.logprob, **dict(choice.likeliest)}
    told = {text: logprob for text, logprob in known.items() if isfinite(logprob)}
    least = max(told.values(), default=0.0) - _NEAR
    near = [choice.text, *(text for text, logprob in told.items() if logprob >= least)]
    return list(dict.fromkeys("" if _ENDS.fullmatch(text.strip()) else text for text in near))


__all__ = ["near_ties", "parts_at_tie"]
