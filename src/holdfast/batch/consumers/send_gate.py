"""Lets so many messages be sent at once as its limit says; those that wait go in order."""

import asyncio
from collections import deque


class SendGate:
    """A limit that can be changed at any time; lowering it stops nobody who is inside."""

    def __init__(self) -> None:
        self.limit = 0
        self.inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait until there is room, and take it."""
        if self.inside < self.limit and not self._waiting:
            self.inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # the room was given just now, and is not needed
            else:
                self._waiting.remove(turn)
            raise

    def leave(self) -> None:
        """Give the room back."""
        self.inside -= 1
        self._admit()

    def set_limit(self, limit: int) -> None:
        """Let so many in from now on."""
        self.limit = limit
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.inside < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.inside += 1
                turn.set_result(None)


__all__ = ["SendGate"]
