"""Every problem that a section can have, in words with line, field and fix."""

import re
from collections.abc import Mapping
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, get_args

import pytest
from pydantic import Field
from pydantic_core.core_schema import ErrorType
from section_stage import Limits, Scenario, Workload, refused, write

import holdfast
from holdfast.config import PROBLEMS_MAX, ConfigFileError
from holdfast.config.error_messages import TRANSLATIONS
from holdfast.config.files import TRANSLATED_MAX, load
from holdfast.config.sections import Section

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
