"""Detects a request that kills replicas: one fingerprint present at the deaths of two.

    death of r1 with f on it ─► f is noted
    death of r2 with f on it ─► within ten minutes: SAME_REQUEST_KILLS, and f is blocked for an hour

A gateway tells several names of one request: its fingerprint, and marks that a nonce leaves as they
are. Each is noted by itself, so that requests that differ in a nonce alone are one request here.

Each retry of such a request kills one more replica. Requests that merely stood beside it move
together and may be blocked with it: a few exact requests are refused for an hour, which is a
smaller loss than the third replica.

A host that is lost takes all its replicas along, with everything that ran on them, and many of
those requests are alike. So replicas of one host that died within two seconds of each other, by the
clock of the gateway that saw it, died once; and what died with a host that its platform gave up is
laid to the host, also where the platform says so later: blocks that rest on it are lifted. Where
all replicas of a model share one host, two seconds would let a request kill most of them unseen:
there only what dies in the same moment died once.

The notes belong to the request, not to the replica: platforms replace a dead replica by one with
another name, and forgetting the dead one would forget which request killed it. They are bounded by
number and by age instead. Rejected: waiting for a third death to be sure. The third is the one to
prevent.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import HostConditionSeen, ProcessEnded, RequestDied
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.request.active_request import HOST_TOGETHER
from holdfast.core.types import MILLISECOND, SECOND, HostCondition, nanos, require, seconds

_FINGERPRINTS_MAX: Final = 4_096  # noted; the one that died longest ago goes first
_BLOCKED_MAX: Final = 512  # five for one request; the one that is freed soonest goes first
_DEATHS_MAX: Final = 8  # replicas noted for one request
_SAME_MOMENT: Final = 50 * MILLISECOND  # on one host: whatever took both down, it was the host
# A platform gives a host up some time after its death (a kubelet's silence: 50 s), and an engine
# there may end after that (of a node that only Ray has lost: 20 s).
_LOST_BEFORE: Final = 60 * SECOND
_LOST_AFTER: Final = 30 * SECOND
_LOST_MAX: Final = 1_024  # replicas and hosts remembered as lost, the latest


@dataclass(slots=True, frozen=True)
class PoisonConfig:
    """Settings: how many deaths, in which time, block a request, and for how long.

    Checked when built: raises ``ConfigError``.
    """

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

    Keeps recent deaths by fingerprint, for the whole fleet. It lists fingerprints in ``blocked``;
    gateways do the refusing.
    """

    reads: ClassVar[tuple[type, ...]] = (RequestDied, ProcessEnded, HostConditionSeen)

    def __init__(self, config: PoisonConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._within = nanos(config.within_s)
        self._block = nanos(config.block_s)
        # Per fingerprint: when which replica died with it, and on which host.
        self._deaths: OrderedDict[str, dict[str, tuple[int, str]]] = OrderedDict()
        self._lost: dict[str, int] = {}  # replicas that were lost with their host, and when
        self._lost_hosts: dict[str, int] = {}
        self._blocked: dict[str, int] = {}
        self._paces: dict[str, Pace] = {}
        self._now = 0

    @property
    def blocked(self) -> dict[str, int]:
        """Fingerprints to refuse, and until when each is (core time, ns); a new dict.

        Expired ones are dropped, by the time of the latest fact.
        """
        now = self._now
        self._blocked = {one: until for one, until in self._blocked.items() if until > now}
        return dict(self._blocked)

    def take(
        self, fact: RequestDied | ProcessEnded | HostConditionSeen, now: int
    ) -> Sequence[Evidence]:
        """Take a request that was on a replica at its death; block it from the second death on.

        Returns ``SAME_REQUEST_KILLS`` then. Replicas lost with their host do not count: an end or a
        host's condition that says so lifts blocks that rest on them.
        """
        self._now = now = max(now, self._now)  # a clock that steps back frees nobody
        if isinstance(fact, ProcessEnded):
            if fact.host_lost:
                self._lose(self._lost, fact.replica, now)
            return NOTHING
        if isinstance(fact, HostConditionSeen):
            if fact.condition is HostCondition.UNREACHABLE:
                self._lose(self._lost_hosts, fact.host, now)
            else:
                self._lost_hosts.pop(fact.host, None)
            return NOTHING
        if not fact.fingerprint:
            return NOTHING
        died = now - nanos(fact.ago_s)
        host = self._census.about(fact.replica).host
        if self._with_host(fact.replica, host, died):
            return NOTHING
        deaths = self._note(fact, (died, host), now)
        if self._counted(deaths) < self._config.deaths:
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
        """Forget when a sign was last reported of a replica; deaths and blocks stay."""
        self._paces.pop(replica, None)

    def _with_host(self, replica: str, host: str, died: int) -> bool:
        """Whether a replica that died then went with its host, by all that is known now."""
        lost = (self._lost.get(replica), self._lost_hosts.get(host) if host else None)
        return any(at is not None and at - _LOST_BEFORE <= died <= at + _LOST_AFTER for at in lost)

    def _lose(self, lost: dict[str, int], name: str, now: int) -> None:
        """Note that a replica or host was lost; what was laid to requests there is taken back."""
        if name in lost and lost is self._lost_hosts:  # said again while it lasts
            return
        lost.pop(name, None)
        lost[name] = now
        while len(lost) > _LOST_MAX:
            del lost[next(iter(lost))]
        for fingerprint, deaths in list(self._deaths.items()):
            kept = {
                replica: death
                for replica, death in deaths.items()
                if not self._with_host(replica, death[1], death[0])
            }
            if len(kept) == len(deaths):
                continue
            if kept:
                self._deaths[fingerprint] = kept
            else:
                del self._deaths[fingerprint]
            if self._counted(kept) < self._config.deaths:
                self._blocked.pop(fingerprint, None)

    def _counted(self, deaths: Mapping[str, tuple[int, str]]) -> int:
        """Deaths that are not one: replicas of one host that went down together are."""
        count = 0
        before: list[tuple[int, str]] = []
        for replica, (at, host) in deaths.items():
            gaps = [abs(at - then) for then, other in before if host and other == host]
            together = bool(gaps) and min(gaps) <= HOST_TOGETHER
            if together and min(gaps) > _SAME_MOMENT:
                together = self._served_elsewhere(replica, host)
            count += not together
            before.append((at, host))
        return count

    def _served_elsewhere(self, replica: str, host: str) -> bool:
        """Whether the model of a replica has replicas on other hosts, too."""
        model = self._census.about(replica).model
        others = self._census.replicas.values()
        return any(one.model == model and one.host not in {"", host} for one in others)

    def _note(
        self, fact: RequestDied, death: tuple[int, str], now: int
    ) -> dict[str, tuple[int, str]]:
        known = self._deaths.pop(fact.fingerprint, {})
        deaths = {name: one for name, one in known.items() if now - one[0] <= self._within}
        deaths.pop(fact.replica, None)
        while len(deaths) >= _DEATHS_MAX:
            deaths.pop(next(iter(deaths)))
        deaths[fact.replica] = death
        self._deaths[fact.fingerprint] = deaths  # last: the order is that of the latest death
        while len(self._deaths) > _FINGERPRINTS_MAX:
            self._deaths.popitem(last=False)
        return deaths


__all__ = ["PoisonConfig", "PoisonDetector"]
