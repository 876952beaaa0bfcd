"""Failover between zones and regions: in which order the replicas of a pool are considered.

Candidates are sorted into rungs when membership changes, so that a request only walks a short
list. Two rules hold on every rung. *Revision*: a request never moves to another revision of its
model behind the user's back; the revision is pinned, and losing every home replica does not unpin
it. *Capacity*: another region helps only while it has room, or the first outage makes the second.

Rejected: pinning to whatever the home region runs now. When an outage leaves only the one replica
of a rollout's new revision, that would move everybody to it and call the healthy region foreign.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.request.candidate import Candidate
from holdfast.core.types import Decision, nanos, require


@dataclass(slots=True, frozen=True)
class FailoverConfig:
    """Settings: home zone and region of a gateway, and which replicas elsewhere may serve it.

    Checked when built: raises ``ConfigError``.
    """

    home_zone: str = ""  # empty: zones are alike
    home_region: str = ""  # empty: regions are alike, everything is one rung
    cross_region: bool = True
    regions: tuple[str, ...] = ()  # remote regions, preferred first; the others follow by name
    revision_gate: bool = True
    pinned_revision: str | None = None  # None: learned from the majority at home
    allowed_revisions: tuple[str, ...] = ()  # revisions that the deployment calls interchangeable
    remote_utilisation_max: float = 0.95  # of the other region's capacity: its own users come first
    spill_hold_s: float = 1.0  # once full, stay away so long: readings lag behind what was sent

    def __post_init__(self) -> None:
        zoned = bool(self.home_region) or not self.home_zone
        alone = "is set without home_region"
        require(zoned, "failover.home_zone", alone, "name the region of the zone as well")
        homed = bool(self.home_region) or not self.regions
        require(homed, "failover.regions", alone, "name the home region as well")
        away = self.home_region not in self.regions
        require(away, "failover.regions", "holds the home region", "list remote regions only")
        once = len(dict.fromkeys(self.regions)) == len(self.regions)
        require(once, "failover.regions", "names a region twice", "name each once")
        named = self.pinned_revision is None or bool(self.pinned_revision)
        require(named, "failover.pinned_revision", "is empty", "name a revision, or None to learn")
        full = all(self.allowed_revisions)
        require(full, "failover.allowed_revisions", "holds an empty name", "name each revision")
        share = 0 < self.remote_utilisation_max <= 1
        bad = f"is {self.remote_utilisation_max}"
        require(share, "failover.remote_utilisation_max", bad, "use a share in (0, 1]")
        wait = 0 <= self.spill_hold_s < 3600
        hold = f"is {self.spill_hold_s}"
        require(wait, "failover.spill_hold_s", hold, "use 0 or more seconds, below an hour")


@dataclass(slots=True, frozen=True)
class FailoverRung:
    """A group of candidates at the same distance: home zone, home region, or one remote region."""

    name: str  # "zone", "region", "remote:<region>", or "all" without a home
    candidates: list[Candidate]
    reason: str
    remote: bool = False


_NEAR: Final = Decision(allowed=True, reason="the rung is in the home region")
_UNKNOWN: Final = Decision(
    allowed=True, reason="the rung's utilisation is unknown, which is not full"
)
_ROOM: Final = Decision(allowed=True, reason="the rung has room")


class FailoverLadder:
    """Sorts the candidates of one pool into rungs by distance and keeps out other revisions.

    It pins one revision, declared or learned from the majority at home, and chooses no replica
    itself.
    """

    __slots__ = (
        "_declared",
        "_full",
        "_full_until",
        "_held",
        "_hold_ns",
        "_pinned_most",
        "_rungs",
        "config",
        "excluded",
        "pinned_revision",
        "pinned_why",
    )

    def __init__(self, config: FailoverConfig) -> None:
        self.config = config
        self.pinned_revision = config.pinned_revision
        self._declared = config.pinned_revision is not None  # else the revision is learned
        self.pinned_why = "declared" if self._declared else "nothing seen yet"
        self.excluded: tuple[str, ...] = ()  # ids that the revision gate keeps out
        self._pinned_most = 0  # most home candidates of the pinned revision seen at once
        self._rungs: list[FailoverRung] = []
        self._full_until: dict[str, int] = {}  # by rung; bounded by the number of regions
        self._hold_ns = nanos(config.spill_hold_s)
        limit = f"{config.remote_utilisation_max:.0%}"
        self._full = Decision(allowed=False, reason=f"the rung is at or above {limit}")
        self._held = Decision(allowed=False, reason=f"the rung was above {limit} a moment ago")

    def rungs(
        self, candidates: Sequence[Candidate], members: Collection[Candidate] | None = None
    ) -> list[FailoverRung]:
        """Return the candidates as ``FailoverRung`` list, nearest first; keep it for ``may_spill``.

        Candidates of another revision than the pinned one are left out, and so are empty rungs.
        ``members`` are all replicas of the pool, well or not: the revision is learned from them.
        Called when membership changes.
        """
        config = self.config
        everyone = candidates if members is None else members
        home = [c for c in everyone if config.home_region in ("", c.replica.region)]
        self._learn_revision(home, everyone)
        admitted = [c for c in candidates if self._same_revision(c)]
        self.excluded = tuple(c.id for c in everyone if not self._same_revision(c))
        if not config.home_region:
            self._rungs = _rung("all", admitted, "no home is declared")
        else:
            self._rungs = self._near(admitted) + self._far(admitted)
        names = [rung.name for rung in self._rungs]
        self._full_until = {n: at for n, at in self._full_until.items() if n in names}
        return self._rungs

    def may_spill(self, rung_index: int, utilisation_of_target: float | None, now: int) -> Decision:
        """Return a ``Decision``: whether requests may go to this rung of the last ``rungs`` now.

        Always true at home. A remote rung is closed at or above the configured utilisation, and
        then for ``spill_hold_s``; unknown (``None``) utilisation does not close it.
        """
        rung = self._rungs[rung_index]
        if not rung.remote:
            return _NEAR
        if utilisation_of_target is not None:
            if utilisation_of_target >= self.config.remote_utilisation_max:
                self._full_until[rung.name] = now + self._hold_ns
                return self._full
            if now < self._full_until.get(rung.name, 0):
                return self._held
            return _ROOM
        return self._held if now < self._full_until.get(rung.name, 0) else _UNKNOWN

    def _near(self, admitted: list[Candidate]) -> list[FailoverRung]:
        zone, region = self.config.home_zone, self.config.home_region
        home = [c for c in admitted if c.replica.region == region]
        if not zone:
            return _rung("region", home, f"in the home region {region}")
        local = [c for c in home if c.zone == zone]
        others = [c for c in home if c.zone != zone]
        reason = f"in other zones of the home region {region}"
        return _rung("zone", local, f"in the home zone {zone}") + _rung("region", others, reason)

    def _far(self, admitted: list[Candidate]) -> list[FailoverRung]:
        if not self.config.cross_region:
            return []
        by_region: dict[str, list[Candidate]] = {}
        for candidate in admitted:
            if candidate.replica.region != self.config.home_region:
                by_region.setdefault(candidate.replica.region, []).append(candidate)
        preferred = [region for region in self.config.regions if region in by_region]
        others = sorted(region for region in by_region if region not in preferred)
        return [
            FailoverRung(f"remote:{region}", by_region[region], f"in region {region}", remote=True)
            for region in preferred + others
        ]

    def _same_revision(self, candidate: Candidate) -> bool:
        config = self.config
        if not config.revision_gate or candidate.revision in config.allowed_revisions:
            return True
        return candidate.revision == self.pinned_revision

    def _learn_revision(self, home: list[Candidate], everyone: Collection[Candidate]) -> None:
        """Pin the revision that most replicas at home run, but do not follow an outage.

        A learned pin moves when another revision outnumbers it at home and holds more than half of
        what the pinned one ever held (a rollout), or when the pinned one is nowhere left at all.
        Before anybody was seen at home, the majority elsewhere will do.
        """
        pinned = self.pinned_revision
        counts: dict[str, int] = {}
        for candidate in everyone if pinned is None and not home else home:
            counts[candidate.revision] = counts.get(candidate.revision, 0) + 1
        if pinned is not None:
            self._pinned_most = max(self._pinned_most, counts.get(pinned, 0))
        if self._declared or not counts:
            return
        best = max(counts, key=lambda revision: counts[revision])  # the first listed wins a tie
        if pinned is None:
            where = "at home" if home else "elsewhere, nobody being at home"
            self._move_pin(best, counts if home else {}, f"the majority {where}")
        elif counts[best] > counts.get(pinned, 0) and counts[best] * 2 > self._pinned_most:
            self._move_pin(best, counts, f"the majority at home moved on from {pinned}")
        elif all(candidate.revision != pinned for candidate in everyone):
            self._move_pin(best, counts, f"no replica of {pinned} is left anywhere")

    def _move_pin(self, revision: str, counts: dict[str, int], why: str) -> None:
        self.pinned_revision = revision
        self.pinned_why = why
        self._pinned_most = counts.get(revision, 0)


def _rung(name: str, candidates: list[Candidate], reason: str) -> list[FailoverRung]:
    """A list with one rung, or an empty list when there are no candidates."""
    return [FailoverRung(name, candidates, reason)] if candidates else []


__all__ = ["FailoverConfig", "FailoverLadder", "FailoverRung"]
