"""Finds the traffic and the engine speed of a capacity question: given, traced or measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.core.plan.capacity import Traffic, alone_ms, users_to_rate
from holdfast.core.plan.engine_speeds import EngineSpeed, engine_speed
from holdfast.core.types import SECOND, require
from holdfast.planner.answer import PlanStep
from holdfast.planner.capacity.bench_file import speed_of_bench
from holdfast.sim.workload import Workload, arrivals

_WINDOW_S: Final = 60.0  # of a trace, for its peak
_REQUESTS_MAX: Final = 1_000_000  # of a trace


@dataclass(slots=True, frozen=True)
class KnownTraffic:
    """A traffic at its peak, its mean rate, and how both are known."""

    traffic: Traffic
    mean_requests_s: float
    step: PlanStep


def speed_of(values: Mapping[str, Any]) -> EngineSpeed:
    """The engine's speed: of the table, of a benchmark's file, or as given."""
    if values["bench"] is not None:
        return speed_of_bench(Path(values["bench"]), values["batch"])
    if values["step_ms"] is not None:
        band = (
            1,
            values["step_ms"],
            values["per_kv_token_ms"],
            values["per_sequence_ms"],
        )
        batch = values["batch"] or 64
        return EngineSpeed(
            "as given", (band,), values["prefill_ms_per_token"] or 0.0, batch, "as given"
        )
    found = engine_speed(values["speed"])
    if values["batch"] is None:
        return found
    return EngineSpeed(
        found.name,
        found.bands,
        found.prefill_ms_per_token,
        values["batch"],
        found.source,
        found.prefill_ms,
        found.prefill_ms_per_square,
    )


def traffic_of(values: Mapping[str, Any], speed: EngineSpeed) -> KnownTraffic:
    """The traffic: requests per second, users who wait and think, or a trace."""
    if values["trace"] is not None:
        return _trace(values)
    prompt, output = float(values["prompt"]), float(values["output"])
    if values["rate"] is not None:
        rate, formula = values["rate"], "as given"
        numbers = f"{rate:g} requests/s"
    else:
        read, write = alone_ms(speed, prompt, output)
        alone_s = (read + write) / 1000.0
        rate = users_to_rate(values["users"], values["think"], alone_s)
        formula = "users / (answer + think)"
        numbers = (
            f"{values['users']:,.0f} / ({alone_s:g} + {values['think']:g}) s = {rate:,.3f} "
            f"requests/s (answer: {read:g} + {write:g} ms)"
        )
    peak = rate * values["peak"]
    if values["peak"] != 1:
        numbers += f", at the peak x {values['peak']:g} = {peak:,.3f}"
    traffic = Traffic(peak, prompt, output)
    return KnownTraffic(traffic, rate, PlanStep("traffic", formula, numbers))


def _trace(values: Mapping[str, Any]) -> KnownTraffic:
    path = Path(values["trace"])
    workload = Workload(trace=str(path))
    count, prompts, outputs, last = 0, 0, 0, 0
    windows: dict[int, int] = {}
    for request, tokens in arrivals(workload, "model", 0):
        count += 1
        at = request.arrived
        prompts += request.prompt_tokens
        outputs += tokens
        last = max(last, at)
        window = int(at / SECOND / _WINDOW_S)
        windows[window] = windows.get(window, 0) + 1
        if count >= _REQUESTS_MAX:
            break
    require(count > 0, "trace", "holds no request", "name a CSV or JSONL trace")
    mean = count / max(1.0, last / SECOND)
    # The last window may be cut short: it is never the peak by being short.
    peak = max(windows.values()) / min(_WINDOW_S, max(1.0, last / SECOND))
    numbers = (
        f"{count:,} requests, mean {mean:.3g} requests/s, busiest minute {peak:.3g}; "
        f"{prompts / count:,.0f} tokens in and {outputs / count:,.0f} out"
    )
    traffic = Traffic(peak, max(1.0, prompts / count), max(1.0, outputs / count))
    return KnownTraffic(traffic, mean, PlanStep("traffic", f"the trace {path.name}", numbers))


__all__ = ["KnownTraffic", "speed_of", "traffic_of"]
