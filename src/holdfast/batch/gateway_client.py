"""Sends items to the gateway's data port over kept connections, and reads their answers.

The runner is a client like any other: deadlines, retries, breakers and quotas of the gateway hold
for its requests. It shows the secret of this run and names the tenant; see ``RunnerDirectory`` in
the gateway. An attempt that is cancelled closes its connection, which aborts it at the engine.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

import orjson
from httptools import HttpParserError, HttpResponseParser

ANSWER_BYTES_MAX: Final = 80 << 20  # the gateway's own bound of an answer is 64 MB
CONNECT_S: Final = 5.0
_IDLE_MAX: Final = 512  # kept open between items: as many as commonly run at once


@dataclass(slots=True, frozen=True)
class GatewayAnswer:
    """An answer of the gateway; status 0: the connection broke before it was complete."""

    status: int
    body: bytes = b""
    request_id: str = ""
    retry_after_s: float = 0.0
    reason: str = ""  # why there is none
    content_type: str = ""

    @property
    def error(self) -> tuple[str, str]:
        """Code and message of an error body; both empty for a 2xx and where the body has none."""
        if self.status < 300:
            return "", ""
        try:
            told = orjson.loads(self.body)["error"]
            return str(told.get("code") or ""), str(told.get("message") or "")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return "", ""

    @property
    def broken(self) -> bool:
        """Whether no whole answer came."""
        return self.status == 0


class GatewayClient:
    """Posts requests in tenants' names; one answer or ``GatewayAnswer(0)`` for each."""

    def __init__(
        self, url: str, secret: bytes, make_tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._make_tls = make_tls if parts.scheme == "https" else None
        self._tls: ssl.SSLContext | None = None  # made anew where the certificate was renewed
        self._secret = secret
        self._idle: list[_Connection] = []

    async def post(
        self, path: str, tenant: str, body: bytes, *, interactive: bool = False
    ) -> GatewayAnswer:
        """Send one request and wait for its answer; cancelling it closes the connection.

        It has batch priority, or with ``interactive`` that of its tenant.
        """
        urgent = b"x-holdfast-priority: interactive\r\n" if interactive else b""
        head = (
            b"POST %b HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
            b"x-holdfast-runner: %b\r\nx-holdfast-tenant: %b\r\n%bcontent-length: %d\r\n\r\n"
            % (path.encode(), self._secret, tenant.encode(), urgent, len(body))
        )
        stale = True
        while True:
            connection = self._idle.pop() if self._idle and stale else None
            fresh = connection is None
            try:
                if connection is None:
                    connection = await self._connect()
                answer = await connection.ask(head, body)
            except (OSError, TimeoutError) as error:
                return GatewayAnswer(0, reason=f"gateway: {type(error).__name__}")
            except asyncio.CancelledError:
                if connection is not None:
                    connection.abort()
                raise
            if connection.reusable and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
            else:
                connection.abort()
            if answer.broken and not fresh and not connection.answered:
                stale = False  # closed while it was idle: a new connection, once
                continue
            return answer

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        if self._tls is None and self._make_tls is not None:
            self._tls = await asyncio.to_thread(self._make_tls)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, protocol = await loop.create_connection(
                    _Connection, self._host, self._port, ssl=self._tls
                )
        except ssl.SSLError:
            self._tls = None
            raise
        return protocol

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection to the gateway; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[GatewayAnswer] | None = None
        self.reusable = False
        self.answered = False  # a byte of the last answer came

    async def ask(self, head: bytes, body: bytes) -> GatewayAnswer:
        """Send a request on an idle connection; returns its answer."""
        if self._transport is None:
            return GatewayAnswer(0, reason="gateway: closed")
        self._waiting = asyncio.get_running_loop().create_future()
        self._parser = HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        self.reusable = self.answered = False
        self._transport.writelines((head, body))
        return await self._waiting

    def abort(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by the event loop)."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of an answer (called by the event loop)."""
        if self._waiting is None or self._waiting.done():
            self.abort()  # nobody asked
            return
        self.answered = True
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._end(GatewayAnswer(0, reason="gateway: not HTTP"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (not our wording)
        """End the request under way (called by the event loop)."""
        self._transport = None
        self.reusable = False
        self._end(GatewayAnswer(0, reason="gateway: connection lost"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header (callback of the parser)."""
        self._headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        """Collect a piece of the answer (callback of the parser)."""
        self._size += len(data)
        if self._size > ANSWER_BYTES_MAX:
            self._end(GatewayAnswer(0, reason="gateway: the answer is too large"))
            self.abort()
            return
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Deliver the answer (callback of the parser)."""
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            return
        self.reusable = self._parser.should_keep_alive() and self._transport is not None
        told = self._headers
        after = told.get(b"retry-after-ms", b"0")
        wait_s = int(after) / 1000 if after.isdigit() else 0.0
        request_id = told.get(b"x-request-id", b"").decode("latin-1")
        kind = told.get(b"content-type", b"").decode("latin-1")
        body = b"".join(self._pieces)
        self._end(GatewayAnswer(status, body, request_id, wait_s, content_type=kind))

    def _end(self, answer: GatewayAnswer) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)


def pinned_context(certificate: str) -> ssl.SSLContext:
    """Trust exactly the certificate that the gateway's own port shows, whatever name it has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the runner connects by address, to this machine
    context.load_verify_locations(certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


__all__ = ["GatewayAnswer", "GatewayClient", "pinned_context"]
