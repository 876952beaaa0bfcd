"""Status lines, refusals, syntax checks and CORS lines of HTTP/1.1; needs no connection.

Everything that can be known in advance is bytes when the process starts: a status line, the whole
answer to each kind of broken request. The texts are fixed, so no answer of this module can repeat
what a client sent. Rejected: quoting the offending header "to help". It ends up in logs.

The parser (llhttp in its strict mode) refuses by itself: control characters in values and targets,
obs-fold, spaces before a colon, bare LF, names that are no tokens, more than one length, a length
beside a transfer coding. What it lets through is checked here and in the server: two Host lines,
odd hosts, HTTP/0.9 and 2.0, RTSP, fragments, foreign schemes, other codings before ``chunked``.
"""

import re
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import orjson

from holdfast.core.intake.web_pages import is_own_host, is_same_host

CLOSE: Final = b"connection: close\r\n"
KEEP_ALIVE: Final = b"connection: keep-alive\r\n"  # HTTP/1.0 clients need to be told
JSON: Final = b"content-type: application/json\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

STATUS_LINES: Final[dict[int, bytes]] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

# A name or an address, and a port. Underscores are no host names, yet compose files are full of
# them.
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_SCHEMES: Final = (b"http://", b"https://")

# The batch runner's Host. A page of that name would send its port, too: the data port is not 80.
_RUNNER_HOST: Final = b"gateway"
_READING: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_CORS_METHODS: Final = b"access-control-allow-methods: GET, POST, DELETE, OPTIONS\r\n"
# The wildcard does not cover authorization; the Fetch standard wants it named.
_CORS_HEADERS: Final = b"access-control-allow-headers: *, authorization\r\n"
_CORS_AGE: Final = (
    b"access-control-max-age: 600\r\n"  # a changed list of origins is noticed within ten minutes
)
_CORS_EXPOSED: Final = (
    b"access-control-expose-headers: x-request-id, x-holdfast-replica, x-holdfast-attempts, "
    b"x-holdfast-degraded, x-holdfast-capped, x-holdfast-continued, x-holdfast-model, retry-after, "
    b"retry-after-ms, "
    b"x-should-retry, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "
    b"x-ratelimit-reset-tokens\r\n"
)


def date_line(second: int) -> bytes:
    """Return the Date header line, with its CRLF, for this second since the epoch."""
    return b"date: %b\r\n" % formatdate(second, usegmt=True).encode("ascii")


def status_line(status: int) -> bytes:
    """Return the first line of a response, with its CRLF; an unregistered status has no phrase."""
    known = STATUS_LINES.get(status)
    return known if known is not None else b"HTTP/1.1 %d \r\n" % status


def error_json(message: str, kind: str, code: str | None) -> bytes:
    """Return an error body as JSON, in the shape that OpenAI's SDKs read.

    ``kind`` becomes its ``type``; ``param`` is always null.
    """
    error = {"message": message, "type": kind, "param": None, "code": code}
    return orjson.dumps({"error": error})


@dataclass(slots=True, frozen=True)
class Refusal:
    """A fixed error response to a broken or unwelcome request; the connection is closed after it.

    Its bytes are built once, in ``head`` and ``body``. It is a value, not an exception.
    """

    status: int
    code: str  # for clients, and the name of its counter
    message: str
    lines: bytes = b""
    body: bytes = field(init=False)
    head: bytes = field(init=False)  # without its last, empty line: more lines may follow

    def __post_init__(self) -> None:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        body = error_json(self.message, kind, self.code)
        length = b"content-length: %d\r\n" % len(body)
        head = b"".join((status_line(self.status), JSON, self.lines, length, CLOSE))
        object.__setattr__(self, "body", body)
        object.__setattr__(self, "head", head)


# Each with the reason for its status.
MALFORMED: Final = Refusal(400, "malformed_request", "The request is not valid HTTP.")
BAD_HOST: Final = Refusal(400, "bad_host", "Exactly one valid Host header is needed.")
BAD_TARGET: Final = Refusal(400, "bad_target", "The request target is not valid.")
PIPELINED: Final = Refusal(400, "too_many_pipelined", "Too many requests without waiting.")
CHUNK_OVERHEAD: Final = Refusal(400, "chunk_overhead", "Chunk extensions or trailers too large.")
# Time ran out on the client's side: it may try again, and SDKs do.
HEAD_TIMEOUT: Final = Refusal(408, "header_timeout", "The request headers took too long.")
BODY_TIMEOUT: Final = Refusal(408, "body_timeout", "The request body took too long.")
BODY_TOO_LARGE: Final = Refusal(413, "body_too_large", "The request body is too large.")
# A page that somebody visits here must not use a port that asks nobody for a key.
FOREIGN_PAGE: Final = Refusal(
    403, "foreign_page", "A page of another host may not send this; see gateway.cors_origins."
)
FOREIGN_HOST: Final = Refusal(
    421, "foreign_host", "The Host of this request is not this machine; see gateway.hosts."
)
EXPECTATION: Final = Refusal(417, "expectation_failed", "Only 100-continue can be expected.")
HEADERS_TOO_LARGE: Final = Refusal(
    431, "headers_too_large", "The request headers are too large or too many."
)
# The server failed, the client did nothing wrong.
APP_ERROR: Final = Refusal(500, "internal_error", "The gateway failed to handle the request.")
# Understood, not offered: tunnels, web sockets, codings other than chunked.
TRANSFER_CODING: Final = Refusal(501, "transfer_coding", "Only chunked transfer coding is known.")
NO_TUNNELS: Final = Refusal(501, "unsupported_protocol", "Tunnels and upgrades are not offered.")
# Full, not broken: a balancer sends the client elsewhere, an SDK comes back.
CONNECTIONS: Final = Refusal(
    503, "too_many_connections", "Too many connections are open.", b"retry-after: 1\r\n"
)
MEMORY: Final = Refusal(
    503, "too_many_bytes", "The gateway holds as many bytes as it may.", b"retry-after: 1\r\n"
)
EVICTED: Final = Refusal(
    503, "evicted", "Closed to make room for others: it stood still.", b"retry-after: 1\r\n"
)
# The tenant's own share: others are served.
TENANT_SHARE: Final = Refusal(
    429,
    "tenant_share_exceeded",
    "Your requests under way hold as much of the gateway as one tenant may.",
    b"retry-after: 1\r\n",
)
ADDRESS: Final = Refusal(
    429,
    "address_connections_exceeded",
    "Your address has as many connections open as one may have.",
    b"retry-after: 1\r\n",
)
BAD_VERSION: Final = Refusal(505, "http_version", "Only versions 1.1 and 1.0 of HTTP are spoken.")

REFUSALS: Final = (
    MALFORMED,
    BAD_HOST,
    BAD_TARGET,
    PIPELINED,
    CHUNK_OVERHEAD,
    HEAD_TIMEOUT,
    BODY_TIMEOUT,
    BODY_TOO_LARGE,
    EXPECTATION,
    FOREIGN_PAGE,
    FOREIGN_HOST,
    HEADERS_TOO_LARGE,
    APP_ERROR,
    TRANSFER_CODING,
    NO_TUNNELS,
    CONNECTIONS,
    MEMORY,
    EVICTED,
    TENANT_SHARE,
    ADDRESS,
    BAD_VERSION,
)


def host_is_valid(host: bytes) -> bool:
    """Whether a Host header is one name or IP address with at most one port."""
    return _HOST.fullmatch(host) is not None


def split_target(target: bytes) -> tuple[bytes, bytes] | None:
    """Split a request target into path and query; None for a target that is not supported.

    The absolute form must be accepted (RFC 9112, 3.2.2); its authority is dropped as Host is:
    requests are routed by their model, never by a host name.
    """
    if not target.startswith(b"/"):
        if not target.startswith(_SCHEMES):
            return None
        authority, slash, rest = target.partition(b"://")[2].partition(b"/")
        if not host_is_valid(authority):  # user names, queries and fragments end here too
            return None
        target = slash + rest if slash else b"/"
    if b"#" in target:
        return None
    path, _, query = target.partition(b"?")
    return path, query


def check_version(version: str, line: bytes, data: bytes) -> Refusal | None:
    """Return ``BAD_VERSION`` unless the protocol is HTTP/1.1 or HTTP/1.0, else None.

    ``line``: method and target. ``data``: the current read, in which RTSP request lines are looked
    for, as llhttp accepts those, too. A body that speaks of RTSP is no reason to refuse.
    """
    other = line + b" RTSP/" in data and line + b" HTTP/" not in data
    return None if version in {"1.0", "1.1"} and not other else BAD_VERSION


def check_coding(coding: bytes, *, old: bool) -> Refusal | None:
    """Return a refusal unless the transfer coding is ``chunked``, else None.

    ``old``: the request is HTTP/1.0, which may use no coding at all (RFC 9112, 6.1).
    """
    if old:
        return MALFORMED
    return None if coding.lower() == b"chunked" else TRANSFER_CODING


def check_expectation(expectation: bytes) -> Refusal | None:
    """Return a refusal (417) unless the Expect header is ``100-continue``, else None."""
    return None if expectation.lower() == b"100-continue" else EXPECTATION


def check_upgrade(method: bytes, protocol: bytes | None) -> Refusal | None:
    """Return a refusal (501) for CONNECT and upgrades.

    None for ``Upgrade: h2c``, which is ignored.
    """
    ignored = method != b"CONNECT" and protocol is not None and protocol.lower() == b"h2c"
    return None if ignored else NO_TUNNELS


def size_of(target: bytes, headers: dict[bytes, bytes]) -> int:
    """Return about how many bytes a head of this target and these headers had on the wire.

    For limits only: the method, version and blanks are not counted exactly.
    """
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers.items())


class Cors:
    """What pages of browsers may do here: the CORS header lines, and which requests are refused.

    ``origins`` may use this gateway from a browser; ``*`` allows all. ``own_hosts``: the port asks
    nobody for a key, so that only Hosts of this machine and these names are answered, and pages of
    other hosts may send nothing but questions; None: all are answered. False as a condition if
    there is nothing to add or refuse.
    """

    __slots__ = ("_any", "_hosts", "_last_host", "_origins")

    def __init__(self, origins: tuple[str, ...], own_hosts: tuple[str, ...] | None = None) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._hosts = own_hosts
        self._last_host = b""  # the last one that was found to be this machine

    def __bool__(self) -> bool:
        return bool(self._origins) or self._hosts is not None

    def refusal(self, method: bytes, headers: dict[bytes, bytes]) -> Refusal | None:
        """Return why a request that a foreign page may have sent is refused, else None.

        A request without a Host, as HTTP/1.0 has it, is no browser's.
        """
        if self._hosts is None:
            return None
        host = headers.get(b"host")
        if host is not None and host not in (self._last_host, _RUNNER_HOST):
            if not is_own_host(host.decode("latin-1"), self._hosts):
                return FOREIGN_HOST
            self._last_host = host
        origin = headers.get(b"origin")
        if origin is None or method in _READING or self._any or origin in self._origins:
            return None
        same = is_same_host(origin.decode("latin-1"), (host or b"").decode("latin-1"))
        return None if same else FOREIGN_PAGE

    def lines(self, origin: bytes | None) -> bytes:
        """Return the CORS header lines of a response.

        Empty if there is no origin or it is not allowed.
        """
        if origin is None:
            return b""
        if self._any:
            return b"access-control-allow-origin: *\r\n" + _CORS_EXPOSED
        if origin in self._origins:
            # Caches must not hand one origin's answer to another.
            allowed = b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin
            return allowed + _CORS_EXPOSED
        return b""

    def preflight(self, method: bytes, headers: dict[bytes, bytes]) -> bytes:
        """Return the header lines that answer a CORS preflight; empty if it is none or not allowed.

        The allow-origin line is not among them: ``lines`` makes it.
        """
        if method != b"OPTIONS" or b"access-control-request-method" not in headers:
            return b""
        if not self.lines(headers.get(b"origin")):
            return b""
        return _CORS_METHODS + _CORS_HEADERS + _CORS_AGE


__all__ = [
    "APP_ERROR",
    "BAD_HOST",
    "BAD_TARGET",
    "BAD_VERSION",
    "BODY_TIMEOUT",
    "BODY_TOO_LARGE",
    "CHUNK_OVERHEAD",
    "CLOSE",
    "CONNECTIONS",
    "CONTINUE",
    "EVICTED",
    "EXPECTATION",
    "FOREIGN_HOST",
    "FOREIGN_PAGE",
    "HEADERS_TOO_LARGE",
    "HEAD_TIMEOUT",
    "JSON",
    "KEEP_ALIVE",
    "MALFORMED",
    "MEMORY",
    "NO_TUNNELS",
    "PIPELINED",
    "REFUSALS",
    "STATUS_LINES",
    "TENANT_SHARE",
    "TRANSFER_CODING",
    "Cors",
    "Refusal",
    "check_coding",
    "check_expectation",
    "check_upgrade",
    "check_version",
    "date_line",
    "error_json",
    "host_is_valid",
    "size_of",
    "split_target",
    "status_line",
]
