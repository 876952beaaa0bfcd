"""The order of all tests, the long ones first, and which of them are traced for coverage."""

import atexit
import gc
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings

# The machine may stand still: no test asks how long one example takes.
settings.register_profile("holdfast", settings.default, deadline=None)
settings.load_profile("holdfast")

HERE = Path(__file__).parent
# Fleets that tests start keep their state and their token here, and not in the home of who tests.
STATE = tempfile.mkdtemp(prefix="holdfast-tests-")
os.environ["XDG_STATE_HOME"] = STATE
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
LONG = ("e2e", "sim")  # folders: none of these may be what all others wait for


def _turn(item):
    folder = _folder(item)
    return LONG.index(folder) if folder in LONG else len(LONG)


def _folder(item):
    return item.path.relative_to(HERE).parts[0]


def _repeats(item):
    """Whether it does one thing many times. The mark of hypothesis is set too late to be read."""
    drawn = getattr(item.obj, "is_hypothesis_test", False)
    return drawn or item.get_closest_marker("measured") is not None


def pytest_collection_modifyitems(items):
    """Coverage is asked of the core. Tracing doubles the time of whatever is repeated."""
    for item in items:
        if _folder(item) == "core" and not _repeats(item):
            item.add_marker("traced")
    items.sort(key=_turn)  # stable: within a folder nothing moves


def pytest_collection_finish():
    """All tests and what they import stay for ever: looking through them costs a tenth."""
    gc.collect()
    gc.freeze()
