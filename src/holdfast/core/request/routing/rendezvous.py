"""Rendezvous hashing: all gateways find the same home replica for a key, with a load bound.

Every key ranks the replicas by a hash of (key, replica); the first that can take the request is its
home. Gateways need to share nothing, and when a replica leaves, only its own keys move. Keys fall
into a fixed number of buckets, and a bucket's ranking is computed once for all replicas ever seen:
a breaker that opens and closes costs nothing, since a ranking simply skips who is absent. Declared
capacity enters the ranking (a replica twice as large is home to twice the keys); health's share
does not, or keys would wander during each slow start.

Affinity without a bound sends a popular key's whole traffic to one replica. So a candidate whose
load, ``(in flight + 1) / weight``, exceeds a factor times the mean passes the request to the next
in the key's own ranking: what overflows has a second home, not a random one, and this gateway
remembers it, so that the key goes on where it went. A key with nothing cached yet moves at a lower
load than one that returns: moving it costs nothing. Below ``slack`` nobody overflows, because two
requests here and none there is no reason to recompute a prompt. Health acts through the bound: a
suspect at a tenth of its weight is over it with its first request.

A request count does not see that one prompt takes as long as fifty others. Where the caller says
how many tokens the home would save, the home is also left for the replica with least prompt work
waiting, if that is less by more than so much; all are looked at only where the home has more.

Rejected: a ring with virtual nodes. It needs hundreds of points per replica to be even, and its
overflow lands on one neighbour.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING, Final

from holdfast.core.request.routing.policy import Choice
from holdfast.core.types import require

if TYPE_CHECKING:
    from holdfast.core.request.candidate import Candidate

_MASK: Final = (1 << 64) - 1
_BUCKETS: Final = 4096  # a power of two; 64 replicas are home to 64 ± 8 buckets each
_ABSENT_MAX: Final = 64  # replicas ranked that are not in the list; beyond, they are forgotten

_MOVED_MAX: Final = 4096  # keys remembered away from home; beyond, the oldest goes home again

_HOME: Final = "its home"
_NEXT: Final = "next in its ranking: home busy or tried"
_STAYS: Final = "where it was moved to before"
_FREER: Final = "less prompt work waits there than its home would save"


def mix(value: int) -> int:
    """Spread the bits of a 64-bit integer: inputs that differ little end far apart.

    Deterministic.
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def stable_hash(text: str) -> int:
    """The same 64 bits for the same text in every process, unlike ``hash``."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(slots=True, frozen=True)
class LoadBound:
    """The most load that a key's home replica takes before requests go to the next one.

    Not checked when built; see ``check``.
    """

    load_factor: float = 1.25  # of the mean load, for a key with nothing cached: costs no reuse
    return_factor: float = 2.0  # of the mean load, for a key that returns: a recompute is dear
    slack: float = 4.0  # requests per weight taken in any case: any engine batches as many

    def check(self, owner: str) -> None:
        """Raise ``ConfigError`` for values that cannot work.

        ``owner`` names the policy in the message.
        """
        field, fix = f"{owner}.load_factor", "use at least 1, the mean itself"
        require(self.load_factor >= 1, field, f"is {self.load_factor}", fix)
        field, fix = f"{owner}.return_factor", f"use load_factor, {self.load_factor}, or more"
        require(self.return_factor >= self.load_factor, field, f"is {self.return_factor}", fix)
        field, fix = f"{owner}.slack", "use 0 or more requests per unit of weight"
        require(self.slack >= 0, field, f"is {self.slack}", fix)


class Rendezvous:
    """Ranks the replicas for each key by hash and picks the first one under the load bound.

    Gateways agree on the ranking; keys that were moved away from home are remembered here only.
    """

    __slots__ = (
        "_known",
        "_list",
        "_load_factor",
        "_mean",
        "_mean_age",
        "_moved",
        "_present",
        "_rankings",
        "_return_factor",
        "_seeds",
        "_size",
        "_slack",
        "kept",
        "moved",
    )

    def __init__(self, bound: LoadBound) -> None:
        self._load_factor = bound.load_factor
        self._return_factor = bound.return_factor
        self._slack = bound.slack
        self._list: Sequence[Candidate] = ()
        self._size = 0
        self._known: dict[tuple[str, float], int] = {}  # (id, declared weight) to its number
        self._seeds: list[int] = []  # by number: the hash of the id, computed once
        self._present: list[Candidate | None] = []  # by number; None = not in this list
        self._rankings: list[array[int] | None] = [None] * _BUCKETS
        self._moved: dict[int, int] = {}  # key to the number of its second home
        self._mean = 0.0
        self._mean_age = 0  # looks until the mean load is computed again
        self.kept = 0
        self.moved = 0

    def pick(
        self,
        key: int,
        candidates: Sequence[Candidate],
        tried: Collection[str],
        *,
        returning: bool,
        saved: float | None = None,
    ) -> Choice | None:
        """The first in the key's ranking that is present, has room and is under the load bound.

        A key that was moved before stays where it went, if it can; ``None`` if no candidate
        qualifies. ``saved``: prompt tokens that the home need not compute: it is left for one with
        less prompt work waiting by more than that; ``None``: never.
        """
        if candidates is not self._list or len(candidates) != self._size:
            self._adopt(candidates)
        factor = self._return_factor if returning else self._load_factor
        present = self._present
        moved_to = self._moved.get(key)
        if moved_to is not None:
            candidate = present[moved_to]
            if candidate is not None and self._takes(candidate, tried, factor):
                return self._keep(key, candidate, _STAYS, tried, saved)
        bucket = mix(key) & (_BUCKETS - 1)
        home = True
        for number in self._rankings[bucket] or self._rank(bucket):
            candidate = present[number]
            if candidate is not None:
                if self._takes(candidate, tried, factor):
                    if home:
                        return self._keep(key, candidate, _HOME, tried, saved)
                    self._remember(key, number)
                    return candidate, _NEXT
                home = False
                factor = self._load_factor  # nothing of this key is cached further down
        return None

    def _keep(
        self, key: int, home: Candidate, reason: str, tried: Collection[str], saved: float | None
    ) -> Choice:
        """The home, unless the work that waits there costs more than it saves."""
        if saved is not None and home.prefill_tokens > saved * home.weight:
            freer = self._freer(key, home, tried, saved)
            if freer is not None:
                return freer, _FREER
        self.kept += 1
        return home, reason

    def _freer(
        self, key: int, home: Candidate, tried: Collection[str], saved: float
    ) -> Candidate | None:
        """Who has least prompt work waiting, of equals the first in the key's ranking."""
        least = home.prefill_tokens / home.weight - saved
        found: tuple[Candidate, int] | None = None
        bucket = mix(key) & (_BUCKETS - 1)
        for number in self._rankings[bucket] or self._rank(bucket):
            candidate = self._present[number]
            if candidate is None or candidate is home:
                continue
            work = candidate.prefill_tokens / candidate.weight
            if work < least and self._takes(candidate, tried, self._load_factor):
                least, found = work, (candidate, number)
        if found is None:
            return None
        self._remember(key, found[1])
        return found[0]

    def _takes(self, candidate: Candidate, tried: Collection[str], factor: float) -> bool:
        inflight = candidate.inflight
        if inflight >= candidate.limit or (tried and candidate.id in tried):
            return False
        load = (inflight + 1) / candidate.weight
        return load <= self._slack or load <= factor * self._mean_load()

    def _remember(self, key: int, number: int) -> None:
        moved = self._moved
        moved.pop(key, None)
        if len(moved) >= _MOVED_MAX:
            del moved[next(iter(moved))]
        moved[key] = number
        self.moved += 1

    def _mean_load(self) -> float:
        """Moves little in n / 8 looks, so that a look costs eight candidates, not all."""
        self._mean_age -= 1
        if self._mean_age < 0:
            requests = self._size  # one each: the load with this request, as compared
            weight = 0.0
            for candidate in self._list:
                requests += candidate.inflight
                weight += candidate.weight
            self._mean = requests / weight
            self._mean_age = self._size // 8
        return self._mean

    def _rank(self, bucket: int) -> array[int]:
        salt = mix(bucket)
        scores = []
        for (replica_id, weight), number in self._known.items():
            draw = mix(self._seeds[number] ^ salt)
            # Exponential with rate = weight: the smallest is a replica's with odds of its weight.
            scores.append((-log((draw + 1) / (_MASK + 2)) / weight, replica_id, number))
        scores.sort()
        ranking = array("H", [number for _, _, number in scores])
        self._rankings[bucket] = ranking
        return ranking

    def _adopt(self, candidates: Sequence[Candidate]) -> None:
        """A changed list: note who is present; only a replica never seen voids the rankings."""
        known = self._known
        keys = [(candidate.id, candidate.replica.weight) for candidate in candidates]
        new = [key for key in keys if key not in known]
        if new:
            if len(known) > len(keys) + _ABSENT_MAX:
                known.clear()
                self._seeds.clear()
                self._moved.clear()
                new = keys
            for key in new:
                known[key] = len(known)
                self._seeds.append(stable_hash(key[0]))
            self._rankings = [None] * _BUCKETS
        present: list[Candidate | None] = [None] * len(known)
        for key, candidate in zip(keys, candidates, strict=True):
            present[known[key]] = candidate
        self._present = present
        self._list, self._size = candidates, len(keys)
        self._mean_age = 0


__all__ = ["LoadBound", "Rendezvous", "mix", "stable_hash"]
