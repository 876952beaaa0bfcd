"""Results of a run: answers, latencies and costs, by phase of the faults.

Every offered request counts, answered or not. A request belongs to the phase of the faults in which
it arrived: *before* the first, *during* (until the last has ended), *after*.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final

from holdfast.core.types import SECOND, require
from holdfast.sim.request_record import RequestRecord

PHASES: Final = ("before", "during", "after")
SLICES: Final = 60  # of the run's time, for pictures


@dataclass(slots=True, frozen=True)
class Slo:
    """Latency targets of a request; a target that is not set is not judged."""

    first_token_s: float | None = None
    per_token_s: float | None = None
    latency_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("first_token_s", "per_token_s", "latency_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, or leave it out"
            require(value is None or value > 0, f"slo.{name}", f"is {value}", fix)


@dataclass(slots=True)
class PhaseAccount:
    """Counts, latencies and costs of the requests that arrived in one phase."""

    offered: int = 0
    good: int = 0
    within_slo: int = 0
    wrong: int = 0
    refused: int = 0  # told to come back: 429 and 503
    failed: int = 0  # any other error
    attempts: int = 0
    continued: int = 0
    degraded: int = 0
    capped: int = 0
    wasted_calls: int = 0
    wasted_tokens: int = 0
    tokens: int = 0
    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)

    def add(self, record: RequestRecord, slo: Slo) -> None:
        """Add one finished request."""
        self.offered += 1
        self.attempts += record.attempts
        self.continued += record.continued
        self.wasted_calls += record.wasted_calls
        self.wasted_tokens += record.wasted_tokens
        self.tokens += record.shown
        self.capped += record.capped
        if record.model != record.request.model:
            self.degraded += 1
        if record.status != 200:
            if record.status in (429, 503):
                self.refused += 1
            else:
                self.failed += 1
            return
        if record.wrong:
            self.wrong += 1
            return
        self.good += 1
        arrived = record.request.arrived
        first = (record.first_at - arrived) / SECOND
        latency = (record.done_at - arrived) / SECOND
        output = record.output
        per_token = (
            (record.done_at - record.first_at) / SECOND / (output - 1) if output > 1 else 0.0
        )
        self.first_token.append(first)
        self.latency.append(latency)
        if output > 1:
            self.per_token.append(per_token)
        if (
            (slo.first_token_s is None or first <= slo.first_token_s)
            and (slo.per_token_s is None or per_token <= slo.per_token_s)
            and (slo.latency_s is None or latency <= slo.latency_s)
        ):
            self.within_slo += 1

    def to_dict(self) -> dict[str, Any]:
        """Shares, quantiles and costs as plain data."""
        offered = max(1, self.offered)
        return {
            "offered": self.offered,
            "goodput": self.good / offered,
            "slo_attainment": self.within_slo / offered,
            "wrong": self.wrong,
            "refused": self.refused,
            "failed": self.failed,
            "amplification": self.attempts / offered,
            "continued": self.continued,
            "degraded": self.degraded,
            "capped": self.capped,
            "wasted_calls": self.wasted_calls,
            "wasted_tokens": self.wasted_tokens,
            "tokens": self.tokens,
            "first_token_s": quantiles(self.first_token),
            "per_token_s": quantiles(self.per_token),
            "latency_s": quantiles(self.latency),
        }


def quantiles(values: list[float]) -> dict[str, float | None]:
    """Mean, p50, p95 and p99 by rank; ``None`` where there are no values."""
    if not values:
        return {"mean": None, "p50": None, "p95": None, "p99": None}
    ordered = sorted(values)
    last = len(ordered) - 1
    total = 0.0
    for value in ordered:
        total += value
    return {
        "mean": total / len(ordered),
        "p50": ordered[min(last, len(ordered) * 50 // 100)],
        "p95": ordered[min(last, len(ordered) * 95 // 100)],
        "p99": ordered[min(last, len(ordered) * 99 // 100)],
    }


@dataclass(slots=True)
class Detection:
    """One fault on one replica, and when fleet or gateway first acted on it."""

    fault: str
    replica_id: str
    began: int
    noticed: int | None = None
    by: str = ""
    sent: int = 0  # requests that still went there between onset and notice

    def to_dict(self) -> dict[str, Any]:
        """This detection as plain data, times in seconds."""
        lag = None if self.noticed is None else (self.noticed - self.began) / SECOND
        return {
            "fault": self.fault,
            "replica": self.replica_id,
            "began_s": self.began / SECOND,
            "time_to_detect_s": lag,
            "by": self.by,
            "requests_sent": self.sent,
        }


class Detections:
    """All faults of a run, and which of them have not been acted on yet."""

    __slots__ = ("all", "open")

    def __init__(self, book: list[Detection]) -> None:
        self.all = book
        self.open: dict[str, list[Detection]] = {}  # by replica

    def began(self, fault: str, replica_id: str, now: int) -> None:
        """Note that a fault began on a replica."""
        detection = Detection(fault, replica_id, now)
        self.all.append(detection)
        self.open.setdefault(replica_id, []).append(detection)

    def sent(self, replica_id: str) -> None:
        """Count a request that was sent to a replica while its fault is not acted on."""
        for detection in self.open.get(replica_id, ()):
            detection.sent += 1

    def noticed(self, replica_id: str, by: str, now: int) -> None:
        """Note that fleet or gateway acted against the replica, which ends its detection."""
        for detection in self.open.pop(replica_id, ()):
            detection.noticed = now
            detection.by = by


@dataclass(slots=True)
class Results:
    """Accounts of all phases of one run, with its detections and events."""

    seed: int
    slo: Slo
    window: tuple[int, int] | None  # from the first fault's onset to the last one's end
    duration: int = SECOND  # over which requests arrive
    phases: dict[str, PhaseAccount] = field(
        default_factory=lambda: {name: PhaseAccount() for name in PHASES}
    )
    detections: list[Detection] = field(default_factory=list)
    notices: list[Any] = field(default_factory=list)  # bounded by the driver
    offered_over_time: list[int] = field(default_factory=lambda: [0] * SLICES)
    good_over_time: list[int] = field(default_factory=lambda: [0] * SLICES)
    ejected: int = 0  # times a replica was quarantined
    events: int = 0
    prompt_blocks: int = 0  # of all prompts, where engines have a prefix cache
    reused_blocks: int = 0  # of those, computed before and still in that engine's memory
    digest: str = ""  # of the event log, where one was kept
    replica_seconds: dict[str, float] = field(default_factory=dict)  # by model

    def add(self, record: RequestRecord) -> None:
        """Add one finished request to the account of its phase."""
        arrived = record.request.arrived
        if self.window is None or arrived < self.window[0]:
            name = "before"
        elif arrived < self.window[1]:
            name = "during"
        else:
            name = "after"
        phase = self.phases[name]
        good = phase.good
        phase.add(record, self.slo)
        piece = min(SLICES - 1, arrived * SLICES // self.duration)
        self.offered_over_time[piece] += 1
        self.good_over_time[piece] += phase.good - good

    @property
    def prefix_reuse(self) -> float | None:
        """Share of prompt blocks found in a prefix cache; ``None`` where none was modelled."""
        return self.reused_blocks / self.prompt_blocks if self.prompt_blocks else None

    def total(self) -> PhaseAccount:
        """The accounts of all phases added up."""
        whole = PhaseAccount()
        for phase in self.phases.values():
            for each in fields(PhaseAccount):
                total = getattr(whole, each.name) + getattr(phase, each.name)
                setattr(whole, each.name, total)
        return whole

    def to_dict(self) -> dict[str, Any]:
        """All results as plain data, for ``--json``."""
        phases = {name: phase.to_dict() for name, phase in self.phases.items() if phase.offered}
        return {
            "seed": self.seed,
            "total": self.total().to_dict(),
            "phases": phases,
            "timeline": [
                good / offered if offered else None
                for good, offered in zip(self.good_over_time, self.offered_over_time, strict=True)
            ],
            "detections": [detection.to_dict() for detection in self.detections],
            "ejected": self.ejected,
            "events": self.events,
            "prefix_reuse": self.prefix_reuse,
            "digest": self.digest,
            "replicas": self.replicas(),
        }

    def replicas(self) -> dict[str, float]:
        """How many replicas each model had, on average."""
        span_s = self.duration / SECOND
        return {model: used / span_s for model, used in self.replica_seconds.items()}


__all__ = ["PHASES", "Detection", "Detections", "PhaseAccount", "Results", "Slo", "quantiles"]
