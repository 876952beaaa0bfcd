"""Lets the tests of this folder import the stage that stands beside them."""

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.append(HERE)

pytest.register_assert_rewrite("health_stage")  # what it asserts is shown as in a test
