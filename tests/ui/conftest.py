"""Fleets to show, and a time of day that is the same everywhere."""

import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent

if str(HERE) not in sys.path:
    sys.path.append(str(HERE))  # fleets and admin_port are modules of their own


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
