"""Measures what canaries take on idle engines, and so how slow the host of a replica is.

    the others on its host, of whatever models, each: latest canaries / those usual for it
        └─► their middle is 1.2 and more ─► the host is slow, by as much as a neighbour may take

Nothing runs beside such canaries but what others run on the host. What is usual for a replica is
defined in ``core.health.baseline``.
"""

from collections import deque
from statistics import median
from typing import Final

from holdfast.core.diagnose.facts import CanaryAnswered
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.health.baseline import UsualLatency
from holdfast.core.types import nanos, seconds

# How long (ns) an engine on a slow host may stand nearly still. Beside a busy neighbour an engine
# was recorded at a sixth of its speed for ten seconds; alone on its host, never for two. From
# the first canary that such a stall makes late to the end of the last one it takes some longer.
STALL_BESIDE: Final = nanos(16.0)
NEIGHBOUR: Final = 1.25  # doublings of a latency (to 2.4 times) that a neighbour may cause

_SAMPLES_MIN: Final = 3  # canaries before they are compared
_LATEST: Final = 5  # canaries, of whose latencies the median is the replica's present one
_HOST_SLOW: Final = 1.2  # × usual latency: canaries of healthy hosts vary by less


class _Book:
    __slots__ = ("latest", "latest_at", "usual")

    def __init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=_LATEST)  # latencies (s)
        self.latest_at = 0
        self.usual = UsualLatency()  # latencies of right answers that came in good time

    def usual_s(self, least: int) -> float | None:
        return seconds(self.usual.median()) if len(self.usual) >= least else None

    def slowed(self, now: int, fresh: int) -> float | None:
        """How many times as long as usual its canaries take now; ``None`` = not known."""
        usual_s = self.usual_s(_SAMPLES_MIN)
        known = len(self.latest) >= _SAMPLES_MIN and 0 <= now - self.latest_at <= fresh
        return median(self.latest) / usual_s if known and usual_s else None


class IdleCanaries:
    """How long canaries take where nothing runs beside them: by replica, and by host.

    ``fresh`` (ns) is how long the latest of them tell of the present. Keeps a book for each replica
    until it is forgotten.
    """

    def __init__(self, census: ReplicaRegistry, fresh: int) -> None:
        self._census = census
        self._fresh = fresh
        self._books: dict[str, _Book] = {}

    def add(self, fact: CanaryAnswered, now: int, *, usual: bool) -> None:
        """Add a canary's right answer, unless requests ran beside it.

        ``usual``: the answer came in good time, so its latency counts as usual for the replica.
        """
        if not fact.latency_s or fact.running:
            return
        book = self._books.get(fact.replica)
        if book is None:
            book = self._books[fact.replica] = _Book()
        book.latest.append(fact.latency_s)
        book.latest_at = now
        if usual:
            book.usual.add(nanos(fact.latency_s))

    def forget(self, replica: str) -> None:
        """Drop what is known of a replica: it left, or its process ended."""
        self._books.pop(replica, None)

    def usual_s(self, replica: str, least: int = _SAMPLES_MIN) -> float | None:
        """Return what its answers usually take (s); ``None``: fewer than ``least`` are known."""
        book = self._books.get(replica)
        return None if book is None else book.usual_s(least)

    def host_slowness(self, replica: str, now: int) -> float:
        """Return how many times as long the others on its host take than each of them did.

        1 = as usual, at most what a neighbour may take. 1 where its host is not known, or nobody
        else is there.
        """
        host = self._census.about(replica).host
        names = self._census.on_host(host) if host else []
        books = [self._books[name] for name in names if name != replica and name in self._books]
        known = [one for book in books if (one := book.slowed(now, self._fresh)) is not None]
        slowness = median(known) if known else 1.0
        return min(slowness, 2**NEIGHBOUR) if slowness >= _HOST_SLOW else 1.0


__all__ = ["NEIGHBOUR", "STALL_BESIDE", "IdleCanaries"]
