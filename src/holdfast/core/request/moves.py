"""What can be done with a request: send it, queue it, call it back, try it again, go on with it.

The flow decides when; these are the moves. Each keeps the books of the lane and of the life true
and returns, or adds, the actions that carry it out.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from holdfast.core.failure import MEANINGS, Kind, Outcome
from holdfast.core.messages import Abort, Dispatch, FlowAction, Report
from holdfast.core.request.breaker import BreakerChange
from holdfast.core.request.desk import Desk
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import Hedger
from holdfast.core.request.lane import Lane
from holdfast.core.request.lanes import Lanes
from holdfast.core.request.life import DEATHS_MAX, Attempt, Life, Phase, Step, apart, died
from holdfast.core.request.retry import Retry, RetryBudget
from holdfast.core.request.wheel import Wheel
from holdfast.core.types import nanos

_CANCELLED: Final = Outcome.CANCELLED
_QUEUED: Final = Phase.QUEUED.value


class Moves:
    """The books of one gateway and the moves between them."""

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

    # --- out --------------------------------------------------------------------------------------

    def _enqueue(self, life: Life, lane: Lane, now: int) -> list[FlowAction]:
        ready, waited = lane.pool.ready(now), life.waited()
        offer = lane.queue.offer(life.request, now, ready=ready, waited=waited)
        actions: list[FlowAction] = []
        for dropped, shed in offer.dropped:
            actions.append(self._desk.shed(self._lives[dropped.id], shed, now))
        if offer.shed is not None:
            actions.append(self._desk.shed(life, offer.shed, now))
        else:
            life.step(Step.ENQUEUE)
            life.due = life.deadline  # the queue itself keeps the shorter wait
            self._wheel.file(life)
            life.story.append((now, _QUEUED, lane.model))
        return actions

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
        due = attempt.doubt_at if attempt.doubt_at < attempt.first_due else attempt.first_due
        if self._hedging and len(life.live) == 1:
            due = self._hedger.plan(life, lane.waits(request), due, now)
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

    # --- back -------------------------------------------------------------------------------------

    def _called_back(self, life: Life, attempt: Attempt, kind: Kind, now: int) -> Abort:
        life.story.append((now, kind.value, attempt.candidate.id))
        return Abort(life.request.id, attempt.number, attempt.candidate.id, kind)

    def _outrun(
        self, life: Life, lane: Lane, winner: Attempt, actions: list[FlowAction], now: int
    ) -> None:
        """Call the others of a race back; those that began earlier took at least this long."""
        rivals = [rival for rival in life.live if rival is not winner]
        lane.overtaken(life, [each for each in rivals if each.started < winner.started], now)
        self._abort_all(life, lane, rivals, Kind.SUPERSEDED, actions, now)

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

    def _report(self, lane: Lane, attempt: Attempt, change: BreakerChange) -> Report:
        return Report(lane.model, attempt.candidate.id, change.after.value, change.reason)

    # --- after a failure --------------------------------------------------------------------------

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
        if died(kind, now - attempt.started) and apart(life.died_at, now):
            life.died_at = now
            if attempt.candidate.id not in life.died:
                life.died += (attempt.candidate.id,)
        if attempt.first_at:
            life.shown_tokens += tokens or 1  # shown, though nobody counted: never start anew
        elif life.live:
            self._file_next(life)  # its rival is still running, and keeps its deadlines
            return
        if len(life.died) >= DEATHS_MAX:
            actions.append(self._desk.fail_deadly(life, now))
            return
        if attempt.first_at:
            actions.extend(self._continue(life, lane, kind, now))
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

    def _file_next(self, life: Life) -> None:
        due = life.deadline
        for attempt in life.live:
            if not attempt.first_at:
                due = min(due, attempt.first_due, attempt.doubt_at)
        life.due = due
        self._wheel.file(life)


__all__ = ["Moves"]
