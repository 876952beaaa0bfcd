"""Drives each launched model from the replicas it has to the ones it should have.

    file, operator, autoscaler ─► DeploymentGoal ┐
    fleet (states), launcher ──► Has   ┴─► Rollout.decide ─► add a unit, or drain one away

Each unit is kept in the store with its start settings, so that another control adopts it. Gateways
get the addresses of units as endpoints of the fleet file, like all other addresses.
"""

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import structlog

from holdfast.config.fleet_file import EndpointSection, FleetFile, ModelSection
from holdfast.control.deploy.gpu_placements import heir_of
from holdfast.control.deploy.gpu_request import gpu_request_of
from holdfast.control.deploy.host_gpus import HostGpus
from holdfast.control.deploy.launched_replica import UNIT, LaunchedReplica
from holdfast.control.deploy.launches import Launches
from holdfast.control.deploy.platform_waits import PlatformWaits
from holdfast.control.deploy.replica_counts import NOT_LAUNCHED, CountsPort, ReplicaCounts
from holdfast.control.deploy.rollout_records import RolloutRecords, revision_of, wanted_build
from holdfast.control.deploy.silence_notices import SilenceNotices, SilencePort
from holdfast.core.deploy.gpu_placement import GpuPlacement
from holdfast.core.deploy.launches import LaunchGate, LaunchGateConfig
from holdfast.core.deploy.rollout import Add, DeploymentGoal, Finished, Halted, Has, Remove
from holdfast.core.diagnose.facts import Fact, ReplicasWanted, RolloutSeen
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.messages import DrainAsked, FleetEvent, Notice, Queued
from holdfast.core.types import ConfigError, State
from holdfast.ports import GpuReader, Launcher, Order, Store

HELD: Final = "an operator wants it out of service"

THIS_HOST: Final = "this host"  # the platform of launched replicas, in facts about them

_ENDED: Final = (State.STOPPED, State.DEAD)

_log = structlog.get_logger("holdfast.control.deploy.deployments")


class DeploymentsPort(CountsPort, SilencePort, Protocol):
    """The methods of control that ``Deployments`` and its parts call."""

    def tell(self, *events: FleetEvent) -> None:
        """Pass events to the fleet's state machine."""

    def placed(self) -> None:
        """Signal that a replica was added or removed, or that the address of one changed."""

    def health(self, replica_id: str) -> ReplicaHealth | None:
        """The fleet's judgement of a replica; None: the fleet has no such replica."""


class Deployments:
    """Starts and removes replicas until each launched model has the wanted number and build.

    Also keeps operators' scale orders and drains, across restarts of control.
    """

    def __init__(
        self,
        launcher: Launcher,
        store: Store,
        host: DeploymentsPort,
        gpus: GpuReader | None = None,
    ) -> None:
        self._launcher = launcher
        self._store = store
        self._host = host
        self._models: dict[str, ModelSection] = {}
        self._counts = ReplicaCounts(store, host)
        self._held: set[str] = set()  # drained by an operator, and not started here
        self._silences = SilenceNotices(host)
        self.units: dict[str, LaunchedReplica] = {}
        self._rollouts = RolloutRecords(store, self.units)
        self._waits = PlatformWaits()
        self._gate = LaunchGate(LaunchGateConfig())
        self.launches = Launches(launcher, self._gate, self.units, self, gpus or HostGpus({}))

    # --- life ------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Take over replicas, scale orders and drains from the store, and running processes.

        Running processes that neither the store nor their start order describes are stopped.
        """
        for replica_id, data in self._store.replicas().items():
            try:
                self.units[replica_id] = LaunchedReplica.from_store(data)
            except (TypeError, KeyError, ConfigError) as error:
                _log.error("unit not understood", replica=replica_id, reason=type(error).__name__)
                self._store.drop_replica(replica_id)
        settings = self._store.settings()
        self._counts.restore(settings)
        self._held = set(settings.get("held", ()))
        for adopted in await self._launcher.adopt(self.launches):
            unit = self.units.get(adopted.order.replica_id) or self._remembered(adopted.order)
            if unit is None:  # nobody remembers what it is for
                await self._launcher.stop(adopted.order.replica_id, 0)
                self._launcher.forget(adopted.order.replica_id)
                continue
            unit.adopt_gpus(adopted.order)
            if adopted.place is not None:
                unit.take_place(adopted.place)
            self.launches.placements.adopt(unit)
            self.launches.adopted(unit, adopted.pid, adopted.started_at)
            _log.info("adopted", replica=unit.id, pid=unit.pid)
        for unit in self.units.values():
            if unit.pid is None:  # its process ended while no control ran
                unit.gpus = []

    def _remembered(self, order: Order) -> LaunchedReplica | None:
        """Rebuild a replica from what its platform kept of it, where this store knows nothing."""
        kept = order.note.get(UNIT)
        if kept is None:
            return None
        try:
            unit = LaunchedReplica.from_store(orjson.loads(kept))
        except (TypeError, KeyError, ValueError, ConfigError) as error:
            _log.error("unit not understood", replica=order.replica_id, reason=type(error).__name__)
            return None
        self.units[unit.id] = unit
        self._store.put_replica(unit.id, unit.to_store())
        return unit

    def follow(self, file: FleetFile, others: Collection[str] = ()) -> None:
        """Apply a new fleet file: add and remove models, and change what they should have.

        Replicas of models that are no longer launched are stopped, after the drain deadline; others
        change at the next ``tick``. ``others`` are ids of replicas that the file does not list and
        control does not launch; operators' drains of unknown replicas are dropped.
        """
        self._gate.configure(file.launches)
        before = self._models
        self._models = {model.name: model for model in file.models if model.launch is not None}
        for name, model in self._models.items():
            if name not in before or before[name].rollout != model.rollout:
                self._rollouts.begin(model)
            self._counts.follow(model, before.get(name))
        for unit in self.units.values():
            section = self._models.get(unit.model)
            if section is not None and unit.build == wanted_build(section):
                unit.gpu_request = gpu_request_of(section)  # one of an earlier version has none
            if unit.model not in self._models and not unit.removing:
                # The fleet forgets it with its model, so nobody drains it: no request comes any
                # more, and what is on it has as long as a drain would give it.
                unit.removing = True
                told = "its model is no longer in the file"
                self._host.note(Notice(0, unit.model, unit.id, "leaves", told))
                self.launches.stop(unit, file.fleet.drain.deadline_s)
        listed = {one.replica.id for one in file.replicas()} | set(others)
        if not self._held <= listed:
            self._held &= listed
            self._store.put_setting("held", sorted(self._held))

    def endpoints(self) -> dict[str, list[EndpointSection]]:
        """Endpoint sections of all launched replicas, running or not, by model of the file."""
        placed: dict[str, list[EndpointSection]] = {name: [] for name in self._models}
        for unit in self.units.values():
            if unit.model in placed:
                placed[unit.model].append(unit.endpoint())
        return placed

    def idle(self) -> set[str]:
        """Ids of launched replicas that have no process or have not finished loading."""
        return {unit.id for unit in self.units.values() if unit.pid is None or not unit.loaded}

    def leavers(self) -> list[FleetEvent]:
        """Drain events for replicas that an operator holds or that are being removed.

        Control sends them to a fleet that begins anew and does not know of these drains.
        """
        leaving = [unit for unit in self.units.values() if unit.held or unit.removing]
        asked: list[FleetEvent] = [
            DrainAsked(unit.id, unit.why_removed if unit.removing else HELD) for unit in leaving
        ]
        return asked + [DrainAsked(replica_id, HELD) for replica_id in sorted(self._held)]

    # --- what is wished --------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Autoscale each launched model and take the next step of its rollout.

        Also reports, every 10 s while it lasts, models whose replicas wait for GPUs or a place.
        """
        for name, model in self._models.items():
            self._counts.autoscale(model, now)
            self._step(name, model, now)
        self._tell_unplaced(now)

    def _tell_unplaced(self, now: int) -> None:
        """Report models whose replicas wait for GPUs, every now and then while they do."""
        for lack in self.launches.placements.lacks_to_report(now):
            model = self._models.get(lack.model)
            if model is not None:
                running = sum(unit.pid is not None for unit in self._of(lack.model))
                told = (running, lack.pending, lack.waited_s, lack.reason, THIS_HOST)
                self._host.saw(ReplicasWanted(lack.model, self.count(model), *told))
        for wait in self._waits.due(self.units.values(), now):
            model = self._models.get(wait.model)
            if model is not None:
                running = sum(unit.pid is not None for unit in self._of(wait.model))
                asked = (running, wait.pending, wait.waited_s, wait.reason, wait.platform)
                gpus = wait.gpus or None
                self._host.saw(ReplicasWanted(wait.model, self.count(model), *asked, gpus))

    def count(self, model: ModelSection) -> int:
        """The wanted number of replicas of a launched model, not the present one.

        The autoscaler's number where the model scales by itself, else an operator's order, else the
        fleet file's number.
        """
        return self._counts.count(model)

    def _step(self, name: str, model: ModelSection, now: int) -> None:
        launch = model.launch
        assert launch is not None, "only launched models are kept here"
        build = wanted_build(model)
        wish = DeploymentGoal(name, build, self.count(model), tuple(launch.zones))
        has = [self._has(unit) for unit in self.units.values() if unit.model == name]
        if self._rollouts.wish(name, build) and any(one.revision != build for one in has):
            self._host.saw(RolloutSeen(name, model.revision, "began"))
        rollout, spare = self._rollouts[name], self._has_spare(name, model, build)
        if spare is None:  # the host is being looked at: a moment later it is known
            return
        for step in rollout.decide(wish, has, now, spare=spare):
            if isinstance(step, Add):
                self._add(model, step, now)
            elif isinstance(step, Remove):
                heir = heir_of(name, step.heir) if step.heir else ""
                self._remove(self.units[step.replica_id], step.reason, heir)
            elif isinstance(step, Halted):
                self._rollouts.keep(name)
                self._host.saw(RolloutSeen(name, revision_of(step.revision), "halted"))
                self._host.note(Notice(now, name, "", "rollout halted", step.reason))
            elif isinstance(step, Finished):
                self._rollouts.keep(name)
                self._host.saw(RolloutSeen(name, revision_of(step.revision), "finished"))
                told = f"every replica runs {step.revision}"
                self._host.note(Notice(now, name, "", "rollout finished", told))

    def _has_spare(self, name: str, model: ModelSection, build: str) -> bool | None:
        """Whether one more replica would find GPUs; asked only where a rollout may want one.

        None: that is not known yet.
        """
        mine = [unit for unit in self.units.values() if unit.model == name]
        if all(unit.build == build and not unit.lacks and not unit.failed for unit in mine):
            return True
        request, placements = gpu_request_of(model), self.launches.placements
        builds = {build, self._rollouts[name].good or build}
        return placements.has_room(request, [heir_of(name, each) for each in builds])

    def _has(self, unit: LaunchedReplica) -> Has:
        health = self._host.health(unit.id)
        if unit.note_health(health):
            self.kept(unit)
        return unit.presence(health)

    # --- steps -----------------------------------------------------------------------------------

    def _add(self, model: ModelSection, step: Add, now: int) -> None:
        """Add a replica of the wanted build, or of the last good one after a refused revision."""
        assert model.launch is not None, "only launched models are kept here"
        try:
            unit = self._rollouts.new_replica(model, step)
        except ConfigError as error:
            self._host.note(Notice(now, model.name, "", "cannot be launched", str(error)))
            return
        self.units[unit.id] = unit
        self._store.put_replica(unit.id, unit.to_store())
        self._host.placed()

    def _remove(self, unit: LaunchedReplica, reason: str, heir: str = "") -> None:
        unit.removing, unit.why_removed = True, reason
        self.launches.placements.promise(unit, heir)
        health = self._host.health(unit.id)
        if health is None or health.state in _ENDED:
            self.launches.stop(unit)
        else:
            self._host.tell(DrainAsked(unit.id, reason))

    # --- what the fleet asks for -----------------------------------------------------------------

    def launch(self, replica_id: str, delay: int) -> bool:
        """Start a launched replica's process after a delay (ns), in the background.

        One being removed or held by an operator is not started, and True is returned. False:
        control did not launch it.
        """
        unit = self.units.get(replica_id)
        if unit is None:
            return False
        if not unit.removing and not unit.held:
            self.launches.launch(unit, delay)
        return True

    def stop(self, replica_id: str) -> bool:
        """Begin to stop a launched replica's process; False: control did not launch it."""
        unit = self.units.get(replica_id)
        if unit is None:
            return False
        self.launches.stop(unit)
        return True

    def heard(self, replica_id: str, source: str) -> None:
        """Record a sign of life of a launched replica, from ``tokens``, ``canary`` or ``metrics``.

        Unknown replicas are ignored.
        """
        self.launches.heard(replica_id, source, time.monotonic_ns())

    # --- what happens to units (Launches' host) --------------------------------------------------

    def tell(self, *events: FleetEvent) -> None:
        """Pass events about launched replicas on to the fleet."""
        self._host.tell(*events)

    def saw(self, fact: Fact) -> None:
        """Pass a fact about a launched replica on to the investigation of failures."""
        self._host.saw(fact)

    def kept(self, unit: LaunchedReplica) -> None:
        """Store a launched replica's lasting fields, after they were changed.

        A replica that was removed meanwhile is not stored.
        """
        if unit.id in self.units:
            self._store.put_replica(unit.id, unit.to_store())

    def moved(self, unit: LaunchedReplica) -> None:
        """Store a launched replica's new address, and signal the change to control."""
        self.kept(unit)
        self._host.placed()

    def gone(self, unit: LaunchedReplica) -> None:
        """Forget a removed replica whose process has ended, and delete it from the store.

        Signals the change to control; a repeated call does nothing.
        """
        self._silences.forget(unit.id)
        if self.units.pop(unit.id, None) is not None:
            self._store.drop_replica(unit.id)
            self._host.placed()

    def leaving(self, unit: LaunchedReplica, reason: str) -> None:
        """Note that a replica's host is about to go, and drain and remove the replica.

        The rollout then adds another in its place.
        """
        told = f"{reason}: another takes its place"
        self._host.note(Notice(time.monotonic_ns(), unit.model, unit.id, "leaves", told))
        self._remove(unit, reason)

    def queued(self, unit: LaunchedReplica, *, first: bool) -> None:
        """Tell the fleet that a replica waits for GPUs or a place; note it if ``first``."""
        self._host.tell(Queued(unit.id, unit.lacks))
        if first:
            now = time.monotonic_ns()
            what = "waits for a place" if unit.on else "waits for a GPU"
            self._host.note(Notice(now, unit.model, unit.id, what, unit.lacks))

    def chosen(self, unit: LaunchedReplica, placement: GpuPlacement) -> None:
        """Note as an event which GPUs a replica got.

        Logs a warning where it overcommits a GPU or starts without a choice.
        """
        what = "placed"
        if not placement.placed:
            what = "starts without a choice of GPU"
        elif placement.overcommits:
            what = "overcommits a GPU"
        now = time.monotonic_ns()
        self._host.note(Notice(now, unit.model, unit.id, what, placement.reason))
        if what != "placed":
            fix = "set launch.gpus to let it wait, or launch.gpu_share to share on purpose"
            _log.warning(what, replica=unit.id, reason=placement.reason, fix=fix)

    # --- operators -------------------------------------------------------------------------------

    def scale(self, model: str, count: int) -> tuple[bool, str]:
        """Set a model's number of replicas and store it; return whether it was, and a sentence.

        It holds until the fleet file says another number. Refused: models not launched here, models
        that autoscale, and numbers out of range.
        """
        section = self._models.get(model)
        return (False, NOT_LAUNCHED) if section is None else self._counts.order(section, count)

    def halt(self, model: str, reason: str) -> bool:
        """Refuse the revision that a model's rollout brings in; the last good one stays.

        Stores this, notes it as an event and reports a fact. False: no rollout is under way here,
        or there is no good revision to go back to.
        """
        section = self._models.get(model)
        if section is None:
            return False
        halted = self._rollouts[model].refuse(wanted_build(section), reason)
        if halted is None:
            return False
        self._rollouts.keep(model)
        self.saw(RolloutSeen(model, section.revision, "halted"))
        self._host.note(Notice(0, model, "", "rollout halted", halted.reason))
        return True

    def hold(self, replica_id: str, *, held: bool) -> None:
        """Store that an operator drained a replica (``held``), or wants it back.

        Only remembers it, also across restarts, for replicas not launched here, too; the drain
        itself is asked of the fleet by the caller.
        """
        unit = self.units.get(replica_id)
        if unit is not None:
            unit.held = held
            self.kept(unit)
        elif (replica_id in self._held) is not held:
            self._held ^= {replica_id}
            self._store.put_setting("held", sorted(self._held))

    def leaves(self, replica_id: str) -> bool:
        """Whether a launched replica is being removed; an operator cannot undrain it then."""
        unit = self.units.get(replica_id)
        return unit is not None and unit.removing

    def snapshot(self) -> dict[str, Any]:
        """Wanted number, revision, rollout, scaling and GPUs by launched model, for ``/status``."""
        return {
            name: {
                "wished": self.count(model),
                "revision": model.revision,
                "rollout": self._rollouts[name].snapshot(),
                **self._counts.snapshot(name),
                "gpus": {unit.id: list(unit.gpus) for unit in self._of(name) if unit.gpus},
                "unplaced": {unit.id: unit.lacks for unit in self._of(name) if unit.lacks},
            }
            for name, model in self._models.items()
        }

    def _of(self, model: str) -> list[LaunchedReplica]:
        return [unit for unit in self.units.values() if unit.model == model]

    def gauges(self) -> Mapping[str, float]:
        """The gauge ``desired_replicas`` of each launched model, for an external autoscaler."""
        return {
            f'desired_replicas{{model="{name}"}}': self.count(model)
            for name, model in self._models.items()
        }

    def look_for_silence(self, running: Mapping[str, int | None], now: int) -> None:
        """Note each launched replica that is silent for too long, and its return, once each.

        Restarts nothing. While it loads, any output counts as life, log lines too; while it serves,
        log lines do not, and it is silent only with requests in flight (``running``, by replica;
        None: unknown, nothing is concluded).
        """
        beats = self.launches.heartbeats
        self._silences.look(self.units.values(), beats, running, now)

    def log_path(self, replica_id: str) -> Path | None:
        """The path of a launched replica's log file.

        None if control did not launch it or the launcher has no log file of it.
        """
        return self._launcher.log_path(replica_id) if replica_id in self.units else None


__all__ = ["HELD", "Deployments", "DeploymentsPort"]
