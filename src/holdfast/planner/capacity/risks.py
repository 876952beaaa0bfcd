"""What trouble does to a capacity plan: retries, hedges, calls in parallel, blind routing."""

from collections.abc import Mapping
from math import log
from typing import Any, Final

from holdfast.core.plan.capacity import ReplicaNeed
from holdfast.core.plan.overload import (
    budget_bound,
    exponential_tail,
    hedged_quantile,
    lognormal_quantile,
    lognormal_tail,
    metastable_attempts,
    nested_attempts,
    retry_amplification,
    slow_after_hedge,
    tail_per_call,
)
from holdfast.core.plan.queues import (
    erlang_wait,
    random_choice_wait,
    shared_sojourn,
    sojourn_quantile,
    two_choices_sojourn,
    two_choices_tail,
)
from holdfast.core.types import require
from holdfast.planner.answer import PlanStep

BUDGET: Final = 0.1  # the shipped retry budget: a tenth of the requests
_TAIL: Final = 0.999  # the quantile that hedging is judged by


def risk_figures(values: Mapping[str, Any], need: ReplicaNeed) -> dict[str, Any]:
    """Figures of the troubles that were asked about."""
    busy = min(0.999999, max(1e-9, need.utilisation))
    figures: dict[str, Any] = {
        "metastable_attempts": metastable_attempts(busy),
        "budget_amplification": budget_bound(BUDGET),
    }
    if values["attempts"] > 1:
        figures["amplification"] = retry_amplification(values["attempts"], values["failing"])
        figures["nested_attempts"] = nested_attempts(values["layers"], values["attempts"])
    if values["hedge_at"] is not None:
        figures["hedging"] = _hedging(values["hedge_at"])
    if values["fan_out"] > 1:
        figures["tail_per_call"] = tail_per_call(1.0 - _TAIL, values["fan_out"])
    return figures


def _hedging(at: float) -> dict[str, float]:
    good = 0.0 < at < 1.0
    require(good, "capacity.hedge_at", f"is {at:g}", "use a quantile such as 0.95")
    delay = lognormal_quantile(at)
    exponential = exponential_tail()
    short = -log(1.0 - at)
    return {
        "load": 1.0 - at,
        "still_slow": slow_after_hedge(1.0 - at),
        "lognormal_delay": delay,
        "lognormal_p999": lognormal_quantile(_TAIL),
        "lognormal_p999_hedged": hedged_quantile(lognormal_tail(), delay, _TAIL),
        "exponential_p999_hedged": hedged_quantile(exponential, short, _TAIL),
    }


def risk_remarks(values: Mapping[str, Any], need: ReplicaNeed) -> list[str]:
    """The same in sentences."""
    figures = risk_figures(values, need)
    lines = []
    if values["attempts"] > 1:
        at_bottom = figures["nested_attempts"]
        keeps = at_bottom >= figures["metastable_attempts"]
        verdict = "keep the fleet down after its trouble is over" if keeps else "are carried"
        lines.append(
            f"Clients that try {values['attempts']} times make {figures['amplification']:.3g} "
            f"attempts of a request now and {at_bottom} in an outage, which {verdict}; the "
            "gateway's retry "
            f"budget bounds it at {figures['budget_amplification']:g}."
        )
    if "hedging" in figures:
        hedging = figures["hedging"]
        lines.append(
            f"A second copy after p{values['hedge_at'] * 100:g} costs {hedging['load']:.1%} more "
            f"load and takes p99.9 from {hedging['lognormal_p999']:.3g} to "
            f"{hedging['lognormal_p999_hedged']:.3g} medians (lognormal times), from spare "
            "capacity."
        )
    if "tail_per_call" in figures:
        lines.append(
            f"For p99.9 over {values['fan_out']} calls together {figures['tail_per_call']:.2e} of "
            "single calls may be slow."
        )
    return lines


def waiting_step(need: ReplicaNeed) -> PlanStep:
    """What the choice of a replica is worth at this load, by four textbook queues."""
    load = min(0.999, need.utilisation)
    pooled = erlang_wait(need.slots, min(need.offered, need.slots * 0.999))
    numbers = (
        f"at {load:.2f} busy, one request at a time on each: at random "
        f"{random_choice_wait(load):.2f} service times of wait, the shorter of two "
        f"{two_choices_sojourn(load) - 1:.2f} "
        f"(four or more there at {two_choices_tail(load, 4):.1%} of replicas), one queue for all "
        f"{pooled:.4f}; a replica that shares its time takes {shared_sojourn(load):.2f}, its "
        "p99 alone "
        f"{sojourn_quantile(load, 0.99):.1f}"
    )
    return PlanStep("what routing is worth", "M/G/1, two choices, M/M/c, PS", numbers)


__all__ = ["BUDGET", "risk_figures", "risk_remarks", "waiting_step"]
