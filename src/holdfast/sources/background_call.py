"""Makes a call that may hang (a driver, a dead filesystem) in a thread and keeps its last value.

Each call has a thread of its own that ends with the process, and there is one at a time: while it
hangs no second one is started, and its last value stays, with its age. Rejected: a pool of
threads. A pool whose threads all hang serves no other call, and is waited for when the process
ends.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Repeats a call in a thread of its own and keeps the last value."""

    def __init__(
        self, call: Callable[[], T], every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._call = call
        self.every_s = every_s
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self.value: T | None = None  # None: nothing came yet
        self.problem = ""  # of the last call that ended
        self.looked_at: float | None = None  # when the last call ended

    def poll(self, patience_s: float = 0.5) -> T | None:
        """Return the last value; if a call is due, start it and wait shortly for it first."""
        now = self._clock()
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        due = self.looked_at is None or now - self.looked_at >= self.every_s
        if self._thread is None and due:
            self._began = now
            self._thread = threading.Thread(target=self._work, name="aside", daemon=True)
            self._thread.start()
            self._thread.join(patience_s)
        return self.value

    @property
    def hangs_s(self) -> float | None:
        """Seconds that the call under way has taken so far; None if there is none."""
        if self._thread is None or not self._thread.is_alive():
            return None
        return self._clock() - self._began

    def _work(self) -> None:
        try:
            self.value = self._call()
            self.problem = ""
        except Exception as error:  # noqa: BLE001 foreign code; whoever asks reads the problem
            self.problem = f"{type(error).__name__}: {error}"[:200]
        self.looked_at = self._clock()


__all__ = ["BackgroundCall"]
