"""Finds the replica that answers differently from its peers, from repeated live requests.

When A and B disagree, one of them is wrong and it is not known which. Over many comparisons the
wrong one disagrees with several peers while those agree with each other:

    A with B, C, D: 4 of 45 disagree      B, C, D among each other: 0 of 45 ─► A is the odd one

Greedy output is not bit stable, so healthy replicas disagree, too. How often is learned from all
comparisons in which the suspect had no part, and each of its own weighs by how much likelier it is
for a replica that lies in a tenth of its answers than for that noise. The weights are summed, never
below zero (a CUSUM), so that an old good record does not hide what began a minute ago.

How much is enough depends on the noise. Where the others hardly ever disagree three disagreements
will do; where they do, or it is not known yet, more are needed: the sum is fooled by chance about
once in e^threshold rows of comparisons, and noise begins many rows. Once one is named it explains
the disagreements of its peers with it, and a second one can be found among the rest.

Rejected: counting disagreements alone. With 3 % of noise every replica reaches any count. Rejected:
a test over a fixed window. What happened before the fault dilutes it, and every window is another
chance of a false alarm. A disagreement never acts alone: it calls canaries, elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import Compared, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import nanos, require

_PAIRS_MAX: Final = 4_096  # of one model; the pair compared longest ago goes first
_MODELS_MAX: Final = 1_024  # the one compared longest ago goes first
_MEMORY: Final = 4_000  # comparisons of one model; beyond it all counts are halved
_SUM_MAX: Final = 2.0  # times the threshold: proof beyond it would only make it slow to forgive

_NOISE_MIN: Final = 0.002  # however clean the past: two disagreements are never enough
# Disagreements and agreements assumed before any is seen: 3.6 %.
_NOISE_BEFORE: Final[tuple[float, float]] = (1.5, 40.0)


@dataclass(slots=True, frozen=True)
class ComparisonConfig:
    """Settings of ``PeerComparison``: how much disagreement with peers is more than chance.

    Checked when built: raises ``ConfigError``.
    """

    wrong_share: float = 0.1  # of its answers: what a partly broken replica gets wrong
    enough_quiet: float = 8.0  # sum where peers hardly ever disagree: three disagreements
    enough_noisy: float = 13.0  # elsewhere: shared noise of 3 % missed it in 60 simulated hours
    quiet_share: float = 0.003  # up to this much noise peers hardly ever disagree
    noise_max: float = 0.05  # where peers disagree more than this, comparing them tells nothing
    others_min: int = 30  # comparisons among the others: fewer know nothing of the noise
    peers_min: int = 2  # that it disagrees with; one peer could be the liar itself
    idle_s: float = 600.0  # without a comparison: then it has nothing against it any more

    def __post_init__(self) -> None:
        for name in ("wrong_share", "quiet_share", "noise_max"):
            value = getattr(self, name)
            fix = "use a share between 0 and 1"
            require(0 < value < 1, f"comparison.{name}", f"is {value}", fix)
        quiet, noisy = self.enough_quiet, self.enough_noisy
        require(quiet >= 3, "comparison.enough_quiet", f"is {quiet}", "use 3 or more")
        fix = "use enough_quiet or more"
        require(noisy >= quiet, "comparison.enough_noisy", f"is {noisy}", fix)
        others, peers = self.others_min, self.peers_min
        require(others >= 1, "comparison.others_min", f"is {others}", "use 1 or more")
        require(peers >= 2, "comparison.peers_min", f"is {peers}", "use 2 or more")
        idle = self.idle_s
        require(0 < idle <= 86_400, "comparison.idle_s", f"is {idle}", "use up to a day, above 0")


class _Suspicion:
    """What speaks against one replica, since nothing spoke against it last."""

    __slots__ = ("compared", "disagreed", "last", "named", "pace", "sum")

    def __init__(self) -> None:
        self.sum = 0.0
        self.compared = 0
        self.disagreed: dict[str, int] = {}  # by peer
        self.last = 0
        self.named = False
        self.pace = Pace()

    def clear(self) -> None:
        self.sum, self.compared, self.named = 0.0, 0, False
        self.disagreed.clear()
        self.pace.over(Sign.PEERS_DISAGREE)


class _Pool:
    """The replicas of one model and revision: each pair's record, and each one's suspicion."""

    __slots__ = ("pairs", "suspicions")

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str], list[float]] = {}  # disagreed, compared
        self.suspicions: dict[str, _Suspicion] = {}

    def count(self, one: str, other: str, *, agreed: bool) -> None:
        pair = (min(one, other), max(one, other))
        record = self.pairs.pop(pair, None) or [0.0, 0.0]
        record[0] += not agreed
        record[1] += 1
        self.pairs[pair] = record  # last: the order is that of the latest comparison
        while len(self.pairs) > _PAIRS_MAX:
            del self.pairs[next(iter(self.pairs))]
        if sum(record[1] for record in self.pairs.values()) > _MEMORY:
            for record in self.pairs.values():
                record[0] /= 2
                record[1] /= 2

    def others(self, replica: str) -> tuple[float, float]:
        """Disagreements and comparisons in which neither it nor a named one had a part."""
        out = {name for name, suspicion in self.suspicions.items() if suspicion.named} | {replica}
        records = [record for pair, record in self.pairs.items() if out.isdisjoint(pair)]
        return sum(record[0] for record in records), sum(record[1] for record in records)

    def drop(self, replica: str) -> None:
        self.suspicions.pop(replica, None)
        for pair in [pair for pair in self.pairs if replica in pair]:
            del self.pairs[pair]
        for suspicion in self.suspicions.values():
            suspicion.disagreed.pop(replica, None)


class PeerComparison:
    """Finds the replica whose answers differ from those of its peers while these agree.

    Keeps each pair's counts and a sum of suspicion per replica, by model and revision.
    """

    reads: ClassVar[tuple[type, ...]] = (Compared, ProcessEnded)

    def __init__(self, config: ComparisonConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._idle = nanos(config.idle_s)
        self._pools: dict[tuple[str, str], _Pool] = {}

    def take(self, fact: Compared | ProcessEnded, now: int) -> Sequence[Evidence]:
        """Take whether two replicas' answers agreed, or a process end; return the odd one's sign.

        Empty for agreement, across models or revisions, and until one disagrees with two peers
        clearly more than the others do with each other. An end drops all comparisons of its
        replica.
        """
        if isinstance(fact, ProcessEnded):
            self.forget(fact.replica)  # what it got wrong it had in memory
            return NOTHING
        mine, theirs = self._census.about(fact.replica), self._census.about(fact.peer)
        key = (mine.model, mine.revision)
        # Another model or revision may answer otherwise.
        if fact.replica == fact.peer or key != (theirs.model, theirs.revision):
            return NOTHING
        pool = self._pools.pop(key, None) or _Pool()
        self._pools[key] = pool
        while len(self._pools) > _MODELS_MAX:
            del self._pools[next(iter(self._pools))]
        pool.count(fact.replica, fact.peer, agreed=fact.agreed)
        self._weigh(pool, fact.replica, fact.peer, agreed=fact.agreed, now=now)
        self._weigh(pool, fact.peer, fact.replica, agreed=fact.agreed, now=now)
        return NOTHING if fact.agreed else self._name(pool, (fact.replica, fact.peer), now)

    def forget(self, replica: str) -> None:
        """Drop every comparison that a replica took part in, those of its peers included."""
        for key, pool in tuple(self._pools.items()):
            pool.drop(replica)
            if not pool.suspicions:
                del self._pools[key]

    def _weigh(self, pool: _Pool, replica: str, peer: str, *, agreed: bool, now: int) -> None:
        suspicion = pool.suspicions.get(replica)
        if suspicion is None:
            suspicion = pool.suspicions[replica] = _Suspicion()
        elif now - suspicion.last > self._idle:
            suspicion.clear()
        suspicion.last = now
        known = pool.suspicions.get(peer)
        if known is not None and known.named and not suspicion.named:
            return  # the peer explains it
        disagreed, compared = pool.others(replica)
        assumed_bad, assumed_good = _NOISE_BEFORE
        noise = (assumed_bad + disagreed) / (assumed_bad + assumed_good + compared)
        noise = max(noise, _NOISE_MIN)
        lying = noise + self._config.wrong_share * (1 - noise)
        weight = log((1 - lying) / (1 - noise)) if agreed else log(lying / noise)
        most = _SUM_MAX * self._config.enough_noisy
        suspicion.sum = min(suspicion.sum + weight, most)
        if suspicion.sum <= 0:
            suspicion.clear()
            return
        suspicion.compared += 1
        if not agreed:
            suspicion.disagreed[peer] = suspicion.disagreed.get(peer, 0) + 1

    def _name(self, pool: _Pool, pair: tuple[str, str], now: int) -> Sequence[Evidence]:
        """The odd one of the two, where it is clear which."""
        odd, other = sorted(pair, key=lambda name: (-pool.suspicions[name].sum, name))
        suspicion, counter = pool.suspicions[odd], pool.suspicions[other]
        disagreed, compared = pool.others(odd)
        if len(suspicion.disagreed) < self._config.peers_min or compared < self._config.others_min:
            return NOTHING
        noise = (disagreed + 1) / (compared + 1)
        if noise > self._config.noise_max:
            return NOTHING
        quiet = noise <= self._config.quiet_share
        enough = self._config.enough_quiet if quiet else self._config.enough_noisy
        # Twice the other's: where both are odd it takes a third to tell.
        if suspicion.sum < enough or suspicion.sum < 2 * counter.sum:
            return NOTHING
        suspicion.named = True
        if not suspicion.pace.due(Sign.PEERS_DISAGREE, now):
            return NOTHING
        count = sum(suspicion.disagreed.values())
        text = (
            f"it disagreed with {len(suspicion.disagreed)} peers in {count} of "
            f"{suspicion.compared} comparisons; the others in {disagreed:.0f} of {compared:.0f}"
        )
        numbers = {
            "disagreed": float(count),
            "compared": float(suspicion.compared),
            "peers": float(len(suspicion.disagreed)),
            "others_disagreed": disagreed,
            "others_compared": compared,
        }
        about = self._census.about(odd)
        return [Evidence(Sign.PEERS_DISAGREE, about, now, "gateway", text, numbers)]


__all__ = ["ComparisonConfig", "PeerComparison"]
