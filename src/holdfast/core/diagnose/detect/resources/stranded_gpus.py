"""Detects GPUs that are free in total, and on no host enough for a replica that waits.

    replicas wait that need 4 GPUs each; 2 are free on each of three hosts ─► GPUS_STRANDED

Looked at host by host nothing is wrong, and looked at in total there is room: the platform says
only that it cannot place the replica. What helps is to move a small replica, not to buy a host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import ReplicasWanted
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class StrandedGpusConfig:
    """Settings: how long a replica must wait before stranded GPUs are reported.

    Checked when built: raises ``ConfigError``.
    """

    waited_s: float = 120.0  # a replica that ends elsewhere gives its GPUs back by then

    def __post_init__(self) -> None:
        value, fix = self.waited_s, "use seconds above 0, up to a day"
        require(0 < value <= 86_400, "stranded_gpus.waited_s", f"is {value}", fix)


class StrandedGpusDetector:
    """Finds models whose replica would fit into all free GPUs together, and into no one host's.

    Keeps no figures of its own: free GPUs come from the registry's hosts.
    """

    reads: ClassVar[tuple[type, ...]] = (ReplicasWanted,)

    def __init__(self, config: StrandedGpusConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._pace = Pace()

    def take(self, fact: ReplicasWanted, now: int) -> Sequence[Evidence]:
        """Take replicas that wait to be placed; return ``GPUS_STRANDED`` about their model.

        Only if the free GPUs of all hosts suffice for one replica and those of no host do; nothing
        while the need is unknown.
        """
        hosts = self._census.hosts.values()
        free = [host.gpus_free for host in hosts if host.gpus_free]
        stranded = (
            fact.gpus is not None
            and fact.waited_s >= self._config.waited_s
            and sum(free) >= fact.gpus > max(free, default=fact.gpus)
        )
        if not stranded or fact.gpus is None:
            self._pace.over(fact.model)
            return NOTHING
        if not self._pace.due(fact.model, now):
            return NOTHING
        text = (
            f"a replica of {fact.model} needs {fact.gpus} GPUs on one host; {sum(free)} are free "
            f"on {len(free)} hosts, and {max(free)} on the best of them"
        )
        numbers = {
            "needed": float(fact.gpus),
            "free": float(sum(free)),
            "hosts": float(len(free)),
            "largest": float(max(free)),
        }
        about = About(model=fact.model)
        return [Evidence(Sign.GPUS_STRANDED, about, now, fact.source, text, numbers)]

    def forget(self, replica: str) -> None:
        """Do nothing: what is recorded is about models and hosts."""


__all__ = ["StrandedGpusConfig", "StrandedGpusDetector"]
