"""Unit tests of the core cannot touch the world.

Opening a socket and sleeping raise for everybody here. Clocks raise only when code of ``holdfast``
reads them: pytest and hypothesis measure their own time with the same functions.
"""

import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from sampling import QUICK, examples

if QUICK:  # those that do not say how many they want
    settings.register_profile("quick", max_examples=examples(settings.default.max_examples))
    settings.load_profile("quick")

CLOCKS = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
)
REAL = {name: getattr(time, name) for name in CLOCKS}


class WorldTouchedError(AssertionError):
    """A unit test of the core reached for a clock, a socket or a sleep."""


class NoSocket(socket.socket):
    """Stands in for the class, so that type checks against it keep working."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise WorldTouchedError("no sockets under tests/core: decisions do no I/O")


def no_sleep(*args: object) -> None:
    raise WorldTouchedError("no sleeping under tests/core: pass a later `now` instead")


def guarded(name: str, real: Callable[[], object]) -> Callable[[], object]:
    """The clock ``real`` for everybody except code of the package."""

    def read() -> object:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller == "holdfast" or caller.startswith("holdfast."):
            raise WorldTouchedError(f"{caller} called time.{name}(): take `now` as a value")
        return real()

    return read


def install_guard(patch: pytest.MonkeyPatch) -> None:
    """Replace the world in its own modules, and wherever the package already took it from there."""
    replacements = {real: guarded(name, real) for name, real in REAL.items()}
    replacements |= {time.sleep: no_sleep, socket.socket: NoSocket}
    ours = [module for name, module in sys.modules.items() if name.startswith("holdfast")]
    for module in [time, socket, *ours]:
        for name, value in list(vars(module).items()):
            if callable(value) and value.__hash__ and value in replacements:
                patch.setattr(module, name, replacements[value])


# Once per module: hypothesis refuses function-scoped fixtures around its examples.
@pytest.fixture(autouse=True, scope="module")
def _no_world() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        install_guard(patch)
        yield
