"""One view of an AWS fleet, as somebody meets it: real commands, a real control, a fake account.

The fleet is that of ``tests/sources/aws``, where the source alone is held against it; here every
field is followed to where it is read. What the view cannot know is told apart from nothing.
"""

import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.append(HERE)

from aws_stage import (  # noqa: E402 found by the path above
    PARLER,
    STUDIO,
    Parler,
    Stage,
    aws_fleet,
    aws_front,
    surroundings,
)

GIB, MIB = 1 << 30, 1 << 20
SPOKE_S = 5.0  # ago, of those that are well
EXPIRED = "the credentials have expired: log in again"
PARTS = (
    *("autoscaling", "ecs hosts", "ecs tasks", "ecs services", "sqs"),
    *("ec2", "efs", "cloudwatch", "logs"),
)


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """Gives the stage of a plan. There is one account, so that another plan ends the last one's."""
    now = {}
    state = tmp_path_factory.mktemp("state")

    def stage_of(name, make):
        if name not in now:
            end()
            now[name] = make(tmp_path_factory.mktemp(name))
        return now[name]

    def end():
        while now:
            now.popitem()[1].close()

    with surroundings(state):
        yield stage_of
        end()


@pytest.fixture
def marigold(staged):
    """The fleet of the seed, with a replica that is stuck and one that was killed."""
    stage = staged("marigold", _marigold)
    yield stage
    stage.aws.calm()


def _marigold(folder):
    stage = Stage(folder, aws_fleet.MARIGOLD)
    fleet = stage.fleet
    dead = fleet.tasks[PARLER][0]
    aws_fleet.plant_parler(fleet)
    dead.started_at = dead.stopped_at - timedelta(seconds=60)  # it took its first request
    return stage


@pytest.fixture
def studio(staged):
    """A fleet in which all is well, and a control that watches it."""
    stage = staged("studio", _studio)
    yield stage
    stage.aws.calm()


def _studio(folder):
    stage = Stage(folder, STUDIO)
    try:
        stage.start()
    except BaseException:
        stage.close()
        raise
    return stage


def speak(fleet):
    """Whoever runs says so every few seconds; building the fleet took longer. When that was."""
    for model in fleet.plan.models:
        for task in fleet.tasks[model.name]:
            if task.last_status == "RUNNING":
                aws_fleet.say(fleet, model.name, task, SPOKE_S, {"phase": "heartbeat"})
    return time.time() - SPOKE_S


def by(rows, key="name"):
    found = {row[key]: row for row in rows}
    assert len(found) == len(rows), f"two rows of one {key}"
    return found


def same(row, **expected):
    """Every field of a row; floats nearly, and its age only where it is too old."""
    assert row.get("age_s", 0.0) < 60
    row = row | {"age_s": 0.0} if "age_s" in row else row
    assert row.keys() == expected.keys(), row.keys() ^ expected.keys()
    for name, want in expected.items():
        if isinstance(want, float):
            want = pytest.approx(want, rel=1e-9, abs=3.0)  # noqa: PLW2901
        assert row[name] == want, f"{name} of {row}"


def failing(view):
    return {row["part"]: row["error"] for row in view["sources"] if row["error"]}


def incident_of(view, model, cause):
    (found,) = [
        row
        for row in view["incidents"]
        if row["cause"] == cause and row["id"] in by(view["models"])[model]["incidents"]
    ]
    return found["id"]


# --- every field of the seed's view, in one look --------------------------------------------------


def check_groups(view, fleet):
    """Type, market, uptime, CPUs left, memory, GPUs free, running and pending."""
    stuck, small = (
        incident_of(view, "llm-70b", "load_stalled"),
        incident_of(view, "bge-embed", "undersized"),
    )
    parler = incident_of(view, PARLER, "undersized")
    expected = {
        "marigold-gpu-large": (48.0, 32.0, 3 * 63_417, 32_000, 3, 1, 1, 1, [stuck]),
        "marigold-gpu-small": (16.0, 8.0, 2 * 31_738, 28_000, 2, 0, 2, 0, []),
        "marigold-cpu": (8.0, 5.0, 2 * 31_612, 9_216, 0, 0, 3, 0, sorted([small, parler])),
        "marigold-test": (4.0, 4.0, 15_574, 0, 1, 1, 0, 0, []),
    }
    groups = by(view["groups"])
    assert list(groups) == [plan.name for plan in fleet.plan.groups]
    uptime = view["at"] - fleet.began + aws_fleet.LAUNCHED_S
    for plan in fleet.plan.groups:
        cpus, free, memory, reserved, gpus, idle, running, pending, incidents = expected[plan.name]
        row = groups[plan.name]
        same(
            row | {"incidents": sorted(row["incidents"])},
            name=plan.name,
            source="aws",
            kind=plan.kind,
            market="spot" if plan.spot else "on-demand",
            hosts=plan.hosts,
            desired=plan.hosts,
            minimum=0,
            maximum=8,
            uptime_s=uptime,
            uptime_max_s=uptime,
            cpus=cpus,
            cpus_free=free,
            memory_bytes=memory * MIB,
            reserved_bytes=reserved * MIB,
            used_bytes=None,  # no service of AWS tells it of a host
            gpus=gpus,
            gpus_free=idle,
            running=running,
            pending=pending,
            age_s=0.0,
            faults=[],
            incidents=incidents,
        )
    large = groups["marigold-gpu-large"]["memory_bytes"]
    assert round(large / GIB) == 186  # as the seed has it


def check_backlog(view, fleet):
    """Visible, in flight, dead letters; the depth and the share of each model; what is unmet."""
    plans = {plan.name: plan for plan in fleet.plan.models}
    small = incident_of(view, "bge-embed", "undersized")
    parler = incident_of(view, PARLER, "undersized")
    whole = sum(plan.waiting - 3 for plan in plans.values())
    queues = by(view["queues"])
    assert set(queues) == {f"{name}-requests" for name in plans}
    for name, plan in plans.items():
        faults = ["1 dead letter", "the oldest waits 14 min"] if name == PARLER else []
        about = {"bge-embed": [small], PARLER: [parler]}  # all of the model is ill
        same(
            queues[f"{name}-requests"],
            name=f"{name}-requests",
            model=name,
            source="aws",
            visible=plan.waiting - 3,
            in_flight=3,
            delayed=0,
            dead_letters=plan.dead,
            oldest_s=plan.oldest_s,
            drain_s=None,  # AWS does not say how fast it is worked off
            share=(plan.waiting - 3) / whole,
            age_s=0.0,
            faults=faults,
            incidents=about.get(name, []),
        )
    models = by(view["models"])
    ready = {"llm-70b": (1, 2, 4), "llm-8b": (2, 2, 2), "bge-embed": (2, 2, 2), PARLER: (1, 1, 2)}
    for name, plan in plans.items():
        row = models[name]
        assert (row["ready"], row["replicas"], row["desired"]) == ready[name]
        assert row["waiting"] == plan.waiting - 3
        assert row["backlog_share"] == pytest.approx((plan.waiting - 3) / whole)
    tagged = "image registry/parler-tts:v1 is named by a tag on 1 of 1"
    told = ["1 of 1 reserve 1.1 GB, use 3.8 GB", tagged, "1 dead letter"]
    assert models[PARLER]["faults"] == told
    unplaced, fewer = view["unmet"]
    reason = "(service llm-70b) was unable to place a task because no container instance met all"
    since = view["at"] - fleet.began + 120
    same(unplaced, model="llm-70b", missing=3, reason=reason, since_s=since, source="aws")
    reason = "the platform runs fewer than it was asked for, and says nothing"
    same(fewer, model=PARLER, missing=1, reason=reason, since_s=None, source="aws")


def check_filesystem(view, fleet):
    (disk,) = view["disks"]
    same(
        disk,
        id=fleet.filesystem,
        source="aws",
        mode="bursting",
        read_bytes_s=15.0 * MIB,
        metered_bytes_s=6.0 * MIB,
        permitted_bytes_s=100.0 * MIB,
        used_share=0.06,
        operations_share=0.074,
        burst_credit_bytes=2.1e12 - 39 * 3e9,
        clients=40,
        age_s=0.0,
        faults=[],
        incidents=[],
    )


def check_replicas(view, fleet, spoke_at):
    """Where each is placed, what it reserves and uses, its phase and how long it is silent."""
    replicas, hosts = by(view["replicas"], "id"), by(view["hosts"], "id")
    assert (len(replicas), len(hosts)) == (8, 8)
    stuck, dead = fleet.tasks["llm-70b"][1], fleet.tasks[PARLER][0]
    for plan in fleet.plan.models:
        for number, task in enumerate(fleet.tasks[plan.name]):
            row = replicas[task.id]
            host = fleet.hosts[plan.group][number]
            assert (row["model"], row["group"], row["host"]) == (plan.name, plan.group, host)
            assert hosts[host]["group"] == plan.group
            assert row["reserved_bytes"] == plan.reserved_mib * MIB
            assert row["limit_bytes"] == plan.limit_mib * MIB
            assert (row["gpus"], row["filesystem"]) == (plan.gpus, fleet.filesystem)
            assert row["log_stream"] == fleet.stream(task, plan.name)
            if task not in {stuck, dead}:
                assert (row["state"], row["phase"]) == ("running", "serving")
                assert row["used_bytes"] == plan.used_mib * MIB
                silent = view["at"] - spoke_at - aws_fleet.PIPE_S
                assert row["silent_s"] == pytest.approx(silent, abs=3)
                assert row["uptime_s"] == pytest.approx(view["at"] - fleet.began + 910, abs=3)
    row = replicas[stuck.id]
    assert (row["state"], row["phase"], row["used_bytes"]) == ("pending", "loading", None)
    silent = view["at"] - fleet.began + 900
    assert row["silent_s"] == pytest.approx(silent, abs=60)
    assert [fault.split(" for ")[0] for fault in row["faults"]] == ["pending", "silent"]
    row = replicas[dead.id]
    assert (row["state"], row["phase"], row["silent_s"]) == ("stopped", "request", None)
    assert row["faults"] == ["killed for memory (exit code 137)"]


def check_effort(view):
    """Calls and seconds, of each part and in all."""
    parts = by(view["sources"], "part")
    assert tuple(parts) == PARTS
    assert not failing(view)
    assert all(row["calls"] >= 1 and row["took_s"] > 0 for row in parts.values())
    assert all(row["age_s"] < 60 for row in parts.values())
    assert view["calls"] == sum(row["calls"] for row in parts.values()) <= 60
    assert view["took_s"] > 0
    assert view["notes"] == []


def test_one_look_shows_every_field_with_the_right_value(marigold):
    fleet = marigold.fleet
    listed = marigold.aws.client("logs").describe_log_streams(logGroupName=fleet.plan.log_group)
    hour_ago = (time.time() - 3_000) * 1_000  # these times lie, as they do on AWS
    assert all(stream["lastEventTimestamp"] < hour_ago for stream in listed["logStreams"])
    spoke_at, before = speak(fleet), Counter(marigold.aws.front.seen)
    view = marigold.look()
    made = marigold.aws.front.seen - before
    assert view["calls"] == sum(made.values())
    assert not made["logs:DescribeLogStreams"]
    check_groups(view, fleet)
    check_backlog(view, fleet)
    check_filesystem(view, fleet)
    check_replicas(view, fleet, spoke_at)
    check_effort(view)
    causes = Counter(row["cause"] for row in view["incidents"])
    assert causes == {"load_stalled": 1, "undersized": 2}


def test_the_text_shows_the_same(marigold):
    fleet = marigold.fleet
    speak(fleet)
    lines = marigold.text().splitlines()

    def row(*cells):
        """A line with these cells in this order."""
        for line in lines:
            rest = iter(line.split())
            if all(cell in rest for cell in cells):
                return True
        return False

    assert row("marigold-gpu-large", "g5.4xlarge", "on-demand", "3d", "32/48", "31G/186G", "1/3")
    assert row("marigold-gpu-small", "g4dn.2xlarge", "spot", "8/16", "27G/62G", "0/2", "2+0")
    assert row("marigold-cpu", "r5.xlarge", "on-demand", "5/8", "9G/62G", "3+0", "2/2")
    assert row("marigold-gpu-large", "1+1", "3/3")
    assert row(f"{PARLER}-requests", "38", "3", "1!", "14m", "64%")
    assert row("llm-70b", "3", "(service", "unable")
    assert row(fleet.filesystem, "bursting", "6%", "7%", "40")
    assert row(fleet.tasks["llm-70b"][1].id, "pending", "llm-70b", "loading")
    assert row(fleet.tasks[PARLER][0].id, "stopped", PARLER)
    assert row(PARLER, "1/2", "38", "64%")
    assert "killed for memory (exit code 137)" in "\n".join(lines)
    assert any(line.endswith(" s") and "calls to platforms" in line for line in lines[-3:])


# --- what goes wrong with the account, in one look ------------------------------------------------


def test_a_look_that_is_throttled_at_first_shows_everything_all_the_same(marigold):
    spoke_at = speak(marigold.fleet)
    faults = [
        aws_front.Fault("ThrottlingException", "ecs", times=2),
        aws_front.Fault("RequestLimitExceeded", "ec2", times=1),
        aws_front.Fault("Throttling", "autoscaling", times=1),
        aws_front.Fault("RequestThrottled", "sqs", times=2),
        aws_front.Fault("ThrottlingException", "logs", times=1),
    ]
    marigold.aws.order(*faults)
    view = marigold.look()
    assert [fault.times for fault in faults] == [0] * len(faults)
    check_groups(view, marigold.fleet)
    check_backlog(view, marigold.fleet)
    check_replicas(view, marigold.fleet, spoke_at)
    assert not failing(view)


def test_a_service_that_fails_from_the_start_leaves_its_own_columns_unknown(marigold):
    marigold.aws.order(
        aws_front.Fault("InternalFailure", "ec2", status=500),
        aws_front.Fault("AccessDeniedException", "logs"),
    )
    view = marigold.look()
    errors = failing(view)
    assert set(errors) == {"ec2", "logs"}
    assert "DescribeInstances failed" in errors["ec2"]
    assert "logs:FilterLogEvents is not allowed" in errors["logs"]
    groups = by(view["groups"])
    joined = view["at"] - marigold.fleet.began + aws_fleet.LAUNCHED_S - 90
    for row in groups.values():
        assert row["market"] == ""
        assert row["uptime_s"] == pytest.approx(joined, abs=3)  # in the cluster, for want of more
    large = groups["marigold-gpu-large"]
    assert (large["cpus_free"], large["gpus_free"], large["running"]) == (32.0, 1, 1)
    assert all(any("ec2" in fault for fault in row["faults"]) for row in view["hosts"])
    assert {row["silent_s"] for row in view["replicas"]} == {None}
    assert {row["phase"] for row in view["replicas"]} == {""}
    check_filesystem(view, marigold.fleet)


def test_a_look_with_credentials_that_have_expired_says_so_and_shows_no_zero(marigold):
    marigold.aws.order(aws_front.Fault("ExpiredToken"))
    text = marigold.text()
    assert f"! aws autoscaling: {EXPIRED}" in text
    assert f"{len(PARTS) - 1} more fail · 0 of {len(PARTS)} parts well" in text
    assert "no incident known" in text
    assert "✓" not in text
    assert "0+0" not in text


# --- what goes wrong with it while a control watches ----------------------------------------------


def test_rows_of_a_service_that_fails_stay_with_the_reason_and_the_others_go_on(studio):
    before = by(studio.view()["queues"])
    studio.aws.order(aws_front.Fault("InternalFailure", "sqs", status=500))
    view = studio.until(failing, "a service fails")
    assert set(failing(view)) == {"sqs"}
    for name, row in by(view["queues"]).items():
        assert row["visible"] == before[name]["visible"]
        assert any("sqs" in fault and "failed" in fault for fault in row["faults"])
    assert all(not row["faults"] for row in view["groups"] + view["hosts"] + view["replicas"])
    later = studio.until(
        lambda one: by(one["sources"], "part")["sqs"]["failing_s"] > 2, "it goes on failing"
    )
    parts = by(later["sources"], "part")
    assert parts["sqs"]["age_s"] > parts["ecs tasks"]["age_s"]
    studio.aws.calm()
    view = studio.until(lambda one: not failing(one), "it is read again")
    assert all(not row["faults"] for row in view["queues"])
    assert view["incidents"] == []  # what is not known is no failure of a replica


def test_rows_stay_when_the_credentials_expire_and_each_says_so(studio):
    before = studio.view()
    studio.aws.order(aws_front.Fault("ExpiredToken"))
    asked = set(PARTS) - {"ec2", "efs", "cloudwatch"}  # not due at every reading
    view = studio.until(lambda one: asked <= set(failing(one)), "the credentials have expired")
    assert all(EXPIRED in error for error in failing(view).values())
    for kind in ("groups", "hosts", "replicas", "queues"):
        key = "name" if kind in {"groups", "queues"} else "id"
        assert set(by(view[kind], key)) == set(by(before[kind], key))
        for row in view[kind]:
            assert any(EXPIRED in fault for fault in row["faults"]), (kind, row)
    queues = by(view["queues"])
    assert {name: row["visible"] for name, row in queues.items()} == {
        row["name"]: row["visible"] for row in before["queues"]
    }
    wrong = studio.text().partition("WHAT IS WRONG")[2]
    assert len(asked) <= wrong.count(EXPIRED) <= len(PARTS)  # once for each part, not on each row
    studio.aws.calm()
    view = studio.until(lambda one: not failing(one), "somebody has logged in again")
    assert view["incidents"] == []


# --- Parler ---------------------------------------------------------------------------------------


def marked_rows(view, incident):
    """The names of the rows of each kind that an incident is on."""
    kinds = ("groups", "hosts", "replicas", "models", "queues", "disks")
    return {
        kind: {row.get("id") or row["name"] for row in view[kind] if incident in row["incidents"]}
        for kind in kinds
    }


def test_parler_is_one_incident_on_the_right_rows_everywhere(studio):
    assert studio.view()["incidents"] == []
    story = Parler(studio)
    view = story.play()
    (incident,) = view["incidents"]
    name = incident["id"]
    assert (incident["failure_class"], incident["cause"]) == ("runtime", "undersized")
    assert incident["about"] == PARLER
    assert incident["confidence"] >= 0.9
    assert "reservation 1.1 GB" in incident["fix"]
    followed = " · ".join(incident["consequences"])
    for text in ("the queue of parler-tts grew", "dead letter"):
        assert text in followed
    assert "killed it for lack of memory" not in followed  # it is the proof
    dead = {task.id for task in story.dead}
    rows = {
        "groups": {"marigold-cpu"},
        "hosts": story.hosts(),
        "replicas": dead,
        "models": {PARLER},
        "queues": {f"{PARLER}-requests"},
        "disks": set(),
    }
    assert set(incident["replicas"]) == dead
    assert len(dead) == 4
    assert marked_rows(view, name) == rows
    check_commands(studio, name, rows)


def check_commands(studio, name, rows):
    """The same id on the same rows in JSON, in text and in the list of incidents."""
    shown = studio.look()
    assert [row["id"] for row in shown["incidents"]] == [name]
    assert marked_rows(shown, name) == rows
    lines = studio.text().splitlines()
    mark = f"!{int(name.rpartition('-')[2])}"
    marked = [line for line in lines if line.startswith(f"{mark} ")]
    assert any("undersized of parler-tts" in line for line in marked)
    for names in (rows["groups"], rows["replicas"], rows["models"], rows["queues"]):
        for one in names:
            assert any(one in line.split() and name in line.split() for line in marked), one
    others = [line.split()[1] for line in marked if name in line.split()]
    known = set().union(*rows.values())
    assert {one for one in others if one != "undersized"} <= known
    told = studio.command("incidents")
    assert name in told
    assert "undersized" in told
    assert told.count("inc-") == 1
