"""Decides who a caller of the admin port is: by token, by a browser's cookie, or as anybody.

    bearer token ─► the state directory's own? ─► yes, from this machine: local, all roles
                 └► address not limited ─► admin.token, admin.tokens ─► name and roles
    cookie ──────► session whose token is still in the file
    neither ─────► anybody, who may read where reading is open

The tokens of the fleet file are read again when the file changes: whoever was taken out of it is
out at once, with all sessions that began with that token.

The address is the peer's. ``X-Forwarded-For`` is believed from ``admin.trusted_proxies`` alone:
anybody can send that header, and would get a fresh limit with each invented address.
"""

import ipaddress
from collections.abc import Callable

from starlette.requests import Request

from holdfast.config.fleet_file import AdminSection
from holdfast.control.access.audit import AuditLog
from holdfast.control.access.roles import ALL_ROLES
from holdfast.control.access.sessions import Sessions
from holdfast.control.access.sign_in_limit import SignInLimit
from holdfast.control.access.tokens import (
    OWN,
    AdminCaller,
    TokenTable,
    digest_of,
    digest_of_hash,
    tokens_of,
)


class AdminAccess:
    """Finds who a caller of the admin port is; holds tokens, sessions, limits and audit trail.

    Tokens follow the fleet file when it changes.
    """

    def __init__(
        self,
        section: Callable[[], AdminSection],
        *,
        audit: AuditLog | None = None,
        limit: SignInLimit | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self._section = section
        self._read: AdminSection | None = None
        self._table = TokenTable(())
        self._networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
        self._own: TokenTable | None = None
        self.loopback = section().address.loopback  # a port is opened once
        self.audit = audit
        self.limit = limit or SignInLimit()
        self.sessions = sessions if sessions is not None else Sessions()  # an empty one is falsy

    def accept_own(self, hashed: str) -> None:
        """Also accept the local token with this hash, from loopback only, for all roles."""
        self._own = TokenTable([AdminCaller(OWN, ALL_ROLES, digest_of_hash(hashed))])

    @property
    def reads_openly(self) -> bool:
        """Whether any process of this machine may read without a token.

        Only on a loopback listener whose settings allow it.
        """
        return self.loopback and self._followed().reads_openly

    def by_token(self, token: str, address: str) -> AdminCaller | None:
        """The caller of a bearer token; None: it is nobody's, which is counted.

        Raises ``TooManyTriesError``, for right tokens, too, after too many wrong ones from this
        address or from all. The local token is exempt.
        """
        digest = digest_of(token)
        if self._own is not None and is_loopback(address):
            own = self._own.find(digest)
            if own is not None:
                return own
        self.limit.check(address)
        self._followed()
        caller = self._table.find(digest)
        if caller is None:
            self.limit.failed(address)
        else:
            self.limit.succeeded(address)
        return caller

    def by_code(self, code: str, address: str) -> AdminCaller | None:
        """The caller of a sign-in link's code, which is used up; None: it is not valid.

        A wrong code counts as a wrong token. Raises ``TooManyTriesError``.
        """
        self.limit.check(address)
        caller = self.sessions.redeem(code)
        if caller is None:
            self.limit.failed(address)
        return caller

    def by_cookie(self, cookie: str) -> AdminCaller | None:
        """The caller whose session this is; None: it is over, or its token was withdrawn."""
        caller = self.sessions.caller(cookie)
        if caller is None:
            return None
        self._followed()
        if caller.name == OWN and self._own is not None:
            return self._own.find(caller.digest)
        return self._table.find(caller.digest)

    def address_of(self, request: Request) -> str:
        """The address a request comes from: its peer, or what a trusted proxy forwarded.

        At most 64 characters; empty where it is unknown.
        """
        peer = request.client.host if request.client is not None else ""
        self._followed()
        if not self._networks:
            return peer[:64]
        hops = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        while hops and hops[-1].strip() and self._trusts(peer):
            peer = hops.pop().strip()
        return peer[:64]

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Prometheus counters of failed sign-ins and audited orders; the gauge of open sessions."""
        counted = self.limit.metrics()
        if self.audit is not None:
            counted |= self.audit.metrics()
        return counted, {"admin_sessions": len(self.sessions)}

    def _trusts(self, address: str) -> bool:
        known = _parsed(address)
        return known is not None and any(known in network for network in self._networks)

    def _followed(self) -> AdminSection:
        """The section that is in use now, with the tables that are made of it."""
        section = self._section()
        if section is not self._read:
            self._read = section
            self._table = tokens_of(section)
            self._networks = tuple(map(ipaddress.ip_network, section.trusted_proxies))
        return section


def is_loopback(address: str) -> bool:
    """Whether an IP address (text) is a loopback one; False for text that is no address."""
    known = _parsed(address)
    return known is not None and known.is_loopback


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address; IPv4 as a listener of both kinds shows it (``::ffff:…``) is IPv4."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return None
    return getattr(known, "ipv4_mapped", None) or known


__all__ = ["AdminAccess", "is_loopback"]
