"""Connects requests to the core's flow: passes events in, executes the actions that come out.

Every event becomes a call of ``Flow.handle``, and every action it returns is handed to its request.
All timers of the flow are driven by ``tick``; silent streams and clients that wait for long are
looked for there too, in one pass, so that no request needs a timer of its own.

A new config never disturbs requests under way: they end in the flow in which they began, and a new
flow takes the new ones. There is a new flow only where the policies changed; replicas come and go
with the view.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final, Protocol

from holdfast.core.messages import (
    Abort,
    Arrived,
    Dispatch,
    Finish,
    FleetView,
    FlowAction,
    FlowEvent,
    Report,
    Summary,
    Tick,
    ViewChanged,
)
from holdfast.core.request.flow import Flow
from holdfast.core.types import MILLISECOND, SECOND, Priority, Request, nanos
from holdfast.gateway.request.settings import Settings

_SILENCE_EVERY: Final = 50 * MILLISECOND  # how often streams are looked at
_QUIET_EVERY: Final = SECOND  # how often streams are looked at that pause without being silent yet
_QUIET_MAX: Final = 2 * SECOND  # or half of its silence_max, if less: a pause that asks a canary
_LINGER: Final = SECOND  # after [DONE] a response should end; then its connection is closed
_BATCH: Final = Priority.BATCH

News = Callable[[Report | Summary], None]


class FlowRequest(Protocol):
    """A request in a flow, as the port sees it: it carries out the flow's actions."""

    flow: Flow | None

    @property
    def serial(self) -> int:
        """The number that identifies the request in the flow.

        New after an escalation to another model.
        """

    @property
    def request(self) -> Request:
        """The request in the form that the flow uses."""

    def dispatch(self, action: Dispatch) -> None:
        """Send the request to the replica that the flow chose, as a new attempt."""

    def abort(self, action: Abort) -> None:
        """Cancel an attempt, without reporting its end to the flow."""

    def finish(self, action: Finish) -> None:
        """Answer the client with the flow's result; the request has left the flow already."""

    def move(self, replica_id: str, now: int, *, stalled: bool) -> None:
        """Fail the begun streams on a replica, so that the flow continues them on another one.

        ``stalled``: only those that are stuck.
        """

    def cut(self) -> None:
        """End the request with an error now, because the gateway stops."""

    def sign_of_life(self) -> None:
        """Send a comment to a client that waits for its stream."""


class WatchedAttempt(Protocol):
    """An attempt whose answer has begun, as the port sees it: it is watched for silence."""

    @property
    def last(self) -> int:
        """When the last byte arrived, or the time of silence last began anew (ns)."""

    @property
    def excused(self) -> int:
        """When the attempt's silence was last reported and its time began anew (ns); 0: never."""

    @property
    def silence_max(self) -> int:
        """How long the attempt may send nothing before ``on_silence`` is called (ns)."""

    @property
    def paused(self) -> bool:
        """Whether reading is paused because the client is slow: silence then does not count."""

    @property
    def replica_id(self) -> str:
        """The id of the replica that answers."""

    def on_silence(self, now: int) -> None:
        """Handle that nothing came for ``silence_max``: the flow decides what follows."""

    def on_pause(self) -> None:
        """Report a long pause, shorter than ``silence_max``, to the flow; nothing is ended."""

    def close(self) -> None:
        """Cancel the call if its response has not ended by itself."""


class FlowPort:
    """Runs the flow for all requests of a gateway: passes events in and carries out the actions.

    Also drives the timers, looks for silent streams, and keeps the flows of earlier configs until
    their requests are over. Reports and summaries go to ``news``, for control.
    """

    __slots__ = (
        "_demand",
        "_lingering",
        "_loop",
        "_news",
        "_quiet_at",
        "_reported_at",
        "_retiring",
        "_serial",
        "_sign_of_life",
        "_silence_at",
        "_streams",
        "_view",
        "_waiting",
        "flow",
        "metered",
        "now_ns",
        "requests",
        "settings",
        "streaming",
    )

    def __init__(
        self,
        settings: Settings,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        streams: Callable[[str], Random],
        news: News,
    ) -> None:
        """``streams``: the random stream of a name; ``news``: takes what control should know."""
        self.settings = settings  # those in force; requests under way follow them too
        self.now_ns = now_ns
        self.flow = Flow(settings.flow, streams)
        self.metered = bool(settings.flow.quotas)
        self.requests: dict[int | str, FlowRequest] = {}  # under way, by serial
        self.streaming: dict[WatchedAttempt, None] = {}  # answers under way: silence is watched
        self._waiting: dict[FlowRequest, int] = {}  # streams without an answer, the eldest first
        self._lingering: dict[WatchedAttempt, int] = {}
        self._retiring: list[Flow] = []  # of earlier configs, while requests run in them
        self._demand: dict[str, float] = {}  # requests by tenant, since they were last taken
        self._loop = loop
        self._streams = streams
        self._news = news
        self._serial = 0
        self._view: FleetView | None = None
        self._silence_at = 0
        self._quiet_at = 0
        self._reported_at = 0  # when the last summary was
        self._sign_of_life = nanos(settings.stream.sign_of_life_s)

    # --- requests --------------------------------------------------------------------------------

    def next_serial(self) -> int:
        """Return the next number for a request: 1, 2, 3 and so on in this process."""
        self._serial = serial = self._serial + 1
        return serial

    def open(self, proxied: FlowRequest, now: int, *, streams: bool) -> None:
        """Register a request and hand it to the flow of new requests, which may act at once.

        ``streams``: send its client comments while it waits. Counts the tenant's demand where
        quotas exist.
        """
        proxied.flow = flow = self.flow
        request = proxied.request
        if self.metered:
            tenant = request.tenant
            self._demand[tenant] = self._demand.get(tenant, 0.0) + 1.0
        self.requests[proxied.serial] = proxied
        if streams:
            self._waiting[proxied] = now + self._sign_of_life
        self._carry_out(flow.handle(Arrived(request), now))

    def deadline(self, model: str, priority: Priority, now: int) -> int:
        """Return when a request must be done (ns), by its model's time limit.

        0: the flow applies its own, for batch requests and models without a limit here.
        """
        whole = self.settings.request_ns.get(model)
        if whole is None or priority is _BATCH:
            return 0  # the flow's own
        return now + whole

    def tell(self, flow: Flow | None, event: FlowEvent) -> None:
        """Pass an event to a flow and carry out the actions that it returns, before returning.

        They may concern other requests, too. ``flow`` must not be None.
        """
        assert flow is not None, "it is not in a flow yet"
        actions = flow.handle(event, self.now_ns())
        if actions:
            self._carry_out(actions)

    def soon(self, flow: Flow | None, event: FlowEvent) -> None:
        """Pass an event to the flow in the next turn of the event loop.

        For what happens while the flow's actions are carried out, so that it is not entered twice.
        """
        self._loop.call_soon(self.tell, flow, event)

    def answers(self, proxied: FlowRequest) -> None:
        """Send no more waiting comments to a request: its answer begins, or it is over."""
        self._waiting.pop(proxied, None)

    def linger(self, attempt: WatchedAttempt) -> None:
        """Close an attempt's call in 1 s if its response has not ended by then."""
        self._lingering[attempt] = self.now_ns() + _LINGER

    def _carry_out(self, actions: list[FlowAction]) -> None:
        for action in actions:
            if isinstance(action, Finish):
                self.requests.pop(action.request_id).finish(action)
            elif isinstance(action, Dispatch):
                self.requests[action.request.id].dispatch(action)
            elif isinstance(action, Abort):
                self.requests[action.request_id].abort(action)
            else:
                if isinstance(action, Summary):
                    self._mark_moving(action)
                self._news(action)

    def _mark_moving(self, summary: Summary) -> None:
        """Long answers are counted at their end: meanwhile they must not look like silence."""
        since, self._reported_at = self._reported_at, self.now_ns()
        moved = {
            attempt.replica_id
            for attempt in self.streaming
            if attempt.last > since and attempt.last != attempt.excused
        }
        if moved:
            summary.tallies = tuple(
                replace(tally, moved=True) if tally.replica_id in moved else tally
                for tally in summary.tallies
            )

    # --- time ------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Run due timers of all flows; call every 10 to 20 ms.

        Every 50 ms it also looks for silent streams, sends waiting comments and closes lingering
        connections; return whether it did.
        """
        now = self.now_ns()
        self.tell(self.flow, Tick())
        if self._retiring:
            for flow in self._retiring:
                self.tell(flow, Tick())
            self._retiring = [flow for flow in self._retiring if flow.lives]
        if now < self._silence_at:
            return False
        self._silence_at = now + _SILENCE_EVERY
        self._look_for_silence(now)
        if now >= self._quiet_at:
            self._quiet_at = now + _QUIET_EVERY
            self._look_for_pauses(now)
        self._give_signs_of_life(now)
        self._close_lingering(now)
        return True

    def _look_for_silence(self, now: int) -> None:
        silent = [a for a in self.streaming if now - a.last > a.silence_max and not a.paused]
        for attempt in silent:
            attempt.on_silence(now)

    def _look_for_pauses(self, now: int) -> None:
        """Report one stream of each replica that pauses for long, so that control asks there."""
        paused: dict[str, WatchedAttempt] = {}
        for attempt in self.streaming:
            patience = min(_QUIET_MAX, attempt.silence_max // 2)
            if now - attempt.last > patience and not attempt.paused:
                paused.setdefault(attempt.replica_id, attempt)
        for attempt in paused.values():
            attempt.on_pause()

    def _give_signs_of_life(self, now: int) -> None:
        while self._waiting:
            proxied, due = next(iter(self._waiting.items()))
            if due > now:
                return
            del self._waiting[proxied]
            self._waiting[proxied] = now + self._sign_of_life
            proxied.sign_of_life()

    def _close_lingering(self, now: int) -> None:
        while self._lingering:
            attempt, due = next(iter(self._lingering.items()))
            if due > now:
                return
            del self._lingering[attempt]
            attempt.close()

    # --- control ---------------------------------------------------------------------------------

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The flow of new requests, then those of earlier configs that still have some."""
        return (self.flow, *self._retiring)

    def view(self, view: FleetView) -> None:
        """Pass control's new view of the fleet to all flows; flows of later configs get it, too."""
        self._view = view
        for flow in self.flows:
            self.tell(flow, ViewChanged(view))

    def take_demand(self) -> dict[str, float]:
        """Return how many requests came by tenant since the last call, and count from zero again.

        Counted only while some tenant has a quota; control divides the quotas by it.
        """
        demand, self._demand = self._demand, {}
        return demand

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings. If the flow's policies changed, a new flow takes the new requests.

        It takes over quotas and the fleet view; requests under way end in the old flow.
        """
        changed = settings.flow != self.settings.flow
        self.settings = settings
        self.metered = bool(settings.flow.quotas)
        self._sign_of_life = nanos(settings.stream.sign_of_life_s)
        if changed:
            if self.flow.lives:
                self._retiring.append(self.flow)
            before, self.flow = self.flow, Flow(settings.flow, self._streams)
            self.flow.inherit(before)
            if self._view is not None:
                self.tell(self.flow, ViewChanged(self._view))


__all__ = ["FlowPort", "FlowRequest", "News", "WatchedAttempt"]
