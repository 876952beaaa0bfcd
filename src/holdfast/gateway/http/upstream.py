"""Pools the connections to one replica: reuses the most recently used, opens one when none is idle.

Last in, first out: the few connections in use stay warm and the rest grow old and are closed, so
that a pool shrinks after a burst. Rejected: giving a connection that is being opened to any waiting
call; it saves a little at the start of a burst, and afterwards a failed connection can no longer be
attributed to a call. Rejected: a timer per connection; ``sweep`` looks at the oldest ones and is
called from the gateway's one coarse clock.

Redirects are not followed and proxy settings of the environment are not read: an endpoint is where
the operator said it is.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable
from typing import Final

from holdfast.config.gateway import UpstreamConfig
from holdfast.core.failure import Kind
from holdfast.core.intake.descriptors import own_shortage
from holdfast.core.intake.shortages import Shortages
from holdfast.core.types import SECOND, nanos
from holdfast.gateway.http.head_cache import HeadCache
from holdfast.gateway.http.hot_path import FAST, HotPath
from holdfast.gateway.http.interfaces import Call, Caller
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.upstream_address import Addresses, Endpoint
from holdfast.gateway.http.upstream_connection import Head, UpstreamConnection

# A gateway that is late itself has not looked whether a connection is there: between two looks no
# more than this counts as waiting for it.
_LOOK_MAX: Final = SECOND // 4
_JOINED_MAX: Final = 4_096  # a longer body is not copied behind its head: one call sends both
_WITHOUT_BODY: Final = {b"GET", b"HEAD", b"DELETE", b"OPTIONS"}  # no length need be stated
# Not "nobody listens", which is the strongest failure there is: the network's.
_UNREACHED: Final = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT}


class Upstream:
    """Sends requests to one replica over a pool of connections, one call per connection.

    Reuses the most recently used idle one, opens another if none is idle; calls never wait for a
    place. Its owner must call ``sweep``.
    """

    __slots__ = (
        "_addresses",
        "_busy",
        "_closed",
        "_connect_ns",
        "_endpoint",
        "_hot_path",
        "_idle",
        "_idle_ns",
        "_loop",
        "_now_ns",
        "_opening",
        "_shortages",
        "_static",
        "_swept_at",
        "_tls",
        "_turn",
        "_waited",
        "config",
        "heads",
        "trusted",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        config: UpstreamConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        turn: LoopTurn | None = None,
        hot_path: HotPath = FAST,
        ssl_context: ssl.SSLContext | None = None,
        now_ns: Callable[[], int],
        shortages: Shortages | None = None,
    ) -> None:
        self._shortages = shortages or Shortages()
        self._endpoint = endpoint
        self.config = config
        self.heads = HeadCache[Head]()
        self._loop = loop
        self._hot_path = hot_path
        self._turn = turn or hot_path.loop_turn(loop)
        self._now_ns = now_ns
        self.trusted = ssl_context  # as given; None: the system's authorities
        self._tls: ssl.SSLContext | None = None
        if endpoint.tls:
            self._tls = ssl_context or ssl.create_default_context()
        self._addresses = Addresses(endpoint, loop, config.connect_s)
        self._connect_ns = nanos(config.connect_s)
        self._idle_ns = nanos(config.idle_s)
        self._static = b" HTTP/1.1\r\nhost: " + endpoint.authority + b"\r\nuser-agent: holdfast\r\n"
        self._idle: list[UpstreamConnection] = []  # the longest idle first
        self._busy: set[UpstreamConnection] = set()
        # Those of the busy, the longest opening first, and how far ``_waited`` was when they began.
        self._opening: dict[UpstreamConnection, int] = {}
        self._waited = 0  # time as it counts for them
        self._swept_at = now_ns()
        self._closed = False

    @property
    def idle(self) -> int:
        """How many open connections of the pool wait for a call."""
        return len(self._idle)

    @property
    def busy(self) -> int:
        """How many calls are under way, including those whose connection is still being opened."""
        return len(self._busy)

    def call(self, caller: Caller, method: bytes, path: bytes, headers: bytes, body: bytes) -> Call:
        """Send one request and return the handle of the call; ``caller`` gets the response later.

        Never raises and never calls back before it has returned. ``path`` begins with a slash;
        ``headers`` are lines with CRLF, without Host and content-length. They must hold no
        unintended line break.
        """
        base = self._endpoint.base
        if body or method not in _WITHOUT_BODY:
            length = b"content-length: %d\r\n\r\n" % len(body)
        else:
            length = b"\r\n"
        if len(body) <= _JOINED_MAX:
            head = b"".join((method, b" ", base, path, self._static, headers, length, body))
            body = b""
        else:
            head = b"".join((method, b" ", base, path, self._static, headers, length))
        connection = self._idle.pop() if self._idle else self._open()
        if connection.untaken:  # said unasked, it would be taken for the answer, and it will end it
            connection = self._open()
        self._busy.add(connection)
        return connection.begin(caller, head, body, bodyless=method == b"HEAD")

    def sweep(self, now_ns: int) -> None:
        """Fail calls whose connection was not opened in ``connect_s``; close long-idle connections.

        To be called a few times a second. Calls that are connected have no time limit here.
        """
        self._waited += min(now_ns - self._swept_at, _LOOK_MAX)
        self._swept_at = now_ns
        begun_before = self._waited - self._connect_ns
        late = []
        for connection, begun in self._opening.items():
            if begun >= begun_before:
                break
            late.append(connection)
        for connection in late:  # callers may open others when they hear of it
            connection.fail(Kind.CONNECT_TIMEOUT, f"no connection in {self.config.connect_s} s")
        idle_before = now_ns - self._idle_ns
        old = 0
        for connection in self._idle:
            if connection.since >= idle_before:
                break
            connection.shut()
            old += 1
        del self._idle[:old]

    def trim(self) -> None:
        """Close all idle connections now, as this process needs their descriptors; calls go on."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.shut()

    def close(self) -> None:
        """Close idle connections now, and each other one when its call is over.

        A name lookup under way is cancelled, so that calls which wait for a first address fail.
        """
        self._closed = True
        self._addresses.close()
        self.trim()

    def abandon(self) -> None:
        """Close the pool now: idle connections at once, calls under way fail with ``Kind.DRAINED``.

        Their callers are told, so that requests can move to another replica.
        """
        self._turn.catch_up()
        self.close()
        for connection in list(self._busy):
            connection.fail(Kind.DRAINED, "taken off the replica")

    # --- what connections report ------------------------------------------------------------------

    def opened(self, connection: UpstreamConnection) -> None:
        """Note that a connection is established: its time limit ends. Called by the connection."""
        self._opening.pop(connection, None)

    def finished(self, connection: UpstreamConnection, *, keep: bool) -> None:
        """Take back a connection whose call is over; called by the connection.

        ``keep``: it can carry another call and becomes idle, unless the pool is full or closed.
        """
        self._busy.discard(connection)
        if not keep:
            self._opening.pop(connection, None)
        elif self._closed or len(self._idle) >= self.config.idle_max:
            connection.shut()
        else:
            connection.since = self._now_ns()
            self._idle.append(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        """Remove an idle connection that broke; called by the connection. No call is affected."""
        if connection in self._idle:
            self._idle.remove(connection)

    # --- opening ----------------------------------------------------------------------------------

    def _open(self) -> UpstreamConnection:
        make = self._hot_path.upstream_connection
        connection = make(self, self.config.header_bytes_max, self._turn)
        connection.opening = self._loop.create_task(self._connect(connection))
        self._opening[connection] = self._waited + min(self._now_ns() - self._swept_at, _LOOK_MAX)
        return connection

    async def _connect(self, connection: UpstreamConnection) -> None:
        """Try the addresses in turn. Anything unforeseen ends as a timeout, by ``sweep``."""
        kind, detail = Kind.REFUSED, "connect: the name was not found"
        tls = self._tls
        for address in await self._addresses.current():
            try:
                await self._loop.create_connection(
                    lambda: connection,
                    address,
                    self._endpoint.port,
                    ssl=tls,
                    server_hostname=self._endpoint.host if tls else None,
                    ssl_shutdown_timeout=self.config.connect_s if tls else None,
                )
            except OSError as error:
                kind, detail = _meaning(error, tls=tls is not None)
                lacks = own_shortage(error.errno)
                if lacks is not None:
                    self._shortages.saw(lacks)
                    break  # another address would fare no better
                self._addresses.demote(address)
            except asyncio.CancelledError:
                self._addresses.demote(address)  # perhaps it is the one that does not answer
                raise
            else:
                self._addresses.prefer(address)
                return
        connection.opening = None
        connection.fail(kind, detail)


def _meaning(error: OSError, *, tls: bool) -> tuple[Kind, str]:
    """What a failed connection says about the replica.

    No route and no answer are for whoever looks after the network; everything else is a replica
    that did not take the request, and may be replaced for free.
    """
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "verify_message", "") or error.reason or "handshake failed"
        return Kind.REFUSED, f"tls: {reason}"
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    if own_shortage(error.errno) is not None:
        return Kind.GATEWAY_SHORTAGE, f"connect: {name}, a shortage of this gateway"
    if error.errno in _UNREACHED:
        return Kind.CONNECT_TIMEOUT, f"connect: {name}"
    if tls and isinstance(error, ConnectionResetError | ConnectionAbortedError):
        return Kind.REFUSED, "tls: closed within the handshake"
    return Kind.REFUSED, f"connect: {name}"


__all__ = ["Endpoint", "Upstream"]
