"""What every launcher promises, asked of the fake one, of processes on both loops, of Kubernetes.

Of Kubernetes: an API server, controllers and a kubelet of ``fakekube``, whose pods are real
processes. ``make test-ray`` asks it of a Ray cluster of two nodes, too (``HOLDFAST_RAY``).
"""

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest
import uvloop

from fakekube import FakeKube, node
from fakekube.controllers import Controllers
from fakekube.kubelet import Kubelet
from holdfast.launchers.kubernetes.launcher import KubernetesLauncher
from holdfast.launchers.kubernetes.workloads import Workloads
from holdfast.launchers.process import ProcessLauncher
from holdfast.launchers.ray.launcher import RayLauncher
from holdfast.launchers.ray.link import RaySettings
from holdfast.ports import Ended, LaunchError, Order
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.testing.launcher import FakeHost, FakeLauncher
from holdfast.testing.ray_nodes import ray_nodes
from holdfast.wire.kubernetes.launcher import cluster_access

RAY = bool(os.environ.get("HOLDFAST_RAY"))
PATIENCE_S = 180.0 if RAY else 60.0  # each control starts a driver of Ray, each replica an actor

# A small engine that does as it is told through a named pipe: "say TEXT", "exit CODE", "deaf".
ENGINE = """
import os, signal, sys
with open(sys.argv[1]) as told:
    for line in told:
        what, _, rest = line.strip().partition(" ")
        if what == "say":
            print(rest, flush=True)
        elif what == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("deaf now", flush=True)
        elif what == "exit":
            sys.exit(int(rest))
"""


class Notes:
    """A watcher that writes everything down and can be waited for."""

    def __init__(self) -> None:
        self.all = []
        self._more = asyncio.Event()

    def started(self, replica_id, pid):
        self._add("started", replica_id, pid)

    def line(self, replica_id, text):
        self._add("line", replica_id, text)

    def ended(self, replica_id, ended):
        self._add("ended", replica_id, ended)

    def stopped(self, replica_id, stopped):
        self._add("stopped", replica_id, stopped)

    def leaving(self, replica_id, reason):
        self._add("leaving", replica_id, reason)

    def host_seen(self, host, condition, reason):
        self._add("host_seen", host, condition)

    def _add(self, *news):
        self.all.append(news)
        self._more.set()

    def of(self, what):
        return [news for news in self.all if news[0] == what]

    async def seen(self, *start):
        """Wait for news that begin like this."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for news in self.all:
                    if news[: len(start)] == start:
                        return news[-1]
                self._more.clear()
                await self._more.wait()


class FakeWorld:
    sees_suspension = True

    def __init__(self, tmp_path):
        self.host = FakeHost()

    def launcher(self):
        return FakeLauncher(self.host)

    def order(self, name, **more):
        return Order(name, ("engine", name), **more)

    async def say(self, name, text):
        self.host.say(name, text)

    async def exit(self, name, code):
        self.host.end(name, code=code)

    async def kill(self, launcher, name):
        self.host.end(name, number=signal.SIGKILL)

    async def suspend(self, launcher, name, suspended):
        self.host.suspend(name, suspended)

    async def deafen(self, notes, name):
        self.host.processes[name].stubborn = True


class ProcessWorld:
    sees_suspension = True

    def __init__(self, tmp_path):
        self.tmp_path = tmp_path

    def launcher(self):
        return ProcessLauncher(self.tmp_path / "replicas", lease_s=60.0)

    def order(self, name, **more):
        pipe = self.tmp_path / f"{name}.pipe"
        if not pipe.exists():
            os.mkfifo(pipe)
        return Order(name, ("{python}", "-I", "-S", "-c", ENGINE, str(pipe)), **more)

    async def _tell(self, name, text):
        def write():
            descriptor = os.open(self.tmp_path / f"{name}.pipe", os.O_RDWR)
            self.pipes = [*getattr(self, "pipes", []), descriptor]  # held: an end would end it
            os.write(descriptor, f"{text}\n".encode())

        await asyncio.to_thread(write)

    async def say(self, name, text):
        await self._tell(name, f"say {text}")

    async def exit(self, name, code):
        await self._tell(name, f"exit {code}")

    async def kill(self, launcher, name):
        os.kill(launcher.pid(name), signal.SIGKILL)

    async def suspend(self, launcher, name, suspended):
        os.kill(launcher.pid(name), signal.SIGSTOP if suspended else signal.SIGCONT)

    async def deafen(self, notes, name):
        await self._tell(name, "deaf")
        await notes.seen("line", name, "deaf now")


class RayWorld(ProcessWorld):
    """Nodes of the cluster are on this machine, so pipes and signals work as for processes."""

    def __init__(self, tmp_path, address):
        super().__init__(tmp_path)
        self.settings = RaySettings(address=address, namespace=tmp_path.name)

    def launcher(self):
        return RayLauncher(self.settings, self.tmp_path / "replicas")


def bare_deployment(order, zone):
    """A Deployment of one pod that runs an order, and nothing else."""
    labels = {"holdfast.dev/replica": order.replica_id}
    env = [{"name": name, "value": value} for name, value in order.environment.items()]
    engine = {"name": "engine", "image": "engine", "command": list(order.command), "env": env}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [engine]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": order.replica_id}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


class KubernetesWorld(ProcessWorld):
    """Pods of the fake cluster are processes of this machine, so pipes and signals reach them."""

    sees_suspension = False  # no API server shows it: canaries find a process that is suspended

    def __init__(self, tmp_path, kube, kubelet):
        super().__init__(tmp_path)
        self.kube, self.kubelet = kube, kubelet

    def launcher(self):
        cluster = cluster_access(KubernetesConfig(api_url=self.kube.url, retry_s=0.02))
        workloads = Workloads(cluster.api, "inference", "contract", bare_deployment)
        return KubernetesLauncher(cluster, workloads, self.tmp_path / "replicas")

    async def kill(self, launcher, name):
        os.kill(self.kubelet.process(name).pid, signal.SIGKILL)

    async def suspend(self, launcher, name, suspended):
        os.kill(self.kubelet.process(name).pid, signal.SIGSTOP if suspended else signal.SIGCONT)


@pytest.fixture
def kubernetes(tmp_path):
    with FakeKube() as kube:
        kube.put("nodes", node("node-1"))
        with Controllers(kube), Kubelet(kube) as kubelet:
            yield KubernetesWorld(tmp_path, kube, kubelet)


@pytest.fixture(scope="session")
def ray_address():
    with ray_nodes("b") as nodes:
        yield nodes.address


@pytest.fixture(params=["ray"] if RAY else ["fake", "process", "process-uvloop", "kubernetes"])
def world(request, tmp_path):
    if RAY:
        made = RayWorld(tmp_path, request.getfixturevalue("ray_address"))
    elif request.param == "kubernetes":
        made = request.getfixturevalue("kubernetes")
    else:
        made = (FakeWorld if request.param == "fake" else ProcessWorld)(tmp_path)
    run = uvloop.run if request.param.endswith("uvloop") else asyncio.run
    yield SimpleNamespace(it=made, run=run)
    for descriptor in getattr(made, "pipes", ()):
        os.close(descriptor)


def scene(world, play):
    """Run one test with a launcher that has adopted nothing, and end everything after it."""

    async def main():
        notes = Notes()
        launcher = world.it.launcher()
        try:
            assert await launcher.adopt(notes) == []
            async with asyncio.timeout(PATIENCE_S * 2):
                await play(world.it, launcher, notes)
        finally:
            await launcher.close(leave_running=False)

    world.run(main())


def test_a_replica_starts_with_a_pid_and_is_told_of(world):
    async def play(it, launcher, notes):
        pid = await launcher.start(it.order("a"))
        assert pid > 1
        assert launcher.pid("a") == pid
        assert await notes.seen("started", "a") == pid

    scene(world, play)


def test_its_lines_reach_the_watcher_in_order(world):
    async def play(it, launcher, notes):
        await launcher.start(it.order("a"))
        await it.say("a", "loading model")
        await it.say("a", "listening")
        await notes.seen("line", "a", "listening")
        assert [text for _, _, text in notes.of("line")] == ["loading model", "listening"]

    scene(world, play)


def test_an_exit_is_told_with_its_code_after_the_last_line(world):
    async def play(it, launcher, notes):
        await launcher.start(it.order("a"))
        await it.say("a", "last words")
        await it.exit("a", 3)
        ended = await notes.seen("ended", "a")
        assert (ended.code, ended.signal, ended.oom) == (3, None, False)
        assert not ended.asked
        assert "3" in ended.reason
        assert [news[0] for news in notes.all] == ["started", "line", "ended"]
        assert launcher.pid("a") is None

    scene(world, play)


def test_a_kill_is_told_by_its_signal(world):
    async def play(it, launcher, notes):
        await launcher.start(it.order("a"))
        await it.kill(launcher, "a")
        ended = await notes.seen("ended", "a")
        assert (ended.code, ended.signal) == (None, signal.SIGKILL)
        assert "SIGKILL" in ended.reason

    scene(world, play)


def test_stop_ends_it_and_says_how_and_the_watcher_knows_already(world):
    async def play(it, launcher, notes):
        await launcher.start(it.order("a"))
        await it.say("a", "up")
        await notes.seen("line", "a", "up")
        ended = await launcher.stop("a", grace_s=10.0)
        assert isinstance(ended, Ended)
        assert ended.signal == signal.SIGTERM
        assert ended.asked
        assert "as asked" in ended.reason
        assert not ended.oom
        assert notes.of("ended") == [("ended", "a", ended)]
        assert launcher.pid("a") is None

    scene(world, play)


def test_one_that_is_deaf_to_sigterm_is_killed_after_its_grace(world):
    async def play(it, launcher, notes):
        await launcher.start(it.order("a"))
        await it.deafen(notes, "a")
        ended = await launcher.stop("a", grace_s=0.2)
        assert ended.signal == signal.SIGKILL
        assert not ended.oom

    scene(world, play)


def test_a_suspended_one_is_noticed_and_goes_on(world):
    if not world.it.sees_suspension:
        pytest.skip("its platform does not show it")

    async def play(it, launcher, notes):
        await launcher.start(it.order("a"))
        await it.suspend(launcher, "a", True)
        await notes.seen("stopped", "a", True)
        await it.suspend(launcher, "a", False)
        await notes.seen("stopped", "a", False)
        assert len(notes.of("stopped")) == 2

    scene(world, play)


def test_a_suspended_one_can_be_stopped(world):
    async def play(it, launcher, notes):
        await launcher.start(it.order("a"))
        await it.suspend(launcher, "a", True)
        if it.sees_suspension:
            await notes.seen("stopped", "a", True)
        ended = await launcher.stop("a", grace_s=1.0)
        assert ended.signal in {signal.SIGTERM, signal.SIGKILL}

    scene(world, play)


def test_stopping_what_does_not_run_is_nothing(world):
    async def play(it, launcher, notes):
        assert await launcher.stop("nobody", grace_s=1.0) is None
        await launcher.start(it.order("a"))
        await launcher.stop("a", grace_s=10.0)
        assert await launcher.stop("a", grace_s=1.0) is None
        assert len(notes.of("ended")) == 1

    scene(world, play)


def test_the_same_replica_does_not_start_twice_at_once_but_again_after_its_end(world):
    async def play(it, launcher, notes):
        first = await launcher.start(it.order("a"))
        with pytest.raises(LaunchError, match="runs already"):
            await launcher.start(it.order("a"))
        await it.kill(launcher, "a")
        await notes.seen("ended", "a")
        assert await launcher.start(it.order("a")) != first
        assert len(notes.of("started")) == 2

    scene(world, play)


def test_an_order_without_a_command_is_refused(world):
    async def play(it, launcher, notes):
        with pytest.raises(LaunchError, match="no command"):
            await launcher.start(Order("a", ()))
        assert notes.all == []

    scene(world, play)


def test_the_next_control_adopts_what_runs_with_its_order(world):
    async def play(it, launcher, notes):
        order = it.order("a", environment={"KEY": "x"}, port=4321, note={"model": "m", "zone": "z"})
        pid = await launcher.start(order)
        await it.say("a", "before")
        await notes.seen("line", "a", "before")
        await launcher.close(leave_running=True)
        later = Notes()
        heir = it.launcher()
        (adopted,) = await heir.adopt(later)
        assert adopted.order == order
        assert adopted.pid == heir.pid("a") == pid
        assert adopted.started_at > 0
        await it.say("a", "after")
        await later.seen("line", "a", "after")
        assert [news[0] for news in later.all] == ["line"], "old lines are not told again"
        await it.exit("a", 0)
        assert (await later.seen("ended", "a")).code == 0
        await heir.close(leave_running=False)

    scene(world, play)


def test_the_next_control_knows_who_was_told_to_end(world):
    async def play(it, launcher, notes):
        await launcher.start(it.order("a"))
        await launcher.start(it.order("b"))
        await it.kill(launcher, "b")
        await notes.seen("ended", "b")
        await launcher.close(leave_running=False)
        later = Notes()
        heir = it.launcher()
        assert await heir.adopt(later) == []
        assert (await later.seen("ended", "a")).asked
        assert not (await later.seen("ended", "b")).asked
        await heir.close(leave_running=False)

    scene(world, play)


def test_an_end_that_nobody_watched_is_told_at_adoption_until_it_is_forgotten(world):
    async def play(it, launcher, notes):
        pid = await launcher.start(it.order("a"))
        await launcher.close(leave_running=True)
        first = Notes()
        mute = it.launcher()
        await mute.adopt(first)
        await it.exit("a", 7)
        await first.seen("ended", "a")
        await mute.close(leave_running=True)
        for _ in range(2):
            again = Notes()
            heir = it.launcher()
            assert await heir.adopt(again) == []
            assert (await again.seen("ended", "a")).code == 7
            assert heir.pid("a") is None
            await heir.close(leave_running=True)
        last = it.launcher()
        await last.adopt(Notes())
        last.forget("a")
        await last.close(leave_running=True)
        none = Notes()
        heir = it.launcher()
        assert await heir.adopt(none) == []
        assert none.all == []
        await heir.close(leave_running=True)
        assert pid > 1

    scene(world, play)


def test_forgetting_one_that_runs_changes_nothing(world):
    async def play(it, launcher, notes):
        pid = await launcher.start(it.order("a"))
        launcher.forget("a")
        assert launcher.pid("a") == pid
        await it.say("a", "still here")
        await notes.seen("line", "a", "still here")

    scene(world, play)


def test_closing_without_leaving_them_ends_all(world):
    async def play(it, launcher, notes):
        for name in ("a", "b", "c"):
            await launcher.start(it.order(name))
        await launcher.close(leave_running=False)
        assert {news[1] for news in notes.of("ended")} == {"a", "b", "c"}
        assert launcher.pid("a") is None

    scene(world, play)
