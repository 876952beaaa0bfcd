"""Everything control does, put together: one object that the hub, the loop and operators talk to.

    file ─► source ─► loop (fleet) ─► hub ─► gateways
                        ▲  probes, loads     │
                        └──── seen, stats ◄──┘

What it knows is on disk after every change, so that a gateway can start, and another control can go
on, when this one is dead.
"""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import structlog

from holdfast.config.fleet_file import FleetFile
from holdfast.control.hub import Gateway, Hub
from holdfast.control.leasing import Leasing
from holdfast.control.loads import Loads
from holdfast.control.loop import TICK, Earlier, FleetLoop, Happened
from holdfast.control.metrics import Totals, fleet_gauges, render
from holdfast.control.probes import LoopWatch
from holdfast.control.source import ConfigSource
from holdfast.control.state import SOCKET_FILE, STATE_FILE, read_state, write_state
from holdfast.core.lease import LeaseConfig
from holdfast.core.messages import FleetView, LoadReported
from holdfast.frames import (
    ConfigFrame,
    MoveFrame,
    SeenFrame,
    StatsFrame,
    ToGateway,
    ViewFrame,
    Welcome,
    encode,
    frame_to_seen,
    frame_to_view,
    loads_to_frame,
    view_to_frame,
)

FILE_LOOK_S: Final = 1.0  # how soon a changed file is noticed
EXPLAIN_S: Final = 1.0  # gateways answer from memory; who is silent for so long is frozen

_log = structlog.get_logger("holdfast.control")


class Control:
    """The control process."""

    def __init__(
        self, path: Path, run_dir: Path, environment: Mapping[str, str], control_id: str
    ) -> None:
        now = time.monotonic_ns()
        self._run_dir = run_dir
        self._id = control_id
        config, earlier = _left_behind(run_dir / STATE_FILE)
        self._source = ConfigSource(path, (config.epoch, config.config) if config else None)
        term = earlier.view.epoch + 1 if earlier else 1
        self.loop = FleetLoop(self, LoopWatch(TICK, now), environment, term, earlier)
        self._hub = Hub(self)
        self._totals = Totals()
        places = [f"gateway-{index}" for index in range(self._source.file.gateway.workers)]
        self._leases = LeaseConfig()
        self._leasing = Leasing(self._leases, places, now)
        self._loads = Loads(lambda: self.loop.deployed, self._tell_loads, environment, Random())
        self._view: ViewFrame | None = None
        self._saved: tuple[int, int] = (0, 0)
        self._reloading = asyncio.Lock()

    @property
    def file(self) -> FleetFile:
        """The config that runs."""
        return self._source.file

    # --- life ------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Until it is told to stop."""
        async with self._hub.listening(self._run_dir / SOCKET_FILE):
            self._adopt()
            self.loop.start()
            jobs = [
                asyncio.create_task(job)
                for job in (stop.wait(), self._loads.run(), self._watch_file(), self._lend())
            ]
            try:
                done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                for job in done:
                    job.result()  # a job that failed must not be missing in silence
            finally:
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)
                await self.loop.stop()

    async def _watch_file(self) -> None:
        while True:
            await asyncio.sleep(FILE_LOOK_S)
            async with self._reloading:
                before = self._source.epoch
                if await self._source.changed():
                    self._after_reading(before)

    async def reload(self) -> bool:
        """Read the file again, now; whether it is what runs."""
        async with self._reloading:
            before = self._source.epoch
            await self._source.reload()
            self._after_reading(before)
            return not self._source.problems

    def _after_reading(self, before: int) -> None:
        source = self._source
        if source.problems:
            for problem in source.problems:
                _log.error("config refused", problem=problem)
        elif source.epoch != before:
            _log.info("config accepted", epoch=source.epoch)
            self._hub.broadcast(ConfigFrame(source.epoch, source.json))
            self._adopt()
        else:
            _log.info("config unchanged", epoch=source.epoch)

    def _adopt(self) -> None:
        file = self._source.file
        self._leasing.declare(file.flow_config().quotas, time.monotonic_ns())
        self.loop.adopt(file.replicas(), file.fleet_config())
        self._save()

    async def _lend(self) -> None:
        while True:
            await asyncio.sleep(self._leases.round_s)
            for place, frame in self._leasing.look(time.monotonic_ns()):
                gateway = self._hub.current(place)
                if gateway is not None:
                    gateway.send(encode(frame))

    def _tell_loads(self, loads: list[LoadReported]) -> None:
        self._hub.broadcast(loads_to_frame(loads))

    # --- what the fleet wants gateways to know (Audience) ----------------------------------------

    def publish(self, view: FleetView) -> None:
        """A view, new or said again."""
        if self._view is None or (view.epoch, view.version) != (
            self._view.epoch,
            self._view.version,
        ):
            self._view = view_to_frame(view)
            self._save()
        self._hub.broadcast(self._view)

    def move(self, model: str, replica_id: str) -> None:
        """Cut what runs on a replica."""
        self._hub.broadcast(MoveFrame(model, replica_id))

    def _save(self) -> None:
        source = self._source
        try:
            config = ConfigFrame(source.epoch, source.json)
            write_state(self._run_dir / STATE_FILE, config, self._view)
        except (
            OSError
        ) as error:  # gateways that run have it all; only one that starts would miss it
            _log.error("state not written", reason=error.strerror or type(error).__name__)

    # --- what gateways say (Listener) ------------------------------------------------------------

    def greeting(self, gateway: Gateway) -> list[ToGateway]:
        """All that a gateway needs to serve."""
        source = self._source
        self._leasing.came(gateway.id)
        frames: list[ToGateway] = [
            Welcome(source.epoch, self._id),
            ConfigFrame(source.epoch, source.json),
        ]
        if self._view is not None:
            frames.append(self._view)
        frames.append(self._leasing.frame_for(gateway.id))
        return frames

    def on_seen(self, gateway: Gateway, frame: SeenFrame) -> None:
        """Passive evidence."""
        self.loop.seen(frame_to_seen(frame, gateway.name))

    def on_stats(self, gateway: Gateway, frame: StatsFrame) -> None:
        """How it fares. A process that drains has no say in leases any more."""
        if self._hub.current(gateway.id) is not gateway:
            return
        self._leasing.on_stats(gateway.id, frame, time.monotonic_ns())
        if gateway.stats_heard == 1:  # it serves now; when it was greeted it had no use for a lease
            gateway.send(encode(self._leasing.frame_for(gateway.id)))

    def on_gone(self, gateway: Gateway) -> None:
        """Its connection ended."""
        self._totals.keep(gateway.counters)
        if self._hub.current(gateway.id) is None:
            self._leasing.went(gateway.id, time.monotonic_ns())
        self.loop.gateway_gone(gateway.name)

    # --- what operators ask ----------------------------------------------------------------------

    def ready(self) -> tuple[bool, str]:
        """Whether clients are served: some gateway accepts."""
        gateways = list(self._hub.gateways.values())
        if any(gateway.ready for gateway in gateways):
            return True, "ready"
        reasons = sorted({gateway.reason for gateway in gateways}) or ["no gateway is connected"]
        return False, "; ".join(reasons[:4])

    def model_ready(self, model: str) -> tuple[bool, str]:
        """Whether a ready replica of this model exists."""
        if model not in {one.name for one in self.file.models}:
            return False, "no such model"
        ready = self.loop.ready(model)
        return ready, "ready" if ready else "no replica is ready"

    def events(self) -> list[Happened]:
        """Recent notices."""
        return list(self.loop.events)

    def status(self) -> dict[str, Any]:
        """The whole of it."""
        source = self._source
        return {
            "control": self._id,
            "epoch": source.epoch,
            "config_problems": source.problems,
            "gateways": [gateway.snapshot() for gateway in self._hub.gateways.values()],
            "replicas": self.loop.replicas(),
            "panic": self.loop.panic(),
        }

    def metrics(self) -> str:
        """Everything that is counted, as Prometheus text."""
        gateways = list(self._hub.gateways.values())
        counters = self._totals.with_those_of(gateway.counters for gateway in gateways)
        counters["config_refused_total"] = self._source.refused
        gauges: dict[str, float] = {"metrics_series_left_out": self._totals.left_out}
        for gateway in gateways:
            for series, value in gateway.gauges.items():
                gauges[series] = gauges.get(series, 0) + value
            gauges[f'gateway_ready{{gateway="{gateway.name}"}}'] = gateway.ready
            gauges[f'gateway_epoch{{gateway="{gateway.name}"}}'] = gateway.epoch
        gauges["config_epoch"] = self._source.epoch
        gauges["gateways"] = len(gateways)
        gauges |= fleet_gauges(self.loop.replicas())
        return render(counters, gauges)

    async def explain(self, request_id: str) -> bytes | None:
        """The story of a recent request, as JSON."""
        return await self._hub.explain(request_id, EXPLAIN_S)

    def problems(self) -> list[str]:
        """Why the file as it is now was refused."""
        return self._source.problems


def _left_behind(path: Path) -> tuple[ConfigFrame | None, Earlier | None]:
    """The config and the view of the control before this one, as far as they make sense."""
    config, view = read_state(path)
    if config is None:
        return None, None
    try:
        deployed = FleetFile.from_json(config.config).replicas()
        return config, Earlier(frame_to_view(view), tuple(deployed)) if view else None
    except ValueError as error:  # FrameError and pydantic's are such
        _log.warning("earlier state not used", reason=type(error).__name__)
        return None, None


__all__ = ["EXPLAIN_S", "FILE_LOOK_S", "Control"]
