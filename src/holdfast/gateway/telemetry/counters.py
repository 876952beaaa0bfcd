"""Counts requests, attempts, tokens and latencies of one gateway in plain lists and dictionaries.

An addition costs a tenth of a µs. Labels come from the config or from fixed sets, never from a
request, so there are at most a few hundred series; their number is bounded all the same. Control
adds up the counters of all gateways and renders them, so that a scrape never delays a request.

Histograms use OpenTelemetry's names and buckets for generative models: a gateway is a *server* to
its clients, and a *client* of an engine in each attempt. Two things differ from those conventions.
The time per chunk is the mean of an attempt, one observation for each: one for every chunk would
cost more than everything else that is done with a chunk's time. And a series appears with its first
observation. Names are built once for each series, not once a second.

Rejected: prometheus_client. An observation by label costs ten times as much, and it would have to
be scraped at every gateway.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.messages import Finish
from holdfast.core.types import MILLISECOND, SECOND
from holdfast.gateway.telemetry.token_ledger import TokenLedger

SERIES_MAX: Final = 4_096  # distinct names with labels; further ones are counted as overflow

# Bounds by OpenTelemetry's conventions; in nanoseconds, as the gateway keeps time.
REQUEST_MS: Final = (10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240, 20480, 40960, 81920)
FIRST_TOKEN_MS: Final = (
    *(1, 5, 10, 20, 40, 60, 80, 100),
    *(250, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000),
)
PER_TOKEN_MS: Final = (10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1_000, 2_500)
TOKENS: Final = tuple(4**power for power in range(14))  # 1, 4, 16 … 67,108,864

# In front of each stands a bound below everything: the place before the buckets holds the sum.
_REQUEST: Final = (-1, *(bound * MILLISECOND for bound in REQUEST_MS))
_FIRST: Final = (-1, *(bound * MILLISECOND for bound in FIRST_TOKEN_MS))
_PER: Final = (-1, *(bound * MILLISECOND for bound in PER_TOKEN_MS))
_TOKENS: Final = (-1, *TOKENS)
_ACCOUNTS_MAX: Final = 8_192  # then they are looked up anew; they only save looking


class Histogram:
    """Counts of observed values by bucket, under one metric name and set of labels.

    ``counts`` is the sum of all values, then one count per bucket; whoever observes adds to it
    directly.
    """

    __slots__ = ("_names", "_unit", "counts")

    def __init__(self, name: str, labels: str, bounds: Sequence[int], unit: int) -> None:
        self.counts = [0] * (len(bounds) + 1)  # the last bucket has no bound
        self._unit = unit
        ends = [str(bound / unit) if unit > 1 else str(bound) for bound in bounds[1:]]
        self._names = [f'{name}_bucket{{{labels},le="{end}"}}' for end in (*ends, "+Inf")]
        self._names += [f"{name}_count{{{labels}}}", f"{name}_sum{{{labels}}}"]

    def read(self, told: dict[str, int | float]) -> None:
        """Write the bucket, count and sum series, cumulative as in Prometheus, into ``told``.

        Nothing before the first observation.
        """
        totals = list(accumulate(self.counts[1:]))
        if totals[-1]:
            totals.append(totals[-1])
            told.update(zip(self._names, totals, strict=False))
            told[self._names[-1]] = self.counts[0] / self._unit

    @property
    def count(self) -> int:
        """How many values were observed, over all buckets."""
        return sum(self.counts[1:])


class ModelHistograms:
    """The histograms of one model: durations, first token, time per token, token usage.

    Each member is the live list of counts to add to.
    """

    __slots__ = (
        "failed",
        "first_chunk",
        "first_token",
        "histograms",
        "input_tokens",
        "ok",
        "output_tokens",
        "per_chunk",
        "per_token",
    )

    def __init__(self, model: str) -> None:
        self.histograms: list[Histogram] = []
        label = f'model="{model}"'
        server, client = "gen_ai_server", "gen_ai_client"
        whole = f"{client}_operation_duration_seconds"
        self.ok = self._one(whole, f'{label},outcome="ok"', _REQUEST)
        self.failed = self._one(whole, f'{label},outcome="failed"', _REQUEST)
        self.first_chunk = self._one(f"{client}_time_to_first_chunk_seconds", label, _REQUEST)
        self.per_chunk = self._one(f"{client}_time_per_output_chunk_seconds", label, _REQUEST)
        self.first_token = self._one(f"{server}_time_to_first_token_seconds", label, _FIRST)
        self.per_token = self._one(f"{server}_time_per_output_token_seconds", label, _PER)
        usage = f"{client}_token_usage"
        self.input_tokens = self._one(usage, f'{label},type="input"', _TOKENS, 1)
        self.output_tokens = self._one(usage, f'{label},type="output"', _TOKENS, 1)

    def _one(self, name: str, labels: str, bounds: Sequence[int], unit: int = SECOND) -> list[int]:
        made = Histogram(name, labels, bounds, unit)
        self.histograms.append(made)
        return made.counts


class AnswerCounts:
    """The count lists that answers of one (replica, tenant, route) add to."""

    __slots__ = ("attempts", "input_tokens", "ok", "output_tokens", "spent")

    def __init__(self, attempts: list[int], meter: ModelHistograms, spent: list[int]) -> None:
        self.attempts = attempts
        self.ok = meter.ok
        self.input_tokens = meter.input_tokens
        self.output_tokens = meter.output_tokens
        self.spent = spent


class Counters:
    """All that a gateway counts for metrics since its start; never reset."""

    __slots__ = ("_accounts", "_attempts", "_finished", "_meters", "ledger", "values")

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        # By replica and outcome: how many attempts, and the time of all.
        self._attempts: dict[tuple[str, Kind | None], list[int]] = {}
        self._finished: dict[tuple[str, int], Histogram] = {}  # by model and status
        self._meters: dict[str, ModelHistograms] = {}
        self._accounts: dict[
            tuple[str, str, str], AnswerCounts
        ] = {}  # by replica, tenant and route
        self.ledger = TokenLedger()

    # --- attempts --------------------------------------------------------------------------------

    def attempt(self, replica_id: str, model: str, kind: Kind | None, took: int) -> None:
        """Count an attempt that failed or continued another, and its duration ``took`` in ns.

        Tokens are not counted here. A plain success goes to ``answered`` instead.
        """
        self._ended(replica_id, kind, took)
        counts = self.meter(model).ok if kind is None else self.meter(model).failed
        counts[0] += took
        counts[bisect_left(_REQUEST, took)] += 1

    def answered(
        self, replica_id: str, model: str, tenant: str, via: str, took: int, read: int, said: int
    ) -> None:
        """Count an attempt that gave a complete answer: duration, and tokens as useful.

        ``took`` in ns; ``via``: the virtual name or ``DIRECT``; ``read``, ``said``: tokens in and
        out.
        """
        account = self._accounts.get((replica_id, tenant, via))
        if account is None:
            account = self._account(replica_id, model, tenant, via)
        counts = account.attempts
        counts[0] += 1
        counts[1] += took
        counts = account.ok
        counts[0] += took
        counts[bisect_left(_REQUEST, took)] += 1
        counts = account.input_tokens
        counts[0] += read
        counts[bisect_left(_TOKENS, read)] += 1
        counts = account.output_tokens
        counts[0] += said
        counts[bisect_left(_TOKENS, said)] += 1
        counts = account.spent
        counts[0] += read
        counts[1] += said

    def _account(self, replica_id: str, model: str, tenant: str, via: str) -> AnswerCounts:
        if len(self._accounts) >= _ACCOUNTS_MAX:
            self._accounts.clear()
        attempts = self._attempts.setdefault((replica_id, None), [0, 0])
        made = AnswerCounts(attempts, self.meter(model), self.ledger.row(tenant, model, via))
        self._accounts[replica_id, tenant, via] = made
        return made

    def streamed(self, model: str, first: int, per_chunk: int, per_token: int) -> None:
        """Add the times (ns) of a streamed answer: first chunk, mean per chunk, mean per token.

        A mean of 0 is left out. The attempt must have been counted before.
        """
        meter = self._meters[model]  # that of its attempt
        counts = meter.first_chunk
        counts[0] += first
        counts[bisect_left(_REQUEST, first)] += 1
        if per_chunk:
            counts = meter.per_chunk
            counts[0] += per_chunk
            counts[bisect_left(_REQUEST, per_chunk)] += 1
        if per_token:
            counts = meter.per_token
            counts[0] += per_token
            counts[bisect_left(_PER, per_token)] += 1

    def first_token(self, model: str, took: int) -> None:
        """Add the time (ns) from a request's arrival until its client got the first content.

        Not for whole answers; time in the queue and in failed attempts is included.
        """
        counts = self.meter(model).first_token
        counts[0] += took
        counts[bisect_left(_FIRST, took)] += 1

    def meter(self, model: str) -> ModelHistograms:
        """Return the live histograms of a model, made on first use."""
        known = self._meters.get(model)
        if known is None:
            known = self._meters[model] = ModelHistograms(model)
        return known

    def _ended(self, replica_id: str, kind: Kind | None, took: int) -> None:
        known = self._attempts.setdefault((replica_id, kind), [0, 0])
        known[0] += 1
        known[1] += took

    # --- requests --------------------------------------------------------------------------------

    def finished(self, finish: Finish, took: int) -> None:
        """Count a finished request by model and status, with its duration ``took`` in ns.

        Continuations and other attempts beyond the first are counted, too.
        """
        key = (finish.model, finish.status)
        histogram = self._finished.get(key)
        if histogram is None:
            name = "gen_ai_server_request_duration_seconds"
            labels = f'model="{finish.model}",status="{finish.status}"'
            histogram = self._finished[key] = Histogram(name, labels, _REQUEST, SECOND)
        counts = histogram.counts
        counts[0] += took
        counts[bisect_left(_REQUEST, took)] += 1
        if finish.attempts != 1:
            self._count_attempts(finish)

    def _count_attempts(self, finish: Finish) -> None:
        if finish.continued:
            self.add(f'continuations_total{{model="{finish.model}"}}', finish.continued)
        extra = finish.attempts - 1 - finish.continued
        if extra > 0:
            self.add(f'extra_attempts_total{{model="{finish.model}"}}', extra)

    def refused(self, status: int, code: str) -> None:
        """Count a request that was refused, by status and code, before it reached the flow."""
        self.add(f'refused_total{{status="{status}",code="{code}"}}')

    def over_quota(self, tenant: str, code: str) -> None:
        """Count a request refused because of its tenant's quota, by tenant and code."""
        self.add(f'quota_refusals_total{{tenant="{tenant}",code="{code}"}}')

    def escalated(self, model: str, check: str) -> None:
        """Count an answer that failed this check, so that a stronger model is asked.

        ``model``: the virtual name that the client asked for.
        """
        self.add(f'escalations_total{{model="{model}",check="{check}"}}')

    def keyed(self, result: str) -> None:
        """Count something that happened to a request with an idempotency key, by ``result``.

        Such as executed, joined, replayed, fenced, abandoned, or the code of a refusal; one request
        may count several times.
        """
        self.add(f'idempotency_requests_total{{result="{result}"}}')

    def compared(self, model: str, result: str) -> None:
        """Count a comparison of two replicas' answers.

        ``result``: agreed, disagreed or unanswered.
        """
        self.add(f'comparisons_total{{model="{model}",result="{result}"}}')

    def add(self, name: str, amount: float = 1) -> None:
        """Add to the counter of this name, which includes its labels; made on first use.

        Beyond 4,096 names all further ones go to ``series_overflow_total``.
        """
        if name not in self.values and len(self.values) >= SERIES_MAX:
            name = "series_overflow_total"
        self.values[name] = self.values.get(name, 0) + amount

    # --- for control -----------------------------------------------------------------------------

    def read(self) -> dict[str, int | float]:
        """Return all counters, histogram series and token counts by name with labels.

        Resets nothing.
        """
        told: dict[str, int | float] = dict(self.values)
        spent: dict[str, int] = {}
        for (replica_id, kind), (count, took) in self._attempts.items():
            outcome = "ok" if kind is None else kind.value
            told[f'attempts_total{{replica="{replica_id}",kind="{outcome}"}}'] = count
            spent[replica_id] = spent.get(replica_id, 0) + took
        for replica_id, took in spent.items():
            told[f'attempt_seconds_total{{replica="{replica_id}"}}'] = took / SECOND
        for (model, status), histogram in self._finished.items():
            told[f'requests_total{{model="{model}",status="{status}"}}'] = histogram.count
            histogram.read(told)
        for meter in self._meters.values():
            for histogram in meter.histograms:
                histogram.read(told)
        self.ledger.read(told)
        return told


__all__ = [
    "FIRST_TOKEN_MS",
    "PER_TOKEN_MS",
    "REQUEST_MS",
    "SERIES_MAX",
    "TOKENS",
    "AnswerCounts",
    "Counters",
    "Histogram",
    "ModelHistograms",
]
