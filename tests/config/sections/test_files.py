"""Config files: how a section is loaded from one, and what its schema says."""

import json
import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError
from section_stage import Colour, Crash, Scenario, Slow, Workload, refused, write

from holdfast.config import files
from holdfast.config.document import ConfigFileError, Problem
from holdfast.config.files import FILE_BYTES_MAX, json_schema, load
from holdfast.core.request.breaker import BreakerConfig


class TestLoading:
    def test_gives_the_section_with_the_values_of_the_file(self, tmp_path):
        text = """\
            # a comment
            replicas: 3
            workload:
              rate: 12.5
              shape: green
              sizes: [1, 2]
              pair: [1, 2.5]
              tags: [a, a]
              weights: {on: 1, "no": 2, 3: 1e3}
              by_number: {1: one}
              pause_s: 5m
              trace: a/b.csv
            faults:
              - {kind: crash, target: r1}
              - {kind: slow}
            breaker: {window: 30, cooldown_s: 250ms}
            limits:
              floor: 2
        """
        scenario = load(write(tmp_path, text), Scenario)
        workload = scenario.workload
        assert scenario.replicas == 3
        assert workload.rate == 12.5
        assert workload.shape is Colour.GREEN
        assert workload.sizes == (1, 2)
        assert workload.pair == (1.0, 2.5)
        assert workload.tags == {"a"}
        assert workload.weights == {"on": 1.0, "no": 2.0, "3": 1000.0}
        assert workload.by_number == {1: "one"}
        assert workload.pause_s == 300.0
        assert workload.trace == Path("a/b.csv")
        assert scenario.faults == (Crash(kind="crash", target="r1"), Slow(kind="slow"))
        assert scenario.breaker == BreakerConfig(window=30, cooldown_s=0.25)
        assert scenario.limits is not None
        assert scenario.limits.low == 2

    def test_accepts_a_byte_order_mark(self, tmp_path):
        assert load(write(tmp_path, b"\xef\xbb\xbfreplicas: 3"), Scenario).replicas == 3

    def test_sections_cannot_be_changed(self):
        with pytest.raises(ValidationError, match="frozen"):
            Workload().rate = 2.0

    def test_errors_survive_a_trip_to_another_process(self):
        error = ConfigFileError([Problem("x.yaml", 2, 1, "rate", "is 0", "use 1")])
        assert str(pickle.loads(pickle.dumps(error))) == "x.yaml:2: rate: is 0; use 1"


class TestFiles:
    def test_a_missing_file_is_said_to_be_missing(self, tmp_path):
        path = tmp_path / "none.yaml"
        with pytest.raises(ConfigFileError) as caught:
            load(path, Scenario)
        assert str(caught.value) == f"{path}:1: (file): does not exist; check the path"

    def test_a_directory_is_said_to_be_one(self, tmp_path):
        with pytest.raises(ConfigFileError, match="is a directory; name a file in it"):
            load(tmp_path, Scenario)

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (PermissionError(13, "Permission denied"), "may not be read; grant permission"),
            (OSError(5, "Input/output error"), r"cannot be read \(input/output error\); check"),
            (OSError(), r"cannot be read \(oserror\); check"),
        ],
    )
    def test_a_file_that_cannot_be_read_says_why(self, tmp_path, monkeypatch, error, said):
        def fail(self: Path, mode: str) -> None:
            raise error

        monkeypatch.setattr(Path, "open", fail)
        with pytest.raises(ConfigFileError, match=said):
            load(tmp_path / "x.yaml", Scenario)

    def test_a_name_that_no_file_can_have_is_refused(self, tmp_path):
        with pytest.raises(ConfigFileError, match="file name too long"):
            load(tmp_path / ("x" * 5000), Scenario)

    def test_a_file_of_the_largest_size_is_read_and_one_byte_more_is_not(
        self, tmp_path, monkeypatch
    ):
        assert FILE_BYTES_MAX == 1024 * 1024
        monkeypatch.setattr(files, "FILE_BYTES_MAX", 100)
        fits = "replicas: 3 #".ljust(100, "x")
        assert load(write(tmp_path, fits), Scenario).replicas == 3
        line = "1: (file): is larger than 1 MiB; check that it is the right file"
        assert refused(tmp_path, fits + "x") == [line]

    def test_text_in_another_encoding_names_line_and_byte(self, tmp_path):
        line = "2: (file): is not UTF-8 text (byte 0xe9); save it as UTF-8"
        assert refused(tmp_path, b"replicas: 3\nname: caf\xe9\n") == [line]

    def test_control_characters_name_their_line(self, tmp_path):
        line = r"2: (file): contains the control character '\x07'; remove it"
        assert refused(tmp_path, b"replicas: 3\nname: \x07") == [line]


class TestSchema:
    def test_is_plain_json_with_durations_as_numbers_or_text(self):
        schema = json_schema(Scenario)
        assert schema["$schema"].endswith("2020-12/schema")
        assert schema["additionalProperties"] is False
        assert schema["required"] == ["replicas"]
        breaker = schema["$defs"]["Breaker"]["properties"]
        assert breaker["cooldown_s"]["anyOf"] == [{"type": "number"}, {"type": "string"}]
        assert breaker["window"] == {"default": 25, "title": "Window", "type": "integer"}
        assert json.loads(json.dumps(schema)) == schema
