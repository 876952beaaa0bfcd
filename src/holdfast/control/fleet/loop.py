"""The live driver of ``core.health.fleet``: feeds it events and carries out its actions.

    file, gateways, probes, time ─► Fleet.handle ─► probes, frames to gateways, the log

It owns no policy. Two things are its own, because they belong to this driver and not to a fleet:

*Endpoints are not ours to launch.* They ran before control did; when the fleet asks to launch one,
its operator has to start it, and the loop checks again after the delay the fleet asked for, at most
``LOOK_AGAIN_S``. Replicas that the file says to launch are started by the platform port.

*A new control must not undo what the old one knew.* A new fleet has judged no replica yet and would
tell gateways to send no requests at all. So replicas of an earlier view keep their rows in the
published view until their first probe has a result, or until something is known that no probe could
refute: the process ended, or the replica was drained. The same holds for a reload that changes how
the fleet is watched, and for a replica whose description changed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from random import Random
from typing import Any, Final

import structlog

from holdfast.config.fleet_file import Deployed
from holdfast.control.fetch import listens
from holdfast.control.fleet.audience import (
    CANARIES_MAX,
    Asked,
    Audience,
    Earlier,
    Happened,
    Platform,
)
from holdfast.control.fleet.canaries import Canaries
from holdfast.control.fleet.probes import Prober
from holdfast.core.canary import EXIT_NEWS, CanaryVerdict
from holdfast.core.diagnose.detect.silence import CANARY, METRICS, TOKENS
from holdfast.core.diagnose.facts import ControlLate, OwnShortage
from holdfast.core.failure import Kind
from holdfast.core.health.canary_evidence import UsersBeside
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.health.own_lateness import LoopWatch
from holdfast.core.intake.descriptors import OwnResource
from holdfast.core.messages import (
    CallBackCanary,
    CanaryAsked,
    CanaryResult,
    DrainAsked,
    EngineLoads,
    Exited,
    FleetAction,
    FleetEvent,
    FleetView,
    Frozen,
    HurryCanary,
    Joined,
    Launch,
    Left,
    LoadReported,
    Move,
    Notice,
    Phase,
    Publish,
    ReplicaView,
    RestartAsked,
    RunCanary,
    Seen,
    SpotNotice,
    Stop,
    Summary,
    Tally,
    Tick,
)
from holdfast.core.types import MILLISECOND, State, seconds

TICK: Final = 50 * MILLISECOND  # canaries and drains are due to a second; this is sharp enough
LOOK_AGAIN_S: Final = 10.0  # looking at a dead endpoint costs one connection; finding it matters
CONNECT_S: Final = 2.0  # for that connection
LATE_TOLD: Final = 250 * MILLISECOND  # of this loop: a busy machine is late by less, all the time
EXIT_NEWS_S: Final = seconds(EXIT_NEWS)
_UNCONNECTED: Final = (CanaryVerdict.REFUSED, CanaryVerdict.UNKNOWN)
_NOT_YET: Final = (State.STARTING, State.LOADING, State.WARMING, State.DEAD)  # never ready so far
_FACTS: Final = (Exited, DrainAsked, RestartAsked, SpotNotice)
_log = structlog.get_logger("holdfast.control.fleet")


class FleetLoop:
    """Drives the fleet's state machine in real time: ticks, canaries, launches, published views.

    Decides nothing itself: it passes events in and carries out the actions that come back.
    """

    def __init__(
        self,
        audience: Audience,
        watch: LoopWatch,
        canaries: Canaries,
        platform: Platform,
        term: int,
        earlier: Earlier | None = None,
    ) -> None:
        self._audience = audience
        self._watch = watch
        self._platform = platform
        self._canaries = canaries
        self._prober = Prober(watch, self._users_beside, canaries, self._lacks)
        self.reach: Callable[[Deployed], Deployed | None] = lambda deployed: deployed
        # Whether its platform ends it: then nobody is to start it again under its name.
        self.ends_elsewhere: Callable[[str], bool] = lambda _: False
        self._term = term  # of this control; views of a later term replace those of an earlier
        self._config: FleetConfig | None = None
        self._fleet = Fleet(FleetConfig(), _streams, term)
        self._deployed: dict[str, Deployed] = {}
        self._earlier = earlier
        self._carried: dict[str, ReplicaView] = {}  # what is published until it is judged
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._launches: dict[str, asyncio.Task[None]] = {}  # what others launch, awaited
        self._timer: asyncio.TimerHandle | None = None
        self._raw: FleetView | None = None  # as the fleet published it last
        self.view: FleetView | None = None  # as gateways were told
        self._version = earlier.view.version if earlier else 0
        self._asked: dict[str, deque[Asked]] = {}  # the last canaries of each
        self._withheld: dict[str, str] = {}  # why a newcomer was not admitted, as last told
        self._reached: set[str] = set()  # replicas that accepted a connection of ours
        self._doers: dict[type, Callable[[Any], None]] = {
            RunCanary: self._run_canary,
            HurryCanary: self._hurry_canary,
            CallBackCanary: self._call_back_canary,
            Launch: self._launch,
            Stop: self._stop,
            Move: self._move,
            Publish: self._take_view,
            Notice: self._audience.note,
        }

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the first tick, 50 ms from now; each tick schedules the next."""
        self._timer = asyncio.get_running_loop().call_later(seconds(TICK), self._tick)

    async def stop(self) -> None:
        """Cancel the tick, all canaries and all waits for endpoints; stops no replica."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._probes.values(), *self._launches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._canaries.close()

    def _tick(self) -> None:
        now = time.monotonic_ns()
        late = self._watch.beat(now)
        if late >= LATE_TOLD:
            self._audience.saw(ControlLate(seconds(late)))
        self._timer = asyncio.get_running_loop().call_later(seconds(TICK), self._tick)
        self.tell(Tick())

    def _lacks(self, resource: OwnResource) -> None:
        """A canary could not be sent for want of something of ours."""
        self._audience.saw(OwnShortage("control", resource, 1))

    # --- what happens ----------------------------------------------------------------------------

    def adopt(
        self, deployed: Iterable[Deployed], config: FleetConfig, idle: Collection[str] = ()
    ) -> None:
        """Apply a config: new replicas join, missing ones leave, unchanged ones stay as they are.

        A changed ``FleetConfig`` restarts all judgement: every replica joins anew, under the next
        epoch. ``idle`` are ids of replicas that do not run yet; the fleet launches them. Running
        replicas keep their last published row until they are judged.
        """
        wanted = {one.replica.id: one for one in deployed}
        before = self._deployed
        leaving = [known for known, one in before.items() if wanted.get(known) != one]
        if config != self._config:
            leaving = list(before)
        known = self._known()
        events: list[FleetEvent] = []
        for replica_id in leaving:
            self._forget(replica_id)
            events.append(Left(replica_id))
            if replica_id not in wanted:
                self._canaries.forget(replica_id)
        if config != self._config:
            if self._config is not None:
                self._term += 1
            self._config = config
            events.clear()  # a fleet that begins anew has nobody who could leave
            self._fleet = Fleet(config, _streams, self._term)
        self._deployed = wanted
        for replica_id, one in wanted.items():
            if replica_id not in self._fleet.members or replica_id in leaving:
                running = replica_id not in idle
                kept = known.get(_place(one)) if running else None
                if kept is not None:
                    self._carried[replica_id] = kept
                events.append(Joined(one.replica, running, one.canary, one.url))
        self.tell(*events)

    def _known(self) -> dict[tuple[str, str, str], ReplicaView]:
        """The last published row of each replica, by this control or the previous one."""
        if self.view is not None:
            return _by_place(self.view, self._deployed.values())
        if self._earlier is not None:
            return _by_place(self._earlier.view, self._earlier.deployed)
        return {}

    def seen(self, event: Seen) -> None:
        """Pass a gateway's report to the fleet; tokens in it count as signs of life of replicas."""
        for action in event.actions:
            if isinstance(action, Summary):
                for tally in action.tallies:
                    if tally.progressed:
                        self._platform.heard(tally.replica_id, TOKENS)
        self.tell(event)

    def engine_loads(self, loads: Sequence[LoadReported]) -> list[LoadReported]:
        """Pass engines' own figures to the fleet; figures of work that move are signs of life.

        Returns them as gateways are told: with the fleet's word on which engines read a prompt.
        """
        self.tell(EngineLoads(tuple(loads)))
        for load in loads:
            member = self._fleet.members.get(load.replica_id)
            if member is not None and member.prompts.works:
                self._platform.heard(load.replica_id, METRICS)
        reading = {name for name, member in self._fleet.members.items() if member.prompts.reads}
        return [replace(load, reads=load.replica_id in reading) for load in loads]

    def gateway_gone(self, gateway: str) -> None:
        """Set the requests in flight of a disconnected gateway to zero at all replicas."""
        tallies = [Tally(one.replica.model, i, 0, 0, 0, 0, 0) for i, one in self._deployed.items()]
        self.tell(Seen((Summary(tuple(tallies)),), gateway))

    def tell(self, *events: FleetEvent) -> None:
        """Pass events to the fleet's state machine and carry out all actions before returning.

        Of several views that result only the last is published.
        """
        now = time.monotonic_ns()
        actions = [action for event in events for action in self._fleet.handle(event, now)]
        views = [action for action in actions if isinstance(action, Publish)]
        known = [self._carried.pop(name, None) for name in _known_anew(events, actions)]
        for action in actions:
            if not isinstance(action, Publish):
                self._doers[type(action)](action)
        if views:
            self._take_view(views[-1])
        elif any(known):
            self._tell()

    def _forget(self, replica_id: str) -> None:
        probe = self._probes.pop(replica_id, None)
        if probe is not None:
            probe.cancel()
        launch = self._launches.pop(replica_id, None)
        if launch is not None:
            launch.cancel()
        self._prober.forget(replica_id)
        self._carried.pop(replica_id, None)
        self._asked.pop(replica_id, None)
        self._withheld.pop(replica_id, None)
        self._reached.discard(replica_id)

    # --- what the fleet asks for -----------------------------------------------------------------

    def _run_canary(self, action: RunCanary) -> None:
        self._probes[action.replica_id] = asyncio.create_task(self._probe(action))

    def _hurry_canary(self, action: HurryCanary) -> None:
        self._prober.hurry(action.replica_id, seconds(action.deadline))

    def _call_back_canary(self, action: CallBackCanary) -> None:
        probe = self._probes.pop(action.replica_id, None)
        if probe is not None:
            probe.cancel()

    async def _probe(self, action: RunCanary) -> None:
        replica_id, ours = action.replica_id, False
        try:
            deployed = self._deployed[replica_id]
            ours = deployed.launched
            reached = self.reach(deployed)
            if reached is None:
                told = "blinded on purpose"
                number = action.incarnation
                result = CanaryResult(
                    replica_id, CanaryVerdict.FAIL, incarnation=number, detail=told
                )
            else:
                result = await self._prober.probe(reached, action, self._overdue)
        except Exception:  # noqa: BLE001 else a mistake of ours would leave it unwatched for ever
            _log.exception("probe failed", replica=replica_id)
            result = CanaryResult(replica_id, CanaryVerdict.UNKNOWN, incarnation=action.incarnation)
        if result.verdict.failed_early and ours:
            await asyncio.sleep(EXIT_NEWS_S)  # a process that has exited makes it void
        if self._probes.get(replica_id) is asyncio.current_task():
            del self._probes[replica_id]
        if not result.verdict.silent:
            self._platform.heard(replica_id, CANARY)
        if result.verdict not in _UNCONNECTED and result.flaw != Kind.CONNECT_TIMEOUT:
            self._reached.add(replica_id)
        judged = result.verdict.conclusive or result.draining
        dropped = judged and self._carried.pop(replica_id, None) is not None
        again = (CanaryAsked((replica_id,)),) if result.excused else ()
        self.tell(result, *again)
        self._remember(result)
        if dropped:
            self._tell()

    def _overdue(self, result: CanaryResult) -> None:
        """Tell of a canary whose answer is overdue and still read; its result follows."""
        self.tell(result)
        member = self._fleet.members.get(result.replica_id)
        if member is not None and result.incarnation == member.health.incarnation:
            self._audience.answered(result, slow=member.slow, inflight=member.inflight)

    def _remember(self, result: CanaryResult) -> None:
        member = self._fleet.members.get(result.replica_id)
        if member is None:
            return
        if result.incarnation == member.health.incarnation:
            self._audience.answered(result, slow=member.slow, inflight=member.inflight)
        before = self.asked(result.replica_id)
        unsettled = CanaryVerdict.UNSETTLED
        news = result.verdict is unsettled and (before is None or before.verdict is not unsettled)
        if member.health.state is not State.WARMING:
            self._withheld.pop(result.replica_id, None)
        elif (
            result.verdict is CanaryVerdict.FAIL
            and self._withheld.get(result.replica_id) != result.detail
        ):
            # Why a newcomer stays outside changes no state, and may be gone with its process.
            self._withheld[result.replica_id] = result.detail
            news = True
        if news:
            what, model = f"canary {result.verdict}", member.replica.model
            self._audience.note(Notice(0, model, result.replica_id, what, result.detail))
        latency_s = seconds(result.latency) if result.latency else None
        budget = member.budget
        share = budget.share(time.monotonic_ns())
        asked = Asked(
            time.time(),
            result.verdict,
            result.detail,
            latency_s,
            share,
            budget.spent_tokens,
            budget.served_tokens,
            member.slow and result.verdict is CanaryVerdict.PASS,
        )
        self._asked.setdefault(result.replica_id, deque(maxlen=CANARIES_MAX)).append(asked)

    def _users_beside(self, replica_id: str, since: int) -> UsersBeside:
        return self._fleet.users_beside(replica_id, since, time.monotonic_ns())

    def _launch(self, action: Launch) -> None:
        if self._platform.launch(action.replica_id, action.delay):
            return
        before = self._launches.pop(action.replica_id, None)
        if before is not None:
            before.cancel()
        self._launches[action.replica_id] = asyncio.create_task(
            self._await_endpoint(action.replica_id, min(seconds(action.delay), LOOK_AGAIN_S))
        )

    async def _await_endpoint(self, replica_id: str, delay_s: float) -> None:
        """Wait until an endpoint accepts connections, then report it as warming."""
        listening = False
        while not listening:
            await asyncio.sleep(delay_s)
            listening = await listens(self._deployed[replica_id].url, CONNECT_S)
            delay_s = LOOK_AGAIN_S
        del self._launches[replica_id]
        self._reached.add(replica_id)
        phases = (State.STARTING, State.LOADING, State.WARMING)
        self.tell(*(Phase(replica_id, phase) for phase in phases))

    def _stop(self, action: Stop) -> None:
        if self._platform.stop(action.replica_id):
            return
        if action.replica_id not in self._reached or self.ends_elsewhere(action.replica_id):
            return  # there is nothing that anybody could restart, or should
        member = self._fleet.members.get(action.replica_id)
        model = member.replica.model if member else ""
        what = "should be restarted"
        told = f"{action.reason}; not ours to stop"
        self._audience.note(Notice(0, model, action.replica_id, what, told))

    def _move(self, action: Move) -> None:
        self._audience.move(action)

    # --- the view --------------------------------------------------------------------------------

    def _take_view(self, action: Publish) -> None:
        self._raw = action.view
        self._tell()

    def _tell(self) -> None:
        """Publish the fleet's view, with a new version if it changed.

        Replicas that are not judged yet keep the rows of the earlier view.
        """
        raw, told = self._raw, self.view
        if raw is None:
            return
        rows = tuple(self._kept(row) for row in raw.replicas)
        same = told is not None and (told.replicas, told.panic, told.epoch) == (
            rows,
            raw.panic,
            self._term,
        )
        if told is None or not same:
            self._version += 1
            told = self.view = FleetView(self._version, rows, raw.panic, self._term)
        self._audience.publish(told)

    def _kept(self, row: ReplicaView) -> ReplicaView:
        kept = self._carried.get(row.replica.id)
        return row if kept is None else replace(kept, replica=row.replica)

    def _published(self) -> tuple[ReplicaView, ...]:
        return self.view.replicas if self.view is not None else ()

    # --- for people ------------------------------------------------------------------------------

    @property
    def deployed(self) -> Mapping[str, Deployed]:
        """The replicas of the present config with their addresses, by id."""
        return self._deployed

    def health(self, replica_id: str) -> ReplicaHealth | None:
        """The fleet's own judgement of a replica; None: there is no such replica.

        It may differ from the published row, while a row of an earlier view is still published.
        """
        member = self._fleet.members.get(replica_id)
        return member.health if member is not None else None

    def inflight(self) -> dict[str, int]:
        """Users' requests in flight by replica id, summed over the gateways' last reports."""
        return {i: member.inflight for i, member in self._fleet.members.items()}

    def answering(self, now: int) -> dict[str, int | None]:
        """Users' requests by replica id for which it should show signs of life; None: unknown.

        Unknown where a long prompt explains that nothing is heard.
        """
        return {
            name: None if member.may_read_prompts(now) else member.inflight
            for name, member in self._fleet.members.items()
        }

    def asked(self, replica_id: str) -> Asked | None:
        """The result of a replica's last finished canary; None: there was none yet."""
        asked = self._asked.get(replica_id)
        return asked[-1] if asked else None

    def canaries(self, replica_id: str) -> list[Asked]:
        """The results of a replica's last canaries, at most 20, the newest last."""
        return list(self._asked.get(replica_id, ()))

    def replicas(self) -> list[dict[str, Any]]:
        """One dict for each replica in the last published view, with its requests in flight.

        Reason, requests in flight and last canary are as of now; empty before the first view.
        """
        members = self._fleet.members
        rows: list[dict[str, Any]] = []
        for row in self._published():
            member, one = members.get(row.replica.id), self._deployed.get(row.replica.id)
            rows.append(
                {
                    "id": row.replica.id,
                    "model": row.replica.model,
                    "revision": row.replica.revision,
                    "state": row.state.value,
                    "reason": self._reason(row),
                    "zone": row.replica.zone,
                    "region": row.replica.region,
                    "endpoint": one.url if one else "",
                    "inflight": member.inflight if member else 0,
                    "share": round(row.share, 4),
                    "canary": self.asked(row.replica.id),
                }
            )
        return rows

    def _reason(self, row: ReplicaView) -> str:
        """Why a replica is in its state, as it is now: a view is as old as its last change."""
        replica_id = row.replica.id
        member, one = self._fleet.members.get(replica_id), self._deployed.get(replica_id)
        if member is None or replica_id in self._carried or member.health.state is not row.state:
            return row.reason
        ours = one is not None and one.launched
        if not ours and replica_id not in self._reached and row.state in _NOT_YET:
            return "never seen: nothing at its address has accepted a connection yet"
        return member.health.reason

    def panic(self) -> list[str]:
        """Models whose pools fail open: so many replicas are suspect that suspects serve, too.

        As in the last published view.
        """
        return list(self.view.panic) if self.view is not None else []

    def ready(self, model: str) -> bool:
        """Whether some replica of this model is READY in the last published view."""
        return any(
            row.replica.model == model and row.state is State.READY for row in self._published()
        )


def _known_anew(events: Iterable[FleetEvent], actions: Iterable[FleetAction]) -> set[str]:
    """Ids of replicas about which these events say more than an earlier view can."""
    told = {event.replica_id for event in events if isinstance(event, _FACTS)}
    told |= {event.replica_id for event in events if isinstance(event, Frozen) and event.frozen}
    return told | {one.replica_id for one in actions if isinstance(one, Launch | Stop)}


def _place(one: Deployed) -> tuple[str, str, str]:
    """The key by which a replica is recognised under another id: model, URL, revision."""
    return one.replica.model, one.url, one.replica.revision


def _by_place(
    view: FleetView, deployed: Iterable[Deployed]
) -> dict[tuple[str, str, str], ReplicaView]:
    rows = {row.replica.id: row for row in view.replicas}
    return {_place(one): rows[one.replica.id] for one in deployed if one.replica.id in rows}


def _streams(purpose: str) -> Random:
    """A random generator for one purpose, seeded by the clock: jitter differs between runs."""
    seed = f"{time.time_ns()}{purpose}".encode()
    return Random(int.from_bytes(blake2b(seed, digest_size=8).digest(), "big"))


__all__ = [
    "LOOK_AGAIN_S",
    "TICK",
    "Asked",
    "Audience",
    "Earlier",
    "FleetLoop",
    "Happened",
    "Platform",
]
