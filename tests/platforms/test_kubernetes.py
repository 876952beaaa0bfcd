"""What ``holdfast render kubernetes`` prints and what runs Holdfast itself, by strict schemas."""

import copy
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from holdfast.cli import main

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = Path(sys.executable).with_name("kubectl")
FLEET = ROOT / "examples/serving/kubernetes.yaml"
WORKLOADS = ROOT / "examples/kubernetes/workloads.yaml"
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


@pytest.mark.parametrize("name", ["base", "overlays/two-gateways"])
def test_holdfast_itself_is_built_and_fits(name):
    built = kustomized(ROOT / "deploy/kubernetes" / name)
    kinds = {one["kind"] for one in built}
    assert {"Deployment", "Service", "ServiceAccount", "ClusterRole", "NetworkPolicy"} <= kinds
    for document in built:
        judge(document)
