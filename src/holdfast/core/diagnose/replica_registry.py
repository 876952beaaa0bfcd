"""The replicas that were declared, with their models, hosts and versions.

Detectors compare a replica with its declaration, its host and its peers. They share one registry,
so that all of them agree on which replicas belong to a model.
"""

from typing import Final

from holdfast.core.diagnose.evidence import About
from holdfast.core.diagnose.facts import Declared, Fact, Gone, HostSeen, VersionsSeen

REPLICAS_MAX: Final = 10_000  # beyond it nobody new is taken in, and ``refused`` counts
HOSTS_MAX: Final = 10_000


class ReplicaRegistry:
    """Looks up declared replicas, their peers, hosts and versions."""

    __slots__ = ("hosts", "refused", "replicas", "versions")

    def __init__(self) -> None:
        self.replicas: dict[str, Declared] = {}
        self.hosts: dict[str, HostSeen] = {}
        self.versions: dict[str, VersionsSeen] = {}
        self.refused = 0  # that did not fit

    def take(self, fact: Fact) -> None:
        """Update replicas, hosts and versions from a fact; other facts are ignored."""
        if isinstance(fact, Declared):
            if fact.replica in self.replicas or len(self.replicas) < REPLICAS_MAX:
                self.replicas[fact.replica] = fact
            else:
                self.refused += 1
        elif isinstance(fact, Gone):
            self.replicas.pop(fact.replica, None)
            self.versions.pop(fact.replica, None)
        elif isinstance(fact, VersionsSeen) and fact.replica in self.replicas:
            self.versions[fact.replica] = fact
        elif isinstance(fact, HostSeen):
            if fact.host in self.hosts or len(self.hosts) < HOSTS_MAX:
                self.hosts[fact.host] = fact
            else:
                self.refused += 1

    def about(self, replica: str) -> About:
        """The replica with its model, revision, host and filesystem, for evidence."""
        known = self.replicas.get(replica)
        if known is None:
            return About(replica)
        return About(replica, known.model, known.revision, known.host, known.filesystem)

    def peers(self, replica: str) -> list[str]:
        """Ids of the other replicas of the same model and revision."""
        known = self.replicas.get(replica)
        if known is None:
            return []
        same = (known.model, known.revision)
        return [
            name
            for name, one in self.replicas.items()
            if name != replica and (one.model, one.revision) == same
        ]

    def of_model(self, model: str) -> list[str]:
        """Ids of all replicas of a model."""
        return [name for name, one in self.replicas.items() if one.model == model]


__all__ = ["HOSTS_MAX", "REPLICAS_MAX", "ReplicaRegistry"]
