"""Detects memory reservations and limits that are smaller than what a replica needs.

The two fail in different ways. Too small a *reservation* lets the scheduler put too much on one
host, and memory runs out for the replica that allocates last. Too small a *limit* has the kernel
kill the replica, as a rule when it takes its first request, and again after each restart.

    footprint = the most of
        measured    the peak of its host memory, over all its lives
        declared    (weights + KV cache) × 1.1 for buffers + 0.3 GB, where these lie in host memory
        its peers   the peak of another replica of the same deployment, once this one was killed
        its death   at least its limit, when the kernel killed it there

Declared weights are no sign while it is unknown where they lie: on a GPU they cost the host
nothing. After a kill they are taken for what they are, the likeliest number there is. A replica
that lived long before it was killed grew or met a large request; one such end says nothing of its
size, unless a peer is seen to use more than its limit.

Rejected: the mean of what is used. Memory is not shared out by averages. Rejected: the limit as the
footprint of a replica that came near it; engines fill what they are given.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.detect.silence import COMPILE, LOADING, STARTING, WARM_UP
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import Declared, Looked, MemorySeen, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import nanos, require

GB: Final = 1_000_000_000
_SOURCE: Final = "sizing"
_SIGNS: Final = (Sign.RESERVED_TOO_LITTLE, Sign.LIMIT_TOO_LOW)
_BEFORE_SERVING: Final = (STARTING, LOADING, COMPILE, WARM_UP)
_MEASURED: Final = "measured"
_DECLARED: Final = "by its weights, cache and buffers"
_OF_PEERS: Final = "measured on a peer"
_AT_LEAST: Final = "at least"
_FLAGS: Final = {  # how it is known, as a name for the fix
    _MEASURED: "measured",
    _OF_PEERS: "of_peers",
    _DECLARED: "declared",
    _AT_LEAST: "at_least",
}


@dataclass(slots=True, frozen=True)
class MemoryLimitConfig:
    """Settings: how a replica's need for host memory is estimated and compared with its limits.

    Checked when built: raises ``ConfigError``.
    """

    tolerance: float = 1.05  # of a reservation; a few per cent over it crowd nobody out
    headroom: float = 1.10  # on the footprint: 3.5 GB measured is 4 GB to set
    step_bytes: int = 500_000_000  # suggestions are rounded up to it: people set halves of a GB
    unknown_factor: float = 2.0  # on the limit, where the footprint is only known to exceed it
    buffers: float = 0.10  # of weights and cache: activations, generation buffers, fragments
    overhead_bytes: int = 300_000_000  # runtime, libraries and the system's share of a process
    soon_s: float = 600.0  # killed after a longer life than this: one end is no question of size
    again_s: float = 3_600.0  # unless it had been killed within this time before
    recent_s: float = 600.0  # a kill speaks for so long; then it has lived with its limit
    near: float = 0.90  # of the limit used when it was killed without a witness: memory it was

    def __post_init__(self) -> None:
        for name in ("tolerance", "headroom", "unknown_factor"):
            value = getattr(self, name)
            require(1 <= value <= 10, f"sizing.{name}", f"is {value}", "use 1 to 10")
        for name in ("buffers", "near"):
            value = getattr(self, name)
            require(0 < value < 1, f"sizing.{name}", f"is {value}", "use a share between 0 and 1")
        for name in ("soon_s", "again_s", "recent_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"sizing.{name}", f"is {value}", fix)
        stepped = self.step_bytes >= 1
        require(stepped, "sizing.step_bytes", f"is {self.step_bytes}", "use 1 or more")
        good = self.overhead_bytes >= 0
        require(good, "sizing.overhead_bytes", f"is {self.overhead_bytes}", "use 0 or more")


@dataclass(slots=True)
class _Book:
    declared: Declared
    peak: int = 0  # over all lives
    peak_life: int = 0  # of this one
    used: int | None = None  # last seen of this life
    limit_seen: int | None = None
    killed_at: int | None = None
    at_limit: bool = False  # the kill says that it needs more than its limit
    of_peers: int = 0  # their peak when it was killed

    @property
    def limit(self) -> int | None:
        declared = self.declared.limit_bytes
        return self.limit_seen if declared is None else declared


class MemoryLimitDetector:
    """Finds replicas whose host memory reservation or limit is below what they need.

    Keeps per replica the peak over all its lives and its last kill for memory; GPU memory does not
    count.
    """

    reads: ClassVar[tuple[type, ...]] = (Declared, MemorySeen, ProcessEnded, Looked)

    def __init__(self, config: MemoryLimitConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._books: dict[str, _Book] = {}  # as many as the census holds
        self._open: dict[str, None] = {}
        self._pace = Pace()

    def take(
        self, fact: Declared | MemorySeen | ProcessEnded | Looked, now: int
    ) -> Sequence[Evidence]:
        """Take a declaration, a measurement, a process end or a tick; return evidence now due.

        ``RESERVED_TOO_LITTLE`` and ``LIMIT_TOO_LOW``, with the size to set, repeated at ticks while
        they hold.
        """
        if isinstance(fact, Looked):
            return [said for name in tuple(self._open) for said in self._judge(name, now)]
        known = self._census.replicas.get(fact.replica)
        if known is None:
            return NOTHING
        book = self._books.get(fact.replica)
        if book is None:
            book = self._books[fact.replica] = _Book(known)
        if isinstance(fact, Declared):
            self._ordered(book, fact)
        elif isinstance(fact, MemorySeen):
            if fact.device != "host":
                return NOTHING  # a GPU's memory is neither reserved nor limited here
            book.used = fact.used_bytes
            book.peak_life = max(book.peak_life, fact.used_bytes)
            book.peak = max(book.peak, fact.used_bytes)
            book.limit_seen = fact.limit_bytes or book.limit_seen
        else:
            self._ended(book, fact, now)
        return list(self._judge(fact.replica, now))

    def forget(self, replica: str) -> None:
        """Drop the memory peaks and kills of a replica that left the fleet; ends keep them."""
        self._books.pop(replica, None)
        self._over(replica)

    def _over(self, replica: str) -> None:
        self._open.pop(replica, None)
        for sign in _SIGNS:
            self._pace.over((sign, replica))

    def _ordered(self, book: _Book, fact: Declared) -> None:
        was = book.declared
        book.declared = fact
        if (was.model, was.revision) != (fact.model, fact.revision):
            book.peak = book.peak_life = 0
            book.used = book.limit_seen = book.killed_at = None
        elif was.limit_bytes != fact.limit_bytes:
            book.killed_at = None  # it died under another limit

    def _ended(self, book: _Book, fact: ProcessEnded, now: int) -> None:
        limit = book.limit
        killed = fact.oom or (
            (fact.signal == 9 or fact.code in (137, -9))
            and book.used is not None
            and limit is not None
            and book.used >= self._config.near * limit
        )
        if killed and not fact.asked:
            peers = (self._books.get(name) for name in self._census.peers(fact.replica))
            of_peers = max((one.peak for one in peers if one is not None), default=0)
            outgrown = limit is not None and of_peers > limit  # then its life may be of any length
            if outgrown or self._speaks_of_size(book, fact, now):
                book.killed_at, book.of_peers = now, of_peers
                book.at_limit = limit is not None and not self._crowded_out(book, limit)
        book.used, book.peak_life = None, 0

    def _speaks_of_size(self, book: _Book, fact: ProcessEnded, now: int) -> bool:
        if book.killed_at is not None and now - book.killed_at < nanos(self._config.again_s):
            return True
        short = fact.uptime_s is None or fact.uptime_s < self._config.soon_s
        return short or fact.phase in _BEFORE_SERVING

    def _crowded_out(self, book: _Book, limit: int) -> bool:
        """Its host ran out, not its limit: seen well below the one and above what it reserved."""
        reserved = book.declared.reserved_bytes
        below = 0 < book.peak_life < self._config.near * limit
        return below and reserved is not None and book.peak_life > reserved

    def _estimate(self, book: _Book, *, killed: bool) -> int:
        one = book.declared
        host = self._census.hosts.get(one.host)
        certain = one.needs_gpu is False or (host is not None and host.gpus == 0)
        likely = killed and one.needs_gpu is None
        if one.weights_bytes is None or not (certain or likely):
            return 0
        held = one.weights_bytes + (one.kv_bytes or 0)
        return round(held * (1 + self._config.buffers)) + self._config.overhead_bytes

    def _footprint(self, book: _Book, now: int) -> tuple[int, str]:
        at = book.killed_at
        killed = at is not None and now - at < nanos(self._config.recent_s)
        best, how = book.peak, _MEASURED
        if (estimate := self._estimate(book, killed=killed)) > best:
            best, how = estimate, _DECLARED
        if killed and book.of_peers > best:
            best, how = book.of_peers, _OF_PEERS
        limit = book.limit
        if killed and book.at_limit and limit is not None and limit >= best:
            best, how = limit, _AT_LEAST
        return best, how

    def _judge(self, replica: str, now: int) -> Iterator[Evidence]:
        book = self._books[replica]
        footprint, how = self._footprint(book, now)
        bounds = (book.declared.reserved_bytes, book.limit)
        slack = (self._config.tolerance, 1.0)
        wrong = False
        for sign, bound, factor in zip(_SIGNS, bounds, slack, strict=True):
            short = bound is not None and (
                footprint >= bound if how is _AT_LEAST else footprint > bound * factor
            )
            if not short:
                self._pace.over((sign, replica))
                continue
            wrong = True
            if self._pace.due((sign, replica), now):
                yield self._say(sign, replica, footprint, how, now)
        if wrong:
            self._open[replica] = None
        else:
            self._over(replica)

    def _say(self, sign: Sign, replica: str, footprint: int, how: str, now: int) -> Evidence:
        config, book = self._config, self._books[replica]
        reserved, limit = book.declared.reserved_bytes, book.limit
        factor = config.unknown_factor if how is _AT_LEAST else config.headroom
        steps = ceil(footprint * factor / config.step_bytes - 1e-9)
        suggested = steps * config.step_bytes
        low = sign is Sign.LIMIT_TOO_LOW
        named, bound = ("limit", limit) if low else ("reservation", reserved)
        assert bound is not None
        size = f"{footprint / GB:.1f} GB"
        needs = f"{how} {size}, it was killed there" if how is _AT_LEAST else f"{size} {how}"
        text = f"memory {named} {bound / GB:.1f} GB, footprint {needs}: set {suggested / GB:g} GB"
        numbers = {
            "footprint_bytes": float(footprint),
            "suggested_bytes": float(suggested),
            _FLAGS[how]: 1.0,
        }
        if reserved is not None:
            numbers["reserved_bytes"] = float(reserved)
        if limit is not None:
            numbers["limit_bytes"] = float(limit)
        return Evidence(sign, self._census.about(replica), now, _SOURCE, text, numbers)


__all__ = ["GB", "MemoryLimitConfig", "MemoryLimitDetector"]
