"""Options of a healthy stand-in: speed, size, and the engine it imitates."""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from holdfast.core.types import require


class Like(StrEnum):
    """The engine that is imitated: metric names, stream format, and how an answer is continued."""

    VLLM = "vllm"
    LLAMACPP = "llamacpp"


@dataclass(slots=True, frozen=True)
class Options:
    """Speed, size and format of a stand-in."""

    models: tuple[str, ...] = ("m",)
    like: Like = Like.VLLM
    ttft_ms: float = 50.0  # a small model on a free GPU
    tpot_ms: float = 10.0
    tokens: int = 20  # words in a whole answer
    tokens_per_chunk: int = 1  # speculative decoding packs several into one event
    prefill_us_per_token: float = 0.0  # added to the first token for every word of the prompt
    step_ms: float = (
        0.0  # above 0: answers advance in one batch, and tpot_ms and ttft_ms are unused
    )
    per_sequence_ms: float = 0.0  # in a batch: for each answer in it
    per_kv_token_ms: float = 0.0  # in a batch: for each token held
    slots: int = 0  # answers at once; further ones wait. 0 = as many as come
    kv_tokens: int = 262_144  # what the KV cache holds: eight 32k prompts
    # Of its answers so many begin with a word as likely as the usual one, and go on otherwise: a
    # model whose best tokens are nearly tied, and no fault.
    tied: float = 0.0
    seed: int = 1  # of the chance in flaky and tied
    # Paths that it does not have: an engine that only chats lacks "/v1/embeddings". The status is
    # 404 as of a server without the path, or 501 as of one that was not started for the task.
    lacks: tuple[str, ...] = ()
    lacks_status: int = 404

    def __post_init__(self) -> None:
        named = bool(self.models) and all(self.models)
        require(named, "standin.model", "is empty", "name at least one model")
        times = ("ttft_ms", "tpot_ms", "prefill_us_per_token", "step_ms", "per_sequence_ms")
        for name in (*times, "per_kv_token_ms"):
            value = getattr(self, name)
            fits = isfinite(value) and 0 <= value <= 3.6e6
            require(fits, f"standin.{name}", f"is {value}", "use 0 up to an hour")
        for name in ("tokens", "tokens_per_chunk", "kv_tokens"):
            value = getattr(self, name)
            require(value >= 1, f"standin.{name}", f"is {value}", "use 1 or more")
        require(self.tokens <= 1_000_000, "standin.tokens", f"is {self.tokens}", "use less")
        require(0 <= self.tied <= 1, "standin.tied", f"is {self.tied}", "use a share in [0, 1]")
        require(self.slots >= 0, "standin.slots", f"is {self.slots}", "use 0 for unlimited")


__all__ = ["Like", "Options"]
