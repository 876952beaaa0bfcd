"""The answers under way of a stand-in, and the one timer that paces them all.

Streams are not tasks. A job says when it wants its next turn; all jobs of one millisecond share one
list, and one timer of the loop wakes the earliest list. With 2,000 streams of 20 tokens a second
that is 1,000 timers a second in place of 40,000, and no task switch per token. The price is that a
token may come up to a millisecond late.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from heapq import heappop, heappush
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.core.plan.faults import FaultKind
from holdfast.core.types import MILLISECOND
from holdfast.testing.standin.connection import JSON, LAST_CHUNK, StandInConnection, framed
from holdfast.testing.standin.faults import Ailment, SocketKind

if TYPE_CHECKING:
    from asyncio import TimerHandle

_BURST_MAX: Final = 64  # frames in one turn where no time lies between them; then others are served

DEATH_FRAMES: Final = framed(
    b'data: {"error":{"message":"EngineCore encountered an issue.",'
    b'"type":"InternalServerError","param":null,"code":500}}\n\n'
) + framed(b"data: [DONE]\n\n")


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """An error in OpenAI's format. ``message`` must not need escaping."""
    named = "null" if param is None else f'"{param}"'
    return (
        f'{{"error":{{"message":"{message}","type":"{kind}","param":{named},"code":{status}}}}}'
    ).encode()


class JobHost(Protocol):
    """The methods of the engine that a job calls."""

    pace: int  # nanoseconds between two pieces of a stream, now
    frozen: bool  # nothing moves

    def park(self, job: "Job") -> None:
        """Hold a job until the fault is cleared."""

    def leave(self, job: "Job", reason: str) -> None:
        """Note that a job has ended."""

    def again(self, job: "Job") -> None:
        """Give a job a turn soon."""


class Job(ABC):
    """One request that holds a slot."""

    __slots__ = (
        "breaking",
        "conn",
        "due",
        "engine",
        "held",
        "over",
        "prompt_tokens",
        "said",
        "steps",
        "wait",
    )

    def __init__(
        self, engine: JobHost, conn: StandInConnection, wait: int, prompt_tokens: int
    ) -> None:
        self.engine = engine
        self.conn = conn
        self.wait = wait  # nanoseconds from getting a slot to its first turn
        self.prompt_tokens = prompt_tokens
        self.due = 0
        self.said = 0  # tokens
        self.steps = 1  # of a batch until its end, where the engine has one
        self.over = False
        self.held = False  # until the client has read
        self.breaking: Ailment | None = None

    @abstractmethod
    def turn(self, now: int) -> int:
        """Do what is due; returns the time of the next turn, 0 for none."""

    def on_gone(self) -> None:
        """Stop at once, because the client has left."""
        if not self.over:
            self.over = True
            self.engine.leave(self, "cancelled")

    def on_room(self) -> None:
        """Continue after the client has read what was sent."""
        if self.held:
            self.held = False
            self.engine.again(self)

    def finish(self, reason: str = "finished") -> int:
        """End the job; it gets no further turn."""
        self.over = True
        self.engine.leave(self, reason)
        return 0

    def fail(self, status: int, extra: bytes = b"") -> int:
        """Answer with an error and end the job."""
        body = error_body(status, "injected", "InternalServerError")
        self.finish("failed")
        self.conn.respond(status, body, JSON, extra)
        return 0

    def drop(self, *, reset: bool) -> int:
        """Break the connection and end the job."""
        self.conn.work = None
        self.finish("failed")
        if reset:
            self.conn.reset()
        else:
            self.conn.close()
        return 0


class WholeJob(Job):
    """A job that sends its answer in one piece."""

    __slots__ = ("body", "content_type", "status", "tokens")

    def __init__(
        self,
        engine: JobHost,
        conn: StandInConnection,
        wait: int,
        prompt_tokens: int,
        body: bytes,
        *,
        tokens: int = 0,
        content_type: bytes = JSON,
        status: int = 200,
    ) -> None:
        super().__init__(engine, conn, wait, prompt_tokens)
        self.body = body
        self.tokens = tokens
        self.content_type = content_type
        self.status = status

    def turn(self, now: int) -> int:  # noqa: ARG002
        """Send the answer, unless a fault prevents it."""
        if self.engine.frozen:
            self.engine.park(self)
            return 0
        ailment = self.breaking
        if ailment is None:
            self.said = self.tokens
            self.finish("finished" if self.status == 200 else "failed")
            self.conn.respond(self.status, self.body, self.content_type)
            return 0
        if ailment.known is SocketKind.STALL:
            self.engine.park(self)
            return 0
        if ailment.known is SocketKind.ERROR_FRAME:
            return self.fail(500)
        return self.drop(reset=ailment.known is FaultKind.CUT)


class StreamJob(Job):
    """A job that streams its answer; the bytes are encoded before, only their timing is decided."""

    __slots__ = ("closing", "degenerate", "opening", "per_piece", "pieces")

    def __init__(
        self,
        engine: JobHost,
        conn: StandInConnection,
        wait: int,
        prompt_tokens: int,
        opening: bytes,
        pieces: Iterator[bytes],
        closing: bytes,
        *,
        degenerate: bytes,
        per_piece: int,
    ) -> None:
        super().__init__(engine, conn, wait, prompt_tokens)
        self.opening = opening  # goes out together with the first piece
        self.pieces = pieces
        self.closing = closing
        self.degenerate = degenerate  # the frame of a garbage token
        self.per_piece = per_piece  # tokens

    def turn(self, now: int) -> int:
        """Send the next piece, or several if no time lies between pieces."""
        engine = self.engine
        for _ in range(_BURST_MAX):
            if self.conn.full:
                self.held = True
                return 0
            if engine.frozen:
                engine.park(self)
                return 0
            if self.breaking is not None and self.said >= self.breaking.tokens:
                return self._break(self.breaking)
            piece = next(self.pieces, None)
            if piece is None:
                self.finish()
                self.conn.write(self.opening + self.closing + LAST_CHUNK)
                self.conn.done()
                return 0
            self.said += self.per_piece
            if self.opening:
                piece = self.opening + piece
                self.opening = b""
            self.conn.write(piece)
            pace = engine.pace
            if pace:
                due = self.due + pace
                return due if due > now else now + pace  # a stopped process does not catch up
        return now + MILLISECOND

    def _break(self, ailment: Ailment) -> int:
        kind = ailment.known
        if kind is SocketKind.STALL:
            self.conn.write(self.opening)
            self.opening = b""
            self.engine.park(self)
            return 0
        if kind is FaultKind.CUT or ailment.form == "fin":
            return self.drop(reset=kind is FaultKind.CUT)
        self.finish("failed")
        told = DEATH_FRAMES if kind is SocketKind.ERROR_FRAME else b""
        self.conn.write(self.opening + told + LAST_CHUNK)
        self.conn.done()
        return 0


class Pacer:
    """Gives jobs their turns, grouped by millisecond."""

    __slots__ = ("_armed", "_loop", "_order", "_slots", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, list[Job]] = {}
        self._order: list[int] = []  # heap of the slots that exist
        self._armed = 0  # slot the timer is set for, 0 = none
        self._timer: TimerHandle | None = None

    def file(self, job: Job) -> None:
        """Schedule the job's turn at ``job.due`` or within a millisecond after."""
        slot = -(-job.due // MILLISECOND)
        jobs = self._slots.get(slot)
        if jobs is not None:
            jobs.append(job)
            return
        self._slots[slot] = [job]
        heappush(self._order, slot)
        if not self._armed or slot < self._armed:
            self._arm(slot)

    def stop(self) -> None:
        """Cancel all turns."""
        if self._timer is not None:
            self._timer.cancel()
        self._slots.clear()
        self._order.clear()
        self._armed = 0

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = slot
        wait = slot * MILLISECOND - monotonic_ns()
        # Half a millisecond more: the loop rounds to whole ones, and too early is in vain.
        self._timer = self._loop.call_later(wait / 1e9 + 0.0005 if wait > 0 else 0.0, self._fire)

    def _fire(self) -> None:
        now = monotonic_ns()
        target = now // MILLISECOND
        order = self._order
        self._timer = None
        self._armed = target or 1  # no arming while turns file themselves anew
        while order and order[0] <= target:
            for job in self._slots.pop(heappop(order)):
                if job.over:
                    continue
                due = job.turn(now)
                if due:
                    job.due = due
                    self.file(job)
        self._armed = 0
        if order:
            self._arm(order[0])


__all__ = ["Job", "JobHost", "Pacer", "StreamJob", "WholeJob", "error_body"]
