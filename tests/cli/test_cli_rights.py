"""``holdfast doctor``: which rights an account lacks at the API servers of a fleet file."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fakekube import FakeKube, Right, rights_of
from holdfast.cli import main

ROOT = Path(__file__).resolve().parents[2]
NOBODY = "http://127.0.0.1:9"
SOURCE = {"type": "kubernetes", "name": "kube", "inference_pools": True}
FOUND = {
    "name": "m",
    "engine": "vllm",
    "discover": {"source": "kube", "inference_pool": "llama"},
}
PLAIN = {"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:9"]}
MEMBERS = {
    "members": [{"name": name, "address": f"{name}.test:8002"} for name in ("one", "two")],
    "listen": "0.0.0.0:8002",
    "tls": {"certificate": "/c.crt", "key": "/c.key", "ca": "/ca.crt"},
    "lease": {"store": "kubernetes", "namespace": "holdfast"},
}


@pytest.fixture
def kube():
    with FakeKube() as server:
        yield server


def shipped(*names):
    files = [ROOT / name for name in names]
    documents = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    return rights_of(documents, "holdfast", "holdfast")


READING = ("examples/kubernetes/rbac.yaml", "examples/kubernetes/inference-pools.yaml")
LAUNCHING = "deploy/kubernetes/components/launching/rbac.yaml"
LEASE = "deploy/kubernetes/overlays/two-gateways/lease.yaml"


def reading(url, **more):
    """A file whose model is found by a source."""
    return {"models": [FOUND], "sources": [{**SOURCE, "api_url": url, **more}]}


def launching(url, kind="deployment"):
    """A file whose model is launched on a cluster."""
    pod = {"image": "engine@sha256:" + "ab" * 32, "kind": kind}
    launch = {"on": "kubernetes", "command": ["serve"], "kubernetes": pod}
    model = {"name": "own", "engine": "vllm", "launch": launch}
    return {"kubernetes": {"api_url": url}, "models": [model]}


def examined(folder, file, *switches):
    """What the doctor says of the rights of a file, and its exit status."""
    place = folder / "fleet.yaml"
    place.write_text(yaml.safe_dump(file))
    result = CliRunner().invoke(main, ["doctor", "-c", str(place), "--json", *switches])
    advice = json.loads(result.stdout)["advice"]
    for row in advice:
        assert set(row) == {"level", "where", "problem", "fix", "leads_to"}
    ours = [row for row in advice if "may not" in row["problem"] or "asked" in row["problem"]]
    return result.exit_code, ours


@pytest.mark.parametrize("switches", [(), ("--rights",)], ids=["plain", "demanded"])
def test_what_is_shipped_lacks_nothing(kube, tmp_path, switches):
    kube.rights = shipped(*READING)
    assert examined(tmp_path, reading(kube.url), *switches) == (0, [])
    assert examined(tmp_path, reading(kube.url, namespace="inference"), *switches) == (0, [])
    kube.rights |= shipped(LAUNCHING)
    assert examined(tmp_path, launching(kube.url), *switches) == (0, [])
    assert len(kube.requests) > 20


@pytest.mark.parametrize("switches", [(), ("--rights",)], ids=["plain", "demanded"])
def test_a_missing_right_is_named_with_what_is_lost_and_how_to_get_it(kube, tmp_path, switches):
    kube.rights = shipped(READING[0]) - {Right("", "pods", "watch")}
    code, advice = examined(tmp_path, reading(kube.url), *switches)
    assert code == 1
    assert {row["where"] for row in advice} == {"sources.0"}
    told = {row["problem"]: row for row in advice}
    lists = told["may not watch pods: lists replace it: changes are seen later"]
    assert (lists["level"], "examples/kubernetes/rbac.yaml" in lists["fix"]) == ("error", True)
    pools = [row for row in advice if "inferencepools" in row["problem"]]
    assert len(pools) == 4
    assert all("inference-pools.yaml" in row["fix"] for row in pools)
    assert "pods of inference pools are not found" in pools[0]["problem"]
    names = [row for row in advice if "inferencemodels" in row["problem"]]
    assert {row["level"] for row in names} == {"note"}


def test_a_missing_right_to_launch_is_told_alike(kube, tmp_path):
    kube.rights = shipped(READING[0], LAUNCHING)
    kube.rights -= {Right("apps", "deployments", "create", "inference")}
    kube.rights -= {Right("", "nodes", "watch")}
    code, advice = examined(tmp_path, launching(kube.url))
    assert code == 1
    assert {(row["level"], row["where"]) for row in advice} == {("error", "kubernetes")}
    kind = "replicas of kind Deployment cannot be run"
    assert [row["problem"] for row in advice] == [
        "may not watch nodes: launched replicas on nodes that leave are not drained",
        f"may not create deployments.apps in inference: {kind}",
    ]
    assert ["holdfast-hosts" in row["fix"] for row in advice] == [True, False]
    assert LAUNCHING in advice[1]["fix"]
    _, (nodes,) = examined(tmp_path, launching(kube.url, "statefulset"))
    assert "nodes" in nodes["problem"]  # Deployments are none of this file's


def test_a_missing_right_to_the_lease_is_told_alike(kube, tmp_path, monkeypatch):
    """The lease is asked for at the server of this machine's own kubeconfig."""
    own = {
        "clusters": [{"name": "c", "cluster": {"server": kube.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(own))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    file = {"models": [PLAIN], "control": MEMBERS}
    kube.rights = shipped(LEASE)
    assert examined(tmp_path, file) == (0, [])
    kube.rights -= {Right("coordination.k8s.io", "leases", "update", "holdfast")}
    code, (advice,) = examined(tmp_path, file)
    told = "may not update leases.coordination.k8s.io in holdfast: no control can lead"
    assert (code, advice["where"], advice["problem"]) == (1, "control.lease", told)
    assert LEASE in advice["fix"]


def test_what_several_parts_need_is_asked_once_and_told_of_each(kube, tmp_path):
    file = reading(kube.url, namespace="inference")
    file["kubernetes"] = {"api_url": kube.url}
    file["models"] = [*file["models"], *launching(kube.url)["models"]]
    kube.rights = shipped(*READING, LAUNCHING) - {Right("", "pods", "list")}
    kube.rights -= {Right("", "pods", "list", "inference")}
    code, advice = examined(tmp_path, file)
    assert code == 1
    assert [(row["where"], row["problem"]) for row in advice] == [
        ("sources.0", "may not list pods in inference: no pod is found"),
        ("kubernetes", "may not list pods in inference: launched replicas are not found"),
    ]
    # 9 + 8 of the source, 13 of the launcher, of which 5 are the source's too: pods and nodes are
    # listed and watched by both, logs read by both.
    assert len(kube.requests) == 9 + 8 + 13 - 5


def test_logs_are_asked_for_in_the_source_s_namespace(kube, tmp_path):
    kube.rights = shipped(*READING)
    code, (advice,) = examined(tmp_path, reading(kube.url, namespace="elsewhere"), "--rights")
    assert code == 0
    assert advice["problem"].startswith("may not get pods/log in elsewhere")


@pytest.mark.parametrize("make", [reading, launching], ids=["source", "launcher"])
def test_a_server_that_cannot_be_asked_is_told_and_the_rest_goes_on(tmp_path, make):
    file = make(NOBODY)
    file["retry"] = {"backoff": "none"}
    code, (advice,) = examined(tmp_path, file)
    assert (code, advice["level"]) == (0, "warning")
    assert "its API server cannot be asked for rights" in advice["problem"]
    assert "where Holdfast runs" in advice["fix"]
    result = CliRunner().invoke(main, ["doctor", "-c", str(tmp_path / "fleet.yaml")])
    assert "retry.backoff" in result.stdout  # what needs no server is still looked at


@pytest.mark.parametrize("make", [reading, launching], ids=["source", "launcher"])
def test_a_server_that_cannot_be_asked_is_an_error_where_the_answer_is_demanded(tmp_path, make):
    code, (advice,) = examined(tmp_path, make(NOBODY), "--rights")
    assert (code, advice["level"]) == (1, "error")
    assert "its API server cannot be asked for rights" in advice["problem"]


def test_one_server_that_is_down_hides_nothing_of_another(kube, tmp_path):
    kube.rights = shipped(*READING) - {Right("", "pods", "list")}
    file = reading(kube.url)
    file["sources"].append({**SOURCE, "name": "other", "api_url": NOBODY})
    code, advice = examined(tmp_path, file)
    assert code == 1
    assert [(row["where"], row["level"]) for row in advice] == [
        ("sources.0", "error"),
        ("sources.1", "warning"),
    ]


def test_without_the_package_the_fix_is_to_install_it(kube, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightkube.core.exceptions", None)
    code, (advice,) = examined(tmp_path, reading(kube.url))
    assert (code, advice["level"]) == (0, "warning")
    assert "need lightkube" in advice["problem"]
    assert "holdfast[kubernetes]" in advice["fix"]
    assert not kube.requests


@pytest.mark.parametrize("switches", [(), ("--rights",)], ids=["plain", "demanded"])
def test_a_file_without_kubernetes_asks_nobody(kube, tmp_path, monkeypatch, switches):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert examined(tmp_path, {"models": [PLAIN]}, *switches) == (0, [])
    assert not kube.requests


def test_it_needs_a_file():
    result = CliRunner().invoke(main, ["doctor", "--rights"])
    assert result.exit_code == 2
    assert "add -c fleet.yaml" in result.output
