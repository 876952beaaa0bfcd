"""Everything control does, put together: one object that the hub, the loop and operators talk to.

    file ─► source ─► deployments ─► loop (fleet) ─► hub ─► gateways
                        launcher       ▲  canaries, loads      │
                                       ├───── seen, stats ◄────┘
                                       └─► lookout ─► incidents

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
from holdfast.control.admin import UnknownModelError, UnknownReplicaError
from holdfast.control.canaries import Canaries
from holdfast.control.demand import Demands
from holdfast.control.deployments import HELD, Deployments
from holdfast.control.disturbances import Disturbances
from holdfast.control.gpus import GpuWatch
from holdfast.control.hub import Gateway, Hub
from holdfast.control.incidents import Incidents
from holdfast.control.inherited import kept_answers, left_behind, unplaced
from holdfast.control.leasing import Leasing
from holdfast.control.loads import Loads
from holdfast.control.lookout import Lookout
from holdfast.control.loop import TICK, FleetLoop, Happened
from holdfast.control.metrics import Totals, fleet_gauges, gateway_gauges, render
from holdfast.control.probes import LoopWatch
from holdfast.control.source import ConfigSource
from holdfast.control.state import SOCKET_FILE, STATE_FILE, write_state
from holdfast.core.autoscale import Demand
from holdfast.core.facts import Fact
from holdfast.core.health import ReplicaHealth
from holdfast.core.lease import LeaseConfig
from holdfast.core.messages import (
    CanaryResult,
    DrainAsked,
    FleetEvent,
    FleetView,
    Headroom,
    LoadReported,
    Notice,
    RestartAsked,
    UndrainAsked,
)
from holdfast.core.types import SECOND
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
    loads_to_frame,
    view_to_frame,
)
from holdfast.ports import Launcher
from holdfast.storage.sqlite import Store

FILE_LOOK_S: Final = 1.0  # how soon a changed file is noticed
DEPLOY_S: Final = 0.25  # between two looks at what launched models wish for
SILENT: Final = 5 * SECOND  # a gateway tells once a second; what it told before is then not known
EXPLAIN_S: Final = 1.0  # gateways answer from memory; who is silent for so long is frozen

_log = structlog.get_logger("holdfast.control")


class Control:
    """The control process."""

    def __init__(
        self,
        path: Path,
        run_dir: Path,
        environment: Mapping[str, str],
        control_id: str,
        store: Store,
        launcher: Launcher,
    ) -> None:
        now = time.monotonic_ns()
        self._run_dir = run_dir
        self._id = control_id
        self._store = store
        config, earlier = left_behind(run_dir / STATE_FILE)
        self._source = ConfigSource(path, (config.epoch, unplaced(config)) if config else None)
        self._epoch = config.epoch if config else 1  # of what gateways are told
        self._json = config.config if config else self._source.json
        term = earlier.view.epoch + 1 if earlier else 1
        self._book = kept_answers(store)
        self._deployments = Deployments(launcher, store, self)
        canaries = Canaries(environment, self._book, self._keep_answers, self._version)
        self.loop = FleetLoop(
            self, LoopWatch(TICK, now), canaries, self._deployments, term, earlier
        )
        self._hub = Hub(self)
        self._totals = Totals()
        places = [f"gateway-{index}" for index in range(self._source.file.gateway.workers)]
        self._leases = LeaseConfig()
        self._leasing = Leasing(self._leases, places, now)
        self._demands = Demands()
        self._view: ViewFrame | None = None
        self._reloading = asyncio.Lock()
        self._gpus = GpuWatch()
        self._lookout = Lookout(
            self,
            self._source.file,
            store,
            self._deployments,
            lambda: self.loop,
            self._gpus,
            environment,
        )
        self._disturbances = Disturbances(self)
        self.loop.reach = self._disturbances.reach
        self._lookout.distort = self._disturbances.distorted
        self._deployments.launches.deaf = self._disturbances.deaf
        deployed, saw = lambda: self.loop.deployed, self._lookout.saw
        self._loads = Loads(deployed, self._tell_loads, environment, Random(), saw)

    @property
    def file(self) -> FleetFile:
        """The config that runs."""
        return self._source.file

    def _version(self, replica_id: str) -> str:
        unit = self._deployments.units.get(replica_id)
        return unit.version if unit is not None else ""

    def _keep_answers(self) -> None:
        self._store.put_answers(self._book.export())

    # --- life ------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Until it is told to stop."""
        async with self._hub.listening(self._run_dir / SOCKET_FILE):
            await self._deployments.adopt()
            self._deployments.follow(self._source.file)
            self._adopt()
            self.loop.start()
            jobs = [
                asyncio.create_task(job)
                for job in (
                    stop.wait(),
                    self._loads.run(),
                    self._watch_file(),
                    self._lend(),
                    self._deploy(),
                    self._gpus.run(),
                    self._lookout.run(),
                )
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
                # Told to stop, the fleet is over; after a mistake of ours the next control adopts.
                await self._deployments.launches.close(leave_running=not stop.is_set())

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
            self._deployments.follow(source.file)
            self._adopt()
            _log.info("config accepted", epoch=self._epoch)
        else:
            _log.info("config unchanged", epoch=self._epoch)

    def _adopt(self) -> None:
        """What the file says, with launched replicas where they are, is what everybody follows."""
        file = self._source.file.with_endpoints(self._deployments.endpoints())
        text = file.to_json()
        if text != self._json:
            self._json = text
            self._epoch += 1
            self._hub.broadcast(ConfigFrame(self._epoch, text))
        self._leasing.declare(file.flow_config().quotas, time.monotonic_ns())
        self._lookout.follow(file)
        self.loop.adopt(file.replicas(), file.fleet_config(), self._deployments.idle())
        self.loop.tell(*self._deployments.leavers())
        self._save()

    async def _deploy(self) -> None:
        while True:
            await asyncio.sleep(DEPLOY_S)
            now = time.monotonic_ns()
            self._disturbances.look(now)
            self._deployments.tick(now)
            self._deployments.look_for_silence(self.loop.inflight(), now)

    async def _lend(self) -> None:
        while True:
            await asyncio.sleep(self._leases.round_s)
            for place, frame in self._leasing.look(time.monotonic_ns()):
                gateway = self._hub.current(place)
                if gateway is not None:
                    gateway.send(encode(frame))

    def _tell_loads(self, loads: list[LoadReported]) -> None:
        self._hub.broadcast(loads_to_frame(loads))
        self._demands.loads(loads)
        self.loop.tell(
            *(Headroom(load.replica_id, load.kv_used) for load in loads if load.kv_used is not None)
        )

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

    def note(self, notice: Notice) -> None:
        """A fact for people: into the log, and into the history."""
        self._lookout.notice(notice)
        where = notice.failure_class.value if notice.failure_class is not None else None
        self._store.add_event(
            time.time(), notice.model, notice.replica_id, notice.what, notice.reason, where
        )
        _log.info(notice.what, model=notice.model, replica=notice.replica_id, reason=notice.reason)

    def answered(self, result: CanaryResult, *, slow: bool, inflight: int) -> None:
        """A canary came back."""
        self._lookout.answered(result, slow=slow, inflight=inflight)

    def broadcast(self, frame: ToGateway) -> None:
        """Tell every gateway."""
        self._hub.broadcast(frame)

    def _save(self) -> None:
        try:
            config = ConfigFrame(self._epoch, self._json)
            write_state(self._run_dir / STATE_FILE, config, self._view)
        except (
            OSError
        ) as error:  # gateways that run have it all; only one that starts would miss it
            _log.error("state not written", reason=error.strerror or type(error).__name__)

    # --- what gateways say (Listener) ------------------------------------------------------------

    def greeting(self, gateway: Gateway) -> list[ToGateway]:
        """All that a gateway needs to serve."""
        self._leasing.came(gateway.id)
        frames: list[ToGateway] = [
            Welcome(self._epoch, self._id, secret=self._lookout.secret),
            ConfigFrame(self._epoch, self._json),
        ]
        if self._view is not None:
            frames.append(self._view)
        frames.append(self._leasing.frame_for(gateway.id))
        return [*frames, *self._lookout.greeting(), *self._disturbances.greeting()]

    def on_seen(self, gateway: Gateway, frame: SeenFrame) -> None:
        """Passive evidence."""
        seen = frame_to_seen(frame, gateway.name)
        self._lookout.seen(seen, frame)
        self.loop.seen(seen)

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
        self._lookout.gateway_gone(gateway.name)

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

    def events(self, limit: int = 1_000, replica: str | None = None) -> list[Happened]:
        """What happened, the newest last."""
        found = self._store.events(limit, replica)
        return [Happened(e.at, e.model, e.replica, e.what, e.reason, e.kind) for e in found]

    def status(self) -> dict[str, Any]:
        """The whole of it."""
        units = self._deployments.units
        rows = self.loop.replicas()
        for row in rows:
            unit = units.get(row["id"])
            row["launched"] = unit is not None
            row["pid"] = unit.pid if unit is not None else None
            row["phase"] = unit.phase if unit is not None else ""
        return {
            "control": self._id,
            "epoch": self._epoch,
            "config_problems": self._source.problems,
            "gateways": [gateway.snapshot() for gateway in self._hub.gateways.values()],
            "replicas": rows,
            "models": self._deployments.snapshot(),
            "panic": self.loop.panic(),
            "incidents_open": self.incidents.open_count,
            "disturbed": self._disturbances.snapshot(),
            "store": self._store.snapshot(),
        }

    @property
    def incidents(self) -> Incidents:
        """Failures that were found, and what was done about them."""
        return self._lookout.incidents

    # --- what operators order --------------------------------------------------------------------

    async def drain(self, replica_id: str) -> tuple[bool, str]:
        """Take it out of service when its requests are done; it stays out."""
        self._known(replica_id)
        self._deployments.hold(replica_id, held=True)
        self.loop.tell(DrainAsked(replica_id, HELD))
        return True, f"{replica_id} drains"

    async def undrain(self, replica_id: str) -> tuple[bool, str]:
        """Take it back."""
        self._known(replica_id)
        if self._deployments.leaves(replica_id):
            return False, "it is being removed: another has taken its place, or none is wished for"
        self._deployments.hold(replica_id, held=False)
        self.loop.tell(UndrainAsked(replica_id, "an operator wants it back"))
        return True, f"{replica_id} comes back"

    async def restart(self, replica_id: str) -> tuple[bool, str]:
        """Drain it and start it anew."""
        self._known(replica_id)
        if replica_id not in self._deployments.units:
            return False, "it was not started here, so it cannot be restarted here"
        if self._deployments.leaves(replica_id):
            return False, "it is being removed: it ends soon"
        self._deployments.hold(replica_id, held=False)
        self.loop.tell(RestartAsked(replica_id, "an operator wants it restarted"))
        return True, f"{replica_id} drains and then starts anew"

    async def disturb(
        self, replica_id: str, kind: str, seconds: float, url: str
    ) -> tuple[bool, str]:
        """Make trouble on purpose, for so long."""
        self._known(replica_id)
        return self._disturbances.begin(replica_id, kind, seconds, time.monotonic_ns(), url)

    async def undisturb(self, replica_id: str) -> tuple[bool, str]:
        """Take that back."""
        return self._disturbances.end(replica_id, time.monotonic_ns())

    async def scale(self, model: str, replicas: int) -> tuple[bool, str]:
        """Wish for another number of replicas."""
        if model not in {one.name for one in self.file.models}:
            raise UnknownModelError(model)
        return self._deployments.scale(model, replicas)

    def report(self, report: object) -> int:
        """Take facts that somebody else saw."""
        return self._lookout.reported.take(report)

    def _known(self, replica_id: str) -> None:
        if replica_id not in self.loop.deployed:
            raise UnknownReplicaError(replica_id)

    def log_path(self, replica_id: str) -> Path | None:
        """Where a launched replica's output is kept."""
        self._known(replica_id)
        return self._deployments.log_path(replica_id)

    def gpus(self) -> dict[str, Any]:
        """What this host's GPUs say."""
        return self._gpus.report()

    # --- what deployments ask for (Host) ---------------------------------------------------------

    def tell(self, *events: FleetEvent) -> None:
        """Something happened to a launched replica."""
        self.loop.tell(*events)

    def saw(self, fact: Fact) -> None:
        """Something was seen of a replica."""
        self._lookout.saw(fact)

    def placed(self) -> None:
        """Who there is, or where somebody listens, has changed."""
        self._adopt()

    def health(self, replica_id: str) -> ReplicaHealth | None:
        """How the fleet judges a replica."""
        return self.loop.health(replica_id)

    def demand(self, model: str, now: int) -> Demand:
        """What a model is asked for at present."""
        return self._demands.of(model, self.gateway_gauges(now), self.loop.replicas(), now)

    def gateway_gauges(self, now: int) -> list[Mapping[str, float]]:
        """What each gateway says of itself, empty for a silent one."""
        gateways = self._hub.gateways.values()
        return [one.gauges if now - one.heard_at <= SILENT else {} for one in gateways]

    # --- figures ---------------------------------------------------------------------------------

    def metrics(self) -> str:
        """Everything that is counted, as Prometheus text."""
        gateways = list(self._hub.gateways.values())
        counters = self._totals.with_those_of(gateway.counters for gateway in gateways)
        counters["config_refused_total"] = self._source.refused
        found, open_now = self._lookout.metrics()
        counters |= found
        gauges = gateway_gauges(gateway.gauges for gateway in gateways)
        gauges["metrics_series_left_out"] = self._totals.left_out
        for gateway in gateways:
            gauges[f'gateway_ready{{gateway="{gateway.name}"}}'] = gateway.ready
            gauges[f'gateway_epoch{{gateway="{gateway.name}"}}'] = gateway.epoch
        gauges["config_epoch"] = self._epoch
        gauges["gateways"] = len(gateways)
        gauges |= fleet_gauges(self.loop.replicas())
        gauges |= self._deployments.gauges()
        gauges |= self._demands.gauges()
        gauges |= self._gpus.gauges()
        gauges |= open_now
        return render(counters, gauges)

    async def explain(self, request_id: str) -> bytes | None:
        """The story of a recent request, as JSON."""
        return await self._hub.explain(request_id, EXPLAIN_S)

    def problems(self) -> list[str]:
        """Why the file as it is now was refused."""
        return self._source.problems


__all__ = ["DEPLOY_S", "EXPLAIN_S", "FILE_LOOK_S", "Control"]
