"""Parses and checks the URL of a replica's endpoint, and looks up the addresses of its host name.

A name is looked up whenever a connection is opened, so that a replica that moved is found. The
last addresses are kept: when the resolver fails, or takes longer than half of what a connection
may take, they are used instead. Rejected: leaving the lookup to ``create_connection``; it merges
the errors of several addresses into one text, and forgets which address worked. Rejected: a cache
with a lifetime; pooled connections make lookups rare, and a stale cache sends requests to a machine
that is no longer ours.
"""

import asyncio
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.types import ConfigError, require

ADDRESSES_MAX: Final = 8  # tried for one name; they share the time that one connection may take

_FIELD: Final = "endpoint"
_EXAMPLE: Final = "write it like http://10.0.0.7:8000"
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_NAME: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(slots=True, frozen=True)
class Endpoint:
    """A replica's URL and its parts: host, port, TLS, base path, Host header.

    Checked when built: raises ``ConfigError`` without quoting the URL. No query, fragment or user
    information is allowed.
    """

    url: str
    tls: bool = field(init=False)
    host: str = field(init=False)  # without brackets, in lower case
    port: int = field(init=False)
    base: bytes = field(init=False)  # goes before every path; empty, or /like/this
    authority: bytes = field(init=False)  # for the Host header
    literal: bool = field(init=False)  # the host is an address: nothing to look up

    def __post_init__(self) -> None:
        # Nothing of a refused URL is repeated in the error: it may hold a password.
        require(_VISIBLE.fullmatch(self.url) is not None, _FIELD, "is not visible ASCII", _EXAMPLE)
        scheme, _, rest = self.url.partition("://")
        known = scheme.lower() in _PORTS
        require(known, _FIELD, "does not begin with http:// or https://", _EXAMPLE)
        marked = "?" in rest or "#" in rest
        require(not marked, _FIELD, "has a query or a fragment", "leave out what follows the path")
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError(_FIELD, "has a bad host or port", _EXAMPLE) from error
        fix = "leave out user and password; keys are configured apart"
        require("@" not in parts.netloc, _FIELD, "has user information", fix)
        require(port != 0, _FIELD, "has port 0", "use the port the engine listens on")
        default = _PORTS[parts.scheme]
        shown = f"[{host}]" if ":" in host else host
        if port is not None and port != default:
            shown = f"{shown}:{port}"
        for name, value in (
            ("tls", parts.scheme == "https"),
            ("host", host),
            ("port", port or default),
            ("base", parts.path.rstrip("/").encode("ascii")),
            ("authority", shown.encode("ascii")),
            ("literal", _is_literal(host)),
        ):
            object.__setattr__(self, name, value)


def _is_literal(host: str) -> bool:
    """Whether a host is an address; refuses what is neither that nor a name."""
    for family in (IPv4Address, IPv6Address):
        try:
            family(host)
        except ValueError:
            continue
        require("%" not in host, _FIELD, "has an address with a zone", "use a global address")
        return True
    require(_NAME.fullmatch(host) is not None, _FIELD, "has a bad host", _EXAMPLE)
    return False


class Addresses:
    """The addresses of one endpoint's host, looked up anew for each connection.

    Those that accepted a connection last come first; at most 8.
    """

    __slots__ = ("_endpoint", "_known", "_lookup", "_loop", "_patience_s", "lookups_failed")

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, connect_s: float
    ) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._patience_s = connect_s / 2  # leaves as much for the connection itself
        self._known: tuple[str, ...] = (endpoint.host,) if endpoint.literal else ()
        self._lookup: asyncio.Task[None] | None = None
        self.lookups_failed = 0

    async def current(self) -> tuple[str, ...]:
        """Look the name up and return its addresses; the last known ones if that fails or is slow.

        Empty if it was never resolved. An endpoint given as an address is not looked up.
        """
        if self._endpoint.literal:
            return self._known
        if self._lookup is None or self._lookup.done():
            self._lookup = self._loop.create_task(self._resolve())
        # One lookup for all who wait: a resolver that hangs holds one thread, not one per call.
        await asyncio.wait((self._lookup,), timeout=self._patience_s if self._known else None)
        return self._known

    def prefer(self, address: str) -> None:
        """Put an address first, because it accepted a connection."""
        if self._known[:1] != (address,):
            self._known = tuple(dict.fromkeys((address, *self._known)))[:ADDRESSES_MAX]

    def demote(self, address: str) -> None:
        """Put an address last, because it accepted no connection; it stays in the list."""
        if address in self._known:
            self._known = (*(other for other in self._known if other != address), address)

    def close(self) -> None:
        """Cancel a lookup under way; who waits for it gets the addresses known so far."""
        if self._lookup is not None:
            self._lookup.cancel()

    async def _resolve(self) -> None:
        try:
            found = await self._loop.getaddrinfo(
                self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM
            )
        except OSError:
            self.lookups_failed += 1
            return
        self._learn(str(address[0]) for _, _, _, _, address in found)

    def _learn(self, found: Iterable[str]) -> None:
        fresh = dict.fromkeys(found)
        ordered = [address for address in self._known if address in fresh]
        self._known = tuple(dict.fromkeys((*ordered, *fresh)))[:ADDRESSES_MAX] or self._known


__all__ = ["ADDRESSES_MAX", "Addresses", "Endpoint"]
