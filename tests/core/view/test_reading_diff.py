"""Readings shaped like a fleet on a cloud, turned into facts; and the story that they tell."""

from dataclasses import replace

import pytest

from holdfast.core.diagnose.evidence import Sign, Stage
from holdfast.core.diagnose.facts import (
    Declared,
    FellSilent,
    FilesystemSeen,
    Gone,
    GpuFault,
    GpuSeen,
    HostConditionSeen,
    HostSeen,
    Looked,
    MemorySeen,
    PhaseSeen,
    ProcessEnded,
    QueueSeen,
    ReplicasWanted,
    SourceFailing,
    VersionsSeen,
)
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Cause, Class
from holdfast.core.gpu import GpuDevice, use_of
from holdfast.core.types import ConfigError, HostCondition, nanos
from holdfast.core.view import reading_diff as module
from holdfast.core.view.layers import (
    DesiredReplicas,
    Disk,
    Group,
    Host,
    Part,
    Placed,
    Queue,
    Reading,
)
from holdfast.core.view.reading_diff import ReadingDiff, ReadingDiffConfig

MIB = 1 << 20
WALL = 1_800_000_000.0


def reading(*placed, source="aws", at=WALL, parts=(), **more):
    return Reading(source, "aws", at, tuple(parts), placed=tuple(placed), **more)


def task(name="t1", state="running", **more):
    given = {"model": "parler", "host": "i-1", "started_at": WALL - 100, **more}
    return Placed(name, state=state, **given)


def facts(diff, *placed, after=0.0, **more):
    return diff.take(reading(*placed, **more), nanos(1_000 + after), WALL + after)


def of(found, kind):
    return [fact for fact in found if isinstance(fact, kind)]


# --- GPUs -----------------------------------------------------------------------------------------

DEVICE = GpuDevice(
    "GPU-a", 0, memory_used_bytes=50, memory_total_bytes=80, utilisation=0.1, temperature_c=40
)


def gpu_facts(diff, after=0.0, kind="kubernetes", device=DEVICE, held=30):
    use = use_of((device,), (held,))
    row = task(host="n1", gpu=use, devices=(device.id,))
    made = Reading("k8s", kind, WALL, hosts=(Host("n1", devices=(device,)),), placed=(row,))
    return diff.take(made, nanos(1_000 + after), WALL + after)


def test_figures_of_gpus_are_told_with_the_replicas_on_them_and_not_too_often():
    diff = ReadingDiff()
    (seen,) = of(gpu_facts(diff), GpuSeen)
    assert (seen.host, seen.gpu, seen.label, seen.replicas) == ("n1", "GPU-a", "GPU 0", ("t1",))
    assert (seen.utilisation, seen.temperature_c, seen.reporter) == (0.1, 40, "")
    assert of(gpu_facts(diff, 5.0), GpuSeen) == []
    assert len(of(gpu_facts(diff, 10.0), GpuSeen)) == 1


def test_figures_of_an_exporter_that_fails_are_not_told_again():
    failed = Part("dcgm", at=WALL - 60, error="1 of 1 exporters failed", failing_since=WALL - 30)
    host = Host("n1", devices=(DEVICE,))
    made = Reading("k8s", "kubernetes", WALL, (failed,), hosts=(host,))
    found = ReadingDiff().take(made, nanos(1_000), WALL)
    assert (of(found, GpuSeen), of(found, MemorySeen)) == ([], [])


def test_memory_of_a_gpu_is_told_with_what_is_free_beside_it():
    (memory,) = of(gpu_facts(ReadingDiff()), MemorySeen)
    assert memory == MemorySeen("t1", 30, 60, "gpu")
    assert of(gpu_facts(ReadingDiff(), held=None), MemorySeen) == []  # only the device's sum
    (memory,) = of(gpu_facts(ReadingDiff(), kind="agent"), MemorySeen)
    assert memory.reporter == "agent of k8s"


def test_an_xid_is_news_once_and_history_at_first_sight():
    diff, lost = ReadingDiff(), replace(DEVICE, xid=79, xid_fatal=True)
    assert of(gpu_facts(diff, device=lost), GpuFault) == []
    diff = ReadingDiff()
    assert of(gpu_facts(diff), GpuFault) == []
    assert of(gpu_facts(diff, 5.0, device=lost), GpuFault) == [GpuFault("t1", 79, fatal=True)]
    assert of(gpu_facts(diff, 10.0, device=lost), GpuFault) == []
    diff = ReadingDiff()  # agents tell their faults one by one, as they hear them
    gpu_facts(diff, kind="agent")
    assert of(gpu_facts(diff, 5.0, kind="agent", device=lost), GpuFault) == []


# --- replicas -------------------------------------------------------------------------------------


def test_a_replica_is_declared_once_and_again_when_it_changes():
    diff = ReadingDiff()
    one = task(reserved_bytes=10, limit_bytes=20, needs_gpu=False, filesystem="fs-1", revision="7")
    (declared,) = of(facts(diff, one), Declared)
    assert declared == Declared(
        "t1", "parler", "7", "i-1", "", "fs-1", "", False, None, None, 10, 20, False
    )
    assert not of(facts(diff, one, after=15), Declared)
    assert of(facts(diff, replace(one, reserved_bytes=11), after=30), Declared)


def test_a_replica_that_is_no_longer_listed_is_gone():
    diff = ReadingDiff()
    facts(diff, task("a"), task("b"))
    assert facts(diff, task("a"), after=15) == [Gone("b")]


def test_nobody_is_gone_because_the_platform_could_not_be_asked():
    diff = ReadingDiff()
    facts(diff, task("a"), parts=[Part("ecs", WALL)])
    failing = Part("ecs", WALL, "throttled", WALL)
    assert facts(diff, after=15, parts=[failing]) == []
    assert facts(diff, after=30, parts=[Part("ecs", WALL + 30)]) == [Gone("a")]


def test_an_end_is_told_once_with_what_the_platform_knows_of_it():
    diff = ReadingDiff()
    facts(diff, task(phase="request", limit_bytes=9))
    dead = task(
        state="stopped",
        stopped_at=WALL + 10,
        exit_code=137,
        oom=True,
        phase="request",
        used_bytes=5,
        limit_bytes=9,
    )
    found = facts(diff, dead, after=15)
    assert found == [
        MemorySeen("t1", 5, 9),
        ProcessEnded("t1", 137, oom=True, phase="serving", uptime_s=110.0, served=1),
    ]
    assert facts(diff, dead, after=30) == []


def test_an_ended_replica_is_kept_for_a_while_and_then_gone_for_good():
    diff = ReadingDiff()
    facts(diff, task())
    dead = task(state="stopped", stopped_at=WALL + 10, exit_code=1)
    facts(diff, dead, after=15)
    assert facts(diff, after=300) == []
    assert facts(diff, dead, after=616) == [Gone("t1")]
    assert facts(diff, dead, after=630) == []


def test_ends_of_the_past_are_history_and_recent_ones_are_news():
    diff = ReadingDiff()
    old = task("old", "stopped", stopped_at=WALL - 2_000, exit_code=1)
    new = task("new", "stopped", stopped_at=WALL - 60, exit_code=1)
    unknown = task("unknown", "stopped", exit_code=1)
    found = facts(diff, old, new, unknown)
    assert [fact.replica for fact in found] == ["new", "new"]
    assert isinstance(found[-1], ProcessEnded)


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"exit_code": 143}, True),
        ({"exit_code": 0}, True),
        ({"exit_code": 0, "reason": "Essential container in task exited"}, False),
        ({"exit_code": 137, "reason": "Scaling activity initiated by (deployment 1)"}, True),
        ({"exit_code": 137, "oom": True, "reason": "deployment"}, False),
        ({"exit_code": 1}, False),
        ({}, False),
    ],
)
def test_who_was_told_to_stop_did_not_fail(more, asked):
    diff = ReadingDiff()
    facts(diff, task())
    (end,) = of(facts(diff, task(state="stopped", **more), after=15), ProcessEnded)
    assert end.asked is asked


def test_a_task_that_never_ran_failed_to_start():
    diff = ReadingDiff()
    facts(diff, task(state="pending", started_at=None))
    dead = task(state="stopped", started_at=None, reason="CannotPullContainerError")
    (end,) = of(facts(diff, dead, after=15), ProcessEnded)
    assert (end.phase, end.uptime_s, end.asked) == ("starting", None, False)


def test_a_restart_in_place_is_an_end_of_a_replica_that_lives_on():
    diff = ReadingDiff()
    facts(diff, task(restarts=2))
    again = task(restarts=3, exit_code=137, oom=True, started_at=WALL + 5)
    (end,) = of(facts(diff, again, after=15), ProcessEnded)
    assert (end.replica, end.code, end.oom) == ("t1", 137, True)
    assert not of(facts(diff, again, after=30), ProcessEnded)
    assert facts(diff, again, after=2_000) == []


def test_a_restart_before_the_first_look_counts_when_it_was_just_now():
    recent = task(restarts=1, stopped_at=WALL - 30, oom=True)
    assert of(facts(ReadingDiff(), recent), ProcessEnded)
    assert not of(facts(ReadingDiff(), replace(recent, stopped_at=WALL - 9_000)), ProcessEnded)


def test_a_routed_replica_is_told_under_its_own_name_and_a_launched_one_not_at_all():
    diff = ReadingDiff()
    diff.follow({"http://10.0.0.1:8000": "m-1"}, {"m-2"})
    found = facts(
        diff,
        task("a", endpoint="http://10.0.0.1:8000"),
        task("b", replica="m-2"),
        task("c", replica="m-3"),
    )
    assert [fact.replica for fact in of(found, Declared)] == ["m-1", "m-3"]


def test_of_two_tasks_of_one_replica_the_living_one_is_declared_and_the_dead_one_ends():
    diff = ReadingDiff()
    facts(diff, task("a", replica="m-1", host="i-1"))
    found = facts(
        diff,
        task("a", "stopped", replica="m-1", host="i-1", exit_code=1),
        task("b", "pending", replica="m-1", host="i-2", started_at=None),
        task("c", replica="m-1", host="i-3"),
        after=15,
    )
    assert of(found, Declared)[0].host == "i-3"
    assert len(of(found, ProcessEnded)) == 1
    assert not of(facts(diff, task("c", replica="m-1", host="i-3"), after=900), Gone)


def test_memory_is_told_with_each_reading_unless_it_was_not_measured():
    diff = ReadingDiff()
    one = task(used_bytes=7, limit_bytes=9)
    assert of(facts(diff, one), MemorySeen) == [MemorySeen("t1", 7, 9)]
    assert of(facts(diff, one, after=15), MemorySeen)
    failing = Part("container-insights", WALL, "no", WALL)
    assert not of(facts(diff, one, after=30, parts=[failing]), MemorySeen)


# --- what they say --------------------------------------------------------------------------------


def test_phases_are_told_when_they_change_and_progress_while_it_loads():
    diff = ReadingDiff()
    found = facts(diff, task(phase="loading", read_bytes=5))
    assert of(found, PhaseSeen) == [PhaseSeen("t1", "loading", 5)]
    found = facts(diff, task(phase="loading", read_bytes=9), after=15)
    assert of(found, PhaseSeen) == [PhaseSeen("t1", "loading", 9)]
    found = facts(diff, task(phase="loaded"), after=30)
    assert of(found, PhaseSeen) == [PhaseSeen("t1", "serving")]
    assert not of(facts(diff, task(phase="request"), after=45), PhaseSeen)
    assert not of(facts(diff, task(phase="humming"), after=60), PhaseSeen)


def test_silence_while_loading_is_told_for_as_long_as_it_lasts():
    diff = ReadingDiff()
    one = task(phase="loading", spoke_at=WALL - 130)
    assert of(facts(diff, one), FellSilent) == [FellSilent("t1", "loading", 130.0)]
    assert of(facts(diff, one, at=WALL + 15, after=15), FellSilent)
    assert not of(facts(diff, replace(one, spoke_at=WALL), after=30), FellSilent)


def test_a_compiler_may_be_silent_for_longer():
    one = task(phase="compile", spoke_at=WALL - 130)
    assert not of(facts(ReadingDiff(), one), FellSilent)
    assert of(facts(ReadingDiff(), replace(one, spoke_at=WALL - 700)), FellSilent)


def test_silence_counts_only_as_far_as_the_log_was_read():
    one = task(phase="loading", spoke_at=WALL - 130)
    read = [Part("logs", WALL - 100, "throttled", WALL - 100)]
    assert not of(facts(ReadingDiff(), one, parts=read), FellSilent)
    assert not of(facts(ReadingDiff(), one, parts=[Part("logs", None, "denied")]), FellSilent)


def test_one_that_used_to_speak_is_held_to_its_habit():
    diff = ReadingDiff()
    for beat in range(5):
        told = WALL + 15 * beat
        one = task(phase="heartbeat", spoke_at=told)
        assert not of(facts(diff, one, at=told, after=15 * beat), FellSilent)
    last = task(phase="heartbeat", spoke_at=WALL + 60)
    assert not of(facts(diff, last, at=WALL + 115, after=115), FellSilent)
    (silence,) = of(facts(diff, last, at=WALL + 130, after=130), FellSilent)
    assert silence == FellSilent("t1", "serving", 70.0)


def test_one_without_a_habit_is_idle_unless_a_request_came():
    quiet = task(phase="loaded", spoke_at=WALL - 4_000)
    assert not of(facts(ReadingDiff(), quiet), FellSilent)
    assert of(facts(ReadingDiff(), replace(quiet, phase="request")), FellSilent)


def test_a_new_life_has_no_habit_yet():
    diff = ReadingDiff()
    for beat in range(5):
        facts(diff, task(phase="heartbeat", spoke_at=WALL + beat), after=beat)
    anew = task(phase="loaded", started_at=WALL + 5, spoke_at=WALL + 6)
    assert not of(facts(diff, anew, at=WALL + 900, after=900), FellSilent)


# --- what is around them --------------------------------------------------------------------------


def test_hosts_are_told_when_they_change_and_once_a_minute():
    diff = ReadingDiff()
    host = Host("i-1", "gpu", memory_bytes=100, reserved_bytes=30, gpus=1)
    assert facts(diff, hosts=(host,)) == [HostSeen("i-1", 1, 100, 70, "gpu")]
    assert facts(diff, hosts=(host,), after=15) == []
    assert facts(diff, hosts=(replace(host, reserved_bytes=130),), after=30) == [
        HostSeen("i-1", 1, 100, 0, "gpu")
    ]
    assert facts(diff, after=45) == []
    assert facts(diff, hosts=(Host("i-1"),), after=46) == [HostSeen("i-1")]
    assert facts(diff, hosts=(Host("i-1"),), after=110) == [HostSeen("i-1")]


def test_what_is_told_again_of_many_is_not_told_at_once():
    diff = ReadingDiff()
    many = [task(f"t{number}", image="i:1") for number in range(600)]
    assert len(of(facts(diff, *many), VersionsSeen)) == 600
    counts = [len(of(facts(diff, *many, after=after), VersionsSeen)) for after in range(5, 65, 5)]
    assert sum(counts) == 600  # each of them once in a minute
    assert max(counts) < 100  # and a twelfth at each look, more or less


def test_versions_are_those_of_the_host_and_of_the_image():
    host = Host("i-1", cuda="12.1", driver="535")
    found = facts(ReadingDiff(), task(image="r/p@sha256:00"), hosts=(host,))
    assert of(found, VersionsSeen) == [
        VersionsSeen("t1", cuda="12.1", driver="535", image="r/p@sha256:00")
    ]
    assert not of(facts(ReadingDiff(), task()), VersionsSeen)


def test_a_disk_is_told_as_its_ceiling_counts():
    found = facts(
        ReadingDiff(), disks=(Disk("fs-1", "bursting", 300.0, 100.0, 105.0, 0.07, 1, 40),)
    )
    assert found == [FilesystemSeen("fs-1", 100.0, 105.0, 0.07, 40)]
    assert facts(ReadingDiff(), disks=(Disk("fs-2", read_bytes_s=9.0), Disk(""))) == [
        FilesystemSeen("fs-2", 9.0)
    ]


def test_queues_of_one_model_are_one_backlog_and_old_numbers_are_not_told():
    queues = (
        Queue("q1", "m", 3, 1, 0, 2, oldest_s=9.0),
        Queue("q2", "m", 4, None, 0, None, oldest_s=12.0),
        Queue("q3", "m", None),
        Queue("q4", "", 3),
    )
    assert facts(ReadingDiff(), queues=queues) == [QueueSeen("m", 7, 1, 2, 12.0)]
    failing = Part("sqs", WALL, "AccessDenied", WALL)
    assert facts(ReadingDiff(), queues=queues, parts=[failing]) == []


# --- bounds ---------------------------------------------------------------------------------------


def test_everything_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "SOURCES_MAX", 2)
    monkeypatch.setattr(module, "REPLICAS_MAX", 3)
    monkeypatch.setattr(module, "ENDS_MAX", 2)
    diff = ReadingDiff()
    for number in range(4):
        facts(diff, *(task(f"t{n}") for n in range(5)), source=f"s{number}")
    assert list(diff._books) == ["s2", "s3"]
    dead = [task(f"t{n}", "stopped", exit_code=1) for n in range(5)]
    facts(diff, *dead, source="s3", after=15)
    book = diff._books["s3"]
    assert (len(book.replicas), len(book.ends)) == (3, 2)


def test_a_source_that_is_no_longer_asked_takes_its_replicas_along():
    diff = ReadingDiff()
    facts(diff, task("a"))
    assert diff.forget("aws") == [Gone("a")]
    assert diff.forget("aws") == []


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match=r"reading_diff.keep_s"):
        ReadingDiffConfig(keep_s=0)
    with pytest.raises(ConfigError, match=r"reading_diff.beats"):
        ReadingDiffConfig(beats=0.5)


# --- the story ------------------------------------------------------------------------------------

GROUPS = {  # name: kind, market, hosts, cpus, MiB, GPUs, CUDA, driver
    "gpu-large": ("g5.4xlarge", "on-demand", 3, 16, 63_417, 1, "12.1", "535.183"),
    "gpu-small": ("g4dn.2xlarge", "spot", 2, 8, 31_738, 1, "11.8", "520.61"),
    "cpu": ("r5.xlarge", "on-demand", 2, 4, 31_612, 0, "", ""),
    "test": ("g4dn.xlarge", "spot", 1, 4, 15_574, 1, "12.1", "535.183"),
}
MODELS = {  # name: reserved MiB, limit MiB, GPUs, used MiB, group
    "llm-70b": (16_000, 48_000, 1, 9_000, "gpu-large"),
    "llm-8b": (14_000, 28_000, 1, 9_000, "gpu-small"),
    "bge-embed": (4_096, 8_192, 0, 3_000, "cpu"),
    "parler-tts": (1_024, 1_024, 0, 800, "cpu"),
}
PARTS = ("autoscaling", "ec2", "ecs", "sqs", "efs", "cloudwatch", "logs")


def fleet_hosts():
    return tuple(
        Host(
            f"i-{group}-{number}",
            group,
            kind,
            market,
            launched_at=WALL - 259_200,
            joined_at=WALL - 259_000,
            cpus=float(cpus),
            cpus_free=1.0,
            memory_bytes=mib * MIB,
            reserved_bytes=5_000 * MIB,
            gpus=gpus,
            gpus_free=0,
            cuda=cuda,
            driver=driver,
        )
        for group, (kind, market, count, cpus, mib, gpus, cuda, driver) in GROUPS.items()
        for number in range(count)
    )


def member(model, number, at, **more):
    reserved, limit, gpus, used, group = MODELS[model]
    given = {
        "host": f"i-{group}-{number % 2}",
        "revision": f"{model}:1",
        "needs_gpu": bool(gpus),
        "gpus": gpus,
        "reserved_bytes": reserved * MIB,
        "limit_bytes": limit * MIB,
        "used_bytes": used * MIB,
        "filesystem": "fs-1",
        "image": f"registry/{model}@sha256:{'0' * 64}",
        "started_at": WALL - 3_600,
        "phase": "heartbeat",
        "spoke_at": at - 3,
        **more,
    }
    return Placed(f"{model}-task-{number}", model, given.pop("state", "running"), **given)


def fleet(at, tasks, waiting):
    disk = Disk("fs-1", "bursting", 15e6, 6e6, 104_857_600.0, 0.074, 2e12, 40)
    queues = tuple(
        Queue(f"{model}-requests", model, count, 3, 0, dead, f"{model}-dlq")
        for model, (count, dead) in waiting.items()
    )
    return Reading(
        "aws",
        "aws",
        at,
        tuple(Part(name, at) for name in PARTS),
        tuple(Group(name, 2, 0, 8) for name in GROUPS),
        fleet_hosts(),
        tuple(tasks),
        queues,
        (disk,),
    )


def watch(minutes, look):
    """Readings every 15 s, and a second's look in between, as control does."""
    investigation, diff = Investigation(), ReadingDiff()
    opened = []
    for second in range(int(minutes * 60)):
        now = nanos(5_000 + second)
        if second % 15 == 0:
            at = WALL + second
            for fact in diff.take(look(at, second), now, at):
                opened += investigation.take(fact, now)
        opened += investigation.take(Looked(), now)
    return investigation, opened


def steady(at, models=("llm-70b", "llm-8b", "bge-embed", "parler-tts")):
    return [member(model, number, at) for model in models for number in range(2)]


def test_a_calm_fleet_has_no_incident():
    def look(at, second):
        breathing = dict.fromkeys(MODELS, (10 + second // 15 % 4, 1))
        return fleet(at, steady(at), breathing)

    investigation, _ = watch(12, look)
    assert dict(investigation.incidents) == {}


def test_a_deployment_that_replaces_its_tasks_in_order_has_no_incident():
    def look(at, second):
        tasks = steady(at, ("llm-70b", "bge-embed"))
        if second >= 120:
            stopped = {"stopped_at": WALL + 120, "exit_code": 143, "state": "stopped"}
            tasks = [member("llm-70b", n, at, **stopped) for n in range(2)]
            tasks += [member("llm-70b", n, at, started_at=WALL + 100) for n in (2, 3)]
        return fleet(at, tasks, {"llm-70b": (3, 0)})

    investigation, _ = watch(15, look)
    assert dict(investigation.incidents) == {}


LIFE = 75  # seconds from the start of a task until its first request has killed it


def parler(at, second):
    """Both tasks load, take their first request, use 3.6 GB of 1 GB, die, and are replaced."""
    tasks = []
    for place in (0, 1):
        shifted = second + 30 * place
        for life in range(shifted // LIFE + 1):
            began = WALL + life * LIFE - 30 * place
            ended = began + LIFE - 10
            age = at - began
            more = {"started_at": began, "used_bytes": 3_600 * MIB}
            if at >= ended:
                if at - ended > 1_800:
                    continue
                more |= {"state": "stopped", "stopped_at": ended, "exit_code": 137, "oom": True}
                more |= {"reason": "OutOfMemoryError: Container killed due to memory usage"}
                more |= {"phase": "request", "spoke_at": ended - 5}
            elif age < 40:
                more |= {"phase": "loading", "used_bytes": None}
            else:
                more |= {"phase": "request", "spoke_at": at - 1}
            tasks.append(member("parler-tts", 2 * life + place, at, **more))
    return tasks


def test_the_story_of_parler_is_one_incident_with_the_queue_as_its_consequence():
    def look(at, second):
        tasks = steady(at, ("llm-70b", "llm-8b", "bge-embed")) + parler(at, second)
        waiting = dict.fromkeys(MODELS, (10, 0))
        waiting["parler-tts"] = (42 + second // 4, 1 + second // 90)
        return fleet(at, tasks, waiting)

    investigation, _ = watch(12, look)
    (incident,) = [one for one in investigation.incidents.values() if one.stage is not Stage.CLOSED]
    assert len(investigation.incidents) == 1
    assert incident.cause is Cause.UNDERSIZED
    assert incident.failure_class is Class.RUNTIME
    assert incident.about.model == "parler-tts"
    assert incident.confidence > 0.9
    assert all(name.startswith("parler-tts-task-") for name in incident.replicas)
    followed = {one.sign for one in incident.consequences}
    assert {Sign.QUEUE_GROWS, Sign.DEAD_LETTERS} <= followed
    assert Sign.RESERVED_TOO_LITTLE in {one.sign for one in incident.evidence}
    assert "1.1 GB" in incident.fix
    assert "3.8 GB" in incident.fix


def test_the_same_story_is_found_where_nobody_measures_memory():
    def look(at, second):
        blind = [replace(one, used_bytes=None) for one in parler(at, second)]
        return fleet(at, blind, {"parler-tts": (42 + second // 4, 1 + second // 90)})

    investigation, _ = watch(12, look)
    (incident,) = investigation.incidents.values()
    assert (incident.cause, incident.about.model) == (Cause.UNDERSIZED, "parler-tts")


def test_one_task_that_dies_every_few_minutes_is_one_incident():
    """It is replaced under another name each time, and each time it lives for a while."""

    def look(at, second):
        tasks = []
        for life in range(second // 240 + 1):
            began = WALL + 240 * life
            more = {"started_at": began, "used_bytes": None, "phase": "serving"}
            if at >= began + 230:
                more |= {"state": "stopped", "stopped_at": began + 230, "exit_code": 137}
                more |= {"oom": True}
            tasks.append(member("parler-tts", life, at, **more))
        return fleet(at, tasks, {"parler-tts": (42, 0)})

    investigation, _ = watch(22, look)
    (incident,) = investigation.incidents.values()
    assert (incident.cause, incident.about.model) == (Cause.UNDERSIZED, "parler-tts")
    assert len(incident.replicas) == 5


def test_a_model_for_gpus_on_a_host_without_one_is_misplaced_at_the_first_look():
    lost = member("llm-8b", 0, WALL, host="i-cpu-0")
    investigation, diff = Investigation(), ReadingDiff()
    for fact in diff.take(fleet(WALL, [lost], {}), nanos(1), WALL):
        investigation.take(fact, nanos(1))
    (incident,) = investigation.incidents.values()
    assert incident.cause is Cause.MISPLACED


# --- the life of a container ----------------------------------------------------------------------


def restarted(ran_s, *, ended_ago=1.0, **more):
    """A pod whose container was ended and is started again in its place."""
    stopped = WALL - ended_ago
    given = {"restarts": 1, "exit_code": 137, "oom": True, "started_at": None, **more}
    return task(stopped_at=stopped, ended_began_at=stopped - ran_s, **given)


def test_a_container_that_had_been_ready_ended_while_serving():
    diff = ReadingDiff()
    facts(diff, task(ready=False, phase="loading"))
    facts(diff, task(ready=True, phase="loading"), after=10)  # its log was read no further
    (end,) = of(facts(diff, restarted(81.0, phase="loading"), after=20), ProcessEnded)
    assert (end.phase, end.uptime_s, end.oom) == ("serving", 81.0, True)


def test_one_that_was_first_seen_after_its_end_is_judged_by_its_platform_s_own_times():
    (end,) = of(facts(ReadingDiff(), restarted(81.0, served=True)), ProcessEnded)
    assert (end.phase, end.uptime_s) == ("serving", 81.0)
    (end,) = of(facts(ReadingDiff(), restarted(20.0)), ProcessEnded)
    assert (end.phase, end.uptime_s) == ("", 20.0)


def test_a_second_end_while_it_waits_to_be_started_is_told_at_once():
    diff = ReadingDiff()
    facts(diff, task())
    assert of(facts(diff, restarted(9.0), after=5), ProcessEnded)
    again = restarted(4.0, ended_ago=-6.0)  # in back-off: its restarts are not counted up yet
    assert of(facts(diff, again, after=8), ProcessEnded)
    assert not of(facts(diff, again, after=13), ProcessEnded)
    counted = replace(again, restarts=2)
    assert not of(facts(diff, counted, after=18), ProcessEnded)


@pytest.mark.parametrize("served", [True, False])
def test_killed_for_memory_is_another_cause_after_serving_than_while_loading(served):
    diff, investigation = ReadingDiff(), Investigation()
    for after, one in (
        (0, task()),
        (20, restarted(81.0, served=served, phase="" if served else "loading")),
    ):
        for fact in facts(diff, one, after=after):
            investigation.take(fact, nanos(1_000 + after))
    investigation.take(Looked(), nanos(1_040))
    causes = [one.cause for one in investigation.incidents.values()]
    assert causes == [Cause.OUT_OF_MEMORY if served else Cause.LOAD_OUT_OF_MEMORY]


@pytest.mark.parametrize(
    ("seen", "end", "phase"),
    [
        ({"ready": False}, {}, "loading"),  # its probe never passed
        ({"ready": None}, {}, ""),  # nobody probes it: unknown
        ({"ready": None}, {"served": False}, "loading"),  # by its platform's own times
        ({"ready": False, "phase": "compile"}, {}, "compile"),  # its log knows more
        ({"ready": False, "phase": "loaded"}, {}, "serving"),
    ],
)
def test_who_was_never_ready_by_a_platform_that_tells_had_not_loaded(seen, end, phase):
    diff = ReadingDiff()
    facts(diff, task(**seen))
    (told,) = of(facts(diff, restarted(81.0, **end), after=20), ProcessEnded)
    assert told.phase == phase


@pytest.mark.parametrize("code", [0, 137, 143])
def test_an_eviction_is_nobody_s_wish_however_orderly_it_ended(code):
    why = "Evicted: The node was low on resource: ephemeral-storage."
    diff = ReadingDiff()
    facts(diff, task(ready=True))
    over = task(state="stopped", stopped_at=WALL, exit_code=code, reason=why)
    (told,) = of(facts(diff, over, after=5), ProcessEnded)
    assert (told.asked, told.phase, told.reason) == (False, "serving", why)


# --- what a platform cannot do --------------------------------------------------------------------


def test_a_part_that_fails_is_told_with_its_age_and_details_are_not():
    failing = Part("pods", WALL - 90, "403 Forbidden", WALL - 80)
    detail = Part("metrics-server", None, "404", WALL - 80)
    (fact,) = of(facts(ReadingDiff(), task(), parts=(failing, detail)), SourceFailing)
    assert fact == SourceFailing("aws", "pods", 80.0, "403 Forbidden")
    assert not of(facts(ReadingDiff(), task(), parts=(Part("pods", WALL),)), SourceFailing)


def test_what_is_wanted_and_waits_is_told_with_the_platform_s_reason():
    waits = DesiredReplicas("m", 3, 1, 2, "no capacity", WALL - 70)
    (fact,) = of(facts(ReadingDiff(), wishes=(waits,)), ReplicasWanted)
    assert fact == ReplicasWanted("m", 3, 1, 2, 70.0, "no capacity", "aws")
    met = replace(waits, pending=0, running=3)
    for other in (replace(waits, reason=""), met, replace(waits, since=None)):
        assert not of(facts(ReadingDiff(), wishes=(other,)), ReplicasWanted)


def test_what_fits_nowhere_is_missing_though_no_list_of_its_platform_has_it():
    """ECS counts a task as pending once it has a host; before that there is none."""
    waits = DesiredReplicas("m", 3, 1, 0, "unable to place a task", WALL - 70)
    (fact,) = of(facts(ReadingDiff(), wishes=(waits,)), ReplicasWanted)
    assert (fact.desired, fact.running, fact.pending) == (3, 1, 2)


def test_who_never_ran_is_the_wish_of_its_model_and_no_end():
    never = task("t1", "stopped", started_at=None, reason="CannotPullContainerError: not found")
    wish = DesiredReplicas("parler", 1, 0, 0, "CannotPullContainerError: not found", WALL - 70)
    found = facts(ReadingDiff(), replace(never, stopped_at=WALL - 1), wishes=(wish,))
    assert [type(fact) for fact in found] == [ReplicasWanted]
    # Started by hand, or ended after it ran: nobody else tells.
    alone = facts(ReadingDiff(), replace(never, stopped_at=WALL - 1))
    assert [fact.phase for fact in of(alone, ProcessEnded)] == ["starting"]
    ran = replace(never, started_at=WALL - 50, stopped_at=WALL - 1, exit_code=1)
    assert of(facts(ReadingDiff(), ran, wishes=(wish,)), ProcessEnded)


# --- hosts that cannot run replicas ---------------------------------------------------------------


def conditions(diff, *hosts, after=0.0, **more):
    return of(facts(diff, after=after, hosts=hosts, **more), HostConditionSeen)


def test_a_host_s_condition_is_told_while_it_is_not_well_and_once_when_it_is_again():
    diff, since = ReadingDiff(), WALL - 40
    ill = Host(
        "h1",
        condition=HostCondition.NOT_READY,
        condition_reason="runtime is down",
        condition_since=since,
    )
    well = Host("h1", condition=HostCondition.READY)
    assert conditions(diff, well) == []  # what is as it should be is no news
    fact = HostConditionSeen("h1", HostCondition.NOT_READY, "runtime is down", 45.0, "aws")
    assert conditions(diff, ill, after=5) == [fact]
    assert conditions(diff, ill, after=10) == []
    assert conditions(diff, ill, after=65) == [replace(fact, lasted_s=105.0)]  # it still holds
    assert conditions(diff, Host("h1"), after=70) == []  # nobody says
    told = HostConditionSeen("h1", HostCondition.READY, source="aws")
    assert conditions(diff, well, after=75) == [told]
    assert conditions(diff, well, after=80) == []


def test_nothing_is_told_of_a_host_by_a_platform_that_could_not_be_asked():
    ill = Host("h1", condition=HostCondition.UNREACHABLE)
    failing = Part("nodes", WALL - 80, "403 Forbidden", WALL - 75)
    assert conditions(ReadingDiff(), ill, parts=(failing,)) == []
    assert conditions(ReadingDiff(), ill, parts=(Part("nodes", WALL),))


# --- ends over a restart --------------------------------------------------------------------------


def ended(name="t1", **more):
    return task(name, "stopped", stopped_at=WALL - 30, exit_code=137, **more)


def test_ends_that_were_told_are_not_told_by_the_next_process():
    first, second = ReadingDiff(), ReadingDiff()
    looped = task("t2", restarts=1, stopped_at=WALL - 20, exit_code=1)
    assert len(of(facts(first, ended(), looped), ProcessEnded)) == 2
    assert first.ends_told == 2
    second.restore(first.told_ends())
    assert of(facts(second, ended(), looped), ProcessEnded) == []
    assert second.ends_told == 0
    again = replace(looped, restarts=2, stopped_at=WALL - 10)
    assert of(facts(second, ended(), again, ended("t3")), ProcessEnded)
    assert second.ends_told == 2


def test_ends_of_long_ago_are_history_for_both_and_not_kept():
    diff = ReadingDiff()
    facts(diff, task("t1", "stopped", stopped_at=WALL - 5_000, exit_code=1))
    assert (diff.told_ends(), diff.ends_told) == ({}, 0)


def test_only_the_latest_ends_are_kept():
    diff = ReadingDiff()
    facts(diff, *(ended(f"t{n}") for n in range(module.KEPT_ENDS_MAX + 5)))
    kept = diff.told_ends()["aws"]
    assert len(kept) == module.KEPT_ENDS_MAX
    assert kept[-1][0] == f"t{module.KEPT_ENDS_MAX + 4}"


@pytest.mark.parametrize(
    "kept", [None, [], "x", {"aws": None}, {"aws": [1, ["a"], ["a", "b"], [2, 3]]}, {"aws": {}}]
)
def test_what_is_not_a_record_of_ends_is_ignored(kept):
    diff = ReadingDiff()
    diff.restore(kept)
    assert diff.told_ends() == {}
    assert of(facts(diff, ended()), ProcessEnded)


def test_a_task_that_takes_over_a_name_has_an_end_of_its_own():
    diff = ReadingDiff()
    assert of(facts(diff, ended(uid="u1")), ProcessEnded)
    assert of(facts(diff, ended(uid="u1"), after=5), ProcessEnded) == []
    assert of(facts(diff, ended(uid="u2"), after=10), ProcessEnded)
