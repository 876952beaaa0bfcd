"""Answers what would be if: a fleet as it is and as it would be, simulated under the same seeds.

    fleet file ──┬─► before ─┐
    + twin.json  │           ├─► the same seeds ─► differences, incidents, the diff to apply
    + a change ──┴─► after ──┘

A change edits the fleet file, multiplies the traffic, or lets faults happen. Faults happen in both
arms: the question is what the change does to a fleet in trouble. With faults and nothing else, the
arm before has none: the question is then what the faults do.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.config.files import load_text
from holdfast.config.fleet_file import FleetFile
from holdfast.core.plan.faults import Fault
from holdfast.core.types import ConfigError, require
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.results import Slo
from holdfast.sim.run import Outcome
from holdfast.sim.workload import Workload
from holdfast.twin.arms import Arm, Difference, Progress, differences, run_arms
from holdfast.twin.config_edit import difference, edit
from holdfast.twin.fleet_model import FleetTwin, fleet_twin
from holdfast.twin.twin_file import TwinFile

REQUESTS: Final = 3_000  # of one run, where no duration is given: some two seconds of work
DURATION_S: Final = (60.0, 3_600.0)
TRAFFIC: Final = (0.01, 100.0)
SEEDS_MAX: Final = 10_000


@dataclass(slots=True, frozen=True)
class Baseline:
    """The fleet that a change is applied to: the text of its file, its twin, its traffic."""

    text: str
    name: str = "fleet.yaml"  # of the file, in messages and in the diff
    twin: TwinFile | None = None
    traffic: Mapping[str, Workload] = field(default_factory=dict)  # before what the twin has
    engines: Mapping[str, EngineParameters] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)  # of models that are not launched

    def fleet(self, text: str, more: Mapping[str, int] | None = None) -> FleetTwin:
        """The simulated fleet of this text; raises what the reader of the file raises."""
        file = load_text(self.name, text, FleetFile)
        return fleet_twin(
            file,
            self.twin,
            traffic=self.traffic,
            engines=self.engines,
            replicas={**self.replicas, **(more or {})},
        )


@dataclass(slots=True, frozen=True)
class Change:
    """What is different afterwards."""

    edits: Mapping[str, Any] = field(default_factory=dict)  # dotted keys of the fleet file
    traffic: float = 1.0  # times what it is
    faults: tuple[Fault, ...] = ()
    replicas: Mapping[str, int] = field(default_factory=dict)  # of models that are not launched

    def __post_init__(self) -> None:
        low, high = TRAFFIC
        fix = f"use {low:g} to {high:g} times"
        require(low <= self.traffic <= high, "traffic", f"is {self.traffic:g}", fix)
        for model, count in self.replicas.items():
            fix = "use 1 or more: nobody would answer"
            require(count >= 1, f"models.{model}.replicas", f"is {count}", fix)

    @property
    def only_faults(self) -> bool:
        """Whether the fleet and its traffic stay as they are."""
        return not self.edits and self.traffic == 1.0 and not self.replicas


@dataclass(slots=True, frozen=True)
class RunPlan:
    """How long and how often both arms are simulated."""

    duration_s: float | None = None  # of traffic; None: as long as some thousand requests take
    seeds: int = 5
    seed: int = 1
    jobs: int = 0
    diagnosis: bool = True
    slo: Slo | None = None  # None: what the fleet file promises

    def __post_init__(self) -> None:
        fix = f"use 1 to {SEEDS_MAX:,}"
        require(1 <= self.seeds <= SEEDS_MAX, "seeds", f"is {self.seeds}", fix)
        span = self.duration_s
        fits = span is None or 0 < span <= 7 * 86_400
        require(fits, "duration", f"is {span} s", "use seconds above 0, a week at most")

    @property
    def numbers(self) -> list[int]:
        """The seeds."""
        return list(range(self.seed, self.seed + self.seeds))


@dataclass(slots=True, frozen=True)
class WhatIfAnswer:
    """Both arms, their differences, and what to change in the fleet file."""

    differences: tuple[Difference, ...]
    before: Outcome
    after: Outcome
    replicas: tuple[int, int]  # before and after
    cost_per_hour: tuple[float | None, float | None]
    currency: str
    rate: tuple[float, float]  # requests per second
    duration_s: float
    seeds: int
    diff: str  # of the fleet file
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            "differences": [one.to_dict() for one in self.differences],
            "incidents": {
                "before": incidents_of(self.before),
                "after": incidents_of(self.after),
            },
            "replicas": {"before": self.replicas[0], "after": self.replicas[1]},
            "cost_per_hour": {"before": self.cost_per_hour[0], "after": self.cost_per_hour[1]},
            "currency": self.currency,
            "requests_s": {"before": self.rate[0], "after": self.rate[1]},
            "duration_s": self.duration_s,
            "seeds": self.seeds,
            "diff": self.diff,
            "notes": list(self.notes),
        }


def incidents_of(outcome: Outcome) -> list[dict[str, Any]]:
    """Incidents by cause over all seeds: how many, in how many runs, with what verdict."""
    opened: Counter[tuple[str, str]] = Counter()
    runs: Counter[tuple[str, str]] = Counter()
    for account in outcome.runs:
        held = account.get("incidents")
        if held is None:
            continue
        found = [(one["cause"], one["verdict"]) for one in held["opened"]]
        opened.update(found)
        runs.update(set(found))
    return [
        {"cause": cause, "verdict": verdict, "opened": count, "runs": runs[cause, verdict]}
        for (cause, verdict), count in sorted(opened.items(), key=lambda row: (-row[1], row[0]))
    ]


def what_if(
    baseline: Baseline,
    change: Change,
    plan: RunPlan,
    progress: Progress = lambda _done, _all: None,
) -> WhatIfAnswer:
    """Simulate the fleet before and after a change; raises ``ConfigError`` for a bad question."""
    text = edit(baseline.text, change.edits)
    before, after = baseline.fleet(baseline.text), baseline.fleet(text, change.replicas)
    after = replace(after, traffic=scaled(after.traffic, change.traffic))
    rates = (rate_of(before.traffic), rate_of(after.traffic))
    duration = plan.duration_s or duration_for(max(rates))
    early = () if change.only_faults else change.faults
    arms = [
        arm_of("before", before, before.experiment(duration, faults=early, slo=plan.slo)),
        arm_of("after", after, after.experiment(duration, faults=change.faults, slo=plan.slo)),
    ]
    ran = run_arms(arms, plan.numbers, jobs=plan.jobs, diagnosis=plan.diagnosis, progress=progress)
    return WhatIfAnswer(
        differences=tuple(differences(*ran)),
        before=ran[0],
        after=ran[1],
        replicas=(len(before.members()), len(after.members())),
        cost_per_hour=(
            before.cost_per_hour(replicas_of(ran[0])),
            after.cost_per_hour(replicas_of(ran[1])),
        ),
        currency=before.file.prices.currency,
        rate=rates,
        duration_s=duration,
        seeds=plan.seeds,
        diff=difference(baseline.text, text, baseline.name),
        notes=tuple(notes_of(baseline, after, change)),
    )


def arm_of(name: str, fleet: FleetTwin, setup: Experiment) -> Arm:
    """One arm; its incidents are acted on unless the fleet file says that they are only told."""
    return Arm(name, setup, acts=not fleet.file.incidents.dry_run)


def replicas_of(outcome: Outcome) -> dict[str, float]:
    """How many replicas each model had, on average over time and seeds."""
    runs = [run["replicas"] for run in outcome.runs]
    return {model: sum(run[model] for run in runs) / len(runs) for model in runs[0]}


def scaled(traffic: Mapping[str, Workload], factor: float) -> dict[str, Workload]:
    """Traffic at a multiple of its rate; a trace is replayed faster."""
    if factor == 1.0:
        return dict(traffic)
    return {
        model: replace(one, speed=one.speed * factor)
        if one.trace
        else replace(one, rate=one.rate * factor)
        for model, one in traffic.items()
    }


def rate_of(traffic: Mapping[str, Workload]) -> float:
    """Requests per second of all models together; a trace counts with its declared rate."""
    return sum(one.rate * (one.speed if one.trace else 1.0) for one in traffic.values())


def duration_for(rate: float) -> float:
    """Seconds that hold some thousand requests, within bounds."""
    low, high = DURATION_S
    if rate <= 0:
        raise ConfigError("traffic", "is not known of any model", "give --rate")
    return max(low, min(high, REQUESTS / rate))


def notes_of(baseline: Baseline, fleet: FleetTwin, change: Change) -> list[str]:
    """What a reader of the answer must know: limits of the fit, and what is not simulated."""
    notes = []
    if baseline.twin is not None:
        for name in fleet.engines:
            fitted = baseline.twin.models.get(name)
            if fitted is None:
                continue
            first = fitted.errors.get("first_token_s", {}).get("p95")
            whole = fitted.errors.get("latency_s", {}).get("mean")
            if first is not None and whole is not None:
                notes.append(
                    f"{name}: the fit's own error on held-out requests is {first:+.1%} "
                    f"(first token, 95 %) and {whole:+.1%} (whole answer, mean)"
                )
            notes += [f"{name}: {limit}" for limit in fitted.limits]
    for one in fleet.scaling():
        start_s = fleet.cold_start_s.get(one.model)
        start = "as long as a usual one" if start_s is None else f"{start_s:.3g} s, as measured"
        notes.append(
            f"{one.model}: its autoscaler decides as in the fleet, {one.config.min} to "
            f"{one.config.max} replicas; a start takes {start}. Traffic is one rate: what it makes "
            "of a day's curve, a trace tells (--trace)"
        )
    if fleet.file.tenants:
        notes.append("traffic is of one tenant without a quota: quotas and fairness play no part")
    for model, count in change.replicas.items():
        notes.append(
            f"{model}: its replicas are not launched by the fleet file; bring it to {count} "
            "where they are run"
        )
    return notes


__all__ = [
    "Baseline",
    "Change",
    "RunPlan",
    "WhatIfAnswer",
    "arm_of",
    "duration_for",
    "incidents_of",
    "notes_of",
    "rate_of",
    "replicas_of",
    "scaled",
    "what_if",
]
