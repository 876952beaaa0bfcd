"""Reads ECS: the hosts of a cluster and the tasks on them.

What ECS calls remaining is what is not *reserved*; it says nothing about load. GPUs are counted
another way: the registered ones less those that tasks hold, because what the remaining set lists is
not documented. A stopped task is described once and then remembered while ECS lists it: its reason
is the only trace that the kernel's OOM killer leaves, and it does not change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from holdfast.sources.aws.calls import AwsCaller, batches
from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.definitions import MIB, Definition, Definitions
from holdfast.sources.aws.machines import epoch

SERVICES_AT_ONCE: Final = 10  # more are refused
TAGS_MAX: Final = 50  # as many as ECS takes
CPU_UNITS: Final = 1_024  # of ECS, for one CPU
KILLED: Final = 137  # 128 + SIGKILL; by itself it may also be an impatient stop
_UNSTARTED: Final = "TaskFailedToStart"
_OOM: Final = "outofmemory"  # in the reason, whatever the spelling of the rest

_STATES: Final = {
    "PROVISIONING": "pending",
    "PENDING": "pending",
    "ACTIVATING": "pending",
    "RUNNING": "running",
    "DEACTIVATING": "stopping",
    "STOPPING": "stopping",
    "DEPROVISIONING": "stopping",
    "STOPPED": "stopped",
    "DELETED": "stopped",
}


@dataclass(slots=True, frozen=True)
class ContainerHost:
    """A host as the ECS cluster reports it."""

    arn: str
    id: str  # of the machine
    kind: str
    zone: str
    status: str  # ACTIVE is the good one
    connected: bool
    joined_at: float | None
    cpus: float | None
    cpus_free: float | None
    memory_bytes: int | None
    reserved_bytes: int | None
    gpu_ids: tuple[str, ...]
    running: int | None
    pending: int | None
    cuda: str
    driver: str


@dataclass(slots=True, frozen=True)
class Task:
    """One task, joined with its task definition."""

    id: str
    tagged: str  # the model that a tag names
    service: str  # empty: started by hand
    state: str
    on: str  # arn of the host in the cluster
    definition: Definition | None
    revision: str
    image: str
    image_asked: str  # in its definition
    gpu_ids: tuple[str, ...]
    address: str  # its own, where it has a network interface
    host_port: int | None  # on its host's address otherwise
    created_at: float | None
    pulled_at: float | None  # its images are there: containers may start, and speak
    started_at: float | None
    stopped_at: float | None
    exit_code: int | None
    oom: bool
    reason: str
    ready: bool | None = None  # by its own health check; None: it has none
    unstarted: bool = False  # ECS gave it up before it ran: its image, its mounts, its network
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def family(self) -> str:
        """The name that all revisions of the task's definition share."""
        return self.revision.partition(":")[0]

    @property
    def runs(self) -> bool:
        """Whether it may serve: it runs, or was told to end and has not ended."""
        return self.state in {"running", "stopping"}

    @property
    def log_stream(self) -> str:
        """The name of the task's log stream, as the awslogs driver builds it."""
        of = self.definition
        if of is None or not of.log_group or not of.log_prefix:
            return ""
        return f"{of.log_prefix}/{of.container}/{self.id}"


def read_registered(caller: AwsCaller, config: AwsConfig) -> dict[str, ContainerHost]:
    """Read the hosts of the cluster, by ARN."""
    listed = caller.items(
        "list_container_instances",
        "containerInstanceArns",
        cluster=config.cluster,
        PaginationConfig={"PageSize": 100},
    )
    found: dict[str, ContainerHost] = {}
    for batch in batches(list(listed)):
        answer = caller.ask(
            "describe_container_instances", cluster=config.cluster, containerInstances=list(batch)
        )
        for told in answer["containerInstances"]:
            found[told["containerInstanceArn"]] = _registered(told, config)
    return found


def _registered(told: dict[str, Any], config: AwsConfig) -> ContainerHost:
    total = {one["name"]: one for one in told.get("registeredResources", ())}
    left = {one["name"]: one for one in told.get("remainingResources", ())}
    attributes = {one["name"]: one.get("value", "") for one in told.get("attributes", ())}
    memory, free = _number(total, "MEMORY"), _number(left, "MEMORY")
    cpus, cpus_free = _number(total, "CPU"), _number(left, "CPU")
    return ContainerHost(
        arn=told["containerInstanceArn"],
        id=told.get("ec2InstanceId") or told["containerInstanceArn"].rpartition("/")[2],
        kind=attributes.get("ecs.instance-type", ""),
        zone=attributes.get("ecs.availability-zone", ""),
        status=told.get("status", ""),
        connected=told.get("agentConnected", True),
        joined_at=epoch(told.get("registeredAt")),
        cpus=None if cpus is None else cpus / CPU_UNITS,
        cpus_free=None if cpus_free is None else cpus_free / CPU_UNITS,
        memory_bytes=None if memory is None else memory * MIB,
        reserved_bytes=None if memory is None or free is None else (memory - free) * MIB,
        gpu_ids=tuple(total.get("GPU", {}).get("stringSetValue", ())),
        running=told.get("runningTasksCount"),
        pending=told.get("pendingTasksCount"),
        cuda=attributes.get(config.cuda_attribute, ""),
        driver=attributes.get(config.driver_attribute, ""),
    )


def _number(resources: dict[str, dict[str, Any]], name: str) -> int | None:
    value = resources.get(name, {}).get("integerValue")
    return value if isinstance(value, int) else None


class Tasks:
    """Reads tasks; caches definitions, and stopped tasks while ECS lists them."""

    def __init__(self, config: AwsConfig) -> None:
        self._config = config
        self._definitions = Definitions(config.definitions_max)
        self._stopped: dict[str, Task] = {}

    def read(self, caller: AwsCaller) -> tuple[Task, ...]:
        """Read all tasks that run, wait, or stopped within about the last hour."""
        alive = self._listed(caller, "RUNNING")
        ended = self._listed(caller, "STOPPED")
        known = {arn: self._stopped[arn] for arn in ended if arn in self._stopped}
        fresh = self._described(caller, [*alive, *(arn for arn in ended if arn not in known)])
        over = {arn: task for arn, task in fresh.items() if task.state == "stopped"}
        self._stopped = known | over
        newest = sorted(self._stopped.values(), key=lambda task: -(task.stopped_at or 0.0))
        living = (task for task in fresh.values() if task.state != "stopped")
        return (*living, *newest[: self._config.stopped_max])

    def _listed(self, caller: AwsCaller, status: str) -> list[str]:
        listed = caller.items(
            "list_tasks",
            "taskArns",
            cluster=self._config.cluster,
            desiredStatus=status,
            PaginationConfig={"PageSize": 100},
        )
        return list(islice(listed, self._config.tasks_max))

    def _described(self, caller: AwsCaller, arns: list[str]) -> dict[str, Task]:
        found: dict[str, Task] = {}
        for batch in batches(arns):
            answer = caller.ask(
                "describe_tasks", cluster=self._config.cluster, tasks=list(batch), include=["TAGS"]
            )
            for told in answer["tasks"]:
                definition = self._definitions.of(caller, told["taskDefinitionArn"])
                found[told["taskArn"]] = _task(told, definition, self._config)
        return found


def _task(told: dict[str, Any], definition: Definition | None, config: AwsConfig) -> Task:
    containers = told.get("containers", [])
    main = _main(containers, definition)
    revision = told["taskDefinitionArn"].rpartition("/")[2]
    state = _STATES.get(told.get("lastStatus", ""), "pending")
    if state == "running" and told.get("desiredStatus") == "STOPPED":
        state = "stopping"
    ports = [one["hostPort"] for one in main.get("networkBindings", ()) if one.get("hostPort")]
    own = [one.get("privateIpv4Address", "") for one in main.get("networkInterfaces", ())]
    exit_code, oom = _ending(containers, main)
    kind, _, name = told.get("group", "").partition(":")
    return Task(
        id=told["taskArn"].rpartition("/")[2],
        tagged=tag_of(told.get("tags", ()), config.model_tag),
        service=name if kind == "service" else "",
        state=state,
        on=told.get("containerInstanceArn", ""),
        definition=definition,
        revision=revision,
        image=_image(main, definition),
        image_asked=_image_asked(main, definition),
        gpu_ids=tuple(gpu for one in containers for gpu in one.get("gpuIds", ())),
        address=own[0] if own else "",
        host_port=ports[0] if ports else None,
        created_at=epoch(told.get("createdAt")),
        pulled_at=epoch(told.get("pullStoppedAt")),
        started_at=epoch(told.get("startedAt")),
        stopped_at=epoch(told.get("stoppedAt")),
        exit_code=exit_code,
        oom=oom,
        reason=_reason(told, containers),
        ready=_ready(told, definition),
        unstarted=state == "stopped" and told.get("stopCode") == _UNSTARTED,
        tags=tuple(sorted(_tags(told.get("tags") or ())))[:TAGS_MAX],
    )


def _main(containers: list[dict[str, Any]], definition: Definition | None) -> dict[str, Any]:
    for one in containers:
        if definition is not None and one.get("name") == definition.container:
            return one
    return containers[0] if containers else {}


def _tags(tags: Iterable[dict[str, str]]) -> Iterator[tuple[str, str]]:
    for one in tags:
        if one.get("key"):
            yield one["key"], one.get("value") or ""


def _ready(told: dict[str, Any], definition: Definition | None) -> bool | None:
    """What its health check says: one that has not passed yet has not; None: nobody checks."""
    status = told.get("healthStatus")
    if status in {"HEALTHY", "UNHEALTHY"}:
        return bool(status == "HEALTHY")
    return False if definition is not None and definition.checked else None


def tag_of(tags: Iterable[dict[str, str]], key: str) -> str:
    """The value of a tag in a list of ECS tags; empty if it is not there."""
    return next((one.get("value", "") for one in tags if one.get("key") == key), "")


def _image_asked(main: dict[str, Any], definition: Definition | None) -> str:
    """As the definition names it: what the next task will be started from."""
    image: str = main.get("image") or (definition.image if definition is not None else "")
    return image


def _image(main: dict[str, Any], definition: Definition | None) -> str:
    """With its digest: a tag may be moved, and then two replicas differ under one name."""
    image = _image_asked(main, definition)
    digest = main.get("imageDigest")
    return f"{image}@{digest}" if digest and "@" not in image else image


def _ending(containers: list[dict[str, Any]], main: dict[str, Any]) -> tuple[int | None, bool]:
    """How the task ended: the container that memory killed speaks for it, else the main one."""
    for one in containers:
        code = one.get("exitCode")
        told = one.get("reason", "").lower().replace(" ", "")
        if _OOM in told and code in {KILLED, None}:
            return code, True
    return main.get("exitCode"), False


def _reason(told: dict[str, Any], containers: list[dict[str, Any]]) -> str:
    texts = [told.get("stoppedReason", ""), *(one.get("reason", "") for one in containers)]
    return "; ".join(dict.fromkeys(text for text in texts if text))[:300]


__all__ = ["SERVICES_AT_ONCE", "ContainerHost", "Task", "Tasks", "read_registered", "tag_of"]
