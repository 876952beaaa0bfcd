"""Detects a request that kills replicas: one fingerprint present at the deaths of two.

    death of r1 with f on it ─► f is noted
    death of r2 with f on it ─► within ten minutes: SAME_REQUEST_KILLS, and f is blocked for an hour

A gateway tells several names of one request: its fingerprint, and marks that a nonce leaves as they
are. Each is noted by itself, so that requests that differ in a nonce alone are one request here.

Each retry of such a request kills one more replica. Requests that merely stood beside it move
together and may be blocked with it: a few exact requests are refused for an hour, which is a
smaller loss than the third replica.

The notes belong to the request, not to the replica: platforms replace a dead replica by one with
another name, and forgetting the dead one would forget which request killed it. They are bounded by
number and by age instead. Rejected: waiting for a third death to be sure. The third is the one to
prevent.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import RequestDied
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import MILLISECOND, nanos, require, seconds

_FINGERPRINTS_MAX: Final = 4_096  # noted; the one that died longest ago goes first
_BLOCKED_MAX: Final = 512  # five for one request; the one that is freed soonest goes first
_DEATHS_MAX: Final = 8  # replicas noted for one request
_SAME_MOMENT: Final = 50 * MILLISECOND  # on one host: whatever took both down, it was the host


@dataclass(slots=True, frozen=True)
class PoisonConfig:
    """How many deaths mark a request as deadly, and for how long it is refused."""

    deaths: int = 2  # of different replicas: one may be chance, a third would be our fault
    within_s: float = 600.0  # clients that retry by themselves come back within minutes
    block_s: float = 3_600.0  # by then somebody has looked at the incident

    def __post_init__(self) -> None:
        fits = 2 <= self.deaths <= _DEATHS_MAX
        require(fits, "poison.deaths", f"is {self.deaths}", f"use 2 to {_DEATHS_MAX}")
        for name in ("within_s", "block_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"poison.{name}", f"is {value}", fix)


class PoisonDetector:
    """Finds requests that were running when several replicas died.

    It lists their fingerprints in ``blocked``; gateways do the refusing.
    """

    reads: ClassVar[tuple[type, ...]] = (RequestDied,)

    def __init__(self, config: PoisonConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._within = nanos(config.within_s)
        self._block = nanos(config.block_s)
        # Per fingerprint: when which replica died with it, and on which host.
        self._deaths: OrderedDict[str, dict[str, tuple[int, str]]] = OrderedDict()
        self._blocked: dict[str, int] = {}
        self._paces: dict[str, Pace] = {}
        self._now = 0

    @property
    def blocked(self) -> dict[str, int]:
        """Fingerprints of refused requests, and until when each is refused (core time)."""
        now = self._now
        self._blocked = {one: until for one, until in self._blocked.items() if until > now}
        return dict(self._blocked)

    def take(self, fact: RequestDied, now: int) -> Sequence[Evidence]:
        """Take one request that was on a replica at its death; return a sign if it killed before.

        Then its fingerprint is in ``blocked`` for an hour by default.
        """
        self._now = now = max(now, self._now)  # a clock that steps back frees nobody
        if not fact.fingerprint:
            return NOTHING
        deaths = self._note(fact, now)
        if _counted(deaths) < self._config.deaths:
            return NOTHING
        self._blocked.pop(fact.fingerprint, None)
        self._blocked[fact.fingerprint] = now + self._block
        while len(self._blocked) > _BLOCKED_MAX:
            self._blocked.pop(next(iter(self._blocked)))
        pace = self._paces.setdefault(fact.replica, Pace())
        if not pace.due(Sign.SAME_REQUEST_KILLS, now):
            return NOTHING
        names = ", ".join(deaths)
        minutes = seconds(self._within) / 60
        text = (
            f"one request was on the deaths of {len(deaths)} replicas ({names}) within "
            f"{minutes:.0f} min; it is refused for {seconds(self._block) / 60:.0f} min"
        )
        numbers = {"replicas": float(len(deaths))}
        about = self._census.about(fact.replica)
        return [Evidence(Sign.SAME_REQUEST_KILLS, about, now, "gateway", text, numbers)]

    def forget(self, replica: str) -> None:
        """Drop a replica's own records; deaths stay recorded with the request."""
        self._paces.pop(replica, None)

    def _note(self, fact: RequestDied, now: int) -> dict[str, tuple[int, str]]:
        known = self._deaths.pop(fact.fingerprint, {})
        deaths = {name: death for name, death in known.items() if now - death[0] <= self._within}
        deaths.pop(fact.replica, None)
        while len(deaths) >= _DEATHS_MAX:
            deaths.pop(next(iter(deaths)))
        deaths[fact.replica] = (now, self._census.about(fact.replica).host)
        self._deaths[fact.fingerprint] = deaths  # last: the order is that of the latest death
        while len(self._deaths) > _FINGERPRINTS_MAX:
            self._deaths.popitem(last=False)
        return deaths


def _counted(deaths: dict[str, tuple[int, str]]) -> int:
    """Deaths that are not one: replicas of one host that went down in the same moment are."""
    count = 0
    before: list[tuple[int, str]] = []
    for at, host in deaths.values():
        together = (
            bool(host) and host == other and at - then <= _SAME_MOMENT for then, other in before
        )
        count += not any(together)
        before.append((at, host))
    return count


__all__ = ["PoisonConfig", "PoisonDetector"]
