"""Moves requests without content away from replicas that will not answer them.

``move_queue`` says which requests are caught where, and how each attempt fails there. The mover
starts an attempt elsewhere first and cancels the old one then, as far as the retry budget reaches:
a request that nobody else has room for stays, as its replica may still answer.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from holdfast.core.failure import MEANINGS, Kind, Outcome
from holdfast.core.messages import Abort, Dispatch, FlowAction, RequestId
from holdfast.core.request.active_request import ActiveRequest, Attempt
from holdfast.core.request.lane import Lane
from holdfast.core.request.move_queue import MoveQueue, kind_when_halted
from holdfast.core.request.retry import Retry
from holdfast.core.types import Halt


class StartAttempt(Protocol):
    """The interface of the flow's dispatch: starts an attempt where routing says.

    Returns ``None`` if no replica has room.
    """

    def __call__(
        self, active: ActiveRequest, lane: Lane, now: int, excluded: tuple[str, ...] = ()
    ) -> Dispatch | None:
        """Start an attempt at none of the excluded replicas."""


class EndAttempt(Protocol):
    """Ends an attempt and adds the reports of what that changed to the actions."""

    def __call__(
        self,
        active: ActiveRequest,
        lane: Lane,
        attempt: Attempt,
        outcome: Outcome,
        kind: Kind | None,
        actions: list[FlowAction],
        now: int,
    ) -> None:
        """End an attempt with this outcome."""


class RequestMover:
    """Moves one gateway's requests that are caught at halted replicas to other replicas.

    Within the retry budget, and only those of which the client has seen nothing.
    """

    __slots__ = (
        "_call_back",
        "_close",
        "_dispatch",
        "_elsewhere",
        "_lanes",
        "_queue",
        "_requests",
        "_retry",
    )

    def __init__(
        self,
        requests: Mapping[RequestId, ActiveRequest],
        lanes: Mapping[str, Lane],
        retry: Retry,
        *,
        dispatch: StartAttempt,
        close: EndAttempt,
        call_back: Callable[[ActiveRequest, Attempt, Kind, int], Abort],
        elsewhere: Callable[[ActiveRequest, str, int], Dispatch | None],
    ) -> None:
        self._requests = requests
        self._lanes = lanes
        self._retry = retry
        self._dispatch = dispatch
        self._close = close
        self._call_back = call_back
        self._elsewhere = elsewhere  # an attempt at another model of the request's ladder
        self._queue = MoveQueue()

    @property
    def look_at(self) -> int:
        """When (ns) to call ``move`` next; far in the future while no request is caught."""
        return self._queue.look_at

    def mark(self, model: str, replica_id: str, halt: Halt, now: int) -> None:
        """Note the requests without content that are caught at a replica.

        ``move`` then moves them.
        """
        self._queue.mark(self._requests.values(), model, replica_id, halt, now)

    def clear(self, model: str, replica_id: str) -> None:
        """Unmark the requests at a replica that is well again: they stay there."""
        self._queue.clear(model, replica_id)

    def move(self, actions: list[FlowAction], now: int) -> None:
        """Move caught requests, the oldest first, as far as the budget and room reach.

        For each, adds the new ``Dispatch`` and the ``Abort`` of the old attempt to ``actions``.
        Those that cannot move stay where they are, and are looked at again unless their moves are
        used up.
        """
        full: set[str] = set()  # models without a replica to move to
        for active, attempt in self._queue.due(now):
            if not self._retry.budget.would_allow(now):
                return  # the others stay, and are looked at again
            lane = self._lanes[active.model]
            if not self._retry.may_move(active.moved, active.deadline, now):
                self._queue.leave(active)
                continue
            kind = kind_when_halted(active, attempt, lane, now)
            if kind is None:
                continue
            dispatch = None if lane.model in full else self._beside(active, lane, now)
            if dispatch is None:
                full.add(lane.model)
                if len(active.live) == 1:  # a rival's news would reach the wrong model's books
                    dispatch = self._elsewhere(active, attempt.candidate.id + " is halted", now)
            if dispatch is not None:
                self._leave(active, lane, attempt, kind, dispatch, actions, now)

    def _beside(self, active: ActiveRequest, lane: Lane, now: int) -> Dispatch | None:
        """Start an attempt at another replica of its model; ``None`` if none has room."""
        dispatch = self._dispatch(active, lane, now, active.tried)
        if dispatch is None:
            here = tuple(each.candidate.id for each in active.live)
            dispatch = self._dispatch(active, lane, now, here)
        return dispatch

    def _leave(
        self,
        active: ActiveRequest,
        lane: Lane,
        attempt: Attempt,
        kind: Kind,
        dispatch: Dispatch,
        actions: list[FlowAction],
        now: int,
    ) -> None:
        """Cancel the attempt that a new one replaces."""
        self._retry.budget.take(now)
        active.moved += 1
        self._queue.leave(active)
        self._close(active, lane, attempt, MEANINGS[kind].outcome, kind, actions, now)
        actions.append(self._call_back(active, attempt, kind, now))
        actions.append(dispatch)


__all__ = ["RequestMover"]
