"""A gateway process inside the test, with a fake control at the other end of its socket."""

import asyncio
import contextlib
import socket
import time

import orjson
import pytest
import uvloop

from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key
from holdfast.control.gateways.state_file import write_state
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.types import State
from holdfast.frames import (
    BlockFrame,
    ConfigFrame,
    DetoursFrame,
    DrainFrame,
    EpochFrame,
    ExplainAnswer,
    ExplainAsk,
    FrameReader,
    Hello,
    LeaseFrame,
    LoadFrame,
    MetricsAnswer,
    MetricsAsk,
    MoveFrame,
    ReplicaViewRow,
    SeenFrame,
    StatsFrame,
    ViewFrame,
    Welcome,
    encode,
    view_to_frame,
)
from holdfast.frames import control_links as link_module
from holdfast.gateway import process as module
from holdfast.gateway.http.hot_path import FAST, PLAIN
from holdfast.gateway.process import GatewayProcess, Streams
from holdfast.testing.standin import Options, StandIn, expected_text, fault

KEY = "hf-test-key"
ASK = [{"role": "user", "content": "Who is there?"}]
QUICK = Options(ttft_ms=1.0, tpot_ms=1.0, tokens=8)
TENANTS = [{"name": "a", "keys": [hash_key(KEY)], "quota": {"requests_per_minute": 6_000}}]


class Line(asyncio.Protocol):
    """Control's end of one connection."""

    def __init__(self, stage):
        self._stage = stage
        self._reader = FrameReader()

    def connection_made(self, transport):
        self._stage.lines.append(transport)
        for frame in self._stage.greeting:
            transport.write(encode(frame))

    def data_received(self, data):
        self._stage.frames += self._reader.feed(data)


class Stage:
    """Engines, a fake control, and one gateway process that is run as a task."""

    def __init__(self, folder, engines, hot_path=FAST):
        self.socket_path = folder / "control.sock"
        self.state_path = folder / "state.frames"
        self.engines = engines
        self.lines = []
        self.frames = []
        self.greeting = []
        self.accepts = asyncio.Event()
        self.gateway = GatewayProcess(0, str(self.socket_path), self.state_path, hot_path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self.task = None
        self._server = None

    def config(self, epoch, **more):
        """A config of these engines."""
        endpoints = [engine.url for engine in self.engines]
        model = {"name": "m", "engine": "vllm", "endpoints": endpoints}
        gateway = {"draining": {"grace_s": 0.0, "deadline_s": 10.0}, **more.pop("gateway", {})}
        text = orjson.dumps({"gateway": gateway, "models": [model | more.pop("model", {})], **more})
        return ConfigFrame(epoch, FleetFile.from_json(text).to_json())

    def view(self, version=1):
        file = FleetFile.from_json(self.config(1).config)
        replicas = tuple(ReplicaView(one.replica, State.READY, 1.0) for one in file.replicas())
        return view_to_frame(FleetView(version, replicas))

    async def listen(self):
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: Line(self), str(self.socket_path))

    def start(self):
        run = self.gateway.run(self._listener, self.accepts.set)
        self.task = asyncio.get_running_loop().create_task(run)

    async def serving(self):
        """Start, and wait until clients can connect."""
        self.start()
        accepts = asyncio.ensure_future(self.accepts.wait())
        await asyncio.wait({self.task, accepts}, return_when=asyncio.FIRST_COMPLETED)
        accepts.cancel()
        if self.task.done():
            self.task.result()

    def send(self, frame):
        self.lines[-1].write(encode(frame))

    async def heard(self, kind, number=1):
        """Wait for so many frames of a kind."""
        await self.until(lambda: len(self.all(kind)) >= number)
        return self.all(kind)[-1]

    def all(self, kind):
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 conditions of the other end
                await asyncio.sleep(0.002)

    async def ask(self, path="/v1/chat/completions", body=None, key=""):
        """Status, headers and body of one answer."""
        reader, writer = await self.begin(path, body, key)
        raw = await reader.read()
        writer.close()
        await writer.wait_closed()
        head, _, body = raw.partition(b"\r\n\r\n")
        return int(head.split()[1]), head, body

    async def begin(self, path, body=None, key=""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent = b"" if body is None else orjson.dumps(body)
        auth = f"authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{auth}"
            f"content-type: application/json\r\ncontent-length: {len(sent)}\r\n"
            "connection: close\r\n\r\n"
        )
        writer.write(head.encode() + sent)
        return reader, writer

    async def chat(self, **more):
        return await self.ask(body={"model": "m", "messages": ASK}, **more)

    async def close(self):
        if self.task is not None:
            self.gateway.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(self.task, 15)
        self._listener.close()
        if self._server is not None:
            self._server.close()
            for line in self.lines:
                line.abort()
        for engine in self.engines:
            await engine.stop()
        await asyncio.sleep(0.01)


@pytest.fixture
def play(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CONTROL_WAIT_S", 0.05)
    monkeypatch.setattr(link_module, "_AGAIN_S", 0.01)

    def run(scene, *, control=True, engines=1, options=QUICK, hot_path=FAST):
        async def main():
            started = [await StandIn(options).start() for _ in range(engines)]
            stage = Stage(tmp_path, started, hot_path)
            if control:
                await stage.listen()
            try:
                async with asyncio.timeout(30):
                    await scene(stage)
            finally:
                await stage.close()

        uvloop.run(main())

    return run


def limit(stage):
    """How many requests the tenant could make at once here, of 6,000 in all."""
    return stage.gateway._driver.flow.quota("a").headers(0)["limit_requests"]


# --- starting ------------------------------------------------------------------------------------


def test_it_starts_with_what_control_sends_and_says_so(play):
    async def scene(stage):
        stage.greeting = [stage.config(4), stage.view()]
        await stage.serving()
        status, head, body = await stage.chat()
        assert status == 200
        assert b"x-holdfast-replica: m-1" in head
        assert expected_text("m", ASK, 8).encode() in body
        assert isinstance(stage.frames[0], Hello)
        assert stage.frames[0].gateway_id == "gateway-0"
        assert await stage.heard(EpochFrame) == EpochFrame(4, accepted=True, reason="")
        stats = await stage.heard(StatsFrame)
        assert stats.readiness
        assert set(stats.gauges) == {
            "requests_in_flight",
            "connections_open",
            "connections_new",
            "held_bytes",
            "receiving_bytes",
            'active_requests{model="m"}',
            'queued_requests{model="m"}',
            'queued_tokens{model="m"}',
        }

    play(scene)


@pytest.mark.parametrize("hot_path", [FAST, PLAIN], ids=["fast", "plain"])
def test_every_connection_and_stream_takes_the_path_it_is_given(play, hot_path):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        for epoch in (2, 3):
            body = {"model": "m", "messages": ASK, "stream": True}
            status, _, answer = await stage.ask(body=body)
            assert status == 200
            assert answer.count(b"data: ") >= 8
            assert b"data: [DONE]\n\n" in answer
            gateway = stage.gateway
            assert type(gateway._server.turn) is hot_path.loop_turn
            assert type(gateway._server.protocol()._intake) is hot_path.request_parser
            assert gateway._driver.settings.event_splitter is hot_path.event_splitter
            for target in gateway._targets.targets.values():
                assert target.upstream._turn is gateway._server.turn
                for connection in target.upstream._idle:
                    assert type(connection) is hot_path.upstream_connection
            stage.send(stage.config(epoch, gateway={"upstream": {"connect_s": 1.0 + epoch}}))
            await stage.until(lambda epoch=epoch: stage.gateway._epoch == epoch)

    play(scene, hot_path=hot_path)


def test_without_a_view_it_serves_probes_and_is_not_ready(play):
    async def scene(stage):
        stage.greeting = [stage.config(1)]
        await stage.serving()
        assert (await stage.ask("/readyz"))[::2] == (503, b"no fleet view yet\n")
        assert (await stage.ask("/livez"))[0] == 200
        stats = await stage.heard(StatsFrame)
        assert (stats.readiness, stats.reason) == (False, "no fleet view yet")
        stage.send(stage.view())
        await stage.until(lambda: stage.gateway._driver.readiness.has_view)
        assert (await stage.ask("/readyz/m"))[::2] == (200, b"ready\n")

    play(scene)


NOBODY = view_to_frame(FleetView(1, ()))  # every model is at zero


def waits(stage):
    """How many requests the gateway last said to hold."""
    told = [frame.gauges.get('queued_requests{model="m"}') for frame in stage.all(StatsFrame)]
    return told[-1] if told else None


def test_what_is_asked_of_a_model_at_zero_is_told_at_once_and_served_when_it_is_there(play):
    async def scene(stage):
        stage.greeting = [stage.config(1), NOBODY]
        await stage.serving()
        await stage.until(lambda: waits(stage) == 0)
        assert (await stage.ask("/readyz"))[0] == 200
        assert (await stage.ask("/readyz/m"))[::2] == (503, b"no replica may be chosen\n")
        asked = asyncio.ensure_future(stage.chat())
        await stage.until(lambda: waits(stage) == 1)
        stage.send(stage.view(2))
        assert (await asked)[0] == 200
        await stage.until(lambda: waits(stage) == 0)

    play(scene)


def test_who_waits_in_vain_for_a_model_at_zero_is_told_when_to_come_back(play):
    async def scene(stage):
        stage.greeting = [stage.config(1, model={"queue": {"wait_no_replica_s": 0.2}}), NOBODY]
        await stage.serving()
        status, head, body = await stage.chat()
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "no_ready_replica")
        assert b"retry-after: 5" in head.lower()

    play(scene)


def test_without_control_it_starts_from_the_state_that_was_left(play):
    async def scene(stage):
        write_state(stage.state_path, stage.config(7), stage.view())
        await stage.serving()
        assert (await stage.chat())[0] == 200
        stage.greeting = [stage.config(8, model={"served_as": "m"}, retry={"attempts": 3})]
        await stage.listen()  # control comes, with news
        assert (await stage.heard(EpochFrame)).epoch == 8
        assert (await stage.chat())[0] == 200

    play(scene, control=False)


def test_a_control_that_is_frozen_is_no_reason_to_wait(play):
    async def scene(stage):
        write_state(stage.state_path, stage.config(7), stage.view())
        stage.greeting = []  # it accepts and says nothing
        await stage.serving()
        assert (await stage.chat())[0] == 200

    play(scene)


@pytest.mark.parametrize("left", [None, b"", b"\xff\xff\xff\xff", "refused", "half"])
def test_with_neither_control_nor_a_state_it_waits_for_one(play, left):
    async def scene(stage):
        if left == "refused":
            write_state(stage.state_path, ConfigFrame(3, b'{"models": []}'), None)
        elif left == "half":
            stage.state_path.write_bytes(encode(stage.config(3))[:-5])
        elif left is not None:
            stage.state_path.write_bytes(left)
        stage.start()
        await asyncio.wait({stage.task}, timeout=0.2)  # a few looks at the state
        assert not stage.accepts.is_set()
        assert not stage.task.done()
        stage.greeting = [stage.config(1), stage.view()]
        await stage.listen()
        async with asyncio.timeout(10):
            await stage.accepts.wait()
        assert (await stage.chat())[0] == 200

    play(scene, control=False)


def test_told_to_stop_before_it_has_a_config_it_stops(play):
    async def scene(stage):
        stage.start()
        await stage.until(lambda: stage.lines)
        stage.gateway.stop()
        await asyncio.wait_for(stage.task, 5)
        assert not stage.accepts.is_set()

    play(scene)


# --- configs -------------------------------------------------------------------------------------


def test_a_new_epoch_is_followed_and_an_old_one_is_not(play):
    async def scene(stage):
        stage.greeting = [stage.config(5), stage.view()]
        await stage.serving()
        stage.send(stage.config(4, virtual_models=[{"name": "old", "default": "m"}]))
        stage.send(stage.config(5, virtual_models=[{"name": "same", "default": "m"}]))
        stage.send(stage.config(6, virtual_models=[{"name": "new", "default": "m"}]))
        await stage.heard(EpochFrame, 4)
        assert [frame.epoch for frame in stage.all(EpochFrame)] == [5, 5, 5, 6]
        assert all(frame.accepted for frame in stage.all(EpochFrame))
        body = (await stage.ask("/v1/models"))[2]
        assert [model["id"] for model in orjson.loads(body)["data"]] == ["m", "new"]

    play(scene)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (b"{not json", "does not validate"),
        (b"{}", "does not validate"),
        (b'{"models": "hf-secret-value"}', "does not validate"),
        ("hook", "hook"),
    ],
)
def test_a_config_that_cannot_be_followed_is_refused_and_the_old_one_runs_on(play, config, reason):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        frame = ConfigFrame(2, config) if config != "hook" else stage.config(2, **hooked())
        stage.send(frame)
        answer = await stage.heard(EpochFrame, 2)
        assert (answer.epoch, answer.accepted) == (1, False)
        assert reason in answer.reason
        assert "hf-secret-value" not in answer.reason
        assert (await stage.chat())[0] == 200
        stage.send(stage.config(3))
        assert (await stage.heard(EpochFrame, 3)) == EpochFrame(3, accepted=True, reason="")

    play(scene)


def hooked():
    rule = {"when": {"hook": "no_such_module_here:choose"}, "use": "m"}
    return {"virtual_models": [{"name": "v", "rules": [rule], "default": "m"}]}


def test_a_first_config_that_cannot_be_followed_is_refused_and_the_next_is_taken(play):
    async def scene(stage):
        stage.greeting = [stage.config(1, **hooked()), stage.config(2), stage.view()]
        await stage.serving()
        assert [frame.accepted for frame in stage.all(EpochFrame)] == [False, True]
        assert (await stage.chat())[0] == 200

    play(scene)


REBOUND = {"host": "rebind.evil.example", "origin": "https://evil.example"}
FOREIGN = {"host": "127.0.0.1", "origin": "https://evil.example"}


async def asked_by_page(stage, method, path, headers, body=b""):
    """The status and the error's code of a request as a page in a browser sends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"{method} {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
    raw = await reader.read()
    writer.close()
    await writer.wait_closed()
    told = orjson.loads(raw.partition(b"\r\n\r\n")[2] or b"{}")
    return int(raw.split()[1]), told.get("error", {}).get("code")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files"),
        ("GET", "/v1/files/file-1/content"),
        ("DELETE", "/v1/files/file-1"),
        ("POST", "/v1/files"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
    ],
)
def test_without_tenants_no_page_that_somebody_visits_gets_at_the_port(play, method, path):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        sent = b"" if method == "GET" else b"{}"
        assert await asked_by_page(stage, method, path, REBOUND, sent) == (421, "foreign_host")
        status, code = await asked_by_page(stage, method, path, FOREIGN, sent)
        assert (status, code) == (403, "foreign_page") or (method == "GET" and status != 403)

    play(scene)


def test_programs_on_this_machine_and_listed_pages_notice_nothing_of_it(play):
    body = orjson.dumps({"model": "m", "messages": ASK})
    path, kind = "/v1/chat/completions", {"content-type": "application/json"}

    async def scene(stage):
        listed = {"cors_origins": ["https://chat.example"], "hosts": ["chat.example"]}
        stage.greeting = [stage.config(1, gateway=listed), stage.view()]
        await stage.serving()
        for host in ("127.0.0.1", f"localhost:{stage.port}", f"[::1]:{stage.port}", "Chat.Example"):
            assert (await asked_by_page(stage, "POST", path, {**kind, "host": host}, body))[
                0
            ] == 200
        page = {**kind, "host": "localhost:1", "origin": "https://chat.example"}
        assert (await asked_by_page(stage, "POST", path, page, body))[0] == 200
        stage.send(stage.config(2, tenants=TENANTS))
        await stage.heard(EpochFrame, 2)
        keyed = {**kind, "host": "any.example", "authorization": f"Bearer {KEY}"}
        assert (await asked_by_page(stage, "POST", path, keyed, body))[0] == 200

    play(scene)


def test_limits_for_clients_follow_the_config(play):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        assert (await stage.chat())[0] == 200
        stage.send(stage.config(2, gateway={"http": {"body_bytes_max": 10}}))
        await stage.heard(EpochFrame, 2)
        assert (await stage.chat())[0] == 413

    play(scene)


# --- what control says meanwhile -----------------------------------------------------------------


def test_a_lease_that_comes_before_there_is_a_driver_is_used(play):
    async def scene(stage):
        lease = LeaseFrame({"a": 0.25}, 0.25, [], 4)
        stage.greeting = [lease, stage.config(1, tenants=TENANTS), stage.view()]
        await stage.serving()
        assert limit(stage) == 1_500
        stage.send(LeaseFrame({"a": 0.5}, 0.5, [], 4))
        await stage.until(lambda: limit(stage) == 3_000)

    play(scene)


def test_a_lease_outlives_a_new_config(play):
    async def scene(stage):
        lease = LeaseFrame({"a": 0.25}, 0.25, [], 4)
        stage.greeting = [stage.config(1, tenants=TENANTS), stage.view(), lease]
        await stage.serving()
        await stage.until(lambda: limit(stage) == 1_500)
        stage.send(stage.config(2, tenants=TENANTS, retry={"attempts": 3}))
        await stage.heard(EpochFrame, 2)
        assert limit(stage) == 1_500  # the new flow would have had it all

    play(scene)


def test_without_control_it_takes_an_even_part_of_what_all_share(play):
    async def scene(stage):
        config = stage.config(1, tenants=TENANTS, gateway={"workers": 4})
        write_state(stage.state_path, config, stage.view())
        await stage.serving()
        assert limit(stage) == 1_500

    play(scene, control=False)


def test_a_tenant_that_control_has_not_lent_yet_has_an_even_part(play):
    async def scene(stage):
        lease = LeaseFrame({}, 0.7, [], 4)
        stage.greeting = [stage.config(1, gateway={"workers": 4}), stage.view(), lease]
        await stage.serving()
        stage.send(stage.config(2, tenants=TENANTS, gateway={"workers": 4}))
        await stage.heard(EpochFrame, 2)
        assert limit(stage) == 1_500

    play(scene)


def test_a_view_that_cannot_be_used_ends_the_connection_and_not_the_process(play):
    async def scene(stage):
        row = ReplicaViewRow("m-1", "m", "1", "z", "r", 0, 1.0, "enchanted", 1.0, False, "")
        stage.greeting = [stage.config(1), stage.view(), ViewFrame(2, 1, [], [row])]
        await stage.serving()
        await stage.until(lambda: len(stage.lines) > 1)  # it came again
        assert (await stage.chat())[0] == 200
        assert not stage.task.done()

    play(scene)


def test_it_tells_stories_and_figures_when_it_is_asked(play):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        head = (await stage.chat())[1]
        name = next(
            line.partition(b": ")[2].decode()
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"x-request-id")
        )
        stage.send(ExplainAsk(name, 11))
        stage.send(ExplainAsk("req_unknown", 12))
        stage.send(MetricsAsk(13))
        stage.send(LoadFrame([("m", "m-1", 5, 0, 0.5)]))
        await stage.heard(ExplainAnswer, 2)
        known, unknown = stage.all(ExplainAnswer)
        assert (known.ask_id, known.found) == (11, True)
        assert orjson.loads(known.story)["replica"] == "m-1"
        assert unknown == ExplainAnswer(12, found=False, story=b"")
        figures = await stage.heard(MetricsAnswer)
        assert figures.ask_id == 13
        told = orjson.loads(figures.metrics)
        assert told['requests_total{model="m",status="200"}'] == 1

    play(scene)


def test_what_it_sees_is_told_to_control(play):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        await stage.chat()
        seen = await stage.heard(SeenFrame)
        assert sum(row.successes for row in seen.tallies) == 1

    play(scene)


def test_a_request_on_which_a_replica_dies_is_told_to_control_and_blocked_on_its_word(play):
    deadly = {"model": "m", "messages": [{"role": "user", "content": "Eat the cucumber."}]}

    async def scene(stage):
        stage.greeting = [Welcome(1, "c", secret=b"key"), stage.config(1), stage.view()]
        await stage.serving()
        for engine in stage.engines:
            engine.set_fault(fault("oom", marker="cucumber"))
        status, _, body = await stage.ask(body=deadly)
        assert (status, orjson.loads(body)["error"]["code"]) == (502, "replicas_lost")

        def died():  # what control is told: one death after the other, each by all names of it
            names = {"m-1": set(), "m-2": set()}
            for frame in stage.all(SeenFrame):
                for replica, name in frame.died:
                    names[replica].add(name)
            return names

        await stage.until(lambda: all(died().values()))
        common = died()["m-1"] & died()["m-2"]
        assert common  # the same request has the same names
        stage.send(BlockFrame([(name, 60.0) for name in sorted(common)]))
        await stage.until(lambda: stage.gateway._driver.observer.deadly.blocked)
        status, head, body = await stage.ask(body=deadly)
        assert (status, orjson.loads(body)["error"]["code"]) == (422, "request_blocked")
        assert b"x-should-retry: false" in head
        stage.send(Welcome(1, "another", secret=b"another key"))
        await stage.until(lambda: not stage.gateway._driver.observer.deadly.blocked)

    play(scene, engines=2, options=Options(ttft_ms=40.0, tpot_ms=1.0, tokens=8))


def test_blocks_that_come_before_there_is_a_driver_are_used(play):
    async def scene(stage):
        welcome, block = Welcome(1, "c", secret=b"key"), BlockFrame([("ab12", 60.0)])
        stage.greeting = [welcome, block, stage.config(1), stage.view()]
        await stage.serving()
        assert set(stage.gateway._driver.observer.deadly.blocked) == {"ab12"}
        assert (await stage.chat())[0] == 200

    play(scene)


def test_comparisons_are_told_to_control(play):
    async def scene(stage):
        section = {"comparison": {"share": 1.0}}
        stage.greeting = [stage.config(1, model=section), stage.view()]
        await stage.serving()
        status, _, _ = await stage.ask(body={"model": "m", "messages": ASK, "temperature": 0})
        assert status == 200
        await stage.until(lambda: any(frame.compared for frame in stage.all(SeenFrame)))
        (told,) = [one for frame in stage.all(SeenFrame) for one in frame.compared]
        assert {told[0], told[1]} == {"m-1", "m-2"}
        assert told[2] is True

    play(scene, engines=2)


def test_a_long_answer_is_told_to_move_before_its_end_and_one_that_stalls_is_not(play):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        body = {"model": "m", "messages": ASK, "stream": True}
        reader, writer = await stage.begin("/v1/chat/completions", body)
        await reader.readuntil(b"\r\n\r\n")

        def told():
            return [row for frame in stage.all(SeenFrame) for row in frame.tallies]

        await stage.until(lambda: any(row.moved and row.inflight for row in told()))
        stage.engines[0].set_fault(fault("stall", tokens=0))
        await stage.until(lambda: told()[-1].inflight and not told()[-1].moved)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    play(scene, options=Options(ttft_ms=1.0, tpot_ms=50.0, tokens=400))


def test_demand_is_told_so_that_quotas_can_move(play):
    async def scene(stage):
        stage.greeting = [stage.config(1, tenants=TENANTS), stage.view()]
        await stage.serving()
        for _ in range(3):
            assert (await stage.chat(key=KEY))[0] == 200
        await stage.until(lambda: sum(f.demand.get("a", 0) for f in stage.all(StatsFrame)) == 3)

    play(scene)


def test_a_replica_that_leaves_hands_its_streams_to_another(play):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        body = {"model": "m", "messages": ASK, "stream": True}
        reader, writer = await stage.begin("/v1/chat/completions", body)
        head = await reader.readuntil(b"\r\n\r\n")
        first = head.split(b"x-holdfast-replica: ")[1].split(b"\r\n")[0].decode()
        stage.send(MoveFrame("m", first))
        rest = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert b"[DONE]" in rest
        assert spoken(rest) == expected_text("m", ASK, 60)
        assert b'"continued"' in rest

    play(scene, engines=2, options=Options(ttft_ms=1.0, tpot_ms=20.0, tokens=60))


@contextlib.asynccontextmanager
async def recorder():
    """A server that refuses every request and keeps its head: URL and heads."""
    heads = []

    async def answer(reader, writer):
        heads.append((await reader.readuntil(b"\r\n\r\n")).lower())
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


def test_the_engine_s_credential_is_sent_to_the_engine_and_never_to_a_detour(play, monkeypatch):
    monkeypatch.setenv("ENGINE_TOKEN", "planted")

    async def scene(stage):
        async with recorder() as (real, at_engine), recorder() as (elsewhere, at_detour):
            config = stage.config(1, model={"endpoints": [real], "api_key_env": "ENGINE_TOKEN"})
            stage.greeting = [DetoursFrame({"m-1": elsewhere}), config, stage.view()]
            await stage.serving()
            await stage.chat()
            assert at_engine == []
            assert at_detour
            assert not any(b"planted" in head or b"authorization" in head for head in at_detour)
            stage.send(DetoursFrame({}))
            await stage.until(lambda: not stage.gateway._targets.detours)
            await stage.chat()
            assert at_engine
            assert all(b"authorization: bearer planted" in head for head in at_engine)

    play(scene)


def test_a_detour_leads_a_replicas_requests_elsewhere_until_it_is_taken_back(play):
    async def scene(stage):
        elsewhere = await StandIn(QUICK).start()
        real = stage.engines[0]
        try:
            stage.greeting = [DetoursFrame({"m-1": elsewhere.url}), stage.config(1), stage.view()]
            await stage.serving()
            assert (await stage.chat())[0] == 200
            assert (elsewhere.stats()["finished"], real.stats()["finished"]) == (1, 0)
            stage.send(DetoursFrame({}))
            await stage.until(lambda: not stage.gateway._targets.detours)
            assert (await stage.chat())[0] == 200
            assert (elsewhere.stats()["finished"], real.stats()["finished"]) == (1, 1)
            stage.send(DetoursFrame({"m-1": elsewhere.url, "stranger": elsewhere.url}))
            await stage.until(lambda: stage.gateway._targets.detours)
            stage.send(stage.config(2, model={"revision": "1"}))
            await stage.heard(EpochFrame, 2)
            assert (await stage.chat())[0] == 200
            assert (elsewhere.stats()["finished"], real.stats()["finished"]) == (2, 1)
        finally:
            await elsewhere.stop()

    play(scene)


def spoken(stream):
    """The text of an SSE answer, whatever its framing in chunks."""
    text = ""
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in orjson.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text


# --- the end -------------------------------------------------------------------------------------


def test_to_stop_is_to_finish_what_runs(play):
    async def scene(stage):
        stage.greeting = [stage.config(1), stage.view()]
        await stage.serving()
        body = {"model": "m", "messages": ASK, "stream": True}
        reader, writer = await stage.begin("/v1/chat/completions", body)
        await reader.readuntil(b"\r\n\r\n")
        stage.send(DrainFrame(10.0))
        rest = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert b"[DONE]" in rest
        assert spoken(rest) == expected_text("m", ASK, 40)
        await asyncio.wait_for(stage.task, 5)

    play(scene, options=Options(ttft_ms=1.0, tpot_ms=10.0, tokens=40))


def test_while_it_waits_for_balancers_it_serves_and_says_that_it_leaves(play):
    async def scene(stage):
        draining = {"draining": {"grace_s": 0.5, "deadline_s": 10.0}}
        stage.greeting = [stage.config(1, gateway=draining), stage.view()]
        await stage.serving()
        stage.gateway.stop()
        await stage.until(lambda: stage.gateway._driver.readiness.draining)
        assert (await stage.ask("/readyz"))[::2] == (503, b"draining\n")
        assert (await stage.chat())[0] == 200
        await asyncio.wait_for(stage.task, 10)

    play(scene)


def test_what_runs_beyond_the_deadline_is_ended_with_an_error(play):
    async def scene(stage):
        draining = {"draining": {"grace_s": 0.0, "deadline_s": 0.1}}
        stage.greeting = [stage.config(1, gateway=draining), stage.view()]
        await stage.serving()
        body = {"model": "m", "messages": ASK, "stream": True}
        reader, writer = await stage.begin("/v1/chat/completions", body)
        await reader.readuntil(b"\r\n\r\n")
        stage.gateway.stop()
        rest = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert b'"error"' in rest
        await asyncio.wait_for(stage.task, 5)

    play(scene, options=Options(ttft_ms=1.0, tpot_ms=100.0, tokens=200))


def test_random_streams_differ_by_name_and_by_process():
    streams, others = Streams(b"one seed"), Streams(b"another")
    first = streams("hedge").random()
    assert first == Streams(b"one seed")("hedge").random()
    assert len({first, streams("retry").random(), others("hedge").random()}) == 3


def key_uses(stage):
    """All last uses of keys that the gateway told of."""
    return [use for frame in stage.all(StatsFrame) for use in frame.keys]


def test_the_last_use_of_a_key_reaches_control_by_its_name(play):
    keys = [hash_key(KEY), {"hash": hash_key(f"{KEY}-2"), "id": "ci"}]

    async def scene(stage):
        tenants = [{"name": "a", "keys": keys}]
        stage.greeting = [stage.config(1, tenants=tenants), stage.view()]
        await stage.serving()
        assert (await stage.ask("/v1/models", key=f"{KEY}-2"))[0] == 200
        assert (await stage.ask("/v1/models", key="hf-a-stranger-to-all"))[0] == 401
        await stage.until(lambda: key_uses(stage))
        ((tenant, name, at),) = key_uses(stage)
        assert (tenant, name) == ("a", "ci")
        assert abs(time.time() - at) < 60
        # A new config does not lose what was used a moment before it.
        assert (await stage.ask("/v1/models", key=KEY))[0] == 200
        stage.send(stage.config(2, tenants=[{"name": "a", "keys": keys[:1]}]))
        await stage.until(lambda: len(key_uses(stage)) == 2)
        assert key_uses(stage)[1][:2] == ("a", hash_key(KEY)[7:15])

    play(scene)
