"""Sections: durations, and the policies of the core as sections."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import ValidationError
from section_stage import Colour, Scenario, Workload, refused, write

from holdfast.config.files import load
from holdfast.config.sections import Policy, PolicySection, Section, policy_section
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import ConfigError, require


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
