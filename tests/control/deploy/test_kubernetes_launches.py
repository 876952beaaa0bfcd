"""A fleet that control runs on Kubernetes: scaled, rolled out, refused, drained and taken over.

The cluster is ``fakekube``'s, its pods are stand-ins as real processes, and the manifests are those
of the product.
"""

import asyncio
import sys

import pytest

from deployment_stage import QUICK, live
from fakekube import FakeKube, node
from fakekube.controllers import Controllers
from fakekube.kubelet import Kubelet
from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy import launches
from holdfast.storage.sqlite import SqliteStore
from holdfast.wire.kubernetes.launcher import kubernetes_launcher

SPACE = "inference"
IMAGES = {revision: f"engine@sha256:{revision * 64}" for revision in "123"}
SERVE = [sys.executable, "-m", "holdfast", "stand-in", "--host", "{host}", "--port", "{port}"]
LONG_S = 240.0  # each replica is an interpreter that starts, on a machine that may be slow


def fleet(kube, replicas=2, revision="1", command=None):
    launch = {
        "on": "kubernetes",
        "replicas": replicas,
        "gpus": 0,
        "command": command or [*SERVE, "--ttft-ms", "1", "--tpot-ms", "1"],
        "kubernetes": {"image": IMAGES[revision]},
    }
    model = {
        "name": "m",
        "engine": "vllm",
        "revision": revision,
        "launch": launch,
        "rollout": {"settle_s": 0.05, "retry_s": 0.05},
    }
    said = {"kubernetes": {"api_url": kube.url}, "models": [model]}
    return FleetFile.model_validate({**said, "fleet": QUICK, "launches": {"parallel_cold": 4}})


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(launches, "STOP_GRACE_S", 1.0)
    with FakeKube() as kube:
        kube.put("nodes", node("node-1"))
        kube.put("nodes", node("node-2"))
        theirs = {"metadata": {"name": "m-9", "namespace": SPACE}, "spec": {"replicas": 0}}
        template = {"metadata": {"labels": {"app": "m"}}, "spec": {"containers": []}}
        theirs["spec"] |= {"selector": {"matchLabels": {"app": "m"}}, "template": template}
        kube.put("deployments", theirs)
        with Controllers(kube), Kubelet(kube) as kubelet:
            kube.kubelet = kubelet
            yield kube


def deployments(kube):
    return {key[1] for key in kube.objects.things["deployments"]} - {"m-9"}


def images(kube):
    return {
        pod["spec"]["containers"][0]["image"]
        for pod in kube.objects.things["pods"].values()
        if not pod["metadata"].get("deletionTimestamp")
    }


async def waited(world, condition):
    await world.until(condition, LONG_S)


def test_a_fleet_is_scaled_rolled_out_refused_drained_and_taken_over(world, cluster, tmp_path):
    kube, files = cluster, {}

    def launcher(name):
        return kubernetes_launcher(lambda: files["now"], tmp_path / name)

    async def settled(stage, count, revision):
        def there():
            mine = list(stage.units.values())
            same = all(unit.revision == revision for unit in mine)
            return same and len(stage.ready()) == len(mine) == count

        await waited(world, there)
        await waited(world, lambda: deployments(kube) == set(stage.units))

    async def main():
        store = SqliteStore(tmp_path / "first.sqlite")
        files["now"] = fleet(kube)
        first = launcher("first")
        async with live(world, store, files["now"], first, leave_running=True) as stage:
            await settled(stage, 2, "1")
            assert {unit.node for unit in stage.units.values()} <= {"node-1", "node-2"}
            template = kube.objects.get("deployments", SPACE, "m-1")["spec"]["template"]
            assert template["spec"]["containers"][0]["livenessProbe"]
            # A revision whose engine ends at once: refused, and the old one serves on.
            files["now"] = fleet(kube, revision="3", command=["false"])
            stage.follow(files["now"])
            await waited(world, lambda: stage.said("rollout halted"))
            await waited(world, lambda: images(kube) == {IMAGES["1"]})
            assert len(stage.ready()) == 2
            # A good one: one after the other, until all have it.
            files["now"] = fleet(kube, revision="2")
            stage.follow(files["now"])
            await settled(stage, 2, "2")
            assert images(kube) == {IMAGES["2"]}
            before = {unit.id: unit.pid for unit in stage.units.values()}
        await asyncio.to_thread(store.close)

        # Another control on another host, with nothing of the first one's files.
        empty = SqliteStore(tmp_path / "second.sqlite")
        async with live(
            world, empty, files["now"], launcher("second"), leave_running=True
        ) as stage:
            await settled(stage, 2, "2")
            assert {unit.id: unit.pid for unit in stage.units.values()} == before
            # Somebody evicts a pod: it is drained, and another replica takes its place.
            gone = min(before)
            pod = kube.kubelet.process(gone)
            kube.writes.answer("POST", "pods", SPACE, [pod.key[1], "eviction"], {}, {}, "")
            await waited(world, lambda: gone not in stage.units)
            assert stage.said("leaves")
            await settled(stage, 2, "2")
            files["now"] = fleet(kube, replicas=0, revision="2")
            stage.follow(files["now"])
            await settled(stage, 0, "2")
        await asyncio.to_thread(empty.close)

    asyncio.run(main())
    assert kube.objects.get("deployments", SPACE, "m-9") is not None, "it was never ours"
