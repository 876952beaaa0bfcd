"""Launched models from their wish to their replicas, with a real fleet loop and a real store."""

import asyncio
import time

import pytest

from deployment_stage import fleet_file, in_turn, live, play
from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy import launches
from holdfast.control.deploy.deployments import HELD
from holdfast.control.deploy.launched_replica import EARLY_EXITS_MAX, build_of
from holdfast.core.deploy.autoscale import Demand
from holdfast.core.messages import DrainAsked, Seen, Summary, Tally, UndrainAsked
from holdfast.core.types import ConfigError, State, nanos
from holdfast.testing.standin import fault


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Nobody waits here for an engine that takes minutes."""
    monkeypatch.setattr(launches, "HEALTH_LOOK_S", 0.02)


# --- launching -----------------------------------------------------------------------------------


def test_as_many_as_are_wished_for_are_launched_evenly_and_kept(world, store):
    async def scene(stage):
        await stage.settled(3)
        assert sorted(stage.units) == ["m-1", "m-2", "m-3"]
        zones = [unit.zone for unit in stage.units.values()]
        assert sorted(zones) in (["a", "a", "b"], ["a", "b", "b"])
        assert sorted(store.replicas()) == sorted(stage.units)
        urls = [endpoint.url for endpoint in stage.deployments.endpoints()["m"]]
        assert urls == [unit.url for unit in stage.units.values()]
        await stage.until(lambda: stage.said("rollout finished"))
        assert stage.deployments.idle() == set()
        assert [order.replica_id for order in stage.launcher.orders] == ["m-1", "m-2", "m-3"]

    play(world, store, scene, fleet_file(3, launch={"zones": ["a", "b"]}))


def test_several_models_do_not_mix(world, store):
    async def scene(stage):
        await stage.settled(1, model="m")
        await stage.settled(1, model="n")
        assert set(stage.deployments.endpoints()) == {"m", "n"}
        assert stage.deployments.gauges() == {
            'desired_replicas{model="m"}': 1,
            'desired_replicas{model="n"}': 1,
        }
        snapshot = stage.deployments.snapshot()
        assert (snapshot["m"]["wished"], snapshot["m"]["scaling"]) == (1, None)
        assert stage.deployments.log_path("m-1") is None  # there are no logs on paper
        assert stage.deployments.log_path("stranger") is None

    play(world, store, scene, fleet_file(1, models=2))


def test_one_that_exits_comes_back_later_and_later_under_its_own_name(world, store):
    async def scene(stage):
        await stage.settled(2)
        for number in range(2):
            before = stage.units["m-1"].pid
            stage.launcher.end("m-1", number=9, oom=True)
            assert "m-1" not in stage.ready()
            await stage.until(lambda before=before: stage.units["m-1"].pid not in (None, before))
            await stage.settled(2)
            assert len(stage.launcher.orders) == 3 + number
        told = [n for n in stage.notices if n.replica_id == "m-1" and "out_of_memory" in n.reason]
        assert told
        assert sorted(stage.units) == ["m-1", "m-2"]

    play(world, store, scene)


def test_a_suspended_one_gets_nothing_until_it_goes_on(world, store):
    async def scene(stage):
        await stage.settled(2)
        stage.launcher.host.suspend("m-1", True)
        assert stage.loop.health("m-1").state is State.QUARANTINED
        assert stage.loop.health("m-1").never_readmit_by_panic
        stage.launcher.host.suspend("m-1", False)
        await stage.settled(2)
        assert len(stage.launcher.orders) == 2  # nobody was restarted

    play(world, store, scene)


def test_a_port_that_was_taken_meanwhile_is_given_up(world, store):
    async def scene(stage):
        await stage.settled(1)
        before = stage.units["m-1"].spec.port
        stage.launcher.end("m-1", code=1)
        stranger = await stage.world.Engine().start(before)
        await stage.settled(1)
        after = stage.units["m-1"].spec.port
        assert after != before
        assert store.replicas()["m-1"]["spec"]["port"] == after
        assert stage.loop.deployed["m-1"].url == stage.units["m-1"].url
        await stranger.stop()

    play(world, store, scene, fleet_file(1))


def test_what_cannot_be_launched_is_told(world, store, monkeypatch):
    async def scene(stage):
        await stage.until(lambda: stage.said("cannot be launched"))
        assert not stage.units

    def never(_):
        raise ConfigError("launch", "finds no free port", "stop what listens on so many")

    monkeypatch.setattr("holdfast.control.deploy.launched_replica.free_port", never)
    play(world, store, scene)


# --- numbers -------------------------------------------------------------------------------------


def test_an_operator_s_number_holds_until_the_file_says_another(world, store):
    async def first(stage):
        await stage.settled(1)
        assert stage.deployments.scale("m", 3) == (True, "m is to have 3 replicas")
        await stage.settled(3)
        assert stage.deployments.scale("m", 2)[0]
        await stage.settled(2)
        assert len(store.replicas()) == 2

    async def second(stage):
        await stage.settled(2)  # another control knows it, and nobody was started for it
        assert not stage.launcher.orders
        stage.follow(fleet_file(4))
        await stage.settled(4)

    in_turn(world, store, (fleet_file(1), first), (fleet_file(1), second))


def test_nothing_is_wished_for_and_nothing_is_left(world, store):
    async def scene(stage):
        await stage.settled(2)
        stage.deployments.scale("m", 0)
        await stage.until(lambda: not stage.units)
        assert store.replicas() == {}
        assert not stage.launcher.standins
        assert stage.launcher.host.processes == {}
        stage.deployments.scale("m", 1)
        await stage.settled(1)
        assert list(stage.units) == ["m-3"]  # an id is not used twice

    play(world, store, scene)


@pytest.mark.parametrize(
    ("model", "count", "why"),
    [
        ("listed", 2, "not started here"),
        ("stranger", 2, "not started here"),
        ("m", -1, "use 0 to"),
        ("m", 257, "use 0 to"),
        ("n", 2, "scales by itself"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_the_reason(world, store, model, count, why):
    scaled = fleet_file(0, models=2, scaling={"min": 0, "max": 3}).models[1]
    plain, _, listed = fleet_file(0, models=2).models
    file = FleetFile(models=[plain, scaled, listed])

    async def scene(stage):
        accepted, told = stage.deployments.scale(model, count)
        assert not accepted
        assert why in told
        assert store.settings() == {}

    play(world, store, scene, file)


def test_demand_makes_a_model_grow_and_that_is_told(world, store):
    scaling = {"min": 1, "max": 3, "up_window_s": 0.0}

    async def scene(stage):
        await stage.settled(1)
        stage.asked_for["m"] = Demand(
            time.monotonic_ns(), queued_tokens=50_000, queued=9, running=4, ready=1
        )
        await stage.until(lambda: len(stage.units) > 1)
        stage.asked_for.clear()
        (scaled, *_) = stage.said("scaled")
        assert scaled.reason.startswith("1 to 2")
        snapshot = stage.deployments.snapshot()["m"]
        assert snapshot["wished"] > 1
        assert snapshot["scaling"]
        stage.follow(fleet_file(1))  # no longer scaled: the file's number counts
        await stage.settled(1)

    play(world, store, scene, fleet_file(1, scaling=scaling))


# --- leaving -------------------------------------------------------------------------------------


def test_a_model_that_left_the_file_ends_its_processes_after_a_while(world, store):
    async def scene(stage):
        await stage.settled(1, model="m")
        await stage.settled(1, model="n")
        stage.follow(fleet_file(1))
        assert stage.units["n-1"].pid is not None  # what is on it has time to finish
        assert set(stage.loop.deployed) == {"m-1", "listed-1"}
        await stage.until(lambda: set(stage.units) == {"m-1"})
        assert set(store.replicas()) == {"m-1"}
        assert set(stage.launcher.host.processes) == {"m-1"}
        assert [n.replica_id for n in stage.said("leaves")] == ["n-1"]

    play(world, store, scene, fleet_file(1, models=2))


def test_a_removal_survives_a_file_that_changes_how_the_fleet_is_watched(world, store):
    slow = {"drain": {"deadline_s": 0.5, "move_s": 0.2, "hear_s": 0.05}}

    async def scene(stage):
        await stage.settled(2)
        stage.loop.seen(busy("m-1"))
        stage.loop.seen(busy("m-2"))
        stage.deployments.scale("m", 1)
        await stage.until(lambda: any(unit.removing for unit in stage.units.values()))
        stage.follow(fleet_file(2, fleet={**slow, "no_success_s": 11}))  # the fleet begins anew
        stage.deployments.scale("m", 1)
        await stage.settled(1)

    play(world, store, scene, fleet_file(2, fleet=slow))


def busy(replica_id):
    return Seen((Summary((Tally("m", replica_id, 0, 0, 0, 1, 0),)),), "gateway-0")


def test_a_held_one_stays_out_also_for_the_next_control_until_it_is_asked_back(world, store):
    async def first(stage):
        await stage.settled(2)
        stage.deployments.hold("m-1", held=True)
        stage.tell(DrainAsked("m-1", HELD))
        await stage.until(lambda: stage.units["m-1"].pid is None)
        await stage.until(lambda: stage.loop.health("m-1").state is State.STOPPED)
        stage.deployments.tick(time.monotonic_ns())
        assert len(stage.units) == 2  # nobody is launched in its place

    async def second(stage):
        await stage.until(lambda: stage.ready() == ["m-2"])
        await stage.until(lambda: stage.loop.health("m-1").state is State.STOPPED)
        assert not stage.launcher.orders
        stage.deployments.hold("m-1", held=False)
        stage.tell(UndrainAsked("m-1", "wanted"))
        await stage.settled(2)
        assert [order.replica_id for order in stage.launcher.orders] == ["m-1"]

    in_turn(world, store, (fleet_file(), first), (fleet_file(), second))


def test_a_held_one_that_still_ran_is_drained_by_the_next_control(world, store):
    async def first(stage):
        await stage.settled(2)
        stage.deployments.hold("m-1", held=True)  # and control is killed before the drain is over

    async def second(stage):
        await stage.until(lambda: stage.units["m-1"].pid is None)
        await stage.until(lambda: stage.ready() == ["m-2"])
        assert not stage.launcher.orders

    in_turn(world, store, (fleet_file(), first), (fleet_file(), second))


def test_an_endpoint_of_somebody_else_s_stays_out_too(world, store):
    async def first(stage):
        stage.deployments.hold("listed-1", held=True)
        stage.deployments.hold("listed-1", held=True)
        assert stage.deployments.leavers() == [DrainAsked("listed-1", HELD)]

    async def second(stage):
        assert stage.deployments.leavers() == [DrainAsked("listed-1", HELD)]
        stage.deployments.hold("listed-1", held=False)
        assert stage.deployments.leavers() == []
        assert store.settings()["held"] == []
        stage.deployments.hold("gone-1", held=True)
        stage.follow(fleet_file(0, revision="2"))  # a file that does not list it
        assert store.settings()["held"] == []

    in_turn(world, store, (fleet_file(0), first), (fleet_file(0), second))


# --- another control -----------------------------------------------------------------------------


def test_a_second_control_adopts_and_starts_nobody(world, store):
    pids = {}

    async def first(stage):
        await stage.settled(2)
        await stage.until(lambda: stage.said("rollout finished"))
        pids.update({unit.id: unit.pid for unit in stage.units.values()})

    async def second(stage):
        assert {unit.id: unit.pid for unit in stage.units.values()} == pids
        assert stage.deployments.idle() == set()
        await stage.settled(2)
        assert not stage.launcher.orders
        assert not stage.launcher.graces
        assert all(unit.was_ready for unit in stage.units.values())

    in_turn(world, store, (fleet_file(), first), (fleet_file(), second))


def test_one_that_still_loads_is_adopted_too(world, store):
    async def first(stage):
        stage.launcher.serving = False
        await stage.until(lambda: stage.units and stage.launcher.pid("m-1"))
        await stage.until(lambda: stage.loop.health("m-1").state is State.LOADING)

    async def second(stage):
        assert stage.deployments.idle() == {"m-1"}
        await stage.until(lambda: stage.loop.health("m-1").state is State.LOADING)
        await stage.launcher.serve("m-1")
        await stage.settled(1)
        assert not stage.launcher.orders
        assert not stage.launcher.graces

    in_turn(world, store, (fleet_file(1), first), (fleet_file(1), second))


def test_one_that_ended_while_nobody_watched_is_started_again(world, store):
    async def first(stage):
        await stage.settled(2)

    async def second(stage):
        await stage.settled(2)
        assert [order.replica_id for order in stage.launcher.orders] == ["m-2"]

    async def main():
        async with live(world, store, fleet_file(), leave_running=True) as stage:
            await first(stage)
        before = stage.launcher
        before.end("m-2", number=9)
        launcher = world.Paper(before.host)
        launcher.standins = before.standins
        async with live(world, store, fleet_file(), launcher) as stage:
            await second(stage)
        await before.rest()

    asyncio.run(main())


def test_what_is_stored_and_not_understood_is_dropped_and_its_process_ended(world, store):
    async def first(stage):
        await stage.settled(2)

    async def second(stage):
        assert "m-1" not in stage.units
        assert "m-1" not in store.replicas()
        await stage.settled(2)
        assert set(stage.launcher.host.processes) == set(stage.units)

    async def main():
        async with live(world, store, fleet_file(), leave_running=True) as stage:
            await first(stage)
        before = stage.launcher
        store.put_replica("m-1", {"what": "is this"})
        launcher = world.Paper(before.host)
        launcher.standins = before.standins
        async with live(world, store, fleet_file(), launcher) as stage:
            await second(stage)

    asyncio.run(main())


# --- rolling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"revision": "2"}, {"launch": {"context": 64}}], ids=["revision", "context"]
)
def test_another_build_comes_in_one_by_one_and_nobody_leaves_before(world, store, change):
    async def scene(stage):
        await stage.settled(2)
        await stage.until(lambda: stage.said("rollout finished"))
        old = set(stage.units)
        least, most = [2], [2]

        def done():
            least.append(len(stage.ready()))
            most.append(len(stage.units))
            return not (old & set(stage.units)) and len(stage.ready()) == 2

        stage.follow(fleet_file(**change))
        await stage.until(done)
        assert min(least) >= 2
        assert max(most) == 3
        await stage.until(lambda: len(stage.said("rollout finished")) == 2)
        build = build_of(stage.file.models[0], "")
        assert {unit.build for unit in stage.units.values()} == {build}

    play(world, store, scene)


def test_a_revision_whose_processes_end_at_once_is_refused_and_the_old_one_stays(world, store):
    async def first(stage):
        await stage.settled(2)
        await stage.until(lambda: stage.said("rollout finished"))
        stage.launcher.doomed = {"2"}
        stage.follow(fleet_file(revision="2"))
        await stage.until(lambda: stage.said("rollout halted"))
        (halted,) = stage.said("rollout halted")
        assert f"ended {EARLY_EXITS_MAX} times before it was ready" in halted.reason
        await stage.settled(2, "1")
        tries = [o for o in stage.launcher.orders if "revision=2" in o.command]
        assert len(tries) == EARLY_EXITS_MAX  # of one replica: the fleet never met it
        assert {order.replica_id for order in tries} == {"m-3"}

    async def second(stage):
        await stage.settled(2, "1")
        assert stage.deployments.snapshot()["m"]["rollout"]["refused_revision"]
        assert not stage.launcher.orders  # it is not tried again until the wish changes
        stage.follow(fleet_file(revision="3"))
        await stage.settled(2, "3")

    file = fleet_file(revision="2")
    in_turn(world, store, (fleet_file(), first), (file, second))


def test_a_revision_whose_program_is_missing_is_refused_too(world, store):
    async def scene(stage):
        await stage.settled(1)
        await stage.until(lambda: stage.said("rollout finished"))
        stage.launcher.host.refusal = "no such file"
        stage.follow(fleet_file(1, revision="2"))
        await stage.until(lambda: stage.said("rollout halted"))
        stage.launcher.host.refusal = None
        await stage.settled(1, "1")

    play(world, store, scene, fleet_file(1))


def test_a_revision_that_talks_nonsense_stops_at_its_first_replica(world, store):
    async def scene(stage):
        await stage.settled(2)
        await stage.until(lambda: stage.said("rollout finished"))
        stage.launcher.ailments = {"2": fault("garbage")}
        stage.follow(fleet_file(revision="2"))
        await stage.until(lambda: stage.said("rollout halted"))
        await stage.settled(2, "1")
        tries = {o.replica_id for o in stage.launcher.orders if "revision=2" in o.command}
        assert len(tries) == 1

    play(world, store, scene)


def test_a_refused_revision_is_gone_back_from_though_nobody_of_the_old_one_is_left(world, store):
    old, new = fleet_file(1), fleet_file(1, revision="2")

    async def first(stage):
        await stage.settled(1)
        await stage.until(lambda: stage.said("rollout finished"))
        stage.deployments.scale("m", 0)
        await stage.until(lambda: not stage.units)

    kept = {}

    async def second(stage):
        await stage.settled(1, "1")
        assert [unit.build for unit in stage.units.values()] == [kept["good"]]

    async def main():
        async with live(world, store, old) as stage:
            await first(stage)
        kept.update(store.settings()["rollout/m"])
        refused = build_of(new.models[0], "")
        told = {**kept, "refused_revision": refused, "halted": "it lies"}
        store.put_setting("rollout/m", told)
        store.put_setting("scale/m", {"count": 1, "of": 1})
        async with live(world, store, new) as stage:
            await second(stage)

    asyncio.run(main())


def test_a_revision_of_which_nothing_is_known_any_more_is_not_replaced_by_the_refused_one(
    world, store
):
    new = fleet_file(1, revision="2")
    refused = build_of(new.models[0], "")
    told = {"good": "1+gone", "refused_revision": refused, "halted": "it lies"}
    store.put_setting("rollout/m", told)

    async def scene(stage):
        await stage.until(lambda: stage.said("cannot be launched"))
        assert "1+gone" in stage.said("cannot be launched")[0].reason
        assert not stage.units

    play(world, store, scene, new)


def test_one_that_fell_ill_right_after_it_was_ready_is_no_failure_of_its_revision(world, store):
    async def scene(stage):
        await stage.until(lambda: stage.loop.health("m-1") and stage.launcher.standins)
        await stage.until(lambda: stage.loop.health("m-1").state is State.READY)
        stage.launcher.host.suspend("m-1", True)  # before anybody looked at it as ready
        stage.deployments.tick(time.monotonic_ns())
        unit = stage.units["m-1"]
        assert stage.loop.health("m-1").state is State.QUARANTINED
        assert (unit.was_ready, unit.failed, unit.removing) == (True, "", False)
        assert store.replicas()["m-1"]["was_ready"]

    play(world, store, scene, fleet_file(1))


# --- silence -------------------------------------------------------------------------------------


def test_silence_is_told_once_and_so_is_its_end(world, store):
    async def scene(stage):
        await stage.settled(1)
        now = time.monotonic_ns()
        look = stage.deployments.look_for_silence
        look({"m-1": 0}, now + nanos(3_600))
        look({}, now + nanos(3_600))
        look({"m-1": 2}, now)
        assert not stage.said("silent")
        for later in (40, 41):
            look({"m-1": 2}, now + nanos(later))
        (silent,) = stage.said("silent")
        assert "2 requests running" in silent.reason
        assert silent.failure_class == "runtime"
        look({"m-1": 0}, now + nanos(42))
        assert len(stage.said("heard again")) == 1

    play(world, store, scene, fleet_file(1))


def test_one_whose_tokens_move_is_not_silent_however_long_it_is_busy(world, store):
    async def scene(stage):
        await stage.settled(1)
        stage.deployments.look_for_silence({"m-1": 1}, time.monotonic_ns() - nanos(60))
        stage.deployments.heard("m-1", "tokens")
        stage.deployments.heard("stranger", "tokens")
        stage.deployments.look_for_silence({"m-1": 1}, time.monotonic_ns())
        assert not stage.said("silent")

    play(world, store, scene, fleet_file(1))


def test_a_load_that_says_nothing_is_told_of_as_one_and_a_dead_one_is_not(world, store):
    async def scene(stage):
        stage.launcher.serving = False
        await stage.until(lambda: stage.units and stage.units["m-1"].pid)
        now = time.monotonic_ns()
        stage.deployments.look_for_silence({}, now + nanos(100))
        assert not stage.said("silent")
        stage.deployments.look_for_silence({}, now + nanos(130))
        (silent,) = stage.said("silent")
        assert silent.failure_class == "loading"
        stage.launcher.end("m-1", code=1)
        stage.deployments.look_for_silence({}, now + nanos(200))
        assert len(stage.said("silent")) == 1
        assert not stage.said("heard again")

    play(world, store, scene, fleet_file(1))
