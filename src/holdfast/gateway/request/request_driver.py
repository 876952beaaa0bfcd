"""Admits the requests of one gateway process, and applies what control sends.

    on_head     route, tenant                   a refusal needs no body
    on_request  ``ProxiedRequest.begin``        body, decision, attempts, judgement, answer

What one request does is in ``proxied_request``; what the flow decides for it is executed through
``flow_port``; ``telemetry.observer`` counts. This module joins them.
"""

import asyncio
from collections.abc import Callable
from random import Random
from secrets import token_bytes

from holdfast.core.intake.byte_budget import ByteBudget, ByteBudgetConfig
from holdfast.core.messages import FleetView, Leased, LoadReported, ReplicaHalted
from holdfast.core.request.flow import Flow
from holdfast.core.types import Halt
from holdfast.gateway.api import routes
from holdfast.gateway.api.bodies import check_coding
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.api.idempotency import HEADER as KEY_HEADER
from holdfast.gateway.api.response_ids import ResponseIds
from holdfast.gateway.http.interfaces import Exchange
from holdfast.gateway.request.batch_relay import BatchRelay, RelayedRequest
from holdfast.gateway.request.comparisons import Comparisons
from holdfast.gateway.request.flow_port import FlowPort, News
from holdfast.gateway.request.idempotency.keyed_requests import KeyedRequests
from holdfast.gateway.request.proxied_request import ProxiedRequest, RequestContext, refuse
from holdfast.gateway.request.readiness import Readiness
from holdfast.gateway.request.settings import Settings
from holdfast.gateway.request.targets import Target
from holdfast.gateway.request.token_ratios import TokenRatios
from holdfast.gateway.telemetry.demand import DemandGauges
from holdfast.gateway.telemetry.observer import Observer


class RequestDriver:
    """The server's ``App``: admits all requests of a gateway and applies control's messages.

    It finds route and tenant and hands the rest to a ``ProxiedRequest``, the batch relay or the
    service for idempotency keys.
    """

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
        self.name = name.encode()  # begins every request id
        self.now_ns = now_ns
        self.targets = dict(targets)  # shared with requests: changed in place
        self.port = FlowPort(settings, loop=loop, now_ns=now_ns, streams=streams, news=news)
        self.observer = Observer(
            now_ns, trace_share=settings.trace_share, trace_follow=settings.trace_follow
        )
        self.readiness = Readiness()
        self.budget = ByteBudget(ByteBudgetConfig())
        self._follow_budget(settings)
        self.demand = DemandGauges()
        self.comparisons = Comparisons(
            self.port, self.targets, self.observer.counters, streams, loop.call_soon
        )
        self.comparisons.configure(settings.comparison)
        self.keyed: KeyedRequests | None = None  # None: idempotency keys are not served
        self._retired: list[KeyedRequests] = []  # of earlier configs, until nobody waits in them
        self.relay: BatchRelay | None = None  # where a batch process runs beside this gateway
        self._context = RequestContext(
            self.port,
            self.targets,
            self.observer,
            TokenRatios(),
            self.comparisons,
            ResponseIds(token_bytes(32)),  # of this process alone, until control tells the fleet's
        )

    @property
    def settings(self) -> Settings:
        """The settings in force, replaced as a whole by ``reconfigure``."""
        return self.port.settings

    @property
    def flow(self) -> Flow:
        """The flow that takes new requests.

        Those of earlier configs, while they have requests, are not it.
        """
        return self.port.flow

    @property
    def busy(self) -> int:
        """How many requests are in a flow, queued or on a replica.

        Relayed batch requests do not count.
        """
        return len(self.port.requests)

    # --- the server's side -----------------------------------------------------------------------

    def on_head(self, exchange: Exchange) -> None:
        """Find route and tenant before the body is read, and attach a ``ProxiedRequest``.

        Otherwise answer at once: a readiness page, or an error that is counted. Requests for files
        and batches are passed to the batch process as they come. The tenant's byte account is set
        here.
        """
        port = self.port
        try:
            route = routes.find(exchange.method, exchange.path)
            tenant = port.settings.tenants.who(exchange.headers)
            if b"content-encoding" in exchange.headers:
                check_coding(exchange.headers[b"content-encoding"])
        except ApiError as error:
            if self.readiness.knows(exchange.path):
                self.readiness.answer(exchange, port.flow, self.now_ns())
            elif self.relay is not None and self.relay.serves(exchange.path):
                self._begin_relay(self.relay, exchange)
            else:
                request_id = b"%b%x" % (self.name, port.next_serial())
                refuse(exchange, error, request_id, self.observer.counters)
            return
        name, budget = tenant.name, self.budget
        exchange.account = budget.accounts.get(name) or budget.account(name)
        serial = port.next_serial()
        request_id = b"%b%x" % (self.name, serial)
        exchange.listener = ProxiedRequest(
            self._context, exchange, route, tenant, serial, request_id
        )

    def on_request(self, exchange: Exchange) -> None:
        """Serve a request whose body is complete, as ``on_head`` prepared it.

        It lists models, goes through its idempotency key if it has one and keys are served, or
        begins normally; the last piece of an upload goes to the batch process.
        """
        proxied = exchange.listener
        if not isinstance(proxied, ProxiedRequest):
            if not isinstance(proxied, RelayedRequest):
                raise TypeError("a request that on_head did not admit")
            proxied.end(exchange.body)
        elif proxied.route.lists_models:
            proxied.list_models()
        elif self.keyed is not None and KEY_HEADER in exchange.headers:
            self.keyed.begin(proxied)
        else:
            proxied.begin()

    def _begin_relay(self, relay: BatchRelay, exchange: Exchange) -> None:
        """Pass a request for files or batches on, in the name of its tenant."""
        request_id = b"%b%x" % (self.name, self.port.next_serial())
        try:
            tenant = self.port.settings.tenants.who(exchange.headers)
        except ApiError as error:
            refuse(exchange, error, request_id, self.observer.counters)
            return
        relay.begin(exchange, tenant.name, request_id)

    # --- control's side --------------------------------------------------------------------------

    def tick(self) -> None:
        """Run due timers: of flows, silent streams, comparisons and idempotency keys.

        Call every 10 to 20 ms.
        """
        if self.port.tick():
            self.comparisons.sweep(self.now_ns())
        if self.keyed is not None:
            self.keyed.tick(self.now_ns())
        if self._retired:
            self._tick_retired(self.now_ns())

    def use_keys(self, keyed: KeyedRequests | None) -> None:
        """Serve idempotency keys with this object from now on; None: the header is ignored.

        Requests begun with the former object end in it; it is closed by ``tick`` when it has none
        left.
        """
        if self.keyed is not None:
            self._retired.append(self.keyed)
        self.keyed = keyed

    def _tick_retired(self, now: int) -> None:
        for keyed in tuple(self._retired):
            keyed.tick(now)
            if not keyed.busy:
                self._retired.remove(keyed)
                keyed.retire()

    def close_keys(self) -> bool:
        """Close all key services; return whether every store thread ended in time.

        What waits is written first, which may block for up to 2 s each. Keys are not served
        afterwards.
        """
        every = [*self._retired, *([] if self.keyed is None else [self.keyed])]
        self.keyed, self._retired = None, []
        ended = [keyed.close() for keyed in every]
        return all(ended)

    def use_secret(self, secret: bytes) -> None:
        """Take the fleet's secret from control: for requests' fingerprints and responses' ids."""
        self.observer.deadly.use(secret)
        self._context.response_ids.use(secret)

    def view(self, view: FleetView) -> None:
        """Pass control's new view of the fleet to all flows.

        From the first one on the gateway is ready.
        """
        self.readiness.has_view = True
        self.port.view(view)

    def load(self, event: LoadReported) -> None:
        """Pass an engine's reported load to the flow of new requests; no action follows from it."""
        self.port.flow.handle(event, self.now_ns())

    def lease(self, event: Leased) -> None:
        """Pass this gateway's shares of quotas, retries and breaker trials to the current flow."""
        self.port.flow.handle(event, self.now_ns())

    def look_at_demand(self, now: int, *, due: bool) -> bool:
        """Read the demand gauges if ``due`` or a model's first request waits; return whether.

        The values are stored in ``demand.gauges``.
        """
        flows = self.port.flows
        if due or self.demand.begun(flows):
            self.demand.read(flows, now)
            return True
        return False

    def trials(self, now: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return two lists of (model, replica id): breaker trials that are due, and those that run.

        For control, which lends each trial to one gateway; starts none.
        """
        wanted: list[tuple[str, str]] = []
        trying: list[tuple[str, str]] = []
        for model, lane in self.port.flow.lanes.items():
            due, running = lane.pool.trials(now)
            wanted += [(model, replica_id) for replica_id in due]
            trying += [(model, replica_id) for replica_id in running]
        return wanted, trying

    def move(self, model: str, replica_id: str, *, stalled: bool = False) -> None:
        """Send elsewhere what runs on a replica that is leaving or was found not to answer.

        The flows move requests of which the client has seen nothing; streams that have begun are
        failed so that they are continued elsewhere. ``stalled``: only what is stuck there.
        """
        now = self.now_ns()
        halted = ReplicaHalted(model, replica_id, Halt.STALLED if stalled else Halt.STOPPED)
        for flow in self.port.flows:
            self.port.tell(flow, halted)
        for proxied in list(self.port.requests.values()):
            proxied.move(replica_id, now, stalled=stalled)

    def reconfigure(self, settings: Settings, targets: dict[str, Target]) -> None:
        """Apply new settings and targets to new requests, without a restart.

        If the flow's policies changed, requests under way end in their old flow. ``targets``
        replaces all entries of the shared table, in place.
        """
        if targets is not self.targets:
            self.targets.clear()
            self.targets.update(targets)
        self.comparisons.configure(settings.comparison)
        self._follow_budget(settings)
        self.observer.configure(
            trace_share=settings.trace_share, trace_follow=settings.trace_follow
        )
        self.port.reconfigure(settings)

    def _follow_budget(self, settings: Settings) -> None:
        tenants = len(settings.tenants.by_name)
        self.budget.reconfigure(settings.budget, tenants, settings.http.body_bytes_max)

    def cut_all(self) -> None:
        """End all requests under way with an error: the time to drain is over.

        Callers that wait for the answer of an idempotency key get a 503; relayed batch requests are
        not touched.
        """
        for proxied in list(self.port.requests.values()):
            proxied.cut()
        for keyed in (*self._retired, self.keyed):
            if keyed is not None:
                keyed.cut()


__all__ = ["RequestDriver"]
