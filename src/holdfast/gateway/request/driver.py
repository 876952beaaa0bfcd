"""The live driver of ``core.request.flow``: real requests in, real calls out, no decisions.

Each event becomes a call of ``Flow.handle``, and each action it returns is carried out at once. All
timers of the flow hang on ``tick``; silences of streams and long waits of clients are looked for
there too, in one pass, so that no request costs a timer of its own.

A new config never disturbs what runs: requests under way end in the flow they began in, and a new
flow takes the new ones. Only where the policies changed is there a new flow; replicas come and go
with the view.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.messages import (
    Abort,
    Arrived,
    ClientGone,
    Dispatch,
    Ended,
    Finish,
    FleetView,
    FlowAction,
    FlowEvent,
    Leased,
    LoadReported,
    Report,
    Silent,
    Summary,
    Tick,
    ViewChanged,
)
from holdfast.core.plan.cost import DIRECT
from holdfast.core.request.active_request import apart, died
from holdfast.core.request.flow import Flow
from holdfast.core.types import MILLISECOND, SECOND, Priority, nanos
from holdfast.gateway.api import errors, routes
from holdfast.gateway.api.bodies import Ask, check_coding
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.api.prompts import TokenRatio
from holdfast.gateway.api.tenants import Tenant
from holdfast.gateway.api.virtual import Facts, Path
from holdfast.gateway.http.contracts import Exchange
from holdfast.gateway.request.attempts import Attempt
from holdfast.gateway.request.comparisons import Comparisons
from holdfast.gateway.request.inquiry import Inquiry
from holdfast.gateway.request.settings import Settings
from holdfast.gateway.request.standing import Standing
from holdfast.gateway.request.targets import Target
from holdfast.gateway.telemetry.counters import Counters
from holdfast.gateway.telemetry.deaths import Deaths
from holdfast.gateway.telemetry.signals import Signals
from holdfast.gateway.telemetry.stories import Stories
from holdfast.gateway.telemetry.traces import note_attempt, traces_of

_SILENCE_EVERY: Final = 50 * MILLISECOND  # how often streams are looked at
_LINGER: Final = SECOND  # after [DONE] a response should end; then its connection is closed

_BATCH: Final = Priority.BATCH
_RATIO_REPORTS: Final = 64  # the ratio remembers about twenty

News = Callable[[Report | Summary], None]


class Ratios:
    """Bytes per token of one model, in prompts (as JSON) and in answers (as text)."""

    __slots__ = ("answer", "prompt")

    def __init__(self) -> None:
        self.prompt = TokenRatio()
        self.answer = TokenRatio()

    @property
    def known(self) -> bool:
        """Whether enough answers were counted."""
        return self.answer.reports >= _RATIO_REPORTS


class Driver:
    """All requests of one gateway process."""

    def __init__(
        self,
        settings: Settings,
        targets: dict[str, Target],
        *,
        name: str,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        streams: Callable[[str], Random],
        news: News,
    ) -> None:
        self.settings = settings
        self.targets = targets
        self.now_ns = now_ns
        self.counters = Counters()
        self.traces = traces_of(settings)
        self.stories = Stories()
        self.standing = Standing()
        self.signals = Signals()
        self.deaths = Deaths()
        self._died_under: dict[Inquiry, list[str]] = {}  # replicas, until the request is over
        self.comparisons = Comparisons(self, streams, loop.call_soon)
        self.comparisons.configure(settings.comparison)
        self._told_at = 0  # when the last summary was
        self.streaming: dict[Attempt, None] = {}  # answers under way, whose silence is watched
        self.waiting: dict[Inquiry, int] = {}  # streams without an answer yet, the eldest first
        self._loop = loop
        self.name = name.encode()  # begins every request id
        self.metered = bool(settings.flow.quotas)
        self._streams = streams
        self._news = news
        self._serial = 0
        self._inquiries: dict[int | str, Inquiry] = {}
        self._lingering: dict[Attempt, int] = {}
        self._retiring: list[Flow] = []
        self._demand: dict[str, float] = {}  # by tenant, since it was last told
        self._view: FleetView | None = None
        self._silence_at = 0
        self._ratios: dict[str, Ratios] = {}  # by model: bounded by the config
        self._norms: dict[str, int] = {}  # by replica: when the next is due; bounded likewise
        self.flow = Flow(settings.flow, streams)
        self._sign_of_life = nanos(settings.stream.sign_of_life_s)

    # --- the server's side -----------------------------------------------------------------------

    def on_head(self, exchange: Exchange) -> None:
        """Who asks for what; refused before the body is read."""
        try:
            route = routes.find(exchange.method, exchange.path)
            tenant = self.settings.tenants.who(exchange.headers)
            if b"content-encoding" in exchange.headers:
                check_coding(exchange.headers[b"content-encoding"])
        except ApiError as error:
            if self.standing.knows(exchange.path):
                self.standing.answer(exchange, self.flow, self.now_ns())
            else:
                self.refuse(exchange, error, b"%b%x" % (self.name, self.next_serial()))
            return
        self._serial = serial = self._serial + 1
        exchange.listener = Inquiry(self, exchange, route, tenant, serial)

    def on_request(self, exchange: Exchange) -> None:
        """The request is complete."""
        inquiry = exchange.listener
        if not isinstance(inquiry, Inquiry):
            raise TypeError("a request that on_head did not admit")
        if inquiry.route.lists_models:
            self._list_models(exchange, inquiry)
        else:
            inquiry.begin()

    def refuse(self, exchange: Exchange, error: ApiError, request_id: bytes) -> None:
        """Answer with an error before any work was done."""
        self.counters.refused(error.status, error.code)
        exchange.listener = None
        head = b"content-type: application/json\r\nx-request-id: %b\r\n" % request_id
        body = errors.error_body(error, request_id.decode())
        exchange.respond(error.status, head + errors.error_headers(error), body)

    def next_serial(self) -> int:
        """A name for a request in the flow."""
        self._serial += 1
        return self._serial

    def _list_models(self, exchange: Exchange, inquiry: Inquiry) -> None:
        names = [name for name in self.settings.public_models if inquiry.tenant.may_use(name)]
        try:
            body = routes.models_body(inquiry.route, exchange.path, names)
        except ApiError as error:
            self.refuse(exchange, error, inquiry.request_id)
            return
        exchange.listener = None
        head = b"content-type: application/json\r\nx-request-id: %b\r\n" % inquiry.request_id
        exchange.respond(200, head, body)

    def resolve(self, ask: Ask, tenant: Tenant, headers: Mapping[bytes, bytes]) -> Path | None:
        """The path of a virtual name; refuses models that do not exist for this tenant."""
        settings, model = self.settings, ask.model
        virtual = settings.public_models.get(model)
        if virtual is None or not tenant.may_use(model):
            raise errors.unknown_model()
        path = None
        if virtual:
            facts = Facts(
                tenant=tenant.name,
                prompt_tokens=ask.prompt_tokens,
                tools=ask.tools,
                json=ask.json_expected,
                stream=ask.stream,
                headers=headers,
            )
            path = settings.virtual.resolve(model, facts)
        return path

    def open(self, inquiry: Inquiry, now: int) -> None:
        """Hand a request to the flow."""
        inquiry.flow = self.flow
        if self.traces is not None:
            self.traces.begin(inquiry)
        if self.metered:
            tenant = inquiry.tenant.name
            self._demand[tenant] = self._demand.get(tenant, 0.0) + 1.0
        self._inquiries[inquiry.serial] = inquiry
        if inquiry.ask.stream:
            self.waiting[inquiry] = now + self._sign_of_life
        self._do(self.flow.handle(Arrived(inquiry.request), now))

    def deadline(self, model: str, priority: Priority, now: int) -> int:
        """When a whole request is over; a batch request may wait in the queue beyond it."""
        whole = self.settings.request_ns.get(model)
        if whole is None or priority is _BATCH:
            return 0  # the flow's own
        return now + whole

    # --- the flow's side -------------------------------------------------------------------------

    def tell(self, flow: Flow | None, event: FlowEvent) -> None:
        """Report an event and carry out what follows from it."""
        assert flow is not None, "it is not in a flow yet"
        actions = flow.handle(event, self.now_ns())
        if actions:
            self._do(actions)

    def soon(self, flow: Flow | None, event: FlowEvent) -> None:
        """Report it after what is being done now."""
        self._loop.call_soon(self.tell, flow, event)

    def _do(self, actions: list[FlowAction]) -> None:
        for action in actions:
            if isinstance(action, Finish):
                self._inquiries.pop(action.request_id).finish(action)
            elif isinstance(action, Dispatch):
                self._inquiries[action.request.id].dispatch(action)
            elif isinstance(action, Abort):
                self._inquiries[action.request_id].abort(action)
            else:
                if isinstance(action, Summary):
                    self._say_what_moved(action)
                self._news(action)

    def _say_what_moved(self, summary: Summary) -> None:
        """Long answers are counted at their end: meanwhile they must not look like silence."""
        since, self._told_at = self._told_at, self.now_ns()
        moved = {
            attempt.target.replica_id
            for attempt in self.streaming
            if attempt.last > since and attempt.last != attempt.excused
        }
        if moved:
            summary.tallies = tuple(
                replace(tally, moved=True) if tally.replica_id in moved else tally
                for tally in summary.tallies
            )

    def tick(self) -> None:
        """Let time pass: to be called every ten to twenty milliseconds."""
        now = self.now_ns()
        self.tell(self.flow, Tick())
        if self._retiring:
            for flow in self._retiring:
                self.tell(flow, Tick())
            self._retiring = [flow for flow in self._retiring if flow.lives]
        if now >= self._silence_at:
            self._silence_at = now + _SILENCE_EVERY
            self._look_for_silence(now)
            self._give_signs_of_life(now)
            self._close_lingering(now)
            self.comparisons.sweep(now)

    def _look_for_silence(self, now: int) -> None:
        silent = [a for a in self.streaming if now - a.last > a.silence_max and not a.paused]
        for attempt in silent:
            if not attempt.over and not attempt.conclude():
                attempt.last = attempt.excused = now  # patience, if any, lasts as long again
                inquiry = attempt.inquiry
                self.tell(inquiry.flow, Silent(inquiry.serial, attempt.number, attempt.tokens()))

    def _give_signs_of_life(self, now: int) -> None:
        while self.waiting:
            inquiry, due = next(iter(self.waiting.items()))
            if due > now:
                return
            del self.waiting[inquiry]
            self.waiting[inquiry] = now + self._sign_of_life
            inquiry.sign_of_life()

    def linger(self, attempt: Attempt) -> None:
        """Its answer is complete, its response is not yet: it should end at once."""
        self._lingering[attempt] = self.now_ns() + _LINGER

    def _close_lingering(self, now: int) -> None:
        while self._lingering:
            attempt, due = next(iter(self._lingering.items()))
            if due > now:
                return
            del self._lingering[attempt]
            if attempt.call is not None:
                attempt.call.cancel()  # harmless if it has ended

    # --- control's side --------------------------------------------------------------------------

    def view(self, view: FleetView) -> None:
        """Follow control's view."""
        self._view = view
        self.standing.has_view = True
        for flow in (self.flow, *self._retiring):
            self.tell(flow, ViewChanged(view))

    def load(self, event: LoadReported) -> None:
        """Take over an engine's own account of its load."""
        self.flow.handle(event, self.now_ns())

    def lease(self, event: Leased) -> None:
        """Take over this gateway's part of what all share."""
        self.flow.handle(event, self.now_ns())

    def take_demand(self) -> dict[str, float]:
        """Requests by tenant since the last call, for the shares of their quotas."""
        demand, self._demand = self._demand, {}
        return demand

    def look_at_demand(self, now: int, *, due: bool) -> bool:
        """Read the signals of all models if it is time, or if somebody begins to wait."""
        flows = (self.flow, *self._retiring)
        if due or self.signals.begun(flows):
            self.signals.read(flows, now)
            return True
        return False

    def trials(self, now: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Half-open trials that are due here, and those that run here."""
        wanted: list[tuple[str, str]] = []
        trying: list[tuple[str, str]] = []
        for model, lane in self.flow.lanes.items():
            due, running = lane.pool.trials(now)
            wanted += [(model, replica_id) for replica_id in due]
            trying += [(model, replica_id) for replica_id in running]
        return wanted, trying

    def move(self, replica_id: str, *, stalled: bool = False) -> None:
        """Cut what still runs at a replica that is leaving, or is stuck at one that is stalled.

        It goes on elsewhere.
        """
        now = self.now_ns()
        for inquiry in list(self._inquiries.values()):
            for attempt in list(inquiry.attempts.values()):
                if attempt.target.replica_id != replica_id or attempt.over:
                    continue
                kind = attempt.stuck(now) if stalled else Kind.DRAINED
                if kind is not None:
                    attempt.fail(kind, attempt.tokens())

    def reconfigure(self, settings: Settings, targets: dict[str, Target]) -> None:
        """Follow a new config; what runs goes on under the old one."""
        changed = settings.flow != self.settings.flow
        self.settings = settings
        self.metered = bool(settings.flow.quotas)
        self.targets = targets
        self._sign_of_life = nanos(settings.stream.sign_of_life_s)
        self.comparisons.configure(settings.comparison)
        self._norms.clear()
        self.traces = traces_of(settings, self.traces)
        if changed:
            if self.flow.lives:
                self._retiring.append(self.flow)
            before, self.flow = self.flow, Flow(settings.flow, self._streams)
            self.flow.inherit(before)
            if self._view is not None:
                self.tell(self.flow, ViewChanged(self._view))

    def cut_all(self) -> None:
        """The time to drain is over: end what still runs with an honest error."""
        for inquiry in list(self._inquiries.values()):
            inquiry.request.continuable = False
            if not inquiry.attempts:
                inquiry.give_up()
                self.tell(inquiry.flow, ClientGone(inquiry.serial))
            for attempt in list(inquiry.attempts.values()):
                attempt.cancel()
                ended = Ended(inquiry.serial, attempt.number, Kind.DEADLINE)
                self.tell(inquiry.flow, ended)

    @property
    def busy(self) -> int:
        """Requests under way."""
        return len(self._inquiries)

    # --- what is counted and kept ----------------------------------------------------------------

    def saw_first(self, inquiry: Inquiry, attempt: Attempt) -> None:
        """A client is shown the beginning of its answer."""
        inquiry.first_at = first = attempt.first
        self.counters.first_token(attempt.target.model, first - inquiry.request.arrived)

    def saw_end(self, attempt: Attempt, kind: Kind | None, said: int) -> None:
        """An attempt is over."""
        now, inquiry, target = self.now_ns(), attempt.inquiry, attempt.target
        read, took = attempt.prompt_tokens(), now - attempt.started
        if inquiry.trace is not None:
            note_attempt(inquiry, attempt, kind, now, read, said)
        if kind is None and not attempt.continues:
            self._answered(attempt, took, read, said)
        else:
            self.counters.attempt(target.replica_id, target.model, kind, took)
            self.counters.spending.ended(attempt, kind, read, said)
        if kind is None:
            if attempt.first:
                self._saw_stream(attempt, now, said)
        # Of a connection that carried nothing, the last sign is that of its dispatch.
        elif died(kind, now - attempt.last) and apart(inquiry.died_at, now):
            inquiry.died_at = now
            self._died_under.setdefault(inquiry, []).append(target.replica_id)

    def _saw_stream(self, attempt: Attempt, now: int, tokens: int) -> None:
        """How an answer in pieces went."""
        inquiry, first, chunks = attempt.inquiry, attempt.first, attempt.chunks()
        per_chunk = (attempt.last - first) // (chunks - 1) if chunks > 1 else 0
        if attempt.continues:
            tokens += inquiry.said_tokens
        shown = inquiry.first_at
        per_token = (now - shown) // (tokens - 1) if shown and tokens > 1 else 0
        model = attempt.target.model
        self.counters.streamed(model, first - attempt.started, per_chunk, per_token)

    def saw_answer(self, attempt: Attempt, read: int, said: int) -> None:
        """An answer came in one piece."""
        now = self.now_ns()
        self._answered(attempt, now - attempt.started, read, said)
        if attempt.inquiry.trace is not None:
            note_attempt(attempt.inquiry, attempt, None, now, read, said)

    def _answered(self, attempt: Attempt, took: int, read: int, said: int) -> None:
        inquiry, target = attempt.inquiry, attempt.target
        model, via = target.model, inquiry.via
        tenant = inquiry.tenant.name
        self.counters.answered(target.replica_id, model, tenant, via, took, read, said)
        if via is not DIRECT:
            inquiry.spent = (model, read, said)

    def norm_due(self, replica_id: str) -> bool:
        """Whether an embedding of this replica is to be measured; one in a second is."""
        now = self.now_ns()
        if now < self._norms.get(replica_id, 0):
            return False
        self._norms[replica_id] = now + SECOND
        return True

    def saw_finish(self, inquiry: Inquiry, finish: Finish) -> None:
        """A request is over."""
        for replica_id in self._died_under.pop(inquiry, ()):
            if finish.status != 200:  # one that was answered in the end kills nobody
                self.deaths.saw(replica_id, inquiry.ask)
        now = self.now_ns()
        self.counters.finished(finish, now - inquiry.request.arrived)
        self.stories.add(inquiry, finish, now)
        if self.traces is not None and inquiry.trace is not None:
            self.traces.finish(inquiry, finish, now)

    def saw_escalation(self, inquiry: Inquiry, check: str) -> None:
        """A cheap answer failed a check."""
        self.counters.escalated(inquiry.ask.model, check)
        model, read, said = inquiry.spent
        self.counters.spending.escalated(inquiry.tenant.name, model, inquiry.via, read, said)
        if self.traces is not None:
            self.traces.take_back(inquiry)

    def ratios(self, model: str) -> "Ratios":
        """What is known of a model's tokens."""
        known = self._ratios.get(model)
        if known is None:
            known = self._ratios[model] = Ratios()
        return known

    def tokens_of(self, model: str, text_bytes: int) -> int:
        """Tokens of so much answer, by what the model's engines have reported before."""
        return self.ratios(model).answer.tokens(text_bytes)

    def rate_limits(self, tenant: Tenant) -> bytes:
        """The headers that tell a tenant what is left; none for who has no limit."""
        quota = self.flow.quota(tenant.name)
        if quota is None:
            return b""
        return errors.rate_limit_headers(quota.headers(self.now_ns()))


__all__ = ["Driver"]
