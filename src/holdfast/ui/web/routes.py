"""The dashboard's routes on the operators' port: pages, sessions, what-if questions.

    GET  /            ─► /ui/
    GET  /ui/…        the page; each of its addresses gives the same one, and its script chooses
    GET  /ui/static/… its files
    GET, POST, DELETE /ui/session   who is signed in; sign in; sign out
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
from holdfast.control.access.guard import UI, UI_SESSION, json_answer
from holdfast.control.access.sessions import COOKIE, LASTS_S, Sessions, TooManyTriesError
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
    sessions: Sessions,
    file: Callable[[], FleetFile],
    view: Callable[[], Snapshot | None],
    planner: Planner,
) -> list[Route]:
    """Build the dashboard's routes for the operators' port, which shares its sessions.

    ``file`` is the config that runs and ``view`` the latest snapshot: a what-if starts from them.
    """
    web = _Web(sessions, file, view, planner)
    return [
        Route("/", web.home),
        Route(UI, web.home),
        Route(UI_SESSION, web.session),
        Route(UI_SESSION, web.sign_in, methods=["POST"]),
        Route(UI_SESSION, web.sign_out, methods=["DELETE"]),
        Route(f"{UI}/static/{{path:path}}", web.static),
        Route(f"{UI}/{{path:path}}", web.page),
        Route("/whatif", web.whatif),
        Route("/whatif", web.rehearse, methods=["POST"]),
    ]


class _Web:
    """One method for each path."""

    def __init__(
        self,
        sessions: Sessions,
        file: Callable[[], FleetFile],
        view: Callable[[], Snapshot | None],
        planner: Planner,
    ) -> None:
        self._sessions = sessions
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
        csrf = self._sessions.csrf(request.cookies.get(COOKIE))
        told = {"required": self._sessions.required, "signed_in": csrf is not None, "csrf": csrf}
        return _private(json_answer(told))

    async def sign_in(self, request: Request) -> Response:
        if not self._sessions.required:
            return _private(json_answer({"error": "no token is configured; nobody signs in"}, 409))
        token = (await _body(request)).get("token")
        if not isinstance(token, str) or not 0 < len(token) <= 4_096:
            return _private(json_answer({"error": 'the body is {"token": TOKEN}'}, 400))
        address = request.client.host if request.client is not None else ""
        try:
            cookie = self._sessions.sign_in(token, address)
        except TooManyTriesError as error:
            response = json_answer({"error": str(error)}, 429)
            response.headers["retry-after"] = f"{error.wait_s:.0f}"
            return _private(response)
        if cookie is None:
            return _private(json_answer({"error": "this is not the admin token"}, 401))
        response = json_answer({"signed_in": True, "csrf": self._sessions.csrf(cookie)})
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

    async def sign_out(self, request: Request) -> Response:
        self._sessions.sign_out(request.cookies.get(COOKIE, ""))
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
            ran = await self._rehearsals.run(now, then)
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
