"""What a prompt weighs and how it begins, without a tokenizer.

Tokens are estimated from bytes, and the ratio is corrected by what the engine reports: a gateway in
front of many models cannot hold a tokenizer for each, and needs a size, not a count.

The beginning of a prompt is named by a chain of hashes over blocks of its raw JSON: two prompts
share the first k hashes if their first k blocks are the same bytes. CRC-32 continues over a prefix
at no extra cost, is the same in every process (``hash()`` is not), and nobody gains by a collision:
the request merely goes to a replica with nothing of it in its cache.

Rejected: hashing messages one by one. A conversation with long messages then has few hashes, and a
single long document has one.
"""

from typing import Final
from zlib import crc32

BLOCK_BYTES: Final = 512  # about 128 tokens: a few of the engines' own blocks of 16 to 64 tokens
BYTES_PER_TOKEN: Final = 4.0  # English prose with a vocabulary of 50k to 150k
_RATIO_MIN: Final = 1.0  # a tokenizer of bytes
_RATIO_MAX: Final = 16.0  # long runs of blanks in code; beyond it the count is wrong
_SHARE: Final = 0.05  # of the newest report, once some have come: remembers about twenty
_TOKENS_MIN: Final = 8  # fewer say more about special tokens than about text


def estimate_tokens(n_bytes: int, bytes_per_token: float = BYTES_PER_TOKEN) -> int:
    """Tokens of a text of so many bytes, at least one."""
    tokens = int(n_bytes / bytes_per_token)
    return tokens if tokens > 0 else 1


class TokenRatio:
    """Bytes per token of one model, learned from the usage that its engines report."""

    __slots__ = ("bytes_per_token", "reports")

    def __init__(self) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN
        self.reports = 0

    def observe(self, text_bytes: int, tokens: int) -> None:
        """So many bytes were so many tokens. What cannot be is not believed beyond the bounds."""
        if tokens < _TOKENS_MIN or text_bytes <= 0:
            return
        ratio = min(max(text_bytes / tokens, _RATIO_MIN), _RATIO_MAX)
        self.reports += 1
        # The first reports count for more: a model of another language is known within a few.
        share = max(_SHARE, 1.0 / (self.reports + 1))
        self.bytes_per_token += share * (ratio - self.bytes_per_token)

    def tokens(self, n_bytes: int) -> int:
        """Tokens of so many bytes, by what was learned."""
        return estimate_tokens(n_bytes, self.bytes_per_token)

    def snapshot(self) -> dict[str, object]:
        """For dashboards."""
        return {"bytes_per_token": self.bytes_per_token, "reports": self.reports}


def blocks(
    raw: bytes | memoryview, count_max: int, block_bytes: int = BLOCK_BYTES, seed: int = 0
) -> tuple[int, ...]:
    """Hashes of the whole blocks at the beginning, each covering all before it; ``count_max`` most.

    ``seed`` stands for what comes before the prompt, such as the tools.
    """
    count = min(len(raw) // block_bytes, count_max)
    if count <= 0:
        return ()
    text = bytes(raw[: count * block_bytes])  # slices of bytes are cheaper than those of a view
    hashes = []
    start = 0
    for _ in range(count):
        end = start + block_bytes
        seed = crc32(text[start:end], seed)
        hashes.append(seed)
        start = end
    return tuple(hashes)


__all__ = ["BLOCK_BYTES", "BYTES_PER_TOKEN", "TokenRatio", "blocks", "estimate_tokens"]
