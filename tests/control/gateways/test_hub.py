import asyncio
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.control.gateways import hub as hub_module
from holdfast.control.gateways.hub import Hub
from holdfast.frames import (
    PROTOCOL,
    Bye,
    EpochFrame,
    ExplainAnswer,
    ExplainAsk,
    Hello,
    MoveFrame,
    SeenFrame,
    StatsFrame,
    TraceRow,
    TracesFrame,
    Welcome,
    encode,
)


class Listener:
    def __init__(self):
        self.heard = []

    def greeting(self, gateway):
        return [Welcome(3, "control")]

    def on_seen(self, gateway, frame):
        self.heard.append((gateway.name, frame))

    def on_stats(self, gateway, frame):
        self.heard.append((gateway.name, frame))

    def on_gone(self, gateway):
        self.heard.append((gateway.name, "gone"))


def meet(tmp_path, scene):
    async def main():
        listener = Listener()
        hub = Hub(listener)
        async with hub.listening(tmp_path / "s"):
            await scene(hub, listener, tmp_path / "s")
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_gateway_that_says_hello_is_greeted_and_told_what_all_are_told(world, tmp_path):
    async def scene(hub, listener, path):
        one = await world.FakeGateway("gateway-0", 11).connect(path)
        two = await world.FakeGateway("gateway-1", 12).connect(path)
        await world.until(lambda: len(hub.gateways) == 2)
        hub.broadcast(MoveFrame("m", "m-1"))
        await world.until(lambda: two.last(MoveFrame) and one.last(MoveFrame))
        assert one.frames[0] == Welcome(3, "control")
        assert hub.gateways["gateway-1"].pid == 12

    meet(tmp_path, scene)


def test_what_gateways_say_reaches_the_listener(world, tmp_path):
    async def scene(hub, listener, path):
        one = await world.FakeGateway().connect(path)
        seen, stats = SeenFrame([], [], 2), StatsFrame({"a": 1}, {"b": 2}, readiness=True)
        one.send(seen)
        one.send(stats)
        one.send(StatsFrame({}, {}, readiness=False, reason="draining"))
        one.send(EpochFrame(7, accepted=False, reason="no room"))
        await world.until(lambda: hub.gateways and hub.gateways["gateway-0"].epoch == 7)
        assert listener.heard[:2] == [("gateway-0", seen), ("gateway-0", stats)]
        told = hub.gateways["gateway-0"].snapshot()
        assert (told["epoch"], told["refusal"], told["ready"]) == (7, "no room", False)
        assert (told["reason"], told["reports_dropped"]) == ("draining", 2)
        assert hub.gateways["gateway-0"].counters == {"a": 1}  # they come with some frames only
        one.close()
        await world.until(lambda: listener.heard[-1] == ("gateway-0", "gone"))
        assert not hub.gateways

    meet(tmp_path, scene)


def test_while_one_process_replaces_another_both_are_known(world, tmp_path):
    async def scene(hub, listener, path):
        old = await world.FakeGateway("gateway-0", 1).connect(path)
        await world.until(lambda: len(hub.gateways) == 1)
        await world.FakeGateway("gateway-0", 2).connect(path)
        await world.until(lambda: len(hub.gateways) == 2)
        assert list(hub.gateways) == ["gateway-0", "gateway-0+2"]
        assert hub.current("gateway-0").pid == 2
        old.close()
        await world.until(lambda: len(hub.gateways) == 1)
        assert hub.current("gateway-0").pid == 2
        assert hub.current("gateway-9") is None

    meet(tmp_path, scene)


@pytest.mark.parametrize(
    "frames",
    [
        [SeenFrame([], [], 0)],  # before Hello
        [Welcome(1, "x")],  # control's own word
    ],
)
def test_who_speaks_out_of_place_is_dropped(world, tmp_path, frames):
    async def scene(hub, listener, path):
        class Rude(world.FakeGateway):
            def connection_made(self, transport):
                self.transport = transport
                for frame in frames:
                    self.send(frame)

        one = await Rude().connect(path)
        await world.until(lambda: one.lost)
        assert not hub.gateways

    meet(tmp_path, scene)


def test_bytes_that_are_no_frames_end_the_connection(world, tmp_path):
    async def scene(hub, listener, path):
        one = await world.FakeGateway().connect(path)
        one.transport.write(b"GET / HTTP/1.1\r\n\r\n")
        await world.until(lambda: one.lost)
        await world.until(lambda: not hub.gateways)

    meet(tmp_path, scene)


@pytest.mark.parametrize(("gateway_id", "more"), [("", {}), ("x" * 65, {})])
def test_a_hello_that_makes_no_sense_is_not_answered(world, tmp_path, gateway_id, more):
    async def scene(hub, listener, path):
        one = await world.FakeGateway(gateway_id, **more).connect(path)
        await world.until(lambda: one.lost)
        assert not one.frames

    meet(tmp_path, scene)


def test_another_protocol_is_told_so(world, tmp_path):
    async def scene(hub, listener, path):
        one = await world.FakeGateway(protocol=PROTOCOL + 1).connect(path)
        await world.until(lambda: one.lost)
        assert isinstance(one.frames[0], Bye)

    meet(tmp_path, scene)


def test_a_gateway_that_does_not_read_is_dropped_and_the_others_are_not(
    world, tmp_path, monkeypatch
):
    monkeypatch.setattr(hub_module, "UNSENT_BYTES_MAX", 100_000)

    async def scene(hub, listener, path):
        frozen = await world.FakeGateway("gateway-0").connect(path)
        fine = await world.FakeGateway("gateway-1").connect(path)
        await world.until(lambda: len(hub.gateways) == 2)
        frozen.transport.pause_reading()
        big = MoveFrame("m" * 50_000, "m-1")
        for _ in range(200):
            hub.broadcast(big)
            await asyncio.sleep(0)
            if len(hub.gateways) == 1:
                break
        await world.until(lambda: list(hub.gateways) == ["gateway-1"])
        assert not fine.lost
        frozen.transport.resume_reading()
        await world.until(lambda: frozen.lost)

    meet(tmp_path, scene)


def test_beyond_the_bound_connections_are_turned_away(world, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "CONNECTIONS_MAX", 1)

    async def scene(hub, listener, path):
        await world.FakeGateway("gateway-0").connect(path)
        await world.until(lambda: len(hub.gateways) == 1)
        second = await world.FakeGateway("gateway-1").connect(path)
        await world.until(lambda: second.lost)
        assert hub.turned_away == 1

    meet(tmp_path, scene)


def test_a_story_is_told_by_the_gateway_that_knows_it(world, tmp_path):
    def knows(story):
        def answer(gateway, frame):
            if isinstance(frame, ExplainAsk):
                gateway.send(ExplainAnswer(frame.ask_id, story is not None, story or b""))

        return answer

    async def scene(hub, listener, path):
        assert await hub.explain("req_1", 5) is None
        for number, story in enumerate([None, b'{"a":1}']):
            gateway = await world.FakeGateway(f"gateway-{number}").connect(path)
            gateway.on_frame = knows(story)
        await world.until(lambda: len(hub.gateways) == 2)
        assert await hub.explain("req_1", 5) == b'{"a":1}'
        gateway.on_frame = knows(None)
        assert await hub.explain("req_2", 5) is None
        gateway.on_frame = None  # frozen
        assert await hub.explain("req_3", 0.05) is None
        gateway.send(ExplainAnswer(999, found=True))  # too late, or invented

    meet(tmp_path, scene)


def test_control_says_bye_when_it_stops_and_replaces_what_it_finds(world, tmp_path):
    path = tmp_path / "s"
    path.write_text("left behind by a control that was killed")

    async def main():
        hub = Hub(Listener())
        async with hub.listening(path):
            one = await world.FakeGateway().connect(path)
            await world.until(lambda: hub.gateways)
        await world.until(lambda: one.lost)
        assert isinstance(one.frames[-1], Bye)

    asyncio.run(main())


def test_traces_wait_until_somebody_takes_them_and_there_is_room_for_so_many(monkeypatch):
    monkeypatch.setattr(hub_module, "TRACES_MAX", 3)
    hub = Hub(SimpleNamespace())
    gateway = SimpleNamespace(id="gateway-0")
    row = TraceRow("req_1", "", "a", "chat", "m", "m", False, 200, "ok", 0, 1, 0, 2, [])
    hub.hear(gateway, TracesFrame([row, row]))
    hub.hear(gateway, TracesFrame([row, row]))
    assert len(hub.take_traces()) == 3
    assert hub.traces_dropped == 1
    assert hub.take_traces() == []


def test_a_gateway_that_falls_silent_serves_nobody(monkeypatch):
    clock = SimpleNamespace(now=10**12, monotonic_ns=lambda: clock.now)
    monkeypatch.setattr(hub_module, "time", clock)
    gateway = hub_module.Gateway(Hub(Listener()))
    gateway.name = "gateway-0"
    gateway.take_stats(StatsFrame({}, {}, readiness=True))
    clock.now += 5 * 10**9
    assert gateway.serves
    assert (gateway.snapshot()["ready"], gateway.snapshot()["reason"]) == (True, "")
    clock.now += 10**9
    assert not gateway.serves
    told = gateway.snapshot()
    assert (told["ready"], told["reason"]) == (False, "gateway-0 has been silent for 6 s")
    gateway.data_received(b"")
    assert gateway.serves


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_process_of_another_user_is_not_answered_where_it_can_reach_the_socket(world):
    as_another = (
        "import os, socket, sys; os.setuid(12345)\n"
        "own = socket.socket(socket.AF_UNIX); own.connect(sys.argv[1])\n"
        "own.sendall(bytes.fromhex(sys.argv[2])); own.shutdown(socket.SHUT_WR)\n"
        "print(own.recv(4096).hex())\n"
    )

    async def main():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "s"
            os.chmod(folder, 0o755)  # noqa: PTH101 no coroutine waits for a disk in a test
            hub = Hub(Listener())
            async with hub.listening(path):
                os.chmod(path, 0o777)  # noqa: PTH101
                hello = encode(Hello("gateway-0", 1)).hex()
                asked = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", as_another, str(path), hello),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                told, trouble = await asked.communicate()
                assert told.strip() == b"" or b"ConnectionResetError" in trouble
                assert (hub.gateways, hub.refused) == ({}, 1)
                one = await world.FakeGateway().connect(path)
                await world.until(lambda: one.frames)

    asyncio.run(main())
