"""What ``holdfast render kubernetes`` prints and what runs Holdfast itself, by strict schemas."""

import copy
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from fakekube import Right, rights_of
from holdfast.cli import main
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.wire.kubernetes.rights import lease_rights, source_rights

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = Path(sys.executable).with_name("kubectl")
FLEET = ROOT / "examples/serving/kubernetes.yaml"
WORKLOADS = ROOT / "examples/kubernetes/workloads.yaml"
OVERLAY = ROOT / "deploy/kubernetes/overlays/two-gateways"
VERSION = "1.37"
CUSTOM = "leaderworkerset.x-k8s.io/v1"


def rendered(fleet, workloads):
    arguments = ["render", "kubernetes", "-c", str(fleet), "-w", str(workloads)]
    result = CliRunner(catch_exceptions=False).invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def judge(document):
    kubernetes_validate.validate(document, VERSION, strict=True)


def kustomized(folder):
    built = subprocess.run(
        [KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert not built.stderr, built.stderr
    return list(yaml.safe_load_all(built.stdout))


def test_the_example_fits_the_schemas_of_kubernetes():
    documents = rendered(FLEET, WORKLOADS)
    kinds = [document["kind"] for document in documents]
    assert kinds == [
        *("Service", "Deployment", "PodDisruptionBudget"),
        *("Service", "StatefulSet", "PodDisruptionBudget"),
    ]
    for document in documents:
        judge(document)


def test_a_member_that_kubernetes_does_not_have_would_be_found():
    document = rendered(FLEET, WORKLOADS)[1]
    document["spec"]["template"]["spec"]["gracePeriod"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        judge(document)


def test_templates_of_several_hosts_fit_too(tmp_path):
    workloads = yaml.safe_load(WORKLOADS.read_text())
    first = workloads["workloads"][0]
    first |= {"kind": "leaderworkerset", "hosts": 2, "worker_command": ["ray", "start", "--block"]}
    first["launch"] |= {"command": ["serve"], "gpus": 16, "tensor_parallel": 8}
    first["launch"]["pipeline_parallel"] = 2
    del first["device"], first["planned_as"]
    file = tmp_path / "workloads.yaml"
    file.write_text(yaml.safe_dump(workloads))
    _, group, _ = rendered(FLEET, file)[:3]
    assert (group["apiVersion"], group["kind"]) == (CUSTOM, "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    for name in ("leaderTemplate", "workerTemplate"):
        pod = copy.deepcopy(template[name])
        judge({"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "x"}})


def test_kubectl_builds_the_manifests(tmp_path):
    documents = rendered(FLEET, WORKLOADS)
    (tmp_path / "models.yaml").write_text(yaml.safe_dump_all(documents))
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["models.yaml"]}))
    built = kustomized(tmp_path)
    assert sorted(one["kind"] for one in built) == sorted(one["kind"] for one in documents)


@pytest.mark.parametrize(
    ("name", "kind"), [("base", "Deployment"), ("overlays/two-gateways", "StatefulSet")]
)
def test_holdfast_itself_is_built_and_fits(name, kind):
    built = kustomized(ROOT / "deploy/kubernetes" / name)
    kinds = {one["kind"] for one in built}
    assert {kind, "Service", "ServiceAccount", "ClusterRole", "NetworkPolicy"} <= kinds
    assert len(kinds & {"Deployment", "StatefulSet"}) == 1
    for document in built:
        judge(document)


def test_the_overlay_has_two_named_pods_a_budget_and_a_port_for_them_alone():
    built = kustomized(OVERLAY)
    (pods,) = [one for one in built if one["kind"] == "StatefulSet"]
    assert (pods["spec"]["replicas"], pods["spec"]["serviceName"]) == (2, "holdfast-control")
    selected = pods["spec"]["selector"]["matchLabels"]
    (budget,) = [one for one in built if one["kind"] == "PodDisruptionBudget"]
    assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": selected}}
    services = {one["metadata"]["name"]: one["spec"] for one in built if one["kind"] == "Service"}
    assert services["holdfast"]["selector"] == selected
    assert services["holdfast-control"]["clusterIP"] == "None"
    (policy,) = [one for one in built if one["kind"] == "NetworkPolicy"]
    (rule,) = [one for one in policy["spec"]["ingress"] if one["ports"][0]["port"] == "control"]
    assert rule["from"] == [{"podSelector": {"matchLabels": selected}}]
    container = pods["spec"]["template"]["spec"]["containers"][0]
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    (config,) = [one for one in built if one["kind"] == "ConfigMap"]
    said = yaml.safe_load(config["data"]["fleet.yaml"])["control"]["tls"]
    assert {str(Path(one).parent) for one in said.values()} == {mounted["control-tls"]}


def test_the_overlay_gives_exactly_the_rights_that_its_fleet_file_uses():
    built = kustomized(OVERLAY)
    (config,) = [one for one in built if one["kind"] == "ConfigMap"]
    said = yaml.safe_load(config["data"]["fleet.yaml"])
    (source,) = [one for one in said["sources"] if one["type"] == "kubernetes"]
    lease = said["control"]["lease"]
    needed = [
        *source_rights(KubernetesConfig(namespace=source["namespace"])),
        *lease_rights(lease["namespace"], lease.get("name", "holdfast")),
    ]
    assert rights_of(built, "holdfast", "holdfast") == {Right(*one.action[:4]) for one in needed}


def test_the_component_adds_the_rights_to_inference_pools(tmp_path):
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    deploy = overlay / "kubernetes"
    shutil.copytree(ROOT / "deploy/kubernetes", deploy)
    said = {
        "resources": ["kubernetes/base"],
        "components": ["kubernetes/components/inference-pools"],
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(said))
    built = kustomized(overlay)
    for document in built:
        judge(document)
    config = KubernetesConfig(inference_pools=True)
    needed = {Right(*one.action[:3]) for one in source_rights(config)}
    logs = Right("", "pods/log", "get", "inference")  # bound by namespace alone
    assert rights_of(built, "holdfast", "holdfast") == needed | {logs}
