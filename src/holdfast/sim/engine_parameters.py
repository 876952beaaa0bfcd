"""Parameters of a simulated engine: how long a step takes, and how much fits into a batch."""

from dataclasses import dataclass

from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class EngineParameters:
    """Coefficients of an engine's step time and the limits of its batch and memory."""

    step_ms: float = 13.0  # a: the floor of a step, reading all weights once
    per_sequence_ms: float = 0.075  # c: for each request in the batch
    per_kv_token_ms: float = 4.0e-5  # b: attention over the tokens held
    per_prompt_token_ms: float = 0.04  # p: prefill, about 25,000 tokens/s
    batch_max: int = 128  # requests in a batch
    kv_tokens_max: int = 400_000  # tokens of KV memory; requests wait when it is full
    prefill_tokens_max: int = 32_768  # prompt tokens admitted in one step; the first always fits
    overhead_ms: float = 0.0  # outside of the engine: gateway, network, tokenizer; delays no other
    host_room: int = 1  # replicas of one host that run at full speed together
    neighbour_share: float = 0.0  # each further busy one makes a step longer by this share of it
    wander: float = 0.0  # how much its speed varies from second to second: σ of its logarithm
    wander_shared: bool = False  # all replicas of a host are slow in the same seconds
    kv_block_tokens: int = 0  # tokens of a cached prompt block, as the trace has them; 0 = no cache

    def __post_init__(self) -> None:
        for name in ("per_sequence_ms", "per_kv_token_ms", "per_prompt_token_ms", "overhead_ms"):
            value = getattr(self, name)
            require(value >= 0, f"engine.{name}", f"is {value}", "use milliseconds, 0 or more")
        positive = self.step_ms > 0 or self.per_sequence_ms > 0
        require(positive, "engine.step_ms", f"is {self.step_ms}", "a step must take time")
        require(self.step_ms >= 0, "engine.step_ms", f"is {self.step_ms}", "use 0 or more")
        share = self.neighbour_share
        require(share >= 0, "engine.neighbour_share", f"is {share}", "use a share, 0 or more")
        fix = "use the standard deviation of its logarithm, 0 to 1"
        require(0 <= self.wander <= 1, "engine.wander", f"is {self.wander}", fix)
        for name in ("batch_max", "kv_tokens_max", "prefill_tokens_max", "host_room"):
            value = getattr(self, name)
            require(value >= 1, f"engine.{name}", f"is {value}", "use 1 or more")
        block, memory = self.kv_block_tokens, self.kv_tokens_max
        fix = f"use the block size of the trace's prefix hashes, up to {memory}, or 0 for no cache"
        require(0 <= block <= memory, "engine.kv_block_tokens", f"is {block}", fix)


__all__ = ["EngineParameters"]
