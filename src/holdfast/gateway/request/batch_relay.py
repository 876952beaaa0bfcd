"""Passes requests for files and batches on to the batch process, as they come, both ways.

    client ─► exchange ─► RelayedRequest ─► unix socket ─► batch process
                  ◄─────── pieces ◄────────────┘

The gateway decides who asks (the tenant, by its key) and nothing else: it reads no form and no JSON
of these requests. The tenant travels in a header that is written here; what a client sends under
that name is not passed on. Bytes are held in two small buffers, one for each direction; beyond
them, the side that sends is paused. When the batch process is away the answer is 503 with
Retry-After, and no other request notices.

Places are few, and tenants share them: where none is free, the tenant that has most gives one up,
the request that has stood still longest. An upload that comes more slowly than any line is ended.
"""

import asyncio
from typing import Final, cast

import structlog
from httptools import HttpParserError, HttpResponseParser

from holdfast.core.intake.fair_share import FairShare
from holdfast.core.intake.upload_pace import UploadPace
from holdfast.gateway.api.authentication import TENANT_HEADER
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.http.interfaces import Exchange
from holdfast.gateway.request.proxied_request import refuse
from holdfast.gateway.telemetry.counters import Counters

RELAYED_MAX: Final = 64  # at once in one gateway: uploads are few and long
RELAYED_PER_TENANT_MAX: Final = 16
SILENT_S: Final = 60.0  # no byte in either direction for so long: it is given up
_BUFFER_BYTES: Final = 256 << 10  # unsent, in each direction; one read may exceed it
_PREFIXES: Final = (b"/v1/files", b"/v1/batches")
_PASSED: Final = (b"content-type", b"content-disposition", b"retry-after", b"x-should-retry")
_SUCCEEDS: Final = "The batch service of this gateway is not running just now. Try again."
_BUSY: Final = "Too many uploads and downloads of files at once. Try again later."
_TOO_SLOW: Final = "The upload came too slowly. Try again over a faster connection."
_LOOK_S: Final = 1.0  # at least, between two looks at how an upload comes

_log = structlog.get_logger("holdfast.gateway.batch")


class BatchRelay:
    """Passes requests for ``/v1/files`` and ``/v1/batches`` to the batch process.

    Over a unix socket; at most 64 at once, 16 per tenant.
    """

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        counters: Counters,
        pace: UploadPace | None = None,
    ) -> None:
        self._path = path
        self.loop = loop
        self.counters = counters
        self.pace = pace or UploadPace()
        self._places = FairShare(RELAYED_MAX)
        self.running: dict[RelayedRequest, str] = {}  # with the tenant
        self._away = False  # it did not answer the last time; logged once

    @staticmethod
    def serves(path: bytes) -> bool:
        """Whether a path is under ``/v1/files`` or ``/v1/batches``."""
        return any(path == known or path.startswith(known + b"/") for known in _PREFIXES)

    def begin(self, exchange: Exchange, tenant: str, request_id: bytes) -> None:
        """Begin to pass a request on, in the name of this tenant; its body follows piece by piece.

        Connects in the background. Too many at once are refused with 503, and counted.
        """
        own = self._places.held.get(tenant, 0)
        if own >= RELAYED_PER_TENANT_MAX or not self._has_place(tenant):
            refuse(exchange, _unavailable(_BUSY), request_id, self.counters)
            return
        relayed = RelayedRequest(self, exchange, _head(exchange, tenant, request_id), request_id)
        self.running[relayed] = tenant
        self._places.take(tenant)
        exchange.listener = exchange.sink = relayed
        relayed.connecting = self.loop.create_task(self._connect(relayed))

    async def _connect(self, relayed: "RelayedRequest") -> None:
        try:
            async with asyncio.timeout(5.0):
                await self.loop.create_unix_connection(lambda: relayed, self._path)
        except (OSError, TimeoutError) as error:
            if not self._away:
                _log.warning("no batch process", reason=type(error).__name__)
            self._away = True
            relayed.away()
        else:
            self._away = False

    def _has_place(self, tenant: str) -> bool:
        """Whether one more request of this tenant may be relayed; another may be ended for it."""
        places = self._places
        while not places.fits():
            loser = places.loser(tenant)
            if loser == tenant:
                return False
            theirs = [relayed for relayed, name in self.running.items() if name == loser]
            min(theirs, key=lambda relayed: relayed.moved_at).fail(_unavailable(_BUSY))
        return True

    def forget(self, relayed: "RelayedRequest") -> None:
        """Give back the place of a request that is over; a second call does nothing."""
        tenant = self.running.pop(relayed, None)
        if tenant is not None:
            self._places.give_back(tenant)

    def close(self) -> None:
        """End all relayed requests: with 503, or a broken connection if the answer had begun."""
        for relayed in list(self.running):
            relayed.away()


class RelayedRequest(asyncio.Protocol):
    """One client request on its way to the batch process, and its answer on the way back.

    Body sink and listener of the client's exchange, and protocol of the socket. Given up after 60 s
    without a byte, and where its upload is slower than ``UploadPace`` allows.
    """

    def __init__(
        self, relay: BatchRelay, exchange: Exchange, head: bytes, request_id: bytes
    ) -> None:
        self._relay = relay
        self._exchange: Exchange | None = exchange  # None: the answer is over
        self._request_id = request_id
        self._chunked = b"content-length" not in exchange.headers
        self._unsent = [head]  # until the connection is there
        self._unsent_bytes = 0
        self._ended = False  # the request is complete
        self._answer = _AnswerReader(self)
        self._transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        self._timer = relay.loop.call_later(SILENT_S, self.away)
        self.moved_at = self._begun = relay.loop.time()  # when the last byte came, either way
        self._received = 0  # bytes of the body
        self._paused_at = 0.0  # since when nothing of it is read, for want of room; 0: it is read
        self._paused_s = 0.0  # how long that was so before
        self._look = relay.loop.call_later(relay.pace.grace_s, self._look_at_pace)

    # --- from the client ---

    def on_body(self, data: bytes) -> None:
        """Send a piece of the request's body on; kept until the socket is connected."""
        if data:
            self._received += len(data)
            self._alive()
            self._send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self, rest: bytes) -> None:
        """Send the last piece of the body and mark the request as complete.

        The answer comes later.
        """
        self.on_body(rest)
        self._ended = True
        if self._chunked:
            self._send(b"0\r\n\r\n")

    def on_client_gone(self) -> None:
        """Close the socket to the batch process, which drops an incomplete upload."""
        self._close()

    def on_client_slow(self) -> None:
        """Stop reading the answer until the client has read what was sent."""
        if self._transport is not None:
            self._transport.pause_reading()

    def on_client_ready(self) -> None:
        """Read the answer from the batch process again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def _send(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None:
            transport.write(data)
            return
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > _BUFFER_BYTES:
            self.pause_writing()

    # --- the connection to the batch process ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what came while the socket was being connected; close it if the client has left."""
        own = self._transport = cast("asyncio.Transport", transport)
        if self._exchange is None:  # the client left meanwhile
            own.abort()
            return
        own.set_write_buffer_limits(high=_BUFFER_BYTES)
        own.writelines(self._unsent)
        self._unsent.clear()
        if self._unsent_bytes > _BUFFER_BYTES:
            self.resume_writing()

    def pause_writing(self) -> None:
        """Stop reading the upload from the client: the batch process reads too slowly."""
        if self._exchange is not None:
            self._paused_at = self._paused_at or self._relay.loop.time()
            self._exchange.pause_body()

    def resume_writing(self) -> None:
        """Read the upload from the client again."""
        self._alive()
        self._paused_s += self._paused_now()
        self._paused_at = 0.0
        if self._exchange is not None:
            self._exchange.resume_body()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the batch process's answer and pass them on.

        Invalid HTTP is logged and ends it.
        """
        self._alive()
        try:
            self._answer.parser.feed_data(data)
        except HttpParserError as error:
            _log.error("the batch process answered no HTTP", reason=type(error).__name__)
            self.away()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (not our wording)
        """End the client's answer with an error, if it was not complete."""
        self._transport = None
        self.away()

    # --- what the parser of the answer says ---

    def begin_answer(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Send the client the status, the request id and the few headers that are passed on."""
        if self._exchange is not None:
            lines = [b"x-request-id: %b\r\n" % self._request_id]
            passed = ((name, headers.get(name)) for name in _PASSED)
            lines += [b"%b: %b\r\n" % (name, value) for name, value in passed if value is not None]
            self._exchange.start(status, b"".join(lines))

    def pass_answer(self, data: bytes) -> None:
        """Send the client a piece of the answer's body."""
        if self._exchange is not None:
            self._exchange.write(data)

    def end_answer(self) -> None:
        """Complete the client's answer and close the socket; nothing if no answer was begun."""
        exchange = self._exchange
        if exchange is not None and exchange.started:
            exchange.listener = None
            self._close()
            exchange.end()

    # --- the end ---

    def away(self) -> None:
        """Give up, because the batch process is gone, silent or not reachable.

        The client gets 503 with Retry-After, or a broken connection if its answer had begun.
        Nothing if the answer was complete.
        """
        self.fail(_unavailable(_SUCCEEDS))

    def fail(self, error: ApiError) -> None:
        """End the request with an error, or with a broken connection if its answer had begun.

        Nothing if the answer was complete.
        """
        exchange = self._exchange
        self._close()
        if exchange is None:
            return
        if exchange.started:
            exchange.listener = None
            exchange.abort()
        else:
            refuse(exchange, error, self._request_id, self._relay.counters)

    def _look_at_pace(self) -> None:
        """End an upload that is too slow, else look again when it may be."""
        if self._ended or self._exchange is None:
            return
        loop, pace = self._relay.loop, self._relay.pace
        elapsed_s = loop.time() - self._begun - self._paused_s - self._paused_now()
        left_s = pace.left_s(self._received, elapsed_s)
        if left_s <= 0:
            self.fail(ApiError(408, "timeout_error", "body_timeout", _TOO_SLOW))
        else:
            self._look = loop.call_later(max(left_s, _LOOK_S), self._look_at_pace)

    def _paused_now(self) -> float:
        """Seconds since nothing of the body is read, as the batch process has no room for it."""
        return self._relay.loop.time() - self._paused_at if self._paused_at else 0.0

    def _alive(self) -> None:
        self._timer.cancel()
        self.moved_at = self._relay.loop.time()
        if self._exchange is not None:
            self._timer = self._relay.loop.call_later(SILENT_S, self.away)

    def _close(self) -> None:
        self._exchange = None
        self._timer.cancel()
        self._look.cancel()
        self._relay.forget(self)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


class _AnswerReader:
    """Takes what the parser finds in the answer of the batch process (its callbacks)."""

    def __init__(self, relayed: RelayedRequest) -> None:
        self._relayed = relayed
        self._headers: dict[bytes, bytes] = {}
        self.parser = HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200:  # not "100 Continue"
            self._relayed.begin_answer(status, self._headers)
        self._headers = {}

    def on_body(self, data: bytes) -> None:
        self._relayed.pass_answer(data)

    def on_message_complete(self) -> None:
        self._relayed.end_answer()


def _unavailable(message: str) -> ApiError:
    return ApiError(503, "overloaded_error", "batches_unavailable", message, retry_after_s=2.0)


def _head(exchange: Exchange, tenant: str, request_id: bytes) -> bytes:
    target = exchange.path + (b"?" + exchange.query if exchange.query else b"")
    lines = [
        b"%b %b HTTP/1.1\r\nhost: batch\r\nconnection: close\r\n" % (exchange.method, target),
        b"%b: %b\r\nx-request-id: %b\r\n" % (TENANT_HEADER, tenant.encode(), request_id),
    ]
    for name in (b"content-type", b"idempotency-key"):
        value = exchange.headers.get(name)
        if value is not None:
            lines.append(b"%b: %b\r\n" % (name, value))
    length = exchange.headers.get(b"content-length")
    lines.append(
        b"transfer-encoding: chunked\r\n\r\n"
        if length is None
        else b"content-length: %b\r\n\r\n" % length
    )
    return b"".join(lines)


__all__ = ["BatchRelay", "RelayedRequest"]
