"""A stop flag that a signal handler can set at any moment without a lock.

A handler runs between two steps of the main thread, at any point. Rejected: ``threading.Event``,
which takes a lock to be set and holds it for a moment in ``wait``. A signal that arrives just then
waits for the thread that it interrupted, for ever. Here a handler takes no lock, it writes a byte.
"""

import os
import select


class StopSignal:
    """A flag to stop the main thread, which waits for it; any thread or handler may set it."""

    __slots__ = ("_poll", "_told", "_writing")

    def __init__(self) -> None:
        reading, self._writing = os.pipe()  # both are kept until the process ends
        self._poll = select.poll()
        self._poll.register(reading, select.POLLIN)
        self._told = False

    def set(self) -> None:
        """Set the flag and wake the main thread."""
        if not self._told:
            self._told = True
            os.write(self._writing, b"!")

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._told

    def wait(self, seconds: float) -> None:
        """Wait until the flag is set, for at most ``seconds``."""
        self._poll.poll(max(0.0, seconds) * 1_000)


__all__ = ["StopSignal"]
