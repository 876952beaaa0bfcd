"""The alert rules as Prometheus reads them, held against the metrics that there are."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
RULES = yaml.safe_load((ROOT / "examples/prometheus/alerts.yaml").read_text())["groups"][0]["rules"]
METRIC = re.compile(r"^\| `(holdfast_\w+)` \| \w+ \| (.*?) \|", re.MULTILINE)
KNOWN = {
    name: set(re.findall(r"`(\w+)`", labels))
    for name, labels in METRIC.findall((ROOT / "docs/reference/metrics.md").read_text())
}


def family(name):
    """A histogram's buckets belong to it."""
    return name.removesuffix("_bucket")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_metrics_and_labels_that_exist(rule):
    names = {family(name) for name in re.findall(r"holdfast_\w+", rule["expr"])}
    assert names
    assert names <= KNOWN.keys()
    for name, matchers in re.findall(r"(holdfast_\w+)\{([^}]*)\}", rule["expr"]):
        assert set(re.findall(r"(\w+)[=!]", matchers)) <= KNOWN[family(name)]
    told = " ".join(rule["annotations"].values())
    labels = set(re.findall(r"\$labels\.(\w+)", told))
    assert labels <= set().union(*(KNOWN[name] for name in names))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_says_how_urgent_it_is_and_what_to_do(rule):
    assert rule["labels"]["severity"] in {"page", "warning"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")
    assert rule["expr"].count("(") == rule["expr"].count(")")


def test_every_rule_has_its_own_name():
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
