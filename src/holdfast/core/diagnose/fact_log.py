"""Keeps recent facts in a ring buffer, so that an incident can be exported and replayed.

    fact ─► FactLog ─► of(incident) ─► an export ─► the same facts ─► the same verdict

The buffer is bounded. What falls out of it is gone, except facts that hold until they are replaced:
declarations, versions, hosts, states. Of those the latest is kept, for without them a replay would
not know which replicas there were.

``of`` gives more than the facts of the replicas in question. Detectors compare a replica with its
peers, and a chain with its later models, so their facts belong to the verdict too.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from holdfast.core.diagnose.evidence import About, Incident
from holdfast.core.diagnose.facts import (
    CanariesDoubted,
    ChainDeclared,
    Compared,
    ControlLate,
    Declared,
    Fact,
    FilesystemSeen,
    Gone,
    GpuSeen,
    HostConditionSeen,
    HostSeen,
    LineSeen,
    Looked,
    OwnShortage,
    ProcessFrozen,
    QueueSeen,
    ReplicasWanted,
    RolloutSeen,
    ServingProcessFrozen,
    SourceFailing,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.types import require

KEPT_MAX: Final = 50_000  # facts that outlive the ring; the one said longest ago goes first

_LASTING: Final[dict[type, str]] = {  # what lasts until it is said anew, and by what it is known
    Declared: "replica",
    VersionsSeen: "replica",
    StateChanged: "replica",
    ProcessFrozen: "replica",
    HostSeen: "host",
    HostConditionSeen: "host",
    ChainDeclared: "name",
    RolloutSeen: "model",
}


@dataclass(slots=True)
class _Concern:
    """Whom an incident concerns, and whom these are compared with."""

    replicas: set[str]
    models: set[str]
    hosts: set[str]
    filesystems: set[str]

    def holds(self, fact: Fact) -> bool:
        """Whether a fact belongs to it."""
        match fact:
            case Looked():
                return True
            case ControlLate() | ServingProcessFrozen() | OwnShortage() | SourceFailing():
                # of incidents that are about no replica
                return not (self.replicas or self.models or self.hosts or self.filesystems)
            case HostSeen() | HostConditionSeen():
                return fact.host in self.hosts
            case GpuSeen():
                return fact.host in self.hosts or not self.replicas.isdisjoint(fact.replicas)
            case FilesystemSeen():
                return fact.filesystem in self.filesystems
            case QueueSeen() | RolloutSeen() | CanariesDoubted() | ReplicasWanted():
                return fact.model in self.models
            case ChainDeclared():
                return not self.models.isdisjoint(fact.models)
            case Compared() | LineSeen() if fact.peer in self.replicas:
                return True
        return fact.replica in self.replicas


class FactLog:
    """The recent facts of one fleet in memory, for exporting incidents; evaluates none of them.

    A ring of ``max_facts``; of those that fall out, the latest declaration, version, state, host,
    chain and rollout of each thing is kept. ``dropped`` counts facts lost.
    """

    __slots__ = ("_kept", "_max", "_ring", "dropped")

    def __init__(self, max_facts: int = 100_000) -> None:
        fix = "use 1 or more; a replica makes two or three facts a second"
        require(max_facts >= 1, "factlog.max_facts", f"is {max_facts}", fix)
        self._max = max_facts
        self._ring: deque[tuple[int, Fact]] = deque()
        self._kept: dict[tuple[type, str], tuple[int, Fact]] = {}
        self.dropped = 0  # that fell out of the ring and were not kept

    def __len__(self) -> int:
        return len(self._ring) + len(self._kept)

    def add(self, fact: Fact, now: int) -> None:
        """Append one fact with its core time; times must not decrease (not checked).

        The oldest may fall out of the ring for it.
        """
        self._ring.append((now, fact))
        if len(self._ring) > self._max:
            self._outlast(*self._ring.popleft())

    def _outlast(self, at: int, fact: Fact) -> None:
        kind = type(fact)
        if isinstance(fact, Gone):
            for other, by in _LASTING.items():
                if by == "replica":
                    self._kept.pop((other, fact.replica), None)
        name = _LASTING.get(kind)
        if name is None:
            self.dropped += 1
            return
        key = (kind, str(getattr(fact, name)))
        self._kept.pop(key, None)  # so that they stay in the order of time
        self._kept[key] = (at, fact)
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
            self.dropped += 1

    def of(self, incident: Incident) -> list[tuple[int, Fact]]:
        """Return the (time, fact) pairs that concern an incident, its peers and chains.

        Oldest first. Includes every tick, and facts from before it opened; ends at its close. Facts
        that fell out of the ring are missing unless they are of a kind that is kept. Changes
        nothing.
        """
        facts = [*self._kept.values(), *self._ring]
        concern = _concern(incident, [fact for _, fact in facts])
        end = incident.closed_at
        return [
            (at, fact) for at, fact in facts if (end is None or at <= end) and concern.holds(fact)
        ]


def _concern(incident: Incident, facts: list[Fact]) -> _Concern:
    evidence = [*incident.evidence, *incident.consequences]
    abouts = [incident.about, *(one.about for one in evidence)]
    declared = [fact for fact in facts if isinstance(fact, Declared)]
    replicas = {*incident.replicas, *(one.replica for one in abouts)} - {""}
    for fact in facts:  # a line that names another replica makes it part of the story
        if isinstance(fact, LineSeen | Compared) and fact.peer and fact.replica in replicas:
            replicas.add(fact.peer)
    replicas |= {one.replica for one in declared if _shares(one, incident.about)}
    models = {one.model for one in abouts} | {
        one.model for one in declared if one.replica in replicas
    }
    models.discard("")
    chains = [set(fact.models) for fact in facts if isinstance(fact, ChainDeclared)]
    models |= set().union(*(chain for chain in chains if not chain.isdisjoint(models)))
    replicas |= {one.replica for one in declared if one.model in models}
    there = [one for one in declared if one.replica in replicas]
    hosts = {one.host for one in abouts} | {one.host for one in there}
    filesystems = {one.filesystem for one in abouts} | {one.filesystem for one in there}
    return _Concern(replicas, models, hosts - {""}, filesystems - {""})


def _shares(one: Declared, about: About) -> bool:
    """Whether an incident of a host or a filesystem is one of this replica too."""
    if about.replica:
        return False
    by_host = bool(about.host) and one.host == about.host
    return by_host or (bool(about.filesystem) and one.filesystem == about.filesystem)


__all__ = ["KEPT_MAX", "FactLog"]
