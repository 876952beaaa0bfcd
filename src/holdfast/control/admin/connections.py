"""Bounds the connections of the admin port, so that slow or silent ones do not close it to others.

uvicorn serves the port and limits the idle time between two requests, and nothing else: a head that
is half sent, a body that stops and an answer that nobody reads hold their connection for ever. The
subclass of its protocol here notes in which of these a connection stands, and since when. What
stands there too long is closed; and where there is no place for a new connection, the oldest of
those that brought no request yet goes for it, then whoever stands still.

A new connection that has no place waits in the kernel's queue: operators would rather wait for half
a second than be told to come back.
"""

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from holdfast.config.admin import AdminConnectionConfig
from holdfast.config.certificates import names_of
from holdfast.control.access.guard import CERTIFIED
from holdfast.core.intake.descriptors import connections_carried
from holdfast.core.intake.newcomers import Newcomers, longest_waiting
from holdfast.core.types import MILLISECOND, nanos

STILL: Final = 250 * MILLISECOND  # whoever moved within it is not given up for others
PLACES_MIN: Final = 8  # however few descriptors there are

_CLOSE: Final = b"content-length: 0\r\nconnection: close\r\n\r\n"
_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\n" + _CLOSE
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\n" + _CLOSE

Waiting = dict["AdminConnection", int]  # since when; the oldest first


class AdminConnections:
    """All connections of the admin port, by what they wait for, with their limits.

    Its owner must call ``sweep`` about once a second.
    """

    def __init__(
        self,
        config: AdminConnectionConfig,
        *,
        descriptors: int = 0,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.config = config
        self.now_ns = now_ns
        carried = connections_carried(descriptors) // 2 if descriptors else config.connections_max
        self._most = min(config.connections_max, max(PLACES_MIN, carried))
        self.newcomers: Newcomers[AdminConnection] = Newcomers(config.newcomers_max, 0, STILL)
        self.connections: set[AdminConnection] = set()
        self.silent: Waiting = {}  # no byte of a first request came
        self.heads: Waiting = {}
        self.bodies: Waiting = {}  # since the last byte
        self.slow: Waiting = {}
        self.closed = dict.fromkeys(("evicted", "head", "head_size", "body", "slow_reader"), 0)

    def has_place(self, unfinished: int) -> bool:
        """Whether another connection may be accepted within the limit.

        ``unfinished``: accepted ones whose TLS handshake is not complete; they count, too.
        """
        return len(self.connections) + unfinished < self._most

    def make_place(self) -> bool:
        """Close one connection without progress for 250 ms, so that another fits; False: none.

        First the oldest without a request, then the one that waits longest in a head, a body or an
        unread answer.
        """
        now = self.now_ns()
        still = self.newcomers.oldest(now)
        if still is None:
            still = longest_waiting((self.heads, self.bodies, self.slow), now, STILL)
        if still is None:
            return False
        still.give_up("evicted")
        return True

    def sweep(self) -> None:
        """Close connections whose head, body or unread answer made no progress for too long.

        To be called about once a second.
        """
        now, config = self.now_ns(), self.config
        for reason, table, limit_s in (
            ("head", self.silent, config.header_s),
            ("head", self.heads, config.header_s),
            ("body", self.bodies, config.body_stall_s),
        ):
            for late in _older(table, now - nanos(limit_s)):
                late.give_up(reason)
        for late in _older(self.slow, now - nanos(config.slow_reader_s)):
            if late.reads_on():
                del self.slow[late]
                self.slow[late] = now
            else:
                late.give_up("slow_reader")

    def counters(self) -> dict[str, float]:
        """Prometheus counters of connections closed here, by reason."""
        return {
            f'admin_connections_closed_total{{reason="{reason}"}}': float(count)
            for reason, count in self.closed.items()
        }

    def came(self, connection: "AdminConnection", address: str) -> None:
        """Register a new connection; if too many sent no request yet, close the oldest of them."""
        now = self.now_ns()
        self.connections.add(connection)
        self.silent[connection] = now
        crowded = self.newcomers.came(connection, address, now)
        if crowded is not None:
            crowded.give_up("evicted")

    def left(self, connection: "AdminConnection") -> None:
        """Remove a connection from all tables; called when it is closed or given up."""
        self.connections.discard(connection)
        self.newcomers.left(connection)
        for table in (self.silent, self.heads, self.bodies, self.slow):
            table.pop(connection, None)


class AdminConnection(HttpToolsProtocol):
    """One connection of the admin port: uvicorn's protocol that records what it waits for."""

    def __init__(self, bounds: AdminConnections, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds
        self._head_bytes = 0
        self._in_head = False
        self._in_body = False
        self._unsent = 0
        self._certified: frozenset[str] = frozenset()  # names of the caller's certificate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read the names of the client's certificate and register the connection (asyncio)."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._certified = names_of(transport.get_extra_info("peercert"))
        self._bounds.came(self, self.client[0] if self.client else "")

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the tables (asyncio callback)."""
        self._bounds.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and note since when a head or body is incomplete (asyncio callback).

        A head above the size limit is answered 431 and closed.
        """
        bounds = self._bounds
        if bounds.silent.pop(self, None) is not None:
            self._in_head = True  # until the parser says otherwise
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            bounds.heads.setdefault(self, bounds.now_ns())
            if self._head_bytes > bounds.config.header_bytes_max:
                self.give_up("head_size", _TOO_LARGE)
        elif self._in_body:
            bounds.bodies.pop(self, None)
            bounds.bodies[self] = bounds.now_ns()

    def on_message_begin(self) -> None:
        """Note that a head has begun (parser callback); pass on the certificate's names."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        if self._certified:
            self.scope[CERTIFIED] = self._certified  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """Note that the head is complete and a body may follow (parser callback)."""
        bounds = self._bounds
        self._in_head = False
        self._in_body = True
        bounds.heads.pop(self, None)
        bounds.newcomers.left(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request's body is complete (parser callback)."""
        self._in_body = False
        self._bounds.bodies.pop(self, None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Note that the client does not read its answer, and since when (asyncio callback)."""
        self._unsent = self.transport.get_write_buffer_size()
        self._bounds.slow[self] = self._bounds.now_ns()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client reads again (asyncio callback)."""
        self._bounds.slow.pop(self, None)
        super().resume_writing()

    def reads_on(self) -> bool:
        """Whether the write buffer shrank since the last call, or since writing was paused.

        Stores its present size for the next call.
        """
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        return self._unsent < before

    def give_up(self, reason: str, answer: bytes = _TIMEOUT) -> None:
        """Close the connection and count the reason.

        Sends ``answer`` (by default 408) first, unless a response is under way: then it is aborted.
        """
        bounds = self._bounds
        bounds.closed[reason] += 1
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        answered = cycle is not None and not cycle.response_complete
        bounds.left(self)
        if not answered and not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
        else:
            self.transport.abort()


def _older(table: Waiting, due: int) -> list[AdminConnection]:
    late = []
    for connection, since in table.items():
        if since > due:
            break
        late.append(connection)
    return late


__all__ = ["AdminConnection", "AdminConnections"]
