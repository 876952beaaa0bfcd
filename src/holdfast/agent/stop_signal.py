"""Tells the main thread to stop; a signal handler may set it at any moment.

A handler runs between two steps of the main thread, whatever that is doing. Rejected:
``threading.Event``, which takes a lock to be set and holds it for a moment in ``wait``. A signal
that comes just then waits for the thread that it interrupted, for ever. Here a handler takes no
lock, it writes a byte.
"""

import os
import select


class StopSignal:
    """``set`` once, by anybody; ``wait`` and ``is_set`` are the main thread's."""

    __slots__ = ("_poll", "_told", "_writing")

    def __init__(self) -> None:
        reading, self._writing = os.pipe()  # both are kept until the process ends
        self._poll = select.poll()
        self._poll.register(reading, select.POLLIN)
        self._told = False

    def set(self) -> None:
        """It is to end."""
        if not self._told:
            self._told = True
            os.write(self._writing, b"!")

    def is_set(self) -> bool:
        """Whether it was said."""
        return self._told

    def wait(self, seconds: float) -> None:
        """Until it is said, or for so long."""
        self._poll.poll(max(0.0, seconds) * 1_000)


__all__ = ["StopSignal"]
