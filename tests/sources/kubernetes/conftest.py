"""The fake API server, under its own name, for modules that cannot import each other."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "fakekube"


def _load():
    places = [str(FOLDER)]
    spec = spec_from_file_location(
        "fakekube", FOLDER / "__init__.py", submodule_search_locations=places
    )
    module = sys.modules["fakekube"] = module_from_spec(spec)
    spec.loader.exec_module(module)


if "fakekube" not in sys.modules:
    _load()

from fakekube import FakeKube  # noqa: E402 it was loaded just now


@pytest.fixture
def kube():
    with FakeKube() as server:
        yield server
