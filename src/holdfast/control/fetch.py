"""Sends one HTTP request from an event loop: a fresh connection, one deadline, bounded memory.

Engines are asked by ``fetch``, and ``top`` reads its streams with ``stream``. Each request uses a
fresh connection, because a probe on an old one cannot detect that the port no longer accepts any.
Commands, agents and hooks have no loop and ask by ``http_client``, which also says what a request's
head is and what its errors are called. Rejected: an HTTP library; probes need no redirects,
cookies, proxies or pools, and a redirect that leads a probe to another server would give a false
result. Rejected: asyncio's streams; where a server answers and resets the connection at once, their
reader loses the answer.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

import httptools

from holdfast.control.http_client import (
    BODY_BYTES_MAX,
    CUT_SHORT,
    FetchError,
    HttpAnswer,
    RequestHead,
    UntrustedError,
    translate,
    within,
)
from holdfast.core.canary_overtime import BodyPieces

_AGENT: Final = "holdfast-control"
_HEADERS_MAX: Final = 200
_AHEAD_BYTES_MAX: Final = 64 << 10  # of a stream that nobody has taken yet; then it is not read


Overtime = Callable[[BodyPieces], float]  # seconds more, by what came of an overdue answer


def _none(_: BodyPieces) -> float:
    """No overtime: what is overdue is given up."""
    return 0.0


class StatusError(Exception):
    """A stream was refused: its answer, in ``answer``, has another status than 200."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(f"it answers {answer.status}")
        self.answer = answer


class _Reading(asyncio.Protocol):
    """asyncio protocol that sends one HTTP request and reads one response."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._head_only_so_far = True
        self._headed = self._first = self._last = 0.0  # when the head and pieces of the body came
        self._gap_s = self._next_gap_s = 0.0  # the two longest times between two of them
        self._news = asyncio.Event()  # a piece came
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
        self._fail("broken", CUT_SHORT, lost=True)

    # --- the response, called by the parser ---

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._headers) >= _HEADERS_MAX:
            self._fail("broken", "too many headers")
        else:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head_only_so_far = False
        self._headed = asyncio.get_running_loop().time()

    def pieces(self) -> BodyPieces:
        """When the pieces of the body came so far."""
        last = self._last or self._headed
        quiet_s = asyncio.get_running_loop().time() - last if last else 0.0
        return BodyPieces(
            self._last - self._first,
            self._gap_s,
            quiet_s,
            began=self._first > 0,
            headed=self._headed > 0,
            next_gap_s=self._next_gap_s,
        )

    async def overtime(self, more: Overtime) -> HttpAnswer:
        """Wait for the rest of an overdue answer for as long as ``more`` says, asked each time."""
        while not self.answer.done():
            left_s = more(self.pieces())
            if left_s <= 0:
                raise TimeoutError
            self._news.clear()
            piece = asyncio.ensure_future(self._news.wait())
            try:
                both: set[asyncio.Future[Any]] = {self.answer, piece}
                await asyncio.wait(both, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                piece.cancel()
        return await self.answer

    def on_body(self, body: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if self._first:
            gaps = (self._gap_s, self._next_gap_s, now - self._last)
            self._gap_s, self._next_gap_s, _ = sorted(gaps, reverse=True)
        self._first, self._last = self._first or now, now
        self._news.set()
        if len(self._body) + len(body) > BODY_BYTES_MAX:
            self._fail("broken", "the body is too large")
        elif not self.answer.done():
            self._body += body

    def on_message_complete(self) -> None:
        if not self.answer.done():
            status = self._parser.get_status_code()
            body = bytes(self._body)
            self.answer.set_result(HttpAnswer(status, self._headers, body, self.pieces()))

    def _framed(self) -> bool:
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    def _fail(self, what: str, detail: str, *, lost: bool = False) -> None:
        if not self.answer.done():
            self.answer.set_exception(FetchError(what, detail, lost=lost))
            self.answer.exception()  # who gave up before it was connected asks no more


class _StreamReading(_Reading):
    """Hands the body of an answer of status 200 out in pieces; it ends where its connection does.

    Pieces that nobody takes stop the reading of the connection, so that they stay few.
    """

    def __init__(self, request: bytes) -> None:
        super().__init__(request)
        self.begun = False
        self.answer.add_done_callback(lambda _: self._news.set())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        super().connection_made(transport)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.begun = True
        self._news.set()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self._streams() and len(self._body) > _AHEAD_BYTES_MAX:
            self._transport.pause_reading()

    async def more(self, within_s: float | None) -> None:
        """Wait for the head, another piece or the end."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError as error:
            raise FetchError("timeout", "nothing came for too long") from error

    def take(self) -> bytes:
        """What came since the last call; empty until there is more."""
        self._news.clear()
        if not self._streams():
            return b""
        piece = bytes(self._body)
        self._body.clear()
        if len(piece) > _AHEAD_BYTES_MAX:
            self._transport.resume_reading()
        return piece

    def _streams(self) -> bool:
        return self.begun and self._parser.get_status_code() == 200

    def _framed(self) -> bool:
        return False


ReadingT = TypeVar("ReadingT", bound=_Reading)


@asynccontextmanager
async def _connected(
    head: RequestHead,
    body: bytes | None,
    tls: ssl.SSLContext | None,
    kind: Callable[[bytes], ReadingT],
    within_s: float | None = None,
) -> AsyncIterator[ReadingT]:
    """Open a connection and send a request; the connection is aborted when the caller is done."""
    headers = dict(head.headers)
    if body or head.method == "POST":
        headers["Content-Length"] = str(len(body or b""))
    lines = [f"{head.method} {head.target} HTTP/1.1", *map(": ".join, headers.items()), "", ""]
    request = "\r\n".join(lines).encode("latin-1") + (body or b"")
    async with asyncio.timeout(within_s):
        transport, reading = await asyncio.get_running_loop().create_connection(
            lambda: kind(request), head.host, head.port, ssl=head.context(tls)
        )
    try:
        yield reading
    finally:
        reading.answer.cancel()
        transport.abort()


async def listens(url: str, within_s: float) -> bool:
    """Whether a TCP connection to the URL opens within ``within_s``; not who answers there.

    Sends nothing and never raises for network errors.
    """
    head = RequestHead.of(url, "")
    try:
        async with asyncio.timeout(within_s):
            transport, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, head.host, head.port
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
    headers: Mapping[str, str] | None = None,
    overtime: Overtime | None = None,
) -> HttpAnswer:
    """Send one GET, or one POST with a JSON body, and return the answer; or raise ``FetchError``.

    Any HTTP status is an answer; redirects are not followed. Without ``tls`` an https address is
    checked against the system's authorities. ``overtime`` is asked when the deadline has passed,
    and with each piece after it, for how many seconds more to wait; without it there are none.
    """
    head = RequestHead.of(url, path, agent=_AGENT, bearer=bearer, body=body, method=method)
    if headers:
        head = replace(head, headers={**head.headers, **headers})
    reading: _Reading | None = None
    try:
        until = asyncio.get_running_loop().time() + deadline_s
        async with _connected(head, body, tls, _Reading, deadline_s) as reading:
            left_s = max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait({reading.answer}, timeout=left_s)
            return await reading.overtime(overtime or _none)
    except TimeoutError as error:
        # A handshake that is late is no proof that the port is out of reach.
        connected = head.secure or reading is not None
        detail = f"{'nothing' if connected else 'no connection'} {within(deadline_s)}"
        failed = FetchError("timeout", detail, connected=connected)
        if reading is not None:
            failed.pieces = reading.pieces()
        raise failed from error
    except OSError as error:
        raise translate(error, deadline_s) from error


async def stream(
    url: str,
    path: str,
    deadline_s: float,
    *,
    bearer: str | None = None,
    tls: ssl.SSLContext | None = None,
    quiet_s: float | None = None,
) -> AsyncGenerator[bytes]:
    """Send one GET and yield the body of a 200 answer as it comes.

    Raises ``FetchError``, or ``StatusError`` for another status. Connection and head have
    ``deadline_s`` each; later, every piece has ``quiet_s`` (``None``: no limit). It ends when the
    server ends the body.
    """
    head = RequestHead.of(url, path, agent=_AGENT, bearer=bearer)
    try:
        async with _connected(head, None, tls, _StreamReading, deadline_s) as reading:
            while True:
                ended = reading.answer.done()
                piece = reading.take()
                if piece:
                    yield piece
                if ended:
                    break
                await reading.more(quiet_s if reading.begun else deadline_s)
            answer = await reading.answer
    except OSError as error:
        raise translate(error, deadline_s) from error
    if answer.status != 200:
        raise StatusError(answer)


__all__ = [
    "BODY_BYTES_MAX",
    "FetchError",
    "HttpAnswer",
    "StatusError",
    "UntrustedError",
    "fetch",
    "listens",
    "stream",
]
