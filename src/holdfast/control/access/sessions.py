"""Browser sessions of the admin port: a cookie in exchange for the token, for half a day.

A page cannot keep the token itself: any script that ran there could read it, and it opens
everything. So the token is sent once, and the browser gets a random cookie that no script can read
and that no other site can make it send. Only hashes of cookies are kept, in memory: after a restart
of control the token is needed again, and a later dump of this process's memory holds nothing
usable.

An order by cookie carries a second secret in a header, which is derived from the cookie: a page of
another site can neither read it nor set the header. Where no token is configured, on loopback,
orders of pages carry a secret that is drawn at start.

Signed cookies without a list were rejected: one that was handed out could not be taken back.
"""

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Final

COOKIE: Final = "holdfast_session"
CSRF_HEADER: Final = "x-holdfast-csrf"
LASTS_S: Final = 12 * 3_600.0  # a shift, with the handover
SESSIONS_MAX: Final = 256  # each costs a hash; the oldest goes first
TRIES_MAX: Final = 5  # wrong tokens in a row, of one address
TRY_AGAIN_S: Final = 12.0  # until one more is allowed: 5 a minute, 7,200 a day
ADDRESSES_MAX: Final = 1_024
ALL_TRIES_MAX: Final = 60  # of all addresses together, for whoever has many
ALL_TRY_AGAIN_S: Final = 1.0


class TooManyTriesError(Exception):
    """Too many wrong tokens came in a short time; signing in is refused for a while."""

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


class Sessions:
    """Keeps the sessions of browsers that signed in, and checks their cookies and CSRF secrets."""

    def __init__(self, token: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._digest = bytes.fromhex(token.removeprefix("sha256:")) if token else None
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()  # by hash of the cookie
        self._open_csrf = secrets.token_urlsafe(32)
        self._tries: OrderedDict[str, _Tries] = OrderedDict()
        self._all_tries = _Tries(ALL_TRIES_MAX, ALL_TRY_AGAIN_S, clock())

    def __len__(self) -> int:
        return len(self._until)

    @property
    def required(self) -> bool:
        """Whether a token is configured, so that browsers have to sign in."""
        return self._digest is not None

    def sign_in(self, token: str, address: str) -> str | None:
        """Return a new session cookie if the token is right, else None.

        Raises ``TooManyTriesError`` after too many wrong tokens from this address or from all.
        """
        if self._digest is None:
            return None
        now = self._clock()
        tries = self._tries_of(address, now)
        wait_s = max(tries.wait_s(now), self._all_tries.wait_s(now))
        if wait_s > 0.0:
            raise TooManyTriesError(max(1.0, wait_s))
        if not hmac.compare_digest(_hash(token), self._digest):
            tries.failed()
            self._all_tries.failed()
            return None
        self._tries.pop(address, None)
        self._forget_old(now)
        while len(self._until) >= SESSIONS_MAX:
            self._until.popitem(last=False)
        cookie = secrets.token_urlsafe(32)
        self._until[_hash(cookie)] = now + LASTS_S
        return cookie

    def sign_out(self, cookie: str) -> None:
        """End the session of this cookie."""
        self._until.pop(_hash(cookie), None)

    def knows(self, cookie: str) -> bool:
        """Whether this cookie belongs to a session that has not expired."""
        until = self._until.get(_hash(cookie))
        return until is not None and self._clock() < until

    def csrf(self, cookie: str | None) -> str | None:
        """The CSRF secret that orders from this session must carry; None: not signed in.

        Where no token is configured it is the same for all pages.
        """
        if self._digest is None:
            return self._open_csrf
        if cookie is None or not self.knows(cookie):
            return None
        return hmac.new(cookie.encode(), b"csrf", sha256).hexdigest()

    def may_order(self, cookie: str | None, given: str) -> bool:
        """Whether ``given`` is the CSRF secret of this cookie's session: only then orders count."""
        wanted = self.csrf(cookie)
        return wanted is not None and hmac.compare_digest(
            wanted.encode(), given.encode("utf-8", "surrogateescape")
        )

    def _tries_of(self, address: str, now: float) -> _Tries:
        tries = self._tries.get(address)
        if tries is None:
            while len(self._tries) >= ADDRESSES_MAX:
                self._tries.popitem(last=False)
            tries = self._tries[address] = _Tries(TRIES_MAX, TRY_AGAIN_S, now)
        self._tries.move_to_end(address)
        return tries

    def _forget_old(self, now: float) -> None:
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()


__all__ = ["COOKIE", "CSRF_HEADER", "LASTS_S", "Sessions", "TooManyTriesError"]
