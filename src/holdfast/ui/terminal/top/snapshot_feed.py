"""Fetches snapshots from control: the page, then the stream, and again when the stream ends."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from holdfast.core.view.snapshot import Snapshot
from holdfast.ui.terminal.top.link import Link, LinkError

_REFUSED: Final = {404, 503}  # no such path: an older control; or too many listen


@dataclass(slots=True, frozen=True)
class PollIntervals:
    """How often control is asked, and how long to pause after a failure."""

    pause_s: float = 1.0  # after a failure; doubles
    pause_max_s: float = 15.0  # an engineer who mends control should not wait for us
    poll_s: float = 2.0  # where there is no stream


class SnapshotFeed:
    """Passes every new snapshot to a callback until it is cancelled."""

    def __init__(
        self,
        link: Link,
        take: Callable[[Snapshot], None],
        lost: Callable[[str], None],
        pace: PollIntervals | None = None,
    ) -> None:
        self._link = link
        self._take = take
        self._lost = lost
        self._pace = pace or PollIntervals()
        self._wake = asyncio.Event()

    def hurry(self) -> None:
        """End the current pause and ask control now."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch snapshots until cancelled."""
        pause = self._pace.pause_s
        while True:
            try:
                self._take(await self._link.view())
                pause = self._pace.pause_s
                await self._follow()
                self._lost("the stream ended")
            except LinkError as error:
                self._lost(error.reason)
            await self._rest(pause)
            pause = min(pause * 2, self._pace.pause_max_s)

    async def _follow(self) -> None:
        """The stream; where there is none, the page again and again."""
        try:
            async with aclosing(self._link.views()) as views:
                async for snapshot in views:
                    self._take(snapshot)
        except LinkError as error:
            if error.status not in _REFUSED:
                raise
            await self._poll()

    async def _poll(self) -> None:
        while True:
            await self._rest(self._pace.poll_s)
            self._take(await self._link.view())

    async def _rest(self, seconds: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return


__all__ = ["PollIntervals", "SnapshotFeed"]
