"""How fast engines are: a law of their step time, and measured coefficients with their sources.

A step gives every running request one token. It takes ``a + c x batch + b x KV tokens``
milliseconds; reading prompts takes time of its own. Laws in bands have other coefficients from
some batch size on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.core.types import ConfigError, require

Band = tuple[int, float, float, float]  # from this batch on: a, b per KV token, c per request; ms


@dataclass(slots=True, frozen=True)
class EngineSpeed:
    """Measured speed of one replica: ms per step by batch, and ms to read prompts.

    Coefficients, not live figures. Raises ``ConfigError`` when built with a bad value.
    """

    name: str
    bands: tuple[Band, ...]
    prefill_ms_per_token: float
    batch_max: int
    source: str
    prefill_ms: float = 0.0  # of any prompt
    prefill_ms_per_square: float = 0.0  # times the square of its tokens

    def __post_init__(self) -> None:
        require(bool(self.bands), "speed.bands", "is empty", "give at least one band")
        for _, a, b, c in self.bands:
            good = a >= 0 and b >= 0 and c >= 0 and a + c > 0
            require(
                good, "speed.step_ms", f"is {a:g}", "a step must take time, and none less than 0"
            )
        for name in ("prefill_ms_per_token", "prefill_ms", "prefill_ms_per_square"):
            value = getattr(self, name)
            require(value >= 0, f"speed.{name}", f"is {value:g}", "use 0 or more milliseconds")
        require(self.batch_max >= 1, "speed.batch_max", f"is {self.batch_max}", "use 1 or more")

    def band(self, batch: int) -> Band:
        """Return the (smallest batch, a, b, c) coefficients of ``step`` for this batch."""
        found = self.bands[0]
        for one in self.bands:
            if batch >= one[0]:
                found = one
        return found

    def step(self, batch: int, kv_tokens: float) -> float:
        """Return ms of one step with ``batch`` requests that hold ``kv_tokens`` in all."""
        _, a, b, c = self.band(batch)
        return a + c * batch + b * kv_tokens

    def prefill(self, tokens: float) -> float:
        """Return ms to read a prompt of ``tokens`` when nothing else runs."""
        square = self.prefill_ms_per_square * tokens * tokens
        return self.prefill_ms + self.prefill_ms_per_token * tokens + square


# DistServe's own simulator takes 1.1 times the fitted prefill; so does this table.
SPEEDS: Final[Mapping[str, EngineSpeed]] = {
    one.name: one
    for one in (
        EngineSpeed(
            "vllm-llama-3.1-8b",
            ((1, 13.07, 4.0e-5, 0.0756),),
            0.0396,
            128,
            "fitted to vLLM 0.19 records on an RTX PRO 6000 that LLMServingSim publishes; predicts "
            "the later two thirds of that run within 2.2 %",
        ),
        EngineSpeed(
            "distserve-opt-13b",
            (
                (1, 19.934702624895458, 0.0006269356524350583, 0.03850697740828398),
                (95, 7.1661889468253595, 0.0005798000403396046, 0.15831096191764046),
            ),
            0.09264750660897617 * 1.1,
            256,
            "DistServe, profiler-a100-80g.distserve.json, tensor parallel 1",
            prefill_ms=16.456860431694288 * 1.1,
            prefill_ms_per_square=6.474785740229194e-06 * 1.1,
        ),
        EngineSpeed(
            "distserve-opt-66b",
            (
                (1, 30.760284619429587, 0.000451947603788462, 0.063284195750671),
                (95, 27.47082137429487, 0.0004046845541646486, 0.12480667738300383),
            ),
            0.1375928914774527 * 1.1,
            256,
            "DistServe, profiler-a100-80g.distserve.json, tensor parallel 4",
            prefill_ms=26.76512367065223 * 1.1,
            prefill_ms_per_square=7.561318878163137e-06 * 1.1,
        ),
        EngineSpeed(
            "router-example",
            ((1, 5.0, 0.0, 0.0),),
            0.01,
            64,
            "the example of a prefill and decode router: 0.01 ms per prompt token, 5 ms per token",
        ),
    )
}


def engine_speed(name: str) -> EngineSpeed:
    """Return the built-in ``EngineSpeed`` of this name, in any case.

    Raises ``ConfigError`` that lists the names if there is none.
    """
    found = SPEEDS.get(name.strip().lower())
    if found is None:
        fix = f"use one of {', '.join(SPEEDS)}, or give --step-ms and --prefill-ms-per-token"
        raise ConfigError("speed", f"{name[:80]!r} is not known", fix)
    return found


__all__ = ["SPEEDS", "Band", "EngineSpeed", "engine_speed"]
