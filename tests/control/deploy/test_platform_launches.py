"""Replicas that a platform places: before the start, where there is room, and away from its end."""

import asyncio

import pytest

from holdfast.config.fleet_file import ModelSection
from holdfast.control.deploy import launches as module
from holdfast.control.deploy.declarations import declared_of
from holdfast.control.deploy.host_gpus import HostGpus
from holdfast.control.deploy.launched_replica import (
    LaunchedReplica,
    build_of,
    free_port,
    new_launched_replica,
)
from holdfast.control.deploy.launches import Launches
from holdfast.core.deploy.launches import LaunchGate, LaunchGateConfig
from holdfast.core.diagnose.facts import HostConditionSeen, ProcessEnded
from holdfast.core.messages import Exited
from holdfast.core.types import HostCondition
from holdfast.launchers.launcher_group import LauncherGroup
from holdfast.ports import Ended, LaunchError, NoRoomError, Order, Place, PlaceRequest
from holdfast.testing.gpu_host import FakeGpuHost
from holdfast.testing.launcher import FakeLauncher


class Platform(FakeLauncher):
    """A fake launcher that gives places, each ``full`` time without room first."""

    def __init__(self, full=0):
        super().__init__()
        self.full = full
        self.asked = []

    def places(self, on):
        return on == "ray"

    async def place(self, on, request):
        self.asked.append(request)
        if len(self.asked) <= self.full:
            raise NoRoomError("no node has 2 GPUs free")
        return Place("127.0.0.1", free_port(set()), f"node-{len(self.asked)}", "zone-b", "roomy")


class Host:
    """Keeps what it is told."""

    def __init__(self):
        self.told, self.facts, self.moves, self.queues, self.leavers = [], [], [], [], []

    def tell(self, *events):
        self.told += events

    def saw(self, fact):
        self.facts.append(fact)

    def kept(self, unit):
        """Nothing: what is stored is not asked for here."""

    def moved(self, unit):
        self.moves.append(unit.url)

    def gone(self, unit):
        """Nothing: nobody is removed here."""

    def queued(self, unit, *, first):
        self.queues.append((unit.lacks, first))

    def leaving(self, unit, reason):
        self.leavers.append((unit.id, reason))


LAUNCH = {"on": "ray", "command": ["serve", "{host}", "{port}"], "tensor_parallel": 2, "cpus": 3}


def model(**launch):
    said = {"name": "m", "engine": "vllm", "launch": {**LAUNCH, **launch}}
    return ModelSection.model_validate(said)


async def until(true):
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 what is waited for has no event
            await asyncio.sleep(0.01)


def play(launcher, scene):
    async def main():
        unit = new_launched_replica(model(zones=["zone-b"]), 1, "zone-b", "/w", "", set())
        host, gate = Host(), LaunchGate(LaunchGateConfig())
        units = {unit.id: unit}
        launches = Launches(launcher, gate, units, host, HostGpus({}, FakeGpuHost(0)))
        await launcher.adopt(launches)
        try:
            await scene(unit, host, launches)
        finally:
            await launches.close(leave_running=False)

    asyncio.run(main())


def test_a_replica_is_placed_before_its_command_is_made():
    launcher = Platform()

    async def scene(unit, host, launches):
        launches.launch(unit, 0)
        await until(lambda: unit.pid is not None)
        assert launcher.asked == [PlaceRequest("m-1", "m", "zone-b", gpus=2, cpus=3.0)]
        order = launcher.host.processes["m-1"].order
        assert order.command == ("serve", "127.0.0.1", str(unit.spec.port))
        assert order.on == "ray"
        assert unit.node == "node-1"
        assert host.moves == [unit.url]
        assert unit.endpoint().host == "node-1"

    play(launcher, scene)


def test_one_without_room_waits_says_why_and_starts_when_there_is(monkeypatch):
    monkeypatch.setattr(module, "ROOM_LOOK_S", 0.01)
    launcher = Platform(full=3)

    async def scene(unit, host, launches):
        launches.launch(unit, 0)
        await until(lambda: unit.pid is not None)
        lack = "no node has 2 GPUs free"
        assert host.queues == [(lack, True), (lack, False), (lack, False)]
        assert unit.lacks == ""
        assert unit.early_exits == 0
        assert not [event for event in host.told if isinstance(event, Exited)]

    play(launcher, scene)


def test_a_platform_that_cannot_be_used_is_a_failed_start():
    class Broken(Platform):
        async def place(self, on, request):
            raise LaunchError("the Ray cluster cannot be used: Ray is not installed here")

    async def scene(unit, host, launches):
        launches.launch(unit, 0)
        await until(lambda: any(isinstance(event, Exited) for event in host.told))
        (exited,) = [event for event in host.told if isinstance(event, Exited)]
        assert "Ray is not installed" in exited.detail

    play(Broken(), scene)


def test_an_end_with_its_host_and_the_hosts_condition_are_facts():
    launcher = Platform()

    async def scene(unit, host, launches):
        launches.launch(unit, 0)
        await until(lambda: unit.pid is not None)
        why = "its node 10.0.0.2 is dead"
        launches.ended("m-1", Ended(None, None, oom=False, reason=why, host_lost=True))
        ended = next(fact for fact in host.facts if isinstance(fact, ProcessEnded))
        assert (ended.host_lost, ended.reason, ended.asked) == (True, why, False)
        launches.host_seen("node-1", HostCondition.UNREACHABLE, "health check failed")
        seen = next(fact for fact in host.facts if isinstance(fact, HostConditionSeen))
        assert (seen.host, seen.condition) == ("node-1", HostCondition.UNREACHABLE)

    play(launcher, scene)


def test_a_host_that_leaves_is_passed_on_once_its_replica_is_known():
    launcher = Platform()

    async def scene(unit, host, launches):
        launches.leaving("nobody", "its node is being drained")
        launches.leaving("m-1", "its node is being drained")
        assert host.leavers == [("m-1", "its node is being drained")]
        unit.removing = True
        launches.leaving("m-1", "again")
        assert len(host.leavers) == 1

    play(launcher, scene)


# --- what is kept and declared -------------------------------------------------------------------


def test_a_placed_replica_survives_the_store_with_its_host():
    unit = new_launched_replica(model(), 1, "zone-b", "/w", "", set())
    unit.take_place(Place("10.0.0.9", 4711, "node-1"))
    again = LaunchedReplica.from_store(unit.to_store())
    assert (again.on, again.node, again.url) == ("ray", "node-1", "http://10.0.0.9:4711")
    assert again.place_request() == unit.place_request()
    unit.take_place(Place("fd00::9", 4711, "node-1"))
    assert unit.url == "http://[fd00::9]:4711"
    sibling = unit.sibling("m-2", "zone-a", set())
    assert (sibling.on, sibling.devices, sibling.node) == ("ray", 2, "")


def test_without_zones_in_the_file_its_platform_spreads_it_and_its_zone_is_that_of_its_node():
    unit = new_launched_replica(model(), 1, "zone-a", "/w", "", set())
    assert unit.place_request().zone == "", "zone-a is the default and nobody's wish"
    assert unit.endpoint().zone == "zone-a"
    unit.take_place(Place("10.0.0.9", 4711, "node-1", "rack-7"))
    again = LaunchedReplica.from_store(unit.to_store())
    assert (again.endpoint().zone, again.zone) == ("rack-7", "zone-a")
    assert again.place_request().zone == ""
    assert unit.sibling("m-2", "zone-a", set()).place_request().zone == ""
    asked = new_launched_replica(model(zones=["zone-b"]), 1, "zone-b", "/w", "", set())
    assert asked.place_request().zone == "zone-b"


def test_replicas_of_this_host_are_stored_as_before():
    plain = model(on="", cpus=0, tensor_parallel=1)
    unit = new_launched_replica(plain, 1, "zone-a", "/w", "", set())
    added = {"on", "node", "address", "devices", "cpus", "any_zone", "node_zone"}
    assert not added & unit.to_store().keys()
    assert build_of(plain, "") != build_of(model(), "")


def test_its_host_is_its_node_and_not_ours():
    file_like = type("File", (), {})()
    unit = new_launched_replica(model(), 1, "zone-b", "/w", "", set())
    unit.take_place(Place("10.0.0.9", 4711, "node-1"))
    file_like.models = [model().with_endpoints([unit.endpoint()])]
    (declared,) = declared_of(file_like, {"m-1": unit}, "control-host", {}).values()
    assert declared.host == "node-1"
    assert declared.managed


# --- one launcher for all platforms --------------------------------------------------------------


def test_each_order_goes_to_the_launcher_of_its_platform_and_that_is_built_once():
    here, there, built = FakeLauncher(), Platform(), []

    def build(on):
        built.append(on)
        return there

    async def main():
        group = LauncherGroup(here, build)
        watcher = type("Silent", (), {"__getattr__": lambda *_: lambda *_: None})()
        await group.adopt(watcher)
        assert built == []
        await group.start(Order("a", ("x",)))
        await group.place("ray", PlaceRequest("b", "m"))
        await group.start(Order("b", ("x",), on="ray"))
        assert built == ["ray"]
        assert (list(here.host.processes), list(there.host.processes)) == (["a"], ["b"])
        assert group.pid("b") == there.pid("b")
        assert (group.places(""), group.places("ray")) == (False, True)
        assert (await group.stop("b", 1.0)).asked
        group.forget("b")
        assert there.host.processes == {}
        await group.close(leave_running=False)
        assert here.host.running("a") is None

    asyncio.run(main())


def test_what_runs_on_the_platforms_of_the_file_is_adopted():
    there = Platform()
    there.host.begin(Order("b", ("x",), on="ray"))

    async def main():
        group = LauncherGroup(FakeLauncher(), lambda on: there, lambda: {"", "ray"})
        watcher = type("Silent", (), {"__getattr__": lambda *_: lambda *_: None})()
        assert [one.order.replica_id for one in await group.adopt(watcher)] == ["b"]
        assert group.pid("b") == there.pid("b")

    asyncio.run(main())


def test_a_launcher_that_gives_no_places_says_so():
    async def main():
        group = LauncherGroup(FakeLauncher(), lambda on: FakeLauncher())
        watcher = type("Silent", (), {"__getattr__": lambda *_: lambda *_: None})()
        await group.adopt(watcher)
        with pytest.raises(LaunchError, match="no place"):
            await group.place("other", PlaceRequest("b", "m"))

    asyncio.run(main())
