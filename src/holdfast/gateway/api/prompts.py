"""Estimates the tokens of a prompt and hashes its beginning, without a tokenizer.

Tokens are estimated from bytes, and the ratio is corrected by what the engine reports: a gateway in
front of many models cannot hold a tokenizer for each, and needs a size, not a count.

The beginning of a prompt is identified by a chain of hashes over blocks of its raw JSON: two
prompts share the first k hashes if their first k blocks are the same bytes. CRC-32 continues over a
prefix at no extra cost and is the same in every process (``hash()`` is not). A collision gains an
attacker nothing: the request merely goes to a replica with nothing of it in its cache.

Rejected: hashing messages one by one. A conversation with long messages then has few hashes, and a
single long document has one.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, overload
from zlib import crc32

BLOCK_BYTES: Final = 512  # about 128 tokens: a few of the engines' own blocks of 16 to 64 tokens
# Where blocks end. Fine where system prompts end, coarser beyond: each costs half a microsecond.
BLOCK_ENDS: Final = tuple(BLOCK_BYTES * blocks for blocks in (1, 2, 3, 4, 6, 8, 12, 16))
BYTES_PER_TOKEN: Final = 4.0  # English prose with a vocabulary of 50k to 150k
_RATIO_MIN: Final = 1.0  # a tokenizer of bytes
_RATIO_MAX: Final = 16.0  # long runs of blanks in code; beyond it the count is wrong
_SHARE: Final = 0.05  # of the newest report, once some have come: remembers about twenty
_TOKENS_MIN: Final = 8  # fewer say more about special tokens than about text


def estimate_tokens(n_bytes: int, bytes_per_token: float = BYTES_PER_TOKEN) -> int:
    """Return the estimated tokens of a text of so many bytes, rounded down, at least 1."""
    tokens = int(n_bytes / bytes_per_token)
    return tokens if tokens > 0 else 1


class TokenRatio:
    """The bytes per token of one model, learned from the usage that its engines report.

    Begins at 4; remembers about the last twenty reports.
    """

    __slots__ = ("bytes_per_token", "reports")

    def __init__(self) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN
        self.reports = 0

    def observe(self, text_bytes: int, tokens: int) -> None:
        """Learn from a text of so many bytes and tokens; the ratio is clamped to 1 to 16.

        Ignored if it has fewer than 8 tokens or no bytes.
        """
        if tokens < _TOKENS_MIN or text_bytes <= 0:
            return
        ratio = min(max(text_bytes / tokens, _RATIO_MIN), _RATIO_MAX)
        self.reports += 1
        # The first reports count for more: a model of another language is known within a few.
        share = max(_SHARE, 1.0 / (self.reports + 1))
        self.bytes_per_token += share * (ratio - self.bytes_per_token)

    def tokens(self, n_bytes: int) -> int:
        """Return the estimated tokens of so many bytes by the learned ratio, at least 1."""
        return int(n_bytes / self.bytes_per_token) or 1  # as estimate_tokens, without the call

    def snapshot(self) -> dict[str, object]:
        """Return the ratio and the number of reports learned from, for dashboards."""
        return {"bytes_per_token": self.bytes_per_token, "reports": self.reports}


class Blocks(Sequence[int]):
    """Hashes of a prompt's beginning, one for each whole block, for routing by shared prefix.

    Each hash covers its block and all before it. Computed anew whenever they are read: routing
    mostly stops at the first.
    """

    __slots__ = ("_count", "_seed", "_start", "_text")

    def __init__(
        self,
        text: bytes | memoryview,
        count_max: int,
        start: int = 0,
        size: int = -1,
        seed: int = 0,
    ) -> None:
        """The prompt is ``size`` bytes from ``start``, or all that follows; ``count_max``: blocks.

        ``seed`` stands for what comes before it, such as the tools.
        """
        self._text = text
        self._start = start
        self._seed = seed
        size = len(text) - start if size < 0 else size
        self._count = min(bisect_right(BLOCK_ENDS, size), count_max)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        text, start, known = self._text, self._start, self._seed
        begin = start
        for length in BLOCK_ENDS[: self._count]:
            end = start + length
            known = crc32(text[begin:end], known)
            yield known
            begin = end

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        return tuple(self)[index]


__all__ = [
    "BLOCK_BYTES",
    "BLOCK_ENDS",
    "BYTES_PER_TOKEN",
    "Blocks",
    "TokenRatio",
    "estimate_tokens",
]
