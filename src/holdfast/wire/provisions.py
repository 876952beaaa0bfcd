"""Checks and fetches what replicas need to start here: the engine's package and the weights.

This is checked before a port is opened or a process started. A replica that could never load would
be started, fail and be started again, with the reason hidden in its log.

The module that fetches weights is imported where it is used: gateways import this package, too, and
do not need it.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Final

from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import require

_EMBEDDED: Final = "xllamacpp"  # the engine that runs inside one of our own processes

Fetching = Callable[[str, int, int], None]  # name, bytes done, bytes in all


class ProvisionError(Exception):
    """Weights could not be fetched; the text says why."""


def check_engines(file: FleetFile) -> None:
    """Raise ``ConfigError`` if a model needs a package that is not installed."""
    for index, model in enumerate(file.models):
        embedded = model.launch is not None and model.launch.embedded
        there = not embedded or find_spec(_EMBEDDED) is not None
        problem = f"needs the package {_EMBEDDED}, which is not installed"
        fix = "install holdfast[llamacpp], or give a 'command' that starts a llama.cpp server"
        require(there, f"models[{index}].launch.embedded", problem, fix)


def named_weights(file: FleetFile) -> list[str]:
    """The weights that the fleet file names from our catalogue; others are left to the engine."""
    from holdfast.launchers import weights  # noqa: PLC0415 see above

    asked = [model.launch.weights for model in file.models if model.launch is not None]
    return [name for name in dict.fromkeys(asked) if name in weights.KNOWN]


def fetch_weights(file: FleetFile, fetching: Fetching) -> None:
    """Download every named set of weights to this machine, or raise ``ProvisionError``."""
    from holdfast.launchers import weights  # noqa: PLC0415 see above

    for name in named_weights(file):
        try:
            weights.fetch(name, partial(fetching, name))
        except weights.WeightsError as error:
            raise ProvisionError(str(error)) from error


__all__ = ["Fetching", "ProvisionError", "check_engines", "fetch_weights", "named_weights"]
