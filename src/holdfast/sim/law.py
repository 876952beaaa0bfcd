"""What an engine is made of: the law of its steps, and the runs it works on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.core.failure import Kind
from holdfast.core.types import require

if TYPE_CHECKING:
    from holdfast.sim.results import Record
    from holdfast.sim.unit import Unit

# Where a run is.
OUTSIDE: Final = -1  # not handed over yet, or never
WAITING: Final = 0
ACTIVE: Final = 1
LEAVING: Final = 2  # cancelled in the middle of a step: gone at the coming boundary
GONE: Final = 3


@dataclass(slots=True, frozen=True)
class EngineLaw:
    """The coefficients of a step and the limits of a replica."""

    step_ms: float = 13.0  # a: the floor of a step, reading all weights once
    per_sequence_ms: float = 0.075  # c: for each request in the batch
    per_kv_token_ms: float = 4.0e-5  # b: attention over the tokens held
    per_prompt_token_ms: float = 0.04  # p: prefill, about 25,000 tokens/s
    batch_max: int = 128  # requests in a batch
    kv_tokens_max: int = 400_000  # tokens of KV memory; requests wait when it is full
    prefill_tokens_max: int = 32_768  # prompt tokens admitted in one step; the first always fits

    def __post_init__(self) -> None:
        for name in ("per_sequence_ms", "per_kv_token_ms", "per_prompt_token_ms"):
            value = getattr(self, name)
            require(value >= 0, f"engine.{name}", f"is {value}", "use milliseconds, 0 or more")
        positive = self.step_ms > 0 or self.per_sequence_ms > 0
        require(positive, "engine.step_ms", f"is {self.step_ms}", "a step must take time")
        require(self.step_ms >= 0, "engine.step_ms", f"is {self.step_ms}", "use 0 or more")
        for name in ("batch_max", "kv_tokens_max", "prefill_tokens_max"):
            value = getattr(self, name)
            require(value >= 1, f"engine.{name}", f"is {value}", "use 1 or more")


class Run:
    """One attempt, or one canary, inside an engine."""

    __slots__ = (
        "admitted",
        "attempt",
        "ends_as",
        "first_at",
        "mute",
        "output",
        "owner",
        "place",
        "prompt",
        "sent_at",
        "silence_max",
        "unit",
    )

    def __init__(
        self, owner: "Record | None", unit: "Unit", attempt: int, prompt: int, output: int
    ) -> None:
        self.owner = owner  # the request it belongs to; a canary has none
        self.unit = unit
        self.attempt = attempt
        self.prompt = prompt
        self.output = output  # tokens it will produce, at least one
        self.place = OUTSIDE
        self.admitted = 0  # step index of its first step
        self.first_at = 0
        self.silence_max = 0
        self.sent_at = 0
        self.ends_as: Kind | None = None  # a failure planned for it by a fault
        self.mute = False  # that failure comes before any content


__all__ = ["ACTIVE", "GONE", "LEAVING", "OUTSIDE", "WAITING", "EngineLaw", "Run"]
