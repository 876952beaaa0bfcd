"""Four platforms that tell the same stories to a control, each in its own words.

    FakeKube ─► KubernetesSource ─┐
    moto ─────► AwsSource ────────┼─► SourcePoller ─► ReadingDiff ─► Investigation ─► an incident
    a host on paper ─► Agent ─────┘                                      ▲
    processes on paper ─► Launches ──────────────────────────────────────┘

A story is a model of one replica. ``before`` shows it as it was, ``after`` what became of it; in
between control has read the first. Nothing here knows what is to be concluded.
"""

import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson

from fakekube import FakeKube, node, pod
from fakekube.objects import stamp
from holdfast.agent import Agent
from holdfast.agent.report_sender import ReportAnswer
from holdfast.agent.settings import AgentConfig, LogRule, ReplicaRule
from holdfast.config.tenants import hash_key
from holdfast.control.process import Control
from holdfast.control.view.agents import RefusedError
from holdfast.sources.this_host import LocalConfig, Roots
from holdfast.storage.sqlite import SqliteStore
from holdfast.testing.launcher import FakeHost, FakeLauncher
from holdfast.wire.view_sources import build_source

AWS_TESTS = str(Path(__file__).parents[2] / "sources" / "aws")

SERVED = "killed-after-serving"
LOADING = "killed-while-loading"
EVICTED = "host-out-of-memory"
UNPLACED = "never-placed"
UNFETCHED = "image-not-fetched"
LEFT = "taken-away-in-order"
STORIES = (SERVED, LOADING, EVICTED, UNPLACED, UNFETCHED, LEFT)

LIVED_S = 1_800.0  # longer than a life whose end is a question of its limit
WAITED_S = 120.0
GB = 1 << 30


@asynccontextmanager
async def control_of(folder, file, launcher=None):
    """A control that follows this fleet file, with all its jobs."""
    (folder / "fleet.yaml").write_bytes(orjson.dumps(file))  # JSON is YAML
    store = SqliteStore(folder / "state.db")
    launcher = launcher or FakeLauncher(FakeHost())
    path = folder / "fleet.yaml"
    control = Control(path, folder, {}, "c", store, launcher, build_source)
    stop = asyncio.Event()
    job = asyncio.create_task(control.run(stop))
    try:
        yield control
    finally:
        stop.set()
        await job
        store.close()


def told(control):
    """Class and cause of each model's open incidents."""
    found = {}
    for one in control.incidents.unclosed():
        found.setdefault(one.about.model, set()).add((one.failure_class, one.cause))
    return found


# --- Kubernetes -----------------------------------------------------------------------------------


class Kubernetes:
    name = "kubernetes"
    tells = STORIES

    def __init__(self, folder):
        del folder
        self.kube = FakeKube()
        self.began = time.time() - LIVED_S

    def __enter__(self):
        self.kube.__enter__()
        return self

    def __exit__(self, *_):
        self.kube.__exit__()

    def file(self):
        source = {"type": "kubernetes", "name": "kube", "api_url": self.kube.url, "period_s": 1}
        return {"sources": [source]}

    def before(self):
        for story in (SERVED, LOADING, EVICTED, LEFT):
            self.kube.put("nodes", node(f"node-{story}"))
            ready = story != LOADING
            made = pod(
                story,
                model=story,
                host=f"node-{story}",
                ready=ready,
                created_at=self.began,
            )
            self._ready(made, ready=ready, at=self.began + 60 * ready)
            self.kube.put("pods", made)

    def _ready(self, made, *, ready, at):
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": stamp(at)}
        conditions = made["status"]["conditions"]
        conditions[:] = [*(one for one in conditions if one["type"] != "Ready"), condition]
        return conditions

    def seen(self, control):
        rows = [row for one in control.source_poller.readings() for row in one.placed]
        return {row.model for row in rows} >= {SERVED, LOADING, EVICTED, LEFT}

    def after(self):
        now = time.time()
        for story, served in ((SERVED, True), (LOADING, False)):
            made = self.kube.objects.get("pods", "default", story)
            self._ready(made, ready=False, at=now if served else self.began)
            status = made["status"]["containerStatuses"][0]
            end = {"reason": "OOMKilled", "exitCode": 137}
            end |= {"startedAt": stamp(self.began + 5), "finishedAt": stamp(now)}
            status |= {"restartCount": 1, "lastState": {"terminated": end}, "ready": False}
            status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
            self.kube.put("pods", made)
        self._evict(now)
        self.kube.terminate(LEFT)
        self.kube.delete("pods", LEFT)
        self._wait(UNPLACED, host="")
        self._wait(UNFETCHED, host=f"node-{SERVED}")

    def _evict(self, now):
        made = self.kube.objects.get("pods", "default", EVICTED)
        why = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 84Mi."
        made["status"] |= {"phase": "Failed", "reason": "Evicted", "message": why}
        self._ready(made, ready=False, at=now)
        end = {"reason": "Error", "exitCode": 137}
        end |= {"startedAt": stamp(self.began + 5), "finishedAt": stamp(now)}
        made["status"]["containerStatuses"][0]["state"] = {"terminated": end}
        self.kube.put("pods", made)

    def _wait(self, story, host):
        made = pod(story, model=story, host=host, phase="Pending", ready=False, ip="")
        since = time.time() - WAITED_S
        made["metadata"]["creationTimestamp"] = stamp(since)
        if host:
            waits = {"reason": "ImagePullBackOff", "message": "Back-off pulling image vllm:1"}
            made["status"]["containerStatuses"][0]["state"] = {"waiting": waits}
        else:
            why = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
            unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            unplaced |= {"message": why, "lastTransitionTime": stamp(since)}
            made["status"]["conditions"] = [unplaced]
        self.kube.put("pods", made)


# --- ECS ------------------------------------------------------------------------------------------


class Ecs:
    name = "ecs"
    tells = STORIES

    def __init__(self, folder):
        del folder
        if AWS_TESTS not in sys.path:
            sys.path.append(AWS_TESTS)
        import aws_fleet  # noqa: PLC0415 found by the path above; moto takes seconds
        import aws_front  # noqa: PLC0415 as above

        self.fleets, self.fronts = aws_fleet, aws_front

    def __enter__(self):
        self.aws = self.fronts.FakeAws()
        self._wipe()
        plan = self.fleets.Plan(
            cluster="stories",
            groups=(self.fleets.GroupPlan("hosts", "r5.xlarge", len(STORIES), 4, 31_612),),
            models=tuple(
                self.fleets.ModelPlan(
                    story, "hosts", 1, 1, 8_000, 8_000, waiting=0, used_mib=None, wished=1
                )
                for story in STORIES
            ),
        )
        self.fleet = self.fleets.build(self.aws, plan)
        return self

    def __exit__(self, *_):
        self._wipe()
        self.aws.close()

    def _wipe(self):
        from urllib.request import Request, urlopen  # noqa: PLC0415 needed here alone

        with urlopen(Request(f"{self.aws.url}/moto-api/reset", method="POST"), timeout=60):
            pass

    def file(self):
        region, url = self.fronts.REGION, self.aws.url
        source = {"type": "aws", "region": region, "cluster": "stories", "endpoint_url": url}
        return {"sources": [{**source, "period_s": 1}]}

    def task(self, story):
        return self.fleet.tasks[story][0]

    def before(self):
        began = datetime.fromtimestamp(time.time() - LIVED_S, UTC)
        for story in STORIES:
            task = self.task(story)
            task.created_at = task.pull_started_at = task.pull_stopped_at = began
            task.started_at = began
        self.fleets.unsay(self.fleet, LOADING, self.task(LOADING), 800)  # its last word: it loads
        self.fleets.say(self.fleet, LOADING, self.task(LOADING), 1, {"phase": "loading", "pct": 9})
        for story in (UNPLACED, UNFETCHED):  # nobody runs yet
            self.fleet.tasks[story].clear()
        self.fleets.forget_stopped(self.fleet)
        self.fleets.settle(self.fleet)

    def seen(self, control):
        rows = [row for one in control.source_poller.readings() for row in one.placed]
        phases = {row.model: row.phase for row in rows}
        return phases.get(LOADING) == "loading" and phases.get(SERVED)

    def after(self):
        for story in (SERVED, LOADING):
            self.fleets.kill_for_memory(self.fleet, self.task(story), ago_s=1)
        # A host that is short of memory has the kernel kill somebody; ECS says nothing of memory.
        self._stop(EVICTED, "Essential container in task exited", "EssentialContainerExited", 137)
        self._stop(LEFT, "Your Spot Task was interrupted.", "SpotInterruption", 143)
        task = self.fleets.start(
            self.fleet,
            next(one for one in self.fleet.plan.models if one.name == UNFETCHED),
            self.fleet.hosts["hosts"][0],
        )
        self.fleets.unsay(self.fleet, UNFETCHED, task, 1_000)  # nobody ran who could have spoken
        task.created_at = datetime.fromtimestamp(time.time() - WAITED_S, UTC)
        task.started_at = task.pull_started_at = task.pull_stopped_at = None
        self._stop(
            UNFETCHED,
            "CannotPullContainerError: pull image manifest has been retried 1 time(s): not found",
            "TaskFailedToStart",
            None,
        )
        self.fleets.settle(self.fleet)
        unplaced = (
            f"(service {UNPLACED}) was unable to place a task because no container instance met "
            "all of its requirements. The closest matching container-instance has insufficient GPU"
        )
        self.fleets.complain(self.fleet, UNPLACED, unplaced, unplaced)

    def _stop(self, story, reason, code, exit_code):
        task = self.task(story)
        task.last_status = task.desired_status = "STOPPED"
        task.stopped_reason, task.stop_code, task.exit = reason, code, exit_code
        task.stopped_at = datetime.now(UTC) - timedelta(seconds=1)
        self.fleets.settle(self.fleet)


# --- an agent -------------------------------------------------------------------------------------


class Direct:
    """Hands a report to the inbox, as the agents' path of the admin port does."""

    def __init__(self, inbox):
        self.inbox = inbox

    def send(self, body, deadline_s):
        del deadline_s
        try:
            self.inbox.take("gpu-1", body)
        except RefusedError as error:
            return ReportAnswer(error.status, str(error))
        return ReportAnswer(204)


class Agents:
    name = "agent"
    tells = (SERVED, LOADING, EVICTED)
    LINES = (
        "Loading safetensors checkpoint shards: 10% Completed",
        "Application startup complete.",
    )

    def __init__(self, folder):
        self.root = folder / "host"
        self.pids = {story: 10 + place for place, story in enumerate(self.tells)}
        self.agent = self.control = None

    def __enter__(self):
        self.put("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
        self.put("proc/uptime", f"{2 * LIVED_S:.2f} 1\n")
        self.put("proc/vmstat", "oom_kill 0\n")
        return self

    def __exit__(self, *_):
        if self.agent is not None:
            self.agent.leave()

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def file(self):
        return {"sources": [{"type": "agents", "token": hash_key("agents-" + "a" * 40)}]}

    def before(self):
        start = int(LIVED_S * os.sysconf("SC_CLK_TCK"))
        for story, pid in self.pids.items():
            self.put(f"proc/{pid}/stat", f"{pid} (e) S 1 {'0 ' * 17}{start} 0\n")
            self.put(f"proc/{pid}/status", f"RssAnon: {GB >> 10} kB\nRssFile: 0 kB\n")
            self.put(f"proc/{pid}/cgroup", f"0::/{story}\n")
            self.put(f"proc/{pid}/cmdline", "engine")
            self.put(f"cgroup/{story}/memory.events", "oom_kill 0\n")
            self.put(f"cgroup/{story}/cgroup.procs", f"{pid}\n")
            lines = self.LINES[:1] if story == LOADING else self.LINES
            self.put(f"{story}.log", "".join(f"{line}\n" for line in lines))

    def seen(self, control):
        inbox = control.source_poller.source("agents")
        if inbox is None:
            return False
        if self.agent is None:
            rules = [
                ReplicaRule(one, one, "pid", str(pid), "vllm") for one, pid in self.pids.items()
            ]
            config = AgentConfig(
                "http://127.0.0.1:1",
                "gpu-1",
                local=LocalConfig(1.0, host="gpu-1"),
                replicas=tuple(rules),
                logs=(LogRule(str(self.root / "{replica}.log")),),
            )
            roots = Roots(self.root / "proc", self.root / "sys", self.root / "cgroup")
            self.agent = Agent(config, "", lambda _: None, roots)
            self.agent._sender = Direct(inbox)
        self.look()
        rows = [row for one in control.source_poller.readings() for row in one.placed]
        return {row.replica for row in rows} >= set(self.tells)

    def look(self):
        said = self.agent.once()
        assert said == "" or "429" in said, said

    def after(self):
        for story in (SERVED, LOADING):
            self.put(f"cgroup/{story}/memory.events", "oom_kill 1\n")
        self.put("proc/vmstat", "oom_kill 3\n")
        for name in ("memory.events", "cgroup.procs"):  # a container's cgroup goes with it
            (self.root / "cgroup" / EVICTED / name).unlink()
        (self.root / "cgroup" / EVICTED).rmdir()
        for pid in self.pids.values():
            for file in (self.root / f"proc/{pid}").iterdir():
                file.unlink()
            (self.root / f"proc/{pid}").rmdir()


# --- processes that control starts itself ---------------------------------------------------------


class Processes:
    name = "process"
    tells = (SERVED, LOADING, EVICTED, LEFT)

    def __init__(self, folder):
        del folder
        self.launcher = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def file(self):
        models = [
            {"name": story, "engine": "vllm", "launch": {"replicas": 1, "command": ["engine"]}}
            for story in self.tells
        ]
        return {"models": models, "fleet": {"health": {"canary_warming_s": 0.2}}}

    def before(self):
        pass

    def seen(self, control):
        states = {one: control.loop.health(f"{one}-1") for one in self.tells}
        if any(health is None for health in states.values()):
            return False
        ready = {one for one, health in states.items() if health.state == "ready"}
        return ready == set(self.tells) - {LOADING} and states[LOADING].state == "loading"

    def after(self):
        for story in (SERVED, LOADING, EVICTED):
            self.launcher.end(f"{story}-1", number=9, oom=True)
        self.launcher.end(f"{LEFT}-1", number=15, asked=True)


@asynccontextmanager
async def telling(platform, folder, world):
    """The platform, and a control that reads it."""
    launcher = None
    if isinstance(platform, Processes):
        platform.launcher = launcher = _unserved(world.Paper())
        launcher.options = {"models": platform.tells}
    async with control_of(folder, platform.file(), launcher) as control:
        yield control
    if launcher is not None:
        await launcher.rest()


def _unserved(paper):
    """Processes on paper, of which one model's never answers: it loads."""
    serve = paper.serve

    async def served(replica_id):
        if not replica_id.startswith(LOADING):
            await serve(replica_id)

    paper.serve = served
    return paper


async def until(control, true, within_s=120.0):
    """Wait for something that another task or thread does; whether it came about."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not true(control):  # noqa: ASYNC110 conditions of other tasks have no events
                await asyncio.sleep(0.2)
    return bool(true(control))


PLATFORMS = (Kubernetes, Ecs, Agents, Processes)
