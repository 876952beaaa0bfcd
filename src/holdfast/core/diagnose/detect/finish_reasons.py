"""Detects replicas whose answers end for other reasons (stop, length …) than before.

A tokenizer that lost its end-of-text token runs every answer into its length; a wrong chat template
ends them at the first token or turns tool calls into prose. Each is well formed and no check of one
answer sees it, but the shares of finish reasons jump. A replica is reported only when it differs
both from what it was and from what its peers are now:

    recent shares ≠ its own frozen baseline   and   ≠ its peers' recent shares   ─► sign

because users change the shares too: a batch of summaries with a small ``max_tokens`` moves every
replica at once. Without peers, or while the baseline is still learned, the difference must be twice
as large. Differences are held against their standard error under both samples, with a bound of six,
since every fact is looked at.

Rejected: chi-square over all reasons at once. It finds that something moved and not what, and rare
reasons with one expected count make it jump.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import FinishesSeen
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import nanos, require

REASONS: Final = ("stop", "length", "tool_calls", "content_filter", "error")
OTHER: Final = "other"  # all that have no name above: engines may invent as many as they like


@dataclass(slots=True, frozen=True)
class FinishReasonConfig:
    """Settings of ``FinishReasonDetector``: how far shares of finish reasons must move.

    Checked when built: raises ``ConfigError``.
    """

    window_s: float = 3_600.0  # of the baseline; shares settle far sooner than lengths
    samples_min: int = 500  # in it: a share is known within some 2 points
    recent_s: float = 300.0  # what "now" means, at most
    recent_min: int = 50  # answers in it: fewer have shares of their own by chance
    difference: float = 0.2  # of a share, in absolute terms: less may be one user's habit
    bound: float = 6.0  # standard errors: one in a billion, since every fact is looked at

    def __post_init__(self) -> None:
        for name in ("window_s", "recent_s", "bound"):
            value = getattr(self, name)
            require(0 < value < 1e9, f"finishes.{name}", f"is {value}", "use a positive number")
        for name in ("samples_min", "recent_min"):
            value = getattr(self, name)
            require(value >= 20, f"finishes.{name}", f"is {value}", "use 20 or more")
        share = self.difference
        fix = "use a share above 0, up to 0.5: without peers it counts twice"
        require(0 < share <= 0.5, "finishes.difference", f"is {share}", fix)


class _Ends:
    """How one replica's answers ended: once, and lately."""

    __slots__ = ("_old", "_turn_at", "_young", "began", "frozen", "learned")

    def __init__(self, now: int) -> None:
        self.began = now
        self.learned: Counter[str] = Counter()
        self.frozen = False
        self._young: Counter[str] = Counter()
        self._old: Counter[str] = Counter()
        self._turn_at = 0

    def recent(self, now: int, half: int) -> Counter[str]:
        """Of the last half to whole ``recent_s``."""
        if now >= self._turn_at:
            late = now >= self._turn_at + half  # nothing came for long: what was young is old, too
            self._old = Counter() if late else self._young
            self._young = Counter()
            self._turn_at = now + half
        return self._young + self._old

    def add(self, counts: Counter[str]) -> None:
        self._young.update(counts)


class FinishReasonDetector:
    """Finds replicas whose finish reasons differ from their own past and from their peers now.

    Keeps per replica a frozen baseline of counts and those of the last five minutes.
    """

    reads: ClassVar[tuple[type, ...]] = (FinishesSeen,)

    def __init__(self, config: FinishReasonConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._ends: dict[str, _Ends] = {}
        self._pace = Pace()
        self._half = nanos(config.recent_s / 2)

    def take(self, fact: FinishesSeen, now: int) -> Sequence[Evidence]:
        """Take a replica's new counts of finish reasons; return ``FINISHES_CHANGED`` if they moved.

        Without peers, or before its baseline is frozen, it takes twice the difference; with
        neither, nothing is reported.
        """
        counts = _named(fact.reasons)
        if not counts or fact.replica not in self._census.replicas:
            return NOTHING
        ends = self._ends.get(fact.replica)
        if ends is None:
            ends = self._ends[fact.replica] = _Ends(now)
        ends.recent(now, self._half)  # turns the window before anything is counted in it
        ends.add(counts)
        if not ends.frozen:
            ends.learned.update(counts)
            old = now - ends.began >= nanos(self._config.window_s)
            ends.frozen = old and ends.learned.total() >= self._config.samples_min
        return self._judge(fact.replica, ends, now)

    def forget(self, replica: str) -> None:
        """Drop the baseline and the recent finish reasons of a replica."""
        self._ends.pop(replica, None)
        self._pace.over(replica)

    def _judge(self, replica: str, ends: _Ends, now: int) -> Sequence[Evidence]:
        recent = ends.recent(now, self._half)
        if recent.total() < self._config.recent_min:
            return NOTHING
        peers: Counter[str] = Counter()
        for peer in self._census.peers(replica):
            other = self._ends.get(peer)
            if other is not None:
                peers += other.recent(now, self._half)
        alone = peers.total() < self._config.recent_min
        past = ends.learned if ends.frozen else ends.learned - recent
        if not ends.frozen and (alone or past.total() < self._config.recent_min):
            return NOTHING  # neither its past nor its peers are known well enough
        needed = self._config.difference * (2 if alone or not ends.frozen else 1)
        worst, reason = 0.0, ""
        for name in (*REASONS, OTHER):
            moved = self._differs(recent, past, name, needed)
            if moved and not alone:
                moved = min(moved, self._differs(recent, peers, name, needed), key=abs)
            # What became more is what happens; what became less only made room for it.
            if (moved > 0, abs(moved)) > (worst > 0, abs(worst)):
                worst, reason = moved, name
        if not reason:
            self._pace.over(replica)
            return NOTHING
        if not self._pace.due(replica, now):
            return NOTHING
        return (self._evidence(replica, reason, past, recent, peers, now),)

    def _differs(self, here: Counter[str], there: Counter[str], name: str, needed: float) -> float:
        """By how much the share differs; 0 where that may be chance, or matters to nobody."""
        n, m = here.total(), there.total()
        difference = here[name] / n - there[name] / m
        pooled = (here[name] + there[name] + 1) / (n + m + 2)
        error = sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
        sure = abs(difference) - 0.5 / n > self._config.bound * error
        return difference if sure and abs(difference) >= needed else 0.0

    def _evidence(
        self,
        replica: str,
        reason: str,
        learned: Counter[str],
        recent: Counter[str],
        peers: Counter[str],
        now: int,
    ) -> Evidence:
        before, share = learned[reason] / learned.total(), recent[reason] / recent.total()
        text = (
            f"{share:.0%} of the last {recent.total()} answers of {replica} ended by {reason}, "
            f"{before:.0%} before"
        )
        numbers = {"before": before, "now": share, "samples": float(recent.total())}
        if reason == "length" and share > before:
            numbers["length"] = 1.0  # cut off, where they used to come to an end
        if peers.total() >= self._config.recent_min:
            numbers["peers"] = peers[reason] / peers.total()
            text += f", {numbers['peers']:.0%} on its peers now"
        about = self._census.about(replica)
        return Evidence(Sign.FINISHES_CHANGED, about, now, "finishes", text, numbers)


def _named(reasons: Mapping[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for reason, count in reasons.items():
        if count > 0:
            counts[reason if reason in REASONS else OTHER] += count
    return counts


__all__ = ["OTHER", "REASONS", "FinishReasonConfig", "FinishReasonDetector"]
