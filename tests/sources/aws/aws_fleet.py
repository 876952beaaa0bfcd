"""A fleet of inference replicas in a fake AWS account: what a joined view has to show.

``build`` makes groups, hosts, tasks, queues, a filesystem, metrics and logs out of one ``Plan``.
Whatever AWS's own agents would report, and moto therefore does not know, is written into its models
at the end, in ``settle``: what hosts have and have left, who holds which GPU, when tasks started.
"""

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from aws_front import ACCOUNT, REGION, FakeAws
from moto.ec2.models import ec2_backends
from moto.ecs.models import ecs_backends
from moto.logs.models import logs_backends

MIB = 1 << 20
PIPE_S = 2.0  # from the writing of a line until it can be read
LAUNCHED_S = 3 * 86_400
MINUTES = 40  # of filesystem metrics
DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True)
class GroupPlan:
    name: str
    kind: str
    hosts: int
    cpus: int
    memory_mib: int  # as the agent registers it, without the kernel's share
    gpus: int = 0
    spot: bool = False
    cuda: str = ""
    driver: str = ""
    most: int = 8


@dataclass(frozen=True)
class ModelPlan:
    name: str
    group: str
    tasks: int
    cpus: int
    reserved_mib: int
    limit_mib: int
    gpus: int = 0
    waiting: int = 10  # messages, of which three are being worked on
    dead: int = 0
    used_mib: int | None = 9_000  # by Container Insights
    oldest_s: float | None = None
    wished: int | None = None  # of the service; None: as many as there are
    host_port: int | None = None


@dataclass(frozen=True)
class Plan:
    cluster: str
    groups: tuple[GroupPlan, ...]
    models: tuple[ModelPlan, ...]
    queue_prefix: str = ""

    @property
    def log_group(self):
        return f"/ecs/{self.cluster}"


MARIGOLD = Plan(
    cluster="marigold",
    groups=(
        GroupPlan(
            "marigold-gpu-large", "g5.4xlarge", 3, 16, 63_417, 1, cuda="12.1", driver="535.183"
        ),
        GroupPlan(
            "marigold-gpu-small",
            "g4dn.2xlarge",
            2,
            8,
            31_738,
            1,
            spot=True,
            cuda="11.8",
            driver="520.61",
        ),
        GroupPlan("marigold-cpu", "r5.xlarge", 2, 4, 31_612),
        GroupPlan(
            "marigold-test",
            "g4dn.xlarge",
            1,
            4,
            15_574,
            1,
            spot=True,
            cuda="12.1",
            driver="535.183",
        ),
    ),
    models=(
        ModelPlan("llm-70b", "marigold-gpu-large", 2, 8, 16_000, 48_000, gpus=1, wished=4),
        ModelPlan("llm-8b", "marigold-gpu-small", 2, 4, 14_000, 28_000, gpus=1, host_port=8_000),
        ModelPlan("bge-embed", "marigold-cpu", 2, 1, 4_096, 8_192),
        ModelPlan(
            "parler-tts",
            "marigold-cpu",
            2,
            1,
            1_024,
            1_024,
            waiting=41,
            dead=1,
            used_mib=3_600,
            oldest_s=840.0,
        ),
    ),
)

LARGE = Plan(
    cluster="large",
    groups=(GroupPlan("large-gpu", "g5.12xlarge", 40, 48, 190_000, 5, most=60),),
    models=tuple(
        ModelPlan(f"large-{number:02d}", "large-gpu", 10, 1, 8_000, 16_000, gpus=1, waiting=4)
        for number in range(20)
    ),
    queue_prefix="large-",
)


@dataclass
class Fleet:
    """What was built, by the names that AWS gave it."""

    plan: Plan
    began: float
    hosts: dict[str, list[str]] = field(default_factory=dict)  # by group
    joined: dict[str, object] = field(default_factory=dict)  # by host: as the cluster knows it
    tasks: dict[str, list[object]] = field(default_factory=dict)  # by model
    filesystem: str = ""

    def stream(self, task, model):
        return f"{model}/{model}/{task.id}"


def build(aws: FakeAws, plan: Plan) -> Fleet:
    fleet = Fleet(plan, began=time.time())
    aws.client("ecs").create_cluster(clusterName=plan.cluster)
    aws.client("logs").create_log_group(logGroupName=plan.log_group)
    _machines(aws, fleet)
    _filesystem(aws, fleet)
    _models(aws, fleet)
    _queues(aws, fleet)
    _metrics(aws, fleet)
    settle(fleet)
    return fleet


# --- what is asked of AWS -------------------------------------------------------------------------


def _machines(aws, fleet):
    ec2, scaling = aws.client("ec2"), aws.client("autoscaling")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20", AvailabilityZone=f"{REGION}a")[
        "Subnet"
    ]["SubnetId"]
    image = next(iter(ec2_backends[ACCOUNT][REGION].amis))  # a list of them by HTTP takes seconds
    for group in fleet.plan.groups:
        ec2.create_launch_template(
            LaunchTemplateName=group.name,
            LaunchTemplateData={"ImageId": image, "InstanceType": group.kind},
        )
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=group.name,
            MinSize=0,
            MaxSize=group.most,
            DesiredCapacity=group.hosts,
            VPCZoneIdentifier=subnet,
            LaunchTemplate={"LaunchTemplateName": group.name, "Version": "$Latest"},
            Tags=[{"Key": "fleet", "Value": fleet.plan.cluster, "PropagateAtLaunch": True}],
        )
        told = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group.name])
        members = told["AutoScalingGroups"][0]["Instances"]
        fleet.hosts[group.name] = [member["InstanceId"] for member in members]
        for host in fleet.hosts[group.name]:
            fleet.joined[host] = _cluster().register_container_instance(fleet.plan.cluster, host)


def _filesystem(aws, fleet):
    made = aws.client("efs").create_file_system(
        CreationToken=fleet.plan.cluster, ThroughputMode="bursting"
    )
    fleet.filesystem = made["FileSystemId"]


def _models(aws, fleet):
    plan, ecs = fleet.plan, aws.client("ecs")
    for model in plan.models:
        container = {
            "name": model.name,
            "image": f"registry/{model.name}:v1",
            "cpu": model.cpus * 1_024,
            "memoryReservation": model.reserved_mib,
            "memory": model.limit_mib,
            "essential": True,
            "logConfiguration": {
                "logDriver": "awslogs",
                "options": {
                    "awslogs-group": plan.log_group,
                    "awslogs-stream-prefix": model.name,
                    "awslogs-region": REGION,
                },
            },
        }
        if model.gpus:
            container["resourceRequirements"] = [{"type": "GPU", "value": str(model.gpus)}]
        ecs.register_task_definition(
            family=model.name,
            containerDefinitions=[container],
            volumes=[{"name": "w", "efsVolumeConfiguration": {"fileSystemId": fleet.filesystem}}],
        )
        ecs.create_service(
            cluster=plan.cluster,
            serviceName=model.name,
            taskDefinition=model.name,
            desiredCount=model.tasks,
        )
        hosts = fleet.hosts[model.group]
        shift = plan.models.index(model) * model.tasks if len(hosts) > model.tasks else 0
        for number in range(model.tasks):
            start(fleet, model, hosts[(shift + number) % len(hosts)])


def start(fleet, model, host):
    """One more task of a model, on a host."""
    plan = fleet.plan
    (task,) = _cluster().start_task(
        plan.cluster,
        model.name,
        [fleet.joined[host].container_instance_arn],
        {},
        "ecs-svc/1",
        [],
        f"service:{model.name}",
    )
    fleet.tasks.setdefault(model.name, []).append(task)
    group = _logs().groups[plan.log_group]
    group.create_log_stream(fleet.stream(task, model.name))
    say(fleet, model.name, task, 900, {"phase": "loading", "pct": 0})
    say(fleet, model.name, task, 600, {"phase": "loaded"})
    say(fleet, model.name, task, 5, {"phase": "heartbeat", "rss_mb": 900})
    return task


def say(fleet, model, task, ago_s, line, delay_s=PIPE_S):
    """A line of a task's log, as the pipe delivers it."""
    stream = _logs().groups[fleet.plan.log_group].streams[fleet.stream(task, model)]
    at_ms = int((time.time() - ago_s) * 1_000)
    text = line if isinstance(line, str) else json.dumps(line)
    stream.put_log_events([{"timestamp": at_ms, "message": text}])
    stream.events[-1].ingestion_time = at_ms + int(delay_s * 1_000)


def unsay(fleet, model, task, newer_than_s):
    """As if it had gone silent so long ago."""
    stream = _logs().groups[fleet.plan.log_group].streams[fleet.stream(task, model)]
    oldest = (time.time() - newer_than_s) * 1_000
    stream.events[:] = [event for event in stream.events if event.timestamp <= oldest]


def _queues(aws, fleet):
    sqs = aws.client("sqs")
    for model in fleet.plan.models:
        dead = sqs.create_queue(QueueName=f"{model.name}-dlq")["QueueUrl"]
        redrive = {
            "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{model.name}-dlq",
            "maxReceiveCount": "2",
        }
        queue = sqs.create_queue(
            QueueName=f"{model.name}-requests",
            tags={"model": model.name},
            Attributes={"VisibilityTimeout": "600", "RedrivePolicy": json.dumps(redrive)},
        )["QueueUrl"]
        messages = [{"Id": str(number), "MessageBody": "{}"} for number in range(model.waiting)]
        for first in range(0, len(messages), 10):
            sqs.send_message_batch(QueueUrl=queue, Entries=messages[first : first + 10])
        sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=3)
        for _ in range(model.dead):
            sqs.send_message(QueueUrl=dead, MessageBody="{}")


def _metrics(aws, fleet):
    """A deployment that saturated the filesystem and is over: metadata first, then reads."""
    now = datetime.now(UTC)
    points = []
    for minute in range(MINUTES):
        at = now - timedelta(minutes=MINUTES - minute)
        listing, reading = minute < 3, 3 <= minute < 33
        metadata = (6_000 if listing else 60) * MIB
        data = (0 if listing else 5_900 if reading else 300) * MIB
        values = {
            "MeteredIOBytes": metadata + data,
            "DataReadIOBytes": 3 * data,  # reads are metered at a third
            "MetadataIOBytes": metadata,
            "PermittedThroughput": 100 * MIB,
            "PercentIOLimit": 100.0 if listing else 7.4,
            "BurstCreditBalance": 2.1e12 - minute * 3e9,
            "ClientConnections": 40,
        }
        of = ("FileSystemId", fleet.filesystem)
        points += [_point(name, *of, value, at) for name, value in values.items()]
    watch = aws.client("cloudwatch")
    for first in range(0, len(points), 100):
        watch.put_metric_data(Namespace="AWS/EFS", MetricData=points[first : first + 100])
    at = now - timedelta(minutes=1)
    for model in fleet.plan.models:
        if model.used_mib is not None:
            used = _point("MemoryUtilized", "ServiceName", model.name, model.used_mib, at)
            used["Dimensions"].insert(0, {"Name": "ClusterName", "Value": fleet.plan.cluster})
            watch.put_metric_data(Namespace="ECS/ContainerInsights", MetricData=[used])
        if model.oldest_s is not None:
            name = "ApproximateAgeOfOldestMessage"
            oldest = _point(name, "QueueName", f"{model.name}-requests", model.oldest_s, at)
            watch.put_metric_data(Namespace="AWS/SQS", MetricData=[oldest])


def _point(name, dimension, of, value, at):
    return {
        "MetricName": name,
        "Dimensions": [{"Name": dimension, "Value": of}],
        "Timestamp": at,
        "Value": value,
    }


# --- what AWS's own agents would report -----------------------------------------------------------


def settle(fleet):
    """Bring moto's models to what the tasks now are; to be called after each change of them."""
    _settle_tasks(fleet)
    serial = 0
    for group in fleet.plan.groups:
        for host in fleet.hosts[group.name]:
            machine = ec2_backends[ACCOUNT][REGION].get_instance(host)
            machine.lifecycle = "spot" if group.spot else None
            machine.launch_time = datetime.fromtimestamp(fleet.began - LAUNCHED_S, UTC)
            ids = [f"GPU-{serial + number:08x}" for number in range(group.gpus)]
            serial += group.gpus
            _settle_host(fleet, group, host, ids)


def _settle_tasks(fleet):
    for model in fleet.plan.models:
        began = datetime.fromtimestamp(fleet.began, UTC)
        for task in fleet.tasks[model.name]:
            if getattr(task, "created_at", None) is None:
                task.created_at = task.pull_started_at = began - timedelta(seconds=960)
                task.pull_stopped_at = began - timedelta(seconds=920)
                task.started_at = began - timedelta(seconds=910)
            container = task.containers[0]
            container.image_digest = DIGEST
            container.exitCode = getattr(task, "exit", None)
            if model.host_port is not None:
                container.network_bindings = [
                    {"containerPort": 8_000, "hostPort": model.host_port, "protocol": "tcp"}
                ]
        counts = [task.last_status for task in fleet.tasks[model.name]]
        service = _cluster().services[f"{fleet.plan.cluster}:{model.name}"]
        service.running_count = counts.count("RUNNING")
        service.pending_count = counts.count("PENDING")
        service.desired_count = model.wished if model.wished is not None else model.tasks


def _settle_host(fleet, group, host, gpu_ids):
    joined = fleet.joined[host]
    plans = {model.name: model for model in fleet.plan.models}
    here = [
        (plans[name], task)
        for name, tasks in fleet.tasks.items()
        for task in tasks
        if task.container_instance_arn == joined.container_instance_arn
        and task.last_status != "STOPPED"
    ]
    free = list(gpu_ids)
    for model, task in here:
        task.containers[0].gpu_ids = [free.pop(0) for _ in range(model.gpus)]
    cpus = sum(model.cpus for model, _ in here)
    memory = sum(model.reserved_mib for model, _ in here)
    joined.registered_resources = _resources(group.cpus, group.memory_mib, gpu_ids)
    joined.remaining_resources = _resources(group.cpus - cpus, group.memory_mib - memory, free)
    joined.running_tasks_count = sum(task.last_status == "RUNNING" for _, task in here)
    joined.pending_tasks_count = sum(task.last_status == "PENDING" for _, task in here)
    joined.registered_at = datetime.fromtimestamp(fleet.began - LAUNCHED_S + 90, UTC)
    if group.cuda:
        joined.attributes["fleet.cuda-version"] = group.cuda
        joined.attributes["ecs.capability.gpu-driver-version"] = group.driver


def _resources(cpus, memory_mib, gpu_ids):
    numbers = [("CPU", cpus * 1_024), ("MEMORY", memory_mib)]
    sets = [("PORTS", ["22"]), *([("GPU", list(gpu_ids))] if gpu_ids else [])]
    return [
        *({"name": name, "type": "INTEGER", "integerValue": value} for name, value in numbers),
        *({"name": name, "type": "STRINGSET", "stringSetValue": value} for name, value in sets),
    ]


def wait(fleet, task):
    """It is placed but does not run yet; its images are there."""
    task.last_status = "PENDING"
    task.started_at = None
    settle(fleet)


def kill_for_memory(fleet, task, ago_s=120):
    """As the kernel does, and as ECS tells it."""
    task.last_status = task.desired_status = "STOPPED"
    task.stopped_reason = "Essential container in task exited"
    task.stop_code = "EssentialContainerExited"
    task.stopped_at = datetime.fromtimestamp(time.time() - ago_s, UTC)
    task.exit = 137
    task.containers[0].reason = "OutOfMemoryError: Container killed due to memory usage"
    settle(fleet)


def plant_parler(fleet):
    """Parler: loads, takes its first request, dies of memory; and one that stops while loading."""
    stuck, dead = fleet.tasks["llm-70b"][1], fleet.tasks["parler-tts"][0]
    wait(fleet, stuck)
    unsay(fleet, "llm-70b", stuck, 870)
    unsay(fleet, "parler-tts", dead, 595)
    say(fleet, "parler-tts", dead, 590, {"phase": "request", "id": "r1"})
    kill_for_memory(fleet, dead)
    unplaced = "(service llm-70b) was unable to place a task because no container instance met all"
    complain(fleet, "llm-70b", unplaced, unplaced, "(service llm-70b) has reached a steady state.")


def forget_stopped(fleet):
    """Take out of moto whatever tasks a test has taken out of the fleet."""
    kept = {task.task_arn for tasks in fleet.tasks.values() for task in tasks}
    for tasks in _cluster().tasks.values():
        for arn in [arn for arn in tasks if arn not in kept]:
            del tasks[arn]


def complain(fleet, model, *messages):
    """Events of a service, the newest first, a minute apart."""
    service = _cluster().services[f"{fleet.plan.cluster}:{model}"]
    service.events = [
        {
            "id": str(number),
            "createdAt": datetime.fromtimestamp(fleet.began - 60 * (number + 1), UTC),
            "message": message,
        }
        for number, message in enumerate(messages)
    ]


def _cluster():
    return ecs_backends[ACCOUNT][REGION]


def _logs():
    return logs_backends[ACCOUNT][REGION]
