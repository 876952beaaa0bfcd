import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Annotated, Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core.core_schema import ErrorType

import holdfast
from holdfast.config import document, files
from holdfast.config.document import (
    DEPTH_MAX,
    NODES_MAX,
    PROBLEMS_MAX,
    ConfigFileError,
    Document,
    Problem,
)
from holdfast.config.error_messages import TRANSLATIONS
from holdfast.config.files import FILE_BYTES_MAX, TRANSLATED_MAX, json_schema, load
from holdfast.config.sections import Duration, Policy, PolicySection, Section, policy_section
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import ConfigError, require


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Crash(Section):
    kind: Literal["crash"]
    target: str


class Slow(Section):
    kind: Literal["slow"]
    factor: float = Field(2.0, gt=1)


class Workload(Section):
    rate: Annotated[float, Field(gt=0, description="requests per second")] = 1.0
    shape: Colour = Colour.RED
    mode: Literal["open", "closed"] = "open"
    at_least: Annotated[int, Field(ge=1)] = 1
    below: Annotated[float, Field(lt=1)] = 0.0
    at_most: Annotated[int, Field(le=9)] = 9
    even: Annotated[int, Field(multiple_of=2)] = 2
    name: Annotated[str, Field(min_length=2, max_length=4, pattern="^a")] = "ab"
    warm: bool = False
    pause_s: Duration = 0.0
    sizes: tuple[int, ...] = ()
    pair: tuple[float, float] = (1.0, 2.0)
    some: list[int] = Field([1], min_length=1, max_length=2)
    tags: frozenset[str] = frozenset()
    weights: dict[str, float] = Field({})
    by_number: dict[int, str] = Field({})
    nothing: None = None
    trace: Path | None = None
    either: int | tuple[int, ...] = 1

    @field_validator("at_most")
    @classmethod
    def _not_seven(cls, value: int) -> int:
        if value == 7:
            raise ValueError("seven is taken")
        if value == 8:
            raise AssertionError("eight\n  is taken")
        return value


class Limits(Section):
    high: int = 10
    low: int = Field(1, alias="floor")

    @model_validator(mode="after")
    def _ordered(self) -> "Limits":
        require(self.low <= self.high, "limits.floor", f"is {self.low}", "stay below high")
        require(self.high < 100, "elsewhere.top", f"is {self.high}", "stay below 100")
        return self


class Scenario(Section):
    replicas: int
    workload: Workload = Workload()
    faults: tuple[Annotated[Crash | Slow, Field(discriminator="kind")], ...] = ()
    breaker: Annotated[BreakerConfig, Policy()] = BreakerConfig()
    limits: Limits | None = None


def write(tmp_path: Path, text: str | bytes, name: str = "x.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(tmp_path: Path, text: str | bytes, model: type[Section] = Scenario) -> list[str]:
    """The problems of a file, without its path; the path must be there."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigFileError) as caught:
        load(path, model)
    lines = str(caught.value).splitlines()
    for line in lines:
        assert line.startswith(f"{path}:")
    for problem in caught.value.problems:
        assert problem.problem
        assert problem.fix
        assert problem.field
        assert problem.line >= 1
        assert problem.column >= 1
    return [line.removeprefix(f"{path}:") for line in lines]


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


# One file per kind of error: the text, and what is said of it. Together they need the whole table.
SAID = {
    "missing": ("workload: {rate: 1}", "1: replicas: is missing; add it"),
    "extra_forbidden": (
        "replicas: 3\nreplcas: 4",
        "2: replcas: is not a known key; did you mean 'replicas'?",
    ),
    "model_type": (
        "replicas: 3\nlimits: 4",
        "2: limits: must be a mapping (is 4); indent its keys below it; known keys are high, floor",
    ),
    "dict_type": (
        "weights: [a]",
        "weights: must be a mapping (is a list); indent 'key: value' lines below it",
    ),
    "list_type": ("some: 3", "some: must be a list (is 3); use lines of '- item', or [a, b]"),
    "tuple_type": (
        "sizes: {a: b}",
        "sizes: must be a list (is a mapping); use lines of '- item', or [a, b]",
    ),
    "frozen_set_type": (
        "tags: a",
        "tags: must be a list (is 'a'); use lines of '- item', or [a, b]",
    ),
    "too_short": ("some: []", "some: has 0 items; use at least 1"),
    "too_long": ("some: [1, 2, 3]", "some: has 3 items; use at most 2"),
    "greater_than": (
        "rate: -3",
        "rate: must be greater than 0 (is -3); use requests per second above 0",
    ),
    "greater_than_equal": (
        "at_least: 0",
        "at_least: must be at least 1 (is 0); use a number from 1 up",
    ),
    "less_than": ("below: 1", "below: must be less than 1 (is 1); use a number below 1"),
    "less_than_equal": ("at_most: 10", "at_most: must be at most 9 (is 10); use a number up to 9"),
    "multiple_of": ("even: 3", "even: is not a multiple of 2 (is 3); use a multiple of it"),
    "int_type": (
        "even: 2.0",
        "even: must be a whole number (is 2.0); use plain digits, such as 2",
    ),
    "int_parsing": (
        "by_number: {one: a}",
        "by_number.one: must be a whole number (is 'one'); use plain digits",
    ),
    "float_type": (
        "rate: true",
        "rate: must be a number (is true); use requests per second, such as 1.0",
    ),
    "duration": (
        "pause_s: 5 minutes",
        (
            "pause_s: must be a duration (is '5 minutes'); "
            "use a number of seconds, or text such as 250ms, 30s, 5m, 1h"
        ),
    ),
    "duration_too_long": (
        "pause_s: 1e12",
        "pause_s: is longer than thirty years (is 1000000000000.0); check the unit",
    ),
    "bool_type": (
        "warm: yes",
        "warm: must be true or false (is 'yes'); write true or false, without quotes",
    ),
    "string_type": (
        "name: 3",
        "name: must be text (is 3); use text, in quotes if it is a number",
    ),
    "string_too_short": ("name: a", "name: is too short (is 'a'); use 2 characters or more"),
    "string_too_long": ("name: abcde", "name: is too long (is 'abcde'); use at most 4 characters"),
    "string_pattern_mismatch": (
        "name: bb",
        "name: does not fit (is 'bb'); use text that matches ^a",
    ),
    "enum": (
        "shape: grene",
        "shape: must be one of 'red' or 'green' (is 'grene'); did you mean 'green'?",
    ),
    "literal_error": (
        "mode: 3",
        "mode: must be one of 'open' or 'closed' (is 3); use one of open, closed",
    ),
    "union_tag_invalid": (
        "replicas: 3\nfaults:\n- kind: crush",
        "3: faults[0].kind: must be one of 'crash', 'slow' (is 'crush'); did you mean 'crash'?",
    ),
    "union_tag_not_found": (
        "replicas: 3\nfaults:\n- {}",
        "3: faults[0]: lacks the key 'kind'; add it: it decides the other keys",
    ),
    "none_required": ("nothing: 3", "nothing: must be empty (is 3); remove the value"),
    "value_error": ("at_most: 7", "at_most: seven is taken; change the value"),
    "assertion_error": ("at_most: 8", "at_most: eight is taken; change the value"),
}

# Errors that no section can raise when it is loaded from a file, by how they begin, and why not.
NOT_MET = {
    "our own JSON": "json_ needs_python recursion_ string_unicode invalid_key",
    "every field is set once": "frozen_field frozen_instance no_such get_attribute default_",
    "numbers that are not finite or too large": "finite_number int_parsing_size int_from_float",
    "only keys are parsed from text, and only to whole numbers": "bool_parsing float_parsing",
    "nothing is called with the file's values": (
        "arguments_ callable dataclass_ is_ missing_argument missing_keyword missing_positional "
        "model_attributes multiple_argument unexpected_"
    ),
    "no section has such a field; the test of types below guards it": (
        "bytes complex counter date decimal deque ellipsis fraction frozen_dict iterable_ "
        "iteration_ mapping_ missing_sentinel named_tuple ordered_dict set_ string_not_ascii "
        "time url uuid"
    ),
}

# What runs only where an extra is installed; no config is there.
OF_EXTRAS = {
    *("holdfast.launchers.ray.bridge", "holdfast.launchers.ray.cluster"),
    "holdfast.launchers.ray.internals",
}

# Schema types whose errors the table covers.
COVERED_TYPES = {
    "any", "bool", "default", "definitions", "definition-ref", "dict", "enum", "float",
    "frozenset", "function-after", "function-before", "function-plain", "int", "is-instance",
    "json-or-python", "lax-or-strict", "list", "literal", "model", "model-field", "model-fields",
    "none", "nullable", "str", "tagged-union", "tuple", "union",
}  # fmt: skip


def schema_types(schema: Any) -> set[str]:
    """Every type named in a pydantic core schema, serialization aside."""
    if isinstance(schema, Mapping):
        skipped = {"serialization", "metadata", "function"}
        inner = [schema_types(value) for key, value in schema.items() if key not in skipped]
        own = {schema["type"]} if isinstance(schema.get("type"), str) else set()
        return own.union(*inner)
    if isinstance(schema, list | tuple):
        return set().union(*map(schema_types, schema))
    return set()


def sections_below(section: type[Section]) -> list[type[Section]]:
    found = [section]
    for child in section.__subclasses__():
        found += sections_below(child)
    return found


class TestTranslation:
    @pytest.mark.parametrize("kind", sorted(TRANSLATIONS))
    def test_every_kind_of_error_reads_well(self, tmp_path, kind):
        text, said = SAID[kind]
        at_top = bool(re.match(r"\d", said))
        model: type[Section] = Scenario if at_top else Workload
        assert refused(tmp_path, text, model) == [said if at_top else f"1: {said}"]

    def test_every_kind_of_error_that_can_be_met_is_in_the_table(self):
        impossible = tuple(prefix for words in NOT_MET.values() for prefix in words.split())
        missing = {
            kind
            for kind in get_args(ErrorType)
            if kind not in TRANSLATIONS and not kind.startswith(impossible)
        }
        assert missing == set(), "translate them, or say why no section can meet them"

    def test_no_section_has_a_type_whose_errors_are_not_in_the_table(self):
        for module in walk_packages(holdfast.__path__, "holdfast."):
            if not module.name.endswith("__main__") and module.name not in OF_EXTRAS:
                import_module(module.name)
        for section in sections_below(Section):
            types = schema_types(section.__pydantic_core_schema__)
            assert types <= COVERED_TYPES, f"{section.__name__}: extend the table and this list"

    def test_an_error_that_is_not_in_the_table_is_still_told_with_its_line(self, tmp_path):
        class Odd(Section):
            value: complex = 0j

        (line,) = refused(tmp_path, "value: x", Odd)
        assert line.startswith("1: value: is refused: ")
        assert line.endswith("(is 'x'); change the value")

    def test_all_problems_are_told_in_the_order_of_the_file(self, tmp_path):
        text = "workload:\n  rate: 0\n  warm: 1\n  mod: open\nreplicas: x\n"
        assert [line.split(":")[0] for line in refused(tmp_path, text)] == ["2", "3", "4", "5"]

    def test_very_many_problems_are_counted(self, tmp_path):
        text = "replicas: 3\n" + "".join(f"k{n}: 1\n" for n in range(TRANSLATED_MAX + 5))
        path = write(tmp_path, text)
        with pytest.raises(ConfigFileError) as caught:
            load(path, Scenario)
        lines = str(caught.value).splitlines()
        assert len(lines) == PROBLEMS_MAX + 1
        assert lines[-1] == f"{path}: and {TRANSLATED_MAX - PROBLEMS_MAX} more"

    def test_an_unknown_key_that_resembles_none_lists_them_all(self, tmp_path):
        text = "replicas: 3\nlimits: {zzz: 1}"
        line = "2: limits.zzz: is not a known key; known keys are high, floor"
        assert refused(tmp_path, text) == [line]

    def test_keys_of_a_tagged_section_are_those_of_its_tag(self, tmp_path):
        text = "replicas: 3\nfaults:\n- kind: crash\n  victim: r1\n- {kind: slow, factor: 1}"
        assert refused(tmp_path, text) == [
            "3: faults[0].target: is missing; add it",
            "4: faults[0].victim: is not a known key; known keys are kind, target",
            "5: faults[1].factor: must be greater than 1 (is 1); use a number above 1",
        ]

    def test_errors_of_all_members_of_a_union_are_told_of_the_field(self, tmp_path):
        said = refused(tmp_path, "either: [1, x]", Workload)
        assert said == [
            "1: either: must be a whole number (is a list); use plain digits, such as 1",
            "1: either[1]: must be a whole number (is 'x'); use plain digits",
        ]

    def test_items_and_keys_are_named(self, tmp_path):
        text = 'sizes: [1, a]\npair: [1, b, c]\nweights:\n  "a b": x\n  c: y'
        assert refused(tmp_path, text, Workload) == [
            "1: sizes[1]: must be a whole number (is 'a'); use plain digits",
            "2: pair: has 3 items; use at most 2",
            "4: weights.'a b': must be a number (is 'x'); use a plain decimal",
            "5: weights.c: must be a number (is 'y'); use a plain decimal",
        ]

    def test_very_long_keys_are_cut(self, tmp_path):
        (line,) = refused(tmp_path, f"{'k' * 500}: 1", Limits)
        assert line.startswith("1: 'kkkk")
        assert len(line) < 150

    def test_an_item_of_a_pair_is_missing_at_the_pair(self, tmp_path):
        assert refused(tmp_path, "pair: [1]", Workload) == ["1: pair[1]: is missing; add it"]

    def test_a_missing_key_is_told_with_its_meaning(self, tmp_path):
        class Sized(Section):
            size: int = Field(description="replicas in all", examples=[8])

        line = "1: size: is missing; add replicas in all, such as 8"
        assert refused(tmp_path, "{}", Sized) == [line]

    def test_unknown_keys_inside_free_mappings_of_mappings_are_located(self, tmp_path):
        class Tenants(Section):
            tenants: dict[str, list[Limits]]

        line = "1: tenants.a[0].hihg: is not a known key; did you mean 'high'?"
        assert refused(tmp_path, "tenants: {a: [{hihg: 1}]}", Tenants) == [line]


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("250ms", 0.25),
            ("30s", 30.0),
            ("5m", 300.0),
            ("1.5h", 5400.0),
            ("1d", 86400.0),
            (".5 s", 0.5),
            ("-2s", -2.0),
            ("7", 7.0),
            ("0.1", 0.1),
            ("'3s'", 3.0),
        ],
    )
    def test_are_seconds_or_text_with_a_unit(self, tmp_path, text, seconds):
        found = load(write(tmp_path, f"pause_s: {text}"), Workload).pause_s
        assert found == seconds
        assert isinstance(found, float)

    @pytest.mark.parametrize("text", ["'30'", "30 sec", "1m30s", "s", "''", "٣s", "1e3s", "1_0s"])
    def test_are_refused_where_the_unit_is_unclear(self, tmp_path, text):
        (line,) = refused(tmp_path, f"pause_s: {text}", Workload)
        assert "must be a duration" in line

    @pytest.mark.parametrize("text", ["true", "[1]", "~"])
    def test_are_not_made_from_other_types(self, tmp_path, text):
        (line,) = refused(tmp_path, f"pause_s: {text}", Workload)
        assert "pause_s: must be a number (is" in line


@dataclass(slots=True, frozen=True)
class InnerConfig:
    """Local stand-in for a policy that another one contains."""

    share: float = 0.5
    wait_s: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "inner.share", f"is {self.share}", "use a share up to 1")


@dataclass(slots=True, frozen=True)
class OuterConfig:
    """Local stand-in with every shape of field that a policy may have."""

    name: str  # has no default
    rate_per_s: float = 10.0
    limit: int | None = None
    colour: Colour = Colour.RED
    bounds: tuple[int, ...] = (1, 2)
    window_s: tuple[float, float] = (1.0, 2.0)
    pause_s: float | None = None
    inner: InnerConfig = field(default_factory=lambda: InnerConfig(share=0.25))
    ladder: tuple[InnerConfig, ...] = ()
    by_name: dict[str, InnerConfig] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: Literal["a", "b"] = "a"
    tint: Colour | None = None
    words: tuple[str, ...] = ()
    path: str | None = None

    def __post_init__(self) -> None:
        rising = list(self.bounds) == sorted(self.bounds)
        at = len(self.bounds) - 1
        require(rising, f"outer.bounds[{at}]", f"is {self.bounds[-1]}", "let the bounds rise")
        require(self.name != "x", "naming.rule", "forbids x", "use another name")
        require(self.mode != "b" or self.limit is not None, "limit", "is unset", "set it for b")


OuterSection = policy_section(OuterConfig, "Outer")


class TestPolicySections:
    @pytest.mark.parametrize("core", [BreakerConfig, RetryConfig])
    def test_mirror_the_defaults_of_the_core(self, core):
        section = policy_section(core, "Mirror")
        assert section.__name__ == "Mirror"
        assert issubclass(section, PolicySection)
        assert section().build() == core()
        assert policy_section(core, "Mirror") is section

    def test_build_the_core_config_from_the_file(self, tmp_path):
        text = """\
            name: a
            limit: 3
            colour: green
            bounds: [4, 5]
            window_s: [10s, 1m]
            pause_s: 1h
            inner: {wait_s: 2s}
            ladder: [{share: 1}, {}]
            by_name: {b: {share: 0.125}}
            options: {depth: 3, names: [x]}
        """
        built = load(write(tmp_path, text), OuterSection).build()
        assert built == OuterConfig(
            name="a",
            limit=3,
            colour=Colour.GREEN,
            bounds=(4, 5),
            window_s=(10.0, 60.0),
            pause_s=3600.0,
            # The share comes from the outer config's default: it is not InnerConfig's own.
            inner=InnerConfig(share=0.25, wait_s=2.0),
            ladder=(InnerConfig(share=1.0), InnerConfig()),
            by_name={"b": InnerConfig(share=0.125)},
            options={"depth": 3, "names": ["x"]},
        )

    def test_choices_and_lists_may_be_left_out_or_empty(self, tmp_path):
        text = "name: a\ntint: red\nwords: [x, y z]\npath: /p\n"
        built = load(write(tmp_path, text), OuterSection).build()
        assert (built.tint, built.words, built.path) == (Colour.RED, ("x", "y z"), "/p")
        text = "name: a\ntint:\nwords: []\npath:\n"
        assert load(write(tmp_path, text), OuterSection).build() == OuterConfig(name="a")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("tint: blu", "2: tint: must be one of 'red' or 'green' (is 'blu'); use one of red"),
            ("tint: 3", "2: tint: must be one of 'red' or 'green' (is 3); use one of red"),
            ("words: x", "2: words: must be a list (is 'x'); use lines of '- item', or [a, b]"),
            ("words: [x, 1]", "2: words[1]: must be text (is 1); use text, in quotes"),
            ("path: 7", "2: path: must be text (is 7); use text, in quotes"),
        ],
    )
    def test_bad_choices_and_lists_are_told_with_their_place(self, tmp_path, text, said):
        (line,) = refused(tmp_path, f"name: a\n{text}\n", OuterSection)
        assert line.startswith(said)

    def test_a_policy_comes_out_of_a_trip_as_it_went_in(self):
        class Holder(Section):
            outer: Annotated[OuterConfig, Policy()]

        config = OuterConfig(
            name="a", tint=Colour.GREEN, words=("x", "y"), ladder=(InnerConfig(),), path="/p"
        )
        again = Holder.model_validate_json(Holder(outer=config).model_dump_json())
        assert again.outer == config
        assert again.outer.tint is Colour.GREEN

    def test_a_rate_per_second_is_not_a_duration(self, tmp_path):
        (line,) = refused(tmp_path, "name: a\nrate_per_s: 5m", OuterSection)
        assert (
            line == "2: rate_per_s: must be a number (is '5m'); use a plain decimal, such as 10.0"
        )

    def test_other_defaults_can_be_given(self, tmp_path):
        section = policy_section(InnerConfig, defaults=InnerConfig(share=0.75))
        assert section.__name__ == "Inner"
        path = write(tmp_path, "wait_s: 3")
        assert load(path, section).build() == InnerConfig(share=0.75, wait_s=3.0)

    def test_only_dataclasses_can_be_mirrored(self):
        with pytest.raises(TypeError, match="is not a dataclass"):
            policy_section(int)

    def test_what_the_core_refuses_is_told_with_line_and_fix(self, tmp_path):
        text = "replicas: 3\nbreaker:\n  window: 20\n  failure_ratio: 40\n"
        (line,) = refused(tmp_path, text)
        assert line.startswith("4: breaker.failure_ratio: is 40.0; use ")

    def test_what_the_core_refuses_deep_inside_is_told_with_its_place(self, tmp_path):
        text = "name: a\nladder:\n- {}\n- share: 2\nby_name:\n  z: {share: 0}\ninner:\n  share: 3\n"
        assert refused(tmp_path, text, OuterSection) == [
            "4: ladder[1].share: is 2.0; use a share up to 1",
            "6: by_name.z.share: is 0.0; use a share up to 1",
            "8: inner.share: is 3.0; use a share up to 1",
        ]

    def test_an_index_in_the_core_field_is_followed(self, tmp_path):
        text = "name: a\nbounds:\n- 3\n- 1\n"
        line = "4: bounds[1]: is 1; let the bounds rise"
        assert refused(tmp_path, text, OuterSection) == [line]

    def test_a_core_field_that_the_file_leaves_out_is_told_at_its_section(self, tmp_path):
        text = "replicas: 3\nbreaker:\n  minimum: 1000\n"
        (line,) = refused(tmp_path, text)
        assert re.match(r"[23]: breaker\.(minimum|window): ", line)

    def test_a_core_field_without_a_policy_name_is_followed_too(self, tmp_path):
        line = "1: limit: is unset; set it for b"
        assert refused(tmp_path, "{name: a, mode: b}", OuterSection) == [line]

    def test_a_core_field_that_the_section_does_not_have_is_named_in_full(self, tmp_path):
        line = "1: (top level): naming.rule forbids x; use another name"
        assert refused(tmp_path, "name: x", OuterSection) == [line]

    def test_sections_may_check_relations_with_the_same_words(self, tmp_path):
        text = "replicas: 3\nlimits:\n  high: 3\n  floor: 4"
        assert refused(tmp_path, text) == ["4: limits.floor: is 4; stay below high"]
        text = "replicas: 3\nlimits:\n  high: 300"
        assert refused(tmp_path, text) == ["2: limits: elsewhere.top is 300; stay below 100"]

    def test_code_may_pass_the_core_config_itself(self):
        config = BreakerConfig(window=40)
        scenario = Scenario(replicas=1, breaker=config)
        assert scenario.breaker is config
        assert scenario.model_dump()["breaker"]["window"] == 40
        with pytest.raises(ValidationError):
            Scenario(replicas=1, breaker=3)

    def test_code_that_builds_a_bad_core_config_sees_the_core_error(self):
        with pytest.raises(ConfigError, match=r"breaker\.window"):
            BreakerConfig(window=0)


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
    @settings(max_examples=200, deadline=None)
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
