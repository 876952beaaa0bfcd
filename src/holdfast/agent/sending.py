"""One report to control: a fresh connection, verified TLS, one deadline, a short answer.

Written on plain sockets. An HTTP library would be a third of the agent's memory, and brings
redirects and proxies, through which a token could reach somebody else. A connection is not kept:
control closes idle ones after as long as an agent's period, and half of the reports would meet one
that is just being closed.
"""

import socket
import ssl
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.types import ConfigError

DEADLINE_S: Final = 5.0
_ANSWER_BYTES_MAX: Final = 16 << 10
_ADDRESSES_MAX: Final = 4
_TELLS_CHARS_MAX: Final = 300


class SendError(Exception):
    """No answer; the text says why, for people."""


@dataclass(slots=True, frozen=True)
class Answer:
    """What control said."""

    status: int
    told: str = ""  # its own words, shortened
    wait_s: float | None = None  # it asks to be left alone for so long


class Sender:
    """Posts to one control."""

    def __init__(self, url: str, name: str, token: str, ca: str = "") -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = _context(ca) if parts.scheme == "https" else None
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self._head = (
            f"POST {parts.path.rstrip('/')}/agents/{name} HTTP/1.1\r\n"
            f"Host: {shown}:{self._port}\r\n"
            f"Authorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nUser-Agent: holdfast-agent\r\n"
            "Accept: application/json\r\nConnection: close\r\n"
        )

    def send(self, body: bytes, deadline_s: float = DEADLINE_S) -> Answer:
        """Control's answer, or ``SendError``."""
        until = time.monotonic() + deadline_s
        request = f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
        try:
            with self._connected(until) as connection:
                connection.settimeout(_left(until))
                _send(connection, request)
                return _read(connection, until)
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message or "it cannot be verified"
            raise SendError(f"control's certificate is not trusted: {why} (see --ca)") from error
        except ssl.SSLError as error:
            raise SendError(f"no TLS with control: {error.reason or error}") from error
        except TimeoutError as error:
            raise SendError(f"control did not answer within {deadline_s:g} s") from error
        except OSError as error:
            raise SendError(f"control cannot be reached: {error.strerror or error}") from error

    def _connected(self, until: float) -> socket.socket:
        """The first of its addresses that answers."""
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        problem: OSError = OSError("it has no address")
        for family, kind, protocol, _, address in found[:_ADDRESSES_MAX]:
            plain = socket.socket(family, kind, protocol)
            try:
                plain.settimeout(_left(until))
                plain.connect(address)
                if self._tls is None:
                    return plain
                return self._tls.wrap_socket(plain, server_hostname=self._host)
            except ssl.SSLError:
                plain.close()
                raise
            except OSError as error:
                plain.close()
                problem = error
        raise problem


def _context(ca: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or "it is no PEM file of certificates"
        raise ConfigError("--ca", f"is {ca}: {why}", "name a PEM file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _send(connection: socket.socket, request: bytes) -> None:
    try:
        connection.sendall(request)
    except (BrokenPipeError, ConnectionResetError):
        return  # it refuses without reading on: its answer says why


def _read(connection: socket.socket, until: float) -> Answer:
    data = b""
    while len(data) < _ANSWER_BYTES_MAX:
        connection.settimeout(_left(until))
        try:
            piece = connection.recv(4_096)
        except ConnectionResetError:
            if not data:
                raise
            break
        if not piece:
            break
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise SendError("who answers there is not control: no HTTP")
    wait_s = None
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "retry-after" and value.strip().isdecimal():
            wait_s = min(300.0, float(value))
    told = body[:_TELLS_CHARS_MAX].decode("utf-8", "replace").strip()
    return Answer(int(words[1]), "".join(c for c in told if c.isprintable()), wait_s)


__all__ = ["DEADLINE_S", "Answer", "SendError", "Sender"]
