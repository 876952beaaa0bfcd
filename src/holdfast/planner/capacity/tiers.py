"""Plans replicas for several tiers: a strong engine for some requests, a cheap one for others."""

from collections.abc import Mapping
from typing import Any

from holdfast.core.plan.engine_speeds import engine_speed
from holdfast.core.types import ConfigError, require
from holdfast.planner.answer import ChartKind, ChartSeries, PlanAnswer, PlanChart, PlanTable
from holdfast.planner.capacity.fleet_size import scaled, size_fleet
from holdfast.planner.capacity.traffic import traffic_of


def tiers_answer(values: Mapping[str, Any]) -> PlanAnswer:
    """Answer a capacity question about several engines that share a traffic."""
    shares = _shares(values["tiers"])
    rows = []
    tiers: list[dict[str, Any]] = []
    for name, share in shares.items():
        speed = engine_speed(name)
        whole = traffic_of(values, speed)
        plan = size_fleet(values, speed, scaled(whole, share))
        rows.append(
            (
                name,
                f"{share:.0%}",
                f"{plan.known.traffic.requests_s:,.4g}",
                str(plan.need.batch.batch),
                str(plan.need.replicas),
            )
        )
        tiers.append({"tier": name, "share": share, "replicas": plan.need.replicas})
    total = sum(tier["replicas"] for tier in tiers)
    headings = ("tier", "share", "requests/s", "batch", "replicas")
    listed = ", ".join(f"{tier['replicas']} of {tier['tier']}" for tier in tiers)
    return PlanAnswer(
        plan="capacity",
        opening=f"Traffic over {len(tiers)} tiers",
        verdict=f"Run {total} replicas: {listed}.",
        tables=(PlanTable("Tiers", headings, tuple(rows), text_columns=1),),
        notes=(
            (
                "Each tier is planned for its own share. Where an overloaded tier hands requests "
                "down, give the lower one the share that it then has."
            ),
        ),
        charts=(
            PlanChart(
                "Replicas by tier",
                "tier",
                "replicas",
                (
                    ChartSeries(
                        "replicas",
                        tuple((float(at), float(str(row[4]))) for at, row in enumerate(rows)),
                    ),
                ),
                kind=ChartKind.BARS,
                labels=tuple(row[0] for row in rows),
            ),
        ),
        figures={"replicas": total, "tiers": tiers},
    )


def _shares(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError as error:
            fix = "use NAME=SHARE, such as distserve-opt-66b=0.3,distserve-opt-13b=0.7"
            raise ConfigError("tiers", f"has {part!r}"[:80], fix) from error
    whole = sum(shares.values())
    good = all(share > 0 for share in shares.values()) and abs(whole - 1.0) < 0.001
    require(good, "tiers", f"add up to {whole:g}", "use shares above 0 that add up to 1")
    return shares


__all__ = ["tiers_answer"]
