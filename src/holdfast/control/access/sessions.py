"""Browser sessions of the admin port: a cookie in exchange for a token, for half a day.

A page cannot keep the token itself: any script that ran there could read it, and it opens
everything. So the token is sent once, and the browser gets a random cookie that no script can read
and that no other site can make it send. Only hashes of cookies are kept, in memory: after a restart
of control the token is needed again, and a later dump of this process's memory holds nothing
usable.

An order by cookie carries a second secret in a header, which is derived from the cookie: a page of
another site can neither read it nor set the header. Pages that only read without having signed in,
on loopback, carry a secret that is drawn at start.

A sign-in link holds a code in place of the token: for one use, for ten minutes. It stands behind
the ``#`` of an address, which browsers send to nobody and servers do not log; a page sends it on.
Rejected: a link whose mere opening signs in. Whoever previews links would use it up.

Signed cookies without a list were rejected: one that was handed out could not be taken back.
"""

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from holdfast.control.access.tokens import AdminCaller, digest_of

COOKIE: Final = "holdfast_session"
CSRF_HEADER: Final = "x-holdfast-csrf"
LASTS_S: Final = 12 * 3_600.0  # a shift, with the handover
SESSIONS_MAX: Final = 256  # each costs a hash; the oldest goes first
LINK_S: Final = 600.0  # from a terminal to a browser, with a cup of tea between
LINKS_MAX: Final = 16  # unused ones; the oldest goes first


class Sessions:
    """Keeps, in memory, the sessions of signed-in browsers and codes of sign-in links.

    Checks cookies and CSRF secrets; only hashes of cookies and codes are kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[float, AdminCaller]] = OrderedDict()  # by cookie
        self._links: OrderedDict[bytes, tuple[float, AdminCaller]] = (
            OrderedDict()
        )  # by code; hashes
        self._open_csrf = secrets.token_urlsafe(32)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, caller: AdminCaller) -> str:
        """Begin a session of 12 hours for this caller and return its cookie.

        If there are too many sessions the oldest ends.
        """
        return _handed_out(self._open, caller, self._clock(), LASTS_S, SESSIONS_MAX)

    def sign_out(self, cookie: str) -> None:
        """End the session of this cookie; unknown cookies are ignored."""
        self._open.pop(digest_of(cookie), None)

    def caller(self, cookie: str) -> AdminCaller | None:
        """Whose session this cookie belongs to; None: it expired or was never handed out.

        Whether the caller's token is still valid is not checked here.
        """
        until, caller = self._open.get(digest_of(cookie), (0.0, None))
        return caller if caller is not None and self._clock() < until else None

    def link(self, caller: AdminCaller) -> str:
        """Make a code for a sign-in link, with the caller's roles; valid once, for ten minutes."""
        return _handed_out(self._links, caller, self._clock(), LINK_S, LINKS_MAX)

    def redeem(self, code: str) -> AdminCaller | None:
        """Use up a sign-in link's code and return its caller; None: unknown, used or too old.

        Begins no session.
        """
        until, caller = self._links.pop(digest_of(code), (0.0, None))
        return caller if caller is not None and self._clock() < until else None

    def csrf(self, cookie: str | None) -> str | None:
        """The CSRF secret that orders of this session must carry; None: not signed in."""
        if cookie is None or self.caller(cookie) is None:
            return None
        return hmac.new(cookie.encode(), b"csrf", sha256).hexdigest()

    @property
    def open_csrf(self) -> str:
        """The CSRF secret of pages that read without having signed in; drawn at start."""
        return self._open_csrf

    def may_order(self, cookie: str | None, given: str) -> bool:
        """Whether ``given`` is the CSRF secret of this cookie's session.

        A cookie of None stands for pages that have not signed in.
        """
        wanted = self._open_csrf if cookie is None else self.csrf(cookie)
        return wanted is not None and hmac.compare_digest(
            wanted.encode(), given.encode("utf-8", "surrogateescape")
        )


def _handed_out(
    kept: OrderedDict[bytes, tuple[float, AdminCaller]],
    caller: AdminCaller,
    now: float,
    lasts_s: float,
    most: int,
) -> str:
    """Draw a secret, keep its hash with the caller, and drop what is too old or too many."""
    while kept and (next(iter(kept.values()))[0] <= now or len(kept) >= most):
        kept.popitem(last=False)
    secret = secrets.token_urlsafe(32)
    kept[digest_of(secret)] = (now + lasts_s, caller)
    return secret


__all__ = ["COOKIE", "CSRF_HEADER", "LASTS_S", "LINK_S", "Sessions"]
