"""Detects a lasting slowdown of a replica's canaries on an idle engine, against its own past.

A canary asks the same thing every time. On an idle replica its latency has one owner, the
environment: a driver, a clock that throttles, a neighbour, a fallback to a slower kernel. Each
replica is held to its own past, learned once and then frozen; the fleet's comparison with peers
(``canary_slow``) cannot see what moves all of them together, and this can.

    right answers with nothing else running ─► log latency ─► CUSUM upward ─► still slower now?
        ├─► slower than the other hosts have become meanwhile, for 20 min ─► this replica
        └─► as much slower as they have, for 20 min ─► its model: something that all share

Logarithms, because a latency is slower by a factor; a median and its spread, because one canary in
ten runs beside other work. It must last: neighbours come and go within a quarter of an hour, what
was changed stays. Becoming faster is no failure and is not reported. An answer that was right and
judged slow counts as well: leaving it out would hide the drift.

What most other hosts have in common at that time is no one's own. It is taken off before a replica
is accused, and its time is counted apart: a neighbour for a quarter of an hour, and then some
minutes in which everybody is slow, are no change of one environment. All replicas of one host may
drift together, for an update does that; each host has one vote, and its own does not count.

Rejected: the fleet's ``UsualLatency`` as this past. It is the lower of the medians of the first and
of the last 64 canaries; its first 64 are the first five minutes. In made-up series (12 hours, 5%
noise, 5 seeds) a replica that takes 1.3 times as long from its 6th or its 12th minute on was
accused in 5 of 5 runs, and by this past in none: that is within its learning. A jump after two
hours is found by both, 5 s apart in one run; a creep to 1.5 times over six hours is found 290 s
later by this past.

Rejected: learning from busy replicas with the load regressed out. Batching makes that relation a
staircase, and idle moments come often enough.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import fmean, median
from typing import ClassVar, Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import CanaryAnswered
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, nanos, require

_CLIP: Final = 4.0  # sigma that one canary counts for at most: a single stall is no drift
_LEARNED_MAX: Final = 512  # latencies kept of a baseline in the making; later ones wait
_RECENT: Final = 9  # canaries whose median is "now": four of them may be odd
_UNSEEN: Final = 60 * SECOND  # between two idle canaries; what was in a longer gap is unknown
_FEW: Final = 5  # canaries: fewer have no middle
_ALIKE: Final = 0.5  # of what matters: other hosts that moved by less have not moved
_VOTES_EVERY: Final = 5 * SECOND  # other hosts are asked: a large fleet has thousands of canaries


@dataclass(slots=True, frozen=True)
class CanaryDriftConfig:
    """Settings: how much slower, and for how long, canaries on an idle engine must be.

    Checked when built: raises ``ConfigError``.
    """

    window_s: float = 1_800.0  # of the baseline: half an hour has warmed every cache
    samples_min: int = 60  # idle canaries in it
    spread_min: float = 0.05  # of latency: below it a scheduler's jitter would count as drift
    slack: float = 0.5  # sigma; half of the shift to find
    threshold: float = 12.0  # CUSUM, in sigma; with the slack one false alarm in a million
    factor_min: float = 1.25  # it must be slower by so much to matter
    hold_s: float = 1_200.0  # and for so long: neighbours are gone after a quarter of an hour

    def __post_init__(self) -> None:
        for name in ("window_s", "spread_min", "slack", "threshold", "hold_s"):
            value = getattr(self, name)
            fix = "use a positive number"
            require(0 < value < 1e9, f"canary_drift.{name}", f"is {value}", fix)
        few = self.samples_min
        fix = f"use 20 to {_LEARNED_MAX}"
        require(20 <= few <= _LEARNED_MAX, "canary_drift.samples_min", f"is {few}", fix)
        factor = f"is {self.factor_min}"
        require(self.factor_min > 1, "canary_drift.factor_min", factor, "use a factor above 1")


class _Past:
    """One replica's idle latencies: learned, frozen, compared."""

    __slots__ = (
        *("alike", "began", "centre", "held", "last", "learned", "level", "recent", "slack"),
        *("spread", "sum", "told"),
    )

    def __init__(self, now: int) -> None:
        self.began = now
        self.learned: list[float] = []
        self.centre: float | None = None  # of log latency; None while it learns
        self.spread = 0.0
        self.slack = 0.0
        self.sum = 0.0
        self.recent: deque[float] = deque(maxlen=_RECENT)
        self.level = 0.0  # how much slower it is at present (log); 0 until that is known
        # For how long it was seen to be slower: more than other hosts, and as much as they are.
        self.held: int | None = None  # None: it is not slower
        self.alike = 0
        self.told: object = None  # of whom it was last said: the replica, or its model
        self.last = now

    def learn(self, value: float, config: CanaryDriftConfig, now: int) -> None:
        if len(self.learned) < _LEARNED_MAX:
            self.learned.append(value)
        enough = len(self.learned) >= config.samples_min
        if not enough or now - self.began < nanos(config.window_s):
            return
        self.centre = median(self.learned)
        deviation = median(abs(one - self.centre) for one in self.learned)
        self.spread = max(1.4826 * deviation, config.spread_min)  # of a normal distribution
        # The median of few is off by its own error, 1.25 sigma over the root of their number.
        self.slack = config.slack + 2 * 1.25 / sqrt(len(self.learned))
        self.learned = []

    def add(self, distance: float, config: CanaryDriftConfig, now: int) -> int | None:
        """Add one idle canary; return the time to count where it is slower, ``None`` if it is not.

        Over when half of it is gone.
        """
        step = min(max(distance / self.spread, -_CLIP), _CLIP) - self.slack
        self.sum = min(max(0.0, self.sum + step), config.threshold * 1.5)
        self.recent.append(distance)
        self.level = median(self.recent) if len(self.recent) >= _FEW else 0.0
        passed, self.last = min(max(0, now - self.last), _UNSEEN), now
        part = 1.0 if self.held is None else 0.5
        if self.sum <= part * config.threshold or self.level < part * log(config.factor_min):
            self.held, self.alike = None, 0
            return None
        if self.held is None:
            self.held = passed = 0
        return passed

    def is_known(self, now: int) -> bool:
        """Whether ``level`` is of now, and of enough canaries."""
        return len(self.recent) >= _FEW and 0 <= now - self.last <= _UNSEEN


class _HostVotes:
    """How much slower each host is than it was: the median over its replicas (log).

    A replica whose host is not known has a vote of its own.
    """

    __slots__ = ("_at", "_by_place", "_sorted")

    def __init__(self) -> None:
        self._at: int | None = None
        self._by_place: dict[str | tuple[str], float] = {}
        self._sorted: list[float] = []

    def elsewhere(
        self, replica: str, pasts: dict[str, _Past], census: ReplicaRegistry, now: int
    ) -> float:
        """The median slowdown (log) of all hosts except this replica's; 0 if none is known.

        Counted anew every five seconds.
        """
        if self._at is None or not 0 <= now - self._at < _VOTES_EVERY:
            self._count(pasts, census, now)
        own = self._by_place.get(_place(replica, census))
        levels = self._sorted
        left_out = len(levels) if own is None else bisect_left(levels, own)
        count = len(levels) - (own is not None)
        if not count:
            return 0.0
        middle = {(count - 1) // 2, count // 2}
        return fmean(levels[at if at < left_out else at + 1] for at in middle)

    def _count(self, pasts: dict[str, _Past], census: ReplicaRegistry, now: int) -> None:
        levels: dict[str | tuple[str], list[float]] = {}
        for replica, past in pasts.items():
            if past.is_known(now):
                levels.setdefault(_place(replica, census), []).append(past.level)
        self._at = now
        self._by_place = {place: median(found) for place, found in levels.items()}
        self._sorted = sorted(self._by_place.values())


def _place(replica: str, census: ReplicaRegistry) -> str | tuple[str]:
    known = census.replicas.get(replica)
    return known.host if known is not None and known.host else (replica,)


class CanaryDriftDetector:
    """Finds replicas whose canaries on an idle engine became lastingly slower than they were.

    Keeps per replica a baseline learned once and frozen. What most other hosts share is held
    against the model, not the replica.
    """

    reads: ClassVar[tuple[type, ...]] = (CanaryAnswered,)

    def __init__(self, config: CanaryDriftConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._pasts: dict[str, _Past] = {}
        self._votes = _HostVotes()
        self._pace = Pace()

    def take(self, fact: CanaryAnswered, now: int) -> Sequence[Evidence]:
        """Take one canary result; return ``CANARY_DRIFTED`` if it has been slower for 20 minutes.

        Only right answers with nothing else running count; the first half hour (60 of them) is
        learned and judged by nothing.
        """
        latency = fact.latency_s
        if not fact.verdict.right or fact.running != 0 or latency is None:
            return NOTHING
        if fact.replica not in self._census.replicas or not 0 < latency < inf:
            return NOTHING
        past = self._pasts.get(fact.replica)
        if past is None:
            past = self._pasts[fact.replica] = _Past(now)
        if past.centre is None:
            if fact.verdict is CanaryVerdict.PASS:
                past.learn(log(latency), self._config, now)
            return NOTHING
        distance = log(latency) - past.centre
        passed = past.add(distance, self._config, now)
        if passed is None:
            self._pace.over(past.told)
            return NOTHING
        slower = log(self._config.factor_min)
        if past.level < slower:  # what is left of it later neither counts nor ends it
            return NOTHING
        others = self._votes.elsewhere(fact.replica, self._pasts, self._census, now)
        own = others < _ALIKE * slower or past.level - others >= slower
        if own:
            past.held = lasted = (past.held or 0) + passed
        else:
            past.alike = lasted = past.alike + passed
        if lasted < nanos(self._config.hold_s) or distance < 0.5 * slower:
            return NOTHING
        return self._tell(fact.replica, past, now, own=own)

    def _tell(self, replica: str, past: _Past, now: int, *, own: bool) -> Sequence[Evidence]:
        """What has changed: for this replica, or for its model where other hosts share it."""
        about = self._census.about(replica)
        subject: object = replica
        if not own:
            about = About(model=about.model, revision=about.revision)
            subject = (about.model, about.revision)
        if not self._pace.due(subject, now):
            return NOTHING
        past.told = subject
        assert past.centre is not None, "what drifted was learned"
        before, present = exp(past.centre), exp(past.centre + past.level)
        text = (
            f"canaries of {replica} take {present:.3g} s with nothing else running, "
            f"{before:.3g} s before: {present / before:.1f} times as long"
        )
        if not own:
            text += ", and most other hosts have slowed down with it"
        numbers = {"before_s": before, "now_s": present, "factor": present / before}
        return (Evidence(Sign.CANARY_DRIFTED, about, now, "latency", text, numbers),)

    def forget(self, replica: str) -> None:
        """Drop a replica's baseline and recent latencies; an end of its process does not."""
        past = self._pasts.pop(replica, None)
        if past is not None:
            self._pace.over(past.told)


__all__ = ["CanaryDriftConfig", "CanaryDriftDetector"]
