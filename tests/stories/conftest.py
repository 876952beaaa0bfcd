"""Stories that take minutes because what they tell takes minutes: only ``make stories`` has them.

Elsewhere nothing here is collected, and asking for this folder alone then fails for want of tests
instead of passing. What a story measured on its way is shown at the end.
"""

import importlib
import os
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"

collect_ignore_glob = [] if os.environ.get("HOLDFAST_STORIES") else ["test_*.py"]


@pytest.fixture(scope="session")
def stories():
    """The stage, as a module."""
    if str(BENCH) not in sys.path:
        sys.path.append(str(BENCH))
    return importlib.import_module("story_fleet")


def pytest_terminal_summary(terminalreporter):
    rows = [
        row
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
        for row in report.user_properties
    ]
    if rows:
        terminalreporter.section("measured")
    for name, value in rows:
        terminalreporter.write_line(f"{name}: {value}")
