"""The state machine of all requests of one gateway: events go in, actions come out.

    Arrived ─► model (its ladder) ─► quota ─► replica, or the queue ─► Dispatch
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
    Abort,
    Answered,
    Arrived,
    ClientGone,
    Dispatch,
    Ended,
    FirstContent,
    FlowAction,
    FlowEvent,
    Leased,
    LoadReported,
    Quiet,
    ReplicaHalted,
    Report,
    RequestId,
    Silent,
    Spent,
    Summary,
    Tick,
    ViewChanged,
)
from holdfast.core.request.active_request import (
    HOST_TOGETHER,
    ActiveRequest,
    Attempt,
    RequestPhase,
    RequestStep,
    apart,
    died,
    unreached,
)
from holdfast.core.request.admission.quota import Quota
from holdfast.core.request.admission.refusals import Refusal, wait_expired
from holdfast.core.request.admission_desk import NOT_SERVED, UNREAD, AdmissionDesk
from holdfast.core.request.breaker import BreakerChange
from holdfast.core.request.candidate import SAMPLES_MAX
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import Hedger
from holdfast.core.request.ladders.model_ladders import ModelLadders
from holdfast.core.request.lane import Lane, LaneTable
from holdfast.core.request.prompts.long_prompts import LOOK_AGAIN, reason_to_stay, why_unread
from holdfast.core.request.request_mover import RequestMover
from holdfast.core.request.retry import Retry, RetryBudget
from holdfast.core.request.timer_wheel import TimerWheel
from holdfast.core.types import SECOND, Halt, nanos

_SUCCESS: Final = Outcome.SUCCESS
_CANCELLED: Final = Outcome.CANCELLED
_BROKEN: Final = (Kind.CUT, Kind.RESET)  # ways in which a stream that has begun breaks off
_QUEUED: Final = RequestPhase.QUEUED.value
_LOOK_ELSEWHERE: Final = SECOND // 2  # while a request waits and no model of its ladder has room
_NOT_FOUND: Final = 404


class Flow:
    """All requests of one gateway: decides for each when it is sent, retried, hedged and answered.

    It does no I/O: ``handle`` takes events and returns actions, and besides ``inherit`` is its only
    mutator.
    """

    def __init__(self, config: FlowConfig, streams: Callable[[str], Random]) -> None:
        stale = nanos(config.view_stale_s)
        weights = config.tenant_weights
        self._lane_table = LaneTable(config.lane, config.lanes, weights, stale, streams)
        self._lanes = self._lane_table.by_model
        self._budget = RetryBudget(config.retry)
        self._retry = Retry(config.retry, self._budget, streams("retry"))
        self._hedger = Hedger(config.hedge)
        self._hedging = config.hedge.enabled and config.retry.attempts > 1  # a hedge is an attempt
        self._metered = bool(config.quotas)
        self._wheel: TimerWheel[ActiveRequest] = TimerWheel()
        self._desk = AdmissionDesk(config, self._wheel)
        self._ladders = ModelLadders(config.degrade, streams)
        self._laddered = bool(config.degrade)
        self._requests = self._desk.requests
        self._mover = RequestMover(
            self._requests,
            self._lanes,
            self._retry,
            dispatch=self._dispatch,
            close=self._close,
            call_back=self._called_back,
            elsewhere=self._dispatch_elsewhere,
        )
        self._summary_every = nanos(config.summary_s)
        self._summary_at = 0
        self._handlers: dict[type, Callable[[Any, int], list[FlowAction]]] = {
            Arrived: self._on_arrived,
            Answered: self._on_answered,
            FirstContent: self._on_first_content,
            Ended: self._on_ended,
            Silent: self._on_silent,
            Quiet: self._on_quiet,
            ReplicaHalted: self._on_halted,
            ClientGone: self._on_client_gone,
            Spent: self._on_spent,
            ViewChanged: self._on_view_changed,
            LoadReported: self._on_load_reported,
            Leased: self._on_leased,
            Tick: self._on_tick,
        }

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """The lane of each known model, by model name; to be read only.

        A model is known once it was configured or in a fleet view.
        """
        return self._lanes

    @property
    def lives(self) -> Mapping[RequestId, ActiveRequest]:
        """The requests under way in this gateway, by request id, queued ones included.

        To be read only.
        """
        return self._requests

    def ready_in_s(self, request_id: RequestId, now: int) -> float | None:
        """Seconds until a queued request's model will have a ready replica, by control's estimate.

        ``None``: the request is not queued, its model has a replica now, or the time is not known.
        """
        active = self._requests.get(request_id)
        if active is None or active.phase is not RequestPhase.QUEUED:
            return None
        pool = self._lanes[active.model].pool
        outlook = None if pool.ready(now) else pool.outlook(now)
        return None if outlook is None else outlook.ready_in_s

    def expects_path(self, request_id: RequestId, attempt: int, canary_path: str) -> bool:
        """Whether the replica of an attempt must serve the request's path.

        Its canaries use it, or it has served it. What one replica alone keeps may be lost at any
        time. Where it is not expected, an answer that says otherwise is no failure.
        """
        active = self._requests.get(request_id)
        found = active.find(attempt) if active is not None else None
        if active is None or found is None or active.request.holder:
            return False
        path = active.request.path
        return path == canary_path or path in found.candidate.serves

    def running(self) -> dict[str, int]:
        """Return how many requests each tenant has under way at this gateway, by tenant.

        Only tenants that have a bound on requests at once and at least one request are in it.
        """
        return self._desk.running()

    def quota(self, tenant: str) -> Quota | None:
        """Return the live ``Quota`` of a tenant at this gateway; ``None`` if it has none."""
        return self._desk.quota(tenant)

    def inherit(self, earlier: "Flow") -> None:
        """Take over an earlier flow's quotas where their config is equal, with what is left.

        So a new config gives no new quota. Requests, lanes and breakers are not taken over.
        """
        self._desk.inherit(earlier._desk)  # noqa: SLF001 - another of the same class

    def handle(self, event: FlowEvent, now: int) -> list[FlowAction]:
        """Take one event at time ``now`` (ns); return the actions for the driver, in order.

        The event is of any request of this gateway, or a tick, fleet view, load report or lease.
        Actions may concern other requests, too; events of requests or attempts that are over cause
        none.
        """
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

    # --- a request arrives ------------------------------------------------------------------------

    def _on_arrived(self, event: Arrived, now: int) -> list[FlowAction]:
        """Admit a new request: dispatch it at once, queue it, or refuse it."""
        request = event.request
        active = self._desk.open(request, now)
        if self._laddered:
            self._ladders.place(active, self._lanes, now)
            self._count_elsewhere(active, now)
        lane = self._lanes.get(active.model)
        if lane is None:
            return [self._desk.finish(active, 404, "model_not_found", "no such model", now)]
        if self._metered:
            refusal = self._desk.reserve(active, now)
            if refusal is not None:
                return [self._desk.shed(active, refusal, now)]
        self._budget.on_request(now)
        if self._hedging:
            self._hedger.on_request(now)
        if not lane.queue.held:
            dispatch = self._dispatch(active, lane, now)
            if dispatch is not None:
                lane.queue.charge_dispatch(request)
                return [dispatch]
            return self._enqueue(active, lane, now)
        actions = self._enqueue(active, lane, now)
        self._serve_queue(lane, now, actions)  # those before it may wait for one replica alone
        return actions

    def _enqueue(self, active: ActiveRequest, lane: Lane, now: int) -> list[FlowAction]:
        """Put a request into its model's queue, or where that cannot help, have another answer it.

        Where no model of its ladder does, it is finished with the queue's refusal.
        """
        if active.request.holder and lane.pool.lost(active.request.holder):
            return [self._desk.fail_gone(active, now)]
        if self._laddered and not lane.pool.may_serve(active.request, now):
            gone = f"no replica of {lane.model} may be chosen"
            moved = self._elsewhere(active, gone, now, waits=True)
            if moved is not None:
                return moved
        actions: list[FlowAction] = []
        refusal = self._queue(active, lane, actions, now)
        if refusal is not None:
            self._refuse(active, refusal, actions, now, waits=True)
        return actions

    def _queue(
        self, active: ActiveRequest, lane: Lane, actions: list[FlowAction], now: int
    ) -> Refusal | None:
        """Put a request into a model's queue, out of the one it is in; or return the refusal."""
        ready, waited = lane.pool.ready(now), active.waited
        if active.phase is RequestPhase.QUEUED:
            waited += now - active.queued_at
        outlook = None if ready else lane.pool.outlook(now)
        offer = lane.queue.offer(active.request, now, ready=ready, waited=waited, outlook=outlook)
        for dropped, refusal in offer.dropped:
            self._refuse(self._requests[dropped.id], refusal, actions, now)
        if offer.refusal is not None:
            return offer.refusal
        if active.phase is RequestPhase.QUEUED:
            self._lanes[active.model].queue.remove(active.request.id)
        active.model = lane.model
        active.step(RequestStep.ENQUEUE)
        active.waited, active.queued_at = waited, now
        patience = self._ladders.patience(active) if self._laddered else None
        active.due = active.deadline  # the queue itself keeps the shorter wait
        if patience is not None:
            active.due = min(active.due, now + patience)
        self._wheel.file(active)
        active.story.append((now, _QUEUED, lane.model))
        return None

    def _refuse(
        self,
        active: ActiveRequest,
        refusal: Refusal,
        actions: list[FlowAction],
        now: int,
        *,
        waits: bool = False,
    ) -> None:
        """Refuse a request that its model has no place for, unless another one answers it."""
        moved = self._elsewhere(active, refusal.code, now, waits=waits) if self._laddered else None
        actions.extend([self._desk.shed(active, refusal, now)] if moved is None else moved)

    # --- another model of its ladder ----------------------------------------------------------

    def _dispatch_elsewhere(self, active: ActiveRequest, why: str, now: int) -> Dispatch | None:
        """Start an attempt at another model of a request's ladder that has room for it at once."""
        before = active.model
        for lane in self._ladders.others(active, self._lanes, now):
            if lane.queue.held:
                continue  # whoever waits there was there before
            story = len(active.story)
            queued = active.phase is RequestPhase.QUEUED
            dispatch = self._dispatch(active, lane, now, active.tried)
            if dispatch is not None:
                if queued:
                    self._lanes[before].queue.remove(active.request.id)
                lane.queue.charge_dispatch(active.request)
                self._left(active, before, why, story, now)
                return dispatch
        return None

    def _elsewhere(
        self, active: ActiveRequest, why: str, now: int, *, waits: bool = False
    ) -> list[FlowAction] | None:
        """Have another model of its ladder answer a request; ``None`` where none does.

        ``waits``: a place in the queue of one will do, too, if none has room at once.
        """
        dispatch = self._dispatch_elsewhere(active, why, now)
        if dispatch is not None:
            return [dispatch]
        before = active.model
        for lane in self._ladders.others(active, self._lanes, now) if waits else ():
            actions: list[FlowAction] = []
            story = len(active.story)
            if self._queue(active, lane, actions, now) is None:
                self._left(active, before, why, story, now)
                return actions
        return None

    def _left(self, active: ActiveRequest, before: str, why: str, story: int, now: int) -> None:
        """Note that a request went from one model of its ladder to another, and why."""
        active.left += (before,)
        active.charges = ()  # what another model answers proves nothing of these replicas
        active.story.insert(story, (now, "degraded", f"to {active.model}: {why}"))
        self._count_elsewhere(active, now)

    def _count_elsewhere(self, active: ActiveRequest, now: int) -> None:
        """Count a request as demand for the model it asked for, which has no replica for it."""
        asked = self._lanes.get(active.request.model)
        if active.model != active.request.model and asked is not None:
            asked.answered_elsewhere += not asked.pool.ready(now)

    def _look_elsewhere(
        self, active: ActiveRequest, lane: Lane, actions: list[FlowAction], now: int
    ) -> None:
        """Have a queued request answered by another model of its ladder, if one can by now."""
        waits = not lane.pool.ready(now)
        moved = self._elsewhere(active, "it waited for a replica", now, waits=waits)
        if moved is not None:
            actions.extend(moved)
        elif self._ladders.waits_on(active):
            active.due = min(active.deadline, now + _LOOK_ELSEWHERE)
            self._wheel.file(active)
        else:
            lane.queue.remove(active.request.id)
            waited_s = (active.waited + now - active.queued_at) / SECOND
            refusal = wait_expired(waited_s, len(lane.queue), None)
            actions.append(self._desk.shed(active, refusal, now))

    def _return(self, active: ActiveRequest, actions: list[FlowAction], now: int) -> None:
        """Send a request that another model refused as bad back to the one it asked for."""
        asked = self._lanes[active.request.model]
        active.left += (active.model,)
        active.story.append((now, "returned", f"{active.model} cannot answer it"))
        dispatch = self._dispatch(active, asked, now, active.tried)
        if dispatch is not None:
            actions.append(dispatch)
            return
        refusal = self._queue(active, asked, actions, now)
        if refusal is not None:
            self._refuse(active, refusal, actions, now)

    def _dispatch(
        self, active: ActiveRequest, lane: Lane, now: int, excluded: tuple[str, ...] = ()
    ) -> Dispatch | None:
        """Start an attempt at the replica that routing chooses; ``None`` if none has room."""
        request = active.request
        choice = lane.pool.choose(request, excluded, now, active.revision)
        if choice is None:
            return None
        candidate, reason = choice
        attempt = lane.open(active, candidate, now)
        if active.phase is RequestPhase.QUEUED:
            active.waited += now - active.queued_at
        active.step(RequestStep.DISPATCH)
        active.model = lane.model
        active.story.append((now, reason, candidate.id))
        due = attempt.doubt_at if attempt.doubt_at < attempt.first_due else attempt.first_due
        if self._hedging and len(active.live) == 1:
            due = self._hedger.plan(active, lane.waits(request), due, now)
        active.due = due if due < active.deadline else active.deadline
        self._wheel.file(active)
        return Dispatch(
            request,
            active.model,
            attempt.number,
            candidate.id,
            reason,
            lane.deadlines.between_tokens(now),
            active.shown_tokens,
            active.output_max,
        )

    def _serve_queue(self, lane: Lane, now: int, actions: list[FlowAction]) -> None:
        """Dispatch queued requests while replicas have room."""
        queue = lane.queue
        while queue.held and lane.pool.has_room(now):
            request = queue.pop(now, lane.pool.fits)
            if request is None:
                break
            active = self._requests[request.id]
            dispatch = self._dispatch(active, lane, now, active.tried)
            if dispatch is None and active.tried:  # the others are full: one it has tried must do
                dispatch = self._dispatch(active, lane, now)
            if dispatch is None and self._laddered:
                dispatch = self._dispatch_elsewhere(active, "no replica may serve it", now)
            if dispatch is None and request.holder:
                actions.append(self._desk.fail_gone(active, now))
            elif dispatch is None:
                # Only one bound to a revision or to regions finds nobody where others find room.
                full = "no replica that may serve it has room"
                actions.append(self._desk.fail(active, Kind.OVERLOADED, full, now))
            else:
                actions.append(dispatch)

    # --- an attempt answers -----------------------------------------------------------------------

    def _on_first_content(self, event: FirstContent, now: int) -> list[FlowAction]:
        """Note the first content of an attempt and abort the attempts it was racing."""
        active = self._requests.get(event.request_id)
        attempt = active.find(event.attempt) if active is not None else None
        if active is None or attempt is None or attempt.first_at:
            return []
        lane = self._lanes[active.model]
        actions: list[FlowAction] = []
        change = lane.first_content(active, attempt, now)
        if change is not None:
            actions.append(self._report(lane, attempt, change))
        if active.charges:
            self._uphold(active, lane, attempt, actions, now, alike=event.alike)
        if len(active.live) > 1:
            self._outrun(active, lane, attempt, actions, now)
        active.step(RequestStep.CONTENT)
        active.revision = attempt.candidate.revision
        active.hedge_at = 0
        active.due = active.deadline
        if lane.queue.held and actions:
            self._serve_queue(lane, now, actions)
        return actions

    def _on_answered(self, event: Answered, now: int) -> list[FlowAction]:
        """Finish a request whose complete answer came in one piece."""
        active = self._requests.get(event.request_id)
        attempt = active.find(event.attempt) if active is not None else None
        if active is None or attempt is None:
            return []
        lane = self._lanes[active.model]
        candidate, tokens, request = attempt.candidate, event.tokens, active.request
        actions: list[FlowAction] = []
        change = lane.first_content(active, attempt, now)
        closed = lane.close(active, attempt, _SUCCESS, None, now) or change
        if closed is not None:
            actions.append(self._report(lane, attempt, closed))
        if active.charges:
            self._uphold(active, lane, attempt, actions, now, alike=event.alike)
        if active.live:
            self._outrun(active, lane, attempt, actions, now)
        candidate.tokens += tokens
        candidate.answered(tokens, event.finish, event.measured)
        active.shown_tokens += tokens
        active.read_tokens = event.prompt_tokens
        if self._metered:
            lane.pace.observe(tokens, request.choices, now - attempt.started)
        lane.queue.charge_output(request.tenant, tokens, request.priority)
        actions.append(self._desk.finish(active, 200, "ok", "answered", now, candidate.id))
        if lane.queue.held:
            self._serve_queue(lane, now, actions)
        return actions

    def _outrun(
        self,
        active: ActiveRequest,
        lane: Lane,
        winner: Attempt,
        actions: list[FlowAction],
        now: int,
    ) -> None:
        """Abort the attempts that lost a race; the older ones count as at least this slow."""
        rivals = [rival for rival in active.live if rival is not winner]
        lane.overtaken(active, [each for each in rivals if each.started < winner.started], now)
        self._abort_all(active, lane, rivals, Kind.SUPERSEDED, actions, now)

    def _abort_all(
        self,
        active: ActiveRequest,
        lane: Lane,
        attempts: list[Attempt],
        kind: Kind,
        actions: list[FlowAction],
        now: int,
    ) -> None:
        """Abort attempts without counting them against their replicas."""
        for attempt in list(attempts):
            lane.close(active, attempt, _CANCELLED, kind, now)
            actions.append(self._called_back(active, attempt, kind, now))

    def _called_back(self, active: ActiveRequest, attempt: Attempt, kind: Kind, now: int) -> Abort:
        """The action that aborts an attempt, noted in the request's story."""
        active.story.append((now, kind.value, attempt.candidate.id))
        return Abort(active.request.id, attempt.number, attempt.candidate.id, kind)

    def _uphold(
        self,
        active: ActiveRequest,
        lane: Lane,
        attempt: Attempt,
        actions: list[FlowAction],
        now: int,
        *,
        alike: bool,
    ) -> None:
        """Believe the earlier failures of a request, because this attempt answers it."""
        lane.uphold(active, attempt.candidate, now, alike=alike)
        if lane.reports:
            actions.extend(lane.take_reports())

    def _close(
        self,
        active: ActiveRequest,
        lane: Lane,
        attempt: Attempt,
        outcome: Outcome,
        kind: Kind | None,
        actions: list[FlowAction],
        now: int,
    ) -> None:
        """End an attempt, and report what that changed."""
        change = lane.close(active, attempt, outcome, kind, now)
        if change is not None:
            actions.append(self._report(lane, attempt, change))
        if lane.reports:
            actions.extend(lane.take_reports())

    def _report(self, lane: Lane, attempt: Attempt, change: BreakerChange) -> Report:
        """The report that tells control that a breaker moved."""
        return Report(lane.model, attempt.candidate.id, change.after.value, change.reason)

    # --- an attempt ends or goes silent -----------------------------------------------------------

    def _on_ended(self, event: Ended, now: int) -> list[FlowAction]:
        """Close an attempt and finish its request, or decide what follows its failure."""
        active = self._requests.get(event.request_id)
        attempt = active.find(event.attempt) if active is not None else None
        if active is None or attempt is None:
            return []
        lane = self._lanes[active.model]
        candidate = attempt.candidate
        kind = event.kind
        candidate.tokens += event.tokens
        active.read_tokens = event.prompt_tokens or active.read_tokens
        outcome = _SUCCESS if kind is None else MEANINGS[kind].outcome
        actions: list[FlowAction] = []
        self._close(active, lane, attempt, outcome, kind, actions, now)
        if event.tokens > 1 and not active.request.whole:
            lane.deadlines.observe_gaps(event.worst_gap, event.tokens - 1, candidate.id)
            first = attempt.first_at
            if kind is None and 0 < first < now and len(candidate.paces) < SAMPLES_MAX:
                candidate.paces.append((now - first) / ((event.tokens - 1) * SECOND))
        if kind is None:
            request = active.request
            lane.queue.charge_output(request.tenant, event.tokens, request.priority)
            if active.live:
                self._abort_all(active, lane, active.live, Kind.SUPERSEDED, actions, now)
            if not active.shown_tokens:  # of a continued one this is a part, and says nothing
                candidate.answered(event.tokens, event.finish, event.measured)
                if self._metered:
                    lane.pace.observe(event.tokens, request.choices, now - attempt.started)
            active.shown_tokens += event.tokens
            actions.append(self._desk.finish(active, 200, "ok", "answered", now, candidate.id))
        elif kind is Kind.NOT_SERVED and not (attempt.first_at or active.shown_tokens):
            actions.extend(self._not_served(active, lane, attempt, event.status, now))
        else:
            if kind in _BROKEN and attempt.first_at:
                doubt = lane.doubt(candidate, "a stream broke off", now)
                if doubt is not None:
                    actions.append(doubt)
            self._after_failure(active, lane, attempt, kind, event.tokens, actions, now)
        if lane.queue.held:
            self._serve_queue(lane, now, actions)
        return actions

    def _not_served(
        self, active: ActiveRequest, lane: Lane, attempt: Attempt, status: int, now: int
    ) -> list[FlowAction]:
        """Pass on that a replica does not have what is asked for, or ask one that is known to.

        Nobody is at fault. What a replica lacks is remembered, unless only this request asks for
        it: an answer that the replica has kept and keeps no more.
        """
        request, pool = active.request, lane.pool
        active.story.append((now, Kind.NOT_SERVED.value, attempt.candidate.id))
        if request.holder and status == _NOT_FOUND:
            return [self._desk.fail_gone(active, now)]
        if not request.holder:
            pool.absent.learn(attempt.candidate, request.path, now)
            if active.live:
                self._file_next(active)  # its rival is still running
                return []
            others = pool.all_but_serving(request.path, active.tried)
            if others is not None:
                dispatch = self._dispatch(active, lane, now, others)
                return self._enqueue(active, lane, now) if dispatch is None else [dispatch]
        if active.model != request.model:  # a smaller model of its ladder
            actions: list[FlowAction] = []
            self._return(active, actions, now)
            return actions
        reason = f"{active.model} is not served at this path: its engine answered {status}"
        return [self._desk.finish(active, status, NOT_SERVED, reason, now)]

    def _on_quiet(self, event: Quiet, now: int) -> list[FlowAction]:
        """Tell control of a stream that pauses for long; it is still waited for."""
        active = self._requests.get(event.request_id)
        attempt = active.find(event.attempt) if active is not None else None
        if active is None or attempt is None:
            return []
        lane = self._lanes[active.model]
        doubt = lane.doubt(attempt.candidate, "a stream pauses for long", now)
        return [] if doubt is None else [doubt]

    def _on_silent(self, event: Silent, now: int) -> list[FlowAction]:
        """Judge a stream that sent nothing for longer than its deadline between tokens."""
        active = self._requests.get(event.request_id)
        attempt = active.find(event.attempt) if active is not None else None
        if active is None or attempt is None:
            return []
        actions: list[FlowAction] = []
        kind = Kind.BETWEEN_TOKENS_TIMEOUT
        self._time_out(active, self._lanes[active.model], attempt, kind, event.tokens, actions, now)
        return actions

    def _time_out(
        self,
        active: ActiveRequest,
        lane: Lane,
        attempt: Attempt,
        kind: Kind,
        tokens: int,
        actions: list[FlowAction],
        now: int,
    ) -> bool:
        """Judge a deadline that fired; ``False`` if the attempt is to be waited for longer."""
        candidate = attempt.candidate
        pool = lane.pool.candidates
        busy = sum(1 for peer in pool.values() if peer.inflight and peer is not candidate)
        waits = lane.waits(active.request)
        verdict = waits.fired(candidate.id, len(pool) - 1, now, busy, attempt.started)
        if not (verdict.retry or verdict.counts):
            active.story.append((now, "patience", verdict.reason))
            return False
        outcome = MEANINGS[kind].outcome if verdict.counts else _CANCELLED
        self._close(active, lane, attempt, outcome, kind, actions, now)
        actions.append(self._called_back(active, attempt, kind, now))
        self._after_failure(active, lane, attempt, kind, tokens, actions, now)
        if lane.queue.held:
            self._serve_queue(lane, now, actions)
        return True

    # --- after a failure: continue, retry or give up ----------------------------------------------

    def _after_failure(
        self,
        active: ActiveRequest,
        lane: Lane,
        attempt: Attempt,
        kind: Kind,
        tokens: int,
        actions: list[FlowAction],
        now: int,
    ) -> None:
        """Decide what follows a failed attempt: a continuation, a retry, or the final error."""
        active.story.append((now, "failed", kind.value))
        if kind is Kind.EMPTY:
            active.empty += (attempt.candidate.id,)
        host = attempt.candidate.replica.host
        beside = bool(host) and host in active.hosts
        deaths_max = active.request.deaths_max
        # Who may cost one replica only is not sent on, however soon its connection broke.
        lived = now - attempt.started if deaths_max > 1 else HOST_TOGETHER
        if died(kind, lived) and apart(active.died_at, now, same_host=beside):
            active.died_at = now
            if attempt.candidate.id not in active.died:
                active.died += (attempt.candidate.id,)
        if host and not beside and unreached(kind):
            active.hosts += (host,)
        if attempt.first_at:
            active.shown_tokens += tokens or 1  # shown, though nobody counted: never start anew
        elif active.live:
            self._file_next(active)  # its rival is still running, and keeps its deadlines
            return
        if len(active.died) >= deaths_max:
            actions.append(self._desk.fail_deadly(active, now))
            return
        if attempt.first_at:
            actions.extend(self._continue(active, lane, kind, now))
            return
        if active.shown_tokens:
            actions.extend(self._continue(active, lane, kind, now))
            return
        if kind is Kind.BAD_REQUEST and active.model != active.request.model:
            self._return(active, actions, now)
            return
        if active.request.holder and kind is Kind.REFUSED:  # its process is gone, and what it kept
            actions.append(self._desk.fail_gone(active, now))
            return
        decision = self._retry.decide(
            kind,
            attempts_made=active.made + 1,
            free_used=active.free_used,
            deadline=active.deadline,
            now=now,
        )
        if not decision.allowed:
            other = None
            if self._laddered and MEANINGS[kind].retryable and now < active.deadline:
                other = self._dispatch_elsewhere(active, kind.value, now)
            actions.append(other or self._desk.fail(active, kind, decision.reason, now))
            return
        if decision.free:
            active.free_used = True
        else:
            active.made += 1
        if decision.delay:
            active.step(RequestStep.BACK_OFF)
            active.due = now + decision.delay
            self._wheel.file(active)
        else:
            actions.extend(self._again(active, lane, now))

    def _continue(
        self, active: ActiveRequest, lane: Lane, kind: Kind, now: int
    ) -> list[FlowAction]:
        """Continue a broken stream on a replica of the same revision, or finish with the error."""
        if not (active.request.continuable and MEANINGS[kind].continuable):
            return [self._desk.fail(active, kind, "this answer cannot be continued", now)]
        decision = self._retry.decide_continuation(
            continuations_made=active.continued, deadline=active.deadline, now=now
        )
        if not decision.allowed:
            return [self._desk.fail(active, kind, decision.reason, now)]
        active.continued += 1
        return self._again(active, lane, now)

    def _again(self, active: ActiveRequest, lane: Lane, now: int) -> list[FlowAction]:
        """Start another attempt, at a replica not tried yet if possible, else queue the request.

        Replicas beside one that broke off come last: if its host was lost, they were, too.
        """
        dispatch = None
        if active.hosts:
            beside = lane.pool.on_hosts(active.hosts)
            dispatch = self._dispatch(active, lane, now, active.tried + beside)
        if dispatch is None:
            dispatch = self._dispatch(active, lane, now, active.tried)
        if dispatch is not None:
            return [dispatch]
        if active.revision is not None and not lane.pool.serves(active.revision, now):
            gone = f"no replica of revision {active.revision} is left to continue it"
            return [self._desk.fail(active, Kind.CUT, gone, now)]
        return self._enqueue(active, lane, now)

    # --- a replica will not answer ----------------------------------------------------------------

    def _on_halted(self, event: ReplicaHalted, now: int) -> list[FlowAction]:
        """Send requests without content away from a replica that control found, or empties."""
        actions: list[FlowAction] = []
        self._mark_halted(event.model, event.replica_id, event.halt, now)
        self._mover.move(actions, now)
        return actions

    def _mark_halted(self, model: str, replica_id: str, halt: Halt, now: int) -> None:
        """Mark what is caught at a replica; long prompts explain a hang no more."""
        lane = self._lanes.get(model)
        if halt is Halt.STALLED and lane is not None:
            lane.long_prompts.refute(replica_id, now)
        self._mover.mark(model, replica_id, halt, now)

    # --- time passes ------------------------------------------------------------------------------

    def _on_tick(self, _event: Tick, now: int) -> list[FlowAction]:
        """Run the timers that are due, the summary of each second, and the queues."""
        actions: list[FlowAction] = []
        for active in self._wheel.advance(now):
            if (
                active.phase is not RequestPhase.DONE
            ):  # one before it may have pushed it out of the queue
                self._on_due(active, actions, now)
        if now >= self._mover.look_at:
            self._mover.move(actions, now)
        if now >= self._summary_at:
            self._each_second(actions, now)
        for lane in self._lanes.values():
            queue = lane.queue
            if queue.held:
                expires = queue.expires_at_next
                if expires is not None and expires <= now:
                    for request, refusal in queue.expire(now):
                        self._refuse(self._requests[request.id], refusal, actions, now)
                self._serve_queue(lane, now, actions)
        return actions

    def _on_due(self, active: ActiveRequest, actions: list[FlowAction], now: int) -> None:
        """Act on what is due for one request: deadline, backoff, hedge, or a late first token."""
        lane = self._lanes[active.model]
        if now >= active.deadline:
            if active.phase is RequestPhase.QUEUED:
                lane.queue.remove(active.request.id)
            unread = why_unread(active, lane.deadlines.reading, now)
            self._abort_all(active, lane, active.live, Kind.DEADLINE, actions, now)
            if unread is not None:
                actions.append(self._desk.finish(active, *UNREAD, unread, now))
            else:
                actions.append(self._desk.fail(active, Kind.DEADLINE, "out of time", now))
            return
        if active.phase is RequestPhase.QUEUED:
            self._look_elsewhere(active, lane, actions, now)
            return
        if active.phase is RequestPhase.BACKING_OFF:
            actions.extend(self._again(active, lane, now))
            return
        if active.hedge_at and now >= active.hedge_at:
            active.hedge_at = 0
            self._hedge(active, lane, actions, now)
        for attempt in list(active.live):
            if attempt.first_at:
                continue
            if now >= attempt.doubt_at:
                doubt = lane.overdue(active, attempt, now)
                if doubt is not None:
                    actions.append(doubt)
            if now >= attempt.first_due and not lane.bears_with(active, attempt, now):
                if self._stays(active, attempt, now):
                    continue
                if self._time_out(active, lane, attempt, Kind.FIRST_TOKEN_TIMEOUT, 0, actions, now):
                    return  # what comes next has set its own time
                request = active.request
                waits, candidate = lane.waits(request), attempt.candidate
                more = waits.wait(
                    request, candidate.waiting, candidate.inflight, now, candidate.queue()
                )
                attempt.first_due, attempt.scale = now + max(more, SECOND), waits.scale
        self._file_next(active)

    def _stays(self, active: ActiveRequest, attempt: Attempt, now: int) -> bool:
        """Whether a late first token is waited for, as no other replica would be sooner."""
        if len(active.live) > 1:
            return False  # its rival has the rest of the time
        may_retry = self._retry.may_retry(active.made + 1, active.deadline, now)
        reason = reason_to_stay(active, attempt, now, may_retry=may_retry)
        if reason is None:
            return False
        attempt.first_due = now + LOOK_AGAIN
        if active.story[-1][1:] != ("patience", reason):
            active.story.append((now, "patience", reason))
        return True

    def _hedge(
        self, active: ActiveRequest, lane: Lane, actions: list[FlowAction], now: int
    ) -> None:
        """Start a second attempt beside the first, if there is spare capacity for it."""
        decision = self._hedger.decide(now, lane.pool.utilisation(), len(lane.queue))
        if not decision:
            active.story.append((now, "no hedge", decision.reason))
            return
        dispatch = self._dispatch(active, lane, now, active.tried)
        if dispatch is not None:
            active.made += 1
            active.story.append((now, "hedged", decision.reason))
            actions.append(dispatch)

    def _file_next(self, active: ActiveRequest) -> None:
        """Set the request's timer to the earliest of its deadlines, or to its hedge."""
        due = min(active.deadline, active.hedge_at or active.deadline)
        for attempt in active.live:
            if not attempt.first_at:
                due = min(due, attempt.first_due, attempt.doubt_at)
        active.due = due
        self._wheel.file(active)

    def _each_second(self, actions: list[FlowAction], now: int) -> None:
        """Move the model ladders, and tell control what was counted."""
        self._summary_at = now + self._summary_every
        actions.extend(self._ladders.watch(self._lanes, now))
        tallies = self._lane_table.tallies(now)
        if tallies:
            actions.append(Summary(tuple(tallies)))
        actions.extend(self._lane_table.overruled())
        actions.extend(self._lane_table.doubt(now))

    # --- the client leaves; control and engines report --------------------------------------------

    def _on_client_gone(self, event: ClientGone, now: int) -> list[FlowAction]:
        """Abort the attempts of a request whose client has left, and finish it.

        An answer in one piece is charged for the time in which it was made; of a stream the driver
        knows what was sent.
        """
        active = self._requests.get(event.request_id)
        if active is None:
            return []
        lane = self._lanes[active.model]
        actions: list[FlowAction] = []
        if active.phase is RequestPhase.QUEUED:
            lane.queue.remove(active.request.id)
        request = active.request
        if event.generates and request.whole and active.live:
            since = min(attempt.started for attempt in active.live)
            tokens = lane.pace.made(now - since, request.choices, request.max_tokens)
            active.shown_tokens += tokens
        for attempt in active.live:
            if lane.is_overdue(active, attempt, now):
                doubt = lane.doubt(attempt.candidate, "a client gave up after a long wait", now)
                if doubt is not None:
                    actions.append(doubt)
        self._abort_all(active, lane, active.live, Kind.CLIENT_GONE, actions, now)
        actions.append(self._desk.fail(active, Kind.CLIENT_GONE, "nobody waits for it", now))
        if lane.queue.held:
            self._serve_queue(lane, now, actions)
        return actions

    def _on_spent(self, event: Spent, _now: int) -> list[FlowAction]:
        self._desk.correct(event.tenant, event.tokens)
        return []

    def _on_view_changed(self, event: ViewChanged, now: int) -> list[FlowAction]:
        """Take over a new fleet view, and use the room it brings."""
        actions: list[FlowAction] = []
        if self._lane_table.apply(event.view, now):
            for lane in self._lanes.values():
                for candidate in lane.pool.take_halts():
                    if candidate.halt is None:
                        self._mover.clear(lane.model, candidate.id)
                    else:
                        self._mark_halted(lane.model, candidate.id, candidate.halt, now)
            if now >= self._mover.look_at:
                self._mover.move(actions, now)
            for lane in self._lanes.values():
                if lane.queue.held:
                    self._serve_queue(lane, now, actions)
                if lane.queue.held and not lane.pool.ready(now):
                    self._give_up(lane, actions, now)
        return actions

    def _give_up(self, lane: Lane, actions: list[FlowAction], now: int) -> None:
        """Refuse the queued requests that wait in vain: no replica will be ready in their time."""
        outlook = lane.pool.outlook(now)
        if outlook is not None:
            for request, refusal in lane.queue.give_up(outlook, now):
                self._refuse(self._requests[request.id], refusal, actions, now, waits=True)

    def _on_load_reported(self, event: LoadReported, now: int) -> list[FlowAction]:
        self._lane_table.take_report(event, now)
        return []

    def _on_leased(self, event: Leased, now: int) -> list[FlowAction]:
        self._desk.lease(event.quota)
        self._budget.lease(event.retry)
        self._lane_table.lease(event.trials, now)
        return []


__all__ = ["Flow"]
