"""Sizes a fleet of one engine for a traffic: its batch, its replicas, and its split."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.plan.accelerators import link_between
from holdfast.core.plan.capacity import (
    ReplicaNeed,
    SplitNeed,
    Traffic,
    choose_batch,
    replicas_for,
    split_need,
    token_budget_ms,
)
from holdfast.core.plan.engine_speeds import EngineSpeed
from holdfast.core.plan.model_catalogue import known_model
from holdfast.core.types import require
from holdfast.planner.answer import ChartSeries, PlanChart
from holdfast.planner.capacity.traffic import KnownTraffic


@dataclass(slots=True, frozen=True)
class SizedFleet:
    """A sized fleet of one engine."""

    speed: EngineSpeed
    known: KnownTraffic
    budget_ms: float | None
    need: ReplicaNeed
    split: SplitNeed | None


def size_fleet(values: Mapping[str, Any], speed: EngineSpeed, known: KnownTraffic) -> SizedFleet:
    """The fleet that a question asks for, for this engine and this traffic."""
    traffic, first = known.traffic, values["first_token"]
    budget = None
    if values["latency"] is not None:
        budget = token_budget_ms(values["latency"], first, traffic.output)
    batch = choose_batch(speed, traffic, budget, values["kv_tokens"])
    read_s = speed.prefill(traffic.prompt) / 1000.0
    fits = first > read_s
    told = f"is {first:g} s, and reading a prompt alone takes {read_s:.3g} s"
    require(fits, "capacity.first_token", told, "use a later deadline or a faster engine")
    late = 1.0 - values["quantile"]
    need = replicas_for(
        traffic, batch, wait_s=first - read_s, late_share=late, utilisation=values["utilisation"]
    )
    split = None
    if values["split"]:
        each = known_model(values["model"]).shape.kv_bytes_per_token()
        split = split_need(
            speed,
            traffic,
            batch.batch,
            wait_s=first,
            late_share=late,
            utilisation=values["utilisation"],
            kv_bytes_per_token=each,
            link_bytes_s=link_between(values["link"]).bytes_per_s,
        )
    return SizedFleet(speed, known, budget, need, split)


def scaled(known: KnownTraffic, factor: float) -> KnownTraffic:
    """The same traffic at another rate."""
    traffic = known.traffic
    more = Traffic(traffic.requests_s * factor, traffic.prompt, traffic.output)
    return KnownTraffic(more, known.mean_requests_s, known.step)


def replicas_chart(values: Mapping[str, Any], plan: SizedFleet) -> PlanChart:
    """Replicas from a tenth to twice the traffic."""
    read_s = plan.speed.prefill(plan.known.traffic.prompt) / 1000.0
    points = []
    for tenth in range(1, 21):
        traffic = plan.known.traffic
        rate = traffic.requests_s * tenth / 10.0
        need = replicas_for(
            Traffic(rate, traffic.prompt, traffic.output),
            plan.need.batch,
            wait_s=values["first_token"] - read_s,
            late_share=1.0 - values["quantile"],
            utilisation=values["utilisation"],
        )
        points.append((rate, float(need.replicas)))
    return PlanChart(
        "Replicas by traffic",
        "requests per second",
        "replicas",
        (ChartSeries("replicas", tuple(points)),),
        limit=float(plan.need.replicas),
        limit_label=f"planned: {plan.need.replicas}",
    )


__all__ = ["SizedFleet", "replicas_chart", "scaled", "size_fleet"]
