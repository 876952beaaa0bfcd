import asyncio
import time

import pytest

from holdfast.control import loop as loop_module
from holdfast.control.loop import TICK, Earlier, FleetLoop
from holdfast.control.probes import LoopWatch
from holdfast.core.fleet_config import FleetConfig
from holdfast.core.health import HealthConfig
from holdfast.core.messages import FleetView, ReplicaView, Report, Seen, Summary, Tally
from holdfast.core.types import Replica, State, nanos

QUICK = FleetConfig(
    health=HealthConfig(canary_s=0.2, canary_suspect_s=0.1, canary_warming_s=0.1),
    canary_deadline_s=0.3,
    canary_deadline_max_s=0.3,
    launch_backoff_s=0.1,
    launch_backoff_max_s=0.2,
)


class Audience:
    def __init__(self):
        self.views = []
        self.moves = []

    def publish(self, view):
        self.views.append(view)

    def move(self, model, replica_id):
        self.moves.append((model, replica_id))

    def rows(self):
        return {row.replica.id: row for row in self.views[-1].replicas} if self.views else {}

    def states(self):
        return {name: row.state for name, row in self.rows().items()}


def drive(scene, *, earlier=None, term=1):
    """Run a scene with a loop that has begun to tick."""

    async def main():
        audience = Audience()
        watch = LoopWatch(TICK, time.monotonic_ns())
        fleet = FleetLoop(audience, watch, {}, term, earlier)
        fleet.start()
        try:
            await scene(fleet, audience)
        finally:
            await fleet.stop()

    asyncio.run(main())


def seen(replica_id="m-1", **tally):
    counts = {"successes": 0, "failures": 0, "backpressure": 0, "inflight": 0, "tokens": 0}
    return Seen((Summary((Tally("m", replica_id, **{**counts, **tally}),)),), "gateway-0")


def test_a_replica_whose_probe_passes_is_published_as_ready(world):
    async def scene(fleet, audience):
        engine = await world.Engine().start()
        fleet.adopt([world.deployed(engine.url)], QUICK)
        assert audience.states() == {"m-1": State.WARMING}
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        assert audience.rows()["m-1"].share > 0
        assert fleet.ready("m")
        assert not fleet.ready("other")
        assert [event.what for event in fleet.events][-1] == "ready"
        (row,) = fleet.replicas()
        assert (row["endpoint"], row["state"]) == (engine.url, "ready")
        versions = [view.version for view in audience.views]
        assert versions == sorted(versions)
        await engine.stop()

    drive(scene)


def test_a_replica_that_refuses_dies_and_is_found_again_when_it_listens(world):
    async def scene(fleet, audience):
        port = world.free_port()
        fleet.adopt([world.deployed(f"http://127.0.0.1:{port}")], QUICK)
        await world.until(lambda: "dead" in [event.what for event in fleet.events])
        engine = await world.Engine().start(port)
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        assert "should be restarted" in [event.what for event in fleet.events]
        await engine.stop()

    drive(scene)


def test_a_dead_endpoint_is_looked_at_again_soon_though_the_backoff_is_long(world, monkeypatch):
    monkeypatch.setattr(loop_module, "LOOK_AGAIN_S", 0.05)
    patient = FleetConfig(
        health=QUICK.health, canary_deadline_s=0.3, launch_backoff_s=600, launch_backoff_max_s=600
    )

    async def scene(fleet, audience):
        port = world.free_port()
        fleet.adopt([world.deployed(f"http://127.0.0.1:{port}")], patient)
        await world.until(lambda: "dead" in [event.what for event in fleet.events])
        engine = await world.Engine().start(port)
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        await engine.stop()

    drive(scene)


def test_a_hung_replica_with_users_on_it_is_stalled_and_one_that_serves_them_is_busy(world):
    async def scene(fleet, audience):
        engines = [await world.Engine().start() for _ in range(3)]
        ids = ["m-1", "m-2", "m-3"]
        fleet.adopt([world.deployed(e.url, i) for e, i in zip(engines, ids, strict=True)], QUICK)
        await world.until(lambda: set(audience.states().values()) == {State.READY})
        fleet.seen(seen(inflight=2))
        engines[0].silent = True
        await world.until(lambda: audience.states()["m-1"] is State.QUARANTINED)
        assert "no token" in audience.rows()["m-1"].reason
        for engine in engines:
            await engine.stop()

    drive(scene)


def test_progress_counts_only_when_it_was_made_after_the_probe_began(world):
    async def scene(fleet, audience):
        engine = await world.Engine().start()
        fleet.adopt([world.deployed(engine.url)], QUICK)
        now = time.monotonic_ns()
        assert fleet._witness("m-1", now).running is None
        fleet.seen(seen(inflight=2, tokens=5))
        assert fleet._witness("m-1", now - nanos(2)).progress
        assert not fleet._witness("m-1", now).progress
        assert fleet._witness("stranger", now).progress is None
        fleet.gateway_gone("gateway-0")
        assert fleet._witness("m-1", now).running == 0
        await engine.stop()

    drive(scene)


def test_a_breaker_that_opens_calls_a_probe(world):
    slow = FleetConfig(health=HealthConfig(canary_s=3_000, canary_suspect_s=0.1))

    async def scene(fleet, audience):
        engine = await world.Engine().start()
        fleet.adopt([world.deployed(engine.url)], slow)
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        asked = len(engine.asked)
        fleet.seen(Seen((Report("m", "m-1", "open", "5 failures in a row"),), "gateway-0"))
        assert audience.states() == {"m-1": State.SUSPECT}
        await world.until(lambda: len(engine.asked) > asked)
        await engine.stop()

    drive(scene)


# --- reloads -------------------------------------------------------------------------------------


def test_a_reload_lets_new_replicas_join_and_old_ones_leave(world):
    async def scene(fleet, audience):
        engines = [await world.Engine().start() for _ in range(3)]
        one, two, three = (world.deployed(e.url, f"m-{n}") for n, e in enumerate(engines))
        fleet.adopt([one, two], QUICK)
        await world.until(lambda: set(audience.states().values()) == {State.READY})
        before = audience.rows()["m-1"].share
        fleet.adopt([two, three], QUICK)
        assert set(audience.states()) == {"m-1", "m-2"}
        assert audience.states()["m-1"] is State.READY  # untouched
        assert audience.rows()["m-1"].share >= before
        await world.until(lambda: audience.states().get("m-2") is State.READY)
        assert list(fleet.deployed) == ["m-1", "m-2"]
        for engine in engines:
            await engine.stop()

    drive(scene)


@pytest.mark.parametrize("change", ["its name", "its weight", "how the fleet is watched"])
def test_a_reload_never_takes_work_from_a_replica_that_was_well(world, change):
    other = FleetConfig(health=QUICK.health, no_success_s=11)

    async def scene(fleet, audience):
        engine = await world.Engine().start()
        fleet.adopt([world.deployed(engine.url, "m-1")], QUICK)
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        told, share = len(audience.views), audience.rows()["m-1"].share
        name = "renamed" if change == "its name" else "m-1"
        weight = 2.0 if change == "its weight" else 1.0
        config = other if change == "how the fleet is watched" else QUICK
        fleet.adopt([world.deployed(engine.url, name, weight=weight)], config)
        assert len(audience.views) > told
        await world.until(lambda: "ready" in [e.what for e in list(fleet.events)[told:]])
        for view in audience.views[told:]:
            (row,) = view.replicas
            assert (row.replica.id, row.replica.weight) == (name, weight)
            assert row.state is State.READY
            assert row.share >= min(share, 0.1)
        order = [(view.epoch, view.version) for view in audience.views]
        assert order == sorted(order)
        await engine.stop()

    drive(scene)


def test_another_endpoint_under_an_old_name_starts_from_nothing(world):
    async def scene(fleet, audience):
        first, second = await world.Engine().start(), await world.Engine().start()
        fleet.adopt([world.deployed(first.url)], QUICK)
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        second.silent = True
        fleet.adopt([world.deployed(second.url)], QUICK)
        assert audience.states() == {"m-1": State.WARMING}
        assert audience.rows()["m-1"].share == 0
        await first.stop()
        await second.stop()

    drive(scene)


# --- after another control -----------------------------------------------------------------------


def left_behind(url, state=State.READY, share=1.0, replica_id="m-1"):
    row = ReplicaView(Replica(replica_id, "m"), state, share, firm=False, reason="was so")
    return FleetView(41, (row,), (), 3), url


def test_a_new_control_goes_on_from_what_the_old_one_told(world):
    async def main():
        engine = await world.Engine().start()
        engine.silent = True
        view, _ = left_behind(engine.url)
        earlier = Earlier(view, (world.deployed(engine.url),))

        async def scene(fleet, audience):
            fleet.adopt([world.deployed(engine.url)], QUICK)
            assert audience.states() == {"m-1": State.READY}
            assert audience.rows()["m-1"].share == 1.0
            assert (audience.views[-1].epoch, audience.views[-1].version) == (4, 42)
            # Its probe comes back without an answer: now it is what this control knows.
            await world.until(lambda: audience.rows()["m-1"].share == 0)
            assert audience.states() == {"m-1": State.WARMING}

        audience = Audience()
        fleet = FleetLoop(audience, LoopWatch(TICK, time.monotonic_ns()), {}, 4, earlier)
        fleet.start()
        await scene(fleet, audience)
        await fleet.stop()
        await engine.stop()

    asyncio.run(main())


def test_a_probe_that_crashes_is_unknown_and_the_next_one_runs(world, monkeypatch):
    async def scene(fleet, audience):
        engine = await world.Engine().start()

        async def broken(*_):
            raise RuntimeError("a mistake of ours")

        real = fleet._prober.probe
        monkeypatch.setattr(fleet._prober, "probe", broken)
        fleet.adopt([world.deployed(engine.url)], QUICK)
        await asyncio.sleep(0)
        await world.until(lambda: not fleet._probes)
        monkeypatch.setattr(fleet._prober, "probe", real)
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        await engine.stop()

    drive(scene)
