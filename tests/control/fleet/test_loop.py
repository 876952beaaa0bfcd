import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from holdfast.control.fetch import listens
from holdfast.control.fleet import loop as loop_module
from holdfast.control.fleet.loop import TICK, Earlier, FleetLoop
from holdfast.core.canary import CanaryConfig
from holdfast.core.diagnose.detect.silence import METRICS
from holdfast.core.health import own_lateness
from holdfast.core.health.drain import DrainConfig
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import HealthConfig
from holdfast.core.health.lifecycle import REASONS, Conclusion, Signal
from holdfast.core.health.own_lateness import LoopWatch
from holdfast.core.messages import (
    CanaryAsked,
    DrainAsked,
    Exited,
    FleetView,
    Frozen,
    LoadReported,
    Phase,
    ReplicaView,
    Report,
    Seen,
    Summary,
    Tally,
)
from holdfast.core.types import MILLISECOND, Replica, State, nanos
from holdfast.testing.standin import fault

QUICK = FleetConfig(
    health=HealthConfig(canary_s=0.2, canary_suspect_s=0.1, canary_warming_s=0.1),
    canary_deadline_s=0.3,
    canary_deadline_max_s=0.3,
    launch_backoff_s=0.1,
    launch_backoff_max_s=0.2,
    drain=DrainConfig(hear_s=0.05),
)


@pytest.fixture(autouse=True)
def _in_time(monkeypatch):
    """A busy machine makes this process late, and silence unknown; that is tested with probes."""
    monkeypatch.setattr(own_lateness, "LATE", nanos(3_600))


class Audience:
    def __init__(self):
        self.views = []
        self.moves = []
        self.notices = []
        self.canaries = []
        self.facts = []

    def publish(self, view):
        self.views.append(view)

    def move(self, action):
        self.moves.append((action.model, action.replica_id))

    def note(self, notice):
        self.notices.append(notice)

    def saw(self, fact):
        self.facts.append(fact)

    def answered(self, result, *, slow, inflight):
        self.canaries.append((result, slow, inflight))

    def said(self):
        return [notice.what for notice in self.notices]

    def rows(self):
        return {row.replica.id: row for row in self.views[-1].replicas} if self.views else {}

    def states(self):
        return {name: row.state for name, row in self.rows().items()}


class Platform:
    """Somebody else's replicas, unless it is told that they are ours."""

    def __init__(self, ours=()):
        self.ours = set(ours)
        self.launched = []
        self.stopped = []
        self.sounds = []

    def launch(self, replica_id, delay):
        self.launched.append((replica_id, delay))
        return replica_id in self.ours

    def stop(self, replica_id):
        self.stopped.append(replica_id)
        return replica_id in self.ours

    def heard(self, replica_id, source):
        self.sounds.append((replica_id, source))


class Stage:
    """One loop, and the engines it watches."""

    def __init__(self, world, fleet, audience, platform, stack):
        self._world = world
        self._stack = stack
        self.fleet = fleet
        self.audience = audience
        self.platform = platform
        self.until = world.until
        self.free_port = world.free_port
        self.deployed = world.deployed

    async def engine(self, port=0, **options):
        found = await self._world.standin(port, **options)
        self._stack.push_async_callback(found.stop)
        return found

    async def bare(self):
        """A server that answers what the test decides."""
        found = await self._world.Engine().start()
        self._stack.push_async_callback(found.stop)
        return found


def drive(world, scene, *, ours=()):
    """Run a scene with a loop that has begun to tick."""

    async def main():
        audience, platform = Audience(), Platform(ours)
        watch = LoopWatch(TICK, time.monotonic_ns())
        fleet = FleetLoop(audience, watch, world.canaries(), platform, 1)
        fleet.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(fleet.stop)
            await scene(Stage(world, fleet, audience, platform, stack))

    asyncio.run(main())


def seen(replica_id="m-1", **tally):
    counts = {"successes": 0, "failures": 0, "backpressure": 0, "inflight": 0, "tokens": 0}
    return Seen((Summary((Tally("m", replica_id, **{**counts, **tally}),)),), "gateway-0")


def test_a_replica_that_answers_its_canary_is_published_as_ready(world):
    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        engine = await stage.engine()
        fleet.adopt([stage.deployed(engine.url)], QUICK)
        assert audience.states() == {"m-1": State.WARMING}
        await stage.until(lambda: audience.states() == {"m-1": State.READY})
        assert audience.rows()["m-1"].share > 0
        assert fleet.ready("m")
        assert not fleet.ready("other")
        assert audience.said()[-1] == "ready"
        (row,) = fleet.replicas()
        assert (row["endpoint"], row["state"]) == (engine.url, "ready")
        assert (row["canary"].verdict, fleet.asked("m-1")) == ("pass", row["canary"])
        versions = [view.version for view in audience.views]
        assert versions == sorted(versions)

    drive(world, scene)


def test_figures_of_work_that_move_are_a_sign_of_life_and_a_page_alone_is_none(world):
    async def scene(stage):
        engine = await stage.engine()
        stage.fleet.adopt([stage.deployed(engine.url)], QUICK)
        reads = []
        for steps in (7, 7, 8, 8):
            (told,) = stage.fleet.engine_loads([LoadReported("m", "m-1", running=1, steps=steps)])
            reads.append(told.reads)
        assert stage.platform.sounds.count(("m-1", METRICS)) == 1
        assert reads == [False, False, True, False]  # gateways are told

    drive(world, scene)


def test_a_long_prompt_asks_for_no_sign_of_life(world):
    async def scene(stage):
        engine = await stage.engine()
        stage.fleet.adopt([stage.deployed(engine.url)], QUICK)
        now = time.monotonic_ns()
        stage.fleet.tell(seen(inflight=1))
        assert stage.fleet.answering(now) == {"m-1": 1}
        stage.fleet.tell(seen(inflight=1, unread=100_000))
        assert stage.fleet.answering(now) == {"m-1": None}
        assert stage.fleet.inflight() == {"m-1": 1}

    drive(world, scene)


def test_the_last_canaries_are_remembered_and_no_more(world, monkeypatch):
    monkeypatch.setattr(loop_module, "CANARIES_MAX", 3)

    async def scene(stage):
        fleet = stage.fleet
        engine = await stage.engine()
        fleet.adopt([stage.deployed(engine.url)], QUICK)
        assert fleet.canaries("m-1") == []
        assert fleet.canaries("nobody") == []
        await stage.until(lambda: len(fleet.canaries("m-1")) == 3)
        first = fleet.canaries("m-1")[0]
        await stage.until(lambda: first not in fleet.canaries("m-1"))
        found = fleet.canaries("m-1")
        assert [one.at for one in found] == sorted(one.at for one in found)
        assert (len(found), found[-1]) == (3, fleet.asked("m-1"))
        fleet.adopt([], QUICK)
        assert fleet.canaries("m-1") == []

    drive(world, scene)


def test_a_green_health_page_admits_nobody(world):
    async def scene(stage):
        engine = await stage.bare()  # 200 and an empty object, whatever is asked
        stage.fleet.adopt([stage.deployed(engine.url)], QUICK)
        await stage.until(lambda: len(engine.asked) >= 4)
        assert stage.audience.states() == {"m-1": State.WARMING}
        assert stage.fleet.asked("m-1").verdict == "fail"
        told = [notice.reason for notice in stage.audience.notices if notice.what == "canary fail"]
        assert len(told) == 1  # once is enough

    drive(world, scene)


RIGHT = (
    200,
    "",
    (
        b'data: {"choices":[{"index":0,"delta":{"content":"one two"}}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    ),
)


@pytest.mark.parametrize("engine", ["openai", "vllm"])
def test_a_replica_whose_page_answers_500_and_whose_chats_are_right_is_ready(world, engine):
    async def scene(stage):
        server = await stage.bare()
        server.default = (500, "", b"")  # its health page, and the list of its models
        server.answers["/v1/chat/completions"] = RIGHT
        stage.fleet.adopt([stage.deployed(server.url, engine=engine)], QUICK)
        await stage.until(lambda: stage.audience.states() == {"m-1": State.READY})
        assert stage.audience.rows()["m-1"].share > 0
        shown = stage.fleet.asked("m-1").detail
        assert ("its health page answers 500" in shown) is (engine == "vllm")

    drive(world, scene)


def test_an_engine_that_drains_and_says_so_is_out_without_a_stop_and_comes_back(world):
    async def scene(stage):
        server, peer = await stage.bare(), await stage.bare()
        server.answers["/v1/chat/completions"] = peer.answers["/v1/chat/completions"] = RIGHT
        stage.fleet.adopt([stage.deployed(server.url), stage.deployed(peer.url, "m-2")], QUICK)
        both = {"m-1": State.READY, "m-2": State.READY}
        await stage.until(lambda: stage.audience.states() == both)
        server.answers["/health"] = (503, "", b'{"error":"The model is currently scaling. Please"}')
        await stage.until(lambda: stage.audience.states()["m-1"] is State.QUARANTINED)
        assert stage.audience.rows()["m-1"].share == 0
        assert stage.fleet.asked("m-1").verdict == "busy"
        del server.answers["/health"]
        await stage.until(lambda: stage.audience.states() == both)
        assert (stage.platform.stopped, stage.platform.launched) == ([], [])

    drive(world, scene)


def test_a_hang_is_found_although_control_is_late_100_ms_now_and_then(world, monkeypatch):
    monkeypatch.setattr(own_lateness, "LATE", 50 * MILLISECOND)
    timing = replace(QUICK, canary_deadline_s=0.6, canary_deadline_max_s=0.6)

    async def scene(stage):
        engine = await stage.engine()
        stage.fleet.adopt([stage.deployed(engine.url)], timing)
        await stage.until(lambda: stage.audience.states() == {"m-1": State.READY})
        engine.set_fault(fault("hang"))
        running = asyncio.get_running_loop()

        def late():  # what must never happen in control, happens again and again
            time.sleep(0.1)
            stage.timer = running.call_later(0.3, late)

        late()
        await stage.until(lambda: stage.audience.states() != {"m-1": State.READY})
        stage.timer.cancel()

    drive(world, scene)


def test_a_loop_that_stood_still_is_a_fact_and_a_busy_one_is_none(world, monkeypatch):
    monkeypatch.setattr(own_lateness, "LATE", 50 * MILLISECOND)

    async def scene(stage):
        watch = stage.fleet._watch
        watch._due = time.monotonic_ns() - 200 * MILLISECOND
        stage.fleet._tick()
        assert stage.audience.facts == []
        watch._due = time.monotonic_ns() - nanos(5)
        stage.fleet._tick()
        (fact,) = stage.audience.facts
        assert 5 <= fact.late_s < 60

    async def main():
        fleet = FleetLoop(
            audience := Audience(), LoopWatch(TICK, 0), world.canaries(), Platform(), 1
        )
        async with AsyncExitStack() as stack:
            await scene(Stage(world, fleet, audience, None, stack))
            await fleet.stop()

    asyncio.run(main())


def test_an_excused_probe_is_asked_again_at_once(world, monkeypatch):
    monkeypatch.setattr(LoopWatch, "late_within", lambda _, began, now: now - began)
    rare = replace(QUICK, health=replace(QUICK.health, canary_s=3_600.0))

    async def scene(stage):
        engine = await stage.engine()
        stage.fleet.adopt([stage.deployed(engine.url)], rare)
        await stage.until(lambda: stage.audience.states() == {"m-1": State.READY})
        engine.set_fault(fault("hang"))
        stage.fleet.tell(CanaryAsked(("m-1",)))
        await stage.until(lambda: stage.fleet.asked("m-1").verdict == "timeout")
        told = [one.verdict.value for one in stage.fleet.canaries("m-1")]
        assert told[-2:] == ["unknown", "timeout"]

    drive(world, scene)


def test_an_endpoint_that_is_not_there_is_told_once_and_never_said_to_be_loaded(world, monkeypatch):
    monkeypatch.setattr(loop_module, "LOOK_AGAIN_S", 0.02)
    looked = []

    async def counted(url, within_s):
        looked.append(url)
        return await listens(url, within_s)

    monkeypatch.setattr(loop_module, "listens", counted)

    async def scene(stage):
        port = stage.free_port()
        stage.fleet.adopt([stage.deployed(f"http://127.0.0.1:{port}")], QUICK)
        await stage.until(lambda: len(looked) > 10)
        assert stage.audience.said().count("dead") == 1
        assert "loading" not in stage.audience.said()
        assert stage.audience.states() == {"m-1": State.STARTING}

    drive(world, scene)


def test_a_replica_that_refuses_dies_and_is_found_again_when_it_listens(world):
    async def scene(stage):
        port = stage.free_port()
        stage.fleet.adopt([stage.deployed(f"http://127.0.0.1:{port}")], QUICK)
        await stage.until(lambda: "dead" in stage.audience.said())
        await stage.engine(port)
        await stage.until(lambda: stage.audience.states() == {"m-1": State.READY})
        assert "should be restarted" not in stage.audience.said()  # nobody had ever been there

    drive(world, scene)


def test_an_endpoint_is_never_seen_until_it_was_reached_and_then_waits_for_its_next_start(
    world, monkeypatch
):
    monkeypatch.setattr(loop_module, "LOOK_AGAIN_S", 0.05)

    async def scene(stage):
        def reason():
            return stage.fleet.replicas()[0]["reason"]

        port = stage.free_port()
        stage.fleet.adopt([stage.deployed(f"http://127.0.0.1:{port}")], QUICK)
        assert reason().startswith("never seen")
        await stage.until(lambda: stage.audience.states() == {"m-1": State.STARTING})
        assert reason().startswith("never seen")
        engine = await stage.engine(port)
        await stage.until(lambda: stage.audience.states() == {"m-1": State.READY})
        assert reason().startswith(REASONS[Conclusion.PASSED_ENOUGH])
        await engine.stop()
        await stage.until(lambda: stage.audience.states() == {"m-1": State.STARTING})
        assert reason().startswith(REASONS[Signal.RELAUNCH])
        assert "should be restarted" in stage.audience.said()

    drive(world, scene)


def test_the_reason_of_a_ready_replica_follows_its_latest_canary(world):
    async def scene(stage):
        engine, peer = await stage.engine(), await stage.engine()
        stage.fleet.adopt([stage.deployed(engine.url)], QUICK)
        await stage.until(lambda: stage.fleet.ready("m"))
        (row,) = stage.fleet.replicas()
        assert row["canary"].detail in row["reason"]
        both = [stage.deployed(engine.url), stage.deployed(peer.url, "m-2")]
        stage.fleet.adopt(both, QUICK)
        await stage.until(lambda: stage.fleet.asked("m-2") is not None)
        count = len(stage.fleet.canaries("m-1"))
        await stage.until(lambda: len(stage.fleet.canaries("m-1")) > count + 1)
        now = stage.fleet.replicas()[0]
        assert now["canary"].detail in now["reason"]
        assert "no peer has confirmed" not in now["reason"]

    drive(world, scene)


def test_a_dead_endpoint_is_looked_at_again_soon_though_the_backoff_is_long(world, monkeypatch):
    monkeypatch.setattr(loop_module, "LOOK_AGAIN_S", 0.05)
    patient = FleetConfig(
        health=QUICK.health, canary_deadline_s=0.3, launch_backoff_s=600, launch_backoff_max_s=600
    )

    async def scene(stage):
        port = stage.free_port()
        stage.fleet.adopt([stage.deployed(f"http://127.0.0.1:{port}")], patient)
        await stage.until(lambda: "dead" in stage.audience.said())
        await stage.engine(port)
        await stage.until(lambda: stage.audience.states() == {"m-1": State.READY})

    drive(world, scene)


def test_a_hung_replica_with_users_on_it_is_stalled_though_its_page_answers(world):
    # Long enough that peers are heard of in the middle of the wait: its silence is its own.
    patient = replace(QUICK, canary_deadline_s=3.0, canary_deadline_max_s=3.0)

    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        engines = [await stage.engine() for _ in range(3)]
        ids = ["m-1", "m-2", "m-3"]
        fleet.adopt([stage.deployed(e.url, i) for e, i in zip(engines, ids, strict=True)], patient)
        await stage.until(lambda: set(audience.states().values()) == {State.READY})
        fleet.seen(seen(inflight=2))
        engines[0].set_fault(fault("hang"))
        await stage.until(lambda: audience.states()["m-1"] is State.QUARANTINED)
        assert "no token" in audience.rows()["m-1"].reason

    drive(world, scene)


def test_a_replica_that_begins_to_lie_is_put_out_for_good(world):
    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        engines = [await stage.engine() for _ in range(3)]
        fleet.adopt([stage.deployed(e.url, f"m-{n}") for n, e in enumerate(engines)], QUICK)
        await stage.until(lambda: set(audience.states().values()) == {State.READY})
        engines[1].set_fault(fault("wrong_output"))
        await stage.until(lambda: audience.rows()["m-1"].firm)
        assert audience.states()["m-1"] is State.QUARANTINED
        assert fleet.health("m-1").wrong
        assert fleet.health("stranger") is None

    drive(world, scene)


def test_progress_counts_only_when_it_was_made_after_the_probe_began(world):
    async def scene(stage):
        fleet = stage.fleet
        engine = await stage.engine()
        fleet.adopt([stage.deployed(engine.url)], QUICK)
        now = time.monotonic_ns()
        assert fleet._users_beside("m-1", now).running is None
        fleet.seen(seen(inflight=2, tokens=5))
        assert fleet._users_beside("m-1", now - nanos(2)).progress
        assert not fleet._users_beside("m-1", now).progress
        assert fleet._users_beside("stranger", now).progress is None
        fleet.gateway_gone("gateway-0")
        assert fleet._users_beside("m-1", now).running == 0
        assert fleet._users_beside("m-1", now).progress is False  # nobody waits for any

    drive(world, scene)


def test_what_no_summary_could_tell_yet_is_unknown(world):
    async def scene(stage):
        fleet = stage.fleet
        engine = await stage.engine()
        fleet.adopt([stage.deployed(engine.url)], QUICK)
        began = time.monotonic_ns()
        fleet.seen(seen(inflight=2))
        assert fleet._users_beside("m-1", began).progress is None
        assert (
            fleet._users_beside("m-1", began - nanos(1.5)).progress is False
        )  # it would have told
        fleet.seen(replace(seen(inflight=1), gateway="gateway-1"))
        told = fleet._fleet.members["m-1"].told_at
        told["gateway-1"] -= nanos(1.2)
        assert (
            fleet._users_beside("m-1", began - nanos(1.5)).progress is None
        )  # another has not told
        assert fleet._users_beside("m-1", began - nanos(3.0)).progress is False  # and had time to

    drive(world, scene)


def test_a_breaker_that_opens_calls_a_canary(world):
    slow = FleetConfig(health=HealthConfig(canary_s=3_000, canary_suspect_s=0.1))

    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        engine = await stage.engine()
        fleet.adopt([stage.deployed(engine.url)], slow)
        await stage.until(lambda: audience.states() == {"m-1": State.READY})
        asked = engine.stats()["requests"]
        fleet.seen(Seen((Report("m", "m-1", "open", "5 failures in a row"),), "gateway-0"))
        assert audience.states() == {"m-1": State.SUSPECT}
        await stage.until(lambda: engine.stats()["requests"] > asked)

    drive(world, scene)


def test_signs_of_life_are_passed_on(world):
    async def scene(stage):
        engine = await stage.engine()
        stage.fleet.adopt([stage.deployed(engine.url)], QUICK)
        await stage.until(lambda: ("m-1", "canary") in stage.platform.sounds)
        assert ("m-1", "tokens") not in stage.platform.sounds
        stage.fleet.seen(seen(inflight=1))
        assert ("m-1", "tokens") not in stage.platform.sounds
        stage.fleet.seen(seen(inflight=1, tokens=3))
        assert stage.platform.sounds[-1] == ("m-1", "tokens")

    drive(world, scene)


# --- replicas that are ours ----------------------------------------------------------------------


def test_what_is_ours_is_launched_and_waited_for(world):
    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        engine = await stage.engine()
        fleet.adopt([stage.deployed(engine.url)], QUICK, {"m-1"})
        assert stage.platform.launched == [("m-1", 0)]
        assert audience.states() == {"m-1": State.STARTING}
        phases = (State.STARTING, State.LOADING, State.WARMING)
        fleet.tell(*(Phase("m-1", phase) for phase in phases))
        await stage.until(lambda: audience.states() == {"m-1": State.READY})
        fleet.tell(Exited("m-1", detail="killed by SIGKILL"))
        assert audience.states() == {"m-1": State.STARTING}
        assert [name for name, _ in stage.platform.launched] == ["m-1", "m-1"]
        assert stage.platform.launched[1][1] > 0

    drive(world, scene, ours={"m-1"})


def test_a_broken_canary_waits_for_the_news_that_the_process_exited(world, monkeypatch):
    monkeypatch.setattr(loop_module, "EXIT_NEWS_S", 60.0)
    said = b'data: {"choices":[{"index":0,"delta":{"content":"one two"},"finish_reason":"stop"}]}'

    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        engine = await stage.bare()
        engine.answers["/v1/chat/completions"] = (200, "", said + b"\n\ndata: [DONE]\n\n")
        fleet.adopt([replace(stage.deployed(engine.url), launched=True)], QUICK, {"m-1"})
        fleet.tell(*(Phase("m-1", phase) for phase in (State.LOADING, State.WARMING)))
        await stage.until(lambda: audience.states() == {"m-1": State.READY})
        engine.default = (500, "", b"")
        engine.answers.clear()
        engine.asked.clear()
        chat = "/v1/chat/completions"
        await stage.until(lambda: "/health" in engine.asked and engine.asked[-1] == chat)
        await stage.until(lambda: not engine._writers)
        _, waiting = await asyncio.wait(fleet._probes.values(), timeout=0.3)
        assert waiting
        fleet.tell(Exited("m-1", detail="killed by SIGKILL"))
        assert audience.said()[-2:] == ["dead", "starting"]
        assert "suspect" not in audience.said()

    drive(world, scene, ours={"m-1"})


def test_what_is_not_ours_is_never_said_to_be_stopped(world):
    async def scene(stage):
        engine = await stage.engine()
        stage.fleet.adopt([stage.deployed(engine.url)], QUICK)
        await stage.until(lambda: stage.audience.states() == {"m-1": State.READY})
        stage.fleet.tell(DrainAsked("m-1", "an operator wants it out of service"))
        await stage.until(lambda: stage.audience.states() == {"m-1": State.STOPPED})
        told = [n.reason for n in stage.audience.notices if n.what == "should be restarted"]
        assert told
        assert all("not ours to stop" in reason for reason in told)

    drive(world, scene)


# --- reloads -------------------------------------------------------------------------------------


def test_a_reload_lets_new_replicas_join_and_old_ones_leave(world):
    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        engines = [await stage.engine() for _ in range(3)]
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

    drive(world, scene)


@pytest.mark.parametrize("change", ["its name", "its weight", "how the fleet is watched"])
def test_a_reload_never_takes_work_from_a_replica_that_was_well(world, change):
    other = FleetConfig(health=QUICK.health, no_success_s=11)

    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        engine = await stage.engine()
        fleet.adopt([world.deployed(engine.url, "m-1")], QUICK)
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        told, share = len(audience.views), audience.rows()["m-1"].share
        notices = len(audience.notices)
        name = "renamed" if change == "its name" else "m-1"
        weight = 2.0 if change == "its weight" else 1.0
        config = other if change == "how the fleet is watched" else QUICK
        fleet.adopt([world.deployed(engine.url, name, weight=weight)], config)
        assert len(audience.views) > told
        await world.until(lambda: "ready" in audience.said()[notices:])
        for view in audience.views[told:]:
            (row,) = view.replicas
            assert (row.replica.id, row.replica.weight) == (name, weight)
            assert row.state is State.READY
            assert row.share >= min(share, 0.1)
        order = [(view.epoch, view.version) for view in audience.views]
        assert order == sorted(order)

    drive(world, scene)


def test_another_endpoint_under_an_old_name_starts_from_nothing(world):
    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        first, second = await stage.engine(), await stage.bare()
        fleet.adopt([world.deployed(first.url)], QUICK)
        await world.until(lambda: audience.states() == {"m-1": State.READY})
        second.silent = True
        fleet.adopt([world.deployed(second.url)], QUICK)
        assert audience.states() == {"m-1": State.WARMING}
        assert audience.rows()["m-1"].share == 0

    drive(world, scene)


def test_the_lone_word_of_a_replica_that_left_binds_nobody(world):
    async def scene(stage):
        liar, honest = await stage.engine(), await stage.engine()
        liar.set_fault(fault("wrong_output"))
        stage.fleet.adopt([world.deployed(liar.url, "m-1")], QUICK)
        await world.until(lambda: stage.audience.states() == {"m-1": State.READY})  # nobody objects
        stage.fleet.adopt([world.deployed(honest.url, "m-2")], QUICK)
        await world.until(lambda: stage.audience.states() == {"m-2": State.READY})

    drive(world, scene)


# --- after another control -----------------------------------------------------------------------


def left_behind(url, world, state=State.READY, share=1.0):
    row = ReplicaView(Replica("m-1", "m"), state, share, firm=False, reason="was so")
    return Earlier(FleetView(41, (row,), (), 3), (world.deployed(url),))


def after_another(world, scene, **more):
    """A scene with an engine that an earlier control called ready."""

    async def main():
        engine = await world.Engine().start()
        engine.silent = True
        audience, platform = Audience(), Platform({"m-1"})
        watch, earlier = LoopWatch(TICK, time.monotonic_ns()), left_behind(engine.url, world)
        fleet = FleetLoop(audience, watch, world.canaries(), platform, 4, earlier)
        fleet.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.stop)
            stack.push_async_callback(fleet.stop)
            fleet.adopt([world.deployed(engine.url)], more.get("config", QUICK))
            await scene(fleet, audience)

    asyncio.run(main())


def test_a_new_control_goes_on_from_what_the_old_one_told(world):
    async def scene(_, audience):
        assert audience.states() == {"m-1": State.READY}
        assert audience.rows()["m-1"].share == 1.0
        assert (audience.views[-1].epoch, audience.views[-1].version) == (4, 42)
        # Its probe comes back without an answer: now it is what this control knows.
        await world.until(lambda: audience.rows()["m-1"].share == 0)
        assert audience.states() == {"m-1": State.WARMING}

    after_another(world, scene)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (DrainAsked("m-1", "an operator wants it out of service"), State.DRAINING),
        (Exited("m-1", detail="killed by SIGKILL"), State.STARTING),
        (Frozen("m-1", True), State.WARMING),
    ],
)
def test_what_was_told_before_does_not_outweigh_a_fact(world, event, state):
    slow = FleetConfig(health=QUICK.health, canary_deadline_s=30)  # no probe comes back in time

    async def scene(fleet, audience):
        fleet.tell(Frozen("m-1", False))
        assert audience.states() == {"m-1": State.READY}
        fleet.tell(event)
        assert audience.states() == {"m-1": state}
        assert audience.rows()["m-1"].share == 0

    after_another(world, scene, config=slow)


def test_a_replica_that_was_well_keeps_its_place_while_its_answer_is_not_settled(world):
    async def scene(stage):
        fleet, audience = stage.fleet, stage.audience
        one, two = await stage.engine(), await stage.engine()
        fleet.adopt([stage.deployed(one.url, "m-1"), stage.deployed(two.url, "m-2")], QUICK)
        await stage.until(lambda: set(audience.states().values()) == {State.READY})
        # Another question: nothing is confirmed, and the two do not agree.
        two.set_fault(fault("wrong_output"))
        other = CanaryConfig(prompt="Name the colours of a rainbow.")
        rows = [
            stage.deployed(engine.url, f"m-{n}", canary=other)
            for n, engine in enumerate((one, two), 1)
        ]
        fleet.adopt(rows, QUICK)
        await stage.until(lambda: "canary unsettled" in audience.said())
        who = next(n.replica_id for n in audience.notices if n.what == "canary unsettled")
        assert audience.states()[who] is State.READY
        before = fleet.asked(who)
        await stage.until(lambda: fleet.asked(who) is not before)
        assert fleet.asked(who).verdict == "unsettled"
        assert audience.said().count("canary unsettled") == 1  # once is enough
        assert audience.states()[who] is State.READY

    drive(world, scene)


def test_a_probe_that_crashes_is_unknown_and_the_next_one_runs(world, monkeypatch):
    async def scene(stage):
        fleet = stage.fleet
        engine = await stage.engine()

        async def broken(*_):
            raise RuntimeError("a mistake of ours")

        real = fleet._prober.probe
        monkeypatch.setattr(fleet._prober, "probe", broken)
        fleet.adopt([world.deployed(engine.url)], QUICK)
        await world.until(lambda: fleet.asked("m-1"))
        assert fleet.asked("m-1").verdict == "unknown"
        monkeypatch.setattr(fleet._prober, "probe", real)
        await world.until(lambda: stage.audience.states() == {"m-1": State.READY})

    drive(world, scene)
