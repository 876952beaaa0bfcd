"""One launched replica after the other: processes on paper, health pages on real sockets."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from holdfast.config.fleet_file import ModelSection
from holdfast.control.deploy import launches as module
from holdfast.control.deploy.host_gpus import HostGpus
from holdfast.control.deploy.launched_replica import new_launched_replica
from holdfast.control.deploy.launches import Launches
from holdfast.core.deploy.launches import LaunchGate, LaunchGateConfig
from holdfast.core.diagnose.facts import LineSeen, Mark, PhaseSeen, ProcessEnded, ProcessFrozen
from holdfast.core.failure import Kind
from holdfast.core.messages import Exited, Frozen, Phase
from holdfast.core.types import State, nanos
from holdfast.ports import Ended
from holdfast.testing.gpu_host import FakeGpuHost
from holdfast.testing.standin import fault

LOADED = [State.STARTING, State.LOADING, State.WARMING]


class Host:
    """Keeps what it is told."""

    def __init__(self):
        self.events = []
        self.stored = []
        self.moves = []
        self.removed = []
        self.facts = []

    def tell(self, *events):
        self.events += events

    def saw(self, fact):
        self.facts.append(fact)

    def kept(self, unit):
        self.stored.append((unit.id, unit.loaded))

    def moved(self, unit):
        self.moves.append((unit.id, unit.spec.port))

    def gone(self, unit):
        self.removed.append(unit.id)

    def phases(self, replica_id="m-1"):
        return [e.phase for e in self.events if isinstance(e, Phase) and e.replica_id == replica_id]

    def exits(self):
        return [event for event in self.events if isinstance(event, Exited)]


class Stage:
    def __init__(self, world, launcher, gate):
        self.world = world
        self.until = world.until
        self.launcher = launcher
        self.paper = launcher.host
        self.units = {}
        self.host = Host()
        no_gpus = HostGpus({}, FakeGpuHost(0))
        self.launches = Launches(launcher, gate, self.units, self.host, no_gpus)

    def unit(self, number=1, **launch):
        launch = {"command": ["serve", "{port}"], **launch}
        model = ModelSection.model_validate({"name": "m", "engine": "vllm", "launch": launch})
        taken = {unit.spec.port for unit in self.units.values()}
        unit = new_launched_replica(model, number, "zone-a", launch.get("weights", "/w"), "", taken)
        self.units[unit.id] = unit
        return unit

    def runs(self, replica_id="m-1"):
        return self.paper.running(replica_id) is not None

    async def loaded(self, unit):
        self.launches.launch(unit, 0)
        await self.until(lambda: unit.loaded)


@asynccontextmanager
async def live(world, *, serving=True, gate=None, launcher=None, **gate_config):
    launcher = launcher or world.Paper(serving=serving)
    stage = Stage(world, launcher, gate or LaunchGate(LaunchGateConfig(**gate_config)))
    await launcher.adopt(stage.launches)
    try:
        yield stage
    finally:
        await stage.launches.close(leave_running=False)
        await launcher.rest()


def play(world, scene, **more):
    async def main():
        async with live(world, **more) as stage:
            await scene(stage)

    asyncio.run(main())


# --- starting ------------------------------------------------------------------------------------


def test_a_launch_goes_through_its_phases(world):
    async def scene(stage):
        unit = stage.unit()
        stage.launches.launch(unit, 0)
        await stage.until(lambda: stage.host.phases() == LOADED)
        assert unit.pid == stage.launcher.pid("m-1")
        assert (unit.phase, unit.loaded) == ("loaded", True)
        assert stage.host.stored == [("m-1", False), ("m-1", True)]
        (order,) = stage.launcher.orders
        assert order.command == ("serve", str(unit.spec.port))

    play(world, scene)


def test_it_is_loaded_when_its_page_says_so_and_no_earlier(world):
    async def scene(stage):
        unit = stage.unit()
        stage.launches.launch(unit, 0)
        await stage.until(lambda: stage.host.phases() == LOADED[:2])
        assert unit.phase == "starts"
        stage.paper.say("m-1", "INFO Starting to load model")
        assert unit.phase == "loading"
        stage.paper.say("m-1", "INFO Capturing CUDA graphs")
        assert unit.phase == "compile"
        server = await stage.world.Engine().start(unit.spec.port)
        server.default = (503, "", b"")
        await stage.until(lambda: len(server.asked) >= 2)
        assert not unit.loaded
        server.default = (200, "", b"")
        await stage.until(lambda: unit.loaded)
        stage.paper.say("m-1", "INFO Capturing CUDA graphs")  # no longer of interest
        assert unit.phase == "loaded"
        await server.stop()

    play(world, scene, serving=False)


def test_a_launch_waits_for_its_delay(world):
    async def scene(stage):
        unit = stage.unit()
        stage.launches.launch(unit, nanos(3_600))
        await asyncio.sleep(0)
        assert not stage.launcher.orders
        stage.launches.stop(unit)  # and a stop calls it off
        await stage.until(lambda: not stage.launches._jobs)
        assert not stage.launcher.orders

    play(world, scene)


def test_two_launches_start_one_process(world):
    async def scene(stage):
        unit = stage.unit()
        stage.launches.launch(unit, 0)
        stage.launches.launch(unit, 0)
        await stage.until(lambda: not stage.launches._jobs)
        assert len(stage.launcher.orders) == 1

    play(world, scene)


def test_one_that_is_to_be_removed_is_not_started(world):
    async def scene(stage):
        unit = stage.unit()
        unit.removing = True
        stage.launches.launch(unit, 0)
        await stage.until(lambda: not stage.launches._jobs)
        assert not stage.launcher.orders

    play(world, scene)


def test_a_start_that_is_refused_is_an_early_exit_with_its_reason(world):
    async def scene(stage):
        unit = stage.unit()
        stage.paper.refusal = "no such file"
        stage.launches.launch(unit, 0)
        await stage.until(stage.host.exits)
        (exited,) = stage.host.exits()
        assert "no such file" in exited.detail
        assert (unit.early_exits, unit.pid) == (1, None)
        stage.paper.refusal = None
        stage.launches.launch(unit, 0)
        await stage.until(lambda: stage.host.phases() == LOADED)

    play(world, scene)


def test_a_command_that_cannot_be_is_an_exit_too(world):
    async def scene(stage):
        unit = stage.unit(command=["serve", "{nonsense}"])
        stage.launches.launch(unit, 0)
        await stage.until(stage.host.exits)
        assert "{nonsense}" in stage.host.exits()[0].detail

    play(world, scene)


def test_a_port_that_somebody_else_took_is_left_to_them(world):
    async def scene(stage):
        unit = stage.unit()
        before = unit.spec.port
        stranger = await stage.world.Engine().start(before)
        await stage.loaded(unit)
        assert unit.spec.port != before
        assert stage.host.moves == [("m-1", unit.spec.port)]
        assert stage.launcher.orders[0].port == unit.spec.port
        assert not stranger.asked
        await stranger.stop()

    play(world, scene)


# --- turns ---------------------------------------------------------------------------------------


def test_cold_weights_are_loaded_once_and_then_by_several(world):
    async def scene(stage):
        units = [stage.unit(number) for number in (1, 2, 3)]
        for unit in units:
            stage.launches.launch(unit, 0)
        await stage.until(lambda: stage.runs("m-1"))
        assert not stage.runs("m-2")
        assert units[1].phase == "waits for its turn to load"
        await stage.launcher.serve("m-1")  # the first is loaded: its weights are in the page cache
        await stage.until(lambda: stage.runs("m-2") and stage.runs("m-3"))

    play(world, scene, serving=False)


def test_weights_that_differ_are_loaded_one_after_the_other(world):
    async def scene(stage):
        one, two = stage.unit(1, weights="/w/1"), stage.unit(2, weights="/w/2")
        stage.launches.launch(one, 0)
        stage.launches.launch(two, 0)
        await stage.until(lambda: stage.runs("m-1"))
        assert not stage.runs("m-2")
        stage.launcher.end("m-1", code=1)  # a load that fails gives its turn back
        await stage.until(lambda: stage.runs("m-2"))

    play(world, scene, serving=False)


def test_a_turn_is_taken_when_the_one_before_is_stopped(world):
    async def scene(stage):
        one, two = stage.unit(1), stage.unit(2)
        stage.launches.launch(one, 0)
        stage.launches.launch(two, 0)
        await stage.until(lambda: stage.runs("m-1"))
        stage.launches.stop(one)
        await stage.until(lambda: stage.runs("m-2"))

    play(world, scene, serving=False)


def test_a_load_whose_end_nobody_reported_does_not_hold_up_the_others(world, monkeypatch):
    monkeypatch.setattr(module, "GATE_LOOK_S", 0.02)

    async def scene(stage):
        one, two = stage.unit(1), stage.unit(2)
        stage.launches.launch(one, 0)
        stage.launches.launch(two, 0)
        await stage.until(lambda: stage.runs("m-2"))
        assert not one.loaded

    play(world, scene, serving=False, load_max_s=0.1)


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "line", "kind", "told"),
    [
        ({"code": 1}, "", Kind.EXITED, "exited with code 1"),
        ({"number": 9, "oom": True}, "", Kind.OUT_OF_MEMORY, "killed by SIGKILL"),
        ({"code": 1}, "torch: CUDA out of memory.", Kind.OUT_OF_MEMORY, "memory is full"),
        ({"code": 1}, "ERROR EngineDeadError", Kind.EXITED, "engine process is dead"),
    ],
)
def test_an_end_is_told_with_its_cause(world, how, line, kind, told):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        if line:
            stage.paper.say("m-1", line)
        stage.launcher.end("m-1", **how)
        (exited,) = stage.host.exits()
        assert exited.kind is kind
        assert told in exited.detail
        assert (unit.pid, unit.loaded, unit.early_exits) == (None, False, 1)
        assert "m-1" not in stage.launches.heartbeats

    play(world, scene)


def test_a_cause_of_an_earlier_life_is_not_that_of_a_later_one(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        stage.paper.say("m-1", "CUDA out of memory")
        stage.launcher.end("m-1", code=1)
        await stage.loaded(unit)
        stage.launcher.end("m-1", code=1)
        assert [exited.kind for exited in stage.host.exits()] == [Kind.OUT_OF_MEMORY, Kind.EXITED]

    play(world, scene)


def test_what_it_complained_of_on_its_way_up_is_not_its_end(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        stage.paper.say("m-1", "WARNING CUDA out of memory, trying again with less")
        stage.paper.say("m-1", "INFO: Application startup complete.")
        stage.launcher.end("m-1", code=1)
        (exited,) = stage.host.exits()
        assert (exited.kind, exited.detail) == (Kind.EXITED, "exited with code 1")

    play(world, scene)


def test_one_that_was_ready_once_has_no_early_exits(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        unit.was_ready = True
        stage.launcher.end("m-1", code=1)
        assert unit.early_exits == 0

    play(world, scene)


def test_a_stop_is_kind_first_and_its_end_is_nobody_s_failure(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        stage.launches.stop(unit)
        await stage.until(lambda: not stage.runs())
        await stage.until(lambda: not stage.launches._jobs)
        assert stage.launcher.graces == [module.STOP_GRACE_S]
        assert not stage.host.exits()
        assert not stage.host.removed
        assert (unit.pid, unit.loaded) == (None, False)
        assert "m-1" in stage.paper.processes  # its log is kept

    play(world, scene)


def test_a_stop_and_a_launch_are_done_in_their_order(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        first = unit.pid
        stage.launches.stop(unit)
        stage.launches.launch(unit, 0)
        await stage.until(lambda: unit.loaded and unit.pid != first)
        stage.launcher.end("m-1", code=1)  # now it counts again
        assert len(stage.host.exits()) == 1

    play(world, scene)


def test_a_stop_while_it_starts_finds_it_and_ends_it(world):
    class Slow(world.Paper):
        """Takes its time, and cannot be called back."""

        def __init__(self):
            super().__init__(serving=False)
            self.asked, self.go_on = asyncio.Event(), asyncio.Event()

        async def start(self, order):
            self.asked.set()
            await self.go_on.wait()
            return await super().start(order)

    async def main():
        async with live(world, launcher=Slow()) as stage:
            unit = stage.unit()
            stage.launches.launch(unit, 0)
            await stage.launcher.asked.wait()
            unit.removing = True
            stage.launches.stop(unit)
            await asyncio.sleep(0)
            assert not stage.host.removed
            stage.launcher.go_on.set()
            await stage.until(lambda: stage.host.removed == ["m-1"])
            assert len(stage.launcher.orders) == 1
            assert not stage.runs()

    asyncio.run(main())


def test_a_removed_one_is_forgotten_when_it_has_ended(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        unit.removing = True
        stage.launches.stop(unit)
        await stage.until(lambda: stage.host.removed == ["m-1"])
        assert "m-1" not in stage.paper.processes
        assert "m-1" not in stage.launches.heartbeats
        assert not stage.launches._turns
        assert not stage.launches._expected

    play(world, scene)


def test_one_that_dies_while_it_drains_to_be_removed_is_removed(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        unit.removing = True
        stage.launcher.end("m-1", number=11)
        await stage.until(lambda: stage.host.removed == ["m-1"])
        assert len(stage.host.exits()) == 1

    play(world, scene)


def test_a_stop_may_wait_for_what_is_still_on_it(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        unit.removing = True
        stage.launches.stop(unit, 0.05)
        await asyncio.sleep(0)
        assert stage.runs()
        await stage.until(lambda: stage.host.removed == ["m-1"])

    play(world, scene)


def test_a_stop_that_waits_does_not_wait_for_one_that_does_not_run(world):
    async def scene(stage):
        unit = stage.unit()
        unit.removing = True
        stage.launches.stop(unit, 3_600)
        await stage.until(lambda: stage.host.removed == ["m-1"])

    play(world, scene)


def test_one_that_cannot_be_killed_stays_listed(world, capsys):
    class Held(world.Paper):
        async def stop(self, replica_id, grace_s):
            if not self.graces:
                self.graces.append(grace_s)
                raise module.LaunchError("the kernel holds it")
            return await super().stop(replica_id, grace_s)

    async def main():
        async with live(world, launcher=Held()) as stage:
            unit = stage.unit()
            await stage.loaded(unit)
            unit.removing = True
            stage.launches.stop(unit)
            await stage.until(lambda: not stage.launches._jobs)
            assert not stage.host.removed
            stage.launches.stop(unit)
            await stage.until(lambda: stage.host.removed == ["m-1"])

    asyncio.run(main())
    assert "launch failed" in capsys.readouterr().out


def test_a_suspended_process_is_told_of_and_so_is_its_return(world):
    async def scene(stage):
        await stage.loaded(stage.unit())
        stage.paper.suspend("m-1", True)
        stage.paper.suspend("m-1", False)
        assert [e for e in stage.host.events if isinstance(e, Frozen)] == [
            Frozen("m-1", True),
            Frozen("m-1", False),
        ]

    play(world, scene)


def test_a_process_suspended_while_it_was_replaced_does_not_brand_the_next_one(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        stage.launches.stop(unit)
        stage.launches.launch(unit, 0)  # behind the stop
        stage.paper.suspend("m-1", True)
        before = unit.pid
        await stage.until(lambda: unit.loaded and unit.pid != before)
        told = [event.frozen for event in stage.host.events if isinstance(event, Frozen)]
        assert told == [True, False]

    play(world, scene)


def test_news_of_strangers_is_no_news(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        events = len(stage.host.events)
        del stage.units["m-1"]
        stage.launches.started("m-1", 7)
        stage.paper.say("m-1", "CUDA out of memory")
        stage.launcher.end("m-1", code=1)
        assert len(stage.host.events) == events
        await stage.until(lambda: "m-1" not in stage.paper.processes)  # nobody needs its log

    play(world, scene)


# --- another control -----------------------------------------------------------------------------


def test_one_that_was_loading_is_watched_on_and_not_started_again(world):
    async def main():
        launcher = world.Paper(serving=False)
        stage = Stage(world, launcher, LaunchGate(LaunchGateConfig()))
        await launcher.adopt(stage.launches)
        unit = stage.unit()
        stage.launches.launch(unit, 0)
        await stage.until(lambda: stage.host.phases() == LOADED[:2])
        await stage.launches.close(leave_running=True)
        assert not stage.host.exits()

        second = world.Paper(launcher.host, serving=False)
        later = Stage(world, second, LaunchGate(LaunchGateConfig()))
        later.units["m-1"] = unit
        (adopted,) = await second.adopt(later.launches)
        later.launches.adopted(unit, adopted.pid, adopted.started_at)
        assert "m-1" not in later.launches.heartbeats
        later.launches.launch(unit, 0)
        await later.until(lambda: later.host.phases() == LOADED[:2])
        await second.serve("m-1")
        await later.until(lambda: later.host.phases() == LOADED)
        assert not second.orders
        await later.launches.close(leave_running=False)
        await second.rest()

    asyncio.run(main())


def test_one_that_had_loaded_is_listened_to_at_once_and_its_weights_are_warm(world):
    async def scene(stage):
        unit = stage.unit()
        unit.loaded = True
        stage.launches.adopted(unit, 77, 0.0)
        assert unit.pid == 77
        assert stage.launches.heartbeats["m-1"].name == "serving"

    gate = LaunchGate(LaunchGateConfig())
    play(world, scene, gate=gate)
    assert gate.is_warm("/w")


def test_what_loads_but_never_gets_there_is_stopped_by_whoever_asks(world):
    async def scene(stage):
        stage.launcher.ailments = {"1": fault("load_stall")}
        unit = stage.unit(command=["serve", "revision={revision}"])
        stage.launches.launch(unit, 0)
        await stage.until(lambda: stage.host.phases() == LOADED[:2])
        stage.launches.stop(unit)
        await stage.until(lambda: not stage.runs())
        assert not unit.loaded

    play(world, scene)


@asynccontextmanager
async def starting(stage, world, answer, *, engine="vllm"):
    """A process on paper, and at its port a server that answers what the test decides."""
    launch = {"command": ["serve", "{port}"]}
    model = ModelSection.model_validate({"name": "m", "engine": engine, "launch": launch})
    unit = new_launched_replica(model, 1, "zone-a", "/w", "", set())
    stage.units[unit.id] = unit
    stage.launches.launch(unit, 0)
    await stage.until(stage.runs)
    server = world.Engine()
    server.default = answer
    await server.start(unit.spec.port)
    try:
        yield unit, server
    finally:
        await server.stop()


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_a_page_that_answers_errors_and_nothing_else_leaves_the_word_to_canaries(
    world, monkeypatch, engine
):
    monkeypatch.setattr(module, "PAGE_DOUBT_S", 0.05)
    monkeypatch.setattr(module, "HEALTH_LOOK_S", 0.01)

    async def scene(stage):
        async with starting(stage, world, (500, "", b""), engine=engine) as (unit, server):
            await stage.until(lambda: stage.host.phases() == LOADED)
            assert unit.loaded
            assert set(server.asked) == {"/health" if engine == "vllm" else "/v1/models"}

    play(world, scene, serving=False)


def test_a_server_without_such_a_page_is_asked_at_once(world):
    async def scene(stage):
        async with starting(stage, world, (404, "", b""), engine="openai") as (unit, server):
            await stage.until(lambda: unit.loaded)
            assert server.asked == ["/v1/models"]

    play(world, scene, serving=False)


@pytest.mark.parametrize(
    ("engine", "answer"),
    [
        ("llamacpp", (503, "", b"Loading model")),
        ("trtllm", (503, "x-trtllm-server-state: starting\r\nretry-after: 1\r\n", b"")),
        ("vllm", (503, "", b"")),
        ("vllm", (429, "", b"")),
        ("vllm", b""),
    ],
)
def test_a_page_that_says_loading_is_waited_for(world, monkeypatch, engine, answer):
    monkeypatch.setattr(module, "PAGE_DOUBT_S", 0.0)
    monkeypatch.setattr(module, "HEALTH_LOOK_S", 0.001)

    async def scene(stage):
        async with starting(stage, world, answer, engine=engine) as (unit, server):
            await stage.until(lambda: len(server.asked) >= 5)
            assert not unit.loaded
            server.default = (200, "", b"")
            await stage.until(lambda: unit.loaded)

    play(world, scene, serving=False)


# --- what is seen of them ------------------------------------------------------------------------


def test_phases_lines_freezes_and_ends_are_facts(world):
    async def scene(stage):
        unit = stage.unit()
        stage.launches.launch(unit, 0)
        await stage.until(lambda: unit.pid)
        stage.paper.say("m-1", "INFO Starting to load model")
        stage.paper.say("m-1", "INFO Starting to load model")
        await stage.launcher.serve("m-1")
        await stage.until(lambda: unit.loaded)
        stage.paper.say("m-1", "CUDA error: an illegal memory access was encountered")
        stage.paper.suspend("m-1", True)
        stage.paper.suspend("m-1", False)
        stage.launcher.end("m-1", number=9, oom=True)
        *facts, end = stage.host.facts
        assert facts == [
            PhaseSeen("m-1", "starting"),
            PhaseSeen("m-1", "loading"),
            PhaseSeen("m-1", "serving"),
            LineSeen("m-1", Mark.CUDA_CORRUPTED),
            ProcessFrozen("m-1", True),
            ProcessFrozen("m-1", False),
        ]
        assert 0 <= end.uptime_s < 60
        assert replace(end, uptime_s=None) == ProcessEnded(
            "m-1", signal=9, oom=True, phase="serving"
        )

    play(world, scene, serving=False)


def test_an_end_that_we_brought_about_is_marked_as_such(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        stage.launches.stop(unit)
        await stage.until(lambda: any(isinstance(f, ProcessEnded) for f in stage.host.facts))
        assert stage.host.facts[-1].asked

    play(world, scene)


def test_so_is_one_that_an_earlier_control_ended(world):
    async def scene(stage):
        unit = stage.unit()
        stage.launches.ended(unit.id, Ended(0, None, oom=False, reason="as asked", asked=True))
        assert stage.host.facts == [ProcessEnded("m-1", 0, asked=True)]

    play(world, scene)


def test_one_that_cannot_be_started_ended_before_it_began(world):
    async def scene(stage):
        stage.paper.refusal = "no such file"
        stage.launches.launch(stage.unit(), 0)
        await stage.until(stage.host.exits)
        assert stage.host.facts == [ProcessEnded("m-1", phase="starting", uptime_s=0.0)]

    play(world, scene)


def test_the_uptime_of_an_adopted_one_counts_from_its_own_start(world):
    async def scene(stage):
        unit = stage.unit()
        await stage.loaded(unit)
        stage.launches.adopted(unit, unit.pid, time.time() - 500)
        stage.launcher.end("m-1", code=1)
        assert 499 < stage.host.facts[-1].uptime_s < 600

    play(world, scene)
