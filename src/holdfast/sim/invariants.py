"""Checks the simulator's invariants after every event, for all faults and settings.

The auditor sees each event with its actions and keeps its own independent account of them; it
shares no arithmetic with what it checks. After every event of the clock it compares that account
with the state of whatever the event touched, and every so often with the state of everything, so
that nothing can drift unseen.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from holdfast.core.messages import (
    Abort,
    Arrived,
    Dispatch,
    Ended,
    Finish,
    FirstContent,
    FleetView,
    Publish,
    RequestId,
)
from holdfast.core.types import State
from holdfast.sim.world import World

SWEEP_EVERY: Final = 256  # events between two looks at everything


class InvariantError(AssertionError):
    """An invariant was violated; ``name`` says which one."""

    def __init__(self, name: str, detail: str, now: int) -> None:
        super().__init__(f"{name} at {now} ns: {detail}")
        self.name = name


class _Account:
    """The auditor's own notes on one request under way."""

    __slots__ = ("continued", "dispatched", "live", "revision")

    def __init__(self) -> None:
        self.dispatched = 0
        self.continued = 0
        self.live: dict[int, str] = {}
        self.revision = ""


class Auditor:
    """Checks a world's invariants after every event; raises InvariantError at a violation."""

    def __init__(self, world: World) -> None:
        self._world = world
        retry = world.experiment.flow.retry
        extra = 1 + retry.continuations + retry.moves  # one may be free
        self._dispatches_max = retry.attempts + extra
        self._continuations_max = retry.continuations
        self._open: dict[RequestId, _Account] = {}
        self._closed: set[RequestId] = set()
        self._version = 0
        self._time = 0
        self._suspicion_max = world.experiment.fleet.ejection.share_max
        self._out: dict[str, int] = {}
        self._held: dict[str, int] = {}  # attempts under way by replica
        self._live = 0  # and in all
        self._touched: list[str] = []  # replicas that the current event concerns
        self._moved = True  # some replica's state may have changed
        self._shares: dict[str, float] = {}
        self._shares_of: FleetView | None = None
        self._models = list(dict.fromkeys(replica.model for replica in world.experiment.replicas))
        self._books: dict[type, Callable[[Any, int], None]] = {
            Dispatch: self._on_dispatch,
            Finish: self._on_finish,
            Abort: self._on_abort,
            Publish: self._on_publish,
        }
        self.checks = 0

    @classmethod
    def watch(cls, world: World) -> "Auditor":
        """Attach the auditor to a world before it runs."""
        auditor = cls(world)
        world.add_observer(auditor.observe)
        world.clock.after_event = auditor.check
        return auditor

    # --- events and actions ----------------------------------------------------------------------

    def observe(self, now: int, _machine: str, event: Any, actions: Sequence[Any]) -> None:
        """Add one event and its actions to the auditor's own account."""
        if now < self._time:
            raise InvariantError("time runs forward", f"{now} after {self._time}", now)
        self._time = now
        kind = type(event)
        if kind is Arrived:
            self._open[event.request.id] = _Account()
        elif kind is Ended:
            account = self._open.get(event.request_id)
            if account is not None:
                self._release(account.live.pop(event.attempt, None))
        elif kind is FirstContent:
            self._on_first_content(event, now)
        for action in actions:
            book = self._books.get(type(action))
            if book is not None:
                book(action, now)

    def _on_first_content(self, event: FirstContent, now: int) -> None:
        account = self._open.get(event.request_id)
        replica_id = account.live.get(event.attempt) if account is not None else None
        if account is None or replica_id is None:
            return
        revision = self._world.units[replica_id].replica.revision
        if account.revision and account.revision != revision:
            detail = f"request {event.request_id} went from {account.revision} to {revision}"
            raise InvariantError("no continuation across revisions", detail, now)
        account.revision = revision

    def _on_dispatch(self, action: Dispatch, now: int) -> None:
        request_id = action.request.id
        account = self._open.get(request_id)
        if account is None:
            raise InvariantError("no work after the answer", f"request {request_id}", now)
        account.dispatched += 1
        account.continued += 1 if action.resume_tokens else 0
        replica_id = action.replica_id
        account.live[action.attempt] = replica_id
        self._held[replica_id] = self._held.get(replica_id, 0) + 1
        self._live += 1
        self._touched.append(replica_id)
        if account.dispatched > self._dispatches_max:
            detail = f"request {request_id} was sent {account.dispatched} times"
            raise InvariantError("attempts are bounded", detail, now)
        if account.continued > self._continuations_max:
            detail = f"request {request_id} was continued {account.continued} times"
            raise InvariantError("continuations are bounded", detail, now)
        if self._share_of(replica_id) <= 0:
            detail = f"{replica_id} has no share and got request {request_id}"
            raise InvariantError("only routable replicas get work", detail, now)

    def _share_of(self, replica_id: str) -> float:
        view = self._world.view
        if view is not None and view is not self._shares_of:
            self._shares_of = view
            self._shares = {each.replica.id: each.share for each in view.replicas}
        return self._shares.get(replica_id, 0.0)

    def _release(self, replica_id: str | None) -> None:
        if replica_id is not None:
            self._held[replica_id] -= 1
            self._live -= 1
            self._touched.append(replica_id)

    def _on_finish(self, action: Finish, now: int) -> None:
        request_id = action.request_id
        if request_id in self._closed:
            raise InvariantError("one answer per request", f"request {request_id}", now)
        account = self._open.pop(request_id, None)
        if account is None:
            raise InvariantError("only open requests end", f"request {request_id}", now)
        if account.live:
            detail = f"request {request_id} ended with attempts out on {account.live}"
            raise InvariantError("nothing runs for a finished request", detail, now)
        self._closed.add(request_id)

    def _on_abort(self, action: Abort, now: int) -> None:
        account = self._open.get(action.request_id)
        replica_id = account.live.pop(action.attempt, None) if account is not None else None
        self._release(replica_id)
        if replica_id is None:
            detail = f"attempt {action.attempt} of request {action.request_id}"
            raise InvariantError("only live attempts are aborted", detail, now)

    def _on_publish(self, action: Publish, now: int) -> None:
        if action.view.version < self._version:
            raise InvariantError("views never grow older", f"{action.view.version}", now)
        self._version = action.view.version
        self._moved = True

    # --- state -----------------------------------------------------------------------------------

    def check(self, now: int) -> None:
        """Compare flow and fleet with the auditor's account, for what the last event touched."""
        self.checks += 1
        if self._touched:
            self._check_slots(self._touched, now)
            self._touched.clear()
        if self._moved:
            self._moved = False
            self._check_ejections(now)
        if self.checks % SWEEP_EVERY == 0:
            self.sweep(now)

    def sweep(self, now: int) -> None:
        """Compare the whole state of flow and fleet with the auditor's account."""
        self._check_slots(list(self._world.units), now)
        self._check_ejections(now)
        live = 0
        for account in self._open.values():
            live += len(account.live)
        if live != self._live:
            detail = f"{live} attempts booked one by one, {self._live} in all"
            raise InvariantError("the auditor's own books agree", detail, now)

    def _check_slots(self, replica_ids: Iterable[str], now: int) -> None:
        lanes = self._world.flow.lanes
        inflight = 0
        for lane in lanes.values():
            inflight += lane.pool.inflight
        if inflight != self._live:
            detail = f"{inflight} slots held for {self._live} attempts under way"
            raise InvariantError("every slot has an attempt", detail, now)
        for replica_id in replica_ids:
            model = self._world.units[replica_id].replica.model
            candidate = lanes[model].pool.candidates.get(replica_id) if model in lanes else None
            if candidate is None:
                continue
            held = self._held.get(replica_id, 0)
            waiting = min(candidate.prefill_tokens, candidate.whole_tokens)
            least = min(candidate.own_tokens, waiting)
            if candidate.inflight != held or least < 0:
                detail = f"{candidate!r} holds {held} attempts"
                raise InvariantError("a replica's slots are its attempts", detail, now)
            if held > candidate.slots:
                raise InvariantError("declared slots are kept", repr(candidate), now)

    def _check_ejections(self, now: int) -> None:
        for model in self._models:
            out = members = 0
            for member in self._world.fleet.members.values():
                health = member.health
                if member.replica.model != model:
                    continue
                if health.on_suspicion:
                    out += 1
                    members += 1
                elif health.state in (State.READY, State.SUSPECT):
                    members += 1
            if out > members * self._suspicion_max and self._grew(model, out):
                detail = f"{out} of {members} replicas of {model} are out on suspicion"
                raise InvariantError("never past half of a pool on suspicion", detail, now)
            self._out[model] = out

    def _grew(self, model: str, out: int) -> bool:
        """The dead leave the count, so the share may grow by itself; ejecting more may not."""
        return out > self._out.get(model, 0)

    def finish(self, now: int) -> None:
        """Check after the last answer that no request is open, in flight or queued."""
        self.sweep(now)
        if self._open:
            raise InvariantError("every request ends", f"{list(self._open)[:5]} are open", now)
        for lane in self._world.flow.lanes.values():
            if lane.pool.inflight or len(lane.queue):
                detail = f"{lane.pool.inflight} in flight, {len(lane.queue)} queued"
                raise InvariantError("in-flight returns to zero", detail, now)
            for candidate in lane.pool.candidates.values():
                waiting = candidate.prefill_tokens + candidate.whole_tokens
                if waiting:
                    detail = f"{candidate!r} has {waiting} prompt tokens waiting"
                    raise InvariantError("in-flight returns to zero", detail, now)


__all__ = ["Auditor", "InvariantError"]
