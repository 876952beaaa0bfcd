"""Faults to inject: the kind of fault, its target, and its time window.

A fault is a plain value and a schedule is a sorted list of them, so the chaos command, the
simulator and a unit test break a fleet in the same words. Drivers carry faults out; nothing here
reads a clock. A window is half open: a fault holds from ``at`` up to, not including, ``until``.

Rejected: one class per kind. A driver would dispatch on the type, a saved scenario would need a
tagged union, and eighteen classes would share the same four fields; one checked value does it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from random import Random
from typing import Final, Literal

from holdfast.core.types import Replica, nanos, require, seconds

EVERYONE: Final = "*"  # the target of a fault that holds for all replicas
FAULTS_MAX: Final = 100_000  # a schedule beyond this is a typing error in a rate; it is refused


class FaultKind(StrEnum):
    """The kinds of fault that can be injected: into a replica, a zone, a region, or the checker."""

    CRASH = "crash"
    HANG = "hang"  # accepts, never answers; the health endpoint stays green
    SLOW = "slow"  # every duration times ``factor``
    DRIP = "drip"  # tokens after the first come one per ``interval_s``
    FLAKY = "flaky"  # each attempt fails with ``probability``
    BLACK_HOLE = "black_hole"  # answers 500 within a millisecond: least-loaded, so tempting
    OOM = "oom"  # dies at the next request, exit 137, and again after each restart
    WRONG_OUTPUT = "wrong_output"  # plausible, fluent, wrong
    GARBAGE = "garbage"  # degenerate tokens
    EMPTY = "empty"  # 200 with zero tokens
    CUT = "cut"  # the stream is cut after ``tokens`` tokens
    LOAD_STALL = "load_stall"  # a start that never gets ready
    LEAK = "leak"  # memory climbs and is exhausted ``lead_s`` after the beginning
    REFUSE_BUSY = "refuse_busy"  # answers 429
    ZONE_LOSS = "zone_loss"  # all replicas of a zone crash; the target is the zone
    REGION_LOSS = "region_loss"  # all replicas of a region crash; the target is the region
    SPOT_NOTICE = "spot_notice"  # a notice, then a kill after ``lead_s``
    PARTITION = "partition"  # the gateway cannot reach it: connects time out
    PROBE_BLIND = "probe_blind"  # the checker is broken: probes fail, replicas serve well
    STOP = "stop"  # the process is stopped: its port accepts, not even its pages answer
    STALL = "stall"  # streams stop after ``tokens`` tokens, their connections stay open
    RESET = "reset"  # the connection is reset after ``tokens`` tokens
    SKEW = "skew"  # its host gets another driver and CUDA; it serves on


REPLICA_KINDS: Final[tuple[FaultKind, ...]] = tuple(
    kind
    for kind in FaultKind
    if kind not in (FaultKind.ZONE_LOSS, FaultKind.REGION_LOSS, FaultKind.PROBE_BLIND)
    # Not drawn at random: the schedule of every seed that somebody knows would be another one.
    and kind not in (FaultKind.STOP, FaultKind.STALL, FaultKind.RESET, FaultKind.SKEW)
)

_STORIES: Final[dict[FaultKind, str]] = {
    FaultKind.CRASH: "crashes and stays down",
    FaultKind.HANG: "accepts requests and never answers while its health endpoint stays green",
    FaultKind.SLOW: "takes {factor:g} times as long for everything",
    FaultKind.DRIP: "sends one token every {interval_s:g} s after the first",
    FaultKind.FLAKY: "fails {probability:.0%} of its attempts",
    FaultKind.BLACK_HOLE: "answers 500 within a millisecond",
    FaultKind.OOM: "runs out of memory at its next request, and again after each restart",
    FaultKind.WRONG_OUTPUT: "gives plausible wrong answers",
    FaultKind.GARBAGE: "emits degenerate tokens",
    FaultKind.EMPTY: "answers 200 without a single token",
    FaultKind.CUT: "cuts its streams after {tokens} tokens",
    FaultKind.LOAD_STALL: "never gets ready when it starts",
    FaultKind.LEAK: "leaks memory and dies of it after {lead_s:g} s",
    FaultKind.REFUSE_BUSY: "refuses everything with 429",
    FaultKind.ZONE_LOSS: "loses every replica",
    FaultKind.REGION_LOSS: "loses every replica",
    FaultKind.SPOT_NOTICE: "gets a spot notice and is killed {lead_s:g} s later",
    FaultKind.PARTITION: "cannot be reached: connects time out",
    FaultKind.PROBE_BLIND: "looks ill to a broken checker and serves well",
    FaultKind.STOP: "is stopped by a signal: nothing of it answers, not even its pages",
    FaultKind.STALL: "stops its streams after {tokens} tokens and keeps the connections open",
    FaultKind.RESET: "resets its connections after {tokens} tokens",
    FaultKind.SKEW: "runs on another CUDA than its peers after an update of its host",
}


@dataclass(slots=True, frozen=True)
class Fault:
    """One fault to inject: its kind, target, time window (ns) and parameters. A plain value.

    Raises ``ConfigError`` when built with a bad value.
    """

    kind: FaultKind
    target: str  # a replica id, a zone for ZONE_LOSS, a region for REGION_LOSS, or "*" for all
    at: int  # nanoseconds of core time
    until: int | None = None  # None = it is never repaired
    factor: float = 1.0  # SLOW: by how much
    probability: float = 1.0  # FLAKY: attempts that fail; WRONG_OUTPUT: answers that are wrong
    tokens: int = 0  # CUT, RESET and STALL: tokens that still come; FLAKY: work before it fails
    interval_s: float = 5.0  # DRIP: one token per this many seconds
    lead_s: float = 120.0  # SPOT_NOTICE and LEAK: from the beginning to the death; clouds give 120
    restart_mends: bool = False  # it sits in the process: the one started next does not have it

    def __post_init__(self) -> None:
        kinds = ", ".join(FaultKind)
        require(isinstance(self.kind, FaultKind), "fault.kind", f"is {self.kind!r}", f"use {kinds}")
        require(bool(self.target), "fault.target", "is empty", "name a replica, a zone, or '*'")
        require(self.at >= 0, "fault.at", f"is {self.at}", "use nanoseconds from the start, >= 0")
        ends_later = self.until is None or self.until > self.at
        require(
            ends_later, "fault.until", f"is {self.until}", "end after the fault begins, or None"
        )
        finite = isfinite(self.factor) and self.factor >= 1.0
        require(finite, "fault.factor", f"is {self.factor}", "use a factor of at least 1")
        slows = self.kind is not FaultKind.SLOW or self.factor > 1.0
        require(slows, "fault.factor", "is 1 for a slow fault", "use a factor above 1, such as 3")
        share = 0.0 < self.probability <= 1.0
        require(share, "fault.probability", f"is {self.probability}", "use a share in (0, 1]")
        require(self.tokens >= 0, "fault.tokens", f"is {self.tokens}", "use 0 or more tokens")
        interval = isfinite(self.interval_s) and self.interval_s > 0
        require(interval, "fault.interval_s", f"is {self.interval_s}", "use seconds above 0")
        lead = isfinite(self.lead_s) and self.lead_s >= 0
        require(lead, "fault.lead_s", f"is {self.lead_s}", "use 0 or more seconds")
        killed = self.kind is not FaultKind.SPOT_NOTICE or self.dies_at() is not None
        require(killed, "fault.until", "comes before the spot kill", "end it after at + lead_s")

    def touches(self, replica_id: str, zone: str, region: str = "") -> bool:
        """Return whether the fault targets this replica, whatever the time.

        By its zone or region for the loss of one, else by its id; ``*`` means all.
        """
        places = {FaultKind.ZONE_LOSS: zone, FaultKind.REGION_LOSS: region}
        return self.target in (places.get(self.kind, replica_id), EVERYONE)

    def holds(self, now: int) -> bool:
        """Return whether the fault is active at ``now`` (ns); at ``until`` itself it is over."""
        return self.at <= now and (self.until is None or now < self.until)

    def dies_at(self) -> int | None:
        """Return when (ns) the fault alone kills its target; None if never, or only on use."""
        if self.kind in (FaultKind.CRASH, FaultKind.ZONE_LOSS, FaultKind.REGION_LOSS):
            return self.at
        if self.kind not in (FaultKind.SPOT_NOTICE, FaultKind.LEAK):
            return None
        death = self.at + nanos(self.lead_s)
        return death if self.until is None or death < self.until else None

    def describe(self) -> str:
        """Return the fault as one sentence for people."""
        who = "every replica" if self.target == EVERYONE else self.target
        for kind, place in ((FaultKind.ZONE_LOSS, "zone"), (FaultKind.REGION_LOSS, "region")):
            if self.kind is kind:
                who = f"every {place}" if self.target == EVERYONE else f"{place} {self.target}"
        story = _STORIES[self.kind].format(
            factor=self.factor,
            probability=self.probability,
            tokens=self.tokens,
            interval_s=self.interval_s,
            lead_s=self.lead_s,
        )
        window = f"from {seconds(self.at):g} s"
        end = "for good" if self.until is None else f"until {seconds(self.until):g} s"
        return f"{who} {story}, {window} {end}"


Edge = tuple[int, Literal["begin", "end"], Fault]


class FaultSchedule:
    """Faults to inject, sorted by their beginning. It injects none itself. Immutable."""

    __slots__ = ("_by_region", "_by_replica", "_by_zone", "faults")

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        given = list(faults)
        many = f"holds {len(given)}"
        require(len(given) <= FAULTS_MAX, "schedule.faults", many, f"use at most {FAULTS_MAX}")
        # Stable: faults of one instant stay in the order the author wrote them.
        self.faults: tuple[Fault, ...] = tuple(sorted(given, key=lambda fault: fault.at))
        self._by_replica: dict[str, list[Fault]] = {}
        self._by_zone: dict[str, list[Fault]] = {}
        self._by_region: dict[str, list[Fault]] = {}
        places = {FaultKind.ZONE_LOSS: self._by_zone, FaultKind.REGION_LOSS: self._by_region}
        for fault in self.faults:
            index = places.get(fault.kind, self._by_replica)
            index.setdefault(fault.target, []).append(fault)

    def edges(self) -> list[Edge]:
        """Return all (time, "begin" or "end", fault), sorted by time; at one instant ends go first.

        Faults that never end have no end.
        """
        ends: list[Edge] = [(f.until, "end", f) for f in self.faults if f.until is not None]
        begins: list[Edge] = [(f.at, "begin", f) for f in self.faults]
        return sorted(ends + begins, key=lambda edge: edge[0])

    def active(self, target_replica: str, zone: str, now: int, region: str = "") -> list[Fault]:
        """Return the faults active for this replica now, by id, zone or region; earliest first."""
        found: list[Fault] = []
        for faults in (
            self._by_replica.get(target_replica),
            self._by_replica.get(EVERYONE),
            self._by_zone.get(zone),
            self._by_zone.get(EVERYONE),
            self._by_region.get(region),
            self._by_region.get(EVERYONE),
        ):
            if faults is not None:
                found.extend(fault for fault in faults if fault.holds(now))
        if len(found) > 1:
            found.sort(key=lambda fault: fault.at)
        return found

    def describe(self) -> list[str]:
        """Return one sentence per fault, earliest first."""
        return [fault.describe() for fault in self.faults]

    def __len__(self) -> int:
        return len(self.faults)

    def __repr__(self) -> str:
        return f"FaultSchedule({len(self.faults)} faults)"


def random_schedule(
    rng: Random,
    replicas: Sequence[Replica],
    horizon: int,
    rate_per_replica_hour: float,
    *,
    kinds: Sequence[FaultKind] = REPLICA_KINDS,
    duration_s: tuple[float, float] = (10.0, 300.0),  # from a blip to a slow human
    affected_share_max: float = 0.5,  # beyond half, no policy can be judged: nothing is left
) -> FaultSchedule:
    """Return a ``FaultSchedule`` drawn as a Poisson process per replica, with a bound on those hit.

    Times up to ``horizon`` (ns). A fault that would exceed ``floor(share x replicas)`` at once or
    hit a replica already hit is dropped. PROBE_BLIND counts no replica as hit, one at a time.
    Raises ``ConfigError`` for bad arguments.
    """
    _check_draw(replicas, horizon, rate_per_replica_hour, kinds)
    _check_shape(duration_s, affected_share_max)
    mean_gap_s = 3600.0 / rate_per_replica_hour
    starts: list[tuple[int, int]] = []
    for index in range(len(replicas)):
        at = nanos(rng.expovariate(1.0) * mean_gap_s)
        while at < horizon:
            starts.append((at, index))
            at += max(1, nanos(rng.expovariate(1.0) * mean_gap_s))
    busy_until = {replica.id: 0 for replica in replicas}
    blind_until = 0
    faults: list[Fault] = []
    allowed = int(affected_share_max * len(replicas) + 1e-9)  # 0.29 x 100 is 28.999… in floats
    for at, index in sorted(starts):
        fault = _draw(rng, replicas[index], at, rng.choice(kinds), duration_s)
        end = at if fault.until is None else fault.until
        if fault.kind is FaultKind.PROBE_BLIND:
            if blind_until <= at:
                blind_until = end
                faults.append(fault)
            continue
        hit = [one.id for one in replicas if fault.touches(one.id, one.zone, one.region)]
        suffering = sum(1 for until in busy_until.values() if until > at)
        if all(busy_until[name] <= at for name in hit) and suffering + len(hit) <= allowed:
            busy_until.update((name, end) for name in hit)
            faults.append(fault)
    return FaultSchedule(faults)


def _draw(
    rng: Random, replica: Replica, at: int, kind: FaultKind, duration_s: tuple[float, float]
) -> Fault:
    """One fault with parameters wide enough to cross every detector's threshold both ways.

    Each fault takes the same number of draws whatever its kind, so that changing the kinds of a
    scenario does not move the times of the others.
    """
    span = nanos(rng.uniform(*duration_s))
    first, second = rng.random(), rng.random()
    target = replica.id
    if kind is FaultKind.ZONE_LOSS:
        target = replica.zone
    elif kind is FaultKind.REGION_LOSS:
        target = replica.region
    elif kind is FaultKind.PROBE_BLIND:
        target = EVERYONE
    lead_s = 10.0 + 110.0 * second  # from a hurried notice to the usual two minutes
    dying_first = kind in (FaultKind.SPOT_NOTICE, FaultKind.LEAK)
    until = at + max(1, span) + (nanos(lead_s) if dying_first else 0)
    factor = 1.5 + 8.5 * first if kind is FaultKind.SLOW else 1.0
    probability = 0.1 + 0.9 * first if kind is FaultKind.FLAKY else 1.0
    tokens = int(64 * first) if kind is FaultKind.CUT else 0
    return Fault(kind, target, at, until, factor, probability, tokens, 1.0 + 9.0 * first, lead_s)


def _check_draw(
    replicas: Sequence[Replica], horizon: int, rate: float, kinds: Sequence[FaultKind]
) -> None:
    """Refuse a draw without replicas, time or kinds, and one beyond the bound of a schedule."""
    require(bool(replicas), "random_schedule.replicas", "is empty", "give at least one replica")
    require(horizon > 0, "random_schedule.horizon", f"is {horizon}", "use nanoseconds above 0")
    require(bool(kinds), "random_schedule.kinds", "is empty", "give at least one kind")
    field = "random_schedule.rate_per_replica_hour"
    require(isfinite(rate) and rate > 0, field, f"is {rate}", "use a rate above 0")
    expected = rate * len(replicas) * seconds(horizon) / 3600.0
    many = f"asks for about {expected:.0f} faults"
    require(expected <= FAULTS_MAX / 2, field, many, "lower it or shorten the horizon")


def _check_shape(duration_s: tuple[float, float], share: float) -> None:
    low, high = duration_s
    ordered = 0 < low <= high and isfinite(high)
    require(ordered, "random_schedule.duration_s", f"is {duration_s}", "use 0 < low <= high")
    within = 0 < share <= 1
    require(within, "random_schedule.affected_share_max", f"is {share}", "use a share in (0, 1]")


__all__ = [
    "EVERYONE",
    "FAULTS_MAX",
    "REPLICA_KINDS",
    "Edge",
    "Fault",
    "FaultKind",
    "FaultSchedule",
    "random_schedule",
]
