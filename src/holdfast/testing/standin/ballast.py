"""Allocates real memory in a stand-in, as an engine with a leak does.

Detectors look at the pages that the kernel counts, so a leak only in metrics would not test
them. Pages are touched: a block is filled, not only allocated. The memory grows in small steps by a
timer of the loop, up to a bound, and then reports once that it is full.

Rejected: to ask the kernel for an address range and fault its pages in one by one. It is the same
memory, and a page of Python objects is how most engines lose theirs.
"""

import asyncio
from collections.abc import Callable
from typing import Final

STEP_S: Final = 0.25  # small enough that no step is seen as one
BYTES_MAX: Final = 8_000_000_000  # of one stand-in: more than any test needs


class Ballast:
    """Memory that grows step by step until it is full or released."""

    __slots__ = ("_blocks", "_bound", "_full", "_step", "_timer", "held")

    def __init__(self, bytes_s: float, bound: int, full: Callable[[], None]) -> None:
        self._step = max(1, round(bytes_s * STEP_S))
        self._bound = bound
        self._full = full
        self._blocks: list[bytes] = []
        self.held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._grow()

    def _grow(self) -> None:
        more = min(self._step, self._bound - self.held)
        self._blocks.append(b"\x01" * more)  # filled, so that the kernel has to give its pages
        self.held += more
        if self.held < self._bound:
            self._timer = asyncio.get_running_loop().call_later(STEP_S, self._grow)
        else:
            self._timer = None
            self._full()

    def let_go(self) -> None:
        """Release all memory, and stop growing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._blocks.clear()
        self.held = 0


__all__ = ["BYTES_MAX", "STEP_S", "Ballast"]
