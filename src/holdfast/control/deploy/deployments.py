"""Drives each launched model from the replicas it has to the ones it should have.

    file, operator, autoscaler ─► DeploymentGoal ┐
    fleet (states), launcher ──► Has   ┴─► Rollout.decide ─► add a unit, or drain one away

Each unit is kept in the store with its start settings, so that another control adopts it. Gateways
get the addresses of units as endpoints of the fleet file, like all other addresses.
"""

import time
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import structlog

from holdfast.config.fleet_file import EndpointSection, FleetFile, ModelSection
from holdfast.config.launch import REPLICAS_MAX
from holdfast.control.deploy.gpu_placements import heir_of
from holdfast.control.deploy.gpu_request import gpu_request_of
from holdfast.control.deploy.host_gpus import HostGpus
from holdfast.control.deploy.launched_replica import (
    UNIT,
    LaunchedReplica,
    build_of,
    new_launched_replica,
)
from holdfast.control.deploy.launches import Launches
from holdfast.control.deploy.platform_waits import PlatformWaits
from holdfast.core.deploy.autoscale import Autoscaler, Demand, Desired
from holdfast.core.deploy.gpu_placement import GpuPlacement
from holdfast.core.deploy.launches import LaunchGate, LaunchGateConfig
from holdfast.core.deploy.rollout import Add, DeploymentGoal, Finished, Halted, Has, Remove, Rollout
from holdfast.core.diagnose.detect.silence import SERVING
from holdfast.core.diagnose.facts import Fact, FellSilent, ReplicasWanted, RolloutSeen
from holdfast.core.failure import Class
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.messages import DrainAsked, FleetEvent, Notice, Queued
from holdfast.core.types import ConfigError, State, require, seconds
from holdfast.launchers.weights import path_of
from holdfast.ports import GpuReader, Launcher, Order, Store

EARLY_EXITS_MAX: Final = 3  # of a replica that was never ready: it will not be
HELD: Final = "an operator wants it out of service"

THIS_HOST: Final = "this host"  # the platform of launched replicas, in facts about them

_ENDED: Final = (State.STOPPED, State.DEAD)

_log = structlog.get_logger("holdfast.control.deploy.deployments")


class DeploymentsPort(Protocol):
    """The methods of control that ``Deployments`` calls."""

    def tell(self, *events: FleetEvent) -> None:
        """Pass events to the fleet's state machine."""

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""

    def saw(self, fact: Fact) -> None:
        """Pass a fact to the investigation of failures."""

    def placed(self) -> None:
        """Signal that a replica was added or removed, or that the address of one changed."""

    def health(self, replica_id: str) -> ReplicaHealth | None:
        """The fleet's judgement of a replica; None: the fleet has no such replica."""

    def demand(self, model: str, now: int) -> Demand:
        """The present demand for a model, which the autoscaler decides by."""


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
        self._rollouts: dict[str, Rollout] = {}
        self._scalers: dict[str, Autoscaler] = {}
        self._desired: dict[str, Desired] = {}
        self._scaled: dict[str, int] = {}  # how many were desired, as the store has it
        self._asked: dict[str, tuple[int, int]] = {}  # by an operator: (count, the file's then)
        self._numbers: dict[str, int] = {}
        self._held: set[str] = set()  # drained by an operator, and not started here
        self._silent: set[str] = set()  # of whom that was told
        self._wished: dict[str, str] = {}  # the build that each model was last to be
        self.units: dict[str, LaunchedReplica] = {}
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
        for key, value in self._store.settings().items():
            if key.startswith("scale/"):
                self._asked[key.removeprefix("scale/")] = (int(value["count"]), int(value["of"]))
            elif key.startswith("scaled/"):
                self._scaled[key.removeprefix("scaled/")] = int(value["count"])
            elif key == "held":
                self._held = set(value)
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
                self._rollouts[name] = self._rollout(name, model)
            if model.scaling is None:
                self._scalers.pop(name, None)
                self._desired.pop(name, None)
                self._scaled.pop(name, None)
            elif name not in before or before[name].scaling != model.scaling:
                self._scalers[name] = Autoscaler(model.scaling)
        for unit in self.units.values():
            section = self._models.get(unit.model)
            if section is not None and unit.build == build_of(section, _version(section)):
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

    def _rollout(self, name: str, model: ModelSection) -> Rollout:
        """Build a model's rollout from its stored state: a refused revision is not tried again."""
        kept = self._store.settings().get(f"rollout/{name}") or {}
        refused = kept.get("refused_revision")
        told = (refused, kept.get("halted") or "") if refused else None
        return Rollout(model.rollout, good=kept.get("good"), refused=told)

    def _keep_rollout(self, name: str) -> None:
        told = self._rollouts[name].snapshot()
        kept = {key: told[key] for key in ("good", "refused_revision", "halted")}
        kept["like"] = self._like_good(name)
        self._store.put_setting(f"rollout/{name}", kept)

    def _like_good(self, name: str) -> dict[str, Any] | None:
        """The start settings of a replica of the last good revision, for going back to it."""
        good = self._rollouts[name].good
        for unit in self.units.values():
            if unit.model == name and unit.build == good:
                return unit.to_store()
        kept = self._store.settings().get(f"rollout/{name}") or {}
        like: dict[str, Any] | None = kept.get("like")
        return like if like is not None and like.get("build") == good else None

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
            self._scale(name, model, now)
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

    def _scale(self, name: str, model: ModelSection, now: int) -> None:
        scaler = self._scalers.get(name)
        if scaler is None:
            return
        before = self._desired.get(name)
        # One that was at zero, or at ten, is so for the next control too.
        kept = self._scaled.get(name, self._declared(model))
        present = before.count if before is not None else kept
        desired = scaler.decide(self._host.demand(name, now), present, now)
        self._desired[name] = desired
        if self._scaled.get(name) != desired.count:
            self._scaled[name] = desired.count
            self._store.put_setting(f"scaled/{name}", {"count": desired.count})
        if present != desired.count:
            told = f"{present} to {desired.count}: {desired.reason}"
            self._host.note(Notice(now, name, "", "scaled", told))

    def count(self, model: ModelSection) -> int:
        """The wanted number of replicas of a launched model, not the present one.

        The autoscaler's number where the model scales by itself, else an operator's order, else the
        fleet file's number.
        """
        desired = self._desired.get(model.name)
        return desired.count if desired is not None else self._declared(model)

    def _declared(self, model: ModelSection) -> int:
        assert model.launch is not None, "only launched models are kept here"
        asked = self._asked.get(model.name)
        if asked is not None and asked[1] == model.launch.replicas:
            return asked[0]
        return model.launch.replicas  # a file that says another number is newer than the operator

    def _step(self, name: str, model: ModelSection, now: int) -> None:
        launch = model.launch
        assert launch is not None, "only launched models are kept here"
        build = build_of(model, _version(model))
        wish = DeploymentGoal(name, build, self.count(model), tuple(launch.zones))
        has = [self._has(unit) for unit in self.units.values() if unit.model == name]
        if self._wished.get(name) != build:
            self._wished[name] = build
            if any(one.revision != build for one in has):
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
                self._keep_rollout(name)
                self._host.saw(RolloutSeen(name, _plain(step.revision), "halted"))
                self._host.note(Notice(now, name, "", "rollout halted", step.reason))
            elif isinstance(step, Finished):
                self._keep_rollout(name)
                self._host.saw(RolloutSeen(name, _plain(step.revision), "finished"))
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
        state = health.state if health is not None else State.STARTING
        if health is not None and not unit.was_ready:
            # Between two looks it may have been ready and have fallen ill: its history tells.
            unit.was_ready = any(change.after is State.READY for change in health.history)
            if unit.was_ready:
                self.kept(unit)
            elif health.wrong or health.wrong_revision:
                unit.failed = health.reason
            elif unit.early_exits >= EARLY_EXITS_MAX:
                unit.failed = f"ended {unit.early_exits} times before it was ready"
        if state is State.STOPPED and unit.held and not unit.removing:
            state = State.READY  # an operator keeps its place: nobody is to be launched for it
        elif unit.removing:
            state = State.DRAINING  # until its process is gone it occupies what the next one needs
        return Has(
            unit.id,
            unit.build,
            unit.zone,
            state,
            health.since if health is not None else 0,
            wrong=health.wrong if health is not None else False,
            leaving=unit.removing,
            failed=unit.failed,
            unplaced=bool(unit.lacks),
        )

    # --- steps -----------------------------------------------------------------------------------

    def _add(self, model: ModelSection, step: Add, now: int) -> None:
        """Add a replica of the wanted build, or of the last good one after a refused revision."""
        assert model.launch is not None, "only launched models are kept here"
        taken = {unit.spec.port for unit in self.units.values()}
        try:
            unit = self._like(model, step, taken)
        except ConfigError as error:
            self._host.note(Notice(now, model.name, "", "cannot be launched", str(error)))
            return
        self.units[unit.id] = unit
        self._store.put_replica(unit.id, unit.to_store())
        self._host.placed()

    def _like(self, model: ModelSection, step: Add, taken: set[int]) -> LaunchedReplica:
        number = self._number(model.name)
        version = _version(model)
        if step.revision != build_of(model, version):
            like = self._like_good(model.name)
            fix = "wish for a revision whose start the file describes"
            known = like is not None and like["build"] == step.revision
            told = f"of {step.revision} is not known any more"
            require(known, "launch", told, fix)
            assert like is not None, "require raised"
            old = LaunchedReplica.from_store(like)
            return old.sibling(f"{model.name}-{number}", step.zone, taken)
        assert model.launch is not None, "only launched models are kept here"
        named = model.launch.weights
        weights = named if model.launch.kubernetes is not None else path_of(named)
        return new_launched_replica(model, number, step.zone, weights, version, taken)

    def _number(self, model: str) -> int:
        """The next number for a replica's id; no replica of this model has it or had it."""
        used = [
            int(unit.id.rpartition("-")[2]) for unit in self.units.values() if unit.model == model
        ]
        number = max([self._numbers.get(model, 0), *used]) + 1
        self._numbers[model] = number
        return number

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
        self._silent.discard(unit.id)
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
        if section is None or section.launch is None:
            return False, "its replicas are not started here: change the file"
        if section.scaling is not None:
            return False, "it scales by itself: change models[].scaling in the file"
        if not 0 <= count <= REPLICAS_MAX:
            return False, f"use 0 to {REPLICAS_MAX} replicas"
        self._asked[model] = (count, section.launch.replicas)
        self._store.put_setting(f"scale/{model}", {"count": count, "of": section.launch.replicas})
        return True, f"{model} is to have {count} replicas"

    def halt(self, model: str, reason: str) -> bool:
        """Refuse the revision that a model's rollout brings in; the last good one stays.

        Stores this, notes it as an event and reports a fact. False: no rollout is under way here,
        or there is no good revision to go back to.
        """
        rollout, section = self._rollouts.get(model), self._models.get(model)
        if rollout is None or section is None:
            return False
        halted = rollout.refuse(build_of(section, _version(section)), reason)
        if halted is None:
            return False
        self._keep_rollout(model)
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
                "scaling": self._scalers[name].snapshot() if name in self._scalers else None,
                "reason": self._desired[name].reason if name in self._desired else "",
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
        for unit in self.units.values():
            beat = self.launches.heartbeats.get(unit.id)
            silence = beat.silent(now, running.get(unit.id)) if beat is not None else None
            if silence is not None and unit.id not in self._silent:
                self._silent.add(unit.id)
                where = Class.RUNTIME if silence.phase == SERVING else Class.LOADING
                self._host.note(Notice(now, unit.model, unit.id, "silent", silence.reason, where))
                self._host.saw(FellSilent(unit.id, silence.phase, seconds(now - silence.since)))
            elif silence is None and unit.id in self._silent:
                self._silent.discard(unit.id)
                if beat is not None:
                    told = "it is no longer silent"
                    self._host.note(Notice(now, unit.model, unit.id, "heard again", told))

    def log_path(self, replica_id: str) -> Path | None:
        """The path of a launched replica's log file.

        None if control did not launch it or the launcher has no log file of it.
        """
        return self._launcher.log_path(replica_id) if replica_id in self.units else None


def _plain(build: str) -> str:
    """The revision in a build's name, without the digest."""
    return build.rpartition("+")[0]


def _version(model: ModelSection) -> str:
    """The version of the embedded engine; empty for other engines."""
    assert model.launch is not None, "only launched models are kept here"
    if not model.launch.embedded:
        return ""
    try:
        return metadata.version("xllamacpp")
    except metadata.PackageNotFoundError:
        return ""


__all__ = ["EARLY_EXITS_MAX", "HELD", "Deployments", "DeploymentsPort"]
