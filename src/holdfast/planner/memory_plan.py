"""Plans memory: what a replica holds, over how many devices it fits, and what to reserve for it.

A GPU plan divides the model over devices and says what the host's container needs beside them; a
CPU plan sums up the process and packs hosts with it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from holdfast.core.plan.accelerators import ACCELERATORS, Accelerator, accelerator, link_between
from holdfast.core.plan.memory import (
    ENGINES,
    DeviceNeed,
    EngineProfile,
    MemoryQuestion,
    with_headroom,
)
from holdfast.core.plan.model_catalogue import MODELS
from holdfast.core.plan.model_shape import QUANTISATIONS, ModelShape
from holdfast.core.plan.parallelism import HELPS, Layout, decode_step, stage_layers, tensor_degrees
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
from holdfast.planner.model_files import kv_step, memory_question, model_of, weights_of
from holdfast.planner.process_memory import process_answer
from holdfast.planner.question import FieldKind, PlanField, PlanKind
from holdfast.planner.units import GB, gb

CPU: Final = "cpu"
_ROWS_MAX: Final = 12  # layouts shown

FIELDS: Final = (
    PlanField(
        "model",
        FieldKind.TEXT,
        f"A model that is built in: {', '.join(MODELS)}.",
        group="Model",
    ),
    PlanField("config_json", FieldKind.FILE, "Any model's config.json, instead of --model."),
    PlanField(
        "parameters",
        FieldKind.QUANTITY,
        "Number of weights, such as 880M, where neither is known: no KV cache is planned then.",
        least=1,
        most=1e14,
        group="Model",
    ),
    PlanField(
        "quantisation",
        FieldKind.CHOICE,
        "Format of the weights.",
        "bf16",
        choices=tuple(QUANTISATIONS),
        group="Model",
    ),
    PlanField("weights", FieldKind.SIZE, "Size of the weights' files, where known.", least=1),
    PlanField(
        "kv_bits", FieldKind.COUNT, "Bits of a number in the KV cache.", 16, least=1, most=32
    ),
    PlanField(
        "context",
        FieldKind.COUNT,
        "Tokens of one request, prompt and answer.",
        8192,
        least=1,
        most=10_000_000,
        group="Traffic",
    ),
    PlanField(
        "concurrency",
        FieldKind.COUNT,
        "Requests at once on one replica.",
        16,
        least=1,
        most=100_000,
        group="Traffic",
    ),
    PlanField(
        "device",
        FieldKind.CHOICE,
        "What it runs on.",
        choices=(*ACCELERATORS, CPU),
        group="Device",
    ),
    PlanField(
        "devices_per_host",
        FieldKind.COUNT,
        "Devices of one host.",
        8,
        least=1,
        most=1024,
        group="Device",
    ),
    PlanField(
        "engine",
        FieldKind.CHOICE,
        "Whose overheads and defaults to assume.",
        "vllm",
        choices=tuple(ENGINES),
        group="Device",
    ),
    PlanField("utilisation", FieldKind.NUMBER, "Share of a device that the engine may use."),
    PlanField("overhead", FieldKind.SIZE, "Engine and OS beside the model; default: the engine's."),
    PlanField("activations", FieldKind.SIZE, "Peak of a forward pass; default: by formula."),
    PlanField(
        "batch_tokens",
        FieldKind.COUNT,
        "Prompt tokens in one pass; default: the engine's.",
        least=1,
    ),
    PlanField("buffers", FieldKind.SIZE, "Other buffers of the process.", 0.0, least=0),
    PlanField("headroom", FieldKind.NUMBER, "Share on top of a reservation.", 0.1, group="Device"),
    PlanField(
        "host_memory",
        FieldKind.SIZE,
        "Memory of one host, to count what fits on it.",
        group="Device",
    ),
    PlanField("reservation", FieldKind.SIZE, "What is reserved today, to compare with."),
)


def _missing(values: Mapping[str, Any]) -> list[str]:
    named = any(values[name] is not None for name in ("model", "config_json", "parameters"))
    lacking = [] if named else ["model"]
    return lacking + (["device"] if values["device"] is None else [])


def memory(values: Mapping[str, Any]) -> PlanAnswer:
    """Answer a memory question; ``values`` has all of ``FIELDS``."""
    name, shape, source = model_of(values)
    if values["device"] == CPU or shape is None:
        return process_answer(values, name, shape, source)
    return _device_answer(values, name, shape, source)


# --- on devices -----------------------------------------------------------------------------------


def _device_answer(
    values: Mapping[str, Any], name: str, shape: ModelShape, source: str
) -> PlanAnswer:
    device, engine = accelerator(values["device"]), ENGINES[values["engine"]]
    question = memory_question(values, shape, engine, device)
    degrees = tensor_degrees(shape, values["devices_per_host"])
    need = question.smallest(degrees)
    if need is None:
        raise _fits_nowhere(question, degrees, device)
    largest = _largest_that_helps(question, device, degrees, need)
    host = with_headroom(engine.host_bytes * need.tensor + values["buffers"], values["headroom"])
    tokens = question.kv_tokens(need.tensor, need.pipeline)
    figures = {
        "model": name,
        "parameters": shape.parameters,
        "weights_bytes": question.shape.weight_bytes(question.quantisation),
        "kv_bytes_per_token": shape.kv_bytes_per_token(question.kv_bits),
        "tensor": need.tensor,
        "pipeline": need.pipeline,
        "devices": need.devices,
        "largest_tensor": largest,
        "device": {**asdict(need), "total": need.total},
        "kv_tokens": tokens,
        "requests_at_context": tokens // question.context,
        "host_reservation_bytes": host,
        "shards": _shards(question, degrees),
        "source": source,
    }
    return PlanAnswer(
        plan="memory",
        opening=f"{name} at {values['quantisation']} on {device.name}, "
        f"{values['concurrency']} requests of {values['context']:,} tokens at once, {engine.name}",
        verdict=f"Run it over {_layout(need)}: {gb(need.total)} of {gb(need.budget)} on each.",
        tables=(_parts(need), _layouts(question, device, degrees, need)),
        remarks=(
            (
                f"{tokens:,} tokens of KV cache fit: {tokens // question.context:,} requests of "
                f"{question.context:,} tokens."
            ),
            _helps(largest, need),
        ),
        notes=_device_notes(shape, engine, source),
        steps=_device_steps(values, question, need),
        snippets=_device_snippets(values, name, need, host),
        charts=(_chart(question, degrees),),
        figures=figures,
    )


def _fits_nowhere(question: MemoryQuestion, degrees: list[int], device: Accelerator) -> ConfigError:
    stages = min(16, question.shape.layers)
    best = question.need(degrees[-1], stages)
    problem = (
        f"does not hold it: even over {degrees[-1]} x {stages} devices each would need "
        f"{gb(best.total)} of the {gb(best.budget)} that the engine may use of a {device.name}"
    )
    short = (
        "shorten the context, lower the concurrency" if best.kv > best.weights else "quantise it"
    )
    return ConfigError("device", problem, f"{short}, or take a larger device")


def _largest_that_helps(
    question: MemoryQuestion, device: Accelerator, degrees: list[int], need: DeviceNeed
) -> int:
    """The largest tensor degree of the host for which twice the devices still save a tenth."""
    largest = need.tensor
    for degree in degrees:
        if degree != 2 * largest:
            continue
        before, after = (
            _step_s(question, device, each, need.pipeline) for each in (largest, degree)
        )
        if after > HELPS * before:
            break
        largest = degree
    return largest


def _step_s(question: MemoryQuestion, device: Accelerator, tensor: int, pipeline: int) -> float:
    link = link_between(device.link)
    step = decode_step(
        question.shape,
        question.quantisation,
        device,
        Layout(tensor, pipeline, link, link),
        batch=question.sequences,
        context=question.context,
        kv_bits=question.kv_bits,
    )
    return step.total_s


def _shards(question: MemoryQuestion, degrees: list[int]) -> list[dict[str, float]]:
    return [
        {"tensor": degree, "weights_bytes": question.stage_weights(degree, 1)} for degree in degrees
    ]


def _layout(need: DeviceNeed) -> str:
    if need.devices == 1:
        return "one device"
    stages = f" x {need.pipeline} stages" if need.pipeline > 1 else ""
    return f"{need.devices} devices (tensor parallel {need.tensor}{stages})"


def _helps(largest: int, need: DeviceNeed) -> str:
    if largest == need.tensor:
        return (
            "More devices for one replica save less than a tenth of a step: add replicas instead."
        )
    return (
        f"Up to tensor parallel {largest} each doubling still saves a tenth of a step or more; "
        "beyond it, add replicas."
    )


def _parts(need: DeviceNeed) -> PlanTable:
    parts = ("weights", "kv", "activations", "overhead")
    words = {"kv": "KV cache", "overhead": "engine"}
    rows = [
        (
            words.get(part, part),
            gb(getattr(need, part)),
            f"{getattr(need, part) / need.budget:.1%}",
        )
        for part in parts
    ]
    rows.append(("all", gb(need.total), f"{need.total / need.budget:.1%}"))
    headings = ("on the fullest device", "size", "of its budget")
    return PlanTable("Memory", headings, tuple(rows), text_columns=1)


def _layouts(
    question: MemoryQuestion, device: Accelerator, degrees: list[int], chosen: DeviceNeed
) -> PlanTable:
    layouts = [(t, 1) for t in degrees]
    layouts += [(degrees[-1], p) for p in (2, 4, 8) if p <= question.shape.layers]
    if (chosen.tensor, chosen.pipeline) not in layouts:
        layouts.append((chosen.tensor, chosen.pipeline))
    layouts = sorted(layouts, key=lambda each: (each[1], each[0]))[:_ROWS_MAX]
    rows = []
    for tensor, pipeline in layouts:
        need = question.need(tensor, pipeline)
        tokens = question.kv_tokens(tensor, pipeline)
        rows.append(
            (
                str(tensor),
                str(pipeline),
                gb(need.weights),
                f"{max(0, tokens):,}",
                f"{max(0, tokens) // question.context:,}",
                f"{_step_s(question, device, tensor, pipeline) * 1e3:.2f}",
                "yes" if need.fits else "no",
            )
        )
    headings = ("tensor", "stages", "weights", "KV tokens", "requests", "step, ms", "fits")
    marked = layouts.index((chosen.tensor, chosen.pipeline))
    return PlanTable("Layouts", headings, tuple(rows), marked)


def _device_notes(shape: ModelShape, engine: EngineProfile, source: str) -> tuple[str, ...]:
    notes = [
        (
            f"Sizes of the model: {source}. Overheads of {engine.name}: {engine.source}. "
            "Step times are floors by bandwidth and arithmetic; engines take 1.2 to 1.5 times that."
        ),
    ]
    if not shape.exact:
        notes.append(
            "The family of this config is not known here, and its weights are counted as Llama's "
            "would be. Give --weights with the size of its files to be sure."
        )
    if shape.experts:
        notes.append(
            f"Of {shape.parameters / 1e9:.1f} billion weights a token meets "
            f"{shape.active_parameters / 1e9:.1f} billion; memory holds all of them."
        )
    return tuple(notes)


def _device_steps(
    values: Mapping[str, Any], question: MemoryQuestion, need: DeviceNeed
) -> tuple[PlanStep, ...]:
    _, weights = weights_of(values, question.shape)
    share = question.stage_kv_per_token(need.tensor, need.pipeline)
    stages = stage_layers(question.shape.layers, need.pipeline)
    layers = "; ".join(f"{each.start}-{each.stop - 1}" for each in stages)
    budget = f"{gb(question.device_bytes)} x {question.utilisation:g} = {gb(need.budget)}"
    total = f"{gb(need.weights)} + {gb(need.kv)} + {gb(need.activations)} + {gb(need.overhead)}"
    return (
        weights,
        kv_step(question.shape, question.kv_bits),
        PlanStep("weights of the fullest device", "stage / tensor degree", gb(need.weights)),
        PlanStep("layers of each stage", "as even as they can be", layers),
        PlanStep(
            "KV cache of the fullest device",
            "context x requests x share of a token",
            f"{question.context:,} x {question.sequences:,} x {share:,.0f} B = {gb(need.kv)}",
        ),
        PlanStep(
            "activations",
            "batch tokens x (3 x width / tensor + 4 x hidden) x 2 + requests x vocabulary x 12",
            f"{question.batch_tokens:,} tokens: {gb(need.activations)}",
        ),
        PlanStep("budget", "memory x utilisation", budget),
        PlanStep("total", "weights + KV + activations + engine", f"{total} = {gb(need.total)}"),
    )


def _device_snippets(
    values: Mapping[str, Any], name: str, need: DeviceNeed, host: float
) -> tuple[PlanSnippet, ...]:
    mib = int(host / 2**20)
    task = {
        "memory": int(mib * 1.25),
        "memoryReservation": mib,
        "resourceRequirements": [{"type": "GPU", "value": str(need.devices)}],
    }
    pod = (
        "resources:\n"
        f"  requests: {{memory: {mib}Mi, nvidia.com/gpu: {need.devices}}}\n"
        f"  limits: {{memory: {int(mib * 1.25)}Mi, nvidia.com/gpu: {need.devices}}}\n"
    )
    if need.tensor > 1:
        pod += (
            "# and an emptyDir of medium Memory at /dev/shm: tensor parallel processes meet there\n"
        )
    share = values["utilisation"] or ENGINES[values["engine"]].utilisation
    engine = values["engine"] if values["engine"] != "other" else "vllm"
    fleet = (
        "models:\n"
        f"  - name: {name}\n"
        f"    engine: {engine}\n"
        "    launch:\n"
        f"      weights: {MODELS[name].source if name in MODELS else name}\n"
        f"      tensor_parallel: {need.tensor}\n"
        f"      pipeline_parallel: {need.pipeline}\n"
        f"      context: {values['context']}\n"
        f"      slots: {values['concurrency']}\n"
        f"      memory_fraction: {share:g}\n"
        f"      memory: {{reservation: {mib}MiB, limit: {int(mib * 1.25)}MiB}}\n"
    )
    return (
        PlanSnippet("ECS container definition", "json", json.dumps(task, indent=2)),
        PlanSnippet("Kubernetes container", "yaml", pod.rstrip()),
        PlanSnippet("Fleet file", "yaml", fleet.rstrip()),
    )


def _chart(question: MemoryQuestion, degrees: list[int]) -> PlanChart:
    needs_by_degree = [question.need(degree) for degree in degrees]
    names = {
        "weights": "weights",
        "kv": "KV cache",
        "activations": "activations",
        "overhead": "engine",
    }
    series = tuple(
        ChartSeries(
            words,
            tuple((float(at), getattr(need, part) / GB) for at, need in enumerate(needs_by_degree)),
        )
        for part, words in names.items()
    )
    return PlanChart(
        "Memory of one device by tensor parallel degree",
        "tensor parallel degree",
        "memory, GB",
        series,
        ChartKind.BARS,
        tuple(str(degree) for degree in degrees),
        needs_by_degree[0].budget / GB,
        "what the engine may use",
    )


_SPELLED: Final = {
    "memory.sequences": "concurrency",
    "memory.device_bytes": "device",
    "memory.weight_bytes": "weights",
    "parallelism.devices_per_host": "devices_per_host",
}

MEMORY: Final = PlanKind(
    name="memory",
    title="Memory of a model, and the devices it fits on",
    fields=FIELDS,
    answer=memory,
    missing=_missing,
    spelled=lambda field: _SPELLED.get(field, field),
)

__all__ = ["MEMORY", "memory"]
