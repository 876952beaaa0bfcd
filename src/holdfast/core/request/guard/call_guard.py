"""Guards the calls to one deployment whose replicas are hidden behind its own router.

    open ─► begin ─► attempt ─┬─ answered ──────────────► success
             ▲                ├─ failed ─► Retry.decide ─► NextStep: again after a delay, or give up
             └── again ───────┴─ overdue ─► Deadlines.fired ─► the same

The gateway has a breaker per replica. Here one router (Ray Serve's handle, a service mesh) chooses
the replica and does not say which it was, so one breaker, one retry budget, one cap on hedges and
one set of learned deadlines stand for the whole deployment. They are the gateway's own policies:
``breaker``, ``retry``, ``hedge`` and ``deadlines`` decide, and this file only asks them in order.

Whether an overdue attempt was one bad replica or the whole deployment is told by its neighbours:
where others were answered lately, a retry may find a better replica, and the attempt counts as a
failure. Where nobody was, the deployment is slow or hangs as a whole: a retry would only add load,
deadlines rise as the core has it, and it counts as soon as the attempt had its whole ``attempt_s``.

Rejected: a fixed timeout and a count of failures, which is what most services write by hand. The
timeout is wrong for every second model, and a count without a window opens after a week of one
failure a day.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from holdfast.core.failure import MEANINGS, Kind, Outcome
from holdfast.core.request.breaker import TRIAL, Breaker, BreakerConfig, BreakerState
from holdfast.core.request.deadlines import DeadlineConfig, Deadlines
from holdfast.core.request.hedge import HedgeConfig, Hedger
from holdfast.core.request.retry import Retry, RetryBudget, RetryConfig
from holdfast.core.types import nanos, require, seconds

_WHOLE: Final = "deployment"  # stands for all of its replicas in the learned deadlines
_NEVER: Final = -(1 << 62)


@dataclass(slots=True, frozen=True)
class GuardConfig:
    """How long calls to a deployment may take, how many there may be, and the policies' configs.

    Checked when built: raises ``ConfigError``.
    """

    deadline_s: float = 60.0  # a whole call, retries included, where its caller says nothing
    attempt_s: float = 30.0  # one attempt, at most; once learned, usually far less
    floor_s: float = 1.0  # no learned deadline is below it: a pause of a process is no failure
    inflight_max: int = 256  # calls at once: a deployment that hangs must not fill its callers
    slots: int = 0  # calls that it runs at once; 0 = unknown, and then nothing is hedged
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)
    hedge: HedgeConfig = field(default_factory=HedgeConfig)

    def __post_init__(self) -> None:
        whole, fix = self.deadline_s, "use seconds above 0, up to a day"
        require(0 < whole <= 86_400, "guard.deadline_s", f"is {whole}", fix)
        attempt, fix = self.attempt_s, f"use seconds above 0, up to guard.deadline_s ({whole})"
        require(0 < attempt <= whole, "guard.attempt_s", f"is {attempt}", fix)
        floor, fix = self.floor_s, f"use seconds above 0, up to guard.attempt_s ({attempt})"
        require(0 < floor <= attempt, "guard.floor_s", f"is {floor}", fix)
        most, fix = self.inflight_max, "use at least 1 call"
        require(most >= 1, "guard.inflight_max", f"is {most}", fix)
        slots, fix = self.slots, "use 0 (unknown) or the calls that all replicas run at once"
        require(slots >= 0, "guard.slots", f"is {slots}", fix)

    def deadlines(self, *, streamed: bool) -> DeadlineConfig:
        """The resulting ``DeadlineConfig``: for streams, or for answers in one piece."""
        usual = DeadlineConfig()
        config = replace(
            usual,
            request_s=self.deadline_s,
            first_token_s=self.attempt_s,
            first_token_floor_s=self.floor_s,
            between_tokens_s=min(usual.between_tokens_s, self.attempt_s),
            between_tokens_floor_s=min(usual.between_tokens_floor_s, self.floor_s),
            answer_floor_s=self.floor_s,
        )
        return config if streamed else replace(config.for_answers(), first_token_s=self.attempt_s)


@dataclass(slots=True, frozen=True)
class GuardRefusal:
    """A call or attempt that is not sent: kind of failure, why, seconds until to ask again."""

    kind: Kind
    reason: str
    retry_after_s: float | None = None


@dataclass(slots=True, frozen=True)
class NextStep:
    """What follows an attempt without success: another after ``delay`` ns (``again``), or the end.

    The end may also mean that another attempt of the call is still under way.
    """

    again: bool
    delay: int
    reason: str
    kind: Kind


class GuardedAttempt:
    """One attempt of a guarded call: when it began, until when it may wait, whether it is a trial.

    Times are ns; after a stream's first item ``due`` is the deadline of its next one.
    """

    __slots__ = ("due", "gap_max", "gaps", "reported", "shown_at", "started", "trial")

    def __init__(self, started: int, due: int, *, trial: bool) -> None:
        self.started = started
        self.due = due
        self.trial = trial
        self.reported = False  # the breaker knows of its outcome
        self.shown_at: int | None = None  # a stream's newest item
        self.gap_max = 0
        self.gaps = 0


class GuardedCall:
    """One call to a guarded deployment: its deadline (ns), its size, and its attempts so far."""

    __slots__ = ("attempts_made", "deadline", "free_used", "hedged", "running", "size", "streamed")

    def __init__(self, deadline: int, size: int, *, streamed: bool) -> None:
        self.deadline = deadline
        self.size = size
        self.streamed = streamed
        self.attempts_made = 0  # those that cost
        self.free_used = False
        self.hedged = False
        self.running = 0


class CallGuard:
    """Decides about all calls to one deployment: admission, waits, retries, hedges, the breaker.

    It sends nothing and runs no timers. Each call that ``open`` returned is given to ``close``
    once, and each attempt of ``begin`` or ``hedge`` to exactly one of ``answered``, ``failed``,
    ``overdue`` and ``superseded``.
    """

    def __init__(self, config: GuardConfig, rng: Random) -> None:
        self.config = config
        self.breaker = Breaker(config.breaker, rng)
        self.inflight = 0
        self.counts: dict[str, int] = {}  # by outcome or kind, of which there are few
        self._retry = Retry(config.retry, RetryBudget(config.retry), rng)
        self._hedger = Hedger(config.hedge)
        self._answers = Deadlines(config.deadlines(streamed=False), answers=True)
        self._streams = Deadlines(config.deadlines(streamed=True))
        self._attempt = nanos(config.attempt_s)
        self._recent = nanos(config.deadlines(streamed=True).firing_window_s)
        self._delivered_at = _NEVER

    # --- calls -----------------------------------------------------------------------------------

    def open(
        self, now: int, *, deadline: int | None = None, size: int = 0, streamed: bool = False
    ) -> GuardedCall | GuardRefusal:
        """Admit a call, or refuse it without touching the deployment.

        Refused: no time left, too many calls under way, or the breaker is open. ``deadline`` is the
        caller's own (ns), cut to the configured one; ``size`` anything that grows with the work,
        such as the prompt's tokens.
        """
        latest = now + nanos(self.config.deadline_s)
        deadline = latest if deadline is None else min(deadline, latest)
        if now >= deadline:
            return self._refused(Kind.DEADLINE, "no time left before the deadline")
        if self.inflight >= self.config.inflight_max:
            told = f"{self.inflight} calls are under way, as many as there may be"
            return self._refused(Kind.OVERLOADED, told, 1.0)
        if not self.breaker.would_allow(now):
            return self._circuit_open(now)
        self.inflight += 1
        self._retry.budget.on_request(now)
        self._hedger.on_request(now)
        return GuardedCall(deadline, size, streamed=streamed)

    def close(self, call: GuardedCall) -> None:
        """End a call, so that its place is free; all its attempts must have ended (asserted)."""
        assert call.running == 0, "each of its attempts has ended"
        self.inflight -= 1

    # --- attempts --------------------------------------------------------------------------------

    def begin(self, call: GuardedCall, now: int) -> GuardedAttempt | GuardRefusal:
        """Begin an attempt, the first or a retry, with its deadline.

        A refusal if the breaker is open. May claim the breaker's trial.
        """
        decision = self.breaker.allow(now)
        if not decision:
            return self._circuit_open(now)
        return self._started(call, now, trial=decision is TRIAL)

    def hedge_at(self, call: GuardedCall, attempt: GuardedAttempt) -> int | None:
        """When (ns) a second attempt may be asked for beside this one.

        None: hedging is off, nothing was learned yet, one was asked for already, or content came.
        """
        if call.hedged or attempt.shown_at is not None:
            return None
        hedge = self.config.hedge
        learned = self._waits(call).first_token_quantile(
            call.size, hedge.quantile, hedge.samples_min
        )
        delay = self._hedger.delay(learned)
        return None if delay is None else attempt.started + delay

    def hedge(self, call: GuardedCall, now: int) -> GuardedAttempt | None:
        """Begin a second attempt beside the first.

        None without spare capacity or if the breaker is open. Uses up the call's one hedge either
        way.
        """
        call.hedged = True
        if self.breaker.state is not BreakerState.CLOSED:
            return None  # a trial is one request, and this would be its double
        slots = self.config.slots
        utilisation = self.inflight / slots if slots else None
        if not self._hedger.decide(now, utilisation, max(0, self.inflight - slots)):
            return None
        return self._started(call, now, trial=False)

    def item(self, call: GuardedCall, attempt: GuardedAttempt, now: int) -> None:
        """Note an item of a stream: the first is a success for the breaker, others teach the pace.

        Moves ``attempt.due`` to the deadline of the next item.
        """
        if attempt.shown_at is None:
            self._delivered(call, attempt, now)
        else:
            attempt.gap_max = max(attempt.gap_max, now - attempt.shown_at)
            attempt.gaps += 1
        attempt.shown_at = now
        attempt.due = min(now + self._streams.between_tokens(now), call.deadline)

    def answered(self, call: GuardedCall, attempt: GuardedAttempt, now: int) -> None:
        """Note an attempt's whole answer, or the regular end of its stream.

        Counts a success and teaches the deadlines; the call itself stays open.
        """
        call.running -= 1
        if attempt.shown_at is None:
            self._delivered(call, attempt, now)
        self._streams.observe_gaps(attempt.gap_max, attempt.gaps, _WHOLE)
        self._count(Outcome.SUCCESS)

    def failed(self, call: GuardedCall, attempt: GuardedAttempt, kind: Kind, now: int) -> NextStep:
        """Note a failed attempt, for breaker and counts, and decide what follows it.

        A retry that is allowed is taken from the budget; the caller waits ``delay`` and calls
        ``begin``.
        """
        call.running -= 1
        self._report(attempt, MEANINGS[kind].outcome, now, strong=kind is Kind.REFUSED)
        return self._next(call, attempt, kind, now)

    def overdue(self, call: GuardedCall, attempt: GuardedAttempt, now: int) -> NextStep:
        """Note an attempt that is given up because it is late, and decide what follows.

        It counts as a failure if others were answered lately, if it had its whole ``attempt_s`` or
        if its stream had begun; otherwise deadlines rise instead.
        """
        call.running -= 1
        begun = attempt.shown_at is not None
        if now >= call.deadline and now - attempt.started < self._attempt and not begun:
            # The caller's patience was short. That says nothing about the deployment.
            self._report(attempt, Outcome.CANCELLED, now)
            return self._end(Kind.DEADLINE, "no time left before the deadline")
        recent = max(self._recent, now - attempt.started)
        alive = now - self._delivered_at <= recent
        verdict = self._waits(call).fired(
            _WHOLE, peers=1 if alive else 0, now=now, started=attempt.started
        )
        counts = verdict.counts or begun or now - attempt.started >= self._attempt
        self._report(attempt, Outcome.FAILURE if counts else Outcome.CANCELLED, now)
        kind = Kind.BETWEEN_TOKENS_TIMEOUT if begun else Kind.FIRST_TOKEN_TIMEOUT
        if not verdict.retry:
            return self._end(kind, verdict.reason)
        return self._next(call, attempt, kind, now)

    def superseded(self, call: GuardedCall, attempt: GuardedAttempt, now: int) -> None:
        """Note an attempt that nobody waits for: another was faster, or its caller left.

        Counts neither for nor against the deployment.
        """
        call.running -= 1
        self._report(attempt, Outcome.CANCELLED, now)

    def snapshot(self) -> dict[str, object]:
        """A dict of the breaker's state, the number of calls under way, and counts by outcome."""
        return {
            "breaker": self.breaker.state.value,
            "inflight": self.inflight,
            "counts": dict(self.counts),
        }

    # --- inside ----------------------------------------------------------------------------------

    def _waits(self, call: GuardedCall) -> Deadlines:
        return self._streams if call.streamed else self._answers

    def _started(self, call: GuardedCall, now: int, *, trial: bool) -> GuardedAttempt:
        call.attempts_made += 1
        call.running += 1
        wait = min(self._waits(call).first_token(call.size, None, now), self._attempt)
        return GuardedAttempt(now, min(now + wait, call.deadline), trial=trial)

    def _delivered(self, call: GuardedCall, attempt: GuardedAttempt, now: int) -> None:
        elapsed = now - attempt.started
        self._waits(call).observe_first_token(_WHOLE, call.size, elapsed, now)
        self._delivered_at = now
        self._report(attempt, Outcome.SUCCESS, now)

    def _report(
        self, attempt: GuardedAttempt, outcome: Outcome, now: int, *, strong: bool = False
    ) -> None:
        trial = attempt.trial and not attempt.reported
        attempt.reported = True
        self.breaker.record(outcome, now, strong=strong, trial=trial)

    def _next(self, call: GuardedCall, attempt: GuardedAttempt, kind: Kind, now: int) -> NextStep:
        if attempt.shown_at is not None:
            return self._end(kind, "its caller has seen a part of the answer")
        if call.running:
            return NextStep(False, 0, "another attempt is under way", kind)
        decision = self._retry.decide(
            kind,
            attempts_made=call.attempts_made,
            free_used=call.free_used,
            deadline=call.deadline,
            now=now,
        )
        if not decision:
            return self._end(kind, decision.reason)
        if decision.free:
            call.free_used = True
            call.attempts_made -= 1
        return NextStep(True, decision.delay, decision.reason, kind)

    def _end(self, kind: Kind, reason: str) -> NextStep:
        self._count(kind)
        return NextStep(False, 0, reason, kind)

    def _circuit_open(self, now: int) -> GuardRefusal:
        left = max(0.0, seconds(self.breaker.opens_until - now))
        told = "a trial is under way" if left == 0 else f"the next trial is in {left:.1f} s"
        self._count("circuit_open")
        return GuardRefusal(Kind.REFUSED, f"its circuit breaker is open: {told}", left)

    def _refused(self, kind: Kind, reason: str, after_s: float | None = None) -> GuardRefusal:
        self._count(kind)
        return GuardRefusal(kind, reason, after_s)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


__all__ = [
    "CallGuard",
    "GuardConfig",
    "GuardRefusal",
    "GuardedAttempt",
    "GuardedCall",
    "NextStep",
]
