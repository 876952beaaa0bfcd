import asyncio
import contextlib
from hashlib import sha256

import orjson
import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.fleet_file import FleetFile
from holdfast.config.tenants import hash_key
from holdfast.control import process as process_module
from holdfast.control.admin.admin import build_admin
from holdfast.control.fleet.disturbances import ChaosDisabledError
from holdfast.control.gateways.state_file import SOCKET_FILE, STATE_FILE, read_state, write_state
from holdfast.control.lookup_errors import UnknownModelError, UnknownReplicaError
from holdfast.control.process import Control
from holdfast.core.messages import LoadReported, Report, Seen
from holdfast.frames import (
    ConfigFrame,
    DetoursFrame,
    EpochFrame,
    ExplainAnswer,
    ExplainAsk,
    LeaseFrame,
    LoadFrame,
    ReportRow,
    SeenFrame,
    StatsFrame,
    TallyRow,
    ViewFrame,
    Welcome,
)
from holdfast.testing.standin import fault

OWN_TOKEN = "hf-" + "o" * 40
OWN = [(b"authorization", f"Bearer {OWN_TOKEN}".encode())]


def fleet_yaml(*urls, workers=1, more=""):
    return (
        f"gateway: {{listen: '127.0.0.1:8000', workers: {workers}}}\n"
        f"models:\n  - {{name: m, engine: vllm, endpoints: [{', '.join(urls)}]}}\n{more}"
    )


class Stage:
    """A control process inside a test, with its file, its engine and its run directory."""

    def __init__(self, world, tmp_path, store):
        self.world = world
        self.store = store
        self.launcher = world.Paper()
        self.path = tmp_path / "fleet.yaml"
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir(exist_ok=True)
        self.control = None

    def write(self, text):
        draft = self.path.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.path)

    @contextlib.asynccontextmanager
    async def running(self, *, killed=False):
        """A control; where it is ``killed`` nobody tells it to stop, and replicas run on."""
        control = self.control = self.build()
        stop = asyncio.Event()
        task = asyncio.create_task(control.run(stop))
        await self.world.until(lambda: control.loop.view is not None or task.done())
        try:
            yield control
        finally:
            if killed:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                before, self.launcher = self.launcher, self.world.Paper(self.launcher.host)
                self.launcher.standins = before.standins
            else:
                stop.set()
                await task
                await self.launcher.rest()
                self.launcher = self.world.Paper()

    def build(self):
        return Control(self.path, self.run_dir, {}, "control-1", self.store, self.launcher)

    async def gateway(self, gateway_id="gateway-0", pid=1):
        fake = self.world.FakeGateway(gateway_id, pid)
        await fake.connect(self.run_dir / SOCKET_FILE)
        await self.world.until(lambda: fake.last(LeaseFrame))
        return fake


@pytest.fixture
def stage(world, tmp_path, store, monkeypatch):
    monkeypatch.setattr(process_module, "FILE_LOOK_S", 0.05)
    monkeypatch.setattr(process_module, "DEPLOY_S", 0.02)
    return Stage(world, tmp_path, store)


def play(stage, scene, *, workers=1, more=""):
    async def main():
        engine = await stage.world.standin()
        stage.write(fleet_yaml(engine.url, workers=workers, more=more))
        try:
            async with stage.running() as control:
                await scene(control, engine)
        finally:
            await engine.stop()

    asyncio.run(main())


async def ask(control, path, *, method="GET", headers=()):
    """One request to the admin application, without a socket."""
    sent = []
    control.access.accept_own(hash_key(OWN_TOKEN))
    app = build_admin(control.admin, control.file.admin, access=control.access)
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "client": ("127.0.0.1", 50_000),
        "headers": [(b"host", b"127.0.0.1:8001"), *headers],
    }

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:])


def test_a_gateway_gets_all_it_needs_in_order(stage, world):
    async def scene(control, engine):
        gateway = await stage.gateway()
        kinds = [type(frame) for frame in gateway.frames[:4]]
        assert kinds == [Welcome, ConfigFrame, ViewFrame, LeaseFrame]
        assert FleetFile.from_json(gateway.last(ConfigFrame).config) == control.file
        assert gateway.last(LeaseFrame) == LeaseFrame({}, 1.0, [], 1)
        ready = world.until(lambda: gateway.last(ViewFrame).replicas[0].state == "ready")
        await ready
        await world.until(lambda: gateway.last(LoadFrame))
        assert gateway.last(LoadFrame).loads == [("m", "m-1", None, 0, 0.0)]

    play(stage, scene)


def test_the_state_on_disk_is_enough_to_start_from(stage, world):
    async def scene(control, engine):
        await world.until(lambda: control.loop.ready("m"))
        config, view = read_state(stage.run_dir / STATE_FILE)
        assert FleetFile.from_json(config.config) == control.file
        assert view.replicas[0].state == "ready"

    play(stage, scene)


def test_a_new_file_gets_the_next_epoch_and_reaches_gateways(stage, world):
    async def scene(control, engine):
        gateway = await stage.gateway()
        other = await world.standin()
        stage.write(fleet_yaml(engine.url, other.url))
        await world.until(lambda: gateway.last(ConfigFrame).epoch == 2)
        await world.until(lambda: len(gateway.last(ViewFrame).replicas) == 2)
        gateway.send(EpochFrame(2, accepted=True))
        await world.until(lambda: control.admin.status()["gateways"][0]["epoch"] == 2)
        config, _ = read_state(stage.run_dir / STATE_FILE)
        assert config.epoch == 2
        await other.stop()

    play(stage, scene)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models: []\n", "models"),
        ("models:\n  - {name: m, engine: vlm, endpoints: [http://a:1]}\n", "engine"),
        ("gateway: {listen: '127.0.0.1:8000'\n", "fleet.yaml:"),
        (fleet_yaml("http://a:1", workers=3), "fleet.yaml:1: gateway.workers: cannot change"),
    ],
)
def test_a_bad_file_changes_nothing_and_its_mistake_is_told(stage, world, text, told):
    async def scene(control, engine):
        gateway = await stage.gateway()
        before = control.file
        stage.write(text)
        await world.until(control.admin.problems)
        assert any(told in problem for problem in control.admin.problems())
        assert control.file is before
        status, body = await ask(control, "/reload", method="POST", headers=OWN)
        assert status == 422
        answer = orjson.loads(body)
        assert (answer["accepted"], answer["epoch"]) == (False, 1)
        assert answer["problems"] == control.admin.problems()
        assert len([f for f in gateway.frames if isinstance(f, ConfigFrame)]) == 1
        stage.write(fleet_yaml(engine.url))
        await world.until(lambda: not control.admin.problems())
        assert control.admin.status()["epoch"] == 1

    play(stage, scene)


def test_a_control_that_starts_while_the_file_is_bad_runs_the_last_good_one(stage, world):
    async def main():
        engine = await world.standin()
        stage.write(fleet_yaml(engine.url))
        async with stage.running() as first:
            await world.until(lambda: first.loop.ready("m"))
            epoch = first.loop.view.epoch
        stage.write("models: []\n")
        engine.set_fault(fault("hang"))
        async with stage.running() as second:
            assert second.admin.problems()
            gateway = await stage.gateway()
            view = gateway.last(ViewFrame)
            assert (view.epoch, view.replicas[0].state) == (epoch + 1, "ready")
            assert gateway.last(ConfigFrame).epoch == 1
        await engine.stop()

    asyncio.run(main())


def test_without_an_earlier_state_a_bad_file_stops_control(stage):
    stage.write("models: []\n")
    with pytest.raises(ConfigFileError):
        stage.build()


def test_a_state_that_makes_no_sense_is_not_used(stage, world):
    write_state(stage.run_dir / STATE_FILE, ConfigFrame(9, b"{}"), ViewFrame(1, 1, [], []))

    async def main():
        engine = await world.standin()
        stage.write(fleet_yaml(engine.url))
        async with stage.running() as control:
            await world.until(lambda: control.loop.ready("m"))
        await engine.stop()

    asyncio.run(main())


def test_what_gateways_see_counts(stage, world):
    async def scene(control, engine):
        gateway = await stage.gateway()
        await world.until(lambda: control.loop.ready("m"))
        gateway.send(SeenFrame([], [TallyRow("m", "m-1", 1, 0, 0, 5, 10)], 0))
        await world.until(lambda: control.admin.status()["replicas"][0]["inflight"] == 5)
        gateway.close()
        await world.until(lambda: control.admin.status()["replicas"][0]["inflight"] == 0)

    play(stage, scene)


def test_a_breaker_that_moves_is_an_event(stage, world):
    def told(control):
        found = control.admin.events(replica="m-1")
        return [(one.what, one.reason) for one in found if one.what.startswith("breaker")]

    async def scene(control, engine):
        gateways = [await stage.gateway(f"gateway-{n}", n) for n in range(2)]
        await world.until(lambda: control.loop.ready("m"))
        for gateway in gateways:
            gateway.send(SeenFrame([ReportRow("m", "m-1", "open", "trial failed")], [], 0))
        await world.until(lambda: told(control))
        gateways[0].send(SeenFrame([ReportRow("m", "m-1", "closed", "trial succeeded")], [], 0))
        gateways[1].close()
        await world.until(lambda: len(told(control)) == 2)
        (opened, reason), (closed, _) = told(control)
        assert (opened, reason, closed) == ("breaker_opened", "trial failed", "breaker_closed")
        gateways[0].close()

    play(stage, scene, workers=2)


def test_the_last_canaries_of_a_replica_can_be_read(stage, world):
    class Sampler:
        def __init__(self):
            self.verdicts = []

        def state_changed(self, replica, state, at):
            pass

        def canary_answered(self, replica, verdict, at):
            self.verdicts.append((replica, verdict))

    async def scene(control, engine):
        control.sampler = sampler = Sampler()
        await world.until(lambda: control.admin.canaries("m-1"))
        status, body = await ask(control, "/replicas/m-1/canaries")
        rows = orjson.loads(body)["canaries"]
        assert status == 200
        assert {row["verdict"] for row in rows} == {"pass"}
        assert set(rows[0]) == {"at", "verdict", "detail", "latency_s"}
        assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
        assert len(sampler.verdicts) <= 1  # it may have come before anybody kept it
        assert control.summary.records().replicas[0].canary_verdict == "pass"
        engine.set_fault(fault("black_hole"))
        control.loop.seen(Seen((Report("m", "m-1", "open", "x"),), "g"))  # one is asked for at once
        await world.until(lambda: control.admin.canaries("m-1")[-1]["verdict"] == "fail")
        assert sampler.verdicts[-1] == ("m-1", "fail")
        assert control.view.snapshot().replicas[0].canary_verdict in {"pass", "fail"}
        status, body = await ask(control, "/replicas/nobody/canaries")
        assert (status, "no replica has the id" in body.decode()) == (404, True)

    play(stage, scene)


TENANTS = """tenants:
  - {name: acme, keys: ['sha256:%s'], quota: {requests_per_minute: 600}}
""" % ("a" * 64)


def test_a_quota_moves_to_the_gateway_that_is_asked_for_it(stage, world):
    async def scene(control, engine):
        gateways = [await stage.gateway(f"gateway-{n}", n) for n in range(4)]
        assert gateways[0].last(LeaseFrame).quota == {"acme": 0.25}

        def share(gateway):
            gateways[2].send(StatsFrame({}, {}, readiness=True, demand={"acme": 5.0}))
            return gateway.last(LeaseFrame).quota["acme"]

        await world.until(lambda: share(gateways[2]) > 0.9)
        lent = sum(gateway.last(LeaseFrame).quota["acme"] for gateway in gateways)
        assert lent == pytest.approx(1, abs=0.01)
        assert gateways[2].last(LeaseFrame).retry_share > 0.9

    play(stage, scene, workers=4, more=TENANTS)


def test_one_gateway_at_a_time_may_try_a_replica(stage, world):
    async def scene(control, engine):
        one, two = await stage.gateway("gateway-0"), await stage.gateway("gateway-1")
        key = ("m", "m-1")
        one.send(StatsFrame({}, {}, readiness=True, wanted=[key]))
        await world.until(lambda: one.last(LeaseFrame).trial == [key])
        two.send(StatsFrame({}, {}, readiness=True, wanted=[key]))
        one.send(StatsFrame({}, {}, readiness=True))
        await world.until(lambda: two.last(LeaseFrame).trial == [key])
        assert one.last(LeaseFrame).trial == []

    play(stage, scene, workers=2)


# --- what operators see --------------------------------------------------------------------------


def test_operators_are_told_how_it_stands(stage, world):
    async def scene(control, engine):
        assert await ask(control, "/livez") == (200, b"alive\n")
        assert (await ask(control, "/readyz"))[0] == 503
        gateway = await stage.gateway(pid=77)
        stats = StatsFrame(
            {'requests_total{model="m",status="200"}': 3, "bad name": 1},
            {"open": 2},
            readiness=True,
        )
        gateway.send(stats)
        await world.until(lambda: control.admin.ready()[0])
        await world.until(lambda: control.loop.ready("m"))
        assert (await ask(control, "/readyz"))[0] == 200
        assert (await ask(control, "/readyz/m"))[0] == 200
        assert (await ask(control, "/readyz/nobody"))[0] == 503
        _, body = await ask(control, "/status")
        status = orjson.loads(body)
        assert status["gateways"][0]["pid"] == 77
        assert status["replicas"][0]["endpoint"] == engine.url
        assert {"id", "model", "revision", "state", "reason", "zone", "inflight", "share"} <= set(
            status["replicas"][0]
        )
        _, body = await ask(control, "/events")
        assert orjson.loads(body)["events"][-1]["what"] == "ready"
        assert (await ask(control, "/nothing"))[0] == 404
        assert (await ask(control, "/reload"))[0] == 405
        assert (await ask(control, "/reload", method="POST"))[0] == 401
        assert (await ask(control, "/reload", method="POST", headers=OWN))[0] == 200

    play(stage, scene)


def test_counters_never_fall_when_a_gateway_goes(stage, world):
    async def scene(control, engine):
        series = 'requests_total{model="m",status="200"}'
        for _ in range(2):
            gateway = await stage.gateway()
            gateway.send(StatsFrame({series: 3}, {}, readiness=True))
            await world.until(lambda: control.admin.ready()[0])
            gateway.close()
            await world.until(lambda: not control.admin.ready()[0])
        await world.until(lambda: control.loop.ready("m"))
        _, body = await ask(control, "/metrics")
        lines = body.decode().splitlines()
        assert f"holdfast_{series} 6" in lines
        assert 'holdfast_replicas{model="m",state="ready"} 1' in lines
        assert "# TYPE holdfast_requests_total counter" in lines

    play(stage, scene)


def test_the_story_of_a_request_is_passed_on(stage, world):
    async def scene(control, engine):
        def answer(gateway, frame):
            if isinstance(frame, ExplainAsk):
                known = frame.request_id == "req_1"
                gateway.send(ExplainAnswer(frame.ask_id, known, b'{"story":[]}' if known else b""))

        gateway = await stage.gateway()
        gateway.on_frame = answer
        assert await ask(control, "/explain/req_1") == (200, b'{"story":[]}')
        assert (await ask(control, "/explain/req_2"))[0] == 404

    play(stage, scene)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:8001", 200),
        (b"localhost:8001", 200),
        (b"LOCALHOST", 200),
        (b"[::1]:8001", 200),
        (b"evil.example:8001", 421),
        (b"127.0.0.1.evil.example", 421),
        (b"10.0.0.1:8001", 421),
        (b"", 421),
    ],
)
def test_on_loopback_only_a_loopback_host_is_answered(stage, host, status):
    async def scene(control, engine):
        app = build_admin(control.admin, control.file.admin)
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/livez", "query_string": b""}
        scope |= {"headers": [(b"host", host)] if host else [], "root_path": "", "scheme": "http"}
        await app(scope, None, send)
        assert sent[0]["status"] == status

    play(stage, scene)


# The hash of "let me in".
TOKEN = "admin: {token: 'sha256:%s'}\n"


def test_with_a_token_only_who_knows_it_is_answered(stage):
    digest = sha256(b"let me in").hexdigest()

    async def scene(control, engine):
        assert (await ask(control, "/livez"))[0] == 200
        assert (await ask(control, "/status"))[0] == 401
        for wrong in (b"Bearer nonsense", b"Basic let me in", b"Bearer", b"Bearer \xff"):
            assert (await ask(control, "/status", headers=[(b"authorization", wrong)]))[0] == 401
        right = [(b"authorization", b"Bearer let me in")]
        assert (await ask(control, "/status", headers=right))[0] == 200

    play(stage, scene, more=TOKEN % digest)


# --- launched replicas ---------------------------------------------------------------------------

QUICK = """fleet:
  health:
    {canary_s: 0.2, canary_suspect_s: 0.1, canary_warming_s: 0.05, canary_quarantined_s: 0.1}
  drain: {deadline_s: 0.2, move_s: 0.2, hear_s: 0.05}
  launch_backoff_s: 0.05
"""


def launched_yaml(replicas=2, revision="1", *, model="", more=QUICK):
    return (
        "gateway: {listen: '127.0.0.1:8000'}\n"
        f"models:\n  - name: m\n    engine: vllm\n    revision: '{revision}'\n"
        f"    rollout: {{settle_s: 0.05}}\n{model}"
        f"    launch: {{replicas: {replicas}, command: [serve, 'revision={{revision}}']}}\n{more}"
    )


def play_launched(stage, scene, text=None):
    async def main():
        stage.write(text or launched_yaml())
        async with stage.running() as control:
            await scene(control)

    asyncio.run(main())


def states(control):
    return {row["id"]: row["state"] for row in control.admin.status()["replicas"]}


def all_ready(control, count=2):
    found = states(control)
    return len(found) == count and set(found.values()) == {"ready"}


def test_launched_replicas_are_endpoints_to_gateways(stage, world):
    async def scene(control):
        gateway = await stage.gateway()
        await world.until(lambda: all_ready(control))
        await world.until(lambda: len(gateway.last(ViewFrame).replicas) == 2)
        told = FleetFile.from_json(gateway.last(ConfigFrame).config)
        urls = sorted(endpoint.url for endpoint in told.models[0].endpoints)
        assert urls == sorted(row["endpoint"] for row in control.admin.status()["replicas"])
        assert control.file.models[0].endpoints == []  # the file itself says nothing of places
        row = control.admin.status()["replicas"][0]
        assert (row["launched"], row["pid"], row["phase"]) == (True, 1000, "loaded")
        assert control.admin.status()["models"]["m"]["wished"] == 2
        lines = control.admin.metrics().splitlines()
        assert 'holdfast_desired_replicas{model="m"} 2' in lines
        assert control.admin.log_path(row["id"]) is None
        assert {"available", "reason", "gpus"} <= set(control.admin.gpus())
        happened = [event.what for event in control.admin.events(replica="m-1")]
        assert happened[:3] == ["loading", "warming", "ready"]

    play_launched(stage, scene)
    assert stage.launcher.host.processes == {}


def test_told_to_stop_control_ends_what_it_launched_and_the_next_one_starts_it_again(stage, world):
    async def main():
        stage.write(launched_yaml())
        async with stage.running() as control:
            await world.until(lambda: all_ready(control))
            host = stage.launcher.host
        assert all(host.running(name) is None for name in host.processes)
        assert set(stage.store.replicas()) == {"m-1", "m-2"}
        async with stage.running() as control:
            await world.until(lambda: all_ready(control))
            assert set(states(control)) == {"m-1", "m-2"}
            assert len(stage.launcher.orders) == 2

    asyncio.run(main())


def test_a_control_that_was_killed_is_followed_by_one_that_adopts(stage, world):
    async def main():
        stage.write(launched_yaml())
        async with stage.running(killed=True) as control:
            await world.until(lambda: all_ready(control))
            before = {row["id"]: row["pid"] for row in control.admin.status()["replicas"]}
            epoch, term = control.admin.status()["epoch"], control.loop.view.epoch
            happened = len(control.admin.events())
        async with stage.running() as control:
            gateway = await stage.gateway()
            view = gateway.last(ViewFrame)
            assert view.epoch == term + 1
            assert {row.state for row in view.replicas} == {"ready"}  # from its first word on
            assert gateway.last(ConfigFrame).epoch == epoch
            await world.until(lambda: all(control.loop.asked(name) for name in before))
            assert {row["id"]: row["pid"] for row in control.admin.status()["replicas"]} == before
            assert all_ready(control)
            assert not stage.launcher.orders
            assert not stage.launcher.graces
            assert len(control.admin.events()) > happened  # the history goes on
            assert control.loop.asked("m-1").detail.startswith("as this revision is known")

    asyncio.run(main())


def test_answers_that_are_not_understood_are_learned_anew(stage, world):
    stage.store.put_answers({"version": 99})

    async def scene(control):
        await world.until(lambda: all_ready(control))
        assert stage.store.answers()["version"] == 2

    play_launched(stage, scene)


def test_a_mistake_of_control_s_own_leaves_replicas_running_and_is_loud(stage, world, monkeypatch):
    async def main():
        stage.write(launched_yaml())
        control = stage.build()
        task = asyncio.create_task(control.run(asyncio.Event()))
        await world.until(lambda: all_ready(control))

        def broken(_):
            raise RuntimeError("a mistake of ours")

        monkeypatch.setattr(control._deployments, "tick", broken)
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            await task
        host = stage.launcher.host
        assert all(host.running(name) for name in ("m-1", "m-2"))
        await stage.launcher.rest()

    asyncio.run(main())


def test_operators_drain_and_take_back(stage, world):
    async def scene(control):
        await world.until(lambda: all_ready(control))
        assert (await control.admin.drain("m-1"))[0]
        await world.until(lambda: states(control)["m-1"] == "stopped")
        await world.until(lambda: stage.launcher.pid("m-1") is None)
        stage.write(launched_yaml(more=QUICK + "  no_success_s: 11\n"))  # the fleet begins anew
        await world.until(
            lambda: control.admin.status()["epoch"] > 3 and states(control)["m-2"] == "ready"
        )
        await world.until(lambda: states(control)["m-1"] == "stopped")
        assert stage.launcher.pid("m-1") is None  # out is out
        assert (await control.admin.undrain("m-1"))[0]
        await world.until(lambda: all_ready(control))

    play_launched(stage, scene)


def test_an_operator_s_restart_gives_a_new_process(stage, world):
    async def scene(control):
        await world.until(lambda: all_ready(control))
        before = stage.launcher.pid("m-1")
        assert (await control.admin.restart("m-1"))[0]
        await world.until(lambda: stage.launcher.pid("m-1") not in (None, before))
        await world.until(lambda: all_ready(control))

    play_launched(stage, scene)


def test_what_leaves_is_not_taken_back(stage, world):
    slow = QUICK.replace("deadline_s: 0.2", "deadline_s: 30")

    async def scene(control):
        gateway = await stage.gateway()
        await world.until(lambda: all_ready(control))
        rows = [TallyRow("m", name, 0, 0, 0, 1, 0) for name in ("m-1", "m-2")]
        gateway.send(SeenFrame([], rows, 0))
        await world.until(lambda: control.admin.status()["replicas"][1]["inflight"] == 1)
        assert (await control.admin.scale("m", 1)) == (True, "m is to have 1 replicas")
        await world.until(lambda: "draining" in states(control).values())
        (leaver,) = [name for name, state in states(control).items() if state == "draining"]
        for refused in (await control.admin.undrain(leaver), await control.admin.restart(leaver)):
            assert not refused[0]
            assert "removed" in refused[1]
        gateway.close()
        await world.until(lambda: all_ready(control, 1))

    play_launched(stage, scene, launched_yaml(more=slow))


def test_orders_about_what_is_not_there_are_refused(stage, world):
    async def scene(control, engine):
        for order in (control.admin.drain, control.admin.undrain, control.admin.restart):
            with pytest.raises(UnknownReplicaError):
                await order("stranger")
        with pytest.raises(UnknownModelError):
            await control.admin.scale("stranger", 1)
        assert not (await control.admin.scale("m", 2))[0]
        assert not (await control.admin.restart("m-1"))[0]
        with pytest.raises(UnknownReplicaError):
            control.admin.log_path("stranger")

    play(stage, scene)


def test_disturbances_need_the_leave_of_the_file_and_end_with_it(stage, world):
    async def scene(control, engine):
        gateway = await stage.gateway()
        url = "http://127.0.0.1:9"
        with pytest.raises(ChaosDisabledError):
            await control.admin.disturb("m-1", "detour", 60.0, url)
        assert control.admin.status()["disturbed"] == {}
        stage.write(fleet_yaml(engine.url, more="chaos: {enabled: true}\n"))
        await world.until(lambda: control.file.chaos.enabled)
        assert (await control.admin.disturb("m-1", "detour", 60.0, url))[0]
        await world.until(lambda: gateway.last(DetoursFrame).detours == {"m-1": url})
        stage.write(fleet_yaml(engine.url))
        await world.until(lambda: gateway.last(DetoursFrame).detours == {})
        assert control.admin.status()["disturbed"] == {}

    play(stage, scene)


def test_a_drained_endpoint_stays_out_when_the_file_changes(stage, world):
    async def scene(control, engine):
        await world.until(lambda: control.loop.ready("m"))
        await control.admin.drain("m-1")
        await world.until(lambda: states(control)["m-1"] != "ready")
        stage.write(fleet_yaml(engine.url, more="fleet: {no_success_s: 11}\n"))
        await world.until(lambda: control.admin.status()["epoch"] == 2)
        assert states(control)["m-1"] in {"draining", "stopped"}

    play(stage, scene)


def test_a_full_replica_is_out_and_comes_back(stage, world):
    async def scene(control, engine):
        await world.until(lambda: control.loop.ready("m"))
        for _ in range(2):
            control._tell_loads([LoadReported("m", "m-1", None, 0, 0.99)])
        assert states(control)["m-1"] in {"quarantined", "suspect"}
        assert "KV cache" in control.admin.status()["replicas"][0]["reason"] or control.loop.panic()
        control._tell_loads([LoadReported("m", "m-1", None, 0, 0.1)])
        await world.until(lambda: control.loop.ready("m"))

    play(stage, scene, more=QUICK)


def test_a_rollout_is_followed_by_the_gateways_file(stage, world):
    async def scene(control):
        gateway = await stage.gateway()
        await world.until(lambda: all_ready(control))
        stage.write(launched_yaml(revision="2"))

        def told():
            file = FleetFile.from_json(gateway.last(ConfigFrame).config)
            return [endpoint.revision for endpoint in file.models[0].endpoints]

        await world.until(lambda: all_ready(control) and told() == ["2", "2"])
        await world.until(lambda: "rollout finished" in [e.what for e in control.admin.events()])

    play_launched(stage, scene)


def test_last_uses_of_keys_are_asked_for_by_name_and_outlive_control(stage, world):
    key = "hf-planted-key-of-a-team"
    more = f"tenants: [{{name: team, keys: [{{hash: '{hash_key(key)}', id: ci}}]}}]\n"

    async def used(control, engine):
        gateway = await stage.gateway()
        assert orjson.loads((await ask(control, "/keys"))[1])["keys"][0]["last_used"] is None
        gateway.send(StatsFrame({}, {}, readiness=True, keys=[("team", "ci", 1_700_000_000)]))
        await world.until(lambda: control.admin.keys()["keys"][0]["last_used"])

    async def later(control, engine):
        status, body = await ask(control, "/keys")
        (row,) = orjson.loads(body)["keys"]
        assert (status, row["tenant"], row["id"]) == (200, "team", "ci")
        assert row["last_used"] == 1_700_000_000
        assert hash_key(key)[7:].encode() not in body

    play(stage, used, more=more)
    play(stage, later, more=more)


def test_what_a_tenant_has_under_way_stays_with_its_gateway(stage, world):
    quota = "quota: {requests_at_once: 4}"
    more = f"tenants: [{{name: acme, keys: ['{hash_key('hf-planted-key-of-a-team')}'], {quota}}}]\n"

    async def scene(control, engine):
        first, second = await stage.gateway("gateway-0", 1), await stage.gateway("gateway-1", 2)

        async def tell():
            first.send(StatsFrame({}, {}, readiness=True, running={"acme": 3}))
            second.send(StatsFrame({}, {}, readiness=True, demand={"acme": 50.0}))
            await asyncio.sleep(0.02)

        for _ in range(20):
            await tell()
        until = asyncio.get_running_loop().time() + 30
        while second.last(LeaseFrame).quota["acme"] > 0.26:
            assert asyncio.get_running_loop().time() < until
            await tell()
        assert first.last(LeaseFrame).quota["acme"] >= 0.74

    play(stage, scene, workers=2, more=more)
