"""Connects ``top`` to control's admin port: single requests, and the stream of snapshots.

    GET /view ─► snapshot ─► GET /view/stream ─► events ─┐
       ▲                                                 ▼ broken, silent, refused
       └──────────────── pause, doubling ────────────────┘

The snapshot comes first, because a stream sends only changes. Where the stream is refused (an
older control, or too many listeners) the page is asked for every two seconds instead. Rejected: an
HTTP library, for the reasons in ``control/fetch.py``; and threads, which outlive a screen.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import quote, urlsplit

import httptools
import msgspec

from holdfast.control.fetch import FetchError, HttpAnswer, UntrustedError, fetch, tls_reason
from holdfast.core.view.snapshot import Snapshot

DEADLINE_S: Final = 5.0
QUIET_S: Final = 30.0  # three comments of a stream were missed
EVENT_BYTES_MAX: Final = 16 << 20  # thirty times a fleet of 500 replicas
_PIECE: Final = 64 << 10
_PORTS: Final = {"http": 80, "https": 443}
_DECODER: Final = msgspec.json.Decoder(Snapshot, strict=False)


class LinkError(Exception):
    """A request to control failed or was refused; ``status`` is 0 if no answer came."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


def decode(body: bytes | bytearray) -> Snapshot:
    """Decode a snapshot from JSON; fields that this version does not know are left out."""
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise LinkError(f"what control tells is no snapshot ({error})", 200) from error


class Link:
    """A connection to one admin port."""

    def __init__(
        self, url: str, token: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self.tls = tls  # None: an https address is checked against the system's authorities

    async def ask(self, path: str, *, order: bool = False) -> HttpAnswer:
        """GET or POST a path; returns an answer of status 200 or 202, else raises ``LinkError``."""
        method = "POST" if order else "GET"
        try:
            answer = await fetch(
                self.url, path, DEADLINE_S, bearer=self.token, method=method, tls=self.tls
            )
        except FetchError as error:
            raise LinkError(str(error)) from error
        if answer.status not in {200, 202}:
            raise LinkError(_why(answer.status, answer.body), answer.status)
        return answer

    async def order(self, order: str, replica: str) -> str:
        """Send an order about a replica; returns its result as a sentence."""
        try:
            answer = await self.ask(f"/replicas/{quote(replica)}/{order}", order=True)
        except LinkError as error:
            return f"{order} {replica}: not done: {error}"
        try:
            return str(json.loads(answer.body)["reason"])
        except (ValueError, KeyError, TypeError):
            return f"{order} {replica}: taken on"

    async def view(self) -> Snapshot:
        """The current snapshot."""
        return decode((await self.ask("/view")).body)

    async def views(self) -> AsyncGenerator[Snapshot]:
        """Yield a snapshot whenever it changes, until the connection ends."""
        text = bytearray()
        pieces = self.pieces("/view/stream", quiet_s=QUIET_S)
        try:
            async for piece in pieces:
                text += piece
                if len(text) > EVENT_BYTES_MAX:
                    raise LinkError("an event of the stream is too large")
                *events, rest = text.replace(b"\r\n", b"\n").split(b"\n\n")
                text = bytearray(rest)
                data = [found for found in map(_data_of, events) if found]
                if data:  # of several that came together only the last is news
                    yield decode(data[-1])
        finally:
            await pieces.aclose()

    async def pieces(self, path: str, quiet_s: float | None = None) -> AsyncGenerator[bytes]:
        """Yield the body of an answer as it comes; raises ``LinkError`` if it fails."""
        reader, writer = await self._connected()
        parts = urlsplit(self.url)
        auth = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        request = (
            f"GET {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{auth}"
            "User-Agent: holdfast-top\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        )
        response = _Response()
        try:
            writer.write(request.encode("latin-1"))
            while not response.ended:
                wait = DEADLINE_S if not response.begun else quiet_s
                async with asyncio.timeout(wait):
                    data = await reader.read(_PIECE)
                if not data:
                    response.closed()
                    break
                response.feed(data)
                if response.status == 200 and response.body:
                    yield bytes(response.body)
                    response.body.clear()
            if response.status != 200:
                raise LinkError(_why(response.status, bytes(response.body)), response.status)
        except TimeoutError as error:
            raise LinkError("nothing came for too long") from error
        except OSError as error:
            raise LinkError(_reason(error)) from error
        finally:
            writer.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        secure = None
        if parts.scheme == "https":
            secure = self.tls or ssl.create_default_context()
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await asyncio.open_connection(
                    parts.hostname or "", parts.port or _PORTS[parts.scheme], ssl=secure
                )
        except ConnectionRefusedError as error:
            raise LinkError("refused: nobody listens") from error
        except TimeoutError as error:
            raise LinkError(f"timeout: nothing within {DEADLINE_S:g} s") from error
        except ssl.SSLCertVerificationError as error:
            raise LinkError(str(UntrustedError(error))) from error
        except ssl.SSLError as error:
            raise LinkError(f"broken: no TLS there ({tls_reason(error)})") from error
        except OSError as error:
            raise LinkError(_reason(error)) from error


class _Response:
    """What the parser calls while it reads one answer."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.begun = False
        self.ended = False

    @property
    def status(self) -> int:
        return self._parser.get_status_code() if self.begun else 0

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise LinkError(f"no HTTP ({type(error).__name__})") from error
        if self.status != 200 and len(self.body) > _PIECE:
            raise LinkError(f"the admin port answered {self.status}", self.status)

    def closed(self) -> None:
        """The connection ended before the answer did."""
        if not self.begun:
            raise LinkError("closed before it answered")

    def on_headers_complete(self) -> None:
        self.begun = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended = True


def _data_of(event: bytes | bytearray) -> bytes:
    """What an event says; empty for a comment and for events of other names."""
    lines = bytes(event).split(b"\n")
    names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
    if names and names[-1] != b"view":
        return b""
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def _why(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the admin port answered {status}"


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


__all__ = ["DEADLINE_S", "Link", "LinkError", "decode"]
