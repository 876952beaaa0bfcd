"""Builds the command that starts one replica of an engine, and its environment.

    dialect + spec ─► command_line ─► words        executed as they are, never by a shell
                   ─► environment  ─► variables    to be added to those of the host

A setting that an engine has no flag for is refused: a replica that came up without the parallelism
it was given would be found out under load only. The one exception are ``slots``, which the gateways
hold to in any case. A command from the fleet file is taken as it is, with its {places} filled in;
braces around anything that is no name, such as JSON, are left alone.

``{python}`` stays in the words: the launcher replaces it with its own interpreter.
"""

import re
from dataclasses import dataclass
from typing import Final

from holdfast.core.types import ConfigError, require
from holdfast.engines.dialect import Dialect, Recipe

PYTHON: Final = "{python}"  # stands for the interpreter that runs Holdfast

_PLACE: Final = re.compile(r"(?<!\{)\{([a-z_]+)\}(?!\})")
_PORT_MAX: Final = 65_535
_SIDE: Final = 10_000  # from a replica's own port to those it must not share with its neighbours


@dataclass(slots=True, frozen=True)
class LaunchSpec:
    """The settings of one replica to start; zero and None = the engine's own default."""

    weights: str  # a path or a name, whatever the engine takes
    served_as: str  # the name it answers to
    host: str
    port: int
    tensor_parallel: int = 1  # GPUs that share each layer
    pipeline_parallel: int = 1  # stages of layers
    context: int = 0  # tokens of one request, prompt and answer together
    quantisation: str | None = None  # in the engine's own words
    memory_fraction: float | None = None  # of the GPU's memory
    slots: int = 0  # requests it runs at once
    threads: int = 0  # of the CPU
    embedded: bool = False  # as a library in a process of ours, where that is possible
    arguments: tuple[str, ...] = ()  # further ones, at the end
    command: tuple[str, ...] = ()  # the user's own, instead of ours
    revision: str = "1"
    device: str = ""  # the UUIDs of its GPUs, with commas; empty: none were chosen for it

    def __post_init__(self) -> None:
        fits = 1 <= self.port <= _PORT_MAX
        require(fits, "launch.port", f"is {self.port}", f"use 1 to {_PORT_MAX}")
        require(bool(self.host), "launch.host", "is empty", "name the address to listen at")
        for name in ("tensor_parallel", "pipeline_parallel"):
            value = getattr(self, name)
            require(value >= 1, f"launch.{name}", f"is {value}", "use 1 for none")
        for name in ("context", "slots", "threads"):
            value = getattr(self, name)
            require(value >= 0, f"launch.{name}", f"is {value}", "use 0 for the engine's own")
        share = self.memory_fraction
        fits = share is None or 0 < share <= 1
        require(fits, "launch.memory_fraction", f"is {share}", "use a share in (0, 1]")


def command_line(dialect: Dialect, spec: LaunchSpec) -> tuple[str, ...]:
    """The words to execute; raises ``ConfigError`` if this engine cannot be started so."""
    extra = tuple(substitute(word, spec, "launch.arguments") for word in spec.arguments)
    if spec.command:
        own = tuple(substitute(word, spec, "launch.command") for word in spec.command)
        return own + extra
    program, options = _recipe(dialect, spec)
    words = [substitute(word, spec, "launch") for word in program]
    for flag, value in _settings(dialect, spec, options):
        if flag.startswith("-"):
            words += (flag, value)
    return (*words, *extra)


def environment(dialect: Dialect, spec: LaunchSpec) -> dict[str, str]:
    """Environment variables that the engine needs beside those of the host."""
    # Lines are its heartbeat; Python would hold them back when its output is no terminal.
    variables = {"PYTHONUNBUFFERED": "1"}
    if spec.command:
        return variables
    _, options = _recipe(dialect, spec)
    if dialect.recipe is not None and not spec.embedded:
        for name, value in dialect.recipe.environment:
            variables[name] = substitute(value, spec, "launch")
    settings = _settings(dialect, spec, options)
    return variables | {name: value for name, value in settings if not name.startswith("-")}


def fill_device(text: str, spec: LaunchSpec) -> str:
    """Fill {device} in a variable of the fleet file, and leave all other braces alone."""
    return text.replace("{device}", spec.device)


def substitute(text: str, spec: LaunchSpec, field: str) -> str:
    """Fill the {places} of ``text``; raises an error that names ``field`` if one is unknown."""
    places = _places(spec)

    def fill(found: re.Match[str]) -> str:
        value = places.get(found[1])
        if value is None:
            known = ", ".join(f"{{{name}}}" for name in places)
            raise ConfigError(field, f"{found[0]} is not known", f"use one of {known}")
        return value

    return _PLACE.sub(fill, text)


def beside(template: str, host: str, port: int) -> str:
    """Fill {host}, {port} and the side ports of a replica's address into a URL."""
    side, second = _side_ports(port)
    places = {
        "host": f"[{host}]" if ":" in host else host,
        "port": str(port),
        "side_port": str(side),
        "second_side_port": str(second),
    }
    return _PLACE.sub(lambda found: places.get(found[1], found[0]), template)


def _side_ports(port: int) -> tuple[int, int]:
    away = _SIDE if port + 2 * _SIDE <= _PORT_MAX else -_SIDE
    return port + away, port + 2 * away


def _places(spec: LaunchSpec) -> dict[str, str]:
    bare = f"[{spec.host}]" if ":" in spec.host else spec.host
    side, second = _side_ports(spec.port)
    return {
        "host": spec.host,
        "port": str(spec.port),
        "weights": spec.weights,
        "served_as": spec.served_as,
        "revision": spec.revision,
        "address": f"{bare}:{spec.port}",
        "side_port": str(side),
        "second_side_port": str(second),
        "tensor_parallel": str(spec.tensor_parallel),
        "pipeline_parallel": str(spec.pipeline_parallel),
        "context": str(spec.context),
        "slots": str(spec.slots),
        "threads": str(spec.threads),
        "device": spec.device,
        "python": PYTHON,
    }


def _recipe(dialect: Dialect, spec: LaunchSpec) -> tuple[tuple[str, ...], dict[str, str]]:
    """What starts it, and by which flags it is told its settings."""
    recipe: Recipe | None = dialect.recipe
    if recipe is None:
        raise ConfigError(
            "launch.command",
            f"is missing, and how {dialect.name} is started is not known",
            "give the command that starts it, with {host} and {port} in it",
        )
    fix = "give what the engine loads its model from"
    require(bool(spec.weights), "launch.weights", "is empty", fix)
    require(bool(spec.served_as), "launch.served_as", "is empty", "name the model it serves")
    if not spec.embedded:
        return recipe.program, dict(recipe.options)
    fix = "remove it, or use the engine llamacpp"
    require(bool(recipe.embedded), "launch.embedded", f"is not possible for {dialect.name}", fix)
    return recipe.embedded, dict(recipe.embedded_options)


def _settings(dialect: Dialect, spec: LaunchSpec, options: dict[str, str]) -> list[tuple[str, str]]:
    """Flags and variables with their values, for all that was set."""
    wanted: dict[str, str] = {}
    always = dialect.recipe.told_always if dialect.recipe is not None else ()
    for name in ("tensor_parallel", "pipeline_parallel"):
        if getattr(spec, name) > 1 or name in always:
            wanted[name] = str(getattr(spec, name))
    for name in ("context", "slots", "threads"):
        if getattr(spec, name):
            wanted[name] = str(getattr(spec, name))
    if spec.quantisation:
        wanted["quantisation"] = spec.quantisation
    if spec.memory_fraction is not None:
        wanted["memory_fraction"] = f"{spec.memory_fraction:g}"
    shared = dialect.recipe is not None and dialect.recipe.context_is_shared
    if "context" in wanted and shared and not spec.embedded:
        wanted["context"] = str(spec.context * max(1, spec.slots))
    if "slots" not in options:
        wanted.pop("slots", None)
    for name in wanted:
        require(
            name in options,
            f"launch.{name}",
            f"cannot be set for {dialect.name}",
            "remove it, or give the engine's own flag in arguments",
        )
    return [(options[name], value) for name, value in wanted.items()]


__all__ = [
    "PYTHON",
    "LaunchSpec",
    "beside",
    "command_line",
    "environment",
    "fill_device",
    "substitute",
]
