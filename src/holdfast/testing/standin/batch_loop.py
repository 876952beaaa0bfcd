"""Continuous batching in a stand-in: all answers advance together, and a step takes its time.

    step = step_ms + per_sequence_ms·B + per_kv_token_ms·KV + prefill_us_per_token·prompts

in real time, step by step, with B answers in the batch, KV tokens held for them and the prompts of
those that joined with this step. So a fit of an engine can be held against a law that is known.
A boundary follows from the one before it, not from the moment in which a timer fired: a late timer
makes one token late and no step longer.
"""

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.core.types import MILLISECOND, SECOND
from holdfast.testing.standin.jobs import Job, StreamJob
from holdfast.testing.standin.options import Options

if TYPE_CHECKING:
    from asyncio import TimerHandle

_FROZEN_LOOK: Final = 20 * MILLISECOND  # how often a frozen engine looks whether it may go on
_STOPPED: Final = (
    SECOND  # a boundary missed by this: the process was stopped, and does not catch up
)


class BatchHost(Protocol):
    """What a batch asks of its engine."""

    frozen: bool  # nothing moves

    def next_waiting(self, running: int) -> Job | None:
        """The next job for the batch, which now holds a slot; None where none may join."""

    def slowness(self) -> float:
        """Factor on every step."""


class BatchLoop:
    """Gives all jobs of a batch one token per step, and admits further ones between steps."""

    __slots__ = ("_at", "_done", "_host", "_jobs", "_loop", "_options", "_timer")

    def __init__(self, options: Options, host: BatchHost) -> None:
        self._options = options
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[Job, int] = {}  # with the tokens each has had
        self._timer: TimerHandle | None = None
        self._at = 0  # the boundary that the timer is set for
        self._done: Callable[[], None] = self._fire

    def holds(self, job: Job) -> bool:
        """Whether the batch will give this job its turns."""
        return job in self._jobs

    def wake(self) -> None:
        """Begin a step if none runs: a job has come."""
        if self._timer is None:
            self._begin(monotonic_ns())

    def stop(self) -> None:
        """Cancel the coming step."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, at: int) -> None:
        prompts = 0
        while (job := self._host.next_waiting(len(self._jobs))) is not None:
            self._jobs[job] = 0
            prompts += job.prompt_tokens
        if not self._jobs:
            self._timer = None
            return
        options = self._options
        held = sum(job.prompt_tokens + tokens for job, tokens in self._jobs.items())
        step_ms = options.step_ms + options.per_sequence_ms * len(self._jobs)
        step_ms += options.per_kv_token_ms * held + options.prefill_us_per_token * prompts / 1e3
        self._arm(at + round(step_ms * self._host.slowness() * MILLISECOND))

    def _arm(self, at: int) -> None:
        self._at = at
        self._timer = self._loop.call_later(max(0, at - monotonic_ns()) / 1e9, self._done)

    def _fire(self) -> None:
        now = monotonic_ns()
        if self._host.frozen:
            self._arm(now + _FROZEN_LOOK)
            return
        if now < self._at:  # the loop rounds to whole milliseconds
            self._arm(self._at)
            return
        for job in list(self._jobs):
            self._step(job, now)
        self._jobs = {job: tokens for job, tokens in self._jobs.items() if not job.over}
        self._begin(self._at if now - self._at < _STOPPED else now)

    def _step(self, job: Job, now: int) -> None:
        if job.over:
            return
        self._jobs[job] += 1
        last = self._jobs[job] >= job.steps
        if isinstance(job, StreamJob):
            job.turn(now)
        if last and not job.over:
            job.turn(now)  # a stream's end comes with its last token; a whole answer only now


__all__ = ["BatchHost", "BatchLoop"]
