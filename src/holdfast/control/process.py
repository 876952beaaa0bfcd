"""The control process: builds its parts, connects them, and runs them until it is stopped.

    file ─► source ─► deployments ─► loop (fleet) ─► hub ─► gateways
                        launcher       ▲  canaries, loads      │
                                       ├───── seen, stats ◄────┘
                                       └─► incident watch

Config and view are written to disk after every change, so that a gateway can start, and another
control can take over, when this one is dead.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import structlog

from holdfast.config.fleet_file import FleetFile
from holdfast.control.access.admin_access import AdminAccess
from holdfast.control.access.audit import AuditLog
from holdfast.control.admin.service import AdminParts, AdminService
from holdfast.control.deploy.demand_tracker import DemandTracker
from holdfast.control.deploy.deployments import Deployments
from holdfast.control.deploy.discovery import Discovery
from holdfast.control.deploy.host_gpus import HostGpus
from holdfast.control.deploy.source import ConfigSource
from holdfast.control.fleet.breakers import Breakers
from holdfast.control.fleet.canaries import Canaries
from holdfast.control.fleet.disturbances import Disturbances
from holdfast.control.fleet.figures import SAMPLE_S
from holdfast.control.fleet.loads import Loads
from holdfast.control.fleet.loop import TICK, FleetLoop
from holdfast.control.gateways.hub import SILENT_S, Gateway, Hub, HubPort
from holdfast.control.gateways.key_uses import KeyUses
from holdfast.control.gateways.lease_broker import LeaseBroker
from holdfast.control.gateways.metrics import Totals, gateway_gauges
from holdfast.control.gateways.previous_state import (
    read_previous,
    stored_answers,
    without_placed_endpoints,
)
from holdfast.control.gateways.process_report import REPORT_FILE
from holdfast.control.gateways.serving_processes import ServingProcesses
from holdfast.control.gateways.state_file import SOCKET_FILE, STATE_FILE, write_state
from holdfast.control.gateways.supervisor_watch import BEAT_FILE, SupervisorWatch
from holdfast.control.incidents.gpu_watch import GpuWatch
from holdfast.control.incidents.incident_tracker import IncidentTracker
from holdfast.control.incidents.incident_watch import IncidentWatch
from holdfast.control.incidents.own_shortages import OwnShortages
from holdfast.control.view.costs_and_exports import CostsAndExports
from holdfast.control.view.fleet_summary import FleetSummary
from holdfast.control.view.gpu_gauges import gpu_gauges
from holdfast.control.view.history import Sampler
from holdfast.control.view.live_view import LiveView
from holdfast.control.view.source_poller import SourcePoller
from holdfast.core.deploy.autoscale import Demand
from holdfast.core.diagnose.facts import Fact, OwnShortage
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.health.own_lateness import LoopWatch
from holdfast.core.messages import (
    CanaryResult,
    FleetEvent,
    FleetView,
    LoadReported,
    Move,
    Notice,
)
from holdfast.core.request.lease import LeaseConfig
from holdfast.core.types import nanos
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
from holdfast.ports import GpuReader, Launcher, Source, Store

KEY_USES_MAX: Final = 16_384  # keys of one frame that are taken in; the next second brings more
SHORTAGES_MAX: Final = 8  # kinds of shortage of one gateway that are taken in; there are three
FILE_LOOK_S: Final = 1.0  # how soon a changed file is noticed
DEPLOY_S: Final = 0.25  # between two looks at what launched models wish for
_VIEWS_BITS: Final = 20  # a million views of one control's starts before the next term's begin
SILENT: Final = nanos(SILENT_S)  # what a gateway told before is then not known

_log = structlog.get_logger("holdfast.control")


def settle_memory() -> None:
    """Collect garbage, exempt all objects made so far from collection, and collect less often.

    To be called once, at the end of the start: full collections of a large fleet stopped control
    for 60 to 80 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@dataclass(slots=True, frozen=True)
class LeadingControl:
    """How one of several controls leads: its term, its gateway port, whether it still leads."""

    term: int
    port: HubPort
    holds: Callable[[], bool]  # whether it leads at this moment; asked before each frame


class Control:
    """The control process: connects fleet loop, gateways, deployments, incidents and the view.

    Building it reads the fleet file, store and earlier state; nothing runs before ``run``.
    """

    def __init__(
        self,
        path: Path,
        run_dir: Path,
        environment: Mapping[str, str],
        control_id: str,
        store: Store,
        launcher: Launcher,
        sources: Callable[[Any, "Control"], Source] | None = None,
        gpus: GpuReader | None = None,
        leads: LeadingControl | None = None,
    ) -> None:
        now = time.monotonic_ns()
        self._leads = leads
        self._run_dir = run_dir
        self._id = control_id
        self._store = store
        config, earlier = read_previous(run_dir / STATE_FILE)
        self._source = ConfigSource(
            path, (config.epoch, without_placed_endpoints(config)) if config else None
        )
        self._epoch = config.epoch if config else 1  # of what gateways are told
        self._json = config.config if config else self._source.json
        term = max(earlier.view.epoch + 1 if earlier else 1, _first_view(leads))
        self._book = stored_answers(store)
        self._gpus = GpuWatch()
        own = HostGpus(environment, faulty=self._gpus.need_reset)
        self._deployments = Deployments(launcher, store, self, gpus or own)
        canaries = Canaries(environment, self._book, self._keep_answers, self._version)
        self.loop = FleetLoop(
            self, LoopWatch(TICK, now), canaries, self._deployments, term, earlier
        )
        self._hub = Hub(self) if leads is None else Hub(self, leads.holds)
        self._totals = Totals()
        self.lacked = OwnShortages(self.saw)  # by this process itself
        places = gateway_places(self._source.file)
        self._leases = LeaseConfig()
        self._lease_broker = LeaseBroker(self._leases, places, now)
        self._demand_tracker = DemandTracker()
        self._view: ViewFrame | None = None
        self._reloading = asyncio.Lock()
        self._lookout = IncidentWatch(
            self,
            self._source.file,
            store,
            self._deployments,
            lambda: self.loop,
            self._gpus,
            environment,
        )
        self.source_poller = SourcePoller(
            self._lookout.sighted,
            lambda section: (sources or _unreadable)(section, self),
            self._lookout.unsighted,
        )
        self._discovery = Discovery(lambda: list(self.source_poller.sources.values()), store, self)
        self.summary = FleetSummary(self, self._deployments, self._lookout, self._gpus)
        self.view = LiveView(self.summary)
        self.sampler: Sampler | None = None  # set before run() where figures are to be kept
        self._costs_and_exports = self._books(environment)
        self._breakers = Breakers(lambda: self.loop.deployed, self.note)
        self._disturbances = Disturbances(self)
        self._let_disturb()
        deployed, saw = lambda: self.loop.deployed, self._lookout.saw
        self._serving_processes = ServingProcesses(run_dir / REPORT_FILE, store, saw)
        self._loads = Loads(deployed, self._tell_loads, environment, Random(), saw)
        self.access = AdminAccess(lambda: self.file.admin, audit=AuditLog(store))
        self._key_uses = KeyUses(lambda: self.file, store)
        self.admin = self._admin()

    def watch_supervisor(self, pid: int) -> None:
        """Judge the supervisor with this pid each second, and report it where it is frozen."""
        beat_path, config = self._run_dir / BEAT_FILE, self.file.watch
        self._serving_processes.watch_supervisor(SupervisorWatch(pid, beat_path, config))

    def _books(self, environment: Mapping[str, str]) -> CostsAndExports:
        """Create the accounting of token costs and the exporters that hand figures on."""
        return CostsAndExports(
            self._source.file,
            self._hub,
            self._totals,
            lambda: self.loop,
            self._load_gauges,
            lambda: self.incidents.open_count,
            environment,
        )

    def _let_disturb(self) -> None:
        """Connect the disturbances to probes, to facts and to signs of life of launches."""
        self.loop.reach = self._disturbances.reach
        self.loop.ends_elsewhere = self._discovery.withdrawn
        self._lookout.distort = self._disturbances.distorted
        self._deployments.launches.deaf = self._disturbances.deaf

    def _admin(self) -> AdminService:
        return AdminService(
            AdminParts(
                access=self.access,
                control_id=self._id,
                breakers=self._breakers,
                costs_and_exports=self._costs_and_exports,
                deployments=self._deployments,
                discovery=self._discovery,
                disturbances=self._disturbances,
                gpus=self._gpus,
                hub=self._hub,
                key_uses=self._key_uses,
                summary=self.summary,
                lookout=self._lookout,
                loop=self.loop,
                source=self._source,
                source_poller=self.source_poller,
                store=self._store,
                totals=self._totals,
                view=self.view,
                counters=self._counters,
                epoch=lambda: self._epoch,
                load_gauges=self._load_gauges,
                reload=self.reload,
                serving_processes=self._serving_processes,
                sampler=lambda: self.sampler,
            )
        )

    @property
    def file(self) -> FleetFile:
        """The parsed fleet file in use: the last accepted one, while a changed file is refused.

        Without the endpoints of launched and discovered replicas.
        """
        return self._source.file

    @property
    def incidents(self) -> IncidentTracker:
        """The tracker of all incidents, open and stored."""
        return self._lookout.incidents

    def _version(self, replica_id: str) -> str:
        unit = self._deployments.units.get(replica_id)
        return unit.version if unit is not None else ""

    def _keep_answers(self) -> None:
        self._store.put_answers(self._book.export())

    # --- life ------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Adopt earlier replicas and run all parts until ``stop`` is set; then stop launched ones.

        If a part fails, its error is raised and the launched replicas run on for the next control.
        """
        port = None if self._leads is None else self._leads.port
        async with self._hub.listening(self._run_dir / SOCKET_FILE, port):
            await self._deployments.adopt()
            self._follow(self._source.file)
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
                    self.source_poller.run(),
                    self._discovery.run(),
                    self._costs_and_exports.run(),
                    self._count(),
                    self._serving_processes.run(),
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
                self._key_uses.save()
                await self.view.close()
                await self.loop.stop()
                # Told to stop, the fleet is over; after a mistake of ours the next control adopts.
                await self._deployments.launches.close(leave_running=not stop.is_set())

    async def _watch_file(self) -> None:
        while True:
            await asyncio.sleep(FILE_LOOK_S)
            self.lacked.tell()
            async with self._reloading:
                before = self._source.epoch
                if await self._source.changed():
                    self._after_reading(before)

    async def reload(self) -> bool:
        """Read the fleet file now and apply it; False if it was refused.

        True also if it has not changed.
        """
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
            self._follow(source.file)
            _log.info("config accepted", epoch=self._epoch)
        else:
            _log.info("config unchanged", epoch=self._epoch)

    def _follow(self, file: FleetFile) -> None:
        self._disturbances.follow(time.monotonic_ns(), enabled=file.chaos.enabled)
        self._discovery.follow(file)
        self._deployments.follow(file, self._discovery.ids())
        self._adopt()

    def _adopt(self) -> None:
        """Distribute the fleet file with the endpoints of launched and discovered replicas."""
        places = self._deployments.endpoints() | self._discovery.endpoints()
        file = self._source.file.with_endpoints(places)
        text = file.to_json()
        if text != self._json:
            self._json = text
            self._epoch += 1
            self._hub.broadcast(ConfigFrame(self._epoch, text))
        self._lease_broker.declare(file.flow_config().quotas, time.monotonic_ns())
        self._lookout.follow(file)
        self._costs_and_exports.follow(file)
        self.source_poller.follow(file.sources)
        self.loop.adopt(file.replicas(), file.fleet_config(), self._deployments.idle())
        self.loop.tell(*self._deployments.leavers(), *self._discovery.leavers())
        self._save()

    async def _deploy(self) -> None:
        while True:
            await asyncio.sleep(DEPLOY_S)
            now = time.monotonic_ns()
            self._disturbances.look(now)
            self._breakers.look(now)
            self._deployments.tick(now)
            self._deployments.look_for_silence(self.loop.answering(now), now)

    async def _lend(self) -> None:
        while True:
            await asyncio.sleep(self._leases.round_s)
            for place, frame in self._lease_broker.look(time.monotonic_ns()):
                gateway = self._hub.current(place)
                if gateway is not None:
                    gateway.send(encode(frame))

    async def _count(self) -> None:
        """Sample gateways' counters periodically, for rates over a minute and an hour."""
        while True:
            self._lookout.figures.sample(self._counters(), time.monotonic_ns())
            await asyncio.sleep(SAMPLE_S)

    def _tell_loads(self, loads: list[LoadReported]) -> None:
        self._demand_tracker.loads(loads)
        self._hub.broadcast(loads_to_frame(self.loop.engine_loads(loads)))

    def _counters(self) -> dict[str, float]:
        """The sums of all gateways' counters, including gateways that have ended."""
        gateways = self._hub.gateways.values()
        return self.lacked.added_to(self._totals.with_those_of(one.counters for one in gateways))

    def _load_gauges(self) -> dict[str, float]:
        """Gauges of the load, from gateways, deployments, engines and GPUs."""
        now = time.monotonic_ns()
        gauges = gateway_gauges(gateway.gauges for gateway in self._hub.gateways.values())
        for part in (self._deployments, self._demand_tracker, self._gpus, self._lookout):
            gauges |= part.gauges()
        return gauges | gpu_gauges(self.view.snapshot(), self._lookout.device_memory(now))

    # --- what the fleet wants gateways to know (Audience) ----------------------------------------

    def publish(self, view: FleetView) -> None:
        """Send the fleet's view to all gateways, and write the state file if the view is new."""
        if self._view is None or (view.epoch, view.version) != (
            self._view.epoch,
            self._view.version,
        ):
            self._view = view_to_frame(view)
            self._save()
        self._hub.broadcast(self._view)

    def move(self, action: Move) -> None:
        """Tell gateways to cut the attempts on a replica; if ``stalled``, only stuck ones."""
        self._hub.broadcast(MoveFrame(action.model, action.replica_id, action.stalled))

    def note(self, notice: Notice) -> None:
        """Record a notice: in the stored events, the log and the investigation.

        Changes of a replica's state also go into the history.
        """
        self._lookout.notice(notice)
        if notice.signal and self.sampler is not None:
            self.sampler.state_changed(notice.replica_id, notice.what, time.time())
        where = notice.failure_class.value if notice.failure_class is not None else None
        self._store.add_event(
            time.time(), notice.model, notice.replica_id, notice.what, notice.reason, where
        )
        _log.info(notice.what, model=notice.model, replica=notice.replica_id, reason=notice.reason)

    def answered(self, result: CanaryResult, *, slow: bool, inflight: int) -> None:
        """Pass a canary's result to investigation and costs; a new verdict to the history."""
        if self.sampler is not None:
            verdict = result.verdict.with_lateness(slow=slow)
            before = self.loop.asked(result.replica_id)
            if before is None or before.told() != verdict:
                self.sampler.canary_answered(result.replica_id, verdict, time.time())
        self._lookout.answered(result, slow=slow, inflight=inflight)
        self._costs_and_exports.answered(result)

    def fall_silent(self) -> None:
        """Cut all gateways off at once, because another control leads now."""
        self._hub.fall_silent()

    def broadcast(self, frame: ToGateway) -> None:
        """Send a frame to every gateway, without waiting."""
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
        """The frames for a newly connected gateway, in order: welcome, config, view, lease.

        Then blocked requests and detours. Also counts its place as taken for leases.
        """
        self._lease_broker.came(gateway.id)
        frames: list[ToGateway] = [
            Welcome(
                self._epoch,
                self._id,
                secret=self._lookout.secret,
                term=0 if self._leads is None else self._leads.term,
            ),
            ConfigFrame(self._epoch, self._json),
        ]
        if self._view is not None:
            frames.append(self._view)
        frames.append(self._lease_broker.frame_for(gateway.id))
        return [*frames, *self._lookout.greeting(), *self._disturbances.greeting()]

    def on_seen(self, gateway: Gateway, frame: SeenFrame) -> None:
        """Pass a gateway's report on replicas to investigation, figures, breakers and fleet."""
        seen = frame_to_seen(frame, gateway.name)
        self._lookout.seen(seen, frame)
        self._breakers.seen(seen, time.monotonic_ns())
        self.loop.seen(seen)

    def on_stats(self, gateway: Gateway, frame: StatsFrame) -> None:
        """Record a gateway's shortages, key uses and demand for leases.

        After its first stats its lease is sent. A gateway whose place a newer one has taken only
        drains: its demand is ignored.
        """
        for resource, count in islice(frame.shortages.items(), SHORTAGES_MAX):
            self.saw(OwnShortage(gateway.name, resource, count, frame.descriptors))
        self._key_uses.heard(islice(frame.keys, KEY_USES_MAX))
        if self._hub.current(gateway.id) is not gateway:
            return
        self._lease_broker.on_stats(gateway.id, frame, time.monotonic_ns())
        if gateway.stats_heard == 1:  # it serves now; when it was greeted it had no use for a lease
            gateway.send(encode(self._lease_broker.frame_for(gateway.id)))

    def on_gone(self, gateway: Gateway) -> None:
        """Keep a disconnected gateway's counters in the totals, and free its place for leases.

        Fleet, investigation and breakers count nothing of it any more.
        """
        self._totals.keep(gateway.counters)
        if self._hub.current(gateway.id) is None:
            self._lease_broker.went(gateway.id, time.monotonic_ns())
        self.loop.gateway_gone(gateway.name)
        self._lookout.gateway_gone(gateway.name)
        self._breakers.gateway_gone(gateway.name)

    # --- what deployments ask for (Host) ---------------------------------------------------------

    def tell(self, *events: FleetEvent) -> None:
        """Pass events to the fleet's state machine and carry out the actions that follow.

        Canaries, launches, stops and notices are begun before it returns; only the last view is
        published.
        """
        self.loop.tell(*events)

    def saw(self, fact: Fact) -> None:
        """Pass a fact to the investigation of failures, which may open an incident from it."""
        self._lookout.saw(fact)

    def replica_names(self) -> Collection[str]:
        """The ids of all replicas that the fleet file or platforms declare."""
        return self._lookout.declared

    def launched_names(self) -> Collection[str]:
        """The ids of all replicas that control launches, on this host or on a platform."""
        return self._deployments.units

    def placed(self) -> None:
        """Apply the fleet file again, with the present endpoints of placed replicas.

        Gateways get a new config if that changed it.
        """
        self._adopt()

    def health(self, replica_id: str) -> ReplicaHealth | None:
        """The fleet's judgement of a replica; None: there is no such replica."""
        return self.loop.health(replica_id)

    def demand(self, model: str, now: int) -> Demand:
        """The present demand for a model, from gateways, engines' loads and replicas."""
        memory = self._lookout.device_memory(now)
        gauges, rows = self.gateway_gauges(now), self.loop.replicas()
        return self._demand_tracker.of(model, gauges, rows, now, memory)

    def gateways(self) -> list[Gateway]:
        """The connected gateways that have said Hello; no standby controls."""
        return list(self._hub.gateways.values())

    def gateway_gauges(self, now: int) -> list[Mapping[str, float]]:
        """Each connected gateway's last gauges; an empty one if silent for more than 5 s."""
        gateways = self._hub.gateways.values()
        return [one.gauges if now - one.heard_at <= SILENT else {} for one in gateways]


def gateway_places(file: FleetFile) -> list[str]:
    """The names of all gateway processes that the file asks for, on all machines.

    ``gateway-0`` and so on, with the member's name and a slash before it where there are several
    controls.
    """
    beside = [f"{member.name}/" for member in file.control.members] or [""]
    return [f"{name}gateway-{index}" for name in beside for index in range(file.gateway.workers)]


def _first_view(leads: LeadingControl | None) -> int:
    """The number of a leader's first view: above all views of earlier terms."""
    return 0 if leads is None else leads.term << _VIEWS_BITS


def _unreadable(section: Any, _: Control) -> Source:
    raise RuntimeError(f"nothing here can read sources of type {section.type}")


__all__ = [
    "DEPLOY_S",
    "FILE_LOOK_S",
    "Control",
    "LeadingControl",
    "gateway_places",
    "settle_memory",
]
