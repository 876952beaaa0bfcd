"""The circuit breaker: stops sending to a replica that keeps failing, then tries it again.

Closed, the breaker counts: too large a share of the last outcomes failed, or several failed in a
row, or a connection was refused, and it opens. Open, nothing is sent until a cooldown has passed.
Then it is half-open: exactly one request goes there as the trial, and its result alone decides.

Only the trial moves an open breaker. Results of attempts that began before it opened arrive late
and speak of the past: a stream that was half done when the replica fell ill may well finish.
Outcomes that say nothing about the replica hand the trial slot to the next request. Backpressure
does too, but after a rest of one base cooldown: the replica is alive, so it must not be opened;
it did no work either, so it must not be closed; and asking a full replica again at once would cost
every request one of its attempts.

The cooldown doubles with each re-opening and is forgotten once the breaker has stayed closed for
as long as the cooldown that would come next. So a replica that flaps keeps climbing, a relapse
after one lucky trial included (it cost users more than a failed trial), and one that was ill for
long has to prove itself for longer, without one more number to set.

Rejected: letting a share of the traffic through while half-open. One request answers the question;
every further one is a user who pays for the same answer. Rejected: a window of time. At low rates
it holds too few outcomes to mean anything, at high rates far more than are needed.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from holdfast.core.failure import Outcome
from holdfast.core.stats import OutcomeWindow
from holdfast.core.types import Decision, nanos, require


class BreakerState(StrEnum):
    """Whether a breaker lets requests pass to its replica."""

    CLOSED = "closed"  # they pass
    OPEN = "open"  # none pass
    HALF_OPEN = "half_open"  # one at a time passes, as the trial


class BreakerSignal(StrEnum):
    """An event that moves a breaker from one state to another."""

    THRESHOLD = "threshold"  # too many failures, in share or in a row
    REFUSED = "refused"  # nobody listens: no need to count
    TRIAL_TAKEN = "trial_taken"
    TRIAL_SUCCEEDED = "trial_succeeded"
    TRIAL_FAILED = "trial_failed"
    TRIAL_RETURNED = "trial_returned"  # the trial ended without saying anything about the replica


_CLOSED: Final = BreakerState.CLOSED
_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN
_SUCCESS: Final = Outcome.SUCCESS
_FAILURE: Final = Outcome.FAILURE

TRANSITIONS: Final[dict[tuple[BreakerState, BreakerSignal], BreakerState]] = {
    (_CLOSED, BreakerSignal.THRESHOLD): _OPEN,
    (_CLOSED, BreakerSignal.REFUSED): _OPEN,
    (_OPEN, BreakerSignal.TRIAL_TAKEN): _HALF_OPEN,
    (_HALF_OPEN, BreakerSignal.TRIAL_TAKEN): _HALF_OPEN,
    (_HALF_OPEN, BreakerSignal.TRIAL_RETURNED): _HALF_OPEN,
    (_HALF_OPEN, BreakerSignal.TRIAL_SUCCEEDED): _CLOSED,
    (_HALF_OPEN, BreakerSignal.TRIAL_FAILED): _OPEN,
}

_TRIAL_SIGNALS: Final[dict[Outcome, BreakerSignal]] = {
    Outcome.SUCCESS: BreakerSignal.TRIAL_SUCCEEDED,
    Outcome.FAILURE: BreakerSignal.TRIAL_FAILED,
    Outcome.BACKPRESSURE: BreakerSignal.TRIAL_RETURNED,
    Outcome.CLIENT_ERROR: BreakerSignal.TRIAL_RETURNED,
    Outcome.CANCELLED: BreakerSignal.TRIAL_RETURNED,
}

TRIAL: Final = Decision(True, "trial")  # compare with `is`: this attempt must report trial=True
_PASS: Final = Decision(True, "closed")
_COOLING: Final = Decision(False, "breaker cooling down")
_TRIAL_OUT: Final = Decision(False, "trial under way")

_HISTORY_MAX: Final = 8  # enough to see how a breaker came into a state, cheap to keep everywhere


@dataclass(slots=True, frozen=True)
class BreakerConfig:
    """When a breaker opens, and how long it stays open."""

    enabled: bool = True  # False: always closed, nothing is counted
    window: int = 25  # outcomes: short enough that a replica gone bad is out within seconds
    minimum: int = 10  # outcomes before the share means anything: 1 of 2 is not 50 %
    failure_ratio: float = 0.4  # far above what a working replica shows, below half-dead
    consecutive: int = 5  # a dead replica does not need ten victims
    cooldown_s: float = 1.0  # seconds: a restart of a proxy or a dropped link is over by then
    cooldown_max_s: float = 60.0  # seconds: how late a recovered replica is noticed, at worst
    jitter: float = 0.2  # ± share of the cooldown, so that gateways do not try all at once

    def __post_init__(self) -> None:
        fix = "use at least 1"
        require(self.window >= 1, "breaker.window", f"is {self.window}", fix)
        fix = f"use 1 to {self.window}, the breaker.window: more outcomes are never held"
        require(1 <= self.minimum <= self.window, "breaker.minimum", f"is {self.minimum}", fix)
        ratio, fix = self.failure_ratio, "use a share above 0, up to 1"
        require(0 < ratio <= 1, "breaker.failure_ratio", f"is {ratio}", fix)
        in_a_row, fix = self.consecutive, "use at least 1"
        require(in_a_row >= 1, "breaker.consecutive", f"is {in_a_row}", fix)
        base, fix = self.cooldown_s, "use 0.001 s to a day, 86400 s"
        require(0.001 <= base <= 86_400, "breaker.cooldown_s", f"is {base}", fix)
        longest, fix = self.cooldown_max_s, f"use breaker.cooldown_s, {base}, to a day, 86400 s"
        require(base <= longest <= 86_400, "breaker.cooldown_max_s", f"is {longest}", fix)
        jitter, fix = self.jitter, "use a share from 0 to below 1"
        require(0 <= jitter < 1, "breaker.jitter", f"is {jitter}", fix)


@dataclass(slots=True, frozen=True)
class BreakerChange:
    """One change of a breaker's state, with its reason, for reports and its history."""

    before: BreakerState
    after: BreakerState
    reason: str
    at: int


class BreakerError(Exception):
    """Raised when a breaker gets a signal that its state does not allow: a bug in its caller."""


class Breaker:
    """The circuit breaker of one (replica, model) in one gateway.

    Contract: an attempt for which ``allow`` answered ``TRIAL`` reports exactly once with
    ``trial=True``, whatever becomes of it (``CANCELLED`` if nothing did). A long answer may report
    its success at the first content; a later cut of the same stream is then an ordinary failure.
    """

    __slots__ = (
        "_base",
        "_closed_since",
        "_consecutive",
        "_consecutive_max",
        "_cooldown",
        "_cooldown_max",
        "_counting",
        "_failure_ratio",
        "_history",
        "_jitter",
        "_minimum",
        "_opened",
        "_rng",
        "_trial_out",
        "_window",
        "opens_until",
        "state",
    )

    def __init__(self, config: BreakerConfig, rng: Random) -> None:
        self.state = _CLOSED
        self.opens_until = 0  # no trial before this time; 0 while closed
        self._counting = config.enabled
        self._minimum = config.minimum
        self._failure_ratio = config.failure_ratio
        self._consecutive_max = config.consecutive
        self._base = nanos(config.cooldown_s)
        self._cooldown_max = nanos(config.cooldown_max_s)
        self._jitter = config.jitter
        self._rng = rng
        self._window = OutcomeWindow(config.window)
        self._consecutive = 0
        self._cooldown = 0  # the last one given, before jitter; 0 = never opened
        self._closed_since = 0
        self._trial_out = False
        self._opened = 0
        self._history: deque[BreakerChange] = deque(maxlen=_HISTORY_MAX)

    def would_allow(self, now: int) -> bool:
        """Whether a request could pass now; claims nothing."""
        return self.state is _CLOSED or (now >= self.opens_until and not self._trial_out)

    def allow(self, now: int) -> Decision:
        """Decide whether a request may pass; after the cooldown this claims the one trial."""
        if self.state is _CLOSED:
            return _PASS
        if self._trial_out:
            return _TRIAL_OUT
        if now < self.opens_until:
            return _COOLING
        self._move(BreakerSignal.TRIAL_TAKEN, "cooldown over", now)
        self._trial_out = True
        return TRIAL

    def record(
        self, outcome: Outcome, now: int, *, strong: bool = False, trial: bool = False
    ) -> BreakerChange | None:
        """Count how an attempt ended; return the change if that moved the breaker.

        ``strong`` marks a failure that needs no second opinion: a refused connection.
        """
        if not self._counting:
            return None
        if trial:
            return self._record_trial(outcome, now)
        if self.state is not _CLOSED:
            return None
        if outcome is _SUCCESS:
            self._consecutive = 0
            self._window.add(False)
            return None
        if outcome is not _FAILURE:
            return None
        self._consecutive += 1
        self._window.add(True)
        if strong:
            return self._open(BreakerSignal.REFUSED, "connection refused", now)
        reason = self._too_many()
        return self._open(BreakerSignal.THRESHOLD, reason, now) if reason else None

    def _record_trial(self, outcome: Outcome, now: int) -> BreakerChange | None:
        signal = _TRIAL_SIGNALS[outcome]
        if not self._trial_out:
            raise self._unknown(signal, "no trial is out")
        self._trial_out = False
        if signal is BreakerSignal.TRIAL_FAILED:
            return self._open(signal, "trial failed", now)
        if signal is BreakerSignal.TRIAL_SUCCEEDED:
            self._closed_since = now
            self.opens_until = 0
            return self._move(signal, "trial succeeded", now)
        self._move(signal, outcome.value, now)
        if outcome is Outcome.BACKPRESSURE:
            self.opens_until = now + self._jittered(self._base)
        return None

    def _too_many(self) -> str:
        """The reason to open the breaker by its counts; empty if there is none."""
        if self._consecutive >= self._consecutive_max:
            return f"{self._consecutive} failures in a row"
        window = self._window
        failures, count = window.failures, window.count
        if count >= self._minimum and failures / count >= self._failure_ratio:
            return f"{failures} of the last {count} failed"
        return ""

    def _open(self, signal: BreakerSignal, reason: str, now: int) -> BreakerChange:
        following = min(self._cooldown * 2, self._cooldown_max)
        proven = self.state is _CLOSED and now - self._closed_since >= following
        self._cooldown = self._base if proven or not self._cooldown else following
        self.opens_until = now + self._jittered(self._cooldown)
        self._opened += 1
        self._consecutive = 0
        self._window.clear()
        return self._move(signal, reason, now)

    def _jittered(self, cooldown: int) -> int:
        return round(cooldown * (1.0 + self._jitter * (2.0 * self._rng.random() - 1.0)))

    def _move(self, signal: BreakerSignal, reason: str, now: int) -> BreakerChange:
        before = self.state
        after = TRANSITIONS.get((before, signal))
        if after is None:
            raise self._unknown(signal, "the table has no such transition")
        change = BreakerChange(before, after, reason, now)
        self._history.append(change)
        self.state = after
        return change

    def _unknown(self, signal: BreakerSignal, problem: str) -> BreakerError:
        lines = [
            f"  at {change.at}: {change.before} -> {change.after} ({change.reason})"
            for change in self._history
        ]
        past = "\n".join(lines) or "  (it never moved)"
        return BreakerError(f"{signal} while {self.state}: {problem}; history:\n{past}")

    def hasten(self, now: int) -> None:
        """Allow the trial at once, because control saw that the replica is well again."""
        if self.state is not _CLOSED:
            self.opens_until = min(self.opens_until, now)


__all__ = [
    "TRANSITIONS",
    "TRIAL",
    "Breaker",
    "BreakerChange",
    "BreakerConfig",
    "BreakerError",
    "BreakerSignal",
    "BreakerState",
]
