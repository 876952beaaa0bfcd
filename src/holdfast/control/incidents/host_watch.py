"""Reads memory, loading progress, versions and GPU faults of this host's launched replicas.

    /proc, cgroups (a thread) ─┐
    GpuWatch's last report ────┴─► MemorySeen, PhaseSeen, VersionsSeen, HostSeen, GpuFault

/proc is read in a thread of its own, because reading about a process that is being torn down can
block. While one read hangs no second one is started, and nothing is reported meanwhile: memory that
was not read is unknown.

Versions of a model's replicas are reported while all of them have the same build. During a rollout
two builds differ on purpose, and the new replicas' versions can wait for its end.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from holdfast.control.deploy.declarations import versions_of, weights_size
from holdfast.control.deploy.launched_replica import LaunchedReplica
from holdfast.control.detached_call import detached
from holdfast.core.diagnose.facts import Declared, Fact, GpuFault, HostSeen, MemorySeen, PhaseSeen
from holdfast.core.gpu import GpuUse
from holdfast.core.view.reading_diff import gpu_seen
from holdfast.sources.gpu_devices import NOTHING, HeldGpus, devices_of, held_by, idle_gpus
from holdfast.sources.nvml import GpuReport, Xid
from holdfast.sources.process_memory import ProcessTreeUsage, host_memory, read_trees

PERIOD_S: Final = 10.0

_log = structlog.get_logger("holdfast.control.incidents.host_watch")

Seen = Callable[[Fact], None]


class HostWatch:
    """Reads /proc and GPU data of the replicas launched on this host, and reports facts.

    Restarts nothing and judges nothing.
    """

    def __init__(
        self,
        name: str,
        units: Mapping[str, LaunchedReplica],
        declared: Callable[[], Mapping[str, Declared]],
        gpus: Callable[[], GpuReport | None],
        saw: Seen,
        environment: Mapping[str, str],
        *,
        read: Callable[[list[int]], dict[int, ProcessTreeUsage]] = read_trees,
        period_s: float = PERIOD_S,
    ) -> None:
        self.name = name
        self._units = units
        self._declared = declared
        self._gpus = gpus
        self._saw = saw
        self._environment = environment
        self._read = read
        self._period_s = period_s
        self.engines: dict[str, str] = {}  # the version that each replica's engine says it is
        self.sizes: dict[str, int | None] = {}  # of weights, by path
        self._told: dict[str, tuple[int | None, Any]] = {}  # pid and versions, by replica
        self._host: HostSeen | None = None
        self._memory: int | None = None
        self._pids: dict[str, tuple[int, ...]] = {}  # of each replica's tree, at the last look
        self._held: dict[str, HeldGpus] = {}  # GPUs of each replica, at the last look

    async def run(self) -> None:
        """Read the host every 10 s, until cancelled; errors are logged."""
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 a mistake here must not end control
                _log.exception("host not looked at")
            await asyncio.sleep(self._period_s)

    async def look(self) -> None:
        """Read the host's replicas once and report memory, progress, versions and host facts.

        Versions and host facts only when they changed.
        """
        here = [unit for unit in self._units.values() if not unit.on]  # others' pids are elsewhere
        roots = {unit.id: unit.pid for unit in here if unit.pid is not None}
        paths = {unit.spec.weights for unit in here}
        unsized = [path for path in paths if self.sizes.get(path) is None]
        found, sizes, self._memory = await detached(self._look, list(roots.values()), unsized)
        self.sizes = {path: sizes.get(path, self.sizes.get(path)) for path in paths}
        self._pids, self._held = {}, {}
        for name, pid in roots.items():
            unit, usage = self._units.get(name), found.get(pid)
            if unit is None or unit.pid != pid or usage is None:
                continue  # it ended, or began anew, while it was looked at
            self._pids[name] = usage.pids
            self._tell_memory(unit, usage)
        self._tell_versions()
        self._tell_host()
        self._tell_gpus()

    def _look(
        self, roots: list[int], paths: list[str]
    ) -> tuple[dict[int, ProcessTreeUsage], dict[str, int | None], int | None]:
        return self._read(roots), {path: weights_size(path) for path in paths}, host_memory()

    def _tell_memory(self, unit: LaunchedReplica, usage: ProcessTreeUsage) -> None:
        declared = self._declared().get(unit.id)
        limit = declared.limit_bytes if declared is not None else None
        self._saw(MemorySeen(unit.id, usage.used_bytes, limit or usage.limit_bytes))
        if not unit.loaded and usage.read_bytes is not None:
            total = declared.weights_bytes if declared is not None else None
            self._saw(PhaseSeen(unit.id, unit.doing, usage.read_bytes, total))
        held = held_by(usage.pids, self._gpus(), unit.visible_gpus or None)
        self._held[unit.id] = held
        use = held.use
        if use is not None and use.held_bytes is not None:
            self._saw(MemorySeen(unit.id, use.held_bytes, use.limit_bytes, "gpu"))

    def _tell_gpus(self) -> None:
        """Report the figures of this host's GPUs, with the launched replicas that are on each."""
        for device in devices_of(self._gpus()):
            on_it = tuple(name for name, held in self._held.items() if device.id in held.ids)
            self._saw(gpu_seen(self.name, device, on_it))

    def gpu_use(self, replica: str) -> GpuUse | None:
        """GPU memory, load and heat of a replica launched here, at the last read.

        None: unknown, or it holds no GPU.
        """
        return self._held.get(replica, NOTHING).use

    def _tell_versions(self) -> None:
        builds: dict[str, set[str]] = {}
        for unit in self._units.values():
            builds.setdefault(unit.model, set()).add(unit.build)
        report = self._gpus()
        driver, cuda = (report.driver, report.cuda) if report is not None else (None, None)
        for unit in self._units.values():
            if unit.pid is None or unit.on or len(builds[unit.model]) > 1:
                continue
            engine = self.engines.get(unit.id, "")
            versions = versions_of(unit, self._environment, driver, cuda, engine)
            if self._told.get(unit.id) != (unit.pid, versions):
                self._told[unit.id] = (unit.pid, versions)
                self._saw(versions)
        self._told = {name: told for name, told in self._told.items() if name in self._units}

    def _tell_host(self) -> None:
        declared = [self._declared().get(name) for name in self._units]
        reserved = [one.reserved_bytes for one in declared if one is not None]
        known = [each for each in reserved if each is not None]
        free = None
        if self._memory is not None and known and len(known) == len(reserved):
            free = max(0, self._memory - sum(known))
        report = self._gpus()
        gpus = len(report.gpus) if report is not None and report.available else None
        unused = idle_gpus(report) if gpus is not None and report is not None else None
        host = HostSeen(self.name, gpus, self._memory, free, gpus_free=unused)
        if self._units and host != self._host:
            self._host = host
            self._saw(host)

    # --- GPU faults ------------------------------------------------------------------------------

    def fault(self, xid: Xid) -> None:
        """Report a GPU's Xid fault as a fact about each launched replica that uses that GPU.

        Nothing is reported where no user of it is known.
        """
        for name in self._users(xid):
            self._saw(GpuFault(name, xid.code, xid.needs_reset, xid.meaning))

    def _users(self, xid: Xid) -> list[str]:
        report = self._gpus()
        gpus = report.gpus if report is not None else ()
        here = [unit for unit in self._units.values() if not unit.on]
        running = [unit for unit in here if unit.pid is not None]
        pids = {pid for gpu in gpus if gpu.uuid == xid.uuid for pid, _ in gpu.processes}
        seen = [unit.id for unit in running if pids & set(self._pids.get(unit.id, ()))]
        if seen:
            return seen
        named = [unit.id for unit in running if _names(unit, xid)]
        alone = len(gpus) == 1 and not any(unit.visible_gpus for unit in running)
        return named or ([unit.id for unit in running] if alone else [])


def _names(unit: LaunchedReplica, xid: Xid) -> bool:
    words = [word.strip() for word in unit.visible_gpus.split(",")]
    return str(xid.index) in words or (xid.uuid is not None and xid.uuid in words)


__all__ = ["PERIOD_S", "HostWatch"]
