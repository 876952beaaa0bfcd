"""The admin port's HTTP paths: answers to questions and a few orders, inside control.

An order is accepted or refused, with a reason, at once; its progress is shown by ``/status`` and
``/events``. Waiting for the end instead was rejected: a drain takes minutes, and if the connection
broke meanwhile the caller would not know what became of the order.

``control/access/guard.py`` decides which requests are allowed, ``openapi.py`` describes each path
for programs.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from holdfast.config.fleet_file import AdminSection
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.audit import LIMIT_DEFAULT, LIMIT_MAX
from holdfast.control.access.guard import Guard, json_answer
from holdfast.control.access.roles import OPEN, READY
from holdfast.control.admin.baselines import BaselineAnswers, baseline_routes
from holdfast.control.admin.logs import follow, read_tail
from holdfast.control.admin.openapi import openapi_document
from holdfast.control.admin.openapi_schemas import CanaryLine, ReloadAnswer, StatusAnswer
from holdfast.control.fleet.disturbances import ChaosDisabledError
from holdfast.control.fleet.loop import Happened
from holdfast.control.incidents.fact_reports import REPORT_BYTES_MAX, BadReportError, TooMuchError
from holdfast.control.lookup_errors import UnknownModelError, UnknownReplicaError
from holdfast.control.view.live_view import LiveView, view_routes
from holdfast.core.diagnose.version_bill import VersionLine
from holdfast.core.types import Decision
from holdfast.ports import UnreadableError

REPLICAS_MAX: Final = 256  # of one model, as in the fleet file
EVENTS_DEFAULT: Final = 1_000
EVENTS_MAX: Final = 5_000  # one answer is built in the loop that probes replicas
INCIDENTS_DEFAULT: Final = 100
INCIDENTS_MAX: Final = 1_000
STAGES: Final = ("open", "mending", "closed")
LINES_DEFAULT: Final = 200
LINES_MAX: Final = 10_000
FOLLOWERS_MAX: Final = 16  # each costs a look at its file four times a second
BODY_BYTES_MAX: Final = 64 << 10

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LOG_HEADERS: Final = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
_NOT_FOLLOWED: Final = "its platform has this log, and it is not followed here; ask without follow"
_NO_LOG: Final = "Holdfast did not start this replica and has no log of it"


class IncidentAnswers(BaselineAnswers, Protocol):
    """The questions and orders of the admin port about incidents and baselines.

    ``IncidentTracker`` implements it.
    """

    def listing(self, limit: int, stage: str | None = None) -> list[dict[str, Any]]:
        """The latest incidents, newest last, with counts in place of their long parts.

        ``stage`` is ``open`` (all not closed), ``mending``, ``closed`` or None for all.
        """

    def get(self, name: str) -> dict[str, Any] | None:
        """One incident with all its parts; None: there is no such incident."""

    async def export(self, name: str) -> list[bytes] | None:
        """One incident and its facts as lines of JSON, for a replay; None: no such incident."""

    def versions(self) -> list[VersionLine]:
        """One line per replica: what it runs on, how it differs from its peers, and warnings."""

    def close(self, name: str) -> tuple[bool, str]:
        """Close an incident on an operator's order; whether it was open, and a sentence."""


class AdminAnswers(Protocol):
    """Answers the admin port's questions and accepts its orders; ``AdminService`` implements it.

    Orders return whether they were accepted, and why (not). Orders that name an unknown replica or
    model raise ``UnknownReplicaError`` or ``UnknownModelError``.
    """

    @property
    def incidents(self) -> IncidentAnswers:
        """The incidents, open and stored, which can also be closed."""

    @property
    def view(self) -> LiveView:
        """The joined view of replicas, hosts and queues."""

    def problems(self) -> list[str]:
        """Why the fleet file on disk was refused, one text each; empty: it is the one in use."""

    def ready(self) -> tuple[bool, str]:
        """Whether some gateway is ready and heard from lately, and the text for ``/readyz``."""

    def replica_ready(self, model: str, replica_id: str) -> Decision | None:
        """What a replica's readiness probe shall say, with the reason; None: no such replica."""

    def model_ready(self, model: str) -> tuple[bool, str]:
        """Whether a replica of this model is READY, and why (not); False for unknown models."""

    def status(self) -> StatusAnswer:
        """The answer to ``/status``: gateways, replicas, models, config problems and so on."""

    def events(self, limit: int = EVENTS_DEFAULT, replica: str | None = None) -> list[Happened]:
        """The newest stored events, at most ``limit``, the newest last; all or of one replica."""

    def gpus(self) -> dict[str, Any]:
        """The last report of this host's GPUs; asking the driver now would block the loop."""

    def cost(self) -> dict[str, Any]:
        """GPU-seconds, tokens and their price since this control began."""

    def keys(self) -> dict[str, Any]:
        """All tenants' API keys by name, with expiry and last use; never the key itself."""

    def metrics(self) -> str:
        """All counters and gauges of control and the gateways as Prometheus text."""

    def log_path(self, replica_id: str) -> Path | None:
        """The path of a launched replica's log file; None: not launched here, or no log file."""

    def canaries(self, replica_id: str) -> list[CanaryLine]:
        """The results of a replica's last canaries, at most 20, the newest last."""

    async def log_tail(self, replica_id: str, lines: int) -> bytes | None:
        """Fetch a replica's last log lines from its platform; None: no platform has its log."""

    async def explain(self, request_id: str) -> bytes | None:
        """The recorded story of a recent request as JSON; None: no gateway has it."""

    async def reload(self) -> bool:
        """Read the fleet file now and apply it; False if it was refused."""

    async def drain(self, replica_id: str) -> tuple[bool, str]:
        """Order a replica drained: no new requests, and out of service until undrained."""

    async def undrain(self, replica_id: str) -> tuple[bool, str]:
        """Order a drained replica back into service."""

    async def restart(self, replica_id: str) -> tuple[bool, str]:
        """Order a replica drained and its process started again."""

    async def disturb(
        self, replica_id: str, kind: str, seconds: float, url: str
    ) -> tuple[bool, str]:
        """Begin a deliberate failure of a replica (chaos test) for some seconds.

        Raises ``ChaosDisabledError`` where the fleet file does not enable chaos.
        """

    async def undisturb(self, replica_id: str) -> tuple[bool, str]:
        """End the deliberate failure of a replica; False if there is none."""

    async def scale(self, model: str, replicas: int) -> tuple[bool, str]:
        """Set the wanted number of replicas of a launched model."""

    def report(self, report: object) -> int:
        """Accept the facts of a report, all or none; return how many.

        Raises ``BadReportError`` or ``TooMuchError``.
        """


def build_admin(
    facts: AdminAnswers,
    section: AdminSection,
    more: Sequence[BaseRoute] = (),
    *,
    access: AdminAccess | None = None,
) -> Starlette:
    """Build the ASGI application of the admin port: its routes behind the ``Guard``.

    ``more`` are further routes, guarded, too; ``access`` knows who may do what, by default as
    ``section`` says.
    """
    access = access or AdminAccess(lambda: section)
    app = Starlette(
        routes=[*_Admin(facts, access).routes(), *more],
        exception_handlers={
            HTTPException: _refused,
            ChaosDisabledError: _forbidden,
            UnknownReplicaError: _unknown,
            UnknownModelError: _unknown,
        },
    )
    app.add_middleware(Guard, access=access)
    return app


class _Admin:
    """The handlers of the admin port, one method for each path."""

    def __init__(self, facts: AdminAnswers, access: AdminAccess) -> None:
        self._facts = facts
        self._access = access
        self._followers = 0
        self._description = orjson.dumps(openapi_document()) + b"\n"

    def routes(self) -> list[Route]:
        """The routes of all handlers. Ids and names of models may hold slashes: hence ``path``."""
        replica = "/replicas/{replica_id:path}"
        facts = self._facts
        return [
            Route(OPEN, self.livez),
            Route(READY, self.readyz),
            Route(f"{READY}/{{model:path}}", self.readyz_model),
            Route("/metrics", self.metrics),
            Route("/status", self.status),
            Route("/events", self.events),
            Route("/incidents", self.incidents),
            Route("/incidents/{incident_id}", self.incident),
            Route("/incidents/{incident_id}/export", self.export),
            Route("/incidents/{incident_id}/close", self.close, methods=["POST"]),
            *view_routes(lambda: facts.view),
            *baseline_routes(lambda: facts.incidents),
            Route("/gpus", self.gpus),
            Route("/versions", self.versions),
            Route("/cost", self.cost),
            Route("/keys", self.keys),
            Route("/openapi.json", self.openapi),
            Route("/audit", self.audit),
            Route("/explain/{request_id:path}", self.explain),
            Route("/reload", self.reload, methods=["POST"]),
            Route(f"{replica}/logs", self.logs),
            Route(f"{replica}/canaries", self.canaries),
            Route(f"{replica}/drain", _replica_order(facts.drain), methods=["POST"]),
            Route(f"{replica}/undrain", _replica_order(facts.undrain), methods=["POST"]),
            Route(f"{replica}/restart", _replica_order(facts.restart), methods=["POST"]),
            Route(f"{replica}/disturb", self.disturb, methods=["POST"]),
            Route(f"{replica}/undisturb", _replica_order(facts.undisturb), methods=["POST"]),
            Route("/models/{model:path}/scale", self.scale, methods=["POST"]),
            Route("/facts", self.report, methods=["POST"]),
        ]

    # --- questions -------------------------------------------------------------------------------

    async def livez(self, _: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(self, _: Request) -> Response:
        return _verdict(*self._facts.ready())

    async def readyz_model(self, request: Request) -> Response:
        model, replica = request.path_params["model"], request.query_params.get("replica")
        if replica is None:
            return _verdict(*self._facts.model_ready(model))
        # In a form that no proxy's own error has: an agent must not take that for a verdict.
        answer = self._facts.replica_ready(model, replica)
        if answer is None:
            return json_answer({"replica": replica, "known": False}, 404)
        told = {"replica": replica, "known": True, "ready": answer.allowed, "why": answer.reason}
        return json_answer(told, 200 if answer.allowed else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._facts.metrics(), media_type=_METRICS_TYPE)

    async def status(self, _: Request) -> Response:
        return json_answer(self._facts.status())

    async def events(self, request: Request) -> Response:
        limit = _number(request, "limit", EVENTS_DEFAULT, EVENTS_MAX)
        replica = request.query_params.get("replica")
        return json_answer({"events": self._facts.events(limit=limit, replica=replica)})

    async def incidents(self, request: Request) -> Response:
        limit = _number(request, "limit", INCIDENTS_DEFAULT, INCIDENTS_MAX)
        stage = request.query_params.get("stage")
        if stage is not None and stage not in STAGES:
            raise HTTPException(400, f"stage is one of {', '.join(STAGES)}")
        found = await asyncio.to_thread(self._facts.incidents.listing, limit, stage)
        return json_answer({"incidents": found})

    async def incident(self, request: Request) -> Response:
        found = self._facts.incidents.get(request.path_params["incident_id"])
        return _no_incident() if found is None else json_answer(found)

    async def export(self, request: Request) -> Response:
        lines = await self._facts.incidents.export(request.path_params["incident_id"])
        if lines is None:
            return _no_incident()
        body = b"\n".join(lines) + b"\n"
        return Response(body, media_type="application/x-ndjson")

    async def gpus(self, _: Request) -> Response:
        return json_answer(self._facts.gpus())

    async def versions(self, _: Request) -> Response:
        return json_answer({"versions": self._facts.incidents.versions()})

    async def cost(self, _: Request) -> Response:
        return json_answer(self._facts.cost())

    async def keys(self, _: Request) -> Response:
        return json_answer(self._facts.keys())

    async def audit(self, request: Request) -> Response:
        limit = _number(request, "limit", LIMIT_DEFAULT, LIMIT_MAX)
        audit = self._access.audit
        rows = await asyncio.to_thread(audit.listing, limit) if audit is not None else []
        return json_answer({"orders": rows})

    async def openapi(self, _: Request) -> Response:
        return Response(self._description, media_type="application/json")

    async def explain(self, request: Request) -> Response:
        story = await self._facts.explain(request.path_params["request_id"])
        if story is None:
            told = "no gateway knows this request; only recent ones are kept"
            return json_answer({"error": told}, 404)
        return Response(story, media_type="application/json")

    async def canaries(self, request: Request) -> Response:
        found = self._facts.canaries(request.path_params["replica_id"])
        return json_answer({"canaries": found})

    async def logs(self, request: Request) -> Response:
        replica_id = request.path_params["replica_id"]
        lines = _number(request, "lines", LINES_DEFAULT, LINES_MAX)
        path = self._facts.log_path(replica_id)
        follows = bool(_number(request, "follow", 0, 1))
        if path is None:
            return await self._elsewhere(replica_id, lines, follows=follows)
        if follows:
            if self._followers >= FOLLOWERS_MAX:
                told = f"{self._followers} clients follow logs already; no more can"
                return json_answer({"error": told}, 503)
            self._followers += 1
            return _Endless(self._followed(replica_id, lines), self._one_follower_less)
        try:
            text = await asyncio.to_thread(read_tail, path, lines)
        except OSError as error:
            told = f"the log cannot be read: {error.strerror or type(error).__name__}"
            return json_answer({"error": told}, 500)
        return Response(text, media_type="text/plain", headers=_LOG_HEADERS)

    async def _elsewhere(self, replica_id: str, lines: int, *, follows: bool) -> Response:
        """Answer with the log of a replica that control did not launch, from its platform."""
        try:
            text = await self._facts.log_tail(replica_id, 0 if follows else lines)
        except UnreadableError as error:
            told = f"the log cannot be read: {error}"
            return json_answer({"error": told}, error.status if error.status in {404, 503} else 500)
        if text is None:
            return json_answer({"error": _NO_LOG}, 404)
        if follows:
            return json_answer({"error": _NOT_FOLLOWED}, 409)
        return Response(text, media_type="text/plain", headers=_LOG_HEADERS)

    async def _followed(self, replica_id: str, lines: int) -> AsyncGenerator[bytes]:
        def log_path() -> Path | None:
            try:
                return self._facts.log_path(replica_id)
            except UnknownReplicaError:
                return None

        pieces = follow(log_path, lines)
        try:
            async for piece in pieces:
                yield piece
        except OSError as error:  # the answer has begun: its last line can say it, a status cannot
            yield f"\n(the log cannot be read: {error.strerror})\n".encode()
        finally:
            await pieces.aclose()

    def _one_follower_less(self) -> None:
        self._followers -= 1

    # --- orders ----------------------------------------------------------------------------------

    async def reload(self, _: Request) -> Response:
        accepted = await self._facts.reload()
        epoch = self._facts.status()["epoch"]
        told: ReloadAnswer = {
            "accepted": accepted,
            "epoch": epoch,
            "problems": self._facts.problems(),
        }
        return json_answer(told, 200 if accepted else 422)

    async def close(self, request: Request) -> Response:
        incident_id = request.path_params["incident_id"]
        if self._facts.incidents.get(incident_id) is None:
            return _no_incident()
        return _taken(*self._facts.incidents.close(incident_id))

    async def disturb(self, request: Request) -> Response:
        data = await _json_of(request)
        kind, lasts, url = data.get("kind"), data.get("seconds"), data.get("url", "")
        named = isinstance(kind, str) and isinstance(url, str)
        if not named or isinstance(lasts, bool) or not isinstance(lasts, int | float):
            told = 'the body is {"kind": KIND, "seconds": N}, and "url" for a detour'
            raise HTTPException(400, told)
        replica = request.path_params["replica_id"]
        return _taken(*await self._facts.disturb(replica, str(kind), float(lasts), url))

    async def scale(self, request: Request) -> Response:
        wanted = await _wanted_replicas(request)
        return _taken(*await self._facts.scale(request.path_params["model"], wanted))

    async def report(self, request: Request) -> Response:
        report = await _json_of(request, REPORT_BYTES_MAX)
        try:
            return json_answer({"taken": self._facts.report(report)}, 202)
        except BadReportError as error:
            raise HTTPException(400, str(error)) from error
        except TooMuchError as error:
            wait = {"retry-after": f"{error.wait_s:.0f}"}
            raise HTTPException(429, str(error), wait) from error


class _Endless(StreamingResponse):
    """A streamed text response that ends, and closes its source, when the client disconnects."""

    def __init__(self, pieces: AsyncGenerator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(pieces, media_type="text/plain", headers=_LOG_HEADERS)
        self._pieces = pieces
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response's pieces until the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
            await self._pieces.aclose()


def _replica_order(
    order: Callable[[str], Awaitable[tuple[bool, str]]],
) -> Callable[[Request], Awaitable[Response]]:
    async def give(request: Request) -> Response:
        return _taken(*await order(request.path_params["replica_id"]))

    return give


# --- what was asked -------------------------------------------------------------------------------


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) > most:
        raise HTTPException(400, f"{name} is a number from 0 to {most}")
    return int(text)


async def _json_of(request: Request, most: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """Read a request's body as a JSON object; an empty one where it holds something else."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise HTTPException(413, f"the body is larger than {most} bytes")
    try:
        data = orjson.loads(bytes(body))
    except orjson.JSONDecodeError:
        data = None
    return data if isinstance(data, dict) else {}


async def _wanted_replicas(request: Request) -> int:
    data = await _json_of(request)
    wanted = data.get("replicas") if len(data) == 1 else None
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= REPLICAS_MAX:
        told = f'the body is {{"replicas": N}} with N from 0 to {REPLICAS_MAX}'
        raise HTTPException(400, told)
    return wanted


# --- what is answered -----------------------------------------------------------------------------


def _verdict(ready: bool, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 200 if ready else 503)


def _no_incident() -> Response:
    return json_answer({"error": "no incident has this id, or it is not kept any more"}, 404)


def _taken(accepted: bool, why: str) -> Response:
    """The response to an order: 202, it begins now; 409, it cannot be done in the present state."""
    if not accepted:
        return json_answer({"error": why}, 409)
    return json_answer({"accepted": True, "reason": why}, 202)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = json_answer({"error": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _forbidden(_: Request, error: Exception) -> Response:
    """403: neither waiting nor another order helps; the fleet file has to allow it first."""
    return json_answer({"error": str(error)}, 403)


async def _unknown(_: Request, error: Exception) -> Response:
    return json_answer({"error": str(error)}, 404)


__all__ = ["AdminAnswers", "IncidentAnswers", "build_admin"]
