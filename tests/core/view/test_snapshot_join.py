"""Layers that look well alone and are not when they are held together."""

from dataclasses import replace

import pytest

from holdfast.core.diagnose.evidence import About, Evidence, Incident, Sign
from holdfast.core.failure import Cause, Class
from holdfast.core.gpu import POWER_CAP, THERMAL, GpuDevice, use_of
from holdfast.core.types import SECOND, nanos
from holdfast.core.view import snapshot_join
from holdfast.core.view.fleet_records import FleetRecords, ModelRecord, ReplicaRecord
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
from holdfast.core.view.snapshot_join import join

NOW = 1_800_000_000.0
CORE = nanos(10_000)
GB = 1_000_000_000
CPU = Host("i-cpu", "cpu", "r5.xlarge", "on-demand", memory_bytes=32 * GB, gpus=0, gpus_free=0)
GPU = Host("i-gpu", "gpu", "g5.4xlarge", "spot", memory_bytes=64 * GB, gpus=1, gpus_free=0)


def task(name, model="m", state="running", host="i-cpu", **more):
    return Placed(name, model, state, host, **more)


def read(*placed, source="aws", **more):
    more.setdefault("hosts", (CPU, GPU))
    return Reading(source, "aws", NOW, placed=tuple(placed), **more)


def joined(*readings, known=None, incidents=(), **more):
    return join(readings, known or FleetRecords(), incidents, NOW, CORE, **more)


def incident(cause=Cause.UNDERSIZED, about=None, replicas=("t1",), **more):
    about = about or About(model="m")
    made = Incident("inc-1", cause, Class.RUNTIME, about, CORE - 90 * SECOND, 0.9, **more)
    made.replicas = replicas
    return made


# --- GPUs -----------------------------------------------------------------------------------------

HOT = GpuDevice(
    "GPU-a",
    0,
    memory_used_bytes=60 * GB,
    memory_total_bytes=80 * GB,
    utilisation=0.5,
    temperature_c=88,
    power_w=300.0,
    throttle=(THERMAL,),
)
COOL = replace(HOT, id="GPU-b", index=1, temperature_c=50, throttle=(POWER_CAP,))


def test_what_a_platform_knows_of_gpus_is_on_the_rows_of_replica_and_host():
    use = use_of((HOT, COOL), (10 * GB, 20 * GB))
    host = replace(GPU, devices=(HOT, COOL), gpus=2)
    seen = joined(read(task("t1", host="i-gpu", gpu=use), hosts=(host,)))
    (row,) = seen.replicas
    assert (row.gpu.count, row.gpu.held_bytes, row.gpu.memory_total_bytes) == (2, 30 * GB, 160 * GB)
    assert (row.gpu.temperature_c, row.gpu.power_w, row.gpu.utilisation) == (88, 600.0, 0.5)
    assert row.gpu.memory_share == 0.5  # of what it could have: a neighbour has the rest
    assert row.faults == ("GPU 0: slowed (thermal)",)
    (shown,) = seen.hosts
    assert (shown.gpu.memory_used_bytes, shown.gpu.held_bytes) == (120 * GB, None)
    assert shown.devices == (HOT, COOL)
    assert "GPU 0: slowed (thermal)" in shown.faults
    assert not any("GPU 1" in fault for fault in shown.faults)  # busy at its limit is no fault


def test_control_knows_the_gpus_of_a_replica_that_no_platform_lists():
    use = use_of((COOL,), (GB,))
    known = FleetRecords((ReplicaRecord("m-1", "m", "ready", host="here", gpu=use),))
    (row,) = joined(known=known).replicas
    assert (row.gpu, row.gpus) == (use, 1)


def test_without_a_gpu_nothing_is_said_of_one():
    (row,) = joined(read(task("t1", gpus=0))).replicas
    assert (row.gpu, row.gpus) == (None, 0)
    unknown = use_of((GpuDevice("GPU-a"),), (None,))
    assert unknown.memory_share is unknown.held_bytes is unknown.memory_used_bytes is None
    assert unknown.limit_bytes is unknown.throttle is None
    assert use_of(()) is None


# --- groups and hosts -----------------------------------------------------------------------------


def test_the_group_table_of_the_seed():
    hosts = tuple(
        Host(
            f"i-{n}",
            "large",
            "g5.4xlarge",
            "spot" if n else "on-demand",
            "eu-west-2a",
            launched_at=NOW - 3_600 * (n + 1),
            joined_at=NOW - 3_600 * (n + 1) + 200,
            cpus=16.0,
            cpus_free=4.0,
            memory_bytes=62 * GB,
            reserved_bytes=16 * GB,
            used_bytes=20 * GB,
            gpus=1,
            gpus_free=int(n == 2),
            running=2,
            pending=int(n == 0),
        )
        for n in range(3)
    )
    (row,) = joined(read(hosts=hosts, groups=(Group("large", 4, 0, 8),))).groups
    assert (row.name, row.source, row.kind, row.hosts) == ("large", "aws", "g5.4xlarge", 3)
    assert row.market == "2 spot + 1 on-demand"
    assert (row.desired, row.minimum, row.maximum) == (4, 0, 8)
    assert (row.uptime_s, row.uptime_max_s) == (3_600.0, 10_800.0)
    assert (row.cpus, row.cpus_free) == (48.0, 12.0)
    assert (row.memory_bytes, row.reserved_bytes) == (186 * GB, 48 * GB)
    assert (row.used_bytes, row.gpus, row.gpus_free) == (60 * GB, 3, 1)
    assert (row.running, row.pending) == (6, 1)
    assert row.faults == ("3 of 4 hosts",)


def test_a_host_without_a_group_is_one_of_its_own():
    shot = joined(read(hosts=(Host("box", used_bytes=3, memory_bytes=9),)))
    assert [row.name for row in shot.groups] == ["box"]
    assert shot.hosts[0].group == "box"
    assert shot.groups[0].used_bytes == 3


def test_a_group_without_hosts_is_shown_with_what_it_lacks():
    (row,) = joined(read(hosts=(), groups=(Group("gone", 2),))).groups
    assert (row.hosts, row.faults, row.memory_bytes) == (0, ("0 of 2 hosts",), None)


def test_memory_in_use_is_not_summed_over_a_part_of_the_hosts():
    hosts = (replace(CPU, used_bytes=5), replace(CPU, id="i-2"))
    assert joined(read(hosts=hosts)).groups[0].used_bytes is None


def test_two_sources_that_see_one_host_make_one_row():
    agent = Reading("agent", "agent", NOW, hosts=(Host("i-cpu", used_bytes=7, cuda="12.1"),))
    (cpu, _) = joined(read(), agent).hosts
    assert (cpu.source, cpu.used_bytes, cpu.cuda, cpu.kind) == ("aws", 7, "12.1", "r5.xlarge")


def test_an_image_that_only_a_tag_holds_in_place_is_said_on_its_model():
    tagged = task("a", image="r/m:latest@sha256:1", image_asked="r/m:latest")
    shot = joined(read(tagged, task("b", image="r/m@sha256:1"), task("c", image="r/m:1")))
    assert shot.models[0].faults == ("image r/m:latest is named by a tag on 2 of 3",)
    pinned = joined(read(task("a", image="r/m@sha256:1"), task("b")))
    assert pinned.models[0].faults == ()


def test_cuda_that_differs_within_a_group_and_a_model_is_said_on_both():
    hosts = (replace(GPU, cuda="12.1"), replace(GPU, id="i-2", cuda="11.8", driver="520"))
    shot = joined(read(task("a", host="i-gpu"), task("b", host="i-2"), hosts=hosts))
    assert shot.groups[0].faults == ("CUDA differs: 12.1 on 1, 11.8 on 1",)
    assert shot.models[0].faults == ("CUDA differs: 12.1 on 1, 11.8 on 1",)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"state": "DRAINING"}, "DRAINING"),
        ({"used_bytes": 31 * GB}, "memory 97% in use"),
        ({"reserved_bytes": 40 * GB}, "40.0 GB reserved of 32.0 GB"),
        ({"pressure": 0.25}, "memory is waited for 25% of the time"),
        (
            {"launched_at": NOW - 2_000, "joined_at": NOW - 800},
            "took 20 min from its launch to its first use",
        ),
    ],
)
def test_what_is_wrong_with_a_host_is_said_on_it_and_on_its_group(more, fault):
    shot = joined(read(hosts=(replace(CPU, **more),)))
    assert shot.hosts[0].faults == (fault,)
    assert shot.groups[0].faults == (f"i-cpu: {fault}",)


def test_a_host_that_joined_a_second_time_did_not_boot_slowly():
    old = replace(CPU, launched_at=NOW - 260_000, joined_at=NOW - 60)
    (row,) = joined(read(hosts=(old,))).hosts
    assert (row.faults, row.bootstrap_s, row.uptime_s) == ((), 259_940.0, 260_000.0)


def test_a_host_that_never_came_into_use_is_told_where_others_did():
    here = replace(CPU, launched_at=NOW - 9_000, joined_at=NOW - 8_900)
    late = replace(CPU, id="i-2", launched_at=NOW - 900)
    young = replace(CPU, id="i-3", launched_at=NOW - 60)
    _, row, new = joined(read(hosts=(here, late, young))).hosts
    assert row.faults == ("launched 15 min ago and not in use yet",)
    assert new.faults == ()
    assert joined(read(hosts=(late,))).hosts[0].faults == ()


def test_tasks_are_counted_where_a_platform_does_not_count_them():
    shot = joined(read(task("a"), task("b", state="pending"), task("c", state="stopped")))
    assert (shot.hosts[0].running, shot.hosts[0].pending) == (1, 1)
    assert (shot.hosts[1].running, shot.hosts[1].pending) == (None, None)


# --- replicas -------------------------------------------------------------------------------------


def test_a_model_for_gpus_on_a_host_without_one_is_misplaced_on_every_row_above():
    shot = joined(read(task("t1", "llm", needs_gpu=True)))
    told = "misplaced: needs a GPU, and i-cpu has none"
    assert shot.replicas[0].faults == (told,)
    assert shot.hosts[0].faults == (f"llm {told}",)
    assert shot.groups[0].faults == (f"i-cpu: llm {told}",)
    assert shot.models[0].faults == ("1 misplaced",)
    assert not joined(read(task("t1", needs_gpu=True, host="i-gpu"))).replicas[0].faults


def test_more_than_a_host_has_is_misplaced_too():
    (row,) = joined(read(task("t1", reserved_bytes=33 * GB))).replicas
    assert row.faults == ("misplaced: needs 33.0 GB, and i-cpu has 32.0 GB",)


def test_a_reservation_below_the_footprint_is_said_in_numbers():
    small = task("t1", "parler", reserved_bytes=GB, limit_bytes=4 * GB, used_bytes=3_600_000_000)
    shot = joined(read(small))
    assert shot.replicas[0].faults == ("reserves 1.0 GB, uses 3.6 GB",)
    assert shot.models[0].faults == ("1 of 1 reserve 1.0 GB, use 3.6 GB",)
    (row,) = joined(read(task("t1", limit_bytes=100 * GB, used_bytes=97 * GB, host=""))).replicas
    assert row.faults == ("uses 97% of its limit of 100.0 GB",)


@pytest.mark.parametrize(
    ("more", "faults"),
    [
        (
            {"state": "stopped", "oom": True, "exit_code": 137},
            ("killed for memory (exit code 137)",),
        ),
        (
            {"state": "stopped", "exit_code": 1, "reason": "no such file"},
            ("ended (exit code 1): no such file",),
        ),
        ({"state": "stopped", "exit_code": 143}, ()),
        ({"oom": True, "restarts": 4}, ("was killed for memory and started again", "restarted 4")),
        ({"oom": True, "restarts": 1, "stopped_at": NOW - 9_000}, ()),
        ({"state": "pending", "reason": "no GPU left"}, ("pending: no GPU left",)),
        ({"state": "pending", "created_at": NOW - 1_200}, ("pending for 20 min",)),
        ({"state": "pending", "created_at": NOW - 12}, ()),
        ({"phase": "loading", "spoke_at": NOW - 870}, ("silent for 14 min while loading",)),
        ({"phase": "request", "spoke_at": NOW - 590}, ("silent for 10 min since its last",)),
        ({"phase": "serving", "spoke_at": NOW - 9_000}, ()),
    ],
)
def test_what_a_platform_tells_of_a_replica_is_put_in_words(more, faults):
    (row,) = joined(read(task("t1", **more))).replicas
    assert len(row.faults) == len(faults)
    assert all(told.startswith(fault) for told, fault in zip(row.faults, faults, strict=True))


def test_a_replica_of_both_worlds_is_one_row_with_what_each_knows():
    known = ReplicaRecord(
        "m-1",
        "m",
        "ready",
        zone="zone-a",
        endpoint="http://10.0.0.1:8000",
        inflight=3,
        kv_used=0.4,
        canary_s=0.2,
        used_bytes=5,
    )
    placed = task("t1", endpoint="http://10.0.0.1:8000", reserved_bytes=9, started_at=NOW - 60)
    (row,) = joined(read(placed), known=FleetRecords((known,))).replicas
    assert (row.id, row.state, row.routed, row.source) == ("m-1", "ready", True, "aws")
    assert (row.host, row.group, row.reserved_bytes, row.used_bytes) == ("i-cpu", "cpu", 9, 5)
    assert (row.inflight, row.kv_used, row.canary_s, row.uptime_s) == (3, 0.4, 0.2, 60.0)
    by_name = task("t9", replica="m-1", log_stream="s/t9", image="r/m@sha256:1", gpus=1)
    (row,) = joined(read(by_name), known=FleetRecords((known,))).replicas
    assert (row.id, row.log_stream, row.image, row.gpus) == ("m-1", "s/t9", "r/m@sha256:1", 1)


def test_of_several_tasks_of_one_replica_the_living_one_is_it_and_the_dead_are_shown_beside():
    known = FleetRecords((ReplicaRecord("m-1", "m", "suspect", reason="late"),))
    tasks = (
        task("old", state="stopped", replica="m-1", exit_code=1, stopped_at=NOW - 30),
        task("new", replica="m-1", started_at=NOW - 9),
        task("next", state="pending", replica="m-1", used_bytes=4),
    )
    rows = joined(read(*tasks), known=known).replicas
    assert [(row.id, row.state, row.uptime_s) for row in rows] == [
        ("m-1", "suspect", 9.0),
        ("old", "stopped", None),
    ]
    assert rows[0].used_bytes == 4
    assert rows[0].faults == ("suspect: late",)
    only_dead = joined(read(tasks[0]), known=known).replicas
    assert [(row.id, row.state) for row in only_dead] == [("m-1", "suspect"), ("old", "stopped")]


def test_a_replica_that_no_platform_lists_is_as_the_fleet_has_it():
    known = ReplicaRecord(
        *("m-1", "m", "ready"),
        host="i-cpu",
        needs_gpu=True,
        reserved_bytes=GB,
        used_bytes=3 * GB,
        started_at=NOW - 5,
    )
    (row,) = joined(read(), known=FleetRecords((known,))).replicas
    assert (row.source, row.group, row.uptime_s) == ("fleet", "cpu", 5.0)
    assert row.faults == (
        "misplaced: needs a GPU, and i-cpu has none",
        "reserves 1.0 GB, uses 3.0 GB",
    )


def test_a_replica_that_the_fleet_does_not_show_yet_has_its_name_all_the_same():
    placed = task("t1", endpoint="http://a:1")
    (row,) = joined(read(placed), names={"http://a:1": "m-1"}).replicas
    assert (row.id, row.routed) == ("m-1", False)


def test_tasks_that_ended_long_ago_are_out_of_sight_unless_an_incident_names_them():
    old = task("t1", state="stopped", stopped_at=NOW - 2_000, oom=True)
    assert joined(read(old)).replicas == ()
    assert joined(read(old), incidents=[incident()]).replicas[0].incidents == ("inc-1",)


# --- models, queues, demands ----------------------------------------------------------------------


def test_models_are_counted_over_all_layers():
    known = FleetRecords(
        (
            ReplicaRecord("a-1", "a", "ready", kv_used=0.2, tokens_s=10.0, inflight=1),
            ReplicaRecord("a-2", "a", "loading", kv_used=0.6, tokens_s=5.0, inflight=2),
        ),
        (ModelRecord("a", 2, queued=6, requests_s=1.5, ttft_s=0.3, errors_share=0.1, burn=2.0),),
    )
    shot = joined(
        read(
            task("t1", "b"),
            task("t2", "b", phase="loading"),
            task("t3", "b", state="stopped"),
            queues=(Queue("q-b", "b", 12, 3, 0, 2), Queue("q-c", "c", 2)),
        ),
        known=known,
    )
    a, b, c = shot.models
    assert (a.name, a.ready, a.replicas, a.desired, a.inflight) == ("a", 1, 2, 2, 3)
    assert (a.waiting, a.backlog_share, a.tokens_s, a.kv_used) == (6, 0.3, 15.0, 0.4)
    assert (a.requests_s, a.ttft_s, a.errors_share, a.burn) == (1.5, 0.3, 0.1, 2.0)
    assert (b.ready, b.replicas, b.waiting, b.backlog_share) == (1, 2, 12, 0.6)
    assert b.faults == ("2 dead letters",)
    assert (c.name, c.replicas, c.waiting) == ("c", 0, 2)
    assert shot.totals == {}


def test_queues_have_their_share_and_say_when_nobody_takes_from_them():
    shot = joined(
        read(task("t1", "b"), queues=(Queue("q1", "b", 3, oldest_s=1_300), Queue("q2", "d", 1, 0))),
        known=FleetRecords(models=(ModelRecord("e", queued=0, inflight=4),)),
    )
    first, second, own = shot.queues
    assert (first.share, first.faults) == (0.75, ("the oldest waits 22 min",))
    assert second.faults == ("no replica of d takes from it",)
    assert (own.name, own.source, own.visible, own.in_flight, own.share) == (
        *("e", "gateways", 0, 4),
        0.0,
    )
    empty = joined(read(queues=(Queue("q", "b", 0), Queue("r", "b"))))
    assert [row.share for row in empty.queues] == [None, None]


def test_a_model_of_which_nobody_is_ready_says_so():
    shot = joined(read(task("t1", state="pending")))
    assert shot.models[0].faults == ("no replica is ready",)


def test_demands_that_cannot_be_met():
    shot = joined(
        read(
            task("t1", "held", state="pending", reason="0/3 nodes have a free GPU"),
            task("t2", "alone", state="pending", reason="no memory left"),
            task("t3", "held"),
            task("t4", "lags"),
            task("t5", "lags", state="stopped", oom=True),
            wishes=(
                DesiredReplicas("fine", 2, 2, 0),
                DesiredReplicas("coming", 2, 1, 1),
                DesiredReplicas("short", 4, 1, 1, since=NOW - 60),
                DesiredReplicas("held", 2, 1, 1),
                DesiredReplicas("lags", 3, 0, 3),
                DesiredReplicas("told", 3, 1, 0, "unable to place a task"),
                DesiredReplicas("unknown"),
            ),
        ),
        known=FleetRecords(
            (
                *(ReplicaRecord("x-1", "x", "dead"), ReplicaRecord("x-2", "x", "ready")),
                ReplicaRecord("w-1", "w", "starting"),
            ),
            (
                *(ModelRecord("x", 2), ModelRecord("y", 0), ModelRecord("z")),
                ModelRecord("w", 1, "2 GPUs wanted", unplaced=1),
            ),
        ),
    )
    assert [(row.model, row.missing, row.reason, row.source) for row in shot.unmet] == [
        ("short", 2, "the platform runs fewer than it was asked for, and says nothing", "aws"),
        ("held", 1, "0/3 nodes have a free GPU", "aws"),
        ("lags", 2, "the platform runs fewer than it was asked for, and says nothing", "aws"),
        ("told", 2, "unable to place a task", "aws"),
        ("alone", 1, "no memory left", "aws"),
        ("x", 1, "its replicas are down or not started", "fleet"),
        ("w", 1, "2 GPUs wanted", "fleet"),
    ]
    assert shot.unmet[0].since_s == 60.0
    assert {row.name: row.desired for row in shot.models}["short"] == 4


def test_a_filesystem_has_a_share_only_where_it_has_a_ceiling():
    shot = joined(
        read(
            disks=(
                Disk("fs-1", "bursting", 300.0, 99.0, 100.0, 0.95, 5.0, 40),
                Disk("fs-2", "elastic", 300.0, 99.0, None, 0.1),
                Disk("fs-3", read_bytes_s=10.0, permitted_bytes_s=100.0),
            )
        )
    )
    full, elastic, plain = shot.disks
    assert (full.used_share, full.clients, full.burst_credit_bytes) == (0.99, 40, 5.0)
    assert full.faults == (
        "bandwidth 99% of what is permitted",
        "operations 95% of what is permitted",
    )
    assert (elastic.used_share, elastic.faults, plain.used_share) == (None, (), 0.1)


# --- incidents ------------------------------------------------------------------------------------


def sign(what, **about):
    return Evidence(what, About(**about), CORE, "queues", f"{what.value} was seen")


def test_an_incident_is_on_every_row_where_somebody_would_meet_it():
    found = incident(about=About(model="parler"), replicas=("t1",))
    found.consequences = [sign(Sign.QUEUE_GROWS, model="parler")]
    shot = joined(
        read(
            task("t1", "parler"),
            task("t2", "other", host="i-gpu"),
            queues=(Queue("q1", "parler", 9), Queue("q2", "other", 1)),
            disks=(Disk("fs-1"),),
        ),
        incidents=[found],
    )
    for rows in (shot.replicas, shot.hosts, shot.groups, shot.models, shot.queues):
        assert [row.incidents for row in rows] == [("inc-1",), ()]
    assert shot.disks[0].incidents == ()
    (row,) = shot.incidents
    assert (row.id, row.failure_class, row.cause, row.stage) == (
        *("inc-1", "runtime", "undersized"),
        "open",
    )
    assert (row.opened_s, row.about, row.title) == (90.0, "parler", "undersized of parler")
    assert row.consequences == ("queue_grows was seen",)


def test_one_ill_replica_of_many_does_not_mark_the_queue_or_the_disk():
    about = About("t1", "m", "1", "i-cpu", "fs-1")
    shot = joined(
        read(task("t1"), queues=(Queue("q", "m", 1),), disks=(Disk("fs-1"),)),
        incidents=[incident(Cause.HUNG, about)],
    )
    assert shot.queues[0].incidents == shot.disks[0].incidents == ()
    assert shot.replicas[0].incidents == shot.models[0].incidents == ("inc-1",)


def test_an_incident_of_a_filesystem_and_of_a_host_are_on_those():
    disk = incident(Cause.COLD_START_CONTENTION, About(filesystem="fs-1"), ())
    disk.evidence = [sign(Sign.FILESYSTEM_FULL_SPEED, filesystem="fs-1")]
    host = replace_id(incident(Cause.GPU_FAULT, About(host="i-gpu"), ()), "inc-2")
    shot = joined(read(disks=(Disk("fs-1"),)), incidents=[disk, host])
    assert shot.disks[0].incidents == ("inc-1",)
    assert [row.incidents for row in shot.groups] == [(), ("inc-2",)]


def replace_id(found, name):
    found.id = name
    return found


def test_a_closed_incident_is_on_no_row():
    shot = joined(read(task("t1")), incidents=[incident(closed_at=CORE)])
    assert shot.incidents == ()
    assert shot.replicas[0].incidents == ()


def test_a_leak_says_when_memory_is_full():
    leak = incident(Cause.LEAK, About("t1", "m"))
    seen = Evidence(
        *(Sign.MEMORY_LEAKS, About("t1", "m"), CORE - 100 * SECOND, "leak", "climbs"),
        numbers={"exhausted_in_s": 7_300.0},
    )
    leak.evidence = [seen, sign(Sign.MEMORY_LEAKS)]
    shot = joined(read(task("t1"), task("t2")), incidents=[leak])
    assert [row.exhausted_in_s for row in shot.replicas] == [7_200.0, None]
    assert shot.replicas[0].faults == ("memory climbs and is full in 2.0 h",)


# --- what is old ----------------------------------------------------------------------------------


def test_a_part_that_fails_is_said_on_the_rows_it_feeds_and_they_keep_their_values():
    parts = (
        Part("autoscaling", NOW - 2),
        Part("ecs", NOW - 95, "ExpiredToken", NOW - 80, 4, 0.5),
        Part("sqs", None, "AccessDenied"),
        Part("logs", NOW - 2, calls=2, took_s=0.25),
        Part("weather", NOW, "unknown to us"),
    )
    shot = joined(
        read(
            task("t1"),
            parts=parts,
            groups=(Group("cpu", 1),),
            queues=(Queue("q", "m", 5),),
            notes=("3 queues have no model",),
        )
    )
    assert (shot.replicas[0].faults, shot.replicas[0].age_s) == (("ecs: ExpiredToken",), 95.0)
    assert (shot.hosts[0].faults, shot.hosts[0].kind) == (("ecs: ExpiredToken",), "r5.xlarge")
    assert (shot.queues[0].faults, shot.queues[0].age_s) == (("sqs: AccessDenied",), None)
    assert shot.queues[0].visible == 5
    assert shot.groups[0].age_s == 2.0
    assert [(row.part, row.age_s, row.failing_s) for row in shot.sources[1:3]] == [
        ("ecs", 95.0, 80.0),
        ("sqs", None, None),
    ]
    assert (shot.calls, shot.took_s) == (6, 0.75)
    assert shot.notes == ("aws: 3 queues have no model",)
    assert joined(read(parts=parts), took_s=9.0).took_s == 9.0


def test_rows_are_bounded_and_what_is_left_out_is_said(monkeypatch):
    monkeypatch.setattr(snapshot_join, "ROWS_MAX", 2)
    shot = joined(read(*(task(f"t{n}") for n in range(5))))
    assert len(shot.replicas) == 2
    assert shot.notes == ("3 more replicas are not shown",)


def test_nothing_gives_an_empty_picture():
    shot = joined()
    assert (shot.at, shot.replicas, shot.groups, shot.sources) == (NOW, (), (), ())
