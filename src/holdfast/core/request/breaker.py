"""The circuit breaker: stops sending to a replica that keeps failing, then tries it again.

Closed, the breaker counts: too large a share of the last outcomes failed, or several failed in a
row, or a connection was refused, and it opens. Open, nothing is sent until a cooldown has passed.
Then it is half-open: exactly one request goes there as the trial, and its result alone decides.
Before that, control's canary goes there wherever one can be asked (``pool`` waits for it).

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

Failures weigh by who was failed. What users meet is only as good as their requests: a body that
makes an engine answer 500 fails wherever it goes. So where three tenants or more are active, the
failures of fewer than three count as one each, and elsewhere each body counts once, unless another
replica answered it (``confirm``). A failure that turns out to be the request's own is taken back
(``withdraw``), and the opening that it caused with it. Broken connections need no such weighing:
they are proof, and ``proven`` says whether any of it opened the breaker.

Rejected: letting a share of the traffic through while half-open. One request answers the question;
every further one is a user who pays for the same answer. Rejected: a window of time. At low rates
it holds too few outcomes to mean anything, at high rates far more than are needed.
"""

from collections import deque
from collections.abc import Collection
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
    """What happened to a breaker; with its state it gives the next state (``TRANSITIONS``)."""

    THRESHOLD = "threshold"  # too many failures, in share or in a row
    REFUSED = "refused"  # nobody listens: no need to count
    TRIAL_TAKEN = "trial_taken"
    TRIAL_SUCCEEDED = "trial_succeeded"
    TRIAL_FAILED = "trial_failed"
    TRIAL_RETURNED = "trial_returned"  # the trial ended without saying anything about the replica
    WITHDRAWN = "withdrawn"  # a failure that opened it was the request's own


_CLOSED: Final = BreakerState.CLOSED
_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN
_SUCCESS: Final = Outcome.SUCCESS
_FAILURE: Final = Outcome.FAILURE

TRANSITIONS: Final[dict[tuple[BreakerState, BreakerSignal], BreakerState]] = {
    (_CLOSED, BreakerSignal.THRESHOLD): _OPEN,
    (_CLOSED, BreakerSignal.REFUSED): _OPEN,
    (_OPEN, BreakerSignal.TRIAL_TAKEN): _HALF_OPEN,
    (_OPEN, BreakerSignal.WITHDRAWN): _CLOSED,
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

WITNESSES: Final = 3  # tenants: two may be one person; a third is a coincidence no longer

_HISTORY_MAX: Final = 8  # enough to see how a breaker came into a state, cheap to keep everywhere


@dataclass(slots=True, frozen=True)
class BreakerConfig:
    """Settings of a breaker: when it opens (failure share, failures in a row), and for how long.

    Checked when built: raises ``ConfigError``.
    """

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
    """One transition of a breaker with its reason and time (ns). ``before`` may equal ``after``."""

    before: BreakerState
    after: BreakerState
    reason: str
    at: int


class CountedFailure:
    """One failed attempt as a breaker counts it: whose request it was, and whether it is proof.

    Where ``proof`` is false it weighs by tenant or body, as users' requests may fail by themselves.
    """

    __slots__ = ("body", "number", "proof", "tenant")

    def __init__(self, tenant: str = "", body: int | None = None, *, proof: bool = True) -> None:
        self.tenant = tenant
        self.body = body  # equal for equal requests; None: like no other
        self.proof = proof  # of the replica, whatever was asked
        self.number = 0  # of the outcome in its breaker's window


class BreakerError(Exception):
    """Raised for a signal that the breaker's state does not allow, such as a trial that is not out.

    It is a bug in the caller; the message holds the breaker's last changes.
    """


class Breaker:
    """The circuit breaker of one (replica, model) in one gateway, or of a guarded deployment.

    An attempt for which ``allow`` answered ``TRIAL`` must report exactly once with ``trial=True``,
    with ``CANCELLED`` if nothing came of it. A long answer may report its success at the first
    content; a later cut of the same stream is then an ordinary failure.
    """

    __slots__ = (
        "_base",
        "_closed_since",
        "_consecutive",
        "_consecutive_max",
        "_cooldown",
        "_cooldown_before",
        "_cooldown_max",
        "_counting",
        "_failure_ratio",
        "_failures",
        "_history",
        "_jitter",
        "_minimum",
        "_opened",
        "_opening",
        "_rng",
        "_row",
        "_row_from",
        "_trial_out",
        "_window",
        "opened_at",
        "opens_until",
        "proven",
        "state",
    )

    def __init__(self, config: BreakerConfig, rng: Random) -> None:
        self.state = _CLOSED
        self.opens_until = 0  # no trial before this time; 0 while closed
        self.opened_at = 0  # when it last left closed
        self.proven = False  # some proof was among what opened it, not users' failures alone
        self._counting = config.enabled
        self._minimum = config.minimum
        self._failure_ratio = config.failure_ratio
        self._consecutive_max = config.consecutive
        self._base = nanos(config.cooldown_s)
        self._cooldown_max = nanos(config.cooldown_max_s)
        self._jitter = config.jitter
        self._rng = rng
        self._window = OutcomeWindow(config.window)
        self._failures: deque[CountedFailure] = deque(maxlen=config.window)
        self._opening: list[CountedFailure] = []  # those that opened it
        self._row = 0  # how many of them came in a row, last
        self._consecutive = 0
        self._row_from = 0  # the number of the first failure in a row
        self._cooldown = 0  # the last one given, before jitter; 0 = never opened
        self._cooldown_before = 0  # the one before that
        self._closed_since = 0
        self._trial_out = False
        self._opened = 0
        self._history: deque[BreakerChange] = deque(maxlen=_HISTORY_MAX)

    def would_allow(self, now: int) -> bool:
        """Whether ``allow`` would let a request pass now, as a trial or because it is closed.

        Changes nothing and claims no trial.
        """
        return self.state is _CLOSED or (now >= self.opens_until and not self._trial_out)

    def allow(self, now: int) -> Decision:
        """Decide whether a request may pass; the ``Decision`` has a reason.

        Closed: always. Otherwise only one at a time, after the cooldown: then it moves to half-open
        and returns ``TRIAL``, which the caller must report.
        """
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
        self,
        outcome: Outcome,
        now: int,
        *,
        strong: bool = False,
        trial: bool = False,
        failure: CountedFailure | None = None,
        crowd: bool = False,
    ) -> BreakerChange | None:
        """Count how an attempt ended; return the state change that this caused, else ``None``.

        Successes and failures count only while closed, other outcomes never; while open only the
        trial matters. ``strong``: a refused connection, which opens it at once. ``failure`` says
        whose it was, ``crowd`` that three tenants or more are active.
        """
        if not self._counting:
            return None
        if trial:
            return self._record_trial(outcome, now, failure)
        if self.state is not _CLOSED:
            return None
        if outcome is _SUCCESS:
            self._consecutive = 0
            self._window.add(False)
            return None
        if outcome is not _FAILURE:
            return None
        self._count(failure or CountedFailure())
        if strong:
            return self._open(BreakerSignal.REFUSED, "connection refused", now)
        return self._judge(now, crowd=crowd)

    def confirm(
        self, failure: CountedFailure, now: int, *, crowd: bool = False
    ) -> BreakerChange | None:
        """Give a failure its full weight, because another replica answered the same request.

        One that was not counted so far is counted now. Returns the change if this opens the
        breaker; does nothing unless it is closed.
        """
        if not self._counting or self.state is not _CLOSED:
            return None
        failure.body = None
        if failure not in self._failures:
            self._count(failure)
        return self._judge(now, crowd=crowd)

    def withdraw(self, failure: CountedFailure, now: int) -> BreakerChange | None:
        """Take back a failure that was the request's own; an opening that it was part of is undone.

        Returns the change if the breaker closes by that, else ``None``; after a failed trial it
        stays open, but the next trial is due at once.
        """
        if failure in self._failures:
            self._failures.remove(failure)
            if self._consecutive and failure.number >= self._row_from:
                self._consecutive -= 1
            self._window.take_back(failure.number)
            return None
        if self.state is not _OPEN or failure not in self._opening:
            return None
        self._cooldown = self._cooldown_before
        if len(self._opening) == 1:  # a trial
            self.opens_until = min(self.opens_until, now)
            return None
        ended = len(self._opening) - self._row  # those after them came in a row
        for index, other in enumerate(self._opening):
            if index == ended:
                self._consecutive = 0
            if other is not failure:
                self._count(other)
        if not self._row:
            self._consecutive = 0
        self.opens_until = 0
        return self._move(BreakerSignal.WITHDRAWN, "its failures were the requests' own", now)

    def _count(self, failure: CountedFailure) -> None:
        failure.number = self._window.added
        if not self._consecutive:
            self._row_from = failure.number
        self._consecutive += 1
        self._window.add(True)
        self._failures.append(failure)

    def _record_trial(
        self, outcome: Outcome, now: int, failure: CountedFailure | None
    ) -> BreakerChange | None:
        signal = _TRIAL_SIGNALS[outcome]
        if not self._trial_out:
            raise self._unknown(signal, "no trial is out")
        self._trial_out = False
        if signal is BreakerSignal.TRIAL_FAILED:
            self._failures.append(failure or CountedFailure())
            return self._open(signal, "trial failed", now)
        if signal is BreakerSignal.TRIAL_SUCCEEDED:
            self._closed_since = now
            self.opens_until = 0
            return self._move(signal, "trial succeeded", now)
        self._move(signal, outcome.value, now)
        if outcome is Outcome.BACKPRESSURE:
            self.opens_until = now + self._jittered(self._base)
        return None

    def _judge(self, now: int, *, crowd: bool) -> BreakerChange | None:
        reason = self._too_many(crowd=crowd)
        return self._open(BreakerSignal.THRESHOLD, reason, now) if reason else None

    def _too_many(self, *, crowd: bool) -> str:
        """The reason to open the breaker by its counts; empty if there is none."""
        in_a_row, window = self._consecutive, self._window
        if in_a_row >= self._consecutive_max:
            row = [failure for failure in self._failures if failure.number >= self._row_from]
            if _weight(row, crowd=crowd) >= min(self._consecutive_max, len(row)):
                return f"{in_a_row} failures in a row"
        failures, count = window.failures, window.count
        if count >= self._minimum and failures / count >= self._failure_ratio:
            oldest = window.added - count
            held = [failure for failure in self._failures if failure.number >= oldest]
            if _weight(held, crowd=crowd) / count >= self._failure_ratio:
                return f"{failures} of the last {count} failed"
        return ""

    def _open(self, signal: BreakerSignal, reason: str, now: int) -> BreakerChange:
        following = min(self._cooldown * 2, self._cooldown_max)
        proven = self.state is _CLOSED and now - self._closed_since >= following
        self._cooldown_before = self._cooldown
        self._cooldown = self._base if proven or not self._cooldown else following
        self.opens_until = now + self._jittered(self._cooldown)
        self._opened += 1
        if self.state is _CLOSED:
            self.opened_at = now
        self._opening, self._row = list(self._failures), self._consecutive
        self.proven = any(failure.proof for failure in self._opening)
        self._failures.clear()
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
        """End the cooldown of a breaker that is not closed, so that its trial is due at once.

        It stays open until that trial succeeds; called when control finds the replica ready again.
        """
        if self.state is not _CLOSED:
            self.opens_until = min(self.opens_until, now)


def _weight(failures: Collection[CountedFailure], *, crowd: bool) -> int:
    """How many failures these count as, by who was failed."""
    users = [failure for failure in failures if not failure.proof]
    proofs = len(failures) - len(users)
    if crowd:
        tenants = len({failure.tenant for failure in users})
        return proofs + (len(users) if tenants >= WITNESSES else tenants)
    alike = {failure.body for failure in users if failure.body is not None}
    return proofs + len(alike) + sum(failure.body is None for failure in users)


__all__ = [
    "TRANSITIONS",
    "TRIAL",
    "WITNESSES",
    "Breaker",
    "BreakerChange",
    "BreakerConfig",
    "BreakerError",
    "BreakerSignal",
    "BreakerState",
    "CountedFailure",
]
