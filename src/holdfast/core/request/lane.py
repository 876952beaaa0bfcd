"""What a gateway keeps for one model: its pool of replicas, its queue, its learned deadlines.

The flow decides what becomes of requests; the lane keeps the books that those decisions read:
who holds which slot, what each replica's breaker, limit and latency have learned, how long a first
token takes here. Everything is per (replica, model): one server may be ill in one model only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from holdfast.core.failure import Kind, Outcome
from holdfast.core.messages import FleetView, LoadReported, ReplicaView, Report, ReportCode, Tally
from holdfast.core.request import routing
from holdfast.core.request.active_request import ActiveRequest, Attempt, ChargedFailure
from holdfast.core.request.admission.fairness import TokenCounters
from holdfast.core.request.admission.generation_pace import GenerationPace
from holdfast.core.request.admission.limit import GradientLimit, LimitConfig
from holdfast.core.request.admission.queue import FairQueue, QueueConfig
from holdfast.core.request.breaker import TRIAL, Breaker, BreakerChange, BreakerConfig, BreakerState
from holdfast.core.request.candidate import SAMPLES_MAX, Candidate
from holdfast.core.request.deadlines import DeadlineConfig, Deadlines
from holdfast.core.request.failover import FailoverConfig, FailoverLadder
from holdfast.core.request.failure_ledger import EvidenceConfig, FailureLedger
from holdfast.core.request.pool import Pool
from holdfast.core.request.prompts.long_prompts import LONG_TOKENS, LongPrompts
from holdfast.core.request.prompts.reading_pace import PACED_TOKENS
from holdfast.core.stats import PeakEwma, RecentSketch
from holdfast.core.types import MILLISECOND, SECOND, Replica, Request, nanos, require

_CLOSED: Final = BreakerState.CLOSED
_SUCCESS: Final = Outcome.SUCCESS
_FAILURE: Final = Outcome.FAILURE
_BACKPRESSURE: Final = Outcome.BACKPRESSURE
_CLIENT_ERROR: Final = Outcome.CLIENT_ERROR

# Latency is kept as a multiple of the pool's typical first token for prompts of that length.
_FAILURE_LOOKS_LIKE: Final = 10.0  # × typical: a fast failure must never look like a fast answer
_BUSY_LOOKS_LIKE: Final = 3.0  # × typical: backpressure lowers the weight without blame
# A failure without content within half of a usual first token came sooner than any answer.
_FAST_MAX: Final = 50 * MILLISECOND  # whatever is usual, and where that is not known yet
_FAST_MIN: Final = 10 * MILLISECOND  # the way there and back on a busy machine
_DOUBT_EVERY: Final = SECOND  # control asks canaries on doubt no more often
_RECENT_S: Final = 60.0  # of first tokens, for the promise on them: long enough for a p95
_RECENT_MIN: Final = 20  # first tokens; of fewer, the p95 is the one slowest


@dataclass(slots=True, frozen=True)
class LaneConfig:
    """Settings of one model's requests: how they are queued, routed, limited and timed.

    Checked when built: raises ``ConfigError``.
    """

    routing: str = "power_of_two"
    routing_options: Mapping[str, Any] = field(default_factory=dict)
    queue: QueueConfig = field(default_factory=QueueConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)  # how users' failures weigh
    limit: LimitConfig = field(default_factory=LimitConfig)
    failover: FailoverConfig = field(default_factory=FailoverConfig)
    slo_first_token_s: float | None = None  # the promise that a ladder of models watches
    context_tokens: int = 0  # prompt and answer together; 0 = unknown, which is tried
    lacks: frozenset[str] = frozenset()  # what a request may need and the model cannot do

    def __post_init__(self) -> None:
        context = self.context_tokens
        fix = "use 0 for unknown, or tokens"
        require(context >= 0, "lane.context_tokens", f"is {context}", fix)
        slo = self.slo_first_token_s
        fix = "use seconds above 0, or leave it out"
        require(slo is None or slo > 0, "lane.slo_first_token_s", f"is {slo}", fix)


class Lane:
    """The pool, queue and deadlines of one model in one gateway, and what its attempts taught.

    It keeps the books for the flow; it sends nothing and finishes no request. Only the flow changes
    it, except that ``take_served`` and its like clear what they return.
    """

    __slots__ = (
        "_active",
        "_config",
        "_ended",
        "_failed",
        "_first",
        "_first_late",
        "_ledger",
        "_recent",
        "_serves",
        "_slo",
        "_streams",
        "_tenants",
        "_tokens",
        "_woken_at",
        "answered_elsewhere",
        "answers",
        "deadlines",
        "long_prompts",
        "model",
        "pace",
        "pool",
        "queue",
        "reports",
    )

    def __init__(
        self,
        model: str,
        config: LaneConfig,
        tenant_weights: Mapping[str, float],
        streams: Callable[[str], Random],
    ) -> None:
        self.model = model
        self._config = config
        self._streams = streams
        policy = routing.build(
            config.routing, streams(f"routing/{model}"), **dict(config.routing_options)
        )
        self._ledger = FailureLedger(config.evidence)
        self._tenants = self._ledger.tenants  # when an attempt of each last ended
        self.reports: list[Report] = []  # for control, not taken yet
        self.pool = Pool(model, policy, FailoverLadder(config.failover), self._candidate)
        self.queue = FairQueue(config.queue, TokenCounters(tenant_weights))
        self.deadlines = Deadlines(config.deadlines)
        self.answers = Deadlines(  # those in one piece: nobody sees when their prompts are read
            config.deadlines.for_answers(), answers=True, reading=self.deadlines.reading
        )
        self.long_prompts = LongPrompts(self.deadlines.reading)
        self.pace = GenerationPace()  # learned only where somebody has a quota
        slo = config.slo_first_token_s
        self._slo = nanos(slo) if slo is not None else 1 << 62
        self._first = self._first_late = 0  # first tokens since the last reading, and late ones
        self._ended = self._failed = 0  # attempts since the last reading, and failed ones
        self._recent = RecentSketch(_RECENT_S)  # first tokens of streams, since their arrival
        self._active = 0  # attempts that ran or ended, told in tallies and not taken yet
        self._tokens = 0  # the same for tokens of prompts and answers
        self.answered_elsewhere = 0  # that found no replica here, and were not counted as demand
        self._serves = False  # some replica gets a share
        self._woken_at = 0  # when that last began

    def _candidate(self, replica: Replica) -> Candidate:
        config = self._config
        breaker = Breaker(config.breaker, self._streams(f"breaker/{self.model}/{replica.id}"))
        # Declared slots are knowledge; a limit learned beside them could only take some away.
        adaptive = config.limit.enabled and not replica.slots
        gradient = GradientLimit(config.limit) if adaptive else None
        return Candidate(replica, breaker, PeakEwma(), gradient)

    def follow(self, views: Sequence[ReplicaView], now: int) -> None:
        """Take over control's view of all replicas of this model: candidates and canary times.

        Replicas not in ``views`` are removed from the pool.
        """
        serves = any(view.share > 0 for view in views)
        if serves and not self._serves:
            self._woken_at = now
        self._serves = serves
        self.pool.apply(views, now)
        canaries = [view.canary_s for view in views if view.canary_s and view.share > 0]
        slowest = max(canaries, default=None)
        self.deadlines.expect_canary(slowest)
        self.answers.expect_canary(slowest)

    def waits(self, request: Request) -> Deadlines:
        """Return the ``Deadlines`` for this request: of streams, or of answers in one piece."""
        return self.answers if request.whole else self.deadlines

    def suits(self, request: Request) -> bool:
        """Whether the model can do what a request needs, as far as its config says."""
        config = self._config
        context = config.context_tokens
        if context and request.prompt_tokens + request.max_tokens > context:
            return False
        return config.lacks.isdisjoint(request.needs)

    def open(self, active: ActiveRequest, candidate: Candidate, now: int) -> Attempt:
        """Start an attempt in the books: claim a slot, set when its first token is due.

        If the breaker is not closed, claims its trial. Returns the ``Attempt``, added to the
        request; sends nothing.
        """
        trial = False
        if candidate.breaker.state is not _CLOSED:
            trial = candidate.breaker.allow(now) is TRIAL
            self.pool.changed(now)
        request = active.request
        deadlines = self.answers if request.whole else self.deadlines
        queue = candidate.queue() if candidate.waiting else 0  # ``bears_with`` looks again
        patience = deadlines.wait(request, candidate.waiting, candidate.inflight, now, queue)
        number = active.attempts
        attempt = Attempt(number, candidate, now, now + patience, trial)
        attempt.tokens = tokens = request.prompt_tokens + request.max_tokens
        attempt.doubt_at = now + deadlines.first_look(request)
        attempt.scale = deadlines.scale
        attempt.queue = queue
        candidate.inflight += 1
        if request.priority:
            candidate.batch_inflight += 1
        candidate.own_tokens += tokens
        if request.whole:  # nobody sees when its prompt is read
            candidate.whole_tokens += request.prompt_tokens
        else:
            attempt.prefill = request.prompt_tokens
            candidate.prefill_tokens += request.prompt_tokens
        if request.prompt_tokens >= LONG_TOKENS:
            self.long_prompts.begin(attempt, request)
        self.pool.inflight += 1
        active.attempts = number + 1
        active.live.append(attempt)
        active.tried += (candidate.id,)
        return attempt

    def bears_with(self, active: ActiveRequest, attempt: Attempt, now: int) -> bool:
        """Whether an attempt whose first token is due is waited for longer.

        So it is where the pool became slower since, or its engine's own queue turns out longer
        than it was known to be: an engine tells that once a second. ``first_due`` is then stretched
        by as much, at most to the limit of the request; it may move though the answer is false.
        """
        waits = self.waits(active.request)
        if waits.scale > attempt.scale:
            allowed = (attempt.first_due - attempt.started) * waits.scale / attempt.scale
            attempt.first_due = attempt.started + min(int(allowed), waits.request)
            attempt.scale = waits.scale
        queue = attempt.candidate.queue()
        if queue > attempt.queue:
            attempt.queue = queue
            behind = attempt.started + waits.wait_behind(active.request, queue)
            attempt.first_due = max(attempt.first_due, behind)
        return now < attempt.first_due

    def first_content(
        self, active: ActiveRequest, attempt: Attempt, now: int
    ) -> BreakerChange | None:
        """Learn from a first token: replica's latency and limit, deadlines.

        A breaker's trial has passed. Returns the breaker's change if that closed it, else ``None``.
        Also called for an answer in one piece.
        """
        candidate = attempt.candidate
        request = active.request
        if request.prompt_tokens >= PACED_TOKENS and not attempt.first_at:
            self._prompt_was_read(request, attempt, now)
        attempt.first_at = now
        candidate.tokens += request.prompt_tokens
        if attempt.prefill:
            candidate.prefill_tokens -= attempt.prefill
            attempt.prefill = 0
        elapsed = now - attempt.started
        deadlines = self.answers if request.whole else self.deadlines
        typical = deadlines.observe_first_token(candidate.id, request.size, elapsed, now)
        self._first += 1
        if now - request.arrived > self._slo:
            self._first_late += 1
        if not (request.whole or request.priority or active.shown_tokens):
            # Waiting for a replica to start says nothing of how much those carry that run.
            since = request.arrived if request.arrived > self._woken_at else self._woken_at
            self._recent.add((now - since) * 1.0, now)
            if len(candidate.firsts) < SAMPLES_MAX:
                candidate.firsts.append(elapsed / SECOND)
        if typical:
            wait = elapsed / typical
            candidate.latency.observe(wait, now)
            if len(candidate.waits) < SAMPLES_MAX:
                candidate.waits.append(wait)
        gradient = candidate.gradient
        if gradient is not None:
            gradient.observe(elapsed, candidate.inflight, now, typical)
            limit = gradient.limit
            candidate.limit = limit if limit < candidate.slots else candidate.slots
        if attempt.trial:
            attempt.trial = False
            self.pool.changed(now)
            return candidate.breaker.record(_SUCCESS, now, trial=True)
        return None

    def _prompt_was_read(self, request: Request, attempt: Attempt, now: int) -> None:
        """Learn from the first token of a long prompt how fast prompts are read."""
        self.long_prompts.end(attempt)
        if not request.whole:
            tokens, elapsed = request.prompt_tokens, now - attempt.started
            self.deadlines.observe_prompt(attempt.candidate.id, tokens, elapsed)

    def overdue(self, active: ActiveRequest, attempt: Attempt, now: int) -> Report | None:
        """Raise the latency that routing sees for a replica whose first token is late.

        If it is very late, return the report that makes control ask the replica's canary, else
        ``None``. Sets when to look again; the attempt goes on.
        """
        request = active.request
        waits = self.waits(request)
        typical = waits.first_token_typical(request.size)
        elapsed = now - attempt.started
        if typical and elapsed >= waits.first_token_norm(request.size):
            attempt.candidate.latency.penalise(elapsed / typical, now)
        attempt.doubt_at = now + elapsed
        doubt = waits.doubt_after(request)
        if elapsed < doubt:
            attempt.doubt_at = min(attempt.doubt_at, attempt.started + doubt)
            return None
        return self.doubt(attempt.candidate, f"no first token after {elapsed / SECOND:.1f} s", now)

    def is_overdue(self, active: ActiveRequest, attempt: Attempt, now: int) -> bool:
        """Whether an attempt has waited so long for its first token that its replica is in doubt.

        False once content came.
        """
        waited = now - attempt.started
        return not attempt.first_at and waited >= self.waits(active.request).doubt_after(
            active.request
        )

    def doubt(self, candidate: Candidate, reason: str, now: int) -> Report | None:
        """Return the ``Report`` that a replica is in doubt; ``None`` within a second of the last.

        Each makes control ask a canary, and a client that hangs up again and again must not drive
        those.
        """
        if now < candidate.doubt_from:
            return None
        candidate.doubt_from = now + _DOUBT_EVERY
        return Report(self.model, candidate.id, ReportCode.OVERDUE.value, reason)

    def overtaken(self, active: ActiveRequest, slower: list[Attempt], now: int) -> None:
        """Learn from attempts that lost against a hedge: they took at least this long. Ends none.

        Learning from winners alone would make hedging come ever earlier.
        """
        request = active.request
        deadlines = self.waits(request)
        typical = deadlines.first_token_typical(request.size)
        for attempt in slower:
            elapsed = now - attempt.started
            candidate = attempt.candidate
            deadlines.observe_first_token(candidate.id, request.size, elapsed, now)
            if typical:
                candidate.latency.observe(elapsed / typical, now)

    def close(
        self, active: ActiveRequest, attempt: Attempt, outcome: Outcome, kind: Kind | None, now: int
    ) -> BreakerChange | None:
        """End an attempt in the books: free its slot, count its outcome, tell the breaker.

        Returns the breaker's change, else ``None``. Reports for control may be added to
        ``reports``; the connection is the caller's.
        """
        candidate = attempt.candidate
        candidate.inflight -= 1
        if attempt.prefill:
            candidate.prefill_tokens -= attempt.prefill
        elif active.request.whole:
            candidate.whole_tokens -= active.request.prompt_tokens
        if active.request.prompt_tokens >= LONG_TOKENS and not attempt.first_at:
            self.long_prompts.end(attempt)
        if active.request.priority:
            candidate.batch_inflight -= 1
        if attempt.report == candidate.reports:
            candidate.own_tokens -= attempt.tokens
        self.pool.inflight -= 1
        active.live.remove(attempt)
        self._ended += 1
        tenant = active.request.tenant
        if tenant in self._tenants:
            self._tenants[tenant] = now  # written out: every attempt of every request ends here
        else:
            self._ledger.saw(tenant, now)
        if outcome is _FAILURE and kind is not None:
            change = self._failed_with(active, attempt, kind, now)
        else:
            if outcome is _SUCCESS:
                candidate.successes += 1
                if active.request.path not in candidate.serves:
                    candidate.serves.add(active.request.path)
            elif outcome is _BACKPRESSURE:
                candidate.backpressure += 1
                candidate.latency.penalise(_BUSY_LOOKS_LIKE, now)
                if candidate.gradient is not None:
                    candidate.gradient.on_backpressure(now)
                    candidate.limit = min(candidate.slots, candidate.gradient.limit)
            change = candidate.breaker.record(outcome, now, trial=attempt.trial)
        if change is not None or attempt.trial:
            self.pool.changed(now)
        return change

    def _failed_with(
        self, active: ActiveRequest, attempt: Attempt, kind: Kind, now: int
    ) -> BreakerChange | None:
        """Charge a failed attempt to its replica, unless another one had the same failure."""
        candidate, ledger = attempt.candidate, self._ledger
        alike = ledger.repeats(active, candidate, kind, now)
        if alike:
            self._withdraw(alike, now)
            candidate.withdrawn += 1
            change = candidate.breaker.record(_CLIENT_ERROR, now, trial=attempt.trial)
        else:
            sooner = not attempt.first_at and now - attempt.started <= self._fast(active.request)
            own = ledger.is_own(active.request.tenant, kind, now)
            alone = len(self.pool.candidates) < 2
            change = ledger.charge(active, attempt, kind, now, fast=sooner, alone=alone)
            self._failed += 1
            if not own:
                candidate.latency.penalise(_FAILURE_LOOKS_LIKE, now)
        if change is None:  # an opening asks by itself
            doubt = self.doubt(candidate, f"a request failed there: {kind.value}", now)
            if doubt is not None:
                self.reports.append(doubt)
        return change

    def _fast(self, request: Request) -> int:
        """How soon (ns) a failure comes sooner than any answer to such a request."""
        typical = self.waits(request).first_token_typical(request.size)
        if typical is None:
            return _FAST_MAX
        return min(max(typical // 2, _FAST_MIN), _FAST_MAX)

    def uphold(
        self, active: ActiveRequest, answered: Candidate, now: int, *, alike: bool = False
    ) -> None:
        """Let a request's earlier failures count in full: the replica ``answered`` answers it.

        ``alike``: with what an earlier answer was rejected for, which is withdrawn then. Changes of
        breakers are added to ``reports``.
        """
        if alike:
            self._withdraw(self._ledger.repeats(active, answered, Kind.DEGENERATE, now), now)
        for accused, moved in self._ledger.uphold(active, answered, now):
            self._tell_moved(accused, moved, now)

    def _withdraw(self, charges: list[ChargedFailure], now: int) -> None:
        """Take failures back from their replicas: the request itself causes them."""
        for accused, moved in self._ledger.withdraw(charges, now):
            self._tell_moved(accused, moved, now)
        self._failed -= min(self._failed, len(charges))

    def _tell_moved(self, candidate: Candidate, change: BreakerChange, now: int) -> None:
        self.pool.changed(now)
        state = change.after.value
        self.reports.append(Report(self.model, candidate.id, state, change.reason))

    def take_reports(self) -> list[Report]:
        """Return the reports that control should get at once, and clear them."""
        reports, self.reports = self.reports, []
        return reports

    def saturation(self) -> float | None:
        """The share of the pool's capacity in use; at least 1 while requests wait in the queue.

        ``None`` where no limit is known, or no replica may be chosen.
        """
        used = self.pool.utilisation()
        if used is None:
            return None
        return max(1.0, used) if len(self.queue) else used

    def readings(self) -> tuple[float | None, float | None, float | None]:
        """Return (saturation now, share of first tokens in time, share of failed attempts).

        The shares are since the last call, which resets them; ``None`` where unknown or nothing
        happened.
        """
        attained = 1.0 - self._first_late / self._first if self._first else None
        errors = self._failed / self._ended if self._ended else None
        self._first = self._first_late = self._ended = self._failed = 0
        return self.saturation(), attained, errors

    def first_token_p95(self, now: int) -> float | None:
        """Return the p95 (ns, since arrival) of streams' first tokens of about the last minute.

        Of people alone: batch work waits behind them. ``None`` below 20 of them.
        """
        return self._recent.quantile(0.95, now, _RECENT_MIN)

    def take_served(self) -> tuple[int, int]:
        """Return (attempts ended or running, tokens) that the tallies counted since the last call.

        Resets both.
        """
        served = self._active, self._tokens
        self._active = self._tokens = 0
        return served

    def take_answered_elsewhere(self) -> int:
        """Return how many requests another model answered for want of a replica here.

        Since the last call, which resets it.
        """
        count, self.answered_elsewhere = self.answered_elsewhere, 0
        return count

    def settle(self, now: int) -> None:
        """Count for control the failures that wait for no second opinion any more.

        Also weighs what long prompts explain. Call before ``tallies``.
        """
        self._ledger.settle(now)
        self.long_prompts.weigh(self.pool.candidates, now)

    def tallies(self) -> list[Tally]:
        """Return one ``Tally`` for each replica with traffic since the last call; resets them."""
        told = []
        for candidate in self.pool.candidates.values():
            tally = candidate.take_tally(self.model)
            if tally is not None:
                told.append(tally)
                self._tokens += tally.tokens
                self._active += tally.ended + tally.inflight
        return told


class LaneTable:
    """The lanes of all models in one gateway, by model, and which fleet view they follow."""

    __slots__ = (
        "_configs",
        "_default",
        "_stale",
        "_streams",
        "_view_at",
        "_weights",
        "by_model",
        "view",
    )

    def __init__(
        self,
        default: LaneConfig,
        configs: Mapping[str, LaneConfig],
        tenant_weights: Mapping[str, float],
        stale: int,
        streams: Callable[[str], Random],
    ) -> None:
        self.by_model: dict[str, Lane] = {}
        self.view = (0, -1)  # epoch and version of the view that holds
        self._default = default
        self._configs = configs
        self._weights = tenant_weights
        self._stale = stale
        self._streams = streams
        self._view_at: int | None = None
        for model in configs:
            self._lane(model)

    def _lane(self, model: str) -> Lane:
        lane = self.by_model.get(model)
        if lane is None:
            config = self._configs.get(model, self._default)
            lane = self.by_model[model] = Lane(model, config, self._weights, self._streams)
        return lane

    def apply(self, view: FleetView, now: int) -> bool:
        """Give all lanes their part of a fleet view; ``False`` if it is older than the one held.

        Age is by (epoch, version); an equal view is applied again and counts as news of control.
        New models get a lane; lanes are never removed.
        """
        came = (view.epoch, view.version)
        if came < self.view:
            return False
        self.view = came
        self._view_at = now
        by_model: dict[str, list[ReplicaView]] = {model: [] for model in self.by_model}
        for replica in view.replicas:
            by_model.setdefault(replica.replica.model, []).append(replica)
        for model, replicas in by_model.items():
            self._lane(model).follow(replicas, now)
        return True

    def take_report(self, event: LoadReported, now: int) -> None:
        """Store the load that an engine reported, and whether it reads a prompt.

        Unknown replicas are ignored.
        """
        lane = self.by_model.get(event.model)
        candidate = lane.pool.candidates.get(event.replica_id) if lane is not None else None
        if candidate is not None:
            candidate.take_report(event.tokens, event.waiting, event.kv_used)
            if event.reads:
                candidate.reads_at = now

    def lease(self, trials: frozenset[tuple[str, str]] | None, now: int) -> None:
        """Set which (model, replica id) half-open trials this gateway may run.

        ``None`` allows all.
        """
        for model, lane in self.by_model.items():
            mine = None if trials is None else frozenset(r for m, r in trials if m == model)
            lane.pool.lease(mine, now)

    def tallies(self, now: int) -> list[Tally]:
        """Return the ``Tally`` of each replica with traffic since the last call, over all lanes.

        Reading resets them.
        """
        tallies: list[Tally] = []
        for lane in self.by_model.values():
            lane.settle(now)
            tallies += lane.tallies()
        return tallies

    def overruled(self) -> list[Report]:
        """One report for each open breaker that its pool overrules; sent as long as it does."""
        why = "users' failures alone keep at most half of a pool out: it is tried all the same"
        return [
            Report(lane.model, replica_id, ReportCode.OVERRULED.value, why)
            for lane in self.by_model.values()
            for replica_id in lane.pool.held_open
        ]

    def doubt(self, now: int) -> list[Report]:
        """If no fleet view came for too long, allow trials at replicas quarantined on suspicion.

        Returns one report for each such replica, once per silence; empty while control is heard.
        """
        if self._view_at is None or now - self._view_at <= self._stale:
            return []
        what = ReportCode.VIEW_STALE.value
        return [
            Report(lane.model, replica_id, what, "control is silent")
            for lane in self.by_model.values()
            for replica_id in lane.pool.doubt_view(now)
        ]


__all__ = ["Lane", "LaneConfig", "LaneTable"]
