"""Records what became of items, many in one commit, and tries again while the store is full.

Answers that are not recorded yet are kept in memory, at most as many as items run; while they wait,
the runner takes no new items. After ``kill -9`` their items run again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from holdfast.queue_port import (
    DurableQueue,
    Lease,
    LeaseAnswer,
    QueueError,
    Settlement,
)

_AGAIN_S: Final = 1.0  # between tries while the store is full or away
_log = structlog.get_logger("holdfast.batch")


@dataclass(slots=True, frozen=True)
class FailedReceive:
    """An item that goes back, or to the dead letters, with the reason for its story."""

    lease: Lease
    note: dict[str, Any]
    delay_s: float
    dead: bool


Ended = Settlement | FailedReceive


class Settlements:
    """Writes ends of items to the queue; ``told`` hears of each terminal record that stands."""

    def __init__(self, queue: DurableQueue, told: Callable[[Lease, bool], None]) -> None:
        self._queue = queue
        self._told = told  # the lease, and whether the record is terminal
        self._ends: list[Ended] = []
        self._releases: list[Lease] = []
        self._wake = asyncio.Event()
        self._stopping = False
        self.problem = ""  # why nothing is recorded just now
        self.recorded = 0
        self.fenced = 0

    @property
    def waiting(self) -> int:
        """How many ends are not recorded yet."""
        return len(self._ends) + len(self._releases)

    def add(self, end: Ended) -> None:
        """Record an end soon."""
        self._ends.append(end)
        self._wake.set()

    def release(self, lease: Lease) -> None:
        """Give an item back untried soon."""
        self._releases.append(lease)
        self._wake.set()

    def stop(self) -> None:
        """Make ``run`` return after what waits now."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Record until ``stop``."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            well = await self.flush()
            if self._stopping:
                return
            if not well:
                await asyncio.sleep(_AGAIN_S)
                self._wake.set()

    async def flush(self) -> bool:
        """Record all that waits now; whether that worked."""
        ends, self._ends = self._ends, []
        releases, self._releases = self._releases, []
        try:
            acks = [end for end in ends if isinstance(end, Settlement)]
            if acks:
                answers = await self._queue.ack(acks)
                self._note([end.lease for end in acks], answers, terminal=True)
                ends = [end for end in ends if isinstance(end, FailedReceive)]
            while ends:
                failed = ends[0]
                assert isinstance(failed, FailedReceive)
                answers = await self._queue.nack(
                    [failed.lease], note=failed.note, delay_s=failed.delay_s, dead=failed.dead
                )
                self._note([failed.lease], answers, terminal=failed.dead)
                ends = ends[1:]
            if releases:
                await self._queue.release(releases)
        except QueueError as error:
            self._ends = [*ends, *self._ends]
            self._releases = [*releases, *self._releases]
            if not self.problem:
                _log.error("results wait to be recorded", reason=str(error)[:200])
            self.problem = str(error)
            return False
        self.problem = ""
        return True

    def _note(
        self, leases: Sequence[Lease], answers: Sequence[LeaseAnswer], *, terminal: bool
    ) -> None:
        for lease, answer in zip(leases, answers, strict=True):
            stands = answer in {LeaseAnswer.OK, LeaseAnswer.REPEATED}
            self.recorded += stands and terminal
            self.fenced += answer is LeaseAnswer.FENCED
            self._told(lease, stands and terminal)


__all__ = ["FailedReceive", "Settlements"]
