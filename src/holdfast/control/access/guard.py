"""Middleware that decides which HTTP requests the admin port accepts.

Three checks come before anything else looks at a request. A listener on loopback answers only
requests whose Host is loopback, too: a web page that an operator visits could otherwise have its
own name resolve to 127.0.0.1 and read everything here. Where a token is configured every path but
``/livez`` requires it; its hash is compared, in constant time, so neither the file nor the memory
of this process holds the token. And an order (anything but GET) is accepted only from a page of
this very host, or from no page at all: browsers send any page's form to loopback, but they always
name the page's host in Origin, and they ask before they send JSON.

The dashboard's browser sends a cookie in place of the token (``sessions.py``). Its orders carry a
secret in a header besides, and so do those of any page where no token is configured. What lies
under ``/ui`` can be read without a token: it is the same for all users and holds nothing of the
fleet.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from starlette.requests import Request
from starlette.responses import Response

from holdfast.control.access.sessions import COOKIE, CSRF_HEADER, Sessions

OPEN: Final = "/livez"  # a supervisor that only wants to know whether we live has no token

UI: Final = "/ui"  # pages, scripts and signing in
UI_SESSION: Final = "/ui/session"

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class Guard:
    """ASGI middleware that rejects requests without a permitted host, token, cookie or origin."""

    def __init__(
        self, app: Any, *, loopback: bool, token: str | None, sessions: Sessions | None = None
    ) -> None:
        self._app = app
        self._loopback = loopback
        self._sessions = sessions
        self._digest = bytes.fromhex(token.removeprefix("sha256:")) if token else None

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Check one HTTP request: pass it to the application, or answer with the refusal."""
        if scope["type"] == "http":
            refusal = self._refusal(Request(scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if self._loopback and not _is_loopback(host):
            return json_answer({"error": "the Host of this request is not this machine"}, 421)
        cookie = request.cookies.get(COOKIE) if self._sessions is not None else None
        by_token = self._digest is None or self._knows(request)
        if not by_token and not self._is_open(request) and not self._signed_in(cookie):
            response = json_answer({"error": "the admin token is missing or wrong"}, 401)
            response.headers["www-authenticate"] = "Bearer"
            return response
        if request.method in _READING:
            return None
        origins = request.headers.getlist("origin")
        if not all(_same_host(origin, host) for origin in origins):
            return json_answer({"error": "a page of another host may not give orders here"}, 403)
        if _has_body(request) and not _is_json(request):
            return json_answer({"error": "the body of an order is application/json"}, 415)
        of_a_page = bool(origins) if self._digest is None else not by_token
        if self._sessions is not None and of_a_page and not self._is_open(request):
            given = request.headers.get(CSRF_HEADER, "")
            if not self._sessions.may_order(cookie, given):
                told = f"an order of a page carries {CSRF_HEADER}; load the page again"
                return json_answer({"error": told}, 403)
        return None

    def _is_open(self, request: Request) -> bool:
        path = request.url.path
        if path == OPEN:
            return True
        if self._sessions is None:
            return False
        if request.method == "POST":
            return path == UI_SESSION
        below = path in ("/", UI) or path.startswith(f"{UI}/")
        return below and request.method in _READING

    def _signed_in(self, cookie: str | None) -> bool:
        return self._sessions is not None and cookie is not None and self._sessions.knows(cookie)

    def _knows(self, request: Request) -> bool:
        assert self._digest is not None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = sha256(key.encode("utf-8", "surrogateescape")).digest()
        return scheme.lower() == "bearer" and hmac.compare_digest(given, self._digest)


def json_answer(content: object, status: int = 200) -> Response:
    """Build the HTTP response of the admin port with ``content`` as its JSON body."""
    return Response(orjson.dumps(content) + b"\n", status, media_type="application/json")


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _same_host(origin: str, host: str) -> bool:
    """Whether a request's Origin header names the host (and port) that the request is sent to."""
    try:
        page, asked = urlsplit(origin), urlsplit(f"//{host}")
        default = _DEFAULT_PORTS[page.scheme]
        return bool(page.hostname) and (page.hostname, page.port or default) == (
            asked.hostname,
            asked.port or default,
        )
    except (KeyError, ValueError):  # "null", other schemes, ports that are none
        return False


def _has_body(request: Request) -> bool:
    length = request.headers.get("content-length", "0")
    return length != "0" or "transfer-encoding" in request.headers


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0]
    return kind.strip().lower() == "application/json"


__all__ = ["OPEN", "UI", "UI_SESSION", "Guard", "json_answer"]
