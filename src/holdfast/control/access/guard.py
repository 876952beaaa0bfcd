"""Middleware that decides which HTTP requests the admin port accepts.

    Host is this machine? ─► who asks (token, cookie, anybody)? ─► has the role that the path needs?
    ─► an order: from a page of this host or from none, as JSON, with the page's secret ─► passed on

A listener on loopback answers only requests whose Host is loopback, too: a web page that an
operator visits could otherwise have its own name resolve to 127.0.0.1 and read everything here.
``roles.py`` says which role each path needs, ``admin_access.py`` who has which. An order (anything
but GET) is accepted only from a page of this very host, or from no page at all: browsers send any
page's form to loopback, but they always name the page's host in Origin, and they ask before they
send JSON.

The dashboard's browser sends a cookie in place of the token (``sessions.py``), and its orders carry
a secret in a header besides. What lies under ``/ui`` can be read without a token: it is the same
for all users and holds nothing of the fleet.

Every order leaves a row in the audit trail with its result, also one that is refused here.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.audit import belongs, result_of
from holdfast.control.access.roles import READING, Role, is_open, roles_for
from holdfast.control.access.sessions import COOKIE, CSRF_HEADER
from holdfast.control.access.sign_in_limit import TooManyTriesError
from holdfast.control.access.tokens import ANYBODY, AdminCaller
from holdfast.core.intake.web_pages import is_json, is_own_host, is_same_host

CALLER: Final = "holdfast.caller"  # of the ASGI scope: who asks, once that is known
CERTIFIED: Final = "holdfast.certified"  # the same: the names of the caller's certificate
NOBODY: Final = "nobody"  # in the audit trail, where no token was right
_RESULT_BYTES_MAX: Final = 4_096  # of an answer that are looked at for its reason

Send = Callable[[Any], Awaitable[None]]


class Guard:
    """ASGI middleware of the admin port: refuses requests without permitted host, role or origin.

    Orders by cookie also need the CSRF secret; all orders are written to the audit trail.
    """

    def __init__(self, app: Any, *, access: AdminAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Send
    ) -> None:
        """Check one HTTP request: pass it to the application, or answer with the refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        address = self._access.address_of(request)
        audited = self._access.audit is not None and request.method not in READING
        answer = _Answer(send) if audited else None
        try:
            refusal = self._refusal(request, address)
            await (refusal or self._app)(scope, receive, answer.send if answer else send)
        finally:
            if answer is not None:
                self._record(request, address, answer)

    def _record(self, request: Request, address: str, answer: "_Answer") -> None:
        audit, path = self._access.audit, request.scope["path"]
        status = answer.status or 500  # it failed before it said anything
        if audit is None or not belongs(path, status):
            return
        caller: AdminCaller | None = request.scope.get(CALLER)
        who = caller.name if caller is not None else NOBODY
        result = result_of(status, bytes(answer.body))
        audit.add(who, f"{request.method} {path}", address, status, result)

    def _refusal(self, request: Request, address: str) -> Response | None:
        host = request.headers.get("host", "")
        if self._access.loopback and not is_own_host(host):
            return json_answer({"error": "the Host of this request is not this machine"}, 421)
        cookie = request.cookies.get(COOKIE)
        try:
            caller, by_token = self._caller(request, address, cookie)
        except TooManyTriesError as error:
            # Who needs no token is not kept out by a wrong one.
            caller, by_token = (ANYBODY if self._access.reads_openly else None), False
            needed = roles_for(request.method, request.scope["path"])
            if needed and (caller is None or not caller.may(needed)):
                return too_many(error)
        refused = self._lacks_role(request, caller)
        if refused is not None or request.method in READING:
            return refused
        return self._unlike_an_order(request, host, cookie, by_token=by_token)

    def _caller(
        self, request: Request, address: str, cookie: str | None
    ) -> tuple[AdminCaller | None, bool]:
        """Who asks, None if nobody who is known; and whether a token said so."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if token and scheme.lower() == "bearer":
            caller = self._access.by_token(token, address)
            if caller is not None:
                return caller, True
        caller = self._access.by_cookie(cookie) if cookie is not None else None
        if caller is None and self._access.reads_openly:
            caller = ANYBODY
        return caller, False

    def _lacks_role(self, request: Request, caller: AdminCaller | None) -> Response | None:
        needed = roles_for(request.method, request.scope["path"])
        if caller is not None:
            request.scope[CALLER] = caller
        if not needed or (caller is not None and caller.may(needed)):
            return None
        if caller is None or caller is ANYBODY:
            wanted = "" if Role.READ in needed else f"; this needs the role {_words(needed)}"
            told = f"the admin token is missing or wrong{wanted}"
            response = json_answer({"error": told}, 401)
            response.headers["www-authenticate"] = "Bearer"
            return response
        has = _words(caller.roles)
        told = f"{caller.name} has the role {has}; this needs the role {_words(needed)}"
        return json_answer({"error": told}, 403)

    def _unlike_an_order(
        self, request: Request, host: str, cookie: str | None, *, by_token: bool
    ) -> Response | None:
        """The refusal of an order from a foreign page, not in JSON, or without its secret."""
        origins = request.headers.getlist("origin")
        if not all(is_same_host(origin, host) for origin in origins):
            return json_answer({"error": "a page of another host may not give orders here"}, 403)
        if _has_body(request) and not is_json(request.headers.get("content-type", "")):
            return json_answer({"error": "the body of an order is application/json"}, 415)
        if by_token or is_open(request.method, request.scope["path"]):
            return None
        open_page = request.scope.get(CALLER) is ANYBODY
        if open_page and not origins:
            return None  # no browser: it has no cookie that a page could misuse
        given = request.headers.get(CSRF_HEADER, "")
        if not self._access.sessions.may_order(None if open_page else cookie, given):
            told = f"an order of a page carries {CSRF_HEADER}; load the page again"
            return json_answer({"error": told}, 403)
        return None


class _Answer:
    """Passes an answer on, and keeps its status and the beginning of its body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.body = bytearray()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif len(self.body) < _RESULT_BYTES_MAX:
            self.body += message.get("body", b"")[:_RESULT_BYTES_MAX]
        await self._send(message)


def json_answer(content: object, status: int = 200) -> Response:
    """An HTTP response with ``content`` as its JSON body, and this status."""
    return Response(orjson.dumps(content) + b"\n", status, media_type="application/json")


def too_many(error: TooManyTriesError) -> Response:
    """The response 429 to a caller with too many wrong tokens, with Retry-After."""
    response = json_answer({"error": str(error)}, 429)
    response.headers["retry-after"] = f"{error.wait_s:.0f}"
    return response


def _words(roles: frozenset[Role]) -> str:
    return " or ".join(sorted(role.value for role in roles)) or "none"


def _has_body(request: Request) -> bool:
    length = request.headers.get("content-length", "0")
    return length != "0" or "transfer-encoding" in request.headers


__all__ = ["CALLER", "Guard", "json_answer", "too_many"]
