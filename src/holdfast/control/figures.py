"""The last figures of each replica and model, for whoever looks: not for decisions.

    facts ─► load, memory, tokens of each replica        counters of gateways ─► rates of each model

Rates are sums that fade: a replica that served nothing for half a minute shows nothing, without
anybody having to tell it so. What gateways count is looked at every ten seconds and kept for an
hour, in one small row for each model, because an error budget is spent over an hour.
"""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Any, Final

from holdfast.core.facts import AttemptsSeen, Fact, Gone, LoadSeen, MemorySeen, ProcessEnded
from holdfast.core.types import SECOND, seconds

FADE_S: Final = 10.0  # rates look back about that far
FRESH: Final = 10 * SECOND  # engines are asked once a second: older words of theirs are unknown
SAMPLE_S: Final = 10.0
MINUTE: Final = 60 * SECOND
HOUR: Final = 3_600 * SECOND
ERROR_BUDGET: Final = 0.001  # of requests: three nines, where nobody has promised anything else
MODELS_MAX: Final = 1_024
REPLICAS_MAX: Final = 10_000
_SAMPLES: Final = round(3_600 / SAMPLE_S) + 2
_SERIES: Final = re.compile(r'([a-z_]+)\{model="([^"]*)",(status|le)="([^"]*)"\}')
_REQUESTS: Final = "requests_total"
_FIRST: Final = "gen_ai_server_time_to_first_token_seconds_bucket"


class _Rate:
    """A sum that fades."""

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


@dataclass(slots=True)
class _Replica:
    load: LoadSeen | None = None
    load_at: int = 0
    memory: MemorySeen | None = None
    attempts: _Rate = field(default_factory=_Rate)
    tokens: _Rate = field(default_factory=_Rate)  # as gateways counted them
    generated: _Rate = field(default_factory=_Rate)  # as the engine did
    counts: bool = False  # the engine counts its tokens


@dataclass(slots=True, frozen=True)
class ModelFigures:
    """What gateways counted of one model."""

    requests_s: float | None = None
    errors_share: float | None = None
    burn: float | None = None
    ttft_s: float | None = None


@dataclass(slots=True)
class _Counted:
    """One model at one moment, since the beginning."""

    requests: float = 0.0
    errors: float = 0.0
    first: list[tuple[float, float]] = field(default_factory=list)  # bound and count, cumulative


class Figures:
    """The books."""

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._samples: deque[tuple[int, dict[str, _Counted]]] = deque(maxlen=_SAMPLES)

    # --- replicas --------------------------------------------------------------------------------

    def take(self, fact: Fact, now: int) -> None:
        """Keep what concerns it; other facts are ignored."""
        if isinstance(fact, Gone):
            self._replicas.pop(fact.replica, None)
            return
        if not isinstance(fact, LoadSeen | AttemptsSeen | MemorySeen | ProcessEnded):
            return
        one = self._replicas.get(fact.replica)
        if one is None:
            if len(self._replicas) >= REPLICAS_MAX:
                return
            one = self._replicas[fact.replica] = _Replica()
        if isinstance(fact, LoadSeen):
            self._load(one, fact, now)
        elif isinstance(fact, AttemptsSeen):
            ended = fact.successes + fact.backpressure + sum(fact.failures.values())
            one.attempts.add(ended, now)
            one.tokens.add(fact.tokens, now)
        elif isinstance(fact, MemorySeen):
            if fact.device == "host":
                one.memory = fact
        else:
            one.memory = one.load = None

    def _load(self, one: _Replica, fact: LoadSeen, now: int) -> None:
        before = one.load.generated if one.load is not None else None
        if fact.generated is not None and before is not None and fact.generated >= before:
            one.counts = True
            one.generated.add(fact.generated - before, now)
        one.load, one.load_at = fact, now

    def of(self, replica: str, now: int) -> dict[str, Any]:
        """What is known of one, under the names that its rows have."""
        one = self._replicas.get(replica)
        if one is None:
            return dict(_NOTHING)
        load = one.load if now - one.load_at <= FRESH else None
        rate = one.generated if one.counts else one.tokens
        return {
            "running": load.running if load is not None else None,
            "waiting": load.waiting if load is not None else None,
            "kv_used": load.kv_used if load is not None else None,
            "tokens_s": round(rate.per_s(now), 1),
            "used_bytes": one.memory.used_bytes if one.memory is not None else None,
        }

    def attempts(self, replica: str, now: int) -> float:
        """About how many it was given lately; to be compared with its peers'."""
        one = self._replicas.get(replica)
        return one.attempts.level(now) if one is not None else 0.0

    # --- models ----------------------------------------------------------------------------------

    def sample(self, counters: Mapping[str, float], now: int) -> None:
        """What all gateways counted since the beginning, kept for an hour."""
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
        """Of the last minute, and of the last hour."""
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
        """The oldest sample that is not older than this."""
        for at, models in self._samples:
            if at >= since:
                return at, models.get(name, _Counted())
        at, models = self._samples[-1]
        return at, models.get(name, _Counted())


_NOTHING: Final = dict.fromkeys(("running", "waiting", "kv_used", "tokens_s", "used_bytes"))


def _median(before: list[tuple[float, float]], after: list[tuple[float, float]]) -> float | None:
    """Within its bucket as if all were spread evenly; None where nothing came meanwhile."""
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


__all__ = ["ERROR_BUDGET", "FADE_S", "SAMPLE_S", "Figures", "ModelFigures"]
