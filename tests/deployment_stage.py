"""Launched models with a real fleet loop and a real store, for tests of deployments.

Control is played by ``Stage``; processes are on paper, and a stand-in listens at each one's port.
"""

import asyncio
import time
from contextlib import asynccontextmanager

from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.deployments import Deployments
from holdfast.control.fleet.loop import TICK, FleetLoop
from holdfast.core.deploy.autoscale import Demand
from holdfast.core.health.own_lateness import LoopWatch
from holdfast.core.types import State

QUICK = {
    "health": {
        "canary_s": 0.2,
        "canary_suspect_s": 0.1,
        "canary_warming_s": 0.05,
        "canary_quarantined_s": 0.1,
    },
    "launch_backoff_s": 0.05,
    "launch_backoff_max_s": 0.1,
    "drain": {"deadline_s": 0.2, "move_s": 0.2, "hear_s": 0.05},
}


def fleet_file(replicas=2, revision="1", *, models=1, fleet=None, **more):
    launch = {"replicas": replicas, "command": ["serve", "revision={revision}"]}
    launch |= more.pop("launch", {})
    base = {"engine": "vllm", "revision": revision, "rollout": {"settle_s": 0.05, "retry_s": 0.05}}
    named = [{"name": name, "launch": launch, **base, **more} for name in ("m", "n")[:models]]
    listed = {"name": "listed", "engine": "vllm", "endpoints": ["http://127.0.0.1:9"]}
    return FleetFile.model_validate(
        {"models": [*named, listed], "fleet": {**QUICK, **(fleet or {})}}
    )


class Stage:
    """What control is to deployments: the fleet's loop, and ears."""

    def __init__(self, world, store, launcher=None, gpus=None):
        self.world = world
        self.until = world.until
        self.store = store
        self.launcher = launcher or world.Paper(world.Paper().host)
        self.launcher.options = {"models": ("m", "n")}
        self.notices = []
        self.facts = []
        self.views = []
        self.asked_for = {}
        self.deployments = Deployments(self.launcher, store, self, gpus)
        watch = LoopWatch(TICK, time.monotonic_ns())
        self.loop = FleetLoop(self, watch, world.canaries(), self.deployments, 1)
        self.file = None

    # what deployments ask for

    def tell(self, *events):
        self.loop.tell(*events)

    def note(self, notice):
        self.notices.append(notice)

    def saw(self, fact):
        self.facts.append(fact)

    def answered(self, result, *, slow, inflight):
        pass

    def placed(self):
        file = self.file.with_endpoints(self.deployments.endpoints())
        self.loop.adopt(file.replicas(), file.fleet_config(), self.deployments.idle())
        self.loop.tell(*self.deployments.leavers())

    def health(self, replica_id):
        return self.loop.health(replica_id)

    def demand(self, model, now):
        return self.asked_for.get(model) or Demand(at=now)

    # what the loop says

    def publish(self, view):
        self.views.append(view)

    def move(self, action):
        pass

    # what tests ask

    def follow(self, file):
        self.file = file
        self.deployments.follow(file)
        self.placed()

    async def turn(self):
        """Look at wishes, again and again."""
        while True:
            self.deployments.tick(time.monotonic_ns())
            await asyncio.sleep(0.01)

    @property
    def units(self):
        return self.deployments.units

    def ready(self, model="m"):
        states = {i: self.loop.health(i) for i, unit in self.units.items() if unit.model == model}
        return [i for i, health in states.items() if health and health.state is State.READY]

    def said(self, what):
        return [notice for notice in self.notices if notice.what == what]

    async def settled(self, count, revision="1", model="m"):
        """So many are ready, all of one revision, and nothing else is there."""

        def there():
            mine = [unit for unit in self.units.values() if unit.model == model]
            same = all(unit.revision == revision for unit in mine)
            return same and len(self.ready(model)) == len(mine) == count

        await self.until(there)


@asynccontextmanager
async def live(world, store, file, launcher=None, *, leave_running=False, gpus=None):
    stage = Stage(world, store, launcher, gpus)
    await stage.deployments.adopt()
    stage.follow(file)
    stage.loop.start()
    turning = asyncio.create_task(stage.turn())
    try:
        yield stage
    finally:
        turning.cancel()
        failed = (await asyncio.gather(turning, return_exceptions=True))[0]
        await stage.loop.stop()
        await stage.deployments.launches.close(leave_running=leave_running)
        if not leave_running:
            await stage.launcher.rest()
        assert isinstance(failed, asyncio.CancelledError), failed


def play(world, store, scene, file=None, **more):
    async def main():
        async with live(world, store, file or fleet_file(), **more) as stage:
            await scene(stage)

    asyncio.run(main())


def in_turn(world, store, *scenes, gpus=lambda: None):
    """One control after the other, each killed but the last; replicas run on between them."""

    async def main():
        launcher = None
        for position, (file, scene) in enumerate(scenes):
            if launcher is not None:
                before, launcher = launcher, world.Paper(launcher.host)
                launcher.standins = before.standins
            last = position == len(scenes) - 1
            more = {"leave_running": not last, "gpus": gpus()}
            async with live(world, store, file, launcher, **more) as stage:
                await scene(stage)
                launcher = stage.launcher

    asyncio.run(main())
