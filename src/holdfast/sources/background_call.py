"""A call that may never return, made beside everything else: a driver's, or of a dead filesystem.

Each call has a thread of its own that ends with the process, and there is one at a time: while it
hangs nobody starts a second, and what it said last stays, with its age. Rejected: a pool of
threads. One whose threads all hang serves nobody else, and is waited for when the process ends.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """The last value of a call that is made now and then."""

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
        """The last value; a call that is due is made first and waited for a little."""
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
        """For how long the call that is under way has not come back; None: there is none."""
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
