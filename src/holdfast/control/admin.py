"""The operators' port: plain questions and one order, inside the control process.

Two guards. A listener on loopback answers only requests whose Host is loopback too: a web page that
an operator visits could otherwise have its own name resolve to 127.0.0.1 and read everything here.
And where a token is configured every path but ``/livez`` asks for it; its hash is compared, in
constant time, so neither the file nor the memory of this process holds the token.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final, Protocol

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from holdfast.config.fleet_file import AdminSection
from holdfast.control.loop import Happened

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPEN: Final = "/livez"


class Facts(Protocol):
    """Whom the answers come from; ``Control`` is one."""

    def problems(self) -> list[str]:
        """Why the file as it is now was refused."""

    def ready(self) -> tuple[bool, str]:
        """Whether clients are served."""

    def model_ready(self, model: str) -> tuple[bool, str]:
        """Whether somebody serves this model."""

    def status(self) -> dict[str, Any]:
        """Everything."""

    def events(self) -> list[Happened]:
        """Recent notices, the oldest first."""

    def metrics(self) -> str:
        """Prometheus text."""

    async def explain(self, request_id: str) -> bytes | None:
        """A request's story as JSON."""

    async def reload(self) -> bool:
        """Read the file again."""


def build_admin(facts: Facts, section: AdminSection) -> Starlette:
    """The application."""

    async def livez(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_: Request) -> Response:
        return _verdict(*facts.ready())

    async def readyz_model(request: Request) -> Response:
        return _verdict(*facts.model_ready(request.path_params["model"]))

    async def metrics(_: Request) -> Response:
        return Response(facts.metrics(), media_type=_METRICS_TYPE)

    async def status(_: Request) -> Response:
        return _json(facts.status())

    async def events(_: Request) -> Response:
        return _json({"events": facts.events()})

    async def explain(request: Request) -> Response:
        story = await facts.explain(request.path_params["request_id"])
        if story is None:
            return _json({"error": "no gateway knows this request; only recent ones are kept"}, 404)
        return Response(story, media_type="application/json")

    async def reload(_: Request) -> Response:
        accepted = await facts.reload()
        epoch = facts.status()["epoch"]
        told = {"accepted": accepted, "epoch": epoch, "problems": facts.problems()}
        return _json(told, 200 if accepted else 422)

    app = Starlette(
        routes=[
            Route(_OPEN, livez),
            Route("/readyz", readyz),
            Route("/readyz/{model:path}", readyz_model),
            Route("/metrics", metrics),
            Route("/status", status),
            Route("/events", events),
            Route("/explain/{request_id:path}", explain),
            Route("/reload", reload, methods=["POST"]),
        ]
    )
    app.add_middleware(_Guard, loopback=section.address.loopback, token=section.token)
    return app


class _Guard:
    """Refuses whoever may not ask, before anything else looks at the request."""

    def __init__(self, app: Any, *, loopback: bool, token: str | None) -> None:
        self._app = app
        self._loopback = loopback
        self._digest = bytes.fromhex(token.removeprefix("sha256:")) if token else None

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(Request(scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if self._loopback and not _is_loopback(request.headers.get("host", "")):
            return _json({"error": "the Host of this request is not this machine"}, 421)
        if self._digest is None or request.url.path == _OPEN:
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = sha256(key.encode("utf-8", "surrogateescape")).digest()
        if scheme.lower() == "bearer" and hmac.compare_digest(given, self._digest):
            return None
        response = _json({"error": "the admin token is missing or wrong"}, 401)
        response.headers["www-authenticate"] = "Bearer"
        return response


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _verdict(ready: bool, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 200 if ready else 503)


def _json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content) + b"\n", status, media_type="application/json")


__all__ = ["Facts", "build_admin"]
