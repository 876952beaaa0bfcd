"""Connects ``top`` to control's admin port: single requests, and the stream of snapshots.

    GET /view ─► snapshot ─► GET /view/stream ─► events ─┐
       ▲                                                 ▼ broken, silent, refused
       └──────────────── pause, doubling ────────────────┘

The snapshot comes first, because a stream sends only changes. Where the stream is refused (an
older control, or too many listeners) the page is asked for every two seconds instead. Rejected: the
client of commands, ``control/http_client.py``. It blocks, so each stream would need a thread, which
outlives its screen: its read goes on for up to 30 s, and that of a log without limit.
"""

import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import msgspec

from holdfast.control.fetch import FetchError, HttpAnswer, StatusError, fetch, stream
from holdfast.core.view.snapshot import Snapshot

DEADLINE_S: Final = 5.0
QUIET_S: Final = 30.0  # three comments of a stream were missed
EVENT_BYTES_MAX: Final = 16 << 20  # thirty times a fleet of 500 replicas
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
            raise _refused(answer)
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
        body = stream(self.url, path, DEADLINE_S, bearer=self.token, tls=self.tls, quiet_s=quiet_s)
        try:
            async with aclosing(body):
                async for piece in body:
                    yield piece
        except StatusError as error:
            raise _refused(error.answer) from error
        except FetchError as error:
            raise LinkError(str(error)) from error


def _data_of(event: bytes | bytearray) -> bytes:
    """What an event says; empty for a comment and for events of other names."""
    lines = bytes(event).split(b"\n")
    names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
    if names and names[-1] != b"view":
        return b""
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def _refused(answer: HttpAnswer) -> LinkError:
    try:
        reason = str(json.loads(answer.body)["error"])
    except (ValueError, KeyError, TypeError):
        reason = f"the admin port answered {answer.status}"
    return LinkError(reason, answer.status)


__all__ = ["DEADLINE_S", "Link", "LinkError", "decode"]
