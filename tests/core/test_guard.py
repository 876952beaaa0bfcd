"""The guard of this folder bites, and only where it should."""

import socket
import sys
import time
from types import ModuleType

import pytest

CLOCKS = ["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"]


def module_of_the_package(source: str) -> ModuleType:
    module = ModuleType("holdfast.core.imagined")
    exec(source, module.__dict__)
    return module


@pytest.mark.parametrize("clock", CLOCKS)
def test_core_code_cannot_read_a_clock(clock):
    module = module_of_the_package(f"import time\ndef decide(): return time.{clock}()")
    with pytest.raises(AssertionError, match=rf"holdfast.core.imagined called time.{clock}\(\)"):
        module.decide()


@pytest.mark.parametrize("clock", CLOCKS)
def test_core_code_cannot_read_a_clock_imported_by_name(clock):
    module = module_of_the_package(f"from time import {clock} as tick\ndef decide(): tick()")
    with pytest.raises(AssertionError, match=f"time.{clock}"):
        module.decide()


def test_a_clock_taken_before_the_guard_came_is_replaced_too(request):
    plugins = request.config.pluginmanager.get_plugins()
    conftest = next(plugin for plugin in plugins if hasattr(plugin, "install_guard"))
    module = module_of_the_package("def decide(): return tick()")
    module.tick = conftest.REAL["monotonic"]
    assert module.decide() > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        conftest.install_guard(patch)
        with pytest.raises(AssertionError, match=r"time\.monotonic"):
            module.decide()


@pytest.mark.parametrize("clock", CLOCKS)
def test_others_may_read_a_clock(clock):
    assert getattr(time, clock)() >= 0


def test_nobody_sleeps():
    with pytest.raises(AssertionError, match="no sleeping"):
        time.sleep(0)


def test_nobody_opens_a_socket():
    with pytest.raises(AssertionError, match="no sockets"):
        socket.socket()


def test_nobody_connects():
    with pytest.raises(AssertionError, match="no sockets"):
        socket.create_connection(("127.0.0.1", 9))
