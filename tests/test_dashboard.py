"""The Grafana dashboard: a shape that Grafana imports, and metrics that there are."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BOARD = json.loads((ROOT / "examples/grafana/holdfast.json").read_text())
METRIC = re.compile(r"^\| `(holdfast_\w+)` \| (\w+) \| (.*?) \|", re.MULTILINE)
KNOWN = {
    name: (kind, set(re.findall(r"`(\w+)`", labels)))
    for name, kind, labels in METRIC.findall((ROOT / "docs/reference/metrics.md").read_text())
}
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
UNITS = {"reqps", "percentunit", "short", "s", "bytes"}  # of Grafana's own
COLUMNS = 24  # of Grafana's grid


def family(name):
    """A histogram's parts belong to it."""
    for part in ("_bucket", "_sum", "_count"):
        if name.removesuffix(part) in KNOWN and KNOWN[name.removesuffix(part)][0] == "histogram":
            return name.removesuffix(part)
    return name


def expressions():
    found = [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in PANELS
        for target in panel["targets"]
    ]
    found += [(note["name"], note["expr"], "") for note in BOARD["annotations"]["list"]]
    return found


@pytest.mark.parametrize(("title", "expression", "legend"), expressions())
def test_a_panel_asks_for_metrics_and_labels_that_exist(title, expression, legend):
    names = re.findall(r"holdfast_\w+", expression)
    assert names, title
    labels = {"le"}
    for name in names:
        assert family(name) in KNOWN, name
        labels |= KNOWN[family(name)][1]
    for name, matchers in re.findall(r"(holdfast_\w+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)[=!]", matchers)) <= KNOWN[family(name)][1], name
    grouped = {
        label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")
    }
    assert grouped <= labels
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels
    if "by (" in expression:
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_and_in_which_unit(panel):
    assert panel["type"] in {"timeseries", "stat"}
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    names = [target["refId"] for target in panel["targets"]]
    assert len(names) == len(set(names)) > 0


def test_a_quantile_is_taken_of_buckets_and_a_rate_of_what_only_grows():
    for title, expression, _ in expressions():
        for name in re.findall(r"(?:rate|increase)\((holdfast_\w+)", expression):
            assert KNOWN[family(name)][0] in {"counter", "histogram"}, title
        if "histogram_quantile" in expression:
            assert all(name.endswith("_bucket") for name in re.findall(r"holdfast_\w+", expression))
            assert "by (le" in expression


def test_panels_have_their_own_ids_and_places():
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in PANELS]
    assert len(titles) == len(set(titles))
    places = [(panel["title"], panel["gridPos"]) for panel in BOARD["panels"]]
    for title, place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS, title
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, f"{one} lies on {other}"


def test_it_has_what_grafana_needs_to_import_it():
    assert BOARD["uid"] == "holdfast"
    assert BOARD["schemaVersion"] >= 36
    assert "id" not in BOARD  # of the Grafana it came from: an import would replace another
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert set(re.findall(r"holdfast_\w+", variables["model"]["definition"])) <= KNOWN.keys()
    used = set(re.findall(r"\$(\w+)", json.dumps([panel["targets"] for panel in PANELS])))
    assert used <= {*variables, "__rate_interval"}


ASKED_FOR = (
    *("requests_total", "time_to_first_token", "time_per_output_token", "queued", "kv_used"),
    *("replicas", "incidents", "tokens_total", "gpu_cost"),
)


@pytest.mark.parametrize("about", ASKED_FOR)
def test_it_shows_what_an_operator_asks_for(about):
    assert any(about in expression for _, expression, _ in expressions())
