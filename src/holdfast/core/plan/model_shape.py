"""The shape of a transformer: its parameters, its bytes at a quantisation, its KV cache per token.

Everything follows from the sizes in a model's public ``config.json``: how many layers, how wide,
how many heads keep keys and values. The counts are exact for the families whose tensors are known
here (Llama, Mistral, Qwen, Mixtral, DeepSeek, OPT and all that share their layers); a config of
another family is counted as if it were one of them, and ``exact`` says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from holdfast.core.types import ConfigError, require

SIZE_MAX: Final = 10_000_000  # of any one dimension: beyond it, a config is a typing error

# Families whose tensors are counted one by one; others are taken for the nearest of them.
_EXACT: Final = frozenset(
    ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "opt")
)


@dataclass(slots=True, frozen=True)
class Quantisation:
    """Bits per weight of one format: inside the layers, of the embedding, of the output matrix."""

    name: str
    bits: float  # of a weight inside the layers, scales included
    embedding_bits: float  # of the input embedding
    output_bits: float  # of the output matrix; also of the embedding, where both are one

    def __post_init__(self) -> None:
        for what in ("bits", "embedding_bits", "output_bits"):
            value = getattr(self, what)
            require(0 < value <= 64, f"quantisation.{what}", f"is {value}", "use bits up to 64")


def _plain(name: str, bits: float) -> Quantisation:
    return Quantisation(name, bits, bits, bits)


def _linear_only(name: str, bits: float) -> Quantisation:
    """Only the matrices inside the layers are quantised; both embeddings keep 16 bits."""
    return Quantisation(name, bits, 16.0, 16.0)


def _gguf(name: str, bits: float) -> Quantisation:
    """GGUF files keep the output matrix at six bits and a half, whatever the layers have."""
    return Quantisation(name, bits, bits, max(bits, 6.5625))


# Bits per weight with the scales of each block: a block of 32 with one 16-bit scale is 4.5 for four
# bits. AWQ and GPTQ have one 16-bit scale and a 4-bit zero for each group of 128.
QUANTISATIONS: Final[Mapping[str, Quantisation]] = {
    one.name: one
    for one in (
        _plain("fp32", 32.0),
        _plain("bf16", 16.0),
        _plain("fp16", 16.0),
        _linear_only("fp8", 8.0),
        _linear_only("int8", 8.0),
        _linear_only("awq", 4.0 + 20.0 / 128.0),
        _linear_only("gptq", 4.0 + 20.0 / 128.0),
        _linear_only("mxfp4", 4.25),
        _gguf("q4_0", 4.5),
        _gguf("q4_1", 5.0),
        _gguf("q4_k_m", 4.85),
        _gguf("q5_k_m", 5.69),
        _gguf("q6_k", 6.5625),
        _gguf("q8_0", 8.5),
    )
}
_ODD_ROW_BITS: Final = 8.5  # GGUF: rows that six-bit blocks of 256 do not divide are kept at eight


@dataclass(slots=True, frozen=True)
class ModelShape:
    """Sizes of a transformer; computes its parameters, bytes of weights and of KV cache per token.

    An optional size of 0 means that the model has no such part (experts, latent attention, learned
    positions). Checked when built: raises ``ConfigError``.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of the feed-forward part of a dense layer
    vocabulary: int
    tied: bool = False  # input embedding and output matrix are one
    gated: bool = True  # three feed-forward matrices; two where there is no gate
    query_bias: bool = False  # on queries, keys and values
    full_bias: bool = False  # on every matrix and norm, as in OPT
    query_norm: bool = False  # queries and keys are normalised by head
    positions: int = 0  # learned positions
    experts: int = 0
    experts_active: int = 0
    expert_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0  # first layers that have no experts
    expert_bias: bool = False  # one correction per expert, for balance
    kv_latent: int = 0  # latent attention (MLA): width of what is cached for keys and values
    kv_rope: int = 0  # and of the part that carries the position
    query_latent: int = 0
    nope_dim: int = 0
    value_dim: int = 0
    exact: bool = True  # the family's tensors are known one by one

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary")
        for name in sizes:
            value = getattr(self, name)
            fix = f"use a whole number from 1 to {SIZE_MAX}"
            require(1 <= value <= SIZE_MAX, f"model.{name}", f"is {value}", fix)
        shared = self.heads % self.kv_heads == 0
        fix = f"use a divisor of the {self.heads} heads"
        require(shared, "model.kv_heads", f"is {self.kv_heads}", fix)
        active = not self.experts or 1 <= self.experts_active <= self.experts
        fix = f"use 1 to {self.experts}"
        require(active, "model.experts_active", f"is {self.experts_active}", fix)

    # --- parameters ------------------------------------------------------------------------------

    @property
    def attention_parameters(self) -> int:
        """Number of weights of the attention of one layer.

        Grouped heads: queries and output have all heads, keys and values only ``kv_heads``. Latent
        attention (MLA): two narrow matrices down and two up in place of keys and values.
        """
        h, width = self.hidden, self.heads * self.head_dim
        if self.kv_latent:
            query_width = self.heads * (self.nope_dim + self.kv_rope)
            queries = (
                h * self.query_latent + self.query_latent * (query_width + 1)
                if self.query_latent
                else h * query_width
            )
            down = h * (self.kv_latent + self.kv_rope) + self.kv_latent
            up = self.kv_latent * self.heads * (self.nope_dim + self.value_dim)
            return queries + down + up + self.heads * self.value_dim * h
        kv_width = self.kv_heads * self.head_dim
        total = 2 * h * width + 2 * h * kv_width
        total += width + 2 * kv_width if self.query_bias or self.full_bias else 0
        total += h if self.full_bias else 0
        return total + (2 * self.head_dim if self.query_norm else 0)

    def _feed_forward(self, width: int) -> int:
        matrices = 3 if self.gated else 2
        bias = width + self.hidden if self.full_bias else 0
        return matrices * self.hidden * width + bias

    def _layer(self, index: int) -> int:
        norms = 2 * self.hidden * (2 if self.full_bias else 1)
        common = self.attention_parameters + norms
        if not self.experts or index < self.dense_layers:
            return common + self._feed_forward(self.intermediate)
        experts = self.experts + self.shared_experts
        gate = self.hidden * self.experts + (self.experts if self.expert_bias else 0)
        return common + gate + experts * self._feed_forward(self.expert_intermediate)

    @property
    def embedding_parameters(self) -> int:
        """Number of weights of the input embedding, learned positions included."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def output_parameters(self) -> int:
        """Number of weights of the output matrix; 0 where it is the embedding (``tied``)."""
        return 0 if self.tied else self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Number of weights of all layers together and the last norm."""
        last = self.hidden * (2 if self.full_bias else 1)
        return sum(self._layer(index) for index in range(self.layers)) + last

    @property
    def parameters(self) -> int:
        """Number of all weights of the model, with all experts."""
        return self.embedding_parameters + self.layer_parameters + self.output_parameters

    @property
    def active_width(self) -> int:
        """Feed-forward width that one token passes through; with experts, of the active ones."""
        if not self.experts:
            return self.intermediate
        return (self.experts_active + self.shared_experts) * self.expert_intermediate

    @property
    def active_parameters(self) -> int:
        """Number of weights one token meets: with experts, those of the active ones only."""
        if not self.experts:
            return self.parameters
        idle = self.experts - self.experts_active
        unused = idle * self._feed_forward(self.expert_intermediate)
        return self.parameters - unused * (self.layers - self.dense_layers)

    # --- bytes -----------------------------------------------------------------------------------

    def weight_bytes(self, quantisation: Quantisation) -> float:
        """Return the bytes of all weights at a quantisation.

        Assumes that norms and biases are quantised with the rest. Breaks for mixed files that give
        some layers more bits than others: take the file's size.
        """
        return self.layer_bytes(quantisation) + sum(self.end_bytes(quantisation))

    def layer_bytes(self, quantisation: Quantisation) -> float:
        """Return the bytes of all layers together, without embedding and output matrix."""
        return self.layer_parameters * quantisation.bits / 8.0

    def end_bytes(self, quantisation: Quantisation) -> tuple[float, float]:
        """Return (bytes of the input embedding, bytes of the output matrix: 0 if tied)."""
        bits = quantisation.output_bits if self.tied else quantisation.embedding_bits
        if bits == 6.5625 and self.hidden % 256:
            bits = _ODD_ROW_BITS
        output = quantisation.output_bits
        return self.embedding_parameters * bits / 8.0, self.output_parameters * output / 8.0

    def kv_bytes_per_token(self, kv_bits: float = 16.0) -> float:
        """Return the bytes of KV cache that one token of context takes in the whole model.

        ``2 x layers x kv_heads x head_dim`` numbers, or with latent attention ``layers x (kv_latent
        + kv_rope)``. Assumes that every layer attends to the whole context; sliding windows and
        state-space layers take less.
        """
        if self.kv_latent:
            return self.layers * (self.kv_latent + self.kv_rope) * kv_bits / 8.0
        return 2 * self.layers * self.kv_heads * self.head_dim * kv_bits / 8.0

    def kv_share(self, tensor: int) -> float:
        """Return the share (0 to 1) of the KV cache that each of ``tensor`` devices holds.

        Heads are divided among devices; beyond ``kv_heads`` devices they are copied, and a latent
        is copied to all.
        """
        if self.kv_latent:
            return 1.0
        return ceil(self.kv_heads / tensor) / self.kv_heads


# --- a config.json ------------------------------------------------------------------------------

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "multi_query_group_num"),
    "intermediate": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocabulary": ("vocab_size",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "expert_intermediate": ("moe_intermediate_size",),
}


def shape_of_config(config: Mapping[str, Any]) -> ModelShape:
    """Read a model's ``config.json``, as model hubs publish it, into a ``ModelShape``.

    Raises ``ConfigError`` where a needed size is missing or bad. A multimodal config is read for
    its language part: what its other parts weigh is not in it.
    """
    text = config.get("text_config") or config.get("llm_config")
    if isinstance(text, Mapping):
        inherited = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        config = {**inherited, **text}
    family = str(config.get("model_type", ""))
    hidden, heads = _size(config, "hidden"), _size(config, "heads")
    experts = _size(config, "experts", 0)
    intermediate = _size(config, "intermediate", 4 * hidden)
    latent = _whole(config, "kv_lora_rank", 0)
    old = family in ("opt", "gpt2")
    return ModelShape(
        layers=_size(config, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_size(config, "kv_heads", heads),
        head_dim=_whole(config, "head_dim", max(1, hidden // heads)),
        intermediate=intermediate,
        vocabulary=_size(config, "vocabulary"),
        tied=bool(config.get("tie_word_embeddings", old)),
        gated=not old,
        query_bias=bool(config.get("attention_bias", family == "qwen2")),
        full_bias=old,
        query_norm=family.startswith("qwen3"),
        positions=_whole(config, "max_position_embeddings", 0) + 2 if family == "opt" else 0,
        experts=experts,
        experts_active=_whole(config, "num_experts_per_tok", 2) if experts else 0,
        expert_intermediate=_size(config, "expert_intermediate", intermediate) if experts else 0,
        shared_experts=_whole(config, "n_shared_experts", 0),
        dense_layers=_whole(config, "first_k_dense_replace", 0),
        expert_bias=family == "deepseek_v3",
        kv_latent=latent,
        kv_rope=_whole(config, "qk_rope_head_dim", 0) if latent else 0,
        query_latent=_whole(config, "q_lora_rank", 0) if latent else 0,
        nope_dim=_whole(config, "qk_nope_head_dim", 0) if latent else 0,
        value_dim=_whole(config, "v_head_dim", 0) if latent else 0,
        exact=family in _EXACT,
    )


def _size(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    for name in _NAMES[field]:
        if config.get(name) is not None:
            return _whole(config, name, 0)
    if default is None:
        names = " or ".join(_NAMES[field])
        problem = f"has no {names}"
        raise ConfigError("config_json", problem, "give the config.json of a transformer")
    return default


def _whole(config: Mapping[str, Any], name: str, default: int) -> int:
    value = config.get(name)
    if value is None:
        return default
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_MAX
    fix = f"use a whole number from 0 to {SIZE_MAX}"
    require(whole, f"config_json.{name}", f"is {value!r}"[:80], fix)
    return int(value)


__all__ = ["QUANTISATIONS", "SIZE_MAX", "ModelShape", "Quantisation", "shape_of_config"]
