"""Models the prefix cache of one engine: KV blocks of past prompts that a later prompt can reuse.

An engine keeps the blocks of a prompt after its request has ended, as long as nobody else needs the
memory. A prompt that begins with blocks that are there computes only the rest. Blocks of requests
that run are held; of the others the one used longest ago goes first, and of one prompt its end goes
before its beginning, because a block is worth nothing without those before it.

The memory is the engine's one KV memory: what running requests need beyond the blocks of their
prompts (answers) takes its part of it, and caching uses what is left.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Which prompt blocks an engine has in its KV memory, and which of them are in use."""

    __slots__ = ("_beyond", "_capacity", "_idle", "_used", "asked", "block_tokens", "hits")

    def __init__(self, kv_tokens_max: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._capacity = max(1, kv_tokens_max // block_tokens)  # blocks
        self._used: dict[int, int] = {}  # block to the number of running requests that hold it
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, the oldest first
        self._beyond = 0  # blocks of running requests that are no prompt blocks
        self.asked = 0  # prompt blocks of all requests so far
        self.hits = 0  # of those, leading ones that were there

    def __len__(self) -> int:
        return len(self._used) + len(self._idle)

    def leading(self, prefix: Sequence[int]) -> int:
        """The number of leading blocks of a prompt that are there. Changes nothing."""
        used, idle = self._used, self._idle
        found = 0
        for block in prefix:
            if block not in used and block not in idle:
                break
            found += 1
        return found

    def cached_tokens(self, prefix: Sequence[int], prompt: int) -> int:
        """The prompt tokens that need no computing; the last one always does."""
        return min(self.leading(prefix) * self.block_tokens, prompt - 1) if prompt else 0

    def hold(self, prefix: Sequence[int], tokens: int) -> None:
        """A request of so many tokens, prompt and answer, begins to run: keep its blocks."""
        self.asked += len(prefix)
        self.hits += self.leading(prefix)
        used, idle = self._used, self._idle
        for block in prefix:
            count = used.get(block, 0)
            if not count:
                idle.pop(block, None)
            used[block] = count + 1
        self._beyond += self._blocks_beyond(prefix, tokens)
        self._make_room()

    def release(self, prefix: Sequence[int], tokens: int) -> None:
        """That request is over: its prompt blocks stay cached while nobody needs the room."""
        used, idle = self._used, self._idle
        for block in reversed(prefix):  # the beginning last: it is the last to go
            count = used[block] - 1
            if count:
                used[block] = count
            else:
                del used[block]
                idle[block] = None
        self._beyond -= self._blocks_beyond(prefix, tokens)
        self._make_room()

    def clear(self) -> None:
        """The process is gone, and its memory with it; the counts of reuse stay."""
        self._used.clear()
        self._idle.clear()
        self._beyond = 0

    def _make_room(self) -> None:
        used, idle = self._used, self._idle
        while idle and len(used) + len(idle) + self._beyond > self._capacity:
            idle.popitem(last=False)

    def _blocks_beyond(self, prefix: Sequence[int], tokens: int) -> int:
        return max(0, -(-tokens // self.block_tokens) - len(prefix))


__all__ = ["PrefixCache"]
