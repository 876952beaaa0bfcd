"""Records what happens to requests and attempts: counters, token ledger, traces, records.

A request reports events to its observer (``saw_*``) and gets nothing back. The process reads the
parts directly when it reports to control.
"""

from collections.abc import Callable
from typing import NamedTuple

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish
from holdfast.core.plan.cost import DIRECT
from holdfast.core.request.active_request import DEATHS_MAX, apart, died
from holdfast.core.types import SECOND
from holdfast.gateway.telemetry.counters import Counters
from holdfast.gateway.telemetry.deadly_requests import DeadlyRequests
from holdfast.gateway.telemetry.observed_request import ObservedAttempt, ObservedRequest
from holdfast.gateway.telemetry.request_records import RequestRecords
from holdfast.gateway.telemetry.traces import Traces, note_attempt, traces_of


class _Death(NamedTuple):
    """A replica whose connection died under a request."""

    replica_id: str
    host: str  # empty: unknown
    at: int


class Observer:
    """Updates counters, token ledger, traces and records from the events of a gateway's requests.

    It influences no request, except that those under which replicas died may be blocked.
    """

    __slots__ = (
        "_died_under",
        "_measured_at",
        "counters",
        "deadly",
        "now_ns",
        "records",
        "traces",
    )

    def __init__(
        self, now_ns: Callable[[], int], *, trace_share: float = 0.0, trace_follow: bool = False
    ) -> None:
        self.now_ns = now_ns
        self.counters = Counters()
        self.records = RequestRecords()
        self.deadly = DeadlyRequests()
        self.traces: Traces | None = traces_of(trace_share, follow=trace_follow)
        # Replicas that died under a request, until the request is over.
        self._died_under: dict[ObservedRequest, list[_Death]] = {}
        # By replica, when the next answer is to be measured; bounded by the config.
        self._measured_at: dict[str, int] = {}

    def configure(self, *, trace_share: float, trace_follow: bool) -> None:
        """Apply the trace settings of a new config; counters and records stay."""
        self._measured_at.clear()
        self.traces = traces_of(trace_share, follow=trace_follow, before=self.traces)

    # --- attempts --------------------------------------------------------------------------------

    def saw_end(self, attempt: ObservedAttempt, kind: Kind | None, said: int) -> None:
        """Count the end of an attempt and its tokens, and trace it; ``kind`` None: it succeeded.

        ``said``: tokens of its answer. If the connection died, the replica is remembered until the
        request is over. Whole answers that succeed are reported by ``saw_answer`` instead.
        """
        now, proxied, target = self.now_ns(), attempt.proxied, attempt.target
        read, took = attempt.prompt_tokens(), now - attempt.started
        if proxied.trace is not None:
            note_attempt(proxied, attempt, kind, now, read, said)
        if kind is None and not attempt.continues:
            self._answered(attempt, took, read, said)
        else:
            self.counters.attempt(target.replica_id, target.model, kind, took)
            self.counters.ledger.ended(attempt, kind, read, said)
        if kind is None:
            if attempt.first:
                self._saw_stream(attempt, now, said)
        # Of a connection that carried nothing, the last sign is that of its dispatch.
        elif died(kind, now - attempt.last):
            before = self._died_under.get(proxied, ())
            beside = bool(target.host) and any(death.host == target.host for death in before)
            if apart(proxied.died_at, now, same_host=beside):
                proxied.died_at = now
                death = _Death(target.replica_id, target.host, now)
                self._died_under[proxied] = [*before, death]

    def _saw_stream(self, attempt: ObservedAttempt, now: int, tokens: int) -> None:
        """Count how an answer in pieces went."""
        proxied, first, chunks = attempt.proxied, attempt.first, attempt.chunks()
        per_chunk = (attempt.last - first) // (chunks - 1) if chunks > 1 else 0
        if attempt.continues:
            tokens += proxied.said_tokens
        shown = proxied.first_at
        per_token = (now - shown) // (tokens - 1) if shown and tokens > 1 else 0
        model = attempt.target.model
        self.counters.streamed(model, first - attempt.started, per_chunk, per_token)

    def saw_answer(self, attempt: ObservedAttempt, read: int, said: int) -> None:
        """Count an attempt that gave a whole, not streamed, answer, and its tokens, and trace it.

        ``read``, ``said``: tokens of prompt and answer. Replaces ``saw_end`` for it.
        """
        now = self.now_ns()
        self._answered(attempt, now - attempt.started, read, said)
        if attempt.proxied.trace is not None:
            note_attempt(attempt.proxied, attempt, None, now, read, said)

    def _answered(self, attempt: ObservedAttempt, took: int, read: int, said: int) -> None:
        proxied, target = attempt.proxied, attempt.target
        model, via = target.model, proxied.via
        tenant = proxied.tenant.name
        self.counters.answered(target.replica_id, model, tenant, via, took, read, said)
        if via is not DIRECT:
            proxied.spent = (model, read, said)

    def measure_due(self, replica_id: str) -> bool:
        """Whether to measure an answer of this replica now; True at most once a second for each.

        A True is remembered, so that asking counts as measuring.
        """
        now = self.now_ns()
        if now < self._measured_at.get(replica_id, 0):
            return False
        self._measured_at[replica_id] = now + SECOND
        return True

    # --- requests --------------------------------------------------------------------------------

    def saw_submission(self, proxied: ObservedRequest) -> None:
        """Note that a request enters the flow, and decide whether it is traced; nothing is counted.

        Called again when a stronger model is asked: an existing trace goes on.
        """
        if self.traces is not None:
            self.traces.begin(proxied)

    def saw_first(self, proxied: ObservedRequest, attempt: ObservedAttempt) -> None:
        """Note when a request's first content went to its client, and count the time until then."""
        proxied.first_at = first = attempt.first
        self.counters.first_token(attempt.target.model, first - proxied.request.arrived)

    def saw_finish(self, proxied: ObservedRequest, finish: Finish) -> None:
        """Count the end of a request, and keep its record and trace.

        Called once for each flow result. If replicas died under it and it was not answered, it is
        reported to control as perhaps deadly.
        """
        now = self.now_ns()
        if self._died_under:
            self._saw_deaths(proxied, finish, now)
        if finish.status == 200:
            if now >= self.deadly.answered_from:
                self.deadly.answered(proxied.ask, now)
        elif finish.status == 429 and not finish.attempts:
            self.counters.over_quota(proxied.tenant.name, finish.code)
        self.counters.finished(finish, now - proxied.request.arrived)
        self.records.add(proxied, finish, now)
        if self.traces is not None and proxied.trace is not None:
            self.traces.finish(proxied, finish, now)

    def _saw_deaths(self, proxied: ObservedRequest, finish: Finish, now: int) -> None:
        """Blame a request for the replicas that died under it, unless it was answered after all."""
        lost = self._died_under.pop(proxied, ())
        if not lost or finish.status == 200:
            return
        for index, death in enumerate(lost):
            self.deadly.saw(death.replica_id, proxied.ask, death.at, later=index > 0)
        if len({death.replica_id for death in lost}) >= DEATHS_MAX:
            self.deadly.hold(proxied.ask, now)

    def saw_escalation(self, proxied: ObservedRequest, check: str) -> None:
        """Count that an answer failed this check and a stronger model is asked.

        The answer's tokens now count as escalation instead of useful, and its trace stays open.
        """
        self.counters.escalated(proxied.ask.model, check)
        model, read, said = proxied.spent
        self.counters.ledger.escalated(proxied.tenant.name, model, proxied.via, read, said)
        if self.traces is not None:
            self.traces.take_back(proxied)


__all__ = ["Observer"]
