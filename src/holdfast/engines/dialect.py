"""What a dialect says about one engine: data and pure readers, no I/O.

``if engine == "vllm"`` anywhere else is a mistake; add a field here. A class per engine with
methods to override was rejected: engines differ in facts, and facts in a table can be printed,
compared and tested. They are those of releases since 2025. What depends on the model served is
stated as absent: a continuation that silently begins anew is worse than none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Continuation(StrEnum):
    """How an engine takes up a chat answer that another replica began."""

    NONE = "none"
    FINAL_MESSAGE = "final_message"  # add_generation_prompt: false, continue_final_message: true
    PREFILL = "prefill"  # a last message of the assistant is continued as it is


@dataclass(slots=True, frozen=True)
class Load:
    """An engine's own account of itself. ``None`` = it did not say, which is not zero."""

    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None  # share of the KV cache, 0 to 1


@dataclass(slots=True, frozen=True)
class Dialect:
    """How one engine is spoken to and read."""

    name: str
    health_path: str  # answers 200 when the engine says it is well
    metrics_path: str | None  # None: it publishes none
    read_load: Callable[[str], Load]  # from what metrics_path answered
    chat_continuation: Continuation = Continuation.NONE
    prompt_continuation: bool = True  # /v1/completions goes on from a longer prompt
    running_usage: bool = False  # stream_options.continuous_usage_stats: usage in every chunk
    final_usage: bool = True  # stream_options.include_usage: usage in a last chunk
    one_token_per_event: bool = False  # its stream never packs two tokens into one event
    model_health_path: str | None = None  # with {model}: the health of one model of several
    answers_in_json: bool = True  # errors are JSON objects with a message
    metrics_need: str = ""  # what an operator must switch on before metrics_path answers
    busy_bodies: tuple[bytes, ...] = ()  # any of these in a 503 says: queue full, not ill
    loading_bodies: tuple[bytes, ...] = ()  # any of these in a 503 says: the model is not there yet

    def says_busy(self, status: int, body: bytes) -> bool:
        """Whether a 503 without Retry-After is backpressure by this engine's own words.

        A bare 503 is a failure everywhere else; 429 needs no words. Ask with the code inside an
        error event too: SGLang refuses a stream with a 200 and a 503 in its first event.
        """
        return status == 503 and any(words in body for words in self.busy_bodies)

    def says_loading(self, status: int, body: bytes) -> bool:
        """Whether a 503 means that the engine still loads: neither well nor failed."""
        return status == 503 and any(words in body for words in self.loading_bodies)


__all__ = ["Continuation", "Dialect", "Load"]
