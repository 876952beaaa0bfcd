"""Reads this host: its CPUs, memory, GPUs and disks, and the replicas that run on it.

    /proc, /sys ─┬─ host      CPUs, load, memory, pressure, free space
                 ├─ replicas  process trees, cgroups, starts and ends
                 ├─ mounts    what is read from shared filesystems
                 └─ gpus      the driver's library, in the background  ─► one Reading

``LocalHost`` looks in the thread that calls it: control's source uses it, and the agent reports the
same from other hosts. It needs no event loop, for the agent's sake. The list of replicas is
given by the caller: the launcher in control, the command line in the agent.

The GPUs are read by one reader only: where a report exists already, it is passed in. A host
without any sign of a GPU is not at fault; that is a note, and no error.
"""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.core.types import require
from holdfast.core.view.layers import Group, Host, Part, Placed, Reading
from holdfast.sources.background_call import BackgroundCall
from holdfast.sources.gpu_devices import IDLE_SHARE, devices_of, held_by, idle_gpus
from holdfast.sources.mounts import Mounts
from holdfast.sources.nvml import GpuReport, read_gpus
from holdfast.sources.pressure import HostUse, free_space, read_host
from holdfast.sources.process_memory import ProcessTreeUsage, read_trees
from holdfast.sources.process_tracker import ProcessLife, ProcessTracker

REPLICAS_MAX: Final = 256  # of one host
GPU_EVERY_S: Final = 10.0
GPU_ABSENT_S: Final = 300.0  # hardware seldom appears while one waits
_GPU_HUNG_S: Final = 15.0
_TEXT_MAX: Final = 240  # of what is said for people
_STOPPED_S: Final = 600.0  # for so long an end is shown
# What hangs on none of the rows: one mount that is dead, or one replica that is not there, must not
# make the others look old.
_NOBODY: Final = ("nobody",)


@dataclass(slots=True, frozen=True)
class LocalConfig:
    """What is read of this host, and how often."""

    period_s: float = 5.0  # below every detector's patience, above what a look costs
    host: str = ""  # its name in the view; empty: its hostname
    group: str = ""  # of hosts that are made alike; empty: it stands alone
    zone: str = ""  # shown beside it; empty: unknown
    kind: str = ""  # what sort of machine it is, for people
    mounts: tuple[str, ...] = ()  # /mnt/models or NAME=/mnt/models; empty: all shared filesystems
    paths: tuple[str, ...] = ("/",)  # own filesystems whose free space is watched

    def __post_init__(self) -> None:
        fits = 1.0 <= self.period_s <= 300.0
        fix = "use 1 to 300 seconds"
        require(fits, "local.period_s", f"is {self.period_s}", fix)
        for mount in self.mounts:
            point = mount if mount.startswith("/") else mount.partition("=")[2]
            fix = "write the mount point, or NAME=/mount/point"
            require(point.startswith("/"), "local.mounts", f"has {mount[:80]!r}", fix)


@dataclass(slots=True, frozen=True)
class LocalReplica:
    """A replica of this host: its model, process and paths, as its launcher knows them."""

    model: str
    pid: int | None  # the root of its processes; None: it does not run, as far as one knows
    revision: str = ""
    endpoint: str = ""
    weights: str = ""  # the path of its weights
    image: str = ""
    needs_gpu: bool | None = None
    reserved_bytes: int | None = None
    limit_bytes: int | None = None  # None: the cgroup's
    log_stream: str = ""
    phase: str = ""
    spoke_at: float | None = None
    missing: str = ""  # why nobody knows its process
    visible_gpus: str = ""  # its CUDA_VISIBLE_DEVICES, where its launcher set it


@dataclass(slots=True, frozen=True)
class Roots:
    """Paths of the kernel's files; tests use their own."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroups: Path = Path("/sys/fs/cgroup")


Replicas = Callable[[], Mapping[str, LocalReplica]]


class LocalHost:
    """Looks at this host and its replicas. Not for two threads at once."""

    def __init__(
        self,
        source: str,
        kind: str,
        config: LocalConfig,
        replicas: Replicas,
        *,
        gpus: Callable[[], GpuReport | None] | None = None,
        reader: Callable[[], GpuReport] = read_gpus,
        roots: Roots | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._kind = kind
        self._config = config
        self._replicas = replicas
        self._roots = roots or Roots()
        self._clock = clock
        self.name = config.host or socket.gethostname() or "localhost"
        self._lives = ProcessTracker(self._roots.proc, self._roots.cgroups)
        self._mounts = Mounts(self.name, config.mounts, self._roots.proc, self._roots.sys)
        self._given_gpus = gpus  # what somebody else has read; None: we read ourselves
        self._own_gpus = BackgroundCall(reader, GPU_EVERY_S)
        self._parts: dict[str, Part] = {}
        self._booted_at: float | None = None
        self.usages: dict[str, ProcessTreeUsage] = {}  # of the last look, by replica
        self.gpus: GpuReport | None = None

    def look(self) -> Reading:
        """Read all figures now and return them as a reading."""
        now = self._clock()
        began = time.perf_counter()
        use = read_host(self._roots.proc, self._roots.sys)
        if use.uptime_s is not None and self._booted_at is None:
            self._booted_at = round(now - use.uptime_s, 1)  # once: it would tremble otherwise
        missing = "" if use.memory_bytes else f"{self._roots.proc}/meminfo cannot be read"
        self._note_part("host", now, began, missing)
        began = time.perf_counter()
        disks, problem = self._mounts.look(time.monotonic())
        self._note_part("mounts", now, began)
        self._note_part("capacity", now, began, problem, feeds=_NOBODY)
        began = time.perf_counter()
        self.gpus, absent, problem = self._look_at_gpus()
        self._note_part("gpus", now, began, problem)
        began = time.perf_counter()
        placed, problem = self._look_at_replicas(use, now)
        self._note_part("replicas", now, began)
        self._note_part("finding", now, began, problem, feeds=_NOBODY)
        return Reading(
            source=self._source,
            kind=self._kind,
            at=now,
            parts=tuple(self._parts.values()),
            groups=(Group(self._config.group or self.name),),
            hosts=(self._host(use, placed),),
            placed=tuple(placed),
            disks=tuple(disks),
            notes=(absent,) if absent else (),
        )

    def _note_part(
        self, name: str, now: float, began: float, problem: str = "", feeds: tuple[str, ...] = ()
    ) -> None:
        before = self._parts.get(name, Part(name, feeds=feeds))
        took_s = round(time.perf_counter() - began, 6)
        if problem:
            since = before.failing_since or now
            self._parts[name] = replace(before, error=problem, failing_since=since, took_s=took_s)
        else:
            self._parts[name] = Part(name, at=now, took_s=took_s, feeds=feeds)

    # --- the host --------------------------------------------------------------------------------

    def _host(self, use: HostUse, placed: list[Placed]) -> Host:
        running = [one for one in placed if one.state == "running"]
        pending = [one for one in placed if one.state == "pending"]
        reserved = [one.reserved_bytes for one in (*running, *pending)]
        known = [each for each in reserved if each is not None]
        spaces = [space for path in self._config.paths if (space := free_space(path)) is not None]
        fullest = min(spaces, key=lambda space: space[1] / max(1, space[0]), default=None)
        host = Host(
            id=self.name,
            group=self._config.group or self.name,
            kind=self._config.kind,
            zone=self._config.zone,
            launched_at=self._booted_at,
            cpus=use.cpus,
            memory_bytes=use.memory_bytes,
            reserved_bytes=sum(known) if known and len(known) == len(reserved) else None,
            used_bytes=use.used_bytes,
            running=len(running),
            pending=len(pending),
            pressure=use.pressure,
            load=use.load,
            disk_bytes=fullest[0] if fullest is not None else None,
            disk_free_bytes=fullest[1] if fullest is not None else None,
        )
        return _with_gpus(host, self.gpus)

    def _look_at_gpus(self) -> tuple[GpuReport | None, str, str]:
        """The report, a note where there are none, and what is wrong."""
        if self._given_gpus is not None:
            report = self._given_gpus()
        else:
            report = self._own_gpus.poll()
            hung = self._own_gpus.hangs_s
            if hung is not None and hung > _GPU_HUNG_S:
                return None, "", f"the driver has not answered for {hung:.0f} s"
            if report is not None:
                self._own_gpus.every_s = GPU_EVERY_S if report.available else GPU_ABSENT_S
        if report is None or report.available:
            return report, "", ""
        if (self._roots.proc / "driver/nvidia").exists():
            return report, "", report.reason
        return report, f"no GPUs: {report.reason}", ""

    # --- replicas --------------------------------------------------------------------------------

    def _look_at_replicas(self, use: HostUse, now: float) -> tuple[list[Placed], str]:
        told = self._replicas()
        replicas = dict(list(told.items())[:REPLICAS_MAX])
        pids = {name: replica.pid for name, replica in replicas.items()}
        self._lives.look(pids, use.oom_kills, now)
        roots = [pid for pid in pids.values() if pid is not None]
        found = read_trees(roots, self._roots.proc, self._roots.cgroups)
        self.usages = {
            name: found[pid] for name, pid in pids.items() if pid is not None and pid in found
        }
        placed: list[Placed] = []
        for name, one in replicas.items():
            placed += self._placed(name, one, now)
        problems = [f"{name}: {one.missing}" for name, one in replicas.items() if one.missing]
        if len(told) > REPLICAS_MAX:
            problems.append(f"{len(told)} replicas, of which {REPLICAS_MAX} are looked at")
        return placed, "; ".join(problems[:4])[:_TEXT_MAX]

    def _placed(self, name: str, one: LocalReplica, now: float) -> list[Placed]:
        """Its process, and the one before if that ended lately; each under an id of its own."""
        rows: list[Placed] = []
        ended, life = self._lives.ended(name), self._lives.living(name)
        if ended is not None and (life is None or now - (ended.ended_at or 0.0) <= _STOPPED_S):
            rows.append(self._stopped(name, one, ended))
        if life is None:
            if ended is None:
                told = one.missing or "not seen yet"
                rows.append(replace(self._row(name, one), state="pending", reason=told))
            return rows
        usage = self.usages.get(name)
        life.phase = one.phase
        life.limit_bytes = one.limit_bytes or (_limit(usage, life) if usage is not None else None)
        life.used_bytes = _used(usage, life) if usage is not None else life.used_bytes
        row = self._row(name, one, life)
        if usage is not None:
            gpus = _gpus_of(usage, one, self.gpus, self._roots.proc)
            row = replace(row, read_bytes=usage.read_bytes, **gpus)
            row = replace(row, used_bytes=life.used_bytes)
        return [*rows, replace(row, phase=one.phase, spoke_at=one.spoke_at)]

    def _stopped(self, name: str, one: LocalReplica, life: ProcessLife) -> Placed:
        return replace(
            self._row(name, one, life),
            state="stopped",
            used_bytes=life.used_bytes,
            stopped_at=life.ended_at,
            oom=life.oom,
            reason=life.reason,
            phase=life.phase,
        )

    def _row(self, name: str, one: LocalReplica, life: ProcessLife | None = None) -> Placed:
        words = life.words if life is not None else ()
        started_at = None
        if life is not None and self._booted_at is not None:
            started_at = round(self._booted_at + life.start_s, 1)
        return Placed(
            id=name if life is None else f"{name}@{life.mark}",
            model=one.model,
            state="running",
            host=self.name,
            revision=one.revision,
            replica=name,
            endpoint=one.endpoint,
            needs_gpu=one.needs_gpu,
            reserved_bytes=one.reserved_bytes,
            limit_bytes=one.limit_bytes if life is None else life.limit_bytes,
            filesystem=self._mounts.filesystem_of((one.weights, *words)),
            log_stream=one.log_stream[-_TEXT_MAX:],
            image=one.image,
            started_at=started_at,
        )


def _gpus_of(
    usage: ProcessTreeUsage, one: LocalReplica, report: GpuReport | None, proc: Path
) -> dict[str, Any]:
    """The members of its row that tell of GPUs; none where no GPU can be seen."""
    if report is None or not report.available:
        return {}
    held = held_by(usage.pids, report, one.visible_gpus)
    use = held.use
    unknown = use is None and _hides_processes(report, proc)
    return {
        "gpus": None if unknown else len(held.devices),
        "gpu_used_bytes": use.held_bytes if use is not None else None,
        "gpu": use,
        "devices": held.ids,
    }


def _hides_processes(report: GpuReport, proc: Path) -> bool:
    """Whether GPUs are used by processes that cannot be seen here, as in a container."""
    for gpu in report.gpus:
        if any(not (proc / str(pid)).exists() for pid, _ in gpu.processes):
            return True
        used, whole = gpu.memory_used, gpu.memory_total
        if not gpu.processes and used and whole and used >= IDLE_SHARE * whole:
            return True
    return False


def _with_gpus(host: Host, report: GpuReport | None) -> Host:
    """Its GPUs taken together; what one of them does not tell is left out of the sum."""
    if report is None:
        return host
    host = replace(host, cuda=report.cuda or "", driver=report.driver or "")
    if not report.available:
        return host
    total = [gpu.memory_total for gpu in report.gpus if gpu.memory_total is not None]
    used = [gpu.memory_used for gpu in report.gpus if gpu.memory_used is not None]
    busy = [gpu.utilisation for gpu in report.gpus if gpu.utilisation is not None]
    told = [(gpu.index, gpu.xid[-1].meaning if gpu.xid else gpu.problem) for gpu in report.gpus]
    faults = [f"GPU {index}: {what}" for index, what in told if what]
    return replace(
        host,
        gpus=len(report.gpus),
        gpus_free=idle_gpus(report),
        gpu_memory_bytes=sum(total) if total else None,
        gpu_used_bytes=sum(used) if used else None,
        gpu_busy=sum(busy) / len(busy) if busy else None,
        gpu_fault="; ".join(faults)[:_TEXT_MAX],
        devices=devices_of(report),
    )


def _limit(usage: ProcessTreeUsage, life: ProcessLife) -> int | None:
    own = life.cgroup.limit_bytes if life.cgroup is not None else None
    return min((limit for limit in (usage.limit_bytes, own) if limit is not None), default=None)


def _used(usage: ProcessTreeUsage, life: ProcessLife) -> int:
    """What counts against its limit: of a cgroup of its own also what no process shows."""
    cgroup = life.cgroup
    if cgroup is None or cgroup.used_bytes is None or not cgroup.pids:
        return usage.used_bytes
    alone = set(cgroup.pids) <= set(usage.pids)
    return max(usage.used_bytes, cgroup.used_bytes) if alone else usage.used_bytes


__all__ = ["REPLICAS_MAX", "LocalConfig", "LocalHost", "LocalReplica", "Replicas", "Roots"]
