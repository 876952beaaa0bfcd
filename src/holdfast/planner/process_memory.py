"""Plans the memory of one process that holds its model itself, and how many fit on a host."""

import json
from collections.abc import Mapping
from typing import Any

from holdfast.core.plan.memory import ENGINES, EngineProfile, fit_on_host, with_headroom
from holdfast.core.plan.model_shape import ModelShape
from holdfast.core.types import ConfigError
from holdfast.planner.answer import (
    ChartKind,
    ChartSeries,
    PlanAnswer,
    PlanChart,
    PlanSnippet,
    PlanStep,
    PlanTable,
)
from holdfast.planner.model_files import kv_step, memory_question, weights_of
from holdfast.planner.units import GB, gb


def process_answer(
    values: Mapping[str, Any], name: str, shape: ModelShape | None, source: str
) -> PlanAnswer:
    """Answer a memory question about a process; without a shape there is no KV cache in it."""
    engine = ENGINES[values["engine"]]
    parts, steps = _process_parts(values, shape, engine)
    total = sum(parts.values())
    reserve = with_headroom(total, values["headroom"])
    figures: dict[str, Any] = {
        "model": name,
        "parts": parts,
        "total_bytes": total,
        "reservation_bytes": reserve,
        "source": source,
    }
    host = values["host_memory"]
    remarks = []
    if host is not None:
        figures["fit_on_host"] = fit_on_host(host, reserve)
        remarks.append(f"A host of {gb(host)} holds {figures['fit_on_host']} of them.")
        now = values["reservation"]
        if now is not None:
            figures["placed_now"] = fit_on_host(host, now)
            remarks.append(_reserved_now(now, figures["placed_now"], total, host))
    if host is not None and reserve > host:
        problem = f"is {gb(host)}, but one process needs {gb(reserve)} with its headroom"
        raise ConfigError("host_memory", problem, "take a larger host, or quantise the model")
    steps.append(
        PlanStep(
            "reservation",
            "total x (1 + headroom), up to the next half gigabyte",
            f"{gb(total)} x {1 + values['headroom']:g} -> {gb(reserve)}",
        )
    )
    rows = tuple((part, gb(size), f"{size / total:.1%}") for part, size in parts.items())
    table = PlanTable("Memory", ("of the process", "size", "share"), rows, text_columns=1)
    return PlanAnswer(
        plan="memory",
        opening=f"{name} at {values['quantisation']} in one process",
        verdict=f"It holds {gb(total)}: reserve {gb(reserve)}, and set the same limit.",
        tables=(table,),
        remarks=tuple(remarks),
        notes=(
            (
                f"Sizes of the model: {source}. A reservation below the footprint lets a scheduler "
                "place too many on a host; a limit below it ends the process at a long request."
            ),
        ),
        steps=tuple(steps),
        snippets=_process_snippets(reserve),
        charts=(_process_chart(parts, reserve),),
        figures=figures,
    )


def _process_parts(
    values: Mapping[str, Any], shape: ModelShape | None, engine: EngineProfile
) -> tuple[dict[str, float], list[PlanStep]]:
    weights, step = weights_of(values, shape)
    overhead = engine.overhead_bytes if values["overhead"] is None else values["overhead"]
    steps = [step]
    parts = {"weights": weights}
    if shape is not None:
        need = memory_question(values, shape, engine, None).need()
        parts |= {"KV cache": need.kv, "activations": need.activations}
        steps.append(kv_step(shape, float(values["kv_bits"])))
        numbers = f"{values['context']:,} x {values['concurrency']:,} tokens = {gb(need.kv)}"
        steps.append(PlanStep("KV cache", "context x requests x bytes of a token", numbers))
    elif values["activations"] is not None:
        parts["activations"] = values["activations"]
    if values["buffers"]:
        parts["buffers"] = values["buffers"]
    parts["engine and OS"] = overhead
    total = " + ".join(gb(size) for size in parts.values())
    steps.append(PlanStep("total", " + ".join(parts), f"{total} = {gb(sum(parts.values()))}"))
    return parts, steps


def _reserved_now(now: float, placed: int, total: float, host: float) -> str:
    used = placed * total
    told = f"With {gb(now)} reserved a scheduler places {placed}, which need {gb(used)}"
    return f"{told}: {'more than the host has' if used > host else 'they fit'}."


def _process_snippets(reserve: float) -> tuple[PlanSnippet, ...]:
    mib = int(reserve / 2**20) + 1
    task = json.dumps({"memory": mib, "memoryReservation": mib}, indent=2)
    pod = f"resources:\n  requests: {{memory: {mib}Mi}}\n  limits: {{memory: {mib}Mi}}"
    fleet = f"launch:\n  memory: {{reservation: {mib}MiB, limit: {mib}MiB}}"
    return (
        PlanSnippet("ECS container definition", "json", task),
        PlanSnippet("Kubernetes container", "yaml", pod),
        PlanSnippet("Fleet file, below a model", "yaml", fleet),
    )


def _process_chart(parts: Mapping[str, float], reserve: float) -> PlanChart:
    series = tuple(ChartSeries(part, ((0.0, size / GB),)) for part, size in parts.items())
    return PlanChart(
        "Memory of one process",
        "",
        "memory, GB",
        series,
        ChartKind.BARS,
        ("process",),
        reserve / GB,
        "reservation",
    )


__all__ = ["process_answer"]
