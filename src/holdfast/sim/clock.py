"""The virtual clock: integer nanoseconds, events in order of (time, priority, sequence).

The sequence number makes ties deterministic: what was scheduled first happens first. Nothing is
ever removed from the heap; a handler has to check that its event still matters.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

# At one instant, the world changes before requests move, and requests before control looks.
WORLD: Final = 0
TRAFFIC: Final = 1
CONTROL: Final = 2

Handler = Callable[[Any, int], None]


class Clock:
    """A heap of scheduled events and the time of the event that is being handled."""

    __slots__ = ("after_event", "heap", "now", "steps", "ticket")

    def __init__(self) -> None:
        self.now = 0
        self.steps = 0
        self.after_event: Callable[[int], None] | None = None  # invariants hang here
        self.heap: list[tuple[int, int, int, Handler, Any]] = []
        self.ticket = 0  # of the last event scheduled

    def at(self, time: int, priority: int, handler: Handler, argument: Any = None) -> None:
        """Schedule ``handler(argument, time)``; ``time`` must not be earlier than now."""
        self.ticket = ticket = self.ticket + 1
        heappush(self.heap, (time, priority, ticket, handler, argument))

    def run(self, until: int) -> None:
        """Handle all events up to and including ``until``, in order."""
        heap = self.heap
        after = self.after_event
        steps = 0
        while heap and heap[0][0] <= until:
            time, _, _, handler, argument = heappop(heap)
            self.now = time
            handler(argument, time)
            steps += 1
            if after is not None:
                after(time)
        self.steps += steps
        self.now = max(self.now, until)

    def __len__(self) -> int:
        return len(self.heap)


__all__ = ["CONTROL", "TRAFFIC", "WORLD", "Clock", "Handler"]
