"""Who there is: what was declared of each replica, and where it runs.

Detectors compare a replica with its declaration, its host and its peers. They share one census, so
that none of them keeps its own idea of who belongs to a model.
"""

from typing import Final

from holdfast.core.diagnose.evidence import About
from holdfast.core.diagnose.facts import Declared, Fact, Gone, HostSeen, VersionsSeen

REPLICAS_MAX: Final = 10_000  # beyond it nobody new is taken in, and ``refused`` counts
HOSTS_MAX: Final = 10_000


class ReplicaRegistry:
    """The declared replicas, their hosts and their versions."""

    __slots__ = ("hosts", "refused", "replicas", "versions")

    def __init__(self) -> None:
        self.replicas: dict[str, Declared] = {}
        self.hosts: dict[str, HostSeen] = {}
        self.versions: dict[str, VersionsSeen] = {}
        self.refused = 0  # that did not fit

    def take(self, fact: Fact) -> None:
        """Keep what concerns it; other facts are ignored."""
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
        """Whom evidence about this replica concerns."""
        known = self.replicas.get(replica)
        if known is None:
            return About(replica)
        return About(replica, known.model, known.revision, known.host, known.filesystem)

    def peers(self, replica: str) -> list[str]:
        """The other replicas of its model and revision."""
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
        """Every replica of a model."""
        return [name for name, one in self.replicas.items() if one.model == model]


__all__ = ["HOSTS_MAX", "REPLICAS_MAX", "ReplicaRegistry"]
