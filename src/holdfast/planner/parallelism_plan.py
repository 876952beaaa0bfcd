"""Plans parallelism: when tensor, pipeline or data parallel pays, within and across hosts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from holdfast.core.plan.accelerators import (
    ACCELERATORS,
    LINKS,
    Accelerator,
    accelerator,
    link_between,
)
from holdfast.core.plan.memory import ENGINES, MemoryQuestion
from holdfast.core.plan.model_catalogue import MODELS
from holdfast.core.plan.model_shape import QUANTISATIONS, ModelShape
from holdfast.core.plan.parallelism import (
    Layout,
    StepTime,
    all_reduce_bytes,
    decode_step,
    pipeline_bubble,
    prefill_time,
    stage_bytes,
    stage_layers,
    tensor_degrees,
)
from holdfast.core.types import ConfigError, require
from holdfast.planner.answer import ChartSeries, PlanAnswer, PlanChart, PlanStep, PlanTable
from holdfast.planner.model_files import model_of
from holdfast.planner.question import FieldKind, PlanField, PlanKind

_ROWS_MAX: Final = 12

FIELDS: Final = (
    PlanField(
        "model", FieldKind.TEXT, f"A model that is built in: {', '.join(MODELS)}.", group="Model"
    ),
    PlanField("config_json", FieldKind.FILE, "Any model's config.json, instead of --model."),
    PlanField("parameters", FieldKind.QUANTITY, "Not enough here: a layout needs the sizes."),
    PlanField(
        "quantisation",
        FieldKind.CHOICE,
        "Format of the weights.",
        "bf16",
        choices=tuple(QUANTISATIONS),
        group="Model",
    ),
    PlanField(
        "device", FieldKind.CHOICE, "What it runs on.", choices=tuple(ACCELERATORS), group="Devices"
    ),
    PlanField(
        "devices", FieldKind.COUNT, "Devices in all.", 8, least=1, most=4096, group="Devices"
    ),
    PlanField(
        "devices_per_host", FieldKind.COUNT, "Devices of one host.", 8, least=1, group="Devices"
    ),
    PlanField(
        "link",
        FieldKind.CHOICE,
        "Link inside a host; default: the device's own.",
        choices=tuple(LINKS),
        group="Devices",
    ),
    PlanField(
        "network",
        FieldKind.CHOICE,
        "Link between hosts.",
        "400gbit",
        choices=tuple(LINKS),
        group="Devices",
    ),
    PlanField(
        "concurrency",
        FieldKind.COUNT,
        "Requests at once, over all devices.",
        64,
        least=1,
        most=1_000_000,
        group="Traffic",
    ),
    PlanField("context", FieldKind.COUNT, "Tokens of one request.", 2048, least=1, group="Traffic"),
    PlanField("prompt", FieldKind.COUNT, "Tokens of a prompt.", 1024, least=1, group="Traffic"),
    PlanField(
        "microbatches", FieldKind.COUNT, "Parts of a prompt in a pipeline.", 4, least=1, most=10_000
    ),
    PlanField("token_budget", FieldKind.DURATION, "Objective: a token within.", group="Traffic"),
)


def _missing(values: Mapping[str, Any]) -> list[str]:
    named = values["model"] is not None or values["config_json"] is not None
    lacking = [] if named else ["model"]
    return lacking + (["device"] if values["device"] is None else [])


@dataclass(slots=True, frozen=True)
class _Candidate:
    """One way to use all devices."""

    layout: Layout
    replicas: int  # data parallel
    step: StepTime
    prefill_s: float
    tokens_s: float  # of all replicas
    fits: bool
    across: bool  # tensor parallel over the network


def parallelism(values: Mapping[str, Any]) -> PlanAnswer:
    """Answer a parallelism question; ``values`` has all of ``FIELDS``."""
    name, shape, source = model_of(values)
    fix = "give --model or --config-json"
    require(shape is not None, "parameters", "say nothing of layers and heads", fix)
    assert shape is not None
    device = accelerator(values["device"])
    found = _candidates(values, shape, device)
    fitting = [one for one in found if one.fits]
    if not fitting:
        problem = f"hold no layout of it over {values['devices']} devices"
        raise ConfigError("devices", problem, "use more or larger devices, or quantise it")
    budget = values["token_budget"]
    timely = [one for one in fitting if budget is None or one.step.total_s <= budget]
    if not timely:
        quick = min(fitting, key=lambda one: one.step.total_s)
        problem = f"is {budget * 1e3:g} ms, and the fastest layout takes "
        problem += f"{quick.step.total_s * 1e3:.3g} ms"
        raise ConfigError("token_budget", problem, "use a later deadline, or faster devices")
    best = max(timely, key=lambda one: (one.tokens_s, -one.layout.devices))
    return PlanAnswer(
        plan="parallelism",
        opening=f"{name} at {values['quantisation']} on {values['devices']} x {device.name}, "
        f"{values['concurrency']} requests of {values['context']:,} tokens",
        verdict=_verdict(best),
        tables=(_table(found, best),),
        remarks=_remarks(values, shape, found, best),
        notes=(
            (
                f"Sizes of the model: {source}. Times are floors by bandwidth, arithmetic and "
                "links; what "
                "they compare holds as long as engines miss them by the same factor."
            ),
        ),
        steps=_steps(values, shape, best),
        charts=(_chart(values, shape, device),),
        figures={
            "model": name,
            "tensor": best.layout.tensor,
            "pipeline": best.layout.pipeline,
            "data": best.replicas,
            "tokens_s": best.tokens_s,
            "step_s": best.step.total_s,
            "bubble": pipeline_bubble(best.layout.pipeline, values["microbatches"]),
            "all_reduce_bytes": all_reduce_bytes(
                best.layout.tensor, _batch(values, best.replicas), shape.hidden
            ),
            "layouts": [_figures(one) for one in found],
        },
    )


def _batch(values: Mapping[str, Any], replicas: int) -> int:
    return max(1, -(-int(values["concurrency"]) // replicas))


def _figures(one: _Candidate) -> dict[str, Any]:
    return {
        "tensor": one.layout.tensor,
        "pipeline": one.layout.pipeline,
        "data": one.replicas,
        "fits": one.fits,
        "tokens_s": one.tokens_s,
        "prefill_s": one.prefill_s,
        "step": asdict(one.step) | {"total_s": one.step.total_s},
    }


def _candidates(
    values: Mapping[str, Any], shape: ModelShape, device: Accelerator
) -> list[_Candidate]:
    """Every division of the devices into replicas, stages and tensor parallel groups."""
    devices, per_host = values["devices"], values["devices_per_host"]
    inside = link_between(values["link"] or device.link)
    network = link_between(values["network"])
    found = []
    for tensor in tensor_degrees(shape, devices):
        for pipeline in (1, 2, 4, 8, 16):
            each = tensor * pipeline
            if each > devices or devices % each or pipeline > shape.layers:
                continue
            across = tensor > per_host
            layout = Layout(
                tensor,
                pipeline,
                network if across else inside,
                inside if each <= per_host else network,
            )
            found.append(_candidate(values, shape, device, layout, devices // each, across=across))
    return sorted(found, key=lambda one: -one.tokens_s)


def _candidate(
    values: Mapping[str, Any],
    shape: ModelShape,
    device: Accelerator,
    layout: Layout,
    replicas: int,
    *,
    across: bool,
) -> _Candidate:
    batch = _batch(values, replicas)
    quantisation = QUANTISATIONS[values["quantisation"]]
    step = decode_step(shape, quantisation, device, layout, batch=batch, context=values["context"])
    engine = ENGINES["other"]
    question = MemoryQuestion(
        shape,
        quantisation,
        values["context"],
        batch,
        device.memory_bytes,
        engine.utilisation,
        engine.overhead_bytes,
        batch_tokens=engine.batch_tokens,
    )
    return _Candidate(
        layout=layout,
        replicas=replicas,
        step=step,
        prefill_s=prefill_time(shape, device, layout, values["prompt"], values["microbatches"]),
        tokens_s=replicas * batch / step.total_s,
        fits=question.need(layout.tensor, layout.pipeline).fits,
        across=across,
    )


def _verdict(best: _Candidate) -> str:
    layout = best.layout
    parts = f"tensor {layout.tensor} x pipeline {layout.pipeline}"
    count = f"{best.replicas} replicas of" if best.replicas > 1 else "One replica of"
    return (
        f"{count} {parts}: a token every {best.step.total_s * 1e3:.3g} ms, "
        f"{best.tokens_s:,.0f} tokens/s in all."
    )


def _table(found: list[_Candidate], best: _Candidate) -> PlanTable:
    shown = found[:_ROWS_MAX]
    if best not in shown:
        shown = [*shown[:-1], best]
    rows = tuple(
        (
            str(one.layout.tensor),
            str(one.layout.pipeline),
            str(one.replicas),
            f"{one.step.total_s * 1e3:.2f}",
            f"{one.step.all_reduce_s / one.step.total_s:.0%}",
            f"{one.prefill_s * 1e3:.0f}",
            f"{one.tokens_s:,.0f}",
            ("yes" if one.fits else "no") + ("*" if one.across else ""),
        )
        for one in shown
    )
    headings = ("TP", "PP", "DP", "step, ms", "on links", "prefill, ms", "tokens/s", "fits")
    return PlanTable("Layouts", headings, rows, shown.index(best))


def _remarks(
    values: Mapping[str, Any], shape: ModelShape, found: list[_Candidate], best: _Candidate
) -> tuple[str, ...]:
    quick = min((one for one in found if one.fits), key=lambda one: one.step.total_s)
    lines = []
    if quick is not best:
        lines.append(
            f"The fastest for one user is tensor {quick.layout.tensor} x pipeline "
            f"{quick.layout.pipeline}: {quick.step.total_s * 1e3:.3g} ms a token, "
            f"{quick.tokens_s:,.0f} tokens/s."
        )
    if best.layout.pipeline > 1:
        ranges = stage_layers(shape.layers, best.layout.pipeline)
        told = ", ".join(f"{each.start}-{each.stop - 1}" for each in ranges)
        lines.append(f"Layers of the stages: {told}.")
    if any(one.across for one in found):
        far = next(one for one in found if one.across)
        lines.append(
            "Tensor parallel across hosts spends "
            f"{far.step.all_reduce_s / far.step.total_s:.0%} of a "
            "step on the network: use stages or replicas there."
        )
    lines.append(
        f"A prompt in {values['microbatches']} parts over {best.layout.pipeline} stages leaves "
        "each "
        f"idle for {pipeline_bubble(best.layout.pipeline, values['microbatches']):.1%} of its time."
    )
    return tuple(lines)


def _steps(values: Mapping[str, Any], shape: ModelShape, best: _Candidate) -> tuple[PlanStep, ...]:
    t, p, m = best.layout.tensor, best.layout.pipeline, values["microbatches"]
    batch = _batch(values, best.replicas)
    each = all_reduce_bytes(t, batch, shape.hidden)
    step = best.step
    numbers = (
        f"2 x {t - 1}/{t} x {batch} x {shape.hidden} x 2 = {each:,.0f} B, x {2 * shape.layers} = "
        f"{each * 2 * shape.layers / 1e6:,.1f} MB a step, {step.all_reduce_s * 1e3:.3g} ms"
    )
    return (
        PlanStep(
            "weights", "bytes / tensor / bandwidth", f"{step.weights_s * 1e3:.3f} ms of each step"
        ),
        PlanStep("KV cache", "requests x context x bytes / bandwidth", f"{step.kv_s * 1e3:.3f} ms"),
        PlanStep("arithmetic", "2 x weights x requests / FLOPS", f"{step.compute_s * 1e3:.3f} ms"),
        PlanStep("all-reduce", "2 (T - 1) / T x requests x hidden x 2, twice a layer", numbers),
        PlanStep(
            "a stage to the next",
            "requests x hidden x 2",
            f"{stage_bytes(batch, shape.hidden):,.0f} B, {step.stages_s * 1e3:.3g} ms",
        ),
        PlanStep(
            "bubble",
            "(P - 1) / (m + P - 1)",
            f"({p} - 1) / ({m} + {p} - 1) = {pipeline_bubble(p, m):.6f}",
        ),
    )


def _chart(values: Mapping[str, Any], shape: ModelShape, device: Accelerator) -> PlanChart:
    quantisation = QUANTISATIONS[values["quantisation"]]
    links = {"inside a host": values["link"] or device.link, "across hosts": values["network"]}
    degrees = tensor_degrees(shape, max(8, min(32, values["devices"])))
    series = []
    for words, link_name in links.items():
        link = link_between(link_name)
        points = []
        for degree in degrees:
            layout = Layout(degree, 1, link, link)
            step = decode_step(
                shape,
                quantisation,
                device,
                layout,
                batch=values["concurrency"],
                context=values["context"],
            )
            points.append((float(degree), step.total_s * 1e3))
        series.append(ChartSeries(f"{words} ({link_name})", tuple(points)))
    return PlanChart(
        "Time of a token by tensor parallel degree",
        "tensor parallel degree",
        "step, ms",
        tuple(series),
    )


_SPELLED: Final = {"memory.sequences": "concurrency", "parallelism.devices_per_host": "devices"}

PARALLELISM: Final = PlanKind(
    name="parallelism",
    title="How to divide a model over devices",
    fields=FIELDS,
    answer=parallelism,
    missing=_missing,
    spelled=lambda field: _SPELLED.get(field, field),
)

__all__ = ["PARALLELISM", "parallelism"]
