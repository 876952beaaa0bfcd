"""The Kubernetes source: combines three watches and two optional queries into a reading.

    nodes ─┐                    metrics-server, dcgm-exporters
    pods  ─┼─► rows in memory ──────────┴─► Reading
    events ┘        └─► changed ─► discovery of replicas
    inference pools, where they are asked for: which pods belong together, and at which ports

Each watch is a task of its own, so one that is refused does not delay the others; a reading never
waits for the API server. Tasks begin with the first reading, on the loop that asks for it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from holdfast.core.gpu import DEVICES_MAX, GpuUse, use_of
from holdfast.core.view.layers import DesiredReplicas, Group, Host, Part, Placed, Reading
from holdfast.core.view.pod_pools import NO_POOLS, PodPools
from holdfast.core.view.selectors import parse_selector
from holdfast.core.view.staleness import PLACED, WISHES
from holdfast.sources.kubernetes.api import KubernetesApi, KubernetesApiError
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.event_warnings import FIELDS, EventWarning, newest, read_event
from holdfast.sources.kubernetes.inference_pools import InferencePools
from holdfast.sources.kubernetes.nodes import Node, read_node
from holdfast.sources.kubernetes.object_watch import ObjectWatch
from holdfast.sources.kubernetes.pods import Pod, read_pod
from holdfast.sources.kubernetes.usage import GpuDevices, GpuExporters, MemoryUsage

FIRST_S: Final = 3.0  # a first reading waits so long for the lists, to begin with something
TAIL_LINES_MAX: Final = 10_000
TAIL_BYTES_MAX: Final = 1 << 20
NOTES_MAX: Final = 16
NEWS_S: Final = 600.0

_Added = tuple[str, str, int | None, int | None, GpuUse | None, tuple[str, ...]]
_Kept = dict[str, tuple[Placed, _Added, Placed]]


class KubernetesSource:
    """Reads nodes, pods, events and usage of one API server."""

    kind: str = "kubernetes"

    def __init__(self, name: str, config: KubernetesConfig, chance: Random | None = None) -> None:
        self.name = name
        self.period_s = config.period_s
        self.version = 0  # of what is known; moves with each change
        self.replica_of: Callable[[str], str] = lambda _: ""  # who knows pods as replicas says so
        self._config = config
        self._api = KubernetesApi(config)
        chance = chance or Random()
        fits = parse_selector(config.selector) if config.selector else None
        space = f"namespaces/{config.namespace}/" if config.namespace else ""
        told = (self._api, config)
        self._nodes = ObjectWatch[Node](
            "nodes",
            "api/v1/nodes",
            lambda thing: read_node(thing, config.group_label),
            *told,
            limit=config.nodes_max,
            changed=self._change,
            chance=chance,
        )
        self._pods = ObjectWatch[Pod](
            "pods",
            f"api/v1/{space}pods",
            lambda thing: read_pod(thing, config.model_label, fits),
            *told,
            limit=config.pods_max,
            changed=self._change,
            chance=chance,
            params={"labelSelector": config.selector} if config.by_server else None,
            feeds=(PLACED, WISHES),
        )
        self._events = ObjectWatch[EventWarning](
            "events",
            f"api/v1/{space}events",
            read_event,
            *told,
            limit=config.events_max,
            changed=self._change,
            chance=chance,
            params={"fieldSelector": FIELDS},
            forgets=True,
            marked=False,
        )
        self._pools: InferencePools | None = None
        if config.inference_pools:
            self._pools = InferencePools(*told, self._change, chance)
        self._usage = MemoryUsage(*told)
        self._exporters = GpuExporters(*told)
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._made: _Kept = {}  # what the last reading said of each pod, and of what it was made
        self._news = asyncio.Event()

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the watches on the running loop; no effect if started or closed before."""
        if not self._tasks and not self._closed:
            runs = (
                self._nodes.run(),
                self._pods.run(),
                self._events.run(),
                self._usage.run(),
                self._exporters.run(),
                *(self._pools.runs() if self._pools is not None else ()),
            )
            self._tasks = [asyncio.create_task(run) for run in runs]

    async def close(self) -> None:
        """Stop the watches for good: a later ``start`` or ``changed`` begins none."""
        self._closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._api.close()

    def _change(self) -> None:
        self.version += 1
        self._news.set()

    async def changed(self, since: int) -> int:
        """Wait until the data is newer than version ``since``; returns the new version."""
        self.start()
        while self.version <= since:
            self._news.clear()
            await self._news.wait()
        return self.version

    # --- reading ---------------------------------------------------------------------------------

    async def read(self) -> Reading:
        """A reading of all that is known now; waits only for the first lists, and shortly."""
        if not self._tasks and not self._closed:
            self.start()
            with suppress(TimeoutError):  # what did not come in time shows as a part without age
                async with asyncio.timeout(FIRST_S):
                    await self._first_lists()
        return self.reading()

    async def _first_lists(self) -> None:
        seen = 0
        while not self._settled():
            seen = await self.changed(seen)

    def _settled(self) -> bool:
        pools = self._pools is None or self._pools.settled
        return pools and all(watch.listed or watch.failing for watch in self._watches())

    def _watches(self) -> tuple[ObjectWatch[Node], ObjectWatch[Pod], ObjectWatch[EventWarning]]:
        return self._nodes, self._pods, self._events

    @property
    def known(self) -> bool:
        """Whether pods were listed at least once, and nodes too where that is allowed."""
        return self._pods.listed and (self._nodes.listed or self._nodes.failing)

    def glance(self) -> Reading:
        """A reading of hosts and pods only, without sums: cheap enough to call often."""
        hosts = tuple(node.host for node in self._nodes.rows.values())
        placed = tuple(pod.placed for pod in self._pods.rows.values() if self._is_chosen(pod))
        pools = self._known_pools()
        return Reading(self.name, self.kind, time.time(), hosts=hosts, placed=placed, pools=pools)

    def _known_pools(self) -> PodPools:
        return NO_POOLS if self._pools is None else self._pools.pools()

    def _is_chosen(self, pod: Pod) -> bool:
        """Whether it may be a replica: by its own labels, or because an inference pool has it.

        A replica stays one when its pool is deleted: only what ends it, or discovery, ends that.
        """
        if pod.chosen or self._pools is None:
            return pod.chosen
        return self._pools.takes(pod.placed) or bool(self.replica_of(pod.placed.id))

    def reading(self) -> Reading:
        """Build a full reading of all that is known now."""
        now = time.time()
        pods = self._pods.rows
        warnings = list(self._events.rows.values())
        about_pods = newest(warnings, "Pod")
        gpus = self._exporters.pods()
        kept: _Kept = {}
        placed = tuple(
            self._enriched(pod, about_pods, gpus, kept)
            for pod in pods.values()
            if self._is_chosen(pod)
        )
        self._made = kept
        hosts = self._hosts(newest(warnings, "Node"))
        named = {node.host.group: None for node in self._nodes.rows.values() if node.grouped}
        return Reading(
            self.name,
            self.kind,
            now,
            parts=self._parts(now),
            groups=tuple(Group(name) for name in named),
            hosts=hosts,
            placed=placed,
            wishes=_wishes(pods.values(), about_pods),
            notes=self._notes(warnings, placed),
            pools=self._known_pools(),
        )

    def _parts(self, now: float) -> tuple[Part, ...]:
        watched = tuple(watch.part(now) for watch in self._watches())
        pools = () if self._pools is None else (self._pools.part(now),)
        return (*watched, *pools, *self._usage.parts(), *self._exporters.parts())

    def _enriched(
        self,
        pod: Pod,
        warnings: Mapping[str, EventWarning],
        gpus: Mapping[str, GpuDevices],
        kept: "_Kept",
    ) -> Placed:
        placed = pod.placed
        warning = warnings.get(placed.id)
        reason = placed.reason
        # What was said of one that is ready by now is over.
        if warning is not None and not reason and not pod.ready and placed.state != "stopped":
            reason = f"{warning.reason}: {warning.message}"
        devices = gpus.get(placed.id)
        use = devices.use() if devices is not None else None
        added = (
            self.replica_of(placed.id),
            reason,
            self._usage.pods.get(placed.id),
            use.held_bytes if use is not None else None,
            use,
            tuple(devices.devices) if devices is not None else (),
        )
        before, said, made = self._made.get(placed.id, (None, None, placed))
        # Most pods are as they were five seconds ago, and a copy costs more than all else here.
        if before is not placed or said != added:
            names = ("replica", "reason", "used_bytes", "gpu_used_bytes", "gpu", "devices")
            made = replace(placed, **dict(zip(names, added, strict=True)))  # type: ignore[arg-type]
        kept[placed.id] = (placed, added, made)
        return made

    def _hosts(self, warnings: Mapping[str, EventWarning]) -> tuple[Host, ...]:
        loads: dict[str, _Load] = {}
        for pod in self._pods.rows.values():
            if pod.placed.host and pod.holds:
                loads.setdefault(pod.placed.host, _Load()).add(pod)
        gpus = _by_node(self._exporters.hosts(), self._nodes.rows, self._pods.rows)
        seen = not self._config.namespace and not self._config.by_server
        whole = self._pods.listed and seen and not self._pods.left_out
        return tuple(
            self._host(
                _warned(node.host, warnings.get(name)),
                loads.get(name) or _Load(),
                gpus.get(name),
                whole=whole,
            )
            for name, node in self._nodes.rows.items()
        )

    def _host(self, host: Host, load: "_Load", devices: GpuDevices | None, *, whole: bool) -> Host:
        """With what pods hold of it. Pods that we may not see would make every sum too small."""
        host = replace(
            host,
            used_bytes=self._usage.hosts.get(host.id),
            running=load.running,
            pending=load.pending,
        )
        if whole:
            host = replace(
                host,
                reserved_bytes=load.memory_bytes,
                cpus_free=None if host.cpus is None else host.cpus - load.cpus,
                gpus_free=None if host.gpus is None else max(0, host.gpus - load.gpus),
            )
        if devices is None:
            return host
        found = list(devices.devices.values())
        use = use_of(found)
        assert use is not None, "an exporter's page has a host for its GPUs"
        faults = [f"XID {one.xid} on {one.label}" for one in found if one.xid]
        return replace(
            host,
            gpu_memory_bytes=use.memory_total_bytes,
            gpu_used_bytes=use.memory_used_bytes,
            gpu_busy=use.utilisation,
            gpu_fault=", ".join(faults[:8]),
            driver=host.driver or devices.driver,
            devices=tuple(found[:DEVICES_MAX]),
        )

    def _notes(
        self, warnings: Iterable[EventWarning], placed: tuple[Placed, ...]
    ) -> tuple[str, ...]:
        notes = [self._usage.absent] if self._usage.absent else []
        notes += self._pools.notes(placed) if self._pools is not None else ()
        for watch in self._watches():
            if watch.left_out and watch is not self._events:
                told = f"there are more {watch.name} than the {len(watch.rows)} that are kept"
                notes.append(f"{told}: narrow the source by a namespace")
            if watch.unread:
                notes.append(f"{watch.unread} {watch.name} could not be understood")
        notes += [
            f"{one.kind} {one.about}: {one.reason}: {one.message}"
            for one in warnings
            if one.kind not in {"Pod", "Node"}
        ]
        return tuple(notes[:NOTES_MAX])

    # --- logs ------------------------------------------------------------------------------------

    async def tail(self, placed_id: str, lines: int = 200) -> list[str]:
        """The last log lines of a pod, with times; raises KubernetesApiError on failure."""
        namespace, _, name = placed_id.partition("/")
        pod = self._pods.rows.get(placed_id)
        if pod is None:
            raise KubernetesApiError("there is no such pod", 404)
        asked = {"limitBytes": str(TAIL_BYTES_MAX), "timestamps": "true"}
        if pod.container:
            asked["container"] = pod.container
        wanted, data = min(lines, TAIL_LINES_MAX), b""
        while wanted > 0:
            asked["tailLines"] = str(wanted)
            data = await self._api.text(f"api/v1/namespaces/{namespace}/pods/{name}/log", asked)
            if len(data) < TAIL_BYTES_MAX:
                break
            # The server counts bytes from the first of these lines, so what is cut off is the
            # newest: fewer are asked for until they fit.
            wanted = min(wanted - 1, max(1, data.count(b"\n") // 4))
        text = data.decode(errors="replace").removesuffix("\n")
        return text.split("\n") if text else []


@dataclass(slots=True)
class _Load:
    """What pods on one host hold together."""

    cpus: float = 0.0
    memory_bytes: int = 0
    gpus: int = 0
    running: int = 0
    pending: int = 0

    def add(self, pod: Pod) -> None:
        self.cpus += pod.cpus
        self.memory_bytes += pod.memory_bytes
        self.gpus += pod.gpus
        if pod.chosen:
            self.running += pod.placed.state == "running"
            self.pending += pod.placed.state == "pending"


def _warned(host: Host, warning: EventWarning | None) -> Host:
    """With a warning that is still news: its event stays for an hour."""
    if warning is None or time.time() - (warning.at or 0.0) > NEWS_S:
        return host
    return replace(host, state=f"{host.state}, {warning.reason}".lstrip(", "))


def _by_node(
    devices: Mapping[str, GpuDevices], nodes: Mapping[str, Node], pods: Mapping[str, Pod]
) -> dict[str, GpuDevices]:
    """Exporters name a host by its node, by its short name, or by their own pod."""
    short = {name.partition(".")[0]: name for name in nodes}
    found: dict[str, GpuDevices] = {}
    for said, one in devices.items():
        name = said if said in nodes else short.get(said.partition(".")[0], "")
        if not name:  # then the pods that use its GPUs tell where it is
            users = (pods[pod].placed.host for pod in one.pods if pod in pods)
            name = next((host for host in users if host), "")
        if name:
            found[name] = one
    return found


def _wishes(
    pods: Iterable[Pod], warnings: Mapping[str, EventWarning]
) -> tuple[DesiredReplicas, ...]:
    """Pods that exist are what somebody asked for; those without a host say why there is none."""
    found: dict[str, DesiredReplicas] = {}
    for pod in pods:
        placed = pod.placed
        if not pod.chosen or not placed.model or placed.state not in {"running", "pending"}:
            continue
        wish = found.setdefault(placed.model, DesiredReplicas(placed.model, 0, 0, 0))
        waits = placed.state == "pending"
        reason, since = wish.reason, wish.since
        if pod.unplaced:
            warning = warnings.get(placed.id)
            told = warning.message if warning is not None else ""
            reason = reason or told or pod.unplaced
            began = pod.since if pod.since is not None else placed.created_at
            since = began if since is None or (began is not None and began < since) else since
        elif waits and placed.reason:  # placed, and cannot begin: its image, its volumes
            reason = reason or placed.reason
            since = placed.created_at if since is None else since
        found[placed.model] = DesiredReplicas(
            placed.model,
            (wish.desired or 0) + 1,
            (wish.running or 0) + (not waits),
            (wish.pending or 0) + waits,
            reason,
            since,
            max(wish.gpus or 0, pod.gpus) or None,
        )
    return tuple(found.values())


__all__ = ["KubernetesSource"]
