import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.types import ConfigError
from holdfast.twin.config_edit import difference, edit, parse_value
from twin_data import FLEET


def value_at(text, *path):
    held = yaml.safe_load(text)
    for part in path:
        held = held[part]
    return held


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("models.llama.launch.replicas", 5, ("models", 0, "launch", "replicas")),
        ("models.0.launch.zones", ["a", "b", "c"], ("models", 0, "launch", "zones")),
        ("models.llama.routing", "least_loaded", ("models", 0, "routing")),
        ("models.llama.deadlines.request_s", 20.0, ("models", 0, "deadlines", "request_s")),
        ("hedge.enabled", True, ("hedge", "enabled")),
        ("prices.gpu_hour", 3.5, ("prices", "gpu_hour")),
        ("models.llama.launch", {"replicas": 1}, ("models", 0, "launch")),
    ],
)
def test_one_value_changes_and_nothing_else(key, value, path):
    text = edit(FLEET, {key: value})
    assert value_at(text, *path) == value
    assert "# what runs" in text
    restored = yaml.safe_load(text)
    original = yaml.safe_load(FLEET)
    for where in ("models", "prices"):
        if where != path[0]:
            assert restored[where] == original[where]


def test_the_diff_names_the_file_and_shows_only_what_changes():
    after = edit(FLEET, {"models.llama.launch.replicas": 5})
    told = difference(FLEET, after, "fleet.yaml")
    assert "--- fleet.yaml" in told
    assert "-      replicas: 2  # two are enough" in told
    assert "+      replicas: 5  # two are enough" in told
    assert difference(FLEET, FLEET, "fleet.yaml") == ""


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("models.mistral.routing", "models.mistral: is not in the file; use one of llama"),
        ("models.llama.launch.replicas.x", "leads through models.llama.launch.replicas, a value"),
        ("", "is no key"),
        ("models..x", "is no key"),
    ],
)
def test_a_key_that_leads_nowhere_is_refused(key, told):
    with pytest.raises(ConfigError, match=told):
        edit(FLEET, {key: 1})


@settings(max_examples=40)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-9999, 9999)
        | st.text("abz :#-'\"{}[],&*", max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
        max_leaves=6,
    )
)
def test_whatever_is_written_is_read_back(value):
    for key, path in (
        ("models.llama.launch.slots", ("models", 0, "launch", "slots")),
        ("prices.new", ("prices", "new")),
        ("models.llama.launch.zones", ("models", 0, "launch", "zones")),
    ):
        assert value_at(edit(FLEET, {key: value}), *path) == value


def test_values_are_written_as_in_a_file():
    assert parse_value("5") == 5
    assert parse_value("[a, b]") == ["a", "b"]
    assert parse_value("2s") == "2s"
    with pytest.raises(ConfigError, match="is no YAML value"):
        parse_value("{a: [")
