"""The HTTP/1.1 server for clients: one exchange at a time per connection, every resource bounded.

A read is parsed first and acted on afterwards: the app is called when the parser has returned, from
one loop, ``_pump``, that is never entered twice. So answers come in order by construction: one
exchange at a time is under way, pipelined requests wait behind it.

Input is read even while an answer is made, since that is the only way to notice that the client
left. Such input is kept unparsed up to a bound; then reading stops, and the client's leaving is
noticed only when something is written to it. No request is begun while the client does not read the
previous answers.

An end of input counts as the client's leaving, a half-closed connection included, as in nginx and
Envoy: a client that wants the answer keeps the connection open.

After an early answer the connection is not closed at once: bytes still on their way would make the
kernel send a reset, which destroys the answer in the client's buffer. The server ends its side and
discards what arrives, for a while.

Time limits: connections stand in insertion-ordered tables, one per limit, that ``sweep`` reads from
the old end. Rejected: a timer per connection. Each request would pay for what almost never fires.
"""

import asyncio
from collections.abc import Callable
from time import monotonic_ns, time
from typing import Final, cast

from holdfast.config.gateway import HttpConfig
from holdfast.core.types import nanos
from holdfast.gateway.http import syntax
from holdfast.gateway.http.exchange import ANNOUNCED, ASKED, NEW, ClientExchange
from holdfast.gateway.http.hot_path import FAST, HotPath
from holdfast.gateway.http.interfaces import App
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.syntax import Refusal

HELD_BYTES_MAX: Final = 65_536  # unparsed bytes; one read may exceed it, then reading stops
LINGER_S: Final = 5.0  # nginx waits as long between two reads of a client that was turned away
LINGERING_MAX: Final = 256  # connections beyond the limit that may hear a 503 to its end
DRAIN_FIRST_S: Final = 1.0  # a connection made just before a drain may still bring one request

Waiting = dict["ClientConnection", int]  # since when; oldest first


class ClientConnection(asyncio.Protocol):
    """One client connection: parses requests and runs one exchange at a time."""

    __slots__ = (
        "_current",
        "_deaf",
        "_held",
        "_intake",
        "_left",
        "_paused",
        "_pumping",
        "_unsent",
        "_where",
        "served",
        "server",
        "transport",
        "turn",
    )

    transport: asyncio.Transport

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.turn = server.turn
        self.served = 0
        self._intake = server.hot_path.request_parser(self, server.config, server.cors)
        self._current: ClientExchange | None = None  # the only one that the app may know
        self._held = bytearray()  # came while it was under way; not parsed yet
        self._where: Waiting | None = None  # the table of the server in which we stand
        self._unsent = 0  # when progress was last looked at
        self._paused = False  # the client does not read
        self._pumping = False
        self._deaf = False  # input is discarded
        self._left = False  # nothing more is begun

    # --- what the event loop says ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection, or refuse it with 503 when too many are open."""
        server = self.server
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=server.config.write_buffer_bytes)
        full = len(server.connections) >= server.config.connections_max
        server.connections.add(self)
        if full:
            self.refuse(syntax.CONNECTIONS, linger=len(server.lingering) < LINGERING_MAX)
        else:
            self._wait(server.idle)

    def data_received(self, data: bytes) -> None:
        """Give received bytes to ``LoopTurn``, which calls ``take`` after all reads of a turn."""
        self.turn.received(self, data)

    def take(self, data: bytes) -> None:
        """Parse bytes and start the next exchange; keep them unparsed while one is under way."""
        if self._deaf:
            return
        current = self._current
        if self._paused or (current is not None and current.complete):
            self._held += data
            if len(self._held) > HELD_BYTES_MAX:
                self.transport.pause_reading()
            return
        self._feed(data)
        self._pump()

    def eof_received(self) -> None:
        """Treat the end of input as the client's leaving: end the exchange and close."""
        self.turn.catch_up()
        if self._current is not None:
            self.drop(gone=True)
        else:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (not our wording)
        """Remove a closed connection from all tables and notify the listener of its exchange."""
        self.turn.catch_up()
        self._deaf = self._left = True
        self._wait(None)
        self.server.slow.pop(self, None)
        self.server.connections.discard(self)
        self._forget()
        self._intake.close()

    def break_off(self) -> None:
        """Close the connection at once after an unexpected exception in ``take``."""
        self.transport.abort()

    def pause_writing(self) -> None:
        """Make the listener of the exchange stop producing: the write buffer is full."""
        if self._left:
            return
        self._paused = True
        self._unsent = self.transport.get_write_buffer_size()
        self.server.slow[self] = self.server.now_ns()
        if self._current is not None and self._current.listener is not None:
            self._current.listener.on_client_slow()

    def resume_writing(self) -> None:
        """Let the listener or the next request go on: the write buffer has room again."""
        self._paused = False
        self.server.slow.pop(self, None)
        if self._current is not None and self._current.listener is not None:
            self._current.listener.on_client_ready()
        self._pump()  # the next request, or the rest of a body that was held meanwhile

    # --- what follows from it -------------------------------------------------------------------

    def _feed(self, data: bytes | bytearray) -> None:
        self._intake.feed(data)
        if self._intake.failure is not None:
            self._deaf = True

    def _take_held(self) -> bytearray:
        held, self._held = self._held, bytearray()
        if len(held) > HELD_BYTES_MAX:
            self.transport.resume_reading()
        return held

    def _pump(self) -> None:
        """Begin or continue whatever can be; answers given meanwhile come back here and pass."""
        if self._pumping:
            return
        self._pumping = True
        server, intake = self.server, self._intake
        try:
            while not self._left:
                exchange = self._current
                if exchange is None:
                    if intake.arrived and not self._paused:
                        self._current = exchange = intake.arrived.popleft()
                    elif self._rest():
                        continue
                    else:
                        break
                if exchange.stage == NEW and (exchange.complete or intake.failure is None):
                    exchange.stage = ANNOUNCED
                    self._announce(exchange)
                    if exchange.connection is None:  # it was answered
                        continue
                if not exchange.complete:
                    if self._receive(exchange):
                        continue
                    break
                if exchange.stage == ANNOUNCED:
                    exchange.stage = ASKED
                    server.app.on_request(exchange)
                    if exchange.connection is None:
                        continue
                self._wait(None)
                break
        except Exception as error:  # noqa: BLE001  (whatever an app may raise)
            self._on_crash(error)
        finally:
            self._pumping = False

    def _announce(self, exchange: ClientExchange) -> None:
        """Show the head to the app, or answer it ourselves."""
        server = self.server
        if self._where is server.heads:
            self._wait(None)
        if self.served + 1 >= server.config.requests_per_connection_max:
            exchange.closes = True
        if exchange.direct is not None:
            exchange.respond(204, exchange.direct, b"")
            return
        server.app.on_head(exchange)
        if exchange.connection is not None and (
            exchange.size > exchange.body_max or exchange.stated > exchange.body_max
        ):
            self.refuse(syntax.BODY_TOO_LARGE)

    def _receive(self, exchange: ClientExchange) -> bool:
        """See to a body that is not here; False when more must come."""
        if self._intake.failure is not None:
            self.refuse(self._intake.failure)
            return False
        if self._held:
            self._feed(self._take_held())
            return True
        if exchange.expects:
            exchange.expects = False
            self.turn.put(self.transport, syntax.CONTINUE)
        if self._where is not self.server.bodies:
            self._wait(self.server.bodies)
        return False

    def _rest(self) -> bool:
        """Nothing is under way or ready; True when there was more to parse."""
        server = self.server
        if self._paused:
            self._wait(None)  # neither idle nor waiting for a request: sending
        elif self._held and not self._deaf:
            self._feed(self._take_held())
            return True
        elif self._intake.failure is not None:
            self.refuse(self._intake.failure)
        elif self._intake.head_bytes:
            if self._where is not server.heads:
                self._wait(server.heads)
        elif server.draining and self.served:
            self.leave()
        else:
            self._wait(server.idle)
        return False

    def _on_crash(self, error: Exception) -> None:
        context = {"message": "an app failed", "exception": error, "protocol": self}
        self.server.loop.call_exception_handler(context)
        if not self._left:
            self.refuse(syntax.APP_ERROR)

    def _wait(self, where: Waiting | None) -> None:
        """Stand in this table of the server from now on, and in no other."""
        if self._where is not None:
            del self._where[self]
        self._where = where
        if where is not None:
            where[self] = self.server.now_ns()

    def _forget(self) -> ClientExchange | None:
        """Part from the exchange under way: its client is gone, or will not get its answer."""
        exchange, self._current = self._current, None
        self._intake.arrived.clear()
        self._held.clear()
        if exchange is not None:
            exchange.connection = None
            listener, exchange.listener = exchange.listener, None
            if listener is not None:
                listener.on_client_gone()
        return exchange

    # --- how it ends ----------------------------------------------------------------------------

    def finish(self, exchange: ClientExchange) -> None:
        """End an exchange whose answer is complete: start the next request, or close."""
        exchange.connection = exchange.listener = self._current = None
        self.served += 1
        if exchange.closes:
            self.leave(linger=not exchange.complete)
        elif not self._pumping:
            self._pump()

    def refuse(self, refusal: Refusal, *, linger: bool = True) -> None:
        """Answer the request that is being received with an error, and close the connection."""
        self.server.counters[refusal.code] += 1
        self._left = True
        exchange = self._forget()
        if exchange is not None and exchange.started:
            self.drop()
            return
        lines = exchange.lines.replace(syntax.KEEP_ALIVE, b"") if exchange is not None else b""
        self.turn.put(
            self.transport, b"%b%b\r\n%b" % (refusal.head, self.server.date + lines, refusal.body)
        )
        self.leave(linger=linger)

    def leave(self, *, linger: bool = False) -> None:
        """Close when all bytes are sent; ``linger``: and when the client has ended its side."""
        self._deaf = self._left = True
        self._forget()
        self.server.slow.pop(self, None)
        self.turn.send(self.transport)
        self._unsent = self.transport.get_write_buffer_size()
        if linger and self.transport.can_write_eof():
            self._wait(self.server.lingering)
            self.transport.resume_reading()
            self.transport.write_eof()
        else:
            self._wait(self.server.closing)
            self.transport.close()

    def drop(self, *, gone: bool = False) -> None:
        """Close at once; ``gone``: notify the listener of the exchange that its client is gone."""
        self._deaf = self._left = True
        if not gone and self._current is not None:
            self._current.listener = None
        self._forget()
        self._wait(None)
        self.server.slow.pop(self, None)
        self.turn.send(self.transport)
        self.transport.abort()

    def check_progress(self, table: Waiting, now_ns: int) -> None:
        """Drop a slow reader.

        Give it more time only if its last answer is complete and shrinking.
        """
        unsent = self.transport.get_write_buffer_size()
        if self._current is None and unsent < self._unsent:
            self._unsent = unsent
            del table[self]
            table[self] = now_ns
            return
        self.server.counters["slow_reader"] += 1
        self.drop(gone=True)


class Server:
    """Holds all client connections of one process; its owner must call ``sweep`` and ``drain``."""

    def __init__(
        self,
        app: App,
        config: HttpConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        turn: LoopTurn | None = None,
        hot_path: HotPath = FAST,
        cors_origins: tuple[str, ...] = (),
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.app = app
        self.config = config
        self.loop = loop
        self.turn = turn or hot_path.loop_turn(loop)
        self.hot_path = hot_path
        self.cors = syntax.Cors(cors_origins)
        self.now_ns = now_ns
        self.draining = False
        self.date = b""  # the header line of all answers of this second; swept before it is used
        self._date_s = 0
        self.counters = dict.fromkeys([*(one.code for one in syntax.REFUSALS), "slow_reader"], 0)
        self.connections: set[ClientConnection] = set()
        # A connection stands in at most one of these ...
        self.idle: Waiting = {}
        self.heads: Waiting = {}
        self.bodies: Waiting = {}
        self.lingering: Waiting = {}  # answered early, the rest of the request is discarded
        self.closing: Waiting = {}  # the last bytes are on their way
        self.slow: Waiting = {}  # ... and in this one too

    @property
    def open(self) -> int:
        """How many client connections are open."""
        return len(self.connections)

    @property
    def busy(self) -> int:
        """How many client connections receive a request, wait for an answer, or still send one."""
        return len(self.connections) - len(self.idle)

    def protocol(self) -> ClientConnection:
        """Make the protocol object of a new connection; the factory for ``loop.create_server``."""
        return ClientConnection(self)

    def reconfigure(self, config: HttpConfig, cors_origins: tuple[str, ...]) -> None:
        """Apply a new config: time limits at once, the other limits to new connections only."""
        self.config = config
        self.cors = syntax.Cors(cors_origins)

    def sweep(self, now_ns: int) -> None:
        """Close or refuse connections beyond a time limit. To be called a few times a second."""
        self.turn.catch_up()  # what has come is not late
        second = int(time())
        if second != self._date_s:
            self._date_s, self.date = second, syntax.date_line(second)
        config = self.config
        # From the last table of a connection's life to the first: nobody moves twice in one sweep.
        for table in (self.slow, self.closing):
            for late in _older(table, now_ns - nanos(config.slow_reader_s)):
                late.check_progress(table, now_ns)
        for late in _older(self.lingering, now_ns - nanos(LINGER_S)):
            late.leave()
        idle_s = DRAIN_FIRST_S if self.draining else config.keepalive_s
        for late in _older(self.idle, now_ns - nanos(idle_s)):
            late.leave()
        for late in _older(self.bodies, now_ns - nanos(config.body_s)):
            late.refuse(syntax.BODY_TIMEOUT)
        for late in _older(self.heads, now_ns - nanos(config.header_s)):
            late.refuse(syntax.HEAD_TIMEOUT)

    def drain(self) -> None:
        """Begin to close all connections: idle ones now, the others after their next answer.

        A connection without a first request gets one more second: its client could not know that
        the server is draining.
        """
        self.turn.catch_up()
        self.draining = True
        for connection in list(self.idle):
            if connection.served:
                connection.leave()

    def close(self) -> None:
        """Close all remaining connections at once."""
        for connection in list(self.connections):
            connection.drop(gone=True)


def _older(table: Waiting, due_ns: int) -> list[ClientConnection]:
    late = []
    for connection, since_ns in table.items():
        if since_ns > due_ns:
            break
        late.append(connection)
    return late


__all__ = ["ClientConnection", "Server"]
