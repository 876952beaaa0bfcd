"""Sends one HTTP request to an admin port or a hook: one deadline, bounded memory.

Commands, agents and hooks share this client. It is the standard library's ``http.client``, with two
things added: the deadline covers the whole exchange, however slowly bytes come, and a certificate
may be pinned (``access.trust``). Redirects and proxies are not followed: a token must not reach
another server. It blocks; an event loop calls it in a thread, or asks by ``fetch``, which sends the
same head and raises the same errors: both come from here.

Measured (CPU time of the import, and what it adds to an agent of 23 MB): ``http.client`` 44 ms and
1 MB, urllib3 172 ms and 6 MB, httpx2 212 ms and 7 MB. Commands import it each time they run.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from holdfast.core.canary_overtime import BodyPieces
from holdfast.core.intake.descriptors import OwnResource, own_shortage

BODY_BYTES_MAX: Final = 4 << 20  # forty times a usual page of metrics
CUT_SHORT: Final = "closed before the answer was complete"
_ADDRESSES_MAX: Final = 4  # of one host that are tried
_KEPT: Final = "/?&=%:,+@~!$'()*;[]"  # in paths and queries; callers have quoted what is theirs
_PORTS: Final = {"http": 80, "https": 443}
_NO_PIECES: Final = BodyPieces()


class FetchError(Exception):
    """A request got no complete answer; ``what`` names the kind of failure.

    It is ``refused``, ``timeout``, ``broken`` or ``short``: this process lacked a resource to ask.
    An answer of any HTTP status is no error.
    """

    def __init__(
        self,
        what: str,
        detail: str,
        *,
        lost: bool = False,
        connected: bool = True,
        pieces: BodyPieces = _NO_PIECES,
    ) -> None:
        super().__init__(f"{what}: {detail}")
        self.what = what
        self.detail = detail
        self.lost = lost  # the connection ended under the answer
        self.pieces = pieces  # of a body that was not complete
        self.connected = connected  # false: time ran out before a connection was open


class UntrustedError(FetchError):
    """The server's certificate could not be verified, and nothing was sent."""

    def __init__(self, error: ssl.SSLCertVerificationError) -> None:
        why = str(getattr(error, "verify_message", "") or "it cannot be verified")
        super().__init__("broken", f"its certificate is not trusted: {why.lower().rstrip('.')}")


class ShortageError(FetchError):
    """This process had no descriptor, memory or port for the connection; nobody was asked."""

    def __init__(self, resource: OwnResource) -> None:
        super().__init__("short", f"this process lacks {resource}")
        self.resource = resource


@dataclass(slots=True, frozen=True)
class HttpAnswer:
    """Status, headers (names in lower case) and body of a complete HTTP response."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    pieces: BodyPieces = _NO_PIECES  # when those of the body came, where somebody measured


@dataclass(slots=True, frozen=True)
class RequestHead:
    """Where one HTTP request goes, and its method, target and headers; sends nothing."""

    host: str
    port: int
    secure: bool
    method: str
    target: str
    headers: Mapping[str, str]

    @classmethod
    def of(
        cls,
        url: str,
        path: str,
        *,
        agent: str = "holdfast",
        bearer: str | None = None,
        body: bytes | None = None,
        method: str | None = None,
    ) -> Self:
        """Build the head of one GET, or of one POST with a JSON body, on a fresh connection.

        ``method`` overrides that; ``path`` is appended to the URL's own and quoted.
        """
        parts = urlsplit(url)
        headers = {"Host": parts.netloc, "User-Agent": agent, "Accept": "*/*"}
        headers["Connection"] = "close"
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        if body:
            headers["Content-Type"] = "application/json"
        return cls(
            parts.hostname or "",
            parts.port or _PORTS[parts.scheme],
            parts.scheme == "https",
            method or ("GET" if body is None else "POST"),
            quote(f"{parts.path}{path}", safe=_KEPT) or "/",
            headers,
        )

    def context(self, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
        """The TLS context for this request: ``tls``, or one with the system's authorities.

        None for plain HTTP.
        """
        return (tls or ssl.create_default_context()) if self.secure else None


class _BoundedReader(io.RawIOBase):
    """Raw stream that reads from a socket until a deadline."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection = connection
        self._until = until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left(self._until))
        return self._connection.recv_into(buffer)


class _BoundedSocket:
    """The part of a socket that ``http.client`` uses, with a deadline on each operation."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection = connection
        self._until = until

    def sendall(self, data: bytes) -> None:
        self._connection.settimeout(_left(self._until))
        try:
            self._connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # it refuses without reading on: its answer says why

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._connection, self._until))

    def close(self) -> None:
        """Leave the connection open: ``http.client`` closes before the body is read."""


def request(
    url: str,
    path: str,
    deadline_s: float,
    *,
    bearer: str | None = None,
    body: bytes | None = None,
    method: str | None = None,
    tls: ssl.SSLContext | None = None,
    cut_at: int | None = None,
) -> HttpAnswer:
    """Send one GET, or one POST with a JSON body, and return the answer; or raise ``FetchError``.

    It blocks, at most ``deadline_s``. Any HTTP status is an answer; redirects are not followed.
    Without ``tls`` an https address is checked against the system's authorities. A body of more
    than 4 MiB is refused; with ``cut_at`` only so many bytes are read and returned.
    """
    until = time.monotonic() + deadline_s
    head = RequestHead.of(url, path, bearer=bearer, body=body, method=method)
    try:
        with _connected(head, tls, until) as plain:
            client = http.client.HTTPConnection(head.host)
            client.sock = _BoundedSocket(plain, until)
            client.request(head.method, head.target, body or None, head.headers)
            return _read(client.getresponse(), cut_at)
    except (OSError, http.client.HTTPException) as error:
        raise translate(error, deadline_s) from error


def translate(error: OSError | http.client.HTTPException, deadline_s: float) -> FetchError:
    """Return the ``FetchError`` for an error of sockets, TLS or ``http.client``."""
    match error:
        case OSError() if (lacks := own_shortage(error.errno)) is not None:
            return ShortageError(lacks)
        case TimeoutError():
            return FetchError("timeout", f"nothing {within(deadline_s)}")
        case ConnectionRefusedError():
            return FetchError("refused", "nobody listens")
        case ssl.SSLCertVerificationError():
            return UntrustedError(error)
        case ssl.SSLError():
            reason = (error.reason or type(error).__name__).lower().replace("_", " ")
            return FetchError("broken", f"no TLS there ({reason})")
        case http.client.RemoteDisconnected() | http.client.IncompleteRead():
            return FetchError("broken", CUT_SHORT, lost=True)
        case http.client.HTTPException():
            return FetchError("broken", f"no HTTP ({type(error).__name__})")
    return FetchError("broken", (error.strerror or type(error).__name__).lower())


def within(deadline_s: float) -> str:
    """A deadline for a message, to a hundredth: it may be what earlier steps have left of one."""
    return f"within {max(0.01, round(deadline_s, 2)):g} s"


def _connected(head: RequestHead, tls: ssl.SSLContext | None, until: float) -> socket.socket:
    """Connect to the first of the host's addresses that answers, with TLS where asked for."""
    secure = head.context(tls)
    found = socket.getaddrinfo(head.host, head.port, type=socket.SOCK_STREAM)
    problem: OSError = OSError("it has no address")
    for family, kind, protocol, _, address in found[:_ADDRESSES_MAX]:
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(_left(until))
            plain.connect(address)
            return secure.wrap_socket(plain, server_hostname=head.host) if secure else plain
        except ssl.SSLError:
            plain.close()
            raise
        except OSError as error:
            plain.close()
            problem = error
    raise problem


def _read(response: http.client.HTTPResponse, cut_at: int | None) -> HttpAnswer:
    body = response.read(cut_at or BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        raise FetchError("broken", "the body is too large")
    if response.length and cut_at is None:
        raise http.client.IncompleteRead(body, response.length)
    headers = {name.lower(): value for name, value in response.getheaders()}
    return HttpAnswer(response.status, headers, body)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


__all__ = [
    "BODY_BYTES_MAX",
    "CUT_SHORT",
    "FetchError",
    "HttpAnswer",
    "RequestHead",
    "ShortageError",
    "UntrustedError",
    "request",
    "translate",
    "within",
]
