"""Spot notices, taints and evictions: replicas drain before their host goes, and only then."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fakekube import FakeKube, node, pod
from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.discovery import Discovery
from holdfast.core.messages import DrainAsked, UndrainAsked
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.sources.kubernetes.nodes import read_node

RECORDINGS = Path(__file__).parents[2] / "sources" / "kubernetes" / "recordings"
SPOT = "aws-node-termination-handler/spot-itn"


class Stage:
    """What control is to discovery: it keeps what it is told."""

    def __init__(self, store, source):
        said = {"name": "m", "engine": "vllm", "discover": {"source": "kube"}}
        sources = [{"type": "kubernetes", "name": "kube"}]
        self.events, self.notices = [], []
        self.discovery = Discovery(lambda: (source,), store, self)
        self.discovery.follow(FleetFile.model_validate({"models": [said], "sources": sources}))

    def tell(self, *events):
        self.events += events

    def note(self, notice):
        self.notices.append(notice)

    def placed(self):
        """The places are asked for below."""

    @property
    def ids(self):
        return {one.id for one in self.discovery.endpoints()["m"]}

    def drained(self):
        """Who was asked to drain and not taken back since."""
        out = {}
        for one in self.events:
            if isinstance(one, DrainAsked):
                out[one.replica_id] = one.reason
            elif isinstance(one, UndrainAsked):
                out.pop(one.replica_id, None)
        return out


@asynccontextmanager
async def watched(kube, store):
    config = KubernetesConfig(api_url=kube.url, retry_s=0.02, retry_max_s=0.1)
    source = KubernetesSource("kube", config)
    stage = Stage(store, source)
    job = asyncio.create_task(stage.discovery.run())
    try:
        await until(lambda: len(stage.ids) == 4)
        for resource in ("nodes", "pods"):
            await asyncio.to_thread(kube.await_watch, resource)
        yield stage
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        await source.close()


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 discovery has nobody to tell
            await asyncio.sleep(0.01)


@pytest.fixture
def kube():
    with FakeKube() as server:
        for index in range(4):
            server.put("nodes", node(f"node-{index}"))
            name, host, ip = f"m-{index}", f"node-{index}", f"10.1.0.{index + 1}"
            server.put("pods", pod(name, model="m", host=host, ip=ip))
        yield server


def taint(kube, name, *keys, **spec):
    taints = [{"key": key, "effect": "NoSchedule"} for key in keys]
    kube.patch("nodes", name, {"spec": {"taints": taints, **spec}})


@pytest.mark.parametrize(
    "key",
    [
        SPOT,
        "aws-node-termination-handler/asg-lifecycle-termination",
        "cloud.google.com/impending-node-termination",
        "remediator.kubernetes.azure.com/unschedulable",
    ],
)
def test_a_notice_drains_the_replica_of_that_host_and_is_taken_back(kube, store, key):
    async def main():
        async with watched(kube, store) as stage:
            taint(kube, "node-2", "node.kubernetes.io/unschedulable", key)
            await until(lambda: set(stage.drained()) == {"m-2"})
            assert stage.drained()["m-2"] == f"its host node-2 has the taint {key}"
            taint(kube, "node-2")
            await until(lambda: not stage.drained())

    asyncio.run(main())


@pytest.mark.parametrize(
    "keys",
    [
        ("node.kubernetes.io/unschedulable",),  # cordoned: for days, perhaps
        ("karpenter.sh/disrupted",),  # it waits for a replacement, and may give up
        ("ToBeDeletedByClusterAutoscaler",),  # may stay for ever; evictions follow where it acts
        ("DeletionCandidateOfClusterAutoscaler",),
        ("aws-node-termination-handler/rebalance-recommendation",),
        ("nvidia.com/gpu", "kubernetes.azure.com/scalesetpriority"),
        ("node.kubernetes.io/not-ready",),
    ],
)
def test_a_plan_or_another_taint_drains_nobody(kube, store, keys):
    async def main():
        async with watched(kube, store) as stage:
            taint(kube, "node-0", *keys, unschedulable=True)
            taint(kube, "node-3", SPOT)  # what came after it has been seen
            await until(lambda: "m-3" in stage.drained())
            assert set(stage.drained()) == {"m-3"}

    asyncio.run(main())


def test_a_node_that_is_deleted_drains_before_its_pods_are_evicted(kube, store):
    async def main():
        async with watched(kube, store) as stage:
            marks = {"deletionTimestamp": "2026-11-18T01:00:00Z"}
            kube.patch("nodes", "node-1", {"metadata": marks})
            await until(lambda: set(stage.drained()) == {"m-1"})
            assert stage.drained()["m-1"] == "its host node-1 is being deleted"
            kube.terminate("m-1")  # the eviction: from here on nothing takes it back
            await until(lambda: stage.discovery.leaves("m-1"))
            kube.delete("pods", "m-1")
            await until(lambda: "m-1" not in stage.ids)

    asyncio.run(main())


def test_an_eviction_is_heeded_before_the_pod_is_told_to_end_and_may_be_refused(kube, store):
    async def main():
        async with watched(kube, store) as stage:
            made = kube.objects.get("pods", "default", "m-0")
            conditions = made["status"]["conditions"]
            said = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            kube.patch("pods", "m-0", {"status": {"conditions": [*conditions, said]}})
            await until(lambda: set(stage.drained()) == {"m-0"})
            told = "its pod default/m-0 is to end: EvictionByEvictionAPI"
            assert stage.drained()["m-0"] == told
            over = {**said, "status": "False"}
            kube.patch("pods", "m-0", {"status": {"conditions": [*conditions, over]}})
            await until(lambda: not stage.drained())

    asyncio.run(main())


def test_a_notice_for_all_hosts_drains_half_and_the_rest_as_they_go(kube, store):
    async def main():
        async with watched(kube, store) as stage:
            for index in range(4):
                taint(kube, f"node-{index}", SPOT)
            await until(lambda: len(stage.drained()) == 2)
            first = set(stage.drained())
            for name in first:
                kube.terminate(name)
                kube.delete("pods", name)
            await until(lambda: len(stage.ids) == 2)
            await until(lambda: len(stage.drained()) == 3)  # one of the two that are left
            await until(lambda: len(stage.ids - set(stage.drained())) == 1)

    asyncio.run(main())


def test_the_next_control_begins_with_the_drain(kube, store):
    async def main():
        async with watched(kube, store) as stage:
            taint(kube, "node-2", SPOT)
            await until(lambda: set(stage.drained()) == {"m-2"})
        again = Stage(store, None)
        assert [one.replica_id for one in again.discovery.leavers()] == ["m-2"]

    asyncio.run(main())


def test_the_recorded_notice_of_a_real_server_is_one():
    said = json.loads((RECORDINGS / "node-spot-taint.json").read_text())
    host = read_node(said["response"]["body"]).host
    assert host.notice == f"has the taint {SPOT}"
    plain = json.loads((RECORDINGS / "nodes-list.json").read_text())
    listed = [read_node(one).host for one in plain["response"]["body"]["items"]]
    assert {one.notice for one in listed if one.id != host.id} == {""}
