"""Control with pods for replicas, from a pod's birth to its end, and over its own restart."""

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from fakekube import FakeKube, node, pod, rights_of
from fakekube.objects import stamp
from holdfast.control.process import Control
from holdfast.core.types import State
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.storage.sqlite import SqliteStore
from holdfast.testing.launcher import FakeHost, FakeLauncher
from holdfast.testing.standin import fault

RBAC = Path(__file__).resolve().parents[3] / "examples" / "kubernetes" / "rbac.yaml"
FILE = """\
models:
  - name: m
    engine: vllm
    discover: {{source: kube, port: {port}}}
sources:
  - {{type: kubernetes, name: kube, api_url: '{url}', period_s: 1}}
"""


def made(section, _control):
    return KubernetesSource(section.called, KubernetesConfig(**section.settings()))


@asynccontextmanager
async def running(folder):
    store = SqliteStore(folder / "state.db")
    control = Control(folder / "fleet.yaml", folder, {}, "c", store, FakeLauncher(FakeHost()), made)
    stop = asyncio.Event()
    job = asyncio.create_task(control.run(stop))
    try:
        yield control
    finally:
        stop.set()
        await job
        store.close()


def test_pods_come_outlive_a_control_and_leave_at_once(world, tmp_path):
    async def main(kube):
        engine = await world.standin(models=("m",))
        port = engine.url.rpartition(":")[2]
        (tmp_path / "fleet.yaml").write_text(FILE.format(port=port, url=kube.url))
        async with running(tmp_path) as control:
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.put("pods", pod("m-abc", model="m", ip="127.0.0.1"))
            await world.until(lambda: control.admin.model_ready("m")[0])
            await world.until(lambda: control.admin.replica_ready("m", "m-abc"))
            assert control.admin.replica_ready("m", "stranger") is None
            await control.admin.drain("m-abc")
            await world.until(lambda: not control.admin.replica_ready("m", "m-abc"))
        kube.refuse("*", 503)  # the next control finds nobody who could tell it of pods
        async with running(tmp_path) as control:
            await world.until(lambda: set(control.loop.deployed) == {"m-abc"})
            out = (State.DRAINING, State.STOPPED)
            await world.until(lambda: control.loop.health("m-abc").state in out)  # still held
            await control.admin.undrain("m-abc")
            await world.until(lambda: control.admin.model_ready("m")[0])
            kube.refuse("*", 0)
            await world.until(lambda: kube.watching["pods"] > 0)
            kube.terminate("m-abc")
            await world.until(lambda: control.loop.health("m-abc").state in out)
            assert not (await control.admin.undrain("m-abc"))[0]
            rows = [row for reading in control.source_poller.readings() for row in reading.placed]
            assert {row.replica for row in rows} <= {"m-abc", ""}
            kube.delete("pods", "m-abc")
            await world.until(lambda: "m-abc" not in control.loop.deployed)
        await engine.stop()

    with FakeKube() as kube:
        kube.rights = rights_of(yaml.safe_load_all(RBAC.read_text()), "holdfast", "holdfast")
        kube.put("nodes", node("node-1", labels={"topology.kubernetes.io/zone": "z1"}))
        asyncio.run(main(kube))
        assert kube.forbade == []  # what is shipped suffices


QUICK = """\
fleet:
  canary_deadline_s: 0.3
  health: {canary_s: 0.2, canary_suspect_s: 0.1, canary_warming_s: 0.1, canary_quarantined_s: 0.2}
"""
DRAINS = "fleet: {drain: {deadline_s: 0.2, move_s: 0.2, hear_s: 0.05}}\n"
SHORT = "incidents: {detectors: {diagnosis: {window_s: 1, close_s: 1, again_s: 1}}}\n"


def evicted(name):
    """A pod that served for ten minutes, and that its kubelet ended a moment ago for its memory."""
    now = time.time()
    made = pod(name, model="m", phase="Failed", created_at=now - 700)
    made["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
    made["status"]["conditions"][1]["lastTransitionTime"] = stamp(now - 1)
    ended = {"exitCode": 137, "reason": "Error", "startedAt": stamp(now - 600)}
    ended["finishedAt"] = stamp(now - 1)
    made["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
    return made


def test_an_evicted_pod_is_told_once_and_not_again_by_the_next_control(world, tmp_path):
    def told(control):
        return {tuple(row["replicas"]) for row in control.incidents.listing(10)}

    async def main(kube):
        file = FILE.format(port=8000, url=kube.url) + SHORT
        (tmp_path / "fleet.yaml").write_text(file)
        async with running(tmp_path) as control:
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.put("pods", evicted("m-1"))
            await world.until(lambda: told(control) == {("default/m-1",)})
            (first,) = control.incidents.listing(10)
            await world.until(lambda: control.incidents.open_count == 0)  # it is over
        async with running(tmp_path) as control:
            kube.put("pods", evicted("m-2"))  # when this one is told, the other was read as well
            await world.until(lambda: any("default/m-2" in names for names in told(control)))
            again = [one for one in control.incidents.listing(10) if one["id"] != first["id"]]
            assert not [one for one in again if "default/m-1" in one["replicas"]]

    with FakeKube() as kube:
        kube.put("nodes", node("node-1"))
        asyncio.run(main(kube))


def test_a_pod_that_is_deleted_is_not_one_that_should_be_restarted(world, tmp_path):
    async def main(kube):
        engine = await world.standin(models=("m",))
        port = engine.url.rpartition(":")[2]
        (tmp_path / "fleet.yaml").write_text(FILE.format(port=port, url=kube.url) + DRAINS)
        async with running(tmp_path) as control:
            said, note = [], control.note

            def keep(notice):
                said.append(notice.what)
                note(notice)

            control.note = keep
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.put("pods", pod("m-abc", model="m", ip="127.0.0.1"))
            await world.until(lambda: control.admin.model_ready("m")[0])
            kube.terminate("m-abc")
            await world.until(lambda: control.loop.health("m-abc").state is State.STOPPED)
            await engine.stop()
            kube.delete("pods", "m-abc")
            await world.until(lambda: "m-abc" not in control.loop.deployed)
            assert {"leaves", "gone"} <= set(said)
            assert "should be restarted" not in said

    with FakeKube() as kube:
        kube.put("nodes", node("node-1"))
        asyncio.run(main(kube))


def test_a_silent_pod_on_a_node_that_stopped_posting_is_told_as_the_node_s_failure(world, tmp_path):
    async def main(kube):
        engine = await world.standin(models=("m",))
        port = int(engine.url.rpartition(":")[2])
        (tmp_path / "fleet.yaml").write_text(FILE.format(port=port, url=kube.url) + QUICK)

        def causes():
            rows = control.incidents.listing(10)
            return {(row["cause"], row["about"]["host"]) for row in rows if not row["closed_at"]}

        async with running(tmp_path) as control:
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.put("pods", pod("m-abc", model="m", ip="127.0.0.1"))
            await world.until(lambda: control.admin.model_ready("m")[0])
            engine.set_fault(fault("hang"))
            unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
            unknown["message"] = "Kubelet stopped posting node status."
            kube.patch("nodes", "node-1", {"status": {"conditions": [unknown]}})
            await world.until(lambda: ("host_unavailable", "node-1") in causes())
            await world.until(lambda: len(causes()) == 1)
        await engine.stop()

    with FakeKube() as kube:
        kube.put("nodes", node("node-1"))
        asyncio.run(main(kube))
