"""Queue time of a store that many machines share: carried on by its users, never by a wall clock.

The store keeps one number, the queue time. Every user reads it, and from time to time proposes what
it saw last plus what its own monotonic clock has counted since; the store keeps the largest value.
So queue time never runs faster than real time, and runs while anybody is there. No clock that can
be set takes part: a jump of an hour on any machine, the store's own among them, moves no lease.

A user that was silent for long proposes no more than ``STEP_S_MAX``: otherwise it would add at
once what it alone has seen pass, and end leases that others were given meanwhile. Leases last that
much longer instead (``LEASE_GRACE_S``), so that none ends before its time.

Rejected: the server's own ``now()``: an hour's jump of its clock ends every lease at once, and two
holders work on the same items.
"""

import time
from collections.abc import Callable
from typing import Final

STEP_S_MAX: Final = 1.0  # twice the interval, so that a late proposal still counts whole
INTERVAL_S: Final = 0.5  # between proposals of one user: two small writes per second
LEASE_GRACE_S: Final = STEP_S_MAX  # the most that a lease could be cut short by


class CarriedTime:
    """What one user of a shared store knows of its queue time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: float | None = None
        self._seen_at = 0.0

    def due(self) -> bool:
        """Whether a proposal is worth its write."""
        return self._seen is None or self._monotonic() - self._seen_at >= INTERVAL_S

    def proposal(self) -> float:
        """The queue time as far as this user can tell; 0: it has not seen it yet."""
        if self._seen is None:
            return 0.0
        return self._seen + min(max(self._monotonic() - self._seen_at, 0.0), STEP_S_MAX)

    def saw(self, stored: float) -> None:
        """Remember the store's answer to a proposal."""
        self._seen, self._seen_at = stored, self._monotonic()


__all__ = ["INTERVAL_S", "LEASE_GRACE_S", "STEP_S_MAX", "CarriedTime"]
