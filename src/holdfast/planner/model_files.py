"""Finds the model of a question: built in, in a file, or known by its size alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from holdfast.core.plan.accelerators import Accelerator
from holdfast.core.plan.memory import EngineProfile, MemoryQuestion
from holdfast.core.plan.model_catalogue import known_model
from holdfast.core.plan.model_shape import QUANTISATIONS, ModelShape, shape_of_config
from holdfast.core.types import ConfigError
from holdfast.planner.answer import PlanStep
from holdfast.planner.units import gb

_CONFIG_BYTES_MAX: Final = 1 << 20


def model_of(values: Mapping[str, Any]) -> tuple[str, ModelShape | None, str]:
    """Name, shape and source of the model; no shape where only its size is known."""
    if values["model"] is not None:
        known = known_model(values["model"])
        return known.name, known.shape, f"config.json of {known.source}"
    if values["config_json"] is not None:
        path = Path(values["config_json"])
        return path.parent.name or "model", _read_config(path), str(path)
    return f"{values['parameters'] / 1e9:g}B parameters", None, "the number of parameters given"


def _read_config(path: Path) -> ModelShape:
    try:
        with path.open("rb") as file:
            content = file.read(_CONFIG_BYTES_MAX + 1)
        config = orjson.loads(content)
    except OSError as error:
        raise ConfigError(
            "config_json", f"cannot be read: {error.strerror}", "name a file"
        ) from error
    except orjson.JSONDecodeError as error:
        raise ConfigError("config_json", f"is no JSON: {error}", "name a config.json") from error
    if not isinstance(config, dict):
        raise ConfigError("config_json", "holds no object", "name the config.json of a model")
    return shape_of_config(config)


def weights_of(values: Mapping[str, Any], shape: ModelShape | None) -> tuple[float, PlanStep]:
    """Bytes of all weights, and how they were found."""
    quantisation = QUANTISATIONS[values["quantisation"]]
    if values["weights"] is not None:
        size = float(values["weights"])
        return size, PlanStep("weights", "the size of the files", gb(size))
    if shape is None:
        size = values["parameters"] * quantisation.bits / 8.0
        numbers = f"{values['parameters']:,.0f} x {quantisation.bits:g} / 8 = {gb(size)}"
        return size, PlanStep("weights", "parameters x bits / 8", numbers)
    size = shape.weight_bytes(quantisation)
    numbers = f"{shape.parameters:,} parameters, {quantisation.bits:g} bits = {gb(size)}"
    if quantisation.bits != quantisation.output_bits:
        numbers += f" (output matrix {quantisation.output_bits:g} bits)"
    return size, PlanStep("weights", "parameters x bits / 8", numbers)


def kv_step(shape: ModelShape, bits: float) -> PlanStep:
    """How the KV cache of one token was computed."""
    each = shape.kv_bytes_per_token(bits)
    if shape.kv_latent:
        numbers = (
            f"{shape.layers} x ({shape.kv_latent} + {shape.kv_rope}) x {bits / 8:g} = {each:,.0f} B"
        )
        return PlanStep("KV cache of a token", "layers x (latent + position) x bytes", numbers)
    numbers = (
        f"2 x {shape.layers} x {shape.kv_heads} x {shape.head_dim} x {bits / 8:g} = {each:,.0f} B"
    )
    return PlanStep("KV cache of a token", "2 x layers x KV heads x head size x bytes", numbers)


def memory_question(
    values: Mapping[str, Any], shape: ModelShape, engine: EngineProfile, device: Accelerator | None
) -> MemoryQuestion:
    """The question as the core takes it; without a device it is about one process of a host."""
    given = values["overhead"]
    overhead = engine.overhead_bytes if given is None else given
    share = values["utilisation"]
    if share is None:
        share = engine.utilisation if device is not None else 1.0
    return MemoryQuestion(
        shape=shape,
        quantisation=QUANTISATIONS[values["quantisation"]],
        context=values["context"],
        sequences=values["concurrency"],
        device_bytes=device.memory_bytes if device is not None else values["host_memory"] or 1e18,
        utilisation=share,
        overhead=overhead + (values["buffers"] if device is None else 0.0),
        kv_bits=float(values["kv_bits"]),
        batch_tokens=values["batch_tokens"] or engine.batch_tokens,
        activations=values["activations"],
        weight_bytes=values["weights"],
    )


__all__ = ["kv_step", "memory_question", "model_of", "weights_of"]
