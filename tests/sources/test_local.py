import asyncio
import os
import threading

import pytest

from holdfast.core.types import ConfigError
from holdfast.sources.local import LocalConfig, LocalHost, LocalReplica, LocalSource, Roots
from holdfast.sources.nvml import Gpu, GpuReport, Xid
from holdfast.sources.this_host import REPLICAS_MAX

GB = 1 << 30
TICKS = os.sysconf("SC_CLK_TCK")
NO_GPU = GpuReport(available=False, reason="the package nvidia-ml-py is not installed")
LONG_S = 30.0


class Machine:
    """A whole host on paper."""

    def __init__(self, root):
        self.roots = Roots(root / "proc", root / "sys", root / "sys/fs/cgroup")
        self.now = 1_000_000.0
        self.replicas = {}
        self.gpus = NO_GPU
        self.put("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n")
        self.put("proc/loadavg", "1.50 1 1 1/2 3\n")
        self.put("proc/uptime", "5000.00 1\n")
        self.put("proc/vmstat", "oom_kill 0\n")
        self.put("proc/pressure/memory", "some avg10=50.00 avg60=0 avg300=0 total=0\n")
        self.put("proc/self/mountstats", "device filer:/m mounted on /mnt/m with fstype nfs4\n")
        self.put("sys/devices/system/cpu/online", "0-15\n")

    @property
    def root(self):
        return self.roots.proc.parent

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(self, pid, start_s=4000, *, anon=GB, cgroup="/r", words=("engine",), parent=1):
        stat = ["S", str(parent), *["0"] * 17, str(start_s * TICKS), "0"]
        self.put(f"proc/{pid}/stat", f"{pid} (engine) {' '.join(stat)}\n")
        self.put(f"proc/{pid}/status", f"RssAnon: {anon >> 10} kB\nRssFile: 0 kB\n")
        self.put(f"proc/{pid}/cgroup", f"0::{cgroup}\n")
        self.put(f"proc/{pid}/cmdline", "\0".join(words))
        self.put(f"proc/{pid}/io", f"rchar: {3 * GB}\nread_bytes: 0\n")

    def end(self, pid):
        for file in (self.roots.proc / str(pid)).iterdir():
            file.unlink()
        (self.roots.proc / str(pid)).rmdir()

    def cgroup(self, *, current=GB, limit="max", kills=0, pids=(), path="r"):
        for name, text in {
            "memory.current": current,
            "memory.max": limit,
            "memory.events": f"oom_kill {kills}",
            "memory.stat": "inactive_file 0",
            "cgroup.procs": "\n".join(map(str, pids)),
        }.items():
            self.put(f"sys/fs/cgroup/{path}/{name}", f"{text}\n")

    def host(self, config=None, kind="local"):
        return LocalHost(
            "here",
            kind,
            config or LocalConfig(host="gpu-1"),
            lambda: self.replicas,
            gpus=lambda: self.gpus,
            roots=self.roots,
            clock=lambda: self.now,
        )


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def parts(reading):
    return {part.name: part for part in reading.parts}


def test_a_host_is_told_with_all_it_knows(machine):
    reading = machine.host(LocalConfig(host="gpu-1", group="rack", zone="z", kind="dgx")).look()
    (host,) = reading.hosts
    assert (reading.source, reading.kind, reading.at) == ("here", "local", machine.now)
    assert (host.id, host.group, host.zone, host.kind) == ("gpu-1", "rack", "z", "dgx")
    assert (host.cpus, host.load, host.memory_bytes, host.used_bytes) == (16, 1.5, GB, GB // 2)
    assert (host.pressure, host.launched_at) == (0.5, machine.now - 5000)
    assert 0 < host.disk_free_bytes <= host.disk_bytes
    assert [group.name for group in reading.groups] == ["rack"]
    assert [disk.id for disk in reading.disks] == ["filer:/m"]
    assert all(part.at == machine.now and not part.error for part in reading.parts)


def test_a_host_alone_is_a_group_and_one_that_tells_nothing_has_a_failing_part(tmp_path):
    nothing = Roots(tmp_path, tmp_path, tmp_path)
    reading = LocalHost("s", "local", LocalConfig(), dict, gpus=lambda: None, roots=nothing).look()
    (host,) = reading.hosts
    assert host.group == host.id == os.uname().nodename
    assert (host.cpus, host.memory_bytes, host.used_bytes, host.gpus) == (None, None, None, None)
    assert parts(reading)["host"].error.endswith("meminfo cannot be read")


def test_a_running_replica_is_told_with_its_memory_limit_and_filesystem(machine):
    machine.process(10, anon=2 * GB, words=("serve", "--model", "/mnt/m/qwen"))
    machine.process(11, anon=GB, parent=10)
    machine.cgroup(limit=8 * GB, current=GB, pids=(10, 11))
    machine.replicas = {"r1": LocalReplica("qwen", 10, phase="loading", spoke_at=5.0)}
    reading = machine.host().look()
    (row,) = reading.placed
    assert (row.replica, row.model, row.state, row.host) == ("r1", "qwen", "running", "gpu-1")
    assert (row.used_bytes, row.limit_bytes, row.read_bytes) == (3 * GB, 8 * GB, 6 * GB)
    assert (row.filesystem, row.phase, row.spoke_at) == ("filer:/m", "loading", 5.0)
    assert row.started_at == machine.now - 1000
    assert (reading.hosts[0].running, reading.hosts[0].pending) == (1, 0)


@pytest.mark.parametrize(("pids", "used"), [((10,), 5 * GB), ((10, 77), 2 * GB), ((), 2 * GB)])
def test_a_cgroup_of_its_own_counts_what_no_process_shows(machine, pids, used):
    machine.process(10, anon=2 * GB)
    machine.cgroup(current=5 * GB, pids=pids)
    machine.replicas = {"r1": LocalReplica("m", 10)}
    assert machine.host().look().placed[0].used_bytes == used


def test_an_oom_kill_ends_a_replica_and_the_next_process_stands_beside_its_end(machine):
    machine.process(10, anon=2 * GB)
    machine.cgroup(kills=0)
    machine.replicas = {"r1": LocalReplica("m", 10, phase="serving")}
    host = machine.host()
    (alive,) = host.look().placed
    machine.cgroup(kills=1)
    machine.end(10)
    machine.now += 5
    (dead,) = host.look().placed
    assert (dead.id, dead.state, dead.oom, dead.stopped_at) == (
        alive.id,
        "stopped",
        True,
        machine.now,
    )
    assert (dead.used_bytes, dead.phase) == (2 * GB, "serving")
    machine.process(12, 5010)
    machine.replicas = {"r1": LocalReplica("m", 12)}
    machine.now += 5
    rows = host.look().placed
    assert [(row.state, row.oom) for row in rows] == [("stopped", True), ("running", False)]
    assert rows[0].stopped_at == dead.stopped_at
    assert len({row.id for row in rows}) == 2
    machine.now += 601
    assert [row.state for row in host.look().placed] == ["running"]


def test_one_that_does_not_come_back_stays_stopped(machine):
    machine.process(10)
    machine.replicas = {"r1": LocalReplica("m", 10)}
    host = machine.host()
    host.look()
    machine.end(10)
    host.look()
    machine.now += 3600
    assert host.look().placed[0].state == "stopped"


def test_one_that_was_never_seen_is_pending_and_makes_the_others_no_older(machine):
    machine.process(10)
    machine.replicas = {
        "r1": LocalReplica("m", 10),
        "r2": LocalReplica("m", None, missing="no process listens on port 8000"),
    }
    reading = machine.host().look()
    assert [row.state for row in reading.placed] == ["running", "pending"]
    assert reading.placed[1].reason == "no process listens on port 8000"
    assert parts(reading)["replicas"].error == ""
    assert parts(reading)["finding"].error == "r2: no process listens on port 8000"
    assert parts(reading)["finding"].feeds == ("nobody",)


def test_reservations_are_summed_where_all_are_known(machine):
    machine.process(10)
    machine.replicas = {"r1": LocalReplica("m", 10, reserved_bytes=3)}
    host = machine.host()
    assert host.look().hosts[0].reserved_bytes == 3
    machine.replicas["r2"] = LocalReplica("m", None)
    assert host.look().hosts[0].reserved_bytes is None


def test_there_is_an_end_to_the_replicas(machine):
    many = range(REPLICAS_MAX + 1)
    machine.replicas = {f"r{number}": LocalReplica("m", None) for number in many}
    reading = machine.host().look()
    assert len(reading.placed) == REPLICAS_MAX
    assert f"{REPLICAS_MAX + 1} replicas" in parts(reading)["finding"].error


# --- GPUs -----------------------------------------------------------------------------------------


def test_gpus_are_told_with_who_is_on_them(machine):
    xid = Xid(1.0, 1, "b", 79, "the GPU has fallen off the bus", needs_reset=True)
    machine.gpus = GpuReport(
        available=True,
        reason="",
        driver="570.1",
        cuda="12.8",
        gpus=(
            Gpu(0, "a", memory_used=60, memory_total=100, utilisation=0.5, processes=((10, 55),)),
            Gpu(1, "b", memory_used=1, memory_total=100, utilisation=0.0, xid=(xid,)),
        ),
    )
    machine.process(10)
    machine.replicas = {"r1": LocalReplica("m", 10)}
    reading = machine.host().look()
    host, row = reading.hosts[0], reading.placed[0]
    assert (host.gpus, host.gpus_free, host.driver, host.cuda) == (2, 1, "570.1", "12.8")
    assert (host.gpu_memory_bytes, host.gpu_used_bytes, host.gpu_busy) == (200, 61, 0.25)
    assert host.gpu_fault == "GPU 1: the GPU has fallen off the bus"
    assert (row.gpus, row.gpu_used_bytes) == (1, 55)


def test_gpus_that_do_not_tell_leave_the_free_ones_unknown(machine):
    machine.gpus = GpuReport(available=True, reason="", gpus=(Gpu(0),))
    host = machine.host().look().hosts[0]
    assert (host.gpus, host.gpus_free, host.gpu_used_bytes) == (1, None, None)


def test_no_gpu_is_a_note_and_a_driver_that_fails_is_a_fault(machine):
    reading = machine.host().look()
    assert reading.notes == ("no GPUs: the package nvidia-ml-py is not installed",)
    assert parts(reading)["gpus"].error == ""
    assert reading.hosts[0].gpus is None
    machine.put("proc/driver/nvidia/version", "570\n")
    machine.gpus = GpuReport(available=False, reason="nvmlInit: driver mismatch", driver="570")
    reading = machine.host().look()
    assert reading.notes == ()
    assert parts(reading)["gpus"].error == "nvmlInit: driver mismatch"
    assert reading.hosts[0].driver == "570"


def test_a_host_reads_its_gpus_itself_where_nobody_else_does(machine):
    asked = []

    def reader():
        asked.append(1)
        return GpuReport(available=True, reason="", gpus=(Gpu(0),))

    host = LocalHost("s", "agent", LocalConfig(), dict, reader=reader, roots=machine.roots)
    host._own_gpus.poll(LONG_S)
    assert host.look().hosts[0].gpus == 1
    host.look()
    assert len(asked) == 1


def test_a_part_that_fails_keeps_when_it_was_last_well(machine):
    machine.gpus = GpuReport(available=True, reason="", gpus=())
    machine.put("proc/driver/nvidia/version", "570\n")
    host = machine.host()
    well = machine.now
    host.look()
    machine.gpus = GpuReport(available=False, reason="gone")
    machine.now += 5
    since = machine.now
    host.look()
    machine.now += 5
    part = parts(host.look())["gpus"]
    assert (part.at, part.error, part.failing_since) == (well, "gone", since)


# --- for control's loop ---------------------------------------------------------------------------


def test_the_source_gives_the_same_reading(machine):
    source = LocalSource(
        "here", LocalConfig(period_s=7.0), gpus=lambda: NO_GPU, roots=machine.roots
    )

    async def main():
        reading = await source.read()
        await source.close()
        return reading

    reading = asyncio.run(main())
    assert (source.kind, source.period_s, reading.source, reading.kind) == (
        "local",
        7.0,
        "here",
        "local",
    )


def test_a_look_that_hangs_is_not_begun_twice_and_says_for_how_long(machine):
    go, entered, looks = threading.Event(), threading.Event(), []

    def replicas():
        looks.append(1)
        if len(looks) == 2:
            entered.set()
            assert go.wait(LONG_S)
        return {}

    source = LocalSource(
        "here",
        LocalConfig(host="gpu-1"),
        replicas=replicas,
        gpus=lambda: NO_GPU,
        roots=machine.roots,
        clock=lambda: machine.now,
    )

    async def main():
        first = await source.read()
        hanging = asyncio.create_task(source.read())
        assert await asyncio.to_thread(entered.wait, LONG_S)
        hanging.cancel()  # the runner lost its patience
        machine.now += 40
        late = await source.read()
        assert late.hosts == first.hosts
        assert {part.error for part in late.parts} == {"no answer for 40 s"}
        go.set()
        await asyncio.wait_for(source._pending, LONG_S)
        again = await source.read()
        assert not again.parts[0].error
        assert again.hosts[0].id == "gpu-1"
        assert len(looks) == 3

    asyncio.run(main())


def test_a_mistake_in_a_look_reaches_whoever_asked(machine):
    source = LocalSource("here", LocalConfig(), replicas=lambda: 1 / 0, roots=machine.roots)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(source.read())


@pytest.mark.parametrize(
    "wrong", [{"period_s": 0.5}, {"period_s": 301.0}, {"mounts": ("x",)}, {"mounts": ("a=b",)}]
)
def test_a_config_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError):
        LocalConfig(**wrong)


def test_this_very_host_can_be_read():
    reading = LocalHost(
        "here",
        "local",
        LocalConfig(),
        lambda: {"me": LocalReplica("m", os.getpid())},
        gpus=lambda: NO_GPU,
    ).look()
    assert reading.hosts[0].cpus >= 1
    assert reading.placed[0].used_bytes > 1 << 20
