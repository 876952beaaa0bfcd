"""``holdfast render``: what Kubernetes and KEDA would be given."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from holdfast.cli.render import render
from holdfast.exporters.cloudwatch import NAMES

ROOT = Path(__file__).resolve().parents[2]
SAID = ["--model", "llama", "--deployment", "llama-server"]

# The fields that the two kinds have, as far as they are used; another one would be refused.
HPA_SPEC = {"scaleTargetRef", "minReplicas", "maxReplicas", "metrics", "behavior"}
KEDA_SPEC = {
    *("scaleTargetRef", "pollingInterval", "cooldownPeriod", "minReplicaCount"),
    *("maxReplicaCount", "advanced", "triggers"),
}
KEDA_TRIGGER = {"type", "name", "metricType", "metadata"}
BEHAVIOUR = {
    "scaleUp": {
        "stabilizationWindowSeconds": 60,
        "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
    },
    "scaleDown": {"stabilizationWindowSeconds": 300},
}


def printed(*arguments):
    result = CliRunner().invoke(render, arguments)
    assert result.exit_code == 0, result.output
    return yaml.safe_load(result.output)


def refused(*arguments):
    result = CliRunner().invoke(render, arguments)
    assert result.exit_code == 2
    return result.output


def published():
    page = (ROOT / "docs/serving_tables.py").read_text()
    return {f"holdfast_{name}" for name in re.findall(r'^    "(\w+)": "', page, re.MULTILINE)}


def test_names_have_the_dots_that_kubernetes_takes_and_no_backslash():
    names = ("hpa", "--model", "llama", "--deployment")
    assert printed(*names, "llama.v2")["metadata"]["name"] == "llama.v2-holdfast"
    for name in ("llama.", ".llama", "a..b", "llama\\xv2", "a-.b", "Llama.v2"):
        assert "Deployment" in refused(*names, name)
    assert "namespace" in refused(*names, "d", "--namespace", "a.b")


def test_an_hpa_scales_on_a_level_and_on_an_amount():
    document = printed("hpa", *SAID, "--namespace", "ml")
    assert (document["apiVersion"], document["kind"]) == (
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
    )
    assert document["metadata"] == {"name": "llama-server-holdfast", "namespace": "ml"}
    spec = document["spec"]
    assert set(spec) == HPA_SPEC
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama-server"}
    assert spec["scaleTargetRef"] == target
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 8)
    memory, queue = (metric["external"] for metric in spec["metrics"])
    assert {metric["type"] for metric in spec["metrics"]} == {"External"}
    assert memory["target"] == {"type": "Value", "value": "700m"}  # 0.7, of a ratio
    assert queue["target"] == {"type": "AverageValue", "averageValue": "10"}
    assert memory["metric"]["selector"] == {"matchLabels": {"model": "llama"}}
    assert spec["behavior"] == BEHAVIOUR
    assert {memory["metric"]["name"], queue["metric"]["name"]} <= published()


def test_an_hpa_may_read_cloudwatch_instead():
    spec = printed("hpa", *SAID, "--metrics", "cloudwatch")["spec"]
    memory, queue = (metric["external"] for metric in spec["metrics"])
    assert memory["metric"]["name"] == "GPUMemoryUtilization"
    assert memory["target"] == {"type": "Value", "value": "70"}
    assert queue["metric"]["name"] == "InferenceQueueDepth"
    assert {memory["metric"]["name"], queue["metric"]["name"]} <= set(NAMES)


def test_the_adapters_rules_serve_what_the_hpa_asks_for():
    rules = printed("hpa", *SAID, "--rules")["externalRules"]
    asked = printed("hpa", *SAID)["spec"]["metrics"]
    names = [metric["external"]["metric"]["name"] for metric in asked]
    assert [rule["name"]["as"] for rule in rules] == names
    for rule, name in zip(rules, names, strict=True):
        assert set(rule) == {"seriesQuery", "resources", "name", "metricsQuery"}
        assert name in rule["seriesQuery"]
        assert rule["resources"] == {"namespaced": False}
        assert "<<.LabelMatchers>>" in rule["metricsQuery"]


def test_a_scaled_object_asks_prometheus():
    document = printed("keda", *SAID, "--prometheus", "http://prom:9090/", "--min", "0")
    assert (document["apiVersion"], document["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = document["spec"]
    assert set(spec) == KEDA_SPEC
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 8)
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == BEHAVIOUR
    memory, queue = spec["triggers"]
    for trigger in (memory, queue):
        assert set(trigger) == KEDA_TRIGGER
        assert trigger["type"] == "prometheus"
        assert trigger["metadata"]["serverAddress"] == "http://prom:9090"
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        names = set(re.findall(r"holdfast_\w+", trigger["metadata"]["query"]))
        assert names
        assert names <= published()
        assert 'model="llama"' in trigger["metadata"]["query"]
    assert (memory["metricType"], memory["metadata"]["threshold"]) == ("Value", "70")
    assert (queue["metricType"], queue["metadata"]["threshold"]) == ("AverageValue", "10")


def test_every_number_can_be_another():
    options = ["--min", "1", "--max", "3", "--memory", "85", "--queue", "4", "--down", "60"]
    spec = printed("hpa", *SAID, *options)["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 3)
    assert spec["metrics"][0]["external"]["target"]["value"] == "850m"
    assert spec["metrics"][1]["external"]["target"]["averageValue"] == "4"
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 60


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["hpa", "--model", "llama"], "--deployment"),
        (["hpa", "--model", 'a"b', "--deployment", "d"], "model"),
        (["hpa", "--model", "llama", "--deployment", "Not_A_Name"], "Deployment"),
        (["hpa", *SAID, "--namespace", "a/b"], "namespace"),
        (["hpa", *SAID, "--min", "5", "--max", "4"], "below --min 5"),
        (["hpa", *SAID, "--min", "0"], "--min"),
        (["hpa", *SAID, "--memory", "101"], "--memory"),
        (["hpa", "--model", "org/llama", "--deployment", "d"], "render keda"),
        (["keda", *SAID, "--prometheus", "prom:9090"], "not a URL"),
        (["keda", *SAID, "--prometheus", "http://me:x@prom"], "not a URL"),
        (["keda", *SAID, "--queue", "0"], "--queue"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(arguments, told):
    assert told in refused(*arguments)


def test_a_model_with_a_slash_is_fine_for_keda():
    document = printed("keda", "--model", "org/llama", "--deployment", "d")
    assert 'model="org/llama"' in document["spec"]["triggers"][0]["metadata"]["query"]
