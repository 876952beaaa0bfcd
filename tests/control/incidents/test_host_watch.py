import asyncio

import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.declarations import chains_of, declared_of, versions_of, weights_size
from holdfast.control.deploy.launched_replica import new_launched_replica
from holdfast.control.incidents import host_watch as module
from holdfast.control.incidents.host_watch import HostWatch
from holdfast.core.diagnose.facts import (
    ChainDeclared,
    Declared,
    GpuFault,
    GpuSeen,
    HostSeen,
    MemorySeen,
    PhaseSeen,
    VersionsSeen,
)
from holdfast.launchers.weights import KNOWN, path_of
from holdfast.sources.nvml import Gpu, GpuReport, Xid
from holdfast.sources.process_memory import ProcessTreeUsage

GB = 10**9


def file_of(**more):
    launched = {
        "name": "m",
        "engine": "vllm",
        "revision": "2",
        "launch": {
            "command": ["serve"],
            "weights": "/weights",
            "memory": {"reservation": "1GB", "limit": "4GiB"},
            **more,
        },
        "footprint": {"kv": "2GB", "gpu": True},
        "filesystem": "efs",
    }
    listed = {
        "name": "n",
        "engine": "vllm",
        "endpoints": [
            {"url": "http://10.0.0.7:8000", "zone": "b"},
            {"url": "http://10.0.0.8:8000", "host": "rack-1", "revision": "9"},
        ],
        "footprint": {"weights": "3.5GB"},
    }
    chains = [{"name": "rag", "models": ["n", "m"]}]
    return FleetFile.model_validate({"models": [launched, listed], "chains": chains})


class Stage:
    def __init__(self, **more):
        self.file = file_of(**more)
        self.units = {}
        self.facts = []
        self.usage = {}
        self.report = None
        self.watch = HostWatch(
            "here",
            self.units,
            self.declared,
            lambda: self.report,
            self.facts.append,
            {},
            read=lambda roots: {pid: self.usage[pid] for pid in roots if pid in self.usage},
        )

    def add(self, number=1, pid=100, version="1.0", **more):
        unit = new_launched_replica(self.file.models[0], number, "a", "/weights", version, set())
        unit.pid, unit.loaded, unit.doing = pid, True, "serving"
        for name, value in more.items():
            setattr(unit, name, value)
        self.units[unit.id] = unit
        self.usage[pid] = ProcessTreeUsage(3 * GB, 8 * GB, 2 * GB, (pid, pid + 1))
        return unit

    def declared(self):
        placed = {"m": [unit.endpoint() for unit in self.units.values()]}
        file = self.file.with_endpoints(placed)
        return declared_of(file, self.units, "here", self.watch.sizes)

    def look(self):
        self.facts.clear()
        asyncio.run(self.watch.look())
        return self.facts

    def said(self, kind):
        return [fact for fact in self.facts if isinstance(fact, kind)]


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setattr(module, "weights_size", lambda path: 7 * GB)
    monkeypatch.setattr(module, "host_memory", lambda: 16 * GB)
    return Stage()


# --- declarations --------------------------------------------------------------------------------


def test_replicas_are_declared_as_the_file_and_this_host_know_them(stage):
    stage.add()
    stage.look()
    found = stage.declared()
    assert found["m-1"] == Declared(
        "m-1", "m", "2", "here", "a", "efs", "", True, 7 * GB, 2 * GB, GB, 4 << 30, True
    )  # fmt: skip
    assert found["n-1"] == Declared("n-1", "n", "1", "10.0.0.7", "b", weights_bytes=3_500_000_000)
    assert (found["n-2"].host, found["n-2"].revision) == ("rack-1", "9")
    assert chains_of(stage.file) == [ChainDeclared("rag", ("n", "m"))]


def test_versions_are_those_of_the_image_before_those_the_driver_allows(stage):
    unit = stage.add()
    assert versions_of(unit, {}, "580", "13.0") == VersionsSeen("m-1", "13.0", "580", "1.0")
    assert versions_of(unit, {"CUDA_VERSION": "12.4"}, None, "13.0").cuda == "12.4"
    unit.environment["CUDA_VERSION"] = "11.8.0"
    assert versions_of(unit, {"CUDA_VERSION": "12.4"}, None, None).cuda == "11.8.0"
    name, known = next(iter(KNOWN.items()))
    other = Stage(weights=name).add()
    object.__setattr__(other.spec, "weights", path_of(name))
    assert versions_of(other, {}, None, None).digest == known.sha256


def test_weights_are_sized_where_they_are_a_file_or_a_folder_of_this_host(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"123")
    (tmp_path / "folder").mkdir()
    assert weights_size(str(tmp_path / "a")) == 5
    assert weights_size(str(tmp_path)) == 8
    for nothing in ("", "org/model", str(tmp_path / "missing"), str(tmp_path / "folder")):
        assert weights_size(nothing) is None


# --- looks ---------------------------------------------------------------------------------------


def test_memory_versions_and_the_host_are_told(stage):
    stage.add()
    assert stage.look() == [
        MemorySeen("m-1", 3 * GB, 4 << 30),
        VersionsSeen("m-1", engine="1.0"),
        HostSeen("here", None, 16 * GB, 15 * GB),
    ]
    assert stage.look() == [MemorySeen("m-1", 3 * GB, 4 << 30)]  # the rest is no news


def test_without_a_declared_limit_that_of_the_cgroup_counts(monkeypatch):
    monkeypatch.setattr(module, "host_memory", lambda: None)
    stage = Stage(memory={})
    stage.add()
    stage.look()
    assert stage.said(MemorySeen) == [MemorySeen("m-1", 3 * GB, 8 * GB)]
    assert stage.said(HostSeen) == [HostSeen("here")]


def test_one_that_loads_tells_how_far_it_is(stage):
    stage.add(loaded=False, doing="loading")
    stage.look()
    assert stage.said(PhaseSeen) == [PhaseSeen("m-1", "loading", 2 * GB, 7 * GB)]


def test_of_one_that_ended_meanwhile_nothing_is_told(stage):
    unit = stage.add()

    def read(roots):
        unit.pid = None
        return {roots[0]: ProcessTreeUsage(1, None, None, (1,))}

    stage.watch._read = read
    stage.look()
    assert stage.said(MemorySeen) == []


def test_a_new_process_tells_its_versions_again_and_a_rollout_waits(stage):
    unit = stage.add()
    stage.look()
    unit.pid = 300
    stage.usage[300] = stage.usage[100]
    newcomer = stage.add(2, 400, "2.0", build="another")
    stage.look()
    assert stage.said(VersionsSeen) == []
    del stage.units[unit.id]
    stage.look()
    assert stage.said(VersionsSeen) == [VersionsSeen(newcomer.id, engine="2.0")]


def gpu_report(*gpus):
    return GpuReport(available=True, reason="", driver="580", cuda="13.0", gpus=gpus)


def test_memory_of_gpus_is_told_where_the_driver_knows_the_process(stage):
    """Its bound is what is free there beside it: a neighbour's memory leaves it less."""
    stage.add()
    stage.report = gpu_report(
        Gpu(0, "GPU-0", memory_used=50 * GB, memory_total=80 * GB, processes=((101, 20 * GB),)),
        Gpu(1, "GPU-1", memory_used=60 * GB, memory_total=80 * GB, processes=((9, 60 * GB),)),
    )
    stage.look()
    assert stage.said(MemorySeen)[1] == MemorySeen("m-1", 20 * GB, 50 * GB, "gpu")
    first, second = stage.said(GpuSeen)
    assert (first.gpu, first.replicas, first.memory_used_bytes) == ("GPU-0", ("m-1",), 50 * GB)
    assert (second.gpu, second.replicas) == ("GPU-1", ())
    assert stage.watch.gpu_use("m-1").memory_share == 0.4
    host = stage.said(HostSeen)[0]
    assert (host.gpus, host.gpus_free, stage.said(VersionsSeen)[0].driver) == (2, 0, "580")


def test_memory_that_the_driver_does_not_tell_of_one_process_is_unknown(stage):
    stage.add()
    stage.report = gpu_report(
        Gpu(0, "GPU-0", memory_total=80 * GB, processes=((101, 20 * GB), (9, GB))),
        Gpu(1, "GPU-1", memory_total=80 * GB, processes=((100, 10 * GB), (101, None))),
    )
    stage.look()
    assert [fact.device for fact in stage.said(MemorySeen)] == ["host"]
    use = stage.watch.gpu_use("m-1")
    assert (use.count, use.held_bytes, use.memory_total_bytes) == (2, None, 160 * GB)


def test_a_replica_started_for_a_device_is_on_it_where_process_ids_do_not_match(stage):
    """In a container the driver counts processes by other ids than control does."""
    stage.add(environment={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    stage.report = gpu_report(
        Gpu(0, "GPU-0", memory_used=GB, memory_total=80 * GB, processes=((77_001, GB),)),
        Gpu(1, "GPU-1", memory_used=9 * GB, memory_total=80 * GB, processes=((77_002, 8 * GB),)),
    )
    stage.look()
    assert stage.watch.gpu_use("m-1").held_bytes == 8 * GB
    assert [fact.replicas for fact in stage.said(GpuSeen)] == [(), ("m-1",)]
    two = ((77_002, 8 * GB), (77_003, 8 * GB))
    stage.report = gpu_report(
        Gpu(1, "GPU-1", memory_used=20 * GB, memory_total=80 * GB, processes=two)
    )
    stage.look()
    use = stage.watch.gpu_use("m-1")
    assert (use.count, use.memory_used_bytes, use.held_bytes) == (1, 20 * GB, None)


def test_a_mistake_while_looking_does_not_end_the_watch(stage, world):
    calls = []

    def read(roots):
        calls.append(roots)
        raise RuntimeError("a bug")

    stage.add()
    stage.watch._read, stage.watch._period_s = read, 0.001

    async def main():
        task = asyncio.create_task(stage.watch.run())
        await world.until(lambda: len(calls) >= 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


# --- GPU faults ----------------------------------------------------------------------------------


def xid(index=0):
    return Xid(1.0, index, f"GPU-{index}", 79, "the GPU has fallen off the bus", True)


def faults(stage, fault):
    stage.facts.clear()
    stage.watch.fault(fault)
    return [fact.replica for fact in stage.said(GpuFault)]


def test_a_fault_is_of_those_who_compute_there(stage):
    stage.add()
    stage.add(2, 200)
    gpus = [Gpu(0, "GPU-0", processes=((201, 1),)), Gpu(1, "GPU-1")]
    stage.report = GpuReport(available=True, reason="", gpus=tuple(gpus))
    stage.look()
    assert faults(stage, xid()) == ["m-2"]
    assert stage.facts == [GpuFault("m-2", 79, True, "the GPU has fallen off the bus")]
    assert faults(stage, xid(1)) == []


def test_a_fault_is_of_those_who_were_given_the_gpu_where_the_driver_does_not_tell(stage):
    stage.add(environment={"CUDA_VISIBLE_DEVICES": "0, 1"})
    stage.add(2, 200, environment={"CUDA_VISIBLE_DEVICES": "GPU-2"})
    stage.look()
    assert faults(stage, xid(1)) == ["m-1"]
    assert faults(stage, xid(2)) == ["m-2"]
    assert faults(stage, xid(3)) == []


def test_where_there_is_one_gpu_it_is_everybodys(stage):
    stage.add()
    assert faults(stage, xid()) == []
    stage.report = GpuReport(available=True, reason="", gpus=(Gpu(0, "GPU-0"),))
    assert faults(stage, xid()) == ["m-1"]
