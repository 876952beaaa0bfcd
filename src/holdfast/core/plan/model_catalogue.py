"""Well-known models, each with the sizes of its public ``config.json``.

The sizes are those that the publisher's ``config.json`` on its model page states; ``source`` names
that page. Nothing here was estimated. A model that is missing is read from its own file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.core.plan.model_shape import ModelShape
from holdfast.core.types import ConfigError


@dataclass(slots=True, frozen=True)
class KnownModel:
    """One published model of the built-in list: its name, its ``ModelShape`` and their source."""

    name: str
    shape: ModelShape
    source: str  # whose config.json


def _llama3(layers: int, hidden: int, heads: int, wide: int, *, tied: bool = False) -> ModelShape:
    head = hidden // heads
    return ModelShape(layers, hidden, heads, 8, head, wide, 128_256, tied=tied)


def _llama2(layers: int, hidden: int, heads: int, kv_heads: int, wide: int) -> ModelShape:
    return ModelShape(layers, hidden, heads, kv_heads, 128, wide, 32_000)


def _qwen3(layers: int, hidden: int, heads: int, wide: int, *, tied: bool = False) -> ModelShape:
    return ModelShape(layers, hidden, heads, 8, 128, wide, 151_936, tied=tied, query_norm=True)


_DEEPSEEK_V3: Final = ModelShape(
    layers=61,
    hidden=7168,
    heads=128,
    kv_heads=128,
    head_dim=192,
    intermediate=18_432,
    vocabulary=129_280,
    experts=256,
    experts_active=8,
    expert_intermediate=2048,
    shared_experts=1,
    dense_layers=3,
    expert_bias=True,
    kv_latent=512,
    kv_rope=64,
    query_latent=1536,
    nope_dim=128,
    value_dim=128,
)
_QWEN3_30B: Final = ModelShape(
    layers=48,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    intermediate=6144,
    vocabulary=151_936,
    query_norm=True,
    experts=128,
    experts_active=8,
    expert_intermediate=768,
)
_MIXTRAL: Final = ModelShape(
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14_336,
    vocabulary=32_000,
    experts=8,
    experts_active=2,
    expert_intermediate=14_336,
)
_OPT_13B: Final = ModelShape(
    layers=40,
    hidden=5120,
    heads=40,
    kv_heads=40,
    head_dim=128,
    intermediate=20_480,
    vocabulary=50_272,
    tied=True,
    gated=False,
    full_bias=True,
    positions=2050,
)

MODELS: Final[Mapping[str, KnownModel]] = {
    name: KnownModel(name, shape, source)
    for name, shape, source in (
        ("llama-3.1-8b", _llama3(32, 4096, 32, 14_336), "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-70b", _llama3(80, 8192, 64, 28_672), "meta-llama/Llama-3.1-70B"),
        ("llama-3.1-405b", _llama3(126, 16_384, 128, 53_248), "meta-llama/Llama-3.1-405B"),
        ("llama-3.2-1b", _llama3(16, 2048, 32, 8192, tied=True), "meta-llama/Llama-3.2-1B"),
        ("llama-3.2-3b", _llama3(28, 3072, 24, 8192, tied=True), "meta-llama/Llama-3.2-3B"),
        ("llama-2-7b", _llama2(32, 4096, 32, 32, 11_008), "meta-llama/Llama-2-7b-hf"),
        ("llama-2-13b", _llama2(40, 5120, 40, 40, 13_824), "meta-llama/Llama-2-13b-hf"),
        ("llama-2-70b", _llama2(80, 8192, 64, 8, 28_672), "meta-llama/Llama-2-70b-hf"),
        (
            "mistral-7b",
            ModelShape(32, 4096, 32, 8, 128, 14_336, 32_000),
            "mistralai/Mistral-7B-v0.1",
        ),
        ("mixtral-8x7b", _MIXTRAL, "mistralai/Mixtral-8x7B-v0.1"),
        (
            "qwen2.5-7b",
            ModelShape(28, 3584, 28, 4, 128, 18_944, 152_064, query_bias=True),
            "Qwen/Qwen2.5-7B",
        ),
        (
            "qwen2.5-72b",
            ModelShape(80, 8192, 64, 8, 128, 29_568, 152_064, query_bias=True),
            "Qwen/Qwen2.5-72B",
        ),
        ("qwen3-4b", _qwen3(36, 2560, 32, 9728, tied=True), "Qwen/Qwen3-4B"),
        ("qwen3-8b", _qwen3(36, 4096, 32, 12_288), "Qwen/Qwen3-8B"),
        ("qwen3-32b", _qwen3(64, 5120, 64, 25_600), "Qwen/Qwen3-32B"),
        ("qwen3-30b-a3b", _QWEN3_30B, "Qwen/Qwen3-30B-A3B"),
        ("deepseek-v3", _DEEPSEEK_V3, "deepseek-ai/DeepSeek-V3"),
        ("opt-13b", _OPT_13B, "facebook/opt-13b"),
        (
            "smollm2-135m",
            ModelShape(30, 576, 9, 3, 64, 1536, 49_152, tied=True),
            "HuggingFaceTB/SmolLM2-135M",
        ),
    )
}


def known_model(name: str) -> KnownModel:
    """Return the built-in ``KnownModel`` of this name, in any case.

    Raises ``ConfigError`` that lists the names if there is none.
    """
    found = MODELS.get(name.strip().lower())
    if found is None:
        fix = f"use one of {', '.join(MODELS)}, or give its config.json or its parameters"
        raise ConfigError("model", f"{name[:80]!r} is not built in", fix)
    return found


__all__ = ["MODELS", "KnownModel", "known_model"]
