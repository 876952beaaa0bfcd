"""The figures of one step: latencies, throughput, goodput and shares, in all and by replica."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.types import ConfigError, require
from holdfast.loadtest.records import BenchFile, BenchOutcome, BenchRecord, BenchStep
from holdfast.loadtest.statistics import CONFIDENCE, Estimate, mean, per_second, quantile, share

QUANTILES: Final = (0.5, 0.95, 0.99)
LATENCIES: Final = ("ttft", "tpot", "total")
_SLO_NAMES: Final = ("ttft", "tpot", "total")
_UNKNOWN: Final = Estimate()
_PROBLEMS_MAX: Final = 8  # kinds of failures that are told apart


@dataclass(slots=True, frozen=True)
class ServiceObjective:
    """What a good answer is: upper bounds in seconds; none set means that it succeeded."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> "ServiceObjective":
        """Read ``ttft=0.5,tpot=0.05,total=10``: seconds, any of the three."""
        fix = "write --slo ttft=0.5,tpot=0.05 (seconds; ttft, tpot, total)"
        found: dict[str, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, number = part.partition("=")
            known = bool(equals) and name in _SLO_NAMES
            require(known, "--slo", f"has {part!r}", fix)
            require(name not in found, "--slo", f"has {name} twice", fix)
            try:
                value = float(number)
            except ValueError as error:
                raise ConfigError("--slo", f"has {part!r}", fix) from error
            require(0 < value < 1e6, "--slo", f"has {part!r}", fix)
            found[name] = value
        return cls(found.get("ttft"), found.get("tpot"), found.get("total"))

    @classmethod
    def of_file(cls, told: Mapping[str, float]) -> "ServiceObjective":
        """The objective that a benchmark's file holds."""
        return cls(told.get("ttft"), told.get("tpot"), told.get("total"))

    def to_dict(self) -> dict[str, float]:
        """The bounds that are set, in seconds."""
        named = (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("total", self.total_s))
        return {name: value for name, value in named if value is not None}

    def met_by(self, record: BenchRecord) -> bool:
        """Whether this answer was good. An answer of one token has no time per token to miss."""
        if record.outcome is not BenchOutcome.SUCCESS:
            return False
        if self.ttft_s is not None and not _within(record.ttft_s, self.ttft_s):
            return False
        if self.total_s is not None and not _within(record.total_s, self.total_s):
            return False
        return self.tpot_s is None or record.tpot_s is None or record.tpot_s <= self.tpot_s

    def __str__(self) -> str:
        told = ", ".join(f"{name} ≤ {value:g} s" for name, value in self.to_dict().items())
        return told or "success"


def _within(value: float | None, bound: float) -> bool:
    return value is not None and value <= bound


@dataclass(slots=True, frozen=True)
class ReplicaShare:
    """What one replica had of a step."""

    replica: str
    requests: int
    ttft_p50: Estimate
    ttft_p95: Estimate
    tpot_p50: Estimate
    tokens_s: float | None
    failed: int
    gpu_busy: float | None = None  # mean of its readings in the window
    gpu_memory: float | None = None


@dataclass(slots=True, frozen=True)
class StepSummary:
    """All figures of one step; of a refused step only what it sent, and why it was refused."""

    step: BenchStep
    requests: int
    succeeded: int
    outcomes: Mapping[str, int]
    problems: Mapping[str, int]
    latencies: Mapping[str, Mapping[float, Estimate]] = field(default_factory=dict)
    means: Mapping[str, Estimate] = field(default_factory=dict)
    requests_s: Estimate = _UNKNOWN  # answers that ended well in the window
    output_tokens_s: Estimate = _UNKNOWN
    prompt_tokens_s: Estimate = _UNKNOWN
    goodput_s: Estimate = _UNKNOWN  # arrivals of the window whose answers met the objective
    good_share: Estimate = _UNKNOWN
    concurrency: float | None = None  # answers under way, mean over the window
    by_replica: tuple[ReplicaShare, ...] = ()
    tokens_estimated: bool = False  # some answers told no usage: events were counted

    @property
    def offered_s(self) -> float:
        """Arrivals per second in the window."""
        span = self.step.counted_to_s - self.step.counted_from_s
        return self.requests / span if span > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data: times in seconds, rates per second."""
        told: dict[str, Any] = {
            "name": self.step.name,
            "mode": self.step.mode,
            "rate": self.step.rate,
            "users": self.step.users,
            "replicas": self.step.replicas,
            "refused": self.step.refused,
            "requests": self.requests,
            "outcomes": dict(self.outcomes),
            "problems": dict(self.problems),
        }
        if self.step.refused:
            return told
        for name, by_quantile in self.latencies.items():
            told[f"{name}_s"] = {
                "mean": self.means[name].to_dict(),
                **{f"p{q * 100:g}": value.to_dict() for q, value in by_quantile.items()},
            }
        return {
            **told,
            "requests_s": self.requests_s.to_dict(),
            "output_tokens_s": self.output_tokens_s.to_dict(),
            "prompt_tokens_s": self.prompt_tokens_s.to_dict(),
            "goodput_s": self.goodput_s.to_dict(),
            "good_share": self.good_share.to_dict(),
            "concurrency": self.concurrency,
            "by_replica": [
                {
                    "replica": one.replica,
                    "requests": one.requests,
                    "failed": one.failed,
                    "ttft_p50_s": one.ttft_p50.to_dict(),
                    "ttft_p95_s": one.ttft_p95.to_dict(),
                    "tpot_p50_s": one.tpot_p50.to_dict(),
                    "output_tokens_s": one.tokens_s,
                    "gpu_busy": one.gpu_busy,
                    "gpu_memory": one.gpu_memory,
                }
                for one in self.by_replica
            ],
        }


def summarise(
    file: BenchFile,
    place: int,
    objective: ServiceObjective,
    confidence: float = CONFIDENCE,
) -> StepSummary:
    """The figures of one step of a benchmark, with intervals of this confidence."""
    step = file.steps[place]
    records = file.of_step(place)
    outcomes = Counter(str(record.outcome) for record in records)
    problems = Counter(record.problem for record in records if record.problem)
    summary = StepSummary(
        step,
        len(records),
        outcomes[BenchOutcome.SUCCESS],
        dict(outcomes),
        dict(problems.most_common(_PROBLEMS_MAX)),
    )
    if step.refused or not records:
        return summary
    begin, end = step.counted_from_s, step.counted_to_s
    span = end - begin
    # Answers to requests of the warm-up are throughput of the window, too.
    everybody = file.of_step(place, warm=True)
    good = [objective.met_by(record) for record in records]
    arrived = [(record.arrived_s, 1.0) for record, met in zip(records, good, strict=True) if met]
    ended = [
        (record.ended_s, 1.0)
        for record in everybody
        if record.ended_s is not None and record.outcome is BenchOutcome.SUCCESS
    ]
    prompts = [
        (record.first_s, float(record.prompt_tokens))
        for record in everybody
        if record.first_s is not None and record.prompt_tokens is not None
    ]
    latencies = {name: latency_series(records, name) for name in LATENCIES}
    return StepSummary(
        step,
        summary.requests,
        summary.succeeded,
        summary.outcomes,
        summary.problems,
        {
            name: {q: quantile(series, q, confidence) for q in QUANTILES}
            for name, series in latencies.items()
        },
        {name: mean(series, confidence) for name, series in latencies.items()},
        per_second(ended, begin, end, confidence),
        per_second(_token_times(everybody), begin, end, confidence),
        per_second(prompts, begin, end, confidence) if prompts else Estimate(),
        per_second(arrived, begin, end, confidence),
        share(good, confidence),
        _concurrency(everybody, begin, end) if span > 0 else None,
        _by_replica(file, records, begin, end),
        any(record.output_tokens is None and record.events for record in records),
    )


def latency_series(records: Sequence[BenchRecord], name: str) -> list[float]:
    """The latencies of one kind, of answers that succeeded, in order of arrival."""
    wanted = f"{name}_s"
    good = (record for record in records if record.outcome is BenchOutcome.SUCCESS)
    return [value for record in good if (value := getattr(record, wanted)) is not None]


def _token_times(records: Sequence[BenchRecord]) -> list[tuple[float, float]]:
    """Tokens at moments: those of an answer spread evenly from its first to its last."""
    found: list[tuple[float, float]] = []
    for record in records:
        tokens = record.tokens
        if record.first_s is None or record.last_s is None or not tokens:
            continue
        pieces = min(tokens, 10)
        step = (record.last_s - record.first_s) / max(1, pieces - 1)
        found += [(record.first_s + i * step, tokens / pieces) for i in range(pieces)]
    return found


def _concurrency(records: Sequence[BenchRecord], begin: float, end: float) -> float:
    """Mean number of answers under way: the time that they were, over the window."""
    under_way = 0.0
    for record in records:
        if record.sent_s is not None and record.ended_s is not None:
            under_way += max(0.0, min(end, record.ended_s) - max(begin, record.sent_s))
    return under_way / (end - begin)


def _by_replica(
    file: BenchFile, records: Sequence[BenchRecord], begin: float, end: float
) -> tuple[ReplicaShare, ...]:
    groups: dict[str, list[BenchRecord]] = {}
    for record in records:
        if record.replica is not None:
            groups.setdefault(record.replica, []).append(record)
    found = []
    for replica in sorted(groups):
        own = groups[replica]
        ttft, tpot = latency_series(own, "ttft"), latency_series(own, "tpot")
        readings = [
            one for one in file.fleet.gpus if one.replica == replica and begin <= one.at_s <= end
        ]
        found.append(
            ReplicaShare(
                replica,
                len(own),
                quantile(ttft, 0.5),
                quantile(ttft, 0.95),
                quantile(tpot, 0.5),
                per_second(_token_times(own), begin, end).value,
                sum(record.outcome is BenchOutcome.FAILURE for record in own),
                mean([one.busy_share for one in readings if one.busy_share is not None]).value,
                mean([one.memory_share for one in readings if one.memory_share is not None]).value,
            )
        )
    return tuple(found)


__all__ = [
    "LATENCIES",
    "QUANTILES",
    "ReplicaShare",
    "ServiceObjective",
    "StepSummary",
    "latency_series",
    "summarise",
]
