"""Takes a replica out of service without breaking its requests: wait, move streams, stop.

First it gets no new work and what is in flight may finish. When the deadline passes with work still
there, the remaining streams are continued on other replicas of the same revision. When nothing is
left, or the time for moving is over too, it is stopped; an empty replica stops at once.

A drain can be called off only while it waits. Once streams are being moved the replica may be half
empty, its caches gone cold and its peers carrying its load: it leaves, and comes back as a start.

Rejected: waiting for the last stream however long it takes. One client that reads slowly would hold
up every rollout. Rejected: stopping at the deadline. Most answers longer than it would be cut,
though another replica could finish them.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from holdfast.core.types import Decision, nanos, require


class DrainPhase(StrEnum):
    """The steps of a drain, from serving to stopped."""

    SERVING = "serving"
    WAITING = "waiting"  # no new work; in-flight requests finish
    MOVING = "moving"  # what is still there is continued elsewhere
    STOPPED = "stopped"


class DrainSignal(StrEnum):
    """The events that move a drain from one phase to the next."""

    STARTED = "started"
    ABANDONED = "abandoned"
    EMPTY = "empty"  # nothing is in flight any more
    DEADLINE = "deadline"  # waited long enough: move what is left
    MOVE_DEADLINE = "move_deadline"  # moved long enough: stop with what is left


_SERVING: Final = DrainPhase.SERVING
_WAITING: Final = DrainPhase.WAITING
_MOVING: Final = DrainPhase.MOVING
_STOPPED: Final = DrainPhase.STOPPED

TRANSITIONS: Final[dict[tuple[DrainPhase, DrainSignal], DrainPhase]] = {
    (_SERVING, DrainSignal.STARTED): _WAITING,
    (_WAITING, DrainSignal.ABANDONED): _SERVING,
    (_WAITING, DrainSignal.EMPTY): _STOPPED,
    (_WAITING, DrainSignal.DEADLINE): _MOVING,
    (_MOVING, DrainSignal.EMPTY): _STOPPED,
    (_MOVING, DrainSignal.MOVE_DEADLINE): _STOPPED,
}

DrainAction = Literal["none", "wait", "move", "stop"]

_HISTORY_MAX: Final = 8  # a drain has four phases: two whole drains called off, and this one


@dataclass(slots=True, frozen=True)
class DrainConfig:
    """Time limits of a drain: how long requests may finish, and how long moving may take.

    Checked when built: raises ``ConfigError``.
    """

    deadline_s: float = 30.0  # seconds: most answers end within it, a rollout can afford it
    move_s: float = 10.0  # seconds: a continuation needs one prefill on another replica
    hear_s: float = 2.0  # seconds: each gateway tells once a second what it has there

    def __post_init__(self) -> None:
        wait, fix = self.deadline_s, "use 0 (move at once) to a day, 86400 s"
        require(0 <= wait <= 86_400, "drain.deadline_s", f"is {wait}", fix)
        move, fix = self.move_s, "use 0 (cut what is left) to a day, 86400 s"
        require(0 <= move <= 86_400, "drain.move_s", f"is {move}", fix)
        hear, fix = self.hear_s, "use 0 (believe what was last told) to 60 s"
        require(0 <= hear <= 60, "drain.hear_s", f"is {hear}", fix)


@dataclass(slots=True, frozen=True)
class DrainStep:
    """What the driver of a drain must do now: its phase, the action, and the reason for people."""

    phase: DrainPhase
    action: DrainAction
    reason: str


class DrainError(Exception):
    """Raised when a drain gets a signal that its phase does not allow: a bug in its driver."""


_IDLE: Final = DrainStep(_SERVING, "none", "not draining")
_DONE: Final = DrainStep(_STOPPED, "none", "stopped")
_ACCEPTED: Final = Decision(True, "draining")
_CALLED_OFF: Final = Decision(True, "drain called off")


class Drain:
    """The drain of one replica as a state machine: serving, waiting, moving, stopped.

    It sends and stops nothing: its driver calls ``decide`` at each tick and does what that returns.
    A replica that comes back gets a new one.
    """

    __slots__ = (
        "_hear",
        "_hear_until",
        "_history",
        "_move",
        "_move_until",
        "_wait",
        "_wait_until",
        "phase",
        "reason",
    )

    def __init__(self, config: DrainConfig) -> None:
        self.phase = _SERVING
        self.reason = ""  # why it drains, in the words of whoever started it
        self._wait = nanos(config.deadline_s)
        self._move = nanos(config.move_s)
        self._hear = nanos(config.hear_s)
        self._hear_until = 0
        self._wait_until = 0
        self._move_until = 0
        self._history: deque[str] = deque(maxlen=_HISTORY_MAX)

    def start(self, now: int, reason: str, *, served: bool = True) -> Decision:
        """Begin the drain of a serving replica; return a ``Decision``, false if it drains already.

        A replica that ``served`` may have been sent a request that is not reported yet: it counts
        as empty only when every gateway has had time to report.
        """
        if self.phase is not _SERVING:
            return Decision(False, f"already {self.phase}: {self.reason}")
        self._advance(DrainSignal.STARTED, now)
        self.reason = reason
        self._wait_until = now + self._wait
        self._hear_until = now + self._hear if served else now
        return _ACCEPTED

    def abandon(self, now: int) -> Decision:
        """Cancel the drain, so that the replica serves again; return a ``Decision``.

        False, and nothing changes, unless it still waits: once requests are moved it is too late.
        """
        if self.phase is not _WAITING:
            return Decision(False, f"cannot be called off while {self.phase}")
        self._advance(DrainSignal.ABANDONED, now)
        self.reason = ""
        self._wait_until = 0
        return _CALLED_OFF

    def decide(self, inflight: int, now: int) -> DrainStep:
        """Move the drain on and return the ``DrainStep`` to do now: none, wait, move or stop.

        ``inflight`` is the number of requests still on the replica. "stop" is returned once.
        """
        if self.phase is _SERVING:
            return _IDLE
        if self.phase is _STOPPED:
            return _DONE
        if inflight <= 0 and now >= self._hear_until:
            self._advance(DrainSignal.EMPTY, now)
            return DrainStep(_STOPPED, "stop", f"nothing in flight; {self.reason}")
        if inflight <= 0:
            return DrainStep(self.phase, "wait", f"gateways may not have told all; {self.reason}")
        if self.phase is _WAITING:
            if now < self._wait_until:
                return DrainStep(_WAITING, "wait", f"{inflight} in flight; {self.reason}")
            self._advance(DrainSignal.DEADLINE, now)
            # Counted from now: a driver that comes late must not take the streams' chance away.
            self._move_until = now + self._move
        if now < self._move_until:
            return DrainStep(_MOVING, "move", f"{inflight} past the deadline; {self.reason}")
        self._advance(DrainSignal.MOVE_DEADLINE, now)
        return DrainStep(_STOPPED, "stop", f"{inflight} could not be moved; {self.reason}")

    def _advance(self, signal: DrainSignal, now: int) -> None:
        after = TRANSITIONS.get((self.phase, signal))
        if after is None:
            past = "; ".join(self._history) or "it never moved"
            raise DrainError(f"{signal} while {self.phase}: no such transition; history: {past}")
        self._history.append(f"at {now}: {self.phase} -> {after} ({signal})")
        self.phase = after


__all__ = [
    "TRANSITIONS",
    "Drain",
    "DrainAction",
    "DrainConfig",
    "DrainError",
    "DrainPhase",
    "DrainSignal",
    "DrainStep",
]
