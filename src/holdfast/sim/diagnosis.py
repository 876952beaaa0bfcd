"""What a simulated fleet looks like from outside: facts, in the order and pace of a live one.

    World ── events and actions ─► Watcher ── facts ─► Investigation ── findings ─► whoever listens

A live control learns of its replicas through its launcher, its canaries, its gateways' summaries
and the engines' own pages. The watcher stands where those stand and tells no more than they could:
what gateways saw comes once a second, what engines say of themselves once a second and not at all
from one that cannot be reached, memory every ten seconds, queues every five. So the simulator runs
the same investigation as a live fleet, on the same facts, and days of it take minutes.

Memory is not simulated by the engine and has a model of its own here: a floor, what each running
request holds, caches that fill with the first requests, an allocator that keeps its peaks, garbage
that is collected now and then. Rejected: to give detectors the simulator's own truth (who is ill,
what a request will produce). It would test the simulator.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from random import Random
from typing import Any, Final

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
from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.facts import (
    Declared,
    Fact,
    FellSilent,
    FinishesSeen,
    Gone,
    LoadSeen,
    Looked,
    MemorySeen,
    PhaseSeen,
    ProcessEnded,
    QueueSeen,
    RolloutSeen,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.diagnose.investigation import Finding, Investigation
from holdfast.core.diagnose.tallies import Tallies, canaries_doubted, canary_answered
from holdfast.core.failure import Kind
from holdfast.core.messages import (
    CanaryResult,
    Dispatch,
    Exited,
    Joined,
    Left,
    Notice,
    Phase,
    Seen,
    Stop,
    Summary,
    Tick,
)
from holdfast.core.plan.faults import FaultKind
from holdfast.core.types import SECOND, Replica, State, nanos, require, seconds
from holdfast.sim.random_streams import stream
from holdfast.sim.simulated_replica import SimulatedReplica
from holdfast.sim.world import World

MEMORY_EVERY: Final = 10  # seconds
QUEUES_EVERY: Final = 5
LOADS_EVERY: Final = 5  # how much of its weights a starting replica has read
INCIDENTS_MAX: Final = 10_000  # kept here; the investigation itself keeps the recent ones
_PHASES: Final = {State.STARTING: STARTING, State.LOADING: LOADING, State.WARMING: WARM_UP}
_STATES: Final = frozenset(state.value for state in State)
_SEEN: Final = ("pass", "slow", "wrong", "fail", "busy", "unsettled")  # verdicts that are a sound


@dataclass(slots=True, frozen=True)
class MemoryModel:
    """Memory of a healthy engine's process. Rates and sizes are of one replica."""

    floor_bytes: float = 2.0e9  # the process with its weights
    limit_bytes: float = 4.0e9  # where the kernel kills it
    running_bytes: float = 8e6  # held by each request that runs, and given back
    peak_bytes: float = 12e6  # kept by the allocator for each request of its busiest moment
    warm_bytes: float = 150e6  # caches and pools, filled by the first requests
    warm_requests: float = 200.0  # after so many they are filled by 63 %
    garbage_bytes: float = 60e6  # piles up and is collected at once
    garbage_requests: float = 150.0  # in so many requests
    noise: float = 0.002  # of all of it, from one look to the next

    def __post_init__(self) -> None:
        inside = 0 < self.floor_bytes < self.limit_bytes
        require(inside, "memory.floor_bytes", f"is {self.floor_bytes}", "use less than its limit")
        for name in ("warm_requests", "garbage_requests"):
            value = getattr(self, name)
            require(value > 0, f"memory.{name}", f"is {value}", "use requests above 0")

    def used(self, served: int, running: int, peak: int, rng: Random) -> int:
        """Resident bytes after so many requests, with so many now and at the busiest moment."""
        filled = 1.0 - exp(-served / self.warm_requests)
        garbage = served % self.garbage_requests / self.garbage_requests
        known = self.floor_bytes + self.warm_bytes * filled + self.garbage_bytes * garbage
        known += self.running_bytes * running + self.peak_bytes * peak
        return int(known * rng.gauss(1.0, self.noise))


@dataclass(slots=True, frozen=True)
class ObservationModel:
    """What the simulated world does not say of itself."""

    memory: MemoryModel = field(default_factory=MemoryModel)
    host_of: Callable[[Replica], str] = lambda _: ""
    filesystem: str = ""  # what all weights are read from
    cut_share: float = 0.3  # of answers that end by their length; the others stop by themselves
    silence: SilenceConfig = field(default_factory=SilenceConfig)
    idle_every: int = 1  # seconds between looks at an idle engine; long runs save half their time


class _Book:
    """One replica as it is seen."""

    __slots__ = (
        *("began", "generated", "heart", "page", "peak", "phase", "served", "total"),
        *("declared", "rng"),
    )

    def __init__(self, declared: Declared, rng: Random, now: int, silence: SilenceConfig) -> None:
        self.declared = declared
        self.rng = rng
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
    """Watches one world from its beginning; create it before the world runs."""

    def __init__(
        self,
        world: World,
        investigation: Investigation,
        habits: ObservationModel | None = None,
        *,
        seed: int = 0,
        listen: Callable[[Finding, int], None] = lambda _finding, _now: None,
        tap: Callable[[Fact, int], None] | None = None,
    ) -> None:
        self.investigation = investigation
        self.blind: set[str] = set()  # replicas whose own pages nobody can read at present
        self.skew = 0  # by how much the clock of the investigation has jumped so far
        self.facts: Counter[str] = Counter()
        self.incidents: dict[str, Incident] = {}
        self._world = world
        self._habits = habits or ObservationModel()
        self._seed = seed
        self._listen = listen
        self._tap = tap
        self._books: dict[str, _Book] = {}
        self._tallies = Tallies()
        self._second = 0
        self._finishes = stream(seed, "watching", "finishes")
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            Tick: self._on_tick,
            Seen: self._on_seen,
            CanaryResult: self._on_canary,
            Phase: self._on_phase,
            Exited: self._on_exited,
            Joined: self._on_joined,
            Left: self._on_left,
        }
        world.add_observer(self.observe)

    # --- in and out ------------------------------------------------------------------------------

    def observe(self, now: int, whose: str, event: Any, actions: Sequence[Any]) -> None:
        """One event with its actions, as an observer of the world."""
        if whose == "flow":
            for action in actions:
                if isinstance(action, Dispatch):
                    book = self._books.get(action.replica_id)
                    if book is not None:
                        book.served += 1
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
        """Hand one fact over; scripts use it for what a world does not know of."""
        self.facts[type(fact).__name__] += 1
        at = now + self.skew
        if self._tap is not None:
            self._tap(fact, at)
        for finding in self.investigation.take(fact, at):
            incident = getattr(finding, "incident", None)
            if incident is not None and len(self.incidents) < INCIDENTS_MAX:
                self.incidents[incident.id] = incident
            self._listen(finding, now)

    def rollout(self, model: str, revision: str, what: str, now: int) -> None:
        """A deployment began to move to another revision, was halted, or has arrived."""
        self.say(RolloutSeen(model, revision, what), now)

    def compiling(self, replica: str, now: int) -> None:
        """Its engine says that it compiles; nothing more is heard until it is done."""
        book = self._books.get(replica)
        if book is not None:
            book.enter(COMPILE, now)
            self.say(PhaseSeen(replica, COMPILE), now)

    # --- who there is ----------------------------------------------------------------------------

    def _on_joined(self, event: Joined, now: int) -> None:
        replica = event.replica
        memory = self._habits.memory
        declared = Declared(
            replica.id,
            replica.model,
            replica.revision,
            self._habits.host_of(replica),
            replica.zone,
            self._habits.filesystem,
            reserved_bytes=int(memory.limit_bytes),
            limit_bytes=int(memory.limit_bytes),
            managed=True,
        )
        rng = stream(self._seed, replica.id, "watching")
        book = self._books[replica.id] = _Book(declared, rng, now, self._habits.silence)
        self.say(declared, now)
        if event.running:
            book.enter(SERVING, now)
            self._say_versions(declared, now)

    def _say_versions(self, declared: Declared, now: int) -> None:
        name = f"{declared.model}-{declared.revision}"
        told = ("12.4", "550.54", "1.0", f"weights-{name}", f"engine@sha256:{name}")
        self.say(VersionsSeen(declared.replica, *told), now)

    def _on_left(self, event: Left, now: int) -> None:
        if self._books.pop(event.replica_id, None) is not None:
            self._tallies.forget(event.replica_id)
            self.say(Gone(event.replica_id), now)

    # --- processes -------------------------------------------------------------------------------

    def _on_phase(self, event: Phase, now: int) -> None:
        book = self._books.get(event.replica_id)
        if book is None:
            return
        if event.phase is State.STARTING:
            book.begin(now, self._habits.silence)
            self._say_versions(book.declared, now)
        phase = _PHASES[event.phase]
        book.enter(phase, now)
        book.heart.beat(LOG, now)
        self.say(PhaseSeen(event.replica_id, phase), now)

    def _on_exited(self, event: Exited, now: int) -> None:
        killed = event.kind is Kind.OUT_OF_MEMORY
        self._ended(event.replica_id, now, signal=9 if killed else None, oom=killed)

    def _on_stop(self, action: Stop, now: int) -> None:
        if self._world.units[action.replica_id].up:  # it is stopped after this
            self._ended(action.replica_id, now, signal=15, asked=True)

    def _ended(
        self,
        replica: str,
        now: int,
        *,
        signal: int | None,
        oom: bool = False,
        asked: bool = False,
    ) -> None:
        book = self._books.get(replica)
        if book is None:
            return
        code = None if signal is not None else 1
        uptime_s = seconds(now - book.began)
        told = ProcessEnded(
            replica, code, signal, oom, asked, book.phase, uptime_s, served=book.served
        )
        book.begin(now, self._habits.silence)
        self._tallies.process_ended(replica)
        self.say(told, now)

    def _on_notice(self, notice: Notice, now: int) -> None:
        name = notice.replica_id
        book = self._books.get(name)
        if (doubted := canaries_doubted(notice)) is not None:
            self.say(doubted, now)
        elif book is not None and notice.signal and notice.what in _STATES:
            state = State(notice.what)
            if state is State.READY:
                book.enter(SERVING, now)
            self.say(StateChanged(name, state, notice.signal, notice.reason), now)

    # --- canaries --------------------------------------------------------------------------------

    def _on_canary(self, event: CanaryResult, now: int) -> None:
        book = self._books.get(event.replica_id)
        if book is None:
            return
        if event.verdict in _SEEN:
            book.heart.beat(CANARY, now)
        unit = self._world.units[event.replica_id]
        member = self._world.fleet.members.get(event.replica_id)
        if event.page_ok is None:
            event = replace(event, page_ok=unit.serving and not _cut_off(unit))
        slow = member is not None and member.slow
        inflight = self._tallies.inflight(event.replica_id)
        self.say(canary_answered(event, slow=slow, inflight=inflight), now)

    # --- what gateways tell ----------------------------------------------------------------------

    def _on_seen(self, event: Seen, _now: int) -> None:
        for action in event.actions:
            for tally in action.tallies if isinstance(action, Summary) else ():
                if tally.replica_id in self._books:
                    self._tallies.take(event.gateway, tally)

    def _tell_attempts(self, now: int) -> None:
        for attempts, answers in self._tallies.look(now):
            if attempts.tokens:
                self._books[attempts.replica].heart.beat(TOKENS, now)
            told = any(isinstance(fact, FinishesSeen) for fact in answers)
            if attempts.successes and not told:  # the world does not say how its answers end
                answers.append(FinishesSeen(attempts.replica, self._reasons(attempts.successes)))
            for fact in (attempts, *answers):
                self.say(fact, now)

    def _reasons(self, successes: int) -> dict[str, int]:
        draw, share = self._finishes.random, self._habits.cut_share
        return dict(Counter("length" if draw() < share else "stop" for _ in range(successes)))

    # --- every second ----------------------------------------------------------------------------

    def _on_tick(self, _event: Tick, now: int) -> None:
        second = now // SECOND
        if second <= self._second:
            return
        self._second = second
        self._tell_attempts(now)
        all_of_them = second % self._habits.idle_every == 0
        for name, book in list(self._books.items()):
            unit = self._world.units[name]
            if all_of_them or book.phase != SERVING or _works(unit, book):
                self._look(unit, book, now)
            if second % MEMORY_EVERY == 0 and unit.up and name not in self.blind:
                self._weigh(unit, book, now)
            if second % LOADS_EVERY == 0 and book.phase == LOADING:
                self._tell_load(unit, book, now)
        if second % QUEUES_EVERY == 0:
            for model, lane in self._world.flow.lanes.items():
                self.say(QueueSeen(model, len(lane.queue.held)), now)
        self.say(LOOKED, now)

    def _look(self, unit: SimulatedReplica, book: _Book, now: int) -> None:
        """Its own page; and for how long nothing was heard of it."""
        name = unit.replica.id
        running: int | None = None
        if unit.serving and name not in self.blind and not _cut_off(unit):
            if book.page is None or not unit.hung:  # who is hung shows what it showed last
                book.page = self._read(unit, book, now)
            running = book.page.running
            self.say(book.page, now)
        silence = book.heart.silent(now, running)
        if unit.up and silence is not None:
            self.say(FellSilent(name, silence.phase, seconds(now - silence.since)), now)

    def _read(self, unit: SimulatedReplica, book: _Book, now: int) -> LoadSeen:
        engine, total = unit.engine, unit.tokens_seen
        running = engine.running
        if running:
            total += sum(engine.produced(run, now) for run in engine.everyone())
            book.peak = max(book.peak, running)
        if total > book.total:  # less: somebody's request was called back
            book.generated += total - book.total
            book.heart.beat(METRICS, now)
        book.total = total
        kv_used = engine.kv_used
        return LoadSeen(unit.replica.id, running, engine.waiting, kv_used, book.generated)

    def _weigh(self, unit: SimulatedReplica, book: _Book, now: int) -> None:
        memory = self._habits.memory
        used = memory.used(book.served, unit.engine.running, book.peak, book.rng)
        leak = next((fault for fault in unit.faults if fault.kind is FaultKind.LEAK), None)
        if leak is not None:  # what is left goes in a line until its death
            grown = (now - max(leak.at, book.began)) / max(1, nanos(leak.lead_s))
            used += int((memory.limit_bytes - used) * min(1.0, grown))
        limit = book.declared.limit_bytes
        self.say(MemorySeen(unit.replica.id, used, limit, requests=book.served), now)

    def _tell_load(self, unit: SimulatedReplica, book: _Book, now: int) -> None:
        read, total = self._world.bytes_read(unit.replica.id, now)
        if read:
            book.heart.beat(LOG, now)
        self.say(PhaseSeen(unit.replica.id, LOADING, read, total), now)


LOOKED: Final = Looked()


def _works(unit: SimulatedReplica, book: _Book) -> bool:
    """Whether its page changes, or should."""
    engine = unit.engine
    return bool(engine.running or engine.waiting or unit.hung or unit.tokens_seen != book.total)


def _cut_off(unit: SimulatedReplica) -> bool:
    """Whether nothing of it can be reached."""
    return unit.touched and any(fault.kind is FaultKind.PARTITION for fault in unit.faults)


__all__ = ["LOOKED", "DiagnosisDriver", "MemoryModel", "ObservationModel"]
