import json

import pytest

from holdfast.core.types import ConfigError
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.twin.twin_file import TwinModel, new_twin_file, read_twin, twin_of


def test_what_was_written_is_read_back(tmp_path):
    engine = EngineParameters(per_kv_token_ms=1.2345e-7, neighbour_share=0.25)
    errors = {"latency_s": {"p95": -0.01, "p99": None}}
    file = new_twin_file({"llama": TwinModel(engine=engine, errors=errors)}, "holdfast test")
    path = tmp_path / "twin.json"
    path.write_text(file.to_json())
    assert read_twin(path) == file


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": "holdfast-bench"}, "is no twin \\(format"),
        ({"version": 2}, "is no twin \\(version"),
        ({"models": {"llama": {}}}, "models.llama.engine"),
        ({"models": {"llama": {"engine": {"step_ms": -1.0}}}}, "engine.step_ms"),
    ],
)
def test_another_file_is_refused_with_its_name_and_field(tmp_path, change, told):
    path = tmp_path / "twin.json"
    good = {"format": "holdfast-twin", "version": 1, "models": {}}
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(ConfigError, match=told) as refused:
        read_twin(path)
    assert "holdfast twin calibrate" in str(refused.value)


def test_no_file_and_no_json_are_told_apart(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_twin(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="is no twin"):
        twin_of(b"no json")
