"""The fleet on paper lies beside the tests, and in no package."""

import sys
from pathlib import Path

import pytest

from holdfast.ui.web import rehearsal

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """What-ifs yield to everybody: beside other tests they may take longer than a reader waits."""
    monkeypatch.setattr(rehearsal, "LIMIT_S", 240.0)
