"""The Kubernetes launcher where things go wrong: no room, no right, conflicts, ends, owners."""

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fakekube import FakeKube, Right, node
from fakekube.controllers import Controllers
from fakekube.kubelet import Kubelet
from holdfast.core.types import HostCondition
from holdfast.launchers.kubernetes import launcher as module
from holdfast.launchers.kubernetes.launcher import KUBERNETES, KubernetesLauncher
from holdfast.launchers.kubernetes.pod_reader import read_pod_sight
from holdfast.launchers.kubernetes.workloads import OWNER, Workloads
from holdfast.ports import LaunchError, NoRoomError, Order, PlaceRequest
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.wire.kubernetes.launcher import cluster_access

PATIENCE_S = 60.0
RECORDINGS = Path(__file__).parents[2] / "sources" / "kubernetes" / "recordings"
SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)"
SPACE = "inference"
KINDS = ("Deployment", "StatefulSet", "LeaderWorkerSet")


def order(name="a", script=SLEEPER, **more):
    return Order(name, ("{python}", "-I", "-S", "-c", script), port=8000, **more)


def request(name="a", **more):
    return PlaceRequest(name, "m", order=order(name, **more))


def manifest(order, zone, kind="Deployment", gpus=0):
    labels = {"holdfast.dev/replica": order.replica_id}
    amounts = {"nvidia.com/gpu": str(gpus)}
    engine = {"name": "engine", "image": "engine", "command": list(order.command)}
    if gpus:
        engine["resources"] = {"limits": amounts, "requests": order.platform.get("ask", amounts)}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [engine]}}
    api = "apps/v1" if kind != "LeaderWorkerSet" else "leaderworkerset.x-k8s.io/v1"
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    if kind == "LeaderWorkerSet":
        worker = json.loads(json.dumps(template)) | {"metadata": {}}
        inside = {"size": 2, "leaderTemplate": template, "workerTemplate": worker}
        spec = {"replicas": 1, "leaderWorkerTemplate": inside}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": order.replica_id}, "spec": spec}


@pytest.fixture
def kube():
    with FakeKube() as kube:
        yield kube


@pytest.fixture
def cluster(kube):
    """Controllers and a kubelet with one node."""
    kube.put("nodes", node("node-1", gpus=1))
    with Controllers(kube), Kubelet(kube, back_off_s=600.0) as kubelet:
        yield kubelet


class Notes:
    def __init__(self):
        self.all = []

    def __getattr__(self, what):
        return lambda *news: self.all.append((what, *news))

    def of(self, what):
        return [news[1:] for news in self.all if news[0] == what]

    async def seen(self, what):
        await until(lambda: self.of(what))
        return self.of(what)[-1]


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 the cluster gives no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def launching(kube, tmp_path, make=manifest, *, leave_running=False, adopts=True):
    access = cluster_access(KubernetesConfig(api_url=kube.url, retry_s=0.02, retry_max_s=0.1))
    launcher = KubernetesLauncher(access, Workloads(access.api, SPACE, "own", make), tmp_path)
    notes = Notes()
    try:
        if adopts:
            await launcher.adopt(notes)
        yield launcher, notes
    finally:
        await launcher.close(leave_running=leave_running)


def workload(kube, name="a", resource="deployments"):
    return kube.objects.get(resource, SPACE, name)


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(module, "PLACE_S", 1.0)


# --- waiting for a place --------------------------------------------------------------------------


def test_a_replica_without_a_node_waits_with_the_schedulers_reason(
    kube, cluster, tmp_path, hurried
):
    async def main():
        def make(order, zone):
            return manifest(order, zone, gpus=4)

        async with launching(kube, tmp_path, make) as (launcher, notes):
            await waits_for(launcher, request(), "Insufficient nvidia.com/gpu")
            assert launcher.pid("a") is None
            kube.put("nodes", node("node-2", gpus=4))
            place = await find(launcher, request())
            assert (place.host, place.port, place.listen) == ("node-2", 8000, "0.0.0.0")
            assert place.address.startswith("127.1.")
            await launcher.start(order())
            assert notes.of("started")

    asyncio.run(main())


async def find(launcher, asked):
    """Ask for a place as control does: again and again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await launcher.place(KUBERNETES, asked)
            except NoRoomError:
                continue


async def waits_for(launcher, asked, reason):
    """Ask for a place until this is why there is none: a slow cluster has others before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with pytest.raises(NoRoomError) as caught:
                await launcher.place(KUBERNETES, asked)
            if reason in str(caught.value):
                return


def test_an_image_that_is_not_there_is_the_reason_to_wait(kube, cluster, tmp_path, hurried):
    cluster.missing_images.add("engine")

    async def main():
        async with launching(kube, tmp_path) as (launcher, _):
            await waits_for(launcher, request(), "ImagePullBackOff")
            assert await launcher.stop("a", 1.0) is None, "it never ran"
            assert workload(kube)["spec"]["replicas"] == 0

    asyncio.run(main())


def test_a_missing_right_is_waited_for_by_name(kube, cluster, tmp_path, hurried):
    rights = {
        *(Right("", "pods", verb) for verb in ("list", "watch", "delete")),
        *(Right("", "nodes", verb) for verb in ("list", "watch")),
        *(Right("apps", "deployments", verb) for verb in ("list", "get", "patch", "delete")),
        Right("apps", "statefulsets", "list"),
        Right("leaderworkerset.x-k8s.io", "leaderworkersets", "list"),
        Right("", "pods/log", "get"),
    }
    kube.rights = rights

    async def main():
        async with launching(kube, tmp_path) as (launcher, _):
            await waits_for(launcher, request(), 'cannot create resource "deployments"')
            kube.rights = rights | {Right("apps", "deployments", "create")}
            assert (await find(launcher, request())).host == "node-1"

    asyncio.run(main())


def test_a_manifest_that_is_wrong_is_an_error_and_not_waited_for(kube, cluster, tmp_path):
    async def main():
        def make(order, zone):
            return manifest(order, zone, gpus=4)

        wrong = order(platform={"ask": {"nvidia.com/gpu": "8"}})
        async with launching(kube, tmp_path, make) as (launcher, _):
            with pytest.raises(LaunchError, match="must be equal to") as caught:
                await launcher.start(wrong)
            assert not isinstance(caught.value, NoRoomError)
            assert launcher.pid("a") is None

    asyncio.run(main())


def test_what_belongs_to_others_is_never_touched(kube, cluster, tmp_path):
    theirs = manifest(order("a"), "")
    theirs["metadata"] |= {"namespace": SPACE, "labels": {OWNER: "somebody"}}
    theirs["spec"]["replicas"] = 0
    kube.put("deployments", theirs)
    before = workload(kube)["metadata"]["uid"]

    async def main():
        async with launching(kube, tmp_path) as (launcher, notes):
            with pytest.raises(LaunchError, match="not ours"):
                await launcher.start(order("a"))
            launcher.forget("a")
            assert await launcher.stop("a", 1.0) is None
            assert notes.all == []

    asyncio.run(main())
    there = workload(kube)
    assert there["metadata"]["uid"] == before
    assert not kube.asked_by("DELETE")
    assert not kube.asked_by("PATCH")


# --- other writers --------------------------------------------------------------------------------


def test_a_conflict_is_looked_at_again_and_written_then(kube, cluster, tmp_path):
    async def main():
        async with launching(kube, tmp_path) as (launcher, _):
            await launcher.start(order())
            launcher._records["a"].workload.version = "1"  # somebody has written since
            ended = await launcher.stop("a", 1.0)
            assert ended.asked
            assert workload(kube)["spec"]["replicas"] == 0
            launcher.forget("a")
            await until(lambda: workload(kube) is None)

    asyncio.run(main())


def test_one_that_somebody_removed_is_made_again(kube, cluster, tmp_path):
    async def main():
        async with launching(kube, tmp_path) as (launcher, notes):
            first = await launcher.start(order())
            kube.delete("deployments", "a", SPACE)
            assert "deleted" in (await notes.seen("leaving"))[1]
            await notes.seen("ended")
            assert await launcher.start(order()) != first

    asyncio.run(main())


# --- ends -----------------------------------------------------------------------------------------


def test_killed_for_memory_is_told_so_and_the_restart_in_place_is_taken_over(
    kube, cluster, tmp_path
):
    async def main():
        async with launching(kube, tmp_path) as (launcher, notes):
            first = await launcher.start(order())
            pod = cluster.process("a")
            pod.ended_as = {"reason": "OOMKilled", "exitCode": 137}
            os.kill(pod.pid, signal.SIGKILL)
            _, ended = await notes.seen("ended")
            assert (ended.oom, ended.signal, ended.asked) == (True, signal.SIGKILL, False)
            assert launcher.pid("a") is None, "until control asks, it does not run"
            assert await launcher.start(order()) != first
            assert cluster.process("a") is pod, "the pod kept its node and its devices"

    asyncio.run(main())


def test_one_that_ends_again_and_again_gets_a_fresh_pod_at_controls_own_pace(
    kube, cluster, tmp_path
):
    async def main():
        async with launching(kube, tmp_path) as (launcher, notes):
            failing = order(script="raise SystemExit(5)")
            for count in (1, 2, 3):  # the kubelet would wait ten minutes before the third
                await launcher.start(failing)
                await until(lambda count=count: len(notes.of("ended")) == count)
            assert [ended.code for _, ended in notes.of("ended")] == [5, 5, 5]

    asyncio.run(main())


def test_a_pod_that_is_evicted_for_memory_says_so(kube):
    status = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
        "containerStatuses": [{"name": "engine", "state": {"running": {"startedAt": ""}}}],
    }
    meta = {"name": "p", "uid": "u", "labels": {"holdfast.dev/replica": "a"}}
    sight = read_pod_sight({"metadata": meta, "status": status})
    assert not sight.running
    assert sight.ended.oom
    assert sight.ended.reason.startswith("Evicted: The node was low")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    gone = {"phase": "Failed", "conditions": [target]}
    assert read_pod_sight({"metadata": meta, "status": gone}).ended.host_lost


def test_a_recorded_pod_that_was_killed_for_memory_after_serving_says_so():
    """As a real API server gave it, while the kubelet backs off."""
    thing = json.loads((RECORDINGS / "pod-oomkilled-after-serving.json").read_text())
    body = thing["response"]["body"]
    body["metadata"]["labels"]["holdfast.dev/replica"] = "a"
    sight = read_pod_sight(body)
    assert (sight.running, sight.backs_off, sight.number) == (False, True, 1)
    assert (sight.ended.oom, sight.ended.signal) == (True, signal.SIGKILL)
    assert sight.waits.startswith("engine: CrashLoopBackOff")
    page = json.loads((RECORDINGS / "pods-unschedulable.json").read_text())["response"]["body"]
    waiting = page["items"][0] if "items" in page else page
    waiting["metadata"]["labels"]["holdfast.dev/replica"] = "a"
    assert read_pod_sight(waiting).waits.startswith("no node for it: 0/")


def test_a_container_before_the_engine_that_fails_is_the_reason_to_wait(kube):
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s"}
    status = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "fetch", "state": {"waiting": waiting}}],
        "containerStatuses": [
            {"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
    }
    meta = {"name": "p", "uid": "u", "labels": {"holdfast.dev/replica": "a"}}
    sight = read_pod_sight({"metadata": meta, "status": status})
    assert sight.waits == "fetch: CrashLoopBackOff: back-off 10s"
    assert not sight.backs_off, "the engine's own is meant"
    assert read_pod_sight({"metadata": {**meta, "labels": {}}, "status": status}) is None


def test_a_pod_that_is_told_to_end_is_drained_and_gets_no_successor(kube, cluster, tmp_path):
    async def main():
        async with launching(kube, tmp_path) as (launcher, notes):
            await launcher.start(order())
            pod = cluster.process("a")
            kube.writes.answer("POST", "pods", SPACE, [pod.key[1], "eviction"], {}, {}, "")
            replica, reason = await notes.seen("leaving")
            assert (replica, "being deleted" in reason) == ("a", True)
            _, ended = await notes.seen("ended")
            assert ended.asked
            await until(lambda: not kube.objects.things["pods"])
            assert workload(kube)["spec"]["replicas"] == 0

    asyncio.run(main())


def test_a_node_that_is_emptied_drains_what_runs_there(kube, cluster, tmp_path):
    async def main():
        async with launching(kube, tmp_path) as (launcher, notes):
            await launcher.start(order())
            taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
            kube.patch("nodes", "node-1", {"spec": {"taints": [taint]}})
            replica, reason = await notes.seen("leaving")
            assert (replica, "spot-itn" in reason) == ("a", True)
            seen = notes.of("host_seen")[-1]
            assert seen[:2] == ("node-1", HostCondition.LEAVING)

    asyncio.run(main())


def test_a_kubelet_that_does_not_answer_holds_nobody_up(kube, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEYOND_S", 0.3)

    async def main():
        async with launching(kube, tmp_path) as (launcher, notes):
            await launcher.start(order())
            cluster.frozen_nodes.add("node-1")
            ended = await launcher.stop("a", 0.2)
            assert ended.asked
            assert "does not say" in ended.reason
            assert notes.of("ended") == [("a", ended)]

    asyncio.run(main())


# --- the API server -------------------------------------------------------------------------------


def test_a_cluster_out_of_reach_is_adopted_when_it_is_back(kube, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FIRST_S", 0.3)
    monkeypatch.setattr(module, "PLACE_S", 0.3)
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)

    async def main():
        async with launching(kube, tmp_path, leave_running=True) as (launcher, _):
            pid = await launcher.start(order())
        kube.refuse("*", 503)
        async with launching(kube, tmp_path) as (launcher, notes):
            assert notes.all == []
            with pytest.raises(NoRoomError, match="not reached"):
                await launcher.place(KUBERNETES, request("b"))
            kube.refuse("*", 0)
            assert await notes.seen("started") == ("a", pid)

    asyncio.run(main())


def test_history_that_is_gone_and_watches_that_are_cut_lose_no_end(kube, cluster, tmp_path):
    async def main():
        async with launching(kube, tmp_path) as (launcher, notes):
            await launcher.start(order())
            kube.expire()  # 410
            kube.cut(abrupt=True)
            os.kill(cluster.process("a").pid, signal.SIGKILL)
            _, ended = await notes.seen("ended")
            assert ended.signal == signal.SIGKILL

    asyncio.run(main())


def test_what_nobody_asks_for_is_removed_after_a_while(kube, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ORPHAN_S", 0.1)
    monkeypatch.setattr(module, "PLACE_S", 1.0)
    cluster.missing_images.add("engine")

    async def main():
        async with launching(kube, tmp_path, leave_running=True) as (launcher, _):
            await waits_for(launcher, request(), "ImagePullBackOff")
        assert workload(kube) is not None
        async with launching(kube, tmp_path) as (_, notes):
            await until(lambda: workload(kube) is None)
            assert notes.of("ended") == []

    asyncio.run(main())


# --- kinds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS[1:])
def test_each_kind_of_workload_is_started_adopted_and_removed(kube, cluster, tmp_path, kind):
    resource = f"{kind.lower()}s"

    def make(order, zone):
        return manifest(order, zone, kind)

    async def main():
        async with launching(kube, tmp_path, make, leave_running=True) as (launcher, _):
            pid = await launcher.start(order())
        pods = {key[1] for key in kube.objects.things["pods"]}
        assert pods == ({"a-0"} if kind == "StatefulSet" else {"a-0", "a-0-1"})
        async with launching(kube, tmp_path, make) as (launcher, notes):
            assert launcher.pid("a") == pid
            os.kill(cluster.process("a-0").pid, signal.SIGKILL)
            await notes.seen("ended")
            assert await launcher.start(order()) != pid
            await launcher.stop("a", 1.0)
            assert workload(kube, "a", resource)["spec"]["replicas"] == 0
            launcher.forget("a")
            await until(lambda: workload(kube, "a", resource) is None)
            await until(lambda: not kube.objects.things["pods"])

    asyncio.run(main())


def test_a_cluster_without_leader_worker_sets_is_adopted_all_the_same(kube, cluster, tmp_path):
    kube.not_installed.add("leaderworkersets")

    async def main():
        async with launching(kube, tmp_path) as (launcher, _):
            assert await launcher.start(order()) > 1

    asyncio.run(main())
