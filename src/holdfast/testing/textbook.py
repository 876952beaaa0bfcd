"""Two small models of a textbook's fleet: spares against failures, and policies in an outage.

Both run in ticks and know nothing of tokens, queues or time-outs; that is their use. They are
small enough to have closed-form answers, so they calibrate the reader before the full simulator.
Every random draw happens in the order of the printed example (Output 23.7.1), which is what makes
the figures agree to the last digit, on any Python that keeps ``Random``'s documented core.

Left out on purpose: any use of the real policies. A breaker here is an EWMA and a tick count, as
in the example; the breaker that guards traffic lives in ``core`` and is driven elsewhere.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from itertools import repeat
from math import ceil, log, log1p
from random import Random
from typing import Final

from holdfast.core.types import require


class Health(IntEnum):
    """The state of a replica in the redundancy model."""

    HEALTHY = 0
    UNSEEN = 1  # ill, and still in rotation: no health check has noticed
    DRAINED = 2


@dataclass(slots=True, frozen=True)
class RedundancyParams:
    """Parameters of a fleet with spares whose replicas fail one by one."""

    spares: int = 0
    need: int = 8
    ticks: int = 20_000
    fail: float = 0.002  # chance per tick that a healthy replica falls ill
    recover: float = 0.05  # chance per tick that a drained replica comes back
    requests: int = 40  # drawn per tick; 0 = draw none and jump from event to event
    detect_ticks: int = 3  # ticks an ill replica stays in rotation
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.spares >= 0, "book.spares", f"is {self.spares}", "use 0 or more")
        require(self.need >= 1, "book.need", f"is {self.need}", "use 1 or more")
        require(self.ticks >= 1, "book.ticks", f"is {self.ticks}", "use 1 or more")
        require(0.0 < self.fail < 1.0, "book.fail", f"is {self.fail}", "use a chance inside 0..1")
        good = 0.0 < self.recover < 1.0
        require(good, "book.recover", f"is {self.recover}", "use a chance inside 0..1")
        require(self.requests >= 0, "book.requests", f"is {self.requests}", "use 0 or more")
        good = self.detect_ticks >= 0
        require(good, "book.detect_ticks", f"is {self.detect_ticks}", "use 0 or more")

    @property
    def replicas(self) -> int:
        """Number of replicas, spares included."""
        return self.need + self.spares

    @property
    def healthy_share(self) -> float:
        """Long-run share of ticks one replica is healthy: the ``a`` of the binomial."""
        up = 1.0 / self.fail
        return up / (up + self.detect_ticks + 1.0 / self.recover)

    @property
    def served_share(self) -> float:
        """Long-run share of requests that meet a healthy replica, with any number of spares.

        The drained are out of rotation and the rest are chosen alike, so only the split between
        healthy and not yet noticed matters, and spares do not move it.
        """
        up = 1.0 / self.fail
        return up / (up + self.detect_ticks)


@dataclass(slots=True, frozen=True)
class RedundancyResult:
    """The figures of one run of the redundancy model."""

    availability: float  # share of requests that met a healthy replica
    slo: float  # share of ticks with at least ``need`` healthy


def run_redundancy(params: RedundancyParams) -> RedundancyResult:
    """Run the redundancy model: tick by tick if requests are drawn, else by jumps."""
    return _run_by_ticks(params) if params.requests else _run_by_jumps(params)


@lru_cache(maxsize=32)  # a run is a pure function of its parameters, and reports repeat some
def _run_by_ticks(params: RedundancyParams) -> RedundancyResult:
    rng = Random(params.seed)
    draw, bits = rng.random, rng.getrandbits
    lives = [Health.HEALTHY] * params.replicas
    noticed_at = [0] * params.replicas
    healthy, unseen = params.replicas, 0
    served = enough = 0
    for tick in range(params.ticks):
        for i, life in enumerate(lives):
            if life is Health.HEALTHY:
                if draw() < params.fail:
                    lives[i] = Health.UNSEEN
                    noticed_at[i] = tick + params.detect_ticks
                    healthy -= 1
                    unseen += 1
            elif life is Health.DRAINED and draw() < params.recover:
                lives[i] = Health.HEALTHY
                healthy += 1
        if unseen:
            for i, life in enumerate(lives):
                if life is Health.UNSEEN and noticed_at[i] <= tick:
                    lives[i] = Health.DRAINED
                    unseen -= 1
        in_rotation = healthy + unseen
        width = in_rotation.bit_length()
        for _ in range(params.requests if in_rotation else 0):
            # What Random.choice does, spelled out: the figures then hang on getrandbits alone,
            # and most of the time goes here. The healthy come first in the rotation.
            while (index := bits(width)) >= in_rotation:
                pass
            if index < healthy:
                served += 1
        if healthy >= params.need:
            enough += 1
    return RedundancyResult(served / (params.requests * params.ticks), enough / params.ticks)


def _run_by_jumps(params: RedundancyParams) -> RedundancyResult:
    """The same process in law, a hundred times faster: draw how long each state lasts.

    Replicas do not influence one another, so each one's life is laid out alone, as the ticks at
    which it falls ill, is noticed and comes back; one sweep over all those ticks then counts.
    Availability is the share expected given these lives, without the noise of single requests.
    """
    rng = Random(params.seed)
    ill, noticed, back, end = range(4)
    last = params.ticks * 4 + end
    changes = [last]  # tick * 4 + what: plain integers sort fast
    for _ in range(params.replicas):
        tick = -1  # as if it had come back just before the first tick
        while (fell := tick + _geometric(rng, params.fail)) < params.ticks:
            seen = fell + params.detect_ticks
            tick = seen + _geometric(rng, params.recover)
            changes += (fell * 4 + ill, min(seen * 4 + noticed, last), min(tick * 4 + back, last))
    healthy, in_rotation = params.replicas, params.replicas
    since = enough = 0
    served = 0.0
    for change in sorted(changes):
        tick, what = change >> 2, change & 3
        if tick > since:
            served += (tick - since) * healthy / in_rotation if in_rotation else 0.0
            enough += tick - since if healthy >= params.need else 0
            since = tick
        if what == ill:
            healthy -= 1
        elif what == noticed:
            in_rotation -= 1
        elif what == back:
            healthy += 1
            in_rotation += 1
    return RedundancyResult(served / params.ticks, enough / params.ticks)


def _geometric(rng: Random, chance: float) -> int:
    """Trials up to and including the first success."""
    return 1 + int(log(1.0 - rng.random()) / log1p(-chance))


class Hedging(StrEnum):
    """When a request that already waited a tick or more is sent twice at once."""

    NEVER = "never"
    ALWAYS = "always"
    CAPPED = "capped"  # at most ``hedges_per_tick``
    SPARE = "spare"  # only while more slots are free than requests wait


@dataclass(slots=True, frozen=True)
class OutagePolicy:
    """How failed calls are handled: every one is retried at the next tick."""

    name: str
    breaker: bool = False
    hedging: Hedging = Hedging.NEVER


NAIVE: Final = OutagePolicy("naive retry")
BREAKER: Final = OutagePolicy("circuit breaker", breaker=True)


@dataclass(slots=True, frozen=True)
class OutageParams:
    """Parameters of a fleet near its capacity; half of it fails for the middle third."""

    ticks: int = 4000
    replicas: int = 8
    slots: int = 10  # calls each replica can take per tick, failed ones too
    arrivals: int = 72  # requests per tick: 90 % of the slots
    success: float = 0.98  # of a call to a replica that is not sick
    smoothing: float = 0.15  # weight of the newest call in a replica's error rate
    trip: float = 0.4  # error rate above which the breaker opens
    cooldown_ticks: int = 60  # how long it stays open
    backlog_ticks: int = 4  # arrivals kept waiting, in ticks' worth; the newest beyond are dropped
    hedges_per_tick: int = 4  # for capped hedging
    outage: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("ticks", "replicas", "slots", "arrivals"):
            value = getattr(self, name)
            require(value >= 1, f"book.{name}", f"is {value}", "use 1 or more")
        for name in ("success", "smoothing", "trip"):
            value = getattr(self, name)
            require(0.0 < value < 1.0, f"book.{name}", f"is {value}", "use a share inside 0..1")
        for name in ("cooldown_ticks", "backlog_ticks", "hedges_per_tick"):
            value = getattr(self, name)
            require(value >= 0, f"book.{name}", f"is {value}", "use 0 or more")

    @property
    def capacity(self) -> int:
        """Calls the whole fleet can take per tick."""
        return self.replicas * self.slots

    def phase(self, tick: int) -> int:
        """The phase of a tick: 0 before, 1 during and 2 after the outage."""
        return (tick >= self.ticks // 3) + (tick >= 2 * self.ticks // 3)

    def ceiling(self, *, with_backlog: bool = False) -> float:
        """The highest goodput of any policy: all arrivals, or what the healthy half takes."""
        sick_ticks = 2 * self.ticks // 3 - self.ticks // 3 if self.outage else 0
        well = self.replicas - self.replicas // 2
        served = min(self.arrivals, well * self.slots * self.success) * sick_ticks
        served += self.arrivals * (self.ticks - sick_ticks)
        served += self.arrivals * self.backlog_ticks if with_backlog else 0
        return served / (self.arrivals * self.ticks)

    def hedging_tipping_point(self) -> float:
        """Number of aged requests per tick above which hedging makes more of them.

        With x aged requests taking two slots each, the next tick inherits the fresh requests less
        those served in the slots left over, and the few aged whose copies both failed:
        x' = arrivals - success (capacity - 2x) + failure² x. The slope is 1 + success², so the
        fixed point repels: below it the backlog melts, above it hedges crowd out the fresh.
        """
        return (self.success * self.capacity - self.arrivals) / self.success**2


@dataclass(slots=True, frozen=True)
class PhaseCounts:
    """Counts over one third of the run."""

    offered: int
    failed: int  # calls that failed
    redundant: int  # calls that succeeded beside a twin that did too
    dropped: int
    latency_ticks: tuple[tuple[int, int], ...]  # ticks from arrival to answer, how many

    @property
    def good(self) -> int:
        """Number of requests answered."""
        return sum(requests for _, requests in self.latency_ticks)

    @property
    def goodput(self) -> float:
        """Requests answered over requests offered; above one while a backlog is worked off."""
        return self.good / self.offered

    @property
    def wasted(self) -> int:
        """Number of calls that took a slot in vain: failed or redundant ones."""
        return self.failed + self.redundant

    def latency_quantile(self, q: float) -> int:
        """Ticks within which the share ``q`` of answered requests was answered."""
        left = ceil(q * self.good)
        for ticks, requests in self.latency_ticks:
            left -= requests
            if left <= 0:
                return ticks
        return 0  # nothing was answered

    def slower_than(self, ticks: int) -> float:
        """Share of answered requests that took more than ``ticks``."""
        slow = sum(requests for took, requests in self.latency_ticks if took > ticks)
        return slow / self.good if self.good else 0.0


@dataclass(slots=True, frozen=True)
class OutageResult:
    """The counts of one policy before, during and after the outage."""

    before: PhaseCounts
    during: PhaseCounts
    after: PhaseCounts

    @property
    def phases(self) -> tuple[PhaseCounts, PhaseCounts, PhaseCounts]:
        """The counts before, during and after the outage, in this order."""
        return self.before, self.during, self.after

    @property
    def goodput(self) -> float:
        """Share of all requests answered."""
        return sum(p.good for p in self.phases) / sum(p.offered for p in self.phases)

    @property
    def wasted(self) -> int:
        """Number of calls that took a slot in vain (failed or redundant), over the whole run."""
        return self.failed + self.redundant

    @property
    def failed(self) -> int:
        """Calls that failed, over the whole run."""
        return sum(p.failed for p in self.phases)

    @property
    def redundant(self) -> int:
        """Number of successful calls whose hedged copy succeeded too, over the whole run."""
        return sum(p.redundant for p in self.phases)

    @property
    def dropped(self) -> int:
        """Requests turned away because the backlog was full."""
        return sum(p.dropped for p in self.phases)


_AS_PRINTED: Final = OutageParams()


@lru_cache(maxsize=64)
def run_outage(policy: OutagePolicy, params: OutageParams = _AS_PRINTED) -> OutageResult:
    """Run one policy through the outage."""
    return _OutageRun(policy, params).run()


def _indices_below(rng: Random, n: int) -> Iterator[int]:
    """Uniform indices by the rejection of ``Random.choice``, drawn only when asked for."""
    return filter(n.__gt__, map(rng.getrandbits, repeat(n.bit_length())))


class _Tally:
    """A phase in the making."""

    __slots__ = ("dropped", "failed", "latency", "offered", "redundant")

    def __init__(self) -> None:
        self.offered = self.failed = self.redundant = self.dropped = 0
        self.latency: Counter[int] = Counter()

    def phase(self) -> PhaseCounts:
        latency = tuple(sorted(self.latency.items()))
        return PhaseCounts(self.offered, self.failed, self.redundant, self.dropped, latency)


class _OutageRun:
    """One run: requests wait oldest first, each call takes a slot of a replica drawn at random."""

    __slots__ = (
        "_draw",
        "_eligible",
        "_error_rate",
        "_free",
        "_index_below",
        "_open_until",
        "_params",
        "_policy",
        "_sick_below",
        "_tally",
        "_tick",
    )

    def __init__(self, policy: OutagePolicy, params: OutageParams) -> None:
        rng = Random(params.seed)
        self._draw = rng.random
        self._index_below = [_indices_below(rng, n) for n in range(params.replicas + 1)]
        self._policy = policy
        self._params = params
        self._error_rate = [0.0] * params.replicas
        self._open_until = [0] * params.replicas
        self._free = [0] * params.replicas
        self._eligible: list[int] = []  # replicas that may be called, in order; kept, not rebuilt
        self._sick_below = 0  # replicas with a smaller index are sick now
        self._tally = _Tally()
        self._tick = 0

    def run(self) -> OutageResult:
        params = self._params
        tallies = [_Tally(), _Tally(), _Tally()]
        kept = params.arrivals * params.backlog_ticks
        backlog: list[int] = []  # arrival ticks, oldest first
        for tick in range(params.ticks):
            self._open_tick(tick, tallies[params.phase(tick)])
            backlog = self._serve_all([*backlog, *([tick] * params.arrivals)])
            self._tally.offered += params.arrivals
            self._tally.dropped += max(0, len(backlog) - kept)
            del backlog[kept:]
        return OutageResult(*(tally.phase() for tally in tallies))

    def _open_tick(self, tick: int, tally: _Tally) -> None:
        params = self._params
        self._tick = tick
        self._tally = tally
        sick = params.outage and params.phase(tick) == 1
        self._sick_below = params.replicas // 2 if sick else 0
        self._free = [params.slots] * params.replicas
        self._eligible = [r for r, until in enumerate(self._open_until) if until <= tick]

    def _serve_all(self, waiting: list[int]) -> list[int]:
        """Give each request its call or calls while there are slots; return those unserved."""
        answered: list[int] = []
        unserved: list[int] = []
        hedges = 0
        for position, arrived in enumerate(waiting):
            if not self._eligible:
                unserved += waiting[position:]
                break
            replica, ok = self._call(self._eligible)
            if arrived < self._tick and self._may_hedge(hedges, len(waiting) - position - 1):
                others = [r for r in self._eligible if r != replica]
                if others:
                    hedges += 1
                    _, twin_ok = self._call(others)
                    self._tally.redundant += ok and twin_ok
                    ok = ok or twin_ok
            (answered if ok else unserved).append(arrived)
        for arrived, requests in Counter(answered).items():
            self._tally.latency[self._tick - arrived + 1] += requests
        return unserved

    def _may_hedge(self, hedges: int, behind: int) -> bool:
        hedging = self._policy.hedging
        if hedging is Hedging.CAPPED:
            return hedges < self._params.hedges_per_tick
        if hedging is Hedging.SPARE:
            return sum(self._free) > behind
        return hedging is Hedging.ALWAYS

    def _call(self, choices: list[int]) -> tuple[int, bool]:
        """Draw a replica, take a slot of it, draw the outcome, and let its breaker learn."""
        replica = choices[next(self._index_below[len(choices)])]
        ok = replica >= self._sick_below and self._draw() < self._params.success
        self._error_rate[replica] *= 1.0 - self._params.smoothing
        if not ok:
            self._failed(replica)
        self._free[replica] -= 1
        if not self._free[replica] or self._open_until[replica] > self._tick:
            self._eligible.remove(replica)
        return replica, ok

    def _failed(self, replica: int) -> None:
        params = self._params
        self._tally.failed += 1
        self._error_rate[replica] += params.smoothing
        if self._policy.breaker and self._error_rate[replica] > params.trip:
            self._open_until[replica] = self._tick + params.cooldown_ticks


__all__ = [
    "BREAKER",
    "NAIVE",
    "Health",
    "Hedging",
    "OutageParams",
    "OutagePolicy",
    "OutageResult",
    "PhaseCounts",
    "RedundancyParams",
    "RedundancyResult",
    "run_outage",
    "run_redundancy",
]
