"""The whole source against a fake AWS account: every field of the view, and every way to fail."""

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import asdict, fields

import boto3
import pytest
from aws_fleet import (
    LARGE,
    LAUNCHED_S,
    MARIGOLD,
    MIB,
    PIPE_S,
    build,
    plant_parler,
    say,
)
from aws_front import ACCOUNT, REGION, FakeAws, Fault
from botocore.exceptions import ClientError
from click.testing import CliRunner
from moto.core.authorization import enable_iam_authentication

from holdfast.cli.aws import aws as aws_command
from holdfast.control.deploy.discovery import WatchedSource
from holdfast.core.types import ConfigError, HostCondition
from holdfast.core.view.layers import DesiredReplicas, Disk, Group, Host, Placed, Queue
from holdfast.sources.aws import AwsConfig, AwsSource
from holdfast.sources.aws import calls as calling_module
from holdfast.sources.aws.errors import iam_action
from holdfast.sources.aws.policy import PolicyScope, actions, policy

NAMES = tuple(f"{model.name}-requests" for model in MARIGOLD.models)
ASKED_FIRST = ("autoscaling", "ecs hosts", "ecs tasks", "ecs services", "sqs", "efs")
READS_MAX = 20
DIGEST = "@sha256:" + "0" * 64


@pytest.fixture(scope="module")
def surroundings():
    """Keys that are nobody's, and none of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/nowhere/config")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")
        yield patch


@pytest.fixture(scope="module")
def server(surroundings):
    server = FakeAws()
    yield server
    server.close()


@pytest.fixture(scope="module")
def marigold(server):
    fleet = build(server, MARIGOLD)
    plant_parler(fleet)
    return fleet


@pytest.fixture
def aws(server, marigold):
    yield server
    server.calm()


@pytest.fixture(scope="module")
def shared(server, marigold):
    """A source that several tests read with: to make its clients takes most of a second."""
    source = AwsSource("aws", settings(server))
    yield source
    asyncio.run(source.close())


@pytest.fixture(scope="module")
def reading(shared):
    """The calm account, read once."""
    return read(shared)


def settings(server, **changed):
    told = {
        "region": REGION,
        "cluster": "marigold",
        "endpoint_url": server.url,
        "group_tags": {"fleet": "marigold"},
        "queue_names": NAMES,
        "attempts": 2,
        "answer_s": 5.0,
    }
    return AwsConfig(**(told | changed))


@asynccontextmanager
async def opened(server, **changed):
    source = AwsSource("aws", settings(server, **changed))
    try:
        yield source
    finally:
        await source.close()


def read(source):
    return asyncio.run(source.read())


def parts_of(reading):
    return {part.name: part for part in reading.parts}


def failing(reading):
    return {part.name: part.error for part in reading.parts if part.error}


# --- every field of the view ----------------------------------------------------------------------


def same(found, expected, but=()):
    """Compares rows field by field; floats nearly, ``but`` these not at all."""
    for field in fields(expected):
        if field.name in but:
            continue
        have, want = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(want, float):
            want = pytest.approx(want, rel=1e-9, abs=1.5)
        assert have == want, f"{type(expected).__name__}.{field.name} of {expected}"


def test_groups_show_their_sizes(reading):
    assert not failing(reading)
    assert (reading.source, reading.kind) == ("aws", "aws")
    assert reading.groups == tuple(
        Group(plan.name, desired=plan.hosts, minimum=0, maximum=8) for plan in MARIGOLD.groups
    )


# by group: CPUs free, MiB reserved, GPUs free, running, pending; hosts in the order of their tasks
EXPECTED_HOSTS = {
    "marigold-gpu-large": [(8, 16_000, 0, 1, 0), (8, 16_000, 0, 0, 1), (16, 0, 1, 0, 0)],
    "marigold-gpu-small": [(4, 14_000, 0, 1, 0), (4, 14_000, 0, 1, 0)],
    "marigold-cpu": [(3, 4_096, 0, 1, 0), (2, 5_120, 0, 2, 0)],
    "marigold-test": [(4, 0, 1, 0, 0)],
}


def test_hosts_show_market_uptime_what_is_left_and_what_runs(reading, marigold):
    hosts = {host.id: host for host in reading.hosts}
    assert len(hosts) == 8
    for plan in MARIGOLD.groups:
        members = marigold.hosts[plan.name]
        for host, expected in zip(members, EXPECTED_HOSTS[plan.name], strict=True):
            cpus_free, reserved, gpus_free, running, pending = expected
            same(
                hosts[host],
                Host(
                    id=host,
                    group=plan.name,
                    kind=plan.kind,
                    market="spot" if plan.spot else "on-demand",
                    zone=f"{REGION}a",
                    launched_at=marigold.began - LAUNCHED_S,
                    joined_at=marigold.began - LAUNCHED_S + 90,
                    cpus=float(plan.cpus),
                    cpus_free=float(cpus_free),
                    memory_bytes=plan.memory_mib * MIB,
                    reserved_bytes=reserved * MIB,
                    gpus=plan.gpus,
                    gpus_free=gpus_free,
                    running=running,
                    pending=pending,
                    cuda=plan.cuda,
                    driver=plan.driver,
                    condition=HostCondition.READY,
                ),
            )


def test_the_memory_of_a_group_is_that_of_the_seed(reading):
    hosts = [host for host in reading.hosts if host.group == "marigold-gpu-large"]
    assert round(sum(host.memory_bytes for host in hosts) / (1 << 30)) == 186


def expected_task(fleet, plan, task, number):
    model, host = plan.name, fleet.hosts[plan.group][number]
    began = fleet.began
    return Placed(
        id=task.id,
        model=model,
        state="running",
        host=host,
        revision=f"{model}:1",
        needs_gpu=plan.gpus > 0,
        gpus=plan.gpus,
        reserved_bytes=plan.reserved_mib * MIB,
        limit_bytes=plan.limit_mib * MIB,
        used_bytes=plan.used_mib * MIB,
        filesystem=fleet.filesystem,
        log_stream=f"{model}/{model}/{task.id}",
        image=f"registry/{model}:v1{DIGEST}",
        image_asked=f"registry/{model}:v1",
        created_at=began - 960,
        started_at=began - 910,
        phase="serving",
        labels=(("task-definition", f"{model}:1"),),
        uid=task.id,
        port_said=str(plan.host_port or ""),
    )


STORIES = {
    ("llm-70b", 1): {
        "state": "pending",
        "started_at": None,
        "phase": "loading",
        "used_bytes": None,
    },
    ("parler-tts", 0): {
        "state": "stopped",
        "phase": "request",
        "exit_code": 137,
        "oom": True,
        "used_bytes": None,
        "reason": "Essential container in task exited; "
        "OutOfMemoryError: Container killed due to memory usage",
    },
}


def test_replicas_show_what_they_reserve_use_mount_and_said_last(shared, marigold, aws):
    for plan in MARIGOLD.models:  # they speak every few seconds; building the fleet took longer
        for task in marigold.tasks[plan.name]:
            if task.last_status == "RUNNING":
                say(marigold, plan.name, task, 5, {"phase": "heartbeat"})
    placed = {one.id: one for one in read(shared).placed}
    assert len(placed) == 8
    for plan in MARIGOLD.models:
        for number, task in enumerate(marigold.tasks[plan.name]):
            expected = asdict(expected_task(marigold, plan, task, number))
            expected |= STORIES.get((plan.name, number), {})
            found = placed[task.id]
            same(found, Placed(**expected), {"spoke_at", "stopped_at", "address", "endpoint"})
            assert found.address.startswith("10.0.")
            port = f":{plan.host_port}"
            assert found.endpoint == (f"http://{found.address}{port}" if plan.host_port else "")


def test_silence_is_told_from_lines_with_the_delay_of_the_pipe_taken_out(shared, marigold, aws):
    alive = marigold.tasks["llm-8b"][0]
    say(marigold, "llm-8b", alive, 3, "GET /health 200")  # not a line that tells of phases
    now = time.time()
    placed = {one.id: one for one in read(shared).placed}
    speaks, stuck = placed[alive.id], placed[marigold.tasks["llm-70b"][1].id]
    dead = placed[marigold.tasks["parler-tts"][0].id]
    assert speaks.spoke_at == pytest.approx(now - 3 + PIPE_S, abs=1.5)
    assert speaks.phase == "serving"
    assert stuck.spoke_at == pytest.approx(marigold.began - 900 + PIPE_S, abs=60)
    assert dead.spoke_at == pytest.approx(marigold.began - 590 + PIPE_S, abs=60)
    assert dead.stopped_at is not None


def test_times_of_lists_of_streams_are_never_asked_for(shared, marigold, aws):
    """They are up to an hour old on AWS, and here: whoever believed them would see silence."""
    listed = aws.client("logs").describe_log_streams(logGroupName=MARIGOLD.log_group)
    hour_ago = (time.time() - 3_000) * 1_000
    assert all(stream["lastEventTimestamp"] < hour_ago for stream in listed["logStreams"])
    task = marigold.tasks["bge-embed"][0]
    say(marigold, "bge-embed", task, 2, {"phase": "heartbeat"})
    placed = {one.id: one for one in read(shared).placed}
    assert time.time() - placed[task.id].spoke_at < 30
    assert "logs:DescribeLogStreams" not in shared.operations


def test_queues_show_what_waits_is_in_flight_and_was_given_up(reading):
    found = {queue.name: queue for queue in reading.queues}
    assert found == {
        f"{plan.name}-requests": Queue(
            name=f"{plan.name}-requests",
            model=plan.name,
            visible=plan.waiting - 3,
            in_flight=3,
            delayed=0,
            dead_letters=plan.dead,
            dead_letter_queue=f"{plan.name}-dlq",
            oldest_s=plan.oldest_s,
        )
        for plan in MARIGOLD.models
    }


def test_the_filesystem_shows_its_load_against_what_is_permitted(reading, marigold):
    (disk,) = reading.disks
    same(
        disk,
        Disk(
            id=marigold.filesystem,
            mode="bursting",
            read_bytes_s=15.0 * MIB,
            metered_bytes_s=6.0 * MIB,
            permitted_bytes_s=100.0 * MIB,
            operations_share=0.074,
            burst_credit_bytes=2.1e12 - 39 * 3e9,
            clients=40,
            size_bytes=0,
        ),
    )


def test_wishes_show_what_could_not_be_placed_and_since_when(reading, marigold):
    wishes = {wish.model: wish for wish in reading.wishes}
    assert wishes["bge-embed"] == DesiredReplicas("bge-embed", desired=2, running=2, pending=0)
    assert wishes["parler-tts"] == DesiredReplicas("parler-tts", desired=2, running=1, pending=0)
    stuck = wishes["llm-70b"]
    assert (stuck.desired, stuck.running, stuck.pending) == (4, 1, 1)
    assert "unable to place a task" in stuck.reason
    assert stuck.since == pytest.approx(marigold.began - 120, abs=1.5)


# --- how it asks ----------------------------------------------------------------------------------


def test_every_request_is_counted_for_its_part(shared, aws):
    before = Counter(aws.front.seen)
    reading = read(shared)
    left = sum(aws.front.seen.values()) - sum(before.values())
    assert sum(part.calls for part in reading.parts) == left
    assert parts_of(reading)["ecs tasks"].calls >= 3
    efs = parts_of(reading)["efs"]
    assert efs.calls == 0  # read a moment ago, and its mode changes by hand: it does not age
    assert reading.at - efs.at < 5
    assert all(part.took_s >= 0 for part in reading.parts)


def test_a_large_fleet_is_read_in_batches(aws, capsys):
    """40 hosts, 200 tasks, 20 queues with their dead letters."""
    build(aws, LARGE)

    async def main():
        changed = {"cluster": "large", "group_tags": {"fleet": "large"}, "queue_names": ()}
        async with opened(aws, queue_prefix="large-", part_s=60.0, **changed) as source:
            first = await source.read()
            began = time.perf_counter()
            second = await source.read()
            return first, second, time.perf_counter() - began

    first, second, took_s = asyncio.run(main())
    assert not failing(first)
    assert not failing(second)
    calls = [sum(part.calls for part in reading.parts) for reading in (first, second)]
    with capsys.disabled():
        sys.stdout.write(f"\n  {calls[0]} calls at first, then {calls[1]} ({took_s:.1f} s)\n")
    assert calls[1] <= 60
    assert len(second.hosts) == 40
    assert len(second.placed) == 200
    assert len(second.queues) == 20
    assert sum(host.gpus_free for host in second.hosts) == 0
    assert {one.phase for one in second.placed} == {"serving"}
    assert all(one.visible == 1 and one.in_flight == 3 for one in second.queues)
    assert len(second.wishes) == 20


def test_counts_from_metrics_make_queues_hang_on_metrics(aws):
    async def main():
        async with opened(aws, read_logs=False, queue_metrics_above=1) as source:
            return parts_of(await source.read())["cloudwatch"].feeds

    assert asyncio.run(main()) == ("disks", "memory", "queues")


# --- and how it fails -----------------------------------------------------------------------------


def test_a_call_that_is_throttled_at_first_is_tried_again(shared, aws):
    aws.order(Fault("ThrottlingException", "ecs", "DescribeTasks", times=1))
    reading = read(shared)
    assert not failing(reading)
    assert len(reading.placed) == 8
    assert aws.front.faults[0].times == 0


def test_a_service_that_is_throttled_for_ever_keeps_its_rows_and_harms_no_other(shared, aws):
    good = read(shared)
    aws.order(Fault("Throttling", "autoscaling"))
    reading = read(shared)
    assert list(failing(reading)) == ["autoscaling"]
    part = parts_of(reading)["autoscaling"]
    assert "DescribeAutoScalingGroups was throttled 2 times" in part.error
    assert reading.groups == good.groups
    assert reading.hosts == good.hosts
    assert part.at == parts_of(good)["autoscaling"].at
    assert part.failing_since > part.at
    assert parts_of(reading)["ecs tasks"].at > parts_of(good)["ecs tasks"].at
    aws.calm()
    again = parts_of(read(shared))["autoscaling"]
    assert (again.error, again.failing_since) == ("", None)
    assert again.at > part.at


def test_a_service_that_is_broken_from_the_start_leaves_only_its_own_columns_unknown(aws):
    aws.order(Fault("InternalFailure", "ec2", status=500))

    async def main():
        async with opened(aws, read_logs=False) as source:
            return await source.read()

    reading = asyncio.run(main())
    assert list(failing(reading)) == ["ec2"]
    part = parts_of(reading)["ec2"]
    assert "DescribeInstances failed" in part.error
    assert "500" in part.error
    assert part.at is None
    assert {host.market for host in reading.hosts} == {""}
    assert {host.launched_at for host in reading.hosts} == {None}
    assert all(host.cpus and host.kind and host.group for host in reading.hosts)
    assert "logs" not in parts_of(reading)


def test_a_question_that_is_not_allowed_says_what_to_grant(shared, aws):
    aws.order(
        Fault("AccessDeniedException", "logs"),
        Fault("AccessDenied", "autoscaling"),
    )
    errors = failing(read(shared))
    assert set(errors) == {"logs", "autoscaling"}
    assert "logs:FilterLogEvents is not allowed" in errors["logs"]
    assert "autoscaling:DescribeAutoScalingGroups is not allowed" in errors["autoscaling"]
    assert all("holdfast aws iam-policy" in error for error in errors.values())


def test_expired_credentials_are_said_on_every_part_and_the_rows_stay(shared, aws):
    good = read(shared)
    aws.order(
        Fault("ExpiredTokenException"),
        Fault("ExpiredToken"),
    )
    reading = read(shared)
    errors = failing(reading)
    asked = {part.name for part in reading.parts} - {"ec2", "efs", "cloudwatch"}  # not due just now
    assert asked <= set(errors)
    assert all("the credentials have expired: log in again" in one for one in errors.values())
    assert [reading.groups, reading.hosts, reading.queues, reading.disks, reading.wishes] == [
        good.groups,
        good.hosts,
        good.queues,
        good.disks,
        good.wishes,
    ]
    assert {one.id for one in reading.placed} == {one.id for one in good.placed}
    aws.calm()
    assert not failing(read(shared))


def test_after_a_new_login_reading_goes_on_by_itself(aws, tmp_path, monkeypatch):
    credentials = tmp_path / "credentials"
    credentials.write_text("[ours]\naws_access_key_id=OLD\naws_secret_access_key=old\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    signed = []
    inner = aws.front.inner

    def watching(environ, start):
        signed.append(environ["HTTP_AUTHORIZATION"].partition("Credential=")[2].split("/")[0])
        return inner(environ, start)

    monkeypatch.setattr(aws.front, "inner", watching)
    aws.order(Fault("ExpiredToken", times=40))

    async def main():
        changed = {"profile": "ours", "session_s": 1e-6, "read_logs": False, "queue_names": ()}
        async with opened(aws, queue_prefix="bge", **changed) as source:
            first = await source.read()
            assert len(failing(first)) == len(first.parts)
            aws.calm()
            credentials.write_text("[ours]\naws_access_key_id=NEW\naws_secret_access_key=new\n")
            return await source.read()

    assert not failing(asyncio.run(main()))
    assert set(signed) == {"NEW"}


def test_without_credentials_it_says_what_to_set(aws, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    async def main(**changed):
        async with opened(aws, **changed) as source:
            return await source.read()

    reading = asyncio.run(main())
    errors = failing(reading)
    assert reading.hosts == ()
    assert len(errors) == len(reading.parts)
    assert all("no credentials were found: set a profile" in errors[name] for name in ASKED_FIRST)
    errors = failing(asyncio.run(main(profile="nobody")))
    assert all("the profile is not in ~/.aws/config" in errors[name] for name in ASKED_FIRST)
    errors = failing(asyncio.run(main(region="", read_logs=False)))
    assert all("no region is set" in errors[name] for name in ASKED_FIRST)


def test_a_service_that_hangs_holds_up_no_other_and_one_thread(aws):
    hang = threading.Event()

    async def main():
        async with opened(aws, part_s=2.0, answer_s=20.0, read_logs=False) as source:
            good = await source.read()
            for _ in range(READS_MAX):  # slow at first, where clients have to be made
                if not failing(good):
                    break
                good = await source.read()
            before = aws.front.seen["sqs:GetQueueAttributes"]
            aws.order(Fault("InternalFailure", "sqs", hang=hang))
            second, third = await source.read(), await source.read()
            waiting = aws.front.seen["sqs:GetQueueAttributes"]
            aws.calm()
            for _ in range(READS_MAX):  # until the thread has come back
                last = await source.read()
                if not failing(last):
                    break
            return good, second, third, waiting - before, last

    good, second, third, hanging, last = asyncio.run(main())
    assert "no answer for" in failing(second)["sqs"]
    assert "no answer for" in failing(third)["sqs"]
    assert "autoscaling" not in failing(second)
    assert counts(second) == counts(third) == counts(last) == counts(good)
    assert parts_of(second)["autoscaling"].at > parts_of(good)["autoscaling"].at
    assert hanging == 1  # no second request is sent after the one that hangs


def counts(reading):
    return [(queue.name, queue.visible, queue.dead_letters) for queue in reading.queues]


def test_an_endpoint_that_nobody_listens_at_is_called_unreachable(surroundings):
    config = AwsConfig(
        region=REGION, endpoint_url="http://127.0.0.1:9", attempts=1, read_logs=False
    )

    async def main():
        source = AwsSource("aws", config)
        try:
            return await source.read()
        finally:
            await source.close()

    errors = failing(asyncio.run(main()))
    assert {errors[name] for name in ASKED_FIRST} == {"the endpoint cannot be reached"}
    assert "nothing to ask about before an answer of autoscaling" in errors["ec2"]
    assert "nothing to ask about before an answer of efs" in errors["cloudwatch"]


def test_an_answer_of_an_unknown_shape_fails_its_part_alone(shared, aws, monkeypatch):
    def odd(_):
        raise KeyError("serviceArns")

    monkeypatch.setattr(shared._parts["ecs services"], "read", odd)
    reading = read(shared)
    assert failing(reading) == {
        "ecs services": "the answer was not understood (KeyError: 'serviceArns')"
    }
    assert reading.wishes


def test_without_boto3_the_config_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(calling_module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[aws\]'"):
        AwsSource("aws", AwsConfig())


def test_a_closed_source_asks_nothing_more(aws):
    async def main():
        source = AwsSource("aws", settings(aws, read_logs=False))
        await source.close()
        return source

    source = asyncio.run(main())
    assert source.operations == {}


# --- what it has to be allowed --------------------------------------------------------------------


def test_the_policy_allows_what_is_called_and_nothing_else(shared, aws):
    read(shared)
    called = {iam_action(*operation.split(":")) for operation in shared.operations}
    assert actions(policy(PolicyScope())) == called


def test_the_printed_policy_is_enough_for_moto_and_no_more(aws, monkeypatch):
    """moto's engine knows actions only: resources and conditions are left out for it."""
    printed = CliRunner().invoke(aws_command, ["iam-policy", "--cluster", "marigold"])
    document = json.loads(printed.output)
    for statement in document["Statement"]:
        statement.pop("Condition", None)
        statement["Resource"] = "*"
    document["Statement"][0]["Action"].append("monitoring:GetMetricData")  # moto's name for it
    iam = aws.client("iam")
    iam.create_user(UserName="holdfast")
    iam.put_user_policy(UserName="holdfast", PolicyName="read", PolicyDocument=json.dumps(document))
    key = iam.create_access_key(UserName="holdfast")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])

    async def main():
        async with opened(aws) as source:
            return await source.read()

    with enable_iam_authentication():
        reading = asyncio.run(main())
        refused = refused_writes(aws, key)
    # Of a GET with a query moto computes another signature than boto3 does.
    failed = failing(reading)
    assert "the signature" in failed.pop("efs", "the signature")
    assert not failed
    assert len(reading.hosts) == len(reading.placed) == 8
    assert refused == ["TerminateInstances", "StopTask", "PurgeQueue", "DeleteLogStream"]


def refused_writes(aws, key):
    session = boto3.session.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name=REGION)
    queue = f"{aws.url}/{ACCOUNT}/{NAMES[0]}"
    tries = [
        ("ec2", "terminate_instances", {"InstanceIds": ["i-1"]}),
        ("ecs", "stop_task", {"cluster": "marigold", "task": "t"}),
        ("sqs", "purge_queue", {"QueueUrl": queue}),
        ("logs", "delete_log_stream", {"logGroupName": "g", "logStreamName": "s"}),
    ]
    refused = []
    for service, name, arguments in tries:
        client = session.client(service, endpoint_url=aws.url)
        try:
            getattr(client, name)(**arguments)
        except ClientError as error:
            if "not authorized" in str(error):
                refused.append(error.operation_name)
        finally:
            client.close()
    return refused


# --- for the discovery of replicas ----------------------------------------------------------------


def test_tasks_are_watched_as_pods_are(aws, marigold):
    """Nothing is known before it was read; what changes wakes up whoever waits for it."""

    async def main():
        async with opened(aws) as source:
            assert isinstance(source, WatchedSource)
            assert not source.known
            waiting = asyncio.create_task(source.changed(0))
            await source.read()
            version = await asyncio.wait_for(waiting, 30)
            assert source.known
            listed = {placed.id: placed for placed in source.glance().placed}
            task = marigold.tasks["llm-8b"][0]
            placed = listed[task.id]
            assert placed.uid == task.id
            assert dict(placed.labels)["task-definition"] == placed.revision == "llm-8b:1"
            assert placed.port_said == "8000"  # of its host: ECS knows which
            source.replica_of = lambda name: "mine" if name == task.id else ""
            rows = {placed.id: placed for placed in (await source.read()).placed}
            assert rows[task.id].replica == "mine"
            assert {one.replica for name, one in rows.items() if name != task.id} == {""}
            version = source.version  # a first reading may have come in pieces
            await source.read()
            assert source.version == version  # nothing has changed
            task.desired_status = "STOPPED"
            try:
                waiting = asyncio.create_task(source.changed(version))
                await source.read()
                assert await asyncio.wait_for(waiting, 30) > version
                assert {p.state for p in source.glance().placed if p.id == task.id} == {"stopping"}
            finally:
                task.desired_status = "RUNNING"

    asyncio.run(main())


def test_what_has_no_address_of_its_own_is_not_known_before_its_host_is(aws):
    """Else a control that begins while EC2 fails would take replicas for gone."""

    async def main():
        async with opened(aws) as source:
            aws.order(Fault("InternalFailure", "ec2", status=500))
            await source.read()
            assert not source.known
            aws.calm()
            await source.read()
            assert source.known

    asyncio.run(main())
