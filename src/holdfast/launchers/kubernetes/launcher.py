"""The ``Launcher`` port on a Kubernetes cluster: one workload for each replica.

A place is found by making the workload and waiting for its pod: until that runs, its platform's
reason (no node, no image, no right, no server) is why the replica waits. A server that is out of
reach starts nobody and ends nobody; control goes on, and takes over what runs when it is back.
"""

import asyncio
from collections.abc import Callable, Coroutine
from math import ceil
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import structlog

from holdfast.core.deploy.pod_life import (
    LifeBegan,
    LifeEnded,
    LifeLeaving,
    PodEnd,
    PodLife,
    PodSight,
)
from holdfast.core.types import HostCondition
from holdfast.launchers.kubernetes.client import ClusterAccess
from holdfast.launchers.kubernetes.pod_reader import read_pod_sight
from holdfast.launchers.kubernetes.replica_record import ReplicaRecord
from holdfast.launchers.kubernetes.workloads import (
    Workload,
    WorkloadGoneError,
    Workloads,
    refusal,
)
from holdfast.ports import (
    Adopted,
    Ended,
    LaunchError,
    NoRoomError,
    Order,
    Place,
    PlaceRequest,
    UnreadableError,
    Watcher,
)

KUBERNETES: Final = "kubernetes"  # the name of this platform in orders and in the fleet file
FIRST_S: Final = 10.0  # a control that begins waits so long for its cluster, then goes on without
PLACE_S: Final = 10.0  # a pod whose image is there runs sooner; then its reason to wait is told
START_S: Final = 120.0  # a start without a place before it waits so long
BEYOND_S: Final = 25.0  # a kubelet that does not tell of an end by then is out of reach
ORPHAN_S: Final = 300.0  # what an earlier control made and nobody asks for by then is removed
NOTE_S: Final = 2.0  # to keep an end in the cluster, before it is told in any case
LAST_LINES_S: Final = 3.0  # a node sends the rest of a log at once
_CLOSE_GRACE_S: Final = 5.0
_CLOSE_S: Final = 60.0  # for all to end; what has not by then is left to the next control
_AGAIN_S: Final = 1.0  # before the API server is asked again, doubled up to the next
_AGAIN_MAX_S: Final = 30.0
_ANY: Final = "0.0.0.0"  # noqa: S104 of a pod's own network
_UNSEEN: Final = "it was stopped, and how it ended was not seen"

_log = structlog.get_logger("holdfast.launcher.kubernetes")


class KubernetesLauncher:
    """Starts replicas as workloads of a cluster, watches their pods and stops them."""

    def __init__(self, cluster: ClusterAccess, workloads: Workloads, directory: Path) -> None:
        self._cluster = cluster
        self._workloads = workloads
        self._directory = directory
        self._watcher: Watcher | None = None
        self._records: dict[str, ReplicaRecord] = {}
        self._busy: set[str] = set()  # starts that go on
        self._news = asyncio.Event()  # of pods; another after each
        self._pods = cluster.watch_pods(
            workloads.pods_path, workloads.selector, read_pod_sight, self._look
        )
        self._nodes = cluster.watch_nodes(self._see_nodes)
        self._told: dict[str, HostCondition] = {}  # of nodes, what the watcher knows
        self._ready = asyncio.Event()
        self._why_down = "the API server was not asked yet"
        self._first: list[Adopted] | None = []  # until the first adoption is over
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writes: set[asyncio.Task[Any]] = set()  # of the tasks, those that a close waits for

    # --- the port --------------------------------------------------------------------------------

    async def adopt(self, watcher: Watcher) -> list[Adopted]:
        """Take over the workloads of this owner; a cluster out of reach is adopted later."""
        assert self._watcher is None, "adopt is called once"
        self._watcher = watcher
        for job in (self._pods.run(), self._nodes.run(), self._greet()):
            self._begin(job)
        try:
            async with asyncio.timeout(FIRST_S):
                await self._ready.wait()
        except TimeoutError:
            _log.error("the Kubernetes cluster is not reached yet", reason=self._why_down)
        adopted, self._first = self._first or [], None
        return adopted

    def places(self, on: str) -> bool:
        """Whether replicas of this platform get their place here."""
        return on == KUBERNETES

    async def place(self, on: str, request: PlaceRequest) -> Place:
        """Make the replica's workload, and wait a while for its pod to run."""
        assert self.places(on), "others have their own launcher"
        if request.order is None:
            raise LaunchError(f"replica {request.replica_id!r} has no order to make a pod of")
        return await self._find_place(request.order, request.zone, PLACE_S)

    async def start(self, order: Order) -> int:
        """Take a replica's pod over, once it runs; its workload is made where there is none."""
        assert self._watcher is not None, "adopt comes first"
        name = order.replica_id
        record = self._records.get(name)
        if name in self._busy or (record is not None and record.pid is not None):
            raise LaunchError(f"replica {name!r} runs already; stop it first")
        if not order.command:
            raise LaunchError(f"replica {name!r} has no command to run")
        self._busy.add(name)
        try:
            await self._find_place(order, "", START_S)
            record = self._records[name]
            record.last_pid = None
            record.lives.begin()
            self._look_at(name)  # which may find its process
            pid = self._records[name].last_pid
            if pid is None:
                record.lives.give_up()
                raise LaunchError(f"the pod of replica {name!r} was taken away just now")
        finally:
            self._busy.discard(name)
        return pid

    async def stop(self, replica_id: str, grace_s: float) -> Ended | None:
        """Put a replica's workload to sleep and its pod to an end, with this grace."""
        record = self._records.get(replica_id)
        if record is None or (record.workload.replicas == 0 and record.pid is None):
            return None
        runs, done = record.pid is not None, record.done
        record.lives.end()
        await self._until_done(lambda: self._put_to_sleep(record, grace_s), replica_id)
        if not runs:
            return None
        try:
            async with asyncio.timeout(grace_s + BEYOND_S):
                await done.wait()
        except TimeoutError:
            told = "stopped as asked; its node does not say that it has ended"
            life = record.lives.running
            record.lives.give_up()
            await self._finish(record, life, Ended(None, None, oom=False, reason=told, asked=True))
        return record.ended

    def pid(self, replica_id: str) -> int | None:
        """A number for the life of a replica's container, which is no pid of any host here."""
        record = self._records.get(replica_id)
        return record.pid if record is not None else None

    def log_path(self, replica_id: str) -> Path | None:
        """The copy of a replica's log on control's host."""
        path = self._folder(replica_id) / "output.log"
        return path if path.exists() else None

    def forget(self, replica_id: str) -> None:
        """Remove the workload of a replica that ended, and the copy of its log."""
        record = self._records.get(replica_id)
        if replica_id in self._busy or (record is not None and record.pid is not None):
            return
        for path in self._folder(replica_id).glob("output.log*"):
            path.unlink(missing_ok=True)
        if record is not None:
            del self._records[replica_id]
            workload = record.workload
            removal = self._until_done(lambda: self._workloads.remove(workload), replica_id)
            self._writes.add(self._begin(removal))

    async def close(self, *, leave_running: bool) -> None:
        """Stop watching; the workloads run on to be adopted, or are put to sleep first."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                if not leave_running:
                    stops = (self.stop(name, _CLOSE_GRACE_S) for name in list(self._records))
                    await asyncio.gather(*stops)
                await asyncio.gather(*self._writes)
        except (TimeoutError, LaunchError) as error:
            _log.error("not all is ended; the next control finds it", reason=str(error))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for record in self._records.values():
            await record.close()
        self._records.clear()
        await self._cluster.api.close()

    # --- places ----------------------------------------------------------------------------------

    async def _find_place(self, order: Order, zone: str, patience_s: float) -> Place:
        waits = f"the API server is not reached: {self._why_down}"
        try:
            async with asyncio.timeout(patience_s):
                await self._ready.wait()
                record = await self._awake(order, zone)
                waits = ""
                while True:
                    news = self._news
                    if record.pid is not None:
                        raise LaunchError(f"replica {order.replica_id!r} runs already")
                    pod = record.lives.next_life(self._pods_of(order.replica_id))
                    if pod is not None and pod.address:
                        return _place_of(pod, order.port)
                    await self._freshen(record)
                    await news.wait()
        except TimeoutError:
            raise NoRoomError(waits or self._why_waits(order.replica_id)) from None

    async def _awake(self, order: Order, zone: str) -> ReplicaRecord:
        """The record of a replica whose workload is there and has one replica."""
        name = order.replica_id
        record = self._records.get(name)
        try:
            if record is not None and (record.workload.replicas == 0 or record.workload.ended):
                await self._workloads.wake(record.workload)
        except WorkloadGoneError:
            record = None  # somebody removed it: it is made again
        except UnreadableError as error:
            raise refusal(error, f"wake the workload of {name}") from error
        if record is None:
            made = await self._workloads.create(order, zone)
            record = self._records[name] = self._record(made)
            if made.replicas == 0 or made.ended:
                await self._awake(order, zone)
        record.asked_for = True
        return record

    async def _freshen(self, record: ReplicaRecord) -> None:
        """Replace a pod whose kubelet waits longer and longer: control has its own pace."""
        for pod in self._pods_of(record.name):
            if pod.backs_off and not pod.leaving and pod.uid not in record.freshened:
                record.freshened = {pod.uid}
                try:
                    await self._workloads.delete_pod(pod.name, pod.uid, 1)
                except UnreadableError as error:
                    _log.info("pod not replaced", pod=pod.name, reason=str(error))

    def _why_waits(self, replica_id: str) -> str:
        pods = [pod for pod in self._pods_of(replica_id) if not pod.leaving]
        reasons = [pod.waits for pod in pods if pod.waits]
        if reasons:
            return reasons[0]
        return "its pod is being started" if pods else "Kubernetes has made no pod for it yet"

    def _pods_of(self, replica_id: str) -> list[PodSight]:
        return [pod for pod in self._pods.rows.values() if pod.replica == replica_id]

    async def _put_to_sleep(self, record: ReplicaRecord, grace_s: float) -> None:
        try:
            if record.workload.replicas:
                await self._workloads.sleep(record.workload)
        except WorkloadGoneError:
            record.workload.replicas = 0
        for pod in self._pods_of(record.name):
            await self._workloads.delete_pod(pod.name, pod.uid, max(1, ceil(grace_s)))

    async def _until_done(
        self, write: Callable[[], Coroutine[Any, Any, None]], replica_id: str
    ) -> None:
        """Write until the API server takes it: what was decided must come to pass."""
        wait_s = _AGAIN_S
        while True:
            try:
                await write()
            except UnreadableError as error:
                _log.warning("not written yet", replica=replica_id, reason=str(error))
            else:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _AGAIN_MAX_S)

    # --- adoption --------------------------------------------------------------------------------

    async def _greet(self) -> None:
        """Read what an earlier control left, as soon as the API server can be asked."""
        wait_s = _AGAIN_S
        while True:
            try:
                found = await self._workloads.owned()
                break
            except UnreadableError as error:
                self._why_down = str(error)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _AGAIN_MAX_S)
        while not self._pods.listed:
            self._why_down = self._pods.error or "its pods were not listed yet"
            await self._news.wait()
        for workload in found:
            self._take_over(workload)
        self._ready.set()
        await asyncio.sleep(ORPHAN_S)
        for name, record in list(self._records.items()):
            if not record.asked_for and record.pid is None and record.workload.replicas:
                _log.warning("nobody asks for it: it is removed", replica=name)
                self.forget(name)

    def _take_over(self, workload: Workload) -> None:
        watcher, name = self._watcher, workload.order.replica_id
        assert watcher is not None, "adopt comes first"
        record = self._records[name] = self._record(workload)
        if workload.ended is not None:
            record.lives.last, record.ended = workload.ended
            self._tell(watcher.ended, name, workload.ended[1])
            return
        if workload.replicas == 0:
            self._tell(
                watcher.ended, name, Ended(None, None, oom=False, reason=_UNSEEN, asked=True)
            )
            return
        pod = record.lives.next_life(self._pods_of(name))
        if pod is None or not pod.running:
            return  # it waits for its pod: whoever wants it asks for a start
        record.lives.begin()
        (began, *rest) = record.lives.take(self._pods_of(name))
        assert isinstance(began, LifeBegan), "a pod that runs is a life"
        record.begin(began, self._cluster.api, self._workloads.pods_path, watcher, known=True)
        record.asked_for = True
        place = _place_of(pod, workload.order.port)
        assert record.pid is not None, "it has begun"
        if self._first is not None:
            self._first.append(Adopted(workload.order, record.pid, pod.began_at or 0.0, place))
        else:  # control began without its cluster and waits for this one to start
            self._tell(watcher.started, name, record.pid)
        for news in rest:
            self._hear(record, news)

    def _record(self, workload: Workload) -> ReplicaRecord:
        return ReplicaRecord(workload, self._folder(workload.order.replica_id), self._tell)

    # --- what the watches tell -------------------------------------------------------------------

    def _look(self) -> None:
        """Pods have changed: compare each replica with them."""
        for name in list(self._records):
            self._look_at(name)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _look_at(self, name: str) -> None:
        record = self._records.get(name)
        if record is not None and self._pods.listed:
            for news in record.lives.take(self._pods_of(name)):
                self._hear(record, news)

    def _hear(self, record: ReplicaRecord, news: LifeBegan | LifeEnded | LifeLeaving) -> None:
        watcher = self._watcher
        assert watcher is not None, "adopt comes first"
        if isinstance(news, LifeBegan):
            record.begin(news, self._cluster.api, self._workloads.pods_path, watcher)
            self._tell(watcher.started, record.name, record.pid)
        elif isinstance(news, LifeLeaving):
            self._begin(self._leave(record, news.reason))
        else:
            self._begin(self._finish(record, news.life, _ended(news.end, asked=news.asked)))

    async def _leave(self, record: ReplicaRecord, reason: str) -> None:
        """Its pod was told to end by somebody: control drains it, and no other pod is made."""
        assert self._watcher is not None, "adopt comes first"
        self._tell(self._watcher.leaving, record.name, reason)
        try:
            await self._workloads.sleep(record.workload)
        except (UnreadableError, WorkloadGoneError) as error:
            _log.info("workload not put to sleep", replica=record.name, reason=str(error))

    async def _finish(self, record: ReplicaRecord, life: PodLife | None, ended: Ended) -> None:
        """Tell of an end: after the last line of its log, and once it is kept on the workload."""
        if record.pid is None or record.ending:
            return
        record.ending = True
        await record.last_lines(LAST_LINES_S)
        try:
            async with asyncio.timeout(NOTE_S):
                await self._workloads.note_end(record.workload, life, ended)
        except (TimeoutError, UnreadableError, WorkloadGoneError) as error:
            _log.info("end not kept in the cluster", replica=record.name, reason=str(error))
        assert self._watcher is not None, "adopt comes first"
        record.finish(ended)
        self._tell(self._watcher.ended, record.name, ended)
        record.done.set()

    def _see_nodes(self) -> None:
        """Tell of nodes that are lost, leave, or are well again; drain who runs on a leaver."""
        watcher = self._watcher
        if watcher is None:
            return
        rows = self._nodes.rows
        for host, node in rows.items():
            if node.condition is None:
                continue
            before = self._told.get(host, HostCondition.READY)
            self._told[host] = node.condition
            if node.condition is not before:
                self._tell(watcher.host_seen, host, node.condition, node.reason)
        self._told = {host: one for host, one in self._told.items() if host in rows}
        for name, record in list(self._records.items()):
            leaves = self._told.get(record.node) is HostCondition.LEAVING
            if leaves and record.pid is not None and not record.leaving:
                record.leaving = True
                told = f"its node {record.node} is being emptied: {rows[record.node].reason}"
                self._tell(watcher.leaving, name, told)

    # --- small things ----------------------------------------------------------------------------

    def _begin(self, job: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._writes.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("launcher's job failed", exc_info=task.exception())

    def _tell(self, tell: Callable[..., None], *news: object) -> None:
        """What the watcher does with news is its own affair: one failure must not end the watch."""
        try:
            tell(*news)
        except Exception:  # noqa: BLE001 see above
            _log.exception("the watcher failed", about=news[0])

    def _folder(self, replica_id: str) -> Path:
        return self._directory / quote(replica_id, safe="").replace(".", "%2E")


def _place_of(pod: PodSight, port: int) -> Place:
    return Place(pod.address, port, pod.node, reason="chosen by its scheduler", listen=_ANY)


def _ended(end: PodEnd, *, asked: bool) -> Ended:
    told = f"stopped as asked; {end.reason}" if asked else end.reason
    return Ended(
        end.code, end.signal, end.oom, told, asked=asked and not end.oom, host_lost=end.host_lost
    )


__all__ = ["KUBERNETES", "KubernetesLauncher"]
