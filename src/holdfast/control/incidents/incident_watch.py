"""Collects all observations of control for the investigation, and carries out its acts.

    control ─► saw, notice, answered, seen ─► Observations ─► Incidents ─► store, hooks
    hosts, GPUs, queues of gateways (here, by the clock) ─┘        └─► acts, done here (Hands)

It is apart from ``Control`` because it must be able to fail alone: an error in here is logged and
counted, and replicas are watched and gateways updated as before.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import structlog

from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.declarations import chains_of, declared_of, with_placed
from holdfast.control.deploy.demand_tracker import queued_at_gateways
from holdfast.control.deploy.deployments import Deployments
from holdfast.control.fleet.figures import Figures, memory_share
from holdfast.control.fleet.loop import FleetLoop
from holdfast.control.fleet.versions import VersionWatch
from holdfast.control.incidents.fact_reports import FactReports
from holdfast.control.incidents.gpu_watch import GpuWatch
from holdfast.control.incidents.host_watch import HostWatch
from holdfast.control.incidents.incident_tracker import IncidentTracker
from holdfast.control.incidents.notifier import Notifier
from holdfast.core.diagnose.facts import (
    Declared,
    Fact,
    Gone,
    GpuSeen,
    HostSeen,
    MemorySeen,
    QueueSeen,
    VersionsSeen,
)
from holdfast.core.diagnose.observations import Observations
from holdfast.core.gpu import GpuUse
from holdfast.core.messages import (
    CanaryAsked,
    CanaryResult,
    DeviceMemory,
    Notice,
    RestartAsked,
    Seen,
    TakeOutAsked,
)
from holdfast.core.types import State, seconds
from holdfast.core.view.layers import Reading
from holdfast.core.view.reading_diff import ReadingDiff
from holdfast.engines import dialect
from holdfast.frames import BlockFrame, SeenFrame, ToGateway
from holdfast.ports import Store, StoreError

ROUND_S: Final = 1.0  # as often as gateways tell
QUEUES_EVERY: Final = 5  # rounds
_SECRET: Final = "fingerprints/secret"  # noqa: S105 the name of a setting
_SECRET_BYTES: Final = 32
_ENDS: Final = "ends/told"  # of platforms' replicas: whoever begins anew tells none twice

_log = structlog.get_logger("holdfast.control.incidents.incident_watch")


class WatchedControl(Protocol):
    """The methods of control that ``IncidentWatch`` calls."""

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""

    def broadcast(self, frame: ToGateway) -> None:
        """Send a frame to every gateway."""

    def gateway_gauges(self, now: int) -> Sequence[Mapping[str, float]]:
        """Each connected gateway's last gauges; an empty mapping for a silent gateway."""


class IncidentWatch:
    """Feeds control's observations to the investigation, and carries out what it asks for.

    It also keeps the figures for display. Its errors are logged and counted and do not reach
    control.
    """

    def __init__(
        self,
        house: WatchedControl,
        file: FleetFile,
        store: Store,
        deployments: Deployments,
        loop: Callable[[], FleetLoop],
        gpus: GpuWatch,
        environment: Mapping[str, str],
    ) -> None:
        self._house = house
        self._file = file
        self._deployments = deployments
        self._loop = loop
        self._gpus = gpus
        self._declared: dict[str, Declared] = {}
        self._placed: dict[str, Declared] = {}  # by platforms
        # Seen before a config was followed, by whoever adopts: nobody would know whose it is.
        self._early: list[Fact] | None = []
        self._backlogs: dict[str, QueueSeen] = {}  # of models of the file, in platforms' queues
        self._store = store
        self._sightings = ReadingDiff()
        self._sightings.restore(store.settings().get(_ENDS))
        self._ends_kept = self._sightings.ends_told
        self.figures = Figures()
        self._blocked: dict[str, int] = {}
        self._notifier = Notifier(environment)
        self._observations = Observations(self._found)
        config = file.incidents.investigation()
        told = self._observations.again
        self.incidents = IncidentTracker(config, store, self._notifier, self, told)
        self._hosts = HostWatch(
            socket.gethostname(),
            deployments.units,
            lambda: self._declared,
            lambda: gpus.last,
            self.saw,
            environment,
        )
        self._versions = VersionWatch(self._tell_version, environment)
        models = lambda: {one.name for one in self._file.models}  # noqa: E731
        self.reported = FactReports(self.saw, lambda: self._declared, deployments.units, models)
        self._rounds = 0
        self.distort: Callable[[Fact], Fact | None] = lambda fact: fact
        self.secret = _kept_secret(store)

    def _found(self, fact: Fact) -> None:
        self.figures.take(fact, time.monotonic_ns())
        self.incidents.take(fact)
        if isinstance(fact, MemorySeen) and fact.device != "host":
            self._tell_device_memory(fact)

    def _tell_device_memory(self, fact: MemorySeen) -> None:
        """Let readiness know how full a GPU is, where that says anything of the replica's room.

        What an agent says may ask for more replicas, and puts nobody out of service.
        """
        used = memory_share(fact)
        if used is not None and not fact.reporter and self.memory_grows(fact.replica):
            self._loop().tell(DeviceMemory(fact.replica, used))

    def memory_grows(self, replica: str) -> bool:
        """Whether a replica's GPU memory use grows with its work.

        False for engines that take their memory at the start, and for replicas not in the fleet.
        """
        deployed = self._loop().deployed.get(replica)
        return deployed is not None and not dialect(deployed.engine).takes_memory_at_start

    def device_memory(self, now: int) -> dict[str, float]:
        """The share (0 to 1) of GPU memory in use, by replica id, where it grows with the work.

        Replicas without a recent report, and engines that take all memory at the start, are left
        out.
        """
        found = ((name, self.figures.device_memory(name, now)) for name in self._loop().deployed)
        return {name: used for name, used in found if used is not None and self.memory_grows(name)}

    @property
    def declared(self) -> Mapping[str, Declared]:
        """What is declared of all replicas by fleet file and platforms (host, memory, …), by id."""
        return self._declared

    @property
    def host(self) -> str:
        """The host name of the machine that control runs on."""
        return self._hosts.name

    def gpu_use(self, replica: str) -> GpuUse | None:
        """GPU memory, load and heat of a replica launched on this host, at the last read.

        None: unknown, or it holds no GPU.
        """
        return self._hosts.gpu_use(replica)

    # --- life ------------------------------------------------------------------------------------

    def follow(self, file: FleetFile) -> None:
        """Apply a config in which launched and discovered replicas have their endpoints.

        The first call also passes on the facts that came before it.
        """
        self._file = file
        self._notifier.follow(file.incidents.notify)
        self.incidents.follow(file.incidents.investigation())
        self._declare()
        early, self._early = self._early, None
        for fact in early or ():
            self.saw(fact)

    def _declare(self) -> None:
        file, units = self._file, self._deployments.units
        own = declared_of(file, units, self._hosts.name, self._hosts.sizes)
        self._declared = with_placed(own, self._placed, file.footprint_of_models())
        urls = {one.replica.id: one.url for one in file.replicas()}
        self._sightings.follow({url: name for name, url in urls.items()}, units)
        addresses = {urlsplit(url).netloc: name for name, url in urls.items()}
        self._observations.declare(self._declared, addresses, chains_of(file))
        engines = self._hosts.engines
        self._hosts.engines = {one: engines[one] for one in engines if one in self._declared}

    async def run(self) -> None:
        """Do one round each second until cancelled; then judge what is queued and store baselines.

        Errors in a round are counted, and logged once for each kind.
        """
        hosts = asyncio.create_task(self._hosts.run())
        logged: set[str] = set()
        try:
            while True:
                await asyncio.sleep(ROUND_S)
                try:
                    self.round(time.monotonic_ns())
                except Exception as error:  # noqa: BLE001 control must not end with this
                    self.incidents.errors += 1
                    if type(error).__name__ not in logged:
                        logged.add(type(error).__name__)
                        _log.exception("round failed")
        finally:
            hosts.cancel()
            await asyncio.gather(hosts, return_exceptions=True)
            await self._versions.close()
            await self.incidents.stop()
            await self._notifier.close()

    def round(self, now: int) -> None:
        """Report new GPU faults and, every fifth call, queue lengths; advance detectors' clocks."""
        self._rounds += 1
        for xid in self._gpus.take_xids():
            self._hosts.fault(xid)
        if self._rounds % QUEUES_EVERY == 0:
            self._declare()
            self._tell_queues(now)
        self._observations.round(now)

    def _tell_queues(self, now: int) -> None:
        gauges = self._house.gateway_gauges(now)
        inflight: dict[str, int] = {}
        for name, count in self._loop().inflight().items():
            one = self._declared.get(name)
            if one is not None:
                inflight[one.model] = inflight.get(one.model, 0) + count
        for model in self._file.models:
            waiting = queued_at_gateways(model.name, gauges)
            backlog = self._backlogs.get(model.name)
            if waiting is None and backlog is None:
                continue
            # Two depths told in turn would look like a queue that leaps: they are one backlog.
            more = backlog or QueueSeen(model.name, 0)
            self.saw(
                replace(
                    more,
                    waiting=(waiting or 0) + more.waiting,
                    in_flight=inflight.get(model.name, 0) + (more.in_flight or 0),
                )
            )

    # --- what happens ----------------------------------------------------------------------------

    def saw(self, fact: Fact) -> None:
        """Pass one fact to the investigation and the figures.

        A deliberate disturbance may falsify or drop it; before the first ``follow`` it is kept
        until then.
        """
        if self._early is not None:
            self._early.append(fact)
            return
        shown = self.distort(fact)
        if shown is not None:
            self._observations.saw(shown, time.monotonic_ns())

    def sighted(self, reading: Reading) -> None:
        """Pass on the facts that differ in a platform's new reading from its last one.

        Ends of replicas that were told are stored, so that the next control does not tell them
        again.
        """
        found = self._sightings.take(reading, time.monotonic_ns(), time.time())
        self._tell(found)
        self._keep_ends()

    def _keep_ends(self) -> None:
        """Store which ends were told, where there is a new one: platforms list them for long."""
        if self._ends_kept == self._sightings.ends_told:
            return
        self._ends_kept = self._sightings.ends_told
        try:
            self._store.put_setting(_ENDS, self._sightings.told_ends())
        except StoreError as error:  # only the next control would tell them again
            _log.error("ends of replicas not kept", reason=str(error))

    def unsighted(self, source: str) -> None:
        """Withdraw all that a platform declared, because it is no longer polled."""
        self._tell(self._sightings.forget(source))

    def _tell(self, facts: Sequence[Fact]) -> None:
        """Apply declarations first, then pass the other facts on."""
        for fact in facts:
            if isinstance(fact, Declared):
                self._placed[fact.replica] = fact
            elif isinstance(fact, Gone):
                self._placed.pop(fact.replica, None)
        if any(isinstance(fact, Declared | Gone) for fact in facts):
            self._declare()
        ours = {model.name for model in self._file.models}
        for fact in facts:
            if isinstance(fact, QueueSeen) and fact.model in ours:
                self._backlogs[fact.model] = fact
            elif not isinstance(fact, Declared | Gone) and not self._knows_better(fact):
                self.saw(fact)

    def _knows_better(self, fact: Fact) -> bool:
        """Whether a source's fact is about control's own host, of which control knows more."""
        if isinstance(fact, GpuSeen):
            return fact.host == self._hosts.name
        own = isinstance(fact, HostSeen) and fact.host == self._hosts.name
        return own and bool(self._deployments.units)

    def notice(self, notice: Notice) -> None:
        """Pass a fleet's notice to the investigation.

        If a replica became ready, its engine is asked for its version in the background.
        """
        self._observations.notice(notice)
        deployed = self._loop().deployed.get(notice.replica_id)
        if notice.signal and notice.what == State.READY and deployed is not None:
            self._versions.ask(deployed)

    def _tell_version(self, replica: str, version: str) -> None:
        self._hosts.engines[replica] = version
        if replica not in self._deployments.units:  # of launched ones this host knows more
            self.saw(VersionsSeen(replica, engine=version))

    def answered(self, result: CanaryResult, *, slow: bool, inflight: int) -> None:
        """Pass a canary's result to the investigation, with the fleet's judgement of its pace.

        ``slow``: slow against its peers; ``inflight``: users' requests on the replica.
        """
        self._observations.canary(result, slow=slow, inflight=inflight)

    def seen(self, event: Seen, frame: SeenFrame) -> None:
        """Pass a gateway's report to the investigation, and its times to the figures."""
        self._observations.seen(event, frame.died, frame.compared, frame.died_ago_s)
        self.figures.seen(event, self._declared, time.monotonic_ns())

    def gateway_gone(self, name: str) -> None:
        """Count no requests in flight any more for a disconnected gateway, in the investigation."""
        self._observations.gateway_gone(name)

    def greeting(self) -> Iterable[ToGateway]:
        """Frames for a gateway that has just connected: the blocked requests; empty if none."""
        return [self._block_frame()] if self._blocked else []

    # --- what incidents ask for (Hands) ----------------------------------------------------------

    def restart(self, replica: str, reason: str, since: int) -> tuple[bool, str]:
        """Drain and restart a launched replica, unless its process began after ``since`` (ns).

        Returns (True, sentence) also if it starts anew already; (False, why) if it was not launched
        here, is being removed or is held by an operator.
        """
        unit = self._deployments.units.get(replica)
        if unit is None:
            return False, "it was not started here, so it cannot be restarted here"
        if unit.removing or unit.held:
            return False, "it is out of service on purpose"
        if unit.began is None or unit.began > since:
            return True, f"{replica} starts anew already"
        self._loop().tell(RestartAsked(replica, reason))
        return True, f"{replica} drains and then starts anew"

    def take_out(self, replica: str, reason: str, *, until_right: bool = False) -> tuple[bool, str]:
        """Take a replica out of service without stopping it; whether it is out, and a sentence.

        With ``until_right`` right canaries bring it back. False where too many of its pool are out
        already, or it is gone.
        """
        self._loop().tell(TakeOutAsked(replica, reason, until_right=until_right))
        health = self._loop().health(replica)
        if health is not None and health.taken_out:
            return True, f"{replica} gets no more work"
        if until_right and health is not None and health.state is State.QUARANTINED:
            return True, f"{replica} gets no work until its canaries are right"
        state = health.state.value if health is not None else "gone"
        return False, f"{replica} was not taken out (it is {state}, or its pool is at its bound)"

    def put_back(self, replica: str, reason: str) -> None:
        """End a take-out: from now on the replica's canaries decide again whether it serves.

        Does not make it ready by itself.
        """
        self._loop().tell(TakeOutAsked(replica, reason, out=False))

    def stop_rollout(self, model: str, reason: str) -> tuple[bool, str]:
        """Refuse the revision that a model's rollout brings in; whether it was, and a sentence."""
        if self._deployments.halt(model, reason):
            return True, f"the rollout of {model} is halted; its last good revision stays"
        return False, f"no rollout of {model} is under way here"

    def ladder_of(self, model: str) -> str:
        """The virtual model whose ladder steps down from this model to another.

        Empty: there is none, or this model is the last of it.
        """
        for virtual in self._file.virtual_models:
            ladder = virtual.degrade_config()
            if ladder is not None and model in ladder.ladder[:-1]:
                return virtual.name
        return ""

    def ask_canaries(self, replicas: tuple[str, ...]) -> None:
        """Ask the fleet to send canaries to these replicas now; does not wait for them."""
        self._loop().tell(CanaryAsked(replicas))

    def block(self, fingerprints: Mapping[str, int]) -> None:
        """Make gateways refuse requests with these fingerprints until the given core time (ns).

        Replaces the previous ones, and is repeated to gateways that connect later.
        """
        self._blocked = dict(fingerprints)
        self._house.broadcast(self._block_frame())

    def _block_frame(self) -> BlockFrame:
        now = time.monotonic_ns()
        left = [(one, seconds(until - now)) for one, until in self._blocked.items() if until > now]
        return BlockFrame(left)

    def note(self, notice: Notice) -> None:
        """Record a notice in the events that operators read."""
        self._house.note(notice)

    # --- figures ---------------------------------------------------------------------------------

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Prometheus (counters, gauges) of facts and incidents; counters of inferences, too."""
        counted: dict[str, float] = {
            "facts_reported_total": self.reported.taken,
            "fact_reports_refused_total": self.reported.refused,
        }
        counted |= self._inference_series()[0]
        return self.incidents.counters() | counted, self.incidents.gauges()

    def gauges(self) -> dict[str, float]:
        """Prometheus gauges that inference servers report of themselves, for each replica.

        Gauges of incidents are in ``metrics``.
        """
        return self._inference_series()[1]

    def _inference_series(self) -> tuple[dict[str, float], dict[str, float]]:
        known = ((one.model, name) for name, one in self._declared.items())
        return self.figures.inference_series(known, time.monotonic_ns())


def _kept_secret(store: Store) -> bytes:
    """The key of requests' fingerprints, from the store or newly drawn.

    It is the same for all gateways and after a restart.
    """
    kept: Any = store.settings().get(_SECRET)
    try:
        found = bytes.fromhex(kept) if isinstance(kept, str) else b""
    except ValueError:
        found = b""
    if len(found) != _SECRET_BYTES:
        found = secrets.token_bytes(_SECRET_BYTES)
        store.put_setting(_SECRET, found.hex())
    return found


__all__ = ["QUEUES_EVERY", "ROUND_S", "IncidentWatch", "WatchedControl"]
