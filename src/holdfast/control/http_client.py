"""Sends one HTTP request to an admin port or a hook: one deadline, bounded memory.

Commands, agents and hooks share this client. It is the standard library's ``http.client``, with two
things added: the deadline covers the whole exchange, however slowly bytes come, and a certificate
may be pinned (``access.trust``). Redirects and proxies are not followed: a token must not reach
another server. It blocks; an event loop calls it in a thread. Engines are asked by ``fetch``
instead, where opening a fresh connection is part of the test.

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
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

BODY_BYTES_MAX: Final = 4 << 20  # forty times a usual page of metrics
_ADDRESSES_MAX: Final = 4  # of one host that are tried
_KEPT: Final = "/?&=%:,+@~!$'()*;[]"  # in paths and queries; callers have quoted what is theirs
_PORTS: Final = {"http": 80, "https": 443}


class FetchError(Exception):
    """A request got no answer; ``what`` is ``refused``, ``timeout`` or ``broken``."""

    def __init__(
        self,
        what: str,
        detail: str,
        moved_s: float = 0.0,
        *,
        lost: bool = False,
        connected: bool = True,
    ) -> None:
        super().__init__(f"{what}: {detail}")
        self.what = what
        self.detail = detail
        self.moved_s = moved_s  # from the first to the last piece of a body that was not complete
        self.lost = lost  # the connection ended under the answer
        self.connected = connected  # false: time ran out before a connection was open


class UntrustedError(FetchError):
    """The server's certificate could not be verified."""

    def __init__(self, error: ssl.SSLCertVerificationError) -> None:
        why = str(getattr(error, "verify_message", "") or "it cannot be verified")
        super().__init__("broken", f"its certificate is not trusted: {why.lower().rstrip('.')}")


@dataclass(slots=True, frozen=True)
class HttpAnswer:
    """Status, headers and body of an HTTP response."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


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

    Without ``tls`` an https address is checked against the system's authorities. A body of more
    than 4 MiB is refused; with ``cut_at`` no more than so many bytes are read, and those are taken.
    """
    until = time.monotonic() + deadline_s
    parts = urlsplit(url)
    headers = {"Host": parts.netloc, "User-Agent": "holdfast", "Accept": "*/*"}
    headers["Connection"] = "close"
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    if body:
        headers["Content-Type"] = "application/json"
    how = method or ("GET" if body is None else "POST")
    try:
        with _connected(parts, tls, until) as plain:
            client = http.client.HTTPConnection(parts.hostname or "")
            client.sock = _BoundedSocket(plain, until)
            target = quote(f"{parts.path}{path}", safe=_KEPT) or "/"
            client.request(how, target, body or None, headers)
            return _read(client.getresponse(), cut_at)
    except TimeoutError as error:
        raise FetchError("timeout", f"nothing within {deadline_s:g} s") from error
    except ConnectionRefusedError as error:
        raise FetchError("refused", "nobody listens") from error
    except ssl.SSLCertVerificationError as error:
        raise UntrustedError(error) from error
    except ssl.SSLError as error:
        raise FetchError("broken", f"no TLS there ({tls_reason(error)})") from error
    except (http.client.RemoteDisconnected, http.client.IncompleteRead) as error:
        ended = "closed before the answer was complete"
        raise FetchError("broken", ended, lost=True) from error
    except http.client.HTTPException as error:
        raise FetchError("broken", f"no HTTP ({type(error).__name__})") from error
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise FetchError("broken", reason) from error


def _connected(parts: SplitResult, tls: ssl.SSLContext | None, until: float) -> socket.socket:
    """Connect to the first of the host's addresses that answers, with TLS where asked for."""
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    secure = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem: OSError = OSError("it has no address")
    for family, kind, protocol, _, address in found[:_ADDRESSES_MAX]:
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(_left(until))
            plain.connect(address)
            return secure.wrap_socket(plain, server_hostname=host) if secure else plain
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


def tls_reason(error: ssl.SSLError) -> str:
    """Describe a TLS error in words."""
    return (error.reason or type(error).__name__).lower().replace("_", " ")


__all__ = ["BODY_BYTES_MAX", "FetchError", "HttpAnswer", "UntrustedError", "request", "tls_reason"]
