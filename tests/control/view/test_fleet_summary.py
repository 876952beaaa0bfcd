"""What control knows, joined with what platforms say, in a control that runs."""

import asyncio
import contextlib
import time

import orjson

from holdfast.control.admin.admin import build_admin
from holdfast.control.gateways.state_file import SOCKET_FILE
from holdfast.control.process import Control
from holdfast.core.diagnose.facts import Declared, LoadSeen, MemorySeen, QueueSeen
from holdfast.core.view.layers import Host, Part, Placed, Queue, Reading
from holdfast.frames import LeaseFrame, SeenFrame, StatsFrame, TallyRow

GB = 1_000_000_000


class FakeSource:
    kind = "aws"
    period_s = 0.02

    def __init__(self, name, reading):
        self.name = name
        self.reading = reading

    async def read(self):
        return self.reading

    async def close(self):
        pass


class Stage:
    def __init__(self, world, tmp_path, store):
        self.world, self.store = world, store
        self.path, self.run_dir = tmp_path / "fleet.yaml", tmp_path / "run"
        self.run_dir.mkdir()
        self.reading = Reading("aws", "aws", 1.0)
        self.made = []

    def make(self, section, control):
        assert isinstance(control, Control)
        self.made.append(FakeSource(section.called, self.reading))
        return self.made[-1]

    @contextlib.asynccontextmanager
    async def running(self):
        launcher = self.world.Paper()
        arguments = (self.path, self.run_dir, {}, "control-1", self.store, launcher)
        control = Control(*arguments, self.make)
        stop = asyncio.Event()
        task = asyncio.create_task(control.run(stop))
        await self.world.until(lambda: control.loop.view is not None or task.done())
        try:
            yield control
        finally:
            stop.set()
            await task
            await launcher.rest()


def play(world, tmp_path, store, scene, *, more="", reading=None):
    async def main():
        engine = await world.standin()
        stage = Stage(world, tmp_path, store)
        stage.reading = reading(engine.url) if reading is not None else stage.reading
        stage.path.write_text(
            "gateway: {listen: '127.0.0.1:8000'}\n"
            f"models:\n  - {{name: m, engine: vllm, endpoints: [{engine.url}]}}\n{more}"
        )
        try:
            async with stage.running() as control:
                await scene(control, stage)
        finally:
            await engine.stop()

    asyncio.run(main())


async def ask(control, path):
    sent = []
    app = build_admin(control.admin, control.file.admin)
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"127.0.0.1:8001")],
    }

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return orjson.loads(b"".join(one.get("body", b"") for one in sent))


def platform(url):
    return Reading(
        "aws",
        "aws",
        1e9,
        (Part("ecs", 1e9, calls=4),),
        hosts=(Host("i-1", "cpu", memory_bytes=32 * GB, reserved_bytes=2 * GB, gpus=0),),
        placed=(
            Placed("t1", "m", "running", "i-1", endpoint=url, reserved_bytes=2 * GB),
            Placed("t2", "llm", "running", "i-1", needs_gpu=True),
        ),
        queues=(Queue("m-requests", "m", 5, 1, 0, 0), Queue("llm-requests", "llm", 7)),
    )


def test_the_view_joins_the_fleet_with_its_platform(world, tmp_path, store):
    async def scene(control, stage):
        await world.until(control.incidents.unclosed)
        await world.until(lambda: control.loop.ready("m"))
        await world.until(lambda: control.view.snapshot().replicas[0].state == "ready")
        await world.until(lambda: control.view.snapshot().replicas[0].canary_s is not None)
        told = await ask(control, "/view")
        mine, other = told["replicas"]
        assert (mine["id"], mine["routed"], mine["host"], mine["group"]) == (
            *("m-1", True),
            *("i-1", "cpu"),
        )
        assert mine["canary_s"] is not None
        assert (other["id"], other["routed"]) == ("t2", False)
        (incident,) = told["incidents"]
        assert incident["cause"] == "misplaced"
        assert other["incidents"] == [incident["id"]]
        assert told["calls"] == 4
        assert [row["name"] for row in told["models"]] == ["m", "llm"]
        status = await ask(control, "/status")
        row = status["replicas"][0]
        assert row["host"] == "i-1"
        assert {"kv_used", "tokens_s", "used_bytes", "exhausted_in_s", "ttft_s"} <= set(row)
        assert 'source_calls_total{source="aws"}' in control.admin.metrics()
        assert "holdfast_views_joined_total" in control.admin.metrics()

    play(world, tmp_path, store, scene, more="sources: [{type: aws}]\n", reading=platform)


def test_a_replica_of_the_file_is_filled_in_and_not_declared_twice(world, tmp_path, store):
    async def scene(control, stage):
        lookout = control._lookout
        await world.until(lambda: "t2" in lookout.declared)
        assert lookout.declared["m-1"] == Declared(
            "m-1", "m", "1", "i-1", "zone-a", reserved_bytes=2 * GB
        )
        assert list(control.replica_names()) == ["m-1", "t2"]
        (source,) = stage.made
        source.reading = Reading("aws", "aws", 1e9, (Part("ecs", 1e9),))
        await world.until(lambda: "t2" not in lookout.declared)
        assert lookout.declared["m-1"].host == "127.0.0.1"

    play(world, tmp_path, store, scene, more="sources: [{type: aws}]\n", reading=platform)


def test_work_at_gateways_and_in_a_platform_is_one_backlog(world, tmp_path, store):
    async def scene(control, stage):
        lookout = control._lookout
        seen = []
        before = lookout.saw
        lookout.saw = lambda fact: (seen.append(fact), before(fact))
        await world.until(lambda: lookout._backlogs)
        lookout._tell_queues(0)
        backlogs = [fact for fact in seen if isinstance(fact, QueueSeen) and fact.model == "m"]
        assert backlogs[-1] == QueueSeen("m", 5, 1, 0)
        await world.until(lambda: QueueSeen("llm", 7) in seen)

    play(world, tmp_path, store, scene, more="sources: [{type: aws}]\n", reading=platform)


def test_another_config_lets_go_of_a_source_and_of_what_it_saw(world, tmp_path, store):
    async def scene(control, stage):
        await world.until(lambda: "t2" in control._lookout.declared)
        text = stage.path.read_text().replace("sources: [{type: aws}]\n", "")
        stage.path.write_text(text)
        assert await control.reload()
        assert "t2" not in control._lookout.declared
        assert control.view.snapshot().hosts == () or control.source_poller.readings() == []

    play(world, tmp_path, store, scene, more="sources: [{type: aws}]\n", reading=platform)


def test_what_gateways_and_engines_say_is_on_the_rows(world, tmp_path, store):
    async def scene(control, stage):
        gateway = world.FakeGateway()
        await gateway.connect(stage.run_dir / SOCKET_FILE)
        await world.until(lambda: gateway.last(LeaseFrame))
        labels = '{model="m"}'
        gauges = {
            f"queued_requests{labels}": 4,
            f"tokens_per_second{labels}": 12.5,
            f"first_token_p95_seconds{labels}": 0.25,
        }
        gateway.send(StatsFrame({}, gauges, readiness=True))
        gateway.send(
            SeenFrame([], [TallyRow("m", "m-1", 9, 0, 0, 3, 90, firsts=[0.5], paces=[0.02])], 0)
        )
        before = control.summary.records().models[0].prefix_hits
        assert before is None  # the stand-in says nothing of its cache
        for count in (100, 200):
            control.saw(LoadSeen("m-1", 2, 1, 0.75, prefix_asked=count, prefix_found=count // 4))
        assert control.view.snapshot().models[0].prefix_hits in (None, 0.25)
        assert control._lookout.figures.prefix_hits(["m-1"], time.monotonic_ns()) == 0.25
        control.saw(MemorySeen("m-1", 77))
        await world.until(lambda: control.summary.records().replicas[0].share)
        known = control.summary.records()
        one, model = known.replicas[0], known.models[0]
        assert None not in (one.running, one.waiting, one.kv_used)  # the engine is asked, too
        assert one.used_bytes == 77
        assert (round(one.ttft_s, 1), round(one.tpot_s, 2)) == (0.5, 0.02)
        row = (await ask(control, "/status"))["replicas"][0]
        assert (row["ttft_s"], row["tpot_s"]) == (one.ttft_s, one.tpot_s)
        # A picture is made once a second at most.
        await world.until(lambda: control.view.snapshot().replicas[0].tpot_s == one.tpot_s)
        assert (one.share, one.inflight, one.tokens_s > 0) == (1.0, 3, True)
        assert (model.queued, model.tokens_s, model.ttft_s, model.desired) == (4, 12.5, 0.25, 1)
        assert known.totals["gateways_ready"] == 1
        queue = next(row for row in control.view.snapshot().queues if row.source == "gateways")
        assert (queue.visible, queue.in_flight) == (4, 3)
        gateway.close()

    play(world, tmp_path, store, scene)


def test_a_source_that_nobody_can_read_says_so(world, tmp_path, store):
    async def main():
        (tmp_path / "run").mkdir()
        path = tmp_path / "fleet.yaml"
        path.write_text("sources: [{type: kubernetes}]\n")
        control = Control(path, tmp_path / "run", {}, "c", store, world.Paper())
        stop = asyncio.Event()
        task = asyncio.create_task(control.run(stop))
        await world.until(control.source_poller.readings)
        (row,) = control.view.snapshot().sources
        assert "nothing here can read sources of type kubernetes" in row.error
        stop.set()
        await task

    asyncio.run(main())


def test_launched_replicas_are_told_to_the_source_of_this_host(world, tmp_path, store):
    async def main():
        (tmp_path / "run").mkdir()
        path = tmp_path / "fleet.yaml"
        path.write_text(
            "models: [{name: m, engine: llamacpp, launch: {weights: /w.gguf, replicas: 1}}]\n"
        )
        paper = world.Paper()
        control = Control(path, tmp_path / "run", {}, "c", store, paper)
        stop = asyncio.Event()
        task = asyncio.create_task(control.run(stop))
        try:
            await world.until(lambda: any(o.pid for o in control.summary.local_replicas().values()))
            (replica,) = control.summary.local_replicas().values()
            assert (replica.model, replica.weights) == ("m", "/w.gguf")
            control.summary.gpu_report()
            started = control.summary.records().replicas[0].started_at
            assert started is not None
            assert control.summary.records().replicas[0].started_at == started
        finally:
            stop.set()
            await task
            await paper.rest()

    asyncio.run(main())
