"""Computes what a replica holds in memory, and over how many devices it must be divided to fit.

Four parts: the weights at their quantisation; the KV cache of all requests at once; the activations
of one forward pass; and what the engine and the operating system take before any model is there. A
device fits if the four stay below the share of its memory that the engine may use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from holdfast.core.plan.model_shape import ModelShape, Quantisation
from holdfast.core.types import require

GB: Final = 1e9
STAGES_MAX: Final = 16  # beyond, a token passes through more hosts than anybody keeps alive


@dataclass(slots=True, frozen=True)
class EngineProfile:
    """Built-in figures of one engine: memory it takes beside the model, tokens of one pass."""

    name: str
    overhead_bytes: float  # of one device, or of the process where there is none
    host_bytes: float  # of host memory, where the model is on devices
    batch_tokens: int  # prompt tokens in one forward pass
    utilisation: float  # the share of a device's memory that the engine is allowed to take
    source: str


# Measured: llama.cpp of `holdfast up` held 341 MB with 98 MB of weights and 189 MB of KV cache;
# vLLM 0.19 left 5.43 GB for the cache on a 25.25 GB device at 0.9 with 16.06 GB of weights.
ENGINES: Final[Mapping[str, EngineProfile]] = {
    one.name: one
    for one in (
        EngineProfile("vllm", 0.7e9, 6e9, 8192, 0.9, "vLLM's own start-up log, 0.6 to 0.19"),
        EngineProfile("sglang", 0.7e9, 6e9, 8192, 0.88, "as vLLM; its default memory fraction"),
        EngineProfile("llamacpp", 0.05e9, 0.5e9, 512, 0.95, "the embedded engine, measured"),
        EngineProfile("other", 1.0e9, 4e9, 2048, 0.9, "an assumption: give --overhead"),
    )
}


def activation_bytes(shape: ModelShape, tensor: int, batch_tokens: int, sequences: int) -> float:
    """Return the peak bytes of activations on one device in a forward pass.

    The widest moment of a layer at 16 bits, divided by the tensor degree, four copies of the hidden
    state, and three 32-bit copies of every sequence's logits. Breaks for engines without fused
    attention, whose scores grow with the square of a prompt.
    """
    require(batch_tokens >= 1, "memory.batch_tokens", f"is {batch_tokens}", "use 1 or more")
    wide = 3 * shape.active_width / tensor + 4 * shape.hidden
    return batch_tokens * wide * 2.0 + sequences * shape.vocabulary * 4.0 * 3.0


@dataclass(slots=True, frozen=True)
class DeviceNeed:
    """Result: bytes that the fullest device of one replica holds, by part, and its budget."""

    tensor: int
    pipeline: int
    weights: float
    kv: float
    activations: float
    overhead: float
    budget: float  # what the engine may use of the device

    @property
    def total(self) -> float:
        """Bytes of weights, KV cache, activations and overhead together."""
        return self.weights + self.kv + self.activations + self.overhead

    @property
    def fits(self) -> bool:
        """Whether ``total`` is at most the budget that the engine may use of the device."""
        return self.total <= self.budget

    @property
    def devices(self) -> int:
        """How many devices one replica takes: tensor degree times pipeline stages."""
        return self.tensor * self.pipeline


@dataclass(slots=True, frozen=True)
class MemoryQuestion:
    """A model, the requests at once and a device, to compute memory for; holds inputs only.

    Raises ``ConfigError`` when built with a bad value.
    """

    shape: ModelShape
    quantisation: Quantisation
    context: int  # tokens of one request, prompt and answer
    sequences: int  # requests at once
    device_bytes: float
    utilisation: float
    overhead: float
    kv_bits: float = 16.0
    batch_tokens: int = 8192
    activations: float | None = None  # bytes per device; None: by the formula
    weight_bytes: float | None = None  # of the whole model; None: by the formula

    def __post_init__(self) -> None:
        for name in ("context", "sequences"):
            value = getattr(self, name)
            require(value >= 1, f"memory.{name}", f"is {value}", "use 1 or more")
        fix = "use bytes above 0, such as 80GB"
        size = self.device_bytes
        require(size > 0, "memory.device_bytes", f"is {size:g}", fix)
        share = self.utilisation
        good = 0.0 < share <= 1.0
        require(good, "memory.utilisation", f"is {share}", "use a share above 0 and up to 1")
        for name in ("overhead", "activations", "weight_bytes"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"memory.{name}", f"is {value}", "use 0 or more")
        bits = self.kv_bits
        require(0 < bits <= 32, "memory.kv_bits", f"is {bits}", "use 16, or 8 for an FP8 cache")

    def stage_weights(self, tensor: int, pipeline: int) -> float:
        """Return the bytes of weights on the fullest device.

        The stage with most layers, and with the larger of embedding and output matrix, divided by
        the tensor degree. Assumes that engines divide every matrix.
        """
        whole = self.shape.weight_bytes(self.quantisation)
        scale = 1.0 if self.weight_bytes is None else self.weight_bytes / whole
        ends = self.shape.end_bytes(self.quantisation)
        most = ceil(self.shape.layers / pipeline) / self.shape.layers
        layers = self.shape.layer_bytes(self.quantisation) * most
        end = sum(ends) if pipeline == 1 else max(ends)
        return (layers + end) * scale / tensor

    def stage_kv_per_token(self, tensor: int, pipeline: int) -> float:
        """Return the bytes of KV cache of one token on the fullest device."""
        most = ceil(self.shape.layers / pipeline) / self.shape.layers
        whole = self.shape.kv_bytes_per_token(self.kv_bits)
        return whole * most * self.shape.kv_share(tensor)

    def need(self, tensor: int = 1, pipeline: int = 1) -> DeviceNeed:
        """Return the ``DeviceNeed`` of the fullest device with this tensor degree and these stages.

        It need not fit: see its ``fits``.
        """
        tokens = self.context * self.sequences
        activations = self.activations
        if activations is None:
            activations = activation_bytes(self.shape, tensor, self.batch_tokens, self.sequences)
        return DeviceNeed(
            tensor,
            pipeline,
            weights=self.stage_weights(tensor, pipeline),
            kv=tokens * self.stage_kv_per_token(tensor, pipeline),
            activations=activations,
            overhead=self.overhead,
            budget=self.device_bytes * self.utilisation,
        )

    def kv_tokens(self, tensor: int = 1, pipeline: int = 1) -> int:
        """Return how many tokens of context, of all requests, fit beside the weights.

        Negative where not even the weights fit.
        """
        need = self.need(tensor, pipeline)
        room = need.budget - need.total + need.kv
        return int(room / self.stage_kv_per_token(tensor, pipeline))

    def smallest(self, degrees: list[int], stages_max: int = STAGES_MAX) -> DeviceNeed | None:
        """Return the ``DeviceNeed`` of the smallest division that fits, or None if none does.

        Fewest pipeline stages first, then the lowest of ``degrees``, the tensor degrees that the
        heads and the host allow: stages make room and no speed.
        """
        for pipeline in range(1, min(stages_max, self.shape.layers) + 1):
            for tensor in sorted(degrees):
                need = self.need(tensor, pipeline)
                if need.fits:
                    return need
        return None


def with_headroom(size: float, headroom: float, step: float = 0.5 * GB) -> float:
    """Return a reservation in bytes for ``size``: with headroom (a share), rounded up to ``step``.

    A limit that equals the footprint is an out-of-memory kill at the first long request.
    """
    good = 0.0 <= headroom <= 10.0
    require(good, "memory.headroom", f"is {headroom}", "use a share such as 0.1, up to 10")
    # Half a byte in a gigabyte more is a rounding error of the sum, not a need.
    return ceil(size * (1.0 + headroom) / step - 1e-9) * step


def fit_on_host(host_bytes: float, reservation: float) -> int:
    """Return how many containers with this reservation a scheduler puts on one host; may be 0.

    Assumes that memory alone decides, and that the scheduler believes the reservation.
    """
    require(host_bytes > 0, "memory.host_memory", f"is {host_bytes:g}", "use a size such as 31GB")
    require(reservation > 0, "memory.reservation", f"is {reservation:g}", "use a size above 0")
    return int(host_bytes / reservation + 1e-9)


__all__ = [
    "ENGINES",
    "GB",
    "STAGES_MAX",
    "DeviceNeed",
    "EngineProfile",
    "MemoryQuestion",
    "activation_bytes",
    "fit_on_host",
    "with_headroom",
]
