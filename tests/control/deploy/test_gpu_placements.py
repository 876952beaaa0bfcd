"""Launched replicas on the GPUs of a fake host: who gets which, who waits, who inherits."""

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from deployment_stage import fleet_file, in_turn, live, play
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile, ModelSection
from holdfast.control.deploy import gpu_placements, launches
from holdfast.control.deploy.host_gpus import HostGpus
from holdfast.control.deploy.launched_replica import LaunchedReplica, new_launched_replica
from holdfast.core.diagnose.detect.platform import PlatformConfig, PlatformDetector
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import ReplicasWanted
from holdfast.core.messages import Queued, RestartAsked
from holdfast.core.types import State, nanos
from holdfast.testing.gpu_host import GIB, FakeGpuHost
from holdfast.wire import up

VISIBLE = "CUDA_VISIBLE_DEVICES"
FIRST, SECOND = ["GPU-0", "GPU-1"], ["GPU-2", "GPU-3"]
PAIRS = ((0, 1), (2, 3))
FULL = "2 GPUs wanted, 0 of 4 free: m-1 holds 0, 1; m-2 holds 2, 3"


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Nobody waits here for an engine that takes minutes, nor for the next look at the host."""
    monkeypatch.setattr(launches, "HEALTH_LOOK_S", 0.02)
    monkeypatch.setattr(gpu_placements, "LOOK_S", 0.05)
    monkeypatch.setattr(gpu_placements, "STALE_S", 0.05)


def pairs(replicas=2, revision="1", **more):
    launch = {"gpus": 2, **more.pop("launch", {})}
    return fleet_file(replicas, revision, launch=launch, **more)


def on(host, scene, file, world, store):
    play(world, store, scene, file, gpus=HostGpus({}, host))


def held(stage):
    return {unit.id: unit.gpus for unit in stage.units.values() if unit.gpus}


def lacking(stage):
    return {unit.id: unit.lacks for unit in stage.units.values() if unit.lacks}


def seen_by(stage, replica_id):
    return stage.launcher.host.processes[replica_id].order.environment.get(VISIBLE)


# --- placing --------------------------------------------------------------------------------------


def test_two_pairs_of_four_gpus_a_third_that_waits_and_takes_the_place_of_one_that_died(
    world, store
):
    """One control after the other: what is held and who waits is known to the next."""
    host = FakeGpuHost(4, PAIRS)

    async def first(stage):
        await stage.until(lambda: len(stage.ready()) == 2 and lacking(stage))
        assert held(stage) == {"m-1": FIRST, "m-2": SECOND}
        assert lacking(stage) == {"m-3": FULL}
        unit, health = stage.units["m-3"], stage.loop.health("m-3")
        assert (unit.pid, health.state) == (None, State.STARTING)
        await stage.until(lambda: stage.loop.health("m-3").reason == f"waits for hardware ({FULL})")
        assert unit.phase == f"waits for hardware ({FULL})"
        model = stage.deployments.snapshot()["m"]
        assert model["gpus"] == {"m-1": FIRST, "m-2": SECOND}
        assert model["unplaced"] == {"m-3": FULL}
        (told,) = stage.said("waits for a GPU")
        assert (told.replica_id, told.reason) == ("m-3", FULL)
        assert {n.reason for n in stage.said("placed")} == {"on GPU 0, 1", "on GPU 2, 3"}
        for gpu in host.gpus:  # as engines take theirs
            gpu.memory_used = 70 * GIB

    async def second(stage):
        await stage.until(lambda: len(stage.ready()) == 2 and lacking(stage))
        assert not stage.launcher.orders  # both were adopted, with what they hold
        assert held(stage) == {"m-1": FIRST, "m-2": SECOND}
        assert lacking(stage) == {"m-3": FULL}
        host.gpus[0].memory_used = host.gpus[1].memory_used = GIB // 2
        stage.launcher.end("m-1", number=9)
        await stage.until(lambda: "m-3" in stage.ready())
        assert held(stage) == {"m-2": SECOND, "m-3": FIRST}
        await stage.until(lambda: "m-1" in lacking(stage))
        assert lacking(stage)["m-1"].endswith("m-2 holds 2, 3; m-3 holds 0, 1")

    async def third(stage):
        await stage.until(lambda: len(stage.ready()) == 2 and lacking(stage))
        assert not stage.launcher.orders
        assert held(stage) == {"m-2": SECOND, "m-3": FIRST}
        assert list(lacking(stage)) == ["m-1"]

    scenes = [(pairs(3), scene) for scene in (first, second, third)]
    in_turn(world, store, *scenes, gpus=lambda: HostGpus({}, host))


def test_an_engine_sees_its_own_devices_in_the_words_that_it_reads(world, store):
    async def numbers(stage):
        await stage.settled(2)
        assert [seen_by(stage, f"m-{i}") for i in (1, 2)] == ["0,1", "2,3"]
        order = stage.launcher.host.processes["m-1"].order
        assert order.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert order.environment["WHERE"] == "at GPU-0,GPU-1, {not} filled"
        assert order.command == ("serve", "revision=1", "device=GPU-0,GPU-1")

    command = ["serve", "revision={revision}", "device={device}"]
    launch = {"environment": {"WHERE": "at {device}, {not} filled"}, "command": command}
    on(FakeGpuHost(4, PAIRS), numbers, pairs(launch=launch), world, store)


def test_other_engines_get_uuids_and_slices_are_always_named_so():
    def order(engine, numbers):
        launch = {"gpus": 1, "command": ["serve"]}
        model = ModelSection.model_validate({"name": "m", "engine": engine, "launch": launch})
        unit = new_launched_replica(model, 1, "a", "", "", set())
        unit.gpus, unit.gpu_numbers = ["MIG-1-0"], (numbers,)
        return unit.order().environment

    assert order("tgi", "0") == {"PYTHONUNBUFFERED": "1", VISIBLE: "MIG-1-0"}
    assert order("vllm", "1:0")[VISIBLE] == "MIG-1-0"
    assert order("vllm", "1")[VISIBLE] == "1"


def test_what_is_kept_of_a_replica_tells_its_devices_and_one_of_before_is_read():
    model = pairs().models[0]
    unit = new_launched_replica(model, 1, "a", "", "", set())
    unit.gpus = ["GPU-0", "GPU-1"]
    assert unit.visible_gpus == "GPU-0,GPU-1"
    again = LaunchedReplica.from_store(unit.to_store())
    assert (again.gpus, again.gpu_request) == (unit.gpus, unit.gpu_request)
    assert unit.sibling("m-2", "a", set()).gpu_request == unit.gpu_request
    assert unit.sibling("m-2", "a", set()).gpus == []
    plain = new_launched_replica(fleet_file().models[0], 1, "a", "", "", set()).to_store()
    assert not {"gpus", "gpu_request"} & plain.keys()  # as an earlier version wrote it
    assert "device" not in plain["spec"]
    assert LaunchedReplica.from_store(plain).gpu_request is None


def test_a_gpu_that_another_program_uses_is_left_alone_until_that_ends(world, store):
    host = FakeGpuHost(2)
    host.gpus[1].memory_used, host.gpus[1].processes = 31 * GIB, [4711]

    async def scene(stage):
        await stage.until(lambda: lacking(stage))
        assert lacking(stage)["m-1"] == (
            "2 GPUs wanted, 1 of 2 free: GPU 1: 31.0 GiB used by others (process 4711)"
        )
        host.gpus[1].memory_used = 0
        await stage.settled(1)

    on(host, scene, pairs(1), world, store)


def test_a_gpu_whose_fault_needs_a_reset_is_taken_last_and_so_are_its_slices():
    host = FakeGpuHost(2)
    host.gpus[1].slices = [10]

    async def main():
        found = await HostGpus({}, host, faulty=lambda: {1}).read()
        assert [(one.label, one.faulty) for one in found.devices] == [("0", False), ("1:0", True)]

    asyncio.run(main())


def test_those_who_share_stand_beside_each_other(world, store):
    async def scene(stage):
        await stage.until(lambda: len(stage.ready()) == 2 and lacking(stage))
        assert held(stage) == {"m-1": ["GPU-0"], "m-2": ["GPU-0"]}

    file = fleet_file(3, launch={"gpus": 1, "gpu_share": 0.5})
    on(FakeGpuHost(1), scene, file, world, store)


def test_who_cannot_be_started_gives_its_devices_back(world, store):
    host = FakeGpuHost(1)
    file = fleet_file(1, launch={"gpus": 1}, models=2)

    async def scene(stage):
        await stage.until(lambda: len(stage.ready("m") + stage.ready("n")) == 1 and lacking(stage))
        first = next(iter(held(stage)))
        other = next(iter(lacking(stage)))
        stage.launcher.host.refusal = "no such program"
        stage.launcher.end(first, code=1)
        await stage.until(lambda: any(n.replica_id == other for n in stage.said("dead")))
        stage.launcher.host.refusal = None
        await stage.until(lambda: len(stage.ready("m") + stage.ready("n")) == 1)

    on(host, scene, file, world, store)


def test_one_that_is_not_wanted_any_more_while_it_waits_leaves_at_once(world, store):
    async def scene(stage):
        await stage.until(lambda: lacking(stage))
        assert stage.deployments.scale("m", 1)[0]
        await stage.settled(1)
        assert list(held(stage)) == ["m-1"]
        assert list(stage.units) == ["m-1"]

    on(FakeGpuHost(1), scene, fleet_file(2, launch={"gpus": 1}), world, store)


def test_one_that_is_restarted_keeps_its_place_from_strangers(world, store):
    def file(others):
        both = fleet_file(1, models=2, launch={"gpus": 1})
        m, n, listed = both.models
        n = n.model_copy(update={"launch": n.launch.model_copy(update={"replicas": others})})
        return both.model_copy(update={"models": [m, n, listed]})

    async def scene(stage):
        await stage.settled(1, model="m")
        stage.follow(file(1))
        await stage.until(lambda: "n-1" in lacking(stage))
        before = stage.units["m-1"].pid
        stage.loop.tell(RestartAsked("m-1", "an operator"))
        await stage.until(lambda: stage.units["m-1"].pid not in (None, before))
        await stage.settled(1, model="m")
        assert held(stage) == {"m-1": ["GPU-0"]}

    on(FakeGpuHost(1), scene, file(0), world, store)


# --- those that wait for long ---------------------------------------------------------------------


def test_waiting_for_a_gpu_is_told_to_the_fleet_and_to_the_investigation(world, store):
    async def scene(stage):
        events = []
        tell = stage.tell
        stage.tell = lambda *more: (events.extend(more), tell(*more))
        await stage.until(lambda: any(isinstance(fact, ReplicasWanted) for fact in stage.facts))
        (fact, *_) = (fact for fact in stage.facts if isinstance(fact, ReplicasWanted))
        assert (fact.model, fact.desired, fact.pending) == ("m", 3, 1)
        assert (fact.reason, fact.source) == (FULL, "this host")
        detector = PlatformDetector(PlatformConfig(waiting_s=fact.waited_s + 1.0))
        assert not detector.take(fact, nanos(1))  # that is soon over, where others serve
        late = replace(fact, waited_s=fact.waited_s + 1.0)
        (evidence,) = detector.take(late, nanos(1))
        assert (evidence.sign, evidence.about.model) == (Sign.NOT_PLACED, "m")
        assert FULL in evidence.text
        await stage.until(lambda: Queued("m-3", FULL) in events)
        assert len(stage.said("waits for a GPU")) == 1  # and not at every look

    on(FakeGpuHost(4, PAIRS), scene, pairs(3), world, store)


def test_on_a_host_without_a_gpu_it_waits_and_says_so_plainly(world, store):
    async def scene(stage):
        await stage.until(lambda: lacking(stage))
        assert lacking(stage) == {"m-1": "no GPU: the driver sees no GPU"}
        assert stage.units["m-1"].phase == "waits for hardware (no GPU: the driver sees no GPU)"

    on(FakeGpuHost(0), scene, pairs(1), world, store)


def test_a_driver_that_hangs_is_a_reason_and_no_second_look_is_begun(world):
    goes_on = threading.Event()
    host = FakeGpuHost(1)
    looks = []

    def hang():
        looks.append(1)
        goes_on.wait(30)

    host.nvmlInit = hang

    async def main():
        reader = HostGpus({}, host, patience_s=0.05)
        for _ in range(2):
            found = await reader.read()
            assert found.reason == "no GPU: the driver has not answered for 0.05 s"
        assert len(looks) == 1
        goes_on.set()
        await world.until(reader._look.done)
        assert (await HostGpus({}, host).read()).devices

    asyncio.run(main())


# --- files of before ------------------------------------------------------------------------------


def implied(replicas, **launch):
    launch = {"weights": "/w", "command": [], **launch}
    return fleet_file(replicas, launch=launch)


def test_an_engine_that_needs_a_gpu_gets_as_many_as_it_is_split_over(world, store):
    async def scene(stage):
        await stage.settled(2)
        assert held(stage) == {"m-1": FIRST, "m-2": SECOND}

    on(FakeGpuHost(4, PAIRS), scene, implied(2, tensor_parallel=2), world, store)


def test_a_file_that_overcommits_runs_on_and_is_warned(world, store):
    async def scene(stage):
        await stage.settled(3)
        assert held(stage) == {f"m-{i}": ["GPU-0"] for i in (1, 2, 3)}
        (told,) = stage.said("overcommits a GPU")
        assert told.reason.startswith("on GPU 0 beside others: 1 GPU wanted, 0 of 1 free")

    on(FakeGpuHost(1), scene, implied(3, memory_fraction=0.4), world, store)


def test_a_file_that_did_not_ask_is_split_evenly_before_it_overcommits(world, store):
    async def scene(stage):
        await stage.settled(3)
        assert held(stage) == {"m-1": FIRST, "m-2": SECOND, "m-3": FIRST}
        (told,) = stage.said("overcommits a GPU")
        assert told.reason == f"on GPU 0, 1 beside others: {FULL}"

    on(FakeGpuHost(4, PAIRS), scene, implied(3, tensor_parallel=2), world, store)


def test_a_file_that_did_not_ask_runs_on_beside_strangers_and_without_a_driver(world, store):
    host = FakeGpuHost(1)
    host.gpus[0].memory_used = 60 * GIB

    async def beside(stage):
        await stage.settled(1)
        assert held(stage) == {"m-1": ["GPU-0"]}
        assert stage.said("overcommits a GPU")

    on(host, beside, implied(1), world, store)


def test_without_a_driver_a_file_that_did_not_ask_starts_as_before(world, store):
    async def scene(stage):
        await stage.settled(2)
        assert held(stage) == {}
        assert seen_by(stage, "m-1") is None
        told = stage.said("starts without a choice of GPU")
        assert {notice.reason for notice in told} == {"no GPU: the driver sees no GPU"}

    on(FakeGpuHost(0), scene, implied(2), world, store)


@pytest.mark.parametrize(
    "launch",
    [
        {"gpus": 0},
        {"command": ["serve", "revision={revision}"]},
        {"environment": {VISIBLE: "3"}},
        {"pass_env": [VISIBLE]},
        {"arguments": ["--tensor-parallel-size", "4"]},
        {"arguments": ["-tp=4"]},
        {"arguments": ["--data-parallel-size=2"]},
    ],
)
def test_where_the_file_decides_by_itself_nothing_is_chosen(world, store, launch):
    host = FakeGpuHost(4, PAIRS)

    async def scene(stage):
        await stage.settled(1)
        assert held(stage) == {}
        assert seen_by(stage, "m-1") == launch.get("environment", {}).get(VISIBLE)
        assert host.reads == 0

    on(host, scene, implied(1, **launch), world, store)


def test_the_fleet_to_try_things_on_starts_its_three_cpu_replicas_beside_one_gpu(world, store):
    """``make run`` on a laptop with a GPU."""
    shipped = load(Path(up.__file__).with_name(up.BUILT_IN), FleetFile).models[0]
    host = FakeGpuHost(1)
    launch = shipped.launch.model_copy(update={"embedded": False, "command": ["serve"]})
    small = fleet_file(3).models[0].model_copy(update={"engine": shipped.engine, "launch": launch})
    file = fleet_file(3)
    file = file.model_copy(update={"models": [small, file.models[-1]]})

    async def scene(stage):
        await stage.settled(3)
        assert held(stage) == {}
        assert host.reads == 0

    unit = new_launched_replica(shipped, 1, "a", "/w", "", set())
    assert unit.gpu_request is None
    assert VISIBLE not in unit.order().environment
    on(host, scene, file, world, store)


# --- rolling updates ------------------------------------------------------------------------------


def first_of(stage, *names):
    """Which of these things happened first, by the events that people read."""
    order = []
    for notice in stage.notices:
        order += [name for name, test in names if test(notice)]
    return order


def test_without_a_spare_gpu_a_rollout_drains_first_and_the_newcomer_inherits(world, store):
    async def scene(stage):
        await stage.settled(2)
        await stage.until(lambda: stage.said("rollout finished"))
        stage.follow(pairs(2, "2"))
        await stage.settled(2, "2")
        assert sorted(map(tuple, held(stage).values())) == [tuple(FIRST), tuple(SECOND)]
        order = first_of(
            stage,
            ("drains", lambda n: n.what == "draining" and "m-" in n.replica_id),
            ("starts", lambda n: n.what == "placed" and n.replica_id in ("m-3", "m-4")),
        )
        assert order[:2] == ["drains", "starts"]
        told = [n.reason for n in stage.notices if "drained first" in n.reason]
        assert told
        assert not stage.said("rollout halted")
        assert least(stage) == 1

    on(FakeGpuHost(4, PAIRS), scene, pairs(2), world, store)


def test_a_rollout_of_a_file_that_did_not_ask_inherits_and_does_not_overcommit(world, store):
    def file(revision):
        return fleet_file(
            2, revision, launch={"weights": "/w", "command": [], "tensor_parallel": 2}
        )

    async def scene(stage):
        await stage.settled(2)
        await stage.until(lambda: stage.said("rollout finished"))
        stage.follow(file("2"))
        await stage.settled(2, "2")
        assert sorted(map(tuple, held(stage).values())) == [tuple(FIRST), tuple(SECOND)]
        assert not stage.said("overcommits a GPU")
        assert least(stage) == 1

    on(FakeGpuHost(4, PAIRS), scene, file("1"), world, store)


def test_with_a_spare_gpu_a_rollout_starts_first(world, store):
    async def scene(stage):
        await stage.settled(2)
        await stage.until(lambda: stage.said("rollout finished"))
        stage.follow(pairs(2, "2"))
        await stage.settled(2, "2")
        order = first_of(
            stage,
            ("drains", lambda n: n.what == "draining"),
            ("starts", lambda n: n.what == "placed" and n.replica_id in ("m-3", "m-4")),
        )
        assert order[:2] == ["starts", "drains"]
        assert not [n for n in stage.notices if "drained first" in n.reason]
        assert least(stage) == 2

    on(FakeGpuHost(6), scene, pairs(2), world, store)


def test_a_rollout_goes_by_a_new_look_at_the_host_and_not_by_that_of_the_start(
    world, store, monkeypatch
):
    host = FakeGpuHost(2)
    host.gpus[1].memory_used = 70 * GIB

    async def scene(stage):
        await stage.settled(1)
        await stage.until(lambda: stage.said("rollout finished"))
        looks = host.reads
        stage.deployments.tick(time.monotonic_ns())
        assert host.reads == looks  # nothing to roll out: nobody looks
        host.gpus[1].memory_used = 0  # whoever had it is gone
        monkeypatch.setattr(gpu_placements, "STALE_S", 0.0)  # the last look was long ago
        stage.follow(fleet_file(1, "2", launch={"gpus": 1}))
        await stage.settled(1, "2")
        assert not [n for n in stage.notices if "drained first" in n.reason]

    on(host, scene, fleet_file(1, "1", launch={"gpus": 1}), world, store)


def test_a_stranger_model_that_waits_does_not_take_what_a_rollout_passes_on(world, store):
    def file(revision, others):
        both = fleet_file(1, models=2, launch={"gpus": 1})
        m, n, listed = both.models
        n = n.model_copy(update={"launch": n.launch.model_copy(update={"replicas": others})})
        m = m.model_copy(update={"revision": revision})
        return both.model_copy(update={"models": [m, n, listed]})

    async def scene(stage):
        await stage.settled(1, model="m")
        await stage.until(lambda: stage.said("rollout finished"))
        stage.follow(file("1", 1))
        await stage.until(lambda: "n-1" in lacking(stage))  # it asked before the newcomer will
        stage.follow(file("2", 1))
        await stage.settled(1, "2", "m")
        assert held(stage) == {"m-2": ["GPU-0"]}
        assert not stage.ready("n")
        assert [n.replica_id for n in stage.said("placed")] == ["m-1", "m-2"]

    on(FakeGpuHost(1), scene, file("1", 0), world, store)


def least(stage):
    """The fewest of them that were ready at a time since the second revision was wished for."""
    ready, fewest = 2, 2
    began = next(i for i, n in enumerate(stage.notices) if n.what == "rollout finished")
    for notice in stage.notices[began:]:
        if notice.what == "ready" and notice.signal:
            ready += 1
        elif notice.what == "draining":
            ready -= 1
        fewest = min(fewest, ready)
    return fewest


def test_one_stage_is_left_as_it_was_found(world, store):
    """What waits when control ends does not keep it from ending."""

    async def main():
        gpus = HostGpus({}, FakeGpuHost(1))
        async with live(world, store, fleet_file(2, launch={"gpus": 1}), gpus=gpus) as stage:
            await stage.until(lambda: lacking(stage))

    asyncio.run(main())
