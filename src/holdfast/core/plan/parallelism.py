"""What dividing a model over devices buys: step times, bytes on the links, idle pipeline stages.

Three ways to use more devices. *Tensor*: every layer is divided, so each step reads fewer bytes
per device and pays two all-reduces per layer. *Pipeline*: whole layers are divided, so each
device holds less, and a token still passes all of them one after the other. *Data*: more
replicas.

Times are floors: weights and KV cache are read once per step at the nominal bandwidth, or
computed at the nominal rate, whichever takes longer. Engines take 1.2 to 1.5 times as long; the
comparison between layouts holds as long as that factor is alike for all of them.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.core.plan.accelerators import Accelerator, Link
from holdfast.core.plan.model_shape import ModelShape, Quantisation
from holdfast.core.plan.redundancy import spread
from holdfast.core.types import require

HELPS: Final = 0.9  # twice the devices must save a tenth of a step, or they do not help
ACTIVATION_BYTES: Final = 2  # 16 bits between layers and devices


def _at_least_one(value: int, name: str) -> None:
    require(value >= 1, f"parallelism.{name}", f"is {value}", "use 1 or more")


def pipeline_bubble(stages: int, microbatches: int) -> float:
    """Return the share of time that a pipeline stage stands idle: ``(P - 1) / (m + P - 1)``.

    Assumes stages of equal length and ``m`` microbatches that drain before the next begin. An
    engine that refills the pipeline continuously has no bubble with ``P`` microbatches or more.
    """
    _at_least_one(stages, "stages")
    _at_least_one(microbatches, "microbatches")
    return (stages - 1) / (microbatches + stages - 1)


def stage_layers(layers: int, stages: int) -> tuple[range, ...]:
    """Return a range of layer indices for each stage: contiguous, as even as they can be.

    Raises ``ConfigError`` with more stages than layers.
    """
    _at_least_one(stages, "stages")
    fits = stages <= layers
    require(fits, "parallelism.stages", f"is {stages}", f"use at most the {layers} layers")
    ranges, first = [], 0
    for size in spread(layers, stages):
        ranges.append(range(first, first + size))
        first += size
    return tuple(ranges)


def all_reduce_bytes(devices: int, tokens: int, hidden: int) -> float:
    """Return the bytes one device sends in a ring all-reduce of the activations of ``tokens``.

    ``2 (T - 1) / T x tokens x hidden x 2``. Assumes a ring; switches that reduce in the network
    halve it.
    """
    _at_least_one(devices, "devices")
    return 2.0 * (devices - 1) / devices * tokens * hidden * ACTIVATION_BYTES


def stage_bytes(tokens: int, hidden: int) -> float:
    """Return the bytes one stage passes to the next: the 16-bit activations of ``tokens``."""
    return float(tokens * hidden * ACTIVATION_BYTES)


@dataclass(slots=True, frozen=True)
class Layout:
    """How one replica is divided over devices: tensor degree, pipeline stages, and their links."""

    tensor: int
    pipeline: int
    tensor_link: Link
    pipeline_link: Link

    def __post_init__(self) -> None:
        _at_least_one(self.tensor, "tensor")
        _at_least_one(self.pipeline, "pipeline")

    @property
    def devices(self) -> int:
        """How many devices one replica takes: tensor degree times pipeline stages."""
        return self.tensor * self.pipeline


@dataclass(slots=True, frozen=True)
class StepTime:
    """Result of ``decode_step``: seconds of one step, a token for each request, by part."""

    weights_s: float
    kv_s: float
    compute_s: float
    all_reduce_s: float
    stages_s: float
    all_reduce_bytes: float  # sent by one device in one step

    @property
    def total_s(self) -> float:
        """Seconds of the whole step: the longer of reading and computing, plus communication."""
        return max(self.weights_s + self.kv_s, self.compute_s) + self.all_reduce_s + self.stages_s


def decode_step(
    shape: ModelShape,
    quantisation: Quantisation,
    device: Accelerator,
    layout: Layout,
    *,
    batch: int,
    context: float,
    kv_bits: float = 16.0,
) -> StepTime:
    """Return the ``StepTime`` of a replica with ``batch`` requests of ``context`` tokens each.

    A floor from data-sheet figures. Each of ``P`` stages reads its weights ``P`` times per step:
    stages buy room, not speed. Assumes that all weights are read in a step, which for experts holds
    from some tens of requests on.
    """
    _at_least_one(batch, "batch")
    require(context >= 0, "parallelism.context", f"is {context}", "use 0 tokens or more")
    t, p = layout.tensor, layout.pipeline
    weights = shape.weight_bytes(quantisation) / t / device.bytes_per_s
    held = batch * context * shape.kv_bytes_per_token(kv_bits) * shape.kv_share(t)
    kv = held / p / device.bytes_per_s
    compute = 2.0 * shape.active_parameters * batch / (t * p) / device.flops
    sent = all_reduce_bytes(t, batch, shape.hidden) * 2 * shape.layers
    messages = 2 * shape.layers if t > 1 else 0
    talk = sent / layout.tensor_link.bytes_per_s + messages * layout.tensor_link.latency_s
    passed = (p - 1) * stage_bytes(batch, shape.hidden)
    hops = (p - 1) * layout.pipeline_link.latency_s
    stages = passed / layout.pipeline_link.bytes_per_s + hops
    return StepTime(weights, kv, compute, talk, stages, sent)


def prefill_time(
    shape: ModelShape, device: Accelerator, layout: Layout, tokens: int, microbatches: int = 1
) -> float:
    """Return the seconds to read a prompt of ``tokens``: compute, all-reduces, pipeline bubble.

    A floor: ``2 x active parameters`` operations per token. Leaves out the attention's square term,
    a tenth of the rest at about 20,000 tokens for a model of 8 billion.
    """
    _at_least_one(tokens, "tokens")
    t, p = layout.tensor, layout.pipeline
    compute = 2.0 * shape.active_parameters * tokens / (t * p) / device.flops
    sent = all_reduce_bytes(t, tokens, shape.hidden) * 2 * shape.layers / p
    talk = sent / layout.tensor_link.bytes_per_s
    talk += (2 * shape.layers if t > 1 else 0) * layout.tensor_link.latency_s
    return (compute + talk) / (1.0 - pipeline_bubble(p, microbatches))


def tensor_degrees(shape: ModelShape, most: int) -> list[int]:
    """Return the tensor degrees up to ``most``: powers of two that divide the heads, from 1."""
    _at_least_one(most, "devices_per_host")
    degrees, degree = [], 1
    while degree <= most:
        if shape.heads % degree == 0:
            degrees.append(degree)
        degree *= 2
    return degrees


__all__ = [
    "HELPS",
    "Layout",
    "StepTime",
    "all_reduce_bytes",
    "decode_step",
    "pipeline_bubble",
    "prefill_time",
    "stage_bytes",
    "stage_layers",
    "tensor_degrees",
]
