"""Recent figures of each replica and model (load, rates, times) for display, not for decisions.

    facts ─► load, memory, tokens of each replica        counters of gateways ─► rates of each model
    tallies of gateways ─► times of each replica

Rates are fading sums: a replica that served nothing for half a minute shows nothing, without any
reset. Gateways' counters are sampled every ten seconds and kept for an hour, in one small row for
each model, because an error budget is spent over an hour.

Times are kept in sketches, and a median is computed at most every few seconds, on demand: a view of
hundreds of replicas is built every second.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any, Final

from holdfast.core.diagnose.detect.inference.window import InferenceWindow
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    Fact,
    Gone,
    InferencesSeen,
    LoadSeen,
    MemorySeen,
    ProcessEnded,
)
from holdfast.core.messages import Seen, Summary
from holdfast.core.stats import RecentSketch
from holdfast.core.types import SECOND, seconds

FADE_S: Final = 10.0  # rates look back about that far
MEMORY_FRESH: Final = 120 * SECOND  # exporters of clusters are read every half minute
FRESH: Final = 10 * SECOND  # engines are asked once a second: older words of theirs are unknown
COUNTS_FRESH: Final = 30 * SECOND  # inference servers' counts come every five seconds
SAMPLE_S: Final = 10.0
MEDIAN_EVERY: Final = 5 * SECOND  # a median of a minute does not leap meanwhile
TIMES_PER_FRAME: Final = 64  # of one replica and kind; a gateway tells 16
MINUTE: Final = 60 * SECOND
HOUR: Final = 3_600 * SECOND
ERROR_BUDGET: Final = 0.001  # of requests: three nines, where nobody has promised anything else
MODELS_MAX: Final = 1_024
REPLICAS_MAX: Final = 10_000
_SAMPLES: Final = round(3_600 / SAMPLE_S) + 2
_TIME_MAX_S: Final = 86_400.0  # a day: more is no time but a mistake
_SERIES: Final = re.compile(r'([a-z_]+)\{model="([^"]*)",(status|le)="([^"]*)"\}')
_REQUESTS: Final = "requests_total"
_FIRST: Final = "gen_ai_server_time_to_first_token_seconds_bucket"


class _Rate:
    """An exponentially fading sum, from which a rate per second is read."""

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0

    def add(self, amount: float, now: int) -> None:
        self._level = self.level(now) + amount
        self._at = now

    def level(self, now: int) -> float:
        return self._level * exp(-max(0, now - self._at) / (FADE_S * SECOND))

    def per_s(self, now: int) -> float:
        return self.level(now) / FADE_S


class _Times:
    """The median of the times of the last minute."""

    __slots__ = ("_at", "_median", "_sketch")

    def __init__(self) -> None:
        self._sketch = RecentSketch(seconds(MINUTE), relative_accuracy=0.02)
        self._median: float | None = None
        self._at = 0

    def add(self, values: Sequence[float], now: int) -> None:
        for value in values[:TIMES_PER_FRAME]:
            if 0 <= value < _TIME_MAX_S:
                self._sketch.add(value, now)
        if self._median is None:
            self._at = 0  # the first ones are no reason to wait

    def median(self, now: int) -> float | None:
        if not self._at or now - self._at >= MEDIAN_EVERY:
            found = self._sketch.quantile(0.5, now)
            self._median = None if found is None else float(f"{found:.3g}")
            self._at = now
        return self._median


@dataclass(slots=True)
class _Replica:
    load: LoadSeen | None = None
    load_at: int = 0
    memory: MemorySeen | None = None
    device_memory: MemorySeen | None = None
    device_memory_at: int = 0
    attempts: _Rate = field(default_factory=_Rate)
    tokens: _Rate = field(default_factory=_Rate)  # as gateways counted them
    generated: _Rate = field(default_factory=_Rate)  # as the engine did
    counts_tokens: bool = False  # the engine does
    prefix_asked: _Rate | None = None  # tokens looked up in its prefix cache; None: not counted
    prefix_found: _Rate = field(default_factory=_Rate)
    first: _Times | None = None  # to the first token; most replicas of a platform have no users
    pace: _Times | None = None  # of each further token
    counts: InferenceWindow | None = None  # of an inference server


@dataclass(slots=True, frozen=True)
class ModelFigures:
    """A model's requests per second, share of 5xx, error-budget burn, median time to first token.

    ``burn`` is over an hour, 1.0 being exactly the budget of 0.1 % errors; the others are over a
    minute. None: unknown.
    """

    requests_s: float | None = None
    errors_share: float | None = None
    burn: float | None = None
    ttft_s: float | None = None


@dataclass(slots=True)
class _Counted:
    """The counters of one model at one moment, since the gateways began."""

    requests: float = 0.0
    errors: float = 0.0
    first: list[tuple[float, float]] = field(default_factory=list)  # bound and count, cumulative


class Figures:
    """Keeps recent figures of replicas and models for display, in memory; decides nothing."""

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._samples: deque[tuple[int, dict[str, _Counted]]] = deque(maxlen=_SAMPLES)

    # --- replicas --------------------------------------------------------------------------------

    def take(self, fact: Fact, now: int) -> None:
        """Update a replica's figures from a fact (load, inferences, attempts, memory, process end).

        A process end clears its load, memory and times; ``Gone`` removes the replica; other facts
        are ignored.
        """
        if isinstance(fact, Gone):
            self._replicas.pop(fact.replica, None)
            return
        if not isinstance(
            fact, LoadSeen | InferencesSeen | AttemptsSeen | MemorySeen | ProcessEnded
        ):
            return
        one = self._one(fact.replica)
        if one is None:
            return
        if isinstance(fact, LoadSeen):
            self._load(one, fact, now)
        elif isinstance(fact, InferencesSeen):
            one.counts = one.counts or InferenceWindow()
            one.counts.add(fact, now)
        elif isinstance(fact, AttemptsSeen):
            ended = fact.successes + fact.backpressure + sum(fact.failures.values())
            one.attempts.add(ended, now)
            one.tokens.add(fact.tokens, now)
        elif isinstance(fact, MemorySeen):
            if fact.device == "host":
                one.memory = fact
            else:
                one.device_memory, one.device_memory_at = fact, now
        else:
            one.memory = one.load = one.first = one.pace = None
            one.device_memory = one.counts = None

    def _one(self, replica: str) -> _Replica | None:
        one = self._replicas.get(replica)
        if one is None and len(self._replicas) < REPLICAS_MAX:
            one = self._replicas[replica] = _Replica()
        return one

    def seen(self, event: Seen, declared: Collection[str], now: int) -> None:
        """Add the times to first token and per token from a gateway's report.

        Replicas that are not in ``declared`` are ignored.
        """
        for action in event.actions:
            if not isinstance(action, Summary):
                continue
            for tally in action.tallies:
                if not (tally.firsts or tally.paces) or tally.replica_id not in declared:
                    continue
                one = self._one(tally.replica_id)
                if one is None:
                    continue
                if tally.firsts:
                    one.first = one.first or _Times()
                    one.first.add(tally.firsts, now)
                if tally.paces:
                    one.pace = one.pace or _Times()
                    one.pace.add(tally.paces, now)

    def _load(self, one: _Replica, fact: LoadSeen, now: int) -> None:
        generated = _grown(fact.generated, one.load.generated if one.load is not None else None)
        if generated is not None:
            one.counts_tokens = True
            one.generated.add(generated, now)
        asked = _grown(fact.prefix_asked, one.load.prefix_asked if one.load is not None else None)
        found = _grown(fact.prefix_found, one.load.prefix_found if one.load is not None else None)
        if asked is not None and found is not None:
            one.prefix_asked = one.prefix_asked or _Rate()
            one.prefix_asked.add(asked, now)
            one.prefix_found.add(min(asked, found), now)
        one.load, one.load_at = fact, now

    def of(self, replica: str, now: int) -> dict[str, Any]:
        """The present figures of one replica, by the names of the view's row; None is unknown.

        Load is None when older than 10 s; ``tokens_s`` is the engine's own count where it has one,
        else the gateways'; the times are medians of the last minute.
        """
        one = self._replicas.get(replica)
        if one is None:
            return dict(_NOTHING)
        load = one.load if now - one.load_at <= FRESH else None
        rate = one.generated if one.counts_tokens else one.tokens
        return {
            "running": load.running if load is not None else None,
            "waiting": load.waiting if load is not None else None,
            "kv_used": load.kv_used if load is not None else None,
            "tokens_s": round(rate.per_s(now), 1),
            "ttft_s": one.first.median(now) if one.first is not None else None,
            "tpot_s": one.pace.median(now) if one.pace is not None else None,
            "used_bytes": one.memory.used_bytes if one.memory is not None else None,
        }

    def device_memory(self, replica: str, now: int) -> float | None:
        """The share (0 to 1) of its GPU memory limit that a replica uses.

        None: not reported in the last two minutes, or without a limit.
        """
        one = self._replicas.get(replica)
        if one is None or one.device_memory is None or now - one.device_memory_at > MEMORY_FRESH:
            return None
        return memory_share(one.device_memory)

    def inference(self, replica: str, now: int) -> dict[str, Any]:
        """Rates, times, batch and GPU memory that an inference server reports for one replica.

        All keys are always there; None is unknown, also when the last report is older than 30 s.
        """
        one = self._replicas.get(replica)
        return _inference(one.counts if one is not None else None, now)

    def inference_series(
        self, replicas: Iterable[tuple[str, str]], now: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Prometheus counters and gauges of inference servers, for (model, replica id) pairs.

        Replicas without a report in the last 30 s are left out.
        """
        counters: dict[str, float] = {}
        gauges: dict[str, float] = {}
        for model, name in replicas:
            one = self._replicas.get(name)
            window = one.counts if one is not None else None
            if window is None or window.last is None or _stale(window, now):
                continue
            labels = f'model="{model}",replica="{name}"'
            for outcome, count in (
                ("success", window.last.successes),
                ("failure", window.last.failures),
            ):
                if count is not None:
                    counters[f'engine_inferences_total{{{labels},outcome="{outcome}"}}'] = count
            for series, value in (
                ("engine_pending_requests", window.last.pending),
                ("engine_gpu_memory_used_bytes", window.last.gpu_used_bytes),
                ("engine_gpu_memory_total_bytes", window.last.gpu_total_bytes),
                ("engine_gpu_busy_ratio", window.last.gpu_busy),
                ("engine_model_gpu_bytes", window.last.model_gpu_bytes),
            ):
                if value is not None:
                    gauges[f"{series}{{{labels}}}"] = value
            told = _inference(window, now)
            for series, member in _SERIES_OF_INFERENCES:
                if told[member] is not None:
                    gauges[f"{series}{{{labels}}}"] = told[member]
        return counters, gauges

    def prefix_hits(self, replicas: Iterable[str], now: int) -> float | None:
        """The recent share (0 to 1) of these replicas' prompt tokens found in prefix caches.

        By engines' token counters; if none counted lately, the mean of the hit rates that engines
        report themselves. Takes replica ids. None: no report of the last 10 s says it.
        """
        asked = found = 0.0
        told: list[float] = []
        for name in replicas:
            one = self._replicas.get(name)
            if one is None or one.load is None or now - one.load_at > FRESH:
                continue
            if one.prefix_asked is not None:
                asked += one.prefix_asked.level(now)
                found += one.prefix_found.level(now)
            elif one.load.prefix_hits is not None:
                told.append(one.load.prefix_hits)
        if asked >= 1.0:  # a token: what has faded further than that is not lately
            return round(found / asked, 3)
        return round(sum(told) / len(told), 3) if told else None

    def attempts(self, replica: str, now: int) -> float:
        """Roughly the attempts that ended on a replica in the last 10 s, a fading sum.

        For comparison with its peers only; 0 for an unknown replica.
        """
        one = self._replicas.get(replica)
        return one.attempts.level(now) if one is not None else 0.0

    # --- models ----------------------------------------------------------------------------------

    def sample(self, counters: Mapping[str, float], now: int) -> None:
        """Store a sample of the gateways' summed counters, from which ``model`` computes its rates.

        Called every 10 s; only request counts and time-to-first-token histograms are kept, for an
        hour.
        """
        models: dict[str, _Counted] = {}
        for series, value in counters.items():
            if not series.startswith((_REQUESTS, _FIRST)):
                continue
            match = _SERIES.fullmatch(series)
            if match is None:
                continue
            name, model, _, label = match.groups()
            if model not in models and len(models) >= MODELS_MAX:
                continue
            counted = models.setdefault(model, _Counted())
            if name == _REQUESTS:
                counted.requests += value
                counted.errors += value if label.startswith("5") else 0
            elif name == _FIRST:
                counted.first.append((float(label), value))
        self._samples.append((now, models))

    def model(self, name: str, now: int) -> ModelFigures:
        """A model's figures over the last minute (``burn``: the last hour), from stored samples.

        All None before there are two samples; an unknown model has a rate of 0.
        """
        if not self._samples:
            return ModelFigures()
        last_at, last = self._samples[-1][0], self._samples[-1][1].get(name, _Counted())
        minute_at, minute = self._back(name, now - MINUTE)
        _, hour = self._back(name, now - HOUR)
        span = seconds(last_at - minute_at)
        if span <= 0:
            return ModelFigures()
        asked = max(0.0, last.requests - minute.requests)
        asked_hour = max(0.0, last.requests - hour.requests)
        burn = None
        if asked_hour:
            burn = max(0.0, last.errors - hour.errors) / asked_hour / ERROR_BUDGET
        return ModelFigures(
            round(asked / span, 2),
            max(0.0, last.errors - minute.errors) / asked if asked else None,
            burn,
            _median(minute.first, last.first),
        )

    def _back(self, name: str, since: int) -> tuple[int, _Counted]:
        """The oldest sample that is not older than ``since``, or the newest one."""
        for at, models in self._samples:
            if at >= since:
                return at, models.get(name, _Counted())
        at, models = self._samples[-1]
        return at, models.get(name, _Counted())


def memory_share(fact: MemorySeen) -> float | None:
    """Used memory as a share (0 to 1) of the replica's limit; None where it has no limit."""
    return min(1.0, fact.used_bytes / fact.limit_bytes) if fact.limit_bytes else None


def _grown(count: int | None, before: int | None) -> int | None:
    """The increase of a counter; None where it is unknown or was reset."""
    if count is None or before is None or count < before:
        return None
    return count - before


_INFERENCE: Final = (
    *("inferences_s", "failed_share", "queue_s", "compute_s", "batch", "batch_max"),
    *("engine_gpu_used_bytes", "engine_gpu_total_bytes"),
)
_SERIES_OF_INFERENCES: Final = (
    ("engine_queue_seconds", "queue_s"),
    ("engine_compute_seconds", "compute_s"),
    ("engine_batch_size", "batch"),
    ("engine_failed_ratio", "failed_share"),
)
_NOTHING: Final = dict.fromkeys(
    ("running", "waiting", "kv_used", "tokens_s", "ttft_s", "tpot_s", "used_bytes")
)


def _stale(window: InferenceWindow, now: int) -> bool:
    return window.at is None or now - window.at > COUNTS_FRESH


def _inference(window: InferenceWindow | None, now: int) -> dict[str, Any]:
    """What an inference server told lately, by the names of the view's row; None is unknown."""
    if window is None or window.last is None or _stale(window, now):
        return dict.fromkeys(_INFERENCE)
    last, figures = window.last, window.figures()
    return {
        "inferences_s": _rounded(figures.ended_s, 3) if figures is not None else None,
        "failed_share": _rounded(figures.failed_share, 3) if figures is not None else None,
        "queue_s": _rounded(figures.queue_s, 6) if figures is not None else None,
        "compute_s": _rounded(figures.compute_s, 6) if figures is not None else None,
        "batch": _rounded(figures.batch, 2) if figures is not None else None,
        "batch_max": last.batch_max,
        "engine_gpu_used_bytes": last.gpu_used_bytes,
        "engine_gpu_total_bytes": last.gpu_total_bytes,
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _median(before: list[tuple[float, float]], after: list[tuple[float, float]]) -> float | None:
    """The median of a histogram's increase, linear within its bucket; None: nothing was added."""
    earlier = dict(before)
    counts = [(bound, count - earlier.get(bound, 0.0)) for bound, count in sorted(after)]
    if not counts or counts[-1][1] <= 0:
        return None
    half, low, below = counts[-1][1] / 2, 0.0, 0.0
    for bound, count in counts:
        if count >= half:
            if bound == float("inf"):
                return low
            share = (half - below) / (count - below) if count > below else 1.0
            return round(low + share * (bound - low), 4)
        low, below = bound, count
    return None


__all__ = ["ERROR_BUDGET", "FADE_S", "SAMPLE_S", "Figures", "ModelFigures", "memory_share"]
