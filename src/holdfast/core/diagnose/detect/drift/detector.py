"""Detects answers that changed: longer, shorter, less certain or on another scale than before.

A dependency changes, a driver rounds otherwise, a quantised file takes the place of another: every
answer still comes, and all of them are a little different. Each model and revision has a baseline
of its healthy answers, learned once, frozen and versioned. Every later value is placed in it:

    value ─► its rank in the baseline, as a normal score ─► two-sided CUSUM per replica: decides
         └─► how far that is from the middle ─────────────► the same for the spread: p95, tails
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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, ClassVar, Final, NamedTuple

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.detect.drift.baseline import (
    FIRST_VERSION,
    Baseline,
    Key,
    Learning,
    Ruler,
    accepted,
    p95_of,
)
from holdfast.core.diagnose.detect.drift.track import HOUR, NARROWER, UP, WIDER, Side, Track
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import OutputSeen, RolloutSeen
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import nanos, require, seconds

STATISTICS: Final = ("length", "logprob", "score", "norm")
TENSOR_STATISTICS: Final = (".mean", ".max")  # after an output's name
STATISTICS_MAX: Final = 16  # of one model and revision; engines name outputs, and few
ACCEPTED_MIN: Final = 100  # answers: fewer do not say where the middle is
_NAME_MAX: Final = 64
BASELINES_MAX: Final = 512  # models × revisions × statistics; beyond it none is learned
_TOLD_AT_MAX: Final = 48.0  # a thousand samples a second, and more


@dataclass(slots=True, frozen=True)
class DriftConfig:
    """Settings: how large a shift of answers' statistics is suspected, and how large reported."""

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


class DriftFigures(NamedTuple):
    """Figures now of the statistic of a model that moved furthest: mean, baseline mean, CUSUM."""

    statistic: str
    now: float  # mean over its replicas of their latest answers
    before: float  # mean of the baseline
    cusum: float  # of the replica that moved furthest; at 1 it is told


class OutputDriftDetector:
    """Learns baselines per model, revision and statistic; finds replicas that move from them."""

    reads: ClassVar[tuple[type, ...]] = (OutputSeen, RolloutSeen)

    def __init__(self, config: DriftConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._learning: dict[Key, Learning] = {}
        self._rulers: dict[Key, Ruler] = {}
        self._tracks: dict[str, dict[str, Track]] = {}
        self._versions: dict[Key, int] = {}  # of baselines that were dropped: the next counts on
        self._rebuilt: set[str] = set()  # models whose rollout keeps their revision
        self._pace = Pace()
        self.refused = 0  # values that are no numbers, statistics nobody knows, baselines too many

    def take(self, fact: OutputSeen | RolloutSeen, now: int) -> Sequence[Evidence]:
        """Take statistics of a replica's answers, or a rollout's step; return drift evidence.

        Values are learned (a day, 500 of them) before any is judged. ``OUTPUT_SUSPECTED`` comes
        once, ``OUTPUT_DRIFTED`` while it holds, about the model if most replicas moved. A finished
        rollout that kept the revision drops that revision's baselines.
        """
        if isinstance(fact, RolloutSeen):
            self._rolled(fact)
            return NOTHING
        known = self._census.replicas.get(fact.replica)
        if known is None or not self._may_learn(known.model, known.revision, fact.statistic):
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
            track = tracks[fact.statistic] = Track(ruler)
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
        """Return by model the statistic that moved furthest; models without answers are missing."""
        tracks: dict[tuple[str, str], list[Track]] = {}
        for own in self._tracks.values():
            for statistic, track in own.items():
                tracks.setdefault((track.ruler.baseline.model, statistic), []).append(track)
        found: dict[str, DriftFigures] = {}
        for (model, statistic), some in tracks.items():
            now = sum(one.recent for one in some) / len(some)
            before = sum(one.ruler.baseline.mean for one in some) / len(some)
            level = max(one.level for one in some)
            if model not in found or level > found[model].cusum:
                found[model] = DriftFigures(statistic, now, before, level)
        return found

    def baselines(self) -> dict[str, Any]:
        """Return all frozen baselines and dropped versions as JSON-ready data for ``restore``."""
        data: dict[str, Any] = {
            "baselines": [ruler.baseline.plain() for ruler in self._rulers.values()]
        }
        if self._versions:
            data["versions"] = [[*key, version] for key, version in self._versions.items()]
        return data

    # --- what people ask and order ----------------------------------------------------------------

    def describe(self, model: str) -> list[dict[str, Any]]:
        """Return a dict for each baseline of a model, with figures of its latest answers."""
        rows = []
        for key, ruler in self._rulers.items():
            if key[0] == model:
                rows.append(self._frozen_row(key, ruler))
        for key, learning in self._learning.items():
            if key[0] == model:
                rows.append(_row(key, "learning", self._next(key), learning.moments.count))
                rows[-1] |= {"needed": self._config.samples_min}
        return sorted(rows, key=lambda row: (row["revision"], row["statistic"]))

    def _frozen_row(self, key: Key, ruler: Ruler) -> dict[str, Any]:
        baseline, tracks = ruler.baseline, self._tracks_of(ruler)
        row = _row(key, "frozen", baseline.version, baseline.samples)
        row |= {"mean": baseline.mean, "sd": baseline.sd, "p95": baseline.p95}
        values = [value for track in tracks for value in track.latest.values()]
        moved = sorted({track.moved for track in tracks if track.moved})
        return row | {
            "latest": len(values),
            "latest_mean": sum(values) / len(values) if values else None,
            "latest_p95": p95_of(values),
            "level": max((track.level for track in tracks), default=0.0),
            "moved": ", ".join(moved),
        }

    def accept(self, model: str) -> tuple[int, str]:
        """Replace a model's frozen baselines by its latest answers; return (how many, a text).

        A baseline with fewer than 100 answers since it was frozen stays as it is.
        """
        changed, few = [], []
        for key, ruler in list(self._rulers.items()):
            if key[0] != model:
                continue
            values = [one for track in self._tracks_of(ruler) for one in track.latest.values()]
            if len(values) < ACCEPTED_MIN:
                few.append(f"{key[2]} of revision {key[1] or 'unnamed'} has {len(values)}")
                continue
            self._rulers[key] = self._ruler(accepted(key, ruler.baseline, values))
            self._settle(ruler)
            changed.append(f"{key[2]} (version {self._rulers[key].baseline.version})")
        if changed:
            return len(changed), f"accepted {', '.join(changed)}"
        needs = f"{ACCEPTED_MIN} answers since its baseline was frozen are needed"
        told = f"; {', '.join(few)}" if few else f"; {model} has no frozen baseline"
        return 0, f"nothing accepted: {needs}{told}"

    def reset(self, model: str) -> tuple[int, str]:
        """Drop a model's baselines, frozen or being learned; return (how many, a text)."""
        dropped = self._drop(lambda key: key[0] == model)
        if not dropped:
            return 0, f"{model} has no baseline"
        hours = self._config.window_s / 3_600
        return (
            dropped,
            f"{dropped} dropped; new ones are learned in {hours:g} h of healthy answers",
        )

    def _rolled(self, fact: RolloutSeen) -> None:
        if fact.what == "began":
            revisions = {
                one.revision for one in self._census.replicas.values() if one.model == fact.model
            }
            if revisions == {fact.revision}:
                self._rebuilt.add(fact.model)
        elif fact.model in self._rebuilt:
            self._rebuilt.discard(fact.model)
            if fact.what == "finished":
                self._drop(lambda key: key[:2] == (fact.model, fact.revision))

    def _drop(self, concerned: Callable[[Key], bool]) -> int:
        dropped = 0
        for key in [key for key in self._rulers if concerned(key)]:
            ruler = self._rulers.pop(key)
            self._versions[key] = ruler.baseline.version
            self._settle(ruler)
            dropped += 1
        for key in [key for key in self._learning if concerned(key)]:
            del self._learning[key]
            dropped += 1
        return dropped

    def _settle(self, ruler: Ruler) -> None:
        """Forget what was held against a baseline that is no longer one."""
        statistic = ruler.baseline.statistic
        for replica, tracks in self._tracks.items():
            track = tracks.get(statistic)
            if track is not None and track.ruler is ruler:
                del tracks[statistic]
                self._pace.over((replica, statistic))
        self._pace.over((ruler.baseline.model, ruler.baseline.revision, statistic))

    def _tracks_of(self, ruler: Ruler) -> list[Track]:
        statistic = ruler.baseline.statistic
        found = [tracks.get(statistic) for tracks in self._tracks.values()]
        return [track for track in found if track is not None and track.ruler is ruler]

    def _next(self, key: Key) -> int:
        return self._versions.get(key, FIRST_VERSION - 1) + 1

    def _may_learn(self, model: str, revision: str, statistic: str) -> bool:
        """Whether a statistic is one that is known, or of a tensor and among the first few."""
        if statistic in STATISTICS:
            return True
        if not statistic.endswith(TENSOR_STATISTICS) or len(statistic) > _NAME_MAX:
            return False
        key = (model, revision, statistic)
        if key in self._rulers or key in self._learning:
            return True
        mine = [one for one in (*self._rulers, *self._learning) if one[:2] == key[:2]]
        return len(mine) < STATISTICS_MAX

    def restore(self, data: Mapping[str, Any]) -> None:
        """Load baselines from the data that ``baselines`` returned; bad data raises ``ValueError``.

        One being learned for the same key is dropped; those without room are counted in
        ``refused``.
        """
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
        for row in data.get("versions", ()):
            match row:
                case [str(model), str(revision), str(statistic), int(version)]:
                    if len(self._versions) < BASELINES_MAX:
                        self._versions[model, revision, statistic] = version
                case _:
                    raise ValueError(f"this is no version of a baseline: {row!r:.80}")

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
            self._rulers[key] = self._ruler(learning.freeze(key, now, self._next(key)))
            self._versions.pop(key, None)

    def _ruler(self, baseline: Baseline) -> Ruler:
        """What is told rises with the volume, so that chance tells as little of it."""
        config = self._config
        volume = baseline.samples_per_day * config.false_alarm_days / config.told_samples
        raised = config.told_at + log(max(1.0, volume)) / (2 * config.slack)
        return Ruler(baseline, config.slack, min(raised, _TOLD_AT_MAX))

    def _make_room(self) -> bool:
        """Drop what belongs to revisions that nobody serves any more."""
        served = {(one.model, one.revision) for one in self._census.replicas.values()}
        books: tuple[dict[Key, Any], ...] = (self._rulers, self._learning, self._versions)
        for book in books:
            for key in [key for key in book if key[:2] not in served]:
                del book[key]
        return len(self._learning) + len(self._rulers) < BASELINES_MAX

    def _find(self, replica: str, track: Track, now: int) -> Sequence[Evidence]:
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

    def _tell(self, replica: str, track: Track, side: Side, now: int) -> Sequence[Evidence]:
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
        shift = side.scores / side.count + track.slack()
        crossed = "outside" if not low <= mean <= high else "within"
        p95 = p95_of(track.latest.values())
        assert p95 is not None, "what moved has values"
        spreads = track.moved in (WIDER, NARROWER)
        how = f"spread {track.moved}" if spreads else f"moved {track.moved}"
        text = (
            f"the {baseline.statistic} of {whose} {how} by {shift:.1f} sigma over "
            f"the last {side.count} samples: mean {baseline.mean:.4g} before, {mean:.4g} now, p95 "
            f"{baseline.p95:.4g} before, {p95:.4g} now, PSI "
            f"{psi:.2f}; that is {crossed} the two-sigma line {low:.4g} to {high:.4g}"
        )
        numbers = {
            "before": baseline.mean,
            "now": mean,
            "before_p95": baseline.p95,
            "now_p95": p95,
            "shift_sigma": shift if track.moved in (UP, WIDER) else -shift,
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

    def _company(self, replica: str, track: Track, now: int) -> tuple[int, int]:
        """How many of its model's replicas moved as it did, of how many that answered lately."""
        moved = of = 1
        for peer in self._census.peers(replica):
            one = self._tracks.get(peer, {}).get(track.ruler.baseline.statistic)
            if one is not None and one.ruler is track.ruler and now - one.last < HOUR:
                of += 1
                # A third of the way is as far: both are noisy, and the healthy are hardly there.
                theirs, own = one.sides[track.moved].sum, track.sides[track.moved].sum
                moved += theirs > 0.3 * own
        return moved, of


def _row(key: Key, state: str, version: int, samples: int) -> dict[str, Any]:
    _, revision, statistic = key
    unknown = ("needed", "mean", "sd", "p95", "latest_mean", "latest_p95", "level")
    return {
        "revision": revision,
        "statistic": statistic,
        "state": state,
        "version": version,
        "samples": samples,
        "latest": 0,
        "moved": "",
        **dict.fromkeys(unknown),
    }


__all__ = [
    "ACCEPTED_MIN",
    "BASELINES_MAX",
    "STATISTICS",
    "DriftConfig",
    "DriftFigures",
    "OutputDriftDetector",
]
