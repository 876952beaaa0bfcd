"""Calls a key store in a thread of its own, so that the event loop never waits for a disk.

The loop hands over changes; the thread makes all that wait in one transaction (a group commit) and
hands the rulings back in one callback. Between them it beats, looks at the keys that the gateway
waits for, asks which answers are wanted elsewhere, and drops what has expired. The queue of changes
is bounded: one that finds it full is refused at once, and so is its request.

A store that fails answers every change of the batch with None, and is asked again with the next.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn, Protocol

import structlog

from holdfast.core.request.idempotency.key_policy import (
    IdempotencyConfig,
    KeyChange,
    KeyPolicy,
    KeyRuling,
)
from holdfast.core.request.idempotency.key_record import KeyName
from holdfast.ports import KeySight, KeyStore, KeyStoreError, WatchedKey

BATCH_MAX: Final = 256  # changes of one transaction: others of the host wait for it
QUEUE_MAX: Final = 8_192  # changes that wait; two for each caller there may be
SWEEP_S: Final = 10.0  # between two looks for what expired
SWEEP_MAX: Final = 500  # keys dropped in one sweep; the next one follows at once where more wait
WANTED_S: Final = 0.25  # between two looks for who waits for an answer that ended
FAILED_S: Final = 0.5  # after a failure, until the store is looked at again unasked

Then = Callable[[KeyRuling | None], None]
Job = tuple[KeyChange, Then]

_log = structlog.get_logger("holdfast.gateway.idempotency")


class ThreadListener(Protocol):
    """Receives what the thread of a key store found; all methods are called on the event loop."""

    def saw(self, watched: Sequence[WatchedKey], sights: Sequence[KeySight]) -> None:
        """Take the present record and new answer pieces of each watched key.

        Both lists have one order.
        """

    def is_wanted(self, keys: Sequence[tuple[KeyName, str]]) -> None:
        """Take (key, execution) pairs of this gateway whose answers other gateways wait for."""

    def purged(self, tenants: Sequence[str]) -> None:
        """Forget all held answers of these tenants: their keys were deleted from the store."""


class KeyThread:
    """Calls the key store of one gateway process in a thread of its own, started when it is built.

    Makes submitted changes in batches, polls watched keys, writes the gateway's heartbeat and
    deletes expired keys. Failures of the store are counted in ``failures`` and logged once.
    """

    def __init__(
        self,
        store: KeyStore,
        owner: str,
        config: IdempotencyConfig,
        loop: asyncio.AbstractEventLoop,
        listener: ThreadListener,
    ) -> None:
        self._store = store
        self._owner = owner
        self._config = config
        self._policy = KeyPolicy(config)
        self._loop = loop
        self._listener = listener
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._watched: dict[KeyName, WatchedKey] = {}
        self._holds = False  # this gateway executes, or holds an answer
        self._runs = False  # it executes
        self._closing = False
        self._beat_at = self._poll_at = self._sweep_at = self._wanted_at = 0.0
        self._heard = 0  # the number of the last purge
        self._beaten = False
        self.failures = 0
        self.problem: str | None = None  # why the store did not answer, if it did not
        self._thread = threading.Thread(target=self._run, name="idempotency", daemon=True)
        self._thread.start()

    # --- on the event loop -----------------------------------------------------------------------

    def submit(self, change: KeyChange, then: Then) -> bool:
        """Queue a change of the store; ``then`` is called later on the event loop with the ruling.

        The ruling is None if the store failed. Return False, and never call ``then``, if the queue
        is full or closing.
        """
        with self._changed:
            if len(self._jobs) >= QUEUE_MAX or self._closing:
                return False
            self._jobs.append((change, then))
            self._changed.notify()
        return True

    def watch(self, key: WatchedKey) -> None:
        """Poll this key from now on.

        The listener's ``saw`` gets its record and the pieces after ``here``. Replaces an earlier
        watch of the same key.
        """
        with self._changed:
            self._watched[key.name] = key
            self._changed.notify()

    def unwatch(self, name: KeyName) -> None:
        """Stop polling a key; does nothing if it was not watched."""
        with self._changed:
            self._watched.pop(name, None)

    def hold(self, *, runs: bool, holds: bool) -> None:
        """Say whether this gateway executes requests (``runs``) and holds answers (``holds``).

        Decides how often the thread writes its heartbeat and asks which answers are wanted.
        """
        if (runs, holds) != (self._runs, self._holds):
            with self._changed:
                self._runs, self._holds = runs, holds
                self._wanted_at = 0.0
                self._changed.notify()

    def close(self, timeout_s: float = 2.0) -> bool:
        """Make the queued changes, note in the store that this gateway leaves, and end the thread.

        Blocks for up to ``timeout_s``; return whether the thread ended in that time.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if not (self._jobs or self._closing):
                    self._changed.wait(self._pause_s())  # a new watch wakes it, too
                jobs = [self._jobs.popleft() for _ in range(min(BATCH_MAX, len(self._jobs)))]
                closing = self._closing and not jobs
                watched = list(self._watched.values())
            try:
                if closing:
                    self._leave()
                    return
                self._step(jobs, watched)
            except RuntimeError:  # the loop is closed: nobody hears anything any more
                return

    def _pause_s(self) -> float:
        now = time.monotonic()
        due = self._sweep_at
        if self._runs or self._watched:
            due = min(due, self._poll_at)
        elif self._holds:
            due = min(due, max(self._poll_at, self._wanted_at))
        if self._holds:
            due = min(due, self._beat_at)
        return max(0.0, due - now)

    def _step(self, jobs: Sequence[Job], watched: Sequence[WatchedKey]) -> None:
        now = time.monotonic()
        # The first beat comes before the first claim: who claims without one seems dead.
        if (self._holds or jobs) and now >= self._beat_at:
            self._beat_at = now + self._config.beat_s
            if not self._beat():
                self._beat_at = now + FAILED_S
        if jobs:
            self._make(jobs)
        if (self._holds or watched) and now >= self._poll_at:
            self._poll_at = now + self._config.poll_s
            if not self._look(watched):
                self._poll_at = now + FAILED_S
        if now >= self._sweep_at:
            more = self._sweep()
            self._sweep_at = now if more else now + SWEEP_S

    def _beat(self) -> bool:
        try:
            purges = self._store.beat(self._owner, self._heard)
        except Exception as error:  # noqa: BLE001 a driver may raise anything; the thread lives on
            return self._failed(error)
        first, self._beaten = not self._beaten, True
        if purges:
            self._heard = purges[-1][0]
            if not first:  # what was purged before we began is none of ours
                self._tell(self._listener.purged, [tenant for _, tenant in purges])
        return True

    def _make(self, jobs: Sequence[Job]) -> None:
        rulings: Sequence[KeyRuling | None]
        try:
            rulings = [None] * len(jobs)
            if self._beaten or self._beat():
                rulings = self._store.update([change for change, _ in jobs])
                self._worked()
        except Exception as error:  # noqa: BLE001 as above
            self._failed(error)
        self._tell(_hand_back, [then for _, then in jobs], rulings)

    def _look(self, watched: Sequence[WatchedKey]) -> bool:
        try:
            sights = self._store.look(watched) if watched else []
            now, wanted = time.monotonic(), []
            if self._holds and now >= self._wanted_at:
                wanted = self._store.wanted(self._owner)
                self._wanted_at = now + (0.0 if self._runs else WANTED_S)
            self._worked()
        except Exception as error:  # noqa: BLE001 as above
            return self._failed(error)
        if watched:
            self._tell(self._listener.saw, watched, sights)
        if wanted:
            self._tell(self._listener.is_wanted, wanted)
        return True

    def _sweep(self) -> bool:
        """Drop what has expired; whether there may be more."""
        now = time.time()
        expire = partial(self._policy.expire, now=now)
        try:
            due = self._store.due(now, SWEEP_MAX)
            if due:
                self._store.update([KeyChange.of_record(name, expire) for name in due])
        except Exception as error:  # noqa: BLE001 as above
            return self._failed(error)
        return len(due) == SWEEP_MAX

    def _leave(self) -> None:
        try:
            if self._beaten:
                self._store.farewell(self._owner)
        except Exception as error:  # noqa: BLE001 as above
            self._failed(error)
        finally:
            self._store.close()

    def _tell(self, told: Callable[..., None], *what: object) -> None:
        self._loop.call_soon_threadsafe(told, *what)

    def _worked(self) -> None:
        if self.problem is not None:
            _log.info("the store of idempotency keys answers again")
            self.problem = None

    def _failed(self, error: Exception) -> bool:
        self.failures += 1
        reason = str(error) or type(error).__name__
        if self.problem is None:
            fix = "keyed requests get 503 until it does; see gateway.idempotency.store"
            _log.error("the store of idempotency keys does not answer", reason=reason, fix=fix)
        self.problem = reason
        return False


class NoKeys:
    """Stands in for a key store that could not be opened: its calls raise ``KeyStoreError``.

    The error has the reason given; keyed requests are then refused with 503.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def _fail(self, *_: object) -> NoReturn:
        raise KeyStoreError(self._reason)

    update = look = beat = farewell = wanted = due = purge = usage = _fail

    def close(self) -> None:
        """Do nothing: there is nothing open."""


def _hand_back(thens: Sequence[Then], rulings: Sequence[KeyRuling | None]) -> None:
    for then, ruling in zip(thens, rulings, strict=True):
        then(ruling)


__all__ = ["KeyThread", "NoKeys", "ThreadListener"]
