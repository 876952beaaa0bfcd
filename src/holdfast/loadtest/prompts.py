"""Writes prompts of a wanted number of tokens, cheaply, and without a tokenizer.

A prompt is a cut out of one long random text of short common words, behind a head of its own. No
two prompts share their beginning, so no prefix cache helps unless the plan wants it to: blocks of
a trace that have the same number get the same words.

How many tokens a word is, only the engine knows: two probes of different lengths tell it
(``TokenRule``), and what each answer reports as its usage stands in the record.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

# Short words that the tokenizers of common models have as one token each, with the blank before.
WORDS: Final = (
    *("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by"),
    *("on", "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an"),
    *("they", "which", "one", "you", "were", "all", "her", "she", "there", "would", "their", "we"),
    *("him", "been", "has", "when", "who", "will", "no", "more", "if", "out", "so", "up", "said"),
    *(
        "what",
        "its",
        "about",
        "than",
        "into",
        "them",
        "can",
        "only",
        "other",
        "time",
        "new",
        "some",
    ),
    *("could", "these", "two", "may", "first", "then", "do", "any", "like", "my", "now", "over"),
    *("such", "our", "man", "me", "even", "most", "made", "after", "also", "well", "did", "many"),
    *("before", "must", "years", "back", "see", "way", "where", "get", "much", "go", "good", "day"),
)
_TEXT_WORDS: Final = 65_536  # longer prompts go round
_HEAD_WORDS: Final = 4  # 112⁴: no two of a run are alike
_BLOCK_WORDS: Final = 512  # of the traces that number their blocks


@dataclass(slots=True, frozen=True)
class TokenRule:
    """How words become tokens at one server: ``tokens = base + per_word × words``."""

    base: float = 0.0  # what the server's template adds to each prompt
    per_word: float = 1.0

    @classmethod
    def of_probes(cls, short: tuple[int, int], long: tuple[int, int]) -> "TokenRule":
        """From two probes, each (words, tokens that the engine counted)."""
        words = long[0] - short[0]
        per_word = (long[1] - short[1]) / words if words > 0 else 1.0
        if not 0.2 <= per_word <= 20.0:  # an engine that counts something else
            return cls()
        return cls(max(0.0, short[1] - per_word * short[0]), per_word)

    def words(self, tokens: int) -> int:
        """How many words make a prompt of so many tokens; at least one."""
        return max(1, round((tokens - self.base) / self.per_word))


class PromptWriter:
    """Writes the prompts of one run; the same seed writes the same prompts."""

    def __init__(self, seed: int, rule: TokenRule | None = None) -> None:
        self.rule = rule or TokenRule()
        self._rng = Random(f"prompts/{seed}")
        words = self._rng.choices(WORDS, k=_TEXT_WORDS)
        self._text = " ".join(words)
        starts, at = [], 0
        for word in words:
            starts.append(at)
            at += len(word) + 1
        self._starts = starts

    def write(self, tokens: int, blocks: tuple[int, ...] = ()) -> str:
        """A prompt of about ``tokens`` tokens; equal ``blocks`` at the front give equal text."""
        wanted = self.rule.words(tokens)
        if not blocks:
            head = " ".join(self._rng.choices(WORDS, k=min(_HEAD_WORDS, wanted)))
            rest = wanted - _HEAD_WORDS
            return head if rest <= 0 else f"{head} {self._cut(self._rng.getrandbits(16), rest)}"
        per_block = max(1, round(_BLOCK_WORDS / self.rule.per_word))
        parts = []
        for block in blocks:
            if wanted <= 0:
                break
            # Numbered in words as well: two blocks whose cuts begin alike must differ.
            name = Random(block).choices(WORDS, k=min(_HEAD_WORDS, wanted))
            count = min(per_block, wanted) - len(name)
            parts += name
            if count > 0:
                parts.append(self._cut(block * 40_503 & 0xFFFF, count))
            wanted -= per_block
        if wanted > 0:
            parts.append(self._cut(self._rng.getrandbits(16), wanted))
        return " ".join(parts)

    def _cut(self, begin: int, words: int) -> str:
        starts, text = self._starts, self._text
        begin %= _TEXT_WORDS
        pieces = []
        while words > 0:
            taken = min(words, _TEXT_WORDS - begin)
            end = starts[begin + taken] - 1 if begin + taken < _TEXT_WORDS else len(text)
            pieces.append(text[starts[begin] : end])
            words -= taken
            begin = 0
        return pieces[0] if len(pieces) == 1 else " ".join(pieces)


__all__ = ["WORDS", "PromptWriter", "TokenRule"]
