"""The pool of one model's replicas: which of them may be chosen now, and the choice itself.

Users' failures alone keep at most half of a pool's breakers open: whoever makes requests that fail
could otherwise close off all of it. Beyond that the pool fails open, the latest openings first; a
breaker that broken connections opened has no such bound.

The sorting is done when something changed (a view, a breaker, a cooldown that ended), never per
request: filtering sixty-four replicas for each request would cost more than everything else
together.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from holdfast.core.failure import Outcome
from holdfast.core.messages import ReplicaView
from holdfast.core.request import routing
from holdfast.core.request.admission.queue import Outlook
from holdfast.core.request.breaker import BreakerState
from holdfast.core.request.candidate import UNLIMITED, Candidate
from holdfast.core.request.failover import FailoverLadder
from holdfast.core.request.routing.absent_paths import AbsentPaths
from holdfast.core.request.routing.batch_pack import pack
from holdfast.core.request.routing.policy import Choice, RoutingPolicy
from holdfast.core.types import Halt, Replica, Request, State, nanos, seconds

TRIAL_REASON: Final = "half-open trial"
_NEVER: Final = 1 << 62
_CLOSED: Final = BreakerState.CLOSED
_STALE_SHARE: Final = 0.1  # as a suspect's: all that is known of it is out of date
_BEGINNING: Final = frozenset({State.STARTING, State.LOADING})  # a process that is another one
_ENDED: Final = frozenset({State.STOPPED, State.DEAD})


class Pool:
    """The candidates of one model in one gateway, sorted into those routing may choose from.

    Sorting is done before a choice when something changed; at most half of the pool is kept out by
    breakers that users' failures alone opened.
    """

    __slots__ = (
        "_candidate",
        "_far",
        "_halts",
        "_ladder",
        "_packs",
        "_policy",
        "_recheck_at",
        "_rungs",
        "_stale",
        "_trials",
        "_untried",
        "absent",
        "candidates",
        "capacity",
        "held_open",
        "inflight",
        "leased",
        "model",
        "routable",
    )

    def __init__(
        self,
        model: str,
        policy: RoutingPolicy,
        ladder: FailoverLadder,
        candidate: Callable[[Replica], Candidate],
    ) -> None:
        self.model = model
        self.candidates: dict[str, Candidate] = {}
        self.absent = AbsentPaths()
        self.inflight = 0
        self.capacity = 0  # attempts the routable candidates take at once, by their limits
        self.routable = 0
        self.held_open: tuple[
            str, ...
        ] = ()  # replicas that get requests though their breakers open
        self._policy = policy
        self._packs = policy.name == routing.DEFAULT  # batch work goes to the fullest
        self._ladder = ladder
        self._candidate = candidate
        self._rungs: list[list[Candidate]] = []
        self._far: list[bool] = []  # which rungs are remote; empty when none is
        self._trials: list[Candidate] = []
        self._untried: list[Candidate] = []  # a trial is due and another gateway's turn
        self.leased: frozenset[str] | None = None  # replicas this gateway may try; None = any
        self._recheck_at = 0
        self._stale = False
        self._halts: list[Candidate] = []  # began or ended to be halted, not taken yet

    def apply(self, views: Iterable[ReplicaView], now: int) -> None:
        """Take over control's view of the replicas: update, add and remove candidates.

        A replica that becomes ready gets its breaker's trial at once; running attempts are not
        touched.
        """
        kept: dict[str, Candidate] = {}
        moved = self._stale  # a ramp of weights alone sorts nobody anew
        for view in views:
            candidate = self.candidates.get(view.replica.id)
            if candidate is None:
                candidate = self._candidate(view.replica)
                moved = True
            elif candidate.replica is not view.replica:
                if candidate.revision != view.replica.revision:
                    candidate.serves.clear()
                candidate.update(view.replica)
                moved = True
            if candidate.state is not view.state or (candidate.weight > 0) != (view.share > 0):
                moved = True
            moved = moved or candidate.may_try is not view.may_try
            if view.state is State.STARTING and candidate.state is not State.STARTING:
                candidate.latency.value = None  # a new process: what the old one did is history
            if view.state in _BEGINNING and candidate.state not in _BEGINNING:
                candidate.serves.clear()
                self.absent.forget(candidate.id)
            if view.state is State.READY and candidate.state is not State.READY:
                candidate.breaker.hasten(now)  # canaries passed: one user's trial will settle it
            candidate.state = view.state
            candidate.share = view.share
            candidate.firm = view.firm
            candidate.may_try = view.may_try
            candidate.reason = view.reason
            later = view.ready_in_s
            candidate.ready_at = None if later is None else now + nanos(later)
            halt = _halt(view)
            if halt is not candidate.halt:
                candidate.halt = halt
                self._halts.append(candidate)
            candidate.weight = view.replica.weight * view.share
            kept[candidate.id] = candidate
        moved = moved or len(kept) != len(self.candidates)
        self.candidates = kept
        self._stale = False
        if moved:
            self.changed(now)

    def take_halts(self) -> list[Candidate]:
        """Return, and forget, the candidates whose halt changed since the last call."""
        halts, self._halts = self._halts, []
        return halts

    def changed(self, now: int) -> None:
        """Note that a candidate changed, so that candidates are sorted before the next choice."""
        self._recheck_at = now

    def lease(self, replica_ids: frozenset[str] | None, now: int) -> None:
        """Set at which replicas (ids) this gateway may run half-open trials.

        ``None`` allows all.
        """
        if replica_ids != self.leased:
            self.leased = replica_ids
            self.changed(now)

    def trials(self, now: int) -> tuple[list[str], list[str]]:
        """Return two lists of replica ids: a trial is due (leased or not), and being tried now."""
        if now >= self._recheck_at:
            self._sort(now)
        wanted = [c.id for c in self._trials] + [c.id for c in self._untried]
        half_open = BreakerState.HALF_OPEN
        return wanted, [c.id for c in self.candidates.values() if c.breaker.state is half_open]

    def doubt_view(self, now: int) -> list[str]:
        """Allow replicas quarantined on suspicion one trial at a time, because control is silent.

        Returns their ids; empty when done already in this silence. Firm quarantines stay, and the
        lease of trials is dropped.
        """
        if self._stale:
            return []
        self._stale = True
        self.leased = None  # nobody hands out turns any more
        doubted = []
        for candidate in self.candidates.values():
            candidate.may_try = True  # nobody asks canaries any more
            if candidate.state is State.QUARANTINED and candidate.share == 0 and not candidate.firm:
                candidate.weight = candidate.replica.weight * _STALE_SHARE
                candidate.breaker.record(Outcome.FAILURE, now, strong=True)
                doubted.append(candidate.id)
        self.changed(now)
        return doubted

    def ready(self, now: int) -> bool:
        """Whether any replica may be chosen now, with or without room for a request."""
        if now >= self._recheck_at:
            self._sort(now)
        return self.routable > 0

    def outlook(self, now: int) -> Outlook | None:
        """Return the ``Outlook``: when a pool that serves nobody will have a replica, and why none.

        ``None``: unknown, which also holds for a pool without replicas, with one that serves, or
        with one of unknown time.
        """
        states: dict[State, int] = {}
        first = _NEVER
        for candidate in self.candidates.values():
            state, ready_at = candidate.state, candidate.ready_at
            states[state] = states.get(state, 0) + 1
            if candidate.weight > 0 or ready_at is None:
                return None
            first = min(first, ready_at)
        if not states:
            return None
        return Outlook(max(0.0, seconds(first - now)), self._why(states))

    def _why(self, states: dict[State, int]) -> str:
        """Why no replica serves, for people: all states, and what is said of the first replica."""
        told = next(iter(self.candidates.values())).reason.partition(" (")[0]  # without details
        replicas = len(self.candidates)
        if replicas == 1:
            what = f"the only replica of {self.model} is {next(iter(states))}"
        elif len(states) == 1:
            what = f"all {replicas} replicas of {self.model} are {next(iter(states))}"
        else:
            counts = ", ".join(f"{count} {state}" for state, count in states.items())
            return f"none of the {replicas} replicas of {self.model} serves: {counts}"
        return f"{what}: {told}" if told else what

    def serves(self, revision: str, now: int) -> bool:
        """Whether any replica of this revision may be chosen, with or without room."""
        if now >= self._recheck_at:
            self._sort(now)
        found = any(c.revision == revision for rung in self._rungs for c in rung)
        return found or any(candidate.revision == revision for candidate in self._trials)

    def may_serve(self, request: Request, now: int) -> bool:
        """Whether any replica may be chosen for this request, with or without room for it."""
        if now >= self._recheck_at:
            self._sort(now)
        if not request.regions:
            return self.routable > 0
        known = (candidate for rung in (*self._rungs, self._trials) for candidate in rung)
        return any(candidate.replica.region in request.regions for candidate in known)

    def on_hosts(self, hosts: Collection[str]) -> tuple[str, ...]:
        """Return the ids of all replicas of this pool on these hosts."""
        return tuple(name for name, one in self.candidates.items() if one.replica.host in hosts)

    def has_room(self, now: int) -> bool:
        """Whether a replica that may be chosen could take one more request.

        Half-open trials count; remote replicas only where spilling is allowed.
        """
        if now >= self._recheck_at:
            self._sort(now)
        return any(candidate.has_room() for candidate in self._usable(now))

    def _usable(self, now: int) -> Iterator[Candidate]:
        """The candidates that choosing may use: not the remote ones where spilling is forbidden."""
        for index, rung in enumerate(self._rungs):
            if not self._far or not self._far[index] or self._may_spill(index, rung, now):
                yield from rung
        yield from self._trials

    def fits(self, request: Request, now: int) -> bool:
        """Whether a request that waits need wait no longer, given that some replica has room.

        One that a single replica must answer waits for that one, until it is gone. One on a path
        that some replicas lack waits for the others.
        """
        holder = request.holder
        if holder:  # one that is gone: its requests are to be told so
            return self.lost(holder) or self.choose(request, (), now) is not None
        if not self.absent.until:
            return True
        lacking = self._avoided(request, (), now)
        return any(one.has_room() and one.id not in lacking for one in self._usable(now))

    def lost(self, replica_id: str) -> bool:
        """Whether a replica is gone for good, with all that its process kept."""
        candidate = self.candidates.get(replica_id)
        return candidate is None or candidate.state in _ENDED

    def all_but_serving(self, path: str, tried: Collection[str]) -> tuple[str, ...] | None:
        """Return the ids of all replicas but those known to serve a path and not tried.

        ``None``: there is no such replica.
        """
        every = self.candidates.values()
        others = tuple(one.id for one in every if path not in one.serves or one.id in tried)
        return others if len(others) < len(every) else None

    def _avoided(self, request: Request, tried: Collection[str], now: int) -> Collection[str]:
        """``tried``, and the replicas that lack the request's path, unless all lack it."""
        lacking = self.absent.lacking(request.path, self.candidates.values(), now)
        routable = (c.id for rung in (*self._rungs, self._trials) for c in rung)
        if lacking and any(name not in lacking for name in routable):
            return (*tried, *lacking)
        return tried

    def utilisation(self) -> float | None:
        """This gateway's running attempts per slot of the routable replicas; may exceed 1.

        ``None`` where no limit is known or no replica is routable.
        """
        if self.capacity <= 0 or self.capacity >= UNLIMITED:
            return None
        return self.inflight / self.capacity

    def choose(
        self, request: Request, tried: Collection[str], now: int, revision: str | None = None
    ) -> Choice | None:
        """Choose the replica for one attempt: (candidate, reason), or ``None`` when none has room.

        A due trial goes first, unless the request was tried before; then the nearest rung.
        ``tried`` are replica ids to leave out; ``revision`` binds a continuation to the revision
        that began the answer. Claims nothing.
        """
        if now >= self._recheck_at:
            self._sort(now)
        regions, holder = request.regions, request.holder
        if self.absent.until and not holder:
            tried = self._avoided(request, tried, now)
        if self._trials and not tried:
            for candidate in self._trials:
                matches = revision is None or candidate.revision == revision
                if regions and candidate.replica.region not in regions:
                    matches = False
                if holder and candidate.id != holder:
                    matches = False
                if matches and candidate.has_room():
                    return candidate, TRIAL_REASON
        rungs = self._rungs
        if revision is not None:
            rungs = [[c for c in rung if c.revision == revision] for rung in rungs]
        if regions:
            rungs = [[c for c in rung if c.replica.region in regions] for rung in rungs]
        if holder:
            rungs = [[c for c in rung if c.id == holder] for rung in rungs]
        for index, rung in enumerate(rungs):
            if (
                self._far
                and self._far[index]
                and not (holder or self._may_spill(index, rung, now))  # nobody else has it
            ):
                continue
            choice = None
            if self._packs and request.priority:
                choice = pack(rung, tried)
            choice = choice or self._policy.choose(request, rung, tried, now)
            if choice is not None:
                return choice
        return None

    def _may_spill(self, index: int, rung: list[Candidate], now: int) -> bool:
        """Whether a remote rung may take more requests, given how full it is."""
        return bool(self._ladder.may_spill(index, _load(rung), now))

    def _sort(self, now: int) -> None:
        recheck_at = _NEVER
        closed: list[Candidate] = []
        trials: list[Candidate] = []
        unproven: list[Candidate] = []  # a trial is due, and no canary was answered
        held_open = self._held_open()
        for candidate in self.candidates.values():
            if candidate.weight <= 0:
                continue
            breaker = candidate.breaker
            if breaker.state is _CLOSED:
                closed.append(candidate)
                continue
            if breaker.would_allow(now):
                (trials if candidate.may_try else unproven).append(candidate)
            elif breaker.opens_until > now:
                recheck_at = min(recheck_at, breaker.opens_until)
            if candidate.id in held_open:
                closed.append(candidate)
        self.held_open = held_open
        ladder = self._ladder
        rungs = ladder.rungs(closed, self.candidates.values())
        self._rungs = [rung.candidates for rung in rungs]
        self._far = [rung.remote for rung in rungs] if any(r.remote for r in rungs) else []
        trials = [c for c in trials if c.id not in ladder.excluded]
        if not self._rungs and not trials:  # nobody else could serve: as if none could be asked
            trials = [c for c in unproven if c.id not in ladder.excluded]
        leased = self.leased
        self._trials = [c for c in trials if leased is None or c.id in leased]
        self._untried = [c for c in trials if leased is not None and c.id not in leased]
        self.routable = sum(candidate.id not in held_open for candidate in self._trials)
        self.capacity = 0
        for rung in self._rungs:
            self.routable += len(rung)
            for candidate in rung:
                self.capacity += candidate.limit
        self._recheck_at = recheck_at

    def _held_open(self) -> tuple[str, ...]:
        """The replicas whose breakers users' failures opened beyond half of the pool."""
        serving = [candidate for candidate in self.candidates.values() if candidate.weight > 0]
        doubted = [
            candidate
            for candidate in serving
            if candidate.breaker.state is not _CLOSED and not candidate.breaker.proven
        ]
        bound = len(serving) // 2
        if len(doubted) <= bound:
            return ()
        doubted.sort(key=lambda candidate: candidate.breaker.opened_at)  # the first stay out
        return tuple(candidate.id for candidate in doubted[bound:])


def _halt(view: ReplicaView) -> Halt | None:
    """Why nothing at a replica will be answered; one that gets requests is not given up."""
    if view.share > 0:
        return None
    return Halt.STOPPED if view.state is State.DEAD else view.halt


def _load(rung: list[Candidate]) -> float | None:
    """The share of a rung's capacity in use; ``None`` where no limit is known."""
    inflight = capacity = 0
    for candidate in rung:
        inflight += candidate.inflight
        capacity += candidate.limit
    if capacity <= 0 or capacity >= UNLIMITED:
        return None
    return inflight / capacity


__all__ = ["TRIAL_REASON", "Pool"]
