"""The replicas that were declared, with their models, hosts and versions.

Detectors compare a replica with its declaration, its host and its peers. They share one registry,
so that all of them agree on which replicas belong to a model.
"""

from typing import Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.evidence import About
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    Declared,
    Fact,
    FellSilent,
    Gone,
    HostSeen,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.failure import Kind
from holdfast.core.types import State

REPLICAS_MAX: Final = 10_000  # beyond it nobody new is taken in, and ``refused`` counts
HOSTS_MAX: Final = 10_000
_REACHED: Final = (State.READY, State.SUSPECT, State.QUARANTINED)  # it answered something once
_NOT_REACHED: Final = frozenset({Kind.REFUSED, Kind.CONNECT_TIMEOUT})
_UNASKED: Final = (CanaryVerdict.REFUSED, CanaryVerdict.UNKNOWN)


class ReplicaRegistry:
    """All declared replicas, hosts and versions of one fleet, as facts told them, with look-ups.

    Shared by all detectors. Bounded: what does not fit is left out and counted in ``refused``.
    """

    __slots__ = ("_unseen", "hosts", "refused", "replicas", "versions")

    def __init__(self) -> None:
        self.replicas: dict[str, Declared] = {}
        self.hosts: dict[str, HostSeen] = {}
        self.versions: dict[str, VersionsSeen] = {}
        self._unseen: set[str] = set()  # declared, not started here, and nothing heard of it yet
        self.refused = 0  # that did not fit

    def take(self, fact: Fact) -> None:
        """Update replicas, hosts and versions from a fact, and whether a replica was ever heard of.

        ``Gone`` removes a replica; versions of replicas that are not declared are ignored.
        """
        if isinstance(fact, Declared):
            if fact.replica in self.replicas or len(self.replicas) < REPLICAS_MAX:
                if fact.managed:
                    self._unseen.discard(fact.replica)
                elif fact.replica not in self.replicas:
                    self._unseen.add(fact.replica)
                self.replicas[fact.replica] = fact
            else:
                self.refused += 1
        elif isinstance(fact, Gone):
            self.replicas.pop(fact.replica, None)
            self.versions.pop(fact.replica, None)
            self._unseen.discard(fact.replica)
        elif isinstance(fact, VersionsSeen) and fact.replica in self.replicas:
            self.versions[fact.replica] = fact
        elif isinstance(fact, HostSeen):
            if fact.host in self.hosts or len(self.hosts) < HOSTS_MAX:
                self.hosts[fact.host] = fact
            else:
                self.refused += 1
        if self._unseen and _shows_life(fact):
            self._unseen.discard(getattr(fact, "replica", ""))

    def never_seen(self, replica: str) -> bool:
        """True for a declared replica not started by Holdfast that nothing has shown to exist.

        Anything from its address counts as a sign of life, even a wrong answer. False for launched
        and unknown replicas.
        """
        return replica in self._unseen

    def about(self, replica: str) -> About:
        """Return the ``About`` of a replica: its model, revision, host and filesystem as declared.

        Only its id if it is unknown.
        """
        known = self.replicas.get(replica)
        if known is None:
            return About(replica)
        return About(replica, known.model, known.revision, known.host, known.filesystem)

    def peers(self, replica: str) -> list[str]:
        """Return ids of the other replicas of its model and revision; empty if unknown."""
        known = self.replicas.get(replica)
        if known is None:
            return []
        same = (known.model, known.revision)
        return [
            name
            for name, one in self.replicas.items()
            if name != replica and (one.model, one.revision) == same
        ]

    def other_revisions(self, about: About) -> tuple[str, ...]:
        """Return the revisions of a replica's model beside its own, sorted.

        Empty if there is no other, or if ``about`` names no replica or no revision.
        """
        if not about.replica or not about.revision:
            return ()
        found = {one.revision for one in self.replicas.values() if one.model == about.model}
        return tuple(sorted(found - {about.revision, ""}))

    def on_host(self, host: str) -> list[str]:
        """Return ids of all declared replicas on a host, of every model; may be empty."""
        return [name for name, one in self.replicas.items() if one.host == host]

    def of_model(self, model: str) -> list[str]:
        """Return ids of all declared replicas of a model, of every revision; may be empty."""
        return [name for name, one in self.replicas.items() if one.model == model]


def _shows_life(fact: Fact) -> bool:
    """Whether a fact about a replica could not be if nobody had ever listened there."""
    match fact:
        case Declared() | FellSilent():
            return False
        case StateChanged():
            return fact.state in _REACHED
        case CanaryAnswered():
            return fact.verdict not in _UNASKED and fact.flaw != Kind.CONNECT_TIMEOUT
        case AttemptsSeen():
            answered = bool(fact.successes or fact.backpressure or fact.tokens)
            return answered or not _NOT_REACHED.issuperset(fact.failures)
    return True


__all__ = ["HOSTS_MAX", "REPLICAS_MAX", "ReplicaRegistry"]
