"""What single answers mean: definitions, tasks, services, metrics, and how they make rows."""

from datetime import UTC, datetime

import pytest
from aws_caller import Clock, FakeCaller, missing, unreachable

from holdfast.core.types import HostCondition
from holdfast.core.view.layers import Group
from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.definitions import MIB, Definitions, definition_of
from holdfast.sources.aws.disks import FileSystem, disk_of
from holdfast.sources.aws.errors import CallError
from holdfast.sources.aws.gpus import device_of_host, use_of_task
from holdfast.sources.aws.machines import GroupMember, Groups, Machine, read_machines
from holdfast.sources.aws.metrics import MetricSubjects, questions, read_metrics
from holdfast.sources.aws.queues import QueueCounts, QueueTable
from holdfast.sources.aws.reading import AwsAnswers, reading_of
from holdfast.sources.aws.services import Service, Services, complaint
from holdfast.sources.aws.tasks import Tasks, read_registered

ARN = "arn:aws:ecs:eu-west-2:1:task-definition/llm:3"
CONFIG = AwsConfig(cluster="c")


def rows(seen, config=CONFIG):
    return reading_of("aws", 1_000.0, (), seen, config)


# --- definitions ----------------------------------------------------------------------------------


def test_the_container_with_gpus_stands_for_the_task_and_all_reserve():
    found = definition_of(
        ARN,
        {
            "containerDefinitions": [
                {"name": "proxy", "memory": 256, "essential": True},
                {
                    "name": "engine",
                    "image": "vllm",
                    "memoryReservation": 1_024,
                    "memory": 4_096,
                    "resourceRequirements": [{"type": "GPU", "value": "2"}],
                    "portMappings": [{"containerPort": 8_000}],
                },
            ]
        },
    )
    assert (found.name, found.container, found.gpus, found.port) == ("llm:3", "engine", 2, 8_000)
    assert found.reserved_bytes == (256 + 1_024) * MIB
    assert found.limit_bytes == 4_096 * MIB
    assert (found.log_group, found.filesystem) == ("", "")


def test_memory_of_the_task_as_a_whole_counts_where_it_is_set():
    found = definition_of(
        ARN,
        {
            "memory": "2048",
            "containerDefinitions": [
                {"name": "side", "essential": False},
                {"name": "main", "essential": True},
            ],
        },
    )
    assert found.container == "main"
    assert found.reserved_bytes == found.limit_bytes == 2_048 * MIB


def test_logs_that_go_elsewhere_have_no_stream():
    options = {"awslogs-group": "g", "awslogs-stream-prefix": "p"}
    container = {"name": "m", "logConfiguration": {"logDriver": "splunk", "options": options}}
    assert definition_of(ARN, {"containerDefinitions": [container]}).log_group == ""
    assert definition_of(ARN, {}).container == ""


def test_a_definition_is_read_once_and_the_least_used_is_forgotten():
    caller = FakeCaller(describe_task_definition=lambda **_: {"taskDefinition": {}})
    kept = Definitions(2)
    for arn in ("a/x:1", "a/y:1", "a/x:1", "a/z:1", "a/x:1"):
        kept.of(caller, arn)
    assert len(caller.asked) == 3
    assert len(kept) == 2
    kept.of(caller, "a/y:1")
    assert len(caller.asked) == 4


def test_a_definition_that_is_gone_is_unknown_and_other_failures_travel():
    assert Definitions(2).of(FakeCaller(describe_task_definition=missing), ARN) is None
    with pytest.raises(CallError):
        Definitions(2).of(FakeCaller(describe_task_definition=unreachable), ARN)


# --- tasks ----------------------------------------------------------------------------------------


def told_task(number, **changed):
    return {
        "taskArn": f"arn:aws:ecs:r:1:task/c/{number}",
        "taskDefinitionArn": ARN,
        "lastStatus": "RUNNING",
        "desiredStatus": "RUNNING",
        "containers": [{"name": "m"}],
    } | changed


def tasks_caller(*tasks, definition=None):
    by_arn = {task["taskArn"]: task for task in tasks}

    def list_tasks(cluster, desiredStatus):  # noqa: N803 - as boto3 names it
        found = [arn for arn, one in by_arn.items() if one["desiredStatus"] == desiredStatus]
        return {"taskArns": found}

    return FakeCaller(
        list_tasks=list_tasks,
        describe_tasks=lambda tasks, **_: {"tasks": [by_arn[arn] for arn in tasks]},
        describe_task_definition=lambda **_: {"taskDefinition": definition or {}},
    )


@pytest.mark.parametrize(
    ("status", "desired", "state"),
    [
        ("PROVISIONING", "RUNNING", "pending"),
        ("PENDING", "RUNNING", "pending"),
        ("ACTIVATING", "RUNNING", "pending"),
        ("RUNNING", "RUNNING", "running"),
        ("RUNNING", "STOPPED", "stopping"),
        ("DEACTIVATING", "STOPPED", "stopping"),
        ("STOPPED", "STOPPED", "stopped"),
    ],
)
def test_the_states_of_a_task(status, desired, state):
    (task,) = Tasks(CONFIG).read(
        tasks_caller(told_task(1, lastStatus=status, desiredStatus=desired))
    )
    assert task.state == state


@pytest.mark.parametrize(
    ("container", "oom"),
    [
        ({"exitCode": 137, "reason": "OutOfMemoryError: Container killed due to memory usage"}, 1),
        ({"exitCode": 137, "reason": "OutOfMemory: container killed due to high memory usage"}, 1),
        ({"exitCode": 137}, 0),  # killed, but for whatever reason
        ({"exitCode": 1, "reason": "OutOfMemoryError in its own words"}, 0),
        ({"exitCode": 0}, 0),
    ],
)
def test_memory_is_the_reason_only_where_ecs_says_so(container, oom):
    ended = told_task(1, lastStatus="STOPPED", desiredStatus="STOPPED", containers=[container])
    (task,) = Tasks(CONFIG).read(tasks_caller(ended))
    assert task.oom is bool(oom)
    assert task.exit_code == container["exitCode"]


def test_a_sidecar_that_memory_killed_speaks_for_the_task():
    containers = [
        {"name": "m", "exitCode": 0},
        {"name": "s", "exitCode": 137, "reason": "OutOfMemoryError: killed"},
    ]
    ended = told_task(1, lastStatus="STOPPED", desiredStatus="STOPPED", containers=containers)
    (task,) = Tasks(CONFIG).read(tasks_caller(ended))
    assert (task.exit_code, task.oom) == (137, True)


def test_a_stopped_task_is_described_once_and_forgotten_when_ecs_forgets_it():
    ended = told_task(1, lastStatus="STOPPED", desiredStatus="STOPPED", stoppedReason="x")
    tasks = Tasks(CONFIG)
    caller = tasks_caller(ended)
    first = tasks.read(caller)
    assert tasks.read(caller) == first
    assert caller.count("describe_tasks") == 1
    assert tasks.read(tasks_caller()) == ()
    assert tasks._stopped == {}


def test_of_those_that_ended_the_newest_are_shown_and_none_is_described_twice():
    ended = {"lastStatus": "STOPPED", "desiredStatus": "STOPPED"}
    caller = tasks_caller(
        *(
            told_task(number, stoppedAt=datetime.fromtimestamp(number, UTC), **ended)
            for number in range(1, 6)
        )
    )
    tasks = Tasks(AwsConfig(cluster="c", stopped_max=2))
    assert [task.id for task in tasks.read(caller)] == ["5", "4"]
    assert [task.id for task in tasks.read(caller)] == ["5", "4"]
    assert caller.count("describe_tasks") == 1


def test_one_that_is_still_stopping_is_described_again():
    stopping = told_task(1, lastStatus="STOPPING", desiredStatus="STOPPED")
    tasks = Tasks(CONFIG)
    caller = tasks_caller(stopping)
    tasks.read(caller)
    tasks.read(caller)
    assert caller.count("describe_tasks") == 2


def test_ids_are_asked_for_a_hundred_at_a_time_and_never_without_end():
    caller = tasks_caller(*(told_task(number) for number in range(250)))
    assert len(Tasks(CONFIG).read(caller)) == 250
    assert [len(a["tasks"]) for n, a in caller.asked if n == "describe_tasks"] == [100, 100, 50]
    bounded = Tasks(AwsConfig(cluster="c", tasks_max=30))
    assert len(bounded.read(caller)) == 30


def test_a_model_is_named_by_tag_then_by_the_tag_of_its_service_then_by_name():
    tasks = Tasks(CONFIG).read(
        tasks_caller(
            told_task(1, group="service:s1", tags=[{"key": "model", "value": "tagged"}]),
            told_task(2, group="service:s1"),
            told_task(3, group="service:s2"),
            told_task(4, group="family:llm"),
        )
    )
    services = (Service("s1", "of-service", 1, 1, 0, "", None),)
    placed = rows(AwsAnswers(tasks=tasks, services=services)).placed
    assert [one.model for one in placed] == ["tagged", "of-service", "s2", "llm"]
    assert {one.revision for one in placed} == {"llm:3"}


def test_where_a_task_listens():
    definition = {
        "containerDefinitions": [{"name": "m", "portMappings": [{"containerPort": 8_000}]}]
    }
    own = [{"name": "m", "networkInterfaces": [{"privateIpv4Address": "10.1.0.9"}]}]
    opened = [{"name": "m", "networkBindings": [{"hostPort": 32_768}]}]
    on = {"containerInstanceArn": "ci"}
    tasks = Tasks(CONFIG).read(
        tasks_caller(
            told_task(1, containers=own, **on),
            told_task(2, containers=opened, **on),
            told_task(3, **on),
            definition=definition,
        )
    )
    machine = Machine("i-1", "g5", "spot", "a", "running", "10.0.0.1", None)
    seen = AwsAnswers(tasks=tasks, registered={"ci": registered()["ci"]}, machines={"i-1": machine})
    assert [one.endpoint for one in rows(seen).placed] == [
        "http://10.1.0.9:8000",
        "http://10.0.0.1:32768",
        "",
    ]
    assert [one.endpoint for one in rows(AwsAnswers(tasks=tasks)).placed][1:] == ["", ""]


# --- hosts ----------------------------------------------------------------------------------------


def registered(**changed):
    told = {
        "containerInstanceArn": "ci",
        "ec2InstanceId": "i-1",
        "status": "ACTIVE",
        "agentConnected": True,
        "registeredResources": [
            {"name": "CPU", "integerValue": 2_048},
            {"name": "MEMORY", "integerValue": 1_000},
            {"name": "GPU", "stringSetValue": ["g0", "g1", "g2"]},
        ],
        "remainingResources": [
            {"name": "CPU", "integerValue": 1_024},
            {"name": "MEMORY", "integerValue": 400},
            {"name": "GPU", "stringSetValue": ["g0", "g1", "g2"]},  # whatever that means
        ],
    } | changed
    caller = FakeCaller(
        list_container_instances=lambda **_: {"containerInstanceArns": ["ci"]},
        describe_container_instances=lambda **_: {"containerInstances": [told]},
    )
    return read_registered(caller, CONFIG)


def test_free_gpus_are_those_that_no_task_holds_or_was_promised():
    definition = {
        "containerDefinitions": [
            {"name": "m", "resourceRequirements": [{"type": "GPU", "value": "1"}]}
        ]
    }
    on = {"containerInstanceArn": "ci"}
    ended = {"lastStatus": "STOPPED", "desiredStatus": "STOPPED"}
    tasks = Tasks(CONFIG).read(
        tasks_caller(
            told_task(1, containers=[{"name": "m", "gpuIds": ["g0"]}], **on),
            told_task(2, lastStatus="PENDING", **on),  # not told yet which
            told_task(3, containers=[{"name": "m", "gpuIds": ["g2"]}], **on, **ended),
            definition=definition,
        )
    )
    (host,) = rows(AwsAnswers(registered=registered(), tasks=tasks)).hosts
    assert (host.gpus, host.gpus_free) == (3, 1)
    (host,) = rows(AwsAnswers(registered=registered())).hosts
    assert (host.gpus, host.gpus_free) == (3, None)  # nobody said who holds any


@pytest.mark.parametrize(
    ("member", "machine", "changed", "state"),
    [
        (("InService", True), "running", {}, ""),
        (("Terminating:Wait", True), "running", {}, "Terminating:Wait"),
        (("InService", False), "running", {}, "unhealthy"),
        (("InService", True), "shutting-down", {}, "shutting-down"),
        (("InService", True), "running", {"status": "DRAINING"}, "draining"),
        (("InService", True), "running", {"agentConnected": False}, "agent not connected"),
        (None, "running", {}, ""),
    ],
)
def test_the_state_of_a_host_says_what_is_not_as_it_should_be(member, machine, changed, state):
    members = (GroupMember("i-1", "asg", "g5", "a", *member),) if member else ()
    seen = AwsAnswers(
        groups=Groups((Group("asg"),), members),
        machines={"i-1": Machine("i-1", "g5", "spot", "a", machine, "", None)},
        registered=registered(**changed),
    )
    (host,) = rows(seen).hosts
    assert host.state == state
    assert host.group == ("asg" if member else "")


@pytest.mark.parametrize(
    ("machine", "changed", "condition"),
    [
        ("running", {}, HostCondition.READY),
        ("running", {"status": "DRAINING"}, HostCondition.LEAVING),
        ("running", {"agentConnected": False}, HostCondition.UNREACHABLE),
        ("shutting-down", {}, HostCondition.LEAVING),
        ("running", {"status": "REGISTERING"}, None),
    ],
)
def test_whether_a_host_can_run_tasks_is_told_for_detectors(machine, changed, condition):
    machines = {"i-1": Machine("i-1", "g5", "spot", "a", machine, "", None)}
    (host,) = rows(AwsAnswers(machines=machines, registered=registered(**changed))).hosts
    assert host.condition is condition


def test_a_machine_of_a_group_that_never_joined_the_cluster_is_told():
    groups = Groups(
        (Group("asg"),), (GroupMember("i-9", "asg", "g5", "a", "InService", healthy=True),)
    )
    (host,) = rows(AwsAnswers(groups=groups, registered={})).hosts
    assert (host.state, host.kind, host.cpus) == ("not in the cluster", "g5", None)
    assert host.condition is None
    (host,) = rows(AwsAnswers(groups=groups)).hosts
    assert host.state == ""  # nobody asked the cluster yet


def test_machines_are_asked_for_a_hundred_at_a_time():
    caller = FakeCaller(describe_instances=lambda **_: {"Reservations": []})
    assert read_machines(caller, (f"i-{n}" for n in range(150))) == {}
    sizes = [len(arguments["Filters"][0]["Values"]) for _, arguments in caller.asked]
    assert sizes == [100, 50]
    assert read_machines(FakeCaller(), ()) == {}


def test_what_was_never_answered_is_unknown_and_not_empty():
    reading = rows(AwsAnswers())
    assert reading.groups == reading.hosts == reading.placed == reading.queues == ()


# --- services -------------------------------------------------------------------------------------


def event(second, message):
    return {"createdAt": datetime.fromtimestamp(second, UTC), "message": message}


def test_complaints_count_since_the_service_was_last_steady():
    events = [
        event(50, "unable to place a task because of memory"),
        event(40, "has started 1 tasks"),
        event(30, "unable to place a task because of GPUs"),
        event(20, "has reached a steady state."),
        event(10, "unable to place a task, long ago"),
    ]
    assert complaint(events) == ("unable to place a task because of memory", 30.0)
    assert complaint([event(60, "has reached a steady state."), *events]) == ("", None)
    assert complaint([]) == ("", None)


def test_services_are_described_ten_at_a_time_and_listed_once_a_minute():
    names = [f"arn/s{n}" for n in range(25)]
    clock = Clock()
    caller = FakeCaller(
        list_services=lambda **_: {"serviceArns": names},
        describe_services=lambda services, **_: {
            "services": [{"serviceName": one, "status": "ACTIVE"} for one in services]
        },
    )
    services = Services(CONFIG, clock)
    assert len(services.read(caller)) == 25
    services.read(caller)
    assert caller.count("describe_services") == 6
    assert caller.count("list_services") == 1
    clock.now += 61
    services.read(caller)
    assert caller.count("list_services") == 2


def test_a_service_that_was_deleted_wishes_nothing():
    told = {"serviceName": "s", "status": "INACTIVE"}
    caller = FakeCaller(
        list_services=lambda **_: {"serviceArns": ["s"]},
        describe_services=lambda **_: {"services": [told]},
    )
    assert Services(CONFIG, Clock()).read(caller) == ()


def test_services_of_one_model_are_one_wish():
    services = (
        Service("blue", "m", 2, 2, 0, "", None),
        Service("green", "m", 3, 1, 1, "unable to place", 5.0),
        Service("other", "o", None, None, None, "", None),
    )
    first, second = rows(AwsAnswers(services=services)).wishes
    assert (first.model, first.desired, first.running, first.pending) == ("m", 5, 3, 1)
    assert (first.reason, first.since) == ("unable to place", 5.0)
    assert (second.desired, second.running) == (None, None)


def unstarted(number, created, **changed):
    given = {
        "lastStatus": "STOPPED",
        "desiredStatus": "STOPPED",
        "stopCode": "TaskFailedToStart",
        "stoppedReason": "CannotPullContainerError: not found",
        "group": "service:s",
        "createdAt": datetime.fromtimestamp(created, UTC),
    }
    return told_task(number, **(given | changed))


def wish_of(*tasks, complaint=("", None)):
    seen = AwsAnswers(
        tasks=Tasks(CONFIG).read(tasks_caller(*tasks)),
        services=(Service("s", "m", 1, 0, 0, *complaint),),
    )
    (wish,) = rows(seen).wishes
    return wish.reason, wish.since


def test_tasks_that_could_not_begin_say_why_their_service_runs_too_few():
    told = "CannotPullContainerError: not found"
    assert wish_of(unstarted(1, 50.0), unstarted(2, 70.0)) == (told, 50.0)
    # What its service says of it is only a count; that none can be placed is news.
    count = "(service s) is unable to consistently start tasks successfully."
    assert wish_of(unstarted(1, 50.0), complaint=(count, 40.0)) == (told, 40.0)
    full = "(service s) was unable to place a task"
    assert wish_of(unstarted(1, 50.0), complaint=(full, 60.0)) == (full, 60.0)


def test_a_service_whose_newest_task_runs_has_got_over_it():
    began = {"createdAt": datetime.fromtimestamp(90, UTC), "group": "service:s"}
    runs = told_task(3, startedAt=datetime.fromtimestamp(95, UTC), **began)
    assert wish_of(unstarted(1, 50.0), runs) == ("", None)
    stopped = unstarted(1, 50.0, stopCode="ServiceSchedulerInitiated")
    assert wish_of(stopped) == ("", None)  # somebody had another wish
    assert wish_of(unstarted(1, 50.0, group="family:s")) == ("", None)  # started by hand


@pytest.mark.parametrize(
    ("status", "checked", "ready"),
    [
        ("HEALTHY", True, True),
        ("UNHEALTHY", True, False),
        ("UNKNOWN", True, False),  # it has not passed yet
        ("UNKNOWN", False, None),  # nobody checks it
        (None, False, None),
    ],
)
def test_a_task_is_ready_by_its_own_health_check(status, checked, ready):
    check = {"healthCheck": {"command": ["CMD", "true"]}} if checked else {}
    caller = tasks_caller(
        told_task(1, **({"healthStatus": status} if status else {})),
        definition={"containerDefinitions": [{"name": "m", **check}]},
    )
    (placed,) = rows(AwsAnswers(tasks=Tasks(CONFIG).read(caller))).placed
    assert placed.ready is ready


# --- metrics --------------------------------------------------------------------------------------


def test_five_hundred_metrics_are_asked_at_once_and_the_newest_whole_minute_counts():
    asked = list(questions(MetricSubjects({}, tuple(f"q{n}" for n in range(700))), CONFIG))

    def answer(MetricDataQueries, StartTime, EndTime, **_):  # noqa: N803 - as boto3 names it
        assert EndTime.second == 0
        assert EndTime.timestamp() <= 1_000_030
        results = [{"Id": one["Id"], "Values": [9.0, 1.0]} for one in MetricDataQueries[:-1]]
        return {"MetricDataResults": [*results, {"Id": "m0", "Values": [2.0]}]}

    caller = FakeCaller(get_metric_data=answer)
    found = read_metrics(caller, asked, 1_000_030.0, CONFIG)
    assert [len(arguments["MetricDataQueries"]) for _, arguments in caller.asked] == [500, 200]
    assert len(found) == 698  # two had no value
    assert set(found.values()) == {9.0}


def test_an_elastic_filesystem_has_no_ceiling_and_is_not_asked_for_one():
    wanted = MetricSubjects({"fs-e": False, "fs-b": True})
    metrics = {(one.about, one.metric) for one in questions(wanted, CONFIG)}
    assert ("fs-b", "PermittedThroughput") in metrics
    assert ("fs-e", "PermittedThroughput") not in metrics
    told = {("fs-e", "PermittedThroughput"): 9.0, ("fs-e", "MeteredIOBytes"): 600.0}
    disk = disk_of(FileSystem("fs-e", "elastic", 5), told)
    assert (disk.permitted_bytes_s, disk.burst_credit_bytes) == (None, None)
    assert (disk.metered_bytes_s, disk.read_bytes_s, disk.clients) == (10.0, None, None)


def test_memory_is_not_asked_for_where_it_is_not_wanted():
    wanted = MetricSubjects({}, services=("s",))
    assert len(list(questions(wanted, CONFIG))) == 1
    assert not list(questions(wanted, AwsConfig(read_memory=False)))


def test_gpus_of_instances_with_one_are_asked_for_and_the_others_are_not():
    wanted = MetricSubjects({}, gpu_hosts=("i-1",))
    asked = list(questions(wanted, CONFIG))
    assert {(one.namespace, one.dimensions) for one in asked} == {
        ("CWAgent", (("InstanceId", "i-1"),))
    }
    assert {one.metric for one in asked} == {
        *("nvidia_smi_memory_used", "nvidia_smi_memory_total", "nvidia_smi_utilization_gpu"),
        *("nvidia_smi_temperature_gpu", "nvidia_smi_power_draw"),
    }
    assert not list(questions(wanted, AwsConfig(read_gpus=False)))


GPU_METRICS = {
    ("i-1", "nvidia_smi_memory_used"): 1_000.0,
    ("i-1", "nvidia_smi_memory_total"): 4_000.0,
    ("i-1", "nvidia_smi_utilization_gpu"): 50.0,
    ("i-1", "nvidia_smi_temperature_gpu"): 71.0,
}


def test_figures_of_one_gpu_are_its_devices_and_its_tasks():
    (device,) = device_of_host("i-1", ("g0",), GPU_METRICS)
    assert (device.id, device.memory_used_bytes, device.utilisation) == ("g0", 1_000 << 20, 0.5)
    assert (device.temperature_c, device.power_w) == (71.0, None)
    use = use_of_task(("g0",), (device,), others=0)
    assert (use.held_bytes, use.memory_share) == (1_000 << 20, 0.25)
    assert use_of_task(("g0",), (device,), others=1).held_bytes is None  # shared: nobody's own
    assert use_of_task(("another",), (device,), others=0) is None


def test_a_mean_of_several_gpus_is_no_figure_of_any():
    assert device_of_host("i-1", ("g0", "g1"), GPU_METRICS) == ()
    assert device_of_host("i-1", (), GPU_METRICS) == ()
    assert device_of_host("i-2", ("g0",), GPU_METRICS) == ()


def test_counts_of_many_queues_come_from_metrics():
    counted = {"q": QueueCounts("q", dead_letter_queue="dead"), "dead": QueueCounts("dead")}
    seen = AwsAnswers(
        queues=QueueTable(counted, {"q": "m"}, by_metrics=True),
        metrics={
            ("q", "ApproximateNumberOfMessagesVisible"): 12.0,
            ("q", "ApproximateNumberOfMessagesNotVisible"): 3.0,
            ("q", "ApproximateAgeOfOldestMessage"): 40.0,
            ("dead", "ApproximateNumberOfMessagesVisible"): 2.0,
        },
    )
    (queue,) = rows(seen).queues
    assert (queue.visible, queue.in_flight, queue.delayed) == (12, 3, None)
    assert (queue.dead_letters, queue.oldest_s) == (2, 40.0)
    seen.metrics = {}
    (queue,) = rows(seen).queues
    assert (queue.visible, queue.dead_letters) == (None, None)


def test_only_mounted_or_named_filesystems_are_shown():
    filesystems = {name: FileSystem(name, "bursting", 1) for name in ("fs-a", "fs-b", "fs-c")}
    volume = {"efsVolumeConfiguration": {"fileSystemId": "fs-a"}}
    tasks = Tasks(CONFIG).read(tasks_caller(told_task(1), definition={"volumes": [{}, volume]}))
    seen = AwsAnswers(filesystems=filesystems, tasks=tasks)
    assert [disk.id for disk in rows(seen).disks] == ["fs-a"]
    named = AwsConfig(cluster="c", filesystems=("fs-c",))
    assert [disk.id for disk in rows(seen, named).disks] == ["fs-a", "fs-c"]
