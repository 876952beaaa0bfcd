"""Slows down wrong tokens, by address and altogether, counts them and logs that they come.

A right token is refused as well while its address has to wait: a limit that lets the right guess
through is none. The token of the state directory is not asked about here (``admin_access.py``):
it has 256 random bits, and else any process of this machine could lock its operator out.

What is logged is bounded, too: one line for the first wrong token, then at most one in ten seconds
with how many there were since. Rejected: a line for each. A guesser would fill the disk.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import structlog

TRIES_MAX: Final = 5  # wrong tokens in a row, of one address
TRY_AGAIN_S: Final = 12.0  # until one more is allowed: 5 a minute, 7,200 a day
ADDRESSES_MAX: Final = 1_024
ALL_TRIES_MAX: Final = 60  # of all addresses together, for whoever has many
ALL_TRY_AGAIN_S: Final = 1.0
LOG_S: Final = 10.0  # between two lines of the log

_log = structlog.get_logger("holdfast.control.access")


class TooManyTriesError(Exception):
    """Too many wrong tokens came; ``wait_s`` says in how many seconds to try again."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many wrong tokens; try again in {wait_s:.0f} s")
        self.wait_s = wait_s


class _Tries:
    """A leaky bucket that counts wrong tokens."""

    __slots__ = ("_at", "_full", "_leak_s", "_level")

    def __init__(self, full: int, leak_s: float, now: float) -> None:
        self._full = full
        self._leak_s = leak_s
        self._level = 0.0
        self._at = now

    def wait_s(self, now: float) -> float:
        """Seconds until one more try is allowed; 0: a try is allowed now."""
        self._level = max(0.0, self._level - (now - self._at) / self._leak_s)
        self._at = now
        return max(0.0, (self._level - (self._full - 1)) * self._leak_s)

    def failed(self) -> None:
        self._level += 1.0


class SignInLimit:
    """Counts wrong tokens by address and altogether, and refuses further tries after too many.

    It knows no tokens itself; callers report failures and successes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._all_tries = _Tries(ALL_TRIES_MAX, ALL_TRY_AGAIN_S, clock())
        self._logged_at: float | None = None
        self._unlogged = 0
        self.failed_total = 0  # wrong tokens
        self.limited_total = 0  # tries that were refused unseen

    def check(self, address: str) -> None:
        """Raise ``TooManyTriesError`` while this address, or everybody, has to wait.

        A refused try is counted and may be logged. Call it before a token is looked at.
        """
        now = self._clock()
        tries = self._tries.get(address)
        wait_s = max(tries.wait_s(now) if tries is not None else 0.0, self._all_tries.wait_s(now))
        if wait_s > 0.0:
            self.limited_total += 1
            self._tell(address, now)
            raise TooManyTriesError(max(1.0, wait_s))

    def failed(self, address: str) -> None:
        """Count one wrong token of this address; logs at most one line in ten seconds."""
        now = self._clock()
        self.failed_total += 1
        tries = self._tries.get(address)
        if tries is None:
            while len(self._tries) >= ADDRESSES_MAX:
                self._tries.popitem(last=False)
            tries = self._tries[address] = _Tries(TRIES_MAX, TRY_AGAIN_S, now)
        self._tries.move_to_end(address)
        tries.wait_s(now)  # what has leaked since is gone before this one is added
        tries.failed()
        self._all_tries.failed()
        self._tell(address, now)

    def succeeded(self, address: str) -> None:
        """Forget the wrong tokens of an address that sent a right one; the overall count stays."""
        self._tries.pop(address, None)

    def metrics(self) -> dict[str, float]:
        """Counters of wrong tokens, and of tries refused without looking at the token."""
        return {
            "admin_sign_ins_failed_total": self.failed_total,
            "admin_sign_ins_limited_total": self.limited_total,
        }

    def _tell(self, address: str, now: float) -> None:
        self._unlogged += 1
        if self._logged_at is None or now - self._logged_at >= LOG_S:
            _log.warning("wrong admin tokens", address=address, count=self._unlogged)
            self._logged_at, self._unlogged = now, 0


__all__ = ["SignInLimit", "TooManyTriesError"]
