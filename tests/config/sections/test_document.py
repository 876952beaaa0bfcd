"""YAML as config files may use it: scalars, structure, bounds, and any bytes at all."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from section_stage import Scenario, Workload, refused

from holdfast.config import document
from holdfast.config.document import DEPTH_MAX, NODES_MAX, ConfigFileError, Document
from holdfast.config.files import load


class TestScalars:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1", 1),
            ("-0", 0),
            ("+7", 7),
            ("9223372036854774784", 9223372036854774784),
            ("1.5", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("1.5E-2", 0.015),
            ("true", True),
            ("FALSE", False),
            ("~", None),
            ("", None),
            ("null", None),
            ("'null'", "null"),
            ("'1'", "1"),
            ("yes", "yes"),
            ("off", "off"),
            ("012", "012"),
            ("0x1f", "0x1f"),
            ("1_000", "1_000"),
            ("1:30", "1:30"),
            ("2024-01-01", "2024-01-01"),
            ("'.inf'", ".inf"),
            ("nan", "nan"),
            ("=", "="),
            ("|\n  a\n  b\n", "a\nb\n"),
        ],
    )
    def test_are_read_as_yaml_1_2_reads_them(self, text, value):
        data = Document("x.yaml", f"key: {text}").data
        assert data == {"key": value}
        assert type(data["key"]) is type(value)

    @pytest.mark.parametrize("text", [".inf", "-.Inf", ".nan", ".NAN"])
    def test_must_be_finite(self, tmp_path, text):
        line = f"1: replicas: must be finite (is {text}); use an ordinary number"
        assert refused(tmp_path, f"replicas: {text}") == [line]

    @pytest.mark.parametrize("text", ["9223372036854775808", "-1e999", "9" * 5000])
    def test_must_fit_a_number(self, tmp_path, text):
        (line,) = refused(tmp_path, f"replicas: {text}")
        assert line.startswith("1: replicas: is too large ('")
        assert line.endswith("'); use a number below 2^63")
        assert len(line) < 150

    def test_must_be_printable(self, tmp_path):
        text = 'workload: {name: "\\ud800"}\n"\\udfff": 1'
        assert refused(tmp_path, text) == [
            "1: (top level): has a key that is not plain text; use plain words as keys",
            "1: workload.name: holds half a surrogate pair; write the character itself",
        ]


class TestYaml:
    @pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
    def test_an_empty_file_is_refused(self, tmp_path, text):
        (line,) = refused(tmp_path, text)
        assert line in {
            "1: (file): is empty; start from one of the examples",
            "1: (top level): must be a mapping (is empty); use 'key: value' lines",
        }

    @pytest.mark.parametrize(
        ("text", "what"), [("- a", "a list"), ("word", "'word'"), ("5", "5"), ("true", "true")]
    )
    def test_the_top_must_be_a_mapping(self, tmp_path, text, what):
        line = f"1: (top level): must be a mapping (is {what}); use 'key: value' lines"
        assert refused(tmp_path, text) == [line]

    @pytest.mark.parametrize(
        ("text", "line", "fix"),
        [
            ("replicas: 3\nworkload:\n\trate: 1\n", 3, "indent with spaces"),
            ("replicas: 3\n---\nreplicas: 4\n", 2, "keep one document in a file"),
            ("name: a: b\n", 1, "quote text that contains ': '"),
            ("replicas: 3\nworkload\nfaults: 4", 3, "put ': ' between the key and its value"),
            ("name: 'open\n", 2, "close the quote or bracket that was opened"),
            ("name: @home\n", 1, "put quotes around text that begins with this character"),
            ("name: [a, b\nrate: 3\n", 2, "check the indentation, colons, quotes and brackets"),
            ("replicas: 3\n  rate: 4\n", 2, "quote text that contains ': ', or check the indent"),
            ('name: "\\UFFFFFFFF"\n', 1, "remove the escape or number"),
            ('name: "\\U00110000"\n', 1, "remove the escape or number"),
            (f"%YAML 1.{'1' * 5000}\n---\na: 1", 1, "remove the escape or number"),
        ],
    )
    def test_bad_syntax_names_line_and_fix(self, tmp_path, text, line, fix):
        (said,) = refused(tmp_path, text)
        assert said.startswith(f"{line}: (yaml): ")
        assert f"; {fix}" in said

    def test_a_key_may_not_appear_twice(self, tmp_path):
        text = "replicas: 3\nworkload:\n  rate: 1\n  rate: 2\nreplicas: 4\n"
        assert refused(tmp_path, text) == [
            "4: workload.rate: appears twice (first on line 3); remove one of the two",
            "5: replicas: appears twice (first on line 1); remove one of the two",
        ]

    def test_keys_must_be_words(self, tmp_path):
        text = "replicas: 3\nworkload:\n  [a]: 1\n"
        line = "2: workload: has a key that is not plain text; use plain words as keys"
        assert refused(tmp_path, text) == [line]

    @pytest.mark.parametrize(
        "text",
        [
            "!!python/object/apply:os.system ['true']",
            "!secret x",
            "!!str 3",
            "!!set {a}",
            "!!binary aGk=",
        ],
    )
    def test_tags_are_refused(self, tmp_path, text):
        (line,) = refused(tmp_path, f"replicas: {text}")
        assert line.startswith("1: replicas: has the tag '")
        assert line.endswith("; remove the tag (the part from '!')")

    def test_aliases_are_refused(self, tmp_path):
        bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
        line = "2: (yaml): has an alias ('*'); write the values out where they are needed"
        assert refused(tmp_path, bomb) == [line]

    def test_the_number_of_values_is_bounded(self, tmp_path, monkeypatch):
        assert NODES_MAX == 50_000
        monkeypatch.setattr(document, "NODES_MAX", 9)  # the mapping, two keys, their values, four
        text = "replicas: 3\nfaults: [1, 2, 3, 4{}]"
        assert len(refused(tmp_path, text.format(""))) == 4
        line = "2: (yaml): holds more than 9 values; split or shorten the file"
        assert refused(tmp_path, text.format(", 5")) == [line]

    def test_nesting_is_bounded(self, tmp_path):
        deepest = "a: " + "[" * (DEPTH_MAX - 1) + "]" * (DEPTH_MAX - 1)
        assert "1: a: is not a known key" in refused(tmp_path, deepest)[1]
        line = f"1: (yaml): is nested more than {DEPTH_MAX} deep; flatten it"
        assert refused(tmp_path, "a: " + "[" * 300) == [line]


PIECES = st.sampled_from(
    [*"abx01:-?,[]{}#&*!|>'\"%@` \n\t~.", "\n  ", ": ", "- ", "replicas", "workload", "faults",
     "breaker", "kind", "crash", "rate", "\\u", "---\n", "<<", "é", "\u2028", "\x85"]
)  # fmt: skip
KEYS = ["replicas", *Scenario.model_fields, *Workload.model_fields]
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text()
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


def says_what_is_wrong(error: ConfigFileError) -> bool:
    problem, more = r".*?x\.yaml:\d+: \S.*: \S.*; \S.*", r".*x\.yaml: and \d+ more"
    return all(re.fullmatch(f"{problem}|{more}", line) for line in str(error).split("\n"))


@pytest.fixture(scope="module")
def tmp_path_once(tmp_path_factory):
    """One file for all examples: each writes it anew."""
    return tmp_path_factory.mktemp("fuzz") / "x.yaml"


class TestFuzz:
    @settings(max_examples=200)
    @given(
        st.one_of(
            st.binary(max_size=80),
            st.lists(PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode()),
            PLAIN.map(lambda data: json.dumps({"replicas": 1, "workload": data}).encode()),
            PLAIN.map(lambda data: json.dumps(data).encode()),
        )
    )
    def test_any_file_gives_a_section_or_an_error_that_says_what_is_wrong(self, tmp_path_once, raw):
        tmp_path_once.write_bytes(raw)
        try:
            load(tmp_path_once, Scenario)
        except ConfigFileError as caught:
            error = caught
        else:
            return
        assert says_what_is_wrong(error)
