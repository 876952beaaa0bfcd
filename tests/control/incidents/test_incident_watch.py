"""Control as a whole, with what it finds and does about it."""

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from holdfast.config.tenants import hash_key
from holdfast.control import process as process_module
from holdfast.control.admin.admin import build_admin
from holdfast.control.gateways.state_file import SOCKET_FILE
from holdfast.control.incidents import incident_watch
from holdfast.control.incidents.gpu_watch import GpuWatch
from holdfast.control.process import Control
from holdfast.core.diagnose import observations
from holdfast.core.diagnose.detect import poison
from holdfast.core.diagnose.facts import (
    CanaryAnswered,
    GpuFault,
    GpuSeen,
    MemorySeen,
    ProcessEnded,
    QueueSeen,
    StateChanged,
)
from holdfast.core.types import MILLISECOND, State
from holdfast.frames import (
    BlockFrame,
    LeaseFrame,
    SeenFrame,
    StatsFrame,
    TallyRow,
    ViewFrame,
    Welcome,
)
from holdfast.ports import Ended
from holdfast.sources.process_memory import ProcessTreeUsage
from holdfast.testing.nvml_replay import ReplayedNvml
from holdfast.testing.standin import fault

LAUNCHED = """
models:
  - name: m
    engine: vllm
    launch:
      command: [serve, "{{port}}"]
      replicas: {count}
      memory: {{reservation: 1GB, limit: 1GB}}
    rollout: {{settle_s: 0.1}}
fleet:
  health: {{canary_s: 0.2, canary_suspect_s: 0.1, canary_warming_s: 0.1, canary_quarantined_s: 0.1}}
  launch_backoff_s: 0.05
{more}
"""


class Stage:
    def __init__(self, world, tmp_path, store):
        self.world = world
        self.store = store
        self.launcher = world.Paper()
        self.path = tmp_path / "fleet.yaml"
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        self.control = None
        self.facts = []

    @contextlib.asynccontextmanager
    async def running(self, text):
        self.path.write_text(text)
        args = (self.path, self.run_dir, {"HOOK": "http://127.0.0.1:9/"}, "control-1")
        control = self.control = Control(*args, self.store, self.launcher)
        found, take = self.facts, control.incidents.take

        def keep(fact):
            found.append(fact)
            take(fact)

        control.incidents.take = keep
        stop = asyncio.Event()
        task = asyncio.create_task(control.run(stop))
        await self.world.until(lambda: control.loop.view is not None or task.done())
        try:
            yield control
        finally:
            stop.set()
            await task
            await self.launcher.rest()

    async def gateway(self):
        fake = self.world.FakeGateway("gateway-0")
        await fake.connect(self.run_dir / SOCKET_FILE)
        await self.world.until(lambda: fake.last(LeaseFrame))
        return fake

    def said(self, kind):
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def ready(self, *names):
        def all_ready():
            rows = {row["id"]: row["state"] for row in self.control.loop.replicas()}
            return all(rows.get(name) == "ready" for name in names)

        await self.world.until(all_ready)

    async def incident(self, cause):
        def found():
            rows = self.control.incidents.listing(10)
            return next((row for row in rows if row["cause"] == cause), None)

        await self.world.until(lambda: found() is not None)
        return found()


@pytest.fixture
def stage(world, tmp_path, store, monkeypatch):
    monkeypatch.setattr(process_module, "DEPLOY_S", 0.02)
    monkeypatch.setattr(incident_watch, "ROUND_S", 0.05)
    monkeypatch.setattr(observations, "HELD", 100 * MILLISECOND)
    return Stage(world, tmp_path, store)


OWN_TOKEN = "hf-" + "o" * 40


async def ask(control, path, *, method="GET", query=b""):
    sent = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "client": ("127.0.0.1", 50_000),
        "headers": [
            (b"host", b"127.0.0.1:8001"),
            (b"content-type", b"application/json"),
            (b"authorization", f"Bearer {OWN_TOKEN}".encode()),
        ],
    }

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    control.access.accept_own(hash_key(OWN_TOKEN))
    app = build_admin(control.admin, control.file.admin, access=control.access)
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:])


def tally(name, successes=0, failures=0, inflight=0, **more):
    return TallyRow("m", name, successes, failures, 0, inflight, 0, **more)


def test_kills_for_memory_at_the_first_request_are_one_incident_of_sizing(stage):
    async def main():
        async with stage.running(LAUNCHED.format(count=2, more="")) as control:
            gateway = await stage.gateway()
            await stage.ready("m-1", "m-2")
            for _ in range(2):
                gateway.send(SeenFrame([], [tally("m-1", inflight=1)], 0))
                stage.launcher.end("m-1", number=9, oom=True)
                gateway.send(SeenFrame([], [tally("m-1", failures=1, kinds={"reset": 1})], 0))
                ends = len(stage.launcher.orders)
                await stage.world.until(lambda n=ends: len(stage.launcher.orders) > n)
                await stage.ready("m-1")
            row = await stage.incident("undersized")
            assert row["class"] == "runtime"
            assert row["about"]["replica"] == "m-1"
            status, body = await ask(control, f"/incidents/{row['id']}")
            whole = orjson.loads(body)
            assert status == 200
            assert "killed_for_memory" in {one["sign"] for one in whole["evidence"]}
            assert abs(whole["opened_at"] - time.time()) < 60
            assert orjson.loads((await ask(control, "/status"))[1])["incidents_open"] >= 1
            text = (await ask(control, "/metrics"))[1].decode()
            assert 'holdfast_incidents_open{class="runtime",cause="undersized"} 1' in text
            assert "holdfast_facts_total" in text
            assert control.incidents.errors == 0

    asyncio.run(main())


def test_a_fleet_that_is_started_again_finds_who_crashed_and_not_who_was_told_to_end(stage):
    async def main():
        file = LAUNCHED.format(count=2, more="")
        async with stage.running(file):
            await stage.ready("m-1", "m-2")
        host = stage.launcher.host
        assert all(one.ended.asked for one in host.processes.values())
        host.processes["m-2"].ended = Ended(1, None, oom=False, reason="exited with code 1")
        stage.launcher = stage.world.Paper(host)
        async with stage.running(file) as control:
            await stage.ready("m-1", "m-2")
            (row,) = control.incidents.listing(10)
            assert (row["cause"], row["replicas"]) == ("crashed", ["m-2"])
            assert row["about"]["model"] == "m"  # it was known by then whose it is

    asyncio.run(main())


def test_the_admin_port_lists_exports_and_closes(stage):
    async def main():
        async with stage.running(LAUNCHED.format(count=2, more="")) as control:
            await stage.ready("m-1", "m-2")
            stage.launcher.host.say("m-1", "CUDA error: an illegal memory access was encountered")
            stage.launcher.end("m-1", code=1)
            row = await stage.incident("cuda_corrupted")
            name = row["id"]
            await stage.world.until(lambda: stage.said(ProcessEnded))
            for query, status, count in (
                (b"", 200, 1),
                (b"stage=open&limit=5", 200, 1),
                (b"stage=closed", 200, 0),
                (b"limit=0", 200, 0),
            ):
                code, body = await ask(control, "/incidents", query=query)
                assert (code, len(orjson.loads(body)["incidents"])) == (status, count)
            for query in (b"stage=odd", b"limit=x", b"limit=5000"):
                assert (await ask(control, "/incidents", query=query))[0] == 400
            status, body = await ask(control, f"/incidents/{name}/export")
            first, *facts = [orjson.loads(line) for line in body.splitlines()]
            assert (status, first["holdfast_incident"], first["incident"]["id"]) == (200, 1, name)
            assert "ProcessEnded" in {fact["kind"] for fact in facts}
            assert (await ask(control, f"/incidents/{name}/close", method="POST"))[0] == 202
            assert (await ask(control, f"/incidents/{name}/close", method="POST"))[0] == 409
            for path, method in (("", "GET"), ("/export", "GET"), ("/close", "POST")):
                unknown = f"/incidents/inc-999999{path}"
                assert (await ask(control, unknown, method=method))[0] == 404
            history = [event.what for event in control.admin.events()]
            assert "incident opened" in history
            assert "incident closed" in history

    asyncio.run(main())


def test_canaries_states_and_queues_become_facts(stage, monkeypatch):
    monkeypatch.setattr(incident_watch, "QUEUES_EVERY", 1)

    async def main():
        async with stage.running(LAUNCHED.format(count=1, more="")):
            gateway = await stage.gateway()
            gauges = {'queued_requests{model="m"}': 7}
            gateway.send(StatsFrame({}, gauges, readiness=True))
            await stage.world.until(lambda: QueueSeen("m", 7, 0) in stage.said(QueueSeen))
            await stage.ready("m-1")
            passed = [fact for fact in stage.said(CanaryAnswered) if fact.verdict == "pass"]
            assert (passed[0].page_ok, passed[0].status, passed[0].running) == (True, 200, 0)
            moved = [(one.state, one.signal) for one in stage.said(StateChanged)]
            assert (State.READY, "passed_enough") in moved

    asyncio.run(main())


def test_requests_that_kill_are_refused_everywhere_also_by_gateways_that_come_later(
    stage, monkeypatch
):
    monkeypatch.setattr(poison, "_SAME_MOMENT", -1)  # of one host, they would count as one death

    async def main():
        async with stage.running(LAUNCHED.format(count=3, more="")) as control:
            gateway = await stage.gateway()
            assert len(gateway.last(Welcome).secret) == 32
            await stage.ready("m-1", "m-2", "m-3")
            gateway.send(SeenFrame([], [], 0, [("m-1", "f" * 32), ("m-2", "f" * 32)]))
            await stage.world.until(lambda: gateway.last(BlockFrame))
            ((fingerprint, left_s),) = gateway.last(BlockFrame).fingerprints
            assert (fingerprint, 3_000 < left_s <= 3_600) == ("f" * 32, True)
            later = await stage.gateway()
            await stage.world.until(lambda: later.last(BlockFrame))
            assert later.last(Welcome).secret == gateway.last(Welcome).secret
            assert control.incidents.errors == 0

    asyncio.run(main())


def test_peers_that_disagree_are_asked_their_canaries_at_once(stage):
    slow = "fleet: {health: {canary_s: 600, canary_suspect_s: 600, canary_warming_s: 0.1}}"
    text = LAUNCHED.format(count=2, more="").partition("fleet:")[0] + slow

    async def main():
        async with stage.running(text):
            gateway = await stage.gateway()
            await stage.ready("m-1", "m-2")
            before = len(stage.said(CanaryAnswered))
            gateway.send(SeenFrame([], [], 0, [], [("m-1", "m-2", False)]))
            await stage.world.until(lambda: len(stage.said(CanaryAnswered)) >= before + 2)

    asyncio.run(main())


def test_what_incidents_ask_for_is_done_or_refused_with_a_reason(stage):
    async def main():
        async with stage.running(LAUNCHED.format(count=2, more="")) as control:
            await stage.ready("m-1", "m-2")
            hands = control._lookout
            assert hands.take_out("m-1", "inc-1: x") == (True, "m-1 gets no more work")
            assert control.loop.health("m-1").state is State.QUARANTINED
            assert not hands.take_out("m-2", "inc-1: x")[0]
            assert not hands.take_out("nobody", "x")[0]
            assert not hands.take_out("nobody", "x", until_right=True)[0]
            assert not hands.take_out("m-2", "inc-1: x", until_right=True)[0]
            hands.put_back("m-1", "closed")
            await stage.ready("m-1")
            assert hands.take_out("m-1", "inc-2: x", until_right=True)[0]
            assert control.loop.health("m-1").state is State.QUARANTINED
            await stage.ready("m-1")
            started = len(stage.launcher.orders)
            now = time.monotonic_ns()
            assert hands.restart("m-1", "inc-1: x", 0) == (True, "m-1 starts anew already")
            assert hands.restart("m-1", "inc-1: x", now)[0]
            await stage.world.until(lambda: len(stage.launcher.orders) > started)
            assert not hands.restart("elsewhere", "x", now)[0]
            await control.admin.drain("m-2")
            assert not hands.restart("m-2", "x", now)[0]
            assert not hands.stop_rollout("m", "x")[0]
            assert not hands.stop_rollout("nothing", "x")[0]
            assert hands.ladder_of("m") == ""

    asyncio.run(main())


def test_a_rollout_is_halted_and_the_good_revision_stays(stage):
    text = LAUNCHED.format(count=1, more="")
    slow = text.replace("engine: vllm", 'engine: vllm\n    revision: "2"')

    async def main():
        async with stage.running(text) as control:
            await stage.ready("m-1")
            await stage.world.until(
                lambda: "rollout finished" in [one.what for one in control.admin.events()]
            )
            stage.launcher.serving = False  # the newcomer never gets ready
            stage.path.write_text(slow)
            await control.reload()
            await stage.world.until(lambda: len(control.admin.status()["replicas"]) == 2)
            assert control._lookout.stop_rollout("m", "inc-1: it leaks")[0]
            assert control.admin.status()["models"]["m"]["rollout"]["halted"] == "inc-1: it leaks"
            await stage.world.until(lambda: len(control.admin.status()["replicas"]) == 1)
            assert control.loop.ready("m")

    asyncio.run(main())


def test_a_ladder_is_named_where_a_model_has_one(stage, world):
    async def main():
        engine = await world.standin()
        text = (
            "models:\n"
            f"  - {{name: big, engine: vllm, endpoints: ['{engine.url}']}}\n"
            f"  - {{name: small, engine: vllm, endpoints: ['{engine.url}/x']}}\n"
            "virtual_models: [{name: auto, ladder: [big, small]}]\n"
        )
        async with stage.running(text) as control:
            assert control._lookout.ladder_of("big") == "auto"
            assert control._lookout.ladder_of("small") == ""
        await engine.stop()

    asyncio.run(main())


def test_memory_of_a_launched_replica_is_told_with_its_limit_and_its_requests(stage):
    used = {}

    def read(roots):
        return {
            pid: ProcessTreeUsage(used.setdefault(pid, 10**9), None, None, (pid,)) for pid in roots
        }

    async def main():
        async with stage.running(LAUNCHED.format(count=1, more="")) as control:
            control._lookout._hosts._read = read
            await stage.ready("m-1")
            await control._lookout._hosts.look()
            seen = stage.said(MemorySeen)[-1]
            assert (seen.replica, seen.limit_bytes, seen.requests) == ("m-1", 10**9, 0)

    asyncio.run(main())


H200 = Path(__file__).parents[2] / "sources/nvml_h200.json.gz"


def test_the_view_and_the_status_have_the_gpus_of_launched_replicas(stage, monkeypatch):
    """An H200 as it was recorded: one replica holds 20 GiB there. The file names no source."""
    nvml = ReplayedNvml.read(H200)
    nvml.at(nvml.places("a holds 20 GiB")[0])
    monkeypatch.setattr(process_module, "GpuWatch", lambda: GpuWatch(nvml, period_s=0.05))

    def read(roots):
        # The driver's process id is a child of the first replica's.
        return {
            pid: ProcessTreeUsage(10**9, None, None, (pid, *((502,) if pid == min(roots) else ())))
            for pid in roots
        }

    async def main():
        async with stage.running(LAUNCHED.format(count=2, more="")) as control:
            control._lookout._hosts._read = read
            await stage.ready("m-1", "m-2")
            await stage.world.until(lambda: control._gpus.last is not None)
            await control._lookout._hosts.look()
            view = orjson.loads((await ask(control, "/view"))[1])
            rows = {row["id"]: row["gpu"] for row in view["replicas"]}
            (held,) = [one for one in rows.values() if one is not None]
            assert (held["count"], held["held_bytes"]) == (1, 21_092 << 20)
            assert (held["memory_total_bytes"], held["temperature_c"]) == (150_754_820_096, 36)
            (host,) = view["hosts"]
            assert (host["gpus"], host["gpus_free"], host["cuda"]) == (1, 0, "13.0")
            assert host["devices"][0]["name"] == "NVIDIA H200"
            status = orjson.loads((await ask(control, "/status"))[1])
            assert status["gpus"] == {"available": True, "reason": "GPUs: 1"}
            assert held in [row["gpu"] for row in status["replicas"]]
            text = (await ask(control, "/metrics"))[1].decode()
            assert "holdfast_replica_gpu_memory_held_bytes{" in text
            assert stage.said(GpuSeen)[-1].label == "GPU 0"

    asyncio.run(main())


def test_without_a_gpu_the_status_says_so(stage):
    async def main():
        async with stage.running(LAUNCHED.format(count=1, more="")) as control:
            await stage.ready("m-1")
            await stage.world.until(lambda: control._gpus.last is not None)
            status = orjson.loads((await ask(control, "/status"))[1])
            assert status["gpus"]["available"] is False
            assert status["gpus"]["reason"]
            assert [row["gpu"] for row in status["replicas"]] == [None]
            assert orjson.loads((await ask(control, "/view"))[1])["hosts"] == []

    asyncio.run(main())


FULL_GPU = MemorySeen("m-1", 76 * 10**9, 80 * 10**9, "gpu")


@pytest.mark.parametrize(("engine", "full"), [("vllm", False), ("openai", True)])
def test_gpu_memory_counts_where_it_goes_with_the_work(stage, engine, full):
    """vLLM takes 90 % of a GPU at its start: that asks for no replica and takes none out."""

    async def main():
        text = LAUNCHED.format(count=2, more="").replace("engine: vllm", f"engine: {engine}")
        async with stage.running(text) as control:
            await stage.ready("m-1", "m-2")
            reported = replace(FULL_GPU, replica="m-2", reporter="agent a")
            for fact in (FULL_GPU, FULL_GPU, reported, reported):
                control.saw(fact)
            demand = control.demand("m", time.monotonic_ns())
            assert demand.memory_used == ((0.95, 0.95) if full else ())
            gauge = 'holdfast_replica_gpu_memory_used_ratio{model="m",replica="m-1"} 0.95'
            assert (gauge in (await ask(control, "/metrics"))[1].decode()) is full

    asyncio.run(main())


@pytest.mark.parametrize(("engine", "full"), [("vllm", False), ("openai", True)])
def test_readiness_looks_at_gpu_memory_where_it_goes_with_the_work(stage, engine, full):
    async def main():
        text = LAUNCHED.format(count=3, more="").replace("engine: vllm", f"engine: {engine}")
        async with stage.running(text) as control:
            await stage.ready("m-1", "m-2", "m-3")
            used = replace(FULL_GPU, used_bytes=78 * 10**9)
            reported = replace(used, replica="m-2", reporter="agent a")
            for fact in (used, used, reported, reported):
                control.saw(fact)
            assert control.health("m-1").full is full
            assert not control.health("m-2").full  # an agent's word alone puts nobody out

    asyncio.run(main())


def test_a_round_that_fails_is_counted_and_control_goes_on(stage, monkeypatch):
    async def main():
        async with stage.running(LAUNCHED.format(count=1, more="")) as control:

            def broken(now):
                raise RuntimeError("a bug")

            monkeypatch.setattr(control._lookout._observations, "round", broken)
            await stage.world.until(lambda: control.incidents.errors >= 3)
            await stage.ready("m-1")

    asyncio.run(main())


def test_a_dry_run_is_said_and_not_done_and_hooks_come_and_go_with_the_file(stage):
    more = "incidents: {dry_run: true, notify: [{url_env: HOOK, retries: 0}]}"

    async def main():
        async with stage.running(LAUNCHED.format(count=2, more=more)) as control:
            await stage.ready("m-1", "m-2")
            stage.launcher.standins["m-1"].set_fault(fault("wrong_output"))
            row = await stage.incident("wrong_output")
            assert row["remedy"] == "take_out"
            await stage.world.until(
                lambda: "dry run" in control.incidents.get(row["id"])["action"],
            )
            assert not control.loop.health("m-1").taken_out
            failed = 'notifications_total{outcome="failed"}'
            await stage.world.until(lambda: control.incidents.counters()[failed] >= 1)
            stage.path.write_text(LAUNCHED.format(count=2, more=""))
            assert await control.reload()
            assert not control._lookout._notifier.pages
            assert control.incidents.open_count >= 1

    asyncio.run(main())


def test_views_go_on_while_incidents_are_found(stage):
    async def main():
        async with stage.running(LAUNCHED.format(count=1, more="")):
            gateway = await stage.gateway()
            await stage.world.until(lambda: gateway.last(ViewFrame).replicas)

    asyncio.run(main())


@pytest.mark.parametrize(("reporter", "out"), [("agent invented", False), ("", True)])
def test_a_fatal_xid_of_a_replica_that_answers_right_takes_it_out_only_if_control_saw_it(
    stage, reporter, out
):
    async def main():
        async with stage.running(LAUNCHED.format(count=2, more="")) as control:
            await stage.ready("m-1", "m-2")
            asked = len(stage.said(CanaryAnswered))
            control.saw(GpuFault("m-1", 79, fatal=True, reporter=reporter))
            row = await stage.incident("gpu_fault")
            await stage.world.until(lambda: len(stage.said(CanaryAnswered)) > asked + 2)
            health = control.loop.health("m-1")
            assert health is not None
            assert health.taken_out is out
            told = control.incidents.get(row["id"])
            held = [one["text"] for one in told["timeline"] if one["what"] == "refused"]
            assert any("only a report from outside" in text for text in held) is not out

    asyncio.run(main())
