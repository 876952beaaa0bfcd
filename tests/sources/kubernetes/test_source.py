"""The whole source: nodes, pods, events, usage and GPUs put together."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from fakekube import event, node, pod
from fakekube.objects import killed_for_memory, stamp
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.sources.kubernetes.api import KubernetesApiError

GIB = 1 << 30
GROUPED = {"eks.amazonaws.com/nodegroup": "gpu", "topology.kubernetes.io/zone": "z1"}
NO_GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


@asynccontextmanager
async def source(kube, **more):
    said = {"api_url": kube.url, "retry_s": 0.02, "retry_max_s": 0.1, **more}
    found = KubernetesSource("kube", KubernetesConfig(**said))
    try:
        yield found
    finally:
        await found.close()


async def until(found, condition):
    async with asyncio.timeout(20):
        seen = 0
        while not condition(found.reading()):
            seen = await found.changed(seen)


def fill(kube):
    kube.put("nodes", node("node-1", labels=GROUPED, gpus=4, cpu="16", memory="64Gi"))
    kube.put("nodes", node("node-2", labels=GROUPED, ready=False))
    made = kube.put("pods", pod("m-1", model="m", gpus=2, memory="30Gi"))
    kube.patch("pods", "m-1", killed_for_memory(made))
    kube.put("pods", pod("other", namespace="kube-system", cpu="500m", memory="1Gi"))
    kube.put("pods", pod("m-2", model="m", host="", phase="Pending"))
    waits = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "x",
        "lastTransitionTime": stamp(1_000_050),
    }
    kube.patch("pods", "m-2", {"status": {"conditions": [waits]}})
    kube.put("events", event("e1", "FailedScheduling", NO_GPU, about="m-2"))
    kube.put("events", event("e2", "FailedCreate", "exceeded quota", about="rs", kind="ReplicaSet"))


def test_a_first_reading_has_everything(kube):
    fill(kube)

    async def main():
        async with source(kube) as found:
            reading = await found.read()
            assert (reading.source, reading.kind) == ("kube", "kubernetes")
            assert [group.name for group in reading.groups] == ["gpu"]
            one, two = reading.hosts
            assert (one.id, one.group, one.zone, one.state) == ("node-1", "gpu", "z1", "")
            assert (one.reserved_bytes, one.cpus_free) == (31 * GIB, 13.5)
            assert (one.gpus, one.gpus_free) == (4, 2)
            assert (one.running, one.pending) == (1, 0)  # what is no replica is not counted
            assert two.state.startswith("NotReady")
            assert [placed.id for placed in reading.placed] == ["default/m-1", "default/m-2"]
            assert reading.placed[0].oom
            (wish,) = reading.wishes
            assert (wish.model, wish.desired, wish.running, wish.pending) == ("m", 2, 1, 1)
            assert (wish.reason, wish.since) == (NO_GPU, 1_000_050.0)
            assert {part.name for part in reading.parts} >= {"nodes", "pods", "events"}
            assert all(not part.error for part in reading.parts)
            assert "ReplicaSet default/rs: FailedCreate: exceeded quota" in reading.notes

    asyncio.run(main())


def test_readings_wait_for_nobody(kube):
    fill(kube)

    async def main():
        async with source(kube) as found:
            await found.read()
            for resource in ("nodes", "pods", "events"):
                await asyncio.to_thread(kube.await_watch, resource)
                kube.hold(resource)
            kube.cut()
            before = len(kube.requests)
            reading = await asyncio.wait_for(found.read(), 2.0)
            assert len(reading.placed) == 2
            assert len(kube.requests) >= before
            for resource in ("nodes", "pods", "events"):
                kube.release(resource)

    asyncio.run(main())


def test_a_change_is_known_without_a_new_reading(kube):
    fill(kube)

    async def main():
        async with source(kube) as found:
            await found.read()
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.terminate("m-1")
            await until(found, lambda reading: reading.placed[0].state == "stopping")
            found.replica_of = lambda pod: "m-1" if pod == "default/m-1" else ""
            assert [placed.replica for placed in found.reading().placed] == ["m-1", ""]
            assert found.glance().placed[0].state == "stopping"
            kube.delete("pods", "m-1")
            await until(found, lambda reading: len(reading.placed) == 1)
            assert found.reading().hosts[0].gpus_free == 4

    asyncio.run(main())


def test_one_part_that_is_refused_leaves_the_others(kube):
    fill(kube)
    kube.refuse("events", 403)

    async def main():
        async with source(kube) as found:
            reading = await found.read()
            parts = {part.name: part for part in reading.parts}
            assert parts["events"].at is None
            assert "403 Forbidden" in parts["events"].error
            assert "is forbidden" in parts["events"].error
            assert parts["pods"].error == ""
            assert len(reading.placed) == 2
            assert reading.wishes[0].reason == "x"  # what the pod itself says

    asyncio.run(main())


def test_a_source_that_reaches_nobody_says_so(kube):
    async def main():
        async with source(kube, api_url="http://127.0.0.1:9") as found:
            reading = await found.read()
            assert (reading.hosts, reading.placed) == ((), ())
            for part in reading.parts[:3]:
                assert part.error
                assert part.at is None
                assert part.failing_since <= time.time()
            assert not found.known

    asyncio.run(main())


def test_an_expired_credential_keeps_the_rows(kube, tmp_path):
    fill(kube)
    token = tmp_path / "token"
    token.write_text("t")
    kube.token = "t"

    async def main():
        async with source(kube, token_file=str(token)) as found:
            await found.read()
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.token = "another"
            kube.cut()
            await until(found, lambda reading: "401" in reading.parts[1].error)
            reading = await found.read()
            assert len(reading.placed) == 2
            assert reading.parts[1].at is not None

    asyncio.run(main())


def test_in_one_namespace_what_is_reserved_is_unknown(kube):
    fill(kube)

    async def main():
        async with source(kube, namespace="default") as found:
            reading = await found.read()
            host = reading.hosts[0]
            assert (host.reserved_bytes, host.cpus_free, host.gpus_free) == (None, None, None)
            assert host.running == 1
            assert all("/namespaces/default/" in path for path, _ in kube.asked("pods"))

    asyncio.run(main())


def test_warnings_explain_who_is_not_ready_and_are_over_when_it_is(kube):
    kube.put("nodes", node("node-1"))
    kube.put("pods", pod("m-1", model="m", ready=False))
    kube.put("events", event("e1", "Unhealthy", "Readiness probe failed: 503", about="m-1"))
    now = time.time()
    kube.put("events", event("e2", "SystemOOM", "python", about="node-1", kind="Node", at=now))

    async def main():
        async with source(kube) as found:
            reading = await found.read()
            assert reading.placed[0].reason == "Unhealthy: Readiness probe failed: 503"
            assert reading.hosts[0].state == "SystemOOM"
            conditions = [{"type": "Ready", "status": "True"}]
            kube.patch("pods", "m-1", {"status": {"conditions": conditions}})
            await until(found, lambda reading: reading.placed[0].reason == "")

    asyncio.run(main())


def test_usage_and_gpus_come_from_their_own_places(kube):
    fill(kube)
    memory = {"memory": "7Gi"}
    kube.metrics = {
        "nodes": [{"metadata": {"name": "node-1"}, "usage": memory}],
        "pods": [
            {
                "metadata": {"name": "m-1", "namespace": "default"},
                "containers": [{"name": "a", "usage": memory}],
            }
        ],
    }
    kube.pages["/metrics"] = (
        'DCGM_FI_DEV_FB_USED{gpu="0",hostname="dcgm-x",pod="m-1",namespace="default"} 100\n'
        'DCGM_FI_DEV_FB_FREE{gpu="0",hostname="dcgm-x"} 300\n'
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",hostname="dcgm-x",DCGM_FI_DRIVER_VERSION="570.1"} 50\n'
        'DCGM_FI_DEV_XID_ERRORS{gpu="0",hostname="dcgm-x"} 48\n'
    )

    async def main():
        async with source(kube, dcgm_urls=(f"{kube.url}/metrics",)) as found:
            await found.read()
            async with asyncio.timeout(20):
                while not found.reading().hosts[0].gpu_used_bytes:  # noqa: ASYNC110 no event
                    await asyncio.sleep(0.005)
                while not found.reading().hosts[0].used_bytes:  # noqa: ASYNC110 as above
                    await asyncio.sleep(0.005)
            reading = found.reading()
            host, placed = reading.hosts[0], reading.placed[0]
            assert (host.used_bytes, placed.used_bytes) == (7 * GIB, 7 * GIB)
            assert (host.gpu_used_bytes, host.gpu_memory_bytes) == (100 << 20, 400 << 20)
            assert (host.gpu_busy, host.gpu_fault) == (0.5, "XID 48 on GPU 0")
            assert (host.driver, placed.gpu_used_bytes) == ("570.1", 100 << 20)
            assert [part.name for part in reading.parts][3:] == ["usage", "dcgm"]

    asyncio.run(main())


@pytest.mark.parametrize("said", ["node-1", "node-1.internal"])
def test_exporters_may_name_a_host_in_full_or_in_short(kube, said):
    kube.put("nodes", node("node-1.eu.internal" if said == "node-1" else "node-1"))
    kube.pages["/metrics"] = f'DCGM_FI_DEV_FB_USED{{gpu="0",Hostname="{said}"}} 1\n'

    async def main():
        async with source(kube, dcgm_urls=(f"{kube.url}/metrics",)) as found:
            await found.read()
            async with asyncio.timeout(20):
                while not found.reading().hosts[0].gpu_used_bytes:  # noqa: ASYNC110 no event
                    await asyncio.sleep(0.005)

    asyncio.run(main())


def test_more_than_is_kept_is_told_and_sums_are_then_unknown(kube):
    fill(kube)

    async def main():
        async with source(kube, pods_max=1) as found:
            reading = await found.read()
            assert any("more pods than the 1 that are kept" in note for note in reading.notes)
            assert reading.hosts[0].reserved_bytes is None

    asyncio.run(main())


def test_a_log_is_read_from_its_end(kube):
    fill(kube)
    for number in range(5):
        kube.say("m-1", f"line {number}")

    async def main():
        async with source(kube) as found:
            await found.read()
            lines = await found.tail("default/m-1", 2)
            assert [line.split(" ", 1)[1] for line in lines] == ["line 3", "line 4"]
            with pytest.raises(KubernetesApiError, match="no such pod"):
                await found.tail("default/../../secrets")
            kube.refuse("pods/log", 403)
            with pytest.raises(KubernetesApiError, match="403"):
                await found.tail("default/m-1")

    asyncio.run(main())


def test_a_log_that_is_too_long_keeps_its_newest_lines(kube):
    fill(kube)
    for number in range(100):
        kube.say("m-1", f"line {number} " + "x" * 50_000)

    async def main():
        async with source(kube) as found:
            await found.read()
            lines = await found.tail("default/m-1", 10_000)
            assert [line.split(" ")[2] for line in lines] == [f"{n}" for n in range(95, 100)]
            assert await found.tail("default/m-1", 0) == []
            kube.say("m-1", "y" * 2_000_000)  # of one line its beginning must do
            assert len((await found.tail("default/m-1", 3))[-1]) > 1_000_000

    asyncio.run(main())


def test_it_can_be_closed_twice_and_before_it_began(kube):
    async def main():
        found = KubernetesSource("kube", KubernetesConfig(api_url=kube.url))
        await found.close()
        await found.close()
        reading = await found.read()
        assert reading.placed == ()
        assert len(kube.requests) == 0  # nobody begins anew what was ended

    asyncio.run(main())


# --- what the server selects ----------------------------------------------------------------------


def selections(kube, resource):
    return [query.get("labelSelector") for _, query in kube.asked(f"/{resource}")]


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"selector": "app=a"}, None),  # what others hold of a host is in its sums
        ({"selector": "app=a", "all_pods": False}, "app=a"),
        ({"selector": "app in (a, b)", "namespace": "default"}, "app in (a, b)"),
        ({"namespace": "default"}, None),  # a model may be named by an annotation
    ],
)
def test_the_server_selects_pods_where_no_sum_needs_the_others(kube, said, sent):
    kube.put("nodes", node("node-1"))
    kube.put("pods", pod("mine", labels={"app": "a"}))
    kube.put("pods", pod("other", labels={"app": "x"}))
    kube.metrics = {"nodes": [], "pods": []}

    async def main():
        async with source(kube, **said) as found:
            await found.read()
            await asyncio.to_thread(kube.await_watch, "pods")
            await asyncio.to_thread(kube.await_request, "metrics.k8s.io", 2)
            return found.reading()

    reading = asyncio.run(main())
    assert set(selections(kube, "pods")) == {sent}  # the list, the watch, and metrics-server
    assert {path.split("/")[1] for path, _ in kube.asked("/pods")} == {"api", "apis"}
    assert {*selections(kube, "nodes"), *selections(kube, "events")} == {None}
    if "selector" in said:
        assert [one.id for one in reading.placed] == ["default/mine"]
    (host,) = reading.hosts
    summed = sent is None and "namespace" not in said
    assert (host.reserved_bytes is not None) is summed


def test_a_pod_comes_and_goes_with_the_labels_that_the_server_selects_by(kube):
    kube.put("pods", pod("m-1", labels={"app": "a"}))
    kube.put("pods", pod("m-2", labels={"app": "b"}))

    async def main():
        async with source(kube, selector="app=a", namespace="default") as found:
            await found.read()
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.patch("pods", "m-2", {"metadata": {"labels": {"app": "a"}}})
            await until(found, lambda reading: len(reading.placed) == 2)
            kube.patch("pods", "m-1", {"metadata": {"labels": {"app": "b"}}})
            await until(found, lambda reading: [p.id for p in reading.placed] == ["default/m-2"])
            kube.delete("pods", "m-1")
            kube.delete("pods", "m-2")
            await until(found, lambda reading: not reading.placed)

    asyncio.run(main())


def test_a_selector_that_the_server_cannot_read_is_told_in_its_words(kube):
    async def main():
        async with source(kube, selector="a/b/c", namespace="default") as found:
            reading = await found.read()
            (pods,) = [part for part in reading.parts if part.name == "pods"]
            assert "400" in pods.error
            assert "unable to parse requirement" in pods.error
            assert pods.failing_since is not None
            assert not found.known

    asyncio.run(main())


def test_bookmarks_are_asked_for_where_the_server_sends_them(kube):
    """Events are not in its watch cache: silence there is no sign of a connection that was cut."""

    async def main():
        async with source(kube, silence_s=0.2) as found:
            await found.read()
            for resource in ("nodes", "pods", "events"):
                await asyncio.to_thread(kube.await_watch, resource)
            await asyncio.to_thread(kube.await_watch, "pods", 3)  # quiet ones are opened again

    asyncio.run(main())
    asked = {
        resource: {
            query.get("allowWatchBookmarks")
            for _, query in kube.asked(f"/{resource}")
            if query.get("watch")
        }
        for resource in ("nodes", "pods", "events")
    }
    assert asked == {"nodes": {"true"}, "pods": {"true"}, "events": {None}}
    assert kube.watched["events"] == 1
