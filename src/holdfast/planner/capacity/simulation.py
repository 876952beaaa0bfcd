"""Confirms a capacity plan with the simulator: the same policies that will route the traffic.

A fleet of hundreds is simulated as a slice of it with the same load per replica: waiting is longer
before few replicas than before many, so a slice that meets its objectives speaks for the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from holdfast.core.plan.capacity import BatchChoice, SplitNeed, Traffic, batch_at
from holdfast.core.plan.engine_speeds import EngineSpeed
from holdfast.core.types import Replica
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.results import Slo
from holdfast.sim.run import run_experiment
from holdfast.sim.workload import Lengths, Workload

REQUESTS_MAX: Final = 12_000  # in one run; it takes a second or two
SLICE_MIN: Final = 4  # replicas: fewer wait much longer than many
DURATION_S: Final = (20.0, 300.0)
TRIES: Final = 4
SEED: Final = 1


@dataclass(slots=True, frozen=True)
class SimulatedCapacity:
    """What a simulated slice of the planned fleet did."""

    replicas: int  # of the whole fleet
    simulated: int  # of the slice
    met: float  # share of requests within the objectives
    first_token_p99_s: float | None
    per_token_p99_ms: float | None
    latency_p99_s: float | None
    requests: int

    def reaches(self, quantile: float) -> bool:
        """Whether enough requests were within the objectives."""
        return self.met >= quantile


def confirm(
    speed: EngineSpeed,
    traffic: Traffic,
    batch: BatchChoice,
    replicas: int,
    *,
    first_token_s: float,
    token_budget_ms: float | None,
    quantile: float,
) -> Sequence[SimulatedCapacity]:
    """Simulate the planned number of replicas, and more of them until the objectives are met.

    Lengths vary as in chat traces, and the objective for a token holds for the mean of each answer.
    Stops after four tries: beyond, the formula was wrong by half, and the reason should be found.
    """
    runs = []
    count = replicas
    for _ in range(TRIES):
        found = _run(speed, traffic, batch, count, first_token_s, token_budget_ms)
        runs.append(found)
        if found.reaches(quantile):
            break
        count = max(count + 1, ceil(count * 1.12))
    return runs


def confirm_split(
    speed: EngineSpeed, traffic: Traffic, batch: int, split: SplitNeed, *, first_token_s: float
) -> Sequence[SimulatedCapacity]:
    """Simulate both pools of a split fleet apart: one reads prompts, the other only writes."""
    reading = EngineSpeed("prompts", ((1, 1e-3, 0.0, 0.0),), speed.prefill_ms_per_token, 1, "")
    asked = Traffic(traffic.requests_s, traffic.prompt, 1.0)
    one = batch_at(reading, asked, 1)
    prompts = _run(reading, asked, one, split.prefill, first_token_s, None)
    writing = EngineSpeed("answers", speed.bands, 0.0, batch, "")
    places = batch_at(writing, traffic, batch)
    return [prompts, _run(writing, traffic, places, split.decode, first_token_s, None)]


def _run(
    speed: EngineSpeed,
    traffic: Traffic,
    batch: BatchChoice,
    replicas: int,
    first_token_s: float,
    token_budget_ms: float | None,
) -> SimulatedCapacity:
    least_s = max(DURATION_S[0], 8.0 * batch.service_s)
    wanted = traffic.requests_s * least_s
    simulated = replicas
    if wanted > REQUESTS_MAX:
        simulated = max(min(replicas, SLICE_MIN), int(replicas * REQUESTS_MAX / wanted))
    rate = traffic.requests_s * simulated / replicas
    duration = max(least_s, min(DURATION_S[1], REQUESTS_MAX / rate))
    experiment = Experiment(
        replicas=tuple(
            Replica(f"r{number}", "model", slots=batch.batch) for number in range(simulated)
        ),
        duration_s=duration,
        workloads=(
            (
                "model",
                Workload(
                    rate=rate,
                    prompt=Lengths(traffic.prompt, cv=0.5),
                    output=Lengths(traffic.output, cv=0.5),
                ),
            ),
        ),
        engine=_parameters(speed, batch.batch),
        slo=Slo(
            first_token_s=first_token_s,
            per_token_s=None if token_budget_ms is None else token_budget_ms / 1000.0,
        ),
        canaries=False,
    )
    total: dict[str, Any] = run_experiment(experiment, SEED)["total"]
    per_token = total["per_token_s"]["p99"]
    return SimulatedCapacity(
        replicas=replicas,
        simulated=simulated,
        met=total["slo_attainment"],
        first_token_p99_s=total["first_token_s"]["p99"],
        per_token_p99_ms=None if per_token is None else per_token * 1000.0,
        latency_p99_s=total["latency_s"]["p99"],
        requests=total["offered"],
    )


def _parameters(speed: EngineSpeed, batch: int) -> EngineParameters:
    _, step, per_kv, per_sequence = speed.band(batch)
    return EngineParameters(
        step_ms=step,
        per_sequence_ms=per_sequence,
        per_kv_token_ms=per_kv,
        per_prompt_token_ms=speed.prefill_ms_per_token,
        batch_max=batch,
        kv_tokens_max=1_000_000_000,  # the plan has bounded the batch by it already
    )


__all__ = ["SimulatedCapacity", "confirm", "confirm_split"]
