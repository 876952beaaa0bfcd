"""Durable queues under test: each kind with a clock that the test moves.

``QueueUnderTest`` is what the contract suite asks its questions of; ``queue_test`` runs a test that
is a coroutine, and closes the queue whatever comes of it.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.queue_port import DurableQueue
from holdfast.storage.queues.sqlite import SqliteQueue
from holdfast.testing.queue import MemoryQueue


@dataclass(slots=True)
class HandClock:
    """Monotonic and wall time that pass only when a test says so."""

    monotonic_s: float = 1_000.0
    wall_s: float = 1_800_000_000.0

    def monotonic(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        return self.wall_s


@dataclass(slots=True)
class QueueUnderTest:
    """A queue, the clock it goes by, and a way to open the same store once more."""

    queue: DurableQueue
    clock: HandClock = field(default_factory=HandClock)
    reopen: Callable[[], DurableQueue] | None = None  # None: it has no second opener
    tick: Callable[[DurableQueue], Awaitable[object]] | None = None  # where time is carried on
    opened: list[DurableQueue] = field(default_factory=list)

    def again(self) -> DurableQueue:
        assert self.reopen is not None
        self.opened.append(self.reopen())
        return self.opened[-1]

    async def pass_time(self, seconds: float) -> None:
        """Let time pass for the queue; where processes carry it on, in steps that they accept."""
        left = seconds
        while left > 0:
            step = min(left, 0.5) if self.tick is not None else left
            self.clock.monotonic_s += step
            self.clock.wall_s += step
            if self.tick is not None:
                await self.tick(self.opened[-1] if self.opened else self.queue)
            left -= step

    async def close(self) -> None:
        for queue in (self.queue, *self.opened):
            await queue.close()


def memory_queue() -> QueueUnderTest:
    clock = HandClock()
    return QueueUnderTest(MemoryQueue(clock.monotonic, clock.wall), clock)


def sqlite_queue(path: Path) -> QueueUnderTest:
    clock = HandClock()

    def opened() -> SqliteQueue:
        return SqliteQueue(
            path, monotonic=clock.monotonic, wall=clock.wall, boot=lambda: "this boot"
        )

    return QueueUnderTest(opened(), clock, opened)


def postgres_queue(url: str) -> QueueUnderTest:
    from holdfast.storage.queues.postgres import PostgresQueue  # noqa: PLC0415 an extra

    clock = HandClock()

    def opened() -> PostgresQueue:
        return PostgresQueue(url, monotonic=clock.monotonic, wall=clock.wall)

    return QueueUnderTest(opened(), clock, opened, lambda queue: queue.tick())


def redis_queue(url: str) -> QueueUnderTest:
    from holdfast.storage.queues.redis import RedisQueue  # noqa: PLC0415 an extra

    clock = HandClock()

    def opened() -> RedisQueue:
        return RedisQueue(url, monotonic=clock.monotonic, wall=clock.wall)

    return QueueUnderTest(opened(), clock, opened, lambda queue: queue.tick())


def queue_test(
    story: Callable[[QueueUnderTest], Awaitable[None]],
) -> Callable[[QueueUnderTest], None]:
    """Make a test of a coroutine that gets the queue under test."""

    @functools.wraps(story)
    def run(under_test: QueueUnderTest) -> None:
        async def told() -> None:
            try:
                await story(under_test)
            finally:
                await under_test.close()

        asyncio.run(told())

    return run
