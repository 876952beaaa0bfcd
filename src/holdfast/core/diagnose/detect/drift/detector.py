"""Detects answers that changed: longer, shorter, less certain or on another scale than before.

A dependency changes, a driver rounds otherwise, a quantised file takes the place of another: every
answer still comes, and all of them are a little different. Each model and revision has a baseline
of its healthy answers, learned once, frozen and versioned. Every later value is placed in it:

    value ─► its rank in the baseline, as a normal score ─► two-sided CUSUM per replica: decides
                                                        └─► deciles since it began: PSI confirms

Ranks because lengths have tails without end and scores pile up at their bounds: a rank has a normal
distribution whatever the values had, and one huge value weighs no more than three sigma. PSI
measures the size of what the CUSUM found, so that a shift which is real and too small to matter, as
when a router sends one replica slightly other prompts, is not reported.

A shift is first *suspected*, and then *reported*. The threshold of suspicion finds half a sigma
within 60 samples at the median, and chance crosses it less than once in 40,000; a perfectly known
baseline would make that once in some 60,000, and no rule has much more of both: the information is
not there. A replica may well give 40,000 samples a day, so that a suspicion is not an incident yet:
the replica's canaries are called, which cost little and may prove it at once. Some thirty samples
later the same sum is at the threshold of an incident, which chance reached 3 times in 20 million
(``bench/detectors.py``); and where a replica gives 100,000 samples a day that threshold rises with
the logarithm of the volume, so that ``false_alarm_days`` holds for it, too.

A shift of most replicas at once is of the model, or of its users: it is reported once, about the
model, and only after it has lasted. The two-sigma line of common practice is in the numbers and
decides nothing: a mean that moved by one sigma never crosses it. Rejected: a baseline that follows
(it learns the drift), and CUSUM on plain values (one long answer is an alarm).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, ClassVar, Final, NamedTuple

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.detect.drift.baseline import BINS, Baseline, Key, Learning, Ruler
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import OutputSeen
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, nanos, require, seconds

STATISTICS: Final = ("length", "logprob", "score", "norm")
BASELINES_MAX: Final = 512  # models × revisions × statistics; beyond it none is learned
_RECENT: Final = 0.02  # weight of an answer in what a replica is at present: the last 50 or so
_HOUR: Final = 3_600 * SECOND
_TOLD_AT_MAX: Final = 48.0  # a thousand samples a second, and more


@dataclass(slots=True, frozen=True)
class DriftConfig:
    """How large a shift of answers' statistics is suspected, and how large is reported."""

    window_s: float = 86_400.0  # of the baseline: a day has all of its hours
    samples_min: int = 500  # in it: fewer do not say where the middle is
    slack: float = 0.25  # half of the shift to find, in sigma
    found_at: float = 18.0  # CUSUM, in sigma: half a sigma within 60 samples; canaries are called
    told_at: float = 25.0  # the same, for an incident: some 30 samples later
    told_samples: int = 400_000  # up to which volume that is enough; above, it rises
    false_alarm_days: float = 90.0  # over which the volume counts; a false alarm takes 4 times that
    psi_min: float = 0.2  # by convention a change that matters; half a sigma has 0.24
    together_share: float = 0.6  # of the replicas that moved alike: it is the model or its users
    together_s: float = 1_800.0  # how long that must last: a campaign of one customer is shorter

    def __post_init__(self) -> None:
        for name in ("window_s", "together_s", "found_at", "false_alarm_days", "psi_min"):
            value = getattr(self, name)
            require(0 < value < 1e9, f"drift.{name}", f"is {value}", "use a positive number")
        few = f"is {self.samples_min}"
        require(self.samples_min >= 100, "drift.samples_min", few, "use 100 or more")
        fix = "use between 0 and 1: half of the shift to find, in sigma"
        require(0 < self.slack < 1, "drift.slack", f"is {self.slack}", fix)
        field, told_at = "drift.told_at", self.told_at
        fix = f"use found_at, {self.found_at}, or more"
        require(self.found_at <= told_at <= _TOLD_AT_MAX, field, f"is {told_at}", fix)
        volume = self.told_samples
        require(volume >= 1, "drift.told_samples", f"is {volume}", "use 1 or more")
        share = self.together_share
        require(0.5 <= share <= 1, "drift.together_share", f"is {share}", "use 0.5 to 1")


class _Side:
    """One direction of the CUSUM, and what was seen since it last was at zero."""

    __slots__ = ("began", "bins", "count", "older", "scores", "sum", "total", "turn_at")

    def __init__(self) -> None:
        self.sum = 0.0
        self._clear()

    def _clear(self) -> None:
        self.bins = [0] * BINS
        self.older = [0] * BINS  # the hour before, so that PSI is of the last hour or two
        self.count = 0
        self.scores = self.total = 0.0
        self.began = self.turn_at = 0

    def add(self, step: float, ceiling: float, decile: int, value: float, now: int) -> None:
        level = self.sum + step
        if level <= 0:
            self.sum = 0.0
            if self.count:
                self._clear()
            return
        self.sum = level if level < ceiling else ceiling  # beyond it, recovery would take for ever
        if not self.count:
            self.began, self.turn_at = now, now + _HOUR
        elif now >= self.turn_at:
            self.older, self.bins = self.bins, [0] * BINS
            self.turn_at = now + _HOUR
        self.count += 1
        self.scores += step
        self.total += value
        self.bins[decile] += 1

    def psi(self, expected: Sequence[float]) -> float:
        """Population stability index against the baseline's shares."""
        count = sum(self.bins) + sum(self.older) + 0.5 * BINS
        found = 0.0
        for young, old, share in zip(self.bins, self.older, expected, strict=True):
            here = (young + old + 0.5) / count
            found += (here - share) * log(here / share)
        return found


class _Track:
    """One statistic of one replica, against one baseline."""

    __slots__ = ("down", "found", "last", "moved", "recent", "ruler", "up")

    def __init__(self, ruler: Ruler) -> None:
        self.ruler = ruler
        self.recent = ruler.baseline.mean  # for charts; it decides nothing
        self.up, self.down = _Side(), _Side()
        self.last = 0
        self.found = False  # one side is above its first line, or has not come back far enough
        self.moved = ""  # up or down, while it holds

    def add(self, value: float, now: int) -> None:
        ruler = self.ruler
        score, decile = ruler.place(value)
        ceiling = ruler.told_at + 10
        self.up.add(score - ruler.slack, ceiling, decile, value, now)
        self.down.add(-score - ruler.slack, ceiling, decile, value, now)
        self.recent += _RECENT * (value - self.recent)
        self.last = now

    def suspect(self, found_at: float) -> _Side | None:
        """The side that just crossed the first line; over when half of the sum is gone."""
        side = self.up if self.up.sum >= self.down.sum else self.down
        before = self.found
        self.found = side.sum > (0.5 * found_at if before else found_at)
        return side if self.found and not before else None

    def judge(self, psi_min: float) -> _Side | None:
        """The side that has moved. It is over when half of the sum is gone."""
        for name, side in (("up", self.up), ("down", self.down)):
            limit = self.ruler.told_at * (0.5 if self.moved == name else 1.0)
            if side.sum > limit and side.psi(self.ruler.shares) > psi_min:
                self.moved = name
                return side
        self.moved = ""
        return None


class DriftFigures(NamedTuple):
    """The present mean of a model's statistic, its baseline mean, and how far it has moved."""

    statistic: str
    now: float  # mean over its replicas of their latest answers
    before: float  # mean of the baseline
    cusum: float  # of the replica that moved furthest; at 1 it is told


class OutputDriftDetector:
    """Learns healthy output per model, revision and statistic; finds replicas that deviate."""

    reads: ClassVar[tuple[type, ...]] = (OutputSeen,)

    def __init__(self, config: DriftConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._learning: dict[Key, Learning] = {}
        self._rulers: dict[Key, Ruler] = {}
        self._tracks: dict[str, dict[str, _Track]] = {}
        self._pace = Pace()
        self.refused = 0  # values that are no numbers, statistics nobody knows, baselines too many

    def take(self, fact: OutputSeen, now: int) -> Sequence[Evidence]:
        """Take statistics of a replica's finished answers; learn them or return drift signs."""
        known = self._census.replicas.get(fact.replica)
        if known is None or fact.statistic not in STATISTICS:
            self.refused += known is not None
            return NOTHING
        values = [value for value in fact.values if isfinite(value)]
        self.refused += len(fact.values) - len(values)
        key = (known.model, known.revision, fact.statistic)
        ruler = self._rulers.get(key)
        if ruler is None:
            self._learn(key, fact.replica, values, now)
            return NOTHING
        tracks = self._tracks.setdefault(fact.replica, {})
        track = tracks.get(fact.statistic)
        if track is None or track.ruler is not ruler:
            track = tracks[fact.statistic] = _Track(ruler)
        for value in values:
            track.add(value, now)
        found = self._find(fact.replica, track, now)
        side = track.judge(self._config.psi_min)
        if side is None:
            self._pace.over((fact.replica, fact.statistic))
            return found
        return (*found, *self._tell(fact.replica, track, side, now))

    def forget(self, replica: str) -> None:
        """Drop a replica's recorded values; the baseline of its model stays."""
        for statistic in self._tracks.pop(replica, {}):
            self._pace.over((replica, statistic))

    def figures(self) -> dict[str, DriftFigures]:
        """For each model the statistic that moved furthest from its baseline, for charts."""
        tracks: dict[tuple[str, str], list[_Track]] = {}
        for own in self._tracks.values():
            for statistic, track in own.items():
                tracks.setdefault((track.ruler.baseline.model, statistic), []).append(track)
        found: dict[str, DriftFigures] = {}
        for (model, statistic), some in tracks.items():
            now = sum(one.recent for one in some) / len(some)
            before = sum(one.ruler.baseline.mean for one in some) / len(some)
            level = max(max(one.up.sum, one.down.sum) / one.ruler.told_at for one in some)
            if model not in found or level > found[model].cusum:
                found[model] = DriftFigures(statistic, now, before, level)
        return found

    def baselines(self) -> dict[str, Any]:
        """Every frozen baseline, as JSON-ready data."""
        return {"baselines": [ruler.baseline.plain() for ruler in self._rulers.values()]}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Load baselines of an earlier run; one being learned for the same key is dropped."""
        for plain in data.get("baselines", ()):
            try:
                baseline = Baseline(**{**plain, "grid": tuple(plain["grid"])})
            except (TypeError, KeyError) as error:
                raise ValueError(f"this is no baseline: {error}") from error
            if len(self._rulers) < BASELINES_MAX:
                key = (baseline.model, baseline.revision, baseline.statistic)
                self._rulers[key] = self._ruler(baseline)
                self._learning.pop(key, None)
            else:
                self.refused += 1

    def _learn(self, key: Key, replica: str, values: Sequence[float], now: int) -> None:
        learning = self._learning.get(key)
        if learning is None:
            if len(self._learning) + len(self._rulers) >= BASELINES_MAX and not self._make_room():
                self.refused += len(values)
                return
            learning = self._learning[key] = Learning(now)
        learning.replicas.add(replica)
        for value in values:
            learning.add(value)
        enough = learning.moments.count >= self._config.samples_min
        if enough and now - learning.began >= nanos(self._config.window_s):
            del self._learning[key]
            self._rulers[key] = self._ruler(learning.freeze(key, now))

    def _ruler(self, baseline: Baseline) -> Ruler:
        """What is told rises with the volume, so that chance tells as little of it."""
        config = self._config
        volume = baseline.samples_per_day * config.false_alarm_days / config.told_samples
        raised = config.told_at + log(max(1.0, volume)) / (2 * config.slack)
        return Ruler(baseline, config.slack, min(raised, _TOLD_AT_MAX))

    def _make_room(self) -> bool:
        """Drop what belongs to revisions that nobody serves any more."""
        served = {(one.model, one.revision) for one in self._census.replicas.values()}
        books: tuple[dict[Key, Any], ...] = (self._rulers, self._learning)
        for book in books:
            for key in [key for key in book if key[:2] not in served]:
                del book[key]
        return len(self._learning) + len(self._rulers) < BASELINES_MAX

    def _find(self, replica: str, track: _Track, now: int) -> Sequence[Evidence]:
        """What may be a shift, once."""
        side = track.suspect(self._config.found_at)
        if side is None:
            return NOTHING
        mean, before = side.total / side.count, track.ruler.baseline.mean
        text = (
            f"the {track.ruler.baseline.statistic} of answers of {replica} may have moved: mean "
            f"{before:.4g} before, {mean:.4g} over the last {side.count} samples"
        )
        numbers = {"before": before, "now": mean, "samples": float(side.count), "cusum": side.sum}
        about = self._census.about(replica)
        return (Evidence(Sign.OUTPUT_SUSPECTED, about, now, "drift", text, numbers),)

    def _tell(self, replica: str, track: _Track, side: _Side, now: int) -> Sequence[Evidence]:
        baseline = track.ruler.baseline
        moved, of = self._company(replica, track, now)
        together = of >= 2 and moved >= self._config.together_share * of
        subject: object = (replica, baseline.statistic)
        about = self._census.about(replica)
        whose = f"answers of {replica}"
        if together:
            if now - side.began < nanos(self._config.together_s):
                return NOTHING
            subject = (baseline.model, baseline.revision, baseline.statistic)
            about = About(model=baseline.model, revision=baseline.revision)
            whose = f"answers of {moved} of {of} replicas of {baseline.model}"
        if not self._pace.due(subject, now):
            return NOTHING
        low, high = baseline.two_sigma
        mean = side.total / side.count
        psi = side.psi(track.ruler.shares)
        shift = side.scores / side.count + track.ruler.slack
        crossed = "outside" if not low <= mean <= high else "within"
        text = (
            f"the {baseline.statistic} of {whose} moved {track.moved} by {shift:.1f} sigma over "
            f"the last {side.count} samples: mean {baseline.mean:.4g} before, {mean:.4g} now, PSI "
            f"{psi:.2f}; that is {crossed} the two-sigma line {low:.4g} to {high:.4g}"
        )
        numbers = {
            "before": baseline.mean,
            "now": mean,
            "before_p95": baseline.p95,
            "shift_sigma": shift if track.moved == "up" else -shift,
            "cusum": side.sum,
            "cusum_limit": track.ruler.told_at,
            "psi": psi,
            "two_sigma_low": low,
            "two_sigma_high": high,
            "samples": float(side.count),
            "since_s": seconds(now - side.began),
            "baseline_version": float(baseline.version),
            "replicas": float(moved if together else 1),
        }
        return (Evidence(Sign.OUTPUT_DRIFTED, about, now, "drift", text, numbers),)

    def _company(self, replica: str, track: _Track, now: int) -> tuple[int, int]:
        """How many of its model's replicas moved as it did, of how many that answered lately."""
        moved = of = 1
        up = track.moved == "up"
        for peer in self._census.peers(replica):
            one = self._tracks.get(peer, {}).get(track.ruler.baseline.statistic)
            if one is not None and one.ruler is track.ruler and now - one.last < _HOUR:
                of += 1
                # A third of the way is as far: both are noisy, and the healthy are hardly there.
                theirs, own = (one.up.sum, track.up.sum) if up else (one.down.sum, track.down.sum)
                moved += theirs > 0.3 * own
        return moved, of


__all__ = [
    "BASELINES_MAX",
    "STATISTICS",
    "DriftConfig",
    "DriftFigures",
    "OutputDriftDetector",
]
