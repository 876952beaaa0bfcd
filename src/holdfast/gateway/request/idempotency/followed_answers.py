"""Answers of other gateways' executions that callers here wait for, as the store shows them.

The store is looked at in a thread (``key_thread``), which shows the record of each followed key and
the pieces that are new. ``core.request.idempotency`` decides what follows from that: read on, show
the end, take over the execution of a gateway that died, or ask anew.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from holdfast.core.request.idempotency.key_policy import FollowStep, KeyPolicy
from holdfast.core.request.idempotency.key_record import KeyName, KeyRecord
from holdfast.core.request.idempotency.owner_watch import OwnerWatch
from holdfast.core.types import nanos
from holdfast.gateway.api import idempotency as api
from holdfast.gateway.api.errors import ApiError
from holdfast.gateway.request.idempotency.key_thread import KeyThread
from holdfast.gateway.request.idempotency.shared_answer import (
    AnswerRoom,
    FollowedAnswer,
    KeyedCaller,
    SharedAnswer,
)
from holdfast.ports import KeySight, WatchedKey


class FollowerHome(Protocol):
    """Serves callers whose followed answer will not go on; implemented by ``KeyedRequests``."""

    def move(self, answer: SharedAnswer) -> None:
        """Let an answer's callers ask anew, because the key has another execution now."""

    def refuse(self, caller: KeyedCaller, error: ApiError) -> None:
        """End a caller with an error, and count it."""

    def take_over(self, followed: FollowedAnswer) -> None:
        """Execute in place of a gateway that died, for a caller of this answer."""


class FollowedAnswers:
    """The executions of other gateways that callers here wait for, one for each key."""

    def __init__(
        self, policy: KeyPolicy, thread: KeyThread, room: AnswerRoom, home: FollowerHome
    ) -> None:
        self._policy = policy
        self._thread = thread
        self._room = room
        self._home = home
        self._owners = OwnerWatch(nanos(policy.config.lease_s))
        self._followed: dict[KeyName, FollowedAnswer] = {}

    def join(self, caller: KeyedCaller, record: KeyRecord) -> None:
        """Let a caller read the answer of the execution that a record names.

        Callers of an earlier execution of this key ask anew.
        """
        followed = self._followed.get(caller.name)
        if followed is None or followed.execution != record.execution:
            before = followed
            followed = FollowedAnswer(caller.name, record.execution, self._room)
            self._followed[caller.name] = followed
            if before is not None:
                before.unlist()
                self._home.move(before)
        self._watch(followed)
        followed.join(caller)

    def drop(self, followed: FollowedAnswer) -> None:
        """Follow an answer no more; its callers are not told."""
        if self._followed.get(followed.name) is followed:
            del self._followed[followed.name]
            self._thread.unwatch(followed.name)
        followed.unlist()

    def _watch(self, followed: FollowedAnswer) -> None:
        here = len(followed.pieces)
        self._thread.watch(WatchedKey(followed.name, followed.execution, here))

    def saw(self, watched: Sequence[WatchedKey], sights: Sequence[KeySight], now: int) -> None:
        """Take what the store shows of other gateways' executions, for the callers here.

        New pieces are passed on, the end is shown, and the execution of a dead gateway is taken
        over. ``now`` in ns.
        """
        owners = {sight.record.owner for sight in sights if sight.record is not None}
        self._owners.forget_others(owners)
        for key, sight in zip(watched, sights, strict=True):
            followed = self._followed.get(key.name)
            current = followed is not None and followed.execution == key.execution
            if followed is not None and current and len(followed.pieces) == key.here:
                self._step(followed, sight, now)

    def _step(self, followed: FollowedAnswer, sight: KeySight, now: int) -> None:
        record = sight.record
        dead = record is not None and self._owners.is_dead(record.owner, sight.beat, now)
        if record is not None and record.execution == followed.execution and sight.pieces:
            if not followed.take(record, sight.pieces):
                self._end(followed, api.unavailable())
                return
            self._watch(followed)
        step = self._policy.follow(record, followed.execution, len(followed.pieces), dead=dead)
        if step is FollowStep.COMPLETE:
            followed.take(record, ()) if record is not None else None
            self.drop(followed)
            followed.seal()
        elif step is FollowStep.TAKE_OVER:
            self._home.take_over(followed)
        elif step is FollowStep.MOVED:
            self.drop(followed)
            self._home.move(followed)
        elif step in _ENDS:
            self._end(followed, _ENDS[step]())

    def _end(self, followed: FollowedAnswer, error: ApiError) -> None:
        """Follow an answer no more, and refuse its callers."""
        self.drop(followed)
        for caller in tuple(followed.callers):
            self._home.refuse(caller, error)


_ENDS: Final[dict[FollowStep, Callable[[], ApiError]]] = {
    FollowStep.GONE: api.gone,
    FollowStep.UNKNOWN: api.unknown,
}


__all__ = ["FollowedAnswers", "FollowerHome"]
