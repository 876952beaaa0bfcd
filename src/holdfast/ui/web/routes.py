"""The dashboard's routes on the operators' port: pages, sessions, what-if questions.

    GET  /            ─► /ui/
    GET  /ui/…        the page; each of its addresses gives the same one, and its script chooses
    GET  /ui/static/… its files
    GET, POST, DELETE /ui/session   who is signed in; sign in by token or code; sign out
    POST /ui/link     a code that signs a browser in, once
    GET, POST /whatif what would be if: a bounded simulation beside the planner's figures

Everything else that a page shows comes from the port's own paths, the same that programs use.
Pages rendered here were rejected: they would say things that no other client could ask for.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.config.fleet_file import FleetFile
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.guard import CALLER, json_answer, too_many
from holdfast.control.access.roles import UI, UI_LINK, UI_SESSION
from holdfast.control.access.sessions import COOKIE, LASTS_S, LINK_S
from holdfast.control.access.sign_in_limit import TooManyTriesError
from holdfast.control.access.tokens import ANYBODY, AdminCaller
from holdfast.core.types import ConfigError
from holdfast.core.view.snapshot import Snapshot
from holdfast.ui.web.assets import Asset, load_assets
from holdfast.ui.web.rehearsal import RehearsalBusyError, RehearsalError, RehearsalRunner
from holdfast.ui.web.whatif import Planner, WhatIfQuestion, answer, as_it_is, scenarios

BODY_BYTES_MAX: Final = 64 << 10

_KEEP: Final = "public, max-age=31536000, immutable"  # the address changes with the content
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def web_routes(
    access: AdminAccess,
    file: Callable[[], FleetFile],
    view: Callable[[], Snapshot | None],
    planner: Planner,
) -> list[Route]:
    """Build the dashboard's routes for the operators' port, which knows who may do what.

    ``file`` is the config that runs and ``view`` the latest snapshot: a what-if starts from them.
    """
    web = _Web(access, file, view, planner)
    return [
        Route("/", web.home),
        Route(UI, web.home),
        Route(UI_SESSION, web.session),
        Route(UI_SESSION, web.sign_in, methods=["POST"]),
        Route(UI_SESSION, web.sign_out, methods=["DELETE"]),
        Route(UI_LINK, web.link, methods=["POST"]),
        Route(f"{UI}/static/{{path:path}}", web.static),
        Route(f"{UI}/{{path:path}}", web.page),
        Route("/whatif", web.whatif),
        Route("/whatif", web.rehearse, methods=["POST"]),
    ]


class _Web:
    """One method for each path."""

    def __init__(
        self,
        access: AdminAccess,
        file: Callable[[], FleetFile],
        view: Callable[[], Snapshot | None],
        planner: Planner,
    ) -> None:
        self._access = access
        self._file = file
        self._view = view
        self._planner = planner
        self._assets = load_assets(f"{UI}/static")
        self._rehearsals = RehearsalRunner()

    async def home(self, _: Request) -> Response:
        return RedirectResponse(f"{UI}/", 307)

    async def page(self, request: Request) -> Response:
        return _sent(request, self._assets.page, "no-cache")

    async def static(self, request: Request) -> Response:
        asset = self._assets.by_path.get(request.path_params["path"])
        if asset is None:
            return json_answer({"error": "no such file; load the page again"}, 404)
        return _sent(request, asset, _KEEP)

    # --- signing in ------------------------------------------------------------------------------

    async def session(self, request: Request) -> Response:
        cookie = request.cookies.get(COOKIE)
        caller = self._access.by_cookie(cookie) if cookie is not None else None
        opened = self._access.reads_openly
        csrf = self._access.sessions.csrf(cookie) if caller is not None else None
        if csrf is None and opened:
            csrf = self._access.sessions.open_csrf
        shown = caller or (ANYBODY if opened else None)
        told = {
            "required": not opened,
            "signed_in": caller is not None,
            "csrf": csrf,
            "name": shown.name if shown is not None else None,
            "roles": sorted(shown.roles) if shown is not None else [],
        }
        return _private(json_answer(told))

    async def sign_in(self, request: Request) -> Response:
        given = await _body(request)
        token, code = given.get("token"), given.get("code")
        secret = token if token is not None else code
        if not isinstance(secret, str) or not 0 < len(secret) <= 4_096:
            told = 'the body is {"token": TOKEN}, or {"code": CODE} of a sign-in link'
            return _private(json_answer({"error": told}, 400))
        address = self._access.address_of(request)
        known = self._access.by_token if token is not None else self._access.by_code
        try:
            caller = known(secret, address)
        except TooManyTriesError as error:
            return _private(too_many(error))
        if caller is None:
            told = "this is not the admin token"
            if token is None:
                told = "this link was used already, or is too old; 'holdfast sign-in' makes another"
            return _private(json_answer({"error": told}, 401))
        request.scope[CALLER] = caller
        sessions = self._access.sessions
        cookie = sessions.begin(caller)
        roles = sorted(caller.roles)
        answer = {"signed_in": True, "csrf": sessions.csrf(cookie)}
        response = json_answer(answer | {"name": caller.name, "roles": roles})
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=int(LASTS_S),
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return _private(response)

    async def link(self, request: Request) -> Response:
        caller: AdminCaller = request.scope[CALLER]  # the guard has seen to it
        code = self._access.sessions.link(caller)
        told = {"path": f"{UI}/#sign-in={code}", "lasts_s": LINK_S}
        return _private(json_answer(told, 201))

    async def sign_out(self, request: Request) -> Response:
        self._access.sessions.sign_out(request.cookies.get(COOKIE, ""))
        response = json_answer({"signed_in": False})
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return _private(response)

    # --- what if ---------------------------------------------------------------------------------

    async def whatif(self, _: Request) -> Response:
        return _private(json_answer(as_it_is(self._file(), self._view())))

    async def rehearse(self, request: Request) -> Response:
        try:
            question = WhatIfQuestion.of(await _body(request), as_it_is(self._file(), self._view()))
            now, then = scenarios(question, self._file())
            ran = await self._rehearsals.run(now, then, question.seeds)
            told = await asyncio.to_thread(answer, question, ran, self._planner)
        except ConfigError as error:
            return _private(json_answer({"error": str(error)}, 400))
        except RehearsalBusyError as error:
            response = json_answer({"error": str(error)}, 503)
            response.headers["retry-after"] = "5"
            return _private(response)
        except RehearsalError as error:
            return _private(json_answer({"error": str(error)}, 422))
        return _private(json_answer(told))


async def _body(request: Request) -> Mapping[str, Any]:
    """The object of a body; empty where it holds something else, or too much."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            return {}
    try:
        data = orjson.loads(bytes(body))
    except orjson.JSONDecodeError:
        data = None
    return data if isinstance(data, dict) else {}


def _sent(request: Request, asset: Asset, keep: str) -> Response:
    headers = {**_HEADERS, "cache-control": keep, "vary": "accept-encoding"}
    content = asset.content
    if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        content = asset.packed
        headers["content-encoding"] = "gzip"
    return Response(content, media_type=asset.media_type, headers=headers)


def _private(response: Response) -> Response:
    response.headers["cache-control"] = "no-store"
    return response


__all__ = ["web_routes"]
