"""One request's whole life: events in, actions out.

    Arrived ─► quota ─► model (degrade) ─► replica, or the queue ─► Dispatch
    FirstContent ─► content may be shown; rivals are aborted
    Ended ─► answer, retry, continue elsewhere, or an honest error ─► Finish
    Tick ─► every deadline, backoff, hedge and queue expiry

A driver executes the actions and reports what happened; it never chooses. The simulator and the
gateway drive this very class. Each request gets exactly one ``Finish``; each ``Dispatch`` is
answered by one ``Ended`` unless it was aborted, and news of aborted attempts is ignored.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from holdfast.core.admission.quota import Quota
from holdfast.core.breaker import BreakerChange
from holdfast.core.desk import Desk
from holdfast.core.failure import MEANINGS, Kind, Outcome
from holdfast.core.flow_config import FlowConfig
from holdfast.core.hedge import Hedger
from holdfast.core.lane import Lane
from holdfast.core.lanes import Lanes
from holdfast.core.life import Attempt, Life, Phase, Step
from holdfast.core.messages import (
    Abort,
    Arrived,
    ClientGone,
    Dispatch,
    Ended,
    FirstContent,
    FlowAction,
    FlowEvent,
    Leased,
    LoadReported,
    Report,
    RequestId,
    Silent,
    Summary,
    Tick,
    ViewChanged,
)
from holdfast.core.retry import Retry, RetryBudget
from holdfast.core.types import SECOND, nanos
from holdfast.core.wheel import Wheel

_SUCCESS: Final = Outcome.SUCCESS
_CANCELLED: Final = Outcome.CANCELLED


class Flow:
    """All requests of one gateway. ``handle`` is its only mutator."""

    def __init__(self, config: FlowConfig, streams: Callable[[str], Random]) -> None:
        self._config = config
        stale = nanos(config.view_stale_s)
        weights = config.tenant_weights
        self._book = Lanes(config.lane, config.lanes, weights, stale, streams)
        self._lanes = self._book.by_model
        self._budget = RetryBudget(config.retry)
        self._retry = Retry(config.retry, self._budget, streams("retry"))
        self._hedger = Hedger(config.hedge)
        self._hedging = config.hedge.enabled and config.retry.attempts > 1  # a hedge is an attempt
        self._metered = bool(config.quotas)
        self._wheel: Wheel[Life] = Wheel()
        self._desk = Desk(config, streams, self._wheel)
        self._lives = self._desk.lives
        self._summary_every = nanos(config.summary_s)
        self._summary_at = 0
        self._handlers: dict[type, Callable[[Any, int], list[FlowAction]]] = {
            Arrived: self._on_arrived,
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

    def handle(self, event: FlowEvent, now: int) -> list[FlowAction]:
        """Take one event; return the work it causes, in order."""
        # The three of every request go past the table: direct calls compile to direct calls.
        if isinstance(event, FirstContent):
            return self._on_first_content(event, now)
        if isinstance(event, Ended):
            return self._on_ended(event, now)
        if isinstance(event, Arrived):
            return self._on_arrived(event, now)
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

    def _enqueue(self, life: Life, lane: Lane, now: int) -> list[FlowAction]:
        offer = lane.queue.offer(life.request, now, ready=lane.pool.ready(now))
        actions: list[FlowAction] = []
        for dropped, shed in offer.dropped:
            actions.append(self._desk.shed(self._lives[dropped.id], shed, now))
        if offer.shed is not None:
            actions.append(self._desk.shed(life, offer.shed, now))
        else:
            life.step(Step.ENQUEUE)
            life.due = life.deadline  # the queue itself keeps the shorter wait
            self._wheel.file(life)
            life.story.append((now, "queued", lane.model))
        return actions

    # --- dispatch --------------------------------------------------------------------------------

    def _dispatch(
        self, life: Life, lane: Lane, now: int, excluded: tuple[str, ...] = ()
    ) -> Dispatch | None:
        """Send one attempt to the replica that routing chooses; ``None`` if nobody has room."""
        request = life.request
        choice = lane.pool.choose(request, excluded, now, life.revision)
        if choice is None:
            return None
        candidate, reason = choice
        attempt = lane.open(life, candidate, now)
        life.step(Step.DISPATCH)
        life.story.append((now, reason, candidate.id))
        due = attempt.first_due
        if self._hedging and len(life.live) == 1:
            due = self._plan_hedge(life, lane, due, now)
        life.due = due if due < life.deadline else life.deadline
        self._wheel.file(life)
        return Dispatch(
            request,
            life.model,
            attempt.number,
            candidate.id,
            reason,
            lane.deadlines.between_tokens(now),
            life.shown_tokens,
        )

    def _plan_hedge(self, life: Life, lane: Lane, due: int, now: int) -> int:
        life.hedge_at = 0
        request = life.request
        if not request.hedgeable or life.shown_tokens or life.made:
            return due
        hedge = self._config.hedge
        expected = lane.waits(request).first_token_quantile(
            request.size, hedge.quantile, hedge.samples_min
        )
        delay = self._hedger.delay(expected)
        if delay is None:
            return due
        life.hedge_at = now + delay
        return min(due, life.hedge_at)

    def _serve_queue(self, lane: Lane, now: int, actions: list[FlowAction]) -> None:
        """Give freed room to those who wait, in the queue's order."""
        queue = lane.queue
        while queue.held and lane.pool.has_room(now):
            request = queue.pop(now)
            if request is None:
                break
            life = self._lives[request.id]
            dispatch = self._dispatch(life, lane, now, life.tried)
            if dispatch is None and life.tried:  # the others are full: one it has tried must do
                dispatch = self._dispatch(life, lane, now)
            if dispatch is None:
                # Only one bound to a revision or to regions finds nobody where others find room.
                full = "no replica that may serve it has room"
                actions.append(self._desk.fail(life, Kind.OVERLOADED, full, now))
            else:
                actions.append(dispatch)

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
            rivals = [other for other in life.live if other is not attempt]
            lane.overtaken(
                life, [rival for rival in rivals if rival.started < attempt.started], now
            )
            self._abort_all(life, lane, rivals, Kind.SUPERSEDED, actions, now)
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
        if kind is None:
            request = life.request
            lane.queue.charge_output(request.tenant, event.tokens, request.priority)
            if life.live:
                self._abort_all(life, lane, life.live, Kind.SUPERSEDED, actions, now)
            life.shown_tokens += event.tokens
            actions.append(self._desk.finish(life, 200, "ok", "answered", now, candidate.id))
        else:
            self._after_failure(life, lane, attempt, kind, event.tokens, actions, now)
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
        verdict = lane.waits(life.request).fired(candidate.id, len(lane.pool.candidates) - 1, now)
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

    def _called_back(self, life: Life, attempt: Attempt, kind: Kind, now: int) -> Abort:
        life.story.append((now, kind.value, attempt.candidate.id))
        return Abort(life.request.id, attempt.number, attempt.candidate.id, kind)

    def _abort_all(
        self,
        life: Life,
        lane: Lane,
        attempts: list[Attempt],
        kind: Kind,
        actions: list[FlowAction],
        now: int,
    ) -> None:
        """Call attempts back that nobody is to blame for."""
        for attempt in list(attempts):
            lane.close(life, attempt, _CANCELLED, kind, now)
            actions.append(self._called_back(life, attempt, kind, now))

    # --- after a failure -------------------------------------------------------------------------

    def _after_failure(
        self,
        life: Life,
        lane: Lane,
        attempt: Attempt,
        kind: Kind,
        tokens: int,
        actions: list[FlowAction],
        now: int,
    ) -> None:
        """The attempt is closed and did not answer: continue, retry, or say so."""
        life.story.append((now, "failed", kind.value))
        if attempt.first_at:
            life.shown_tokens += tokens or 1  # shown, though nobody counted: never start anew
            actions.extend(self._continue(life, lane, kind, now))
            return
        if life.live:
            self._file_next(life)  # its rival is still running, and keeps its deadlines
            return
        if life.shown_tokens:
            actions.extend(self._continue(life, lane, kind, now))
            return
        decision = self._retry.decide(
            kind,
            attempts_made=life.made + 1,
            free_used=life.free_used,
            deadline=life.deadline,
            now=now,
        )
        if not decision.allowed:
            actions.append(self._desk.fail(life, kind, decision.reason, now))
            return
        if decision.free:
            life.free_used = True
        else:
            life.made += 1
        if decision.delay:
            life.step(Step.BACK_OFF)
            life.due = now + decision.delay
            self._wheel.file(life)
        else:
            actions.extend(self._again(life, lane, now))

    def _again(self, life: Life, lane: Lane, now: int) -> list[FlowAction]:
        """Another attempt, elsewhere if possible, queued if nobody has room."""
        dispatch = self._dispatch(life, lane, now, life.tried)
        if dispatch is not None:
            return [dispatch]
        if life.revision is not None and not lane.pool.serves(life.revision, now):
            gone = f"no replica of revision {life.revision} is left to continue it"
            return [self._desk.fail(life, Kind.CUT, gone, now)]
        return self._enqueue(life, lane, now)

    def _continue(self, life: Life, lane: Lane, kind: Kind, now: int) -> list[FlowAction]:
        """Content was shown: only a continuation on the same revision is honest."""
        if not (life.request.continuable and MEANINGS[kind].continuable):
            return [self._desk.fail(life, kind, "this answer cannot be continued", now)]
        decision = self._retry.decide_continuation(
            continuations_made=life.continued, deadline=life.deadline, now=now
        )
        if not decision.allowed:
            return [self._desk.fail(life, kind, decision.reason, now)]
        life.continued += 1
        return self._again(life, lane, now)

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
            if not attempt.first_at and now >= attempt.first_due:
                if self._time_out(life, lane, attempt, Kind.FIRST_TOKEN_TIMEOUT, 0, actions, now):
                    return  # what comes next has set its own time
                request = life.request
                waiting = attempt.candidate.waiting
                more = lane.waits(request).first_token(request.size, waiting, now)
                attempt.first_due = now + max(more, SECOND)
        self._file_next(life)

    def _file_next(self, life: Life) -> None:
        due = life.deadline
        for attempt in life.live:
            if not attempt.first_at:
                due = min(due, attempt.first_due)
        life.due = due
        self._wheel.file(life)

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

    def _report(self, lane: Lane, attempt: Attempt, change: BreakerChange) -> Report:
        return Report(lane.model, attempt.candidate.id, change.after.value, change.reason)

    def snapshot(self, now: int) -> dict[str, object]:
        """Everything a dashboard or a bug report needs, as plain data."""
        return {
            "requests": len(self._lives),
            "view": list(self._book.view),
            "lanes": {model: lane.snapshot(now) for model, lane in self._lanes.items()},
            "retry": self._retry.snapshot(),
            "hedge": self._hedger.snapshot(),
        }


__all__ = ["Flow"]
