"""What only a cluster can do to its replicas: nodes die, are drained, and drivers are killed."""

import asyncio
import os
import signal
from collections import Counter

import pytest

from holdfast.core.types import HostCondition
from holdfast.launchers.ray.launcher import RAY, RayLauncher
from holdfast.launchers.ray.link import RaySettings
from holdfast.ports import NoRoomError, Order, PlaceRequest

PATIENCE_S = 180.0
SLEEPER = ("{python}", "-I", "-S", "-c", "import time\nprint('up', flush=True)\ntime.sleep(3600)")


class Notes:
    """A watcher that writes everything down and can be waited for."""

    def __init__(self):
        self.all = []
        self._more = asyncio.Event()

    def __getattr__(self, name):
        def note(*news):
            self.all.append((name, *news))
            self._more.set()

        return note

    async def seen(self, *start):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for news in self.all:
                    if news[: len(start)] == start:
                        return news
                self._more.clear()
                await self._more.wait()


def scene(nodes, tmp_path, play):
    async def main():
        notes = Notes()
        settings = RaySettings(address=nodes.address, namespace=tmp_path.name)
        launcher = RayLauncher(settings, tmp_path)
        try:
            await launcher.adopt(notes)
            async with asyncio.timeout(2 * PATIENCE_S):
                await play(launcher, notes)
        finally:
            await launcher.close(leave_running=False)

    asyncio.run(main())


async def started(launcher, name, zone="", gpus=1):
    place = await launcher.place(RAY, PlaceRequest(name, "m", zone, gpus, 1))
    await launcher.start(Order(name, SLEEPER, port=place.port, note={"model": "m"}, on=RAY))
    return place


def test_replicas_are_spread_and_in_their_zones_and_wait_where_there_is_no_room(nodes, tmp_path):
    async def play(launcher, notes):
        first, second = await started(launcher, "m-1"), await started(launcher, "m-2")
        assert {first.zone, second.zone} == {"zone-a", "zone-b"}
        assert first.host != second.host
        third = await started(launcher, "m-3", zone="zone-b", gpus=3)
        assert third.zone == "zone-b"
        with pytest.raises(NoRoomError, match="4 GPUs"):
            await launcher.place(RAY, PlaceRequest("m-4", "m", "", 4, 1))
        await launcher.stop("m-3", grace_s=5.0)
        await launcher.place(RAY, PlaceRequest("m-4", "m", "zone-b", 3, 1))
        await launcher.stop("m-4", grace_s=0.0)

    scene(nodes, tmp_path, play)


def test_replicas_that_start_together_are_spread_too(nodes, tmp_path):
    async def play(launcher, notes):
        places = await asyncio.gather(*(started(launcher, f"m-{n}", gpus=0) for n in range(4)))
        assert sorted(Counter(place.zone for place in places).values()) == [2, 2]

    scene(nodes, tmp_path, play)


def test_a_node_that_does_not_reserve_is_given_up_for_another(nodes, tmp_path):
    async def play(launcher, notes):
        node = nodes.add("e")
        nodes.suspend("e")
        try:
            place = await started(launcher, "m-1", zone="zone-e")
        finally:
            nodes.kill("e")
        assert not place.host.endswith(node[:8])
        assert place.zone in {"zone-a", "zone-b"}
        await notes.seen("line", "m-1", "up")

    scene(nodes, tmp_path, play)


def test_without_its_private_parts_ray_is_used_all_the_same(nodes, monkeypatch, capsys):
    import ray  # noqa: PLC0415 only its own environment has it

    from holdfast.launchers.ray import internals  # noqa: PLC0415 it imports Ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        assert set(internals.free_by_node()) == {
            row["NodeID"] for row in ray.nodes() if row["Alive"]
        }
        assert internals.draining_nodes() == {}
        for name in ("available_resources_per_node", "get_draining_nodes"):
            monkeypatch.delattr(f"ray._private.state.GlobalState.{name}")
        free = internals.free_by_node()
        assert free[nodes.id("b")]["CPU"] == 4.0
        assert internals.draining_nodes() == {}
        assert "cannot be read from this Ray" in capsys.readouterr().err
    finally:
        monkeypatch.undo()
        ray.shutdown()


def test_a_driver_that_is_killed_is_replaced_and_nobody_notices(nodes, tmp_path):
    async def play(launcher, notes):
        await started(launcher, "m-1")
        await notes.seen("line", "m-1", "up")
        pid = launcher.pid("m-1")
        os.kill(launcher._link._process.pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while launcher._link._process is not None:  # noqa: ASYNC110 it has no event for that
                await asyncio.sleep(0.05)
            await launcher._ready.wait()
        assert launcher.pid("m-1") == pid
        assert not [news for news in notes.all if news[0] == "ended"]
        ended = await launcher.stop("m-1", grace_s=5.0)
        assert ended.asked
        assert [news[2] for news in notes.all if news[0] == "line"] == ["up"], "told once"

    scene(nodes, tmp_path, play)


def test_a_node_that_dies_ends_its_replica_as_lost_and_another_node_takes_it(nodes, tmp_path):
    async def play(launcher, notes):
        node = nodes.add("c")
        place = await started(launcher, "m-1", zone="zone-c")
        assert place.zone == "zone-c"
        assert place.host.endswith(node[:8])
        await notes.seen("line", "m-1", "up")
        log = launcher.log_path("m-1")  # with the first line there is one
        assert await asyncio.to_thread(log.read_text) == "up\n"
        nodes.kill("c")
        *_, ended = await notes.seen("ended", "m-1")
        assert ended.host_lost
        assert "node" in ended.reason
        assert not ended.asked
        await notes.seen("host_seen", place.host, HostCondition.UNREACHABLE)
        again = await started(launcher, "m-1", zone="zone-c")
        assert again.host != place.host

    scene(nodes, tmp_path, play)


def test_a_node_that_is_drained_tells_its_replicas_to_leave(nodes, tmp_path):
    from ray._raylet import GcsClient  # noqa: PLC0415 what `ray drain-node` uses

    async def play(launcher, notes):
        node = nodes.add("d")
        place = await started(launcher, "m-1", zone="zone-d")
        client = GcsClient(address=nodes.address)
        preempted, deadline_ms = 2, 60_000
        await asyncio.to_thread(
            client.drain_node, node, preempted, "spot instance is taken back", deadline_ms
        )
        assert "drained" in (await notes.seen("leaving", "m-1"))[2]
        await notes.seen("host_seen", place.host, HostCondition.LEAVING)
        await launcher.stop("m-1", grace_s=5.0)
        nodes.kill("d")

    scene(nodes, tmp_path, play)
