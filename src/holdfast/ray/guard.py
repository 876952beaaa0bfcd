"""Gives a Ray Serve deployment handle Holdfast's deadline, breaker, retry budget and hedging cap.

    from holdfast.ray.guard import guard

    @serve.deployment
    class Orchestrator:
        def __init__(self, model: DeploymentHandle):
            self.model = guard(model, GuardConfig(deadline_s=10.0, attempt_s=4.0))

        async def __call__(self, request):
            return await self.model.infer.remote(request)

A guarded handle is called like the handle it stands for: ``.remote(…)``, a method by its name, and
``.options(…)``. What differs: ``await`` always ends by the deadline, with an answer or a
``GuardError`` that says why there is none; a deployment that keeps failing is not called for a
while; retries cannot multiply the load. The decisions are ``core.request``'s; this file only waits.

State is per process: each replica of the calling deployment has its own breaker and budget, as each
gateway has. With ``deadline(…)`` several calls share one deadline, also across functions.

Rejected: guarding in a middleware of Serve's proxy. The calls that hang are those between
deployments, which no proxy sees.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Protocol

from holdfast.core.failure import Kind
from holdfast.core.request.guard.call_guard import (
    CallGuard,
    GuardConfig,
    GuardedAttempt,
    GuardedCall,
    GuardRefusal,
    NextStep,
)
from holdfast.core.types import nanos, seconds
from holdfast.ray.errors import (
    CallFailedError,
    CircuitOpenError,
    DeadlineExceededError,
    GuardError,
    TooManyCallsError,
    error_of,
    kind_of_error,
)

Clock = Callable[[], int]

_deadline: ContextVar[int | None] = ContextVar("holdfast_ray_deadline", default=None)
_ABSENT: Final = object()


class Handle(Protocol):
    """What a guard needs of a deployment handle; ``ray.serve.handle.DeploymentHandle`` has it."""

    def options(self, **options: Any) -> "Handle":
        """Return a handle to another method, or one that streams."""
        ...

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Send a call; returns what can be awaited (or iterated) and has ``cancel``."""
        ...


@contextmanager
def deadline(within_s: float, *, clock: Clock = time.monotonic_ns) -> Iterator[None]:
    """Bound all guarded calls inside the block by one deadline, ``within_s`` seconds from now.

    Blocks nest: the earlier deadline holds. Tasks that are started inside inherit it.
    """
    ends, outer = clock() + nanos(within_s), _deadline.get()
    token = _deadline.set(ends if outer is None else min(outer, ends))
    try:
        yield
    finally:
        _deadline.reset(token)


@dataclass(slots=True, frozen=True)
class _Options:
    """How calls of one guarded handle are made."""

    deadline_s: float | None = None
    size: int = 0
    stream: bool = False


class GuardedHandle:
    """A deployment handle whose calls end by a deadline and respect breaker, budget and caps."""

    def __init__(
        self,
        handle: Handle,
        policy: CallGuard,
        options: _Options,
        bad_request: tuple[type[BaseException], ...],
        clock: Clock,
    ) -> None:
        self._handle = handle
        self._policy = policy
        self._options = options
        self._bad_request = bad_request
        self._clock = clock

    def options(
        self,
        *,
        deadline_s: float | None = None,
        size: int | None = None,
        stream: bool | None = None,
        **more: Any,
    ) -> "GuardedHandle":
        """Return this guarded handle with other options; the breaker and the budget stay shared.

        ``deadline_s`` bounds each call, ``size`` is the amount of its work (see ``GuardConfig``),
        ``stream`` makes ``remote`` return an asynchronous iterator; all others are Serve's own.
        """
        changed = replace(
            self._options,
            deadline_s=self._options.deadline_s if deadline_s is None else deadline_s,
            size=self._options.size if size is None else size,
            stream=self._options.stream if stream is None else stream,
        )
        if stream is not None:
            more["stream"] = stream
        handle = self._handle.options(**more) if more else self._handle
        return GuardedHandle(handle, self._policy, changed, self._bad_request, self._clock)

    def __getattr__(self, name: str) -> "GuardedHandle":
        if name.startswith("_"):
            raise AttributeError(name)
        return self.options(method_name=name)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the deployment: returns a coroutine, or with ``stream`` an asynchronous iterator.

        Both raise ``GuardError`` where there is no answer, by the deadline at the latest.
        """
        if self._options.stream:
            return self._stream(args, kwargs)
        return self._whole(args, kwargs)

    def snapshot(self) -> dict[str, object]:
        """The breaker's state, calls under way and counted outcomes, as plain data."""
        return self._policy.snapshot()

    # --- one call --------------------------------------------------------------------------------

    def _open(self) -> GuardedCall:
        now, own = self._clock(), self._options.deadline_s
        bounds = [one for one in (_deadline.get(),) if one is not None]
        if own is not None:
            bounds.append(now + nanos(own))
        opened = self._policy.open(
            now,
            deadline=min(bounds, default=None),
            size=self._options.size,
            streamed=self._options.stream,
        )
        if isinstance(opened, GuardRefusal):
            raise _refusal(opened)
        return opened

    def _begin(self, call: GuardedCall, before: BaseException | None) -> GuardedAttempt:
        begun = self._policy.begin(call, self._clock())
        if isinstance(begun, GuardRefusal):
            raise _refusal(begun, call.attempts_made) from before
        return begun

    async def _whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._open()
        race = _Race(self._handle, args, kwargs)
        try:
            error: BaseException | None = None
            race.start(self._begin(call, None))
            while True:
                step, error = await self._turn(call, race)
                if step is None:
                    return race.answer
                if not step.again and not call.running:
                    raise _failure(step, call, error) from error
                if step.again:
                    await asyncio.sleep(seconds(step.delay))
                    race.start(self._begin(call, error))
        finally:
            for attempt in race.leave():
                self._policy.superseded(call, attempt, self._clock())
            self._policy.close(call)

    async def _turn(
        self, call: GuardedCall, race: "_Race"
    ) -> tuple[NextStep | None, BaseException | None]:
        """Wait for the next thing to happen to a call; no step: it has its answer."""
        policy = self._policy
        while True:
            hedge_at = policy.hedge_at(call, race.first)
            due = min(one.due for one in race.attempts)
            wake = due if hedge_at is None else min(due, hedge_at)
            finished = await race.wait(seconds(max(0, wake - self._clock())))
            now = self._clock()
            if finished is not None:
                attempt, error = finished
                if error is None:
                    policy.answered(call, attempt, now)
                    return None, None
                kind = kind_of_error(error, self._bad_request)
                return policy.failed(call, attempt, kind, now), error
            late = [one for one in race.attempts if now >= one.due]
            if late:
                race.drop(late[0])
                return policy.overdue(call, late[0], now), None
            if hedge_at is not None and now >= hedge_at:
                hedge = policy.hedge(call, now)
                if hedge is not None:
                    race.start(hedge)

    # --- one stream ------------------------------------------------------------------------------

    async def _stream(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        call = self._open()
        policy, response = self._policy, None
        running: GuardedAttempt | None = None  # as long as the policy waits for its end
        try:
            error: BaseException | None = None
            while True:
                running = attempt = self._begin(call, error)
                response = _sent(self._handle, args, kwargs)
                items = _items_of(response)
                step: NextStep | None = None
                while step is None:
                    item, error = await self._item(items, attempt)
                    now = self._clock()
                    if error is None and item is not _ABSENT:
                        policy.item(call, attempt, now)
                        yield item
                        # What the reader of this stream took does not count against it.
                        attempt.due = min(attempt.due + self._clock() - now, call.deadline)
                        attempt.shown_at = self._clock()
                        continue
                    running = None
                    if error is None:
                        policy.answered(call, attempt, now)
                        return
                    late = isinstance(error, _LateError)
                    kind = kind_of_error(error, self._bad_request)
                    step = (
                        policy.overdue(call, attempt, now)
                        if late
                        else policy.failed(call, attempt, kind, now)
                    )
                _cancel(response)
                if not step.again:
                    raise _failure(step, call, error) from error
                await asyncio.sleep(seconds(step.delay))
        finally:
            if running is not None:
                policy.superseded(call, running, self._clock())
                _cancel(response)
            policy.close(call)

    async def _item(
        self, items: AsyncIterator[Any], attempt: GuardedAttempt
    ) -> tuple[Any, BaseException | None]:
        """The next item of a stream, or the error that ended it; ``_ABSENT``: its honest end."""
        left = seconds(max(0, attempt.due - self._clock()))
        waiting = asyncio.ensure_future(_next_of(items))
        try:
            done, _ = await asyncio.wait({waiting}, timeout=left)
        finally:
            if not waiting.done():
                waiting.cancel()
        if not done:
            return _ABSENT, _LateError("no item came in time")
        error = waiting.exception()
        return (_ABSENT, error) if error is not None else (waiting.result(), None)


class _LateError(Exception):
    """An item of a stream did not come by its deadline."""


class _Race:
    """The attempts of one call that run now; at most two."""

    def __init__(self, handle: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._call = (handle, args, kwargs)
        self._running: dict[asyncio.Task[Any], tuple[GuardedAttempt, Any]] = {}
        self.answer: Any = None

    @property
    def attempts(self) -> list[GuardedAttempt]:
        return [attempt for attempt, _ in self._running.values()]

    @property
    def first(self) -> GuardedAttempt:
        return self.attempts[0]

    def start(self, attempt: GuardedAttempt) -> None:
        response = _sent(*self._call)
        task = asyncio.ensure_future(_answer_of(response))
        self._running[task] = (attempt, response)

    async def wait(self, within_s: float) -> tuple[GuardedAttempt, BaseException | None] | None:
        """The next attempt to end, with its error if it has one; None: none did in time."""
        done, _ = await asyncio.wait(
            self._running, timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            return None
        # Of two that ended at once the one with an answer counts.
        task = min(done, key=lambda one: one.cancelled() or one.exception() is not None)
        attempt, _ = self._running.pop(task)
        if task.cancelled():
            return attempt, ConnectionError("the call was cancelled on its way")
        error = task.exception()
        if error is None:
            self.answer = task.result()
        return attempt, error

    def drop(self, attempt: GuardedAttempt) -> None:
        """Give up one attempt, and tell the deployment that nobody waits for it."""
        for task, (held, response) in list(self._running.items()):
            if held is attempt:
                del self._running[task]
                task.cancel()
                _cancel(response)

    def leave(self) -> list[GuardedAttempt]:
        """Give up all that still run, and return them."""
        left = self.attempts
        for attempt in left:
            self.drop(attempt)
        return left


class _Unsent:
    """A call that the handle itself refused: whoever waits for it gets the error."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _sent(handle: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return handle.remote(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 whatever it is, it is this attempt's failure
        return _Unsent(error)


async def _answer_of(response: Any) -> Any:
    if isinstance(response, _Unsent):
        raise response.error
    return await response


async def _items_of(response: Any) -> AsyncIterator[Any]:
    if isinstance(response, _Unsent):
        raise response.error
    async for item in response:
        yield item


async def _next_of(items: AsyncIterator[Any]) -> Any:
    return await anext(items, _ABSENT)


def _cancel(response: Any) -> None:
    """Tell the deployment that nobody waits any more, where the response can be told so."""
    cancel = getattr(response, "cancel", None)
    if cancel is not None:
        cancel()


def _refusal(refused: GuardRefusal, attempts: int = 0) -> GuardError:
    """The error for a call that was not sent."""
    kinds = {Kind.REFUSED: CircuitOpenError, Kind.OVERLOADED: TooManyCallsError}
    made = kinds.get(refused.kind, DeadlineExceededError)
    return made(
        refused.reason, refused.kind, attempts=attempts, retry_after_s=refused.retry_after_s
    )


def _failure(step: NextStep, call: GuardedCall, error: BaseException | None) -> GuardError:
    """The error for a call whose last attempt did not succeed."""
    made = call.attempts_made
    said = "" if error is None or isinstance(error, _LateError) else f" ({type(error).__name__})"
    tries = f"{made} attempt{'' if made == 1 else 's'}"
    return error_of(step.kind, f"{step.kind}{said} after {tries}: {step.reason}", attempts=made)


def guard(
    handle: Handle,
    config: GuardConfig | None = None,
    *,
    bad_request: tuple[type[BaseException], ...] = (),
    rng: Random | None = None,
    clock: Clock = time.monotonic_ns,
) -> GuardedHandle:
    """Guard a deployment handle; keep the result for as long as the handle would be kept.

    ``bad_request`` names the deployment's own exceptions for calls that are wrong wherever they go:
    they are not retried and do not count against it.
    """
    policy = CallGuard(config or GuardConfig(), rng or Random())
    return GuardedHandle(handle, policy, _Options(), bad_request, clock)


__all__ = [
    "CallFailedError",
    "CircuitOpenError",
    "DeadlineExceededError",
    "GuardConfig",
    "GuardError",
    "GuardedHandle",
    "TooManyCallsError",
    "deadline",
    "guard",
]
