"""From what gateways and engines say to how many replicas there should be."""

import asyncio
import contextlib
import time

import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.control import process as process_module
from holdfast.control.deploy.demand_tracker import DemandTracker
from holdfast.control.deploy.deployments import Deployments
from holdfast.control.gateways.metrics import gateway_gauges
from holdfast.control.gateways.state_file import SOCKET_FILE
from holdfast.control.process import Control
from holdfast.core.deploy.autoscale import Demand
from holdfast.core.messages import LoadReported
from holdfast.frames import LeaseFrame, StatsFrame
from holdfast.testing.launcher import FakeLauncher

NOW = 7_000


def said(requests=None, tokens=None, p95=None, rate=None):
    """The gauges of one gateway."""
    names = ("queued_requests", "queued_tokens", "first_token_p95_seconds", "tokens_per_second")
    told = zip(names, (requests, tokens, p95, rate), strict=True)
    return {f'{name}{{model="m"}}': value for name, value in told if value is not None}


def row(name="m-1", state="ready", inflight=0, model="m"):
    return {"id": name, "model": model, "state": state, "inflight": inflight}


def load(name="m-1", waiting=None, kv_used=None):
    return LoadReported("m", name, None, waiting, kv_used)


# --- demand ---------------------------------------------------------------------------------------


def test_what_all_gateways_say_comes_together():
    gauges = [said(2, 100, 0.5, 10.0), said(1, 50, 0.9, 20.0)]
    rows = [row(inflight=3), row("m-2", "loading"), row("n-1", inflight=9, model="n")]
    demand = DemandTracker().of("m", gauges, rows, NOW)
    assert demand == Demand(
        at=NOW,
        queued_tokens=150,
        queued=3,
        running=3,
        first_token_p95=0.9,
        token_rate=30.0,
        ready=1,
        starting=1,
    )


def test_memory_of_gpus_is_told_of_ready_replicas_alone():
    rows = [row(), row("m-2", "loading"), row("m-3"), row("n-1", model="n")]
    memory = {"m-1": 0.95, "m-2": 0.99, "n-1": 0.5}
    assert DemandTracker().of("m", [], rows, NOW, memory).memory_used == (0.95,)
    assert DemandTracker().of("m", [], rows, NOW).memory_used == ()


def test_a_request_that_nobody_saw_running_is_no_idleness():
    active = {'active_requests{model="m"}': 1}
    assert DemandTracker().of("m", [said(0, 0) | active], [row()], NOW).running == 1
    assert DemandTracker().of("m", [said(0, 0) | active], [row(inflight=3)], NOW).running == 3


def test_without_a_gateway_nothing_is_known():
    demand = DemandTracker().of("m", [], [], NOW)
    assert (demand.queued, demand.queued_tokens) == (None, None)
    assert (demand.token_rate, demand.first_token_p95) == (None, None)


def test_a_silent_gateway_is_not_one_with_an_empty_queue():
    demand = DemandTracker().of("m", [said(0, 0, rate=5.0), {}], [], NOW)
    assert (demand.queued, demand.queued_tokens, demand.token_rate) == (None, None, None)


def test_what_the_others_say_is_the_least_there_can_be():
    demand = DemandTracker().of("m", [said(2, 300), {}], [], NOW)
    assert (demand.queued, demand.queued_tokens) == (2, 300)


def test_requests_that_wait_inside_engines_wait_too():
    demands = DemandTracker()
    demands.loads([load("m-1", 4), load("m-2", 0), load("m-3", kv_used=0.5)])
    rows = [row("m-1"), row("m-2"), row("m-3")]
    assert demands.of("m", [said(1, 10)], rows, NOW).queued == 5
    assert demands.of("m", [{}], rows, NOW).queued == 4
    demands.loads([load("m-1", 0)])
    assert demands.of("m", [said(0, 0)], rows, NOW).queued == 0
    assert demands.of("m", [{}], rows, NOW).queued is None  # an idle engine is no empty queue


def test_only_replicas_that_are_ready_are_asked_how_full_they_are():
    demands = DemandTracker()
    demands.loads([load("m-1", kv_used=0.25), load("m-2", kv_used=0.9), load("m-3", waiting=1)])
    rows = [row("m-1"), row("m-2", "draining"), row("m-3")]
    assert demands.of("m", [], rows, NOW).kv_used == (0.25,)


def test_an_engine_that_falls_silent_and_a_replica_that_goes_are_forgotten():
    demands = DemandTracker()
    demands.loads([load("m-1", 4, 0.5), load("m-2", 2, 0.5)])
    assert demands.gauges() == {
        'replica_waiting{model="m",replica="m-1"}': 4,
        'replica_kv_used{model="m",replica="m-1"}': 0.5,
        'replica_waiting{model="m",replica="m-2"}': 2,
        'replica_kv_used{model="m",replica="m-2"}': 0.5,
    }
    demands.loads([load("m-1")])
    demands.of("m", [], [row("m-1")], NOW)
    assert demands.gauges() == {}


def test_of_several_gateways_the_worst_p95_counts_and_the_rest_is_added():
    assert gateway_gauges([said(1, 10, 0.5), said(2, 20, 0.2), {}]) == said(3, 30, 0.5)


# --- deployments ----------------------------------------------------------------------------------


class Wishes:
    """What deployments need of control, on paper."""

    def __init__(self, store, demand):
        self.store = store
        self.demanded = demand
        self.notices = []
        self.deployments = Deployments(FakeLauncher(), store, self)

    def demand(self, model, now):
        return self.demanded(now)

    def note(self, notice):
        self.notices.append((notice.what, notice.reason))

    def tell(self, *events):
        """Nobody is told."""

    def placed(self):
        """Nobody is told."""

    def health(self, replica_id):
        return None

    def desired(self, file, now):
        self.deployments.follow(file)
        self.deployments.tick(now)
        return self.deployments.gauges()


def scaled_file(replicas=0, **scaling):
    launch = {"replicas": replicas, "command": ["serve", "{port}"]}
    scaling = {"min": 0, "max": 4, **scaling}
    model = {"name": "m", "engine": "vllm", "launch": launch, "scaling": scaling}
    return FleetFile.model_validate({"models": [model]})


def waiting(now):
    return Demand(now, queued_tokens=20, queued=1, running=0)


def unknown(now):
    return Demand(now)


def test_a_request_that_waits_makes_a_unit_of_a_model_at_zero(store):
    async def main():
        wishes = Wishes(store, unknown)
        assert wishes.desired(scaled_file(), NOW) == {'desired_replicas{model="m"}': 0}
        assert not wishes.deployments.units
        wishes.demanded = waiting
        assert wishes.desired(scaled_file(), NOW + 1) == {'desired_replicas{model="m"}': 1}
        assert list(wishes.deployments.units) == ["m-1"]
        ((what, reason),) = wishes.notices
        assert (what, reason.startswith("0 to 1: woken: ")) == ("scaled", True)
        told = wishes.deployments.snapshot()["m"]
        assert (told["wished"], told["scaling"]["signal"]) == (1, "wake")

    asyncio.run(main())


def test_a_wake_that_control_meets_as_it_starts_is_told_too(store):
    async def main():
        wishes = Wishes(store, waiting)
        wishes.desired(scaled_file(), NOW)
        ((what, reason),) = wishes.notices
        assert (what, reason.startswith("0 to 1: woken: ")) == ("scaled", True)

    asyncio.run(main())


@pytest.mark.parametrize("began", [0, 3])
def test_the_next_control_goes_on_with_as_many_and_not_with_what_the_file_began_with(store, began):
    async def main():
        before = Wishes(store, unknown if began else waiting)
        before.desired(scaled_file(began), NOW)
        count = before.deployments.gauges()['desired_replicas{model="m"}']
        assert await asyncio.to_thread(store.flush, 5.0)
        after = Wishes(store, unknown)
        await after.deployments.adopt()
        other = scaled_file(4 - began)  # as many as it never had
        assert after.desired(other, NOW) == {'desired_replicas{model="m"}': count}

    asyncio.run(main())


def test_what_is_beyond_new_bounds_comes_back_into_them(store):
    async def main():
        wishes = Wishes(store, unknown)
        wishes.desired(scaled_file(4), NOW)
        smaller = scaled_file(2, max=2)
        assert wishes.desired(smaller, NOW + 1) == {'desired_replicas{model="m"}': 2}

    asyncio.run(main())


# --- control --------------------------------------------------------------------------------------

FILE = """\
gateway: {listen: '127.0.0.1:8000'}
models:
  - name: m
    engine: vllm
    launch: {replicas: 0, command: [serve, '{port}']}
    scaling: {min: 0, max: 2}
"""


@contextlib.asynccontextmanager
async def control_of(world, tmp_path, store, launcher):
    """A control with one launched model, and one gateway."""
    path, run_dir = tmp_path / "fleet.yaml", tmp_path / "run"
    path.write_text(FILE)
    run_dir.mkdir()
    control = Control(path, run_dir, {}, "control-1", store, launcher)
    stop = asyncio.Event()
    task = asyncio.create_task(control.run(stop))
    try:
        await world.until(lambda: control.loop.view is not None or task.done())
        gateway = await world.FakeGateway().connect(run_dir / SOCKET_FILE)
        await world.until(lambda: gateway.last(LeaseFrame))
        yield control, gateway
        gateway.close()
    finally:
        stop.set()
        await task
        await launcher.rest()


def test_a_fleet_that_begins_at_zero_is_told_of_and_a_waiting_request_wakes_it(
    world, tmp_path, store, monkeypatch
):
    monkeypatch.setattr(process_module, "DEPLOY_S", 0.02)

    async def main():
        launcher = world.Paper()
        async with control_of(world, tmp_path, store, launcher) as (control, gateway):
            assert control.loop.view.replicas == ()
            assert 'holdfast_desired_replicas{model="m"} 0' in control.admin.metrics()
            gateway.send(StatsFrame({}, said(1, 20), readiness=True))
            await world.until(lambda: control.admin.model_ready("m")[0])
            assert [order.replica_id for order in launcher.orders] == ["m-1"]
            text = control.admin.metrics()
            assert 'holdfast_desired_replicas{model="m"} 1' in text
            assert 'holdfast_queued_tokens{model="m"} 20' in text

    asyncio.run(main())


def test_what_a_gateway_said_long_ago_is_not_known(world, tmp_path, store, monkeypatch):
    monkeypatch.setattr(process_module, "DEPLOY_S", 60.0)

    async def main():
        launcher = world.Paper()
        async with control_of(world, tmp_path, store, launcher) as (control, gateway):
            gateway.send(StatsFrame({}, said(0, 0), readiness=True))
            demand = control.demand
            await world.until(lambda: demand("m", time.monotonic_ns()).queued == 0)
            later = time.monotonic_ns() + process_module.SILENT + 1
            assert demand("m", later).queued is None

    asyncio.run(main())
