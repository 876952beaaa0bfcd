"""Accepts connections of gateways on a unix socket and exchanges frames with them.

    gateway ─ Hello ─► hub ─ Welcome, ConfigFrame, ViewFrame, LeaseFrame ─► gateway
    then either side speaks whenever it has something to say

Before that the gateway is authenticated (``peer_checks``). A peer that is not gets no frame of
these: its connection is closed. It has 5 s, a kilobyte a frame, and 511 others beside it; beyond
them the oldest is given up.

Nothing here waits for a gateway. Frames that it does not read are buffered up to a bound; beyond
that its connection is dropped. When it connects again it gets the present state in a few frames
instead of the past in many. Rejected: queues with a policy of what to drop: every frame but the
last view would need its own reason.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from holdfast.acceptor import Acceptor
from holdfast.config.addresses import Address
from holdfast.control.gateways.peer_checks import PeerCheck, PeerRefusedError, SameUserCheck
from holdfast.frames import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    Bye,
    EpochFrame,
    ExplainAnswer,
    ExplainAsk,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    MetricsAnswer,
    SeenFrame,
    StatsFrame,
    ToGateway,
    TraceRow,
    TracesFrame,
    encode,
    tag_of,
)
from holdfast.frames.authentication import AUTHENTICATED_S, UNPROVEN_BYTES_MAX

UNSENT_BYTES_MAX: Final = 32 << 20  # two frames of the largest kind: it has stopped reading
CONNECTIONS_MAX: Final = 1_024  # sixteen for each of the most gateways one file can ask for
SERIES_MAX: Final = 16_384  # counters and gauges of one gateway; the rest is not taken in
TRACES_MAX: Final = 4_096  # that nobody took yet; further ones are lost
SILENT_S: Final = 5.0  # a gateway tells once a second; one that does not serves nobody
UNPROVEN_MAX: Final = 512  # all gateways of seven machines come at once when control returns
_REFUSAL_LOGGED_S: Final = 10.0  # so often at most: strangers must not fill the log
_ID_MAX: Final = 64  # characters of a gateway's name

_log = structlog.get_logger("holdfast.control.gateways.hub")


class HubListener(Protocol):
    """Receives what gateways report; ``Control`` implements it."""

    def greeting(self, gateway: "Gateway") -> list[ToGateway]:
        """The frames to send, in this order, to a gateway or standby that has just said Hello."""

    def on_seen(self, gateway: "Gateway", frame: SeenFrame) -> None:
        """Handle a gateway's report on replicas (attempts, failures, breakers)."""

    def on_stats(self, gateway: "Gateway", frame: StatsFrame) -> None:
        """Handle a gateway's stats; the hub has stored counters, gauges and readiness before."""

    def on_gone(self, gateway: "Gateway") -> None:
        """Release what a gateway held; called once, when its connection has ended.

        Only for gateways that had said Hello, after the hub has removed them.
        """


class Gateway(asyncio.Protocol):
    """The hub's side of one connection of a gateway process, with what it last reported."""

    def __init__(self, hub: "Hub", check: PeerCheck | None = None) -> None:
        self._hub = hub
        self._check = check or SameUserCheck()
        self._reader = FrameReader(UNPROVEN_BYTES_MAX)
        self._deadline: asyncio.TimerHandle | None = None  # until it said Hello
        self._transport: Any = None  # uvloop's are no asyncio.Transport
        self.id = ""  # its place; empty until it said Hello
        self.name = ""  # as no other that is connected
        self.pid = 0
        self.since = self.heard_at = time.monotonic_ns()
        self.epoch = 0  # of the config it runs
        self.refusal = ""  # why it runs another one than it was offered
        self.ready = False
        self.reason = "has not said anything yet"
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, float] = {}
        self.stats_heard = 0
        self.reports_dropped = 0  # by itself, because its ring was full

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection with the hub (asyncio callback)."""
        self._transport = transport
        self._hub.take_in(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(AUTHENTICATED_S, self.refuse, "it does not say who it is")
        try:
            self._check.connected(transport)
        except PeerRefusedError as error:
            self.refuse(str(error))

    def data_received(self, data: bytes) -> None:
        """Decode frames and pass them to the hub; drop the connection if they are invalid."""
        self.heard_at = time.monotonic_ns()
        try:
            self._reader.add(data)
            while self._transport is not None and (frame := self._reader.take()) is not None:
                self._hear(frame)
        except FrameError as error:
            if self.id:
                self.drop(str(error))
            else:
                self.refuse("it does not speak as a gateway does")
            return
        if self._reader.skipped and not self.id:
            self.refuse("it does not speak as a gateway does")

    def _hear(self, frame: Frame) -> None:
        """Let the peer prove itself and say Hello; then all it says is the hub's."""
        if self.id:
            self._hub.hear(self, frame)
            return
        try:
            if not self._check.proven:
                answer = self._check.hear(frame)
                if answer is not None:
                    self._transport.write(encode(answer))
            elif isinstance(frame, Hello):
                self._check.permit(frame)
                self._reader.bytes_max = FRAME_BYTES_MAX
                self._hub.greet(self, frame)
            else:
                self.refuse(f"a frame {tag_of(frame)!r} out of place")
        except PeerRefusedError as error:
            self.refuse(str(error))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Deregister the connection from the hub (asyncio callback)."""
        self._transport = None
        self.end_deadline()
        self._hub.let_go(self)

    def end_deadline(self) -> None:
        """Let the connection stay: its peer said who it is, or it is over."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def refuse(self, reason: str) -> None:
        """Close the connection of a peer that is not authenticated, without a word to it."""
        if self._transport is not None:
            self._hub.note_refusal(reason)
            self._transport.abort()
            self._transport = None

    def send(self, data: bytes) -> None:
        """Queue bytes for the gateway, without waiting.

        Does nothing if it is gone or this control no longer leads; drops the connection above 32
        MiB unsent.
        """
        transport = self._transport
        if transport is None or not self._hub.may_speak():
            return
        transport.write(data)
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.drop("it does not read")

    def drop(self, reason: str) -> None:
        """Abort the connection after a fault and log the reason; a live gateway connects again."""
        if self._transport is not None:
            _log.warning("gateway dropped", gateway=self.name, pid=self.pid, reason=reason)
            self._transport.abort()
            self._transport = None

    def dismiss(self, reason: str) -> None:
        """Close the connection on purpose, after a ``Bye`` frame that says why; not logged."""
        if self._transport is not None:
            self._transport.write(encode(Bye(reason)))
            self._transport.close()
            self._transport = None

    def take_stats(self, frame: StatsFrame) -> None:
        """Store the gateway's counters, gauges and readiness, up to 16,384 series each.

        A frame without counters leaves the earlier ones.
        """
        if frame.counters:
            self.counters = dict(islice(frame.counters.items(), SERIES_MAX))
        self.gauges = dict(islice(frame.gauges.items(), SERIES_MAX))
        self.stats_heard += 1
        self.ready, self.reason = frame.readiness, frame.reason

    @property
    def silent_s(self) -> float:
        """Seconds since any byte came from this gateway."""
        return (time.monotonic_ns() - self.heard_at) / 1e9

    @property
    def serves(self) -> bool:
        """Whether it last said that it is ready, and was heard from in the last 5 s."""
        return self.ready and self.silent_s <= SILENT_S

    @property
    def told_reason(self) -> str:
        """The reason for its readiness as it gave it; for a silent one, that it is silent."""
        silent_s = self.silent_s
        if silent_s > SILENT_S:
            return f"{self.name} has been silent for {silent_s:.0f} s"
        return self.reason

    def snapshot(self) -> dict[str, object]:
        """The gateway's state (id, epoch, readiness, silence) as plain data, for ``/status``."""
        now = time.monotonic_ns()
        return {
            "id": self.id,
            "name": self.name,
            "pid": self.pid,
            "age_s": round((now - self.since) / 1e9, 3),
            "silent_s": round(self.silent_s, 3),
            "epoch": self.epoch,
            "refusal": self.refusal,
            "ready": self.serves,
            "reason": self.told_reason,
            "reports_dropped": self.reports_dropped,
        }


@dataclass(slots=True, frozen=True)
class HubPort:
    """Where gateways of other machines connect, and how they are authenticated there."""

    address: Address
    tls: ssl.SSLContext | None  # None: on loopback only
    check: Callable[[], PeerCheck]  # makes one for each connection


class Hub:
    """Accepts connections of gateways and standby controls, and exchanges frames with them.

    Reports and stats go to its listener; traces, epochs and answers to questions are kept here.
    """

    def __init__(self, listener: HubListener, may_speak: Callable[[], bool] = lambda: True) -> None:
        self._listener = listener
        self.may_speak = may_speak  # asked before each frame: whoever leads no more says nothing
        self._connections: set[Gateway] = set()
        self._unproven: dict[Gateway, None] = {}  # of them; the oldest first
        self._questions: dict[int, Callable[[ExplainAnswer | MetricsAnswer], None]] = {}
        self._ask_ids = count(1)
        self._traces: list[TraceRow] = []
        self.traces_dropped = 0
        self.gateways: dict[str, Gateway] = {}  # by name, in the order they came
        self.observers: set[Gateway] = set()  # standby controls, which hear all and say nothing
        self.turned_away = 0
        self.refused = 0  # connections whose peer was not authenticated
        self._refusal_logged = -_REFUSAL_LOGGED_S

    @contextlib.asynccontextmanager
    async def listening(self, path: Path, port: HubPort | None = None) -> AsyncIterator[None]:
        """Accept gateways on a unix socket at ``path``, and at ``port`` if given, in this block.

        A socket file left by an earlier control is replaced. At the end all gateways are sent a
        Bye.
        """
        _make_way(path)
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Gateway(self), str(path))
        acceptors: list[Acceptor] = []
        try:
            if port is not None:
                acceptors += [
                    Acceptor(
                        listener,
                        lambda: Gateway(self, port.check()),
                        loop,
                        tls=port.tls,
                        handshake_s=AUTHENTICATED_S,
                        handshakes_max=UNPROVEN_MAX,
                    )
                    for listener in await _listeners(port.address)
                ]
            yield
        finally:
            server.close()
            for acceptor in acceptors:
                acceptor.close()
                acceptor.abort()
            for gateway in list(self._connections):
                gateway.dismiss("control stops")

    def fall_silent(self) -> None:
        """Abort all connections at once, without a Bye: another control leads now."""
        for gateway in list(self._connections):
            gateway.drop("this control leads no more")

    def current(self, gateway_id: str) -> Gateway | None:
        """The gateway that holds this place; of two, the one that connected last; None: nobody."""
        found = None
        for gateway in self.gateways.values():
            if gateway.id == gateway_id:
                found = gateway
        return found

    def broadcast(self, frame: ToGateway) -> None:
        """Send a frame to every gateway and standby control, without waiting; encoded once."""
        if self.gateways or self.observers:
            data = encode(frame)
            for gateway in (*self.gateways.values(), *self.observers):
                gateway.send(data)

    async def explain(self, request_id: str, timeout_s: float) -> bytes | None:
        """Ask all gateways for the story of a request, as JSON; None if none has it in time."""
        ask_id = next(self._ask_ids)
        told: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        missing = len(self.gateways)

        def answered(frame: ExplainAnswer | MetricsAnswer) -> None:
            nonlocal missing
            missing -= 1
            if told.done() or not isinstance(frame, ExplainAnswer):
                return
            if frame.found:
                told.set_result(frame.story)
            elif missing <= 0:
                told.set_result(None)

        if not missing:
            return None
        self._questions[ask_id] = answered
        self.broadcast(ExplainAsk(request_id, ask_id))
        try:
            async with asyncio.timeout(timeout_s):
                return await told
        except TimeoutError:
            return None  # who is silent does not know it, for all we can tell
        finally:
            del self._questions[ask_id]

    def take_traces(self) -> list[TraceRow]:
        """Return, and remove, the traced requests that arrived since the last call.

        At most 4,096 are kept; further ones are dropped and counted.
        """
        taken, self._traces = self._traces, []
        return taken

    # --- called by Gateway ---

    def take_in(self, gateway: Gateway) -> None:
        """Count a new connection, or drop it if there are 1,024 (called by ``Gateway``)."""
        if len(self._connections) >= CONNECTIONS_MAX:
            self.turned_away += 1
            gateway.drop("too many connections")
            return
        self._connections.add(gateway)
        self._unproven[gateway] = None
        if len(self._unproven) > UNPROVEN_MAX:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.refuse("too many connections whose peer has not said who it is")

    def note_refusal(self, reason: str) -> None:
        """Count a peer that is not authenticated, and log it unless one just was."""
        self.refused += 1
        now = time.monotonic_ns() / 1e9
        if now - self._refusal_logged >= _REFUSAL_LOGGED_S:
            self._refusal_logged = now
            _log.warning("connection refused", reason=reason, refused=self.refused)

    def let_go(self, gateway: Gateway) -> None:
        """Forget a connection that ended; tell the listener if it was a greeted gateway."""
        self._connections.discard(gateway)
        self._unproven.pop(gateway, None)
        self.observers.discard(gateway)
        if self.gateways.pop(gateway.name, None) is not None:
            _log.info("gateway gone", gateway=gateway.name, pid=gateway.pid)
            self._listener.on_gone(gateway)

    def hear(self, gateway: Gateway, frame: Frame) -> None:
        """Handle one frame from a gateway that said Hello; one out of place drops its connection.

        Called by ``Gateway``.
        """
        if isinstance(frame, SeenFrame):
            gateway.reports_dropped += frame.dropped
            self._listener.on_seen(gateway, frame)
        elif isinstance(frame, StatsFrame):
            gateway.take_stats(frame)
            self._listener.on_stats(gateway, frame)
        elif isinstance(frame, TracesFrame):
            room = TRACES_MAX - len(self._traces)
            self._traces.extend(frame.traces[:room])
            self.traces_dropped += max(0, len(frame.traces) - room)
        elif isinstance(frame, EpochFrame):
            gateway.epoch = frame.epoch
            gateway.refusal = "" if frame.accepted else frame.reason
            if not frame.accepted:
                _log.error("gateway refused the config", gateway=gateway.name, reason=frame.reason)
        elif isinstance(frame, ExplainAnswer | MetricsAnswer):
            question = self._questions.get(frame.ask_id)
            if question is not None:
                question(frame)
        else:
            gateway.drop(f"a frame {tag_of(frame)!r} out of place")

    def greet(self, gateway: Gateway, hello: Hello) -> None:
        """Give a gateway or standby that was authenticated its place, and tell it the state."""
        if not hello.gateway_id or len(hello.gateway_id) > _ID_MAX:
            gateway.drop("a Hello that makes no sense")
            return
        if hello.protocol != PROTOCOL:
            gateway.dismiss(f"control speaks protocol {PROTOCOL}, you {hello.protocol}")
            return
        gateway.id, gateway.pid = hello.gateway_id, hello.pid
        gateway.end_deadline()
        self._unproven.pop(gateway, None)
        if hello.observes:
            gateway.name = hello.gateway_id
            self.observers.add(gateway)
            _log.info("standby came", control=gateway.name)
            for frame in self._listener.greeting(gateway):
                gateway.send(encode(frame))
            return
        gateway.name = _free_name(hello.gateway_id, self.gateways)
        self.gateways[gateway.name] = gateway
        _log.info("gateway came", gateway=gateway.name, pid=gateway.pid)
        for frame in self._listener.greeting(gateway):
            gateway.send(encode(frame))


async def _listeners(address: Address) -> list[socket.socket]:
    """Sockets on every address that a name has, as servers usually listen."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            listeners.append(socket.create_server(where[:2], family=family))
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _make_way(path: Path) -> None:
    """Remove a socket file that an earlier control left behind."""
    path.unlink(missing_ok=True)


def _free_name(gateway_id: str, taken: Iterable[str]) -> str:
    """The gateway's id, with a number behind it while its predecessor still drains."""
    names = set(taken)
    if gateway_id not in names:
        return gateway_id
    return next(name for n in count(2) if (name := f"{gateway_id}+{n}") not in names)


__all__ = ["CONNECTIONS_MAX", "UNSENT_BYTES_MAX", "Gateway", "Hub", "HubListener", "HubPort"]
