"""Sends one HTTP request to an engine: a fresh connection, one deadline, bounded memory.

Each request uses a fresh connection, because a probe on an old one cannot detect that the port no
longer accepts any. Admin ports and hooks are asked by ``http_client``. Rejected: an HTTP library;
probes need no redirects, cookies, proxies or pools, and a redirect that leads a probe to another
server would give a false result.
"""

import asyncio
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

import httptools

from holdfast.control.http_client import (
    BODY_BYTES_MAX,
    FetchError,
    HttpAnswer,
    UntrustedError,
    tls_reason,
)

_HEADERS_MAX: Final = 200
_PORTS: Final = {"http": 80, "https": 443}


class _Reading(asyncio.Protocol):
    """asyncio protocol that sends one HTTP request and reads one response."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._head_only_so_far = True
        self._first = self._last = 0.0  # when pieces of the body came
        self.answer: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        out: Any = transport  # uvloop's are no asyncio.Transport
        out.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("broken", f"no HTTP ({type(error).__name__})")

    def eof_received(self) -> bool:
        """End the response: a body without a length ends with the connection."""
        if not self._head_only_so_far and not self._framed():
            self.on_message_complete()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._fail("broken", "closed before the answer was complete", lost=True)

    # --- the response, called by the parser ---

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) >= _HEADERS_MAX:
            self._fail("broken", "too many headers")
        else:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head_only_so_far = False

    @property
    def moved_s(self) -> float:
        """Seconds from the first to the last piece of the body so far."""
        return self._last - self._first

    def on_body(self, body: bytes) -> None:
        self._last = asyncio.get_running_loop().time()
        self._first = self._first or self._last
        if len(self._body) + len(body) > BODY_BYTES_MAX:
            self._fail("broken", "the body is too large")
        elif not self.answer.done():
            self._body += body

    def on_message_complete(self) -> None:
        if not self.answer.done():
            status = self._parser.get_status_code()
            self.answer.set_result(HttpAnswer(status, self._headers, bytes(self._body)))

    def _framed(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    def _fail(self, what: str, detail: str, *, lost: bool = False) -> None:
        if not self.answer.done():
            self.answer.set_exception(FetchError(what, detail, lost=lost))
            self.answer.exception()  # who gave up before it was connected asks no more


async def listens(url: str, within_s: float) -> bool:
    """Whether a TCP connection to the URL can be opened; not who answers there."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(within_s):
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, parts.hostname or "", parts.port or _PORTS[parts.scheme]
            )
    except OSError:  # TimeoutError among them
        return False
    transport.close()
    return True


async def fetch(
    url: str,
    path: str,
    deadline_s: float,
    *,
    bearer: str | None = None,
    body: bytes | None = None,
    method: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """Send one GET, or one POST with a JSON body, and return the answer; or raise ``FetchError``.

    Without ``tls`` an https address is checked against the system's authorities.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    how = method or ("GET" if body is None else "POST")
    auth = f"Authorization: Bearer {bearer}\r\n" if bearer else ""
    sent = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    if how == "POST" and not body:
        sent = "Content-Length: 0\r\n"
    request = (
        f"{how} {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{auth}{sent}"
        "User-Agent: holdfast-control\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    ).encode("latin-1") + (body or b"")
    moved_s = 0.0
    connected = secure  # a handshake that is late is no proof that the port is out of reach
    try:
        async with asyncio.timeout(deadline_s):
            transport, reading = await asyncio.get_running_loop().create_connection(
                lambda: _Reading(request),
                parts.hostname or "",
                parts.port or _PORTS[parts.scheme],
                ssl=(tls or ssl.create_default_context()) if secure else None,
            )
            connected = True
            try:
                return await reading.answer
            finally:
                moved_s = reading.moved_s
                reading.answer.cancel()
                transport.abort()
    except TimeoutError as error:
        what = "nothing" if connected else "no connection"
        detail = f"{what} within {deadline_s:g} s"
        raise FetchError("timeout", detail, moved_s, connected=connected) from error
    except ConnectionRefusedError as error:
        raise FetchError("refused", "nobody listens") from error
    except ssl.SSLCertVerificationError as error:
        raise UntrustedError(error) from error
    except ssl.SSLError as error:
        raise FetchError("broken", f"no TLS there ({tls_reason(error)})") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FetchError("broken", reason.lower()) from error


__all__ = [
    "BODY_BYTES_MAX",
    "FetchError",
    "HttpAnswer",
    "UntrustedError",
    "fetch",
    "listens",
    "tls_reason",
]
