"""One request's whole life: events in, actions out.

    Arrived ─► quota ─► model (degrade) ─► replica, or the queue ─► Dispatch
    FirstContent ─► content may be shown; rivals are aborted
    Ended ─► answer, retry, continue elsewhere, or an honest error ─► Finish
    Answered ─► both at once, for an answer in one piece
    Tick ─► every deadline, backoff, hedge and queue expiry

A driver executes the actions and reports what happened; it never chooses. The simulator and the
gateway drive this very class. Each request gets exactly one ``Finish``; each ``Dispatch`` is
answered by one ``Ended`` unless it was aborted, and news of aborted attempts is ignored.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from holdfast.core.failure import MEANINGS, Kind, Outcome
from holdfast.core.messages import (
    Answered,
    Arrived,
    ClientGone,
    Ended,
    FirstContent,
    FlowAction,
    FlowEvent,
    Leased,
    LoadReported,
    RequestId,
    Silent,
    Summary,
    Tick,
    ViewChanged,
)
from holdfast.core.request.admission.quota import Quota
from holdfast.core.request.candidate import SAMPLES_MAX
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.lane import Lane
from holdfast.core.request.life import Attempt, Life, Phase, Step
from holdfast.core.request.moves import Moves
from holdfast.core.types import SECOND, nanos

_SUCCESS: Final = Outcome.SUCCESS
_CANCELLED: Final = Outcome.CANCELLED


class Flow(Moves):
    """All requests of one gateway. ``handle`` is its only mutator."""

    def __init__(self, config: FlowConfig, streams: Callable[[str], Random]) -> None:
        super().__init__(config, streams)
        self._summary_every = nanos(config.summary_s)
        self._summary_at = 0
        self._handlers: dict[type, Callable[[Any, int], list[FlowAction]]] = {
            Arrived: self._on_arrived,
            Answered: self._on_answered,
            FirstContent: self._on_first_content,
            Ended: self._on_ended,
            Silent: self._on_silent,
            ClientGone: self._on_client_gone,
            ViewChanged: self._on_view_changed,
            LoadReported: self._on_load_reported,
            Leased: self._on_leased,
            Tick: self._on_tick,
        }

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """The lanes by model. To be read only."""
        return self._lanes

    @property
    def lives(self) -> Mapping[RequestId, Life]:
        """The requests under way by id. To be read only."""
        return self._lives

    def quota(self, tenant: str) -> Quota | None:
        """What a tenant has left at this gateway, for the headers; ``None`` = no limit."""
        return self._desk.quota(tenant)

    def inherit(self, earlier: "Flow") -> None:
        """Take over what tenants have left: a new config is no new quota."""
        self._desk.inherit(earlier._desk)  # noqa: SLF001 - another of the same class

    def handle(self, event: FlowEvent, now: int) -> list[FlowAction]:
        """Take one event; return the work it causes, in order."""
        # Those of every request go past the table: direct calls compile to direct calls.
        if isinstance(event, Arrived):
            return self._on_arrived(event, now)
        if isinstance(event, Answered):
            return self._on_answered(event, now)
        if isinstance(event, FirstContent):
            return self._on_first_content(event, now)
        if isinstance(event, Ended):
            return self._on_ended(event, now)
        return self._handlers[type(event)](event, now)

    # --- arrival ---------------------------------------------------------------------------------

    def _on_arrived(self, event: Arrived, now: int) -> list[FlowAction]:
        request = event.request
        life = self._desk.open(request, now)
        lane = self._lanes.get(life.model)
        if lane is None:
            return [self._desk.finish(life, 404, "model_not_found", "no such model", now)]
        if self._metered:
            shed = self._desk.reserve(life, now)
            if shed is not None:
                return [self._desk.shed(life, shed, now)]
        self._budget.on_request(now)
        if self._hedging:
            self._hedger.on_request(now)
        if not lane.queue.held:
            dispatch = self._dispatch(life, lane, now)
            if dispatch is not None:
                lane.queue.charge_dispatch(request)
                return [dispatch]
        return self._enqueue(life, lane, now)

    # --- news of attempts ------------------------------------------------------------------------

    def _on_first_content(self, event: FirstContent, now: int) -> list[FlowAction]:
        life = self._lives.get(event.request_id)
        attempt = life.find(event.attempt) if life is not None else None
        if life is None or attempt is None or attempt.first_at:
            return []
        lane = self._lanes[life.model]
        actions: list[FlowAction] = []
        change = lane.first_content(life, attempt, now)
        if change is not None:
            actions.append(self._report(lane, attempt, change))
        if len(life.live) > 1:
            self._outrun(life, lane, attempt, actions, now)
        life.step(Step.CONTENT)
        life.revision = attempt.candidate.revision
        life.hedge_at = 0
        life.due = life.deadline
        if lane.queue.held and actions:
            self._serve_queue(lane, now, actions)
        return actions

    def _on_ended(self, event: Ended, now: int) -> list[FlowAction]:
        life = self._lives.get(event.request_id)
        attempt = life.find(event.attempt) if life is not None else None
        if life is None or attempt is None:
            return []
        lane = self._lanes[life.model]
        candidate = attempt.candidate
        kind = event.kind
        candidate.tokens += event.tokens
        outcome = _SUCCESS if kind is None else MEANINGS[kind].outcome
        change = lane.close(life, attempt, outcome, kind, now)
        actions: list[FlowAction] = []
        if change is not None:
            actions.append(self._report(lane, attempt, change))
        if event.tokens > 1 and not life.request.whole:
            lane.deadlines.observe_gaps(event.worst_gap, event.tokens - 1, candidate.id)
            first = attempt.first_at
            if kind is None and 0 < first < now and len(candidate.paces) < SAMPLES_MAX:
                candidate.paces.append((now - first) / ((event.tokens - 1) * SECOND))
        if kind is None:
            request = life.request
            lane.queue.charge_output(request.tenant, event.tokens, request.priority)
            if life.live:
                self._abort_all(life, lane, life.live, Kind.SUPERSEDED, actions, now)
            if not life.shown_tokens:  # of a continued one this is a part, and says nothing
                candidate.answered(event.tokens, event.finish, event.measured)
            life.shown_tokens += event.tokens
            actions.append(self._desk.finish(life, 200, "ok", "answered", now, candidate.id))
        else:
            self._after_failure(life, lane, attempt, kind, event.tokens, actions, now)
        if lane.queue.held:
            self._serve_queue(lane, now, actions)
        return actions

    def _on_answered(self, event: Answered, now: int) -> list[FlowAction]:
        """A whole answer: its first content and its end in one."""
        life = self._lives.get(event.request_id)
        attempt = life.find(event.attempt) if life is not None else None
        if life is None or attempt is None:
            return []
        lane = self._lanes[life.model]
        candidate, tokens, request = attempt.candidate, event.tokens, life.request
        actions: list[FlowAction] = []
        change = lane.first_content(life, attempt, now)
        closed = lane.close(life, attempt, _SUCCESS, None, now) or change
        if closed is not None:
            actions.append(self._report(lane, attempt, closed))
        if life.live:
            self._outrun(life, lane, attempt, actions, now)
        candidate.tokens += tokens
        candidate.answered(tokens, event.finish, event.measured)
        life.shown_tokens += tokens
        lane.queue.charge_output(request.tenant, tokens, request.priority)
        actions.append(self._desk.finish(life, 200, "ok", "answered", now, candidate.id))
        if lane.queue.held:
            self._serve_queue(lane, now, actions)
        return actions

    def _on_silent(self, event: Silent, now: int) -> list[FlowAction]:
        life = self._lives.get(event.request_id)
        attempt = life.find(event.attempt) if life is not None else None
        if life is None or attempt is None:
            return []
        actions: list[FlowAction] = []
        kind = Kind.BETWEEN_TOKENS_TIMEOUT
        self._time_out(life, self._lanes[life.model], attempt, kind, event.tokens, actions, now)
        return actions

    def _time_out(
        self,
        life: Life,
        lane: Lane,
        attempt: Attempt,
        kind: Kind,
        tokens: int,
        actions: list[FlowAction],
        now: int,
    ) -> bool:
        """A wait is over. Blame the replica only where its peers are not slow too."""
        candidate = attempt.candidate
        pool = lane.pool.candidates
        busy = sum(1 for peer in pool.values() if peer.inflight and peer is not candidate)
        waits = lane.waits(life.request)
        verdict = waits.fired(candidate.id, len(pool) - 1, now, busy, attempt.started)
        if not (verdict.retry or verdict.counts):
            life.story.append((now, "patience", verdict.reason))
            return False
        outcome = MEANINGS[kind].outcome if verdict.counts else _CANCELLED
        change = lane.close(life, attempt, outcome, kind, now)
        if change is not None:
            actions.append(self._report(lane, attempt, change))
        actions.append(self._called_back(life, attempt, kind, now))
        self._after_failure(life, lane, attempt, kind, tokens, actions, now)
        if lane.queue.held:
            self._serve_queue(lane, now, actions)
        return True

    # --- time ------------------------------------------------------------------------------------

    def _on_tick(self, _event: Tick, now: int) -> list[FlowAction]:
        actions: list[FlowAction] = []
        for life in self._wheel.advance(now):
            if life.phase is not Phase.DONE:  # one before it may have pushed it out of the queue
                self._on_due(life, actions, now)
        if now >= self._summary_at:
            self._each_second(actions, now)
        for lane in self._lanes.values():
            queue = lane.queue
            if queue.held:
                expires = queue.expires_at_next
                if expires is not None and expires <= now:
                    for request, shed in queue.expire(now):
                        actions.append(self._desk.shed(self._lives[request.id], shed, now))
                self._serve_queue(lane, now, actions)
        return actions

    def _on_due(self, life: Life, actions: list[FlowAction], now: int) -> None:
        lane = self._lanes[life.model]
        if now >= life.deadline:
            if life.phase is Phase.QUEUED:
                lane.queue.remove(life.request.id)
            self._abort_all(life, lane, life.live, Kind.DEADLINE, actions, now)
            actions.append(self._desk.fail(life, Kind.DEADLINE, "out of time", now))
            return
        if life.phase is Phase.BACKING_OFF:
            actions.extend(self._again(life, lane, now))
            return
        if life.hedge_at and now >= life.hedge_at:
            life.hedge_at = 0
            self._hedge(life, lane, actions, now)
        for attempt in list(life.live):
            if attempt.first_at:
                continue
            if now >= attempt.doubt_at:
                lane.overdue(life, attempt, now)
            if now >= attempt.first_due and not lane.bears_with(life, attempt, now):
                if self._time_out(life, lane, attempt, Kind.FIRST_TOKEN_TIMEOUT, 0, actions, now):
                    return  # what comes next has set its own time
                request = life.request
                waits, waiting = lane.waits(request), attempt.candidate.waiting
                more = waits.first_token(request.size, waiting, now)
                attempt.first_due, attempt.scale = now + max(more, SECOND), waits.scale
        self._file_next(life)

    def _hedge(self, life: Life, lane: Lane, actions: list[FlowAction], now: int) -> None:
        decision = self._hedger.decide(now, lane.pool.utilisation(), len(lane.queue))
        if not decision:
            life.story.append((now, "no hedge", decision.reason))
            return
        dispatch = self._dispatch(life, lane, now, life.tried)
        if dispatch is not None:
            life.made += 1
            life.story.append((now, "hedged", decision.reason))
            actions.append(dispatch)

    def _each_second(self, actions: list[FlowAction], now: int) -> None:
        self._summary_at = now + self._summary_every
        actions.extend(self._desk.watch_ladders(self._lanes, now))
        tallies = self._book.tallies()
        if tallies:
            actions.append(Summary(tuple(tallies)))
        actions.extend(self._book.doubt(now))

    # --- news of the world -----------------------------------------------------------------------

    def _on_client_gone(self, event: ClientGone, now: int) -> list[FlowAction]:
        life = self._lives.get(event.request_id)
        if life is None:
            return []
        lane = self._lanes[life.model]
        actions: list[FlowAction] = []
        if life.phase is Phase.QUEUED:
            lane.queue.remove(life.request.id)
        self._abort_all(life, lane, life.live, Kind.CLIENT_GONE, actions, now)
        actions.append(self._desk.fail(life, Kind.CLIENT_GONE, "nobody waits for it", now))
        if lane.queue.held:
            self._serve_queue(lane, now, actions)
        return actions

    def _on_view_changed(self, event: ViewChanged, now: int) -> list[FlowAction]:
        actions: list[FlowAction] = []
        if self._book.apply(event.view, now):
            for lane in self._lanes.values():
                if lane.queue.held:
                    self._serve_queue(lane, now, actions)
        return actions

    def _on_load_reported(self, event: LoadReported, _now: int) -> list[FlowAction]:
        self._book.take_report(event)
        return []

    def _on_leased(self, event: Leased, now: int) -> list[FlowAction]:
        self._desk.lease(event.quota)
        self._budget.lease(event.retry)
        self._book.lease(event.trials, now)
        return []


__all__ = ["Flow"]
