"""Dialects of the engines as data: paths, metrics, abilities and log lines. No I/O here."""

from collections.abc import Callable, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from holdfast.core.canary import Shape
from holdfast.core.types import ConfigError
from holdfast.engines import llamacpp, ollama, openai, sglang, tgi, triton, trtllm, vllm
from holdfast.engines.dialect import Continuation, Dialect, Load, Recipe

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
_SERVING: Final = (
    "engine",
    "health",
    "metrics",
    "chat continued by",
    "completions continued",
    "usage in every chunk",
    "usage at the end",
    "a 503 that means busy",
    "a 503 that means loading",
    "a 503 that means draining",
)
_PROBING: Final = (
    "engine",
    "asked by default",
    "greedy answers are the same every time",
    "load phases its log tells",
)
_OPTIONS: Final = (
    "tensor_parallel",
    "pipeline_parallel",
    "context",
    "quantisation",
    "memory_fraction",
    "slots",
    "threads",
)
_LAUNCHING: Final = ("engine", "started as", *(f"`{option}`" for option in _OPTIONS))


def dialect(name: str) -> Dialect:
    """The dialect of the engine with this name; an unknown name is refused with a list of names."""
    known = DIALECTS.get(name)
    if known is None:
        fix = f"use one of {', '.join(DIALECTS)} (openai fits any server that speaks that API)"
        raise ConfigError("engine", f"{name!r} is not known", fix)
    return known


def capabilities_table() -> str:
    """All dialects as Markdown tables for the reference: served, probed, launched."""
    tables = (
        ("Serving", _table(_SERVING, _serving)),
        ("Probing", _table(_PROBING, _probing)),
        ("Launching", _table(_LAUNCHING, _launching)),
    )
    return "\n".join(f"## {heading}\n\n{table}" for heading, table in tables)


def _table(headings: tuple[str, ...], row: Callable[[Dialect], tuple[str, ...]]) -> str:
    rows = [headings, ("---",) * len(headings), *map(row, DIALECTS.values())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _serving(one: Dialect) -> tuple[str, ...]:
    loading = _words(one.loading_bodies)
    if one.loading_header is not None:
        loading = _code(": ".join(one.loading_header))
    return (
        one.name,
        _health(one),
        _metrics(one),
        _CHAT[one.chat_continuation],
        _yes(one.prompt_continuation),
        _yes(one.running_usage),
        _yes(one.final_usage),
        _words(one.busy_bodies),
        loading,
        _words(one.draining_bodies),
    )


def _probing(one: Dialect) -> tuple[str, ...]:
    phases = dict.fromkeys(phase.name for _, phase in one.phases)  # each once, in their order
    asked = one.canary_shape.value
    if one.canary_shape is Shape.INFER:
        asked += ", with a body of the config's"
    return one.name, asked, _yes(one.bit_stable), ", ".join(phases) or "none"


def _launching(one: Dialect) -> tuple[str, ...]:
    recipe = one.recipe or Recipe(())
    options = dict(recipe.options)
    flags = (_code(options[option]) if option in options else "no" for option in _OPTIONS)
    return one.name, _program(recipe), *flags


def _program(recipe: Recipe) -> str:
    if not recipe.program:
        return "a command of your own"
    words = takewhile(lambda word: not word.startswith(("--", "{")), recipe.program)
    return _code(" ".join(words)) + (", or embedded" if recipe.embedded else "")


def _metrics(one: Dialect) -> str:
    if one.metrics_ports is not None:
        usual, beside_it = one.metrics_ports
        return f"{_code('/metrics')} at port {beside_it} beside {usual}, else by `metrics_url`"
    if one.metrics_path is None:
        return "none"
    path = _code(one.metrics_path)
    return f"{path} with {_code(one.metrics_need)}" if one.metrics_need else path


def _health(one: Dialect) -> str:
    path = one.model_health_path or one.health_path
    return _code(path) if path is not None else "none"


def _code(text: str) -> str:
    return f"`{text}`"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _words(bodies: tuple[bytes, ...]) -> str:
    return ", ".join(f"“{words.decode()}”" for words in bodies) or "none"


__all__ = [
    "DIALECTS",
    "Continuation",
    "Dialect",
    "Load",
    "Recipe",
    "capabilities_table",
    "dialect",
]
