"""Runs detectors and diagnosis on a simulated fleet, on the facts that a live control would have.

    World ── events and actions ─► DiagnosisDriver ─► Observations ── facts ─► Investigation
                 ▲                                                                  │ findings
                 └───────────── restart, take out, ask canaries (where it acts) ────┘

A live control learns of its replicas through its launcher, its canaries, its gateways' summaries
and the engines' own pages. The driver takes their place and reports no more than they could:
what gateways saw comes once a second, what engines say of themselves once a second and not at all
from one that cannot be reached, memory every ten seconds, queues every five. Adding up and ordering
is done by ``core.diagnose.observations``, the same object that a live control has.

By default it only observes: no event of the run is another one for it, and the figures of policies
are the same with it and without. With ``acts`` it does what the live fleet does by default: it
restarts replicas, takes them out and asks canaries.

Rejected: to give detectors the simulator's own truth (who is ill, what a request will produce). It
would test the simulator.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.silence import (
    CANARY,
    COMPILE,
    LOADING,
    LOG,
    METRICS,
    SERVING,
    STARTING,
    TOKENS,
    WARM_UP,
    Heartbeat,
    SilenceConfig,
)
from holdfast.core.diagnose.diagnosis import Closed
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.facts import (
    FACT_NAMES,
    Declared,
    Fact,
    FellSilent,
    LoadSeen,
    MemorySeen,
    PhaseSeen,
    ProcessEnded,
    ProcessFrozen,
    QueueSeen,
    RolloutSeen,
    VersionsSeen,
)
from holdfast.core.diagnose.investigation import (
    CallCanaries,
    Finding,
    Investigation,
    InvestigationConfig,
)
from holdfast.core.diagnose.observations import Observations
from holdfast.core.diagnose.remedy_execution import RemedyExecution
from holdfast.core.diagnose.remedy_policy import Act, RemedyConfig
from holdfast.core.failure import Kind
from holdfast.core.health.answers.answer_comparison import AnswerComparison, ComparingConfig
from holdfast.core.messages import (
    CanaryAsked,
    CanaryResult,
    Dispatch,
    Exited,
    Finish,
    Frozen,
    Joined,
    Left,
    Notice,
    Phase,
    RestartAsked,
    Seen,
    Stop,
    Summary,
    TakeOutAsked,
    Tally,
    Tick,
)
from holdfast.core.plan.faults import FaultKind
from holdfast.core.types import SECOND, Replica, State, nanos, seconds
from holdfast.sim.memory.memory_model import MemoryModel
from holdfast.sim.random_streams import stream
from holdfast.sim.simulated_replica import REFUSED_AFTER, SimulatedReplica
from holdfast.sim.world import World

MEMORY_EVERY: Final = 10  # seconds
QUEUES_EVERY: Final = 5
LOADS_EVERY: Final = 5  # how much of its weights a starting replica has read
INCIDENTS_MAX: Final = 10_000  # kept here; the investigation itself keeps the recent ones
_PHASES: Final = {State.STARTING: STARTING, State.LOADING: LOADING, State.WARMING: WARM_UP}
_FLAWS: Final = (Kind.EMPTY, Kind.DEGENERATE, Kind.CUT, Kind.RESET)  # seen in a canary's answer


@dataclass(slots=True, frozen=True)
class ObservationModel:
    """Settings for what a simulated world does not model and a live fleet would report."""

    memory: MemoryModel = field(default_factory=MemoryModel)
    host_of: Callable[[Replica], str] = lambda _: ""
    filesystem: str = ""  # what all weights are read from
    cut_share: float = 0.3  # of answers that end by their length; the others stop by themselves
    silence: SilenceConfig = field(default_factory=SilenceConfig)
    idle_every: int = 1  # seconds between looks at an idle engine; long runs save half their time
    # Whether the memory limit is declared, as a fleet file may: then who is killed at it is
    # undersized, and a leak is found before it gets there. Else it is out of memory.
    limit_declared: bool = True
    comparison: ComparingConfig | None = None  # of peers; opt-in, as in a fleet file


class _ObservedReplica:
    """What is known of one replica's present process."""

    __slots__ = (
        *("began", "generated", "heart", "page", "peak", "phase", "served", "total"),
        *("declared", "rng", "updated"),
    )

    def __init__(self, declared: Declared, rng: Random, now: int, silence: SilenceConfig) -> None:
        self.declared = declared
        self.rng = rng
        self.updated = False  # its host is, and said so
        self.begin(now, silence)

    def begin(self, now: int, silence: SilenceConfig) -> None:
        """A new process."""
        self.began = now
        self.phase = STARTING
        self.served = 0  # requests given to it in this life
        self.peak = 0
        self.generated = 0
        self.total = 0  # of the last look: tokens finished and under way
        self.page: LoadSeen | None = None  # as it was read last
        self.heart = Heartbeat(silence, now)

    def enter(self, phase: str, now: int) -> None:
        self.phase = phase
        self.heart.phase(phase, now)


class DiagnosisDriver:
    """Feeds one world's events to an investigation as facts; create it before the world runs."""

    def __init__(
        self,
        world: World,
        investigation: Investigation | None = None,
        model: ObservationModel | None = None,
        *,
        seed: int = 0,
        acts: bool = False,
        listen: Callable[[Finding, int], None] = lambda _finding, _now: None,
        tap: Callable[[Fact, int], None] | None = None,
    ) -> None:
        acting = InvestigationConfig(acting=RemedyConfig(dry_run=not acts))
        self.investigation = investigation or Investigation(acting)
        self.blind: set[str] = set()  # replicas whose own pages nobody can read at present
        self.skew = 0  # by how much the clock of the investigation has jumped so far
        self.facts: Counter[str] = Counter()
        self.incidents: dict[str, Incident] = {}
        self._world = world
        self._model = model or ObservationModel()
        self._seed = seed
        self._acts = acts
        self._listen = listen
        self._tap = tap
        self._now = 0
        self._replicas: dict[str, _ObservedReplica] = {}
        self._observations = Observations(self._take)
        self._comparing: dict[str, AnswerComparison] = {}  # by model
        self._remedies = RemedyExecution(self, lambda _act, _incident: "somebody was called")
        self._second = 0
        # Control's rounds and gateways' summaries are both once a second, at different moments.
        self._phase = stream(seed, "watching", "rounds").randrange(SECOND)
        self._finishes = stream(seed, "watching", "finishes")
        self._peers = stream(seed, "watching", "peers")
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            Tick: self._on_tick,
            Seen: self._on_seen,
            CanaryResult: self._on_canary,
            Phase: self._on_phase,
            Exited: self._on_exited,
            Frozen: self._on_frozen,
            Joined: self._on_joined,
            Left: self._on_left,
        }
        world.add_observer(self.observe)

    # --- in and out ------------------------------------------------------------------------------

    def observe(self, now: int, whose: str, event: Any, actions: Sequence[Any]) -> None:
        """Turn one event of the world and its actions into facts for the detectors."""
        self._now = now
        if whose == "flow":
            for action in actions:
                if isinstance(action, Dispatch):
                    replica = self._replicas.get(action.replica_id)
                    if replica is not None:
                        replica.served += 1
                elif isinstance(action, Finish) and self._model.comparison is not None:
                    self._compare(action, now)
            return
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event, now)
        for action in actions:
            if isinstance(action, Notice):
                self._on_notice(action, now)
            elif isinstance(action, Stop):
                self._on_stop(action, now)

    def say(self, fact: Fact, now: int) -> None:
        """Give one fact to the investigation; scripts use it for what a world does not model."""
        self._now = now
        self._observations.saw(fact, now)

    def _take(self, fact: Fact) -> None:
        """The next fact, in order."""
        now = self._now
        self.facts[FACT_NAMES[type(fact)]] += 1
        at = now + self.skew
        if self._tap is not None:
            self._tap(fact, at)
        for finding in self.investigation.take(fact, at):
            incident = getattr(finding, "incident", None)
            if incident is not None and len(self.incidents) < INCIDENTS_MAX:
                self.incidents[incident.id] = incident
            self._listen(finding, now)
            if self._acts:
                self._do(finding, now)

    def rollout(self, model: str, revision: str, what: str, now: int) -> None:
        """Report that a deployment began to change revision, was halted, or finished."""
        self.say(RolloutSeen(model, revision, what), now)

    def compiling(self, name: str, now: int) -> None:
        """Report that an engine compiles; it reports nothing else until it is done."""
        replica = self._replicas.get(name)
        if replica is not None:
            replica.enter(COMPILE, now)
            self.say(PhaseSeen(name, COMPILE), now)

    # --- what findings ask for -------------------------------------------------------------------

    def _do(self, finding: Finding, now: int) -> None:
        if isinstance(finding, CallCanaries):
            self._world.ask_fleet(CanaryAsked(finding.replicas), now)
        elif isinstance(finding, Closed):
            self._remedies.closed(finding.incident.id)
        elif isinstance(finding, Act):
            incident = self.investigation.incidents.get(finding.incident_id)
            told = self._remedies.carry_out(finding, incident) if incident is not None else ""
            if told:
                self.investigation.done(finding.incident_id, told, now + self.skew)

    def restart(self, replica: str, reason: str, since: int) -> tuple[bool, str]:
        """Drain and restart a replica, unless its process began after ``since`` (core time, ns)."""
        if self._replicas[replica].began > since - self.skew:
            return True, f"{replica} starts anew already"
        self._world.ask_fleet(RestartAsked(replica, reason), self._now)
        return True, f"{replica} drains and then starts anew"

    def take_out(self, replica: str, reason: str, *, until_right: bool = False) -> tuple[bool, str]:
        """Send a replica no requests, whatever its canaries say or until they are right."""
        asked = TakeOutAsked(replica, reason, until_right=until_right)
        self._world.ask_fleet(asked, self._now)
        return True, f"{replica} gets no more work"

    def stop_rollout(self, model: str, reason: str) -> tuple[bool, str]:  # noqa: ARG002
        """Refuse: rollouts of a world are scripted and go on."""
        return False, f"the rollout of {model} is scripted and goes on"

    # --- who there is ----------------------------------------------------------------------------

    def _on_joined(self, event: Joined, now: int) -> None:
        replica = event.replica
        limit = int(self._model.memory.limit_bytes) if self._model.limit_declared else None
        declared = Declared(
            replica.id,
            replica.model,
            replica.revision,
            self._model.host_of(replica),
            replica.zone,
            self._model.filesystem,
            reserved_bytes=limit,
            limit_bytes=limit,
            managed=True,
        )
        rng = stream(self._seed, replica.id, "watching")
        observed = _ObservedReplica(declared, rng, now, self._model.silence)
        self._replicas[replica.id] = observed
        self._declare()
        if event.running:
            observed.enter(SERVING, now)
            self._say_versions(declared, now)

    def _declare(self) -> None:
        known = {name: replica.declared for name, replica in self._replicas.items()}
        self._observations.declare(known, {})

    def _say_versions(self, declared: Declared, now: int, *, updated: bool = False) -> None:
        name = f"{declared.model}-{declared.revision}"
        host = ("12.6", "560.35") if updated else ("12.4", "550.54")
        told = (*host, "1.0", f"weights-{name}", f"engine@sha256:{name}")
        self.say(VersionsSeen(declared.replica, *told), now)

    def _on_left(self, event: Left, _now: int) -> None:
        if self._replicas.pop(event.replica_id, None) is not None:
            self._declare()

    # --- processes -------------------------------------------------------------------------------

    def _on_phase(self, event: Phase, now: int) -> None:
        replica = self._replicas.get(event.replica_id)
        if replica is None:
            return
        if event.phase is State.STARTING:
            replica.begin(now, self._model.silence)
            replica.updated = False  # said anew below, where its host is
            self._say_versions(replica.declared, now)
        phase = _PHASES[event.phase]
        replica.enter(phase, now)
        replica.heart.beat(LOG, now)
        self.say(PhaseSeen(event.replica_id, phase), now)

    def _on_exited(self, event: Exited, now: int) -> None:
        killed = event.kind is Kind.OUT_OF_MEMORY
        self._ended(event.replica_id, now, signal=9 if killed else None, oom=killed)

    def _on_frozen(self, event: Frozen, now: int) -> None:
        if event.replica_id in self._replicas:
            self.say(ProcessFrozen(event.replica_id, event.frozen), now)

    def _on_stop(self, action: Stop, now: int) -> None:
        if self._world.units[action.replica_id].up:  # it is stopped after this
            self._ended(action.replica_id, now, signal=15, asked=True)

    def _ended(
        self,
        name: str,
        now: int,
        *,
        signal: int | None,
        oom: bool = False,
        asked: bool = False,
    ) -> None:
        replica = self._replicas.get(name)
        if replica is None:
            return
        code = None if signal is not None else 1
        uptime_s = seconds(now - replica.began)
        told = ProcessEnded(name, code, signal, oom, asked, replica.phase, uptime_s)
        replica.begin(now, self._model.silence)
        self.say(told, now)

    def _on_notice(self, notice: Notice, now: int) -> None:
        replica = self._replicas.get(notice.replica_id)
        if replica is not None and notice.signal and notice.what == State.READY:
            replica.enter(SERVING, now)
        self._observations.notice(notice)

    # --- canaries --------------------------------------------------------------------------------

    def _on_canary(self, event: CanaryResult, now: int) -> None:
        replica = self._replicas.get(event.replica_id)
        if replica is None:
            return
        event = self._read_canary(event)
        if not event.verdict.silent:
            replica.heart.beat(CANARY, now)
        member = self._world.fleet.members.get(event.replica_id)
        slow = member is not None and member.slow
        inflight = self._observations.inflight(event.replica_id)
        self._observations.canary(event, slow=slow, inflight=inflight)

    def _read_canary(self, event: CanaryResult) -> CanaryResult:
        """The canary with what a live one would have read in its answer besides the verdict."""
        unit = self._world.units[event.replica_id]
        if event.page_ok is None:
            page_ok = unit.serving and not unit.frozen and not _cut_off(unit)
            event = replace(event, page_ok=page_ok)
        ending, moved = self._world.canary_ending(event.replica_id)
        if event.verdict is CanaryVerdict.TIMEOUT:
            return replace(event, moved_s=seconds(moved))
        if event.verdict not in (CanaryVerdict.FAIL, CanaryVerdict.WRONG) or ending is None:
            return event
        if ending is Kind.CONNECT_TIMEOUT:
            return replace(event, verdict=CanaryVerdict.TIMEOUT, flaw=Kind.CONNECT_TIMEOUT)
        if ending is Kind.SERVER_ERROR:
            return replace(event, status=500, took=event.latency or REFUSED_AFTER)
        return replace(event, flaw=ending) if ending in _FLAWS else event

    # --- what gateways tell ----------------------------------------------------------------------

    def _on_seen(self, event: Seen, now: int) -> None:
        told = [
            Summary(tuple(self._with_finishes(one, now) for one in action.tallies))
            for action in event.actions
            if isinstance(action, Summary)
        ]
        self._observations.seen(replace(event, actions=tuple(told)))

    def _with_finishes(self, tally: Tally, now: int) -> Tally:
        """The world does not say how its answers end."""
        replica = self._replicas.get(tally.replica_id)
        if replica is None:
            return tally
        if tally.tokens:
            replica.heart.beat(TOKENS, now)
        if tally.finishes or not tally.successes:
            return tally
        draw, share = self._finishes.random, self._model.cut_share
        ends = Counter("length" if draw() < share else "stop" for _ in range(tally.successes))
        return replace(tally, finishes=dict(ends))

    def _compare(self, finish: Finish, now: int) -> None:
        """Hold an answer against a second replica's, as gateways do; what that costs is left out.

        Two answers agree where both are right: two wrong ones are wrong in different ways.
        """
        name, config = finish.replica_id, self._model.comparison
        lane = self._world.flow.lanes.get(finish.model)
        if config is None or lane is None or finish.status != 200 or finish.continued:
            return
        comparing = self._comparing.get(finish.model)
        if comparing is None:
            rng = stream(self._seed, f"comparison/{finish.model}", "watching")
            comparing = self._comparing[finish.model] = AnswerComparison(config, rng)
        if not comparing.wants(name, lane.saturation(), len(lane.queue), now):
            return
        peer = comparing.peer(tuple(lane.pool.candidates.values()), name)
        if peer is None:
            return
        other = self._world.units[peer]
        lies = other.wrong or other.garbles or self._peers.random() < other.wrong_share
        agreed = not (self._world.records[finish.request_id].wrong or lies)
        comparing.begin()
        comparing.end(name, peer, agreed, now)
        self._observations.seen(Seen(()), compared=[(name, peer, agreed)])

    # --- every second ----------------------------------------------------------------------------

    def _on_tick(self, _event: Tick, now: int) -> None:
        second = (now - self._phase) // SECOND
        if second <= self._second:
            return
        self._second = second
        all_of_them = second % self._model.idle_every == 0
        for name, replica in list(self._replicas.items()):
            unit = self._world.units[name]
            if all_of_them or replica.phase != SERVING or _works(unit, replica):
                self._look(unit, replica, now)
            if second % MEMORY_EVERY == 0 and unit.up and name not in self.blind:
                self._weigh(unit, replica, now)
            if unit.touched or replica.updated:
                self._look_at_host(unit, replica, now)
            if second % LOADS_EVERY == 0 and replica.phase == LOADING:
                self._tell_load(unit, replica, now)
        if second % QUEUES_EVERY == 0:
            for model, lane in self._world.flow.lanes.items():
                self.say(QueueSeen(model, len(lane.queue.held)), now)
        self._observations.round(now)

    def _look_at_host(self, unit: SimulatedReplica, replica: _ObservedReplica, now: int) -> None:
        """Say what its host runs on, when an update began or was taken back."""
        updated = any(fault.kind is FaultKind.SKEW for fault in unit.faults)
        if updated is not replica.updated and replica.phase == SERVING:
            replica.updated = updated
            self._say_versions(replica.declared, now, updated=updated)

    def _look(self, unit: SimulatedReplica, replica: _ObservedReplica, now: int) -> None:
        """Read its own page, and notice for how long nothing was heard of it."""
        name = unit.replica.id
        running: int | None = None
        readable = unit.serving and not unit.frozen and not _cut_off(unit)
        if readable and name not in self.blind:
            if not unit.hung:
                replica.page = self._read(unit, replica, now)
            elif replica.page is None:  # an engine that stood still from the start counts nothing
                replica.page = LoadSeen(name, 0, 0, 0.0, 0)
            # Else: one that is hung shows what it showed last.
            running = replica.page.running
            self.say(replica.page, now)
        silence = replica.heart.silent(now, running)
        if unit.up and silence is not None:
            self.say(FellSilent(name, silence.phase, seconds(now - silence.since)), now)

    def _read(self, unit: SimulatedReplica, replica: _ObservedReplica, now: int) -> LoadSeen:
        engine, total = unit.engine, unit.tokens_seen
        running = engine.running
        if running:
            total += sum(engine.produced(run, now) for run in engine.everyone())
            replica.peak = max(replica.peak, running)
        if total > replica.total:  # less: somebody's request was called back
            replica.generated += total - replica.total
            replica.heart.beat(METRICS, now)
        replica.total = total
        kv_used = engine.kv_used
        return LoadSeen(unit.replica.id, running, engine.waiting, kv_used, replica.generated)

    def _weigh(self, unit: SimulatedReplica, replica: _ObservedReplica, now: int) -> None:
        memory = self._model.memory
        used = memory.used(replica.served, unit.engine.running, replica.peak, replica.rng)
        leak = next((fault for fault in unit.faults if fault.kind is FaultKind.LEAK), None)
        if leak is not None:  # what is left goes in a line until its death
            grown = (now - max(leak.at, replica.began)) / max(1, nanos(leak.lead_s))
            used += int((memory.limit_bytes - used) * min(1.0, grown))
        limit = replica.declared.limit_bytes
        self.say(MemorySeen(unit.replica.id, used, limit), now)

    def _tell_load(self, unit: SimulatedReplica, replica: _ObservedReplica, now: int) -> None:
        read, total = self._world.bytes_read(unit.replica.id, now)
        if read:
            replica.heart.beat(LOG, now)
        self.say(PhaseSeen(unit.replica.id, LOADING, read, total), now)


def _works(unit: SimulatedReplica, replica: _ObservedReplica) -> bool:
    """Whether its page changes, or should."""
    engine = unit.engine
    return bool(engine.running or engine.waiting or unit.hung or unit.tokens_seen != replica.total)


def _cut_off(unit: SimulatedReplica) -> bool:
    """Whether nothing of it can be reached."""
    return unit.touched and any(fault.kind is FaultKind.PARTITION for fault in unit.faults)


__all__ = ["DiagnosisDriver", "ObservationModel"]
