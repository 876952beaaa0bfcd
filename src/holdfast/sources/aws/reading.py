"""Joins the answers of the AWS services into rows: one machine in three services is one host.

Pure: takes the last answers, returns a reading. A service that never answered (``None``) leaves
only its own columns unknown; an empty answer is an answer.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.gpu import GpuDevice, GpuUse
from holdfast.core.types import HostCondition
from holdfast.core.view.layers import DesiredReplicas, Group, Host, Part, Placed, Queue, Reading
from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.definitions import MIB
from holdfast.sources.aws.disks import FileSystem, disk_of
from holdfast.sources.aws.gpus import device_of_host, use_of_task
from holdfast.sources.aws.logs import Heard, LogStream
from holdfast.sources.aws.machines import GroupMember, Groups, Machine
from holdfast.sources.aws.metrics import Metrics
from holdfast.sources.aws.queues import QueueTable
from holdfast.sources.aws.services import UNSTEADY, Service
from holdfast.sources.aws.tasks import ContainerHost, Task

TASK_DEFINITION: Final = "task-definition"  # beside its tags: what ECS tells versions apart by


@dataclass(slots=True)
class AwsAnswers:
    """The last good answer of each part of the source."""

    groups: Groups | None = None
    machines: dict[str, Machine] | None = None
    registered: dict[str, ContainerHost] | None = None  # by arn
    tasks: tuple[Task, ...] | None = None
    services: tuple[Service, ...] | None = None
    queues: QueueTable | None = None
    filesystems: dict[str, FileSystem] | None = None
    metrics: Metrics = field(default_factory=dict)
    heard: Heard = field(default_factory=dict)

    def host_ids(self) -> set[str]:
        """Ids of all machines, in groups or in the cluster."""
        members = self.groups.members if self.groups is not None else ()
        registered = (self.registered or {}).values()
        return {one.id for one in members} | {one.id for one in registered}

    def streams(self) -> Iterator[LogStream]:
        """Log streams of all tasks whose containers can have started.

        A task that waits for its own health check counts as pending, and loads all the while.
        """
        for task in self.tasks or ():
            stream = stream_of(task)
            if stream is not None and (task.pulled_at or task.started_at or stream.ended):
                yield stream

    def disks(self, named: Collection[str]) -> list[FileSystem]:
        """Ids of the filesystems that tasks mount, and of those that the config names."""
        of = (task.definition for task in self.tasks or ())
        wanted = {one.filesystem for one in of if one is not None} | set(named)
        return [one for one in (self.filesystems or {}).values() if one.id in wanted]


def stream_of(task: Task) -> LogStream | None:
    """The log stream of a task; None if it does not log to CloudWatch."""
    name = task.log_stream
    if not name or task.definition is None:
        return None
    return LogStream(task.definition.log_group, name, ended=task.state == "stopped")


def reading_of(
    source: str,
    now: float,
    parts: tuple[Part, ...],
    seen: AwsAnswers,
    config: AwsConfig,
    notes: tuple[str, ...] = (),
) -> Reading:
    """Build the whole reading from the answers."""
    return Reading(
        source=source,
        kind="aws",
        at=now,
        parts=parts,
        groups=_groups(seen),
        hosts=tuple(_hosts(seen)),
        placed=tuple(_placed(seen)),
        queues=tuple(_queues(seen)),
        disks=tuple(disk_of(one, seen.metrics) for one in seen.disks(config.filesystems)),
        wishes=tuple(_wishes(seen)),
        notes=notes,
    )


def _groups(seen: AwsAnswers) -> tuple[Group, ...]:
    return seen.groups.groups if seen.groups is not None else ()


# --- hosts ----------------------------------------------------------------------------------------


def _hosts(seen: AwsAnswers) -> Iterator[Host]:
    members = {one.id: one for one in seen.groups.members} if seen.groups is not None else {}
    registered = {one.id: one for one in (seen.registered or {}).values()}
    held = _gpus_held(seen)
    order = sorted(members.keys() | registered.keys(), key=lambda one: (_group(members, one), one))
    for host in order:
        member, joined = members.get(host), registered.get(host)
        machine = (seen.machines or {}).get(host)
        said = [one for one in (machine, member, joined) if one is not None]
        free = None
        if joined is not None and seen.tasks is not None:
            free = max(0, len(joined.gpu_ids) - held.get(joined.arn, 0))
        condition, reason = _condition(machine, joined)
        yield Host(
            id=host,
            group=_group(members, host),
            kind=next((one.kind for one in said if one.kind), ""),
            market=machine.market if machine is not None else "",
            zone=next((one.zone for one in said if one.zone), ""),
            state=_state(seen, member, machine, joined),
            launched_at=machine.launched_at if machine is not None else None,
            joined_at=joined.joined_at if joined is not None else None,
            cpus=joined.cpus if joined is not None else None,
            cpus_free=joined.cpus_free if joined is not None else None,
            memory_bytes=joined.memory_bytes if joined is not None else None,
            reserved_bytes=joined.reserved_bytes if joined is not None else None,
            gpus=len(joined.gpu_ids) if joined is not None else None,
            gpus_free=free,
            running=joined.running if joined is not None else None,
            pending=joined.pending if joined is not None else None,
            cuda=joined.cuda if joined is not None else "",
            driver=joined.driver if joined is not None else "",
            condition=condition,
            condition_reason=reason,
            devices=_devices(seen, joined),
        )


def _devices(seen: AwsAnswers, joined: ContainerHost | None) -> tuple[GpuDevice, ...]:
    return device_of_host(joined.id, joined.gpu_ids, seen.metrics) if joined is not None else ()


def _gpu_use(seen: AwsAnswers, task: Task, joined: ContainerHost | None) -> GpuUse | None:
    """What a running task has of its host's GPU, where that is published."""
    if task.state != "running" or not task.gpu_ids:
        return None
    mine = set(task.gpu_ids)
    others = sum(
        one is not task and one.state != "stopped" and not mine.isdisjoint(one.gpu_ids)
        for one in seen.tasks or ()
    )
    return use_of_task(task.gpu_ids, _devices(seen, joined), others)


def _group(members: dict[str, GroupMember], host: str) -> str:
    member = members.get(host)
    return member.group if member is not None else ""


def _gpus_held(seen: AwsAnswers) -> dict[str, int]:
    """By host: GPUs of tasks that have not ended. One not told yet counts as asked for."""
    ids: dict[str, set[str]] = {}
    unnamed: dict[str, int] = {}
    for task in seen.tasks or ():
        if task.state == "stopped" or not task.on:
            continue
        if task.gpu_ids:
            ids.setdefault(task.on, set()).update(task.gpu_ids)
        elif task.definition is not None and task.definition.gpus:
            unnamed[task.on] = unnamed.get(task.on, 0) + task.definition.gpus
    return {on: len(ids.get(on, ())) + unnamed.get(on, 0) for on in ids.keys() | unnamed.keys()}


def _state(
    seen: AwsAnswers,
    member: GroupMember | None,
    machine: Machine | None,
    joined: ContainerHost | None,
) -> str:
    """What is not as it should be, by each service that has a say; empty: nothing."""
    wrong: list[str] = []
    in_service = member is None or member.lifecycle == "InService"
    if member is not None and not in_service:
        wrong.append(member.lifecycle)
    if member is not None and not member.healthy:
        wrong.append("unhealthy")
    if machine is not None and machine.state not in {"running", ""}:
        wrong.append(machine.state)
    if joined is not None and joined.status != "ACTIVE":
        wrong.append(joined.status.lower())
    if joined is not None and not joined.connected:
        wrong.append("agent not connected")
    if joined is None and seen.registered is not None and in_service:
        wrong.append("not in the cluster")
    return ", ".join(wrong)


def _condition(
    machine: Machine | None, joined: ContainerHost | None
) -> tuple[HostCondition | None, str]:
    """Whether it can run tasks, and why not; None: it is in no cluster, or nobody could ask."""
    if joined is not None and not joined.connected:
        return HostCondition.UNREACHABLE, "its ECS agent is not connected"
    if machine is not None and machine.state not in {"running", "pending", ""}:
        return HostCondition.LEAVING, f"its instance is {machine.state}"
    if joined is None:
        return None, ""
    if joined.status == "DRAINING":
        return HostCondition.LEAVING, "its container instance is draining"
    return (HostCondition.READY, "") if joined.status == "ACTIVE" else (None, "")


# --- replicas -------------------------------------------------------------------------------------


def _placed(seen: AwsAnswers) -> Iterator[Placed]:
    services = {one.name: one.model for one in seen.services or ()}
    for task in seen.tasks or ():
        of = task.definition
        stream = stream_of(task)
        words = seen.heard.get(stream) if stream is not None else None
        joined = (seen.registered or {}).get(task.on)
        model = task.tagged or services.get(task.service) or task.service or task.family
        address, port = _listens(seen, task, joined)
        use = _gpu_use(seen, task, joined)
        yield Placed(
            id=task.id,
            model=model,
            state=task.state,
            host=joined.id if joined is not None else "",
            revision=task.revision,
            endpoint=f"http://{address}:{port}" if address and port is not None else "",
            address=address,
            # On its own address the rule names the port; on its host's only ECS knows which.
            port_said="" if task.address or port is None else str(port),
            labels=(*task.tags, (TASK_DEFINITION, task.revision)),
            uid=task.id,
            needs_gpu=None if of is None else of.gpus > 0,
            gpus=len(task.gpu_ids) or (None if of is None else of.gpus),
            reserved_bytes=None if of is None else of.reserved_bytes,
            limit_bytes=None if of is None else of.limit_bytes,
            used_bytes=_used(seen, task, words.used_bytes if words is not None else None),
            filesystem="" if of is None else of.filesystem,
            log_stream=stream.name if stream is not None else "",
            image=task.image,
            image_asked=task.image_asked,
            created_at=task.created_at,
            started_at=task.started_at,
            stopped_at=task.stopped_at,
            exit_code=task.exit_code,
            oom=task.oom,
            reason=task.reason,
            ready=task.ready,
            phase=words.phase if words is not None else "",
            spoke_at=words.spoke_at if words is not None else None,
            read_bytes=words.read_bytes if words is not None else None,
            gpu=use,
            devices=task.gpu_ids if use is not None else (),
        )


def _used(seen: AwsAnswers, task: Task, told: int | None) -> int | None:
    """Measured by Container Insights, as a mean of the service; else what it says of itself."""
    measured = seen.metrics.get((task.service, "MemoryUtilized"))
    if measured is None or task.state != "running":
        return told
    return int(measured * MIB)


def _listens(seen: AwsAnswers, task: Task, joined: ContainerHost | None) -> tuple[str, int | None]:
    """Its address and port: its own, or its host's with the port that was opened there."""
    if task.address:
        return task.address, task.definition.port if task.definition is not None else None
    machine = (seen.machines or {}).get(joined.id) if joined is not None else None
    return (machine.address if machine is not None else ""), task.host_port


# --- demand ---------------------------------------------------------------------------------------


def _queues(seen: AwsAnswers) -> Iterator[Queue]:
    table = seen.queues
    if table is None:
        return
    for name in sorted(table.models):
        queue = table.counted[name]
        counts = (queue.visible, queue.in_flight, queue.delayed)
        if table.by_metrics:
            counts = _from_metrics(seen.metrics, name)
        dead = queue.dead_letter_queue
        yield Queue(
            name=name,
            model=table.models[name],
            visible=counts[0],
            in_flight=counts[1],
            delayed=counts[2],
            dead_letters=_dead_letters(seen, table, dead) if dead else None,
            dead_letter_queue=dead,
            oldest_s=seen.metrics.get((name, "ApproximateAgeOfOldestMessage")),
        )


def _dead_letters(seen: AwsAnswers, table: QueueTable, name: str) -> int | None:
    if not table.by_metrics:
        return table.depth(name)
    counts = [count for count in _from_metrics(seen.metrics, name) if count is not None]
    return sum(counts) if counts else None


def _from_metrics(metrics: Metrics, name: str) -> tuple[int | None, int | None, int | None]:
    def count(metric: str) -> int | None:
        value = metrics.get((name, metric))
        return None if value is None else int(value)

    return (
        count("ApproximateNumberOfMessagesVisible"),
        count("ApproximateNumberOfMessagesNotVisible"),
        count("ApproximateNumberOfMessagesDelayed"),
    )


def _wishes(seen: AwsAnswers) -> Iterator[DesiredReplicas]:
    """One for each model; a model may have several services, as during a migration."""
    by_model: dict[str, list[Service]] = {}
    for service in seen.services or ():
        by_model.setdefault(service.model, []).append(service)
    for model, services in sorted(by_model.items()):
        reason, since = _hindrance(seen, services)
        yield DesiredReplicas(
            model=model,
            desired=_sum([one.desired for one in services]),
            running=_sum([one.running for one in services]),
            pending=_sum([one.pending for one in services]),
            reason=reason,
            since=since,
        )


def _hindrance(seen: AwsAnswers, services: list[Service]) -> tuple[str, float | None]:
    """Why services run fewer tasks than they want, and since when; empty: nothing is known.

    A task that fits nowhere shows in the events of its service alone. One that was placed and
    could not begin says itself why: its service only counts such failures.
    """
    stuck = next((one for one in services if one.reason), services[0])
    reason, since = _unstarted(seen, {one.name for one in services})
    if not reason or (stuck.reason and UNSTEADY not in stuck.reason):
        return stuck.reason, stuck.since
    known = [at for at in (since, stuck.since) if at is not None]
    return reason, min(known, default=None)


def _unstarted(seen: AwsAnswers, services: Collection[str]) -> tuple[str, float | None]:
    """Why the newest tasks of these services never ran, and since when; empty: the newest did."""
    tasks = [task for task in seen.tasks or () if task.service in services]
    reason, since = "", None
    for task in sorted(tasks, key=lambda one: one.created_at or 0.0, reverse=True):
        if task.started_at is not None:
            break
        if task.unstarted:
            reason, since = reason or task.reason, task.created_at or since
    return reason, since


def _sum(counts: list[int | None]) -> int | None:
    known = [one for one in counts if one is not None]
    return sum(known) if known else None


__all__ = ["AwsAnswers", "reading_of", "stream_of"]
