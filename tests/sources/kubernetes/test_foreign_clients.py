"""Clients that others wrote accept the fake API server: what is proven against it holds."""

import os
import shutil
import subprocess

import pytest
from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Event, Namespace, Node, Pod

from fakekube import event, node, pod
from fakekube.objects import killed_for_memory

NEEDS_KUBECTL = pytest.mark.skipif(
    shutil.which("kubectl") is None,
    reason="kubectl is not installed: apt-get install kubernetes-client",
)


@pytest.fixture
def fleet(kube):
    kube.put("nodes", node("node-1", gpus=2))
    made = kube.put("pods", pod("m-1", model="m", gpus=1))
    kube.patch("pods", "m-1", killed_for_memory(made))
    kube.put("pods", pod("m-2", model="m", host="", phase="Pending"))
    kube.put("pods", pod("x-1", namespace="other"))
    kube.put("events", event("e1", "FailedScheduling", "0/1 nodes are available", about="m-2"))
    kube.say("m-1", "hello")
    kube.say("m-1", "world")
    return kube


@pytest.fixture
def lightkube_client(fleet):
    known = KubeConfig.from_one(cluster=Cluster(server=fleet.url), user=User())
    client = Client(known, trust_env=False)
    yield client
    client._client.close()


def test_lightkube_lists_in_pages_and_by_selectors(lightkube_client):
    names = [one.metadata.name for one in lightkube_client.list(Pod, namespace="*", chunk_size=1)]
    assert names == ["m-1", "m-2", "x-1"]
    chosen = lightkube_client.list(Pod, labels={"app.kubernetes.io/name": "m"})
    assert [one.metadata.name for one in chosen] == ["m-1", "m-2"]
    found = lightkube_client.list(Pod, namespace="*", fields={"spec.nodeName": "node-1"})
    assert [one.metadata.name for one in found] == ["m-1", "x-1"]
    assert [one.metadata.name for one in lightkube_client.list(Namespace)] == ["default"]
    assert [one.reason for one in lightkube_client.list(Event)] == ["FailedScheduling"]
    assert lightkube_client.get(Node, "node-1").status.allocatable["nvidia.com/gpu"] == "2"


def test_lightkube_reads_how_a_container_ended(lightkube_client):
    status = lightkube_client.get(Pod, "m-1").status.containerStatuses[0]
    ended = status.lastState.terminated
    assert (ended.reason, ended.exitCode, status.restartCount) == ("OOMKilled", 137, 1)


def test_lightkube_watches(lightkube_client, fleet):
    version = str(fleet.objects.version)
    fleet.put("pods", pod("m-3", model="m"))
    fleet.terminate("m-1")
    fleet.delete("pods", "m-2")
    seen = []
    for what, one in lightkube_client.watch(Pod, resource_version=version):
        seen.append((what, one.metadata.name))
        if len(seen) == 3:
            assert seen == [("ADDED", "m-3"), ("MODIFIED", "m-1"), ("DELETED", "m-2")]
            break


def test_lightkube_is_told_what_is_gone_and_what_is_missing(lightkube_client, fleet):
    fleet.expire()
    with pytest.raises(ApiError) as caught:
        next(iter(lightkube_client.watch(Pod, resource_version="100")))
    assert caught.value.status.code == 410
    with pytest.raises(ApiError) as caught:
        lightkube_client.get(Pod, "none")
    assert caught.value.status.code == 404
    fleet.refuse("pods", 403)
    with pytest.raises(ApiError) as caught:
        lightkube_client.get(Pod, "m-1")
    assert caught.value.status.reason == "Forbidden"


def test_lightkube_reads_logs(lightkube_client):
    assert list(lightkube_client.log("m-1", tail_lines=1)) == ["world\n"]


# --- kubectl --------------------------------------------------------------------------------------


def kubectl(kube, folder, *arguments):
    around = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(folder / "none")}
    command = ["kubectl", "--server", kube.url, *arguments]
    done = subprocess.run(
        command, env=around, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@NEEDS_KUBECTL
def test_kubectl_gets(fleet, tmp_path):
    table = kubectl(fleet, tmp_path, "get", "pods").splitlines()
    assert table[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert table[1].split()[:4] == ["m-1", "1/1", "Running", "1"]
    assert table[2].split()[:3] == ["m-2", "0/1", "Pending"]
    fleet.terminate("m-1")
    everywhere = kubectl(fleet, tmp_path, "get", "pods", "--all-namespaces", "--chunk-size=1")
    assert "Terminating" in everywhere
    assert "x-1" in everywhere
    assert "node-1" in kubectl(fleet, tmp_path, "get", "nodes", "-o", "wide")
    assert "FailedScheduling" in kubectl(fleet, tmp_path, "get", "events")
    path = "jsonpath={.items[*].metadata.name}"
    chosen = kubectl(fleet, tmp_path, "get", "po", "-l", "app.kubernetes.io/name=m", "-o", path)
    assert chosen == "m-1 m-2"


@NEEDS_KUBECTL
def test_kubectl_describes(fleet, tmp_path):
    told = kubectl(fleet, tmp_path, "describe", "pod", "m-1")
    assert "OOMKilled" in told
    assert "Exit Code:    137" in told
    told = kubectl(fleet, tmp_path, "describe", "pod", "m-2")
    assert "FailedScheduling" in told
    told = kubectl(fleet, tmp_path, "describe", "node", "node-1")
    assert "Non-terminated Pods:          (2 in total)" in told
    assert "nvidia.com/gpu" in told


@NEEDS_KUBECTL
def test_kubectl_reads_logs_and_follows_them(fleet, tmp_path):
    assert kubectl(fleet, tmp_path, "logs", "m-1", "--tail=1") == "world\n"
    stamped = kubectl(fleet, tmp_path, "logs", "m-1", "--timestamps")
    assert stamped.splitlines()[0].endswith("Z hello")
    around = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = ["kubectl", "--server", fleet.url, "logs", "-f", "m-1"]
    with subprocess.Popen(command, env=around, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout.readline() == "hello\n"
        assert following.stdout.readline() == "world\n"
        fleet.say("m-1", "more")
        assert following.stdout.readline() == "more\n"
        fleet.delete("pods", "m-1")
        assert following.wait(30) == 0


@NEEDS_KUBECTL
def test_kubectl_is_refused_in_its_own_words(fleet, tmp_path):
    fleet.refuse("pods", 403)
    around = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = ["kubectl", "--server", fleet.url, "get", "pods"]
    done = subprocess.run(
        command, env=around, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Error from server (Forbidden): pods is forbidden" in done.stderr
