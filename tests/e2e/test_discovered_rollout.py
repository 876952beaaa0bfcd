"""A rollout that a platform runs, while clients stream: to other answers, then to a broken engine.

The new weights answer every question differently, as new weights do. Holdfast launches nothing
here: it finds pods of a fake API server, or tasks of ECS in moto, and learns from their template or
task definition which of them belong together. Clients must notice neither; no answer may begin with
one revision and end with the other. The tests of a platform share a stage, in the order below.
"""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from urllib.request import Request, urlopen

import orjson
import pytest
import uvloop

from fakekube import FakeKube, node, pod
from holdfast.testing.standin import Options, StandIn, expected_text, fault
from holdfast.testing.standin.text import WRONG, ChatMessage, chat_seed, chat_tokens, choice_seed

AWS_TESTS = str(Path(__file__).parents[1] / "sources" / "aws")
PATIENCE_S = 90.0  # of a busy machine
TOKENS = 40  # at 20 ms each: whoever drains has streams to finish
CLIENTS = 4
PAUSE_S = 0.05
HEALTH = {
    "canary_s": 1.0,
    "canary_suspect_s": 0.5,
    "canary_warming_s": 0.2,
    "canary_quarantined_s": 0.5,
    "slow_start_s": 0.5,
}


def texts(content):
    """What the old weights answer, and what the new ones do."""
    old = expected_text("m", [{"role": "user", "content": content}], TOKENS)
    seed = chat_seed("m", [ChatMessage("user", content)]) + WRONG
    return old, "".join(chat_tokens(choice_seed(seed, 0), TOKENS))


# --- platforms ------------------------------------------------------------------------------------


class Kubernetes:
    """Pods of a Deployment: each of its templates has a hash."""

    def __init__(self):
        self.kube = FakeKube()

    def __enter__(self):
        self.kube.__enter__()
        self.kube.put("nodes", node("node-1"))
        return self

    def __exit__(self, *_):
        self.kube.__exit__()

    def source(self):
        return {"type": "kubernetes", "name": "p", "api_url": self.kube.url, "period_s": 1}

    def revise(self, revision):
        """A template by this name exists from now on; as its pods are labelled."""
        return f"hash-{revision}"

    def come(self, address, revision):
        """The replica's id."""
        name = f"m-{revision}-{address.rpartition('.')[2]}"
        labels = {"pod-template-hash": f"hash-{revision}"}
        self.kube.put(
            "pods", pod(name, model="m", ip=address, labels=labels, created_at=time.time())
        )
        return name

    def leave(self, name):
        self.kube.terminate(name)

    def gone(self, name):
        self.kube.delete("pods", name)


class Ecs:
    """Tasks of a service: each of its definitions has a revision."""

    def __init__(self):
        if AWS_TESTS not in sys.path:
            sys.path.append(AWS_TESTS)
        import aws_fleet  # noqa: PLC0415 found by the path above; moto takes seconds
        import aws_front  # noqa: PLC0415 as above

        self.fleets, self.fronts = aws_fleet, aws_front
        self.tasks = {}

    def __enter__(self):
        self.aws = self.fronts.FakeAws()
        self._wipe()
        plan = self.fleets.Plan(
            cluster="c",
            groups=(self.fleets.GroupPlan("hosts", "r5.xlarge", 2, 4, 31_612),),
            models=(
                self.fleets.ModelPlan("m", "hosts", 1, 1, 8_000, 8_000, waiting=0, used_mib=None),
            ),
        )
        self.fleet = self.fleets.build(self.aws, plan)
        self.fleet.tasks["m"].clear()  # that one runs nowhere
        self.fleets.forget_stopped(self.fleet)
        return self

    def __exit__(self, *_):
        self._wipe()
        self.aws.close()

    def _wipe(self):
        with urlopen(Request(f"{self.aws.url}/moto-api/reset", method="POST"), timeout=60):
            pass

    def source(self):
        region, url = self.fronts.REGION, self.aws.url
        said = {"type": "aws", "name": "p", "region": region, "cluster": "c", "period_s": 1}
        return {**said, "endpoint_url": url, "read_logs": False}

    def revise(self, revision):
        if revision > 1:  # the first came with the fleet
            container = {"name": "m", "image": f"registry/m:v{revision}", "memory": 8_000}
            made = self.aws.client("ecs").register_task_definition(
                family="m", containerDefinitions=[container]
            )
            assert made["taskDefinition"]["revision"] == revision
        return f"m:{revision}"

    def come(self, address, revision):
        del revision  # the newest definition is started
        task = self.fleets.start(self.fleet, self.fleet.plan.models[0], self._host(address))
        task.containers[0].network_interfaces = [{"privateIpv4Address": address}]
        task.created_at = task.started_at = datetime.now(UTC)
        self.fleets.settle(self.fleet)
        self.tasks[task.id] = task
        return task.id

    def _host(self, address):
        hosts = self.fleet.hosts["hosts"]
        return hosts[int(address.rpartition(".")[2]) % len(hosts)]

    def leave(self, name):
        self.tasks[name].desired_status = "STOPPED"

    def gone(self, name):
        task = self.tasks[name]
        task.last_status, task.stop_code = "STOPPED", "ServiceSchedulerInitiated"
        task.stopped_reason = "Scaling activity initiated by (deployment ecs-svc/1)"
        task.stopped_at, task.exit = datetime.now(UTC), 0
        self.fleets.settle(self.fleet)


# --- the stage ------------------------------------------------------------------------------------


class Stage:
    """One ``serve`` that discovers replicas, and the engines behind them."""

    def __init__(self, ops, folder, platform):
        self.ops, self.folder, self.platform = ops, folder, platform
        self.port, self.admin_port, self.engine_port = ops.free_ports(3, Random())
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.serve = None
        self.addresses = iter(f"127.0.0.{number}" for number in range(2, 250))
        self.engines = {}
        self.loop = uvloop.new_event_loop()

    def open(self):
        file = {
            "gateway": {"listen": f"127.0.0.1:{self.port}", "workers": 1},
            "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
            "models": [
                {
                    "name": "m",
                    "engine": "vllm",
                    "discover": {"source": "p", "port": self.engine_port},
                    "canary": {"slow_floor_s": 2.0},
                }
            ],
            "fleet": {"health": HEALTH},
            "sources": [self.platform.source()],
        }
        config = self.folder / "fleet.yaml"
        config.write_bytes(orjson.dumps(file))  # JSON is YAML
        command = [sys.executable, "-m", "holdfast", "serve", "-c", str(config)]
        command += ["--state-dir", str(self.folder / "state")]
        with (self.folder / "serve.log").open("wb") as log:
            self.serve = subprocess.Popen(command, stdout=log, stderr=log)
        self.ops.wait_for(f"{self.admin}/status", self.serve)

    def close(self):
        if self.serve is not None:
            self.ops.end([self.serve])
        for engine in self.engines.values():
            self.run(engine.stop())
        self.loop.close()

    def run(self, job):
        return self.loop.run_until_complete(job)

    async def come(self, revision, ailment=None):
        """Another replica, with its engine."""
        address = next(self.addresses)
        options = Options(models=("m",), ttft_ms=10.0, tpot_ms=20.0, tokens=TOKENS)
        engine = await StandIn(options).start(address, self.engine_port, side_port=None)
        if ailment is not None:
            engine.set_fault(ailment)
        name = await asyncio.to_thread(self.platform.come, address, revision)
        self.engines[name] = engine
        return name

    async def leave(self, name):
        """It is told to end, finishes what it has, and is gone."""
        await asyncio.to_thread(self.platform.leave, name)
        over = ("stopped", "draining")
        await self.until(lambda: self.states().get(name) in over, f"{name} drains")
        await self.until(lambda: self.states().get(name) == "stopped", f"{name} is drained")
        await asyncio.to_thread(self.platform.gone, name)
        await self.until(lambda: name not in self.states(), f"{name} is gone")
        await self.engines.pop(name).stop()

    def rows(self):
        return self.ops.call(f"{self.admin}/status")["replicas"]

    def states(self):
        return {row["id"]: row["state"] for row in self.rows()}

    def incidents(self):
        return self.ops.call(f"{self.admin}/incidents")["incidents"]

    async def until(self, true, what):
        end = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(true):
            if time.monotonic() > end:
                said = (self.folder / "serve.log").read_text(errors="replace")[-3_000:]
                pytest.fail(f"not within {PATIENCE_S:g} s: {what}\n{said}")
            await asyncio.sleep(0.1)


class Streams:
    """Clients that read streams all the while: which weights answered, and what went wrong."""

    def __init__(self, stage):
        self._stage = stage
        self._tasks = []
        self._stop = False
        self.harms = Counter()
        self.answered = Counter()  # by "old" and "new"
        self.served_by = Counter()

    async def __aenter__(self):
        self._tasks = [asyncio.ensure_future(self._client(n)) for n in range(CLIENTS)]
        return self

    async def __aexit__(self, *_):
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def _client(self, client):
        ops, number = self._stage.ops, 0
        while not self._stop:
            content = f"client {client} asks {number}"
            number += 1
            old, new = texts(content)
            try:
                reply = await ops.ask(self._stage.port, ops.chat(content, stream=True))
                assert reply.complete, "closed too early"
                assert reply.status == 200, f"status {reply.status}"
                said = reply.text()
                assert said in (old, new), "an answer of neither revision"
            except (OSError, ValueError, KeyError, AssertionError) as error:
                self.harms[f"{type(error).__name__}: {error}"] += 1
            else:
                self.answered["old" if said == old else "new"] += 1
                self.served_by[reply.headers["x-holdfast-replica"]] += 1
            await asyncio.sleep(PAUSE_S)


@pytest.fixture(scope="module")
def nobodys_keys():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/nowhere/file")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="module", params=[Kubernetes, Ecs], ids=["kubernetes", "ecs"])
def stage(request, ops, tmp_path_factory, nobodys_keys):
    with request.param() as platform:
        made = Stage(ops, tmp_path_factory.mktemp("discovered"), platform)
        try:
            made.open()
            yield made
        finally:
            made.close()


def test_a_rollout_to_other_answers_is_noticed_by_nobody(stage):
    async def main():
        called = stage.platform.revise(1)
        old = [await stage.come(1), await stage.come(1)]
        await stage.until(lambda: list(stage.states().values()) == ["ready"] * 2, "two are ready")
        assert {row["revision"] for row in stage.rows()} == {called}
        async with Streams(stage) as streams:
            called = stage.platform.revise(2)
            new = []
            for name in old:
                new.append(await stage.come(2, fault("wrong_output")))
                await stage.until(lambda: stage.states().get(new[-1]) == "ready", "a new one is")
                await stage.leave(name)
            seen = streams.answered["new"]
            await stage.until(lambda: streams.answered["new"] > seen + CLIENTS, "it is asked")
        assert {row["id"]: row["revision"] for row in stage.rows()} == dict.fromkeys(new, called)
        return streams, old, new

    streams, old, new = stage.run(main())
    assert not streams.harms
    assert streams.answered["old"]
    assert streams.answered["new"]
    assert set(streams.served_by) == {*old, *new}
    assert stage.incidents() == []


def test_a_broken_revision_is_an_incident_at_its_first_replica_and_the_old_one_serves_on(stage):
    async def main():
        serving = set(stage.states())
        called = stage.platform.revise(3)
        async with Streams(stage) as streams:
            broken = await stage.come(3, fault("status", code=500, instant=True))
            await stage.until(stage.incidents, "an incident tells of it")
            before = sum(streams.answered.values())
            await stage.until(lambda: sum(streams.answered.values()) > before + CLIENTS, "served")
            incidents = await asyncio.to_thread(stage.incidents)
        return streams, serving, broken, called, incidents

    streams, serving, broken, called, incidents = stage.run(main())
    assert not streams.harms
    assert set(streams.served_by) == serving
    assert {row["id"] for row in stage.rows() if row["state"] == "ready"} == serving
    (incident,) = incidents
    assert incident["replicas"] == [broken]
    whole = stage.ops.call(f"{stage.admin}/incidents/{incident['id']}")
    assert whole["about"]["revision"] == called
    assert called in whole["title"]


def test_an_answer_that_its_weights_cannot_finish_is_not_finished_by_others(stage):
    """The last of the old revision dies in the middle; whoever is left answers differently."""

    async def main():
        serving = set(stage.states())
        called = stage.platform.revise(4)
        sound = await stage.come(4)
        await stage.until(lambda: stage.states().get(sound) == "ready", "the next revision is")
        for name in [name for name in serving if stage.states()[name] == "ready"][1:]:
            await stage.leave(name)
        (last,) = [
            row["id"]
            for row in stage.rows()
            if row["state"] == "ready" and row["revision"] != called
        ]
        content = "to be continued"
        served_by = ""
        while served_by != last:  # the other one may be asked first
            served_by, body = await broken_off(stage, content, last)
        return body, *texts(content)

    body, old, new = stage.run(main())
    told = [
        choice["delta"].get("content") or ""
        for line in body.split("\n")
        if line.startswith("data: {")
        for choice in orjson.loads(line.removeprefix("data: ")).get("choices", ())
    ]
    said = "".join(told)
    # ``last`` has the new words, and whoever is left the old ones: it broke off in its own.
    assert said
    assert new.startswith(said)
    assert said != new
    assert "error" in body
    assert not old.startswith(said)


async def broken_off(stage, content, name):
    """A stream of this replica, which dies as soon as it has begun: who served it, and all of it.

    A stream of another is read to its end.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    try:
        writer.write(stage.ops.chat(content, stream=True))
        async with asyncio.timeout(PATIENCE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            served_by = head.partition("x-holdfast-replica: ")[2].partition("\r\n")[0]
            if served_by == name:
                stage.engines[name].set_fault(fault("crash"))
            return served_by, (await reader.read()).decode()
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
