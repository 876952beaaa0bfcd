"""Accepts reports of agents on other hosts and presents them as one source of the view.

    POST /agents/NAME ─► size, pace, schema ─► its last reading, in control's time ─► one Reading
                                           └─► lines, phases, GPU faults ─► saw(fact)

Showing that an agent fell silent is the main purpose. After three of its own periods its part says
for how long no report came and its host is marked; after ten minutes its rows are removed, with a
note, because a host that was shut down on purpose must not be shown for ever. An agent that reports
that it stops is removed at once.

Times of other hosts are corrected in ``agent_readings.py``. Two agents of one name would overwrite
each other's rows: the later one is accepted, the other gets an error.

``AgentDoor`` accepts the agents' own tokens on these paths only: a token that can report for a host
should not be able to drain a fleet. ``agent_claims.py`` says of which host and replicas each agent
may speak; the rest of what it says is left out and counted.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.control.access.guard import CERTIFIED, json_answer
from holdfast.control.view.agent_claims import AgentGrant, bounded, claims_refused, grant_of
from holdfast.control.view.agent_readings import AgentRecord, faded, in_our_time, shown, summed
from holdfast.core.diagnose.facts import Fact, GpuFault, LineSeen, PhaseSeen
from holdfast.core.types import require
from holdfast.core.view.layers import Group, Host, Part, Placed, Reading
from holdfast.sources.agent_report import (
    REPORT_BYTES_MAX,
    AgentReport,
    BadAgentReportError,
    ReportedEvent,
    ReportedLine,
    ReportedPhase,
    decode,
)

PATH: Final = "/agents/"
NOTES_MAX: Final = 16
_FIX: Final = (
    "give each its own under 'agents' of the source; a shared one ends with a later version"
)
LATE_S: Final = 120.0  # a thing that is older when it arrives explains nothing that still happens
BODY_S: Final = 10.0  # for a report to come in
_CLOCK_S: Final = 1.0  # a difference between clocks that changes by less is the same difference
_BURST: Final = 10.0  # reports of one agent at once, after an outage
_NOTE_MAX: Final = 300
_NOBODY: Final = ("nobody",)  # a part that no rows hang on

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_GRANT: Final = "holdfast.agent"  # of the ASGI scope: whose own token opened

_log = structlog.get_logger("holdfast.control.view.agents")


@dataclass(slots=True, frozen=True)
class AgentsConfig:
    """Tokens of agents, limits on their reports, and when one counts as silent or gone.

    Checked when built: raises ``ConfigError``.
    """

    token: str | None = None  # the hash of a token that all agents share; None: they have their own
    agents: tuple[AgentGrant, ...] = ()  # agents with a token each, and of whom they may speak
    silent_periods: float = 3.0  # one lost report is a network's day, three are an agent's end
    leaves_after_s: float = 600.0  # as long as a host may take to boot again
    agents_max: int = 256  # names; each keeps one reading
    reports_per_s: float = 2.0  # of one agent; the shortest period is 1 s

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("silent_periods", self.silent_periods, 2, 100),
            ("leaves_after_s", self.leaves_after_s, 10, 86_400),
            ("agents_max", self.agents_max, 1, 10_000),
            ("reports_per_s", self.reports_per_s, 0.1, 100),
        ):
            fix = f"use {least} to {most}"
            require(least <= value <= most, f"agents.{name}", f"is {value}", fix)


class RefusedError(Exception):
    """An agent's report was refused; ``status`` is the HTTP status to answer.

    ``wait_s``: when to try again, where that helps.
    """

    def __init__(self, status: int, told: str, wait_s: float | None = None) -> None:
        super().__init__(told)
        self.status = status
        self.wait_s = wait_s


class AgentInbox:
    """Keeps the last report of each agent, and passes events in reports to ``saw`` as facts.

    It is the ``Source`` that the view reads them from. Agents that leave or are silent for long are
    removed.
    """

    kind = "agent"

    def __init__(
        self,
        name: str = "agents",
        config: AgentsConfig | None = None,
        *,
        saw: Callable[[Fact], None] = lambda _: None,
        replicas: Callable[[], Collection[str]] | None = None,
        launched: Callable[[], Collection[str]] = tuple,
        period_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.period_s = period_s
        self.config = config or AgentsConfig()
        self._saw = saw
        self._replicas = replicas  # whom facts may speak of; None: of anybody
        self._launched = launched  # replicas of control's own host
        self._clock = clock
        self._wall = wall
        self._agents: dict[str, AgentRecord] = {}
        self._notes: deque[tuple[float, str]] = deque(maxlen=NOTES_MAX)
        self.taken = self.refused = 0  # reports
        self.facts = self.strange = self.late = 0  # things: told on, of nobody we know, too old
        self.foreign = 0  # rows and things of others' hosts and replicas, which were left out
        self._warned = False

    # --- what comes in ---------------------------------------------------------------------------

    def take(
        self,
        name: str,
        body: bytes,
        grant: AgentGrant | None = None,
        certified: Collection[str] = (),
    ) -> None:
        """Accept one agent's report (JSON), replacing its last one, or raise ``RefusedError``.

        ``grant`` is that of the agent's own token; None: it came with the shared token.
        ``certified``: the names of the caller's certificate, in lower case. Rows and events of
        others' hosts and replicas are left out and counted.
        """
        try:
            self._check_certificate(grant, certified)
            self._take(name, body, grant)
        except RefusedError:
            self.refused += 1
            raise
        self.taken += 1

    def _take(self, name: str, body: bytes, grant: AgentGrant | None) -> None:
        if _NAME.fullmatch(name) is None:
            raise RefusedError(400, "name: use letters, digits, '.', '_' and '-', up to 63")
        self._check_name(name, grant)
        known = self._agents.get(name)
        if known is not None:
            self._spend(known)
        elif len(self._agents) >= self.config.agents_max:
            raise RefusedError(503, f"{len(self._agents)} agents report; no more are taken", 60.0)
        try:
            report = decode(body)
        except BadAgentReportError as error:
            raise RefusedError(400, str(error)) from error
        if known is not None and report.life == known.before:
            told = f"another agent reports as {name!r}: give each its own --name"
            self._note(told)
            raise RefusedError(409, told)
        others = [one.report for other, one in self._agents.items() if other != name]
        report, refused = bounded(report, grant, self.config.agents, others, self._launched())
        if refused:
            self.foreign += refused
            self._note(claims_refused(name))
        self._keep(name, known, report)

    def _check_certificate(self, grant: AgentGrant | None, certified: Collection[str]) -> None:
        """Refuse a token that came without its agent's certificate: it may be stolen."""
        wanted = grant.certificate if grant is not None else ""
        if grant is None or not wanted or wanted.lower() in certified:
            return
        self.foreign += 1
        self._note(f"the token of {grant.name} was used without its certificate")
        told = f"the agent {grant.name!r} has to show a certificate for {wanted!r}"
        raise RefusedError(403, f"{told}: see --certificate and --key of 'holdfast agent'")

    def _check_name(self, name: str, grant: AgentGrant | None) -> None:
        """Refuse a report under another's name: a token speaks for one agent."""
        if grant is not None:
            if name == grant.name:
                return
            told = (
                f"this token is that of the agent {grant.name!r}, which cannot report as {name!r}"
            )
            self.foreign += 1
            self._note(f"the token of {grant.name} was used to report as another")
            raise RefusedError(403, told)
        if any(name == one.name for one in self.config.agents):
            self.foreign += 1
            raise RefusedError(403, f"{name!r} has a token of its own, and this is another")
        if not self._warned:
            self._warned = True
            _log.warning("agents share a token", fix=_FIX)

    def _spend(self, agent: AgentRecord) -> None:
        now = self._clock()
        earned = (now - agent.arrived) * self.config.reports_per_s
        if min(_BURST, agent.tokens + earned) < 1.0:
            pace = f"more than {self.config.reports_per_s:g} reports a second"
            raise RefusedError(429, f"{pace}; send them less often", 5.0)

    def _keep(self, name: str, known: AgentRecord | None, report: AgentReport) -> None:
        now, wall = self._clock(), self._wall()
        offset_s = wall - report.at
        same = known is not None and known.report.life == report.life
        if known is not None and abs(offset_s - known.offset_s) < _CLOCK_S:
            offset_s = known.offset_s
        fresh = AgentRecord(report, now, wall, offset_s, _BURST, name=name)
        if known is not None:
            earned = (now - known.arrived) * self.config.reports_per_s
            fresh.tokens = min(_BURST, known.tokens + earned) - 1.0
            fresh.reports = known.reports
            fresh.before = known.before if same else known.report.life
            fresh.number = known.number if same else 0
        fresh.reports += 1
        self._agents[name] = fresh
        self._tell(fresh)
        if report.leaving:
            del self._agents[name]
            self._note(f"{name} was told to end at {_clock_text(wall)}, and has left")

    def _tell(self, agent: AgentRecord) -> None:
        report = agent.report
        things: list[ReportedEvent] = [*report.lines, *report.phases, *report.faults]
        known = None if self._replicas is None else self._replicas()
        for thing in sorted(things, key=lambda one: one.number):
            if thing.number <= agent.number:
                continue  # its answer was lost, and it was sent again
            agent.number = thing.number
            if known is not None and thing.replica not in known:
                self.strange += 1
            elif thing.age_s > LATE_S:
                self.late += 1
            else:
                self.facts += 1
                self._saw(_fact(thing, agent.name))

    # --- what is known ---------------------------------------------------------------------------

    async def read(self) -> Reading:
        """All agents' last readings merged into one; asks no host, so it cannot fail."""
        first, *others = self.readings()
        hosts: list[Host] = []
        placed: list[Placed] = []
        parts: list[Part] = [replace(part, feeds=_NOBODY) for part in first.parts]
        notes = list(first.notes)
        groups: dict[str, Group] = {}
        for reading in others:
            silent = bool(reading.parts[0].error)
            hosts += reading.hosts
            placed += [faded(row) for row in reading.placed] if silent else reading.placed
            groups |= {group.name: group for group in reading.groups}
            notes += [f"{reading.source}: {note}"[:_NOTE_MAX] for note in reading.notes]
            # One agent that is silent must not make the rows of the others look old.
            told = [part for index, part in enumerate(reading.parts) if part.error or not index]
            names = [reading.source, *(f"{reading.source}/{part.name}" for part in told[1:])]
            parts += [
                replace(part, name=name, feeds=_NOBODY)
                for part, name in zip(told, names, strict=True)
            ]
        return replace(
            first,
            parts=tuple(parts),
            groups=tuple(groups.values()),
            hosts=tuple(hosts),
            placed=tuple(placed),
            notes=tuple(notes),
        )

    def readings(self) -> list[Reading]:
        """One reading with notes and shared filesystems, then one for each agent.

        Silent agents are marked, and those silent for ten minutes are removed first.
        """
        self._let_go()
        now, wall = self._clock(), self._wall()
        told: list[Reading] = []
        fresh: list[Reading] = []
        for name, agent in self._agents.items():
            silent_s = self._silent_s(agent, now)
            told.append(shown(name, agent, silent_s, wall))
            if silent_s is None:
                fresh.append(agent.reading)
        notes = tuple(note for _, note in self._notes)
        part = Part("inbox", at=wall, feeds=("disks",))
        together = Reading(self.name, self.kind, wall, (part,), disks=summed(fresh), notes=notes)
        return [together, *told]

    def metrics(self) -> dict[str, float]:
        """Counters of reports taken and refused, and of claims about others that were left out."""
        return {
            "agent_reports_total": self.taken,
            "agent_reports_refused_total": self.refused,
            "agent_claims_refused_total": self.foreign,
        }

    def listing(self) -> list[dict[str, Any]]:
        """One dict per agent for ``GET /agents``: age, silent or not, clock, version and so on.

        Agents silent for ten minutes are removed first.
        """
        self._let_go()
        now = self._clock()
        return [
            {
                "name": name,
                "age_s": round(now - agent.arrived, 1),
                "silent": self._silent_s(agent, now) is not None,
                "period_s": agent.report.period_s,
                "clock_differs_s": round(-agent.offset_s, 1),
                "reports": agent.reports,
                "replicas": len(agent.report.reading.placed),
                "version": agent.report.own.version,
                "rss_bytes": agent.report.own.rss_bytes,
                "cpu_share": agent.report.own.cpu_share,
                "dropped": agent.report.own.dropped,
            }
            for name, agent in self._agents.items()
        ]

    async def close(self) -> None:
        """Do nothing: the inbox holds no resources."""

    def _silent_s(self, agent: AgentRecord, now: float) -> float | None:
        """Seconds since an agent's last report if that is too long, else None."""
        age_s = now - agent.arrived
        return age_s if age_s > self.config.silent_periods * agent.report.period_s else None

    def _let_go(self) -> None:
        now = self._clock()
        for name, agent in list(self._agents.items()):
            if now - agent.arrived > self.config.leaves_after_s:
                del self._agents[name]
                last = _clock_text(agent.arrived_at)
                self._note(f"{name} has not reported since {last}, and was taken out")
        while self._notes and now - self._notes[0][0] > 3_600.0:
            self._notes.popleft()

    def _note(self, text: str) -> None:
        if not any(note == text for _, note in self._notes):
            self._notes.append((self._clock(), text))


def _fact(thing: ReportedEvent, agent: str) -> Fact:
    reporter = f"agent {agent}"
    if isinstance(thing, ReportedLine):
        return LineSeen(thing.replica, thing.mark, thing.peer, reporter)
    if isinstance(thing, ReportedPhase):
        return PhaseSeen(thing.replica, thing.phase)
    return GpuFault(thing.replica, thing.xid, thing.fatal, thing.detail, reporter)


def _clock_text(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%H:%M:%S UTC")


# --- over HTTP ------------------------------------------------------------------------------------


def agent_routes(inbox: AgentInbox | Callable[[], AgentInbox | None]) -> list[Route]:
    """The routes ``POST /agents/NAME`` (take a report) and ``GET /agents`` (list agents).

    ``inbox`` may be a function, called for each request; 404 while it returns None.
    """

    def now() -> AgentInbox:
        found = inbox if isinstance(inbox, AgentInbox) else inbox()
        if found is None:
            raise RefusedError(404, "agents are not taken here: add {type: agents} to 'sources'")
        return found

    async def take(request: Request) -> Response:
        try:
            box = now()
            body = await _body(request)
            grant, certified = request.scope.get(_GRANT), request.scope.get(CERTIFIED, ())
            box.take(request.path_params["name"], body, grant, certified)
        except RefusedError as error:
            response = json_answer({"error": str(error)}, error.status)
            if error.wait_s is not None:
                response.headers["retry-after"] = f"{error.wait_s:.0f}"
            return response
        return json_answer({"taken": True}, 202)

    async def listing(_: Request) -> Response:
        try:
            return json_answer({"agents": now().listing()})
        except RefusedError as error:
            return json_answer({"error": str(error)}, error.status)

    return [
        Route("/agents", listing),
        Route(f"{PATH}{{name}}", take, methods=["POST"]),
    ]


async def _body(request: Request) -> bytes:
    too_large = RefusedError(413, f"the report is larger than {REPORT_BYTES_MAX} bytes")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > REPORT_BYTES_MAX:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > REPORT_BYTES_MAX:
                    raise too_large
    except TimeoutError as error:
        raise RefusedError(408, f"the report did not come within {BODY_S:g} s") from error
    except ClientDisconnect as error:
        raise RefusedError(400, "the report was cut off") from error
    return bytes(body)


class AgentDoor:
    """Middleware in front of the guard: lets agents' tokens use ``POST /agents/NAME``, no more.

    Requests with another token, or none, go on to the guard.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | Callable[[], str | None] | None,  # the shared one's hash, or who knows it now
        routes: list[Route],
        agents: Callable[[], Collection[AgentGrant]] = tuple,  # those with a token each
    ) -> None:
        self._app = app
        self._token = token
        self._agents = agents
        self._take = next(route for route in routes if route.path.startswith(PATH))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: take an agent's report, or pass it on to the guard."""
        if scope["type"] == "http" and _is_report(scope):
            scheme, _, key = Request(scope).headers.get("authorization", "").partition(" ")
            shared = self._token() if callable(self._token) else self._token
            bearer = key if scheme.lower() == "bearer" else ""
            opened, grant = grant_of(bearer, shared, self._agents())
            if opened:
                name = scope["path"].removeprefix(PATH)
                more = {"path_params": {"name": name}, _GRANT: grant}
                await self._take.app({**scope, **more}, receive, send)
                return
        await self._app(scope, receive, send)


def _is_report(scope: Scope) -> bool:
    path = scope["path"]
    return scope["method"] == "POST" and path.startswith(PATH) and "/" not in path[len(PATH) :]


__all__ = [
    "LATE_S",
    "AgentDoor",
    "AgentInbox",
    "AgentsConfig",
    "RefusedError",
    "agent_routes",
    "in_our_time",
]
