"""The operators' port of a fleet on paper: the real guard, sessions and pages, invented facts.

It serves what ``tests/ui/fleets`` draws, with histories and events that fit, in a thread of its
own. A test changes ``fleet.view`` and every listener hears of it; what pages order is kept in
``fleet.orders``.
"""

import asyncio
import contextlib
import math
import socket
import sys
import threading
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.config.fleet_file import AdminSection, FleetFile
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.guard import Guard, json_answer
from holdfast.control.access.sessions import Sessions
from holdfast.core.view.snapshot import Snapshot
from holdfast.core.view.snapshot_changes import changes
from holdfast.planner import redundancy
from holdfast.planner.page import plans
from holdfast.ui.web.plans import plan_routes
from holdfast.ui.web.routes import web_routes

TESTS: Final = Path(__file__).resolve().parent.parent
if str(TESTS / "ui") not in sys.path:
    sys.path.append(str(TESTS / "ui"))

import fleets  # noqa: E402 it lies beside the tests of the terminal

TOKEN: Final = "correct horse battery staple"
OWN_TOKEN: Final = "that of the state directory"
GIB: Final = 1 << 30

FILE: Final = FleetFile.model_validate(
    {
        "models": [
            {
                "name": "llm-8b",
                "engine": "vllm",
                "endpoints": [
                    {"url": "http://10.0.0.1:8000", "zone": "eu-west-2a", "slots": 32},
                    {"url": "http://10.0.0.2:8000", "zone": "eu-west-2b", "slots": 32},
                ],
            },
            {"name": "org/tts", "engine": "vllm", "endpoints": ["http://10.0.0.3:8000"]},
        ]
    }
)


def token_hash(token: str) -> str:
    return "sha256:" + sha256(token.encode()).hexdigest()


class Fleet:
    """What the pages are told."""

    def __init__(self, view: Snapshot) -> None:
        self._view = view
        self.version = 1
        self.orders: list[tuple[str, Any]] = []
        self.refuse = ""  # why the next order is not taken on
        self.sign_in_code = lambda: ""  # of a link for the server that was built last
        self.moved = time.time() - fleets.AT  # the pictures' moment is fixed; pages show ages

    @property
    def view(self) -> Snapshot:
        return self._view

    @view.setter
    def view(self, view: Snapshot) -> None:
        self._view = view
        self.version += 1

    def incident(self, name: str) -> dict[str, Any] | None:
        if name not in {one.id for one in fleets.broken().incidents}:
            return None
        story = fleets.incident_page(name)
        for key in ("opened_at", "changed_at"):
            story[key] += self.moved
        for part in ("evidence", "consequences", "timeline"):
            story[part] = [{**one, "at": one["at"] + self.moved} for one in story[part]]
        return story

    def events(self, replica: str | None) -> list[dict[str, Any]]:
        found = [one for row in self._view.replicas for one in _life(row, time.time())]
        if replica is not None:
            found = [one for one in found if one["replica"] == replica]
        return sorted(found, key=lambda one: one["at"])

    def series(self, name: str, prefix: bool, since: float) -> dict[str, list[list[float]]]:
        now = time.time()
        times = [since + (now - since) * n / 120 for n in range(121)]
        known = self._known(now)
        chosen = [one for one in known if one == name or (prefix and one.startswith(name))]
        return {one: [[t, known[one](t)] for t in times] for one in chosen[:400]}

    def _known(self, now: float) -> dict[str, Any]:
        found: dict[str, Any] = {
            "fleet/all/requests_s": _wave(self._view.totals.get("requests_s", 40.0), 0.2, 0.0)
        }
        for place, row in enumerate(self._view.models):
            key = f"model/{row.name}"
            burn = row.burn or 0.4
            found[f"{key}/burn"] = lambda t, b=burn: max(0.1, b * (1 - (now - t) / 3600 * 0.9))
            found[f"{key}/requests_s"] = _wave(row.requests_s or 1.0, 0.3, place)
            found[f"{key}/errors_share"] = _wave(row.errors_share or 0.001, 0.3, place)
            found[f"{key}/waiting"] = _wave(row.waiting or 3.0, 0.5, place)
            found[f"{key}/tokens_s"] = _wave(row.tokens_s or 100.0, 0.2, place)
            found[f"{key}/kv_used"] = _wave(row.kv_used or 0.4, 0.1, place)
            found[f"{key}/prefix_hits"] = _wave(row.prefix_hits or 0.3, 0.1, place)
            found[f"{key}/ttft_s"] = _wave(row.ttft_s or 0.3, 0.2, place)
            found[f"{key}/drift"] = lambda t: 61 + 2 * math.sin(t / 90) + 9 * (t > now - 1200)
            found[f"{key}/baseline"] = lambda _: 61.0
            found[f"{key}/cusum"] = lambda t: max(0.0, (t - now + 1200) / 50)
            found[f"{key}/cusum_limit"] = lambda _: 20.0
        for place, row in enumerate(self._view.replicas[:40]):
            key = f"replica/{row.id}"
            found[f"{key}/canary_s"] = _wave(row.canary_s or 0.2, 0.3, place)
            found[f"{key}/ttft_s"] = _wave(row.ttft_s or 0.3, 0.3, place)
            found[f"{key}/tpot_s"] = _wave(0.02, 0.2, place)
            used = float(row.used_bytes or 8 * GIB)
            slope = 41 * (1 << 20) / 60 if row.exhausted_in_s else 0.0
            found[f"{key}/used_bytes"] = lambda t, u=used, s=slope: u - s * (now - t)
            found[f"{key}/inflight"] = _wave(row.inflight or 4.0, 0.5, place)
            found[f"{key}/kv_used"] = _wave(row.kv_used or 0.4, 0.2, place)
            found[f"{key}/tokens_s"] = _wave(row.tokens_s or 300.0, 0.2, place)
        return found


def _wave(middle: float, swing: float, phase: float):
    return lambda t: middle * (1 + swing * math.sin(t / 300 + phase) + 0.05 * math.sin(t / 17))


def _event(row, at, what, reason="", kind=None):
    return {
        "at": at,
        "model": row.model,
        "replica": row.id,
        "what": what,
        "reason": reason,
        "kind": kind,
    }


def _life(row, now):
    """A deployment forty minutes ago, in three waves, and what then became of it."""
    wave = sum(map(ord, row.id)) % 3
    began = now - 2_900 + wave * 260
    told = [
        _event(row, now - 3_500, "ready", "it answered its canary"),
        _event(row, began - 60, "draining", "a new revision"),
        _event(row, began, "loading", "reads its weights"),
        _event(row, began + 190 + 20 * wave, "warming", "weights are in memory"),
        _event(row, began + 220 + 20 * wave, "ready", "three canaries in a row were right"),
    ]
    if row.state == "dead":
        told.append(_event(row, now - 545, "incident opened", "undersized", "runtime"))
        for n in range(11):
            at = now - 540 + n * 49
            told += [
                _event(row, at, "dead", "exit 137: killed for memory", "runtime"),
                _event(row, at + 4, "loading", "started anew"),
                _event(row, at + 26, "ready", "it answered its canary"),
            ]
        told.append(_event(row, now - 3, "dead", "exit 137: killed for memory", "runtime"))
    elif row.state not in ("ready", "running"):
        told += [
            _event(row, now - 190, "breaker_opened", "5 failures in a row"),
            _event(row, now - 184, row.state, row.reason, "runtime"),
            _event(row, now - 100, "breaker_closed", "trial succeeded"),
        ]
    return told


class _Pages:
    """The paths of the operators' port that pages use."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def routes(self) -> list[Route]:
        replica = "/replicas/{id:path}"
        orders = [
            Route(f"{replica}/{what}", self.order, methods=["POST"])
            for what in ("drain", "undrain", "restart")
        ]
        return [
            Route("/livez", self.livez),
            Route("/view", self.view),
            Route("/view/stream", self.stream),
            Route("/history", self.history),
            Route("/events", self.events),
            Route("/status", self.status),
            Route("/incidents", self.incidents),
            Route("/incidents/{id}", self.incident),
            Route("/incidents/{id}/export", self.export),
            Route("/incidents/{id}/close", self.order, methods=["POST"]),
            Route(f"{replica}/logs", self.logs),
            Route(f"{replica}/canaries", self.canaries),
            *orders,
            Route("/models/{id:path}/scale", self.order, methods=["POST"]),
        ]

    def _told(self) -> Snapshot:
        return replace(self.fleet.view, at=time.time(), version=self.fleet.version)

    async def livez(self, _: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def view(self, _: Request) -> Response:
        return Response(orjson.dumps(self._told()), media_type="application/json")

    async def stream(self, _: Request) -> Response:
        async def pieces():
            told = self._told()
            yield b"event: view\ndata: " + orjson.dumps(told) + b"\n\n"
            while True:
                if told.version != self.fleet.version:
                    before, told = told, self._told()
                    differing = orjson.dumps(changes(before, told))
                    yield b"event: changes\ndata: " + differing + b"\n\n"
                await asyncio.sleep(0.02)

        return StreamingResponse(pieces(), media_type="text/event-stream")

    async def history(self, request: Request) -> Response:
        query = request.query_params
        prefix = query.get("match") == "prefix"
        found: dict[str, Any] = {}
        for name in query.getlist("series"):
            found |= self.fleet.series(name, prefix, float(query["since"]))
        return json_answer({"series": found})

    async def events(self, request: Request) -> Response:
        found = self.fleet.events(request.query_params.get("replica"))
        return json_answer({"events": found[-int(request.query_params.get("limit", "1000")) :]})

    async def canaries(self, request: Request) -> Response:
        name = request.path_params["id"]
        row = next((row for row in self.fleet.view.replicas if row.id == name and row.routed), None)
        if row is None:
            return json_answer({"error": f"no replica has the id {name!r}"}, 404)
        now = time.time()
        told = [
            {"at": now - 4 - 10 * n, "verdict": "pass", "detail": "", "latency_s": row.canary_s}
            for n in range(20)
        ]
        if row.state != "ready":
            late = {"verdict": "timeout", "detail": "no answer in 10 s", "latency_s": None}
            told[:2] = [one | late for one in told[:2]]
            told[2] |= {"verdict": "slow", "detail": "later than its peers"}
        return json_answer({"canaries": told[::-1]})

    async def status(self, _: Request) -> Response:
        rows = [{"id": row.id} for row in self.fleet.view.replicas]
        return json_answer({"epoch": 1, "replicas": rows})

    async def incidents(self, _: Request) -> Response:
        return json_answer({"incidents": []})

    async def incident(self, request: Request) -> Response:
        found = self.fleet.incident(request.path_params["id"])
        return json_answer(found or {"error": "no incident has this id"}, 200 if found else 404)

    async def export(self, _: Request) -> Response:
        return Response(b"{}\n", media_type="application/x-ndjson")

    async def logs(self, request: Request) -> Response:
        if request.path_params["id"].startswith("bge"):
            told = "Holdfast did not start this replica and has no log of it"
            return json_answer({"error": told}, 404)
        lines = [f"14:2{n // 60}:{n % 60:02d} INFO served 1 request in 0.31 s" for n in range(90)]
        return PlainTextResponse("\n".join(lines) + "\n")

    async def order(self, request: Request) -> Response:
        body = await request.body()
        self.fleet.orders.append((request.url.path, orjson.loads(body) if body else None))
        if self.fleet.refuse:
            return json_answer({"error": self.fleet.refuse}, 409)
        return json_answer({"accepted": True, "reason": "it begins now"}, 202)


def build(fleet: Fleet, token: str | None = None, clock: Any = time.monotonic) -> Starlette:
    section = AdminSection(token=token_hash(token) if token is not None else None)
    access = AdminAccess(lambda: section, sessions=Sessions(clock))
    access.accept_own(token_hash(OWN_TOKEN))
    own = access.by_token(OWN_TOKEN, "127.0.0.1")
    assert own is not None
    fleet.sign_in_code = lambda: access.sessions.link(own)
    routes = web_routes(access, lambda: FILE, lambda: fleet.view, redundancy)
    routes += plan_routes(plans(), limit_s=600.0)  # they give way to all that runs beside them
    app = Starlette(routes=[*_Pages(fleet).routes(), *routes])
    app.add_middleware(Guard, access=access)
    return app


class _Server(uvicorn.Server):
    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


@contextlib.contextmanager
def served(app: Starlette):
    """The address of the app, which runs in a thread until the end of the block."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
