"""The order of all tests, the long ones first; which are slow, and which traced for coverage."""

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
# What takes long because of what it shows: many simulated hours, a fleet of real processes that
# loses one after the other, the docs generated anew. `make test-slow` runs it, and CI.
SLOW = (
    "cli/test_cli_bench.py",
    "control/platforms/test_same_story.py",
    "e2e/test_bench_scaling.py",
    "e2e/test_discovered_rollout.py",
    "e2e/test_idempotency.py",
    "e2e/test_joined_aws.py",
    "e2e/test_keyed_memory.py",
    "e2e/test_leadership.py",
    "e2e/test_light_traffic.py",
    "e2e/test_quota_leases.py",
    "e2e/test_readiness.py",
    "e2e/test_rollout.py",
    "e2e/test_scaling.py",
    "e2e/test_watched.py",
    "loadtest/test_load_run.py",
    "sim/test_diagnosis_sim.py",
    "sim/test_examples.py",
    "sim/test_false_alarms.py",
    "sim/test_fuzz.py",
    "sim/test_no_harm.py",
    "sim/test_policies_pay.py",
    "sim/test_poisoning.py",
    "sim/test_readiness_bench.py",
    "sim/test_skew_story.py",
    "sim/test_storm_story.py",
    "sim/test_theory.py",
)
SLOW_TESTS = ("test_generated_blocks_are_up_to_date",)


def _turn(item):
    folder = _folder(item)
    return LONG.index(folder) if folder in LONG else len(LONG)


def _folder(item):
    return item.path.relative_to(HERE).parts[0]


def _slow(item):
    alone = item.get_closest_marker("alone") is not None
    path = item.path.relative_to(HERE).as_posix()
    return alone or path in SLOW or item.originalname in SLOW_TESTS


def _repeats(item):
    """Whether it does one thing many times. The mark of hypothesis is set too late to be read."""
    drawn = getattr(item.obj, "is_hypothesis_test", False)
    return drawn or item.get_closest_marker("measured") is not None


def pytest_collection_modifyitems(items):
    """Coverage is asked of the core. Tracing doubles the time of whatever is repeated."""
    for item in items:
        if _folder(item) == "core" and not _repeats(item):
            item.add_marker("traced")
        if _slow(item):
            item.add_marker("slow")
    items.sort(key=_turn)  # stable: within a folder nothing moves


def pytest_collection_finish():
    """All tests and what they import stay for ever: looking through them costs a tenth."""
    gc.collect()
    gc.freeze()
