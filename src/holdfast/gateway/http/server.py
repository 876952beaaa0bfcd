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

A connection costs its client little, so those that only wait must not keep others out. Where there
is no place for a new one, the oldest that has brought no request yet is closed for it, or one that
stands still in the middle of something (``Server.make_place``). Bytes are bounded likewise:
incomplete bodies have a budget together (``core.intake.byte_budget``), and one that stands still
goes for one that comes.

Time limits: connections stand in insertion-ordered tables, one per limit, that ``sweep`` reads from
the old end. Rejected: a timer per connection. Each request would pay for what almost never fires.
"""

import asyncio
from collections.abc import Callable
from time import monotonic_ns, time
from typing import Final, cast

from holdfast.config.gateway import HttpConfig
from holdfast.core.intake.byte_budget import (
    BudgetShortage,
    ByteAccount,
    ByteBudget,
    ByteBudgetConfig,
)
from holdfast.core.intake.descriptors import OwnResource, connections_carried, is_scarce
from holdfast.core.intake.newcomers import AddressCounts, Newcomers, longest_waiting
from holdfast.core.intake.shortages import Shortages
from holdfast.core.types import SECOND, nanos
from holdfast.gateway.http import syntax
from holdfast.gateway.http.exchange import (
    ANNOUNCED,
    ASKED,
    NEW,
    ClientExchange,
)
from holdfast.gateway.http.hot_path import FAST, HotPath
from holdfast.gateway.http.interfaces import App
from holdfast.gateway.http.loop_turn import LoopTurn
from holdfast.gateway.http.syntax import Refusal

HELD_BYTES_MAX: Final = 65_536  # unparsed bytes; one read may exceed it, then reading stops
LINGER_S: Final = 5.0  # nginx waits as long between two reads of a client that was turned away
LINGERING_MAX: Final = 256  # connections beyond the limit that may hear a 503 to its end
STILL: Final = SECOND  # whoever moved within the last second is not given up for others
DRAIN_FIRST_S: Final = 1.0  # a connection made just before a drain may still bring one request

_BUDGET_REFUSALS: Final = {
    BudgetShortage.TENANT: syntax.TENANT_SHARE,
    BudgetShortage.PROCESS: syntax.MEMORY,
}

Waiting = dict["ClientConnection", int]  # since when; oldest first


class ClientConnection(asyncio.Protocol):
    """One client connection: parses requests and runs one exchange at a time; others wait."""

    __slots__ = (
        "_account",
        "_address",
        "_buffered",
        "_current",
        "_deaf",
        "_held",
        "_intake",
        "_left",
        "_new",
        "_paused",
        "_pumping",
        "_received",
        "_unsent",
        "_where",
        "debtor",
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
        self._address = ""  # of the socket's other end
        self._current: ClientExchange | None = None  # the only one that the app may know
        self._held = bytearray()  # came while it was under way; not parsed yet
        self._where: Waiting | None = None  # the table of the server in which we stand
        self._unsent = 0  # when progress was last looked at
        self._received = 0  # bytes of an incomplete body that the budget has counted
        self._buffered = 0  # bytes of answers that are not read, as the budget has counted them
        self._account: ByteAccount | None = None  # of the last answer that is complete
        self.debtor: ByteAccount | None = None  # the account that counts what is not read
        self._new = True  # no request head was complete yet
        self._paused = False  # the client does not read
        self._pumping = False
        self._deaf = False  # input is discarded
        self._left = False  # nothing more is begun

    # --- what the event loop says ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection, waiting for its first request.

        With all places taken, one that stands still is closed for it; else it gets 503, and 429 if
        its address has too many.
        """
        server = self.server
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=server.config.write_buffer_bytes)
        full = len(server.connections) >= server.connections_max and not server.make_place()
        server.connections.add(self)
        peer = self.transport.get_extra_info("peername")
        self._address = address = peer[0] if isinstance(peer, tuple) else ""
        of_address = server.addresses.came(address)
        if full:
            if server.scarce:
                server.shortages.saw(OwnResource.DESCRIPTORS)
            self.refuse(syntax.CONNECTIONS, linger=server.may_linger)
            return
        if 0 < server.config.connections_per_address_max < of_address:
            self.refuse(syntax.ADDRESS, linger=server.may_linger)
            return
        self._wait(server.idle)
        crowded = server.newcomers.came(self, address, server.now_ns())
        if crowded is not None:
            server.evict(crowded)

    def data_received(self, data: bytes) -> None:
        """Hand received bytes to ``LoopTurn``, which calls ``take`` after all reads of a turn."""
        self.turn.received(self, data)

    def take(self, data: bytes) -> None:
        """Parse bytes and call the app for a request that begins or is complete.

        While an exchange is under way they are kept unparsed; beyond 64 KiB reading stops.
        """
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
        """Treat the end of input as the client's leaving: a request under way is not answered.

        Its listener is told; the connection is closed.
        """
        self.turn.catch_up()
        if self._current is not None:
            self.drop(gone=True)
        else:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (not our wording)
        """Remove a closed connection from all tables; tell the listener of its exchange, if any."""
        self.turn.catch_up()
        self._deaf = self._left = True
        self._wait(None)
        server = self.server
        server.slow.pop(self, None)
        server.connections.discard(self)
        server.newcomers.left(self)
        server.addresses.left(self._address)
        self._count_unread(0)
        self._forget()
        self._intake.close()

    def break_off(self) -> None:
        """Abort the connection, without an answer, after ``take`` raised.

        Neither logs nor counts: the caller has reported the exception. ``connection_lost`` then
        ends the exchange under way.
        """
        self.transport.abort()

    def pause_writing(self) -> None:
        """Tell the listener to stop producing: the client does not read, its buffer is full.

        The unread bytes are counted; if all unread answers exceed their budget, the slowest readers
        are dropped.
        """
        if self._left:
            return
        server = self.server
        self._paused = True
        self._unsent = self.transport.get_write_buffer_size()
        server.slow[self] = server.now_ns()
        self._count_unread(self._unsent)
        if self._current is not None and self._current.listener is not None:
            self._current.listener.on_client_slow()
        server.drop_slow_readers()

    def resume_writing(self) -> None:
        """Tell the listener to go on, or begin the next request: the client reads again."""
        self._paused = False
        self.server.slow.pop(self, None)
        self._count_unread(0)
        if self._current is not None and self._current.listener is not None:
            self._current.listener.on_client_ready()
        self._pump()  # the next request, or the rest of a body that was held meanwhile

    # --- what follows from it -------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        self._intake.feed(data)
        if self._intake.failure is not None:
            self._deaf = True

    def _take_held(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
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
                    if self._received:
                        self._count_received(0)
                    if exchange.holder is None and exchange.account is not None:
                        exchange.holder = exchange.account
                        exchange.account.begin(exchange.size)
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
        if self._new:
            self._new = False
            server.newcomers.left(self)
        if self._where is server.heads:
            self._wait(None)
        if self.served + 1 >= server.config.requests_per_connection_max:
            exchange.closes = True
        if exchange.direct is not None:
            exchange.respond(204, exchange.direct, b"")
            return
        server.app.on_head(exchange)
        if exchange.connection is None:
            return
        if exchange.size > exchange.body_max or exchange.stated > exchange.body_max:
            self.refuse(syntax.BODY_TOO_LARGE)
            return
        if exchange.sink is not None:
            return  # nothing of its body is held here
        if exchange.complete:
            account = exchange.account
            if account is not None:
                shortage = account.admit(exchange.size)
                if shortage is None:
                    exchange.holder = account
                else:
                    self.refuse(_BUDGET_REFUSALS[shortage])
            return
        refusal = self._over_budget(exchange, exchange.stated)
        if refusal is None:
            fits = server.budget.may_receive(exchange.stated)
            refusal = None if fits or server.make_room(self, exchange.stated) else syntax.MEMORY
        if refusal is not None:
            self.refuse(refusal)

    def _over_budget(self, exchange: ClientExchange, size: int) -> Refusal | None:
        """Why a request with a body of this size has no room now, as an answer."""
        shortage = exchange.account.shortage(size) if exchange.account is not None else None
        return None if shortage is None else _BUDGET_REFUSALS[shortage]

    def _count_received(self, size: int) -> None:
        """Count so many bytes of an incomplete body, in place of what was counted of it before."""
        self.server.budget.received += size - self._received
        self._received = size

    def _count_unread(self, size: int) -> None:
        """Count so many bytes of answers that are not read, in place of what was counted before."""
        more = size - self._buffered
        if not self._buffered:
            current = self._current
            self.debtor = self._account if current is None else current.account
        self._buffered = size
        if self.debtor is None:
            self.server.budget.held += more
        else:
            self.debtor.keep(more)

    def _receive(self, exchange: ClientExchange) -> bool:
        """See to a body that is not here; False when more must come."""
        server = self.server
        if self._intake.failure is not None:
            self.refuse(self._intake.failure)
            return False
        if self._held:
            self._feed(self._take_held())
            return True
        if exchange.expects:
            exchange.expects = False
            self.turn.put(self.transport, syntax.CONTINUE)
        if exchange.sink is not None:
            self._wait(None)  # whoever takes it has limits of time of its own
            exchange.sink.on_body(self._intake.take_body())
            return False
        if self._where is not server.bodies:
            self._wait(server.bodies)
        server.stalls.pop(self, None)
        server.stalls[self] = server.now_ns()
        if exchange.size != self._received:
            self._count_received(exchange.size)
            refusal = self._over_budget(exchange, exchange.size)
            if refusal is None and server.budget.receives_too_much and not server.make_room(self):
                refusal = syntax.MEMORY
            if refusal is not None:
                self.refuse(refusal)
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
            if self._where is self.server.bodies:
                self.server.stalls.pop(self, None)
        self._where = where
        if where is not None:
            where[self] = self.server.now_ns()

    def _forget(self) -> ClientExchange | None:
        """Part from the exchange under way: its client is gone, or will not get its answer."""
        exchange, self._current = self._current, None
        self._intake.arrived.clear()
        self._held.clear()
        if self._received:
            self._count_received(0)
        if exchange is not None:
            exchange.connection = None
            if exchange.holder is not None:
                exchange.holder.end(exchange.size)
            listener, exchange.listener = exchange.listener, None
            if listener is not None:
                listener.on_client_gone()
        return exchange

    # --- how it ends ----------------------------------------------------------------------------

    def finish(self, exchange: ClientExchange) -> None:
        """End an exchange whose response is complete: start the next request, or close.

        Called by the exchange; its listener hears nothing more.
        """
        exchange.connection = exchange.listener = self._current = None
        self._account = exchange.account
        if exchange.holder is not None:
            exchange.holder.end(exchange.size)
        self.served += 1
        if exchange.closes:
            self.leave(linger=not exchange.complete)
        elif not self._pumping:
            self._pump()

    def refuse(self, refusal: Refusal, *, linger: bool = True) -> None:
        """Answer the request being received with a fixed error, count it, and close the connection.

        The listener is told that its client is gone. If an answer was begun, the connection is
        dropped instead. ``linger``: wait for the client to end its side, so that it can read the
        answer.
        """
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
        """Close once all bytes are sent; further input is discarded.

        An exchange under way ends as if its client had gone. ``linger``: end this side only, and
        wait up to 5 s for the client to end its own.
        """
        self._deaf = self._left = True
        self._forget()
        self.server.slow.pop(self, None)
        self.turn.send(self.transport)
        self._unsent = self.transport.get_write_buffer_size()
        self._count_unread(self._unsent)
        if linger and self.transport.can_write_eof():
            self._wait(self.server.lingering)
            self.transport.resume_reading()
            self.transport.write_eof()
        else:
            self._wait(self.server.closing)
            self.transport.close()

    def drop(self, *, gone: bool = False) -> None:
        """Abort the connection now; bytes not yet in the socket are lost.

        ``gone``: tell the listener of the exchange that its client is gone; else it hears nothing.
        """
        self._deaf = self._left = True
        if not gone and self._current is not None:
            self._current.listener = None
        self._forget()
        self._wait(None)
        self.server.slow.pop(self, None)
        self.turn.send(self.transport)
        self.transport.abort()
        self._count_unread(0)

    def check_progress(self, table: Waiting, now_ns: int) -> None:
        """Drop and count a client that has not read for too long; called by ``sweep``.

        It gets more time only if no exchange is under way and its unsent bytes have become fewer.
        ``table``: the server's table in which it stands.
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
    """Holds all client connections of one process, with their limits of number, bytes and time.

    It opens no socket: its owner passes ``protocol`` to the listener, and must call ``sweep`` often
    and ``drain`` and ``close`` at the end.
    """

    def __init__(
        self,
        app: App,
        config: HttpConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        turn: LoopTurn | None = None,
        hot_path: HotPath = FAST,
        cors_origins: tuple[str, ...] = (),
        own_hosts: tuple[str, ...] | None = None,
        now_ns: Callable[[], int] = monotonic_ns,
        budget: ByteBudget | None = None,
        shortages: Shortages | None = None,
        descriptors: int = 0,
    ) -> None:
        self.app = app
        self.budget = budget or ByteBudget(ByteBudgetConfig())
        self.shortages = shortages or Shortages()
        self._descriptors = descriptors  # the limit on open files; 0: not known
        self.newcomers: Newcomers[ClientConnection] = Newcomers(0, 0, STILL)
        self.addresses = AddressCounts()
        self._follow(config)
        self.loop = loop
        self.turn = turn or hot_path.loop_turn(loop)
        self.hot_path = hot_path
        self.cors = syntax.Cors(cors_origins, own_hosts)
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
        self.stalls: Waiting = {}  # those of the bodies, by their last byte
        self.lingering: Waiting = {}  # answered early, the rest of the request is discarded
        self.closing: Waiting = {}  # the last bytes are on their way
        self.slow: Waiting = {}  # ... and in this one too

    @property
    def open(self) -> int:
        """How many client connections are open, idle ones included."""
        return len(self.connections)

    @property
    def may_linger(self) -> bool:
        """Whether a refused connection may still wait for its client to read the refusal.

        False when too many do so already: it is then closed at once.
        """
        return len(self.lingering) < self._lingering_max

    def has_place(self, unfinished: int) -> bool:
        """Whether to accept another connection, if only to tell it that all places are taken.

        The bound is a little above ``connections_max``. ``unfinished``: accepted connections whose
        TLS handshake is not complete.
        """
        there = len(self.connections) + unfinished
        return there < self.connections_max + max(4, self._lingering_max)

    @property
    def busy(self) -> int:
        """How many connections are not idle: receiving, answering, sending, or being closed."""
        return len(self.connections) - len(self.idle)

    def protocol(self) -> ClientConnection:
        """Make the protocol object of a new connection; the factory for ``loop.create_server``."""
        return ClientConnection(self)

    def reconfigure(
        self,
        config: HttpConfig,
        cors_origins: tuple[str, ...],
        own_hosts: tuple[str, ...] | None = None,
    ) -> None:
        """Apply a new config and what pages may do: time limits, connections at once, CORS.

        Limits on heads and bodies, and CORS, apply to new connections only; none is closed.
        """
        self._follow(config)
        self.cors = syntax.Cors(cors_origins, own_hosts)

    def _follow(self, config: HttpConfig) -> None:
        self.config = config
        wanted = config.connections_max
        carried = connections_carried(self._descriptors) if self._descriptors else wanted
        self.scarce = bool(self._descriptors) and is_scarce(self._descriptors, wanted)
        self.connections_max = min(wanted, carried)
        self._lingering_max = min(LINGERING_MAX, self.connections_max // 8)
        most, of_address = config.newcomers_max, config.newcomers_per_address_max
        self.newcomers.bound(most, of_address, STILL)

    # --- who goes for whom ----------------------------------------------------------------------

    def make_place(self) -> bool:
        """Close one connection that stood still for a second, so that a new one has its place.

        First one without a request yet, then an incomplete head or body, then a client that does
        not read, then an idle one. Return False if there is none.
        """
        now = self.now_ns()
        still = self.newcomers.oldest(now)
        if still is None:
            tables = (self.heads, self.stalls, self.slow, self.idle)
            still = longest_waiting(tables, now, STILL)
        if still is None:
            return False
        self.evict(still)
        return True

    def evict(self, connection: ClientConnection) -> None:
        """Close and count a connection to make room for others.

        It gets a 503; one that does not read, or whose answer was begun, is aborted.
        """
        self.newcomers.left(connection)
        if connection in self.slow:
            self.counters[syntax.EVICTED.code] += 1
            connection.drop(gone=True)
        else:
            connection.refuse(syntax.EVICTED, linger=False)

    def make_room(self, receiver: ClientConnection, more: int = 0) -> bool:
        """Refuse stalled, incomplete bodies with 503 until ``more`` bytes fit.

        Return whether they do. The longest stalled go first; ``receiver``, for whom it is done, is
        spared.
        """
        while not self.budget.may_receive(more):
            still = longest_waiting((self.stalls,), self.now_ns(), STILL)
            if still is None or still is receiver:
                return False
            still.refuse(syntax.MEMORY, linger=False)
        return True

    def drop_slow_readers(self) -> None:
        """Drop clients that do not read, the longest waiting first, until the byte budget is kept.

        First those of tenants above their share, then any. Those that moved within the last second
        stay, so that it may not be enough.
        """
        for account in self.budget.debtors():
            while account.holds_too_much and self._drop_slowest(account):
                pass
        while self.budget.holds_too_much and self._drop_slowest(None):
            pass

    def _drop_slowest(self, account: ByteAccount | None) -> bool:
        """Drop the client that has not read for longest, of one account or any; False: none."""
        tables: tuple[Waiting, ...] = (self.slow, self.closing)
        if account is not None:
            tables = tuple(
                {each: since for each, since in table.items() if each.debtor is account}
                for table in tables
            )
        still = longest_waiting(tables, self.now_ns(), STILL)
        if still is None:
            return False
        self.counters["slow_reader"] += 1
        still.drop(gone=True)
        return True

    # --- time -----------------------------------------------------------------------------------

    def sweep(self, now_ns: int) -> None:
        """Close or refuse connections beyond a time limit; call a few times a second.

        Limits: idle, head, body, stalled body, slow reader, lingering. Also renews the Date header.
        """
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
        for late in _older(self.stalls, now_ns - nanos(config.body_stall_s)):
            late.refuse(syntax.BODY_TIMEOUT)
        self.drop_slow_readers()
        for late in _older(self.heads, now_ns - nanos(config.header_s)):
            late.refuse(syntax.HEAD_TIMEOUT)

    def drain(self) -> None:
        """Begin to close all connections: idle ones that were served, now; busy ones when answered.

        One that brought no request yet is closed by ``sweep`` once it has been open for a second,
        so that one made just before the drain may still be answered. Returns at once.
        """
        self.turn.catch_up()
        self.draining = True
        for connection in list(self.idle):
            if connection.served:
                connection.leave()

    def close(self) -> None:
        """Abort all remaining connections at once.

        Listeners are told that their clients are gone.
        """
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
