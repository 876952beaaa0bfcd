"""Pure dialects of the engines: paths, metrics, abilities. No I/O here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from holdfast.core.types import ConfigError
from holdfast.engines import llamacpp, ollama, openai, sglang, tgi, triton, trtllm, vllm
from holdfast.engines.dialect import Continuation, Dialect, Load

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType(
    {
        module.DIALECT.name: module.DIALECT
        for module in (openai, vllm, sglang, tgi, triton, llamacpp, ollama, trtllm)
    }
)

_CHAT: Final = {
    Continuation.NONE: "no",
    Continuation.FINAL_MESSAGE: "`continue_final_message`",
    Continuation.PREFILL: "assistant prefill",
}
_HEADINGS: Final = (
    "engine",
    "health",
    "metrics",
    "chat continued by",
    "completions continued",
    "usage in every chunk",
    "usage at the end",
    "a 503 that means busy",
    "a 503 that means loading",
)


def dialect(name: str) -> Dialect:
    """How the engine of this name is spoken to; the error lists the names there are."""
    known = DIALECTS.get(name)
    if known is None:
        fix = f"use one of {', '.join(DIALECTS)} (openai fits any server that speaks that API)"
        raise ConfigError("engine", f"{name!r} is not known", fix)
    return known


def capabilities_table() -> str:
    """All dialects as a Markdown table, for the reference."""
    rows = [_HEADINGS, ("---",) * len(_HEADINGS), *map(_row, DIALECTS.values())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _row(one: Dialect) -> tuple[str, ...]:
    return (
        one.name,
        _code(one.model_health_path or one.health_path),
        _metrics(one),
        _CHAT[one.chat_continuation],
        _yes(one.prompt_continuation),
        _yes(one.running_usage),
        _yes(one.final_usage),
        _words(one.busy_bodies),
        _words(one.loading_bodies),
    )


def _metrics(one: Dialect) -> str:
    if one.metrics_path is None:
        return "none"
    path = _code(one.metrics_path)
    return f"{path} with {_code(one.metrics_need)}" if one.metrics_need else path


def _code(text: str) -> str:
    return f"`{text}`"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _words(bodies: tuple[bytes, ...]) -> str:
    return ", ".join(f"“{words.decode()}”" for words in bodies) or "none"


__all__ = ["DIALECTS", "Continuation", "Dialect", "Load", "capabilities_table", "dialect"]
